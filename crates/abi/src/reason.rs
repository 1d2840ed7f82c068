//! Reasons why a connection of an unmodified program is the kernel's.
//!
//! A client gives them in two tables of its control region ([`control_header`](crate::layout::control_header)): a count
//! for each reason, and the last [`KERNEL_CONNECTIONS_MAX`](crate::limits::KERNEL_CONNECTIONS_MAX) connections. The
//! driver reads them when an administrator asks. It decides nothing by them.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $label:literal, $text:literal;)+) => {
        /// See the module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum KernelReason {
            $($(#[$doc])* $name = $number,)+
        }

        impl KernelReason {
            /// All of them, by number: the first is 1.
            pub const ALL: [Self; KERNEL_REASONS] = [$(Self::$name,)+];

            /// Description of the numbers.
            pub const DECLARED: &'static [crate::declare::Constant] = &[$(
                crate::declare::Constant { name: stringify!($name), value: $number, text: &[$text] },
            )+];

            /// Returns the reason's word, for programs.
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }

            /// A few words, for people.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

/// Number of reasons.
pub const KERNEL_REASONS: usize = KernelReason::DECLARED.len();

// The n-th reason is n: `from_raw` and `index` rely on it.
const _: () = {
    let mut index = 0;
    while index < KERNEL_REASONS {
        assert!(KernelReason::DECLARED[index].value == index as u64 + 1);
        index += 1;
    }
};

reasons! {
    /// The kernel knows of no listener there that takes twins.
    PeerWithout = 1, "peer_without_library", "the peer listens without the library, or not at all";
    /// No network namespace that the driver serves holds the address.
    PeerUnknown = 2, "peer_unknown", "the address is of another host, or of a namespace that the driver does not serve";
    /// The other end was not taken up in time.
    PeerSlow = 3, "peer_slow", "the peer did not take the connection up in time";
    /// Accepted, and the peer has made no twin.
    PeerPlain = 4, "peer_plain", "the peer connected without the fabric";
    /// The peer has left.
    PeerLeft = 5, "peer_left", "the peer has left";
    /// Connections there are over before the fabric gains anything.
    ShortLived = 6, "short_lived", "connections there are short-lived";
    /// `EACCES`.
    Policy = 7, "policy", "the policy denies it";
    /// `EMFILE`.
    Limit = 8, "limit", "no descriptor is left, or no connection that the driver or the policy allows";
    /// `ENOBUFS`, `ENOMEM`.
    NoMemory = 9, "no_memory", "no memory is left, the process's or the driver's, or no connection of the driver's";
    /// No port for connections on the fabric.
    NoPort = 10, "no_port", "no port was free for a connection on the fabric";
    /// No driver, or it refuses the process.
    NoDriver = 11, "no_driver", "the process is not attached to a driver";
    /// Another errno of the driver's.
    Refused = 12, "refused", "the driver refused it";
    /// Addresses that are the kernel's alone.
    Address = 13, "address", "such addresses are the kernel's";
    /// Waits by system calls, or by an io_uring.
    UnseenWait = 14, "unseen_wait", "the program waits where the library does not see it";
    /// `MSG_OOB`.
    Urgent = 15, "urgent_bytes", "urgent bytes";
    /// An option that the fabric does not have.
    Option = 16, "option", "an option of the kernel's";
    /// `O_ASYNC`, `F_SETOWN`, `F_SETSIG`.
    Signals = 17, "signals", "signals for each event";
    /// `MSG_ZEROCOPY`.
    ZeroCopy = 18, "zero_copy", "zero-copy sends";
    /// AF_UNIX: descriptors or credentials.
    ControlData = 19, "control_data", "a message with descriptors";
    /// AF_UNIX: see `docs/design/aside.md`.
    SmallTalk = 20, "small_talk", "small messages, for which a thread sleeps each time";
    /// A process that forks or ends moves connections to the kernel that the peer has not claimed.
    Settled = 21, "settled", "the process forked, closed or ended before the peer took the connection up";
    /// The program filters its own system calls (seccomp).
    Sandbox = 22, "sandbox", "the program has forbidden itself system calls";
    /// `EACCES` when the process attached.
    NotLetIn = 23, "not_let_in", "the driver did not let the process in ([attach] of its policy)";
    /// Several processes use the connection, and each move to another costs more than it gains.
    Shared = 24, "shared", "several processes use it in turn";
}

impl KernelReason {
    /// The reason of a raw number.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => None,
            raw if raw as usize > KERNEL_REASONS => None,
            raw => Some(Self::ALL[raw as usize - 1]),
        }
    }

    /// Its place in a table of all.
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// The reason for an errno with which the driver refuses a connection.
    pub const fn of_errno(errno: i32) -> Self {
        match errno {
            13 => Self::Policy,
            12 | 105 => Self::NoMemory,
            23 | 24 => Self::Limit,
            111 => Self::PeerWithout,
            113 => Self::PeerUnknown,
            100 => Self::NoDriver,
            _ => Self::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_to_reasons_and_labels_are_words_of_a_metric() {
        for (index, reason) in KernelReason::ALL.into_iter().enumerate() {
            assert_eq!((reason.index(), KernelReason::from_raw(reason as u32)), (index, Some(reason)));
            assert!(reason.label().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            assert_eq!(KernelReason::ALL.iter().filter(|other| other.label() == reason.label()).count(), 1);
        }
        for raw in [0, KERNEL_REASONS as u32 + 1, 255, 256, u32::MAX] {
            assert_eq!(KernelReason::from_raw(raw), None);
        }
    }
}
