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

INLINE bool is_same(const __u32 one[4], const __u32 other[4]) {
    return one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3];
}

INLINE bool is_mapped(const __u32 address[4]) { return !address[0] && !address[1] && address[2] == __builtin_bswap32(0xffff); }

// Returns the verdict of the rules that name a pair of classes.
VERIFIED_ONCE __u32 named(__u32 generation, __u32 from, __u32 to, __u16 port) {
    struct pair pair = {112, generation, from, to, port, 0};
    __u32 *found = map_lookup(&verdicts, &pair);
    return found ? *found : NONE;
}

INLINE __u32 number_of(__u32 verdict) { return verdict == NONE ? NONE : verdict >> 1 & (RULES - 1); }

// A connect that a rule leads. `own`: number of the connecting namespace, if a proxy of the rule is there.
struct led { struct address asked; __u32 own, network; __u16 port, zero; };

// Finds the proxy that a connect is led to, by the method of `conductor/sidecars.rs`. Returns its index in the rule's list. HOPS: there is
// none. -1: a needed proxy is absent.
VERIFIED_ONCE int lead(struct via *via, struct led *led) {
    if (!via || !led) return HOPS;
    bool is_v4 = is_mapped(led->asked.words), is_skipped = false;
    __u32 first = 0;
    if (led->own) {
        first = HOPS;
#pragma clang loop unroll(full)
        for (int i = 0; i < HOPS; i++)
            if (i < via->count && via->hops[i].space == led->own) first = i + 1;
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < HOPS; i++) {
        struct hop *hop = &via->hops[i];
        if (i < first || i >= via->count) continue;
        __u32 *address = is_v4 ? hop->v4.words : hop->v6.words;
        bool is_there = hop->space && hop->network == led->network && (is_v4 ? hop->has_v4 : hop->has_v6);
        // The connection is to the proxy itself.
        if (is_there && (!hop->port || hop->port == led->port) && is_same(address, led->asked.words)) break;
        struct slot *slot = slot_of(hop->slot);
        if (!slot) continue;
        if (is_there && !slot->state) {
            first = i;
            goto found;
        }
        if (!via->bypass) {
            add(&slot->failed, 1);
            slot = slot_of(via->slot);
            if (slot) add(&slot->failed, 1);
            return -1;
        }
        is_skipped = true;
    }
    first = HOPS;
found:
    if (is_skipped) {
        struct slot *slot = slot_of(via->slot);
        if (slot) add(&slot->bypassed, 1);
    }
    return first;
}

// A connect that is judged. `to`: the party that has the address, if `is_known`. `space`, `network`: those of the connecting namespace; 0 if
// unknown. `backend`: class in the rules that name the service, if `has_backend`. `is_home`: within a namespace, where the driver cannot tell
// listeners apart. Results of the rules: the verdict, if `is_judged`, and the one that leads, or NONE; `is_proxy`: by a rule of a proxy's.
struct trial {
    struct whom from, to;
    __u32 generation, space, network, backend, port, flags, otherwise, verdict, leads;
    __u16 asked_port;
    __u8 is_known, is_home, has_backend, is_judged, is_proxy, zero;
};

// Looks up the party that has an address.
VERIFIED_ONCE int look_up_peer(struct trial *trial, struct address *address) {
    if (!trial || !address) return 0;
    struct whom *to = party(trial->generation, trial->network, address->words);
    trial->is_known = to != 0;
    if (to) trial->to = *to;
    trial->is_home = to && trial->space && trial->space == to->space;
    return 0;
}

// Looks up the party that connects: a control group that the policy names, or else the network namespace. Returns the number of the group,
// or 0.
VERIFIED_ONCE __u64 look_up_group(struct trial *trial, __u32 levels) {
    if (!trial) return 0;
    struct source key = {0, trial->generation, 1};
#pragma clang loop unroll(full)
    for (int level = LEVELS; level > 0; level--) {
        if (!(levels & 1u << level)) continue;
        key.id = ancestor_cgroup(level);
        struct whom *group = map_lookup(&sources, &key);
        if (group) {
            trial->from = *group;
            return key.id;
        }
    }
    return 0;
}

