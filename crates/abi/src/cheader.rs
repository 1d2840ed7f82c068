//! The C header of constants, generated: `crates/abi/include/pd_abi.h` is this text, committed, and a
//! test fails when it is stale (`UPDATE=1 cargo test -p pd-abi` writes it anew).
use crate::layout::{channel_control, channel_status, direct, path, socket_control, socket_status};
use crate::{layout, limits, CommandStatus, CommandType, EventKind, FrameKind, Operation, SocketOption};
use core::fmt::{self, Write};

/// Writes the header to `out`.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write) -> fmt::Result {
    out.write_str(
        "/* Constants of the PipeDevice ABI. Generated from the pd-abi crate; do not edit.\n \
         * SPDX-License-Identifier: Apache-2.0 */\n#ifndef PD_ABI_H\n#define PD_ABI_H\n\n",
    )?;
    for (name, value) in CONSTANTS {
        writeln!(out, "#define PD_ABI_{name} {value}ull")?;
    }
    out.write_str("\n#endif\n")
}

macro_rules! words {
    ($prefix:literal, $module:ident, $($name:ident),+ $(,)?) => {
        [$((concat!($prefix, stringify!($name)), $module::$name as u64)),+]
    };
}

const CONSTANTS: &[(&str, u64)] = concat_slices();

const LIMITS: [(&str, u64); 16] = words!(
    "",
    limits,
    PAGE_BYTES,
    HUGEPAGE_BYTES,
    LINE_BYTES,
    QUEUE_DEPTH,
    REQUEST_RING_ENTRIES,
    EVENT_RING_ENTRIES,
    CHANNELS_MAX,
    SOCKETS_MAX,
    REGIONS_MAX,
    RING_BYTES_DEFAULT,
    RING_BYTES_MIN,
    RING_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    SENDS_IN_FLIGHT_MAX,
    BACKLOG_MAX,
    CHUNK_BYTES_PAPER,
);
const LAYOUT: [(&str, u64); 7] = words!(
    "LAYOUT_",
    layout,
    CHANNELS_OFFSET,
    CHANNEL_STRIDE,
    SOCKETS_OFFSET,
    SOCKET_STRIDE,
    REGION_BYTES,
    ENDED,
    ELSEWHERE,
);
const CHANNEL_CONTROL: [(&str, u64); 5] = words!(
    "CHANNEL_CONTROL_",
    channel_control,
    REQUEST_PRODUCER,
    EVENT_CONSUMER,
    EVENT_WAKE_AT,
    PIPE_WANTED,
    REQUESTS,
);
const CHANNEL_STATUS: [(&str, u64); 6] = words!(
    "CHANNEL_STATUS_",
    channel_status,
    REQUEST_CONSUMER,
    NEED_WAKEUP,
    EVENT_PRODUCER,
    EVENT_DOORBELL,
    EVENTS_WAITING,
    EVENTS,
);
const SOCKET_CONTROL: [(&str, u64); 6] = words!(
    "SOCKET_CONTROL_",
    socket_control,
    RECV_CONSUMER,
    RECV_WAKE_AT,
    SEND_WAKE_AT,
    SUBSCRIBED,
    EVENT_ACK,
    GENERATION,
);
const SOCKET_STATUS: [(&str, u64); 13] = words!(
    "SOCKET_STATUS_",
    socket_status,
    RECV_PRODUCER,
    SEND_CONSUMER,
    SPACE_WAKE_AT,
    RECV_DOORBELL,
    SEND_DOORBELL,
    RECV_END,
    SEND_END,
    EVENT_NUMBER,
    RING_REGION,
    RING_PAGE,
    RING_PAGES,
    GENERATION,
    PATH,
);
const PATH: [(&str, u64); 8] =
    words!("PATH_", path, OFFLOADED, DIRECT, PEER_READY, LEFT, CLAIMED, LAST, SENDS_OFFLOADED, TRUSTED);
