/* Holding engine.NAME through everything that can happen to it; see publish.h. */
#include "agent/publish.h"

#include <errno.h>
#include <string.h>

#include "shm/base/clock.h"

static int hold(struct publisher *p)
{
	int err = region_open(&p->region, p->option, 1, p->error);

	if (err < 0)
		return err;
	err = engine_file_hold(&p->file, &p->region, p->name, p->error);
	if (err < 0) {
		region_close(&p->region);
		return err;
	}
	p->held = 1;
	memset(&p->info, 0, sizeof(p->info)); /* publish it again */
	return 0;
}

static void let_go(struct publisher *p)
{
	if (!p->held)
		return;
	engine_file_drop(&p->file);
	region_close(&p->region);
	p->held = 0;
}

int publisher_open(struct publisher *p, const char *region_option, const char *engine_name)
{
	*p = (struct publisher){ .option = region_option, .name = engine_name };
	return hold(p);
}

void publisher_close(struct publisher *p)
{
	let_go(p);
}

int publisher_inherit(const struct publisher *p, struct engine_state *ret_state)
{
	if (!p->held || p->file.file.fresh)
		return -ENODATA;
	return engine_file_read(&p->file, ret_state, NULL);
}

void publisher_put(struct publisher *p, const struct engine_state *state,
		   const struct engine_info *info)
{
	if (!p->held)
		return;
	/* Who reads the state may look into the info: a new engine's list comes first. */
	if (memcmp(&p->info, info, sizeof(*info)) != 0) {
		engine_file_publish_info(&p->file, info);
		p->info = *info;
	}
	engine_file_publish(&p->file, state);
}

int publisher_check(struct publisher *p, uint64_t now_ns)
{
	if (now_ns - p->checked_ns < NS_PER_S)
		return 0;
	p->checked_ns = now_ns;
	if (p->held && !region_moved(&p->region) && !region_file_moved(&p->region, &p->file.file))
		return 0;
	let_go(p);
	int err = hold(p);
	return err < 0 ? err : 1;
}