// Asks the rules.
VERIFIED_ONCE int ask_rules(struct trial *trial) {
    if (!trial || trial->is_home) return 0;
    __u32 generation = trial->generation, from = trial->from.class, verdict = 0, leads = NONE;
    bool is_judged = false;
    if (trial->has_backend) {
        // Rules that name the service.
        __u32 found = named(generation, from, trial->backend, trial->asked_port);
        if (found != NONE) verdict = found, is_judged = true;
        if (found != NONE && (found & LEADS)) leads = found;
    }
    if (trial->is_known && !(is_judged && (verdict & 1))) {
        __u32 found = named(generation, from, trial->to.class, trial->port);
        if (found != NONE) verdict = found;
        else if (!is_judged) verdict = trial->otherwise;
        if (leads == NONE && found != NONE && (found & LEADS)) leads = found;
        is_judged = true;
    }
    if ((trial->flags & VIAS) && trial->space) {
        // A proxy's own connections follow the first rule that leads through it.
        struct proxy_key proxy = {generation, trial->space};
        __u32 *class = map_lookup(&proxies, &proxy);
        if (class) {
            __u32 own = trial->has_backend ? named(generation, *class, trial->backend, trial->asked_port) : NONE;
            __u32 other = trial->is_known ? named(generation, *class, trial->to.class, trial->port) : NONE;
            if (number_of(other) < number_of(own)) own = other;
            if (own != NONE && !(is_judged && (verdict & 1) && number_of(verdict) < number_of(own)))
                verdict = leads = own, is_judged = trial->is_proxy = true;
        }
    }
    trial->verdict = verdict;
    trial->leads = leads;
    trial->is_judged = is_judged;
    return 0;
}

