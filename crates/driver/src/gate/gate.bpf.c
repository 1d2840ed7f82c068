// SPDX-License-Identifier: Apache-2.0
// The kernel's half of the policy: service addresses, verdicts on connects, quotas and accounts, and rates. The driver fills the maps
// (`gate.bpf.h`) and attaches the programs to the root of the control groups. `build.sh` compiles this file into `gate.bpf.o`.
#include "choice.bpf.h"

// Reads a field of a context in place: the verifier takes no pointers into one.
#define FIELD(of, field) (*(volatile __typeof__((of)->field) *)&(of)->field)

// Writes an address as IPv6 into `into`.
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

INLINE struct whom *party(__u32 generation, __u32 network, const __u32 address[4]) {
    struct place key = {192, generation, network, {address[0], address[1], address[2], address[3]}};
    struct whom *found = map_lookup(&places, &key);
    // The common network also has the addresses that rules name.
    if (found || !network) return found;
    key.network = ANY;
    return map_lookup(&places, &key);
}

INLINE struct whom *space_of(__u32 generation, __u64 cookie) {
    struct source key = {cookie, generation, 0};
    return map_lookup(&sources, &key);
}

INLINE struct config *in_force(void) {
    __u32 zero = 0;
    struct config *c = map_lookup(&config, &zero);
    return c && c->generation ? c : 0;
}

INLINE bool is_mapped(const __u32 address[4]) { return !address[0] && !address[1] && address[2] == __builtin_bswap32(0xffff); }

// Returns the verdict of the rules that name a pair of classes.
INLINE __u32 named(__u32 generation, __u32 from, __u32 to, __u16 port) {
    struct pair pair = {112, generation, from, to, port, 0};
    __u32 *found = map_lookup(&verdicts, &pair);
    return found ? *found : NONE;
}

INLINE __u32 number_of(__u32 verdict) { return verdict == NONE ? NONE : verdict >> 1 & (RULES - 1); }

// Finds the proxy that a connect is led to, if any, by the method of `conductor/sidecars.rs`. False: a needed proxy is absent. `own`:
// number of the connecting namespace, if a proxy of the rule is there.
INLINE bool lead(struct via *via, __u32 own, __u32 network, const __u32 asked[4], __u16 port, struct hop **found) {
    bool is_v4 = is_mapped(asked), is_skipped = false;
    __u32 first = 0;
    if (own) {
        first = HOPS;
#pragma clang loop unroll(full)
        for (int i = 0; i < HOPS; i++)
            if (i < via->count && via->hops[i].space == own) first = i + 1;
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < HOPS; i++) {
        struct hop *hop = &via->hops[i];
        if (i < first || i >= via->count) continue;
        __u32 *address = is_v4 ? hop->v4 : hop->v6;
        bool is_there = hop->space && hop->network == network && (is_v4 ? hop->has_v4 : hop->has_v6);
        bool is_same = is_there && (!hop->port || hop->port == port) && address[0] == asked[0] && address[1] == asked[1] && address[2] == asked[2] && address[3] == asked[3];
        // The connection is to the proxy itself.
        if (is_same) break;
        struct slot *slot = slot_of(hop->slot);
        if (!slot) continue;
        if (is_there && !slot->state) {
            *found = hop;
            break;
        }
        if (!via->bypass) {
            add(&slot->failed, 1);
            slot = slot_of(via->slot);
            if (slot) add(&slot->failed, 1);
            return false;
        }
        is_skipped = true;
    }
    if (is_skipped) {
        struct slot *slot = slot_of(via->slot);
        if (slot) add(&slot->bypassed, 1);
    }
    return true;
}

