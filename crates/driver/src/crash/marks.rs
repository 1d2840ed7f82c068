//! Words in memory that outlives the driver: what has changed since which snapshot, and how far flows and request rings are.
//!
//! Only drivers have the memory: one at a time, whose agents each write words of their own. A word is stored before what it tells of can be
//! seen by a client. A kill loses no store: the memory stays, and each thread's stores are there in order.
use crate::ids::{ClientId, ConnectionId, FlowId, MoverId};
use crate::takeover::offer::FORMAT;
use pd_abi::limits::{CHANNELS_MAX, PAGE_BYTES};
use pd_shm::memfd::{self, Pages};
use pd_shm::{Own, Region};
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;

const MAGIC: u64 = u64::from_le_bytes(*b"pd-marks");
/// Words of the header.
const AT_MAGIC: usize = 0;
const AT_FORMAT: usize = 8;
const AT_ABI: usize = 12;
const AT_CONNECTIONS: usize = 16;
/// Number of the snapshot that comes next.
const AT_EPOCH: usize = 24;
/// Number of the snapshot that has all changes so far.
const AT_CHANGED: usize = 32;
/// Numbers of the last sleep of each mover.
const AT_SLEEPS: usize = 64;
const SLEEPS: usize = 256;
/// One word for each client.
const AT_CLIENTS: usize = PAGE_BYTES;
const CLIENTS: usize = 1 << 16;
/// Two words for each channel of each client.
const AT_CHANNELS: usize = AT_CLIENTS + 8 * CLIENTS;
const CHANNEL_BYTES: usize = 16;
/// One word for each connection, then one for each flow.
const AT_CONNECTION: usize = AT_CHANNELS + CLIENTS * CHANNELS_MAX * CHANNEL_BYTES;

/// See the module. The memory has pages where it was written.
#[derive(Debug)]
pub struct Marks {
    words: Region<Own>,
    file: OwnedFd,
    /// Number of places for connections.
    connections: usize,
}

/// Progress of a request ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of requests read.
    pub read: u64,
    /// Set if the last of them may have been carried out in part.
    pub is_under_way: bool,
    /// Second number of the last request, if that is a send which may grow; 0: it is none.
    pub open: u64,
}

/// Marks of an agent. There are none, and nothing is marked, as long as no service manager keeps snapshots.
#[derive(Debug, Default)]
pub struct Marker(Option<Arc<Marks>>);

impl Marker {
    /// Has changes marked from now on.
    pub fn begin(&mut self, marks: &Arc<Marks>) {
        self.0 = Some(Arc::clone(marks));
    }

    /// Returns the marks, if there are any.
    pub fn get(&self) -> Option<&Marks> {
        self.0.as_deref()
    }

    /// Marks a change that concerns no client, as [`Marks::mark_others`].
    pub fn mark_others(&self) {
        if let Some(marks) = self.get() {
            marks.mark_others();
        }
    }

    /// Marks a change of a client, as [`Marks::mark_client`].
    pub fn mark_client(&self, id: ClientId) {
        if let Some(marks) = self.get() {
            marks.mark_client(id);
        }
    }

    /// Marks a change of a connection, as [`Marks::mark_connection`].
    pub fn mark_connection(&self, id: ConnectionId) {
        if let Some(marks) = self.get() {
            marks.mark_connection(id);
        }
    }
}

impl Marks {
    /// Makes marks for connections below a number.
    ///
    /// # Errors
    /// Errors of making memory.
    pub fn new(connections: usize) -> Result<Self> {
        let connections = connections.next_multiple_of(PAGE_BYTES);
        let bytes = bytes(connections);
        let file = memfd::create("pd-marks", bytes, Pages::Ordinary)?;
        let words = Region::<Own>::new(&file, bytes)?;
        words.store_u64(AT_CONNECTIONS, connections as u64, Relaxed);
        words.store_u32(AT_FORMAT, FORMAT, Relaxed);
        words.store_u32(AT_ABI, pd_abi::VERSION, Relaxed);
        // The first snapshot is 1, and has yet to be taken.
        words.store_u64(AT_EPOCH, 1, Relaxed);
        words.store_u64(AT_CHANGED, 1, Relaxed);
        words.store_u64(AT_MAGIC, MAGIC, Release);
        Ok(Self { words, file, connections })
    }

