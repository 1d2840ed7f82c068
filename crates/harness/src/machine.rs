//! The machine that figures are from.

use std::fs;

use procfs::{CpuInfo, Current, Meminfo};
use serde::Serialize;

use crate::hugepages::Pool;

/// A machine, as far as it matters here.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Processor.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory.
    pub memory_bytes: u64,
    /// Hugepages of 2 MB while measuring.
    pub hugepages: u64,
    /// The kernel's limits for TCP send buffers: least, initial, most.
    pub tcp_wmem: String,
    /// Limits of receive buffers.
    pub tcp_rmem: String,
    /// Congestion control of this process's network namespace. Measurements set that of their containers.
    pub tcp_congestion_control: String,
    /// Congestion controls that the kernel has.
    pub tcp_available_congestion_control: String,
    /// The frequency governor; empty where there is none, as in most virtual machines.
    pub frequency_governor: String,
    /// Transparent hugepages: `always`, `madvise` or `never`.
    pub transparent_hugepages: String,
    /// Tells whether bridged packets pass iptables, which slows TCP down.
    pub bridge_netfilter: bool,
}

impl Machine {
    /// Describes this machine.
    pub fn describe() -> Machine {
        Machine {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpu: processors().and_then(|all| all.model_name(0).map(str::to_owned)).unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory().map_or(0, |memory| memory.mem_total),
            hugepages: Pool::system().counts().map_or(0, |c| c.total),
            tcp_wmem: setting("tcp_wmem"),
            tcp_rmem: setting("tcp_rmem"),
            tcp_congestion_control: setting("tcp_congestion_control"),
            tcp_available_congestion_control: crate::tuning::available(),
            frequency_governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            transparent_hugepages: chosen(&line("/sys/kernel/mm/transparent_hugepage/enabled")).to_owned(),
            bridge_netfilter: bridge_netfilter(),
        }
    }

    /// Returns the name of a directory for figures of this machine: its processor and its number of cores.
    pub fn slug(&self) -> String {
        let name = self.cpu.replace("(R)", "").replace("(TM)", "").to_lowercase();
        let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        format!("{}-{}-cores", words.join("-"), self.cores)
    }
}

/// Returns the kernel's account of the machine's memory, in bytes.
pub fn memory() -> Option<Meminfo> {
    Meminfo::current().ok()
}

/// Returns the clock of the first core in MHz, if the kernel reports one.
pub fn clock_mhz() -> Option<f64> {
    processors()?.get_field(0, "cpu MHz")?.parse().ok()
}

fn processors() -> Option<CpuInfo> {
    CpuInfo::current().ok()
}

fn line(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

/// Returns the word in brackets.
fn chosen(words: &str) -> &str {
    words.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(word, _)| word)
}

fn setting(name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns whether bridged packets pass iptables.
pub fn bridge_netfilter() -> bool {
    let read = fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables");
    read.is_ok_and(|value| value.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_name_for_directories() {
        let cpu = "Intel(R) Xeon(R) Processor @ 2.00GHz".to_owned();
        let machine = Machine { cpu, cores: 2, ..Machine::describe() };
        assert_eq!(machine.slug(), "intel-xeon-processor-2-00ghz-2-cores");
    }

    #[test]
    fn the_word_in_brackets_is_the_chosen_one() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen(""), "");
    }
}
