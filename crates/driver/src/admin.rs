//! Messages of the driver's admin socket: one JSON object a line, each way.
use crate::containers::Container;
use crate::memory::Standing;
use crate::openers;
pub use crate::pipes::report::{
    PipeReport, PipesReport, PortReport, PortSpec, TapOf, TapReport, TenantCounts, TenantPipes,
};
use crate::policy::via::OnFailure;
use crate::policy::{moved, Balance, Path as BytesPath};
use ipnet::IpNet;
use pd_shm::counters::CounterView;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::net::{
    recvmsg, sendmsg, sockopt, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Error, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most descriptors of an answer.
const FDS_MAX: usize = 5;
/// Ring of a tap: some milliseconds of frames at the rate of a busy agent.
const TAP_RING_BYTES: u64 = 4 << 20;

/// A question or an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Everything there is: [`Report`].
    List,
    /// The counter region: [`counters`].
    Counters,
    /// Connections and processes that stay on the kernel, with reasons: [`KernelReport`].
    Kernel,
    /// The policy in force and the tenants' accounts: [`PolicyReport`].
    Policy,
    /// Puts a policy in force.
    Apply {
        /// The text of a policy file.
        text: String,
    },
    /// The network namespace of process `pid` belongs to a container with these addresses.
    Register {
        /// The container's name.
        name: String,
        /// The container's tenant.
        tenant: String,
        /// A process in it.
        pid: u32,
        /// The container's addresses.
        addresses: Vec<IpAddr>,
        /// The network of the policy that it is run in; none: as the policy says.
        #[serde(default)]
        network: Option<String>,
    },
    /// Facts that a container in a network of the policy needs: [`NetworkReport`].
    Network {
        /// The network's name.
        name: String,
    },
    /// Makes a port for pipes.
    PortAdd {
        /// The port's name.
        name: String,
        /// Kind of the port.
        port: PortSpec,
    },
    /// Removes a port; its pipes end.
    PortRemove {
        /// The port's name; of a link, without the end.
        name: String,
    },
    /// Ports and pipes: [`PipesReport`].
    Pipes,
    /// Asks whether a tenant may have pipes on these ports: [`Answer::Done`], or the reason why not.
    MayUse {
        /// The tenant.
        tenant: String,
        /// Names of ports.
        ports: Vec<String>,
    },
    /// Another driver is to take this one's place: [`Answer::Offer`]. Carries the versions of the handed-over state and of the memory
    /// layout that the other driver knows.
    TakeOver {
        /// Version of the handed-over state.
        format: u32,
        /// [`pd_abi::VERSION`].
        abi: u32,
    },
    /// Copies frames into memory; the answer has its descriptors: [`tap`].
    Tap {
        /// The port or pipe whose frames are copied.
        of: TapOf,
        /// Most bytes of each frame.
        snap_bytes: usize,
    },
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// Refusal, with the reason.
    Error(String),
    /// To [`Ask::Counters`], with two descriptors: the region, and a pipe that hangs up when the driver ends.
    Counters,
    /// To [`Ask::PortAdd`] of a port that is made of descriptors: send them with a byte, and another answer follows.
    Descriptors,
    /// To [`Ask::List`].
    Report(Box<Report>),
    /// To [`Ask::Kernel`].
    Kernel(Box<KernelReport>),
    /// To [`Ask::Policy`].
    Policy(Box<PolicyReport>),
    /// To [`Ask::Network`].
    Network(Box<NetworkReport>),
    /// To [`Ask::Pipes`].
    Pipes(Box<PipesReport>),
    /// To [`Ask::Tap`], with five descriptors: three files, a doorbell, and a pipe whose end ends the tap. The asker maps them and
    /// sends a line; a second answer follows.
    Tap,
    /// To [`Ask::TakeOver`]: the bytes that follow are for the other driver.
    Offer {
        /// The text of the policy in force, within the driver.
        policy: Option<String>,
    },
    /// To [`Ask::Apply`]: done.
    Applied {
        /// Connections that it denies, and ended.
        cut: u64,
        /// Connections on the kernel that it denies, and ended.
        #[serde(default)]
        cut_on_kernel: u64,
        /// Connections on the kernel that it denies and could not end.
        #[serde(default)]
        kept_on_kernel: u64,
        /// Reason why it does not bind connections on the kernel.
        #[serde(default)]
        not_on_kernel: Option<String>,
    },
}