const DIRECT: [(&str, u64); 13] = words!(
    "DIRECT_",
    direct,
    PRODUCER,
    MESSAGES,
    CONSUMER,
    RECV_WAKE_AT,
    SEND_WAKE_AT,
    RECV_EVENT_AT,
    SEND_EVENT_AT,
    RECV_UNFENCED,
    SEND_UNFENCED,
    BARRIERS,
    BELL,
    RECV_DOORBELL,
    SEND_DOORBELL,
);
const NUMBERS: [(&str, u64); 50] = [
    ("VERSION", crate::VERSION as u64),
    ("MAGIC", crate::MAGIC),
    ("COMMAND_BYTES", core::mem::size_of::<crate::Command>() as u64),
    ("REQUEST_BYTES", core::mem::size_of::<crate::Request>() as u64),
    ("EVENT_BYTES", core::mem::size_of::<crate::Event>() as u64),
    ("FRAME_BYTES", core::mem::size_of::<crate::Frame>() as u64),
    ("PASSED_FILE_BYTES", core::mem::size_of::<crate::PassedFile>() as u64),
    ("COMMAND_GENERAL_SEND", CommandType::GeneralSend as u64),
    ("COMMAND_GENERAL_COMPLETED", CommandType::GeneralCompleted as u64),
    ("STATUS_OK", CommandStatus::Ok as u64),
    ("STATUS_BAD_ADDRESS", CommandStatus::BadAddress as u64),
    ("STATUS_BAD_LENGTH", CommandStatus::BadLength as u64),
    ("STATUS_BAD_TYPE", CommandStatus::BadType as u64),
    ("STATUS_FAILED", CommandStatus::Failed as u64),
    ("OP_SEND", Operation::Send as u64),
    ("OP_SPACE", Operation::Space as u64),
    ("OP_SOCKET", Operation::Socket as u64),
    ("OP_BIND", Operation::Bind as u64),
    ("OP_LISTEN", Operation::Listen as u64),
    ("OP_CONNECT", Operation::Connect as u64),
    ("OP_ACCEPT", Operation::Accept as u64),
    ("OP_CLOSE", Operation::Close as u64),
    ("OP_SHUTDOWN", Operation::Shutdown as u64),
    ("OP_SET_OPTION", Operation::SetOption as u64),
    ("OP_ADOPT", Operation::Adopt as u64),
    ("OP_NUDGE", Operation::Nudge as u64),
    ("OP_BROKEN", Operation::Broken as u64),
    ("OP_LEFT", Operation::Left as u64),
    ("OP_OPEN_FILE", Operation::OpenFile as u64),
    ("OP_SEND_FILE", Operation::SendFile as u64),
    ("OP_STEP_ASIDE", Operation::StepAside as u64),
    ("OPTION_RECEIVES_SHARED", SocketOption::ReceivesShared as u64),
    ("RECEIVES_SHARED", crate::RECEIVES_SHARED as u64),
    ("CLOSE_RESETS", crate::CLOSE_RESETS as u64),
    ("EVENT_ANSWER", EventKind::Answer as u64),
    ("EVENT_READY", EventKind::Ready as u64),
    ("EVENT_MORE", EventKind::More as u64),
    ("FRAME_HELLO", FrameKind::Hello as u64),
    ("FRAME_WELCOME", FrameKind::Welcome as u64),
    ("FRAME_MAPPED", FrameKind::Mapped as u64),
    ("FRAME_READY", FrameKind::Ready as u64),
    ("FRAME_CHANNEL", FrameKind::Channel as u64),
    ("FRAME_SEND_REGION", FrameKind::SendRegion as u64),
    ("FRAME_RECEIVE_REGION", FrameKind::ReceiveRegion as u64),
    ("FRAME_DIRECT_RING", FrameKind::DirectRing as u64),
    ("FRAME_DIRECT_MAPPED", FrameKind::DirectMapped as u64),
    ("FRAME_PEER_RING", FrameKind::PeerRing as u64),
    ("FRAME_BELL", FrameKind::Bell as u64),
    ("FRAME_PEER_BELL", FrameKind::PeerBell as u64),
    ("FRAME_FILE_SOCKET", FrameKind::FileSocket as u64),
];

const TOTAL: usize = NUMBERS.len()
    + LIMITS.len()
    + LAYOUT.len()
    + CHANNEL_CONTROL.len()
    + CHANNEL_STATUS.len()
    + SOCKET_CONTROL.len()
    + SOCKET_STATUS.len()
    + PATH.len()
    + DIRECT.len();

const fn concat_slices() -> &'static [(&'static str, u64)] {
    const ALL: [(&str, u64); TOTAL] = {
        let mut all = [("", 0u64); TOTAL];
        let parts: [&[(&str, u64)]; 9] = [
            &NUMBERS,
            &LIMITS,
            &LAYOUT,
            &CHANNEL_CONTROL,
            &CHANNEL_STATUS,
            &SOCKET_CONTROL,
            &SOCKET_STATUS,
            &PATH,
            &DIRECT,
        ];
        let (mut at, mut part) = (0, 0);
        while part < parts.len() {
            let mut i = 0;
            while i < parts[part].len() {
                all[at] = parts[part][i];
                (at, i) = (at + 1, i + 1);
            }
            part += 1;
        }
        all
    };
    &ALL
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path, string::String};

    #[test]
    fn committed_header_is_fresh() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/pd_abi.h");
        let mut text = String::new();
        super::write(&mut text).unwrap();
        if env::var_os("UPDATE").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{} is stale: UPDATE=1 cargo test -p pd-abi", path.display());
    }
}
