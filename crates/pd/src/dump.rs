//! `pd pipe dump`: frames of a port or of a pipe as a pcapng file, from a tap of the driver.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context, Result};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, PcapError};
use pd_driver::admin::{tap, TapOf};
use pd_harness::signals::Signals;
use pd_pipe::{Record, Way};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::live::no_answer;

/// Longest wait between two looks at signals and at the time.
const LOOK: Duration = Duration::from_millis(100);
/// Directions of `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Options of `pd pipe dump`.
#[derive(Debug, clap::Args)]
pub struct DumpArgs {
    /// Port whose frames are copied; `pd port ls` lists them
    #[arg(required_unless_present = "pipe", conflicts_with = "pipe")]
    port: Option<String>,
    /// Pipe whose frames are copied, as `pd pipe ls` numbers them: CLIENT:PIPE
    #[arg(long, value_name = "CLIENT:PIPE", value_parser = numbers)]
    pipe: Option<(u16, u32)>,
    /// File to write, `-` for the standard output
    #[arg(long, short, default_value = "-")]
    out: PathBuf,
    /// Frames after which it ends
    #[arg(long, short)]
    count: Option<u64>,
    /// Most bytes of each frame
    #[arg(long, short, default_value_t = Record::SNAP_MAX)]
    snap: usize,
    /// Seconds after which it ends
    #[arg(long)]
    seconds: Option<f64>,
}

fn numbers(text: &str) -> Result<(u16, u32), String> {
    let parts =
        text.split_once(':').and_then(|(client, pipe)| Some((client.parse().ok()?, pipe.parse().ok()?)));
    parts.ok_or_else(|| format!("'{text}' is no CLIENT:PIPE, such as 3:1"))
}

/// A capture that is written.
struct Capture<W: Write> {
    file: PcapNgWriter<W>,
    written: u64,
    lost: u64,
}

impl<W: Write> Capture<W> {
    fn new(to: W, name: &str, snap: usize) -> Result<Self, PcapError> {
        let mut file = PcapNgWriter::new(to)?;
        let options = vec![
            InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
            // Nanoseconds, which is how the crate writes times.
            InterfaceDescriptionOption::IfTsResol(9),
        ];
        let interface =
            InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: snap as u32, options };
        file.write_block(&interface.into_block())?;
        Ok(Self { file, written: 0, lost: 0 })
    }

    fn write(&mut self, record: &Record, frame: &[u8]) -> Result<(), PcapError> {
        let flags = if record.way == Way::In { INBOUND } else { OUTBOUND };
        let mut options = vec![EnhancedPacketOption::Flags(flags)];
        if record.lost > self.lost {
            options.push(EnhancedPacketOption::DropCount(record.lost - self.lost));
            self.lost = record.lost;
        }
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(record.time_ns),
            original_len: record.frame_bytes,
            data: Cow::Borrowed(frame),
            options,
        };
        self.file.write_block(&packet.into_block())?;
        self.written += 1;
        Ok(())
    }
}

