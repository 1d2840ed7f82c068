//! A client's end of all that it shares with the driver, without any rules.
use super::kernel::{is_readable, Hold};
use pd_abi::layout::{
    channel_control, channel_offset, channel_status, control_header, header, moved, socket_control,
    socket_offset, socket_status, REGION_BYTES,
};
use pd_abi::limits::{EVENT_RING_ENTRIES, REQUEST_RING_ENTRIES};
use pd_abi::{Event, FileId, Frame, FrameKind, Request, SocketId};
use pd_shm::ring::{Consumer, Producer, SharedCells};
use pd_shm::{attach, memfd, Own, Region, Theirs};
use rustix::io::{Errno, Result};
use rustix::net::{
    bind, connect, socket_with, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

/// See the module.
pub struct Link {
    pub socket: OwnedFd,
    pub shared: Option<Shared>,
    pub channels: Vec<Channel>,
    /// Own send regions, by number.
    pub send: BTreeMap<u32, (Region<Own>, Hold)>,
    /// Wake pipes by channel.
    pub pipes: BTreeMap<usize, OwnedFd>,
    /// The socket by which files are passed.
    pub files: Option<OwnedFd>,
    /// The last received direct ring.
    pub came: Option<(OwnedFd, Hold)>,
    /// Receive regions by number.
    pub receive: BTreeMap<u32, (Region<Theirs>, Hold)>,
}

/// Control region and status region.
pub struct Shared {
    pub control: Arc<Region<Own>>,
    pub status: Arc<Region<Theirs>>,
}

/// A channel.
pub struct Channel {
    pub requests: Producer<SharedCells<Request, Own, Theirs>>,
    pub events: Consumer<SharedCells<Event, Theirs, Own>>,
    doorbell: OwnedFd,
    rung: u32,
}

/// Result of a read of the attach socket.
pub enum Came {
    Nothing,
    Frame(Box<Frame>),
    /// The driver has hung up.
    End,
}

/// Connects to the driver, from the bound name of a process ([`super::kernel::Kernel::enter`]).
pub fn dial(driver: &SocketAddrUnix, number: u64) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let world = String::from_utf8_lossy(driver.abstract_name().unwrap_or_default()).into_owned();
    let name = format!("pd-simulation/{}/{world}/{number}", std::process::id());
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    connect(&socket, driver)?;
    Ok(socket)
}

impl Link {
    pub fn new(socket: OwnedFd) -> Self {
        let (shared, channels, send, receive, pipes, files, came) = Default::default();
        Self { socket, shared, channels, send, receive, pipes, files, came }
    }

    pub fn shared(&self) -> &Shared {
        self.shared.as_ref().expect("a client that was welcomed")
    }

    /// Sends a frame.
    pub fn send(&self, frame: &Frame) -> Result<()> {
        attach::send(&self.socket, frame, &[], SendFlags::DONTWAIT)
    }

    /// Tells whether there is a frame, or a hang-up.
    pub fn has_news(&self) -> bool {
        is_readable(&self.socket)
    }

    /// Reads the next frame, with its descriptors.
    pub fn receive(&mut self) -> Came {
        let (frame, mut fds) = match attach::receive(&self.socket, RecvFlags::DONTWAIT) {
            Ok(Some(received)) => received,
            Err(Errno::AGAIN) => return Came::Nothing,
            _ => return Came::End,
        };
        match (frame.checked_kind(), fds.pop(), fds.pop()) {
            (Some(FrameKind::Welcome), Some(status), Some(control)) => {
                let status = Arc::new(Region::<Theirs>::new(status, REGION_BYTES).expect("a mapping"));
                if let Ok(map) = Region::<Own>::new(&control, REGION_BYTES) {
                    memfd::seal_against_all(control).expect("a seal");
                    self.shared = Some(Shared { control: Arc::new(map), status });
                }
            }
            (Some(FrameKind::Channel), Some(doorbell), None) if self.shared.is_some() => {
                self.add_channel(doorbell);
            }
            (Some(FrameKind::SendRegion), Some(fd), None) => {
                let hold = Hold::new(&fd);
                if let Ok(map) = Region::<Own>::new(fd, frame.bytes as usize) {
                    self.send.insert(frame.id, (map, hold));
                }
            }
            (Some(FrameKind::WakePipe), Some(pipe), None) => {
                self.pipes.insert(frame.id as usize, pipe);
            }
            (Some(FrameKind::DirectRing | FrameKind::PeerRing), Some(fd), None) => {
                let hold = Hold::new(&fd);
                self.came = Some((fd, hold));
            }
            (Some(FrameKind::FileSocket), Some(fd), None) => self.files = Some(fd),
            (Some(FrameKind::ReceiveRegion), Some(fd), None) => {
                let hold = Hold::new(&fd);
                let map = Region::<Theirs>::new(fd, frame.bytes as usize).expect("a mapping");
                self.receive.insert(frame.id, (map, hold));
            }
            _ => {}
        }
        Came::Frame(Box::new(frame))
    }

