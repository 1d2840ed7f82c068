//! A client of memif by hand, which breaks the protocol.
use super::{Held, Stand, PATIENCE};
use pd_driver::admin::PortSpec;
use pd_pipe::{Direction, Flow};
use rustix::io::Errno;
use rustix::mount::{
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Makes a message of memif of a type, with bytes behind it.
fn message(kind: u16, rest: &[&[u8]]) -> [u8; 128] {
    let bytes = [&kind.to_ne_bytes()[..], &rest.concat()].concat();
    let mut message = [0; 128];
    message[..bytes.len()].copy_from_slice(&bytes);
    message
}

/// A client of memif by hand.
struct Client(OwnedFd);

impl Client {
    fn connect(path: &std::path::Path) -> Self {
        let this = Self::begin(path);
        assert_eq!(this.hear(), Some(2));
        this
    }

    /// Connects without waiting for the port.
    fn begin(path: &std::path::Path) -> Self {
        use rustix::net::{connect, socket, sockopt, AddressFamily, SocketAddrUnix, SocketType};
        let made = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        sockopt::set_socket_timeout(&made, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        connect(&made, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self(made)
    }

    /// Returns the type of the next message; none at the end.
    fn hear(&self) -> Option<u16> {
        let mut bytes = [0; 128];
        let mut receive = || rustix::net::recv(&self.0, &mut bytes, rustix::net::RecvFlags::empty());
        // A port that closes with messages unread resets the connection. The kernel says so once, before what the port has sent.
        let (len, _) =
            receive().or_else(|error| if error == Errno::CONNRESET { receive() } else { Err(error) }).ok()?;
        (len == bytes.len()).then(|| u16::from_ne_bytes([bytes[0], bytes[1]]))
    }

    fn say(&self, message: &[u8], fds: &[BorrowedFd<'_>]) {
        use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let _ = sendmsg(&self.0, &[std::io::IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL);
    }
}

const INIT: [&[u8]; 3] = [&[0, 2], &[3, 0, 0, 0], &[0]];

/// Makes a region as a client does: two rings of 8 entries with their cookies, and buffers.
fn region() -> OwnedFd {
    use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
    let fd = memfd_create("memif", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 64 << 10).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    for offset in [0, 256] {
        rustix::io::pwrite(&fd, &0x03e3_1f20u32.to_ne_bytes(), offset).unwrap();
    }
    fd
}

fn ring(to_driver: u16, offset: u32) -> [u8; 128] {
    message(5, &[&to_driver.to_ne_bytes(), &[0; 4], &offset.to_ne_bytes(), &[3, 0, 0]])
}

/// Messages and descriptors with which a client connects, each with the type of its answer.
fn steps<'a>(memory: &'a OwnedFd, doorbell: &'a OwnedFd) -> [([u8; 128], Vec<BorrowedFd<'a>>, u16); 5] {
    [
        (message(3, &INIT), vec![], 1),
        (message(4, &[&[0, 0], &(64u64 << 10).to_ne_bytes()]), vec![memory.as_fd()], 1),
        (ring(1, 0), vec![doorbell.as_fd()], 1),
        (ring(0, 256), vec![doorbell.as_fd()], 1),
        (message(6, &[]), vec![], 7),
    ]
}

/// A client's own socket comes with any of its messages. When it has left, the next one is served.
#[test]
fn a_client_of_memif_that_gives_its_own_socket_leaves() {
    let stand = Stand::new();
    let path = stand.driver.folder().join("own.sock");
    stand.add("dpdk", PortSpec::Memif { socket: path.clone(), id: 3 }, "").unwrap();
    let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    for with in 0..=5 {
        let (client, memory) = (Client::connect(&path), region());
        for (number, (bytes, mut fds, answer)) in steps(&memory, &doorbell).into_iter().enumerate() {
            if number == with {
                fds.insert(0, client.0.as_fd());
            }
            client.say(&bytes, &fds);
            assert_eq!(client.hear(), Some(answer), "{with}, step {number}");
        }
        if with == 5 {
            client.say(&message(1, &[]), &[client.0.as_fd()]);
        }
    }
    drop(Client::connect(&path));
}

#[test]
fn a_hostile_client_of_memif_ends_itself_alone() {
    let stand = Stand::new();
    let path = stand.driver.folder().join("memif.sock");
    stand.add("dpdk", PortSpec::Memif { socket: path.clone(), id: 3 }, "").unwrap();
    stand.add("wire", PortSpec::Link, "").unwrap();
    let (mut near, mut far) = (
        stand.open(Direction::Send, "wire.0", Flow::default()).unwrap(),
        stand.open(Direction::Receive, "wire.1", Flow::default()).unwrap(),
    );
    let mut receiver = stand.open(Direction::Receive, "dpdk", Flow::default()).unwrap();
    let (memory, doorbell) =
        (region(), rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap());
    let steps = steps(&memory, &doorbell);
    // A client leaves at each step, and sends wrong messages at each step.
    let mut random = pd_tests::Random(7);
    let null = std::fs::File::open("/dev/null").unwrap();
    for until in 0..=steps.len() {
        for odd in 0..8 {
            let client = Client::connect(&path);
            for (number, (bytes, fds, answer)) in steps[..until].iter().enumerate() {
                client.say(bytes, fds);
                assert_eq!(client.hear(), Some(*answer), "step {number}");
            }
            let mut bytes = [0; 128];
            bytes.fill_with(|| random.below(256) as u8);
            (bytes[0], bytes[1]) = (random.below(10) as u8, 0);
            match odd {
                0 => {}
                1 => client.say(&bytes[..1 + random.below(127) as usize], &[]),
                2 => client.say(&steps[1].0, &[null.as_fd()]),
                3 => client.say(&steps[1].0, &[null.as_fd(), doorbell.as_fd(), memory.as_fd()]),
                4 => client.say(&message(4, &[&[0, 0], &u64::MAX.to_ne_bytes()]), &[memory.as_fd()]),
                5 => client.say(&ring(0, u32::MAX), &[null.as_fd()]),
                _ => client.say(&bytes, &[null.as_fd()]),
            }
            if odd > 0 && until == steps.len() && odd != 1 && odd < 6 {
                assert_eq!(client.hear(), Some(8), "it is told why");
            }
        }
    }
    // Frames, then impossible words: the pipe has the frames, and the client gets the reason.
    let client = Client::connect(&path);
    for (bytes, fds, _) in &steps {
        client.say(bytes, fds);
        assert!(client.hear().is_some());
    }
    let entry = |length: u32, offset: u32| {
        [&[0; 4][..], &length.to_ne_bytes(), &offset.to_ne_bytes(), &[0; 4]].concat()
    };
    // The client sleeps, and is woken by a frame.
    rustix::io::pwrite(&memory, &entry(2048, 16_384), 256 + 128).unwrap();
    rustix::io::pwrite(&memory, &1u16.to_ne_bytes(), 256 + 6).unwrap();
    let mut sender = stand.open(Direction::Send, "dpdk", Flow::default()).unwrap();
    sender.pipe.send(&[9; 64], 0).unwrap();
    sender.pipe.flush();
    let patience = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut woken = [rustix::event::PollFd::new(&doorbell, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut woken, Some(&patience)), Ok(1), "it is woken");
    rustix::io::pwrite(&memory, &[7; 100], 8192).unwrap();
    rustix::io::pwrite(&memory, &entry(100, 8192), 128).unwrap();
    rustix::io::pwrite(&memory, &entry(100, u32::MAX), 144).unwrap();
    rustix::io::pwrite(&memory, &2u16.to_ne_bytes(), 6).unwrap();
    receiver.pipe.wait(PATIENCE).unwrap();
    assert_eq!(receiver.pipe.frames().unwrap().next().unwrap().bytes(), [7; 100]);
    assert_eq!(client.hear(), Some(8));
    // All of that beside others, which lose nothing.
    for number in 0..100u8 {
        near.pipe.send(&[number; 64], 0).unwrap();
        near.pipe.flush();
        far.pipe.wait(PATIENCE).unwrap();
        assert_eq!(far.pipe.frames().unwrap().next().unwrap().bytes(), [number; 64]);
    }
    assert!(stand.driver.is_running());
}

/// Two pipes with a link between them.
struct Honest {
    near: Held,
    far: Held,
    number: u8,
}

impl Honest {
    fn new(stand: &Stand) -> Self {
        stand.add("wire", PortSpec::Link, "").unwrap();
        let near = stand.open(Direction::Send, "wire.0", Flow::default()).unwrap();
        let far = stand.open(Direction::Receive, "wire.1", Flow::default()).unwrap();
        Self { near, far, number: 0 }
    }

    /// Passes frames of all numbers, each of which arrives.
    fn exchange(&mut self, beside: &str) {
        for _ in 0..8 {
            self.number = self.number.wrapping_add(1);
            let frame = [self.number; 64];
            self.near.pipe.send(&frame, 0).unwrap();
            self.near.pipe.flush();
            assert_eq!(self.far.pipe.wait(PATIENCE), Ok(()), "beside {beside}");
            assert_eq!(self.far.pipe.frames().unwrap().next().unwrap().bytes(), frame, "beside {beside}");
        }
    }
}

/// Makes a file of a file system in user space that answers nothing, and the descriptor that its server would have.
fn silent_file() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let open = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let server = rustix::fs::open("/dev/fuse", open, rustix::fs::Mode::empty())?;
    let made = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let number = server.as_raw_fd().to_string();
    for (key, value) in [("fd", &*number), ("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")] {
        fsconfig_set_string(made.as_fd(), key, value)?;
    }
    fsconfig_create(made.as_fd())?;
    let root = fsmount(made.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok((root, server))
}

/// Descriptors that take an hour to close, or to look at, come with a message, too many for one, with an empty one, and with
/// one that nobody reads; also in a client's queue when the port is removed.
#[test]
fn descriptors_of_a_client_of_memif_hold_up_nobody() {
    let stand = Stand::new();
    let mut honest = Honest::new(&stand);
    let gift = || {
        let (gift, peer) = pd_raw::lingering(std::time::Duration::from_secs(3600)).unwrap();
        (OwnedFd::from(gift), peer)
    };
    let region = message(4, &[&[0, 0], &(64u64 << 10).to_ne_bytes()]);
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut peers = Vec::new();
    for (number, way) in ["one", "many", "empty", "unread", "silent"].into_iter().enumerate() {
        // A port of its own for each, whose thread closes one at a time.
        let path = stand.driver.folder().join(format!("{way}.sock"));
        let port = format!("dpdk{number}");
        stand.add(&port, PortSpec::Memif { socket: path.clone(), id: 3 }, "").unwrap();
        // The port reads nothing of a second client, so that it has the last descriptor when it does.
        let (first, client) = (Client::connect(&path), Client::begin(&path));
        if way == "silent" {
            match silent_file() {
                Ok((file, server)) => {
                    peers.push(server);
                    client.say(&message(3, &INIT), &[]);
                    client.say(&region, &[file.as_fd()]);
                }
                Err(why) => println!("SKIPPED: no file system in user space: {why}"),
            }
        } else {
            let (gift, peer) = gift();
            peers.push(OwnedFd::from(peer));
            match way {
                "one" => client.say(&message(3, &INIT), &[gift.as_fd()]),
                "many" => client.say(&region, &[&vec![null.as_fd(); 252][..], &[gift.as_fd()]].concat()),
                "empty" => client.say(&[], &[gift.as_fd()]),
                _ => {
                    client.say(&message(9, &[]), &[]);
                    client.say(&message(9, &[]), &[gift.as_fd()]);
                }
            }
        }
        drop(first);
        assert_eq!(client.hear(), Some(2), "it is greeted");
        // All that it has sent is read.
        while !matches!(client.hear(), None | Some(8)) && way != "one" {}
        honest.exchange(way);
        drop(client);
        honest.exchange(way);
        // A client that nobody has accepted, because another is there.
        let (gift, peer) = gift();
        peers.push(OwnedFd::from(peer));
        let _first = Client::connect(&path);
        let waiting = Client::begin(&path);
        waiting.say(&message(3, &INIT), &[gift.as_fd()]);
        drop((gift, waiting));
        honest.exchange(way);
        stand.driver.tell(&pd_driver::admin::Ask::PortRemove { name: port.clone() });
        honest.exchange(way);
        // The path is free again, although the thread has the previous socket.
        stand.add(&port, PortSpec::Memif { socket: path.clone(), id: 3 }, "").unwrap();
        let _again = Client::connect(&path);
    }
}