    /// Goes on with the marks of a driver that was killed.
    ///
    /// # Errors
    /// `EINVAL` if it is no such memory, or of another layout; errors of mapping it.
    pub fn resume(file: OwnedFd, connections: usize) -> Result<Self> {
        let connections = connections.next_multiple_of(PAGE_BYTES);
        let bytes = bytes(connections);
        memfd::check(&file, bytes, Pages::Ordinary, false)?;
        let words = Region::<Own>::new(&file, bytes)?;
        let said = (
            words.load_u64(AT_MAGIC, Acquire),
            words.load_u32(AT_FORMAT, Relaxed),
            words.load_u32(AT_ABI, Relaxed),
            words.load_u64(AT_CONNECTIONS, Relaxed),
        );
        match said == (MAGIC, FORMAT, pd_abi::VERSION, connections as u64) {
            true => Ok(Self { words, file, connections }),
            false => Err(Errno::INVAL),
        }
    }

    /// Makes the memory useless for a next driver.
    pub fn invalidate(&self) {
        self.words.store_u64(AT_MAGIC, 0, Release);
    }

    /// Returns the memory's file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Tells whether anything has changed since the last snapshot.
    pub fn is_changed(&self) -> bool {
        self.words.load_u64(AT_CHANGED, Acquire) >= self.epoch()
    }

    /// Ends a snapshot, in which all agents stand still. Returns its number.
    pub fn end_snapshot(&self) -> u64 {
        let epoch = self.epoch();
        self.words.store_u64(AT_EPOCH, epoch + 1, Release);
        epoch
    }

    /// Has further changes count as later than snapshot `epoch`.
    pub fn begin_after(&self, epoch: u64) {
        self.words.store_u64(AT_EPOCH, self.epoch().max(epoch.saturating_add(1)), Release);
    }

    fn epoch(&self) -> u64 {
        self.words.load_u64(AT_EPOCH, Acquire)
    }

    fn mark(&self, at: usize) {
        let epoch = self.epoch();
        self.words.store_u64(at, epoch, Release);
        self.words.store_u64(AT_CHANGED, epoch, Release);
    }

    /// Marks a change that concerns no client.
    pub fn mark_others(&self) {
        self.words.store_u64(AT_CHANGED, self.epoch(), Release);
    }

    /// Marks a change of a client: a request, a frame, or something that happens to it.
    pub fn mark_client(&self, id: ClientId) {
        self.mark(AT_CLIENTS + 8 * id.index());
    }

    /// Marks a change of a connection.
    pub fn mark_connection(&self, id: ConnectionId) {
        match self.connection(id) {
            Some(at) => self.mark(at),
            None => self.mark_others(),
        }
    }

    /// Tells whether a client has changed since snapshot `epoch`.
    pub fn is_client_changed(&self, id: ClientId, epoch: u64) -> bool {
        self.words.load_u64(AT_CLIENTS + 8 * id.index(), Acquire) > epoch
    }

    /// Tells whether a connection has changed since snapshot `epoch`.
    pub fn is_connection_changed(&self, id: ConnectionId, epoch: u64) -> bool {
        self.connection(id).is_none_or(|at| self.words.load_u64(at, Acquire) > epoch)
    }

    fn connection(&self, id: ConnectionId) -> Option<usize> {
        (id.index() < self.connections).then_some(AT_CONNECTION + 8 * id.index())
    }

    fn flow(&self, id: FlowId) -> Option<usize> {
        let is_there = id.connection().index() < self.connections;
        is_there.then_some(AT_CONNECTION + 8 * (self.connections + id.index()))
    }

    /// Records the number of sends that a flow has ever accepted.
    #[inline]
    pub fn set_sends(&self, id: FlowId, sends: u64) {
        if let Some(at) = self.flow(id) {
            self.words.store_u64(at, sends, Release);
        }
    }

    /// Returns the number of sends that a flow has ever accepted. None: there is no word for it.
    pub fn sends(&self, id: FlowId) -> Option<u64> {
        self.flow(id).map(|at| self.words.load_u64(at, Acquire))
    }

    /// Records that the last of `read` requests of a channel is being carried out.
    #[inline]
    pub fn begin_request(&self, client: ClientId, channel: usize, read: u64) {
        self.words.store_u64(at_channel(client, channel), 2 * read + 1, Release);
    }

