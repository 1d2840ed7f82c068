//! The host's side of the slot: a root port that a simulated card is plugged into.
//!
//! The port clocks the card, answers its reads from a [`Host`], applies its writes there, and carries the host's register
//! accesses. [`Timing`] says how long that takes: nothing for the `rtl` engine, the rate and latency of a
//! real link for figures. Time is counted in cycles of the card's clock.
use crate::limit::{COMPLETION_BYTES, REQUEST_BYTES};
use crate::model::{Beat, Model, Pins};
use crate::timing::{Credits, Lane, Timing};
use crate::tlp::{self, Kind, Packet, Request};
use std::collections::VecDeque;

/// Memory behind the port, and an observer of its packets.
pub trait Host {
    /// Fills `bytes` from `addr`; false if the card may not read there.
    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool;

    /// Stores `bytes` at `addr`; false if the card may not write there.
    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool;

    /// Called for a packet at the card's pins or at the host.
    fn seen(&mut self, _event: Event, _addr: u64, _cycle: u64) {}
}

/// Moments in the life of a packet; the address is that of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The card has sent a read request.
    ReadSent,
    /// The card has got all of a completion.
    ReadAnswered,
    /// The card has sent a write.
    WriteSent,
    /// The write has reached the host.
    WriteArrived,
    /// A register write has reached the card.
    RegisterWritten,
}

/// Numbers of packets that went over the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads of the card.
    pub reads: u64,
    /// Writes of the card.
    pub writes: u64,
    /// Register writes of the host.
    pub register_writes: u64,
    /// Reads and writes that the host refused.
    pub refused: u64,
    /// Packets of the card that break the rules of PCI Express.
    pub malformed: u64,
}

/// A card in its slot.
pub struct Port<H> {
    /// Memory.
    pub host: H,
    model: Model,
    pins: Pins,
    data_bytes: usize,
    mps: usize,
    cycle: u64,
    timing: Timing,
    credits: Credits,
    /// The packet that the card is sending.
    request: ([u32; 4], Vec<u8>),
    tx: Lane,
    to_host: VecDeque<(f64, Request)>,
    /// Completions whose data comes from memory at that cycle.
    in_memory: VecDeque<(f64, Packet)>,
    rx: Lane,
    completions: Stream,
    registers: Stream,
    answer: Option<u32>,
    counts: Counts,
}

/// Packets on their way to one input of the card, and when they get there.
#[derive(Default)]
struct Stream {
    packets: VecDeque<(f64, Packet)>,
    /// Bytes of the first that are sent.
    sent: usize,
}

impl Stream {
    /// Puts the next beat on the pins.
    fn drive(&mut self, beat: &mut Beat, data_bytes: usize, now: f64) {
        beat.valid = 0;
        let Some((_, packet)) = self.packets.front().filter(|(at, _)| *at <= now) else { return };
        let left = &packet.data[self.sent..];
        let some = &left[..left.len().min(data_bytes)];
        beat.valid = 1;
        beat.sop = u8::from(self.sent == 0);
        beat.eop = u8::from(some.len() == left.len());
        beat.hdr = packet.hdr;
        for (word, bytes) in beat.data.iter_mut().zip(some.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }

    /// Moves on if the card took the beat; returns the packet that is complete with it.
    fn advance(&mut self, beat: &Beat, data_bytes: usize) -> Option<Packet> {
        if !beat.taken() {
            return None;
        }
        self.sent += data_bytes;
        if beat.eop == 0 {
            return None;
        }
        self.sent = 0;
        self.packets.pop_front().map(|(_, packet)| packet)
    }
}

impl<H: Host> Port<H> {
    /// A card out of reset, configured for payloads of 256 and reads of 512 bytes.
    pub fn new(model: Model, data_bytes: usize, timing: Timing, host: H) -> Self {
        let mut port = Self {
            host,
            model,
            pins: Pins::default(),
            data_bytes,
            mps: timing.mps as usize,
            cycle: 0,
            timing,
            credits: Credits::new(&timing),
            request: ([0; 4], Vec::new()),
            tx: Lane::new(&timing),
            to_host: VecDeque::new(),
            in_memory: VecDeque::new(),
            rx: Lane::new(&timing),
            completions: Stream::default(),
            registers: Stream::default(),
            answer: None,
            counts: Counts::default(),
        };
        port.pins.requester_id = 0x0100;
        port.pins.max_payload = (timing.mps / 128).trailing_zeros() as u8;
        port.pins.max_read_req = (timing.mrrs / 128).trailing_zeros() as u8;
        (port.pins.ext_tag, port.pins.bus_master, port.pins.msix_enable) = (1, 1, 1);
        for _ in 0..8 {
            port.cycle();
        }
        port.pins.rst_n = 1;
        port.cycle();
        port
    }

