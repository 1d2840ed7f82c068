//! `kv`: a key-value store as MICA (Lim et al., NSDI 2014), over frames of UDP.
//!
//! A store has partitions, each of one thread, which alone reads and writes it (EREW). A partition has a port of UDP: clients choose it by
//! [`partition_of`]. Requests are of the store's own [`protocol`], or memcached's meta commands ([`memcached`]) at a port of their own.
//!
//! Answers have no checksum of UDP, and that of a request is not looked at: frames do not leave memory.
pub mod client;
pub mod memcached;
pub mod protocol;
pub mod store;

use crate::frame::{self, update, Parts, ETHERNET, UDP, UDP_PAYLOAD};
use crate::{App, Verdict};
use memcached::ANSWER_BYTES_MAX;
use pd_maglev::mix;
use protocol::{Op, Request, Status, HEADER};
use store::{Set, Store};

/// Port of UDP of partition 0 for the store's own protocol; the others follow.
pub const PORT: u16 = 9800;
/// First port of memcached's protocol.
pub const MEMCACHED_PORT: u16 = 11_211;
/// Most partitions.
pub const PARTITIONS_MAX: usize = 64;

/// Returns the partition, of `count`, that has a key.
#[inline]
pub fn partition_of(key: &[u8], count: usize) -> usize {
    if count == 1 {
        return 0;
    }
    let word = |bytes: &[u8]| bytes.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    let hash = key.chunks(8).fold(key.len() as u64, |hash, chunk| mix(hash ^ word(chunk)));
    ((u128::from(hash) * count as u128) >> 64) as usize
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests served.
    pub served: u64,
    /// Frames that are no request, dropped.
    pub foreign: u64,
}

/// A partition.
#[derive(Debug)]
pub struct Kv {
    store: Store,
    partition: usize,
    partitions: usize,
    /// An answer that is longer than its request's frame.
    answer: Box<[u8; UDP_PAYLOAD + ANSWER_BYTES_MAX]>,
    answer_len: usize,
    counts: Counts,
}

impl Kv {
    /// Makes partition `partition` of `partitions`, with its store.
    pub fn new(store: Store, partition: usize, partitions: usize) -> Self {
        let answer = Box::new([0; UDP_PAYLOAD + ANSWER_BYTES_MAX]);
        Self { store, partition, partitions, answer, answer_len: 0, counts: Counts::default() }
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Counters so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Serves a payload of the store's own protocol, and writes the answer there. Returns the answer's length.
    #[inline]
    fn serve(&mut self, payload: &mut [u8]) -> Option<usize> {
        let request = Request::parse(payload)?;
        let (mut status, mut length, op, key_len) = (Status::Done, 0, request.op, request.key.len());
        if partition_of(request.key, self.partitions) != self.partition {
            status = Status::Elsewhere;
        } else {
            match op {
                Op::Set if self.store.set(request.key, request.value) == Set::TooLong => {
                    status = Status::TooLong
                }
                Op::Set => {}
                Op::Delete => {
                    if !self.store.delete(request.key) {
                        status = Status::Missing;
                    }
                }
                Op::Get => {}
            }
        }
        if op == Op::Get && status == Status::Done {
            match self.store.get(&payload[HEADER..HEADER + key_len]) {
                None => status = Status::Missing,
                Some(value) => {
                    length = value.len();
                    match payload.get_mut(HEADER..HEADER + length) {
                        Some(place) => place.copy_from_slice(value),
                        None => status = Status::NoRoom,
                    }
                }
            }
        }
        protocol::answer(payload, status, length);
        Some(HEADER + if status == Status::Done { length } else { 0 })
    }

    #[inline]
    fn respond(&mut self, frame: &mut [u8]) -> Option<Verdict> {
        let parts = Parts::of(frame)?;
        let port =
            parts.ports.filter(|_| parts.protocol == UDP && parts.transport == ETHERNET + frame::IPV4)?
                as u16;
        let length = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
        if length < 8 || parts.transport + length > parts.end {
            return None;
        }
        let end = parts.transport + length;
        if port == MEMCACHED_PORT + self.partition as u16 {
            let (partition, partitions) = (self.partition, self.partitions);
            let to = self.answer[UDP_PAYLOAD..].first_chunk_mut()?;
            let owns = |key: &[u8]| partition_of(key, partitions) == partition;
            let length = memcached::serve(&mut self.store, &frame[UDP_PAYLOAD..end], owns, to)?;
            self.answer_len = UDP_PAYLOAD + length;
            self.answer[..UDP_PAYLOAD].copy_from_slice(&frame[..UDP_PAYLOAD]);
            turn_round(&mut self.answer[..], length);
            if self.answer_len > frame.len() {
                return Some(Verdict::Answer);
            }
            frame[..self.answer_len].copy_from_slice(&self.answer[..self.answer_len]);
            return Some(Verdict::Cut(self.answer_len));
        }
        if port != PORT + self.partition as u16 {
            return None;
        }
        let length = self.serve(&mut frame[UDP_PAYLOAD..end])?;
        turn_round(frame, length);
        Some(Verdict::Cut(UDP_PAYLOAD + length))
    }
}

/// Makes the headers of a request those of an answer with `payload` bytes.
#[inline]
fn turn_round(frame: &mut [u8], payload: usize) {
    let Some(head) = frame.first_chunk_mut::<UDP_PAYLOAD>() else { return };
    head[..12].rotate_left(6);
    head[26..34].rotate_left(4);
    head[34..38].rotate_left(2);
    let old = u16::from_be_bytes([head[16], head[17]]);
    let new = (frame::IPV4 + 8 + payload) as u16;
    head[16..18].copy_from_slice(&new.to_be_bytes());
    head[38..40].copy_from_slice(&((8 + payload) as u16).to_be_bytes());
    head[40..42].fill(0);
    update(head, ETHERNET + 10, frame::difference(old.into(), new.into()));
}

impl App for Kv {
    #[inline]
    fn process(&mut self, frame: &mut [u8]) -> Verdict {
        match self.respond(frame) {
            Some(verdict) => {
                self.counts.served += 1;
                verdict
            }
            None => {
                self.counts.foreign += 1;
                Verdict::Drop
            }
        }
    }

