//! Containers: a command with network, pid, mount, uts and ipc namespaces of its own, an address on a
//! bridge, the names of the others there, and its CPU time counted. No image: the file system is the host's.
//!
//! [`Container::start`] returns when the command runs. Dropping the container kills it and removes its link,
//! its control group, its record, and the bridge if it was the last on a bridge made here. If this process is
//! killed, the container's processes die with it. The next [`Container::start`] of any process then removes
//! the rest.

pub mod address;
pub mod cgroup;
pub mod confine;
mod control;
pub mod enter;
mod filter;
pub mod hosts;
pub mod init;
pub mod jobs;
pub mod links;
pub mod netlink;
pub mod overlay;
pub mod stage;
pub mod state;
pub mod sweep;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use pd_driver::admin::{ask, Ask};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};

use address::{InterfaceAddress, DEFAULT_SUBNET};
use cgroup::{Cgroup, Limits};
use confine::Inside;
use control::{Channel, Message};
use jobs::{Lent, Terminal};
use overlay::Overlay;
use state::{Lock, ProcessId, Record};

use crate::signals::Caught;
use crate::tuning::Network;

/// Exit status of a container, or of `pd run`, that could not start the command.
pub const NOT_STARTED: u8 = 125;

const START_TIMEOUT_S: i64 = 10;

/// The description of a container to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Name and host name: letters, digits and `-`, unique on this machine.
    pub name: String,
    /// Address of the container; the lowest free one if `None`.
    pub address: Option<InterfaceAddress>,
    /// The tenant it belongs to.
    pub tenant: String,
    /// The bridge it is on, made if absent. A network has one of its own.
    pub bridge: String,
    /// The network of the policy that it is in.
    pub overlay: Option<Overlay>,
    /// The driver's socket, passed to the command as `PD_SOCKET`.
    pub socket: PathBuf,
    /// Tells whether there is to be a driver. Without one the container runs on kernel TCP.
    pub driver: bool,
    /// Tells whether the container keeps the rights of this program, and not only those that container engines allow.
    pub privileged: bool,
    /// Environment variables beside this program's.
    pub environment: Vec<(String, String)>,
    /// Limits of its resources.
    pub limits: Limits,
    /// Settings of its network namespace and its link.
    pub network: Network,
}

/// The command of a container.
#[derive(Debug)]
pub struct Invocation {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Standard input.
    pub stdin: Stdio,
    /// Standard output.
    pub stdout: Stdio,
    /// The terminal that standard input is, if it is one.
    pub terminal: Terminal,
}

/// A running container.
pub struct Container {
    stage: Child,
    lent: Lent,
    init_fd: OwnedFd,
    channel: Channel,
    addresses: (Ipv4Addr, Ipv6Addr),
    parts: Parts,
}

/// Objects outside the container's processes, which must be removed after them.
struct Parts {
    record: Record,
    cgroup: Option<Cgroup>,
    limits: Vec<Cgroup>,
}

impl Container {
    /// Starts a container; returns once its command runs.
    pub fn start(spec: &Spec, invocation: Invocation) -> Result<Container> {
        ensure!(rustix::process::getuid().is_root(), "containers need root; run pd as root (sudo)");
        check_name(&spec.name)?;
        links::check_bridge_name(&spec.bridge)?;
        let lock = Lock::acquire()?;
        sweep::sweep(&lock)?;
        let records = state::records()?;
        if let Some(other) = records.iter().find(|r| r.name == spec.name) {
            bail!(
                "a container named '{}' is running (held by process {}); choose another --name or end it",
                other.name,
                other.owner.pid
            );
        }
        let created;
        let mut subnet = spec.address.map_or(DEFAULT_SUBNET, |a| a.subnet);
        match &spec.overlay {
            Some(overlay) => {
                overlay::check(&spec.bridge)?;
                created = links::ensure_bare_bridge(&spec.bridge)?;
                overlay.note(&spec.bridge, &spec.socket.with_file_name("admin.sock"), &lock)?;
            }
            None => (subnet, created) = links::ensure_bridge(&spec.bridge, subnet)?,
        }
        if created {
            state::claim_bridge(&spec.bridge, &lock)?;
        }
        let taken: Vec<_> = records
            .iter()
            .filter(|r| r.bridge == spec.bridge)
            .filter_map(|r| Some((r.ipv4()?, r.name.clone())))
            .collect();
        let chosen = match &spec.overlay {
            Some(overlay) => overlay.choose(spec.address.map(|wanted| wanted.address), &taken),
            None => address::choose(subnet, &spec.bridge, spec.address, &taken),
        };
        let started = chosen.and_then(|address| Container::start_at(spec, address, invocation, &lock));
        if started.is_err() {
            state::release_bridges(&lock);
        }
        started
    }

