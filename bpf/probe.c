/* Loads the kernel side, attaches it to a cgroup, and empties its ring; says why where it cannot.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/capability.h>
#include <linux/magic.h>

#include "bpf/kernel.skel.h"
#include "bpf/kernel_bounded.skel.h"
#include "bpf/kernel_first_event.skel.h"
#include "bpf/maps.h"
#include "bpf/probe.h"
#include "shm/base/scoped.h"

static_assert((int)PROBE_ADDRESSES_MAX == MAPS_ENGINES, "the map holds what is promised");
static_assert((int)PROBE_RING_BYTES == MAPS_RING_BYTES, "the ring is as long as is promised");

/* What can be loaded, in the order in which it is tried. */
static const struct variant {
	const char *name;
	const void *(*bytes)(size_t *ret_size);
	bool bounded, first_event_rule;
} variants[] = {
	{ "cgroup_skb", kernel__elf_bytes, false, false },
	{ "cgroup_skb, bounded loop", kernel_bounded__elf_bytes, true, false },
	{ "cgroup_skb, first event", kernel_first_event__elf_bytes, false, true },
};

struct probe {
	const struct variant *variant;
	struct bpf_object *object;
	struct bpf_link *sent, *received;
	struct ring_buffer *ring;
	int engines, counters; /* maps */
	probe_take *take;      /* of the drain under way */
	void *context;
	unsigned held_nr; /* keys of the map, to take out what is no longer wanted */
	struct maps_address held[PROBE_ADDRESSES_MAX];
};

/* ---- why not ---- */

static const struct {
	int number;
	const char *name;
} needed[] = {
	{ CAP_BPF, "CAP_BPF" },
	{ CAP_NET_ADMIN, "CAP_NET_ADMIN" },
	{ CAP_PERFMON, "CAP_PERFMON" },
};

/* Names those that this process lacks, separated by commas; "" = none. */
static void capabilities_missing(char *ret_names, size_t size)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { 0 };
	size_t at = 0;

	ret_names[0] = 0;
	if (syscall(SYS_capget, &head, data))
		return;
	uint64_t have = (uint64_t)data[1].effective << 32 | data[0].effective;

	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		bool by_admin = needed[i].number != CAP_NET_ADMIN && (have >> CAP_SYS_ADMIN & 1);

		if (!by_admin && !(have >> needed[i].number & 1))
			at += (size_t)snprintf(ret_names + at, size - at, "%s%s", at ? ", " : "",
					       needed[i].name);
	}
}

static bool kernel_older_than(int major, int minor)
{
	struct utsname name;
	int have[2] = { 0 };

	if (uname(&name) || sscanf(name.release, "%d.%d", &have[0], &have[1]) != 2)
		return false;
	return have[0] < major || (have[0] == major && have[1] < minor);
}

static void read_word(const char *path, char *ret_text, size_t size)
{
	scoped(file_drop) FILE *file = fopen(path, "r");

	ret_text[0] = 0;
	if (file && fgets(ret_text, (int)size, file))
		ret_text[strcspn(ret_text, "\n")] = 0;
}

static int refuse_permission(char *ret_reason)
{
	char missing[64], lockdown[64];

	capabilities_missing(missing, sizeof(missing));
	read_word("/sys/kernel/security/lockdown", lockdown, sizeof(lockdown));
	if (missing[0])
		snprintf(ret_reason, PROBE_REASON_SIZE,
			 "missing %s; grant with: setcap cap_bpf,cap_net_admin,cap_perfmon+ep "
			 "FILE, or AmbientCapabilities= in its systemd unit, or run it as root",
			 missing);
	else
		snprintf(ret_reason, PROBE_REASON_SIZE,
			 "the kernel refuses BPF to a process that has the capabilities: a "
			 "container's seccomp profile or user namespace, or lockdown (%s)",
			 lockdown[0] ? lockdown : "not known");
	return -EPERM;
}

