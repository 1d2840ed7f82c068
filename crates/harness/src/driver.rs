//! A driver as a child with its own socket and its own configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use pd_driver::admin::{Answer, Ask};
use procfs::process::{Process, Task};
use rustix::io::Errno;
use rustix::process::{kill_process, Pid, Signal};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

use crate::config::{Config, LogLevel};
use crate::container::cgroup::{limit, Cgroup, Limits};
use crate::container::stage::exit_code;
use crate::container::state::Lock;
use crate::signals::Signals;

const START_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running driver; stopped when dropped.
pub struct ChildDriver {
    child: Child,
    socket: PathBuf,
    admin_socket: PathBuf,
    cgroup: Option<Cgroup>,
    /// Groups of version 1 that hold its weight.
    limits: Vec<Cgroup>,
}

impl ChildDriver {
    /// Starts one with its files, and therefore its sockets, in `dir`; returns once it answers.
    pub fn start(dir: &Path, config: Config, lock: &Lock, signals: &Signals) -> Result<ChildDriver> {
        let mut config =
            Config { socket: dir.join("driver.sock"), admin_socket: dir.join("admin.sock"), ..config };
        config.log.level = LogLevel::Warn;
        let file = dir.join("driver.toml");
        let text = toml::to_string(&config)?;
        Config::parse(&text).context("the options make no usable driver configuration")?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;

        let exe = crate::own_exe();
        let child = Command::new(&exe)
            .args(["internal-tied", "--parent", &std::process::id().to_string(), "--"])
            .arg(&exe)
            .args(["driver", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the driver")?;
        let (cgroup, limits) = Default::default();
        let mut driver =
            ChildDriver { child, socket: config.socket, admin_socket: config.admin_socket, cgroup, limits };
        // The first process is added while the lock is held: a sweep might remove an empty group.
        let _ = lock;
        if let Some(cgroup) = Cgroup::create(&format!(".driver-{}", std::process::id())) {
            cgroup.add(driver.child.id())?;
            driver.cgroup = Some(cgroup);
        }
        driver.await_answer(signals)?;
        Ok(driver)
    }

    fn await_answer(&mut self, signals: &Signals) -> Result<()> {
        let end = Instant::now() + START_TIMEOUT;
        while pd_driver::admin::ask(&self.admin_socket, &Ask::List).is_err() {
            signals.check()?;
            if let Some(status) = self.child.try_wait()? {
                bail!("the driver ended with status {} before it answered", exit_code(status));
            }
            if Instant::now() > end {
                bail!("the driver did not answer at {} within {START_TIMEOUT:?}", self.socket.display());
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns the socket for clients.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the driver's answer to a question.
    pub fn ask(&self, question: &Ask) -> Result<Answer> {
        Ok(pd_driver::admin::ask(&self.admin_socket, question)?)
    }

    /// Returns the driver's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Keeps all its threads on a core; lets them use any if there is none.
    pub fn stay_on(&self, core: Option<usize>) -> Result<()> {
        let mut cores = CpuSet::new();
        let all = sched_getaffinity(None).context("cannot tell the cores of this machine")?;
        (0..CpuSet::MAX_CPU)
            .filter(|&n| core.map_or(all.is_set(n), |core| core == n))
            .for_each(|n| cores.set(n));
        for task in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let id = task?.file_name().to_str().and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
            match sched_setaffinity(id, &cores) {
                // Threads that help for a while end.
                Err(Errno::SRCH) => {}
                placed => placed.context("cannot place the driver's threads")?,
            }
        }
        Ok(())
    }

    /// Gives it a weight among the groups that want CPU time ([`Limits::weight`]).
    ///
    /// # Errors
    /// If no control group has weights.
    pub fn weigh(&mut self, weight: u64) -> Result<()> {
        let name = format!(".driver-{}", std::process::id());
        let limits = Limits { weight: Some(weight), ..Limits::default() };
        self.limits = limit(self.cgroup.as_ref(), &name, limits)?;
        self.limits.iter().try_for_each(|group| group.add(self.child.id()))
    }

    /// Returns the time for which the first mover was ready and waited for a core so far; `None` where the kernel does not count
    /// that.
    pub fn mover_wait(&self) -> Option<Duration> {
        let tasks = Process::new(self.pid() as i32).ok()?.tasks().ok()?;
        let is_mover = |task: &Task| task.stat().is_ok_and(|stat| stat.comm == "pd-driver");
        Some(Duration::from_nanos(tasks.flatten().find(is_mover)?.schedstat().ok()?.run_delay))
    }

    /// Returns the driver's CPU time so far; `None` where nothing counts it.
    pub fn cpu_usage(&self) -> Option<Duration> {
        self.cgroup.as_ref()?.cpu_usage()
    }
}

impl Drop for ChildDriver {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            // The child is not reaped yet, so the number is still its own.
            if matches!(self.child.try_wait(), Ok(None)) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        let end = Instant::now() + STOP_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
