/* The table of stored responses: id -> the engine that made it. */
#include "router/session/responses.h"

#include <assert.h>
#include <errno.h>
#include <xxhash.h>

/* Ids are made by engines, hard to guess and no secret of ours: no keyed hash. */
static struct session_key id_key(const void *id, size_t len)
{
	XXH128_hash_t hash = XXH3_128bits(id, len);

	return (struct session_key){ hash.low64 ? hash.low64 : 1, hash.high64 };
}

static int id_valid(size_t len)
{
	return len > 0 && len <= RESPONSES_ID_MAX;
}

size_t responses_size(uint64_t entries)
{
	return table_size(entries, sizeof(struct response));
}

int responses_attach(struct responses *ret_responses, void *mem, size_t size, uint64_t *ret_dropped)
{
	struct table table;
	int err = table_attach(&table, mem, size, sizeof(struct response), ret_dropped);

	if (!err)
		*ret_responses = (struct responses){ .table = table };
	return err;
}

int responses_view(struct responses *ret_responses, const void *mem, size_t size)
{
	struct table table;
	int err = table_view(&table, mem, size, sizeof(struct response));

	if (!err)
		*ret_responses = (struct responses){ .table = table };
	return err;
}

int responses_clear(struct responses *ret_responses, void *mem, size_t size)
{
	struct table table;
	int err = table_clear(&table, mem, size, sizeof(struct response));

	if (!err)
		*ret_responses = (struct responses){ .table = table };
	return err;
}

int responses_put(struct responses *responses, const void *id, size_t len,
		  const struct response *response, struct session_time now)
{
	struct session_key key = id_key(id, len);
	struct response entry = *response;

	if (!id_valid(len))
		return -EINVAL;
	entry.check = key.check;
	entry.made_ns = now.ns;
	entry.made_wall_s = now.wall_s;
	table_put(&responses->table, key.key, now.ns, &entry, NULL);
	return 0;
}

/* As found, without regard to age. */
static int lookup(const struct responses *responses, const void *id, size_t len,
		  struct session_key *ret_key, struct response *ret_response)
{
	struct response entry;

	if (!id_valid(len))
		return -ENOENT;
	*ret_key = id_key(id, len);
	if (table_read(&responses->table, ret_key->key, &entry, NULL) ||
	    entry.check != ret_key->check)
		return -ENOENT;
	*ret_response = entry;
	return 0;
}

int responses_set_tokens(struct responses *responses, const void *id, size_t len, uint64_t tokens,
			 uint64_t now_ns)
{
	struct session_key key;
	struct response entry;

	if (lookup(responses, id, len, &key, &entry))
		return -ENOENT;
	entry.tokens = tokens;
	table_put(&responses->table, key.key, now_ns, &entry, NULL);
	return 0;
}

int responses_find(struct responses *responses, const void *id, size_t len, uint64_t now_ns,
		   struct response *ret_response)
{
	struct session_key key;
	struct response entry;

	if (lookup(responses, id, len, &key, &entry))
		return -ENOENT;
	if (responses->idle_ns && now_ns > entry.made_ns &&
	    now_ns - entry.made_ns > responses->idle_ns)
		return -ENOENT;
	if (responses->table.writable)
		table_find(&responses->table, key.key, now_ns);
	*ret_response = entry;
	return 0;
}

int responses_forget(struct responses *responses, const void *id, size_t len)
{
	struct session_key key;
	struct response entry;

	if (lookup(responses, id, len, &key, &entry))
		return 0;
	return table_erase(&responses->table, key.key);
}

uint32_t response_home(const struct response *response, const uint64_t *epochs, uint32_t engines)
{
	const struct session as_session = { .engine = response->engine, .epoch = response->epoch };

	return session_home(&as_session, epochs, engines);
}
