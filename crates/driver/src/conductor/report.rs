//! The admin socket: reports, and what `pd run` registers.
use super::client::{Client, RegionUse, SocketState};
use super::tenants::{container_group, Registered};
use super::{token, Conductor, Registration, TOKEN_REGISTERED};
use crate::admin::{self, Answer, Ask, ClientReport, ConnectionReport, Report};
use crate::identity::{self, network_namespace};
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::policy::{Path, Policy};
use pd_abi::counters::Gauges;
use rustix::event::epoll;
use rustix::net::{accept_with, SocketFlags};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest line that the admin socket takes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How long the conductor waits for an administrator's line.
const LINE_TIMEOUT: Duration = Duration::from_millis(200);

impl Conductor {
    pub(super) fn answer_admin(&mut self) {
        // Only the driver's own user and root can connect (mode 0600), and only they are heard that are in no
        // container (a container's root is root, too), so a short wait is no way in.
        loop {
            let socket = match accept_with(&self.admin, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(error) => {
                    self.pause_accepting(error);
                    return;
                }
            };
            let outside = Peer::of(&socket).and_then(|peer| peer.shares_pid_namespace()).unwrap_or(false);
            let stream = UnixStream::from(socket);
            if stream.set_read_timeout(Some(LINE_TIMEOUT)).is_err() {
                continue;
            }
            if !outside {
                Metrics::add(&self.metrics.requests_refused, 1);
                let answer = Answer::Error("the admin socket is not for processes in containers".to_owned());
                let _ = admin::send_with(&stream, &answer, &[]);
                continue;
            }
            let mut line = String::new();
            let read = BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line);
            let answer = match read.map_err(|e| e.to_string()).and_then(|_| {
                serde_json::from_str::<Ask>(&line).map_err(|e| format!("not a question of ours: {e}"))
            }) {
                Ok(Ask::List) => {
                    self.collect_reports();
                    Answer::Report(Box::new(self.report()))
                }
                Ok(Ask::Counters) => {
                    // A short line on a fresh socket: there is room for it.
                    let fds = [self.metrics.region().fd(), self.alive.0.as_fd()];
                    let _ = admin::send_with(&stream, &Answer::Counters, &fds);
                    continue;
                }
                Ok(Ask::Policy) => Answer::Policy(Box::new(self.policy_report())),
                Ok(Ask::Apply { text }) => match Policy::parse(&text) {
                    Ok(policy) => Answer::Applied { cut: self.apply(policy) },
                    Err(why) => Answer::Error(why.to_string()),
                },
                Ok(Ask::Register { name, tenant, pid, addresses }) => {
                    match self.register(pid, Registration { name, tenant, addresses }) {
                        Ok(()) => Answer::Done,
                        Err(why) => Answer::Error(why),
                    }
                }
                Err(why) => Answer::Error(why),
            };
            let mut text = serde_json::to_string(&answer).unwrap_or_default();
            text.push('\n');
            // A long report may need a slow reader's time: not the conductor's.
            let _ = std::thread::Builder::new()
                .name("pd-report".into())
                .spawn(move || (&stream).write_all(text.as_bytes()));
        }
    }

    fn register(&mut self, pid: u32, registration: Registration) -> Result<(), String> {
        let name = registration.name.clone();
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no such process")?;
        let error = |e: rustix::io::Errno| format!("process {pid} of container {name}: {e}");
        let pidfd = pidfd_open(raw, PidfdFlags::NONBLOCK).map_err(error)?;
        let (id, fd) = network_namespace(raw).map_err(error)?;
        self.tenants.enroll(&registration.tenant)?;
        let cgroup = container_group(raw, &name);
        self.names.enter(id, move || Box::new(move || identity::addresses(&fd).ok()));
        if let Err(errno) = self.names.register(id, registration, self.clock.now()) {
            self.names.leave(id);
            return Err(format!("container {name}: an address is held by another namespace ({errno})"));
        }
        // The registration ends with the process.
        epoll::add(&self.epoll, &pidfd, token(TOKEN_REGISTERED, 0), epoll::EventFlags::IN).map_err(error)?;
        if let Some(old) = self.registered.insert(id, Registered { pidfd, cgroup }) {
            let _ = epoll::delete(&self.epoll, &old.pidfd);
            self.names.leave(id);
        }
        self.sort_anew();
        Ok(())
    }

    pub(super) fn forget_registered(&mut self) {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let names = &mut self.names;
        let epoll = &self.epoll;
        self.registered.retain(|&id, Registered { pidfd, .. }| {
            let mut fds = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
            let exited = rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0);
            if exited {
                let _ = epoll::delete(epoll, &*pidfd);
                names.leave(id);
            }
            !exited
        });
        self.sort_anew();
    }

    /// Tells the readers of the counter region how things stand.
    pub(super) fn set_gauges(&self) {
        self.metrics.set_gauges(&Gauges {
            memory_used_bytes: self.pool.usage().0,
            rings_waiting: self.waiting_rings.len() as u64,
        });
    }

    fn report(&self) -> Report {
        let (memory_used_bytes, memory_budget_bytes) = self.pool.usage();
        let clients = self.clients.iter().enumerate();
        let clients =
            clients.filter_map(|(id, c)| Some(self.client_report(id as u16, c.as_ref()?))).collect();
        let connections = self.connections.iter().enumerate();
        let connections = connections.filter_map(|(index, entry)| {
            let entry = entry.as_ref()?;
            let side = |side: usize| -> Option<(u16, SocketAddr)> {
                let (client, slot) = entry.sides[side]?;
                match &self.client(client)?.socket(slot)?.state {
                    SocketState::Connected(connected) => Some((client, connected.local)),
                    _ => None,
                }
            };
            let flow = |at: u32| self.metrics.region().flow(2 * index as u32 + at, entry.serial);
            let flows = [0, 1].map(|at| flow(at).unwrap_or_default());
            Some(ConnectionReport {
                connection: index as u32,
                serial: entry.serial,
                path: if entry.is_direct() { Path::Direct } else { Path::Offloaded },
                from: side(0),
                to: side(1),
                bytes: flows.map(|flow| flow.bytes),
                messages: flows.map(|flow| flow.messages),
            })
        });
        let total = self.metrics.region().total();
        Report {
            memory_used_bytes,
            memory_budget_bytes,
            rings_waiting: self.waiting_rings.len(),
            clients,
            connections: connections.collect(),
            metrics: total.entries().map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }

    fn client_report(&self, id: u16, client: &Client) -> ClientReport {
        let registration = self.registration_of(&client.identity);
        let slots = client.slots();
        let listening = slots.iter().filter_map(|&slot| {
            let socket = client.socket(slot)?;
            match &socket.state {
                SocketState::Listen(listener) => Some((socket.bound?, listener.backlog.len())),
                _ => None,
            }
        });
        let ring_bytes = client.regions.iter().map(|entry| match entry {
            RegionUse::Receive(region, space) => u64::from(space.taken()) * region.pages.bytes() as u64,
            RegionUse::Send(..) => 0,
        });
        ClientReport {
            client: id,
            serial: client.serial,
            pid: client.identity.pid,
            uid: client.identity.uid,
            container: registration.map(|r| r.name.clone()),
            tenant: Some(self.tenants.name(client.tenant).to_owned()),
            channels: client.channels,
            regions: client.regions.len(),
            region_bytes: client.region_bytes,
            ring_bytes: ring_bytes.sum(),
            sockets: slots.len(),
            listening: listening.collect(),
        }
    }
}
