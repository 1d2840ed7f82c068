//! All that this crate declares, for what is generated from it: the C header, the SystemVerilog package and the tables of the
//! documents. A module that declares something is named here once. Nothing else is typed twice.
use crate::declare::{Constant, Word};
use crate::layout::{self, channel_control, channel_status, control_header, direct, header, path};
use crate::layout::{socket_control, socket_status};
use crate::{
    counters, frame, limits, pipe, request, twin, Command, CommandStatus, CommandType, Event, EventKind,
    Family, Frame, FrameKind, KernelReason, Operation, PassedFile, Request, SocketOption, TableId,
    TwinOperation,
};
use std::string::String;
use std::{env, fs, path::Path};

/// Numbers that belong together.
pub struct Numbers {
    /// Prefix of their names.
    pub prefix: &'static str,
    pub title: &'static str,
    pub numbers: &'static [Constant],
}

/// Words of a page or a line, or fields of an entry.
pub struct Layout {
    pub prefix: &'static str,
    pub title: &'static str,
    pub writer: &'static str,
    pub bytes: usize,
    pub words: &'static [Word],
}

const fn numbers(prefix: &'static str, title: &'static str, numbers: &'static [Constant]) -> Numbers {
    Numbers { prefix, title, numbers }
}

/// Numbers by which two parties agree, but for kinds.
pub const CONSTANTS: &[Numbers] = &[
    numbers("", "Version", crate::IDENTITY),
    numbers("", "Limits", limits::LIMITS),
    numbers("LAYOUT_", "Places in the control region and the status region", layout::PLACES),
    numbers("LAYOUT_", "How a stream ends: `recv_end`, `send_end`", layout::ENDS),
    numbers("PATH_", "How bytes travel: `path`", path::PATHS),
    numbers("", "Values of requests", request::VALUES),
    numbers("", "Sizes of requests about kernel sockets", twin::SIZES),
    numbers("", "Ids of frames", frame::IDS),
    numbers("", "Limits of pipes", pipe::LIMITS),
    numbers("", "Sizes of requests for pipes", pipe::SIZES),
    numbers("VERDICT_", "Verdicts on frames of a pipe", pipe::VERDICTS),
    numbers(
        "PEER_HAS_",
        "Descriptors of the other end of a link: `page_bytes` of `PipePeer`",
        pipe::peer_has::PEER_HAS,
    ),
];

/// Enums that cross the boundary.
pub const KINDS: &[Numbers] = &[
    numbers("OP_", "Requests", Operation::DECLARED),
    numbers("OPTION_", "Socket options", SocketOption::DECLARED),
    numbers("EVENT_", "Events", EventKind::DECLARED),
    numbers("FRAME_", "Frames", FrameKind::DECLARED),
    numbers("TWIN_", "Requests about kernel sockets", TwinOperation::DECLARED),
    numbers("PIPE_", "Directions of pipes", pipe::PipeDirection::DECLARED),
    numbers("PIPE_UNIT_", "Units of pipes", pipe::PipeUnit::DECLARED),
    numbers("LINK_PATH_", "Paths of a pipe's frames on a link", pipe::LinkPath::DECLARED),
    numbers("FAMILY_", "Families of addresses", Family::DECLARED),
    numbers("REASON_", "Why a connection is the kernel's", KernelReason::DECLARED),
    numbers("COMMAND_", "Commands of an engine", CommandType::DECLARED),
    numbers("STATUS_", "How a command ended", CommandStatus::DECLARED),
    numbers("TABLE_", "Tables that a command's entry counts in", TableId::DECLARED),
];

const fn words(
    prefix: &'static str,
    title: &'static str,
    writer: &'static str,
    bytes: usize,
    words: &'static [Word],
) -> Layout {
    Layout { prefix, title, writer, bytes, words }
}

