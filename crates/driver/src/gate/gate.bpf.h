// SPDX-License-Identifier: Apache-2.0
// Structures and maps of the gate's programs. The driver has the same structures, and fills the maps (`keeper.rs`).
#pragma once
#include <linux/bpf.h>
#include <stdbool.h>

// Maps that the next driver's programs use, too (`lasting.rs`): pinned by name (`LIBBPF_PIN_BY_NAME`) while programs are loaded.
#define LASTING __uint(pinning, 1)
#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
// Marks a function that the kernel verifies once, with any arguments, and not at each call in each state of the caller. Arguments are
// numbers and pointers to structures, which may be null for all that the verifier knows. The result is a number.
#define VERIFIED_ONCE __attribute__((noinline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

static void *(*map_lookup)(void *, const void *) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*ktime)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u64 (*netns_cookie)(void *) = (void *)BPF_FUNC_get_netns_cookie;
static __u64 (*ancestor_cgroup)(int) = (void *)BPF_FUNC_get_current_ancestor_cgroup_id;
static __u64 (*socket_cookie)(void *) = (void *)BPF_FUNC_get_socket_cookie;
static long (*loop)(__u32, void *, void *, __u64) = (void *)BPF_FUNC_loop;
static int (*set_retval)(int) = (void *)BPF_FUNC_set_retval;
static void *(*storage_get)(void *, void *, void *, __u64) = (void *)BPF_FUNC_sk_storage_get;
static int (*set_callbacks)(void *, int) = (void *)BPF_FUNC_sock_ops_cb_flags_set;
static long (*map_update)(void *, const void *, const void *, __u64) = (void *)BPF_FUNC_map_update_elem;
static long (*map_delete)(void *, const void *) = (void *)BPF_FUNC_map_delete_elem;
static struct bpf_sock *(*full_socket)(struct bpf_sock *) = (void *)BPF_FUNC_sk_fullsock;

#define RULES 65536
#define TENANTS 4096
#define ENTRIES (1 << 21)
// The kernel makes 16 bytes for each at once. A client's network namespace and its control group have one each.
#define SOURCES (1 << 18)
#define LEVELS 8
#define SERVICES 1024
// Of one service; a power of two.
#define BACKENDS 256
#define SLOTS 16384
// Entries of a service's table, a prime, and entries in one chunk.
#define TABLE 65537
#define CHUNK 2048
// Places in the table to try before a linear search of all backends.
#define TRIES 16
// Sets of clients that keep their backend, and clients of one.
#define SETS 16384
#define WAYS 4
// Proxies of one rule.
#define HOPS 4
// Values of a verdict: the flag of a rule that leads through proxies, and the absence of a verdict.
#define LEADS (1u << 31)
#define NONE 0xffffffffu
// Flags of a generation.
#define RATED 1
#define VIAS 2
#define ORIGINS 4
// Networks in the key of a place: any network, for addresses that rules name, and the only network that has an address.
#define ANY 0xffffffffu
#define ONLY 0xfffffffeu
#define SO_ORIGINAL_DST 80
#define SOL_IP 0
#define SOL_IPV6 41
#define EACCES 13
#define EHOSTUNREACH 113
#define EMFILE 24
#define ECONNREFUSED 111
#define AF_INET 2
#define AF_INET6 10
#define TCP 6
#define MPTCP 262
#define TCP_CLOSE 7
#define BARE_ACK 128

// An IPv6 address, or an IPv4 one as IPv6.
struct address { __u32 words[4]; };

// A party of a connection.
struct whom {
    __u32 tenant;
    // Class in the rules that name this party as the other side.
    __u32 class;
    // Network namespace; 0: none that the driver knows.
    __u32 space;
    // Of a connecting party: its network. Of an address: FAR if it means one of another network, which the kernel cannot reach.
    __u32 network;
};
#define FAR 1

struct config {
    // Generation of the entries in force; 0: there are none.
    __u32 generation;
    // Number of times that the programs were attached: only connections since the last time are counted.
    __u32 epoch;
    // Of even and of odd generations.
    struct of {
        // Depths of the named control groups, a bit each.
        __u32 levels;
        // Verdict where no rule is named.
        __u32 otherwise;
        // RATED: some tenant has a rate. VIAS: some rule leads through proxies. ORIGINS: accepted sockets know the address that
        // was asked for.
        __u32 flags;
        // Index of the policy's first hit counter.
        __u32 hits;
    } of[2];
    // Offset from the kernel's clock to the clock of buckets.
    __u64 shift_ns;
};

