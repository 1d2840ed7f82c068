//! Files that clients send: refusals, deliveries, and the effect of files and words that change.
use super::{stage, stage_for_anyone, Scene};
use pd_abi::layout::{control_header, header, socket_status};
use pd_abi::limits::FILES_MAX;
use pd_abi::{FileId, Frame, FrameKind, Operation, Request, SocketId, MAGIC};
use pd_driver::Violation;
use pd_shm::passed;
use pd_tests::{compiled_program, fill, needs_root, program_path, verify, Puppet, Raw};
use rustix::fs::{fadvise, major, memfd_create, Advice, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const FILE_BYTES: usize = 1 << 20;
const SEED: u64 = 9;
const NOBODY: u32 = 65_534;

/// Makes a file on a disk, of a kind that the driver opens; none if the tests' folder is on no disk.
fn file() -> Option<(tempfile::TempDir, File)> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut bytes = vec![0; FILE_BYTES];
    fill(SEED, 0, &mut bytes);
    let path = dir.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    if major(file.metadata().unwrap().dev()) == 0 {
        println!("SKIPPED: target/ is on no disk, and the driver reads no file from there");
        return None;
    }
    Some((dir, file))
}

fn asking(serial: u64) -> Request {
    Request::new(Operation::OpenFile, SocketId(0), 0).with_numbers(serial, 0)
}

fn open(raw: &mut Raw, file: impl AsFd) -> Result<FileId, i32> {
    let request = raw.pass(file);
    let answer = raw.call(0, request);
    match answer.errno {
        0 => Ok(FileId(answer.number() as u32)),
        errno => Err(errno as i32),
    }
}

/// Makes a sender and the two ends of a connection of its own.
fn pair(scene: &Scene) -> (Raw, SocketId, SocketId) {
    let mut raw = Raw::attach(&scene.driver, 1);
    let (from, to) = ends(&mut raw);
    (raw, from, to)
}

/// Makes the two ends of one more connection of a client with itself.
fn ends(raw: &mut Raw) -> (SocketId, SocketId) {
    let (listener, addr) = raw.listen(0, 1);
    let from = raw.connect(0, addr);
    (from, raw.accept(0, listener))
}

fn word(raw: &Raw, id: FileId) -> u32 {
    raw.status.load_u32(header::FILES + 4 * usize::from(id.slot()), Ordering::Acquire)
}

fn count(raw: &Raw, id: FileId, uses: u32) {
    raw.control.store_u32(control_header::FILE_USES + 4 * usize::from(id.slot()), uses, Ordering::SeqCst);
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns descriptors that are no file of a disk, or cannot be read by, with the errno of the refusal.
fn unreadable(dir: &Path) -> Vec<(OwnedFd, i32)> {
    let file = dir.join("unreadable");
    std::fs::write(&file, "bytes").unwrap();
    let by = |path: &Path, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
    vec![
        (by(&file, OFlags::PATH), libc::EACCES),
        (by(&file, OFlags::WRONLY), libc::EACCES),
        (by(&file, OFlags::ACCMODE), libc::EACCES),
        (by(dir, OFlags::RDONLY), libc::EINVAL),
        (by("/dev/null".as_ref(), OFlags::RDONLY), libc::EINVAL),
        (rustix::pipe::pipe().unwrap().0, libc::EINVAL),
        (
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap()
                .0,
            libc::EINVAL,
        ),
        (by("/proc/self/maps".as_ref(), OFlags::RDONLY), libc::EOPNOTSUPP),
        (memfd_create("file", MemfdFlags::CLOEXEC).unwrap(), libc::EOPNOTSUPP),
    ]
}

#[test]
fn only_what_the_client_can_read_is_opened() {
    let scene = stage();
    let (mut raw, ..) = pair(&scene);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (what, errno) in unreadable(dir.path()) {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", what.as_raw_fd()));
        assert_eq!(open(&mut raw, &what), Err(errno), "{name:?}");
    }
    if let Some((_dir, file)) = file() {
        let id = open(&mut raw, &file).unwrap();
        assert_eq!((id, word(&raw, id)), (FileId::new(0, 1), id.0));
    }
    drop(raw);
    scene.end();
}

/// An attached process may have become another program since, and its children must not read by that program's descriptors.
#[test]
fn what_the_attached_process_has_open_is_not_found_by_number() {
    let scene = stage();
    let Some((dir, file)) = file() else { return };
    let (mut raw, ..) = pair(&scene);
    let known = file.metadata().unwrap();
    let number = file.as_raw_fd() as u64;
    for has_socket in [false, true] {
        if has_socket {
            raw.file_socket();
        }
        for numbers in [(known.dev(), known.ino()), (number, number), (0, 0), (u64::MAX, 0)] {
            let mut request = asking(numbers.0).with_numbers(numbers.0, numbers.1);
            request.value = number as u32;
            let refused = if has_socket { libc::ESTALE } else { libc::ENOTCONN };
            assert_eq!(raw.call(0, request).errno as i32, refused);
        }
    }
    assert!((0..FILES_MAX).all(|slot| word(&raw, FileId::new(slot as u16, 1)) == 0));
    drop((raw, file, dir));
    scene.end();
}

#[test]
fn a_client_has_one_file_socket() {
    let scene = stage();
    let (mut raw, ..) = pair(&scene);
    raw.file_socket();
    let wish = Frame::new(FrameKind::FileSocket);
    for _ in 0..3 {
        let refusal = raw.ask(&wish, FrameKind::FileSocket).expect_err("a second one");
        assert_eq!(refusal.errno as i32, libc::EEXIST);
    }
    drop(raw);
    scene.end();
}

fn send_datagram(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    let bytes = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::DONTWAIT).unwrap();
}

