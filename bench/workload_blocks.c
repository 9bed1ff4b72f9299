/* Workloads from traces whose prompts are lists of block ids: Mooncake's and Qwen-Bailian's. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/workload_forms.h"
#include "shm/base/jread.h"

enum {
	MOONCAKE_BLOCK = 512,
	QWEN_BLOCK = 16,
	TAILS_MAX = 1 << 26,  /* block ids by which Mooncake's conversations are found */
	KEY_BLOCKS = 1 << 16, /* consecutive ids that are one text */
	SHARED_BLOCKS = 2,    /* what everybody's prompt begins with; a conversation shares more */
};

/* ---- chats: which session a chat id belongs to, a hash table ---- */

struct chats {
	uint64_t *chat;
	uint32_t *session; /* + 1; 0 = empty */
	size_t nr, room;
};

static size_t chat_at(const struct chats *c, uint64_t chat)
{
	size_t i = workload_key(7, chat) & (c->room - 1);

	while (c->session[i] && c->chat[i] != chat)
		i = (i + 1) & (c->room - 1);
	return i;
}

static uint32_t chat_get(const struct chats *c, uint64_t chat)
{
	return c->room ? c->session[chat_at(c, chat)] : 0;
}

static int chats_grow(struct chats *c)
{
	struct chats old = *c;

	c->room = old.room ? 2 * old.room : 1024;
	c->chat = calloc(c->room, sizeof(*c->chat));
	c->session = calloc(c->room, sizeof(*c->session));
	if (!c->chat || !c->session) {
		free(c->chat);
		free(c->session);
		*c = old;
		return -ENOMEM;
	}
	for (size_t i = 0; i < old.room; i++) {
		if (!old.session[i])
			continue;
		size_t at = chat_at(c, old.chat[i]);

		c->chat[at] = old.chat[i];
		c->session[at] = old.session[i];
	}
	free(old.chat);
	free(old.session);
	return 0;
}

static int chat_set(struct chats *c, uint64_t chat, uint32_t session)
{
	if (2 * c->nr >= c->room && chats_grow(c) < 0)
		return -ENOMEM;
	size_t i = chat_at(c, chat);

	c->nr += c->session[i] == 0;
	c->chat[i] = chat;
	c->session[i] = session + 1;
	return 0;
}

/* ---- Mooncake: the session of the longest known beginning, by the id of a prompt's last block */

struct tails {
	uint32_t *session; /* + 1 */
	size_t room;
};

