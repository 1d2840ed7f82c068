// SPDX-License-Identifier: Apache-2.0
// The kernel's half of the policy: verdicts on connects, quotas and accounts, and rates. The driver fills the maps (`keeper.rs`) and attaches
// the programs to the root of the control groups. `gate.bpf.o` is this file compiled; `build.sh` says how.
#include <linux/bpf.h>
#include <stdbool.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

static void *(*map_lookup)(void *, const void *) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*ktime)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u64 (*netns_cookie)(void *) = (void *)BPF_FUNC_get_netns_cookie;
static __u64 (*ancestor_cgroup)(int) = (void *)BPF_FUNC_get_current_ancestor_cgroup_id;
static int (*set_retval)(int) = (void *)BPF_FUNC_set_retval;
static void *(*storage_get)(void *, void *, void *, __u64) = (void *)BPF_FUNC_sk_storage_get;
static int (*set_callbacks)(void *, int) = (void *)BPF_FUNC_sock_ops_cb_flags_set;
static struct bpf_sock *(*full_socket)(struct bpf_sock *) = (void *)BPF_FUNC_sk_fullsock;

#define RULES 65536
#define TENANTS 4096
#define ENTRIES (1 << 21)
#define LEVELS 8
#define EACCES 13
#define EMFILE 24
#define AF_INET 2
#define TCP 6
#define MPTCP 262
#define TCP_CLOSE 7
#define BARE_ACK 128

// Who a party of a connection is.
struct whom {
    __u32 tenant;
    // Of rules that name it, as the other side's.
    __u32 class;
    // Its network namespace; 0: none that the driver knows.
    __u32 space;
};

struct config {
    // Of the entries in force; 0: there are none.
    __u32 generation;
    // Counts how often the programs were attached: only connections since the last time are counted.
    __u32 epoch;
    // Of even and of odd generations.
    struct of {
        // Depths at which control groups are named, a bit each.
        __u32 levels;
        // The verdict where no rule is named.
        __u32 otherwise;
        // Whether some tenant has a rate.
        __u32 rated;
        // Where the policy's hits begin.
        __u32 hits;
    } of[2];
    // Added to the kernel's clock: the time of buckets.
    __u64 shift_ns;
};

struct tenant {
    __u64 open, open_on_fabric, max;
    __u64 made, accepted, denied, over_quota;
    __u64 sent, received;
    // A token bucket as `policy/rate.rs` has it.
    __u64 spent_until_ns, burst_ns, ns_per_mib;
    // Of each connection; its word is with its socket.
    __u64 one_burst_ns, one_ns_per_mib;
    __u64 drops;
};

struct source { __u64 id; __u32 generation; __u32 is_group; };
struct place { __u32 prefix; __u32 generation; __u32 address[4]; };
struct pair { __u32 prefix; __u32 generation, from, to; __u16 port, zero; };

// A connection, kept with its socket. `since`: the epoch of one that is counted, the generation of one that was only seen.
struct record { __u32 from, to, state, since; __u64 spent_until_ns; };
enum { ASKED = 1, OPEN, SEEN };

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, struct config); } config SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, TENANTS); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, struct tenant); } tenants SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2 * RULES); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, __u64); } hits SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, ENTRIES); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct source); __type(value, struct whom); } sources SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, ENTRIES); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct place); __type(value, struct whom); } places SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, ENTRIES); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct pair); __type(value, __u32); } verdicts SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_SK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, int); __type(value, struct record); } records SEC(".maps");

// A field of a context, read where it stands: the verifier takes no pointers into one.
#define FIELD(of, field) (*(volatile __typeof__((of)->field) *)&(of)->field)

// An address as IPv6 has it.
#define ADDRESS(of, v4, v6, into)                                                                            \
    __u32 into[4] = {FIELD(of, v6[0]), FIELD(of, v6[1]), FIELD(of, v6[2]), FIELD(of, v6[3])};                \
    do {                                                                                                     \
        __u32 short_one = FIELD(of, v4);                                                                     \
        if (FIELD(of, family) == AF_INET) {                                                                  \
            into[0] = into[1] = 0;                                                                           \
            into[2] = __builtin_bswap32(0xffff);                                                             \
            into[3] = short_one;                                                                             \
        }                                                                                                    \
    } while (0)

INLINE void add(__u64 *counter, __u64 count) { __sync_fetch_and_add(counter, count); }

INLINE struct tenant *tenant_of(__u32 id) { return map_lookup(&tenants, &id); }

INLINE struct whom *party(__u32 generation, const __u32 address[4]) {
    struct place key = {160, generation, {address[0], address[1], address[2], address[3]}};
    return map_lookup(&places, &key);
}

INLINE struct config *in_force(void) {
    __u32 zero = 0;
    struct config *c = map_lookup(&config, &zero);
    return c && c->generation ? c : 0;
}