    fn start_at(
        spec: &Spec,
        address: InterfaceAddress,
        invocation: Invocation,
        lock: &Lock,
    ) -> Result<Container> {
        let address6 = address.subnet.address6(address.address);
        let cgroup = Cgroup::create(&spec.name);
        let limits = cgroup::limit(cgroup.as_ref(), &spec.name, spec.limits)?;
        let mut environment = vec![
            ("PD_SOCKET".to_owned(), spec.socket.to_string_lossy().into_owned()),
            ("PD_CONTAINER".to_owned(), spec.name.clone()),
            ("PD_ADDRESS".to_owned(), address.address.to_string()),
        ];
        environment.extend(spec.environment.iter().cloned());
        let record = Record {
            name: spec.name.clone(),
            tenant: spec.tenant.clone(),
            bridge: spec.bridge.clone(),
            network: spec.overlay.as_ref().map(|overlay| overlay.name.clone()),
            address: address.to_string(),
            address6: format!("{address6}/64"),
            link: links::host_name(&spec.name),
            init: ProcessId::default(),
            netns_inode: 0,
            owner: ProcessId::own(),
            cgroup: cgroup.as_ref().map(|c| c.path().to_owned()),
            limits: limits.iter().map(|c| c.path().to_owned()).collect(),
            privileged: spec.privileged,
            environment,
            socket: spec.socket.clone(),
            command: invocation.command.iter().map(|c| c.to_string_lossy().into_owned()).collect(),
        };
        let mut parts = Parts { record, cgroup, limits };
        let lent = Lent::new(invocation.terminal);
        match Starting::run(&mut parts, invocation, spec, lock) {
            Ok(s) => Ok(Container {
                stage: s.stage,
                lent,
                init_fd: s.init_fd,
                channel: s.channel,
                addresses: (address.address, address6),
                parts,
            }),
            Err(e) => {
                parts.remove(lock);
                Err(e.context(format!("container '{}' did not start", spec.name)))
            }
        }
    }

    /// Waits until the command has ended and returns its exit status, 128 + n if signal n ended it.
    pub fn wait(&mut self) -> Result<i32> {
        Ok(stage::exit_code(self.stage.wait()?))
    }

    /// Handles the event that has made the container readable: returns its exit status if it has ended. A command that the
    /// terminal has stopped stops the caller's process group as well, and goes on when the caller does.
    ///
    /// # Errors
    /// If its helper reports a failure, or cannot be reached.
    pub fn turn(&mut self) -> Result<Option<i32>> {
        match self.channel.receive()? {
            None => self.wait().map(Some),
            Some(Message::Stopped { signal }) => {
                if let Some(terminal) = self.lent.stopped(signal) {
                    self.channel.send(&Message::Continue { terminal })?;
                }
                Ok(None)
            }
            other => bail!("unexpected on the container's control socket: {other:?}"),
        }
    }

    /// Passes a signal on to the command; one from the terminal to its process group, as the terminal does.
    pub fn pass_on(&self, caught: Caught) {
        // Fails only when the command is ending already.
        let _ = self.channel.send(&Message::Signal { signal: caught.signal, group: caught.from_terminal });
    }

    /// Returns the CPU time of all its processes so far; `None` where nothing counts it.
    pub fn cpu_usage(&self) -> Option<Duration> {
        self.parts.cgroup.as_ref()?.cpu_usage()
    }

    /// Returns the first process, as the host sees it.
    pub fn pid(&self) -> u32 {
        self.parts.record.init.pid
    }

    /// Returns the addresses on the bridge.
    pub fn addresses(&self) -> (Ipv4Addr, Ipv6Addr) {
        self.addresses
    }

    /// Returns the command's standard input, once, if a pipe was requested.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stage.stdin.take()
    }

    /// Returns the command's standard output, once, if a pipe was requested.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stage.stdout.take()
    }
}

/// Readable once the container has ended, or the terminal has stopped its command.
impl AsFd for Container {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.stream().as_fd()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Fails only if its first process has ended, and all others with it.
        let _ = pidfd_send_signal(&self.init_fd, Signal::KILL);
        let _ = self.stage.wait();
        match Lock::acquire() {
            Ok(lock) => self.parts.remove(&lock),
            Err(e) => eprintln!("pd: warning: container '{}' left traces: {e:#}", self.parts.record.name),
        }
    }
}

impl Parts {
    fn remove(&mut self, lock: &Lock) {
        links::delete(&self.record.link);
        self.cgroup = None;
        self.limits.clear();
        sweep::forget(&self.record, lock);
        state::release_bridges(lock);
    }
}

/// Parts of a container whose command has just started.
struct Starting {
    stage: Child,
    init_fd: OwnedFd,
    channel: Channel,
}

