//! A server that sends received bytes back on each of its connections, and closes after its peer.
use super::socket;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{ListenError, Socket, State};

/// Bytes moved of a connection at a time.
const PIECE_BYTES: usize = 16 << 10;

/// The connections of a server. Further connections are refused.
#[derive(Debug)]
pub struct Echo {
    port: u16,
    handles: Vec<SocketHandle>,
    piece: Box<[u8]>,
}

impl Echo {
    /// Makes a server at `port` with up to `connections` at once.
    pub fn new(sockets: &mut SocketSet<'static>, port: u16, connections: usize) -> Self {
        let handles = (0..connections).map(|_| sockets.add(socket())).collect();
        Self { port, handles, piece: vec![0; PIECE_BYTES].into() }
    }

    /// Sends received bytes back, as far as there is room, and listens again after a connection has ended. To be called after
    /// each poll.
    ///
    /// # Errors
    /// `Unaddressable` for port 0.
    pub fn turn(&mut self, sockets: &mut SocketSet<'static>) -> Result<(), ListenError> {
        for &handle in &self.handles {
            let socket: &mut Socket<'_> = sockets.get_mut(handle);
            if !socket.is_open() {
                socket.listen(self.port)?;
            }
            while socket.can_send() && socket.recv_queue() > 0 {
                let room = socket.send_capacity() - socket.send_queue();
                let length = room.min(self.piece.len());
                let Ok(taken) = socket.recv_slice(&mut self.piece[..length]) else { break };
                // The buffer has room for all of it.
                let _ = socket.send_slice(&self.piece[..taken]);
            }
            if socket.state() == State::CloseWait && socket.recv_queue() == 0 {
                socket.close();
            }
        }
        Ok(())
    }
}
