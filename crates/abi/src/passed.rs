use core::mem::{offset_of, size_of};

/// One datagram on the file socket ([`FrameKind::FileSocket`](crate::FrameKind::FileSocket)): 16 bytes and exactly one
/// descriptor, of a file that the client has open for reading. [`Operation::OpenFile`](crate::Operation::OpenFile) with the
/// same serial follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PassedFile {
    /// [`MAGIC`](crate::MAGIC).
    pub magic: u64,
    /// Chosen by the client, and greater than that of the datagram before.
    pub serial: u64,
}

const _: () = {
    assert!(size_of::<PassedFile>() == 16);
    assert!(offset_of!(PassedFile, magic) == 0);
    assert!(offset_of!(PassedFile, serial) == 8);
};