// Judges a connect. 1: it goes on, to `address` and `port`, which a backend may have replaced. 0: the call fails.
INLINE int judge(struct bpf_sock_addr *ctx, __u32 address[4], __u32 *port) {
    struct config *c = in_force();
    if (!c || (ctx->protocol != TCP && ctx->protocol != MPTCP)) return 1;
    __u32 generation = c->generation;
    struct of *of = &c->of[generation & 1];
    __u32 levels = of->levels;
    struct bpf_sock *sk = ctx->sk;
    struct service_key asked = {generation, (__u16)*port, 0, {address[0], address[1], address[2], address[3]}};
    struct service *service = map_lookup(&services, &asked);
    struct whom *to = 0;
    struct source key = {netns_cookie(ctx), generation, 0};
    __u64 home = key.id;
    struct whom *space = map_lookup(&sources, &key), *from = space;
    __u32 network = space ? space->network : 0;
    if (!service) {
        // The socket connects again, to another address.
        struct record *before = sk ? storage_get(&records, sk, 0, 0) : 0;
        if (before) before->is_through = 0;
        to = party(generation, network, address);
        if (!to) return 1;
    }
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
    if (!from) return 1;
    struct backend *backend = 0;
    if (service) {
        int chosen = choose(service, generation, socket_cookie(ctx), space ? space->space : key.id);
        if (chosen < 0) {
            struct slot *slot = slot_of(service->slot);
            if (slot) add(&slot->failed, 1);
            set_retval(-ECONNREFUSED);
            return 0;
        }
        struct backend_key part = {generation, service->number, chosen, network};
        backend = map_lookup(&backends, &part);
        if (!backend) {
            part.network = ANY;
            backend = map_lookup(&backends, &part);
            if (!backend) return 1;
        }
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; i++) address[i] = backend->address[i];
        *port = backend->port;
        to = party(generation, network, address);
    }
    // The driver cannot tell listeners apart within a namespace.
    bool is_home = space && to && space->space == to->space, is_judged = false, is_proxy = false;
    if (!service && is_home) return 1;
    __u32 verdict = 0, leads = NONE;
    if (backend && !is_home) {
        // Rules that name the service.
        __u32 found = named(generation, from->class, backend->class, asked.port);
        if (found != NONE) verdict = found, is_judged = true;
        if (found != NONE && (found & LEADS)) leads = found;
    }
    if (to && !is_home && !(is_judged && (verdict & 1))) {
        __u32 found = named(generation, from->class, to->class, (__u16)*port);
        if (found != NONE) verdict = found;
        else if (!is_judged) verdict = of->otherwise;
        if (leads == NONE && found != NONE && (found & LEADS)) leads = found;
        is_judged = true;
    }
    if ((of->flags & VIAS) && space && !is_home) {
        // A proxy's own connections follow the first rule that leads through it.
        struct proxy_key proxy = {generation, space->space};
        __u32 *class = map_lookup(&proxies, &proxy);
        if (class) {
            __u32 own = backend ? named(generation, *class, backend->class, asked.port) : NONE;
            __u32 other = to ? named(generation, *class, to->class, (__u16)*port) : NONE;
            if (number_of(other) < number_of(own)) own = other;
            if (own != NONE && !(is_judged && (verdict & 1) && number_of(verdict) < number_of(own)))
                verdict = leads = own, is_judged = is_proxy = true;
        }
    }
    struct tenant *tenant = tenant_of(from->tenant);
    if (!tenant) return 1;
    if (is_judged) {
        // The lowest bit denies.
        __u32 rule = of->hits + number_of(verdict);
        __u64 *counter = map_lookup(&hits, &rule);
        if (!counter) return 1;
        add(counter, 1);
        if (verdict & 1) {
            add(&tenant->denied, 1);
            set_retval(-EACCES);
            return 0;
        }
    }
    struct via *via = 0;
    struct hop *hop = 0;
    if (leads != NONE) {
        struct via_key key = {generation, number_of(leads)};
        via = map_lookup(&vias, &key);
        if (via && !lead(via, is_proxy ? space->space : 0, network, asked.address, asked.port, &hop)) {
            set_retval(-ECONNREFUSED);
            return 0;
        }
        if (hop) {
            bool is_v4 = is_mapped(asked.address);
#pragma clang loop unroll(full)
            for (int i = 0; i < 4; i++) address[i] = is_v4 ? hop->v4[i] : hop->v6[i];
            *port = hop->port ? hop->port : asked.port;
            to = party(generation, network, address);
        }
    }
    if (to && to->network == FAR) {
        set_retval(-EHOSTUNREACH);
        return 0;
    }
    bool is_counted = to && !is_home;
    if (is_counted && tenant->open + tenant->open_on_fabric >= tenant->max) {
        add(&tenant->over_quota, 1);
        set_retval(-EMFILE);
        return 0;
    }
    if (!sk) return 1;
    struct record *record = storage_get(&records, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
    if (!record) return 1;
    // A party that is not counted gets a tenant number out of range.
    *record = (struct record){is_counted ? from->tenant : TENANTS, is_counted ? to->tenant : TENANTS, ASKED, c->epoch, 0, home};
    if (service || hop) {
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; i++) record->service[i] = asked.address[i];
        record->port = asked.port;
        record->is_through = 1;
        if (hop && via) {
            record->slots[0] = via->slot;
            record->slots[1] = hop->slot;
        } else if (service && backend) {
            record->slots[0] = service->slot;
            record->slots[1] = backend->slot;
        }
    }
    return 1;
}

