//! The counter region ([`pd_abi::counters`]): made and written by the driver, read by the processes that it is given to.
//!
//! Readers cost the driver nothing but the cache misses of the lines they look at, and can do nothing to it: the
//! memory is sealed against new writers before its descriptor leaves the driver.
use crate::memfd::{create, is_sealed, seal_against_all, Pages};
use crate::{Access, Own, Pod, Region, Theirs};
use pd_abi::counters::{
    AgentCounters, ClientCounters, FlowCounters, Gauges, Header, Shape, GAUGES, HEADER, MAGIC, VERSION,
};
use rustix::io::{Errno, Result};
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

/// The driver's side.
#[derive(Debug)]
pub struct CounterRegion {
    map: Region<Own>,
    shape: Shape,
    fd: OwnedFd,
}

/// One word of the region, and the right to write it: one thread at a time has it.
///
/// Adding loads and stores. The load reads back what only the driver can have written.
#[derive(Clone, Debug)]
pub struct Counter {
    region: Arc<CounterRegion>,
    at: usize,
}

impl Counter {
    /// The word at `at`, a place that [`Shape`] knows, plus a field's offset.
    pub fn new(region: &Arc<CounterRegion>, at: usize) -> Self {
        Self { region: Arc::clone(region), at }
    }

    /// Adds to it.
    pub fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    /// Overwrites it.
    pub fn set(&self, value: u64) {
        self.region.map.store_u64(self.at, value, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.region.map.load_u64(self.at, Ordering::Relaxed)
    }
}

impl CounterRegion {
    /// A region of `header`'s shape, all zeros but for the header, and sealed.
    ///
    /// # Errors
    /// `EINVAL` if no driver can be so large; those of making memory.
    pub fn create(header: Header) -> Result<Arc<Self>> {
        let header = Header { magic: MAGIC, version: VERSION, ..header };
        let shape = shape_of(&header);
        if !shape.is_sane() {
            return Err(Errno::INVAL);
        }
        let fd = create("pd-counters", shape.bytes(), Pages::Ordinary)?;
        let map = Region::<Own>::new(&fd, shape.bytes())?;
        seal_against_all(&fd)?;
        map.write(HEADER, &header);
        Ok(Arc::new(Self { map, shape, fd }))
    }

    /// Returns the numbers of its lines.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the descriptor that clients get.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns what all agents have counted.
    pub fn total(&self) -> AgentCounters {
        total(&self.map, self.shape)
    }

    /// The line at `at` gets a user: the rest of it is zero when its serial is seen. Only its writer may.
    pub fn open_line(&self, at: usize, serial: u64, words: usize) {
        self.map.store_u64(at, 0, Ordering::Relaxed);
        // SYNC POINT: counter-line
        fence(Ordering::Release);
        for word in 1..words {
            self.map.store_u64(at + word * 8, 0, Ordering::Relaxed);
        }
        // SYNC POINT: counter-line
        self.map.store_u64(at, serial, Ordering::Release);
    }

    /// The serial of the line at `at`.
    pub fn serial(&self, at: usize) -> u64 {
        self.map.load_u64(at, Ordering::Relaxed)
    }

    /// Adds to the word at `at`. Only its writer may.
    pub fn add(&self, at: usize, count: u64) {
        let sum = self.map.load_u64(at, Ordering::Relaxed).wrapping_add(count);
        self.map.store_u64(at, sum, Ordering::Relaxed);
    }

    /// Returns what a flow has moved, if its line is that of this serial.
    pub fn flow(&self, flow: u32, serial: u64) -> Option<FlowCounters> {
        flow_line(&self.map, self.shape, flow, serial)
    }