impl Starting {
    fn run(parts: &mut Parts, invocation: Invocation, spec: &Spec, lock: &Lock) -> Result<Starting> {
        let record = &mut parts.record;
        record.write(lock)?;
        hosts::refresh(&record.bridge, lock)?;
        let control = state::control_socket(&record.name);
        let _ = std::fs::remove_file(&control);
        let listener = UnixListener::bind(&control)
            .with_context(|| format!("cannot make the control socket {}", control.display()))?;
        let own = record.address.parse::<InterfaceAddress>().map_err(anyhow::Error::msg)?.subnet;
        let routes = spec.overlay.as_ref().map(|overlay| overlay.routes(own)).unwrap_or_default();
        let mut stage = Command::new(crate::own_exe())
            .arg("internal-container")
            .args(["--name", &record.name, "--address", &record.address, "--address6", &record.address6])
            .arg("--control")
            .arg(&control)
            .arg("--network")
            .arg(serde_json::to_string(&spec.network)?)
            .args(routes.iter().flat_map(|route| ["--route", route]))
            .arg("--")
            .args(&invocation.command)
            .stdin(invocation.stdin)
            .stdout(invocation.stdout)
            .spawn()
            .context("cannot start a copy of pd")?;
        let groups = parts.cgroup.iter().chain(&parts.limits);
        let connected = Starting::connect(&stage, &listener, record, groups, spec, invocation.terminal, lock);
        let _ = std::fs::remove_file(&control);
        let (init_fd, channel) = connected.inspect_err(|_| {
            let _ = stage.kill();
            let _ = stage.wait();
        })?;
        Ok(Starting { stage, init_fd, channel })
    }

    fn connect<'a>(
        stage: &Child,
        listener: &UnixListener,
        record: &mut Record,
        groups: impl Iterator<Item = &'a Cgroup>,
        spec: &Spec,
        terminal: Terminal,
        lock: &Lock,
    ) -> Result<(OwnedFd, Channel)> {
        let stage_fd = open_pid(stage.id())?;
        let (mut first, pid) = accept(listener, &stage_fd)?;
        ensure!(pid == stage.id(), "process {pid} answered in place of the container's helper");
        for group in groups {
            group.add(stage.id())?;
        }
        first.send(&Message::Proceed)?;
        first.expect(&Message::Unshared)?;
        links::delete(&record.link);
        links::create_pair(&record.link, &record.bridge, stage.id())?;
        spec.network.apply_to_link(&record.link)?;
        first.send(&Message::Proceed)?;
        let (mut channel, init_pid) = match accept(listener, &stage_fd) {
            Ok(accepted) => accepted,
            // The helper says why, if it could, before it ends.
            Err(e) => return first.expect(&Message::Started).and(Err(e)),
        };
        let init_fd = open_pid(init_pid)?;
        record.init = ProcessId::of(init_pid).context("the container's first process ended early")?;
        record.netns_inode = state::netns_inode(stage.id())?;
        record.write(lock)?;
        if spec.driver {
            register(record)?;
        }
        let inside = Inside {
            hosts: hosts::file(&record.bridge),
            admin_socket: record.admin_socket(),
            privileged: record.privileged,
            environment: record.environment.clone(),
            terminal,
        };
        channel.send(&Message::Begin { inside })?;
        channel.expect(&Message::Started)?;
        Ok((init_fd, channel))
    }
}

/// Tells the driver the container of the network namespace, before anything runs in it.
fn register(record: &Record) -> Result<()> {
    let admin_socket = record.admin_socket();
    let addresses = [&record.address, &record.address6].map(|text| {
        let address = text.split('/').next().unwrap_or_default();
        address.parse().with_context(|| format!("'{text}' is no address"))
    });
    let addresses = addresses.into_iter().collect::<Result<Vec<_>>>()?;
    let (name, tenant, pid) = (record.name.clone(), record.tenant.clone(), record.init.pid);
    let network = record.network.clone();
    match ask(&admin_socket, &Ask::Register { name, tenant, pid, addresses, network }) {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            bail!(
                "no driver at {}; start one (pd driver), or ask for none (--no-driver)",
                admin_socket.display()
            )
        }
        Err(error) => Err(error)
            .with_context(|| format!("the driver at {} did not take the container", record.socket.display())),
    }
}

fn open_pid(pid: u32) -> Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).context("process number zero")?;
    pidfd_open(pid, PidfdFlags::empty()).context("cannot open a pidfd; Linux 5.3 or later is needed")
}

/// Accepts a helper's connection, unless the helper ends or takes too long.
fn accept(listener: &UnixListener, stage: &OwnedFd) -> Result<(Channel, u32)> {
    let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stage, PollFlags::IN)];
    let timeout = Timespec { tv_sec: START_TIMEOUT_S, tv_nsec: 0 };
    while let Err(e) = poll(&mut fds, Some(&timeout)) {
        ensure!(e == rustix::io::Errno::INTR, "poll failed: {e}");
    }
    if fds[0].revents().is_empty() {
        ensure!(fds[1].revents().is_empty(), "the container's helper ended early");
        bail!("the container's helper did not answer within {START_TIMEOUT_S} s");
    }
    let (stream, _) = listener.accept().context("cannot accept the container's helper")?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).context("cannot identify the helper")?;
    Ok((Channel::new(stream), peer.pid.as_raw_nonzero().get() as u32))
}

/// Returns whether `name` can name a container.
///
/// # Errors
/// The allowed form, if the name is wrong.
pub fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
    ensure!(
        (1..=63).contains(&name.len()) && name.chars().all(good) && !name.starts_with('-'),
        "container name '{name}' is not usable; use 1 to 63 letters, digits or '-', the first no '-'"
    );
    Ok(())
}