SEC("cgroup/connect4") int pd_connect4(struct bpf_sock_addr *ctx) {
    __u32 address[4] = {0, 0, __builtin_bswap32(0xffff), ctx->user_ip4}, port = ctx->user_port;
    int verdict = judge(ctx, address, &port);
    if (port != ctx->user_port) ctx->user_port = port;
    if (address[3] != ctx->user_ip4) ctx->user_ip4 = address[3];
    return verdict;
}

SEC("cgroup/connect6") int pd_connect6(struct bpf_sock_addr *ctx) {
    __u32 address[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}, port = ctx->user_port;
    int verdict = judge(ctx, address, &port);
    ctx->user_port = port;
    ctx->user_ip6[0] = address[0];
    ctx->user_ip6[1] = address[1];
    ctx->user_ip6[2] = address[2];
    ctx->user_ip6[3] = address[3];
    return verdict;
}

// Shows a program the address that it has connected to.
SEC("cgroup/getpeername4") int pd_peer4(struct bpf_sock_addr *ctx) {
    struct bpf_sock *sk = ctx->sk;
    struct record *record = sk ? storage_get(&records, sk, 0, 0) : 0;
    if (record && record->is_through) {
        ctx->user_port = record->port;
        ctx->user_ip4 = record->service[3];
    }
    return 1;
}

SEC("cgroup/getpeername6") int pd_peer6(struct bpf_sock_addr *ctx) {
    struct bpf_sock *sk = ctx->sk;
    struct record *record = sk ? storage_get(&records, sk, 0, 0) : 0;
    if (record && record->is_through) {
        ctx->user_port = record->port;
        ctx->user_ip6[0] = record->service[0];
        ctx->user_ip6[1] = record->service[1];
        ctx->user_ip6[2] = record->service[2];
        ctx->user_ip6[3] = record->service[3];
    }
    return 1;
}

// Records a connection that leads elsewhere, for its accepting side. The connecting side has its address and port now.
INLINE void depart(struct bpf_sock_ops *ops, struct record *record, __u32 generation) {
    ADDRESS(ops, local_ip4, local_ip6, own);
    ADDRESS(ops, remote_ip4, remote_ip6, peer);
    struct whom *space = space_of(generation, record->home);
    struct whom *to = party(generation, space ? space->network : 0, peer);
    struct journey key = {to ? to->space : 0, FIELD(ops, local_port), __builtin_bswap32(FIELD(ops, remote_port)), {own[0], own[1], own[2], own[3]}, {peer[0], peer[1], peer[2], peer[3]}};
    struct origin origin = {{record->service[0], record->service[1], record->service[2], record->service[3]}, record->port, 0};
    map_update(&journeys, &key, &origin, BPF_ANY);
}