    /// Publishes the gauges. Only their writer may call this.
    pub fn set_gauges(&self, gauges: &Gauges) {
        self.map.write(GAUGES, gauges);
    }
}

/// A reader's side.
#[derive(Debug)]
pub struct CounterView {
    map: Region<Theirs>,
    header: Header,
}

impl CounterView {
    /// Maps a region that the driver has handed out.
    ///
    /// # Errors
    /// `EPROTO` if it is none, or of another version; those of `mmap`.
    pub fn new(fd: impl AsFd) -> Result<Self> {
        let len = rustix::fs::fstat(&fd)?.st_size as usize;
        // A sealed file keeps its size: no load of a mapped page can fail.
        if !is_sealed(&fd) || len < size_of::<Header>() {
            return Err(Errno::PROTO);
        }
        let map = Region::<Theirs>::new(&fd, len)?;
        let header: Header = map.read(HEADER);
        let known = header.magic == MAGIC && header.version == VERSION;
        if !known || !shape_of(&header).is_sane() || shape_of(&header).bytes() != len {
            return Err(Errno::PROTO);
        }
        Ok(Self { map, header })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the present state.
    pub fn gauges(&self) -> Gauges {
        self.map.read(GAUGES)
    }

    /// Returns what an agent has counted: 0 is the conductor, 1 the first mover; none beyond the last.
    pub fn agent(&self, agent: u32) -> Option<AgentCounters> {
        (agent <= self.header.movers).then(|| self.map.read(self.shape().agent(agent)))
    }

    /// Returns what all agents have counted.
    pub fn total(&self) -> AgentCounters {
        total(&self.map, self.shape())
    }

    /// Returns what all movers have moved for the client of this number and serial.
    pub fn client(&self, client: u32, serial: u64) -> ClientCounters {
        let mut sum = ClientCounters::default();
        if client < self.header.clients {
            for mover in 0..self.header.movers {
                let at = self.shape().client(mover, client);
                let line = line::<ClientCounters>(&self.map, at, serial);
                sum = sum.plus(&line.unwrap_or_default());
            }
        }
        ClientCounters { serial, ..sum }
    }

    /// Returns what a flow has moved, if its line is that of this serial.
    pub fn flow(&self, flow: u32, serial: u64) -> Option<FlowCounters> {
        flow_line(&self.map, self.shape(), flow, serial)
    }

    fn shape(&self) -> Shape {
        shape_of(&self.header)
    }
}

fn shape_of(header: &Header) -> Shape {
    Shape { movers: header.movers, clients: header.clients, connections: header.connections }
}

fn flow_line(map: &Region<impl Access>, shape: Shape, flow: u32, serial: u64) -> Option<FlowCounters> {
    if flow / 2 >= shape.connections {
        return None;
    }
    line(map, shape.flow(flow), serial)
}

fn line<T: Pod>(map: &Region<impl Access>, at: usize, serial: u64) -> Option<T> {
    // SYNC POINT: counter-line
    if serial == 0 || map.load_u64(at, Ordering::Acquire) != serial {
        return None;
    }
    let line = map.read(at);
    // SYNC POINT: counter-line
    fence(Ordering::Acquire);
    (map.load_u64(at, Ordering::Relaxed) == serial).then_some(line)
}

fn total(map: &Region<impl Access>, shape: Shape) -> AgentCounters {
    let agents = (0..=shape.movers).map(|agent| map.read::<AgentCounters>(shape.agent(agent)));
    agents.fold(AgentCounters::default(), |sum, agent| sum.plus(&agent))
}

/// Words of a client's line, and of a flow's.
pub const CLIENT_WORDS: usize = size_of::<ClientCounters>() / 8;
/// See [`CLIENT_WORDS`].
pub const FLOW_WORDS: usize = size_of::<FlowCounters>() / 8;
const _: () = assert!(offset_of!(ClientCounters, serial) == 0 && offset_of!(FlowCounters, serial) == 0);

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Arc<CounterRegion> {
        let header = Header { movers: 2, clients: 3, connections: 4, started_ns: 9, ..Header::default() };
        CounterRegion::create(header).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let region = region();
        let view = CounterView::new(region.fd()).unwrap();
        let shape = region.shape();
        assert_eq!((view.header().movers, view.header().started_ns), (2, 9));
        for agent in 0..3 {
            let at = shape.agent(agent) + offset_of!(AgentCounters, mover_sleeps);
            Counter::new(&region, at).add(10 + u64::from(agent));
        }
        assert_eq!(view.total().mover_sleeps, 33);
        assert_eq!(view.agent(2).unwrap().mover_sleeps, 12);
        assert_eq!(view.agent(3), None);
        Counter::new(&region, GAUGES + offset_of!(Gauges, rings_waiting)).set(7);
        assert_eq!(view.gauges().rings_waiting, 7);
    }

