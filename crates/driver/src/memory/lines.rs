//! A client's control and status regions as the driver uses them.
use super::account::{Account, Lease};
use super::Lent;
use crate::calls::{may, simulated, Call};
use crate::ids::Slot;
use crate::nodes;
use pd_abi::layout::{
    self, channel_control, channel_offset, channel_status, control_header, header, path, socket_control,
    socket_offset, socket_status,
};
use pd_abi::limits::{EVENT_RING_ENTRIES, PAGE_BYTES, REQUEST_RING_ENTRIES};
use pd_abi::{Event, Request, MAGIC, VERSION};
use pd_shm::memfd::{self, Pages};
use pd_shm::ring::{Consumer, Producer, SharedCells};
use pd_shm::ringer::{Ringer, RungCells};
use pd_shm::shelf::{self, Shelf};
use pd_shm::wait::Waker;
use pd_shm::{Own, Region, Theirs};
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};

type RequestCells = SharedCells<Request, Theirs, Own>;
type EventCells = SharedCells<Event, Own, Theirs>;

/// A client's request ring, which the driver reads.
pub type Requests = Consumer<RequestCells>;

/// A client's event ring, which the driver writes.
pub type Events = Producer<EventCells>;

/// The words of a client's wait, by which the driver wakes it.
pub type WaitCells<'a> = RungCells<'a, Region<Own>>;

/// The driver's mappings of one client's control region (read only) and status region.
///
/// Loads of the control region return hostile values. Each accessor names the check that its caller
/// owes.
#[derive(Debug)]
pub struct ClientMemory {
    control: Arc<Region<Theirs>>,
    status: Arc<Region<Own>>,
    /// Control and status region, opened by the driver.
    files: [OwnedFd; 2],
    /// Leases of the pages of both that the driver has made. Held while anybody holds the regions.
    leases: Mutex<Vec<Lease>>,
    /// Makes wake-ups that may take long; none in a simulation.
    ringer: Option<Arc<Ringer>>,
    /// Requests that one agent has forwarded and the other has not yet carried out.
    pub forwarded: AtomicUsize,
}

impl ClientMemory {
    /// Makes both regions. The client cannot write the status region, which lies in the shelf if there is one, and is sealed otherwise. Seal
    /// the control region when the client has mapped it. Returns the descriptors in the order of the `Welcome` frame.
    ///
    /// # Errors
    /// Errors of making memory.
    pub fn new(client: u32, shelf: Option<&Shelf>) -> Result<(Self, [OwnedFd; 2])> {
        let bytes = layout::REGION_BYTES;
        let open = |name| {
            may(Call::MakeMemory)?;
            let made = memfd::create(name, bytes, Pages::Ordinary)?;
            may(Call::Reopen)?;
            memfd::reopen(made, OFlags::RDWR)
        };
        let for_client = |file: &OwnedFd| {
            may(Call::Reopen)?;
            memfd::reopen(file, OFlags::RDWR)
        };
        let control_fd = open("pd-control")?;
        let (status_fd, readable) = match shelf {
            Some(shelf) => {
                may(Call::MakeMemory)?;
                shelf.make(bytes).map(|(own, theirs)| (own, Some(theirs)))?
            }
            None => (open("pd-status")?, None),
        };
        may(Call::Map)?;
        let control = Region::<Theirs>::new(&control_fd, bytes)?;
        control.keep_in_memory();
        may(Call::Map)?;
        let status = Region::<Own>::new(&status_fd, bytes)?;
        if readable.is_none() {
            memfd::seal_against_all(&status_fd)?;
        }
        may(Call::Populate)?;
        status.populate(0, PAGE_BYTES)?;
        status.store_u64(header::MAGIC, MAGIC, Relaxed);
        status.store_u32(header::VERSION, VERSION, Relaxed);
        status.store_u32(header::CLIENT, client, Relaxed);
        let (control, status) = (Arc::new(control), Arc::new(status));
        let readable = readable.map_or_else(|| for_client(&status_fd), Ok)?;
        let theirs = [for_client(&control_fd)?, readable];
        let (files, leases) = ([control_fd, status_fd], Mutex::default());
        Ok((Self { control, status, files, leases, ringer: None, forwarded: AtomicUsize::new(0) }, theirs))
    }