    /// Records that `read` requests of a channel have been carried out. `open`: see [`Progress::open`].
    #[inline]
    pub fn end_request(&self, client: ClientId, channel: usize, read: u64, open: u64) {
        let at = at_channel(client, channel);
        self.words.store_u64(at + 8, open, Release);
        self.words.store_u64(at, 2 * read, Release);
    }

    /// Returns the progress of a channel.
    pub fn progress(&self, client: ClientId, channel: usize) -> Progress {
        let at = at_channel(client, channel);
        let word = self.words.load_u64(at, Acquire);
        let (is_under_way, open) = (word % 2 == 1, self.words.load_u64(at + 8, Acquire));
        Progress { read: word / 2, is_under_way, open: if is_under_way { 0 } else { open } }
    }

    /// Records the number of a mover's last sleep.
    pub fn set_sleeps(&self, mover: MoverId, sleeps: u32) {
        self.words.store_u32(AT_SLEEPS + 4 * (mover.index() % SLEEPS), sleeps, Release);
    }

    /// Returns the highest number of a sleep.
    pub fn sleeps(&self) -> u32 {
        (0..SLEEPS).map(|index| self.words.load_u32(AT_SLEEPS + 4 * index, Acquire)).max().unwrap_or(0)
    }
}

fn bytes(connections: usize) -> usize {
    AT_CONNECTION + 3 * 8 * connections
}

fn at_channel(client: ClientId, channel: usize) -> usize {
    AT_CHANNELS + (client.index() * CHANNELS_MAX + channel % CHANNELS_MAX) * CHANNEL_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::dup;

    #[test]
    fn the_next_driver_reads_what_was_marked() {
        let marks = Marks::new(10).unwrap();
        let (client, other, connection) = (ClientId::new(7), ClientId::new(8), ConnectionId::new(3));
        assert!(marks.is_changed(), "there is no snapshot yet");
        marks.mark_client(client);
        assert_eq!(marks.end_snapshot(), 1);
        assert!(!marks.is_changed() && !marks.is_client_changed(client, 1));
        marks.mark_client(client);
        marks.mark_connection(connection);
        marks.set_sends(connection.flow(crate::ids::Side::Accepting), 9);
        marks.begin_request(client, 5, 11);
        marks.end_request(client, 5, 11, 4);
        marks.begin_request(other, 63, 2);
        marks.set_sleeps(MoverId::new(1), 77);
        let next = Marks::resume(dup(marks.file()).unwrap(), 10).unwrap();
        assert!(next.is_changed() && next.is_client_changed(client, 1) && !next.is_client_changed(client, 2));
        assert!(!next.is_client_changed(other, 1));
        assert!(next.is_connection_changed(connection, 1));
        assert!(!next.is_connection_changed(ConnectionId::new(4), 1));
        assert!(next.is_connection_changed(ConnectionId::new(u32::MAX / 2), 1), "there is no word for it");
        assert_eq!(next.sends(connection.flow(crate::ids::Side::Accepting)), Some(9));
        assert_eq!(next.sends(FlowId::new(u32::MAX)), None);
        assert_eq!(next.progress(client, 5), Progress { read: 11, is_under_way: false, open: 4 });
        assert_eq!(next.progress(other, 63), Progress { read: 2, is_under_way: true, open: 0 });
        assert_eq!(next.sleeps(), 77);
        next.begin_after(5);
        assert_eq!(next.end_snapshot(), 6);
    }

    #[test]
    fn other_memory_is_refused() {
        let marks = Marks::new(10).unwrap();
        assert!(
            Marks::resume(dup(marks.file()).unwrap(), 1 << 20).is_err(),
            "for other numbers of connections"
        );
        let other = memfd::create("other", bytes(PAGE_BYTES), Pages::Ordinary).unwrap();
        assert_eq!(Marks::resume(other, 10).unwrap_err(), Errno::INVAL);
        marks.words.store_u32(AT_FORMAT, FORMAT + 1, Relaxed);
        assert_eq!(Marks::resume(dup(marks.file()).unwrap(), 10).unwrap_err(), Errno::INVAL);
        marks.words.store_u32(AT_FORMAT, FORMAT, Relaxed);
        assert!(Marks::resume(dup(marks.file()).unwrap(), 10).is_ok());
        marks.invalidate();
        assert_eq!(Marks::resume(dup(marks.file()).unwrap(), 10).unwrap_err(), Errno::INVAL);
    }
}
