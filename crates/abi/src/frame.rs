use crate::declare::{constants, entry, kinds};
use crate::pipe::PipeRequest;
use crate::{TwinRequest, MAGIC, TWIN_REQUEST_BYTES, VERSION};

entry! {
    /// Message on the attach socket (Unix, sequenced packets): 128 bytes and perhaps file
    /// descriptors. Attaching, new channels and new regions go this way; nothing else does.
    ///
    /// A session, client on the left:
    ///
    /// ```text
    /// Hello                         →
    ///                               ←  Welcome   + control memfd, status memfd
    /// Mapped (region CONTROL)       →            the control region is mapped, and sealed by the client: `F_SEAL_FUTURE_WRITE | F_SEAL_SEAL`
    ///                               ←  Ready (region CONTROL)
    /// Channel                       →
    ///                               ←  Channel (id) + doorbell eventfd
    /// SendRegion (bytes)            →
    ///                               ←  SendRegion (id, bytes, page_bytes) + memfd
    /// Mapped (id)                   →
    ///                               ←  Ready (id)          now spans of it may be sent
    ///                               ←  ReceiveRegion (id, bytes, page_bytes) + memfd   at any time
    /// WakePipe (channel)            →
    ///                               ←  WakePipe (channel) + a socket, readable with each wake-up
    /// Twin (channel, request)       →                        answered by an event on the channel
    /// DirectRing (socket)           →            a connection on the direct path: the own ring
    ///                               ←  DirectRing (socket, bytes, page_bytes) + memfd
    /// DirectMapped (socket)         →            mapped, and sealed by the client likewise
    ///                               ←  Ready (socket)       now the peer may ask for it
    /// PeerRing (socket)             →
    ///                               ←  PeerRing (socket, bytes, page_bytes) + memfd
    /// RingEnds (socket)             →            after `TAKEN` or `PEER_TAKEN` in its `path` word
    ///                               ←  RingEnds (socket, bytes, page_bytes)
    /// Doorbell (socket, instance)       →            an eventfd by which the peer wakes a thread that sleeps in epoll
    ///                               ←  Doorbell (socket, number) + eventfd
    /// PeerDoorbell (socket)             →            the one that the peer sleeps on
    ///                               ←  PeerDoorbell (socket, number) + eventfd
    /// FileSocket                    →            once, for files that the driver shall send
    ///                               ←  FileSocket + a socket for `PassedFile` datagrams
    /// Pipe (bytes, request)            →            a ring of packets of a port
    ///                               ←  Pipe (id, bytes) + status, control and ring memfd, doorbell eventfd
    /// PipeMapped (id)               →            mapped
    ///                               ←  Ready (id)            the agent has started it: frames that come from now on are its own
    /// PipeWakeFd (id)                 →
    ///                               ←  PipeWakeFd (id) + a socket, readable with each wake-up
    /// PipePeer (id)                 →            a pipe on a link whose word `link` says that there is an offer
    ///                               ←  PipePeer (bytes, page_bytes) + control memfd of the other end, then what `page_bytes` names
    ///                                  (`peer_has`)
    /// PipeClose (id)                →
    ///                               ←  Ready (id)
    ///                               ←  Error (errno, text)   instead of any answer
    ///                               ←  Goodbye (errno, text) before the driver cuts a client off
    /// ```
    ///
    /// Answers come in the order of the questions; `ReceiveRegion` and `Goodbye` come unasked.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Frame in 128 {
        /// [`MAGIC`].
        magic: u64,
        /// [`VERSION`].
        version: u32,
        /// A [`FrameKind`].
        kind: u32,
        /// Region or channel.
        id: u32,
        /// An errno, or 0.
        errno: u32,
        /// Size of the region, or the size wanted.
        bytes: u64,
        /// Page size of the region's memory.
        page_bytes: u64,
        /// Reason, in UTF-8, padded with zeros.
        text: [u8; 88],
    }
}

