//! Frames of `pd gen`: made of a recipe, with a stamp by which they are known when they come back, or of a capture.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{bail, Context, Result};
use pd_pipe::Pcap;

/// Shortest frame with a stamp: Ethernet, IPv4, UDP, and [`Stamp`].
pub const BYTES_MIN: usize = STAMP + Stamp::BYTES;
/// Longest frame of a pipe.
pub const BYTES_MAX: usize = pd_abi::pipe::FRAME_BYTES_MAX as usize;
/// Most flows: a UDP port each.
pub const FLOWS_MAX: u32 = 60_000;
/// Largest capture, which is kept in memory.
const CAPTURE_BYTES_MAX: u64 = 256 << 20;
/// Simple IMIX: 7 to 4 to 1, in an order without long runs.
const IMIX: [usize; 12] = [64, 64, 594, 64, 64, 594, 64, 594, 64, 64, 594, 1518];
/// Sizes of RFC 2544.
const RFC2544: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// Offsets of the fields that differ from frame to frame.
const SOURCE_PORT: usize = 34;
const STAMP: usize = 42;
/// UDP port of the first flow.
const FIRST_PORT: u16 = 1024;

/// Contents of a frame by which it is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the run.
    pub run: u32,
    /// Number of the frame, modulo 2^32.
    pub number: u32,
    /// When it was written into the ring, in nanoseconds since the start of the run.
    pub sent_ns: u64,
}

impl Stamp {
    const BYTES: usize = 16;

    fn write(self, frame: &mut [u8]) {
        frame[STAMP..STAMP + 4].copy_from_slice(&self.run.to_be_bytes());
        frame[STAMP + 4..STAMP + 8].copy_from_slice(&self.number.to_be_bytes());
        frame[STAMP + 8..STAMP + 16].copy_from_slice(&self.sent_ns.to_be_bytes());
    }

    /// Returns the stamp of a frame, if it is long enough for one.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let stamp: &[u8; Self::BYTES] = frame.get(STAMP..)?.first_chunk()?;
        let word = |at: usize| stamp[at..].first_chunk().map(|word| u32::from_be_bytes(*word));
        let sent_ns = stamp[8..].first_chunk().map(|word| u64::from_be_bytes(*word))?;
        Some(Self { run: word(0)?, number: word(4)?, sent_ns })
    }
}

/// Addresses of the frames.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Ethernet, from and to.
    pub mac: [[u8; 6]; 2],
    /// IPv4, from and to.
    pub ip: [Ipv4Addr; 2],
}

/// Frames to send, over and over.
#[derive(Debug)]
pub struct Frames {
    frames: Vec<Vec<u8>>,
    flows: u32,
    /// Frames have stamps.
    stamped: bool,
    mean_bytes: f64,
}

/// Sizes that a user writes: numbers with commas between them, `imix` or `rfc2544`.
pub fn sizes(text: &str) -> Result<Vec<usize>, String> {
    let sizes = match text {
        "imix" => IMIX.to_vec(),
        "rfc2544" => RFC2544.to_vec(),
        text => text
            .split(',')
            .map(|size| size.parse().map_err(|_| format!("'{size}' is no size")))
            .collect::<Result<_, _>>()?,
    };
    match sizes.iter().find(|size| !(BYTES_MIN..=BYTES_MAX).contains(*size)) {
        Some(size) => Err(format!("frames have {BYTES_MIN} to {BYTES_MAX} bytes, not {size}")),
        None => Ok(sizes),
    }
}

impl Frames {
    /// Makes frames of UDP of these sizes, which take turns, in `flows` flows, which also do.
    pub fn synthetic(sizes: &[usize], flows: u32, addresses: &Addresses) -> Self {
        let frames: Vec<_> = sizes.iter().map(|&size| udp(size, addresses)).collect();
        Self::of(frames, flows, true)
    }