    /// Cycles since the card was plugged in.
    pub fn now(&self) -> u64 {
        self.cycle
    }

    /// Returns what has gone over it.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Sends the write of a register.
    pub fn write(&mut self, offset: u32, value: u32) {
        self.counts.register_writes += 1;
        self.send_register(tlp::register_write(offset, value));
    }

    /// Reads a register, clocking the card meanwhile; `None` if there is none at `offset`.
    pub fn read(&mut self, offset: u32) -> Option<u32> {
        const CYCLES_MAX: u32 = 100_000;
        self.answer = None;
        self.send_register(tlp::register_read(offset, 0));
        for _ in 0..CYCLES_MAX {
            self.cycle();
            if let Some(answer) = self.answer {
                return Some(answer);
            }
        }
        None
    }

    fn send_register(&mut self, packet: Packet) {
        let at = self.rx.send(self.cycle as f64, REQUEST_BYTES as usize + packet.data.len());
        self.registers.packets.push_back((at, packet));
    }

    /// Runs a cycle of the clock.
    pub fn cycle(&mut self) {
        let now = self.cycle as f64;
        self.drive(now);
        self.model.cycle(&mut self.pins);
        if let Some(packet) = self.completions.advance(&self.pins.cpl, self.data_bytes) {
            self.host.seen(Event::ReadAnswered, packet.addr, self.cycle);
        }
        if let Some(packet) = self.registers.advance(&self.pins.bar, self.data_bytes) {
            self.host.seen(Event::RegisterWritten, packet.addr, self.cycle);
        }
        if self.pins.bar_cpl.taken() {
            self.answer = Some(self.pins.bar_cpl.data[0]);
        }
        if self.pins.req.taken() {
            self.take_beat(now);
        }
        self.arrive(now);
        self.cycle += 1;
    }

    fn drive(&mut self, now: f64) {
        while self.in_memory.front().is_some_and(|(ready, _)| *ready <= now) {
            if let Some((_, packet)) = self.in_memory.pop_front() {
                let at = self.rx.send(now, COMPLETION_BYTES as usize + packet.data.len());
                self.completions.packets.push_back((at, packet));
            }
        }
        self.completions.drive(&mut self.pins.cpl, self.data_bytes, now);
        self.registers.drive(&mut self.pins.bar, self.data_bytes, now);
        self.pins.bar_cpl.ready = 1;
        self.pins.req.ready = u8::from(self.tx.has_room(now) && self.credits.suffice(now));
    }

    /// A beat of a request: the last one sends it on its way.
    fn take_beat(&mut self, now: f64) {
        let beat = &self.pins.req;
        if beat.sop != 0 {
            self.request.0 = beat.hdr;
            self.request.1.clear();
        }
        let words = beat.strb.trailing_ones() as usize;
        self.request.1.extend(beat.data[..words].iter().flat_map(|word| word.to_le_bytes()));
        if beat.eop == 0 {
            return;
        }
        let (hdr, payload) = &self.request;
        let request = match Request::parse(*hdr, payload) {
            Ok(request) if payload.len() <= self.mps && request.len <= self.timing.mrrs as usize => request,
            _ => {
                self.counts.malformed += 1;
                return;
            }
        };
        let (event, count) = match request.kind {
            Kind::Read { .. } => (Event::ReadSent, &mut self.counts.reads),
            Kind::Write(_) => (Event::WriteSent, &mut self.counts.writes),
        };
        *count += 1;
        self.credits.take(payload.len());
        let at = self.tx.send(now, REQUEST_BYTES as usize + payload.len());
        self.host.seen(event, request.addr, self.cycle);
        self.to_host.push_back((at, request));
    }

    /// Carries out what has reached the host by now.
    fn arrive(&mut self, now: f64) {
        while self.to_host.front().is_some_and(|(at, _)| *at <= now) {
            let Some((at, request)) = self.to_host.pop_front() else { return };
            match request.kind {
                Kind::Write(bytes) => {
                    self.credits.give_back(at, bytes.len());
                    self.counts.refused += u64::from(!self.host.write(request.addr, &bytes));
                    self.host.seen(Event::WriteArrived, request.addr, self.cycle);
                }
                Kind::Read { requester, tag } => {
                    self.credits.give_back(at, 0);
                    let mut bytes = vec![0; request.len];
                    let ready = at + self.timing.memory_cycles;
                    if self.host.read(request.addr, &mut bytes) {
                        let packets = tlp::completions(request.addr, &bytes, requester, tag, self.mps);
                        self.in_memory.extend(packets.into_iter().map(|packet| (ready, packet)));
                    } else {
                        self.counts.refused += 1;
                        let packet = tlp::unsupported(request.addr, request.len, requester, tag);
                        self.in_memory.push_back((ready, packet));
                    }
                }
            }
        }
    }
}