    fn answer(&self) -> &[u8] {
        &self.answer[..self.answer_len]
    }
}

#[cfg(test)]
mod tests {
    use super::client::Client;
    use super::*;
    use crate::frame::{is_sound, udp, Ends};
    use proptest::prelude::*;
    use std::net::UdpSocket;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    fn ends(port: u16) -> Ends {
        Ends { macs: [[2; 6], [4; 6]], addresses: [[10, 0, 0, 1], [10, 0, 0, 2]], ports: [5000, port] }
    }

    fn partitions(count: usize) -> Vec<Kv> {
        (0..count).map(|partition| Kv::new(Store::new(1 << 20, 1 << 12, 5), partition, count)).collect()
    }

    /// Sends a frame to the partition that its port names, as the pipes' flows do. Returns the answer.
    fn exchange(partitions: &mut [Kv], mut frame: Vec<u8>) -> Option<Vec<u8>> {
        let port = Parts::of(&frame)?.ports? as u16;
        let base = if port >= MEMCACHED_PORT { MEMCACHED_PORT } else { PORT };
        let app = &mut partitions[usize::from(port - base)];
        let answer = match app.process(&mut frame) {
            Verdict::Cut(length) => frame[..length].to_vec(),
            Verdict::Answer => app.answer().to_vec(),
            Verdict::Drop => return None,
            other => panic!("{other:?}"),
        };
        assert!(is_sound(&answer));
        Some(answer)
    }

    #[test]
    fn a_client_finds_what_it_has_set_in_every_partition() {
        let (mut apps, mut client) = (partitions(4), Client::new(ends(0), 4));
        let mut ask = |apps: &mut [Kv], op, key: &[u8], value: &[u8], room| {
            let frame = client.request(op, key, value, room);
            let answer = exchange(apps, frame).unwrap();
            let answer = client.answer(&answer).unwrap();
            (answer.status, answer.value.to_vec())
        };
        for number in 0..2000u32 {
            let (key, value) = (number.to_string(), vec![number as u8; (number % 300) as usize]);
            let key = key.as_bytes();
            assert_eq!(ask(&mut apps, Op::Get, key, b"", 300), (Status::Missing, vec![]));
            assert_eq!(ask(&mut apps, Op::Set, key, &value, 0), (Status::Done, vec![]));
            assert_eq!(ask(&mut apps, Op::Get, key, b"", 300), (Status::Done, value));
            if number % 3 == 0 {
                assert_eq!(ask(&mut apps, Op::Delete, key, b"", 0).0, Status::Done);
                assert_eq!(ask(&mut apps, Op::Delete, key, b"", 0).0, Status::Missing);
            }
        }
        assert_eq!(ask(&mut apps, Op::Get, b"299", b"", 298), (Status::NoRoom, vec![]));
        assert_eq!(ask(&mut apps, Op::Set, b"1", &[0; 1025], 0).0, Status::TooLong);
        assert_eq!(ask(&mut apps, Op::Set, b"", b"x", 0).0, Status::TooLong);
        assert!(apps.iter().all(|app| app.counts().served > 1000), "keys are spread");
    }

