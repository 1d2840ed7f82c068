//! Choice of the pipe for a frame, among those that receive from a port.
//!
//! Pipes with the same flow are a group. There is a map of groups for each combination of fields that flows name, so that neither a frame nor a
//! pipe that comes or goes costs more with the number of flows.
use super::steps::step;
use crate::flow::{Fields, Flow};
use foldhash::fast::RandomState;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Pipes with the same flow.
#[derive(Debug)]
struct Group {
    /// Number of the group among all that there were: of flows as specific as each other, the oldest has a frame.
    since: u64,
    pipes: Vec<usize>,
}

/// Groups whose flows name the same fields.
#[derive(Debug)]
struct Map {
    /// A flow with these fields.
    like: Flow,
    /// By [`Flow::key`]. Clients choose the keys, and do not know the seed of their hash.
    groups: HashMap<(u64, u64), Group, RandomState>,
}

/// Place of a pipe.
#[derive(Clone, Copy, Debug)]
struct Member {
    flow: Flow,
    /// Place in its group.
    at: usize,
}

/// Pipes that receive from a port, and have started.
#[derive(Debug, Default)]
pub(super) struct Groups {
    maps: BTreeMap<Fields, Map>,
    members: HashMap<usize, Member, RandomState>,
    /// The only pipe, if all frames are its own.
    only: Option<usize>,
    /// Groups that were made.
    made: u64,
}

/// Pipe for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Pipe(usize),
    /// No pipe receives from the port: the frame waits.
    Wait,
    /// No pipe is bound to the frame.
    Nobody,
}

impl Groups {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the flows, the most specific ones first, and of those the oldest.
    pub fn flows(&self) -> Vec<Flow> {
        let flow = |group: &Group| Some((group.since, self.members.get(group.pipes.first()?)?.flow));
        let groups = self.maps.values().flat_map(|map| map.groups.values());
        let mut flows: Vec<_> = groups.inspect(|_| step()).filter_map(flow).collect();
        flows.sort_unstable_by_key(|(since, flow)| (Reverse(flow.specificity()), *since));
        flows.into_iter().map(|(_, flow)| flow).collect()
    }

    /// Returns the place of a pipe: pipes that are admitted in the order of their places choose as these.
    pub fn place(&self, pipe: usize) -> Option<(u64, usize)> {
        let Member { flow, at } = self.members.get(&pipe)?;
        Some((self.maps.get(&flow.fields())?.groups.get(&flow.key())?.since, *at))
    }

    /// Adds a pipe that receives from now on. Returns whether its flow is a new one.
    pub fn admit(&mut self, pipe: usize, flow: Flow) -> bool {
        if self.members.contains_key(&pipe) {
            return false;
        }
        step();
        let made = &mut self.made;
        let map =
            self.maps.entry(flow.fields()).or_insert_with(|| Map { like: flow, groups: HashMap::default() });
        let group = map.groups.entry(flow.key()).or_insert_with(|| {
            *made += 1;
            Group { since: *made, pipes: Vec::new() }
        });
        self.members.insert(pipe, Member { flow, at: group.pipes.len() });
        group.pipes.push(pipe);
        let is_new = group.pipes.len() == 1;
        self.find_only();
        is_new
    }

    /// Removes a pipe. Returns whether no other has its flow.
    pub fn leave(&mut self, pipe: usize) -> bool {
        let Some(Member { flow, at }) = self.members.remove(&pipe) else { return false };
        step();
        let (fields, key) = (flow.fields(), flow.key());
        let Some(map) = self.maps.get_mut(&fields) else { return false };
        let Some(group) = map.groups.get_mut(&key) else { return false };
        group.pipes.swap_remove(at);
        if let Some(moved) = group.pipes.get(at).and_then(|moved| self.members.get_mut(moved)) {
            moved.at = at;
        }
        let was_last = group.pipes.is_empty();
        if was_last {
            map.groups.remove(&key);
            if map.groups.is_empty() {
                self.maps.remove(&fields);
            }
        }
        self.find_only();
        was_last
    }

