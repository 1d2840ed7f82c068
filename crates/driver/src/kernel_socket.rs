//! Facts from the kernel about clients' TCP sockets: whether a process holds one, and whether it still exists.
//!
//! The driver never takes a client's socket, whose closing could block it (a linger time). It looks the descriptor up in
//! `/proc`. Then it asks `sock_diag` (sock_diag(7)) in the client's network namespace for the socket with the addresses
//! and the cookie that the client gave.
use crate::calls::{may, simulated, Call};
use crate::image::Image;
use crate::process::has_exited;
use crate::sock_diag::{
    ask, dump, InetReply, InetRequest, Message, Reply, SocketName, NLM_F_DUMP, SOCK_DIAG_BY_FAMILY,
};
use crate::unix_socket::Counted;
use crate::wanted::{Listening, Wanted, COOKIE_ANY};
use pd_shm::procfs;
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use rustix::net::{netlink, socket_with, AddressFamily, SocketFlags, SocketType};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// Asks about the sockets of one network namespace.
#[derive(Debug)]
pub struct SocketDiag {
    pub(crate) diag: OwnedFd,
    /// The namespace's `/proc/net/protocols`, which counts its sockets; none where it cannot be opened.
    pub(crate) protocols: Option<OwnedFd>,
    /// Last count that was read there.
    pub(crate) counted: Counted,
}

/// A process that says that it holds a socket, as the kernel knows it.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// Its process id and user.
    pub pid: u32,
    pub uid: u32,
    /// The program that it was, if that is known.
    pub image: Option<Image>,
    pub pidfd: &'a OwnedFd,
}

/// State of a socket that no process can hold.
const TIME_WAIT: u8 = 6;
/// State of a listener: the kernel answers with it about a connection that does not exist.
const LISTEN: u8 = 10;
/// States of a socket that its process has closed, or shut down for sending: `FIN_WAIT1`, `FIN_WAIT2`, `CLOSE`, `LAST_ACK`, `CLOSING`.
const ENDED: [u8; 5] = [4, 5, 7, 9, 11];

