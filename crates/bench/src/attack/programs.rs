//! Attacks by a program that knows nothing of PipeDevice.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result};
use pd_harness::peer::own_address;
use rustix::net::sockopt;

use super::Scene;

/// Opens, uses and closes connections to itself. With the preload library each may have a twin.
pub(super) fn twins(scene: &Scene) -> Result<Infallible> {
    let listener = TcpListener::bind((own_address()?, 0)).context("cannot listen")?;
    let to = listener.local_addr()?;
    scene.begin();
    loop {
        scene.tally.tried(use_once(&listener, || TcpStream::connect(to)).is_ok());
    }
}

fn use_once(listener: &TcpListener, connect: impl Fn() -> std::io::Result<TcpStream>) -> std::io::Result<()> {
    let mut client = connect()?;
    let (mut server, _) = listener.accept()?;
    client.write_all(&[1])?;
    server.read_exact(&mut [0])?;
    // The side that closes last keeps no port.
    drop(server);
    client.read(&mut [0]).map(|_| ())
}

/// Asks the kernel for an option of a socket, where a program of the driver may answer.
pub(super) fn options(scene: &Scene) -> Result<Infallible> {
    let socket = TcpListener::bind((own_address()?, 0)).context("cannot listen")?;
    scene.begin();
    loop {
        scene.tally.tried(sockopt::socket_error(&socket).is_ok());
    }
}