/// A network of the policy, as `pd run --network` needs it.
#[derive(Debug, Serialize, Deserialize)]
pub struct NetworkReport {
    /// Ranges that containers get their addresses of, like `10.0.0.0/24`.
    pub ranges: Vec<String>,
    /// The network's addresses that mean those of other networks.
    pub maps: Vec<MapReport>,
}

/// Addresses of a network that mean those of another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MapReport {
    /// The addresses, like `10.9.0.0/24`.
    pub prefix: String,
    /// The other network.
    pub to: String,
    /// The other network's addresses that they mean.
    pub at: String,
}

impl MapReport {
    /// Returns the address that means `ip` of the other network, if one does.
    pub fn seen(&self, ip: IpAddr) -> Option<IpAddr> {
        let (prefix, at): (IpNet, IpNet) = (self.prefix.parse().ok()?, self.at.parse().ok()?);
        at.contains(&ip).then(|| moved(ip, &prefix))
    }
}

/// The driver at a moment.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Bytes of all regions.
    pub memory_used_bytes: u64,
    /// Most bytes that all regions may have.
    pub memory_budget_bytes: u64,
    /// Flows that wait for memory.
    pub rings_waiting: usize,
    /// Clients attached.
    pub clients: Vec<ClientReport>,
    /// Connections.
    pub connections: Vec<ConnectionReport>,
    /// Connections that are or were on the kernel, by the label of their [`pd_abi::KernelReason`], as the clients
    /// report. Counts all clients that there are or were.
    pub kernel_connections_by_reason: BTreeMap<String, u64>,
    /// Processes that were not let in since the driver's start, by the label of their [`crate::Refusal`].
    #[serde(default)]
    pub attaches_refused_by_reason: BTreeMap<String, u64>,
    /// State of the policy on the kernel.
    #[serde(default)]
    pub policy_on_kernel: KernelHalf,
    /// Services of the policy.
    #[serde(default)]
    pub services: Vec<ServiceReport>,
    /// Rules of the policy that lead through proxies.
    #[serde(default)]
    pub sidecars: Vec<SidecarReport>,
    /// Counters, by the names that [`pd_abi::counters::AgentCounters`] gives them.
    pub metrics: BTreeMap<String, u64>,
    /// The take-over by which the driver began, if it took another one's place.
    #[serde(default)]
    pub taken_over: Option<TakenOver>,
    /// More threads want to run on the machine than it has cores, so that clients do not spin for long.
    #[serde(default)]
    pub cores_scarce: bool,
}

/// A completed take-over.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct TakenOver {
    /// Time for which no client was served, from the former driver's last work to this one's first, in microseconds.
    pub pause_us: u64,
    /// Attempts of the former driver, each of which stopped it for a moment. The last one succeeded.
    pub attempts: u32,
    /// Time for which the former driver was stopped by the attempts before the last one, in microseconds.
    pub earlier_us: u64,
    /// Clients that came.
    pub clients: usize,
    /// Connections that came.
    pub connections: usize,
    /// Descriptors that came.
    pub descriptors: usize,
    /// Bytes of the state that came.
    pub state_bytes: usize,
}

