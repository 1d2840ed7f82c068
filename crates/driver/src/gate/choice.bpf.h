// SPDX-License-Identifier: Apache-2.0
// The choice of a service's backend: a client's last one, the Maglev table, or the counts of connections. `service/choice.rs` takes the
// same steps.
#pragma once
#include "gate.bpf.h"

// Mixes a word as `crates/maglev` does.
INLINE __u64 mix(__u64 word) {
    word = (word ^ word >> 33) * 0xff51afd7ed558ccd;
    word = (word ^ word >> 33) * 0xc4ceb9fe1a85ec53;
    return word ^ word >> 33;
}

INLINE struct slot *slot_of(__u32 number) { return map_lookup(&slots, &number); }

INLINE bool is_up(struct service *service, __u32 backend) {
    if (backend >= service->count) return false;
    struct slot *slot = slot_of(service->list[backend & (BACKENDS - 1)].slot);
    return slot && !slot->state;
}

// A search for a backend, step by step, that ends with `found` or with -1.
struct search {
    struct service *service;
    __u64 hash, most, weight;
    __u32 generation, at, slot;
    int found;
};

static long step_by_table(__u64 step, void *of) {
    struct search *search = of;
    __u32 entry = search->hash % TABLE;
    struct part_key key = {search->generation, search->service->number, entry / CHUNK};
    struct chunk *chunk = map_lookup(&tables, &key);
    if (!chunk) return 1;
    __u32 backend = chunk->entries[entry & (CHUNK - 1)];
    if (is_up(search->service, backend)) {
        search->found = backend;
        return 1;
    }
    search->hash = mix(search->hash + 1);
    return 0;
}

INLINE __u32 next(struct search *search) {
    __u32 at = search->at;
    search->at = at + 1 < search->service->count ? at + 1 : 0;
    return at & (BACKENDS - 1);
}

static long step_to_first(__u64 step, void *of) {
    struct search *search = of;
    __u32 at = next(search);
    if (!is_up(search->service, at)) return 0;
    search->found = at;
    return 1;
}

static long step_to_least(__u64 step, void *of) {
    struct search *search = of;
    __u32 at = next(search);
    struct member *member = &search->service->list[at];
    struct slot *slot = slot_of(member->slot);
    if (!slot || slot->state) return 0;
    __u64 active = slot->active + slot->active_on_kernel;
    if (search->found < 0 || (active + 1) * search->weight < (search->most + 1) * member->weight) {
        search->found = at;
        search->most = active;
        search->weight = member->weight;
    }
    return 0;
}

static long step_to_slot(__u64 step, void *of) {
    struct search *search = of;
    __u32 at = next(search);
    if (search->service->list[at].slot != search->slot) return 0;
    if (is_up(search->service, at)) search->found = at;
    return 1;
}

// Each kind of search is a function of its own: the kernel verifies a step in each state of the function that calls `loop`.
VERIFIED_ONCE int find_by_table(struct service *service, __u32 generation, __u64 hash) {
    if (!service) return -1;
    struct search search = {.service = service, .hash = hash, .generation = generation, .found = -1};
    loop(TRIES, step_by_table, &search, 0);
    return search.found;
}

VERIFIED_ONCE int find_first(struct service *service, __u32 at) {
    if (!service) return -1;
    struct search search = {.service = service, .at = at, .found = -1};
    loop(service->count, step_to_first, &search, 0);
    return search.found;
}

VERIFIED_ONCE int find_least(struct service *service, __u32 at) {
    if (!service) return -1;
    struct search search = {.service = service, .at = at, .found = -1};
    loop(service->count, step_to_least, &search, 0);
    return search.found;
}

VERIFIED_ONCE int find_slot(struct service *service, __u32 slot) {
    if (!service) return -1;
    struct search search = {.service = service, .slot = slot, .found = -1};
    loop(service->count, step_to_slot, &search, 0);
    return search.found;
}

// Returns the number of a backend, or -1, by the method of `service/choice.rs`.
VERIFIED_ONCE int find(struct service *service, __u32 generation, __u64 hash) {
    if (!service || !service->count) return -1;
    if (service->is_least) return find_least(service, hash % service->count);
    int found = find_by_table(service, generation, hash);
    return found >= 0 ? found : find_first(service, hash % service->count);
}

// Returns the place of a client among those of its set, or else the oldest place.
VERIFIED_ONCE int place_of(struct sticky *kept, __u64 key) {
    if (!kept) return 0;
    int oldest = 0;
    __u64 first = -1;
#pragma clang loop unroll(full)
    for (int i = 0; i < WAYS; i++) {
        __u64 word = kept->ways[i].word;
        if (kept->ways[i].key == key) return i;
        if (word < first) first = word, oldest = i;
    }
    return oldest;
}

VERIFIED_ONCE int choose(struct service *service, __u32 generation, __u64 cookie, __u64 client) {
    if (!service) return -1;
    // A choice of the driver, for a connection whose bytes it carries.
    struct choice *choice = map_lookup(&choices, &cookie);
    if (choice && choice->generation == generation && choice->service == service->number && is_up(service, choice->backend))
        return choice->backend & (BACKENDS - 1);
    __u64 affinity_ms = service->affinity_ms;
    if (!affinity_ms) return find(service, generation, mix(cookie));
    __u64 now_ms = ktime() / 1000000, key = mix(client ^ (__u64)service->slot << 32);
    key = key ? key : 1;
    __u32 set = key % SETS;
    struct sticky *kept = map_lookup(&sticky, &set);
    if (!kept) return -1;
    int way = place_of(kept, key) & (WAYS - 1), found = -1;
    if (kept->ways[way].key == key && kept->ways[way].word >> 16 > now_ms)
        found = find_slot(service, (__u16)kept->ways[way].word);
    if (found < 0) found = find(service, generation, mix(service->is_least ? cookie : client));
    if (found < 0) return -1;
    kept->ways[way].key = key;
    kept->ways[way].word = (now_ms + affinity_ms) << 16 | service->list[found & (BACKENDS - 1)].slot;
    return found;
}
