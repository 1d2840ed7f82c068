//! A client with random actions, by seed: each frame, each request, each shared word, files, rings of the direct path, and
//! messages of strangers and administrators on the admin socket. All are drawn from the lists of the interface, so that a new
//! operation is drawn without a change here.
use super::{sockets, stage};
use pd_abi::layout::{channel_control, control_header, direct, socket_control};
use pd_abi::limits::{CHANNELS_MAX, PAGE_BYTES};
use pd_abi::{Address, FileId, Frame, FrameKind, Operation, Request, SocketId, Span};
use pd_driver::admin::{ask, Answer, Ask};
use pd_shm::{attach, passed, Own, Region};
use pd_tests::{Random, Raw, TestDriver};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::net::{RecvFlags, SendFlags};
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

const CLIENTS: u64 = 160;
const STEPS: u64 = 100;
const REGION_BYTES: u64 = 64 << 10;

struct Client<'a> {
    driver: &'a TestDriver,
    raw: Raw,
    random: Random,
    region: u16,
    sockets: Vec<SocketId>,
    addrs: Vec<SocketAddr>,
    /// Rings of the direct path that it may write.
    rings: Vec<Region<Own>>,
    files: Vec<FileId>,
    serial: u64,
    is_wild: bool,
    /// Counts of each operation and frame.
    done: &'a mut Done,
}

#[derive(Default)]
struct Done {
    requests: [u64; 32],
    frames: [u64; 32],
    admin: [u64; 8],
    steps: u64,
}

