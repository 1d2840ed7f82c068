//! `pd run`: a command in a container of its own, in the foreground or not.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::{anyhow, bail, Context, Result};
use pd_driver::admin::{ask, Ask};
use pd_driver::Bytes;

use pd_harness::container::address::InterfaceAddress;
use pd_harness::container::cgroup::Limits;
use pd_harness::container::jobs::Terminal;
use pd_harness::container::overlay::Overlay;
use pd_harness::container::state::RUN_DIR;
use pd_harness::container::{check_name, Container, Invocation, Spec, NOT_STARTED};
use pd_harness::signals::{Signals, Wake};
use pd_harness::tuning::Network;

use crate::live::no_answer;
use crate::program;

/// Runs a command in a container of its own.
///
/// The command gets the driver's socket in PD_SOCKET, its own name in PD_CONTAINER and its own IPv4
/// address in PD_ADDRESS; names of containers on its bridge, or in its network, are in its /etc/hosts. Exits with the command's status (128 + n
/// if signal n ended it), or 125 if the container could not be started.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Name and host name of the container: letters, digits and '-'
    #[arg(long)]
    name: String,
    /// Address on the bridge, as 10.88.0.2/24, or in the network [default: the lowest free one]
    #[arg(long)]
    ip: Option<InterfaceAddress>,
    /// Tenant that the container belongs to, for policy and accounting
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Bridge, created if absent and removed again with its last container
    #[arg(long, default_value = "pd0")]
    bridge: String,
    /// Network of the policy, which has addresses of its own and a bridge of its own
    #[arg(long, value_name = "NAME", conflicts_with_all = ["bridge", "no_driver"])]
    network: Option<String>,
    /// Socket of the driver; it is told of the container on admin.sock in the same directory
    #[arg(long, default_value = pd_harness::config::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Run without a driver, on kernel TCP
    #[arg(long)]
    no_driver: bool,
    /// The command's TCP connections to other such commands run on PipeDevice, by LD_PRELOAD: see
    /// libpd_preload(7). With "short" connections are made without the kernel, for many short ones; with "all"
    /// those that are too short-lived to gain by it run on PipeDevice, too
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    preload: Option<Preload>,
    /// Give it a pipe on this port of the driver, if the policy allows its tenant one; PD_PIPES has the names, with commas between
    #[arg(long = "pipe", value_name = "PORT")]
    pipes: Vec<String>,
    /// Set a variable of its environment; without a value, to that of this one
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<Setting>,
    /// Return once the command runs, and print the container's name; what it prints is in /run/pd/logs/NAME
    #[arg(short, long)]
    detach: bool,
    /// CPU time it may take, in cores
    #[arg(long, value_name = "CORES", value_parser = cores)]
    cpus: Option<f64>,
    /// Memory it may have, as 512MiB
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    memory: Option<Bytes>,
    /// Leave it all capabilities, all devices, all system calls, and the kernel's switches
    #[arg(long)]
    privileged: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Service of programs that do not know PipeDevice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Preload {
    /// The kernel connects, the fabric carries the bytes, but for short-lived connections in a row
    On,
    /// Short-lived ones, too
    All,
    /// The fabric connects, too
    Short,
}

/// A variable of an environment: `NAME=VALUE`, or `NAME` for its present value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting(String);

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        match text.split('=').next() {
            None | Some("") => Err("write it as NAME=VALUE".to_owned()),
            Some(_) => Ok(Setting(text.to_owned())),
        }
    }
}

impl Setting {
    /// Returns name and value; none if there is no value here either.
    pub fn pair(self) -> Option<(String, String)> {
        match self.0.split_once('=') {
            Some((name, value)) => Some((name.to_owned(), value.to_owned())),
            None => std::env::var(&self.0).ok().map(|value| (self.0, value)),
        }
    }
}

fn cores(text: &str) -> Result<f64, String> {
    let cores: f64 = text.parse().map_err(|_| format!("'{text}' is no number of cores, as 1.5"))?;
    match (0.01..=4096.0).contains(&cores) {
        true => Ok(cores),
        false => Err(format!("{text} is out of range; use 0.01 to 4096")),
    }
}

fn memory(text: &str) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse()?;
    match bytes.0 >= 4 << 20 {
        true => Ok(bytes),
        false => Err(format!("{text} is too little for a process; use 4MiB or more")),
    }
}

/// Variable of a copy of this program that holds a container in the background. Its standard input is a socket,
/// on which it reports the outcome of the start.
const DETACHED: &str = "PD_INTERNAL_DETACHED";
/// The line that is printed when the command runs.
const RUNS: &[u8] = b"runs";

/// Runs it; returns the status to exit with.
pub fn main(args: RunArgs) -> Result<i32> {
    if std::env::var_os(DETACHED).is_some() {
        return hold_in_background(args);
    }
    if args.detach {
        return detach(&args);
    }
    let signals = Signals::watch()?;
    let container = start(args, Stdio::inherit(), Terminal::of_caller())?;
    hold(container, &signals)
}

