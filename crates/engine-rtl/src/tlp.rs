//! Transaction layer packets, as far as this card and its host use them: memory reads and writes, and completions.

/// Bytes at which a host may break a read's completions.
const BOUNDARY_BYTES: u64 = 64;
const STATUS_UNSUPPORTED: u32 = 1;

/// A memory request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// First byte that is asked for or written.
    pub addr: u64,
    /// Bytes from there; 0 for a read that only pushes writes ahead of itself.
    pub len: usize,
    /// The request itself.
    pub kind: Kind,
}

/// Kinds of [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Answer with completions of this requester's tag.
    Read {
        /// Bus, device, function.
        requester: u16,
        /// Its number for the read.
        tag: u8,
    },
    /// Store these bytes.
    Write(Vec<u8>),
}

/// A packet on its way to the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// As [`Beat::hdr`](crate::model::Beat::hdr).
    pub hdr: [u32; 4],
    /// Payload: whole DWs.
    pub data: Vec<u8>,
    /// Address of the first byte that it carries, for those who watch.
    pub addr: u64,
}

impl Request {
    /// The request of a header and `payload`, which begins on a DW.
    ///
    /// # Errors
    /// A message that says which rule the packet breaks.
    pub fn parse(hdr: [u32; 4], payload: &[u8]) -> Result<Self, &'static str> {
        let [dw3, dw2, dw1, dw0] = hdr;
        if (dw0 >> 24) & 0x1f != 0 || dw0 >> 31 != 0 {
            return Err("not a memory request");
        }
        let (is_write, is_long) = (dw0 & 1 << 30 != 0, dw0 & 1 << 29 != 0);
        let dws = match dw0 & 0x3ff {
            0 => 1024,
            dws => dws as usize,
        };
        let base = match is_long {
            true => u64::from(dw2) << 32 | u64::from(dw3 & !3),
            false => u64::from(dw2 & !3),
        };
        if is_long && dw2 == 0 {
            return Err("an address below 4 GB in a header of four DWs");
        }
        if base % 4096 + 4 * dws as u64 > 4096 {
            return Err("it crosses a 4 KB boundary");
        }
        let (first, last) = (dw1 & 0xf, dw1 >> 4 & 0xf);
        let (skipped, len) = enabled(dws, first, last)?;
        let kind = match is_write {
            true if payload.len() != 4 * dws => return Err("payload and length differ"),
            true => Kind::Write(payload[skipped..skipped + len].to_vec()),
            false => Kind::Read { requester: (dw1 >> 16) as u16, tag: (dw1 >> 8) as u8 },
        };
        Ok(Self { addr: base + skipped as u64, len, kind })
    }
}

/// Bytes before the first enabled one, and from there to the last, in `dws` DWs.
fn enabled(dws: usize, first: u32, last: u32) -> Result<(usize, usize), &'static str> {
    const HOLES: &str = "byte enables with holes";
    if dws == 1 {
        if last != 0 {
            return Err("last byte enables of a request of one DW");
        }
        let (skipped, len) = (first.trailing_zeros().min(4) % 4, first.count_ones());
        return match first >> skipped == (1 << len) - 1 {
            true => Ok((skipped as usize, len as usize)),
            false => Err(HOLES),
        };
    }
    let (skipped, end) = (4 - first.count_ones(), last.count_ones());
    if first == 0 || last == 0 || first != (0xf << skipped) & 0xf || last != (1 << end) - 1 {
        return Err(HOLES);
    }
    Ok((skipped as usize, 4 * (dws - 1) + end as usize - skipped as usize))
}

/// The completions of a read of `bytes` from `addr`, of at most `mps` bytes each.
pub fn completions(addr: u64, bytes: &[u8], requester: u16, tag: u8, mps: usize) -> Vec<Packet> {
    if bytes.is_empty() {
        return vec![completion(addr, &[0], 1, requester, tag)];
    }
    let mut packets = Vec::with_capacity(bytes.len() / mps + 1);
    let mut at = 0;
    while at < bytes.len() {
        let from = addr + at as u64;
        let boundary = (from + mps as u64) / BOUNDARY_BYTES * BOUNDARY_BYTES;
        let end = bytes.len().min((boundary - addr) as usize);
        packets.push(completion(from, &bytes[at..end], bytes.len() - at, requester, tag));
        at = end;
    }
    packets
}