    /// Frames of a capture.
    ///
    /// # Errors
    /// If it cannot be read, or has no frame that a pipe can carry.
    pub fn captured(path: &Path) -> Result<Self> {
        let (mut bytes, name) = (Vec::new(), path.display());
        let file = File::open(path).with_context(|| format!("capture {name}"))?;
        file.take(CAPTURE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .with_context(|| format!("capture {name}"))?;
        if bytes.len() as u64 > CAPTURE_BYTES_MAX {
            bail!("capture {name} has more than {CAPTURE_BYTES_MAX} bytes");
        }
        let (mut capture, _) = Pcap::whole(bytes).with_context(|| format!("capture {name}"))?;
        let mut frames = Vec::new();
        while let Some(frame) = capture.peek() {
            frames.push(frame.to_vec());
            capture.advance();
        }
        Ok(Self::of(frames, 1, false))
    }

    fn of(frames: Vec<Vec<u8>>, flows: u32, stamped: bool) -> Self {
        let bytes: usize = frames.iter().map(Vec::len).sum();
        let mean_bytes = bytes as f64 / frames.len() as f64;
        Self { frames, flows, stamped, mean_bytes }
    }

    /// Returns the mean bytes of a frame.
    pub fn mean_bytes(&self) -> f64 {
        self.mean_bytes
    }

    /// Tells whether frames have stamps, so that they are known when they come back.
    pub fn are_stamped(&self) -> bool {
        self.stamped
    }

    /// Flows.
    pub fn flows(&self) -> usize {
        self.flows as usize
    }

    /// Bytes of frame `number`.
    pub fn bytes(&self, number: u64) -> usize {
        self.frames[(number % self.frames.len() as u64) as usize].len()
    }

    /// Returns the flow of frame `number`.
    pub fn flow(&self, number: u64) -> u32 {
        // Flows change only when all sizes have had their turn, so that each flow has all of them.
        (number / self.frames.len() as u64 % u64::from(self.flows)) as u32
    }

    /// Writes frame `number` into a place of its size.
    pub fn write(&self, number: u64, stamp: Stamp, place: &mut [u8]) {
        place.copy_from_slice(&self.frames[(number % self.frames.len() as u64) as usize]);
        if self.stamped {
            let port = FIRST_PORT + self.flow(number) as u16;
            place[SOURCE_PORT..SOURCE_PORT + 2].copy_from_slice(&port.to_be_bytes());
            stamp.write(place);
        }
    }
}

/// Makes a frame of UDP of `size` bytes, complete but for its source port and its stamp.
fn udp(size: usize, addresses: &Addresses) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..size).map(|at| at as u8).collect();
    let [from, to] = addresses.mac;
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&[8, 0]);
    let length = |header: usize| ((size - header) as u16).to_be_bytes();
    frame[14..34].fill(0);
    (frame[14], frame[22], frame[23]) = (0x45, 64, 17);
    frame[16..18].copy_from_slice(&length(14));
    frame[26..30].copy_from_slice(&addresses.ip[0].octets());
    frame[30..34].copy_from_slice(&addresses.ip[1].octets());
    let sum: u32 = frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    // To port 9, discard. A checksum of 0 is none.
    frame[34..42].copy_from_slice(&[0, 0, 0, 9, 0, 0, 0, 0]);
    frame[38..40].copy_from_slice(&length(34));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: Addresses = Addresses {
        mac: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        ip: [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)],
    };

    #[test]
    fn frames_are_whole_and_known_again() {
        let frames = Frames::synthetic(&sizes("64,1518").unwrap(), 3, &ADDRESSES);
        assert_eq!((frames.mean_bytes(), frames.bytes(0), frames.bytes(5)), (791.0, 64, 1518));
        let flows: Vec<_> = (0..8).map(|number| frames.flow(number)).collect();
        assert_eq!(flows, [0, 0, 1, 1, 2, 2, 0, 0]);
        let (mut place, stamp) = (vec![0; 1518], Stamp { run: 7, number: 5, sent_ns: u64::MAX - 1 });
        frames.write(5, stamp, &mut place);
        assert_eq!(Stamp::read(&place), Some(stamp));
        assert_eq!(u16::from_be_bytes([place[34], place[35]]), FIRST_PORT + 2);
        // The sum over a header with its checksum is all ones.
        let sum: u32 = place[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        for len in 0..BYTES_MIN {
            assert_eq!(Stamp::read(&place[..len]), None);
        }
    }

    #[test]
    fn sizes_that_no_stamped_frame_has_are_refused() {
        assert_eq!(sizes("imix").unwrap().len(), 12);
        assert_eq!(sizes("rfc2544").unwrap()[6], 1518);
        for wrong in ["", "57", "9217", "64,", "64 128", "-1", "imix,64"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    /// Far more frames than one look at a capture reads.
    #[test]
    fn frames_of_a_capture_are_all_there_however_many_pipes_cannot_carry() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut capture = Pcap::new(None::<File>, Some(Box::new(file.reopen().unwrap()))).unwrap();
        for len in [13, 60, 9217, 61] {
            (0..1000 * (len % 2)).for_each(|_| capture.write(&vec![7; len]));
            capture.write(&vec![7; len]);
        }
        capture.finish().unwrap();
        let frames = Frames::captured(file.path()).unwrap();
        assert_eq!((frames.bytes(0), frames.bytes(1), frames.bytes(1001)), (60, 61, 61));
    }
}
