//! A client of memif that sends any messages and descriptors, and writes anything into its memory, while the port takes turns.
//!
//! The port must neither panic nor lend a frame that no pipe carries. The next client exchanges frames as if there had been none
//! before. The property test `crates/pipe/tests/memif.rs` and the fuzz target `memif` run this. A zero in a program is a valid value
//! wherever there is one, so that short programs are whole sessions.
#[path = "../../../shm/tests/oracle/program.rs"]
mod program;

use self::program::Program;
use pd_pipe::{Device, Memif, Taken};
use pd_shm::{Own, Region};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{
    fallocate, fcntl_add_seals, fcntl_setfl, ftruncate, memfd_create, FallocateFlags, MemfdFlags, OFlags,
    SealFlags,
};
use rustix::net::{
    bind, connect, listen, recv, sendmsg, socket_with, AddressFamily, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BYTES: usize = 64 << 10;
const COOKIE: u32 = 0x03e3_1f20;
/// Offsets of an honest client's rings: from it, to it.
const RINGS: [usize; 2] = [0, 4096];
/// Logarithm of the rings' entries.
const LOG: u8 = 6;
pub const BUFFERS: usize = 16 << 10;
const ID: u32 = 3;
/// Most frames that an agent takes of a device in a turn.
const BURST: usize = 256;
/// Longest time until a port reads a message: it may wait for descriptors to be closed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks until there is an answer.
fn patiently<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            None if Instant::now() < until => std::thread::yield_now(),
            answer => return answer,
        }
    }
}

/// A port, and the address of its socket.
pub struct Stand {
    pub port: Memif,
    pub address: SocketAddrUnix,
}

impl Stand {
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("pd-memif-{}-{number}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let listener = seqpacket();
        bind(&listener, &address).unwrap();
        listen(&listener, 1).unwrap();
        Self { port: Memif::new(listener, ID).unwrap(), address }
    }

    pub fn client(address: &SocketAddrUnix) -> Option<Client> {
        let socket = seqpacket();
        connect(&socket, address).ok()?;
        Some(Client { socket })
    }

    /// Takes a turn as an agent does. Returns whether another is due.
    pub fn turn(&mut self, mut see: impl FnMut(&[u8])) -> bool {
        let mut is_busy = false;
        for _ in 0..BURST {
            let Some(frame) = self.port.peek() else { break };
            assert!((14..=9216).contains(&frame.len()), "{} bytes", frame.len());
            see(frame);
            self.port.advance();
            is_busy = true;
        }
        self.port.flush() | is_busy
    }

    pub fn connect(&mut self) -> Option<Client> {
        let client = Self::client(&self.address);
        // Needed if the queue of the socket is full, which a turn empties.
        self.turn(|_| {});
        client
    }
}

fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

pub struct Client {
    socket: OwnedFd,
}

impl Client {
    fn say(&self, message: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        // A port that hung up reads nothing.
        let _ = sendmsg(&self.socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL);
    }

    /// Returns the type of the next message, if there is one.
    fn hear(&self) -> Option<u8> {
        let mut bytes = [0; 129];
        match recv(&self.socket, &mut bytes, RecvFlags::empty()) {
            Ok((_, len)) if len > 0 => {
                assert!(
                    len == 128 && bytes[1] == 0 && [1, 2, 7, 8].contains(&bytes[0]),
                    "{:?}",
                    &bytes[..len]
                );
                Some(bytes[0])
            }
            _ => None,
        }
    }

    /// Returns the type of the next message that comes while the port takes turns.
    fn wait(&self, mut turn: impl FnMut()) -> Option<u8> {
        patiently(|| {
            turn();
            self.hear()
        })
    }

    /// Connects by the rules of the protocol.
    pub fn shake(&self, own: &Things, mut turn: impl FnMut()) {
        assert_eq!(self.wait(&mut turn), Some(2), "it is greeted");
        let steps = [
            (init(0x0200, ID, 0), None),
            (add_region(0, BYTES as u64), Some(own.memory.as_fd())),
            (add_ring(1, 0, 0, RINGS[0] as u32, LOG), Some(own.far_doorbell.as_fd())),
            (add_ring(0, 0, 0, RINGS[1] as u32, LOG), Some(own.doorbell.as_fd())),
        ];
        for (message, fd) in &steps {
            self.say(message, fd.as_slice());
            assert_eq!(self.wait(&mut turn), Some(1));
        }
        self.say(&message(6, &[]), &[]);
        assert_eq!(self.wait(&mut turn), Some(7));
    }
}

/// Memory and descriptors of a client.
pub struct Things {
    memory: OwnedFd,
    region: Region<Own>,
    /// The port's doorbell, and the client's.
    pub far_doorbell: OwnedFd,
    pub doorbell: OwnedFd,
}

