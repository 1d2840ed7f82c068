use crate::declare::entry;

entry! {
    /// Datagram on the file socket ([`FrameKind::FileSocket`](crate::FrameKind::FileSocket)): 16 bytes and exactly one
    /// descriptor, of a file that the client has open for reading. [`Operation::OpenFile`](crate::Operation::OpenFile) with the
    /// same serial follows it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct PassedFile in 16 {
        /// [`MAGIC`](crate::MAGIC).
        magic: u64,
        /// Chosen by the client, and greater than that of the datagram before.
        serial: u64,
    }
}