// 1: go on. 0: the call fails.
INLINE int judge(struct bpf_sock_addr *ctx, const __u32 address[4]) {
    struct config *c = in_force();
    if (!c || (ctx->protocol != TCP && ctx->protocol != MPTCP)) return 1;
    __u32 generation = c->generation;
    struct of *of = &c->of[generation & 1];
    __u32 levels = of->levels;
    struct whom *to = party(generation, address);
    if (!to) return 1;
    struct source key = {netns_cookie(ctx), generation, 0};
    struct whom *space = map_lookup(&sources, &key), *from = space;
    key.is_group = 1;
#pragma clang loop unroll(full)
    for (int level = LEVELS; level > 0; level--) {
        if (levels & 1u << level) {
            key.id = ancestor_cgroup(level);
            struct whom *group = map_lookup(&sources, &key);
            if (group) {
                from = group;
                break;
            }
        }
    }
    // Within a namespace the driver cannot tell who listens.
    if (!from || (space && space->space == to->space)) return 1;
    struct pair pair = {112, generation, from->class, to->class, (__u16)ctx->user_port, 0};
    __u32 *found = map_lookup(&verdicts, &pair), verdict = found ? *found : of->otherwise;
    // The lowest bit denies.
    __u32 rule = of->hits + (verdict >> 1 & (RULES - 1));
    __u64 *counter = map_lookup(&hits, &rule);
    struct tenant *tenant = tenant_of(from->tenant);
    if (!counter || !tenant) return 1;
    add(counter, 1);
    if (verdict & 1) {
        add(&tenant->denied, 1);
        set_retval(-EACCES);
        return 0;
    }
    if (tenant->open + tenant->open_on_fabric >= tenant->max) {
        add(&tenant->over_quota, 1);
        set_retval(-EMFILE);
        return 0;
    }
    struct bpf_sock *sk = ctx->sk;
    if (!sk) return 1;
    struct record *record = storage_get(&records, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
    if (record) *record = (struct record){from->tenant, to->tenant, ASKED, c->epoch, 0};
    return 1;
}

SEC("cgroup/connect4") int pd_connect4(struct bpf_sock_addr *ctx) {
    __u32 address[4] = {0, 0, __builtin_bswap32(0xffff), ctx->user_ip4};
    return judge(ctx, address);
}

SEC("cgroup/connect6") int pd_connect6(struct bpf_sock_addr *ctx) {
    __u32 address[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
    return judge(ctx, address);
}

// The connecting side's socket is the one that is counted.
SEC("sockops") int pd_events(struct bpf_sock_ops *ops) {
    __u32 op = ops->op;
    if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && op != BPF_SOCK_OPS_STATE_CB)
        return 1;
    struct bpf_sock *sk = ops->sk;
    if (!sk) return 1;
    struct config *c = in_force();
    struct record *record = storage_get(&records, sk, 0, 0);
    if (!c || !record || record->state == SEEN || record->since != c->epoch) return 1;
    struct tenant *from = tenant_of(record->from), *to = tenant_of(record->to);
    if (!from || !to) return 1;
    if (op == BPF_SOCK_OPS_TCP_CONNECT_CB && record->state == ASKED) {
        record->state = OPEN;
        add(&from->open, 1);
        set_callbacks(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
    } else if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && record->state == OPEN) {
        add(&from->made, 1);
        add(&to->accepted, 1);
    } else if (op == BPF_SOCK_OPS_STATE_CB && FIELD(ops, args[1]) == TCP_CLOSE && record->state == OPEN) {
        record->state = 0;
        add(&from->open, -1);
        // The SYN counts as a byte.
        __u64 there = FIELD(ops, bytes_acked), back = FIELD(ops, bytes_received);
        there -= there > 0;
        add(&from->sent, there);
        add(&to->received, there);
        add(&to->sent, back);
        add(&from->received, back);
    }
    return 1;
}

// 0, 1: dropped, passed; 2: dropped, and the sender is told that it is too fast.
SEC("cgroup_skb/egress") int pd_egress(struct __sk_buff *skb) {
    struct config *c = in_force();
    // What only acknowledges passes: the other side pays.
    if (!c || !c->of[c->generation & 1].rated || skb->len < BARE_ACK) return 1;
    struct bpf_sock *sk = skb->sk;
    if (!sk) return 1;
    sk = full_socket(sk);
    if (!sk || sk->protocol != TCP) return 1;
    struct record *record = storage_get(&records, sk, 0, 0);
    if (!record || (record->state == SEEN && record->since != c->generation)) {
        // Accepted, or older than the policy.
        ADDRESS(sk, src_ip4, src_ip6, own);
        ADDRESS(sk, dst_ip4, dst_ip6, peer);
        struct whom *self = party(c->generation, own), *other = party(c->generation, peer);
        record = storage_get(&records, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
        if (!record) return 1;
        bool is_apart = self && other && self->space != other->space;
        *record = (struct record){is_apart ? self->tenant : TENANTS, TENANTS, SEEN, c->generation, 0};
    }
    struct tenant *tenant = tenant_of(record->from);
    if (!tenant || (!tenant->ns_per_mib && !tenant->one_ns_per_mib)) return 1;
    __u64 len = skb->len, now = ktime() + c->shift_ns;
    __u64 own_oldest = now - tenant->one_burst_ns, own = record->spent_until_ns;
    own = (own > own_oldest ? own : own_oldest) + ((len * tenant->one_ns_per_mib) >> 20);
    if (tenant->one_ns_per_mib && own > now) goto drop;
    if (tenant->ns_per_mib) {
        __u64 cost = (len * tenant->ns_per_mib) >> 20, oldest = now - tenant->burst_ns;
        bool taken = false;
        for (int attempt = 0; attempt < 4 && !taken; attempt++) {
            __u64 spent = *(volatile __u64 *)&tenant->spent_until_ns;
            __u64 until = (spent > oldest ? spent : oldest) + cost;
            if (until > now) goto drop;
            taken = __sync_val_compare_and_swap(&tenant->spent_until_ns, spent, until) == spent;
        }
        if (!taken) goto drop;
    }
    record->spent_until_ns = own;
    return 1;
drop:
    add(&tenant->drops, 1);
    return 2;
}

char license_text[] SEC("license") = "Apache-2.0";
