// SPDX-License-Identifier: Apache-2.0
// Redirects frames of flows that pipes are bound to into a socket of AF_XDP, and leaves all others to the kernel. The driver fills the
// maps (`pipes/steer.rs`). `build.sh` compiles this file into `steer.bpf.o`.
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

static void *(*map_lookup)(void *, const void *) = (void *)BPF_FUNC_map_lookup_elem;
static long (*redirect_map)(void *, __u64, __u64) = (void *)BPF_FUNC_redirect_map;

#define FLOWS 64
#define FRAME_MIN 14
#define IPV4 8
// Values in network order, as they lie in the frame.
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ORDER(word) __builtin_bswap16(word)
#else
#define ORDER(word) (word)
#endif

// A flow. Addresses and ports are as they lie in a frame. A mask without bits, a port or a protocol of 0: any.
struct flow {
    __u32 from, from_mask, to, to_mask;
    __u16 from_port, to_port;
    __u32 protocol;
};

struct flows {
    __u32 count;
    // Set if all frames of any kind are redirected.
    __u32 any;
    struct flow list[FLOWS];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} which SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, struct flows);
} flows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

SEC("xdp")
int pd_steer(struct xdp_md *ctx)
{
    __u8 *frame = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    __u32 zero = 0;
    __u32 *set = map_lookup(&which, &zero);
    if (!set)
        return XDP_PASS;
    __u32 index = *set & 1;
    struct flows *bound = map_lookup(&flows, &index);
    if (!bound || frame + FRAME_MIN > end)
        return XDP_PASS;
    // The socket is bound to the first queue; frames of other queues stay with the kernel.
    if (bound->any)
        return redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
    __u32 count = bound->count;
    if (!count || frame + 34 > end || *(__u16 *)(frame + 12) != ORDER(0x0800) || frame[14] >> 4 != 4)
        return XDP_PASS;
    __u8 protocol = frame[23];
    __u32 from = *(__u32 *)(frame + 26), to = *(__u32 *)(frame + 30);
    // Ports are read only of first fragments behind a header without options.
    __u16 from_port = 0, to_port = 0;
    int has_ports = frame[14] == 0x45 && !(*(__u16 *)(frame + 20) & ORDER(0x1fff)) && frame + 38 <= end;
    if (has_ports) {
        from_port = *(__u16 *)(frame + 34);
        to_port = *(__u16 *)(frame + 36);
    }
    for (int i = 0; i < FLOWS; i++) {
        if (i >= count)
            return XDP_PASS;
        struct flow *flow = &bound->list[i];
        if ((flow->protocol && flow->protocol != protocol) || (from & flow->from_mask) != flow->from ||
            (to & flow->to_mask) != flow->to)
            continue;
        if ((flow->from_port || flow->to_port) &&
            (!has_ports || (flow->from_port && flow->from_port != from_port) ||
             (flow->to_port && flow->to_port != to_port)))
            continue;
        return redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
    }
    return XDP_PASS;
}

char license_text[] SEC("license") = "Apache-2.0";
