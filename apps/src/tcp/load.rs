//! A client that sends bytes on several connections at once, closes its half of each, and checks the returned bytes.
use super::{socket, Host};
use crate::random::Random;
use anyhow::{bail, Result};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, State};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddrV4;

/// First of the ports that clients choose from.
const PORT_MIN: u16 = 49_152;

/// A connection and how far it is.
#[derive(Debug)]
struct Connection {
    handle: SocketHandle,
    sent: usize,
    received: usize,
    is_done: bool,
}

/// The connections of a client. Each sends the same bytes, rotated by its number.
#[derive(Debug)]
pub struct Load {
    /// Twice the same bytes.
    bytes: Vec<u8>,
    connections: Vec<Connection>,
}

impl Load {
    /// Begins `connections` connections to `server`, each for `bytes` bytes, which is not 0.
    ///
    /// # Errors
    /// Errors of [`Host::connect`].
    pub fn begin(host: &mut Host, server: SocketAddrV4, connections: u16, bytes: usize) -> Result<Self> {
        let mut random = Random::new(7);
        let once: Vec<u8> = (0..bytes).map(|_| random.word() as u8).collect();
        // Not those of a client that ran before at this address.
        let first = RandomState::new().hash_one(server) as u16;
        let begin = |number: u16| {
            let handle = host.sockets.add(socket());
            host.connect(handle, server, PORT_MIN | first.wrapping_add(number))?;
            Ok(Connection { handle, sent: 0, received: 0, is_done: false })
        };
        let connections = (0..connections).map(begin).collect::<Result<_>>()?;
        Ok(Self { bytes: [&once[..], &once].concat(), connections })
    }

    /// Sends and checks as many bytes as possible. To be called after each poll. Returns whether all connections are done.
    ///
    /// # Errors
    /// A sentence, if a connection ends before its bytes are back, or returns other bytes.
    pub fn turn(&mut self, sockets: &mut SocketSet<'static>) -> Result<bool> {
        let length = self.bytes.len() / 2;
        for (number, connection) in self.connections.iter_mut().enumerate().filter(|(_, it)| !it.is_done) {
            let socket: &mut Socket<'_> = sockets.get_mut(connection.handle);
            let bytes = &self.bytes[number % length..][..length];
            if socket.can_send() && connection.sent < length {
                connection.sent += socket.send_slice(&bytes[connection.sent..]).unwrap_or(0);
                if connection.sent == length {
                    socket.close();
                }
            }
            while socket.can_recv() {
                let wanted = &bytes[connection.received..];
                let came = socket.recv(|came| (came.len(), wanted.starts_with(came).then_some(came.len())));
                match came {
                    Ok(Some(length)) => connection.received += length,
                    _ => bail!("connection {number}: other bytes behind byte {}", connection.received),
                }
            }
            let is_back = connection.received == length;
            match socket.state() {
                State::TimeWait if is_back => connection.is_done = true,
                State::TimeWait | State::Closed => {
                    bail!("connection {number} has ended after {} bytes", connection.received)
                }
                _ => {}
            }
        }
        Ok(self.connections.iter().all(|connection| connection.is_done))
    }
}