kinds! {
    /// Meaning of a [`Frame`].
    enum FrameKind: u32 {
        /// Client: attaches.
        Hello = 1,
        /// Driver: the client is attached, with the number `id`.
        Welcome = 2,
        /// Client: region `id` is mapped, and can be sealed. The control region is sealed already.
        Mapped = 3,
        /// Driver: region `id` is sealed and in use.
        Ready = 4,
        /// Client: asks for a channel. Driver: passes it.
        Channel = 5,
        /// Client: asks for a send region of at least `bytes`. Driver: passes it.
        SendRegion = 6,
        /// Driver: passes a receive region.
        ReceiveRegion = 7,
        /// Client: asks for a socket that becomes readable with events on channel `id`, its wake pipe. Driver: passes it.
        WakePipe = 8,
        /// Driver: refuses a request, with the reason.
        Error = 9,
        /// Driver: cuts the client off, with the reason.
        Goodbye = 10,
        /// Client: a [`crate::TwinRequest`], in the text; `id` is the channel for the answer.
        Twin = 11,
        /// Client: asks for the ring that it is to write for socket `id`. Driver: passes it, `bytes` behind an index page of
        /// `page_bytes`.
        DirectRing = 12,
        /// Client: the direct ring of socket `id` is mapped and sealed.
        DirectMapped = 13,
        /// Client: asks for the ring that the peer of socket `id` writes. Driver: passes it.
        PeerRing = 14,
        /// Client: asks for an eventfd to sleep on, which the peer of socket `id` may write, for its epoll instance
        /// `bytes`. Driver: passes it, with the number `bytes`: one for all connections of that instance with that peer.
        Doorbell = 15,
        /// Client: asks for the doorbell that the peer of socket `id` sleeps on. Driver: passes it, with the number `bytes`.
        PeerDoorbell = 16,
        /// Client: asks for the socket by which it can pass files ([`crate::PassedFile`]). Driver: passes it, once; then `EEXIST`.
        FileSocket = 17,
        /// Client: asks for a pipe with a ring of `bytes`; a [`crate::pipe::PipeRequest`] is in the text. Driver: passes it, with the number `id`.
        Pipe = 18,
        /// Client: the memory of pipe `id` is mapped and can be sealed. Driver: `Ready`, once the agent has started the pipe; `Error` closes it.
        PipeMapped = 19,
        /// Client: asks for a pipe of the kernel that becomes readable when pipe `id` is to be looked at. Driver: passes it.
        PipeWakeFd = 20,
        /// Client: needs pipe `id` no more.
        PipeClose = 21,
        /// Client: asks where the rings of socket `id` end since one side of its connection went to another client. Driver: says so.
        /// `bytes`: what the socket has sent by its own ring. `page_bytes`: what it receives of its peer's. `u64::MAX`: no end is
        /// fixed.
        RingEnds = 22,
        /// Client: asks for the memory of the other end of pipe `id`, for the direct path of a link. Driver: passes it, for reading;
        /// `bytes` is the size of the sender's ring.
        PipePeer = 23,
    }
}

constants! {
    IDS:
    /// `Frame::id` of the control region in `Mapped` and `Ready`.
    REGION_CONTROL: u32 = u32::MAX;
}

impl Frame {
    /// `REGION_CONTROL`, see there.
    pub const REGION_CONTROL: u32 = REGION_CONTROL;

    /// Bytes of the text.
    pub const TEXT_BYTES: usize = 88;

    /// A frame of `kind`, everything else zero.
    pub fn new(kind: FrameKind) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            kind: kind as u32,
            id: 0,
            errno: 0,
            bytes: 0,
            page_bytes: 0,
            text: [0; Self::TEXT_BYTES],
        }
    }

    /// The frame with an id.
    #[must_use]
    pub fn with_id(mut self, id: u32) -> Self {
        self.id = id;
        self
    }

    /// The frame with a size.
    #[must_use]
    pub fn with_bytes(mut self, bytes: u64, page_bytes: u64) -> Self {
        (self.bytes, self.page_bytes) = (bytes, page_bytes);
        self
    }

    /// The frame with an errno and its reason, cut at [`Self::TEXT_BYTES`].
    #[must_use]
    pub fn with_error(mut self, errno: u32, text: &str) -> Self {
        self.errno = errno;
        let mut len = text.len().min(self.text.len());
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        self.text[..len].copy_from_slice(&text.as_bytes()[..len]);
        self
    }

    /// The frame with a request about a kernel socket in its text.
    #[must_use]
    pub fn with_twin(mut self, request: &TwinRequest) -> Self {
        self.text[..TWIN_REQUEST_BYTES].copy_from_slice(&request.to_bytes());
        self
    }

    /// The request in the text of a `Twin` frame.
    pub fn twin(&self) -> TwinRequest {
        let mut bytes = [0; TWIN_REQUEST_BYTES];
        bytes.copy_from_slice(&self.text[..TWIN_REQUEST_BYTES]);
        TwinRequest::from_bytes(&bytes)
    }

    /// The frame with a request for a pipe in its text.
    #[must_use]
    pub fn with_pipe_request(mut self, request: &PipeRequest) -> Self {
        self.text = request.to_bytes();
        self
    }

    /// The request in the text of a `Pipe` frame. None where it is none.
    pub fn pipe_request(&self) -> Option<PipeRequest> {
        PipeRequest::from_bytes(&self.text)
    }

    /// The reason; empty if it is not UTF-8.
    pub fn reason(&self) -> &str {
        let len = self.text.iter().position(|&b| b == 0).unwrap_or(self.text.len());
        core::str::from_utf8(&self.text[..len]).unwrap_or("")
    }

    /// The kind, if magic, version and kind are ones we know.
    pub fn checked_kind(&self) -> Option<FrameKind> {
        if self.magic != MAGIC || self.version != VERSION {
            return None;
        }
        FrameKind::from_raw(self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_cut_at_a_character() {
        let long = "ä".repeat(60);
        let frame = Frame::new(FrameKind::Error).with_error(1, &long);
        assert_eq!(frame.reason(), "ä".repeat(44));
        assert_eq!(frame.checked_kind(), Some(FrameKind::Error));
        assert_eq!(Frame { version: 0, ..frame }.checked_kind(), None);
    }
}
