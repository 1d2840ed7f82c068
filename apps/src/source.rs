//! Sources of an application's frames.
use pd_pipe::packetised::{Packets, Rings};
use pd_pipe::Pipe;
use rustix::io::{Errno, Result};

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Back to the port that the frame came from.
    Back,
    /// Sends the frame's first bytes back to that port.
    Cut(usize),
    /// To a port of the pipe, by its number there. The packetised twin has one port.
    To(u16),
    /// Nowhere.
    Drop,
    /// Nowhere; [`App::answer`] is sent in its place: an answer longer than its frame.
    Answer,
}

/// An application.
pub trait App {
    /// Returns the verdict on `frame`, which may be changed in place.
    fn process(&mut self, frame: &mut [u8]) -> Verdict;

    /// Returns the frame to send for [`Verdict::Answer`], valid until the next [`Self::process`].
    fn answer(&self) -> &[u8] {
        &[]
    }
}

/// Hands all frames announced on a forwarding pipe to `app`. Answers are sent by the sending pipe `answers`, and lost where that is full or
/// missing. Returns how many frames there were.
///
/// # Errors
/// The pipe's error once it has ended.
#[inline]
pub fn over_pipe(pipe: &mut Pipe, mut answers: Option<&mut Pipe>, app: &mut impl App) -> Result<usize> {
    let mut frames = match pipe.frames() {
        Ok(frames) => frames,
        Err(Errno::AGAIN) => return Ok(0),
        Err(errno) => return Err(errno),
    };
    let mut count = 0;
    while let Some(mut frame) = frames.next() {
        count += 1;
        let Some(bytes) = frame.bytes_mut() else { return Err(Errno::OPNOTSUPP) };
        match app.process(bytes) {
            Verdict::Back => {}
            Verdict::Cut(length) => frame.truncate(length),
            Verdict::To(port) => frame.verdict(port),
            Verdict::Drop => frame.verdict(pd_client::pipe::DROP),
            Verdict::Answer => {
                frame.verdict(pd_client::pipe::DROP);
                if let Some(answers) = &mut answers {
                    // Full: lost, as any datagram may be.
                    let _ = answers.send(app.answer(), pd_client::pipe::BACK);
                }
            }
        }
    }
    drop(frames);
    if let Some(answers) = answers {
        answers.flush();
    }
    Ok(count)
}

/// Hands a burst of frames of the packetised interface to `app`. Returns how many there were.
#[inline]
pub fn over_packets(packets: &mut Packets<impl Rings>, app: &mut impl App) -> usize {
    packets.turn(|room, length| match app.process(&mut room[..length]) {
        Verdict::Back | Verdict::To(_) => Some(length),
        Verdict::Cut(cut) => Some(cut.min(length)),
        Verdict::Drop => None,
        Verdict::Answer => {
            // A buffer has room behind the frame.
            let answer = app.answer();
            room.get_mut(..answer.len())?.copy_from_slice(answer);
            Some(answer.len())
        }
    })
}