/* `what` failed with `err`: what that means and what to do. */
static int refuse(const char *what, int err, char *ret_reason)
{
	if (err == -EPERM || err == -EACCES)
		return refuse_permission(ret_reason);
	if (err == -ENOSYS || kernel_older_than(5, 8)) {
		struct utsname name = { .release = "?" };

		uname(&name);
		snprintf(ret_reason, PROBE_REASON_SIZE,
			 "kernel %s cannot: 5.8 or later is needed, with CONFIG_BPF_SYSCALL and "
			 "CONFIG_CGROUP_BPF",
			 name.release);
		return -ENOSYS;
	}
	snprintf(ret_reason, PROBE_REASON_SIZE, "%s: %s", what, strerror(-err));
	return err;
}

/* ---- load and attach ---- */

/* libbpf's own words go nowhere: a library does not log. */
static int say_nothing(enum libbpf_print_level level, const char *format, va_list args)
{
	return 0;
}

static int load(struct probe *probe, const struct variant *variant)
{
	size_t size;
	const void *bytes = variant->bytes(&size);
	struct bpf_object *object = bpf_object__open_mem(bytes, size, NULL);
	int err;

	if (!object)
		return -errno;
	err = bpf_object__load(object);
	if (err) {
		bpf_object__close(object);
		return err;
	}
	probe->object = object;
	probe->variant = variant;
	return 0;
}

/* The first variant that the kernel takes among those asked for. */
static int load_any(struct probe *probe, const struct probe_options *options)
{
	int err = -ENOENT;

	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]) && err; i++) {
		const struct variant *variant = &variants[i];

		if (variant->first_event_rule != options->first_event_rule ||
		    (options->bounded && !variant->bounded))
			continue;
		err = load(probe, variant);
		if (err == -EPERM || err == -EACCES || err == -ENOSYS)
			break;
	}
	return err;
}

static int attach_program(struct probe *probe, const char *name, int cgroup_fd,
			  struct bpf_link **ret_link)
{
	struct bpf_program *program = bpf_object__find_program_by_name(probe->object, name);

	assert(program);
	struct bpf_link *link = bpf_program__attach_cgroup(program, cgroup_fd);

	if (!link)
		return -errno;
	*ret_link = link;
	return 0;
}

static int on_record(void *context, void *data, size_t size)
{
	struct probe *probe = context;

	if (size >= sizeof(struct probe_record))
		probe->take(probe->context, data);
	return 0;
}

int probe_move(struct probe *probe, int cgroup_fd)
{
	struct bpf_link *sent = NULL, *received = NULL;
	int err = attach_program(probe, "turnward_sent", cgroup_fd, &sent);

	if (!err)
		err = attach_program(probe, "turnward_received", cgroup_fd, &received);
	if (err) {
		bpf_link__destroy(sent);
		return err;
	}
	bpf_link__destroy(probe->sent);
	bpf_link__destroy(probe->received);
	probe->sent = sent;
	probe->received = received;
	return 0;
}

static int attach(struct probe *probe, int cgroup_fd)
{
	int records = bpf_object__find_map_fd_by_name(probe->object, "records");

	probe->engines = bpf_object__find_map_fd_by_name(probe->object, "engines");
	probe->counters = bpf_object__find_map_fd_by_name(probe->object, "counters");
	assert(records >= 0 && probe->engines >= 0 && probe->counters >= 0);
	probe->ring = ring_buffer__new(records, on_record, probe, NULL);
	if (!probe->ring)
		return -errno;
	return probe_move(probe, cgroup_fd);
}

static int check_cgroup(int fd, char *ret_reason)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC)
		return 0;
	snprintf(ret_reason, PROBE_REASON_SIZE,
		 "not a folder of a cgroup2 tree; where none is mounted: mount -t cgroup2 none "
		 "/sys/fs/cgroup/unified");
	return -EBADF;
}