    /// Takes over the regions that another driver has made for a client, in the order of [`Self::files`]. The client has mapped
    /// them, and `pages_of_lines` pages of sockets' lines exist.
    ///
    /// # Errors
    /// `EINVAL` if they are not such regions, or not the client's; errors of mapping memory.
    pub fn resume(files: [OwnedFd; 2], client: u32, pages_of_lines: usize) -> Result<Self> {
        let bytes = layout::REGION_BYTES;
        memfd::check(&files[0], bytes, Pages::Ordinary, true)?;
        shelf::check(&files[1], bytes, Pages::Ordinary)?;
        let control = Region::<Theirs>::new(&files[0], bytes)?;
        control.keep_in_memory();
        let status = Region::<Own>::new(&files[1], bytes)?;
        let lines = pages_of_lines.checked_mul(PAGE_BYTES).filter(|lines| *lines <= bytes - socket_offset(0));
        let lines = lines.ok_or(Errno::INVAL)?;
        status.populate(0, PAGE_BYTES)?;
        control.populate(socket_offset(0), lines)?;
        status.populate(socket_offset(0), lines)?;
        let said = (status.load_u64(header::MAGIC, Relaxed), status.load_u32(header::VERSION, Relaxed));
        if said != (MAGIC, VERSION) || status.load_u32(header::CLIENT, Relaxed) != client {
            return Err(Errno::INVAL);
        }
        let (control, status) = (Arc::new(control), Arc::new(status));
        let (leases, forwarded) = (Mutex::default(), AtomicUsize::new(0));
        Ok(Self { control, status, files, leases, ringer: None, forwarded })
    }

    /// Has the ringer of an account make wake-ups that may take long.
    pub fn rung_by(self, account: &Account) -> Self {
        Self { ringer: account.ringer(), ..self }
    }

    /// Returns the ringer.
    pub fn ringer(&self) -> Option<&Arc<Ringer>> {
        self.ringer.as_ref()
    }

    /// Returns control and status region, for another driver.
    pub fn files(&self) -> &[OwnedFd; 2] {
        &self.files
    }