/// Pages and lines of shared memory.
#[rustfmt::skip]
pub const PAGES: &[Layout] = &[
    words("HEADER_", "Header of the status region", "driver", limits::PAGE_BYTES, header::WORDS),
    words("CONTROL_HEADER_", "Header of the control region", "client", limits::PAGE_BYTES, control_header::WORDS),
    words("CHANNEL_CONTROL_", "A channel in the control region", "client", layout::CHANNEL_STRIDE, channel_control::WORDS),
    words("CHANNEL_STATUS_", "A channel in the status region", "driver", layout::CHANNEL_STRIDE, channel_status::WORDS),
    words("SOCKET_CONTROL_", "A socket's line in the control region", "client", layout::SOCKET_STRIDE, socket_control::WORDS),
    words("SOCKET_STATUS_", "A socket's line in the status region", "driver", layout::SOCKET_STRIDE, socket_status::WORDS),
    words("DIRECT_", "Index page of a direct ring", "its owner, a client", limits::PAGE_BYTES, direct::WORDS),
    words("PIPE_STATUS_", "First page of a pipe's status file", "agent", limits::PAGE_BYTES, pipe::pipe_status::WORDS),
    words("PIPE_CONTROL_", "First page of a pipe's control file", "client", limits::PAGE_BYTES, pipe::pipe_control::WORDS),
    words("PIPE_REQUEST_", "A request for a pipe, in a frame's text", "client", pipe::PIPE_REQUEST_BYTES, pipe::pipe_request::WORDS),
    words("TWIN_REQUEST_", "A request about a kernel socket, in a frame's text", "client", crate::TWIN_REQUEST_BYTES, twin::twin_request::WORDS),
];

/// Entries of rings, messages and commands.
#[rustfmt::skip]
pub const ENTRIES: &[Layout] = &[
    words("request", "Entry of a request ring", "client", size_of::<Request>(), Request::FIELDS),
    words("event", "Entry of an event ring", "driver", size_of::<Event>(), Event::FIELDS),
    words("frame", "Message on the attach socket", "both", size_of::<Frame>(), Frame::FIELDS),
    words("passed_file", "Datagram on the file socket", "client", size_of::<PassedFile>(), PassedFile::FIELDS),
    words("command", "Command and completion of an engine", "driver, engine", size_of::<Command>(), Command::FIELDS),
];

/// The counter region.
#[rustfmt::skip]
pub const COUNTERS: &[Layout] = &[
    words("counter_header", "Header of the counter region", "driver", size_of::<counters::Header>(), counters::Header::FIELDS),
    words("gauges", "Gauges", "conductor", size_of::<counters::Gauges>(), counters::Gauges::FIELDS),
    words("agent_counters", "Counters of an agent", "that agent", size_of::<counters::AgentCounters>(), counters::AgentCounters::FIELDS),
    words("client_counters", "Counters of a client, for each mover", "that mover", size_of::<counters::ClientCounters>(), counters::ClientCounters::FIELDS),
    words("flow_counters", "Counters of a flow", "its mover", size_of::<counters::FlowCounters>(), counters::FlowCounters::FIELDS),
];

/// Numbers of the counter region.
pub const COUNTER_NUMBERS: &[Numbers] = &[
    numbers("COUNTERS_", "Version of the counter region", counters::IDENTITY),
    numbers("COUNTERS_", "Places in the counter region", counters::PLACES),
    numbers("COUNTERS_", "Limits of the counter region", counters::LIMITS),
];

/// `ReceivesShared` as `RECEIVES_SHARED`; what is in capitals stays.
pub fn capitals(name: &str) -> String {
    let mut out = String::new();
    let camel = name.chars().any(|letter| letter.is_ascii_lowercase());
    for letter in name.chars() {
        if camel && letter.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(letter.to_ascii_uppercase());
    }
    out
}

/// A comment as one paragraph, without what only rustdoc understands.
pub fn paragraph(text: &[&str]) -> String {
    let text: std::vec::Vec<_> = text.iter().map(|line| line.trim()).collect();
    let mut text = text.join(" ");
    // A link keeps its text.
    while let Some(start) = text.find("`](") {
        let end = text[start..].find(')').map_or(text.len(), |at| start + at + 1);
        text.replace_range(start + 1..end, "");
    }
    text = text.replace("[`", "`").replace("`]", "`");
    for path in ["crate::limits::", "crate::layout::", "crate::", "super::", "Self::"] {
        text = text.replace(path, "");
    }
    text
}

/// Compares a committed file with what is generated; with `UPDATE` in the environment, writes it.
pub fn check(path: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == text, "{} is stale: UPDATE=1 cargo test -p pd-abi", path.display());
}

#[test]
fn names_and_comments_are_cleaned() {
    assert_eq!(capitals("ReceivesShared"), "RECEIVES_SHARED");
    assert_eq!((capitals("V6Only").as_str(), capitals("LAST").as_str()), ("V6_ONLY", "LAST"));
    let text = [" See [`crate::limits::X`] and", " [`Y`](crate::Y); `a[0]`."];
    assert_eq!(paragraph(&text), "See `X` and `Y`; `a[0]`.");
}
