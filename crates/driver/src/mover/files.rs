//! Files that clients send: the open ones, sends of them, and pieces that come from a disk.
//!
//! A client asks for a file once, and then names it in sends without waiting. A file that is not sent for a while is closed, by words of
//! both sides (see [`pd_abi::layout::control_header::FILE_USES`]). An idle client thus holds no removed file and no file system.
use super::clients::Client;
use super::flow::Flow;
use super::Mover;
use crate::ids::{ClientId, FlowId};
use crate::memory::{Account, Amounts, Lease};
use crate::messages::{Payer, SendEnd, Violation};
use crate::metrics::Metrics;
use crate::reader::{Asker, FileSocket, OpenFile, Readers, Wanted};
use crate::takeover::pack::{Fd, Hindrance, Pack, Unpacked, Wrong};
use pd_abi::limits::{FILES_MAX, MESSAGE_BYTES_MAX};
use pd_abi::{Event, FileId, Request, SocketId};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Time for which a file stays open without sends.
const FILE_IDLE: Duration = Duration::from_secs(1);

/// The files of a client.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Socket by which the client passes files.
    socket: Option<Arc<FileSocket>>,
    slots: Vec<FileSlot>,
    /// Requests of the client that the opener has, also refused ones.
    asked: usize,
}

/// Files of a client, as another driver goes on with them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesState {
    socket: Option<Fd>,
    /// Open files, each once: those of slots, and those that are being sent.
    open: Vec<Fd>,
    slots: Vec<SlotState>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlotState {
    generation: u16,
    /// Place of the file among the open ones, and the sends of it that were taken.
    file: Option<(u32, u32)>,
}

impl FilesState {
    /// Tells whether the client passes no files, and has passed none that are still sent.
    pub fn is_empty(&self) -> bool {
        self.socket.is_none() && self.open.is_empty() && self.slots.is_empty()
    }
}

/// Files of a client while they are given to another driver.
#[derive(Debug, Default)]
pub struct GivenFiles {
    state: FilesState,
    /// Places of open files, by their addresses.
    places: HashMap<*const OpenFile, u32>,
}

impl GivenFiles {
    /// Adds a file, unless it is there. Returns its place.
    ///
    /// # Errors
    /// A hindrance, if no descriptor is left.
    pub fn add(&mut self, file: &Arc<OpenFile>, pack: &mut Pack) -> Result<u32, Hindrance> {
        let known = Arc::as_ptr(file);
        if let Some(&place) = self.places.get(&known) {
            return Ok(place);
        }
        let fd = file.fd().ok_or_else(|| Hindrance::passing("a file is being closed"))?;
        let place = self.state.open.len() as u32;
        self.state.open.push(pack.add(fd)?);
        self.places.insert(known, place);
        Ok(place)
    }

    /// Returns the state, with all files that were added.
    pub fn into_state(self) -> FilesState {
        self.state
    }
}

impl Files {
    /// Tells whether the client may pass files.
    pub fn has_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// Returns the state that another driver goes on with. Files that are being sent are to be added.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&self, readers: &Readers, pack: &mut Pack) -> Result<GivenFiles, Hindrance> {
        if self.asked > 0 {
            return Err(Hindrance::passing("a file is being opened"));
        }
        let mut given = GivenFiles::default();
        if let Some(socket) = &self.socket {
            let end = socket.end(readers);
            let end =
                end.map_err(|error| Hindrance::passing(format!("a socket for files stays: {error}")))?;
            given.state.socket = Some(pack.share(&end));
        }
        for FileSlot { generation, state } in &self.slots {
            let file = match state {
                State::Open { file, taken, .. } => Some((given.add(file, pack)?, *taken)),
                State::Free | State::Opening => None,
            };
            given.state.slots.push(SlotState { generation: *generation, file });
        }
        Ok(given)
    }

    /// Takes over state that another driver has given. The account of the client pays. Returns the open files by their places, too.
    ///
    /// # Errors
    /// The fault in it.
    pub fn resume(
        state: FilesState,
        (account, payer): (&Arc<Account>, Payer),
        readers: &Readers,
        now: Duration,
        fds: &mut Unpacked,
    ) -> Result<(Self, Vec<Arc<OpenFile>>), Wrong> {
        let FilesState { socket, open, slots } = state;
        let mut take = |fd| -> Result<(OwnedFd, Lease), Wrong> {
            let lease = account.lease(Amounts::descriptor());
            Ok((fds.take(fd)?, lease.map_err(|exhausted| Wrong::of(exhausted.to_string()))?))
        };
        let socket = socket.map(&mut take).transpose()?.map(|(fd, lease)| {
            let socket = FileSocket::resume(fd, lease, payer, readers);
            socket.map_err(|error| Wrong::of(format!("its socket for files: {error}")))
        });
        let socket = socket.transpose()?.map(Arc::new);
        let mut files = Vec::new();
        for fd in open {
            let (fd, lease) = take(fd)?;
            let file = OpenFile::resume(fd, lease, payer, readers);
            files.push(Arc::new(file.map_err(|error| Wrong::of(format!("a file of its own: {error}")))?));
        }
        Wrong::unless(slots.len() <= FILES_MAX, || "too many slots of files".to_owned())?;
        let slots = slots.into_iter().map(|SlotState { generation, file }| {
            let state = match file {
                None => State::Free,
                Some((place, taken)) => {
                    let file = files.get(place as usize).filter(|_| generation > 0);
                    let file = file.ok_or_else(|| Wrong::of("a slot of a file that is not there"))?;
                    State::Open { file: Arc::clone(file), taken, last_used: now }
                }
            };
            Ok(FileSlot { generation, state })
        });
        Ok((Self { socket, slots: slots.collect::<Result<_, Wrong>>()?, asked: 0 }, files))
    }
}

