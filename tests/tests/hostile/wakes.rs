//! Clients with more waiters than the driver has time for: the kernel walks them all in the call that wakes them.
use super::{stage, stage_for_anyone};
use pd_abi::layout::{channel_control, channel_status};
use pd_abi::{Frame, FrameKind, Operation, Request, SocketId};
use pd_tests::{needs_root, processor_time, program_path, wait_for_rest, watch, Raw, TestDriver};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;

/// Has the driver post an event, and waits until it is there. Returns the time that took.
fn ask(raw: &mut Raw, wakes: bool) -> Duration {
    let at = |word| Raw::channel_word(0, word);
    let produced = raw.status.load_u64(at(channel_status::EVENT_PRODUCER), Ordering::Acquire);
    let wake_at = if wakes { produced + 1 } else { 0 };
    raw.control.store_u64(at(channel_control::EVENT_WAKE_AT), wake_at, Ordering::SeqCst);
    let begun = Instant::now();
    // Always answered, with `EBADF`.
    raw.post(0, &Request::new(Operation::Adopt, SocketId(u32::MAX), 5));
    while raw.status.load_u64(at(channel_status::EVENT_PRODUCER), Ordering::Acquire) <= produced {
        assert!(begun.elapsed() < Duration::from_secs(20), "the mover posts no events");
        std::thread::yield_now();
    }
    begun.elapsed()
}

/// Has the driver wake `hostile` several times, and asks it for answers to another client meanwhile. The mover makes none of the
/// wake-ups itself: its processor time stays below that of the thread that makes them. Times of answers say more about the machine,
/// since the kernel walks waiters without interrupts and holds up all else on that core.
fn others_are_answered(driver: &TestDriver, hostile: &mut Raw) {
    let mut other = Raw::attach(driver, 1);
    let [mut mover, mut ringer] = [Duration::ZERO; 2];
    let mut longest: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let before = [processor_time("pd-driver"), processor_time("pd-ringer")];
            ask(hostile, true);
            let longest = (0..20).map(|_| ask(&mut other, false)).max().unwrap();
            mover += processor_time("pd-driver") - before[0];
            wait_for_rest("pd-ringer");
            // The thread ends where it is idle, and its time with it.
            let now = processor_time("pd-ringer");
            ringer += now.checked_sub(before[1]).unwrap_or(now);
            longest
        })
        .collect();
    longest.sort_unstable();
    println!("mover {mover:?}, wake-ups {ringer:?}, longest answers of the rounds {longest:?}");
    assert!(mover < ringer / 2, "mover {mover:?}, wake-ups {ringer:?}");
}

#[test]
fn a_wake_pipe_with_a_million_watchers() {
    let scene = stage();
    let mut raw = Raw::attach(&scene.driver, 1);
    let wish = Frame::new(FrameKind::WakePipe).with_id(0);
    let pipe = raw.ask(&wish, FrameKind::WakePipe).unwrap().1.pop().unwrap();
    raw.control.store_u32(Raw::channel_word(0, channel_control::PIPE_WANTED), 1, Ordering::SeqCst);
    let watchers = watch(&pipe, 1_000_000);
    others_are_answered(&scene.driver, &mut raw);
    scene.bystander.check(&scene.driver);
    // To close the driver's end wakes all watchers, too.
    raw.ask(&wish, FrameKind::WakePipe).unwrap();
    scene.bystander.check(&scene.driver);
    drop((raw, pipe, watchers));
    scene.end();
}

#[test]
fn a_word_with_a_quarter_of_a_million_sleepers() {
    const THREADS: usize = 2000;
    const WAITS: usize = 128;
    let scene = stage();
    let mut raw = Raw::attach(&scene.driver, 1);
    let status = raw.status_fd.try_clone().unwrap();
    let map = pd_shm::Region::<pd_shm::Theirs>::new(&status, pd_abi::layout::REGION_BYTES).unwrap();
    let at = Raw::channel_word(0, channel_status::EVENT_DOORBELL);
    let word = map.address(at, 4).as_ptr() as u64;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let sleep = || {
                while !is_over.load(Ordering::SeqCst) {
                    // `struct futex_waitv`: value, address, flags.
                    let value = map.load_u32(at, Ordering::SeqCst);
                    let waits = [[u64::from(value), word, libc::FUTEX2_SIZE_U32 as u64]; WAITS];
                    // SAFETY: waits for words that stay mapped until the thread has ended.
                    unsafe { libc::syscall(libc::SYS_futex_waitv, waits.as_ptr(), WAITS, 0, 0, 0) };
                }
            };
            let small = std::thread::Builder::new().stack_size(64 << 10);
            small.spawn_scoped(scope, sleep).unwrap();
        }
        std::thread::sleep(Duration::from_secs(2));
        others_are_answered(&scene.driver, &mut raw);
        scene.bystander.check(&scene.driver);
        is_over.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            ask(&mut raw, true);
            // SAFETY: wakes the threads above.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
        }
    });
    drop((raw, map, status));
    scene.end();
}

#[test]
fn an_attach_socket_with_a_million_watchers() {
    needs_root("a user of its own");
    let scene = stage_for_anyone();
    let mut command = Command::new(program_path("attacker"));
    command.arg(scene.driver.socket()).args(["watched", "1000000"]).stdout(Stdio::piped());
    let mut attacker = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(attacker.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("watched"), "{line}");
    // The attacker has used up what it had. What an answer to it costs is the machine's: a few have their time in each piece.
    let mut pieces: Vec<_> = (0..9)
        .map(|_| {
            let before = processor_time("pd-door");
            std::thread::sleep(Duration::from_millis(250));
            processor_time("pd-door") - before
        })
        .collect();
    pieces.sort_unstable();
    let answer = pieces[pieces.len() / 2].max(Duration::from_millis(20));
    let before = processor_time("pd-door");
    (0..20).for_each(|_| drop(Raw::attach(&scene.driver, 1)));
    let took = processor_time("pd-door") - before;
    assert!(attacker.try_wait().unwrap().is_none());
    attacker.kill().unwrap();
    attacker.wait().unwrap();
    drop(attacker);
    // Attaching takes several turns of the door. With an answer in each these would be many more.
    assert!(took < 30 * answer, "{took:?}, an answer {answer:?}");
    scene.end();
}
