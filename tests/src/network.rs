//! Network namespaces for tests.
use crate::{Puppet, TestDriver};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs `ip` with words separated by spaces.
///
/// # Panics
/// If there is no `ip`.
pub fn ip(words: &str) -> bool {
    let status = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    status.expect("iproute2: install iproute2").success()
}

/// Two namespaces, a and b, on a bridge in a third; removed when dropped.
#[derive(Debug)]
pub struct Network {
    name: String,
    letters: &'static [&'static str],
}

impl Network {
    /// Makes namespaces a and b, with addresses 10.77.0.1 and fd77::1 in a, 10.77.0.2 and fd77::2 in b.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new() -> Self {
        Self::of(&["a", "b"])
    }

    /// Namespaces of these letters on the bridge, the first with 10.77.0.1 and fd77::1, and so on.
    ///
    /// # Panics
    /// If they cannot be made.
    pub fn of(letters: &'static [&'static str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let this = Self { name: format!("pdt{}x{number}", std::process::id()), letters };
        let switch = this.namespace("s");
        assert!(ip(&format!("netns add {switch}")));
        assert!(ip(&format!("-n {switch} link add br0 type bridge")));
        assert!(ip(&format!("-n {switch} link set br0 up")));
        for (index, letter) in letters.iter().enumerate() {
            let namespace = this.namespace(letter);
            let host = index + 1;
            assert!(ip(&format!("netns add {namespace}")));
            assert!(ip(&format!(
                "-n {namespace} link add eth0 type veth peer name port{letter} netns {switch}"
            )));
            assert!(ip(&format!("-n {switch} link set port{letter} master br0 up")));
            assert!(ip(&format!("-n {namespace} link set lo up")));
            assert!(ip(&format!("-n {namespace} link set eth0 up")));
            assert!(ip(&format!("-n {namespace} addr add 10.77.0.{host}/24 dev eth0")));
            assert!(ip(&format!("-n {namespace} addr add fd77::{host}/64 dev eth0 nodad")));
        }
        this
    }

    /// Returns the name of a namespace.
    pub fn namespace(&self, letter: &str) -> String {
        format!("{}{letter}", self.name)
    }

    /// Starts a puppet in a namespace.
    pub fn puppet(&self, driver: &TestDriver, letter: &str) -> Puppet {
        Puppet::new(driver.peer_in(&self.namespace(letter), &["puppet"]))
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for letter in self.letters.iter().chain(&["s"]) {
            ip(&format!("netns del {}", self.namespace(letter)));
        }
    }
}