impl Client<'_> {
    fn number(&mut self) -> u64 {
        match self.random.below(6) {
            0 => self.random.word(),
            1 => u64::MAX - self.random.below(3),
            2 => 1 << self.random.below(64),
            3 => self.random.below(PAGE_BYTES as u64 * 20),
            _ => self.random.below(4),
        }
    }

    fn socket(&mut self) -> SocketId {
        match self.random.below(12) {
            0 => SocketId(self.random.word() as u32),
            _ => self.sockets[self.random.below(self.sockets.len() as u64) as usize],
        }
    }

    /// Sends any request, mostly with meaningful numbers.
    fn request(&mut self) {
        let operation = Operation::ALL[self.random.below(Operation::COUNT as u64) as usize];
        self.done.requests[operation as usize] += 1;
        let (socket, tag) = (self.socket(), self.random.below(1000) as u32);
        let request = Request::new(operation, socket, tag);
        let request = match operation {
            Operation::Send => {
                let offset = self.random.below(REGION_BYTES - 1);
                let len = 1 + self.random.below(REGION_BYTES - offset);
                Request::send(socket, Span { region: self.region, offset, len })
            }
            Operation::Bind | Operation::Connect => {
                let addr = self.addrs[self.random.below(self.addrs.len() as u64) as usize];
                request.with_address(Address::from(addr))
            }
            Operation::OpenFile => request.with_numbers(self.serial, 0),
            Operation::SendFile if !self.files.is_empty() => {
                let file = self.files[self.random.below(self.files.len() as u64) as usize];
                Request::send_file(socket, file, self.random.below(9000), 1 + self.random.below(5000))
            }
            // Without a file that is one more way to be cut off, which would be the end of most clients.
            Operation::SendFile if self.random.below(8) > 0 => return,
            _ => request.with_numbers(self.number(), self.number()),
        };
        let family = if operation == Operation::Socket { 4 } else { request.family };
        let channel = self.random.below(self.raw.channels.len() as u64) as usize;
        let request = Request { value: self.random.below(4) as u32, family, ..request };
        self.raw.try_post(channel, &request, Duration::from_millis(2));
    }

    /// Sends any frame. Frames that only a driver sends, or that are out of order, end a client: half of the clients send none of
    /// these.
    fn frame(&mut self) {
        let usual = [
            FrameKind::Channel,
            FrameKind::SendRegion,
            FrameKind::WakePipe,
            FrameKind::FileSocket,
            FrameKind::DirectRing,
            FrameKind::PeerRing,
            FrameKind::Doorbell,
            FrameKind::PeerDoorbell,
            FrameKind::Twin,
        ];
        let kind = match self.random.below(8) {
            0..=2 if self.is_wild => FrameKind::ALL[self.random.below(FrameKind::COUNT as u64) as usize],
            3 if !self.rings.is_empty() => FrameKind::DirectMapped,
            _ => usual[self.random.below(usual.len() as u64) as usize],
        };
        self.done.frames[kind as usize] += 1;
        let id = match kind {
            FrameKind::WakePipe | FrameKind::Twin => self.random.below(CHANNELS_MAX as u64) as u32,
            _ => self.socket().0,
        };
        let mut frame = Frame::new(kind).with_id(id).with_bytes(self.number() % (1 << 20), self.number());
        frame.text.iter_mut().for_each(|byte| *byte = self.random.word() as u8 % 7);
        let _ = attach::send(&self.raw.socket, &frame, &[], SendFlags::DONTWAIT);
    }

    /// Frames that have come on the attach socket.
    fn hear(&mut self) {
        while let Ok(Some((frame, mut fds))) = attach::receive(&self.raw.socket, RecvFlags::DONTWAIT) {
            match frame.checked_kind() {
                Some(FrameKind::DirectRing) if self.rings.len() < 8 => {
                    let len = (frame.bytes + frame.page_bytes) as usize;
                    let ring = fds.pop();
                    self.rings.extend(ring.as_ref().and_then(|fd| Region::<Own>::new(fd, len).ok()));
                    if !self.is_wild || self.random.below(2) == 0 {
                        let _ = ring.map(pd_shm::memfd::seal_against_all);
                    }
                }
                Some(FrameKind::FileSocket) => self.raw.file_socket = fds.pop(),
                _ => {}
            }
        }
    }

    /// Writes any word of a client.
    fn word(&mut self) {
        let lists = [channel_control::WORDS, socket_control::WORDS, control_header::WORDS];
        let which = self.random.below(3) as usize;
        let word = &lists[which][self.random.below(lists[which].len() as u64) as usize];
        let inside = self.random.below(word.bytes.min(512) as u64 / 4) as usize * 4;
        let channel = self.random.below(self.raw.channels.len() as u64) as usize;
        let at = match which {
            0 => Raw::channel_word(channel, word.offset),
            1 => Raw::socket_word(self.socket(), word.offset),
            _ => word.offset,
        };
        // Counters of rings end a client at once.
        let is_fatal = word.name == "REQUEST_PRODUCER" || word.name == "EVENT_CONSUMER";
        if !is_fatal || self.random.below(16) == 0 {
            let value = self.number() as u32;
            self.raw.control.store_u32(at + inside, value, Ordering::SeqCst);
        }
    }

    fn ring_word(&mut self) {
        if self.rings.is_empty() {
            return;
        }
        let value = self.number();
        let word = &direct::WORDS[self.random.below(direct::WORDS.len() as u64) as usize];
        let ring = &self.rings[self.random.below(self.rings.len() as u64) as usize];
        match word.bytes {
            8 => ring.store_u64(word.offset, value, Ordering::SeqCst),
            _ => ring.store_u32(word.offset, value as u32, Ordering::SeqCst),
        }
    }

    /// Passes any descriptor, or none.
    fn pass(&mut self) {
        let Some(socket) = &self.raw.file_socket else { return };
        let nothing = || memfd_create("nothing", MemfdFlags::CLOEXEC).expect("memory");
        let what: OwnedFd = match self.random.below(4) {
            0 => std::fs::File::open("/proc/self/exe").expect("own program").into(),
            1 => rustix::pipe::pipe().expect("a pipe").0,
            2 => UnixStream::pair().expect("a pair").0.into(),
            _ => nothing(),
        };
        self.serial += 1 + self.random.below(2);
        let _ = match self.random.below(8) {
            0 => rustix::net::send(socket, b"none", SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop),
            _ => passed::send(socket, self.serial, what.as_fd()),
        };
    }

    /// Sends anything on the admin socket: bytes, impossible orders, and all questions.
    fn admin(&mut self) {
        let which = self.random.below(self.done.admin.len() as u64) as usize;
        self.done.admin[which] += 1;
        let ask_of = |question: &Ask| ask(self.driver.admin_socket(), question);
        let answer = match which {
            0 => ask_of(&Ask::List),
            1 => ask_of(&Ask::Counters),
            2 => ask_of(&Ask::Kernel),
            3 => ask_of(&Ask::Policy),
            4 => ask_of(&Ask::Apply { text: "[[rule]]\nfrom = 7".into() }),
            5 => {
                let (name, tenant) = ("none".into(), "none".into());
                ask_of(&Ask::Register {
                    name,
                    tenant,
                    pid: u32::MAX - 7,
                    addresses: Vec::new(),
                    network: None,
                })
            }
            _ => {
                let mut bytes = vec![0; self.random.below(3000) as usize];
                bytes.iter_mut().for_each(|byte| *byte = self.random.word() as u8);
                if let Ok(mut stream) = UnixStream::connect(self.driver.admin_socket()) {
                    let _ = stream.write_all(&bytes);
                }
                return;
            }
        };
        let is_order = which >= 4;
        let is_refused = matches!(answer, Ok(Answer::Error(_)) | Err(_));
        assert_eq!(is_refused, is_order, "{which}: {answer:?}");
    }

    fn step(&mut self) {
        self.done.steps += 1;
        match self.random.below(40) {
            0..=15 => self.request(),
            16..=20 => self.frame(),
            21..=26 => self.word(),
            27..=29 => self.ring_word(),
            30..=32 => self.pass(),
            33 if self.random.below(3) == 0 => self.admin(),
            34 => {
                let channel = self.random.below(self.raw.channels.len() as u64) as usize;
                self.raw.ring(channel);
            }
            35 | 36 => {
                for channel in 0..self.raw.channels.len() {
                    while let Some(event) = self.raw.event(channel) {
                        if event.errno == 0 && event.socket == 0 && self.files.len() < 8 {
                            self.files.push(FileId(event.number() as u32));
                        }
                    }
                }
            }
            37 => std::thread::sleep(Duration::from_micros(self.random.below(500))),
            _ => self.hear(),
        }
    }
}

