//! Programs: bytes that encode actions of A, events, and actions of the others.
use super::*;

/// A byte string, taken piece by piece; zeros after its end.
pub(super) struct Program<'a>(pub(super) &'a [u8]);

impl Program<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }
    fn short(&mut self) -> u64 {
        u16::from_le_bytes(self.bytes()).into()
    }
    /// Returns a number near `value`, or any number.
    fn near(&mut self, value: u64) -> u64 {
        match self.byte() {
            0 => u64::from_le_bytes(self.bytes()),
            1 => u64::MAX,
            2 => 0,
            3 => value.wrapping_add(self.short()),
            delta => value.wrapping_add((delta as i8 as i64 - 4) as u64),
        }
    }
}

impl World {
    pub(super) fn apply(&mut self, program: &mut Program<'_>) {
        match program.byte() % 19 {
            0 => {
                let at = Self::somewhere(program);
                let value = program.near(0);
                self.parties[0].control.store_u64(at, value, Ordering::Relaxed);
            }
            1 => {
                let at = Self::somewhere(program) + 4 * usize::from(program.byte() % 2);
                let value = u32::from_le_bytes(program.bytes());
                self.parties[0].control.store_u32(at, value, Ordering::Relaxed);
            }
            2 => {
                let words: [[u8; 8]; 4] = std::array::from_fn(|_| program.bytes());
                let mut request = Request { operation: words[0][0], ..Request::default() };
                request.socket = u32::from_le_bytes([words[1][0], words[1][1], words[1][2], words[1][3]]);
                request.payload[..8].copy_from_slice(&words[2]);
                request.payload[8..].copy_from_slice(&words[3]);
                self.request(program, request);
            }
            3 | 4 => {
                let socket = Self::socket(program);
                let (region, offset) = ((program.byte() % 64 == 63).into(), program.short() / 4);
                let len = match program.byte() {
                    0 => program.near(SEND_REGION_BYTES as u64 - offset),
                    scale => program.short() / u64::from(scale),
                };
                self.request(program, Request::send(socket, Span { region, offset, len }));
            }
            5 => {
                let mut request = Request { operation: Self::operation(program), ..Request::default() };
                (request.socket, request.tag) = (Self::socket(program).0, program.byte().into());
                request.value = u32::from(program.byte()) % 4;
                self.request(program, request);
            }
            6 => {
                let channel = usize::from(program.byte()) % CHANNELS_OF_A;
                let value = program.near(self.published[channel]);
                self.publish(channel, value);
            }
            7 => {
                let delivered = self.parties[0].status_u64(FIRST, socket_status::RECV_PRODUCER);
                let value = program.near(delivered);
                self.write_line(socket_control::RECV_CONSUMER, value);
            }
            8 => self.write_line_word(program),
            9 => {
                let channel = usize::from(program.byte()) % CHANNELS_OF_A;
                let at = channel_offset(channel);
                let produced =
                    self.parties[0].status.load_u64(at + channel_status::EVENT_PRODUCER, Ordering::Acquire);
                let (word, value) = match program.byte() % 4 {
                    0 => (channel_control::EVENT_CONSUMER, program.near(produced)),
                    1 => (channel_control::EVENT_WAKE_AT, program.near(produced)),
                    2 => (channel_control::PIPE_WANTED, program.byte().into()),
                    _ => (channel_control::EVENT_CONSUMER, produced),
                };
                self.parties[0].control.store_u64(at + word, value, Ordering::Release);
            }
            10 | 11 => {
                for _ in 0..=program.byte() % 8 {
                    self.step();
                }
            }
            12 => {
                // Sees no news at first, and some after everything was armed: no sleep.
                let looks = Cell::new(0);
                for mover in self.movers() {
                    looks.set(0);
                    mover.idle(None, |_| {}, || looks.replace(looks.get() + 1) > 0);
                }
            }
            13 => {
                let (peer, line) = (program.byte() % 2, program.byte());
                self.send(peer.into(), line.into(), program.short() % SEND_BYTES_MAX + 1);
            }
            14 => {
                let (peer, line) = (program.byte() % 2, program.byte());
                self.receive(peer.into(), line.into(), program.short());
            }
            15 => {
                let nanos = program.short() << (program.byte() % 16);
                self.clock.0.fetch_add(nanos, Ordering::Relaxed);
                // Pretends that this number of flows share the memory for rings: from 1,024 on these are too large.
                let busy = u64::from(program.byte()) << 4;
                self.movers().into_iter().for_each(|mover| mover.pretend_busy(busy));
            }
            16 => self.rule(program),
            17 => {
                let (client, channels) = ([A, B, C][usize::from(program.byte()) % 3], program.byte());
                let channels: &[usize] = match channels % 4 {
                    0 if client == A => &[0],
                    1 if client == A => &[1],
                    _ if client == A => &[0, 1],
                    _ => &[0],
                };
                let to = MoverId::at(usize::from(program.byte()) % (1 + self.others.len()));
                // Nothing changes for a client that leaves, or while an engine copies.
                let _ = self.transfer(client, channels, to);
            }
            _ => {
                let byte = usize::from(program.byte());
                let channel = byte % CHANNELS_OF_A;
                if byte / CHANNELS_OF_A % 2 == 1 {
                    let (len, sends) = (program.short() / 4, u64::from(program.byte() % 8) + 1);
                    self.grow(channel, Request::send_word(len, sends));
                }
                self.parties[0].ring_doorbell(channel);
            }
        }
    }

