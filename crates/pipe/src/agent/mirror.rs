//! Mirrors: ports whose pipes receive copies of another port's frames.
//!
//! A copy is kept until the end of the turn, and then goes to a pipe of the mirror as a frame of any port does. Copies hold nothing
//! up: a copy without room is lost and counted. Frames are copied on delivery. A mirror thus shows the frames that its port's pipes
//! and the outside have seen.
use super::groups::Choice;
use super::Agent;
use rustix::io::{Errno, Result};
use std::ops::Range;

/// Most mirrors of an agent. Each frame is compared with each of them.
const MIRRORS_MAX: usize = 16;
/// Most bytes of copies that are kept in a turn.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Mirrors, and copies of this turn.
#[derive(Debug, Default)]
pub(super) struct Mirrors {
    /// The port that is copied, its mirror, and the number of this turn's lost copies.
    mirrors: Vec<(usize, usize, u64)>,
    bytes: Vec<u8>,
    frames: Vec<(usize, Range<usize>)>,
}

impl Mirrors {
    #[inline]
    pub(super) fn are_there(&self) -> bool {
        !self.mirrors.is_empty()
    }

    /// Returns whether a port has a mirror.
    pub(super) fn are_of(&self, port: usize) -> bool {
        self.mirrors.iter().any(|(of, ..)| *of == port)
    }

    /// Returns an error if there are [`MIRRORS_MAX`] already.
    pub(super) fn check(&self) -> Result<()> {
        if self.mirrors.len() < MIRRORS_MAX {
            Ok(())
        } else {
            Err(Errno::MFILE)
        }
    }

    pub(super) fn add(&mut self, of: usize, mirror: usize) {
        self.mirrors.push((of, mirror, 0));
    }

    /// Removes ports that have gone. Returns the ports that mirrors among them have copied.
    pub(super) fn remove(&mut self, gone: &[usize]) -> Vec<usize> {
        let copied = self.mirrors.iter().filter(|(_, mirror, _)| gone.contains(mirror)).map(|(of, ..)| *of);
        let copied = copied.collect();
        self.mirrors.retain(|(of, mirror, _)| !gone.contains(of) && !gone.contains(mirror));
        self.frames.retain(|(mirror, _)| !gone.contains(mirror));
        copied
    }

    /// Copies a frame that went through `port`, for its mirrors.
    #[inline]
    pub(super) fn see(&mut self, port: usize, frame: &[u8]) {
        if !self.mirrors.is_empty() {
            self.copy(port, frame);
        }
    }

    #[cold]
    fn copy(&mut self, port: usize, frame: &[u8]) {
        let Self { mirrors, bytes, frames } = self;
        for (_, mirror, lost) in mirrors.iter_mut().filter(|(of, ..)| *of == port) {
            if bytes.len() + frame.len() > KEPT_BYTES_MAX {
                *lost += 1;
                continue;
            }
            frames.push((*mirror, bytes.len()..bytes.len() + frame.len()));
            bytes.extend_from_slice(frame);
        }
    }
}

impl Agent {
    /// Delivers the copies of this turn to pipes of mirrors.
    pub(super) fn mirror(&mut self) {
        if !self.mirrors.are_there() {
            return;
        }
        for (_, mirror, lost) in &mut self.mirrors.mirrors {
            self.ports[*mirror].lose(std::mem::take(lost));
        }
        let Mirrors { bytes, frames, .. } = &mut self.mirrors;
        let mut broken = Vec::new();
        for (mirror, range) in frames.drain(..) {
            let (port, frame) = (&mut self.ports[mirror], &bytes[range]);
            match port.choose(|| frame) {
                Choice::Wait => {}
                Choice::Nobody => port.drop_unbound(),
                Choice::Pipe(receiver) => {
                    let Some(slot) = &mut self.pipes[receiver] else { continue };
                    self.due.add(receiver, slot);
                    match slot.append(frame, true, &mut self.shares) {
                        Ok(true) => {
                            slot.received(frame.len());
                            port.count_received(frame.len());
                        }
                        appended => {
                            slot.counts.frames_lost += 1;
                            port.lose(1);
                            broken.extend(appended.err().map(|violation| (receiver, violation)));
                        }
                    }
                }
            }
        }
        bytes.clear();
        broken.into_iter().for_each(|(receiver, violation)| self.cut_off(receiver, violation));
    }
}