    #[test]
    fn a_key_of_another_partition_is_neither_read_nor_written() {
        let mut apps = partitions(2);
        let key = (0..).map(|n: u32| n.to_be_bytes()).find(|key| partition_of(key, 2) == 1).unwrap();
        let mut payload = Vec::new();
        Request { op: Op::Set, number: 1, key: &key, value: b"x" }.write(0, &mut payload);
        let answer = exchange(&mut apps, udp(&ends(PORT), &payload, 0)).unwrap();
        let (_, _, status, _) = protocol::parse_answer(&answer[UDP_PAYLOAD..]).unwrap();
        assert_eq!(status, Status::Elsewhere);
        assert_eq!(apps[0].store().counts().appended, 0);
    }

    /// Sends a datagram of memcached's protocol, and returns the text of the answer.
    fn meta(apps: &mut [Kv], text: &str) -> Option<String> {
        let payload = [&[7, 8, 0, 0, 0, 1, 0, 0], text.as_bytes()].concat();
        let answer = exchange(apps, udp(&ends(MEMCACHED_PORT), &payload, 0))?;
        let end = UDP_PAYLOAD - 8 + usize::from(u16::from_be_bytes([answer[38], answer[39]]));
        assert_eq!(answer[UDP_PAYLOAD..UDP_PAYLOAD + 8], payload[..8]);
        Some(String::from_utf8_lossy(&answer[UDP_PAYLOAD + 8..end]).into_owned())
    }

    fn conversation() -> Vec<String> {
        let long = "v".repeat(1000);
        let mut texts: Vec<String> = [
            "mn\r\n",
            "mg a v\r\n",
            "mg a v q\r\n",
            "ms a 3\r\nxyz\r\n",
            "mg a v\r\n",
            "mg a\r\n",
            "mg a s v k Oab\r\n",
            "mg a k s\r\n",
            "ms a 1 T0 F0 k O7\r\ny\r\n",
            "mg a v\r\n",
            "ms q 2 q\r\nzz\r\n",
            "mg q v q\r\n",
            "md a O1 k\r\n",
            "md a\r\n",
            "mg a v\r\n",
            "md q q\r\n",
            "md q\r\n",
            "ms e 0\r\n\r\n",
            "mg e v s\r\n",
        ]
        .map(str::to_owned)
        .into();
        texts.push(format!("ms long 1000\r\n{long}\r\n"));
        texts.push("mg long s v\r\n".to_owned());
        texts
    }