/// Descriptors in the driver's table of those that clients have passed.
fn passed_descriptors() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let openers = tasks.filter(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "pd-openers")
    });
    openers.filter_map(|task| std::fs::read_dir(task.join("fd")).ok()).flatten().count()
}

#[test]
fn datagrams_that_are_no_passed_file() {
    let scene = stage();
    let (mut raw, ..) = pair(&scene);
    raw.file_socket();
    assert_eq!(raw.call(0, asking(1)).errno as i32, libc::ESTALE);
    let before = passed_descriptors();
    let root = File::open("/").unwrap();
    let gift = root.as_fd();
    let words = |magic: u64, serial: u64| [magic.to_le_bytes(), serial.to_le_bytes()].concat();
    let good = words(MAGIC, 7);
    let bad: [(&[u8], usize); 8] = [
        (&good, 0),
        (&good, 2),
        (&good, 3),
        (&good, 100),
        (&words(MAGIC ^ 1, 7), 1),
        (&good[..15], 1),
        (&[&good[..], &[0]].concat(), 1),
        (&[], 1),
    ];
    for (bytes, count) in bad {
        send_datagram(raw.file_socket(), bytes, &vec![gift; count]);
        let answer = raw.call(0, asking(7));
        assert_eq!(answer.errno as i32, libc::EPROTO, "{} bytes, {count} descriptors", bytes.len());
    }
    // Of another request, or of none.
    for serial in [8, u64::MAX] {
        send_datagram(raw.file_socket(), &words(MAGIC, serial), &[gift]);
        assert_eq!(raw.call(0, asking(7)).errno as i32, libc::ESTALE);
        assert_eq!(raw.call(0, asking(serial)).errno as i32, libc::ESTALE);
    }
    // As many as there is room for: one request takes a few of them, and the driver keeps none.
    let mut sent = 0;
    while passed::send(raw.file_socket(), 7, gift).is_ok() {
        sent += 1;
    }
    assert!(sent > 10, "{sent}");
    assert_eq!(raw.call(0, asking(8)).errno as i32, libc::ESTALE);
    // Many requests, and nothing to go with most of them.
    let mut answers = 0;
    for asked in 1..=10_000 {
        raw.post(0, &asking(u64::MAX));
        wait("answers", || {
            answers += std::iter::from_fn(|| raw.event(0)).count();
            answers + 500 > asked
        });
    }
    wait("the last answers", || {
        answers += std::iter::from_fn(|| raw.event(0)).count();
        answers == 10_000
    });
    if let Some((_dir, file)) = file() {
        open(&mut raw, &file).unwrap();
    }
    assert_eq!(scene.cut_offs(), 0);
    wait("nothing is kept", || passed_descriptors() == before);
    drop(raw);
    wait("the socket goes", || passed_descriptors() == before - 1);
    drop(root);
    scene.end();
}

