//! `pd port add NAME dpdk`: a device of DPDK as a port. `dpdk-testpmd` has the device on one side and memif on the other, and passes frames on.
//!
//! No code of DPDK runs in the driver: testpmd is a child of this program, which stays in the foreground and makes the port. The port ends with
//! testpmd, and testpmd ends with this program, however that ends: its input is a pipe that closes then.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use pd_driver::admin::{add_port, PortSpec};
use pd_harness::signals::{Signals, Wake};
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use crate::live::no_answer;

/// Part of package dpdk-dev of Debian.
const TESTPMD: &str = "dpdk-testpmd";
/// Time between two looks at the port, and time that testpmd has to end.
const LOOK: Duration = Duration::from_secs(1);
const END: Duration = Duration::from_secs(5);

/// Options of `pd port add NAME dpdk`.
#[derive(Debug, clap::Args)]
pub struct DpdkArgs {
    /// Device: a PCI address (0000:01:00.0), or a virtual device with its arguments (net_af_packet0,iface=eth0)
    #[arg(long)]
    device: String,
    /// Options of DPDK's environment, such as --lcores
    #[arg(last = true)]
    eal: Vec<String>,
}

/// Returns whether a device is named by an address on a bus, not by its driver.
fn is_pci(device: &str) -> bool {
    device.split(',').next().is_some_and(|name| name.contains(':'))
}

/// Returns the arguments of testpmd. A virtual device works without hugepages; a device of hardware has those that DPDK looks
/// for.
fn arguments(name: &str, device: &str, eal: &[String], socket: &Path) -> Vec<String> {
    let memif = format!("net_memif0,role=client,id=0,socket={},socket-abstract=no", socket.display());
    // Nothing is shared with other programs of DPDK, and nothing is left in /run/dpdk.
    let mut words = vec!["--no-shconf".to_owned(), "--no-telemetry".into()];
    words.push(format!("--file-prefix=pd-{name}-{}", std::process::id()));
    if is_pci(device) {
        words.extend(["-a".into(), device.to_owned()]);
    } else {
        words.extend(["--no-pci", "--no-huge", "-m", "256"].map(str::to_owned));
        words.push(format!("--vdev={device}"));
    }
    words.push(format!("--vdev={memif}"));
    words.extend_from_slice(eal);
    // Without this count a device that is missing has frames sent back to the other one.
    let own = ["--", "--nb-ports=2", "--forward-mode=io", "--auto-start", "--total-num-mbufs=8192"];
    words.extend(own.map(str::to_owned));
    words
}

/// testpmd, with the input that keeps it.
struct Testpmd {
    child: Child,
    input: Option<ChildStdin>,
}

impl Testpmd {
    fn start(arguments: &[String]) -> Result<Self> {
        let started = Command::new(TESTPMD).args(arguments).stdin(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow!("there is no {TESTPMD}: install dpdk-dev"),
            _ => anyhow!("cannot start {TESTPMD}: {error}"),
        })?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    /// Waits for the end of its input to end it, and ends it by force where that takes too long.
    fn end(&mut self) -> io::Result<()> {
        drop(self.input.take());
        let until = Instant::now() + END;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                self.child.kill()?;
                self.child.wait()?;
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Runs until it ends, a signal comes, or the port is gone. Returns its status where it has ended by itself.
    fn hold(&mut self, signals: &Signals, is_there: impl Fn() -> bool) -> Result<Option<ExitStatus>> {
        let pid = Pid::from_child(&self.child);
        let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch testpmd")?;
        loop {
            match signals.wait(process.as_fd(), Some(LOOK))? {
                Wake::Ready => return Ok(Some(self.child.wait()?)),
                Wake::Signal(_) => return Ok(None),
                Wake::TimedOut if is_there() => {}
                Wake::TimedOut => bail!("the port was removed, or the driver has ended"),
            }
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Makes the port, and has testpmd pass frames on until it ends, a signal comes, or `is_there` says that the port has gone. Then `remove`
/// removes the port.
pub fn run(
    admin: &Path,
    name: &str,
    args: &DpdkArgs,
    is_there: impl Fn() -> bool,
    remove: impl FnOnce(),
) -> Result<i32> {
    let signals = Signals::watch()?;
    let socket: PathBuf = std::path::absolute(admin)?.with_file_name(format!("{name}.memif"));
    let port = PortSpec::Memif { socket: socket.clone(), id: 0 };
    add_port(admin, name, port, None).map_err(|error| anyhow!(no_answer(admin, &error)))?;
    let held = Testpmd::start(&arguments(name, &args.device, &args.eal, &socket))
        .and_then(|mut testpmd| testpmd.hold(&signals, is_there));
    remove();
    let _ = std::fs::remove_file(&socket);
    match held? {
        Some(status) if !status.success() => bail!("{TESTPMD} has ended: {status}"),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_hardware_is_allowed_and_a_virtual_one_is_made() {
        let of = |device: &str| {
            arguments("wan", device, &["--lcores=0@0,1@0".to_owned()], Path::new("/run/wan.memif")).join(" ")
        };
        let memif = "--vdev=net_memif0,role=client,id=0,socket=/run/wan.memif,socket-abstract=no --lcores=0@0,1@0 -- ";
        assert!(of("0000:01:00.0,a=1").contains(&format!("-a 0000:01:00.0,a=1 {memif}")));
        let made = of("net_pcap0,rx_pcap=a:b");
        assert!(
            made.contains(&format!("--no-pci --no-huge -m 256 --vdev=net_pcap0,rx_pcap=a:b {memif}")),
            "{made}"
        );
    }
}