    fn add_channel(&mut self, doorbell: OwnedFd) {
        let Shared { control, status } = self.shared();
        let at = channel_offset(self.channels.len());
        let requests = SharedCells::new(
            (Arc::clone(control), at + channel_control::REQUEST_PRODUCER, at + channel_control::REQUESTS),
            (Arc::clone(status), at + channel_status::REQUEST_CONSUMER),
            REQUEST_RING_ENTRIES,
        );
        let events = SharedCells::new(
            (Arc::clone(status), at + channel_status::EVENT_PRODUCER, at + channel_status::EVENTS),
            (Arc::clone(control), at + channel_control::EVENT_CONSUMER),
            EVENT_RING_ENTRIES,
        );
        let (requests, events) = (Producer::new(requests), Consumer::new(events));
        self.channels.push(Channel { requests, events, doorbell, rung: 0 });
    }

    /// Writes a request without publishing it. Returns whether there was room.
    pub fn write(&mut self, channel: usize, request: Request) -> bool {
        self.channels[channel].requests.write(request) == Ok(true)
    }

    /// Publishes written requests, and rings if the driver asks for it.
    pub fn publish(&mut self, channel: usize) {
        self.channels[channel].requests.publish();
        self.ring_if_asked(channel);
    }

    pub fn ring_if_asked(&mut self, channel: usize) {
        fence(Ordering::SeqCst);
        let at = channel_offset(channel) + channel_status::NEED_WAKEUP;
        let sleep = self.shared().status.load_u32(at, Ordering::Relaxed);
        if sleep != 0 && sleep != self.channels[channel].rung {
            self.channels[channel].rung = sleep;
            self.ring(channel);
        }
    }

    pub fn ring(&self, channel: usize) {
        let _ = rustix::io::write(&self.channels[channel].doorbell, &1u64.to_ne_bytes());
    }

    /// Returns a word of a channel in the status region.
    pub fn channel_u64(&self, channel: usize, word: usize) -> u64 {
        self.shared().status.load_u64(channel_offset(channel) + word, Ordering::Acquire)
    }

    pub fn channel_u32(&self, channel: usize, word: usize) -> u32 {
        self.shared().status.load_u32(channel_offset(channel) + word, Ordering::Acquire)
    }

    /// Writes a word of a channel.
    pub fn set_channel(&self, channel: usize, word: usize, value: u64) {
        self.shared().control.store_u64(channel_offset(channel) + word, value, Ordering::Release);
    }

    pub fn set_channel_u32(&self, channel: usize, word: usize, value: u32) {
        self.shared().control.store_u32(channel_offset(channel) + word, value, Ordering::Release);
    }

    /// Reads a wake pipe until it is empty.
    pub fn empty_pipe(&self, channel: usize) {
        if let Some(pipe) = self.pipes.get(&channel).filter(|pipe| is_readable(pipe)) {
            let _ = rustix::io::read(pipe, &mut [0; 64]);
        }
    }

    /// Returns a word of a socket's status line.
    pub fn line_u64(&self, socket: SocketId, word: usize) -> u64 {
        self.shared().status.load_u64(socket_offset(socket.slot()) + word, Ordering::Acquire)
    }

    pub fn line_u32(&self, socket: SocketId, word: usize) -> u32 {
        self.shared().status.load_u32(socket_offset(socket.slot()) + word, Ordering::Acquire)
    }

    /// Returns how receiving has ended, without the number in the word of a socket that another client has taken.
    pub fn recv_end(&self, socket: SocketId) -> u32 {
        let (word, stale) = (self.line_u32(socket, socket_status::RECV_END), Errno::STALE.raw_os_error());
        match moved::is_one(word, stale as u16) {
            true => stale as u32,
            false => word,
        }
    }

    /// Writes a word of a socket's control line.
    pub fn set_line(&self, socket: SocketId, word: usize, value: u64) {
        self.shared().control.store_u64(socket_offset(socket.slot()) + word, value, Ordering::Release);
    }

    pub fn set_line_u32(&self, socket: SocketId, word: usize, value: u32) {
        self.shared().control.store_u32(socket_offset(socket.slot()) + word, value, Ordering::Release);
    }

    /// Counts the sends of a file. Returns whether the driver still has it open.
    pub fn count_file(&self, file: FileId, uses: u32) -> bool {
        let slot = usize::from(file.slot());
        self.shared().control.store_u32(control_header::FILE_USES + 4 * slot, uses, Ordering::Release);
        fence(Ordering::SeqCst);
        self.shared().status.load_u32(header::FILES + 4 * slot, Ordering::Acquire) == file.0
    }

    /// Takes a socket's line into use.
    pub fn take(&self, socket: SocketId) {
        for word in (0..socket_control::GENERATION).step_by(8) {
            self.set_line(socket, word, 0);
        }
        self.set_line_u32(socket, socket_control::GENERATION, socket.generation().into());
    }
}
