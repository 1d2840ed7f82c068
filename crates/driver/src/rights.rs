//! Rights: the capabilities and namespaces that the driver needs.
//!
//! [`missing`] names at the start the rights that are missing, each with its purpose and remedy. [`drop_others`] then gives up every
//! other capability, for the calling thread and the threads that it makes. [`crate::filter`] limits system calls afterwards.
use crate::gate::HOST_CGROUP;
use crate::settings::Settings;
use rustix::fs::stat;
use rustix::io::{Errno, Result};
use rustix::process::{getegid, getgroups, getpid};
use rustix::thread::{
    capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, CapabilitySet, CapabilitySets,
};

/// Inodes of the host's namespaces (`PROC_CGROUP_INIT_INO` and its neighbours).
const HOST_PID: u64 = 0xefff_fffc;
const HOST_USER: u64 = 0xefff_fffd;

/// Processes that the driver serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Namespaces {
    /// Processes of all users and network namespaces.
    #[default]
    All,
    /// Processes of the driver's own user and network namespace, which takes no rights.
    Own,
}

/// A capability that the driver keeps.
struct Right {
    capability: CapabilitySet,
    /// The capability's name after `CAP_`.
    name: &'static str,
    /// Function that needs the capability.
    purpose: &'static str,
}

const RIGHTS: [Right; 3] = [
    Right {
        capability: CapabilitySet::SYS_ADMIN,
        name: "SYS_ADMIN",
        purpose: "enter the network namespaces of containers to read their addresses",
    },
    Right {
        capability: CapabilitySet::SYS_PTRACE,
        name: "SYS_PTRACE",
        purpose: "see the namespaces and sockets of other users' processes in /proc",
    },
    Right {
        capability: CapabilitySet::DAC_READ_SEARCH,
        name: "DAC_READ_SEARCH",
        purpose: "look up other users' sockets in /proc and open the files that they send",
    },
];

/// Further capability of the gate's thread, if the driver has it.
const NET_ADMIN: Right = Right {
    capability: CapabilitySet::NET_ADMIN,
    name: "NET_ADMIN",
    purpose: "end connections on the kernel that a new policy denies",
};

/// A part of the driver with rights of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All threads but one.
    Driver,
    /// The thread that keeps the kernel's half of the policy.
    Gate,
    /// The process that probes, which enters network namespaces.
    Probe,
}

const CHOWN: Right = Right {
    capability: CapabilitySet::CHOWN,
    name: "CHOWN",
    purpose: "give the attach socket to the group that socket_group names",
};

impl Right {
    fn sentence(&self, namespaces: Namespaces) -> String {
        let Self { name, purpose, .. } = self;
        let instead = match namespaces {
            Namespaces::All if self.capability != CHOWN.capability => {
                ", or set driver.namespaces = \"own\" to serve this user's processes in this network namespace only"
            }
            _ => "",
        };
        format!("CAP_{name} is missing to {purpose}: start as root, in a container with --cap-add {name}{instead}")
    }
}

/// Returns the capabilities that a part of a running driver keeps, if the driver was started with them.
fn kept(part: Part) -> CapabilitySet {
    let more: &[Right] = match part {
        Part::Driver => &[],
        Part::Gate => &[NET_ADMIN],
        Part::Probe => return CapabilitySet::SYS_ADMIN,
    };
    RIGHTS.iter().chain(more).fold(CapabilitySet::empty(), |all, right| all | right.capability)
}

fn needed(settings: &Settings) -> impl Iterator<Item = &'static Right> {
    let rights: &[Right] = match settings.namespaces {
        Namespaces::All => &RIGHTS,
        Namespaces::Own => &[],
    };
    let chown: &[Right] = if takes_chown(settings) { &[CHOWN] } else { &[] };
    rights.iter().chain(chown)
}

/// Tells whether the group of the attach socket is none of the driver's own.
fn takes_chown(settings: &Settings) -> bool {
    settings.socket_group.is_some_and(|group| {
        let is_own = |own: &rustix::process::Gid| own.as_raw() == group;
        !is_own(&getegid()) && !getgroups().unwrap_or_default().iter().any(is_own)
    })
}

/// Returns the rights that the driver needs and lacks here, a sentence for each.
pub fn missing(settings: &Settings) -> Vec<String> {
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
    let lacks = needed(settings).filter(|right| !held.contains(right.capability));
    let mut sentences: Vec<_> = lacks.map(|right| right.sentence(settings.namespaces)).collect();
    match stat("/proc/self/ns/pid") {
        Err(errno) => sentences.push(format!("/proc is missing to tell who attaches ({errno}): mount it")),
        Ok(own) if settings.namespaces == Namespaces::All && own.st_ino != HOST_PID && getpid().is_init() => {
            sentences.push(
                "The host's process ids are missing to tell who attaches, for this is the first process of a namespace of its own: \
                 start the container with --pid=host (Kubernetes: hostPID: true)"
                    .to_owned(),
            );
        }
        Ok(_) => {}
    }
    sentences
}

