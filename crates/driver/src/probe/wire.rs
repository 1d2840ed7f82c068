//! Messages between the driver and the process that probes, one in each packet.
use crate::policy::PATH_BYTES_MAX;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// A backend to be probed. The descriptor of its network namespace goes along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Id that comes back with the reply.
    pub id: u64,
    pub to: SocketAddr,
    pub timeout: Duration,
    /// Path of an HTTP request; none: the connection is enough.
    pub path: Option<Box<str>>,
}

/// Outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Well,
    Refused,
    TimedOut,
    /// The answer has this status, which is neither 2xx nor 3xx; 0: it is not HTTP, or none came.
    BadAnswer(u16),
    /// The probe failed for lack of something here: an errno.
    Unknown(u16),
}

/// Bytes of a question before its path.
pub(super) const QUESTION_BYTES: usize = 34;
/// Bytes of a reply.
pub(crate) const REPLY_BYTES: usize = 11;
/// Longest question.
pub(super) const QUESTION_BYTES_MAX: usize = QUESTION_BYTES + PATH_BYTES_MAX;

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

impl Question {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (is_v4, octets) = match self.to.ip() {
            IpAddr::V4(v4) => (1, v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => (0, v6.octets()),
        };
        let mut bytes = Vec::with_capacity(QUESTION_BYTES_MAX);
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend((self.timeout.as_millis() as u32).to_ne_bytes());
        bytes.extend(self.to.port().to_ne_bytes());
        bytes.extend([is_v4, u8::from(self.path.is_some())]);
        bytes.extend(octets);
        let path = self.path.as_deref().unwrap_or_default();
        bytes.extend((path.len() as u16).to_ne_bytes());
        bytes.extend(path.as_bytes());
        bytes
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let id = u64::from_ne_bytes(take(bytes)?);
        let timeout = Duration::from_millis(u32::from_ne_bytes(take(bytes)?).into());
        let port = u16::from_ne_bytes(take(bytes)?);
        let [is_v4, has_path] = take(bytes)?;
        let v6 = Ipv6Addr::from(take::<16>(bytes)?);
        let ip = if is_v4 == 1 { v6.to_ipv4_mapped()?.into() } else { v6.into() };
        let len = usize::from(u16::from_ne_bytes(take(bytes)?));
        let path = std::str::from_utf8(bytes).ok().filter(|path| path.len() == len)?;
        let path = (has_path == 1).then(|| path.into());
        Some(Self { id, to: SocketAddr::new(ip, port), timeout, path })
    }
}

impl Verdict {
    pub(crate) fn encode(self, id: u64) -> [u8; REPLY_BYTES] {
        let (kind, detail) = match self {
            Self::Well => (0, 0),
            Self::Refused => (1, 0),
            Self::TimedOut => (2, 0),
            Self::BadAnswer(status) => (3, status),
            Self::Unknown(errno) => (4, errno),
        };
        let mut bytes = [kind; REPLY_BYTES];
        bytes[..8].copy_from_slice(&id.to_ne_bytes());
        bytes[9..].copy_from_slice(&u16::to_ne_bytes(detail));
        bytes
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<(u64, Self)> {
        let bytes = &mut bytes;
        let id = u64::from_ne_bytes(take(bytes)?);
        let [kind] = take(bytes)?;
        let detail = u16::from_ne_bytes(take(bytes)?);
        let verdict = match kind {
            0 => Self::Well,
            1 => Self::Refused,
            2 => Self::TimedOut,
            3 => Self::BadAnswer(detail),
            4 => Self::Unknown(detail),
            _ => return None,
        };
        bytes.is_empty().then_some((id, verdict))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(id: u64, ip: IpAddr, port: u16, timeout: u32, path in prop::option::of("/[a-z]{0,200}")) {
            let to = SocketAddr::new(ip, port);
            let timeout = Duration::from_millis(timeout.into());
            let question = Question { id, to, timeout, path: path.map(Into::into) };
            let bytes = question.encode();
            prop_assert!(bytes.len() <= QUESTION_BYTES_MAX);
            prop_assert_eq!(Question::decode(&bytes), Some(question));
        }

        #[test]
        fn other_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some((id, verdict)) = Verdict::decode(&bytes) {
                prop_assert_eq!(&verdict.encode(id)[..9], &bytes[..9]);
            }
            let _ = Question::decode(&bytes);
        }
    }

    #[test]
    fn each_verdict_comes_back() {
        for verdict in [
            Verdict::Well,
            Verdict::Refused,
            Verdict::TimedOut,
            Verdict::BadAnswer(503),
            Verdict::Unknown(24),
        ] {
            assert_eq!(Verdict::decode(&verdict.encode(7)), Some((7, verdict)));
        }
    }
}