/// A place for a file of a client.
#[derive(Debug, Default)]
struct FileSlot {
    /// Generation of the present file, or of the last one.
    generation: u16,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Free,
    /// The opener has the request.
    Opening,
    Open {
        file: Arc<OpenFile>,
        taken: u32,
        last_used: Duration,
    },
}

impl Mover {
    /// Has a file opened.
    pub(super) fn open_file(&mut self, client: ClientId, channel: usize, request: &Request) {
        let can_read = self.engines.is_own_core();
        let Some(state) = self.clients.get_mut(client) else { return };
        let Some(socket) = state.files().socket.clone() else {
            self.answer_file(client, channel, request.tag, Err(Errno::NOTCONN));
            return;
        };
        let place = if can_read { place_for_file(state) } else { Err(Errno::OPNOTSUPP) };
        let (slot, lease) = match place {
            Ok((slot, lease)) => (Some(slot), Ok(lease)),
            Err(errno) => (None, Err(errno)),
        };
        let (serial, _) = request.numbers();
        let memory = Arc::downgrade(state.memory());
        let asker = Asker { client, memory, slot, channel, tag: request.tag };
        // The passed descriptor is received also if the request is refused.
        match socket.open(Wanted { serial, lease }, asker, self.inbox.clone()) {
            Ok(()) => state.files().asked += 1,
            Err(errno) => self.answer_file(client, channel, request.tag, Err(errno)),
        }
    }

    /// Takes the result of opening a file.
    pub(super) fn file_opened(&mut self, asker: &Asker, file: rustix::io::Result<Arc<OpenFile>>) {
        let Some(state) = self.clients.get_mut(asker.client) else { return };
        if asker.memory.as_ptr() != Arc::as_ptr(state.memory()) {
            return; // another client by now
        }
        let (files, memory) = state.files_and_memory();
        files.asked = files.asked.saturating_sub(1);
        let slot = asker.slot.and_then(|at| Some((at, files.slots.get_mut(at)?)));
        let result = match (file, slot) {
            (Ok(file), Some((at, slot))) => {
                slot.generation = slot.generation.wrapping_add(1).max(1);
                slot.state = State::Open { file, taken: 0, last_used: self.now };
                let id = FileId::new(at as u16, slot.generation);
                memory.set_file(at, id.0);
                self.ticks.want();
                Ok(id)
            }
            (Ok(_), None) => Err(Errno::MFILE),
            (Err(error), slot) => {
                if let Some((_, slot)) = slot {
                    slot.state = State::Free;
                }
                Err(error)
            }
        };
        self.answer_file(asker.client, asker.channel, asker.tag, result);
    }

    /// Takes a client's new file socket.
    pub(super) fn add_file_socket(&mut self, client: ClientId, payer: Payer, socket: (OwnedFd, Lease)) {
        let Some(state) = self.clients.get_mut(client) else { return };
        match FileSocket::new(socket.0, socket.1, payer, &self.readers) {
            Ok(socket) => state.files().socket = Some(Arc::new(socket)),
            Err(error) => tracing::warn!(%error, "cannot start a thread: a client reads its files itself"),
        }
    }