impl SocketDiag {
    /// Opens one for the namespace of this file. Enters the namespace in a thread of its own, unless this thread is in it.
    ///
    /// # Errors
    /// Errors of `setns` and `socket`.
    pub fn new(namespace: &OwnedFd) -> std::io::Result<Self> {
        may(Call::Diag)?;
        if let Some(opened) = simulated::diag(namespace) {
            return Ok(Self { diag: opened?, protocols: None, counted: Counted::default() });
        }
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let diag = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
            let protocols = procfs::open("thread-self/net/protocols", OFlags::RDONLY).ok();
            Ok::<_, Errno>(Self { diag, protocols, counted: Counted::default() })
        };
        let same = |fd: &OwnedFd| {
            let own = procfs::stat("thread-self/ns/net")?;
            let other = rustix::fs::fstat(fd)?;
            Ok::<_, Errno>((own.st_dev, own.st_ino) == (other.st_dev, other.st_ino))
        };
        if same(namespace)? {
            return Ok(open()?);
        }
        let namespace = namespace.try_clone()?;
        let thread = std::thread::Builder::new().name("pd-diag".into()).spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok::<_, std::io::Error>(open()?)
        })?;
        thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread panicked")))
    }

    /// Returns the inode of the socket, if it exists: 0 if no process has accepted it yet, or holds it any more.
    ///
    /// # Errors
    /// `ENOENT` if there is none, or one that its process has closed, or a listener. `ESTALE` if another socket has the addresses.
    /// Errors of the calls.
    pub fn inode(&self, wanted: &Wanted) -> Result<u32> {
        if let Some(found) = simulated::socket_inode(&self.diag, wanted) {
            return found;
        }
        let mut bytes = [0u8; 1024];
        let reply = ask(&self.diag, request(wanted).bytes(), &mut bytes)?;
        let inode = reply.word(offset_of!(InetReply, inode))?;
        let is_another = ![COOKIE_ANY, cookie_of(&reply)?].contains(&wanted.cookie);
        // A socket that was closed lasts for minutes where its peer's host is gone. One that waits to be accepted is in none of these states.
        match reply.part(offset_of!(InetReply, state))? {
            [LISTEN] => Err(Errno::NOENT),
            _ if is_another => Err(Errno::STALE),
            [TIME_WAIT] => Err(Errno::NOENT),
            [state] if inode == 0 && ENDED.contains(&state) => Err(Errno::NOENT),
            _ => Ok(inode),
        }
    }

    /// Returns the listener that a connection to an address gets. Of several that share it (`SO_REUSEPORT`), which have one user, any.
    ///
    /// # Errors
    /// Errors of the calls.
    pub fn listener(&self, at: SocketAddr) -> Result<Option<Listening>> {
        if let Some(found) = simulated::listener(&self.diag, at) {
            return found;
        }
        let nobody: IpAddr =
            if at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let wanted = Wanted { local: at, peer: SocketAddr::new(nobody, 0), cookie: COOKIE_ANY };
        let mut bytes = [0u8; 1024];
        match ask(&self.diag, request(&wanted).bytes(), &mut bytes) {
            Err(Errno::NOENT) => Ok(None),
            reply => listening(&reply?),
        }
    }

    /// Returns the listener that is bound to an address and has this cookie. Where several share an address, or one is bound to an interface, the
    /// kernel walks over all listeners, of other namespaces, too.
    ///
    /// # Errors
    /// Errors of the calls.
    pub fn own_listener(&self, at: SocketAddr, cookie: u64) -> Result<Option<Listening>> {
        let is_it = |it: &Listening| it.cookie == cookie && it.local == at;
        let found = self.listener(at)?.filter(is_it);
        if found.is_some() || simulated::is_on() {
            return Ok(found);
        }
        let wanted = Wanted { local: at, peer: at, cookie };
        let ask_for_all = message(&wanted, NLM_F_DUMP)
            .with(offset_of!(InetRequest, states), (1u32 << LISTEN).to_ne_bytes())
            .with(offset_of!(InetRequest, name) + offset_of!(SocketName, peer_port), [0; 2]);
        let mut found = None;
        dump(&self.diag, ask_for_all.bytes(), |reply| {
            found = found.or(listening(reply)?.filter(is_it));
            Ok(())
        })?;
        Ok(found)
    }
}

/// Returns the listener that a reply is about, if it is one.
fn listening(reply: &Reply<'_>) -> Result<Option<Listening>> {
    const NAME: usize = offset_of!(InetReply, name);
    if reply.part(offset_of!(InetReply, state))? != [LISTEN] {
        return Ok(None);
    }
    let address: [u8; 16] = reply.part(NAME + offset_of!(SocketName, local))?;
    let [family] = reply.part(offset_of!(InetReply, family))?;
    let ip = match i32::from(family) {
        libc::AF_INET => IpAddr::from([address[0], address[1], address[2], address[3]]),
        _ => IpAddr::from(address),
    };
    let port = u16::from_be_bytes(reply.part(NAME + offset_of!(SocketName, local_port))?);
    Ok(Some(Listening {
        local: SocketAddr::new(ip, port),
        uid: reply.word(offset_of!(InetReply, uid))?,
        inode: reply.word(offset_of!(InetReply, inode))?,
        cookie: cookie_of(reply)?,
    }))
}

fn cookie_of(reply: &Reply<'_>) -> Result<u64> {
    const COOKIE: usize = offset_of!(InetReply, name) + offset_of!(SocketName, cookie);
    let [low, high] = [reply.word(COOKIE)?, reply.word(COOKIE + 4)?];
    Ok(u64::from(high) << 32 | u64::from(low))
}

fn request(wanted: &Wanted) -> Message<{ size_of::<InetRequest>() }> {
    message(wanted, 0)
}

