//! Attacks on the memory itself: truncation, holes, new writers, reopened descriptors.
use super::{stage, stage_with, Scene};
use pd_abi::layout::{channel_control, header, REGION_BYTES};
use pd_abi::{Frame, Operation, Request, SocketId, Span, MAGIC};
use pd_driver::{HugepageUse, Violation};
use pd_shm::{memfd, Access, Own, Region, Theirs};
use pd_tests::{withhold, Raw, SentRegion, MINOR, MISSING};
use rustix::fs::{fallocate, fcntl_add_seals, ftruncate, open, FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{madvise, mmap, mprotect, Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Refusals of the kernel that are as good as one another.
fn refused<T: std::fmt::Debug>(result: rustix::io::Result<T>, what: &str) {
    let errno = result.expect_err(what);
    let refusals = [Errno::PERM, Errno::ACCESS, Errno::ROFS];
    assert!(refusals.contains(&errno), "{what}: {errno:?}");
}

/// Checks for refusal as [`refused`]; hugepages do not support the call at all.
fn impossible<T: std::fmt::Debug>(result: rustix::io::Result<T>, what: &str) {
    let errno = result.expect_err(what);
    let refusals = [Errno::PERM, Errno::ACCESS, Errno::INVAL, Errno::OPNOTSUPP, Errno::BADF, Errno::IO];
    assert!(refusals.contains(&errno), "{what}: {errno:?}");
}

fn map_writable(fd: impl AsFd, len: usize) -> rustix::io::Result<Region<Own>> {
    Region::<Own>::new(fd, len)
}

fn punch(fd: impl AsFd, offset: u64, len: u64) -> rustix::io::Result<()> {
    fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

fn base(map: &Region<impl Access>) -> *mut c_void {
    map.address(0, 1).as_ptr().cast()
}

fn remove(map: &Region<impl Access>, len: usize) -> rustix::io::Result<()> {
    // SAFETY: a range of the test's own mapping of shared memory, which nothing refers to.
    unsafe { madvise(base(map), len, Advice::LinuxRemove) }
}

/// Tries all forbidden operations on sealed memory through this descriptor.
fn attack_descriptor(fd: &OwnedFd, len: usize, page: usize) {
    let (half, page_len) = (len as u64 / 2, page as u64);
    // A read-only descriptor refuses them anyway.
    impossible(ftruncate(fd, 0), "truncate");
    impossible(ftruncate(fd, half), "truncate to half");
    impossible(ftruncate(fd, len as u64 + page_len), "grow");
    impossible(punch(fd, 0, page_len), "punch");
    impossible(punch(fd, 0, len as u64), "punch all");
    impossible(fallocate(fd, FallocateFlags::empty(), len as u64, page_len), "allocate beyond the end");
    for flags in [FallocateFlags::ZERO_RANGE, FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        impossible(fallocate(fd, flags, 0, page_len), "zero, collapse, insert");
    }
    impossible(rustix::io::write(fd, &[1; 8]), "write");
    impossible(rustix::io::pwrite(fd, &[1; 8], 0), "pwrite");
    let source = memfd::create("source", 4096, memfd::Pages::Ordinary).unwrap();
    impossible(rustix::fs::sendfile(fd, &source, None, 64), "sendfile");
    refused(map_writable(fd, len), "map writable");
    refused(fcntl_add_seals(fd, SealFlags::WRITE), "add a seal");
    // The driver's memory has no seal where its readers have a mount of their own.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let again = open(&*path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    assert!(memfd::is_sealed(fd) || again.is_err_and(|errno| errno == Errno::ROFS));
}

/// Tries all forbidden operations on memory that the driver alone writes, or that is sealed.
pub fn attack(fd: &OwnedFd, len: usize, page: usize) {
    attack_descriptor(fd, len, page);
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let is_sealed = memfd::is_sealed(fd);
    match open(&*path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(again) => attack_descriptor(&again, len, page),
        Err(errno) => assert_eq!((errno, is_sealed), (Errno::ROFS, false)),
    }
    refused(open(&*path, OFlags::RDWR | OFlags::TRUNC, Mode::empty()), "open truncating");
    for flags in [OFlags::WRONLY, OFlags::RDWR | OFlags::APPEND] {
        let again = match open(&*path, flags, Mode::empty()) {
            Ok(again) => again,
            Err(errno) => {
                assert_eq!((errno, is_sealed), (Errno::ROFS, false));
                continue;
            }
        };
        impossible(rustix::io::write(&again, &[1; 8]), "write to the reopened");
        impossible(map_writable(&again, len), "map the reopened");
    }

    let read_only = Region::<Theirs>::new(fd, len).expect("map read-only");
    let before = read_only.load_u64(0, Ordering::SeqCst);
    let writable = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the test's own mapping; the call must fail and change nothing.
    refused(unsafe { mprotect(base(&read_only), page, writable) }, "mprotect");
    refused(remove(&read_only, page), "remove through a read-only mapping");
    let memory = open("/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    impossible(rustix::io::pwrite(&memory, &[1; 8], base(&read_only) as u64), "/proc/self/mem");
    let start = base(&read_only) as usize;
    let file = format!("/proc/self/map_files/{start:x}-{:x}", start + len);
    if let Ok(again) = open(&*file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        attack_descriptor(&again, len, page);
    }
    // A private mapping may be written: a copy.
    // SAFETY: a new mapping at an address of the kernel's choice.
    let private =
        unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE, fd, 0) };
    if let Ok(private) = private {
        // SAFETY: eight bytes of the mapping just made, which is then unmapped and not used again.
        unsafe {
            private.cast::<u64>().write(!before);
            rustix::mm::munmap(private, len).unwrap();
        }
    }
    assert_eq!(read_only.load_u64(0, Ordering::SeqCst), before);
}

/// Connects a client to itself: returns the sending socket and the receiving one.
fn loops(raw: &mut Raw) -> (SocketId, SocketId) {
    let (listener, addr) = raw.listen(0, 8);
    let sending = raw.connect(0, addr);
    let receiving = raw.accept(0, listener);
    (sending, receiving)
}

fn store(map: &Region<Own>, from: usize, to: usize, seed: u64) {
    for at in (from..to).step_by(8) {
        map.store_u64(at, seed ^ at as u64, Ordering::Relaxed);
    }
}

fn stored(from: usize, to: usize, seed: u64) -> Vec<u8> {
    (from..to).step_by(8).flat_map(|at| (seed ^ at as u64).to_le_bytes()).collect()
}

fn page_of(region: &SentRegion) -> usize {
    let kind = rustix::fs::fstatfs(&region.fd).expect("statfs");
    kind.f_bsize as usize
}

fn attack_everything(scene: &Scene, bytes: usize) {
    // At once.
    let raw = Raw::welcomed(&scene.driver);
    attack(&raw.status_fd, REGION_BYTES, 4096);
    assert_eq!(raw.status.load_u64(header::MAGIC, Ordering::Relaxed), MAGIC);
    drop(raw);

    let mut raw = Raw::attach(&scene.driver, 1);
    attack(&raw.status_fd, REGION_BYTES, 4096);
    attack(&raw.control_fd, REGION_BYTES, 4096);
    refused(remove(&raw.control, 4096), "remove through the writable mapping");
    let (region, map) = raw.send_region(bytes as u64);
    let page = page_of(&region);
    eprintln!("send region of {} bytes in pages of {page}", region.bytes);
    attack(&region.fd, region.bytes, page);
    refused(remove(&map, page), "remove through the writable mapping");

    // The memory is unchanged, and works.
    let (sending, receiving) = loops(&mut raw);
    store(&map, 0, 10_000, 3);
    raw.post(0, &Request::send(sending, Span { region: region.id as u16, offset: 0, len: 10_000 }));
    assert_eq!(raw.received(receiving, 0, 10_000), stored(0, 10_000, 3));
    let receive = raw.receive_regions.pop().expect("receive region");
    attack(&receive.fd, receive.bytes, page_of(&receive));
    raw.receive_regions.push(receive);
    store(&map, 0, 10_000, 4);
    raw.post(0, &Request::send(sending, Span { region: region.id as u16, offset: 0, len: 10_000 }));
    assert_eq!(raw.received(receiving, 10_000, 10_000), stored(0, 10_000, 4));
    assert_eq!(raw.is_cut_off(), None);
}

#[test]
fn sealed_memory_stays_as_it_is() {
    let scene = stage();
    attack_everything(&scene, 256 << 10);
    scene.end();
}

#[test]
fn sealed_hugepages_stay_as_they_are() {
    // Ordinary pages where the machine has no free hugepages: then as above.
    let scene = stage_with(HugepageUse::Auto);
    attack_everything(&scene, 4 << 20);
    scene.end();
}

#[test]
fn holes_punched_before_the_seal_do_no_harm() {
    for (hugepages, bytes) in [(HugepageUse::Off, 128 << 10), (HugepageUse::Auto, 4 << 20)] {
        let scene = stage_with(hugepages);
        // The control region, while it may be punched.
        let mut raw = Raw::welcomed(&scene.driver);
        store(&raw.control, 0, 65_536, 1);
        punch(&raw.control_fd, 0, REGION_BYTES as u64).expect("not yet sealed");
        raw.mapped(Frame::REGION_CONTROL);
        refused(punch(&raw.control_fd, 0, 4096), "punch");
        raw.add_channel();

        // A send region: written, punched, written again in part.
        let region = raw.ask_send_region(bytes);
        let map = map_writable(&region.fd, region.bytes).expect("not yet sealed");
        store(&map, 0, region.bytes, 5);
        punch(&region.fd, 0, region.bytes as u64).expect("not yet sealed");
        store(&map, 0, 60_000, 6);
        remove(&map, region.bytes).expect("not yet sealed");
        store(&map, 0, 50_000, 7);
        raw.mapped(region.id);
        refused(punch(&region.fd, 0, 4096), "punch");
        refused(remove(&map, 4096), "remove");
        let (sending, receiving) = loops(&mut raw);
        raw.post(0, &Request::send(sending, Span { region: region.id as u16, offset: 0, len: 100_000 }));
        let received = raw.received(receiving, 0, 100_000);
        assert_eq!(received[..50_000], stored(0, 50_000, 7));
        assert!(received[50_000..].iter().all(|&byte| byte == 0), "a hole holds zeros");
        assert_eq!(raw.is_cut_off(), None);
        drop((raw, region, map));
        scene.end();
    }
}

#[test]
fn holes_punched_while_the_seal_is_set_do_no_harm() {
    let scene = stage();
    for seed in 0..20 {
        let mut raw = Raw::attach(&scene.driver, 1);
        let region = raw.ask_send_region(128 << 10);
        let map = map_writable(&region.fd, region.bytes).expect("not yet sealed");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if punch(&region.fd, 0, region.bytes as u64).is_err() {
                        break;
                    }
                }
            });
            raw.mapped(region.id);
            refused(punch(&region.fd, 0, 4096), "punch");
            stop.store(true, Ordering::Relaxed);
        });
        let (sending, receiving) = loops(&mut raw);
        store(&map, 0, 40_000, seed);
        raw.post(0, &Request::send(sending, Span { region: region.id as u16, offset: 0, len: 40_000 }));
        assert_eq!(raw.received(receiving, 0, 40_000), stored(0, 40_000, seed));
    }
    scene.end();
}