INLINE void arrive(struct bpf_sock_ops *ops, struct bpf_sock *sk, __u32 generation) {
    ADDRESS(ops, local_ip4, local_ip6, own);
    ADDRESS(ops, remote_ip4, remote_ip6, peer);
    struct whom *self = space_of(generation, netns_cookie(ops));
    struct journey key = {self ? self->space : 0, __builtin_bswap32(FIELD(ops, remote_port)), FIELD(ops, local_port), {peer[0], peer[1], peer[2], peer[3]}, {own[0], own[1], own[2], own[3]}};
    struct origin *found = map_lookup(&journeys, &key);
    if (!found) return;
    struct origin *kept = storage_get(&origins, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
    if (kept) *kept = *found;
    // Another connection with these addresses may follow.
    map_delete(&journeys, &key);
}

// Counts connections, by the socket of the connecting side.
SEC("sockops") int pd_events(struct bpf_sock_ops *ops) {
    __u32 op = ops->op;
    if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && op != BPF_SOCK_OPS_STATE_CB &&
        op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
        return 1;
    struct bpf_sock *sk = ops->sk;
    if (!sk) return 1;
    struct config *c = in_force();
    bool has_origins = c && (c->of[c->generation & 1].flags & ORIGINS);
    if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
        if (has_origins) arrive(ops, sk, c->generation);
        if (c && (c->of[c->generation & 1].flags & RATED)) {
            // Packets do not carry their network.
            struct record *accepted = storage_get(&records, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
            if (accepted) *accepted = (struct record){TENANTS, TENANTS, SEEN, 0, 0, netns_cookie(ops)};
        }
        return 1;
    }
    struct record *record = storage_get(&records, sk, 0, 0);
    if (!c || !record || record->state == SEEN || record->since != c->epoch) return 1;
    struct tenant *from = tenant_of(record->from), *to = tenant_of(record->to);
    struct slot *service = 0, *backend = 0;
    if (record->is_through) {
        service = slot_of(record->slots[0]);
        backend = slot_of(record->slots[1]);
    }
    if (op == BPF_SOCK_OPS_TCP_CONNECT_CB && record->state == ASKED) {
        record->state = OPEN;
        if (has_origins && record->is_through) depart(ops, record, c->generation);
        if (from) add(&from->open, 1);
        if (service) add(&service->active_on_kernel, 1);
        if (backend) add(&backend->active_on_kernel, 1);
        set_callbacks(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
    } else if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && record->state == OPEN) {
        record->state = MADE;
        if (from) add(&from->made, 1);
        if (to) add(&to->accepted, 1);
        if (service) add(&service->made, 1);
        if (backend) add(&backend->made, 1);
    } else if (op == BPF_SOCK_OPS_STATE_CB && FIELD(ops, args[1]) == TCP_CLOSE && (record->state == OPEN || record->state == MADE)) {
        bool is_made = record->state == MADE;
        record->state = 0;
        // The SYN counts as a byte.
        __u64 there = FIELD(ops, bytes_acked), back = FIELD(ops, bytes_received);
        there -= there > 0;
        if (from) {
            add(&from->open, -1);
            add(&from->sent, there);
            add(&from->received, back);
        }
        if (to) {
            add(&to->received, there);
            add(&to->sent, back);
        }
        if (service) {
            add(&service->active_on_kernel, -1);
            add(&service->sent, there);
            add(&service->received, back);
        }
        if (backend) {
            add(&backend->active_on_kernel, -1);
            add(&backend->sent, there);
            add(&backend->received, back);
            if (!is_made) add(&backend->failed, 1);
        }
    }
    return 1;
}

// Returns the address that was asked for to the accepting side, as netfilter does. The kernel answers other requests.
SEC("cgroup/getsockopt") int pd_origin(struct bpf_sockopt *ctx) {
    if (ctx->optname != SO_ORIGINAL_DST || (ctx->level != SOL_IP && ctx->level != SOL_IPV6)) return 1;
    struct bpf_sock *sk = ctx->sk;
    struct origin *origin = sk ? storage_get(&origins, sk, 0, 0) : 0;
    if (!origin) return 1;
    __u16 *at = ctx->optval;
    __u32 *words = ctx->optval;
    bool is_v4 = is_mapped(origin->address);
    if (ctx->level == SOL_IP) {
        if (!is_v4 || (void *)(words + 4) > ctx->optval_end) return 1;
        at[0] = AF_INET;
        at[1] = origin->port;
        words[1] = origin->address[3];
        words[2] = words[3] = 0;
        ctx->optlen = 16;
    } else {
        if ((void *)(words + 7) > ctx->optval_end) return 1;
        at[0] = AF_INET6;
        at[1] = origin->port;
        words[1] = words[6] = 0;
        words[2] = origin->address[0];
        words[3] = origin->address[1];
        words[4] = origin->address[2];
        words[5] = origin->address[3];
        ctx->optlen = 28;
    }
    ctx->retval = 0;
    return 1;
}

// Limits the rates of packets. 0, 1: dropped, passed; 2: dropped, and the sender learns that it is too fast.
SEC("cgroup_skb/egress") int pd_egress(struct __sk_buff *skb) {
    struct config *c = in_force();
    // Bare acknowledgements pass: the other side pays.
    if (!c || !(c->of[c->generation & 1].flags & RATED) || skb->len < BARE_ACK) return 1;
    struct bpf_sock *sk = skb->sk;
    if (!sk) return 1;
    sk = full_socket(sk);
    if (!sk || sk->protocol != TCP) return 1;
    struct record *record = storage_get(&records, sk, 0, 0);
    if (!record || (record->state == SEEN && record->since != c->generation)) {
        // Accepted, or older than the policy.
        ADDRESS(sk, src_ip4, src_ip6, own);
        ADDRESS(sk, dst_ip4, dst_ip6, peer);
        __u64 home = record ? record->home : 0;
        struct whom *self, *other;
        struct whom *space = home ? space_of(c->generation, home) : 0;
        if (space) {
            self = party(c->generation, space->network, own);
            other = party(c->generation, space->network, peer);
        } else {
            self = party(c->generation, ONLY, own);
            other = party(c->generation, ONLY, peer);
        }
        record = storage_get(&records, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
        if (!record) return 1;
        bool is_apart = self && other && self->space != other->space;
        *record = (struct record){is_apart ? self->tenant : TENANTS, TENANTS, SEEN, c->generation, 0, home};
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
