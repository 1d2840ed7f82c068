//! A client by the library, as a process of its own and an unprivileged user, that is busy in every way until it is killed.
//!
//! `mayfly FOLDER SEED USER`: listens and leaves its address in FOLDER, connects to addresses that it finds there, sends blocks of growing
//! size, receives, waits, shuts down, resets, and makes twins that a child inherits. What fails is tried again later.
//! `mayfly next_owner FD`: holds descriptor FD, takes its twin over and uses it, until its standard input ends.
use pd_client::core::{free, malloc, twin, Socket};
use pd_client::{Epoll, Interest, Listener, SendBuffer, Shutdown, Stream};
use pd_tests::Random;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(1);
/// Longest wait of a call.
const PATIENCE: Duration = Duration::from_millis(20);
const CONNECTING_THREADS: u64 = 2;
const STREAMS: usize = 4;
const TWINS: usize = 3;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args[0] == "next_owner" {
        return inherit(args[1].parse().expect("number"));
    }
    let number = |index: usize| args[index].parse::<u64>().expect("number");
    let (folder, seed, user) = (Path::new(&args[0]), number(1), number(2) as u32);
    // SAFETY: plain system calls of a process with one thread.
    let is_user = unsafe { libc::setgid(user) == 0 && libc::setuid(user) == 0 };
    assert!(is_user, "needs root, to give it up");
    thread::scope(|scope| {
        scope.spawn(|| serve(folder, seed));
        for number in 0..CONNECTING_THREADS {
            scope.spawn(move || connect(folder, Random(seed * 100 + number)));
        }
        scope.spawn(|| twins(Random(seed * 100 + 99)));
    });
}

/// Accepts connections, and answers on some of them.
fn serve(folder: &Path, seed: u64) {
    let listener = loop {
        match Listener::bind("127.0.0.1:0".parse().expect("address")) {
            Ok(listener) => break listener,
            Err(_) => thread::sleep(PAUSE),
        }
    };
    let (own, mut random, mut streams) = (listener.local_addr(), Random(seed), Vec::new());
    if let Ok(own) = own {
        let _ = std::fs::write(folder.join(std::process::id().to_string()), own.to_string());
    }
    listener.set_nonblocking(true);
    loop {
        match listener.accept() {
            Ok(stream) => streams.extend(prepared(stream)),
            Err(_) => thread::sleep(PAUSE),
        }
        use_one(&mut streams, &mut random);
    }
}

/// Connects to processes that there are, or were.
fn connect(folder: &Path, mut random: Random) {
    let mut streams = Vec::new();
    loop {
        if let Some(to) = address(folder, &mut random) {
            // A connection that does not wait for room in a backlog.
            let connected = Stream::connect_several(to, 1).ok().and_then(|mut made| made.pop());
            streams.extend(connected.and_then(prepared));
        }
        thread::sleep(PAUSE * random.below(2) as u32);
        (0..4).for_each(|_| use_one(&mut streams, &mut random));
    }
}

fn address(folder: &Path, random: &mut Random) -> Option<SocketAddr> {
    let files: Vec<_> = std::fs::read_dir(folder).ok()?.flatten().collect();
    let file = files.get(random.below(files.len() as u64) as usize)?;
    std::fs::read_to_string(file.path()).ok()?.parse().ok()
}

fn prepared(stream: Stream) -> Option<Stream> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    Some(stream)
}

/// Does something with a stream; keeps no more than a few.
fn use_one(streams: &mut Vec<Stream>, random: &mut Random) {
    if streams.is_empty() {
        return;
    }
    let at = random.below(streams.len() as u64) as usize;
    let stream = &streams[at];
    match random.below(12) {
        0..=4 => send(stream, random),
        5..=7 => drop(stream.recv(1 + random.below(200_000) as usize)),
        8 => wait(stream),
        9 => drop(stream.shutdown(Shutdown::Write)),
        10 => stream.set_close_resets(random.below(2) == 0),
        _ => drop(streams.swap_remove(at)),
    }
    if streams.len() > STREAMS {
        streams.swap_remove(0);
    }
}

/// Sends from a block that is new each time, so that the send region grows.
fn send(stream: &Stream, random: &mut Random) {
    let most = [300, 20_000, 400_000][random.below(3) as usize];
    let Ok(block) = SendBuffer::new(1 + random.below(most) as usize) else { return };
    for _ in 0..=random.below(80) {
        if stream.send(&block, ..).is_err() {
            return;
        }
    }
}