#[test]
fn a_client_does_anything_beside_an_innocent_stream() {
    let scene = stage();
    let (absorber, victim) = scene.absorber();
    let mut done = Done::default();
    let mut cut_off = 0;
    for seed in 0..CLIENTS {
        let mut raw = Raw::attach(&scene.driver, 1 + seed as usize % 3);
        let (region, _map) = raw.send_region(REGION_BYTES);
        let (sockets, own) = sockets(&mut raw, victim);
        if seed % 2 == 0 {
            raw.file_socket();
        }
        let mut client = Client {
            driver: &scene.driver,
            raw,
            random: Random(seed),
            region: region.id as u16,
            sockets,
            addrs: vec![own, victim, ([127, 0, 0, 1], 1).into(), ([0, 0, 0, 0], 0).into()],
            rings: Vec::new(),
            files: Vec::new(),
            serial: 0,
            is_wild: seed % 2 == 1,
            done: &mut done,
        };
        for _ in 0..STEPS {
            client.step();
        }
        cut_off += u64::from(client.raw.is_cut_off().is_some());
        assert!(scene.driver.is_running(), "seed {seed}");
        if seed % 10 == 0 {
            scene.bystander.check(&scene.driver);
        }
    }
    let asked = |kind: &Operation| done.requests[*kind as usize] > 0;
    let sent = |kind: &FrameKind| done.frames[*kind as usize] > 0;
    assert!(Operation::ALL.iter().all(asked) && FrameKind::ALL.iter().all(sent), "each was drawn");
    assert!(done.admin.iter().all(|&times| times > 0), "{:?}", done.admin);
    eprintln!("{} steps, {cut_off} of {CLIENTS} clients cut off", done.steps);
    drop(absorber);
    scene.end();
}
