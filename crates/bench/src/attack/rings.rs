//! Attacks through the memory that a client shares with the driver: doorbells, requests, and events that it never reads.

use std::convert::Infallible;

use anyhow::Result;
use pd_abi::limits::MESSAGE_BYTES_MAX;
use pd_abi::pipe::{PipeDirection, PipeRequest, PipeUnit};
use pd_abi::{Frame, FrameKind, Operation, Request, SocketId, Span};
use pd_raw::Raw;

use super::rows::{attached, flood, new_socket, BATCH, CHANNELS};
use super::{Scene, PORT};

/// The ring of a pipe that is asked for in a loop.
const PIPE_BYTES: u64 = 1 << 20;

/// Rings the doorbells of all channels of a client, of which none has a request.
pub(super) fn doorbells(scene: &Scene) -> Result<Infallible> {
    let mut raw = attached(scene);
    (1..CHANNELS).for_each(|_| {
        raw.add_channel();
    });
    scene.begin();
    loop {
        (0..raw.channels.len()).for_each(|channel| raw.ring(channel));
        scene.tally.tried(true);
    }
}

/// Opens and closes sockets, which the conductor does.
pub(super) fn requests(scene: &Scene) -> Result<Infallible> {
    let mut raw = attached(scene);
    scene.begin();
    loop {
        let sockets = flood(&mut raw, &[new_socket(); BATCH]);
        for (errno, socket) in sockets {
            scene.tally.tried(errno == 0);
            if errno == 0 {
                raw.post(0, &Request::new(Operation::Close, socket, 0));
            }
        }
    }
}

/// Sends nothing, and more than a message may have, in turn. Each ends the client.
pub(super) fn impossible_sends(scene: &Scene) -> Result<Infallible> {
    scene.begin();
    for len in [0, MESSAGE_BYTES_MAX + 1].into_iter().cycle() {
        let mut raw = attached(scene);
        let (_, socket) = flood(&mut raw, &[new_socket()])[0];
        raw.post(0, &Request::several_sends(socket, Span { region: 0, offset: 0, len }, 1));
        raw.wait_cut_off();
        scene.tally.tried(false);
    }
    unreachable!("the lengths repeat")
}

/// Asks on and on without reading an answer, until it is cut off for the events that wait.
pub(super) fn unread(scene: &Scene) -> Result<Infallible> {
    scene.begin();
    // Refused, for there is no such socket.
    let question = Request::new(Operation::Listen, SocketId(0), 0);
    loop {
        let mut raw = attached(scene);
        while raw.post_unless_cut_off(0, &question) {
            scene.tally.tried(true);
        }
        scene.tally.tried(false);
    }
}

/// Opens and closes pipes of the port that the benchmark has added.
pub(super) fn pipes(scene: &Scene) -> Result<Infallible> {
    let Some(request) = PipeRequest::new(PipeDirection::Receive, PipeUnit::Frames, PORT) else {
        anyhow::bail!("the port's name is too long");
    };
    let wish = Frame::new(FrameKind::Pipe).with_bytes(PIPE_BYTES, 0).with_pipe_request(&request);
    let mut raw = attached(scene);
    anyhow::ensure!(open_pipe(&mut raw, &wish), "no pipe can be opened");
    scene.begin();
    loop {
        let opened = open_pipe(&mut raw, &wish);
        scene.tally.tried(opened);
    }
}

fn open_pipe(raw: &mut Raw, wish: &Frame) -> bool {
    let Ok((pipe, _)) = raw.ask(wish, FrameKind::Pipe) else { return false };
    let mapped = Frame::new(FrameKind::PipeMapped).with_id(pipe.id);
    let is_ready = raw.ask(&mapped, FrameKind::Ready).is_ok();
    let close = Frame::new(FrameKind::PipeClose).with_id(pipe.id);
    is_ready && pd_raw::send(&raw.socket, &close).is_ok()
}
