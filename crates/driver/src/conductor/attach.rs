//! Attaching: new clients, their frames, their memory.
use super::client::{Client, Phase, RegionUse};
use super::{token, Conductor, TOKEN_PIDFD, TOKEN_SOCKET};
use crate::identity::{self, Identity};
use crate::memory::{ClientMemory, Exhausted};
use crate::messages::{ClientId, NewChannel, Process, ToMover, Violation};
use crate::metrics::Metrics;
use crate::peer::refuse_descriptors;
use crate::settings::Settings;
use crate::StartError;
use pd_abi::limits::{CHANNELS_MAX, MESSAGE_BYTES_MAX, PAGE_BYTES, REGIONS_MAX};
use pd_abi::{Frame, FrameKind};
use pd_shm::{attach, memfd};
use rustix::event::{epoll, eventfd, EventfdFlags};
use rustix::fs::{chmod, chown, Gid, Mode};
use rustix::io::Errno;
use rustix::net::{
    accept_with, bind, connect, listen as listen_on, socket_with, sockopt, AddressFamily, RecvFlags,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::pipe::{pipe_with, PipeFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Attach sockets of one network namespace, so that one container cannot keep others out.
const CLIENTS_PER_NAMESPACE_MAX: usize = 1024;
/// Connections that may wait to be attached.
const ATTACH_BACKLOG: i32 = 1024;
/// Memory for frames that a client has not read: for a thousand receive regions, which it reads of when bytes come.
const FRAMES_UNREAD_BYTES: usize = 1 << 20;

/// Makes the attach socket and the admin socket.
pub fn listen(settings: &Settings) -> Result<(OwnedFd, OwnedFd), StartError> {
    let attach = listen_at(&settings.socket, SocketType::SEQPACKET)?;
    chmod(&settings.socket, Mode::from_raw_mode(settings.socket_mode))?;
    if let Some(group) = settings.socket_group {
        chown(&settings.socket, None, Some(Gid::from_raw(group)))?;
    }
    let admin = listen_at(&settings.admin_socket, SocketType::STREAM)?;
    chmod(&settings.admin_socket, Mode::RUSR | Mode::WUSR)?;
    Ok((attach, admin))
}

fn listen_at(path: &Path, kind: SocketType) -> Result<OwnedFd, StartError> {
    let at = |errno| StartError::Socket { path: path.to_owned(), errno };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| at(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    }
    let address = SocketAddrUnix::new(path).map_err(at)?;
    let make = || socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    if path.exists() {
        let probe = make().map_err(at)?;
        if !matches!(connect(&probe, &address), Err(Errno::CONNREFUSED | Errno::NOENT)) {
            return Err(StartError::Running { path: path.to_owned() });
        }
        // Left behind by a driver that was killed.
        rustix::fs::unlink(path).map_err(at)?;
    }
    let socket = make().map_err(at)?;
    bind(&socket, &address).map_err(at)?;
    // Where the kernel can do that (Linux 6.16): descriptors do not even get here, sent before the accept or after.
    let _ = refuse_descriptors(&socket);
    listen_on(&socket, ATTACH_BACKLOG).map_err(at)?;
    Ok(socket)
}

impl Conductor {
    pub(super) fn welcome_clients(&mut self) {
        while self.accept_again.is_none() {
            let socket = match self.unidentified.take() {
                Some(socket) => Ok(socket),
                None => accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK),
            };
            match socket {
                Ok(socket) => self.welcome(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    if !self.pause_accepting(error) {
                        tracing::warn!(%error, "cannot accept a client");
                    }
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd) {
        let identified = Identity::of_peer(&socket).and_then(|identity| {
            let fd = rustix::io::fcntl_dupfd_cloexec(&identity.namespace_fd, 0)?;
            Ok((identity, fd))
        });
        let (identity, fd) = match identified {
            Ok(identified) => identified,
            Err(error) => {
                if self.pause_accepting(error) {
                    self.unidentified = Some(socket);
                } else {
                    tracing::debug!(%error, "a client left before it was identified");
                }
                return;
            }
        };
        let namespace = identity.namespace;
        let same = self.clients.iter().flatten().filter(|c| c.identity.namespace == namespace).count();
        if self.attached >= self.settings.clients_max || same >= CLIENTS_PER_NAMESPACE_MAX {
            Metrics::add(&self.metrics.clients_cut_off, 1);
            let frame = Frame::new(FrameKind::Error)
                .with_error(Errno::USERS.raw_os_error() as u32, "too many clients attached (clients_max)");
            let _ = attach::send(&socket, &frame, &[], SendFlags::DONTWAIT);
            // Closing with its greeting unread would tell the client of a reset instead.
            let _ = attach::receive(&socket, RecvFlags::DONTWAIT);
            return;
        }
        // Best effort, as it takes CAP_NET_ADMIN.
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, FRAMES_UNREAD_BYTES);
        let id = match self.clients.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.clients.push(None);
                self.clients.len() - 1
            }
        } as ClientId;
        let watched = epoll::add(&self.epoll, &socket, token(TOKEN_SOCKET, id), epoll::EventFlags::IN)
            .and_then(|()| {
                epoll::add(&self.epoll, &identity.pidfd, token(TOKEN_PIDFD, id), epoll::EventFlags::IN)
            });
        if let Err(error) = watched {
            tracing::warn!(%error, "cannot watch a client");
            return;
        }
        self.names.enter(namespace, move || {
            Box::new(move || {
                let warn =
                    |error: &_| tracing::warn!(%error, "cannot read the addresses of a network namespace");
                identity::addresses(&fd).inspect_err(warn).ok()
            })
        });
        self.tenants.look();
        let tenant = self.tenant_of(&identity);
        let mover = self.families.enter(identity.pid, self.movers.len());
        self.serial += 1;
        self.clients[id as usize] = Some(Client::new(self.serial, identity, tenant, socket, mover));
        self.attached += 1;
    }

    pub(super) fn read_frames(&mut self, id: ClientId) {
        loop {
            let Some(client) = self.client(id) else { return };
            match attach::receive(&client.socket, RecvFlags::DONTWAIT) {
                Ok(Some((frame, fds))) => {
                    // No client has descriptors to give.
                    let gives = !fds.is_empty();
                    attach::close_elsewhere(fds);
                    if gives || self.take_frame(id, &frame).is_err() {
                        self.bury(id, Some(Violation::Frame));
                        return;
                    }
                }
                Ok(None) | Err(Errno::CONNRESET) => return self.bury(id, None),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => return self.bury(id, Some(Violation::Frame)),
            }
        }
    }

    fn take_frame(&mut self, id: ClientId, frame: &Frame) -> Result<(), Violation> {
        let kind = frame.checked_kind().ok_or(Violation::Frame)?;
        let client = self.client_mut(id).ok_or(Violation::Frame)?;
        match (&client.phase, kind) {
            (Phase::Greeting, FrameKind::Hello) => self.greet(id),
            (Phase::Mapping(control), FrameKind::Mapped) if frame.id == Frame::REGION_CONTROL => {
                memfd::seal_against_all(control).map_err(|_| Violation::Frame)?;
                client.phase = Phase::Attached;
                self.tell_client(id, &Frame::new(FrameKind::Ready).with_id(frame.id), &[]);
                Metrics::add(&self.metrics.clients_attached, 1);
            }
            (Phase::Attached, FrameKind::Channel) => self.add_channel(id),
            (Phase::Attached, FrameKind::SendRegion) => self.add_send_region(id, frame.bytes),
            (Phase::Attached, FrameKind::Mapped) => self.seal_send_region(id, frame.id)?,
            (Phase::Attached, FrameKind::WakePipe) => self.add_pipe(id, frame.id as usize)?,
            (Phase::Attached, FrameKind::Twin) => self.twin(id, frame.id as usize, &frame.twin())?,
            (Phase::Attached, FrameKind::DirectRing | FrameKind::DirectMapped | FrameKind::PeerRing) => {
                self.direct_frame(id, kind, frame.id)?;
            }
            (Phase::Leaving, _) => {}
            _ => return Err(Violation::Frame),
        }
        Ok(())
    }

    fn greet(&mut self, id: ClientId) {
        let (memory, fds) = match ClientMemory::new(id.into()) {
            Ok(made) => made,
            Err(errno) => {
                return self.refuse(id, errno, "no memory or descriptors left for the control region")
            }
        };
        let memory = Arc::new(memory);
        let [control, status] = fds;
        let Ok(keep) = control.try_clone() else {
            return self.refuse(id, Errno::MFILE, "no descriptors left in the driver");
        };
        let Some(client) = self.client_mut(id) else { return };
        client.memory = Some(Arc::clone(&memory));
        client.phase = Phase::Mapping(keep);
        let mover = client.mover;
        let process = Process { pid: client.identity.pid, pidfd: Arc::clone(&client.identity.pidfd) };
        self.movers.send(mover, ToMover::AddClient { client: id, memory, process });
        self.tell_client(id, &Frame::new(FrameKind::Welcome).with_id(id.into()), &[control, status]);
    }

    fn add_channel(&mut self, id: ClientId) {
        let Some(client) = self.client_mut(id) else { return };
        let (index, mover) = (client.channels, client.mover);
        if index >= CHANNELS_MAX {
            return self.refuse(id, Errno::NOSPC, "no channels left: share those there are");
        }
        let Some(memory) = client.memory.clone() else { return };
        let made = memory.channel(index).and_then(|rings| {
            let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let theirs = doorbell.try_clone().map_err(|_| Errno::MFILE)?;
            Ok((rings, doorbell, theirs))
        });
        match made {
            Ok(((requests, events), doorbell, theirs)) => {
                client.channels += 1;
                let new = NewChannel { client: id, channel: index, requests, events, doorbell };
                self.movers.send(mover, ToMover::AddChannel(Some(Box::new(new))));
                self.tell_client(id, &Frame::new(FrameKind::Channel).with_id(index as u32), &[theirs]);
            }
            Err(errno) => self.refuse(id, errno, "no memory or descriptors for a channel"),
        }
    }

    fn add_send_region(&mut self, id: ClientId, wanted: u64) {
        let budget = self.settings.client_budget_bytes;
        let pool = Arc::clone(&self.pool);
        let Some(client) = self.client_mut(id) else { return };
        let number = client.regions.len();
        if wanted == 0 || wanted > MESSAGE_BYTES_MAX || number >= REGIONS_MAX {
            return self.refuse(id, Errno::NOMEM, "a send region has 1 byte to 1 GiB; a client 4096 of them");
        }
        let bytes = wanted.next_multiple_of(PAGE_BYTES as u64);
        let made = match client.region_bytes.checked_add(bytes) {
            Some(sum) if sum <= budget => pool.send_region(bytes),
            _ => Err(Exhausted::Budget { budget }),
        };
        match made {
            Ok((region, fd)) => {
                let len = region.map.len() as u64;
                let frame = Frame::new(FrameKind::SendRegion)
                    .with_id(number as u32)
                    .with_bytes(len, region.pages.bytes() as u64);
                let Ok(keep) = fd.try_clone() else {
                    return self.refuse(id, Errno::MFILE, "no descriptors left in the driver");
                };
                client.region_bytes += len;
                client.regions.push(RegionUse::Send(region, Some(keep)));
                self.tell_client(id, &frame, &[fd]);
            }
            Err(Exhausted::Budget { budget: limit }) if limit == budget => {
                self.refuse(id, Errno::NOMEM, "client's memory exhausted: raise memory.client_budget_bytes");
            }
            Err(exhausted) => self.refuse(id, Errno::NOMEM, &exhausted.to_string()),
        }
    }

    fn seal_send_region(&mut self, id: ClientId, number: u32) -> Result<(), Violation> {
        let client = self.client_mut(id).ok_or(Violation::Frame)?;
        let Some(RegionUse::Send(region, fd)) = client.regions.get_mut(number as usize) else {
            return Err(Violation::Frame);
        };
        let fd = fd.take().ok_or(Violation::Frame)?;
        memfd::seal_against_all(&fd).map_err(|_| Violation::Frame)?;
        // Between its making and now the client may have punched holes: every page exists again.
        region.map.populate(0, region.map.len()).map_err(|_| Violation::Frame)?;
        let map = Arc::clone(&region.map);
        let mover = client.mover;
        self.movers.send(mover, ToMover::AddRegion { client: id, region: number as u16, map });
        self.tell_client(id, &Frame::new(FrameKind::Ready).with_id(number), &[]);
        Ok(())
    }

    fn add_pipe(&mut self, id: ClientId, channel: usize) -> Result<(), Violation> {
        let client = self.client(id).ok_or(Violation::Frame)?;
        if channel >= client.channels {
            return Err(Violation::Frame);
        }
        let mover = client.mover;
        match pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) {
            Ok((reader, writer)) => {
                self.movers.send(mover, ToMover::AddPipe { client: id, channel, pipe: Some(writer) });
                self.tell_client(id, &Frame::new(FrameKind::WakePipe).with_id(channel as u32), &[reader]);
            }
            Err(errno) => self.refuse(id, errno, "no descriptors left in the driver"),
        }
        Ok(())
    }

    pub(super) fn refuse(&mut self, id: ClientId, errno: Errno, reason: &str) {
        Metrics::add(&self.metrics.requests_refused, 1);
        let frame = Frame::new(FrameKind::Error).with_error(errno.raw_os_error() as u32, reason);
        self.tell_client(id, &frame, &[]);
    }

    /// Sends a frame; a client that does not read its attach socket is cut off.
    pub(super) fn tell_client(&mut self, id: ClientId, frame: &Frame, fds: &[OwnedFd]) {
        if !self.send_frame(id, frame, fds) {
            self.bury(id, Some(Violation::Deaf));
        }
    }

    pub(super) fn send_frame(&self, id: ClientId, frame: &Frame, fds: &[OwnedFd]) -> bool {
        let Some(client) = self.client(id) else { return true };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        !matches!(
            attach::send(&client.socket, frame, &fds, SendFlags::DONTWAIT),
            Err(Errno::AGAIN | Errno::TOOMANYREFS)
        )
    }
}
