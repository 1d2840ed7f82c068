//! Files that are named to be sent: what is refused, what is delivered, and what comes of files and words that change.
use super::{stage, Scene};
use pd_abi::layout::{control_header, header, socket_status};
use pd_abi::limits::FILES_MAX;
use pd_abi::{FileId, Operation, Request, SocketId};
use pd_driver::Violation;
use pd_tests::{fill, verify, Raw};
use rustix::fs::{fadvise, major, memfd_create, Advice, MemfdFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const FILE_BYTES: usize = 1 << 20;
const SEED: u64 = 9;

/// A file on a disk, of whose kind the driver opens files; none if the tests' folder is on none.
fn file() -> Option<(tempfile::TempDir, File)> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut bytes = vec![0; FILE_BYTES];
    fill(SEED, 0, &mut bytes);
    let path = dir.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    (major(file.metadata().unwrap().dev()) != 0).then_some((dir, file))
}

fn request(descriptor: i32, device: u64, inode: u64) -> Request {
    let mut request = Request::new(Operation::OpenFile, SocketId(0), 0).with_numbers(device, inode);
    request.value = descriptor as u32;
    request
}

fn open(raw: &mut Raw, file: impl AsFd) -> Result<FileId, i32> {
    let known = rustix::fs::fstat(&file).unwrap();
    let answer = raw.call(0, request(file.as_fd().as_raw_fd(), known.st_dev, known.st_ino));
    match answer.errno {
        0 => Ok(FileId(answer.number() as u32)),
        errno => Err(errno as i32),
    }
}

/// A sender and the two ends of a connection of its own.
fn pair(scene: &Scene) -> (Raw, SocketId, SocketId) {
    let mut raw = Raw::attach(&scene.driver, 1);
    let (listener, addr) = raw.listen(0, 1);
    let from = raw.connect(0, addr);
    let to = raw.accept(0, listener);
    (raw, from, to)
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

#[test]
fn only_what_the_client_can_read_is_opened() {
    let scene = stage();
    let (mut raw, ..) = pair(&scene);
    let memory = memfd_create("file", MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(open(&mut raw, &memory), Err(libc::EOPNOTSUPP));
    assert_eq!(open(&mut raw, File::open("/").unwrap()), Err(libc::EINVAL));
    assert_eq!(open(&mut raw, File::open("/dev/null").unwrap()), Err(libc::EINVAL));
    for descriptor in [-1, 9999] {
        assert_eq!(raw.call(0, request(descriptor, 1, 1)).errno as i32, libc::ENOENT);
    }
    if let Some((dir, file)) = file() {
        let known = file.metadata().unwrap();
        let other = request(file.as_raw_fd(), known.dev(), known.ino() + 1);
        assert_eq!(raw.call(0, other).errno as i32, libc::ESTALE);
        let writer = File::options().write(true).open(dir.path().join("file")).unwrap();
        assert_eq!(open(&mut raw, &writer), Err(libc::EACCES));
        let id = open(&mut raw, &file).unwrap();
        assert_eq!((id, word(&raw, id)), (FileId::new(0, 1), id.0));
    }
    drop((raw, memory));
    scene.end();
}

#[test]
fn files_beyond_what_a_client_may_have() {
    let scene = stage();
    let Some((dir, file)) = file() else { return };
    let (mut raw, ..) = pair(&scene);
    let ids: Vec<_> = (0..FILES_MAX).map(|_| open(&mut raw, &file).unwrap()).collect();
    assert_eq!(open(&mut raw, &file), Err(libc::EMFILE));
    // One that is not used makes room; one that is said to be used does not.
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
    let (listener, addr) = raw.listen(0, 1);
    let (other_from, id) = (raw.connect(0, addr), open(&mut raw, &file).unwrap());
    let other_to = raw.accept(0, listener);
    file.set_len(100).unwrap();
    raw.post(0, &Request::send_file(from, id, 0, 200));
    raw.post(0, &Request::send_file(other_from, id, 0, 100));
    verify(SEED, 0, &raw.received(other_to, 0, 100));
    let reset = Errno::CONNRESET.raw_os_error() as u32;
    let end =
        |raw: &Raw, socket, word| raw.status.load_u32(Raw::socket_word(socket, word), Ordering::Acquire);
    wait("both ends hear of it", || {
        end(&raw, to, socket_status::RECV_END) == reset && end(&raw, from, socket_status::SEND_END) == reset
    });
    // What there was of it has arrived.
    verify(SEED, 0, &raw.received(to, 0, 100));
    assert_eq!((scene.driver.metrics().files_failed, scene.cut_offs()), (1, 0));
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
        let known = file.metadata().unwrap();
        // Answers nobody waits for; more than the receive ring holds.
        (0..8).for_each(|_| raw.post(0, &request(file.as_raw_fd(), known.dev(), known.ino())));
        raw.post(0, &Request::send_file(from, id, 0, FILE_BYTES as u64 / 4));
        drop(raw);
    }
    drop((file, dir));
    scene.end();
}