    fn find_only(&mut self) {
        let any = Flow::default();
        let of_any = || self.maps.get(&any.fields()).and_then(|map| map.groups.get(&any.key()));
        let group = if self.members.len() == 1 { of_any() } else { None };
        self.only = group.map(|group| group.pipes[0]);
    }

    /// Returns the first group whose flow matches a frame: of the most specific flows the oldest.
    fn find(&self, header: &[u8]) -> Option<&Group> {
        let frame = Flow::of(header);
        let mut found: Option<(&Fields, &Group)> = None;
        for (fields, map) in &self.maps {
            if found.is_some_and(|(found, _)| found.are_more_specific(fields)) {
                break;
            }
            let flow = match &frame {
                Some((frame, has_ports)) => frame.reduced(&map.like, *has_ports),
                None => map.like.is_any().then_some(map.like),
            };
            let group = flow.and_then(|flow| map.groups.get(&flow.key()));
            let is_first = |group: &&Group| found.is_none_or(|(_, found)| group.since < found.since);
            if let Some(group) = group.filter(is_first) {
                found = Some((fields, group));
            }
        }
        found.map(|(_, group)| group)
    }

    /// Returns the only pipe that receives, if all frames are its own.
    pub fn only_receiver(&self) -> Option<usize> {
        self.only
    }

    /// Finds the pipe for a frame. `header` is called only where it matters.
    #[inline]
    pub fn choose<'a>(&self, header: impl FnOnce() -> &'a [u8]) -> Choice {
        if let Some(only) = self.only {
            return Choice::Pipe(only);
        }
        if self.is_empty() {
            return Choice::Wait;
        }
        let header = header();
        match self.find(header) {
            Some(group) => Choice::Pipe(group.pipes[spread(header, group.pipes.len())]),
            None => Choice::Nobody,
        }
    }
}