/// A client.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClientReport {
    /// The client's number.
    pub client: u16,
    /// A number that no other client of this driver has or will have.
    pub serial: u64,
    /// The client's process.
    pub pid: u32,
    /// The client's user.
    pub uid: u32,
    /// The client's container, if `pd run` made it. `pd` fills in the names of other containers.
    pub container: Option<String>,
    /// The client's network, if the policy puts it into one.
    #[serde(default)]
    pub network: Option<String>,
    /// The image of the client's container. Empty in the driver, which reads no files of engines; `pd` fills it in.
    #[serde(default)]
    pub image: Option<String>,
    /// The pod of the client's container. `pd` fills it in.
    #[serde(default)]
    pub pod: Option<String>,
    /// The container that its control group names.
    #[serde(default)]
    pub engine_container: Option<Container>,
    /// The client's tenant.
    pub tenant: Option<String>,
    /// Channels.
    pub channels: usize,
    /// Regions.
    pub regions: usize,
    /// Bytes of them.
    pub region_bytes: u64,
    /// Bytes of them that are receive rings in use.
    pub ring_bytes: u64,
    /// Sockets in all.
    pub sockets: usize,
    /// Addresses that it listens on, with the connections waiting.
    pub listening: Vec<(SocketAddr, usize)>,
    /// The client's connections that are or were on the kernel, by the label of their [`pd_abi::KernelReason`], as the client
    /// reports.
    pub kernel_connections_by_reason: BTreeMap<String, u64>,
}

/// Connections and processes that stay on the kernel, as far as the driver knows.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KernelReport {
    /// Clients.
    pub clients: Vec<KernelClient>,
    /// Inodes of kernel sockets whose bytes go by the fabric.
    pub twins: Vec<u32>,
    /// Processes that were refused lately.
    pub refused: Vec<RefusedReport>,
}

/// A client's connections on the kernel, as the client reports them.
#[derive(Debug, Serialize, Deserialize)]
pub struct KernelClient {
    /// The client's process.
    pub pid: u32,
    /// Inode of a socket, and the number of its [`pd_abi::KernelReason`].
    pub connections: Vec<(u32, u32)>,
}

/// A process that the driver refused or cut off.
#[derive(Debug, Serialize, Deserialize)]
pub struct RefusedReport {
    /// Process id; another process may have it now.
    pub pid: u32,
    /// User id of the process.
    pub uid: u32,
    /// The errno that the process received.
    pub errno: i32,
    /// The reason, as a sentence.
    pub why: String,
    /// The reason in one word, if the process was not let in: see [`crate::Refusal`].
    #[serde(default)]
    pub reason: Option<String>,
    /// Seconds since the refusal.
    pub seconds_ago: f64,
}

/// A connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// The connection's number.
    pub connection: u32,
    /// A number that no other connection of this driver has or will have.
    pub serial: u64,
    /// The connecting client and its address, unless gone.
    pub from: Option<(u16, SocketAddr)>,
    /// The accepting client and its address, unless gone.
    pub to: Option<(u16, SocketAddr)>,
    /// The path of the connection's bytes.
    pub path: BytesPath,
    /// Bytes delivered, there and back; on the direct path, bytes that the clients say they have sent.
    pub bytes: [u64; 2],
    /// Sends completed, there and back.
    pub messages: [u64; 2],
    /// Address that the connecting side asked for, if that is a service or a rule led the connection to a proxy.
    #[serde(default)]
    pub asked: Option<SocketAddr>,
}

/// The policy in force, and its effects.
#[derive(Debug, Serialize, Deserialize)]
pub struct PolicyReport {
    /// The file that the driver reads at its start and on `SIGHUP`.
    pub file: Option<PathBuf>,
    /// Every tenant that the driver has heard of, with its account since the driver's start.
    pub tenants: Vec<TenantReport>,
    /// Path of bytes without rates, where no rule names one.
    pub path: BytesPath,
    /// Rules in their order, and the default behind them.
    pub rules: Vec<RuleReport>,
    /// Services.
    pub services: Vec<ServiceReport>,
    /// Networks, with their members.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Rule of attaching, a sentence for each entry and for the default.
    #[serde(default)]
    pub attach: Vec<String>,
    /// Processes that were not let in since the driver's start, by the label of their [`crate::Refusal`].
    #[serde(default)]
    pub attaches_refused_by_reason: BTreeMap<String, u64>,
    /// Rules that lead through proxies.
    #[serde(default)]
    pub sidecars: Vec<SidecarReport>,
    /// State of the policy on the kernel.
    #[serde(default)]
    pub kernel: KernelHalf,
}