#[test]
fn a_client_that_seals_its_regions_itself_is_cut_off() {
    let scene = stage();
    let mut raw = Raw::welcomed(&scene.driver);
    fcntl_add_seals(&raw.control_fd, SealFlags::SEAL).expect("not yet sealed");
    pd_shm::attach::send(
        &raw.socket,
        &Frame::new(pd_abi::FrameKind::Mapped).with_id(Frame::REGION_CONTROL),
        &[],
        rustix::net::SendFlags::empty(),
    )
    .unwrap();
    scene.expect_cut_off(&mut raw, Violation::Frame);
    drop(raw);
    let mut raw = Raw::attach(&scene.driver, 1);
    let region = raw.ask_send_region(8192);
    fcntl_add_seals(&region.fd, SealFlags::SEAL).expect("not yet sealed");
    pd_shm::attach::send(
        &raw.socket,
        &Frame::new(pd_abi::FrameKind::Mapped).with_id(region.id),
        &[],
        rustix::net::SendFlags::empty(),
    )
    .unwrap();
    scene.expect_cut_off(&mut raw, Violation::Frame);
    drop((raw, region));
    scene.end();
}

/// Puts inaccessible memory in place of a mapping.
fn unmap(map: &Region<impl Access>) {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: over a mapping of the test's own that it does not touch any more; unlike after `munmap`
    // nothing else can come to lie there before the mapping is dropped.
    unsafe { rustix::mm::mmap_anonymous(base(map), map.len(), ProtFlags::empty(), flags) }.expect("mmap");
}

