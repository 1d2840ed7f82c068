//! The thread of the kernel's half of the policy.
use crate::filter::{self, Confined};
use crate::gate::Keeper;
use crate::rights;
use crate::start_error::StartError;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The thread that keeps the kernel's half of the policy; it ends when dropped.
#[derive(Debug)]
pub(super) struct KeeperThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl KeeperThread {
    /// Starts the thread, with one right more than the driver's other threads: to end connections
    /// of the kernel. After `handed_over` is set, the entries that it keeps belong to the other
    /// driver.
    pub(super) fn start(
        keeper: Keeper,
        confined: Confined,
        handed_over: Arc<AtomicBool>,
    ) -> Result<Self, StartError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (started, ready) = std::sync::mpsc::channel();
        let run = move || {
            let confine = || {
                rights::drop_others(rights::Part::Gate)?;
                match confined {
                    // With all others.
                    Confined::Process => Ok(()),
                    Confined::Threads => filter::install(confined),
                }
            };
            let confined = confine();
            let is_confined = confined.is_ok();
            // The starting thread waits for this.
            let _ = started.send(confined);
            if is_confined {
                keeper.run(&stopped, &handed_over);
            }
        };
        let thread = std::thread::Builder::new().name("pd-gate".into()).spawn(run)?;
        let this = Self { stop, thread: Some(thread) };
        ready.recv().unwrap_or(Err(Errno::SRCH))?;
        Ok(this)
    }

    /// Tells whether the thread has not ended.
    pub(super) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for KeeperThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the gate panicked");
        }
    }
}
