//! Parts of models under loom: what is left out of one, and what threads sleep on. Also of the models of `crates/pipe`.
use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use pd_shm::wait::{SleeperCells, WakerCells};
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use Ordering::{Acquire, Relaxed, Release, SeqCst};

/// The one ordering, fence or step that is left out; the empty name leaves out none.
#[derive(Clone, Copy, Debug)]
pub struct Weak(pub &'static str);

impl Weak {
    pub fn leaves_out(self, name: &str) -> bool {
        self.0 == name
    }
    pub fn order(self, name: &str, order: Ordering) -> Ordering {
        if self.leaves_out(name) {
            Relaxed
        } else {
            order
        }
    }
    pub fn fence(self, name: &str) {
        if !self.leaves_out(name) {
            fence(SeqCst);
        }
    }
}

/// Checks that `model` of the test called `name` holds, and that it does not with any of `parts` left
/// out. A deadlock under loom may end in an abort, so those run in processes of their own. Few preemptions
/// find most of them, and sooner: they are tried first.
pub fn check(name: &str, preemptions: usize, parts: &[&'static str], model: fn(Weak)) {
    check_model(name, preemptions, false, parts, model);
}

/// Checks a model that takes minutes with that number of preemptions: unless `PD_LOOM_DEEP` is set, the whole model has one fewer, and no part is
/// left out.
#[allow(dead_code)]
pub fn check_large(name: &str, preemptions: usize, parts: &[&'static str], model: fn(Weak)) {
    check_model(name, preemptions, true, parts, model);
}

fn check_model(name: &str, preemptions: usize, is_large: bool, parts: &[&'static str], model: fn(Weak)) {
    let chosen = std::env::var(LEFT_OUT).ok();
    let weak = parts.iter().find(|&&part| chosen.as_deref() == Some(part)).map_or("", |part| part);
    let mut builder = loom::model::Builder::new();
    let most = std::env::var(PREEMPTIONS).ok().and_then(|most| most.parse().ok());
    let is_shortened = is_large && std::env::var_os(DEEP).is_none();
    let whole = if is_shortened { preemptions - 1 } else { preemptions };
    builder.preemption_bound = Some(most.unwrap_or(whole));
    builder.check(move || model(Weak(weak)));
    if chosen.is_some() {
        return;
    }
    if is_shortened {
        println!("SKIPPED: {name} without each of {} parts: takes minutes, {DEEP}=1 has it", parts.len());
        return;
    }
    for part in parts {
        let is_found = (1..=preemptions).any(|most| fails_without(name, part, most));
        assert!(is_found, "nothing goes wrong without {part:?}");
    }
}

/// Tells whether the test fails in a process that leaves `part` out.
fn fails_without(name: &str, part: &str, preemptions: usize) -> bool {
    let this = std::env::current_exe().expect("the test's own path");
    let output = std::process::Command::new(this)
        .args(["--exact", name])
        .envs([(LEFT_OUT, part), (PREEMPTIONS, &preemptions.to_string()), ("RUST_BACKTRACE", "0")])
        .output()
        .expect("the test runs again");
    let text = [&output.stderr[..], &output.stdout[..]].concat();
    let text = String::from_utf8_lossy(&text);
    let has_run = text.contains("panicked at") || text.contains("1 passed");
    assert!(has_run, "without {part:?} the test did not run: {text}");
    !output.status.success()
}

/// Environment variable: the part that a test shall leave out.
const LEFT_OUT: &str = "PD_LOOM_LEFT_OUT";
/// Environment variable: the most preemptions of such a run.
const PREEMPTIONS: &str = "PD_LOOM_PREEMPTIONS";

/// Environment variable: models that take minutes are checked whole.
const DEEP: &str = "PD_LOOM_DEEP";

/// Something to sleep on until it is written, as an edge-triggered eventfd in an epoll instance.
#[derive(Default)]
pub struct Edge {
    written: Mutex<bool>,
    condvar: Condvar,
    writes: AtomicUsize,
}

impl Edge {
    pub fn write(&self) {
        self.writes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        *self.written.lock().unwrap() = true;
        self.condvar.notify_one();
    }

    pub fn wait(&self) {
        let mut written = self.written.lock().unwrap();
        while !*written {
            written = self.condvar.wait(written).unwrap();
        }
        *written = false;
    }

    pub fn writes(&self) -> usize {
        self.writes.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The words of one sleep: `wake_at`, and a doorbell that is a futex.
pub struct Doorbell {
    wake_at: AtomicU64,
    doorbell: AtomicU32,
    /// The kernel's lock of the futex, and its queue.
    kernel: Mutex<()>,
    queue: Condvar,
    rings: AtomicUsize,
    pub weak: Weak,
}

impl Doorbell {
    pub fn new(weak: Weak) -> Self {
        Self {
            wake_at: AtomicU64::new(0),
            doorbell: AtomicU32::new(0),
            kernel: Mutex::new(()),
            queue: Condvar::new(),
            rings: AtomicUsize::new(0),
            weak,
        }
    }

    pub fn rings(&self) -> usize {
        self.rings.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl SleeperCells for Doorbell {
    fn load_doorbell(&self) -> u32 {
        self.doorbell.load(Acquire)
    }
    fn store_wake_at(&self, value: u64) {
        self.wake_at.store(value, Relaxed);
    }
    fn fence(&self) {
        self.weak.fence("sleep: fence of the sleeper");
    }
    fn sleep(&self, seen: u32, _timeout: Duration) {
        let kernel = self.kernel.lock().unwrap();
        if self.doorbell.load(Relaxed) == seen {
            drop(self.queue.wait(kernel).unwrap());
        }
    }
}

impl WakerCells for Doorbell {
    fn load_wake_at(&self) -> u64 {
        self.wake_at.load(Relaxed)
    }
    fn fence(&self) {
        self.weak.fence("sleep: fence of the waker");
    }
    fn ring(&self) {
        self.rings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if !self.weak.leaves_out("sleep: increment of the doorbell") {
            self.doorbell.store(self.doorbell.load(Relaxed).wrapping_add(1), Release);
        }
        drop(self.kernel.lock().unwrap());
        self.queue.notify_all();
    }
}