static int tail_set(struct tails *t, uint64_t id, uint32_t session)
{
	if (id >= t->room) {
		size_t room = t->room ? t->room : 1 << 16;

		while (room <= id)
			room *= 2;
		uint32_t *grown = realloc(t->session, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		memset(grown + t->room, 0, (room - t->room) * sizeof(*grown));
		t->session = grown;
		t->room = room;
	}
	t->session[id] = session + 1;
	return 0;
}

/* ---- a prompt from its blocks ---- */

struct reader {
	struct workload *w;
	enum workload_form form;
	uint32_t block;
	struct tails tails;
	struct chats chats;
};

struct row {
	double at_s;
	uint64_t input, output, chat, parent;
	int root; /* it names no parent */
	struct jread ids;
	/* while its prompt is made: */
	uint32_t left, blocks, known;
	uint64_t last; /* full block */
};

/* Ids that follow each other are one text that goes on, and one segment. */
static int add_block(struct reader *r, struct row *row, uint32_t first_segment, uint64_t id)
{
	struct workload *w = r->w;
	uint32_t tokens = row->left < r->block ? row->left : r->block;
	struct workload_segment next = { workload_key(9, id / KEY_BLOCKS),
					 (uint32_t)(id % KEY_BLOCKS) * r->block, tokens };
	struct workload_segment *last =
		w->segments > first_segment ? &w->segment[w->segments - 1] : NULL;

	row->left -= tokens;
	row->blocks++;
	if (tokens == r->block) {
		row->last = id;
		if (row->blocks > SHARED_BLOCKS && id < r->tails.room && r->tails.session[id])
			row->known = r->tails.session[id];
	}
	if (last && last->key == next.key && last->at + last->tokens == next.at) {
		last->tokens += tokens;
		return 0;
	}
	return w->segments < FORMS_SEGMENTS_MAX ? workload_add_segment(w, next) : -E2BIG;
}

/* One entry of a list of ids: an id, or an inclusive range of them. */
static int add_entry(struct reader *r, struct row *row, uint32_t first_segment,
		     const struct jread *entry)
{
	uint64_t first, last;
	int err = 0;

	if (entry->type == JREAD_NUMBER) {
		if (jread_u64(entry, &first) < 0)
			return -EINVAL;
		last = first;
	} else if (jread_get_u64(entry, "[0]", &first) < 0 ||
		   jread_get_u64(entry, "[1]", &last) < 0) {
		return -EINVAL;
	}
	if (first > last || (r->form == WORKLOAD_FORM_MOONCAKE && last >= TAILS_MAX))
		return -EINVAL;
	for (uint64_t id = first; row->left > 0 && !err; id++) {
		err = add_block(r, row, first_segment, id);
		if (id == last)
			break;
	}
	return err;
}

static int add_prompt(struct reader *r, struct row *row, uint32_t first_segment)
{
	struct jread_walk walk;
	int err = 0;

	row->left = (uint32_t)row->input;
	jread_walk_begin(&walk, &row->ids);
	while (!err && row->left > 0 && jread_walk_next(&walk) > 0)
		err = add_entry(r, row, first_segment, &walk.value);
	if (!err && row->left > 0) /* fewer ids than the length says: the rest is nobody else's */
		err = workload_add_segment(
			r->w,
			(struct workload_segment){ workload_key(10, r->w->turns), 0, row->left });
	return err;
}

/* ---- rows ---- */

static int read_row(const struct reader *r, const struct jread *root, struct row *ret_row)
{
	static const char *const words[2][4] = {
		{ "timestamp", "input_length", "output_length", "hash_ids" },
		{ "[0]", "[1]", "[2]", "[3]" },
	};
	const char *const *word = words[root->type == JREAD_ARRAY];
	double time;

	*ret_row = (struct row){ .root = 1 };
	if (jread_get_f64(root, word[0], &time) < 0 ||
	    jread_get_u64(root, word[1], &ret_row->input) < 0 ||
	    jread_get_u64(root, word[2], &ret_row->output) < 0 ||
	    jread_get(root, word[3], &ret_row->ids) < 0 || ret_row->ids.type != JREAD_ARRAY)
		return -EINVAL;
	if (ret_row->input < 1 || ret_row->input > FORMS_TOKENS_MAX ||
	    ret_row->output > FORMS_TOKENS_MAX || !(time >= 0 && time < 1e12))
		return -EINVAL;
	ret_row->at_s = r->form == WORKLOAD_FORM_MOONCAKE ? time * 1e-3 : time;
	if (r->form == WORKLOAD_FORM_MOONCAKE)
		return 0;
	/* A root's parent is -1, which is no unsigned number. */
	ret_row->root = jread_get_u64(root, "parent_chat_id", &ret_row->parent) < 0;
	return jread_get_u64(root, "chat_id", &ret_row->chat) < 0 ? -EINVAL : 0;
}

/* A turn whose parent the file does not have begins a session here. */
static uint32_t session_of(struct reader *r, const struct row *row)
{
	if (r->form == WORKLOAD_FORM_QWEN)
		return row->root ? 0 : chat_get(&r->chats, row->parent);
	return row->known;
}

static int remember(struct reader *r, const struct row *row, uint32_t session)
{
	if (r->form == WORKLOAD_FORM_QWEN)
		return chat_set(&r->chats, row->chat, session);
	return row->blocks > SHARED_BLOCKS ? tail_set(&r->tails, row->last, session) : 0;
}

static int add_row(struct reader *r, struct row *row, const struct workload_pick *pick)
{
	struct workload *w = r->w;
	struct workload_turn turn = { .at_s = row->at_s,
				      .prompt_tokens = (uint32_t)row->input,
				      .output_tokens = row->output ? (uint32_t)row->output : 1,
				      .segment = (uint32_t)w->segments };
	int err = add_prompt(r, row, turn.segment);
	uint32_t known;

	if (err)
		return err;
	known = session_of(r, row);
	if (!known && !forms_may_begin(w, pick)) {
		w->segments = turn.segment;
		return 0;
	}
	if (!known) {
		err = workload_add_session(w, row->at_s);
		known = (uint32_t)w->sessions;
	}
	err = err ? err : remember(r, row, known - 1);
	if (err)
		return err;
	turn.session = known - 1;
	turn.turn = w->session[known - 1].turns + 1;
	turn.answer =
		(struct workload_segment){ workload_key(11, w->turns), 0, turn.output_tokens };
	return workload_add_turn(w, &turn);
}

static int take_line(struct reader *r, const struct lines *l, const struct workload_pick *pick,
		     char *why)
{
	struct jread root;
	struct row row;
	int err = 0;

	if (jread_open(&root, l->line, l->len) < 0)
		return forms_complain(why, l->number, "no JSON");
	if (read_row(r, &root, &row) < 0)
		return forms_complain(why, l->number, "not a request of the form %s",
				      workload_form_names[r->form]);
	if (r->w->turns >= FORMS_TURNS_MAX)
		err = -E2BIG;
	else if (row.input + row.output <= pick->context_max)
		err = add_row(r, &row, pick);
	if (err == -EINVAL)
		forms_complain(why, l->number, "its hash_ids are no ids or ranges of them");
	else if (err == -E2BIG)
		forms_complain(why, l->number, "more than is read of a file");
	return err;
}

int workload_blocks(struct workload *w, const char *path, enum workload_form form,
		    const struct workload_pick *pick, char why[WORKLOAD_WHY_MAX])
{
	struct reader r = { .w = w, .form = form, .block = pick->block };
	struct lines l;
	int more = 1, err = lines_open(&l, path, why);

	if (!r.block)
		r.block = form == WORKLOAD_FORM_QWEN ? QWEN_BLOCK : MOONCAKE_BLOCK;
	while (!err && !forms_enough(w, pick) && (more = lines_next(&l, why)) > 0)
		err = take_line(&r, &l, pick, why);
	if (!err && more < 0)
		err = more;
	lines_close(&l);
	free(r.tails.session);
	free(r.chats.chat);
	free(r.chats.session);
	return err;
}
