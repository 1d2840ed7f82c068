//! `pcap`: frames from a capture file, and a capture file of sent frames.
//!
//! Captures are read in the pcap and pcapng formats, and written in the pcap format, with times of zero: the same frames make the same
//! file.
use super::Frame;
use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{create_reader, Block, Linktype, PcapBlockOwned, PcapError};
use pd_abi::pipe::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use std::io::{self, BufWriter, Cursor, Read, Write};

/// Bytes of a capture that are read at a time; no block is longer.
const BUFFER_BYTES: usize = 256 << 10;
/// Most blocks of a capture that one look reads, so that one of frames that no pipe carries, or one that grows, holds up no other port.
const BLOCKS_MAX: usize = 64;
/// Magic of a written capture: little endian, microseconds, version 2.4.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: u32 = 2 | 4 << 16;

/// A capture to read, one to write, or both.
pub struct Pcap {
    reader: Option<Box<dyn PcapReaderIterator + Send>>,
    /// Interfaces of this section of a pcapng capture.
    interfaces: Vec<Interface>,
    writer: Option<BufWriter<Box<dyn Write + Send>>>,
    frame: Vec<u8>,
    ready: bool,
    has_skipped: bool,
    counts: PcapCounts,
    error: Option<io::Error>,
}

/// An interface of a pcapng capture.
#[derive(Clone, Copy)]
struct Interface {
    is_ethernet: bool,
    /// Most bytes of a packet that are captured; 0 sets no bound.
    bytes_max: u32,
}

/// Counts of frames read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcapCounts {
    /// Frames read and passed on.
    pub read: u64,
    /// Frames of a capture that no pipe carries: cut short when captured, too short, too long, or not Ethernet.
    pub skipped: u64,
    /// Frames written.
    pub written: u64,
}

impl std::fmt::Debug for Pcap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pcap")
            .field("counts", &self.counts)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl Pcap {
    /// Reads frames from `from`, and writes sent frames to `to`.
    ///
    /// # Errors
    /// `InvalidData` where `from` is no capture; errors of writing the first bytes of `to`.
    pub fn new<R>(from: Option<R>, to: Option<Box<dyn Write + Send>>) -> io::Result<Self>
    where
        R: Read + Send + 'static,
    {
        let reader = match from {
            None => None,
            Some(from) => Some(open(from)?),
        };
        let mut writer = to.map(BufWriter::new);
        writer.as_mut().map_or(Ok(()), write_head)?;
        let counts = PcapCounts::default();
        let (frame, ready, has_skipped) = (Vec::new(), false, false);
        Ok(Self { reader, interfaces: Vec::new(), writer, frame, ready, has_skipped, counts, error: None })
    }

    /// Reads a whole capture. Returns the frames that pipes carry as a capture, which no frame of another kind interrupts, and the counts.
    ///
    /// # Errors
    /// `InvalidData` where `bytes` are no capture, one that is cut off or cannot be read, or one without such a frame.
    pub fn whole(bytes: Vec<u8>) -> io::Result<(Self, PcapCounts)> {
        let (mut from, mut to) = (Self::new(Some(Cursor::new(bytes)), None)?, Vec::new());
        write_head(&mut to)?;
        loop {
            if let Some(frame) = from.peek() {
                write_frame(&mut to, frame)?;
                from.advance();
            } else if !from.has_skipped() {
                break;
            }
        }
        let counts = from.finish()?;
        drop(from);
        if counts.read == 0 {
            let why = format!("no whole frame of Ethernet with {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok((Self::new(Some(Cursor::new(to)), None)?, counts))
    }

    /// Returns the next frame of the capture, which [`Self::advance`] passes on; none at its end, or where [`Self::has_skipped`].
    pub fn peek(&mut self) -> Frame<'_> {
        for _ in 0..BLOCKS_MAX {
            if self.ready || self.reader.is_none() {
                break;
            }
            self.read();
        }
        self.has_skipped = !self.ready && self.reader.is_some();
        self.ready.then_some(&self.frame[..])
    }

    /// Returns whether the last look found no frame, though the capture has not ended: another look is due.
    pub fn has_skipped(&self) -> bool {
        self.has_skipped
    }

    /// Counts the frame as passed on.
    pub fn advance(&mut self) {
        self.counts.read += 1;
        self.ready = false;
    }

    fn read(&mut self) {
        let Some(reader) = &mut self.reader else { return };
        match reader.next() {
            Ok((consumed, block)) => {
                let mut is_refused = false;
                match &block {
                    // A new section begins anew.
                    PcapBlockOwned::NG(Block::SectionHeader(_)) => self.interfaces.clear(),
                    PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                        self.interfaces.push(Interface {
                            is_ethernet: interface.linktype == Linktype::ETHERNET,
                            bytes_max: interface.snaplen,
                        });
                    }
                    PcapBlockOwned::LegacyHeader(header) => {
                        is_refused = header.network != Linktype::ETHERNET;
                    }
                    _ => {}
                }
                if let Some((data, whole)) = packet(&block, &self.interfaces) {
                    let lengths = usize::from(FRAME_BYTES_MIN)..=FRAME_BYTES_MAX.into();
                    if whole && lengths.contains(&data.len()) {
                        self.frame.clear();
                        self.frame.extend_from_slice(data);
                        self.ready = true;
                    } else {
                        self.counts.skipped += 1;
                    }
                }
                reader.consume(consumed);
                if is_refused {
                    self.fail("the capture is not of Ethernet");
                }
            }
            Err(PcapError::Incomplete(_)) => {
                if reader.reader_exhausted() || reader.refill().is_err() {
                    self.fail("the capture ends within a block: tcpdump -r FILE -w NEW copies what is whole");
                }
            }
            Err(PcapError::Eof) => self.reader = None,
            Err(_) => self.fail("the capture cannot be read"),
        }
    }

    fn fail(&mut self, why: &str) {
        self.reader = None;
        self.error = Some(io::Error::new(io::ErrorKind::InvalidData, why));
    }

    /// Writes a frame, a private copy.
    pub fn write(&mut self, frame: &[u8]) {
        let Some(writer) = &mut self.writer else { return };
        match write_frame(writer, frame) {
            Ok(()) => self.counts.written += 1,
            Err(error) => {
                self.writer = None;
                self.error = Some(error);
            }
        }
    }

    /// Flushes buffered frames. Returns the counts.
    ///
    /// # Errors
    /// The first error of reading or writing. After it the capture has ended, or frames are no longer written.
    pub fn finish(&mut self) -> io::Result<PcapCounts> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if let Some(writer) = &mut self.writer {
            writer.flush()?;
        }
        Ok(self.counts)
    }
}

