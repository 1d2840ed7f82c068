//! The attacks, a function each. Each goes on until the process is killed.

use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use nix::fcntl::{fcntl, FcntlArg};
use pd_abi::limits::FILES_MAX;
use pd_abi::{EventKind, Frame, FrameKind, Operation, Request, SocketId};
use pd_raw::Raw;
use pd_shm::Pod;

use super::{crowd, kernel, programs, rings, Attack, Kind, Scene};

/// Linger time of a descriptor that is sent where none is expected.
const LINGER: Duration = Duration::from_secs(3600);
/// Bytes of a region that is requested in a loop, or passed to a child.
const REGION_BYTES: u64 = 64 << 20;
const HANDED_BYTES: u64 = 8 << 20;
/// Children that hold regions at a time, each for a second.
const CHILDREN: usize = 64;
/// Channels and pipes of a client before the next one.
pub(super) const CHANNELS: usize = 60;
/// Requests under way.
pub(super) const BATCH: usize = 256;
const ADDRESSES: u32 = 16_000;
const ADDRESSES_QUICK: u32 = 1_000;
/// Addresses that a client binds to before the next one.
const BINDS: u32 = 100;
const LOCKS: i64 = 25_000;
const LOCKS_QUICK: i64 = 2_000;

/// Objects that root has made for an attack.
pub(super) enum Prepared {
    /// Nothing.
    Nothing,
    /// A file on a disk.
    File(File),
}

/// Addresses of the attacker's network namespace beside its own.
fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 201, 0, 1)) + n)
}

fn addresses(attack: &Attack) -> u32 {
    if attack.quick {
        ADDRESSES_QUICK
    } else {
        ADDRESSES
    }
}

/// Prepares the resources that only root can make.
pub(super) fn prepare(attack: &Attack) -> Result<Prepared> {
    match attack.kind {
        Kind::Addresses => {
            let mut ip = Command::new("ip")
                .args(["-batch", "-"])
                .stdin(Stdio::piped())
                .spawn()
                .context("cannot run ip; install iproute2")?;
            let mut lines = String::new();
            (0..addresses(attack)).for_each(|n| lines += &format!("addr add {}/32 dev lo\n", address(n)));
            ip.stdin.take().context("standard input is a pipe")?.write_all(lines.as_bytes())?;
            ensure!(ip.wait()?.success(), "ip could not add addresses");
            Ok(Prepared::Nothing)
        }
        Kind::RecordLocks | Kind::Files => Ok(Prepared::File(File::open(pd_harness::own_exe())?)),
        _ => Ok(Prepared::Nothing),
    }
}

/// Runs the attack until it fails.
pub(super) fn attack(scene: &Scene, prepared: Prepared) -> Result<Infallible> {
    match (scene.attack.kind, prepared) {
        (Kind::Spin, _) => spin(scene),
        (Kind::Spins, _) => spins(scene),
        (Kind::Descriptors, _) => descriptors(scene),
        (Kind::AdminDescriptors, _) => admin_descriptors(scene),
        (Kind::Connects, _) => connects(scene),
        (Kind::Attaches, _) => attaches(scene),
        (Kind::Ports, _) => ports(scene),
        (Kind::Frames, _) => frames(scene),
        (Kind::Regions, _) => regions(scene),
        (Kind::HandedRegions, _) => handed_regions(scene),
        (Kind::Violations, _) => violations(scene),
        (Kind::Addresses, _) => many_addresses(scene),
        (Kind::RecordLocks, Prepared::File(file)) => record_locks(scene, &file),
        (Kind::Files, Prepared::File(file)) if scene.attack.kernel => kernel::files(scene, &file),
        (Kind::Files, Prepared::File(file)) => crowd::files(scene, &file),
        (Kind::RecordLocks | Kind::Files, Prepared::Nothing) => bail!("there is no file"),
        (Kind::Doorbells, _) => rings::doorbells(scene),
        (Kind::Requests, _) => rings::requests(scene),
        (Kind::ImpossibleSends, _) => rings::impossible_sends(scene),
        (Kind::Unread, _) => rings::unread(scene),
        (Kind::Pipes, _) => rings::pipes(scene),
        (Kind::DeniedConnects, _) => crowd::denied_connects(scene),
        (Kind::Churn, _) => crowd::churn(scene),
        (Kind::Twins, _) => programs::twins(scene),
        (Kind::Options, _) => programs::options(scene),
        (Kind::Huge, _) => crowd::huge(scene),
        (Kind::Bulk, _) if scene.attack.kernel => kernel::bulk(scene),
        (Kind::Bulk, _) => crowd::bulk(scene),
        (Kind::Tiny, _) => crowd::tiny(scene),
    }
}

