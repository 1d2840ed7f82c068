//! A client that takes all it can get and keeps it in every way, as a process of its own and an unprivileged user, until it is killed.
//!
//! `hoarder SOCKET SEED`: clients, channels, regions in use, half made, passed to a child or to a socket that nobody reads, connections,
//! direct rings, files, pipes and twins, in an order that the seed chooses. Refused requests are repeated later. With the seed 0 it takes things
//! of each kind first and says "ready".
use pd_abi::pipe::{PipeDirection, PipeRequest, PipeUnit};
use pd_abi::{Address, Frame, FrameKind, Operation, Request, SocketId};
use pd_client::core::twin;
use pd_raw::RawChannel;
use pd_shm::{Own, Region, Theirs};
use pd_tests::{Random, Raw};
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

const NOBODY: u32 = 65_534;
const REGION_BYTES: u64 = 256 << 10;
const PIPE_BYTES: u64 = 64 << 10;
const CHILDREN: usize = 4;
/// Kinds of things to take, the frequent ones several times.
const KINDS: u64 = 14;
/// Clients that it keeps; of others it keeps the memory.
const CLIENTS: usize = 12;

/// Objects that outlive their client.
#[derive(Default)]
struct Kept {
    descriptors: Vec<OwnedFd>,
    lines: Vec<(Region<Own>, Region<Theirs>)>,
    regions: Vec<Region<Own>>,
    /// Sockets that hold passed descriptors, never received.
    unread: Vec<(UnixStream, UnixStream)>,
    children: Vec<Child>,
    kernel: Vec<(TcpListener, OwnedFd, Option<TcpStream>)>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (path, seed) = (Path::new(&args[0]), args[1].parse().expect("number"));
    // SAFETY: plain system calls of a process with one thread.
    let is_nobody = unsafe { libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0 };
    assert!(is_nobody, "needs root, to give it up");
    let own = File::open("/proc/self/exe").expect("own program");
    let (mut random, mut clients, mut kept) = (Random(seed), Vec::new(), Kept::default());
    if seed == 0 {
        let mut first = Raw::try_attach(path, 0).expect("attach");
        for kind in 0..KINDS {
            step(kind, &mut first, &mut random, &mut kept, &own);
        }
        println!("ready");
        clients.push(first);
    }
    loop {
        if clients.is_empty() || random.below(6) == 0 {
            match Raw::try_attach(path, 0) {
                Ok(client) => clients.push(client),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        if clients.is_empty() {
            continue;
        }
        let at = random.below(clients.len() as u64) as usize;
        step(random.below(KINDS), &mut clients[at], &mut random, &mut kept, &own);
        if clients.len() > CLIENTS || random.below(12) == 0 {
            let Raw { control, status, status_fd, .. } = clients.swap_remove(at);
            match random.below(3) {
                0 => kept.lines.push((control, status)),
                1 => kept.descriptors.push(status_fd),
                _ => {}
            }
        }
        if random.below(200) == 0 {
            kept = Kept::default();
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Takes one thing of a kind.
fn step(kind: u64, raw: &mut Raw, random: &mut Random, kept: &mut Kept, own: &File) {
    match kind {
        0 | 1 => add_channel(raw),
        2 if !raw.channels.is_empty() => {
            drop(raw.ask(&Frame::new(FrameKind::WakePipe), FrameKind::WakePipe));
        }
        3..=6 => take_region(raw, random, kept),
        7..=9 if !raw.channels.is_empty() => connect(raw, random, kept),
        10 => files(raw, random, own),
        11 => pipe(raw, random, kept),
        12 => twin_of(kept),
        _ => {}
    }
}

fn add_channel(raw: &mut Raw) {
    if let Ok((_, mut fds)) = raw.ask(&Frame::new(FrameKind::Channel), FrameKind::Channel) {
        let doorbell = fds.pop().expect("doorbell");
        raw.channels.push(RawChannel { doorbell, requests: 0, events: 0 });
    }
}

fn take_region(raw: &mut Raw, random: &mut Random, kept: &mut Kept) {
    let bytes = 4096 + random.below(REGION_BYTES);
    let wish = Frame::new(FrameKind::SendRegion).with_bytes(bytes, 0);
    let Ok((frame, mut fds)) = raw.ask(&wish, FrameKind::SendRegion) else { return };
    let (fd, len) = (fds.pop().expect("memory"), frame.bytes as usize);
    match random.below(6) {
        // Half made.
        0 => kept.descriptors.push(fd),
        // In use, and mapped longer than its client lives.
        1 | 2 => {
            kept.regions.extend(Region::<Own>::new(&fd, len));
            drop(raw.ask(&Frame::new(FrameKind::Mapped).with_id(frame.id), FrameKind::Ready));
        }
        // Passed and never received.
        3 => {
            let (from, to) = UnixStream::pair().expect("a pair");
            let _ = pd_shm::passed::send(&from, 0, fd.as_fd());
            kept.unread.push((from, to));
        }
        4 if kept.children.len() < CHILDREN => {
            kept.children.extend(Command::new("sleep").arg("0.2").stdin(fd).spawn());
        }
        _ => {}
    }
}

fn called(raw: &mut Raw, request: Request) -> Option<pd_abi::Event> {
    Some(raw.call(0, request)).filter(|answer| answer.errno == 0)
}

fn open(raw: &mut Raw) -> Option<SocketId> {
    let request = Request { family: 4, ..Request::new(Operation::Socket, SocketId(0), 0) };
    let socket = SocketId(called(raw, request)?.socket);
    raw.take(socket);
    Some(socket)
}

/// Makes a connection to itself, and perhaps its direct ring, whole or half made.
fn connect(raw: &mut Raw, random: &mut Random, kept: &mut Kept) {
    let mut connected = || {
        let (listener, any) = (open(raw)?, SocketAddr::from(([127, 0, 0, 1], 0)));
        let bound = called(raw, Request::new(Operation::Bind, listener, 0).with_address(any.into()))?;
        called(raw, Request::new(Operation::Listen, listener, 0).with_numbers(4, 0))?;
        let to = bound.address().to_socket_addr()?;
        let socket = open(raw)?;
        called(raw, Request::new(Operation::Connect, socket, 0).with_address(Address::from(to)))?;
        Some(socket)
    };
    let Some(socket) = connected() else { return };
    let wish = Frame::new(FrameKind::DirectRing).with_id(socket.0);
    let Ok((frame, mut fds)) = raw.ask(&wish, FrameKind::DirectRing) else { return };
    let (fd, len) = (fds.pop().expect("memory"), (frame.bytes + frame.page_bytes) as usize);
    if random.below(2) == 0 {
        kept.regions.extend(Region::<Own>::new(&fd, len));
        let _ = pd_shm::memfd::seal_against_all(&fd);
        drop(raw.ask(&Frame::new(FrameKind::DirectMapped).with_id(socket.0), FrameKind::Ready));
    } else {
        kept.descriptors.push(fd);
    }
}

/// Passes a file, which the driver may be asked to open.
fn files(raw: &mut Raw, random: &mut Random, own: &File) {
    if raw.file_socket.is_none() {
        let asked = raw.ask(&Frame::new(FrameKind::FileSocket), FrameKind::FileSocket);
        raw.file_socket = asked.ok().and_then(|(_, mut fds)| fds.pop());
    }
    let Some(socket) = &raw.file_socket else { return };
    if pd_shm::passed::send(socket, raw.serial + 1, own.as_fd()).is_ok() {
        raw.serial += 1;
        if random.below(2) == 0 && !raw.channels.is_empty() {
            let wish = Request::new(Operation::OpenFile, SocketId(0), 0).with_numbers(raw.serial, 0);
            raw.call(0, wish);
        }
    }
}

fn pipe(raw: &mut Raw, random: &mut Random, kept: &mut Kept) {
    let request = PipeRequest::new(PipeDirection::Send, PipeUnit::Frames, "drain").expect("a short name");
    let wish = Frame::new(FrameKind::Pipe).with_bytes(PIPE_BYTES, 0).with_pipe_request(&request);
    let Ok((frame, fds)) = raw.ask(&wish, FrameKind::Pipe) else { return };
    match random.below(3) {
        0 => kept.descriptors.extend(fds),
        1 => drop(raw.ask(&Frame::new(FrameKind::PipeMapped).with_id(frame.id), FrameKind::Ready)),
        _ => {
            let _ = pd_tests::send_frame(&raw.socket, &Frame::new(FrameKind::PipeClose).with_id(frame.id));
        }
    }
}

/// Makes a connection of the kernel with a twin, by the library's own client; claimed or not.
fn twin_of(kept: &mut Kept) {
    let make = || -> Result<_, Box<dyn std::error::Error>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        twin::listen(listener.as_fd())?;
        let to = listener.local_addr()?;
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0)))?;
        // The socket of the fabric is not closed: the process ends first.
        std::mem::forget(twin::connect(socket.as_fd(), to)?);
        rustix::net::connect(&socket, &to)?;
        Ok((listener, socket, None))
    };
    kept.kernel.extend(make());
}
