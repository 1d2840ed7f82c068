//! Settings of a link that `ip` of older distributions lacks: the largest piece of TCP over IPv4 that goes through the stack at
//! once. Read and set by route netlink, in the network namespace of the caller.

use anyhow::{ensure, Context, Result};
use rustix::net::{recv, send, socket, AddressFamily, RecvFlags, SendFlags, SocketType};

const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const NLMSG_ERROR: u16 = 2;
/// A request, to be acknowledged.
const FLAGS: u16 = 1 | 4;
const HEADER_BYTES: usize = 16;
const INFO_BYTES: usize = 16;

const NAME: u16 = 3;
const MTU: u16 = 4;
const GSO_MAX_SIZE: u16 = 41;
const GRO_MAX_SIZE: u16 = 58;
const GSO_IPV4_MAX_SIZE: u16 = 63;
const GRO_IPV4_MAX_SIZE: u16 = 64;

/// A link's limits for large pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Largest packet.
    pub mtu: u32,
    /// Largest piece of TCP over IPv4 that leaves in one.
    pub gso_bytes_max: u32,
}

fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(((4 + value.len()) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn request(kind: u16, link: &str, values: &[(u16, u32)]) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES + INFO_BYTES];
    attribute(&mut message, NAME, &[link.as_bytes(), &[0]].concat());
    for (kind, value) in values {
        attribute(&mut message, *kind, &value.to_ne_bytes());
    }
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&FLAGS.to_ne_bytes());
    message
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the first message of the answer.
fn ask(message: &[u8]) -> Result<Vec<u8>> {
    // No protocol is that of routes.
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)
        .context("cannot speak with the kernel about links")?;
    send(&socket, message, SendFlags::empty()).context("cannot ask the kernel about a link")?;
    let mut answer = vec![0; 32 << 10];
    let (n, _) = recv(&socket, &mut answer[..], RecvFlags::empty()).context("the kernel does not answer")?;
    answer.truncate(n);
    if u16_at(&answer, 4) == Some(NLMSG_ERROR) {
        let error = u32_at(&answer, HEADER_BYTES).map_or(0, |e| (e as i32).saturating_neg());
        ensure!(error == 0, "{}", std::io::Error::from_raw_os_error(error));
    }
    Ok(answer)
}

/// Lets pieces of TCP of `bytes` bytes through a link at once, over either version of IP.
pub fn set_gso_bytes(link: &str, bytes: u32) -> Result<()> {
    let values = [GSO_MAX_SIZE, GRO_MAX_SIZE, GSO_IPV4_MAX_SIZE, GRO_IPV4_MAX_SIZE].map(|kind| (kind, bytes));
    ask(&request(RTM_SETLINK, link, &values))
        .with_context(|| format!("cannot let pieces of {bytes} bytes through {link}; Linux 6.3 has that"))?;
    Ok(())
}

/// Returns the sizes of a link.
pub fn sizes(link: &str) -> Result<Sizes> {
    let answer = ask(&request(RTM_GETLINK, link, &[])).with_context(|| format!("cannot look at {link}"))?;
    let (mut sizes, mut at) = (Sizes::default(), HEADER_BYTES + INFO_BYTES);
    while let (Some(len), Some(kind)) = (u16_at(&answer, at), u16_at(&answer, at + 2)) {
        let value = u32_at(&answer, at + 4).unwrap_or(0);
        match kind {
            MTU => sizes.mtu = value,
            GSO_IPV4_MAX_SIZE => sizes.gso_bytes_max = value,
            _ => {}
        }
        at += usize::from(len.max(4)).next_multiple_of(4);
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_link_has_sizes_and_a_missing_one_is_named() {
        assert!(sizes("lo").unwrap().mtu > 0);
        assert!(format!("{:#}", sizes("no-such-link").unwrap_err()).contains("no-such-link"));
    }
}
