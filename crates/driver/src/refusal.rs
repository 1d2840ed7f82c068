//! Reasons why processes were refused, and their identities.
use rustix::io::Errno;

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident, $label:literal, $text:literal, $remedy:literal;)+) => {
        /// See the module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Refusal {
            $($(#[$doc])* $name,)+
        }

        impl Refusal {
            /// All refusals.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Returns the reason in one word, for programs.
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }

            /// Returns the reason in a few words, which fit into a frame.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// Returns the remedy, for administrators.
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)+
                }
            }
        }
    };
}

refusals! {
    /// See [`crate::standing::Standing::Host`].
    Host, "host_process", "a host process, not root's or of the driver's group, and no [attach] allow names it",
        "add an entry to [attach] allow of the policy, or the user to the socket's group (socket_group)";
    /// See [`crate::standing::Standing::UsersNamespace`].
    UsersNamespace, "users_namespace", "in a user's own network namespace, and no [attach] allow of the policy names it",
        "add an entry to [attach] allow of the policy, such as { uid = 1000 }";
    /// Refused by an entry of `deny`.
    Denied, "denied", "[attach] deny of the policy names it", "take the entry out of the policy";
    /// Refused by a default of `nobody`.
    NotNamed, "not_named", "[attach] default of the policy is nobody, and no allow names it",
        "add an entry to [attach] allow of the policy";
    /// Refused by the tenant's caps.
    Cap, "cap", "its tenant has as many clients, or as much, as it may", "raise the tenant's caps in the policy";
    /// Refused by the driver's own limits.
    Full, "clients_max", "too many clients attached (clients_max)", "end some";
    /// Refused by a user's rate.
    Rate, "rate", "too many attach at once: try again later", "see which user starts so many";
    /// Refused after a failed call.
    Unidentified, "unidentified", "the driver cannot read the process's namespaces or control groups in /proc",
        "give the driver the rights that `pd doctor` names, and its control groups paths below 4,096 bytes";
    /// Refused for lack of memory.
    NoMemory, "no_memory", "no memory or descriptors left for its control region",
        "raise memory.budget_bytes, or the driver's limit on open files";
}

impl Refusal {
    /// Returns the refusal's index in a table of all.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the refusal with this label.
    pub fn from_label(label: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|refusal| refusal.label() == label)
    }
}

/// A process that was refused.
#[derive(Debug)]
pub struct Refused {
    /// Process id, in the driver's namespace, and user.
    pub pid: u32,
    pub uid: u32,
    /// The errno that the process received, and the reason.
    pub errno: Errno,
    pub why: String,
    /// Reason why the process was not let in; none: it was, and was cut off later.
    pub refusal: Option<Refusal>,
}

// A client reads no more of the text than a frame holds.
const _: () = {
    let mut index = 0;
    while index < Refusal::ALL.len() {
        assert!(Refusal::ALL[index].text().len() <= pd_abi::Frame::TEXT_BYTES);
        index += 1;
    }
};
