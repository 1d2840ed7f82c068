//! Garbage in every shared word that a client can write, by seed.
use super::{sockets, stage};
use pd_abi::layout::{channel_control, control_header, socket_control};
use pd_abi::limits::{KERNEL_CONNECTIONS_MAX, REQUEST_RING_ENTRIES};
use pd_abi::{Address, Frame, FrameKind, KernelReason, Operation, Request, SocketId, Span, KERNEL_REASONS};
use pd_driver::admin::{Answer, Ask};
use pd_shm::{attach, Own, Region};
use pd_tests::{Random, Raw};
use rustix::net::SendFlags;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

const ROUNDS: u64 = 400;
const REGION_BYTES: u64 = 64 << 10;

/// Numbers that break things more often than others.
fn number(random: &mut Random) -> u64 {
    match random.below(7) {
        0 => random.word(),
        1 => u64::MAX - random.below(3),
        2 => random.below(3),
        3 => 1 << random.below(64),
        4 => random.below(5000),
        5 => random.below(1 << 20),
        _ => random.word() >> random.below(64),
    }
}

struct Client {
    raw: Raw,
    random: Random,
    region: u16,
    map: Region<Own>,
    sockets: Vec<SocketId>,
    addrs: Vec<SocketAddr>,
}

impl Client {
    fn socket(&mut self) -> SocketId {
        match self.random.below(10) {
            0 => SocketId(self.random.word() as u32),
            1 => SocketId::new(self.random.below(8) as u16, 1 + self.random.below(3) as u16),
            _ => self.sockets[self.random.below(self.sockets.len() as u64) as usize],
        }
    }

    /// Makes a request that may be valid.
    fn request(&mut self) -> Request {
        let socket = self.socket();
        let operation = Operation::ALL[self.random.below(Operation::COUNT as u64) as usize];
        let request = Request::new(operation, socket, self.random.word() as u32);
        let request = match operation {
            Operation::Send => {
                let offset = self.random.below(REGION_BYTES);
                let len = 1 + self.random.below(REGION_BYTES - offset);
                let region =
                    if self.random.below(40) == 0 { number(&mut self.random) as u16 } else { self.region };
                Request::send(socket, Span { region, offset, len })
            }
            Operation::Bind | Operation::Connect => {
                let addr = self.addrs[self.random.below(self.addrs.len() as u64) as usize];
                request.with_address(Address::from(addr))
            }
            _ => request.with_numbers(number(&mut self.random), number(&mut self.random)),
        };
        let family = if operation == Operation::Socket { 4 } else { request.family };
        Request { value: self.random.below(7) as u32, family, ..request }
    }

    fn step(&mut self) {
        let channel = self.random.below(self.raw.channels.len() as u64) as usize;
        match self.random.below(40) {
            0 => {
                let words = [
                    channel_control::REQUEST_PRODUCER,
                    channel_control::EVENT_CONSUMER,
                    channel_control::EVENT_WAKE_AT,
                    channel_control::PIPE_WANTED,
                ];
                let word = words[self.random.below(4) as usize];
                let value = number(&mut self.random);
                self.raw.control.store_u64(Raw::channel_word(channel, word), value, Ordering::SeqCst);
            }
            1 => {
                // Any request at all.
                let place = self.random.below(REQUEST_RING_ENTRIES) as usize * size_of::<Request>();
                for word in 0..4 {
                    let at = Raw::channel_word(channel, channel_control::REQUESTS + place + word * 8);
                    let value = number(&mut self.random);
                    self.raw.control.store_u64(at, value, Ordering::Relaxed);
                }
                if self.random.below(3) == 0 {
                    let more = self.random.below(REQUEST_RING_ENTRIES);
                    self.raw.channels[channel].requests += more;
                    let at = Raw::channel_word(channel, channel_control::REQUEST_PRODUCER);
                    self.raw.control.store_u64(at, self.raw.channels[channel].requests, Ordering::SeqCst);
                }
            }
            2..=8 => {
                let socket = self.socket();
                let words = [
                    socket_control::RECV_CONSUMER,
                    socket_control::RECV_WAKE_AT,
                    socket_control::SEND_WAKE_AT,
                    socket_control::SUBSCRIBED,
                    socket_control::GENERATION,
                ];
                // The word that gets a client cut off is written less often than the others.
                let first = u64::from(self.random.below(4) != 0);
                let word = words[(first + self.random.below(5 - first)) as usize];
                let value = number(&mut self.random);
                self.raw.control.store_u64(Raw::socket_word(socket, word), value, Ordering::SeqCst);
            }
            9..=24 => {
                let request = self.request();
                self.raw.try_post(channel, &request, Duration::from_millis(2));
            }
            25..=29 => {
                let at = self.random.below(REGION_BYTES / 8) as usize * 8;
                let value = self.random.word();
                self.map.store_u64(at, value, Ordering::Relaxed);
            }
            30..=32 => {
                let value = number(&mut self.random).min(u64::MAX - 1);
                let _ = rustix::io::write(&self.raw.channels[channel].doorbell, &value.to_ne_bytes());
            }
            33 => {
                let kinds = [FrameKind::SendRegion, FrameKind::WakePipe, FrameKind::Channel];
                let frame = Frame::new(kinds[self.random.below(3) as usize]);
                let frame = frame.with_bytes(4096, self.random.word()).with_id(self.random.below(3) as u32);
                let _ = attach::send(&self.raw.socket, &frame, &[], SendFlags::DONTWAIT);
            }
            34..=36 => while self.raw.event(channel).is_some() {},
            _ => std::thread::sleep(Duration::from_micros(self.random.below(300))),
        }
    }
}

