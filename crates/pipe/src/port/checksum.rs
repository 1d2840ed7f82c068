//! Checksums of UDP and TCP that the sending kernel left to a NIC.
//!
//! A kernel that sends to a virtual interface writes the sum of the pseudo header into the checksum field and leaves the rest to
//! hardware, which does not exist. A frame with that value there gets its checksum. A frame that has the value by chance keeps it:
//! the sum over an intact frame gives the same value.

/// Returns the sum of `bytes` as 16-bit words in network order, not folded.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u64::from(u16::from_be_bytes([high, low])),
        [high] => u64::from(high) << 8,
        _ => 0,
    });
    words.sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Completes the checksum of a whole datagram or segment over IPv4 or IPv6, if it was left to a NIC.
pub fn complete(frame: &mut [u8]) {
    let Some(kind) = frame.get(12..14).map(|kind| u16::from_be_bytes([kind[0], kind[1]])) else { return };
    let word =
        |at: usize| frame.get(at..at + 2).map(|word| usize::from(u16::from_be_bytes([word[0], word[1]])));
    // Protocol, addresses, and begin and end of the datagram.
    let (protocol, addresses, from, to) = match kind {
        0x0800 => {
            let (Some(&first), Some(&protocol)) = (frame.get(14), frame.get(23)) else { return };
            let (Some(length), Some(piece)) = (word(16), word(20)) else { return };
            if first >> 4 != 4 || piece & 0x3fff != 0 {
                return;
            }
            (protocol, 26..34, 14 + usize::from(first & 15) * 4, 14 + length)
        }
        0x86dd => {
            let (Some(&protocol), Some(length)) = (frame.get(20), word(18)) else { return };
            (protocol, 22..54, 54, 54 + length)
        }
        _ => return,
    };
    let place = match protocol {
        6 => from + 16,
        17 => from + 6,
        _ => return,
    };
    if to > frame.len() || place + 2 > to || from < addresses.end {
        return;
    }
    let pseudo = sum(&frame[addresses]) + u64::from(protocol) + (to - from) as u64;
    let left = word(place).unwrap_or_default() as u16;
    if left != fold(pseudo) {
        return;
    }
    frame[place..place + 2].fill(0);
    let checksum = !fold(pseudo + sum(&frame[from..to]));
    // Zero would mean that there is no checksum.
    let checksum = if checksum == 0 && protocol == 17 { 0xffff } else { checksum };
    frame[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes a frame of UDP over IPv4 with its checksum, by the rule of RFC 768.
    fn datagram(payload: &[u8]) -> Vec<u8> {
        let length = 8 + payload.len();
        let mut frame = vec![0; 34];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[16..18].copy_from_slice(&(20 + length as u16).to_be_bytes());
        frame[23] = 17;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x12, 0x34, 0, 7]);
        frame.extend((length as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        let all = sum(&frame[26..34]) + 17 + length as u64 + sum(&frame[34..]);
        let checksum = match !fold(all) {
            0 => 0xffff,
            other => other,
        };
        frame[40..42].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    proptest! {
        #[test]
        fn a_checksum_that_was_left_is_completed(payload in prop::collection::vec(any::<u8>(), 0..100)) {
            let whole = datagram(&payload);
            let mut left = whole.clone();
            let pseudo = fold(sum(&left[26..34]) + 17 + (left.len() - 34) as u64);
            left[40..42].copy_from_slice(&pseudo.to_be_bytes());
            // Bytes behind the datagram are not part of it.
            left.extend([7; 5]);
            complete(&mut left);
            prop_assert_eq!(&left[..whole.len()], &whole[..]);
            let mut again = whole.clone();
            complete(&mut again);
            prop_assert_eq!(again, whole);
        }

        #[test]
        fn any_bytes_are_no_reason_to_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0..3) {
            if bytes.len() > 24 {
                bytes[12..14].copy_from_slice(&[[8, 0], [0x86, 0xdd], [8, 6]][kind as usize]);
            }
            let before = bytes.clone();
            complete(&mut bytes);
            let changed = bytes.iter().zip(&before).filter(|(now, then)| now != then).count();
            prop_assert!(bytes.len() == before.len() && changed <= 2);
        }
    }
}
