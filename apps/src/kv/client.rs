//! A client of the store's own protocol: frames of requests, and parsing of answers. Answers are foreign bytes.
use super::protocol::{parse_answer, Op, Request, Status};
use super::{partition_of, PORT};
use crate::frame::{udp, Ends, Parts, UDP, UDP_PAYLOAD};

/// Makes requests, numbered, and reads answers.
#[derive(Debug)]
pub struct Client {
    ends: Ends,
    partitions: usize,
    number: u32,
}

/// Contents of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Number of the request.
    pub number: u32,
    /// Outcome of the request.
    pub status: Status,
    /// The value, of a request to get it.
    pub value: &'a [u8],
}

impl Client {
    /// Makes a client between these ends, of a store with `partitions`. The destination port of `ends` is not used.
    pub fn new(ends: Ends, partitions: usize) -> Self {
        Self { ends, partitions: partitions.max(1), number: 0 }
    }

    /// Makes the frame of the next request, with `room` bytes for a value in the answer. Numbers start with 1.
    pub fn request(&mut self, op: Op, key: &[u8], value: &[u8], room: usize) -> Vec<u8> {
        self.number = self.number.wrapping_add(1);
        let mut payload = Vec::with_capacity(64);
        Request { op, number: self.number, key, value }.write(room, &mut payload);
        let mut ends = self.ends;
        ends.ports[1] = PORT + partition_of(key, self.partitions) as u16;
        udp(&ends, &payload, 60)
    }

    /// Returns the number of the last request.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Reads a frame; none if it is no answer to this client.
    pub fn answer<'a>(&self, frame: &'a [u8]) -> Option<Answer<'a>> {
        let parts = Parts::of(frame).filter(|parts| parts.protocol == UDP)?;
        if parts.ports? as u16 != self.ends.ports[0] || parts.transport + 8 != UDP_PAYLOAD {
            return None;
        }
        let (_, number, status, value) = parse_answer(&frame[UDP_PAYLOAD..parts.end])?;
        Some(Answer { number, status, value })
    }
}