fn completion(addr: u64, bytes: &[u8], left: usize, requester: u16, tag: u8) -> Packet {
    let skipped = (addr % 4) as usize;
    let mut data = vec![0; (skipped + bytes.len()).next_multiple_of(4)];
    data[skipped..skipped + bytes.len()].copy_from_slice(bytes);
    let dw0 = 0x4a00_0000 | ((data.len() as u32 / 4) & 0x3ff);
    let dw1 = left as u32 & 0xfff;
    let dw2 = u32::from(requester) << 16 | u32::from(tag) << 8 | (addr & 0x7f) as u32;
    Packet { hdr: [0, dw2, dw1, dw0], data, addr }
}

/// The completion of a read of what is not there.
pub fn unsupported(addr: u64, len: usize, requester: u16, tag: u8) -> Packet {
    let dw1 = STATUS_UNSUPPORTED << 13 | len as u32 & 0xfff;
    let dw2 = u32::from(requester) << 16 | u32::from(tag) << 8 | (addr & 0x7f) as u32;
    Packet { hdr: [0, dw2, dw1, 0x0a00_0000], data: Vec::new(), addr }
}

/// The host's write of a register.
pub fn register_write(offset: u32, value: u32) -> Packet {
    Packet { hdr: [0, offset, 0xf, 0x4000_0001], data: value.to_le_bytes().into(), addr: offset.into() }
}

/// The host's read of a register.
pub fn register_read(offset: u32, tag: u8) -> Packet {
    Packet { hdr: [0, offset, u32::from(tag) << 8 | 0xf, 1], data: Vec::new(), addr: offset.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dws: u32, first: u32, last: u32) -> Result<Request, &'static str> {
        Request::parse([0x1000, 1, 0x0100_2a00 | last << 4 | first, 1 << 29 | dws], &[])
    }

    #[test]
    fn byte_enables_say_which_bytes() {
        let at = |r: Result<Request, _>| r.map(|r| (r.addr - 0x1_0000_1000, r.len));
        assert_eq!(at(read(1, 0b1111, 0)), Ok((0, 4)));
        assert_eq!(at(read(1, 0b0110, 0)), Ok((1, 2)));
        assert_eq!(at(read(1, 0, 0)), Ok((0, 0)));
        assert_eq!(at(read(2, 0b1000, 0b0001)), Ok((3, 2)));
        assert_eq!(at(read(128, 0b1111, 0b1111)), Ok((0, 512)));
        for bad in [read(1, 0b0101, 0), read(1, 1, 1), read(2, 0b0111, 1), read(2, 8, 0b10), read(2, 0, 1)] {
            assert!(bad.is_err());
        }
        assert!(Request::parse([0xff0, 1, 0xff, 1 << 29 | 8], &[]).is_err(), "crosses 4 KB");
    }

    #[test]
    fn completions_cover_the_read_in_order() {
        let bytes: Vec<u8> = (0..700).map(|i| i as u8).collect();
        let (mut next, mut left) = (0x7fu64, 700);
        for packet in completions(0x7f, &bytes, 0x100, 7, 256) {
            assert_eq!(packet.addr, next);
            assert_eq!(packet.hdr[2] & 0xfff, left as u32);
            assert_eq!(u64::from(packet.hdr[1] & 0x7f), next % 128);
            assert!(packet.data.len() <= 256 + 4);
            let skipped = (next % 4) as usize;
            let got = (packet.data.len() - skipped).min(left);
            let at = 700 - left;
            let count = got.min(bytes.len() - at);
            let whole =
                packet.data[skipped..skipped + count].iter().zip(&bytes[at..]).filter(|(a, b)| a == b);
            let len = whole.count();
            next += len as u64;
            left -= len;
            assert!(left == 0 || next % BOUNDARY_BYTES == 0);
        }
        assert_eq!(left, 0);
    }
}
