//! A client that does harm, as a process of its own and an unprivileged user (`nobody`, or UID).
//!
//! `attacker SOCKET WHAT COUNT [UID]`: does WHAT COUNT times, and prints `done` with the numbers of successes and refusals. WHAT is one of:
//! `connects`: attaches and leaves. `administers`: asks for nothing at the admin socket. `pipes`: asks for wake pipes.
//! `channels`: attaches and takes all channels, and stays. `regions`: asks for send regions of 64 MiB and gives them up.
//! `ports`: binds to any port, COUNT times after the last one was taken. `addresses`: binds to an address that its namespace does not hold.
//! `garbage`: breaks the protocol. `crowd`: keeps COUNT connections to itself busy until its input ends.
//! `bloats`: sends COUNT MiB to itself, and takes memory until the kernel kills it.
//! `watched`: asks for wake pipes, with a million watchers of its attach socket.
//! `lists`: attaches while it holds the lock of its folder in `/proc`.
//! `unclaimed`, `namesakes`: makes up to COUNT twins towards a listener at the address that follows UID, from ports of their own or all from
//! one, until it is refused; prints `made` with their number, and keeps them until its input ends.
//! `cycles`: passes to the driver, COUNT times, its attach socket, its end of the socket on which it passes them, and a pair whose ends wait in
//! each other. Closes all, and stays until its input ends.
//! `collects`: has COUNT pairs of sockets in flight in each other, and the kernel look at them again and again until its input ends.
//! `becomes`: makes a twin of a socket, becomes `cat`, and has its child make a twin of another socket of that program; prints the
//! errnos of both, and ends with its input.
//! `holds`: attaches COUNT clients with a channel and a send region of 1 MiB each, and keeps them until its input ends.
use pd_abi::{Frame, FrameKind, Operation, Request, Span, TwinOperation};
use pd_client::{Listener, SendBuffer, Stream};
use pd_tests::{bound, cookie_of, watch, Raw, Withheld};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