/// Returns the functions that do not work here for lack of the host's namespaces, a sentence for each.
pub fn limits(settings: &Settings) -> Vec<String> {
    let is_other = |path: &str, host: u64| stat(path).is_ok_and(|own| own.st_ino != host);
    let mut sentences = Vec::new();
    if settings.namespaces == Namespaces::Own {
        return sentences;
    }
    if !capabilities(None).is_ok_and(|sets| sets.permitted.contains(NET_ADMIN.capability)) {
        sentences.push(format!(
            "CAP_{} is missing to {}: they stay open, and `pd policy apply` says how many",
            NET_ADMIN.name, NET_ADMIN.purpose
        ));
    }
    if let Some(why) = crate::gate::unavailable() {
        sentences.push(format!("Policies do not bind connections on the kernel: {why}"));
    }
    if is_other("/proc/self/ns/pid", HOST_PID) {
        sentences.push(
            "Processes outside of the driver's namespace of process ids cannot attach: --pid=host (Kubernetes: hostPID: true) lets them"
                .to_owned(),
        );
    }
    if is_other("/proc/self/ns/user", HOST_USER) {
        sentences.push(
            "Containers that were made outside of the driver's user namespace can use loopback addresses only: \
             start the driver in the host's user namespace"
                .to_owned(),
        );
    }
    if is_other("/proc/self/ns/cgroup", HOST_CGROUP) {
        sentences.push(
            "Control groups have other names here than on the host, so that policies may not find them: --cgroupns=host gives them theirs"
                .to_owned(),
        );
    }
    sentences
}

/// Gives up all capabilities but those that a part of a running driver needs, from every set of the calling thread. Without CAP_SETPCAP the bounding
/// set stays. It is harmless: the driver executes no program.
///
/// # Errors
/// Errors of `capset` and `prctl`.
pub(crate) fn drop_others(part: Part) -> Result<()> {
    let held = capabilities(None)?.permitted;
    let kept = held & kept(part);
    if held.contains(CapabilitySet::SETPCAP) {
        for number in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << number);
            if !kept.contains(capability)
                && remove_capability_from_bounding_set(capability) == Err(Errno::INVAL)
            {
                // The kernel knows no higher ones.
                break;
            }
        }
    }
    clear_ambient_capability_set()?;
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )
}

/// Makes the programs that the calling thread executes keep the capabilities of a part, even if the user is not root.
///
/// # Errors
/// Errors of `capset` and `prctl`.
pub(crate) fn hand_on(part: Part) -> Result<()> {
    let sets = capabilities(None)?;
    let inheritable = sets.permitted & kept(part);
    set_capabilities(None, CapabilitySets { inheritable, ..sets })?;
    inheritable.iter().try_for_each(|capability| configure_capability_in_ambient_set(capability, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    fn give_up(capability: CapabilitySet) {
        let mut sets = capabilities(None).unwrap();
        sets.effective -= capability;
        sets.permitted -= capability;
        sets.inheritable -= capability;
        set_capabilities(None, sets).unwrap();
    }

    #[test]
    fn each_right_that_is_missing_has_a_sentence() {
        let settings = Settings { socket_group: Some(54_321), ..Settings::default() };
        for right in RIGHTS.iter().chain([&CHOWN]) {
            let sentences = in_thread(|| {
                give_up(right.capability);
                missing(&settings)
            });
            let of_right = sentences.iter().filter(|s| s.starts_with(&format!("CAP_{} ", right.name)));
            assert_eq!(of_right.count(), 1, "{sentences:?}");
        }
        let own = Settings { namespaces: Namespaces::Own, ..Settings::default() };
        let sentences = in_thread(|| {
            give_up(CapabilitySet::from_bits_retain(!0));
            missing(&own)
        });
        assert!(sentences.is_empty(), "{sentences:?}");
    }

    #[test]
    fn what_is_not_needed_is_given_up() {
        let before = capabilities(None).unwrap().permitted;
        let (sets, has_chown) = in_thread(|| {
            drop_others(Part::Driver).unwrap();
            let has_chown = rustix::thread::capability_is_in_bounding_set(CapabilitySet::CHOWN);
            (capabilities(None).unwrap(), has_chown.unwrap())
        });
        assert_eq!(sets.permitted, before & kept(Part::Driver));
        assert_eq!(sets.effective, sets.permitted);
        assert!(sets.inheritable.is_empty());
        assert!(!has_chown || !before.contains(CapabilitySet::SETPCAP));
    }
}