fn message(wanted: &Wanted, flags: u16) -> Message<{ size_of::<InetRequest>() }> {
    let family = if wanted.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let address = |ip: IpAddr| -> [u8; 16] {
        match ip {
            IpAddr::V4(ip) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&ip.octets());
                bytes
            }
            IpAddr::V6(ip) => ip.octets(),
        }
    };
    const NAME: usize = offset_of!(InetRequest, name);
    Message::new(SOCK_DIAG_BY_FAMILY, flags)
        .with(offset_of!(InetRequest, family), [family as u8])
        .with(offset_of!(InetRequest, protocol), [libc::IPPROTO_TCP as u8])
        .with(offset_of!(InetRequest, states), u32::MAX.to_ne_bytes())
        .with(NAME + offset_of!(SocketName, local_port), wanted.local.port().to_be_bytes())
        .with(NAME + offset_of!(SocketName, peer_port), wanted.peer.port().to_be_bytes())
        .with(NAME + offset_of!(SocketName, local), address(wanted.local.ip()))
        .with(NAME + offset_of!(SocketName, peer), address(wanted.peer.ip()))
        // Any cookie: the kernel does not tell a socket with another one from none.
        .with(NAME + offset_of!(SocketName, cookie), COOKIE_ANY.to_ne_bytes())
}

impl Holder<'_> {
    /// Returns the inode of the socket that a descriptor of the process refers to.
    ///
    /// # Errors
    /// `EACCES` if the process has become a set-id program, while its child has the attach socket; those of [`inode_of_descriptor`].
    pub fn inode(&self, descriptor: u32) -> Result<u32> {
        let inode = inode_of_descriptor(self.pid, self.pidfd, descriptor)?;
        // Root's program may be anything: root has those rights.
        let is_same = self.uid == 0
            || simulated::is_on()
            || self.image.is_some_and(|image| Image::of(self.pid) == Ok(image));
        is_same.then_some(inode).ok_or(Errno::ACCESS)
    }
}