/// Makes a TCP socket that takes a minute to close, unless the other one goes.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
    (stream, peer)
}

/// Attaches a client of another user.
fn of_another_user(scene: &Scene) -> Raw {
    std::thread::scope(|scope| {
        let attach = || {
            // SAFETY: takes no memory. The system call itself is about this thread alone, which ends.
            let is_nobody = unsafe { libc::syscall(libc::SYS_setresuid, -1, NOBODY, -1) } == 0;
            assert!(is_nobody, "needs root, to give it up");
            Raw::attach(&scene.driver, 1)
        };
        scope.spawn(attach).join().unwrap()
    })
}

#[test]
fn descriptors_that_take_long_to_close_hold_up_their_tenants_openings_alone() {
    needs_root("a client of another user");
    let scene = stage_for_anyone();
    // The policy names no user: users are told apart.
    scene.driver.apply("path = \"offloaded\"\n[attach]\ndefault = \"anyone\"");
    let Some((dir, file)) = file() else { return };
    let (mut slow, from, to) = pair(&scene);
    let id = open(&mut slow, &file).unwrap();
    // The file stays open until it is sent.
    count(&slow, id, 1);
    let (stream, peer) = lingering();
    let mut other = of_another_user(&scene);

    // Closing the last descriptor waits.
    let request = slow.pass(&stream);
    drop(stream);
    assert_eq!(slow.call(0, request).errno as i32, libc::EINVAL);
    let request = slow.pass(&file);
    slow.post(0, &request);
    // Only its own requests wait, and of these neither streams nor disks.
    open(&mut other, &file).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    slow.post(0, &Request::send_file(from, id, 0, 200_000));
    verify(SEED, 0, &slow.received(to, 0, 200_000));
    assert!(scene.driver.metrics().files_cold > 0);
    assert!(slow.event(0).is_none(), "it was not held up");
    // Nor does a client that goes, with more of the kind that nobody has received.
    let (stream, second_peer) = lingering();
    slow.pass(&stream);
    drop((slow, stream));
    scene.driver.wait_for("it is gone", |r| r.clients.len() == 3);
    open(&mut other, File::open(dir.path().join("file")).unwrap()).unwrap();
    scene.bystander.check(&scene.driver);
    drop((peer, second_peer, other, file, dir));
    scene.end();
}

/// A file system of one file in a folder, which answers nothing once the file is open. Unmounted when dropped.
struct Hushed {
    server: Child,
    folder: tempfile::TempDir,
}

impl Hushed {
    /// Makes one. `None`: this kernel has none of FUSE.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("m");
        std::fs::create_dir(&mount).unwrap();
        let program = compiled_program("hushed", folder.path(), &[]);
        let server = Command::new(&program).arg(&mount).stdout(Stdio::piped()).spawn().unwrap();
        let mut this = Self { server, folder };
        let mut line = String::new();
        BufReader::new(this.server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (line == "ready\n").then_some(this)
    }

    fn open(&self) -> File {
        File::open(self.folder.path().join("m/file")).unwrap()
    }

