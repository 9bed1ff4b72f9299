/* Loses three of a hundred packets that carry something, for the probe's test with loss. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

enum { HEADS = 120, PERCENT = 3 };

char drop_license[] SEC("license") = "Dual BSD/GPL";

SEC("xdp")
int drop(struct xdp_md *packet)
{
	if (packet->data_end - packet->data > HEADS && bpf_get_prandom_u32() % 100 < PERCENT)
		return XDP_DROP;
	return XDP_PASS;
}
