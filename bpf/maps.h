/* Keys and sizes of the kernel side's maps, for it and its loader. */
#ifndef TURNWARD_BPF_MAPS_H
#define TURNWARD_BPF_MAPS_H

#include <linux/types.h>

enum {
	MAPS_ENGINES = 256,
	MAPS_RING_BYTES = 1 << 20,
	MAPS_INET6 = 10, /* AF_INET6; the BPF side has no header for it */
};

/* An engine's address as a socket knows its peer; IPv4 in IPv6's mapped form. Network order. */
struct maps_address {
	__u32 ip[4];
	__u16 port;
	__u16 zero;
};

#endif
