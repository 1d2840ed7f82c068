//! Attaching of an honest client, and its handling of the driver's frames.
use super::*;

impl Honest {
    pub(super) fn control(
        &mut self,
        now: Duration,
        driver: &SocketAddrUnix,
        number: u64,
        book: &mut Book,
    ) -> u64 {
        match self.phase.clone() {
            Phase::Away { .. } => match self.connect(driver, number) {
                Ok(socket) => {
                    self.link = Some(Link::new(socket));
                    self.phase = Phase::Asking(Box::new(Frame::new(FrameKind::Hello)), now);
                    1
                }
                Err(_) => {
                    self.phase =
                        Phase::Away { until: now + Duration::from_millis(self.random.between(1, 50)) };
                    2
                }
            },
            Phase::Asking(frame, until) => {
                if now >= until {
                    if self.link.as_ref().is_some_and(|link| link.send(&frame).is_err()) {
                        self.hung_up(now, book);
                        return 3;
                    }
                    self.phase = Phase::Waiting(frame);
                    return 4;
                }
                self.read_frame(now, book)
            }
            Phase::Waiting(_) => self.read_frame(now, book),
            Phase::Up => {
                if self.link.as_ref().is_some_and(Link::has_news) {
                    return self.read_frame(now, book);
                }
                if self.close_one(book) {
                    return 5;
                }
                if self.nudge() {
                    return 6;
                }
                if let Some(trace) = self.twin_chore(now, book) {
                    return trace;
                }
                self.wish(book)
            }
            Phase::Gone => 0,
        }
    }

    pub(super) fn connect(
        &self,
        driver: &SocketAddrUnix,
        number: u64,
    ) -> rustix::io::Result<std::os::fd::OwnedFd> {
        crate::simulation::kernel::with(|kernel| kernel.enter(number, self.person.clone()));
        dial(driver, number)
    }

    pub(super) fn read_frame(&mut self, now: Duration, book: &mut Book) -> u64 {
        let Some(link) = &mut self.link else { return 0 };
        let frame = match link.receive() {
            Came::Nothing => return 10,
            Came::End => {
                self.hung_up(now, book);
                return 11;
            }
            Came::Frame(frame) => frame,
        };
        let kind = frame.checked_kind().expect("a frame of the driver's");
        match kind {
            FrameKind::ReceiveRegion => return 12,
            FrameKind::Goodbye => {
                panic!("honest client {} is cut off: {}", self.index, frame.reason())
            }
            _ => {}
        }
        let Phase::Waiting(asked) = self.phase.clone() else {
            if self.ring_answered(kind, &frame) {
                return 17;
            }
            // A client that is refused learns so before it asks.
            assert_eq!(kind, FrameKind::Error, "client {} has not asked", self.index);
            return 13;
        };
        if kind == FrameKind::Error && asked.checked_kind() == Some(FrameKind::FileSocket) {
            // Files are copied instead.
            self.phase = Phase::Up;
            return 16;
        }
        if kind == FrameKind::Error {
            let later = now + Duration::from_millis(self.random.between(1, 40));
            let is_region = asked.checked_kind() == Some(FrameKind::Mapped);
            let asked = match is_region {
                true => {
                    // The region no longer exists.
                    link.send.clear();
                    Box::new(Frame::new(FrameKind::SendRegion).with_bytes(AREA * AREAS as u64, 0))
                }
                false => asked,
            };
            self.phase = Phase::Asking(asked, later);
            return 14;
        }
        let next = match (asked.checked_kind(), kind) {
            (Some(FrameKind::Hello), FrameKind::Welcome) => {
                Some(Frame::new(FrameKind::Mapped).with_id(Frame::REGION_CONTROL))
            }
            (Some(FrameKind::Mapped), FrameKind::Ready) if frame.id == Frame::REGION_CONTROL => {
                Some(Frame::new(FrameKind::Channel))
            }
            (Some(FrameKind::Channel), FrameKind::Channel) => {
                self.events.push(Wait::Awake);
                let wake_pipe = || Frame::new(FrameKind::WakePipe).with_id(frame.id);
                Some(if self.has_pipes { wake_pipe() } else { self.next_of_channels() })
            }
            (Some(FrameKind::WakePipe), FrameKind::WakePipe) => Some(self.next_of_channels()),
            (Some(FrameKind::SendRegion), FrameKind::SendRegion) => {
                Some(Frame::new(FrameKind::Mapped).with_id(frame.id))
            }
            (Some(FrameKind::Mapped), FrameKind::Ready) if self.has_files => {
                Some(Frame::new(FrameKind::FileSocket))
            }
            (Some(FrameKind::Mapped), FrameKind::Ready)
            | (Some(FrameKind::FileSocket), FrameKind::FileSocket) => None,
            other => panic!("client {}: {other:?}", self.index),
        };
        self.phase = next.map_or(Phase::Up, |frame| Phase::Asking(Box::new(frame), now));
        15
    }

    /// Returns the next request of a client that has a channel.
    pub(super) fn next_of_channels(&self) -> Frame {
        match self.events.len() < self.channels {
            true => Frame::new(FrameKind::Channel),
            false => Frame::new(FrameKind::SendRegion).with_bytes(AREA * AREAS as u64, 0),
        }
    }
}