impl Things {
    pub fn new() -> Self {
        let memory = memfd_create("memif", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, BYTES as u64).unwrap();
        fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
        let region = Region::<Own>::new(&memory, BYTES).unwrap();
        for ring in RINGS {
            region.store_u32(ring, COOKIE, Ordering::Relaxed);
        }
        let [far_doorbell, doorbell] =
            [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        Self { memory, region, far_doorbell, doorbell }
    }

    pub fn set(&self, ring: usize, index: usize, first: u64, offset: u32) {
        let entry = RINGS[ring] + 128 + index % (1 << LOG) * 16;
        self.region.store_u64(entry, first, Ordering::Relaxed);
        self.region.store_u32(entry + 8, offset, Ordering::Relaxed);
    }

    pub fn head(&self, ring: usize, head: u16, flags: u16) {
        let word = u32::from(flags) | u32::from(head) << 16;
        self.region.store_u32(RINGS[ring] + 4, word, Ordering::Release);
    }

    /// Moves the head alone, as clients do: the reader writes the flags.
    pub fn move_head(&self, ring: usize, head: u16) {
        self.region.store_u16(RINGS[ring] + 6, head, Ordering::Release);
    }

    pub fn flags(&self, ring: usize) -> u16 {
        self.region.load_u32(RINGS[ring] + 4, Ordering::Relaxed) as u16
    }

    pub fn tail(&self, ring: usize) -> u16 {
        self.region.load_u32(RINGS[ring] + 64, Ordering::Acquire) as u16
    }
}

/// Makes a message of a type, with fields at their offsets.
fn message(kind: u8, fields: &[(usize, &[u8])]) -> [u8; 128] {
    let mut message = [0; 128];
    message[0] = kind;
    for (at, bytes) in fields {
        message[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    message
}

fn init(version: u16, id: u32, mode: u8) -> [u8; 128] {
    message(3, &[(2, &version.to_ne_bytes()), (4, &id.to_ne_bytes()), (8, &[mode])])
}

fn add_region(index: u16, bytes: u64) -> [u8; 128] {
    message(4, &[(2, &index.to_ne_bytes()), (4, &bytes.to_ne_bytes())])
}

fn add_ring(flags: u16, index: u16, region: u16, offset: u32, log: u8) -> [u8; 128] {
    let [flags, index, region] = [flags, index, region].map(u16::to_ne_bytes);
    message(5, &[(2, &flags), (4, &index), (6, &region), (8, &offset.to_ne_bytes()), (12, &[log])])
}

/// Runs one program.
///
/// # Panics
/// If the port panics, or an honest client after it gets too little.
pub fn run(program: &[u8]) {
    let mut program = Program(program);
    let mut stand = Stand::new();
    let own = Things::new();
    let mut client = stand.connect();
    while !program.0.is_empty() {
        let operation = program.byte();
        match operation % 12 {
            0..=2 => {
                let bytes = said(&mut program, operation % 12);
                speak(&mut program, &own, client.as_ref(), &bytes);
            }
            3 => {
                let (len, mut bytes) = (1 + usize::from(program.byte()) % 128, [0; 128]);
                bytes[..len].fill_with(|| program.byte());
                speak(&mut program, &own, client.as_ref(), &bytes[..len]);
            }
            4 => {
                own.head(usize::from(program.byte() & 1), program.number(2) as u16, program.number(1) as u16)
            }
            5 => {
                // Mostly inside the region.
                let (ring, index) = (usize::from(program.byte() & 1), program.number(1) as usize);
                let (flags, region) = (program.byte() as u64, program.byte() as u64);
                let (length, offset) = (program.number(2), program.number(2));
                own.set(ring, index, flags | region << 16 | length << 32, offset as u32);
            }
            6 => {
                let (ring, index) = (usize::from(program.byte() & 1), program.number(1) as usize);
                own.set(ring, index, program.number(8), program.number(4) as u32);
            }
            7 => {
                let (at, value) = (program.number(2) as usize & !3, program.number(4) as u32);
                own.region.store_u32(at % BYTES, value, Ordering::Relaxed);
            }
            8 => {
                let (count, len) = (program.byte() % 80, 14 + program.number(2) as usize % 9203);
                for _ in 0..count {
                    let taken = stand.port.send(&vec![7; len]);
                    assert!(matches!(taken, Taken::Done | Taken::Lost), "{taken:?}");
                }
            }
            9 => spoil(&mut program, &own),
            10 => {
                client = if program.byte() & 1 == 0 { None } else { client };
                client = client.or_else(|| stand.connect());
            }
            _ => {
                for _ in 0..program.byte() % 32 {
                    stand.turn(|_| {});
                }
            }
        }
        if operation & 0x80 == 0 {
            stand.turn(|_| {});
            while client.as_ref().is_some_and(|client| client.hear().is_some()) {}
        }
    }
    drop(client);
    honest(&mut stand);
}

/// Makes a message that could be one of the protocol.
fn said(program: &mut Program<'_>, operation: u8) -> [u8; 128] {
    let any = |program: &mut Program<'_>, usual: u64| program.or(usual, 2) as u16;
    match (operation, program.byte() % 4) {
        (0, 0) => init(any(program, 0x0200), program.or(ID.into(), 4) as u32, program.byte()),
        (0, _) => add_region(any(program, 0), program.or(BYTES as u64, 8)),
        (1, way) => {
            // From the client, to the client.
            let (flags, offset) = (u16::from(way & 1 == 0), RINGS[usize::from(way & 1)]);
            let (index, region) = (any(program, 0), any(program, 0));
            add_ring(
                flags,
                index,
                region,
                program.or(offset as u64, 4) as u32,
                program.or(LOG.into(), 1) as u8,
            )
        }
        (_, 0) => message(6, &[]),
        (_, 1) => message(8, &[]),
        (_, _) => message(program.byte(), &[]),
    }
}

/// Sends a message, with up to four descriptors of any kind.
fn speak(program: &mut Program<'_>, own: &Things, client: Option<&Client>, message: &[u8]) {
    let Some(client) = client else { return };
    let count = program.byte() % 5;
    let made: Vec<Option<OwnedFd>> = (0..count)
        .map(|_| match program.byte() % 8 {
            0 => Some(own.memory.try_clone().unwrap()),
            1 => Some(own.doorbell.try_clone().unwrap()),
            2 => Some(eventfd(0, EventfdFlags::SEMAPHORE).unwrap()),
            // An unsealed, empty file.
            3 => Some(memfd_create("memif", MemfdFlags::ALLOW_SEALING).unwrap()),
            4 => Some(std::fs::File::open("/dev/null").unwrap().into()),
            5 => Some(rustix::pipe::pipe().unwrap().1),
            6 => Some(rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap()),
            _ => None,
        })
        .collect();
    // The client's own socket may go with a message, too.
    let fds: Vec<_> =
        made.iter().map(|fd| fd.as_ref().map_or(client.socket.as_fd(), |fd| fd.as_fd())).collect();
    client.say(message, &fds);
}

/// Changes the files behind the descriptors that a client has passed.
fn spoil(program: &mut Program<'_>, own: &Things) {
    match program.byte() % 5 {
        0 => drop(ftruncate(&own.memory, program.number(2) << 4)),
        1 => {
            let (offset, len) = (program.number(2), 1 + program.number(2));
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(&own.memory, hole, offset, len);
        }
        // A full eventfd, on which a write blocks.
        2 => {
            fcntl_setfl(&own.doorbell, OFlags::NONBLOCK).unwrap();
            let _ = rustix::io::write(&own.doorbell, &(u64::MAX - 1).to_ne_bytes());
            fcntl_setfl(&own.doorbell, OFlags::empty()).unwrap();
        }
        3 => {
            fcntl_setfl(&own.doorbell, OFlags::NONBLOCK).unwrap();
            let _ = rustix::io::read(&own.doorbell, &mut [0; 8]);
        }
        _ => {
            fcntl_setfl(&own.doorbell, OFlags::NONBLOCK).unwrap();
            let _ = rustix::io::write(&own.doorbell, &1u64.to_ne_bytes());
        }
    }
}

/// Runs a client that keeps to the protocol, and checks frames in both directions.
fn honest(stand: &mut Stand) {
    let own = Things::new();
    let client = patiently(|| stand.connect()).expect("the socket has room");
    client.shake(&own, || {
        stand.turn(|_| {});
    });
    // Sixty frames that are too short, and three valid ones behind them.
    let word = |number: usize| u32::from_ne_bytes([number as u8 | 0x40; 4]);
    for number in 0..63 {
        let (len, at) = if number < 60 { (13, 0) } else { (40 + number as u64, number % 60 * 256) };
        (0..64).for_each(|n| own.region.store_u32(BUFFERS + at + n * 4, word(number), Ordering::Relaxed));
        own.set(0, number, len << 32, (BUFFERS + at) as u32);
    }
    own.move_head(0, 63);
    let (missed, mut came) = (stand.port.missed(), Vec::new());
    while stand.turn(|frame| came.push(frame.to_vec())) {}
    let wanted: Vec<_> = (60..63).map(|number| vec![number as u8 | 0x40; 40 + number]).collect();
    assert!(came == wanted, "frames {:?}", came.iter().map(Vec::len).collect::<Vec<_>>());
    assert_eq!((stand.port.missed() - missed, own.tail(0)), (60, 63));
    assert_eq!(own.flags(0), 1, "the port polls");
    // Two buffers, three frames.
    for number in 0..2 {
        own.set(1, number, 2048 << 32, (BUFFERS + number * 2048) as u32);
    }
    own.head(1, 2, 1);
    let sent = [[1; 600], [2; 600], [3; 600]].map(|frame| stand.port.send(&frame));
    stand.turn(|_| {});
    assert_eq!((sent, own.tail(1)), ([Taken::Done, Taken::Done, Taken::Lost], 2));
    for number in 0..2 {
        let at = BUFFERS + number * 2048;
        let bytes = own.region.load_u32(at + 596, Ordering::Relaxed);
        assert_eq!(bytes, u32::from_ne_bytes([number as u8 + 1; 4]));
    }
}
