//! The attacks by traffic over kernel TCP, beside a victim over kernel TCP: what the machine and its kernel alone make of them.

use std::convert::Infallible;
use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result};
use pd_harness::digest::rewrite;
use pd_harness::processor::xxh3;
use rustix::fs::{fadvise, sendfile, Advice};

use super::crowd::{receive, send, BULK_BYTES, FILE_BYTES, RECV_BYTES};
use super::Scene;

/// A sending end, and the bytes of its message that are still to be sent.
type Sender = (TcpStream, usize);

fn connect(scene: &Scene) -> Result<(Vec<Sender>, Vec<TcpStream>)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
    let to = listener.local_addr()?;
    let pair = |_| -> Result<(Sender, TcpStream)> {
        let (from, to) = (TcpStream::connect(to)?, listener.accept()?.0);
        from.set_nonblocking(true)?;
        to.set_nonblocking(true)?;
        Ok(((from, 0), to))
    };
    Ok((0..scene.attack.connections).map(pair).collect::<Result<Vec<_>>>()?.into_iter().unzip())
}

/// Sends in bulk. Both ends process each byte, as `crowd::bulk` does.
pub(super) fn bulk(scene: &Scene) -> Result<Infallible> {
    let (senders, receivers) = connect(scene)?;
    let mut buffer = vec![0; RECV_BYTES];
    receive(scene, receivers, move |stream| {
        take(stream, &mut buffer, |bytes| {
            black_box(xxh3(bytes));
        })
    });
    let mut messages = vec![vec![0; BULK_BYTES]; senders.len()];
    let mut number = 0;
    send(scene, senders, |at, (stream, left)| {
        let message = &mut messages[at];
        if *left == 0 {
            rewrite(message, number);
            black_box(xxh3(message));
            (*left, number) = (BULK_BYTES, number + 1);
        }
        let sent = stream.write(&message[BULK_BYTES - *left..]).unwrap_or(0);
        *left -= sent;
        sent > 0 && *left == 0
    })
}

/// Pieces of `file`, which is dropped from the page cache after each pass.
pub(super) fn files(scene: &Scene, file: &File) -> Result<Infallible> {
    let (senders, receivers) = connect(scene)?;
    let mut buffer = vec![0; RECV_BYTES];
    receive(scene, receivers, move |stream| take(stream, &mut buffer, |_| {}));
    let bytes = file.metadata()?.len();
    let mut offset = 0;
    send(scene, senders, |_, (stream, _)| {
        if offset >= bytes {
            offset = 0;
            let _ = fadvise(file, 0, None, Advice::DontNeed);
        }
        sendfile(stream, file, Some(&mut offset), FILE_BYTES as usize).is_ok_and(|sent| sent > 0)
    })
}

/// Receives what comes of a connection, and gives it to `look`. Returns the number of bytes.
fn take(stream: &mut TcpStream, buffer: &mut [u8], look: impl Fn(&[u8])) -> usize {
    let len = stream.read(buffer).unwrap_or(0);
    look(&buffer[..len]);
    len
}