/// The kernel's half of a policy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KernelHalf {
    /// Tells whether the policy is in force.
    pub in_force: bool,
    /// Reason why it is not in force, though the policy binds connections on the kernel.
    pub why_not: Option<String>,
    /// Parts of the policy that the kernel cannot hold, a sentence for each.
    pub unbound: Vec<String>,
}

/// A tenant.
#[derive(Debug, Serialize, Deserialize)]
pub struct TenantReport {
    /// The tenant's name.
    pub name: String,
    /// The policy's terms for the tenant; none, if it does not name the tenant.
    pub policy: Option<String>,
    /// The tenant's account.
    #[serde(flatten)]
    pub account: Account,
    /// Times that the tenant's flows waited for tokens, since its limits came into force.
    pub rate_waits: u64,
    /// Resources that the tenant holds; of the default tenant, those that each user holds.
    pub holdings: Vec<HoldingReport>,
}

/// Resources of the driver that a tenant, or a user of the default one, holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HoldingReport {
    /// The user, of the default tenant.
    pub user: Option<u32>,
    /// Clients.
    pub clients: StandingReport,
    /// Descriptors of the driver.
    pub descriptors: StandingReport,
    /// Bytes of regions, direct rings, and control and status regions.
    pub memory_bytes: StandingReport,
}

/// State of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingReport {
    /// Amount held.
    pub used: u64,
    /// Amount that may be held at the moment.
    pub max: u64,
    /// Amount reserved for the holder.
    pub reserved: u64,
    /// Requests for more that were refused.
    pub refused: u64,
}

impl From<Standing> for StandingReport {
    fn from(Standing { used, most, reserved, refused }: Standing) -> Self {
        Self { used, max: most, reserved, refused }
    }
}

/// Actions of a tenant's clients since the driver started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Open connections that they have made.
    pub connections_open: u64,
    /// Connections that they have made.
    pub connections_made: u64,
    /// Connections made to them.
    pub connections_accepted: u64,
    /// Connections that they asked for and the policy denied.
    pub connections_denied: u64,
    /// Connections that they asked for beyond `connections_max`.
    pub connections_over_quota: u64,
    /// Bytes that they sent and that were delivered.
    pub bytes_sent: u64,
    /// Bytes delivered to them.
    pub bytes_received: u64,
    /// Their sends completed.
    pub messages_sent: u64,
    /// Sends to them completed.
    pub messages_received: u64,
}

/// A rule.
#[derive(Debug, Serialize, Deserialize)]
pub struct RuleReport {
    /// The rule, as text.
    pub rule: String,
    /// Connects that the rule decided since it came into force.
    pub hits: u64,
}

/// A service. Counts are kept while the policy has the service and its backends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceReport {
    /// The service's address.
    pub address: SocketAddr,
    /// Method by which a backend is chosen.
    pub balance: Balance,
    /// Seconds for which a client keeps its backend.
    pub affinity_seconds: Option<u64>,
    /// Connections through the service. `connections_failed`: connections that no backend could take.
    #[serde(flatten)]
    pub counts: ServiceCounts,
    /// Backends that the service leads to.
    pub backends: Vec<BackendReport>,
}

/// A backend of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendReport {
    /// The backend's address.
    pub address: SocketAddr,
    /// The backend's share, relative to other weights.
    pub weight: u32,
    /// Set if the backend gets no new connections.
    pub drain: bool,
    /// Tells whether a native client finds a listener there.
    pub on_fabric: bool,
    /// Tells whether a known container has the address and no listener on the kernel.
    pub no_listener: bool,
    /// Tells whether the backlog of the backend's listener on the kernel is full.
    pub backlog_full: bool,
    /// Fault that a probe has found, if any.
    pub probe: Option<ProbeFailure>,
    /// Connections to the backend through the service. `connections_failed`: connections on the kernel that failed.
    #[serde(flatten)]
    pub counts: ServiceCounts,
}