    #[test]
    fn meta_commands_are_answered_as_memcached_answers_them() {
        let found = Command::new("memcached").arg("-V").stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            println!("SKIPPED: memcached is not installed");
            return;
        }
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Command::new("memcached")
            .args(["-l", "127.0.0.1", "-p", "0", "-t", "1", "-u", "nobody", "-U", &port.to_string()])
            .spawn()
            .unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut buffer = [0; 2000];
        let mut theirs = |text: &str, tries| {
            let payload = [&[7, 8, 0, 0, 0, 1, 0, 0], text.as_bytes()].concat();
            for _ in 0..tries {
                let _ = socket.send(&payload);
                if let Ok(length) = socket.recv(&mut buffer) {
                    return Some(String::from_utf8_lossy(&buffer[8..length]).into_owned());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            None
        };
        let until = Instant::now() + Duration::from_secs(10);
        while theirs("mn\r\n", 1).is_none() {
            assert!(Instant::now() < until, "memcached does not answer");
        }
        let mut apps = partitions(1);
        let pairs: Vec<_> = conversation()
            .iter()
            .map(|text| (text.clone(), meta(&mut apps, text), theirs(text, 1)))
            .collect();
        let _ = server.kill();
        let _ = server.wait();
        for (text, ours, theirs) in pairs {
            // A datagram without an answer: memcached sends an empty one, or none.
            assert_eq!(ours.unwrap_or_default(), theirs.unwrap_or_default(), "{text:?}");
        }
    }

    #[test]
    fn meta_commands_that_are_wrong_get_errors_and_change_nothing() {
        let mut apps = partitions(1);
        for text in [
            "mg\r\n",
            "mg  \r\n",
            "ms a\r\nx\r\n",
            "ms a x\r\nx\r\n",
            "mg a v",
            "mg a\u{1}b v\r\n",
            "mg a x\r\n",
            "ms a 5\r\nxyz\r\n",
            "ms a 1 T60\r\nx\r\n",
            "get a\r\n",
            "\r\n",
            "a b c d e f g h i j k l m n\r\n",
            "ms a 99999999999999\r\n",
            "ms a 1025\r\nx\r\n",
            "ms a -1\r\nx\r\n",
        ] {
            let answer = meta(&mut apps, text).unwrap();
            assert!(answer.contains("ERROR"), "{text:?}: {answer:?}");
        }
        let key = "k".repeat(251);
        assert!(meta(&mut apps, &format!("mg {key} v\r\n")).unwrap().contains("ERROR"));
        assert_eq!(apps[0].store().counts().appended, 0);
        // Several commands of one datagram have one answer, which has a bound.
        assert_eq!(meta(&mut apps, "mg b q\r\nms c 1\r\nx\r\nmn\r\n").as_deref(), Some("HD\r\nMN\r\n"));
        meta(&mut apps, &format!("ms a 1024\r\n{}\r\n", "x".repeat(1024))).unwrap();
        assert!(meta(&mut apps, "mg a v\r\nmg a v\r\n").unwrap().starts_with("SERVER_ERROR"));
    }

    /// Serves a hostile frame. Answers are valid, and in the own protocol no longer than the frame.
    fn hostile(apps: &mut [Kv], frame: &[u8]) {
        let mut copy = frame.to_vec();
        match apps[0].process(&mut copy) {
            Verdict::Cut(length) => assert!(length <= frame.len() && length >= UDP_PAYLOAD),
            Verdict::Answer => assert!(
                apps[0].answer().len() <= UDP_PAYLOAD + ANSWER_BYTES_MAX && is_sound(apps[0].answer())
            ),
            verdict => assert_eq!((verdict, &copy[..]), (Verdict::Drop, frame)),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn hostile_frames_are_answered_within_bounds_or_dropped(
            mut frame in prop::collection::vec(any::<u8>(), 0..200),
            shape in 0u8..5,
            op in any::<u8>(),
        ) {
            let mut apps = partitions(1);
            if shape > 0 && frame.len() >= UDP_PAYLOAD {
                let port = if shape < 3 { PORT } else { MEMCACHED_PORT };
                let payload = frame.len() - UDP_PAYLOAD;
                let lengths = (frame[16], frame[38], frame[39]);
                frame::write_udp(&mut frame, &ends(port), payload);
                if shape % 2 == 0 {
                    (frame[17], frame[38], frame[39]) = lengths;
                }
                if shape < 3 && payload > 8 {
                    frame[UDP_PAYLOAD..UDP_PAYLOAD + 3].copy_from_slice(&[protocol::MAGIC, op % 5, 0]);
                    frame[UDP_PAYLOAD + 6..UDP_PAYLOAD + 8].fill(0);
                } else if payload > 16 {
                    let start: &[u8; 16] = match op % 4 {
                        0 => b"\0\0\0\0\0\x01\0\0mg a v\r\n",
                        1 => b"\0\0\0\0\0\x01\0\0ms a 9\r\n",
                        2 => b"\0\0\0\0\0\x01\0\0md a q\r\n",
                        _ => b"\0\0\0\0\0\x01\0\0ms a 1 q",
                    };
                    frame[UDP_PAYLOAD..UDP_PAYLOAD + 16].copy_from_slice(start);
                }
            }
            hostile(&mut apps, &frame);
            hostile(&mut apps, &frame);
        }

        #[test]
        fn a_request_is_read_as_it_was_written(key in prop::collection::vec(any::<u8>(), 0..250), value in prop::collection::vec(any::<u8>(), 0..500), room in 0usize..300) {
            let request = Request { op: Op::Set, number: 77, key: &key, value: &value };
            let mut payload = Vec::new();
            request.write(room, &mut payload);
            prop_assert_eq!(Request::parse(&payload), Some(request));
            prop_assert!(payload.len() >= HEADER + room);
        }
    }
}