    /// Checks that the client has sealed the control region. To seal it here would wait for the client, which can hold the file's lock as
    /// long as it likes.
    ///
    /// # Errors
    /// `EPERM` if it is not sealed.
    pub fn check_control(&self) -> Result<()> {
        match memfd::is_sealed(&self.files[0]) {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    /// Keeps the lease for pages of the two regions until nobody holds them.
    pub fn keep(&self, lease: Lease) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
    }

    /// Asks the kernel to place both regions on a node, if one is preferred.
    pub fn place(&self, near: Option<u32>) {
        nodes::place(&self.control, near);
        nodes::place(&self.status, near);
    }

    /// Populates the pages of a channel, and the header. Returns the channel's rings.
    ///
    /// # Errors
    /// A lack of memory.
    pub fn channel(&self, index: usize) -> Result<(Requests, Events)> {
        let (requests, events) = self.channel_cells(index)?;
        Ok((Consumer::new(requests), Producer::new(events)))
    }

    /// Populates a channel as [`Self::channel`] does, after another driver has left it with these numbers of requests read and
    /// events written.
    ///
    /// # Errors
    /// A lack of memory; `EINVAL` for impossible numbers.
    pub fn resume_channel(&self, index: usize, read: u64, written: u64) -> Result<(Requests, Events)> {
        // No ring comes so far: beyond, the counters would wrap.
        if read.max(written) > u64::MAX / 2 {
            return Err(Errno::INVAL);
        }
        let (requests, events) = self.channel_cells(index)?;
        Ok((Consumer::resume(requests, read), Producer::resume(events, written)))
    }

    /// Returns the number of events of a channel that the client was told of.
    pub fn events_published(&self, index: usize) -> u64 {
        self.status.load_u64(channel_offset(index) + channel_status::EVENT_PRODUCER, Relaxed)
    }

    /// Returns the request before number `read` of a channel, as the client has it by now.
    pub fn last_request(&self, index: usize, read: u64) -> Request {
        let place = (read.wrapping_sub(1) & (REQUEST_RING_ENTRIES - 1)) as usize;
        self.control.read(channel_offset(index) + channel_control::REQUESTS + place * size_of::<Request>())
    }

    fn channel_cells(&self, index: usize) -> Result<(RequestCells, EventCells)> {
        let at = channel_offset(index);
        may(Call::Populate)?;
        self.control.populate(0, PAGE_BYTES)?;
        may(Call::Populate)?;
        self.control.populate(at, layout::CHANNEL_STRIDE)?;
        self.status.populate(at, layout::CHANNEL_STRIDE)?;
        let requests = SharedCells::new(
            (
                Arc::clone(&self.control),
                at + channel_control::REQUEST_PRODUCER,
                at + channel_control::REQUESTS,
            ),
            (Arc::clone(&self.status), at + channel_status::REQUEST_CONSUMER),
            REQUEST_RING_ENTRIES,
        );
        let events = SharedCells::new(
            (Arc::clone(&self.status), at + channel_status::EVENT_PRODUCER, at + channel_status::EVENTS),
            (Arc::clone(&self.control), at + channel_control::EVENT_CONSUMER),
            EVENT_RING_ENTRIES,
        );
        Ok((requests, events))
    }

    /// Populates the page of a slot's lines.
    ///
    /// # Errors
    /// A lack of memory.
    pub fn populate_slot(&self, slot: Slot) -> Result<()> {
        let page = socket_offset(slot.get()) / PAGE_BYTES * PAGE_BYTES;
        may(Call::Populate)?;
        self.control.populate(page, PAGE_BYTES)?;
        self.status.populate(page, PAGE_BYTES)
    }

    /// Takes a slot into use: its status line is zero but for the generation.
    pub fn open_slot(&self, slot: Slot, generation: u16) {
        let at = socket_offset(slot.get());
        for word in (0..layout::SOCKET_STRIDE).step_by(8) {
            if word == socket_status::RECV_DOORBELL {
                continue; // the two doorbells go on counting: an old sleeper may still look
            }
            self.status.store_u64(at + word, 0, Relaxed);
        }
        self.status.store_u32(at + socket_status::GENERATION, generation.into(), Release);
    }

    /// Takes a slot out of use.
    pub fn close_slot(&self, slot: Slot) {
        self.status.store_u32(socket_offset(slot.get()) + socket_status::GENERATION, 0, Release);
    }

    /// Tells whether the client has taken the slot into use for this generation. Until then its
    /// control line is meaningless.
    pub fn slot_taken(&self, slot: Slot, generation: u16) -> bool {
        // SYNC POINT: line-in-use (the client clears its line, then stores the generation, release)
        let word = self.control.load_u32(socket_offset(slot.get()) + socket_control::GENERATION, Acquire);
        word == u32::from(generation)
    }

    /// Returns the bytes given back, as the client says. Check against the bytes delivered.
    pub fn recv_consumer(&self, slot: Slot) -> u64 {
        self.control.load_u64(socket_offset(slot.get()) + socket_control::RECV_CONSUMER, Acquire)
    }

    /// Returns the number of bytes that the slot's socket was brought.
    pub fn recv_producer(&self, slot: Slot) -> u64 {
        self.status.load_u64(socket_offset(slot.get()) + socket_status::RECV_PRODUCER, Relaxed)
    }

    /// Tells whether the client wants `Ready` events of the socket.
    pub fn subscribed(&self, slot: Slot) -> bool {
        self.control.load_u32(socket_offset(slot.get()) + socket_control::SUBSCRIBED, Relaxed) != 0
    }

    /// Returns the last `Ready` event that the client says it has seen.
    pub fn event_ack(&self, slot: Slot) -> u32 {
        self.control.load_u32(socket_offset(slot.get()) + socket_control::EVENT_ACK, Relaxed)
    }

    /// Returns the last `Ready` event posted.
    pub fn event_number(&self, slot: Slot) -> u32 {
        self.status.load_u32(socket_offset(slot.get()) + socket_status::EVENT_NUMBER, Relaxed)
    }

    /// Returns the last value stored in a word of the slot's status line, which only the driver writes.
    pub fn published(&self, slot: Slot, word: usize) -> u64 {
        self.status.load_u64(socket_offset(slot.get()) + word, Relaxed)
    }

    /// Returns a 32-bit word of the slot's status line, which only the driver writes.
    pub fn published_u32(&self, slot: Slot, word: usize) -> u32 {
        self.status.load_u32(socket_offset(slot.get()) + word, Relaxed)
    }

    /// Stores a 64-bit word of the slot's status line.
    pub fn publish_u64(&self, slot: Slot, word: usize, value: u64) {
        self.status.store_u64(socket_offset(slot.get()) + word, value, Release);
    }

    /// Stores a 32-bit word of the slot's status line.
    pub fn publish_u32(&self, slot: Slot, word: usize, value: u32) {
        self.status.store_u32(socket_offset(slot.get()) + word, value, Release);
    }

    /// Stores the `path` word of a slot whose socket another client may have taken: all bits but [`path::TAKEN`].
    pub fn publish_path(&self, slot: Slot, path: u32) {
        self.status.store_u16(socket_offset(slot.get()) + socket_status::PATH, path as u16, Release);
    }

    /// Adds [`path::TAKEN`] to the `path` word of a slot, whatever a mover stores there at the same time.
    pub fn publish_taken(&self, slot: Slot) {
        let upper = socket_offset(slot.get()) + socket_status::PATH + 2;
        self.status.store_u16(upper, (path::TAKEN >> 16) as u16, Release);
    }

    /// Returns the words by which a receiver is woken.
    pub fn recv_wait(&self, slot: Slot) -> WaitCells<'_> {
        let at = socket_offset(slot.get());
        WaitCells {
            wake_at: (&self.control, at + socket_control::RECV_WAKE_AT),
            doorbell: (&self.status, at + socket_status::RECV_DOORBELL),
            ringer: self.ringer.as_ref(),
        }
    }