/// Fault that a probe of a backend has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeFailure {
    /// The connection was refused.
    Refused,
    /// No answer came in time.
    TimedOut,
    /// The answer has another status than 2xx or 3xx, or is not HTTP.
    BadAnswer,
}

/// A rule that leads through proxies. Counts are kept while the policy has the rule, word for word.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SidecarReport {
    /// The rule's number, from 1 on.
    pub rule: usize,
    /// Fate of connections while a proxy is not there.
    pub on_failure: OnFailure,
    /// Connects that went on without a proxy.
    pub connections_bypassed: u64,
    /// Connections to the rule's proxies. `connections_failed`: connections refused for lack of a proxy.
    #[serde(flatten)]
    pub counts: ServiceCounts,
    /// The rule's proxies, in order.
    pub proxies: Vec<ProxyReport>,
}

/// A proxy of a rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProxyReport {
    /// The proxy, as the rule names it.
    pub proxy: String,
    /// The proxy's addresses, if they are known.
    pub addresses: Vec<IpAddr>,
    /// Tells whether a native client finds a listener there.
    pub on_fabric: bool,
    /// Tells whether the proxy has a listener on the kernel.
    pub on_kernel: bool,
    /// Connections that were led to the proxy. `connections_failed`: connections that failed, and connections made while the
    /// proxy was absent.
    #[serde(flatten)]
    pub counts: ServiceCounts,
}

/// Counts of a service or a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCounts {
    /// Connections made.
    pub connections_made: u64,
    /// Connections that are open.
    pub connections_open: u64,
    /// Failed connections; see the field with these counts for their meaning.
    pub connections_failed: u64,
    /// Bytes to backends, of connections that are over.
    pub bytes_sent: u64,
    /// Bytes from backends, likewise.
    pub bytes_received: u64,
}

/// A driver's counters, read from its memory.
#[derive(Debug)]
pub struct Counters {
    /// The region.
    pub view: CounterView,
    /// The driver's process, if this one can see it.
    pub pid: Option<u32>,
    alive: OwnedFd,
}