#[test]
fn garbage_in_every_word() {
    let scene = stage();
    let (absorber, victim) = scene.absorber();
    let (mut cut_off, mut reasons) = (0, std::collections::BTreeMap::new());
    for seed in 0..ROUNDS {
        let mut raw = Raw::attach(&scene.driver, 1 + seed as usize % 3);
        let (region, map) = raw.send_region(REGION_BYTES);
        let (sockets, own) = sockets(&mut raw, victim);
        let nowhere = ([127, 0, 0, 1], 1).into();
        let mut client = Client {
            raw,
            random: Random(seed),
            region: region.id as u16,
            map,
            sockets,
            addrs: vec![own, victim, nowhere, ([0, 0, 0, 0], 0).into(), ([10, 9, 8, 7], 80).into()],
        };
        for _ in 0..60 {
            client.step();
        }
        if seed % 4 != 0 {
            // Time for the driver's delayed checks.
            std::thread::sleep(Duration::from_millis(2));
        }
        if let Some(reason) = client.raw.is_cut_off() {
            cut_off += 1;
            *reasons.entry(reason).or_insert(0) += 1;
        }
        assert!(scene.driver.is_running(), "seed {seed}");
    }
    eprintln!("{cut_off} of {ROUNDS} cut off: {reasons:?}");
    assert!(cut_off > ROUNDS / 10, "garbage that nobody minds");
    scene.bystander.check(&scene.driver);
    drop(absorber);
    scene.end();
}

/// Reasons are codes, counts do not go back, and a client that ends leaves its own in the sum.
#[test]
fn what_clients_say_of_the_kernel_is_bounded() {
    let scene = stage();
    let mut raw = Raw::attach(&scene.driver, 1);
    let count = |index: usize| control_header::KERNEL_COUNTS + 4 * index;
    for index in 0..KERNEL_REASONS {
        raw.control.store_u32(count(index), u32::MAX, Ordering::Relaxed);
    }
    for index in 0..KERNEL_CONNECTIONS_MAX {
        let word = (index as u64) << 32 | 7;
        raw.control.store_u64(control_header::KERNEL_CONNECTIONS + 8 * index, word, Ordering::Relaxed);
    }
    let sum = || scene.driver.report().kernel_connections_by_reason;
    let most = u64::from(u32::MAX);
    assert!(sum().len() == KERNEL_REASONS && sum().values().all(|&count| count == most), "{:?}", sum());
    let Answer::Kernel(kernel) = scene.driver.tell(&Ask::Kernel) else { panic!("no report") };
    let said = kernel.clients.iter().map(|client| client.connections.len()).max();
    assert_eq!(said, Some(KERNEL_REASONS), "one of each code, and no other");
    let urgent = KernelReason::Urgent.index();
    raw.control.store_u32(count(urgent), 0, Ordering::Relaxed);
    assert_eq!(sum()[KernelReason::Urgent.label()], most);
    raw.control.store_u32(count(urgent), 5, Ordering::Relaxed);
    assert_eq!(sum()[KernelReason::Urgent.label()], most);
    assert_eq!(raw.is_cut_off(), None);
    drop(raw);
    scene.driver.wait_for("the client has left", |report| report.clients.len() == 2);
    assert_eq!(sum()[KernelReason::Urgent.label()], most);
    scene.end();
}
