//! A capture of any bytes: each look ends, the capture ends, and what is passed on are frames that pipes carry.
use pd_abi::pipe::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use pd_pipe::{Pcap, PcapCounts};
use std::io::{Cursor, Read, Result};

/// A file that gives few bytes at a time, as one that grows.
struct Slow(Cursor<Vec<u8>>, usize);

impl Read for Slow {
    fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        let len = to.len().min(self.1);
        self.0.read(&mut to[..len])
    }
}

/// Reads a capture to its end. Returns its counts, if it is whole.
fn read(from: Slow) -> Option<PcapCounts> {
    let bytes = from.0.get_ref().len();
    let mut capture = Pcap::new(Some(from), None).ok()?;
    let (mut looks, mut passed) = (0, 0);
    loop {
        // A frame has a head of its own, and a block some bytes.
        looks += 1;
        assert!(looks <= bytes + 2, "a capture of {bytes} bytes has no end");
        if let Some(frame) = capture.peek() {
            assert!((FRAME_BYTES_MIN.into()..=FRAME_BYTES_MAX.into()).contains(&frame.len()));
            capture.advance();
            passed += 1;
        } else if !capture.has_skipped() {
            break;
        }
    }
    let counts = capture.finish().ok()?;
    assert_eq!(counts.read, passed);
    Some(counts)
}

/// Runs a program: how many bytes a read has, and the capture.
pub fn run(program: &[u8]) {
    let Some((&piece, bytes)) = program.split_first() else { return };
    let slow = read(Slow(Cursor::new(bytes.to_vec()), usize::from(piece).max(1)));
    let at_once = read(Slow(Cursor::new(bytes.to_vec()), usize::MAX));
    assert_eq!(slow, at_once);
    let whole = Pcap::whole(bytes.to_vec()).ok().map(|(_, counts)| counts);
    assert_eq!(whole, at_once.filter(|counts| counts.read > 0));
}