fn spins(scene: &Scene) -> Result<Infallible> {
    let other = scene.clone();
    std::thread::spawn(move || spin(&other));
    spin(scene)
}

fn spin(scene: &Scene) -> Result<Infallible> {
    scene.begin();
    loop {
        std::hint::black_box((0..1_000_000u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
        scene.tally.tried(true);
    }
}

fn descriptors(scene: &Scene) -> Result<Infallible> {
    let (gift, _peer) = pd_raw::lingering(LINGER)?;
    scene.begin();
    loop {
        // As soon as can be: with luck nobody has accepted it yet.
        let client = Raw::dial(&scene.socket);
        scene.tally.tried(pd_raw::send_with(&client, Frame::new(FrameKind::Hello).as_bytes(), &gift).is_ok());
    }
}

fn admin_descriptors(scene: &Scene) -> Result<Infallible> {
    let (gift, _peer) = pd_raw::lingering(LINGER)?;
    let socket = scene.socket.with_file_name("admin.sock");
    scene.begin();
    loop {
        let client = UnixStream::connect(&socket)?;
        scene.tally.tried(pd_raw::send_with(&client, b"{\"op\":\"list\"}\n", &gift).is_ok());
    }
}

fn connects(scene: &Scene) -> Result<Infallible> {
    scene.begin();
    loop {
        drop(Raw::dial(&scene.socket));
        scene.tally.tried(true);
    }
}

fn attaches(scene: &Scene) -> Result<Infallible> {
    scene.begin();
    loop {
        scene.tally.tried(Raw::try_attach(&scene.socket, 1).is_ok());
    }
}

/// Returns the next client that is let in. Counts refusals.
pub(super) fn attached(scene: &Scene) -> Raw {
    loop {
        match Raw::try_attach(&scene.socket, 1) {
            Ok(raw) => return raw,
            Err(_) => scene.tally.tried(false),
        }
    }
}

/// Posts requests and waits for an answer to each. Returns the errnos and sockets of the answers.
pub(super) fn flood(raw: &mut Raw, requests: &[Request]) -> Vec<(u32, SocketId)> {
    for request in requests {
        raw.post(0, request);
    }
    let mut answers = Vec::new();
    while answers.len() < requests.len() {
        match raw.event(0) {
            Some(event) if event.kind == EventKind::Answer as u8 => {
                answers.push((event.errno, SocketId(event.socket)));
            }
            Some(_) => {}
            None => std::thread::yield_now(),
        }
    }
    answers
}

pub(super) fn new_socket() -> Request {
    Request { family: 4, ..Request::new(Operation::Socket, SocketId(0), 0) }
}

fn bind_to(socket: SocketId, address: Ipv4Addr) -> Request {
    let any_port = SocketAddr::from((address, 0));
    Request::new(Operation::Bind, socket, 0).with_address(any_port.into())
}

fn ports(scene: &Scene) -> Result<Infallible> {
    let mut raw = attached(scene);
    let unbound = loop {
        let sockets = flood(&mut raw, &[new_socket(); BATCH]);
        let sockets: Vec<_> = sockets.into_iter().filter(|(errno, _)| *errno == 0).map(|(_, s)| s).collect();
        ensure!(!sockets.is_empty(), "no sockets are left before the ports are");
        let binds: Vec<_> = sockets.iter().map(|&socket| bind_to(socket, Ipv4Addr::LOCALHOST)).collect();
        let bound = flood(&mut raw, &binds);
        if let Some(at) = bound.iter().position(|(errno, _)| *errno != 0) {
            break sockets[at];
        }
    };
    scene.begin();
    loop {
        let bound = flood(&mut raw, &[bind_to(unbound, Ipv4Addr::LOCALHOST); BATCH]);
        bound.iter().for_each(|(errno, _)| scene.tally.tried(*errno == 0));
    }
}

fn frames(scene: &Scene) -> Result<Infallible> {
    scene.begin();
    loop {
        let mut raw = attached(scene);
        for _ in 0..CHANNELS {
            for kind in [FrameKind::Channel, FrameKind::WakePipe] {
                scene.tally.tried(raw.ask(&Frame::new(kind), kind).is_ok());
            }
        }
    }
}

fn regions(scene: &Scene) -> Result<Infallible> {
    scene.begin();
    let wish = Frame::new(FrameKind::SendRegion).with_bytes(REGION_BYTES, 0);
    loop {
        let mut raw = attached(scene);
        loop {
            let made = raw.ask(&wish, FrameKind::SendRegion).is_ok();
            scene.tally.tried(made);
            if !made {
                break;
            }
        }
    }
}

/// Starts a child that has `memory` open for a second.
fn holder(memory: OwnedFd) -> Result<Child> {
    let child = Command::new("sleep").arg("1").stdin(memory).spawn();
    child.context("cannot run sleep")
}

fn handed_regions(scene: &Scene) -> Result<Infallible> {
    scene.begin();
    let wish = Frame::new(FrameKind::SendRegion).with_bytes(HANDED_BYTES, 0);
    let mut children = Vec::new();
    loop {
        let mut raw = attached(scene);
        let region = raw.ask(&wish, FrameKind::SendRegion);
        scene.tally.tried(region.is_ok());
        if let Some(memory) = region.ok().and_then(|(_, mut fds)| fds.pop()) {
            children.push(holder(memory)?);
        }
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if children.len() >= CHILDREN {
            children.remove(0).wait()?;
        }
    }
}

fn violations(scene: &Scene) -> Result<Infallible> {
    scene.begin();
    loop {
        let mut raw = attached(scene);
        // Only the driver says goodbye.
        let sent = pd_raw::send(&raw.socket, &Frame::new(FrameKind::Goodbye)).is_ok();
        scene.tally.tried(sent);
        raw.wait_cut_off();
    }
}

fn many_addresses(scene: &Scene) -> Result<Infallible> {
    let count = addresses(&scene.attack);
    scene.begin();
    let mut next = 0;
    loop {
        let mut raw = attached(scene);
        for _ in 0..BINDS {
            next = (next + 1) % count;
            let (_, socket) = flood(&mut raw, &[new_socket()])[0];
            let to = SocketAddr::from((address(next), 1));
            let connect = Request::new(Operation::Connect, socket, 0).with_address(to.into());
            let answers = flood(&mut raw, &[bind_to(socket, address(next)), connect]);
            scene.tally.tried(answers[0].0 == 0);
        }
    }
}

fn record_locks(scene: &Scene, file: &File) -> Result<Infallible> {
    let locks = if scene.attack.quick { LOCKS_QUICK } else { LOCKS };
    // Backwards, because the kernel looks for a lock's place from the first byte on.
    for n in (0..locks).rev() {
        let lock = libc::flock {
            l_type: libc::F_RDLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 2 * n,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(file, FcntlArg::F_SETLK(&lock)).context("no lock")?;
    }
    scene.begin();
    loop {
        let mut raw = attached(scene);
        let open: Vec<_> = (0..FILES_MAX).map(|_| raw.pass(file)).collect();
        let opened = flood(&mut raw, &open);
        opened.iter().for_each(|(errno, _)| scene.tally.tried(*errno == 0));
    }
}