    /// Returns an existing operation, or none of them.
    pub(super) fn operation(program: &mut Program<'_>) -> u8 {
        let at = usize::from(program.byte()) % (Operation::ALL.len() + 1);
        Operation::ALL.get(at).map_or(0, |&operation| operation as u8)
    }

    /// Returns an aligned offset in A's control region: in its channels, in the first lines, or any.
    fn somewhere(program: &mut Program<'_>) -> usize {
        let (choice, index) = (program.byte(), program.short() as usize);
        let at = match choice % 4 {
            0 => channel_offset(usize::from(choice >> 2) % CHANNELS_OF_A) + index % 0x180,
            1 => channel_offset(usize::from(choice >> 2) % CHANNELS_OF_A) + index,
            2 => socket_offset(0) + index % 0x100,
            _ => index << 7 | usize::from(choice),
        };
        at.min(REGION_BYTES - 8) & !7
    }

    fn socket(program: &mut Program<'_>) -> SocketId {
        match program.byte() {
            0 => SocketId(u32::from_le_bytes(program.bytes())),
            1 => SocketId::new(program.short() as u16, GENERATION),
            2 => SocketId::new(0, program.byte().into()),
            _ => SocketId::new(0, GENERATION),
        }
    }

    /// Writes a request at an honest client's position, and publishes it.
    fn request(&mut self, program: &mut Program<'_>, request: Request) {
        let channel = usize::from(program.byte()) % CHANNELS_OF_A;
        self.request_on(channel, request);
    }

    fn write_line_word(&mut self, program: &mut Program<'_>) {
        let party = &self.parties[0];
        let at = socket_offset(0);
        let (word, base) = match program.byte() % 6 {
            0 => (socket_control::RECV_WAKE_AT, party.status_u64(FIRST, socket_status::RECV_PRODUCER)),
            1 => (socket_control::SEND_WAKE_AT, party.status_u64(FIRST, socket_status::SEND_CONSUMER)),
            2 => (socket_control::SUBSCRIBED, 1),
            3 => (socket_control::EVENT_ACK, party.status_u32(FIRST, socket_status::EVENT_NUMBER).into()),
            _ => (socket_control::GENERATION, GENERATION.into()),
        };
        let value = program.near(base);
        if word < socket_control::SUBSCRIBED {
            party.control.store_u64(at + word, value, Ordering::Release);
        } else {
            party.control.store_u32(at + word, value as u32, Ordering::Release);
        }
    }

    /// Sends a message that the conductor may send at any time.
    fn rule(&mut self, program: &mut Program<'_>) {
        match program.byte() % 14 {
            0 => self.inbox.send(ToMover::SetSendRing { flow: A_TO_B, bytes: program.short() << 3 }),
            1 => self.inbox.send(ToMover::Home {
                client: A,
                slot: FIRST,
                channel: usize::from(program.byte()) % CHANNELS_OF_A,
            }),
            2 => self.inbox.send(ToMover::Backlog {
                client: A,
                slot: Slot::new(5),
                count: program.byte().into(),
            }),
            3 => self.inbox.send(ToMover::Ready { client: A, slot: FIRST }),
            4 => self.deny = program.byte() % 4,
            5 => std::mem::take(&mut self.denied).into_iter().for_each(|flow| self.grant(flow)),
            6 => {
                let flow = FlowId::new(u32::from(program.byte()) % 6);
                let permit = Permit::new(&self.parties[0].memory);
                self.inbox.send(ToMover::Space { flow, permit });
            }
            7 if !self.disconnected && !std::mem::replace(&mut self.closed, true) => self.end_sides(None),
            8 if program.byte() % 8 == 0 => self.disconnect(),
            9 => {
                let Ok((reader, pipe)) = pd_shm::wake::pair() else { return };
                let pipe = pd_shm::ringer::WakeEnd::new(pipe, None);
                self.pipe = Some(reader);
                self.inbox.send(ToMover::AddPipe { client: A, channel: 0, pipe: Some(pipe) });
            }
            10 => self.pipe = None,
            11 => {
                let payer = payer(TenantId::new(program.byte() as u16 % 3), 0);
                self.inbox.send(ToMover::SetPayer { client: A, payer });
            }
            12 => {
                let weight = u32::from(program.byte()) % WEIGHT_MAX + 1;
                self.inbox
                    .send(ToMover::SetWeight { tenant: TenantId::new(program.byte() as u16 % 3), weight });
            }
            _ => {}
        }
    }
}