fn write_head(to: &mut impl Write) -> io::Result<()> {
    [MAGIC, VERSION, 0, 0, FRAME_BYTES_MAX.into(), Linktype::ETHERNET.0 as u32]
        .iter()
        .try_for_each(|word| to.write_all(&word.to_le_bytes()))
}

fn write_frame(to: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let length = (frame.len() as u32).to_le_bytes();
    [&[0; 8], &length[..], &length[..], frame].iter().try_for_each(|part| to.write_all(part))
}

/// A file whose reads are full until its end: the parser takes the first for the whole head.
struct Full<R>(R);

impl<R: Read> Read for Full<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut len = 0;
        while len < to.len() {
            match self.0.read(&mut to[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if len == 0 => return Err(error),
                // The next read has it again.
                Err(_) => break,
            }
        }
        Ok(len)
    }
}

fn open<R: Read + Send + 'static>(from: R) -> io::Result<Box<dyn PcapReaderIterator + Send>> {
    create_reader(BUFFER_BYTES, Full(from))
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "this is no capture"))
}

/// Returns the bytes of a packet, and whether they are a whole frame of Ethernet.
fn packet<'a>(block: &'a PcapBlockOwned<'_>, interfaces: &[Interface]) -> Option<(&'a [u8], bool)> {
    match block {
        PcapBlockOwned::Legacy(block) => Some((block.data, block.caplen == block.origlen)),
        PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
            let of = interfaces.get(block.if_id as usize);
            let whole = block.caplen == block.origlen && of.is_some_and(|of| of.is_ethernet);
            Some((block.data.get(..block.caplen as usize)?, whole))
        }
        // A packet of the first interface, with padding, and without the length that was captured.
        PcapBlockOwned::NG(Block::SimplePacket(block)) => {
            let fits =
                |of: &Interface| of.is_ethernet && (of.bytes_max == 0 || block.origlen <= of.bytes_max);
            let whole = interfaces.first().is_some_and(fits);
            Some(match block.data.get(..block.origlen as usize) {
                Some(data) => (data, whole),
                None => (block.data, false),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(frames: &[Vec<u8>]) -> Vec<u8> {
        let file = Shared::default();
        let mut pcap = Pcap::new(None::<&[u8]>, Some(Box::new(file.clone()))).unwrap();
        frames.iter().for_each(|frame| pcap.write(frame));
        assert_eq!(pcap.finish().unwrap().written, frames.len() as u64);
        let bytes = file.0.lock().unwrap().clone();
        bytes
    }

    #[test]
    fn what_was_written_is_read_again() {
        let frames: Vec<Vec<u8>> = [14, 60, 1514, 9216].map(|len| vec![len as u8; len]).to_vec();
        let file = written(&frames);
        let mut pcap = Pcap::new(Some(io::Cursor::new(file)), None).unwrap();
        for frame in &frames {
            assert_eq!(pcap.peek(), Some(&frame[..]));
            assert_eq!(pcap.peek(), Some(&frame[..]));
            pcap.advance();
        }
        assert_eq!(pcap.peek(), None);
        assert_eq!(pcap.finish().unwrap(), PcapCounts { read: 4, ..PcapCounts::default() });
    }

    #[test]
    fn frames_of_impossible_lengths_are_skipped_and_broken_captures_end() {
        let mut file = written(&[vec![1; 13], vec![2; 9217], vec![3; 64]]);
        let mut pcap = Pcap::new(Some(io::Cursor::new(file.clone())), None).unwrap();
        assert_eq!(pcap.peek().map(<[u8]>::len), Some(64));
        pcap.advance();
        assert_eq!(pcap.peek(), None);
        assert_eq!(pcap.finish().unwrap().skipped, 2);

        file.truncate(file.len() - 1);
        let mut pcap = Pcap::new(Some(io::Cursor::new(file.clone())), None).unwrap();
        assert_eq!(pcap.peek(), None);
        assert!(pcap.finish().is_err());

        file[20] = 101;
        let mut pcap = Pcap::new(Some(io::Cursor::new(file)), None).unwrap();
        assert_eq!(pcap.peek(), None);
        assert!(pcap.finish().is_err());
        assert!(Pcap::new(Some(io::Cursor::new(vec![7; 100])), None).is_err());
    }

    /// A capture without an end, all of whose frames are too short.
    struct Endless(Vec<u8>, usize);

    impl Read for Endless {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            for byte in &mut *to {
                *byte = self.0[self.1];
                self.1 = if self.1 + 1 < self.0.len() { self.1 + 1 } else { 24 };
            }
            Ok(to.len())
        }
    }

    #[test]
    fn a_look_ends_though_no_frame_can_be_carried() {
        let mut pcap = Pcap::new(Some(Endless(written(&[vec![1; 13]]), 0)), None).unwrap();
        for _ in 0..100 {
            assert_eq!((pcap.peek().is_none(), pcap.has_skipped()), (true, true));
        }
        let mut frames = vec![vec![1; 13]; 1000];
        frames.push(vec![2; 14]);
        let file = written(&frames);
        assert_eq!(Pcap::whole(file.clone()).unwrap().1, PcapCounts { read: 1, skipped: 1000, written: 0 });
        let mut pcap = Pcap::new(Some(Cursor::new(file)), None).unwrap();
        while pcap.peek().is_none() {
            assert!(pcap.has_skipped());
        }
        pcap.advance();
        assert_eq!((pcap.peek().is_none(), pcap.has_skipped()), (true, false));
    }

    #[test]
    fn a_whole_capture_has_the_frames_that_pipes_carry_and_no_others() {
        let frames: Vec<Vec<u8>> = [13, 14, 9217, 64].map(|len| vec![len as u8; len]).to_vec();
        let file = written(&frames);
        let (mut pcap, counts) = Pcap::whole(file.clone()).unwrap();
        assert_eq!(counts, PcapCounts { read: 2, skipped: 2, written: 0 });
        for len in [14, 64] {
            assert_eq!(pcap.peek(), Some(&vec![len as u8; len][..]));
            pcap.advance();
        }
        assert_eq!(pcap.peek(), None);
        assert_eq!(pcap.finish().unwrap().skipped, 0);
        for broken in [&file[..file.len() - 1], &file[..30], &file[..24], &file[..10], &written(&frames[..1])]
        {
            assert!(Pcap::whole(broken.to_vec()).is_err(), "{} bytes", broken.len());
        }
        // A block that is longer than the buffer, and one that says so.
        for said in [300_000u32, u32::MAX] {
            let head = [&file[..32], &said.to_le_bytes(), &said.to_le_bytes()].concat();
            assert!(Pcap::whole([&head[..], &[7; 300_000]].concat()).is_err());
        }
    }

    type Word = fn(u32) -> [u8; 4];
    type Half = fn(u16) -> [u8; 2];
    /// Orders of bytes that captures have.
    const ORDERS: [(Word, Half); 2] =
        [(u32::to_le_bytes, u16::to_le_bytes), (u32::to_be_bytes, u16::to_be_bytes)];

    fn lengths_read(capture: Vec<u8>) -> Result<(Vec<usize>, PcapCounts), String> {
        let (mut pcap, counts) = Pcap::whole(capture).map_err(|why| why.to_string())?;
        let mut lengths = Vec::new();
        while let Some(frame) = pcap.peek() {
            assert!(frame.iter().all(|&byte| byte == frame.len() as u8));
            lengths.push(frame.len());
            pcap.advance();
        }
        Ok((lengths, counts))
    }

    #[test]
    fn captures_of_each_order_and_clock_are_read() {
        for (word, half) in ORDERS {
            for magic in [MAGIC, 0xa1b2_3c4d] {
                let head = |link: u32| {
                    [&word(magic)[..], &half(2), &half(4), &[0; 8], &word(65_535), &word(link)].concat()
                };
                let frame = |len: u32, of: u32| {
                    [&[0; 8][..], &word(len), &word(of), &vec![len as u8; len as usize]].concat()
                };
                // An empty one, one that is cut short, one that is too long, and two whole ones.
                let frames =
                    [frame(0, 0), frame(64, 1500), frame(9217, 9217), frame(60, 60), frame(9216, 9216)];
                let (lengths, counts) = lengths_read([head(1), frames.concat()].concat()).unwrap();
                assert_eq!((lengths, counts.skipped), (vec![60, 9216], 3));
                // Raw IP, and the kernel's own header (`tcpdump -i any`).
                for link in [101, 113] {
                    let why = lengths_read([head(link), frames.concat()].concat()).unwrap_err();
                    assert!(why.contains("not of Ethernet"), "{why}");
                }
            }
        }
    }

    #[test]
    fn frames_of_ethernet_are_read_from_a_capture_of_several_interfaces() {
        for (word, half) in ORDERS {
            let block = |kind: u32, body: &[u8]| {
                let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
                let length = word((12 + body.len() + padding.len()) as u32);
                [&word(kind)[..], &length, body, &padding, &length].concat()
            };
            let section =
                block(0x0a0d_0d0a, &[&word(0x1a2b_3c4d)[..], &half(1), &half(0), &[0xff; 8]].concat());
            let interface =
                |link: u16, most: u32| block(1, &[&half(link)[..], &half(0), &word(most)].concat());
            let enhanced = |of: u32, len: u32, original: u32| {
                let bytes = vec![len as u8; len as usize];
                block(6, &[&word(of)[..], &[0; 8], &word(len), &word(original), &bytes].concat())
            };
            let simple = |len: u32, original: u32| {
                block(3, &[&word(original)[..], &vec![len as u8; len as usize]].concat())
            };
            let capture = [
                section.clone(),
                interface(1, 100),
                interface(101, 0),
                enhanced(0, 61, 61),
                // Of an interface of another kind, cut short, of no interface.
                enhanced(1, 62, 62),
                enhanced(0, 63, 64),
                enhanced(2, 64, 64),
                simple(65, 65),
                simple(100, 1500),
                // Interfaces of a section are its own.
                section,
                interface(101, 0),
                interface(1, 0),
                simple(66, 66),
                enhanced(1, 67, 67),
            ];
            let (lengths, counts) = lengths_read(capture.concat()).unwrap();
            assert_eq!((lengths, counts.skipped), (vec![61, 65, 67], 5));
        }
    }
}
