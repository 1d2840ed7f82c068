//! The store's own protocol: one request and one answer in a datagram of UDP each. No answer is longer than its request, so that it
//! replaces the request in place, and a forged source gets no more bytes than were sent in its name. A request to get a value has as many
//! bytes of payload as the answer may have.
//!
//! | bytes | request | answer |
//! |---|---|---|
//! | 0 | [`MAGIC`] | the same |
//! | 1 | [`Op`] | the same |
//! | 2 | 0 | [`Status`] |
//! | 3 | length of the key | 0 |
//! | 4..6 | length of the value that is set | length of the value |
//! | 6..8 | 0 | 0 |
//! | 8..12 | a number of the client's | the same |
//! | 12.. | key, value | value |
//!
//! Numbers are in network order.

/// First byte.
pub const MAGIC: u8 = 0xd7;
/// Bytes before key and value.
pub const HEADER: usize = 12;

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// The value of a key.
    Get = 1,
    /// Gives a key a value.
    Set = 2,
    /// Removes a key.
    Delete = 3,
}

/// Contents of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Done = 0,
    /// There is no such key.
    Missing = 1,
    /// Key or value is too long, or empty.
    TooLong = 2,
    /// The value has more bytes than the request leaves for it. The answer has its length.
    NoRoom = 3,
    /// Another partition has the key.
    Elsewhere = 4,
}

impl Status {
    /// Returns a status by its number.
    pub fn of(number: u8) -> Option<Self> {
        [Self::Done, Self::Missing, Self::TooLong, Self::NoRoom, Self::Elsewhere]
            .into_iter()
            .find(|&status| status as u8 == number)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Operation asked for.
    pub op: Op,
    /// A number that the answer has, too.
    pub number: u32,
    /// The key.
    pub key: &'a [u8],
    /// The value that is set.
    pub value: &'a [u8],
}

impl<'a> Request<'a> {
    /// Reads a request; none if this is none. Bytes behind it are room for the answer.
    #[inline]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (head, rest) = payload.split_first_chunk::<HEADER>()?;
        let op = match head[1] {
            1 => Op::Get,
            2 => Op::Set,
            3 => Op::Delete,
            _ => return None,
        };
        if head[0] != MAGIC || head[2] != 0 || head[6..8] != [0, 0] {
            return None;
        }
        let value_len = usize::from(u16::from_be_bytes([head[4], head[5]]));
        if op != Op::Set && value_len != 0 {
            return None;
        }
        let (key, rest) = rest.split_at_checked(head[3].into())?;
        let number = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        Some(Self { op, number, key, value: rest.get(..value_len)? })
    }

    /// Writes the request, with `room` bytes for a value, to the end of `to`.
    pub fn write(&self, room: usize, to: &mut Vec<u8>) {
        let from = to.len();
        to.extend([MAGIC, self.op as u8, 0, self.key.len() as u8]);
        to.extend((self.value.len() as u16).to_be_bytes());
        to.extend([0, 0]);
        to.extend(self.number.to_be_bytes());
        to.extend_from_slice(self.key);
        to.extend_from_slice(self.value);
        to.resize(to.len().max(from + HEADER + room), 0);
    }
}

/// Makes the header of a request that of its answer, for which a value of `value_len` bytes is or will be behind it.
#[inline]
pub fn answer(payload: &mut [u8], status: Status, value_len: usize) {
    if let Some(head) = payload.first_chunk_mut::<HEADER>() {
        (head[2], head[3]) = (status as u8, 0);
        head[4..6].copy_from_slice(&(value_len as u16).to_be_bytes());
    }
}

/// Parses an answer: the operation, its number, the status, and the value; none if it is malformed.
pub fn parse_answer(payload: &[u8]) -> Option<(u8, u32, Status, &[u8])> {
    let (head, rest) = payload.split_first_chunk::<HEADER>()?;
    let status = Status::of(head[2]).filter(|_| head[0] == MAGIC)?;
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let value = if status == Status::Done { rest.get(..length)? } else { &[] };
    Some((head[1], u32::from_be_bytes([head[8], head[9], head[10], head[11]]), status, value))
}
