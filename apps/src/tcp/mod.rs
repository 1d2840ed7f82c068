//! TCP in a program: the stack of the crate `smoltcp` over two pipes of a port, for a program without a network of the kernel.
//!
//! A [`Host`] has one address. Frames are read where they lie in the receiving pipe, and written in place into the sending one. Space is
//! given back as a poll goes on. Between polls the program sleeps on the pipe, as long as the stack's timers allow; it never spins.
//!
//! - [`echo`]: a server that sends received bytes back.
//! - [`load`]: a client that checks the returned bytes.
//!
//! All checksums are made and checked, because frames may come from outside. A frame that answers another and has no room is lost, as
//! a NIC loses it, so that two hosts never wait for each other's room. A frame that a connection sends waits for room.
pub mod echo;
pub mod load;

use pd_client::pipe::{Direction, Frame, Frames, Options, Pipe, BACK};
use pd_client::Result;
use rustix::io::Errno;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::{Duration as Span, Instant as Moment};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Cidr};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// Longest frame: an Ethernet header and 1,500 bytes.
const FRAME_MAX: usize = 1514;
/// Bytes of each buffer of a connection.
const BUFFER_BYTES: usize = 64 << 10;
/// Silence after which a peer is asked for a sign of life, and after which its connection ends. A program that is killed takes its stack with
/// it: nothing is left to send a reset, as where a host loses its power.
const KEEP_ALIVE: Span = Span::from_secs(3);
/// See [`KEEP_ALIVE`].
const TIMEOUT: Span = Span::from_secs(10);
/// Longest sleep while frames wait for room: others may come meanwhile.
const ROOM_WAIT: Duration = Duration::from_millis(20);

/// Reads `ADDRESS/PREFIX`.
pub fn address(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    Some((address.parse().ok()?, prefix.parse().ok().filter(|prefix| *prefix <= 32)?))
}

/// An address on the network of a port, with connections.
#[allow(missing_debug_implementations)] // smoltcp's have none
pub struct Host {
    from: Pipe,
    to: Pipe,
    interface: Interface,
    /// Sockets of smoltcp.
    pub sockets: SocketSet<'static>,
    since: Instant,
    /// Frames of connections wait for room in the sending pipe.
    is_full: bool,
}

impl Host {
    /// Opens the pipes. The host has all frames of the port that no other pipe is bound to, and a MAC address made of `address`.
    ///
    /// # Errors
    /// Errors of [`Pipe::open`].
    pub fn open(port: &str, (address, prefix): (Ipv4Addr, u8)) -> Result<Self> {
        let from = Pipe::open(&Options::new(Direction::Receive, port))?;
        let mut to = Pipe::open(&Options::new(Direction::Send, port))?;
        let [a, b, c, d] = address.octets();
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress([2, 0, a, b, c, d])));
        config.random_seed = RandomState::new().hash_one(address);
        let mut wire = Wire { frames: None, to: &mut to, is_full: false };
        let mut interface = Interface::new(config, &mut wire, Moment::ZERO);
        drop(wire);
        interface.update_ip_addrs(|addresses| {
            // An interface has room for two.
            let _ = addresses.push(IpCidr::Ipv4(Ipv4Cidr::new(address, prefix)));
        });
        let sockets = SocketSet::new(Vec::new());
        Ok(Self { from, to, interface, sockets, since: Instant::now(), is_full: false })
    }

    /// Begins a connection.
    ///
    /// # Errors
    /// A sentence, for an unusable address or port 0.
    pub fn connect(&mut self, handle: SocketHandle, server: SocketAddrV4, port: u16) -> anyhow::Result<()> {
        let context = self.interface.context();
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        let begun = socket.connect(context, (*server.ip(), server.port()), port);
        begun.map_err(|why| anyhow::anyhow!("cannot connect to {server}: {why}"))
    }

    fn now(&self) -> Moment {
        Moment::from_micros(self.since.elapsed().as_micros() as i64)
    }

    /// Takes all available frames, and sends the due ones.
    ///
    /// # Errors
    /// The receiving pipe's error once it has ended.
    pub fn poll(&mut self) -> Result<()> {
        let now = self.now();
        let frames = match self.from.frames() {
            Ok(frames) => Some(frames),
            Err(Errno::AGAIN) => None,
            Err(errno) => return Err(errno.into()),
        };
        let mut wire = Wire { frames, to: &mut self.to, is_full: false };
        self.interface.poll(now, &mut wire, &mut self.sockets);
        self.is_full = wire.is_full;
        drop(wire);
        self.to.flush();
        Ok(())
    }

    /// Sleeps until frames come or a timer of the stack is due. Returns at once where a socket has something to send.
    ///
    /// # Errors
    /// A pipe's error once it has ended; `ECONNRESET` if the driver has gone.
    pub fn sleep(&mut self) -> Result<()> {
        let slept = if self.is_full {
            let quarter = self.to.shape().ring_bytes() / 4;
            self.to.wait_room(quarter, Some(ROOM_WAIT))
        } else {
            let delay = self.interface.poll_delay(self.now(), &self.sockets);
            if delay == Some(Span::ZERO) {
                return Ok(());
            }
            self.from.wait(delay.map(Duration::from))
        };
        slept.or_else(|error| if error.errno() == Errno::AGAIN.raw_os_error() { Ok(()) } else { Err(error) })
    }

    /// Sends the due frames, and waits until the driver has taken them. Closing a pipe loses frames that were not taken.
    ///
    /// # Errors
    /// As for [`Self::poll`]; `EAGAIN` if the port takes nothing for a second.
    pub fn finish(&mut self) -> Result<()> {
        self.poll()?;
        let ring = self.to.shape().ring_bytes();
        self.to.wait_room(ring, Some(Duration::from_secs(1)))
    }
}

/// Makes a socket with buffers, which detects a peer that has gone.
fn socket() -> Socket<'static> {
    let [from, to] = [(); 2].map(|()| SocketBuffer::new(vec![0; BUFFER_BYTES]));
    let mut socket = Socket::new(from, to);
    socket.set_keep_alive(Some(KEEP_ALIVE));
    socket.set_timeout(Some(TIMEOUT));
    socket
}

/// The pipes during a poll, as a device of smoltcp.
struct Wire<'a> {
    frames: Option<Frames<'a>>,
    to: &'a mut Pipe,
    is_full: bool,
}

/// A frame in the receiving ring.
struct Lent<'a>(Frame<'a>);

/// Room for a frame in the sending ring.
struct Room<'a>(&'a mut Pipe);

impl Device for Wire<'_> {
    type RxToken<'b>
        = Lent<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Room<'b>
    where
        Self: 'b;

    fn receive(&mut self, _now: Moment) -> Option<(Lent<'_>, Room<'_>)> {
        let frame = self.frames.as_mut()?.next()?;
        Some((Lent(frame), Room(self.to)))
    }

    fn transmit(&mut self, _now: Moment) -> Option<Room<'_>> {
        self.is_full = matches!(self.to.place(FRAME_MAX), Err(Errno::AGAIN));
        (!self.is_full).then_some(Room(self.to))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_MAX;
        capabilities
    }
}

impl RxToken for Lent<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0.bytes())
    }
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        match self.0.place(length) {
            Ok(bytes) => {
                let done = write(bytes);
                self.0.placed(BACK);
                done
            }
            // No room for an answer, or the pipe has ended: the frame is lost.
            Err(_) => write(&mut vec![0; length]),
        }
    }
}