    #[test]
    fn lines_are_their_users_alone() {
        let region = region();
        let view = CounterView::new(region.fd()).unwrap();
        let shape = region.shape();
        for mover in 0..2 {
            region.open_line(shape.client(mover, 1), 5, CLIENT_WORDS);
            region.add(shape.client(mover, 1) + offset_of!(ClientCounters, bytes_sent), 100);
        }
        assert_eq!(view.client(1, 5).bytes_sent, 200);
        assert_eq!(view.client(1, 4).bytes_sent, 0, "somebody else's");
        region.open_line(shape.client(1, 1), 6, CLIENT_WORDS);
        assert_eq!((view.client(1, 5).bytes_sent, view.client(1, 6).bytes_sent), (100, 0));
        assert_eq!(view.client(3, 5).bytes_sent, 0, "no such line");

        let at = shape.flow(7);
        assert_eq!(view.flow(7, 1), None);
        region.open_line(at, 1, FLOW_WORDS);
        region.add(at + offset_of!(FlowCounters, bytes), 3);
        assert_eq!(view.flow(7, 1).map(|line| line.bytes), Some(3));
        assert_eq!(view.flow(7, 2), None);
        region.open_line(at, 2, FLOW_WORDS);
        assert_eq!(view.flow(7, 2).map(|line| line.bytes), Some(0));
        assert_eq!((view.flow(8, 2), view.flow(u32::MAX, 2)), (None, None));
    }

    #[test]
    fn readers_cannot_write() {
        let region = region();
        let len = region.shape().bytes();
        let fd = region.fd().try_clone_to_owned().unwrap();
        assert_eq!(Region::<Own>::new(&fd, len).unwrap_err(), Errno::PERM);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let again = std::fs::File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(Region::<Own>::new(&again, len).unwrap_err(), Errno::PERM);
        assert_eq!(rustix::io::write(&again, &[1]).unwrap_err(), Errno::PERM);
        assert_eq!(rustix::fs::ftruncate(&fd, 0).unwrap_err(), Errno::PERM);
    }

    #[test]
    fn what_is_no_counter_region_is_refused() {
        let unsealed = create("test", 4096, Pages::Ordinary).unwrap();
        assert_eq!(CounterView::new(&unsealed).unwrap_err(), Errno::PROTO);
        let good = Header { magic: MAGIC, version: VERSION, movers: 1, ..Header::default() };
        let bytes = shape_of(&good).bytes();
        for header in [
            Header { magic: 1, ..good },
            Header { version: VERSION + 1, ..good },
            Header { movers: 0, ..good },
            Header { movers: u32::MAX, ..good },
            Header { clients: u32::MAX, ..good },
            Header { connections: 100, ..good },
        ] {
            let fd = create("test", bytes, Pages::Ordinary).unwrap();
            let map = Region::<Own>::new(&fd, bytes).unwrap();
            map.write(HEADER, &header);
            seal_against_all(&fd).unwrap();
            assert_eq!(CounterView::new(&fd).unwrap_err(), Errno::PROTO, "{header:?}");
        }
        assert!(CounterRegion::create(Header::default()).is_err());
    }
}