// Judges a connect. 1: it goes on, to `address` and `port`, which a backend may have replaced. 0: the call fails.
INLINE int judge(struct bpf_sock_addr *ctx, struct address *address, __u32 *port) {
    struct config *c = in_force();
    if (!c || (ctx->protocol != TCP && ctx->protocol != MPTCP)) return 1;
    struct of *of = &c->of[c->generation & 1];
    struct trial trial = {.generation = c->generation, .port = (__u16)*port, .asked_port = *port, .flags = of->flags, .otherwise = of->otherwise, .leads = NONE};
    struct address asked = *address;
    struct bpf_sock *sk = ctx->sk;
    struct service_key of_service = {trial.generation, trial.asked_port, 0, asked};
    struct service *service = map_lookup(&services, &of_service);
    __u64 home = netns_cookie(ctx);
    struct whom *space = space_of(trial.generation, home);
    if (space) {
        trial.from = *space;
        trial.space = space->space;
        trial.network = space->network;
    }
    if (!service) {
        // The socket connects again, to another address.
        struct record *before = sk ? storage_get(&records, sk, 0, 0) : 0;
        if (before) before->is_through = 0;
        look_up_peer(&trial, address);
        if (!trial.is_known || trial.is_home) return 1;
    }
    __u64 group = look_up_group(&trial, of->levels);
    if (!group && !space) return 1;
    __u16 slots[2] = {0, 0};
    if (service) {
        int chosen = choose(service, trial.generation, socket_cookie(ctx), space ? trial.space : group);
        if (chosen < 0) {
            struct slot *slot = slot_of(service->slot);
            if (slot) add(&slot->failed, 1);
            set_retval(-ECONNREFUSED);
            return 0;
        }
        struct backend_key part = {trial.generation, service->number, chosen, trial.network};
        struct backend *backend = map_lookup(&backends, &part);
        if (!backend) {
            part.network = ANY;
            backend = map_lookup(&backends, &part);
            if (!backend) return 1;
        }
        *address = backend->address;
        *port = trial.port = backend->port;
        trial.has_backend = 1;
        trial.backend = backend->class;
        slots[0] = service->slot;
        slots[1] = backend->slot;
        look_up_peer(&trial, address);
    }
    ask_rules(&trial);
    struct tenant *tenant = tenant_of(trial.from.tenant);
    if (!tenant) return 1;
    if (trial.is_judged) {
        // The lowest bit denies.
        __u32 rule = of->hits + number_of(trial.verdict);
        __u64 *counter = map_lookup(&hits, &rule);
        if (!counter) return 1;
        add(counter, 1);
        if (trial.verdict & 1) {
            add(&tenant->denied, 1);
            set_retval(-EACCES);
            return 0;
        }
    }
    bool is_led = service != 0;
    if (trial.leads != NONE) {
        struct via_key key = {trial.generation, number_of(trial.leads)};
        struct via *via = map_lookup(&vias, &key);
        struct led led = {asked, trial.is_proxy ? trial.space : 0, trial.network, trial.asked_port, 0};
        int proxy = via ? lead(via, &led) : HOPS;
        if (proxy < 0) {
            set_retval(-ECONNREFUSED);
            return 0;
        }
        if (via && proxy < HOPS) {
            struct hop *hop = &via->hops[proxy & (HOPS - 1)];
            *address = is_mapped(asked.words) ? hop->v4 : hop->v6;
            *port = hop->port ? hop->port : trial.asked_port;
            is_led = true;
            slots[0] = via->slot;
            slots[1] = hop->slot;
            bool is_home = trial.is_home;
            look_up_peer(&trial, address);
            trial.is_home = is_home;
        }
    }
    if (trial.is_known && trial.to.network == FAR) {
        set_retval(-EHOSTUNREACH);
        return 0;
    }
    bool is_counted = trial.is_known && !trial.is_home;
    if (is_counted && tenant->open + tenant->open_on_fabric >= tenant->max) {
        add(&tenant->over_quota, 1);
        set_retval(-EMFILE);
        return 0;
    }
    if (!sk) return 1;
    struct record *record = storage_get(&records, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
    if (!record) return 1;
    // A party that is not counted gets a tenant number out of range.
    *record = (struct record){is_counted ? trial.from.tenant : TENANTS, is_counted ? trial.to.tenant : TENANTS, ASKED, c->epoch, 0, home};
    if (is_led) {
        record->service = asked;
        record->port = trial.asked_port;
        record->is_through = 1;
        record->slots[0] = slots[0];
        record->slots[1] = slots[1];
    }
    return 1;
}

SEC("cgroup/connect4") int pd_connect4(struct bpf_sock_addr *ctx) {
    struct address address = {{0, 0, __builtin_bswap32(0xffff), ctx->user_ip4}};
    __u32 port = ctx->user_port;
    int verdict = judge(ctx, &address, &port);
    if (port != ctx->user_port) ctx->user_port = port;
    if (address.words[3] != ctx->user_ip4) ctx->user_ip4 = address.words[3];
    return verdict;
}

SEC("cgroup/connect6") int pd_connect6(struct bpf_sock_addr *ctx) {
    struct address address = {{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};
    __u32 port = ctx->user_port;
    int verdict = judge(ctx, &address, &port);
    ctx->user_port = port;
    ctx->user_ip6[0] = address.words[0];
    ctx->user_ip6[1] = address.words[1];
    ctx->user_ip6[2] = address.words[2];
    ctx->user_ip6[3] = address.words[3];
    return verdict;
}

// Shows a program the address that it has connected to.
SEC("cgroup/getpeername4") int pd_peer4(struct bpf_sock_addr *ctx) {
    struct bpf_sock *sk = ctx->sk;
    struct record *record = sk ? storage_get(&records, sk, 0, 0) : 0;
    if (record && record->is_through) {
        ctx->user_port = record->port;
        ctx->user_ip4 = record->service.words[3];
    }
    return 1;
}

SEC("cgroup/getpeername6") int pd_peer6(struct bpf_sock_addr *ctx) {
    struct bpf_sock *sk = ctx->sk;
    struct record *record = sk ? storage_get(&records, sk, 0, 0) : 0;
    if (record && record->is_through) {
        ctx->user_port = record->port;
        ctx->user_ip6[0] = record->service.words[0];
        ctx->user_ip6[1] = record->service.words[1];
        ctx->user_ip6[2] = record->service.words[2];
        ctx->user_ip6[3] = record->service.words[3];
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
    struct origin origin = {record->service, record->port, 0};
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
    bool is_v4 = is_mapped(origin->address.words);
    if (ctx->level == SOL_IP) {
        if (!is_v4 || (void *)(words + 4) > ctx->optval_end) return 1;
        at[0] = AF_INET;
        at[1] = origin->port;
        words[1] = origin->address.words[3];
        words[2] = words[3] = 0;
        ctx->optlen = 16;
    } else {
        if ((void *)(words + 7) > ctx->optval_end) return 1;
        at[0] = AF_INET6;
        at[1] = origin->port;
        words[1] = words[6] = 0;
        words[2] = origin->address.words[0];
        words[3] = origin->address.words[1];
        words[4] = origin->address.words[2];
        words[5] = origin->address.words[3];
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