    /// Ends the server. Everything that waits for it fails.
    fn end(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

impl Drop for Hushed {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = rustix::mount::unmount(self.folder.path().join("m"), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_file_of_a_silent_file_system_holds_up_its_tenants_openings_alone() {
    needs_root("a file system, and a client of another user");
    let scene = stage_for_anyone();
    scene.driver.apply("path = \"offloaded\"\n[attach]\ndefault = \"anyone\"");
    let Some((dir, file)) = file() else { return };
    let Some(mut hushed) = Hushed::new() else {
        println!("SKIPPED: no file system of FUSE");
        return;
    };
    let (mut slow, from, to) = pair(&scene);
    let id = open(&mut slow, &file).unwrap();
    count(&slow, id, 1);
    let mut other = of_another_user(&scene);
    let silent = hushed.open();
    assert_eq!(open(&mut slow, &silent), Err(libc::EOPNOTSUPP));
    // The driver's descriptor of the file system's file is being closed, and the file system does not answer.
    let request = slow.pass(&file);
    slow.post(0, &request);
    open(&mut other, &file).unwrap();
    slow.post(0, &Request::send_file(from, id, 0, 100_000));
    verify(SEED, 0, &slow.received(to, 0, 100_000));
    scene.bystander.check(&scene.driver);
    assert!(slow.event(0).is_none(), "it was not held up");
    hushed.end();
    wait("openings go on", || slow.event(0).is_some());
    drop((silent, hushed, slow, other, file, dir));
    scene.end();
}

/// Of a client that has gone the kernel collects sockets that messages alone hold. Its attach socket is among them: it does not hang up.
#[test]
fn descriptors_that_hold_each_other_are_let_go() {
    needs_root("a client of another user");
    let scene = stage_for_anyone();
    for _ in 0..4 {
        let mut command = Command::new(program_path("attacker"));
        command.arg(scene.driver.socket()).args(["cycles", "8"]);
        let mut client = Puppet::new(scene.driver.spawn(&mut command));
        assert_eq!(client.line(), "done 8 0");
        scene.bystander.check(&scene.driver);
        scene.driver.wait_for("it stays", |report| report.clients.len() == 3);
        client.kill();
        scene.driver.wait_for("it has gone", |report| report.clients.len() == 2);
    }
    scene.end();
}

#[test]
fn files_beyond_what_a_client_may_have() {
    let scene = stage();
    let Some((dir, file)) = file() else { return };
    let (mut raw, ..) = pair(&scene);
    let ids: Vec<_> = (0..FILES_MAX).map(|_| open(&mut raw, &file).unwrap()).collect();
    assert_eq!(open(&mut raw, &file), Err(libc::EMFILE));
    // An unused file makes room; one with a count of uses does not.
    ids[1..].iter().for_each(|&id| count(&raw, id, 1));
    wait("the file is closed", || word(&raw, ids[0]) == 0);
    let again = open(&mut raw, &file).unwrap();
    assert_eq!(again, FileId::new(ids[0].slot(), ids[0].generation() + 1));
    assert!(ids[1..].iter().all(|&id| word(&raw, id) == id.0));
    drop((raw, file, dir));
    scene.end();
}

#[test]
fn sends_of_files_that_are_not_open() {
    let scene = stage();
    type Send = fn(FileId) -> (FileId, u64, u64);
    let sends: [Send; 6] = [
        |id| (FileId::new(id.slot() + 1, id.generation()), 0, 1),
        |id| (FileId::new(id.slot(), id.generation() + 1), 0, 1),
        |_| (FileId(u32::MAX), 0, 1),
        |id| (id, 0, 0),
        |id| (id, 0, (1 << 30) + 1),
        |id| (id, i64::MAX as u64, 1),
    ];
    let file = file();
    for send in sends {
        let (mut raw, from, _) = pair(&scene);
        let id = file.as_ref().map_or(FileId::new(0, 1), |(_, file)| open(&mut raw, file).unwrap());
        let (id, offset, len) = send(id);
        raw.post(0, &Request::send_file(from, id, offset, len));
        scene.expect_cut_off(&mut raw, Violation::File);
    }
    drop(file);
    scene.end();
}

#[test]
fn pieces_arrive_in_order_and_idle_files_are_closed() {
    let scene = stage();
    let Some((dir, file)) = file() else { return };
    let (mut raw, from, to) = pair(&scene);
    let id = open(&mut raw, &file).unwrap();
    // Between memory and file, and to the file's last byte.
    let (region, map) = raw.send_region(4096);
    map.store_u64(0, u64::from_le_bytes(*b"memory.."), Ordering::Relaxed);
    let memory = pd_abi::Span { region: region.id as u16, offset: 0, len: 8 };
    raw.post(0, &Request::send_file(from, id, 5, 70_000));
    raw.post(0, &Request::send(from, memory));
    raw.post(0, &Request::send_file(from, id, FILE_BYTES as u64 - 9, 9));
    count(&raw, id, 2);
    verify(SEED, 5, &raw.received(to, 0, 70_000));
    assert_eq!(raw.received(to, 70_000, 8), b"memory..");
    verify(SEED, FILE_BYTES as u64 - 9, &raw.received(to, 70_008, 9));
    raw.wait_status(from, socket_status::SEND_CONSUMER, 3);
    assert_eq!(scene.driver.metrics().file_bytes, 70_009);

    let is_held = || {
        std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .filter_map(|fd| std::fs::metadata(fd.path()).ok())
    };
    let inode = file.metadata().unwrap().ino();
    assert_eq!(is_held().filter(|known| known.ino() == inode).count(), 2);
    wait("the driver closes the file", || is_held().filter(|known| known.ino() == inode).count() == 1);
    assert_eq!(word(&raw, id), 0);
    raw.post(0, &Request::send_file(from, id, 0, 1));
    scene.expect_cut_off(&mut raw, Violation::File);
    drop((raw, region, map, file, dir));
    scene.end();
}

#[test]
fn what_is_on_a_disk_is_waited_for() {
    let scene = stage();
    let Some((dir, file)) = file() else { return };
    let (mut raw, from, to) = pair(&scene);
    let id = open(&mut raw, &file).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    raw.post(0, &Request::send_file(from, id, 0, 200_000));
    verify(SEED, 0, &raw.received(to, 0, 200_000));
    let metrics = scene.driver.metrics();
    assert!(metrics.files_cold > 0, "{metrics:?}");
    drop((raw, file, dir));
    scene.end();
}

#[test]
fn a_file_that_is_cut_off_ends_its_connection_only() {
    let scene = stage();
    let Some((dir, file)) = file() else { return };
    let (mut raw, from, to) = pair(&scene);
    let (other_from, other_to) = ends(&mut raw);
    let id = open(&mut raw, &file).unwrap();
    file.set_len(100).unwrap();
    raw.post(0, &Request::send_file(from, id, 0, 200));
    raw.post(0, &Request::send_file(other_from, id, 0, 100));
    verify(SEED, 0, &raw.received(other_to, 0, 100));
    let reset = Errno::CONNRESET.raw_os_error() as u32;
    let end =
        |raw: &Raw, socket, word| raw.status.load_u32(Raw::socket_word(socket, word), Ordering::Acquire);
    wait("both ends learn of it", || {
        end(&raw, to, socket_status::RECV_END) == reset && end(&raw, from, socket_status::SEND_END) == reset
    });
    // The part that existed has arrived.
    verify(SEED, 0, &raw.received(to, 0, 100));
    assert_eq!((scene.driver.metrics().files_failed, scene.cut_offs()), (1, 0));
    drop((raw, file, dir));
    scene.end();
}

/// Largest files of the usual file systems, in bytes.
const LARGEST: [u64; 3] = [i64::MAX as u64 & !0xffff, (1 << 44) - (64 << 10), 1 << 40];

#[test]
fn files_of_nothing_but_holes() {
    let scene = stage();
    let Some((dir, file)) = file() else { return };
    let (mut raw, from, to) = pair(&scene);
    let (other_from, other_to) = ends(&mut raw);
    let id = open(&mut raw, &file).unwrap();
    let bytes = LARGEST.into_iter().find(|&bytes| file.set_len(bytes).is_ok()).expect("a large file");
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    for (at, offset) in [(0, bytes / 2), (80_000, bytes - 80_000), (160_000, bytes / 3)] {
        raw.post(0, &Request::send_file(from, id, offset, 80_000));
        assert!(raw.received(to, at, 80_000).iter().all(|&byte| byte == 0), "{offset}");
    }
    // Behind the end, at the last byte that a file can have.
    raw.post(0, &Request::send_file(other_from, id, i64::MAX as u64 - 1, 1));
    let reset = Errno::CONNRESET.raw_os_error() as u32;
    let word = Raw::socket_word(other_to, socket_status::RECV_END);
    wait("its connection ends", || raw.status.load_u32(word, Ordering::Acquire) == reset);
    assert_eq!((scene.driver.metrics().files_failed, scene.cut_offs()), (1, 0));
    scene.bystander.check(&scene.driver);
    drop((raw, file, dir));
    scene.end();
}

#[test]
fn a_client_that_goes_with_files_under_way() {
    let scene = stage();
    let Some((dir, file)) = file() else { return };
    for _ in 0..20 {
        let (mut raw, from, _) = pair(&scene);
        let id = open(&mut raw, &file).unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        // Answers nobody waits for; more than the receive ring holds.
        for _ in 0..8 {
            let request = raw.pass(&file);
            raw.post(0, &request);
        }
        raw.post(0, &Request::send_file(from, id, 0, FILE_BYTES as u64 / 4));
        drop(raw);
    }
    drop((file, dir));
    scene.end();
}