struct tenant {
    __u64 open, open_on_fabric, max;
    __u64 made, accepted, denied, over_quota;
    __u64 sent, received;
    // A token bucket, as in `policy/rate.rs`.
    __u64 spent_until_ns, burst_ns, ns_per_mib;
    // Bucket of each single connection; its state is in the socket's record.
    __u64 one_burst_ns, one_ns_per_mib;
    __u64 drops;
};

struct source { __u64 id; __u32 generation; __u32 is_group; };
struct place { __u32 prefix; __u32 generation, network; __u32 address[4]; };
struct pair { __u32 prefix; __u32 generation, from, to; __u16 port, zero; };

// A connection, kept with its socket. `since`: epoch of a counted connection, or generation of one that was only seen. `home`: the
// network namespace; 0 if unknown. `service`, `port`: the address asked for, if the connection leads elsewhere. `slots`: those of service
// and backend, or of rule and proxy.
struct record { __u32 from, to, state, since; __u64 spent_until_ns, home; struct address service; __u16 port, is_through, slots[2]; };
enum { ASKED = 1, OPEN, SEEN, MADE };

struct service_key { __u32 generation; __u16 port, zero; struct address address; };
struct member { __u16 slot, weight; };
struct service { __u32 number; __u16 slot, count; __u32 is_least, zero; __u64 affinity_ms; struct member list[BACKENDS]; };
// `part`: number of a backend, or of a piece of the table. `network`: network of the backend's address; ANY: each network without an
// entry of its own.
struct part_key { __u32 generation; __u16 service, part; };
struct backend_key { __u32 generation; __u16 service, part; __u32 network; };
// `class`: class in the rules that name the service's address.
struct backend { struct address address; __u16 port, slot; __u32 class; };
struct chunk { __u16 entries[CHUNK]; };
struct choice { __u32 generation; __u16 service, backend; };
// A slot, as in `service/slots.rs`.
struct slot { __u64 state, made, active, failed, sent, received, active_on_kernel, bypassed; };
// A proxy: its addresses of each family, if any, its network namespace, and its port; 0: the port that was asked for.
struct hop { struct address v4, v6; __u32 space; __u16 port, slot; __u32 has_v4, has_v6, network; };
struct via_key { __u32 generation, rule; };
struct via { __u32 count, bypass; __u16 slot, zero[3]; struct hop hops[HOPS]; };
// Key of a network namespace that a proxy is in. Value: the class of the rules that lead through it.
struct proxy_key { __u32 generation, space; };
// A connection on its way to the address that it was led to, and the address asked for.
struct journey { __u32 space; __u16 from_port, to_port; __u32 from[4], to[4]; };
struct origin { struct address address; __u16 port, zero; };
// Clients' keys. `word`: slot of the client's backend, and the time until which it is kept, in milliseconds.
struct sticky { struct { __u64 key, word; } ways[WAYS]; };

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, struct config); } config SEC(".maps");
struct { LASTING; __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, TENANTS); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, struct tenant); } tenants SEC(".maps");
struct { LASTING; __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2 * RULES); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, __u64); } hits SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, SOURCES); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct source); __type(value, struct whom); } sources SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, ENTRIES); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct place); __type(value, struct whom); } places SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, ENTRIES); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct pair); __type(value, __u32); } verdicts SEC(".maps");
struct { LASTING; __uint(type, BPF_MAP_TYPE_SK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, int); __type(value, struct record); } records SEC(".maps");

struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, SERVICES); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct service_key); __type(value, struct service); } services SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1 << 17); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct backend_key); __type(value, struct backend); } backends SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1 << 15); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct part_key); __type(value, struct chunk); } tables SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 1 << 14); __type(key, __u64); __type(value, struct choice); } choices SEC(".maps");
struct { LASTING; __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, SLOTS); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, struct slot); } slots SEC(".maps");
struct { LASTING; __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, SETS); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, struct sticky); } sticky SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1 << 10); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct via_key); __type(value, struct via); } vias SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1 << 12); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct proxy_key); __type(value, __u32); } proxies SEC(".maps");
struct { LASTING; __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 1 << 15); __type(key, struct journey); __type(value, struct origin); } journeys SEC(".maps");
struct { LASTING; __uint(type, BPF_MAP_TYPE_SK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, int); __type(value, struct origin); } origins SEC(".maps");