const NOBODY: u32 = 65_534;
const REGION_BYTES: u64 = 64 << 20;
const RING_BYTES: u64 = 4 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (path, what) = (Path::new(&args[0]), args[1].as_str());
    let count: u64 = args[2].parse().expect("number");
    let uid = args.get(3).map_or(NOBODY, |uid| uid.parse().expect("number"));
    // SAFETY: plain system calls of a process with one thread.
    let is_nobody = unsafe { libc::setgid(NOBODY) == 0 && libc::setuid(uid) == 0 };
    assert!(is_nobody, "needs root, to give it up");
    let attach = || Raw::try_attach(path, 1).expect("attach");
    let mut refused = 0u64;
    match what {
        "connects" => {
            for _ in 0..count {
                refused += u64::from(Raw::try_welcomed(path).is_err());
            }
        }
        "administers" => {
            let admin = path.with_file_name("admin.sock");
            for _ in 0..count {
                let mut stranger = std::os::unix::net::UnixStream::connect(&admin).expect("admin socket");
                let mut why = String::new();
                refused += u64::from(stranger.read_to_string(&mut why).is_ok() && why.contains("containers"));
            }
        }
        "pipes" => {
            let mut raw = attach();
            for _ in 0..count {
                let wish = Frame::new(FrameKind::WakePipe);
                refused += u64::from(raw.ask(&wish, FrameKind::WakePipe).is_err());
            }
        }
        "regions" => {
            for _ in 0..count {
                let mut raw = attach();
                let wish = Frame::new(FrameKind::SendRegion).with_bytes(REGION_BYTES, 0);
                refused += u64::from(raw.ask(&wish, FrameKind::SendRegion).is_err());
            }
        }
        "ports" => {
            let mut raw = attach();
            let any: SocketAddr = ([127, 0, 0, 1], 0).into();
            while refused < count {
                let mut request = Request::new(Operation::Socket, pd_abi::SocketId(0), 0);
                request.family = 4;
                let socket = pd_abi::SocketId(raw.call(0, request).socket);
                let bind = Request::new(Operation::Bind, socket, 0).with_address(any.into());
                if raw.call(0, bind).errno != 0 {
                    refused += 1;
                    raw.post(0, &Request::new(Operation::Close, socket, 0));
                }
            }
        }
        "addresses" => {
            let mut raw = attach();
            let mut request = Request::new(Operation::Socket, pd_abi::SocketId(0), 0);
            request.family = 4;
            let socket = pd_abi::SocketId(raw.call(0, request).socket);
            let foreign: SocketAddr = ([192, 0, 2, 1], 0).into();
            for _ in 0..count {
                let bind = Request::new(Operation::Bind, socket, 0).with_address(foreign.into());
                refused += u64::from(raw.call(0, bind).errno != 0);
            }
        }
        "garbage" => {
            for _ in 0..count {
                let Ok(mut raw) = Raw::try_welcomed(path) else {
                    refused += 1;
                    continue;
                };
                pd_tests::send_frame(&raw.socket, &Frame::new(FrameKind::Goodbye)).expect("send");
                raw.wait_cut_off();
            }
        }
        "holds" => {
            let attach = |_| Raw::try_attach(path, 1);
            let mut held: Vec<_> = (0..count).filter_map(|at| attach(at).ok()).collect();
            refused = count - held.len() as u64;
            let wish = Frame::new(FrameKind::SendRegion).with_bytes(1 << 20, 0);
            let got = held.iter_mut().map(|raw| raw.ask(&wish, FrameKind::SendRegion).is_ok());
            let regions = got.filter(|&got| got).count();
            println!("holds {} {regions}", held.len());
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        "unclaimed" | "namesakes" => {
            let mut raw = attach();
            let at: SocketAddr = args[4].parse().expect("address");
            let port = |number: u64| if what == "namesakes" { 1 } else { 1 + number as u16 };
            let is_made = |number: &u64| connect_twin(&mut raw, port(*number), at);
            println!("made {}", (0..count).take_while(is_made).count());
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        "cycles" => {
            cycles(attach(), count);
            println!("done {count} 0");
            // The attach socket is closed, and held by a message to the driver.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        "collects" => collects(count),
        "becomes" => becomes(attach()),
        "bloats" => bloat(path, count),
        "crowd" => crowd(path, count as usize),
        "watched" => {
            let mut raw = attach();
            let watchers = watch(&raw.socket, 1_000_000);
            println!("watched {}", watchers.len());
            for _ in 0..count {
                let wish = Frame::new(FrameKind::WakePipe);
                refused += u64::from(raw.ask(&wish, FrameKind::WakePipe).is_err());
            }
        }
        "lists" => refused += count - lists(path).min(count),
        other => panic!("no such attack: {other}"),
    }
    println!("done {} {refused}", count.saturating_sub(refused));
}

/// Makes a twin from this port. Its kernel socket is another one, which has no port. Returns whether the twin is made.
fn connect_twin(raw: &mut Raw, port: u16, to: SocketAddr) -> bool {
    let ends = [SocketAddr::from(([127, 0, 0, 1], port)).into(), to.into()];
    let named = (raw.socket.as_raw_fd(), u64::from(port));
    raw.call_about(TwinOperation::Connect, named, ends).errno == 0
}

/// Becomes another program, for one of whose sockets its child asks.
fn becomes(mut raw: Raw) -> ! {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let at = listener.local_addr().expect("address");
    let mut asks = |operation, named, local: SocketAddr| {
        raw.call_about(operation, named, [local.into(), at.into()]).errno
    };
    assert_eq!(asks(TwinOperation::Listen, cookie_of(&listener), at), 0);
    let ((own, first), (theirs, second)) = (bound(), bound());
    // The program that this one becomes has it, too.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).expect("a descriptor");
    let named = cookie_of(&theirs);
    let before = asks(TwinOperation::Connect, cookie_of(&own), first);
    let parent = std::process::id();
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } != 0 {
        use std::os::unix::process::CommandExt;
        panic!("{}", std::process::Command::new("cat").exec());
    }
    let name = || std::fs::read_to_string(format!("/proc/{parent}/comm")).expect("a process");
    while name().trim() != "cat" {
        std::thread::yield_now();
    }
    println!("before {before}, after {}", asks(TwinOperation::Connect, named, second));
    drop(own);
    std::process::exit(0);
}

/// Has the kernel look at `count` pairs of sockets that wait in each other.
fn collects(count: u64) {
    let limit = Rlimit { current: getrlimit(Resource::Nofile).maximum, ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("descriptors");
    let bind = || {
        let pair = UnixDatagram::pair().expect("pair");
        for end in [&pair.0, &pair.1] {
            pd_raw::send_with(end, b"x", end).expect("send");
        }
        pair
    };
    let held: Vec<_> = (0..count).map(|_| bind()).collect();
    println!("collects");
    std::thread::spawn(move || loop {
        // The kernel looks whenever a socket is closed.
        drop(bind());
        std::hint::black_box(&held);
    });
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn cycles(mut raw: Raw, count: u64) {
    let file_socket = raw.file_socket().try_clone().expect("descriptor");
    let attached = raw.socket.try_clone().expect("descriptor");
    let pair = UnixDatagram::pair().expect("pair");
    for _ in 0..count {
        let (one, another) = (pair.0.as_fd(), pair.1.as_fd());
        for gift in [file_socket.as_fd(), attached.as_fd(), one, another] {
            raw.pass(gift);
            for socket in [one, another] {
                pd_raw::send_with(socket, b"x", gift).expect("send");
            }
        }
    }
    // The driver receives the first, which is no file.
    let mut request = Request::new(Operation::OpenFile, pd_abi::SocketId(0), 0).with_numbers(1, 0);
    request.tag = 1;
    assert_ne!(raw.call(0, request).errno, 0);
}

/// Has listings of its folder in `/proc` never end, and somebody wait to change that folder. Returns 1 if it can attach meanwhile.
fn lists(path: &Path) -> u64 {
    let page = Withheld::new();
    let at = page.address();
    std::thread::spawn(move || {
        let folder = std::fs::File::open("/proc/self").expect("open");
        // SAFETY: the kernel writes to memory that stays mapped.
        unsafe { libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), at, 4096) };
    });
    page.wait_wanted();
    std::thread::spawn(|| std::fs::create_dir("/proc/self/new"));
    std::thread::sleep(Duration::from_millis(200));
    let (attached, result) = std::sync::mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || attached.send(Raw::try_attach(&path, 1).is_ok()));
    u64::from(result.recv_timeout(Duration::from_secs(5)) == Ok(true))
}