/// Returns the inode of the socket that a process's descriptor refers to.
///
/// # Errors
/// `ENOTSOCK` if it is no socket; `ESRCH` if the process has died, for its number may be another's; errors of reading `/proc`.
pub fn inode_of_descriptor(pid: u32, pidfd: &OwnedFd, descriptor: u32) -> Result<u32> {
    if let Some(found) = simulated::descriptor(pid, descriptor) {
        return found;
    }
    let target = procfs::read_link(&format!("{pid}/fd/{descriptor}"))?;
    if has_exited(pidfd)? {
        return Err(Errno::SRCH);
    }
    let inode = target.to_str().ok().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
    inode.and_then(|text| text.parse().ok()).ok_or(Errno::NOTSOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{pidfd_open, Pid, PidfdFlags};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Child, Command};

    fn cookie(socket: &impl AsFd) -> u64 {
        rustix::net::sockopt::socket_cookie(socket).unwrap()
    }

    /// Returns the inode of a socket of this process.
    fn own(descriptor: i32) -> Result<u32> {
        let pidfd = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        inode_of_descriptor(std::process::id(), &pidfd, descriptor as u32)
    }

    /// Starts a process with a socket as its standard input, and gives up unless it has the number.
    fn with_number(pid: u32) -> Option<(Child, UnixStream)> {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let (kept, given) = UnixStream::pair().unwrap();
        let mut child = Command::new("sleep").arg("60").stdin(OwnedFd::from(given)).spawn().unwrap();
        if child.id() == pid {
            return Some((child, kept));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        None
    }

    #[test]
    fn a_descriptor_of_another_process_with_the_number_is_not_found() {
        let mut first = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = first.id();
        let pidfd = pidfd_open(Pid::from_child(&first), PidfdFlags::empty()).unwrap();
        first.kill().unwrap();
        first.wait().unwrap();
        let Some((mut second, _kept)) = (0..50).find_map(|_| with_number(pid)) else {
            println!("SKIPPED: another process with a number that was used: needs root");
            return;
        };
        let found = inode_of_descriptor(pid, &pidfd, 0);
        second.kill().unwrap();
        second.wait().unwrap();
        assert_eq!(found, Err(Errno::SRCH));
    }

    #[test]
    fn a_held_socket_is_found_and_others_are_not() {
        let (_, namespace) = crate::process::network_namespace(rustix::process::getpid()).unwrap();
        let diag = SocketDiag::new(&namespace).unwrap();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                println!("SKIPPED: no sockets at {at}");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            let wanted = |s: &TcpStream| Wanted {
                local: s.local_addr().unwrap(),
                peer: s.peer_addr().unwrap(),
                cookie: cookie(s),
            };
            for socket in [&client, &accepted] {
                let inode = diag.inode(&wanted(socket)).unwrap();
                assert_eq!(own(socket.as_raw_fd()), Ok(inode));
            }
            let other = Wanted { cookie: cookie(&accepted) ^ 1, ..wanted(&accepted) };
            assert_eq!(diag.inode(&other), Err(Errno::STALE));
            let waiting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let unaccepted = Wanted {
                local: waiting.peer_addr().unwrap(),
                peer: waiting.local_addr().unwrap(),
                cookie: COOKIE_ANY,
            };
            assert_eq!(diag.inode(&unaccepted), Ok(0), "it waits to be accepted");
            let never_made = Wanted { peer: listener.local_addr().unwrap(), ..unaccepted };
            assert_eq!(diag.inode(&never_made), Err(Errno::NOENT), "the kernel answers with the listener");
            let by_its_cookie = Wanted { cookie: cookie(&listener), ..never_made };
            assert_eq!(diag.inode(&by_its_cookie), Err(Errno::NOENT), "a listener proves no connection");
            let theirs = wanted(&accepted);
            drop(accepted);
            assert!(diag.inode(&theirs).is_err(), "closed before its peer");
            let ours = wanted(&client);
            drop(client);
            assert!(diag.inode(&ours).map_or(true, |inode| inode == 0), "held by nobody");
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(own(file.as_raw_fd()), Err(Errno::NOTSOCK));
    }

    /// Makes a socket that is bound, and shares its port with others of the user that do, too.
    fn bound(at: &str) -> Option<OwnedFd> {
        let at: SocketAddr = at.parse().unwrap();
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
        rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
        if at.is_ipv6() {
            rustix::net::sockopt::set_ipv6_v6only(&socket, false).unwrap();
        }
        rustix::net::bind(&socket, &at).ok()?;
        Some(socket)
    }

    fn local(socket: &OwnedFd) -> SocketAddr {
        rustix::net::getsockname(socket).unwrap().try_into().unwrap()
    }

    #[test]
    fn listeners_are_found_by_their_address_and_cookie() {
        let (_, namespace) = crate::process::network_namespace(rustix::process::getpid()).unwrap();
        let diag = SocketDiag::new(&namespace).unwrap();
        for at in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0", "[::ffff:127.0.0.1]:0"] {
            let Some(first) = bound(at) else {
                println!("SKIPPED: no sockets at {at}");
                continue;
            };
            let at = local(&first);
            assert_eq!(diag.own_listener(at, cookie(&first)), Ok(None), "{at} is bound, and does not listen");
            rustix::net::listen(&first, 1).unwrap();
            // The kernel chooses among those that share the port.
            let more: Vec<_> = (0..7).map(|_| bound(&at.to_string()).unwrap()).collect();
            more.iter().for_each(|socket| rustix::net::listen(socket, 1).unwrap());
            for socket in more.iter().chain([&first]) {
                let found = diag.own_listener(at, cookie(socket)).unwrap().unwrap();
                assert_eq!(own(socket.as_raw_fd()), Ok(found.inode), "{at}");
                assert_eq!((found.local, found.uid), (at, rustix::process::getuid().as_raw()));
            }
            assert_eq!(diag.own_listener(at, 1), Ok(None));
            let elsewhere = SocketAddr::new(Ipv4Addr::new(127, 0, 0, 2).into(), at.port());
            assert_eq!(diag.own_listener(elsewhere, cookie(&first)), Ok(None));
            // Connections to other addresses get the one that is bound to none.
            let is_any = at.ip().is_unspecified();
            assert_eq!(diag.listener(elsewhere).unwrap().is_some(), is_any, "{at}");
            let gone = cookie(&first);
            drop((first, more));
            assert_eq!((diag.own_listener(at, gone), diag.listener(at)), (Ok(None), Ok(None)));
        }
    }
}