/// Chooses one of `count` pipes for a frame's flow: by addresses and ports of IPv4, or by MAC addresses.
fn spread(header: &[u8], count: usize) -> usize {
    /// Odd, and without a pattern in its bits: the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let word = |at: usize| {
        header.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes).into())
    };
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let ipv4 = header.get(12..15) == Some(&[8, 0, 0x45]);
    // Only the first fragment of a datagram has ports.
    let whole = word(20) >> 16 & 0x3fff == 0;
    let hash = match (ipv4, whole) {
        (true, true) => [word(26), word(30), word(34)].into_iter().fold(0, mix),
        (true, false) => [word(26), word(30)].into_iter().fold(0, mix),
        _ => [word(0), word(4), word(8)].into_iter().fold(0, mix),
    };
    (((hash >> 32) * count as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Net;
    use proptest::prelude::*;

    #[test]
    fn flows_spread_over_pipes_and_stay_where_they_are() {
        let mut frame = [0u8; 64];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        let mut hit = [0u32; 8];
        for port in 0..800u16 {
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            hit[spread(&frame, 8)] += 1;
        }
        assert!(hit.iter().all(|&count| (50..200).contains(&count)), "{hit:?}");
        // Fragments have no ports.
        frame[20] = 0x20;
        let of = |port: u8| spread(&[&frame[..35], &[port], &frame[36..]].concat(), 8);
        assert!((0..100).all(|port| of(port) == of(0)));
        assert_eq!(spread(&[], 3), spread(&[], 3));
    }

    /// Makes a flow of few values, so that frames often match.
    fn flow((fields, value): (u32, u32)) -> Flow {
        let bits = |of: u32, at: u32, most: u32| (of >> at) % most;
        let net = |end: u32| {
            let prefix = [0, 8, 24, 32][bits(fields, 2 + 2 * end, 4) as usize];
            let address = [10, 0, bits(value, 4 * end, 2) as u8, bits(value, 4 * end + 1, 4) as u8];
            let mask = Net { address, prefix }.mask_bytes();
            Net { address: std::array::from_fn(|at| address[at] & mask[at]), prefix }
        };
        let protocol = [0, 6, 17, 17][bits(fields, 0, 4) as usize];
        let port = |end: u32| match protocol > 0 && bits(fields, 6 + end, 2) == 1 {
            true => 1 + bits(value, 8 + 2 * end, 3) as u16,
            false => 0,
        };
        Flow { protocol, addresses: [net(0), net(1)], ports: [port(0), port(1)] }
    }

    fn frame(number: u64) -> Vec<u8> {
        let bits = |at: u32, most: u64| ((number >> at) % most) as u8;
        let mut frame = vec![0; 64];
        let (kind, head, fragment) = (
            [8, 8, 8, 6][bits(0, 4) as usize],
            [0x45, 0x45, 0x46, 0x65][bits(2, 4) as usize],
            [0, 0, 0x20, 1][bits(4, 4) as usize],
        );
        frame[12..15].copy_from_slice(&[kind, 0, head]);
        frame[20] = fragment;
        frame[23] = [6, 17, 1, 17][bits(6, 4) as usize];
        frame[26..34].copy_from_slice(&[10, 0, bits(8, 2), bits(9, 4), 10, 0, bits(11, 2), bits(12, 4)]);
        frame[34..38].copy_from_slice(&[0, bits(14, 4), 0, bits(16, 4)]);
        frame.truncate([64, 64, 37, 30][bits(18, 4) as usize]);
        frame
    }

    /// A port's pipes as a list, which is searched: the most specific flows first, and of those the oldest.
    #[derive(Default)]
    struct Model(Vec<(Flow, Vec<usize>)>);

    impl Model {
        fn admit(&mut self, pipe: usize, flow: Flow) {
            match self.0.iter_mut().find(|(of, _)| *of == flow) {
                Some((_, pipes)) => pipes.push(pipe),
                None => {
                    let specificity = flow.specificity();
                    let at = self.0.partition_point(|(of, _)| of.specificity() >= specificity);
                    self.0.insert(at, (flow, vec![pipe]));
                }
            }
        }

        fn leave(&mut self, pipe: usize) {
            for (_, pipes) in &mut self.0 {
                let at = pipes.iter().position(|&other| other == pipe);
                at.into_iter().for_each(|at| {
                    pipes.swap_remove(at);
                });
            }
            self.0.retain(|(_, pipes)| !pipes.is_empty());
        }

        fn choose(&self, header: &[u8]) -> Choice {
            match self.0.iter().find(|(flow, _)| flow.matches(header)) {
                Some((_, pipes)) => Choice::Pipe(pipes[spread(header, pipes.len())]),
                None if self.0.is_empty() => Choice::Wait,
                None => Choice::Nobody,
            }
        }

        fn only(&self) -> Option<usize> {
            match &self.0[..] {
                [(flow, pipes)] if flow.is_any() && pipes.len() == 1 => Some(pipes[0]),
                _ => None,
            }
        }
    }

    proptest! {
        /// Pipes come and go in any order. Model: a search.
        #[test]
        fn maps_find_what_a_search_finds_whatever_comes_and_goes(
            fields in prop::collection::vec(0..256u32, 1..12),
            flows in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 1..200),
            changes in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..400),
            frames in prop::collection::vec(any::<u64>(), 20),
        ) {
            let (mut groups, mut model) = (Groups::default(), Model::default());
            let frames: Vec<_> = frames.into_iter().map(frame).collect();
            let mut is_there = vec![false; flows.len()];
            for (comes, pipe) in changes {
                let pipe = pipe.index(flows.len());
                let (of, value) = &flows[pipe];
                let flow = flow((fields[of.index(fields.len())], *value));
                let was = std::mem::replace(&mut is_there[pipe], comes);
                let known: Vec<_> = model.0.iter().map(|(flow, _)| *flow).collect();
                let changes = if comes { groups.admit(pipe, flow) } else { groups.leave(pipe) };
                match (was, comes) {
                    (false, true) => model.admit(pipe, flow),
                    (true, false) => model.leave(pipe),
                    _ => {}
                }
                let now: Vec<_> = model.0.iter().map(|(flow, _)| *flow).collect();
                prop_assert_eq!(changes, known != now);
                prop_assert_eq!(groups.flows(), now);
                prop_assert_eq!(groups.only_receiver(), model.only());
                for frame in &frames {
                    prop_assert_eq!(groups.choose(|| frame), model.choose(frame));
                }
            }
        }
    }
}