    /// Returns the words by which a sender is woken.
    pub fn send_wait(&self, slot: Slot) -> WaitCells<'_> {
        let at = socket_offset(slot.get());
        WaitCells {
            wake_at: (&self.control, at + socket_control::SEND_WAKE_AT),
            doorbell: (&self.status, at + socket_status::SEND_DOORBELL),
            ringer: self.ringer.as_ref(),
        }
    }

    /// Returns the words by which a reader of events is woken.
    pub fn event_wait(&self, channel: usize) -> WaitCells<'_> {
        let at = channel_offset(channel);
        WaitCells {
            wake_at: (&self.control, at + channel_control::EVENT_WAKE_AT),
            doorbell: (&self.status, at + channel_status::EVENT_DOORBELL),
            ringer: self.ringer.as_ref(),
        }
    }

    /// Tells a client that its sync of this number is done, and wakes it if it waits for that.
    pub fn say_synced(&self, channel: usize, number: u64) {
        let at = channel_offset(channel);
        let synced = self.status.load_u64(at + channel_status::SYNCED, Relaxed).max(number);
        self.status.store_u64(at + channel_status::SYNCED, synced, Release);
        let cells = WaitCells {
            wake_at: (&self.control, at + channel_control::SYNC_WAKE_AT),
            doorbell: (&self.status, at + channel_status::SYNC_DOORBELL),
            ringer: self.ringer.as_ref(),
        };
        Waker::default().wake(&cells, synced);
    }

    /// Tells whether the channel's wake pipe has to be written as well.
    pub fn pipe_wanted(&self, channel: usize) -> bool {
        self.control.load_u32(channel_offset(channel) + channel_control::PIPE_WANTED, Relaxed) != 0
    }

    /// Tells the client the number of twins that it may find when it accepts.
    pub fn set_claimable(&self, twins: u32) {
        self.status.store_u32(header::CLAIMABLE, twins, Release);
    }

    /// Tells the client whether cores are scarce.
    pub fn set_cores_scarce(&self, scarce: bool) {
        self.status.store_u32(header::CORES_SCARCE, scarce.into(), Relaxed);
    }

    /// Tells the client the file that is open in a slot: a `FileId`, or 0.
    pub fn set_file(&self, slot: usize, file: u32) {
        self.status.store_u32(header::FILES + 4 * slot, file, Release);
    }

    /// Returns the number of sends of the slot's file, as the client says.
    pub fn file_uses(&self, slot: usize) -> u32 {
        self.control.load_u32(control_header::FILE_USES + 4 * slot, Acquire)
    }

    /// Returns the number of connections on the kernel for one reason, as the client says.
    pub fn kernel_count(&self, reason: usize) -> u32 {
        self.control.load_u32(control_header::KERNEL_COUNTS + 4 * reason, Relaxed)
    }

    /// Returns a connection on the kernel and its reason, as the client says: see [`control_header::KERNEL_CONNECTIONS`].
    pub fn kernel_connection(&self, index: usize) -> u64 {
        self.control.load_u64(control_header::KERNEL_CONNECTIONS + 8 * index, Relaxed)
    }

    /// Tells the client whether to ring: 0, or the number of the driver's sleep.
    pub fn set_need_wakeup(&self, channel: usize, number: u32) {
        self.status.store_u32(channel_offset(channel) + channel_status::NEED_WAKEUP, number, Relaxed);
    }

    /// Tells the client whether events wait for room in its ring.
    pub fn set_events_waiting(&self, channel: usize, waiting: bool) {
        self.status.store_u32(
            channel_offset(channel) + channel_status::EVENTS_WAITING,
            waiting.into(),
            Relaxed,
        );
    }
}

impl Lent for ClientMemory {
    fn is_let_go(&self) -> bool {
        // Simulated clients run in this process, and their mappings outlive them.
        simulated::is_on() || self.files.iter().all(memfd::is_let_go)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

    /// Memory that the client may have made first is charged to the client's control group, which then chooses when it is swapped out.
    #[test]
    fn what_a_client_writes_is_kept_in_memory() {
        let limit = getrlimit(Resource::Memlock);
        let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, ..limit });
        let (memory, _fds) = ClientMemory::new(1, None).unwrap();
        if !memory.control.keep_in_memory() {
            eprintln!("SKIPPED: RLIMIT_MEMLOCK is too low");
            return;
        }
        drop(memory);
        let (memory, _fds) = ClientMemory::new(1, None).unwrap();
        let start = format!("{:x}-", memory.control.address(0, 1).as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let own = maps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = own.into_iter().find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|flag| flag == "lo"), "{flags}");
    }
}