fn start(args: RunArgs, stdin: Stdio, terminal: Terminal) -> Result<Container> {
    let mut environment = Vec::new();
    if let Some(mode) = args.preload {
        if let Some(why) = args.command.first().and_then(|program| program::stays_on_kernel(program)) {
            eprintln!("pd: note: {why}");
        }
        let library = pd_harness::preload_library()?.to_string_lossy().into_owned();
        environment.push(("LD_PRELOAD".to_owned(), library));
        let mode = match mode {
            Preload::On => None,
            Preload::All => Some("all"),
            Preload::Short => Some("short"),
        };
        environment.extend(mode.map(|mode| ("PD_PRELOAD".to_owned(), mode.to_owned())));
    }
    if !args.pipes.is_empty() {
        check_pipes(&args)?;
        environment.push(("PD_PIPES".to_owned(), args.pipes.join(",")));
    }
    environment.extend(args.env.into_iter().filter_map(Setting::pair));
    let admin_socket = args.socket.with_file_name("admin.sock");
    let overlay =
        args.network.map(|name| Overlay::ask(&admin_socket, &name)).transpose().context("--network")?;
    let spec = Spec {
        name: args.name,
        address: args.ip,
        tenant: args.tenant,
        bridge: overlay.as_ref().map_or(args.bridge, |overlay| overlay.bridge(&admin_socket)),
        overlay,
        socket: args.socket,
        driver: !args.no_driver,
        privileged: args.privileged,
        environment,
        limits: Limits { cpus: args.cpus, memory_bytes: args.memory.map(|bytes| bytes.0), weight: None },
        // A container's network is its user's: only measurements set it.
        network: Network::default(),
    };
    Container::start(&spec, Invocation { command: args.command, stdin, stdout: Stdio::inherit(), terminal })
}

/// Fails unless the driver has the ports and its policy allows the tenant pipes on them. A pipe is checked again when it is opened.
fn check_pipes(args: &RunArgs) -> Result<()> {
    if args.no_driver {
        bail!("--pipe needs a driver, and --no-driver wants none");
    }
    let admin_socket = args.socket.with_file_name("admin.sock");
    let (tenant, ports) = (args.tenant.clone(), args.pipes.clone());
    let asked = ask(&admin_socket, &Ask::MayUse { tenant, ports });
    asked.map(drop).map_err(|error| match error.kind() {
        ErrorKind::Other => anyhow!("--pipe: {error}"),
        _ => anyhow!("--pipe: {}", no_answer(&admin_socket, &error)),
    })
}

fn hold(mut container: Container, signals: &Signals) -> Result<i32> {
    loop {
        use std::os::fd::AsFd;
        match signals.wait(container.as_fd(), None)? {
            Wake::Ready => {
                if let Some(status) = container.turn()? {
                    return Ok(status);
                }
            }
            Wake::Signal(caught) => container.pass_on(caught),
            Wake::TimedOut => {}
        }
    }
}

/// Starts a copy of this program that holds the container, and waits until that says how it went.
fn detach(args: &RunArgs) -> Result<i32> {
    check_name(&args.name)?;
    let (log, fresh, place) = log_file(&args.name)?;
    let (mut own, other) = UnixStream::pair().context("cannot make a socket")?;
    let mut holder = Command::new(pd_harness::own_exe());
    holder.args(std::env::args_os().skip(1)).env(DETACHED, "yes").stdin(OwnedFd::from(other));
    holder.stdout(log.try_clone()?).stderr(log);
    holder.spawn().context("cannot start a copy of pd")?;
    // The holder has the only other end.
    drop(holder);
    let mut said = Vec::new();
    own.read_to_end(&mut said).context("cannot read from the copy of pd")?;
    if said != RUNS {
        let _ = fs::remove_file(fresh);
        bail!("{}", String::from_utf8_lossy(&said));
    }
    fs::rename(&fresh, &place).with_context(|| format!("cannot write {}", place.display()))?;
    println!("{}", args.name);
    Ok(0)
}

/// Makes a file for a detached container's output. Returns it, its path, and its final path once the container runs, where
/// it stays until the next container of the name.
fn log_file(name: &str) -> Result<(File, PathBuf, PathBuf)> {
    let folder = Path::new(RUN_DIR).join("logs");
    // No container has a dot in its name.
    let (fresh, place) = (folder.join(format!("{name}.{}", std::process::id())), folder.join(name));
    let make = || {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        File::options().create(true).append(true).mode(0o600).open(&fresh)
    };
    let file = make().with_context(|| format!("cannot write {}; run as root", fresh.display()))?;
    Ok((file, fresh, place))
}

fn hold_in_background(args: RunArgs) -> Result<i32> {
    let report = rustix::io::dup(std::io::stdin()).context("no socket to report to")?;
    let mut report = UnixStream::from(report);
    // The terminal's signals are not for it.
    rustix::process::setsid().context("cannot leave the terminal")?;
    let signals = Signals::watch()?;
    std::env::remove_var(DETACHED);
    let container = match start(args, Stdio::null(), Terminal::None) {
        Ok(container) => container,
        Err(error) => {
            let _ = write!(report, "{error:#}");
            return Ok(NOT_STARTED.into());
        }
    };
    // After this message nobody waits for the socket's end any more.
    let _ = report.write_all(RUNS);
    let _ = report.shutdown(std::net::Shutdown::Both);
    drop(report);
    hold(container, &signals)
}