int probe_open(struct probe **ret_probe, const struct probe_options *options,
	       char ret_reason[PROBE_REASON_SIZE])
{
	struct probe *probe;
	int err = check_cgroup(options->cgroup_fd, ret_reason);

	if (err)
		return err;
	probe = calloc(1, sizeof(*probe));
	if (!probe)
		return refuse("memory", -ENOMEM, ret_reason);
	libbpf_print_fn_t former = libbpf_set_print(say_nothing);

	err = load_any(probe, options);
	if (err) {
		err = refuse("loading the BPF programs", err, ret_reason);
	} else {
		err = attach(probe, options->cgroup_fd);
		if (err)
			err = refuse("attaching to the cgroup", err, ret_reason);
	}
	libbpf_set_print(former);
	if (err)
		probe_close(probe);
	else
		*ret_probe = probe;
	return err;
}

void probe_close(struct probe *probe)
{
	bpf_link__destroy(probe->sent);
	bpf_link__destroy(probe->received);
	ring_buffer__free(probe->ring);
	bpf_object__close(probe->object);
	free(probe);
}

const char *probe_variant(const struct probe *probe)
{
	return probe->variant->name;
}

/* ---- engines ---- */

/* IPv4 in IPv6's mapped form, as the kernel side makes it. */
static int key_of(const struct sockaddr_storage *address, struct maps_address *ret_key)
{
	struct maps_address key = { 0 };

	if (address->ss_family == AF_INET) {
		const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;

		key.ip[2] = htonl(0xffff);
		key.ip[3] = v4->sin_addr.s_addr;
		key.port = v4->sin_port;
	} else if (address->ss_family == AF_INET6) {
		const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

		memcpy(key.ip, &v6->sin6_addr, sizeof(key.ip));
		key.port = v6->sin6_port;
	} else {
		return -EAFNOSUPPORT;
	}
	*ret_key = key;
	return 0;
}

static bool holds(const struct maps_address *keys, unsigned n, const struct maps_address *key)
{
	for (unsigned i = 0; i < n; i++)
		if (memcmp(&keys[i], key, sizeof(*key)) == 0)
			return true;
	return false;
}

int probe_engines_set(struct probe *probe, const struct probe_address *list, unsigned n)
{
	struct maps_address keys[PROBE_ADDRESSES_MAX];
	int err;

	if (n > PROBE_ADDRESSES_MAX)
		return -E2BIG;
	for (unsigned i = 0; i < n; i++) {
		err = key_of(&list[i].address, &keys[i]);
		if (err)
			return err;
	}
	for (unsigned i = 0; i < probe->held_nr; i++)
		if (!holds(keys, n, &probe->held[i]))
			bpf_map_delete_elem(probe->engines, &probe->held[i]);
	for (unsigned i = 0; i < n; i++) {
		err = bpf_map_update_elem(probe->engines, &keys[i], &list[i].engine, BPF_ANY);
		assert(err == 0); /* a hash of bytes that is not full */
	}
	memcpy(probe->held, keys, n * sizeof(keys[0]));
	probe->held_nr = n;
	return 0;
}

/* ---- what came ---- */

int probe_drain(struct probe *probe, probe_take *take, void *context)
{
	probe->take = take;
	probe->context = context;
	return ring_buffer__consume(probe->ring);
}

int probe_counters(const struct probe *probe, struct probe_counters *ret_counters)
{
	int cpus = libbpf_num_possible_cpus(), err;
	uint32_t zero = 0;

	if (cpus < 0)
		return cpus;
	scoped(free_drop) uint64_t *each =
		calloc((size_t)cpus, sizeof(struct probe_counters)); /* a multiple of 8 bytes */

	if (!each)
		return -ENOMEM;
	err = bpf_map_lookup_elem(probe->counters, &zero, each);
	if (err)
		return err;
	struct probe_counters sum = { 0 };

	for (int cpu = 0; cpu < cpus; cpu++)
		for (int i = 0; i < PROBE_COUNTER_NR; i++)
			((uint64_t *)&sum)[i] += each[cpu * PROBE_COUNTER_NR + i];
	*ret_counters = sum;
	return 0;
}