    /// Moves a client's file socket to the reader of another payer.
    pub(super) fn move_file_socket(&mut self, client: ClientId, payer: Payer) {
        let Some(state) = self.clients.get_mut(client) else { return };
        let Some(socket) = &state.files().socket else { return };
        match self.readers.of(payer) {
            Ok(reader) => socket.set_reader(reader),
            Err(error) => tracing::warn!(%error, "cannot start a thread: files stay with another payer's"),
        }
    }

    fn answer_file(&mut self, client: ClientId, channel: usize, tag: u32, result: Result<FileId, Errno>) {
        let event = match result {
            Ok(id) => Event::answer(SocketId(0), tag, 0).with_number(id.0.into()),
            Err(errno) => {
                Metrics::add(&self.metrics.requests_refused, 1);
                Event::answer(SocketId(0), tag, errno.raw_os_error() as u32)
            }
        };
        self.post(client, channel, event);
    }

    /// Takes a send of a piece of a file.
    pub(super) fn take_file_send(&mut self, client: ClientId, request: &Request) -> Result<(), Violation> {
        let (offset, len) = request.numbers();
        let id = FileId(request.tag);
        // The count of a file's sends is in no shared word.
        self.marks.mark_client(client);
        let state = self.clients.get_mut(client).ok_or(Violation::File)?;
        let slot = state.files().slots.get_mut(usize::from(id.slot())).ok_or(Violation::File)?;
        let FileSlot { generation, state: State::Open { file, taken, last_used } } = slot else {
            return Err(Violation::File);
        };
        let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
        if *generation != id.generation() || len == 0 || len > MESSAGE_BYTES_MAX || end.is_none() {
            return Err(Violation::File);
        }
        self.bytes_taken += len;
        *taken = taken.wrapping_add(1);
        *last_used = self.now;
        let file = Arc::clone(file);
        self.accept(client, SocketId(request.socket), |flow| flow.accept_file(file, offset, len))
    }

    /// Closes files that were not sent for a while. Returns whether any stays open.
    pub(super) fn close_idle_files(&mut self) -> bool {
        let now = self.now;
        let marks = &self.marks;
        self.clients.with_ids().fold(false, |any, (id, client)| {
            let closes = || marks.mark_client(id);
            close_idle(client, now, closes) | any
        })
    }

    /// Has the reader read bytes that a flow found to be on a disk.
    pub(super) fn read_cold(&mut self, id: FlowId) {
        if let Some(read) = self.flows.get(id).and_then(Flow::take_cold) {
            Metrics::add(&self.metrics.files_cold, 1);
            read.start(id, self.inbox.clone());
        }
    }

    /// Takes the result of the reader's work.
    pub(super) fn cold_read(&mut self, id: FlowId, entry_seq: u16, whole: bool) {
        if !whole {
            self.fail_file(id);
        }
        let Some(flow) = self.flows.get(id) else { return };
        flow.end_cold();
        self.completed(id, entry_seq);
        self.resume(id);
    }

    /// Ends a flow whose file lacks bytes that were sent.
    pub(super) fn fail_file(&mut self, id: FlowId) {
        Metrics::add(&self.metrics.files_failed, 1);
        self.abort(id, SendEnd::by(Flow::failure()), Some(Flow::failure()));
    }
}

/// Takes a place for a file that is to be opened. Returns it with the lease that pays for the file.
fn place_for_file(client: &mut Client) -> rustix::io::Result<(usize, Lease)> {
    let (Files { slots, .. }, account) = client.files_and_account();
    let free = slots.iter().position(|slot| matches!(slot.state, State::Free));
    let at = free.unwrap_or(slots.len());
    if at == FILES_MAX {
        return Err(Errno::MFILE);
    }
    let lease = account.lease(Amounts::descriptor()).map_err(|_| Errno::MFILE)?;
    if at == slots.len() {
        slots.push(FileSlot::default());
    }
    slots[at].state = State::Opening;
    Ok((at, lease))
}

fn close_idle(client: &mut Client, now: Duration, closes: impl Fn()) -> bool {
    let mut any = false;
    let (files, memory) = client.files_and_memory();
    for (at, slot) in files.slots.iter_mut().enumerate() {
        let State::Open { taken, last_used, .. } = slot.state else { continue };
        if now.saturating_sub(last_used) > FILE_IDLE {
            closes();
            memory.set_file(at, 0);
            // SYNC POINT: file-dekker
            fence(Ordering::SeqCst);
            if memory.file_uses(at) == taken {
                slot.state = State::Free;
                continue;
            }
            memory.set_file(at, FileId::new(at as u16, slot.generation).0);
        }
        any = true;
    }
    any
}
