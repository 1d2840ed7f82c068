use pd_abi::counters::{AgentCounters, ClientCounters, FlowCounters, Gauges, Header};
use pd_abi::{Command, Event, Frame, PassedFile, Request};

/// Types that any bytes may inhabit and that consist of whole, aligned 64-bit words.
///
/// # Safety
/// The type must be `repr(C)` without padding, valid for every bit pattern, without interior
/// mutability, of a size that is a multiple of 8, and of an alignment of at most 8.
pub unsafe trait Pod: Copy + 'static {
    /// The value as bytes.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the implementer promises that the type has no padding, so that every byte is
        // initialised; the slice borrows `self`.
        unsafe { core::slice::from_raw_parts((self as *const Self).cast(), size_of::<Self>()) }
    }

    /// The value that `bytes` spell, if there are exactly enough of them.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != size_of::<Self>() {
            return None;
        }
        // SAFETY: the length was checked, the implementer promises that any bit pattern is valid,
        // and the read is unaligned.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

/// An entry with a word that its producer may change while the entry is the newest.
pub trait Growing: Pod {
    /// Offset of the word, a u64.
    const WORD: usize;
}

macro_rules! pod {
    ($($name:ty),+) => {$(
        const _: () = assert!(size_of::<$name>() % 8 == 0 && align_of::<$name>() <= 8);
        // SAFETY: `repr(C)`, integers only, fields without gaps (their offsets are asserted where
        // the type is declared), size and alignment asserted above.
        unsafe impl Pod for $name {}
    )+};
}
pod!(Command, Request, Event, Frame, PassedFile);
pod!(Header, Gauges, AgentCounters, ClientCounters, FlowCounters);

impl Growing for Request {
    const WORD: usize = Request::SEND_WORD;
}