#[test]
fn a_client_that_unmaps_everything_harms_itself_only() {
    let scene = stage();
    let mut raw = Raw::attach(&scene.driver, 1);
    let (region, map) = raw.send_region(128 << 10);
    let (sending, receiving) = loops(&mut raw);
    store(&map, 0, 100_000, 8);
    // Sends in flight, sleepers to wake, events to post: all of the memory is unmapped while the driver uses it.
    for _ in 0..2 {
        raw.post(0, &Request::send(sending, Span { region: region.id as u16, offset: 0, len: 100_000 }));
    }
    raw.control.store_u64(Raw::channel_word(0, channel_control::EVENT_WAKE_AT), 1, Ordering::SeqCst);
    raw.post(0, &Request::new(Operation::Adopt, receiving, 0));
    unmap(&map);
    unmap(&raw.control);
    unmap(&raw.status);
    raw.ring(0);
    scene.bystander.check(&scene.driver);
    assert_eq!(raw.is_cut_off(), None);
    drop((raw, region));
    scene.end();
}

/// The client serves the faults of its own mappings (userfaultfd(2)), and serves none. The driver's mappings are others.
#[test]
fn pages_that_a_client_withholds_hold_up_nobody() {
    let scene = stage();
    for faults in [MISSING, MINOR, MISSING | MINOR] {
        let mut raw = Raw::welcomed(&scene.driver);
        let _control = withhold(base(&raw.control) as usize, REGION_BYTES, faults);
        let control = map_writable(&raw.control_fd, REGION_BYTES).expect("not yet sealed");
        punch(&raw.control_fd, 0, REGION_BYTES as u64).expect("not yet sealed");
        raw.mapped(Frame::REGION_CONTROL);
        // The test itself uses the other mapping.
        let withheld = std::mem::replace(&mut raw.control, control);
        raw.add_channel();
        let region = raw.ask_send_region(128 << 10);
        let map = map_writable(&region.fd, region.bytes).expect("not yet sealed");
        let other = map_writable(&region.fd, region.bytes).expect("not yet sealed");
        let _faults = withhold(base(&other) as usize, region.bytes, faults);
        punch(&region.fd, 0, region.bytes as u64).expect("not yet sealed");
        raw.mapped(region.id);
        let (sending, receiving) = loops(&mut raw);
        store(&map, 0, 60_000, faults);
        raw.post(0, &Request::send(sending, Span { region: region.id as u16, offset: 0, len: 100_000 }));
        assert_eq!(raw.received(receiving, 0, 100_000)[..60_000], stored(0, 60_000, faults));
        scene.bystander.check(&scene.driver);
        assert_eq!(raw.is_cut_off(), None);
        drop((raw, withheld, region, map, other));
    }
    scene.end();
}