/// Sends as much as possible on all connections, and receives everything.
/// Sends without end to itself, takes descriptors of everything, and then all memory that it can get.
fn bloat(path: &Path, mib: u64) -> ! {
    let mut raw = Raw::try_attach(path, 4).expect("attach");
    let bytes = mib << 20;
    let (region, map) = raw.send_region(bytes);
    let (listener, addr) = raw.listen(0, 8);
    let from = raw.connect(0, addr);
    let _to = raw.accept(0, listener);
    for at in (0..bytes as usize).step_by(4096) {
        map.store_u64(at, at as u64, std::sync::atomic::Ordering::Relaxed);
    }
    let span = Span { region: region.id as u16, offset: 0, len: bytes.min(256 << 10) };
    raw.post(0, &Request::send(from, span));
    let mut held = Vec::new();
    loop {
        held.push(std::hint::black_box(vec![1u8; 1 << 20]));
    }
}

fn crowd(path: &Path, count: usize) {
    std::env::set_var("PD_SOCKET", path);
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("bind");
    let addr = listener.local_addr().expect("address");
    let pair = |_| (Stream::connect(addr).expect("connect"), listener.accept().expect("accept"));
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(pair).unzip();
    for stream in senders.iter().chain(&receivers) {
        stream.set_nonblocking(true);
        // More than goes through while it pauses.
        stream.set_send_ring_bytes(RING_BYTES).expect("ring");
        stream.set_recv_ring_bytes(RING_BYTES).expect("ring");
    }
    let pause = || std::thread::sleep(Duration::from_micros(100));
    std::thread::spawn(move || loop {
        let came = |stream: &Stream| stream.recv(1 << 20).is_ok_and(|received| !received.is_empty());
        if receivers.iter().filter(|stream| came(stream)).count() == 0 {
            pause();
        }
    });
    std::thread::spawn(move || {
        let buffer = SendBuffer::new(64 << 10).expect("buffer");
        loop {
            if senders.iter().filter(|stream| stream.send(&buffer, ..).is_ok()).count() == 0 {
                pause();
            }
        }
    });
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}
