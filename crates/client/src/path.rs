//! The ways that a connection's bytes may take.

/// Path of a connection's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The driver moves them.
    Offloaded,
    /// The bytes lie in rings that the two clients share.
    Direct,
    /// The kernel's TCP carries them: the fabric does not lead to the peer.
    Kernel,
}

impl Path {
    /// As it is written: `offloaded`, `direct` or `kernel`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offloaded => "offloaded",
            Self::Direct => "direct",
            Self::Kernel => "kernel",
        }
    }
}