/// Runs `pd pipe dump`; returns the status to exit with.
pub fn dump(socket: &Path, args: DumpArgs) -> Result<i32> {
    let signals = Signals::watch()?;
    let (of, name) = match (args.port, args.pipe) {
        (_, Some((client, number))) => (TapOf::Pipe { client, number }, format!("pipe {client}:{number}")),
        (port, None) => {
            let name = port.unwrap_or_default();
            (TapOf::Port { name: name.clone() }, name)
        }
    };
    let end = args.seconds.map(|seconds| Duration::try_from_secs_f64(seconds).context("--seconds"));
    // A time that no clock reaches is none.
    let end = end.transpose()?.and_then(|seconds| Instant::now().checked_add(seconds));
    let mut tap = tap(socket, of, args.snap).map_err(|error| match error.kind() {
        ErrorKind::Other => anyhow!("{error}"),
        _ => anyhow!(no_answer(socket, &error)),
    })?;
    let is_piped = args.out.as_os_str() == "-";
    let to: Box<dyn Write> = if is_piped {
        Box::new(io::stdout())
    } else {
        // A file that is there stays as it is until there is a tap.
        let file = File::create(&args.out);
        Box::new(file.with_context(|| format!("cannot write {}", args.out.display()))?)
    };
    let left = args.count.unwrap_or(u64::MAX);
    let mut capture = match Capture::new(BufWriter::new(to), &name, args.snap) {
        Ok(capture) => capture,
        Err(error) => return written(error).map(|()| 0),
    };
    if let Err(error) = capture.file.get_mut().flush() {
        return written(PcapError::IoError(error)).map(|()| 0);
    }
    let why = loop {
        if capture.written >= left || signals.next().is_some() {
            break None;
        }
        let wait = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()).min(LOOK));
        match tap.records.wait(wait) {
            Ok(()) => {}
            Err(Errno::AGAIN) if end.is_some_and(|end| Instant::now() >= end) => break None,
            Err(Errno::AGAIN) if is_piped && has_no_reader() => break None,
            Err(Errno::AGAIN) if tap.is_live() => continue,
            Err(Errno::NODEV) => break Some(format!("{name} was removed")),
            Err(_) => break Some("the driver has ended".to_owned()),
        }
        let mut records = tap.records.frames()?;
        while capture.written < left {
            let Some(record) = records.next() else { break };
            let Some((record, frame)) = Record::read(record.bytes()) else { continue };
            if let Err(error) = capture.write(&record, frame) {
                return written(error).map(|()| 0);
            }
        }
        drop(records);
        // A reader of a kernel pipe sees each frame as it comes.
        if let Err(error) = capture.file.get_mut().flush() {
            return written(PcapError::IoError(error)).map(|()| 0);
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            break None;
        }
    };
    let flushed = capture.file.get_mut().flush();
    flushed.map_err(PcapError::IoError).or_else(written)?;
    let (written, lost) = (capture.written, capture.lost);
    eprintln!(
        "pd: {written} frames written, {lost} lost{}",
        why.map(|why| format!(": {why}")).unwrap_or_default()
    );
    Ok(0)
}

/// Returns whether the standard output is a pipe of the kernel that nobody reads any more.
fn has_no_reader() -> bool {
    let (out, at_once) = (io::stdout(), Timespec { tv_sec: 0, tv_nsec: 0 });
    let mut looked = [PollFd::new(&out, PollFlags::empty())];
    poll(&mut looked, Some(&at_once)).is_ok() && looked[0].revents().contains(PollFlags::ERR)
}

/// Converts an error of writing: a reader that has gone is no error.
fn written(error: PcapError) -> Result<()> {
    match error {
        PcapError::IoError(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        // The crate's own text speaks of reading.
        PcapError::IoError(error) => Err(anyhow!("cannot write the capture: {error}")),
        error => Err(anyhow!("cannot write the capture: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn a_capture_is_read_as_it_was_written() {
        let mut bytes = Vec::new();
        let mut capture = Capture::new(&mut bytes, "wan", 100).unwrap();
        let record =
            |frame_bytes, way, lost| Record { time_ns: 1_700_000_000_123_456_789, frame_bytes, way, lost };
        capture.write(&record(60, Way::In, 0), &[1; 60]).unwrap();
        capture.write(&record(1500, Way::Out, 7), &[2; 100]).unwrap();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap().into_owned() {
                packets.push(packet);
            }
        }
        assert_eq!(packets.len(), 2);
        assert_eq!(packets[0].timestamp.as_nanos(), 1_700_000_000_123_456_789);
        assert_eq!((packets[1].original_len, packets[1].data.len()), (1500, 100));
        assert!(packets[1].options.contains(&EnhancedPacketOption::DropCount(7)));
        assert!(packets[0].options.contains(&EnhancedPacketOption::Flags(INBOUND)));
        assert_eq!(
            (numbers("3:1"), numbers("3").is_err(), numbers("70000:1").is_err()),
            (Ok((3, 1)), true, true)
        );
    }
}
