//! Choice of the pipe for a frame, among those that receive from a port.
//!
//! Pipes with the same flow are a group. A search looks through few groups. Many have an index: a map for each combination of fields that
//! flows name, so that the cost of a frame does not grow with the number of flows.
use crate::flow::Flow;
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Fewest groups for each map of an index: a look into a map costs as much as comparisons with some flows.
const GROUPS_FOR_A_MAP: usize = 4;

/// Pipes with the same flow.
#[derive(Debug)]
struct Group {
    flow: Flow,
    pipes: Vec<usize>,
}

/// Places of the groups whose flows name the same fields.
#[derive(Debug)]
struct Map {
    /// A flow with these fields.
    like: Flow,
    /// Place of the first.
    first: usize,
    /// By [`Flow::key`]. Clients choose the keys, and do not know the seed of their hash.
    places: HashMap<(u64, u64), usize, RandomState>,
}

/// Pipes that receive from a port, and have started; the most specific flows first.
#[derive(Debug, Default)]
pub(super) struct Groups {
    all: Vec<Group>,
    /// Maps in the order of their first places; none where a search is as quick, or where the groups have changed.
    maps: Vec<Map>,
    /// Set if the groups have changed since the last [`Self::index`].
    has_changed: bool,
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
        self.all.is_empty()
    }

    /// Returns the flows, the most specific first.
    pub fn flows(&self) -> Vec<Flow> {
        self.all.iter().map(|group| group.flow).collect()
    }

    /// Adds a pipe that receives from now on.
    pub fn admit(&mut self, pipe: usize, flow: Flow) {
        match self.all.iter_mut().find(|group| group.flow == flow) {
            Some(group) if group.pipes.contains(&pipe) => {}
            Some(group) => group.pipes.push(pipe),
            None => {
                let specificity = flow.specificity();
                let at = self.all.partition_point(|group| group.flow.specificity() >= specificity);
                self.all.insert(at, Group { flow, pipes: vec![pipe] });
                self.change();
            }
        }
    }

    /// Removes a pipe.
    pub fn leave(&mut self, pipe: usize) {
        let before = self.all.len();
        self.all.iter_mut().for_each(|group| group.pipes.retain(|&other| other != pipe));
        self.all.retain(|group| !group.pipes.is_empty());
        if self.all.len() != before {
            self.change();
        }
    }

    /// Searches from now on, until the groups are indexed again.
    fn change(&mut self) {
        self.maps.clear();
        self.has_changed = true;
    }

    /// Makes an index where one pays. Called once a turn, so that many changes cost one.
    pub fn index(&mut self) {
        if !std::mem::take(&mut self.has_changed) {
            return;
        }
        for (place, group) in self.all.iter().enumerate() {
            let flow = group.flow;
            let known = self.maps.iter().position(|map| map.like.is_like(&flow));
            let at = known.unwrap_or(self.maps.len());
            if known.is_none() {
                self.maps.push(Map { like: flow, first: place, places: HashMap::default() });
                if self.maps.len() * GROUPS_FOR_A_MAP > self.all.len() {
                    self.maps.clear();
                    return;
                }
            }
            self.maps[at].places.insert(flow.key(), place);
        }
    }

    /// Returns the place of the first group whose flow matches a frame.
    fn find(&self, header: &[u8]) -> Option<usize> {
        let frame = Flow::of(header);
        if self.maps.is_empty() {
            return self.all.iter().position(|group| group.flow.has(frame.as_ref()));
        }
        let mut found = None;
        for map in &self.maps {
            if found.is_some_and(|found| found < map.first) {
                break;
            }
            let flow = match &frame {
                Some((frame, has_ports)) => frame.reduced(&map.like, *has_ports),
                None => map.like.is_any().then_some(map.like),
            };
            let place = flow.and_then(|flow| map.places.get(&flow.key())).copied();
            found = found.into_iter().chain(place).min();
        }
        found
    }

    /// Returns the only pipe that receives, if all frames are its own.
    pub fn only_receiver(&self) -> Option<usize> {
        match &self.all[..] {
            [only] if only.pipes.len() == 1 && only.flow.is_any() => Some(only.pipes[0]),
            _ => None,
        }
    }

    /// Finds the pipe for a frame. `header` is called only where it matters.
    #[inline]
    pub fn choose<'a>(&self, header: impl FnOnce() -> &'a [u8]) -> Choice {
        match &self.all[..] {
            [] => Choice::Wait,
            [only] if only.pipes.len() == 1 && only.flow.is_any() => Choice::Pipe(only.pipes[0]),
            groups => {
                let header = header();
                match self.find(header).map(|place| &groups[place]) {
                    Some(group) => Choice::Pipe(group.pipes[spread(header, group.pipes.len())]),
                    None => Choice::Nobody,
                }
            }
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

    proptest! {
        /// Model: a search.
        #[test]
        fn an_index_finds_what_a_search_finds(
            fields in prop::collection::vec(0..256u32, 1..12),
            flows in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 1..200),
            frames in prop::collection::vec(any::<u64>(), 100),
            left in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let mut groups = Groups::default();
            for (pipe, (of, value)) in flows.iter().enumerate() {
                groups.admit(pipe, flow((fields[of.index(fields.len())], *value)));
            }
            left.iter().for_each(|pipe| groups.leave(pipe.index(flows.len())));
            let frames: Vec<_> = frames.into_iter().map(frame).collect();
            let found = |groups: &Groups| frames.iter().map(|frame| groups.choose(|| frame)).collect::<Vec<_>>();
            let searched = found(&groups);
            prop_assert!(groups.maps.is_empty());
            groups.index();
            prop_assert_eq!(found(&groups), searched);
        }
    }

    #[test]
    fn many_flows_have_an_index_and_few_do_not() {
        let udp = |port| Flow { protocol: 17, ports: [0, port], ..Flow::default() };
        let mut groups = Groups::default();
        for port in 1..=1024 {
            groups.admit(port.into(), udp(port));
        }
        groups.admit(0, Flow::default());
        groups.index();
        assert_eq!(groups.maps.len(), 2);
        (1..1020).for_each(|port| groups.leave(port));
        groups.index();
        assert!(groups.maps.is_empty());
    }
}
