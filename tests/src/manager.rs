//! A stand-in for the service manager: starts a driver, stores its descriptors, kills it and starts the next one with them.
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{fcntl_dupfd_cloexec, fcntl_setfd, Errno, FdFlags};
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most descriptors in the store, as the unit of the driver says.
const STORE_MAX: usize = 16;
/// First number of a descriptor on its way to a driver.
const PASSED: i32 = 200;

/// Longest wait for a snapshot.
const PATIENCE: Duration = Duration::from_secs(30);

/// Descriptors by name, in the order in which they came.
type Store = Vec<(String, OwnedFd)>;

/// See the module.
pub struct Manager {
    socket: Arc<UnixDatagram>,
    path: std::path::PathBuf,
    store: Arc<Mutex<Store>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    driver: Option<Child>,
}

impl Manager {
    /// Makes a manager with a socket in a folder, and no driver.
    pub fn new(folder: &Path) -> Self {
        let path = folder.join("notify.sock");
        // Of a manager before.
        let _ = std::fs::remove_file(&path);
        let socket = Arc::new(UnixDatagram::bind(&path).expect("notify socket"));
        let (store, stop) = (Arc::new(Mutex::new(Store::new())), Arc::new(AtomicBool::new(false)));
        let (own, kept, stopped) = (Arc::clone(&socket), Arc::clone(&store), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let while_it_waits = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let _ = poll(&mut [PollFd::new(&*own, PollFlags::IN)], Some(&while_it_waits));
                drain(&own, &mut kept.lock().expect("store"));
            }
        });
        Self { socket, path, store, stop, thread: Some(thread), driver: None }
    }

    /// Starts a driver: a program with its arguments. It gets what is stored.
    pub fn start(&mut self, command: &[&str]) {
        let mut store = self.store.lock().expect("store");
        drain(&self.socket, &mut store);
        let pass = |fd: &OwnedFd| {
            let passed = fcntl_dupfd_cloexec(fd, PASSED)?;
            fcntl_setfd(&passed, FdFlags::empty()).map(|()| passed)
        };
        let passed: Vec<_> = store.iter().map(|(_, fd)| pass(fd).expect("descriptor")).collect();
        let names: Vec<_> = store.iter().map(|(name, _)| name.as_str()).collect();
        let moves: String = passed
            .iter()
            .enumerate()
            .map(|(index, fd)| format!("exec {}<&{fd} {fd}<&-\n", 3 + index, fd = fd.as_raw_fd()))
            .collect();
        let script = format!("{moves}export LISTEN_PID=$$\nexec \"$@\"");
        let driver = Command::new("bash")
            .args(["-c", &script, "bash"])
            .args(command)
            .env("NOTIFY_SOCKET", &self.path)
            .env("FDSTORE", STORE_MAX.to_string())
            .env("LISTEN_FDS", passed.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .spawn()
            .expect("driver");
        self.driver = Some(driver);
    }

    /// Kills the driver.
    pub fn kill(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            driver.kill().expect("kill");
            driver.wait().expect("wait");
        }
    }

    /// Asks the driver to end, and waits until it has.
    pub fn terminate(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            let pid = rustix::process::Pid::from_child(&driver);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("terminate");
            driver.wait().expect("wait");
        }
    }

    /// Tells whether the driver has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.driver.as_mut().is_none_or(|driver| driver.try_wait().expect("wait").is_some())
    }

    /// Waits until the driver ends by itself. Returns whether it was successful.
    pub fn wait(&mut self) -> bool {
        let mut driver = self.driver.take().expect("a driver");
        driver.wait().expect("wait").success()
    }

    /// Lets go of everything that is stored, as a manager does that gives the service up.
    pub fn give_up(&mut self) {
        let mut store = self.store.lock().expect("store");
        drain(&self.socket, &mut store);
        store.clear();
    }

    /// Returns the names of what is stored.
    pub fn names(&self) -> Vec<String> {
        let mut store = self.store.lock().expect("store");
        drain(&self.socket, &mut store);
        store.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Calls `change` with what is stored.
    pub fn with_store<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store.lock().expect("store");
        drain(&self.socket, &mut store);
        change(&mut store)
    }

    /// Waits until the last snapshot has all that was before.
    pub fn wait_for_snapshot(&self) {
        let (mut last, mut since) = (Vec::new(), Instant::now());
        let begun = Instant::now();
        loop {
            let names: Vec<_> =
                self.names().into_iter().filter(|name| name.starts_with("pd-snapshot-")).collect();
            if names != last {
                (last, since) = (names, Instant::now());
            }
            if last.len() == 1 && since.elapsed() > Duration::from_millis(500) && self.is_all_stored() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "no snapshot, or ever new ones: {last:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Tells whether the snapshots have all that has changed.
    pub fn is_all_stored(&self) -> bool {
        self.with_store(|store| {
            let number = |name: &str| {
                name.strip_prefix("pd-snapshot-").map(|number| number.parse().expect("a number"))
            };
            let last: Option<u64> = store.iter().filter_map(|(name, _)| number(name)).max();
            let marks = store.iter().find(|(name, _)| name == "pd-marks");
            marks.is_some_and(|(_, fd)| {
                // Number of the snapshot that has all changes: the fifth word.
                let mut word = [0; 8];
                File::from(fd.try_clone().expect("marks")).read_exact_at(&mut word, 32).expect("a word");
                Some(u64::from_le_bytes(word)) <= last
            })
        })
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.kill();
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Carries out what drivers have asked for.
fn drain(socket: &UnixDatagram, store: &mut Store) {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 4096];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(received) => received.bytes,
            Err(Errno::AGAIN) => return,
            Err(errno) => panic!("notify socket: {errno}"),
        };
        let mut fds = Vec::new();
        for item in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = item {
                fds.extend(more);
            }
        }
        let text = std::str::from_utf8(&bytes[..received]).expect("text");
        let is_said = |line: &str| text.lines().any(|said| said == line);
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).expect("a name").to_owned();
        if is_said("FDSTOREREMOVE=1") {
            store.retain(|(known, _)| *known != name);
        }
        if is_said("FDSTORE=1") {
            assert!(is_said("FDPOLL=0") && !fds.is_empty());
            store.extend(fds.into_iter().map(|fd| (name.clone(), fd)));
            assert!(store.len() <= STORE_MAX, "a unit that stores {STORE_MAX} lacks room");
        }
    }
}