fn wait(stream: &Stream) {
    let (epoll, mut events) = (Epoll::new(), Vec::new());
    if epoll.add(stream, Interest::READ, 0).is_ok() {
        let _ = epoll.wait(&mut events, 1, Some(PATIENCE));
    }
}

/// Connections of the kernel with twins.
struct Pair {
    ends: [OwnedFd; 2],
    sockets: [Option<Arc<Socket>>; 2],
    next_owner: Option<Child>,
}

fn twins(mut random: Random) {
    let mut pairs: Vec<Pair> = Vec::new();
    loop {
        if pairs.len() < TWINS {
            pairs.extend(pair(&mut random));
        }
        thread::sleep(PAUSE);
        if pairs.is_empty() {
            continue;
        }
        let at = random.below(pairs.len() as u64) as usize;
        let pair = &mut pairs[at];
        let socket = pair.sockets[random.below(2) as usize].clone();
        match (random.below(5), socket) {
            (0, _) if pair.next_owner.is_none() => {
                pair.next_owner = next_owner(&pair.ends[random.below(2) as usize])
            }
            (1, _) => end(pairs.swap_remove(at)),
            (_, Some(socket)) => exchange(&socket, &mut random),
            _ => {}
        }
    }
}

fn pair(random: &mut Random) -> Option<Pair> {
    use rustix::net::{bind, connect, socket, AddressFamily, SocketType};
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    twin::listen(listener.as_fd()).ok()?;
    let to = listener.local_addr().ok()?;
    let own = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    bind(&own, &SocketAddr::from(([127, 0, 0, 1], 0))).ok()?;
    let near = twin::connect(own.as_fd(), to).ok()?;
    connect(&own, &to).ok()?;
    let accepted: TcpStream = listener.accept().ok()?.0;
    let far = match random.below(4) {
        // The twin stays unclaimed.
        0 => None,
        _ => twin::claim(accepted.as_fd()).ok()?,
    };
    let _ = twin::unlisten(listener.as_fd());
    Some(Pair { ends: [own, accepted.into()], sockets: [Some(near), far], next_owner: None })
}

/// Starts a process that inherits an end.
fn next_owner(end: &OwnedFd) -> Option<Child> {
    // Without close-on-exec, so that it is inherited under this number.
    // SAFETY: no memory is concerned.
    let inherited = unsafe { libc::dup(end.as_raw_fd()) };
    if inherited < 0 {
        return None;
    }
    let mut command = Command::new("/proc/self/exe");
    let child = command.args(["next_owner", &inherited.to_string()]).stdin(Stdio::piped()).spawn().ok();
    // SAFETY: made above.
    drop(unsafe { OwnedFd::from_raw_fd(inherited) });
    child
}

fn end(pair: Pair) {
    for socket in pair.sockets.into_iter().flatten() {
        let _ = socket.close(); // the next_owner may have taken it
    }
    if let Some(mut next_owner) = pair.next_owner {
        drop(next_owner.stdin.take());
        let _ = next_owner.wait();
    }
}

fn exchange(socket: &Socket, random: &mut Random) {
    let _ = socket.set_recv_timeout(Some(PATIENCE));
    let _ = socket.set_send_timeout(Some(PATIENCE));
    if random.below(2) == 0 {
        if let Ok(got) = socket.recv(100_000) {
            let _ = socket.recv_done(got.len);
        }
        return;
    }
    let bytes = 1 + random.below(30_000) as usize;
    if let Ok(block) = malloc(bytes) {
        let _ = socket.send(block.as_ptr(), bytes);
        let _ = free(block.as_ptr());
    }
}

fn inherit(descriptor: i32) {
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // SAFETY: the process ends as by a signal: an exit would wait for bytes under way.
        unsafe { libc::_exit(0) }
    });
    // SAFETY: inherited for this, and owned by nothing else in this process.
    let fd = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let mut random = Random(u64::from(std::process::id()));
    thread::sleep(PAUSE * random.below(30) as u32);
    let taken = twin::take(fd).ok().flatten();
    loop {
        match &taken {
            Some(socket) => exchange(socket, &mut random),
            None => thread::sleep(PAUSE),
        }
    }
}