impl Counters {
    /// Tells whether the driver still runs. After its end the region holds its last counts.
    pub fn is_live(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Nothing is ever written: readiness means the driver's end.
        !poll(&mut [PollFd::new(&self.alive, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

/// Asks the driver at `socket` for its counters. One call is enough: the region can be read any number of times.
///
/// # Errors
/// If there is no driver, or it is of another version.
pub fn counters(socket: &Path) -> std::io::Result<Counters> {
    let stream = connect(socket, &Ask::Counters)?;
    let (answer, fds) = receive_with(&stream)?;
    if let Answer::Error(why) = answer {
        return Err(Error::other(why));
    }
    let mut fds = fds.into_iter();
    let (Some(region), Some(alive)) = (fds.next(), fds.next()) else {
        return Err(Error::other("the driver sent no counters"));
    };
    let pid =
        sockopt::socket_peercred(&stream).ok().map(|peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
    let view = CounterView::new(&region).map_err(|errno| {
        Error::other(format!("counters of another version of the driver ({errno}): restart it"))
    })?;
    Ok(Counters { view, pid, alive })
}

/// Copies of frames of a port or of a pipe. Ends when dropped.
#[derive(Debug)]
pub struct Tap {
    /// The pipe; its frames are records: [`pd_pipe::Record`].
    pub records: pd_pipe::Pipe,
    life: OwnedFd,
}

impl Tap {
    /// Tells whether the driver still runs. A driver that was killed ends no pipe.
    pub fn is_live(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Readiness tells only that the reading end has gone: no byte is ever read.
        !poll(&mut [PollFd::new(&self.life, PollFlags::empty())], Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

/// Asks the driver at `socket` for copies of frames, at most `snap_bytes` of each. A copy for which the ring has no room is lost and
/// counted.
///
/// # Errors
/// If there is no driver, or no such port or pipe.
pub fn tap(socket: &Path, of: TapOf, snap_bytes: usize) -> std::io::Result<Tap> {
    let stream = connect(socket, &Ask::Tap { of, snap_bytes })?;
    let (answer, fds) = receive_with(&stream)?;
    if let Answer::Error(why) = answer {
        return Err(Error::other(why));
    }
    let [status, control, ring, doorbell, life] = <[OwnedFd; 5]>::try_from(fds)
        .map_err(|_| Error::other("the driver is of another version, and sent no tap"))?;
    let offer = pd_pipe::Offer { shape: tap_shape()?, status, control, ring, doorbell };
    let records = pd_pipe::Pipe::map(offer)?;
    (&stream).write_all(b"\n")?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer)?;
    match serde_json::from_str(&answer)? {
        Answer::Error(why) => Err(Error::other(why)),
        _ => Ok(Tap { records, life }),
    }
}

/// Returns the shape of a tap's pipe.
pub(crate) fn tap_shape() -> rustix::io::Result<pd_pipe::Shape> {
    pd_pipe::Shape::new(pd_pipe::Direction::Receive, pd_pipe::Unit::Frames, TAP_RING_BYTES)
}

/// Receives an answer with descriptors.
fn receive_with(stream: &UnixStream) -> std::io::Result<(Answer, Vec<OwnedFd>)> {
    let mut bytes = [0; 4096];
    let (len, fds) = receive_bytes_with(stream, &mut bytes)?;
    Ok((serde_json::from_slice(&bytes[..len])?, fds))
}

fn receive_bytes_with(stream: &UnixStream, bytes: &mut [u8]) -> std::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(bytes)];
    let len = recvmsg(stream, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut fds = Vec::new();
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            fds.extend(received);
        }
    }
    Ok((len, fds))
}

pub(crate) fn send_with(stream: &UnixStream, answer: &Answer, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    send_bytes_with(stream, text.as_bytes(), fds)
}

fn send_bytes_with(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::INVAL.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Has the driver at `socket` make a port. This process opens the kernel's part of the port, in the network namespace of `namespace` if
/// given, and passes it on.
///
/// # Errors
/// If something is missing, there is no driver, or it answers with an error.
pub fn add_port(socket: &Path, name: &str, port: PortSpec, namespace: Option<&Path>) -> std::io::Result<()> {
    let opened = openers::open(&port, namespace).map_err(Error::other)?;
    let stream = connect(socket, &Ask::PortAdd { name: name.to_owned(), port })?;
    let mut answers = BufReader::new(&stream);
    let mut next = || -> std::io::Result<Answer> {
        let mut line = String::new();
        answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    let mut answer = next()?;
    if matches!(answer, Answer::Descriptors) {
        let fds: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
        send_bytes_with(&stream, b"\n", &fds)?;
        answer = next()?;
    }
    match answer {
        Answer::Done => Ok(()),
        Answer::Error(why) => Err(Error::other(why)),
        _ => Err(Error::other("the driver is of another version")),
    }
}

/// Receives the descriptors that come with a byte.
pub(crate) fn receive_descriptors(stream: &UnixStream) -> std::io::Result<Vec<OwnedFd>> {
    receive_bytes_with(stream, &mut [0; 1]).map(|(_, fds)| fds)
}

fn connect(socket: &Path, ask: &Ask) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut line = serde_json::to_string(ask)?;
    line.push('\n');
    match (&stream).write_all(line.as_bytes()) {
        // The driver may have answered and hung up before it read everything.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(stream),
        written => written.map(|()| stream),
    }
}

/// Asks the driver at `socket`.
///
/// # Errors
/// If there is no driver, or it answers with an error.
pub fn ask(socket: &Path, ask: &Ask) -> std::io::Result<Answer> {
    let stream = connect(socket, ask)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    match serde_json::from_str(&answer)? {
        Answer::Error(why) => Err(Error::other(why)),
        answer => Ok(answer),
    }
}
