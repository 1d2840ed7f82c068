//! memcached's meta commands over UDP: `mg`, `ms`, `md`, `mn`.
//!
//! A datagram has a header of eight bytes: a number of the client's, the datagram's place among those of the request, their count, and two
//! bytes of 0. Requests of more than one datagram are not served. Flags: `v` value, `k` key, `s` size, `q` no answer in the usual case, `O`
//! a text that the answer repeats. Values neither expire nor have flags: of `T` and `F` only 0 is taken.
use super::store::{Set, Store, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Bytes of the header of a datagram.
pub const HEADER: usize = 8;
/// Longest answer, as memcached's own.
pub const ANSWER_BYTES_MAX: usize = 1400;
/// Longest text that is repeated.
const OPAQUE_BYTES_MAX: usize = 32;

/// Serves the commands of a datagram, and writes an answer. Returns its length; none sends nothing. `owns` says whether a key belongs here.
pub fn serve(
    store: &mut Store,
    request: &[u8],
    owns: impl Fn(&[u8]) -> bool,
    to: &mut [u8; ANSWER_BYTES_MAX],
) -> Option<usize> {
    let (head, mut rest) = request.split_first_chunk::<HEADER>()?;
    if head[2..6] != [0, 0, 0, 1] {
        return None;
    }
    let mut answer = Answer { to, length: 0, full: false };
    answer.put(&[head[0], head[1], 0, 0, 0, 1, 0, 0]);
    while !rest.is_empty() {
        match command(store, rest, &owns, &mut answer) {
            Ok(used) => rest = &rest[used..],
            Err(why) => {
                answer.put(why);
                break;
            }
        }
    }
    if answer.full {
        answer.length = HEADER;
        answer.full = false;
        answer.put(b"SERVER_ERROR the answer is too long\r\n");
    }
    (answer.length > HEADER).then_some(answer.length)
}

/// An answer that is being written.
struct Answer<'a> {
    to: &'a mut [u8; ANSWER_BYTES_MAX],
    length: usize,
    /// Set if a part had no room.
    full: bool,
}

impl Answer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        match self.to.get_mut(self.length..self.length + bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            None => self.full = true,
        }
    }

    fn put_number(&mut self, number: usize) {
        self.put(number.to_string().as_bytes());
    }

    /// Ends a line with the parts that flags ask for.
    fn flags(&mut self, flags: &Flags, key: &[u8], size: Option<usize>) {
        for &flag in flags.0 {
            match flag.first() {
                Some(b'k') => {
                    self.put(b" k");
                    self.put(key);
                }
                Some(b'O') => {
                    self.put(b" ");
                    self.put(flag);
                }
                Some(b's') => {
                    if let Some(size) = size {
                        self.put(b" s");
                        self.put_number(size);
                    }
                }
                _ => {}
            }
        }
        self.put(b"\r\n");
    }
}

/// The flags of a command.
struct Flags<'a>(&'a [&'a [u8]]);

impl Flags<'_> {
    fn has(&self, letter: u8) -> bool {
        self.0.iter().any(|flag| flag.first() == Some(&letter))
    }

    fn check(&self, allowed: &[u8]) -> Result<(), &'static [u8]> {
        let sound = |flag: &&[u8]| match flag {
            [b'O', rest @ ..] => allowed.contains(&b'O') && rest.len() <= OPAQUE_BYTES_MAX,
            [b'T' | b'F', rest @ ..] => allowed.contains(&flag[0]) && rest == b"0",
            [letter] => allowed.contains(letter),
            _ => false,
        };
        if self.0.iter().all(sound) {
            Ok(())
        } else {
            Err(b"CLIENT_ERROR invalid flag\r\n")
        }
    }
}

const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
/// Most words of a command.
const WORDS_MAX: usize = 12;

/// Serves one command. Returns the bytes that it took.
fn command(
    store: &mut Store,
    bytes: &[u8],
    owns: &impl Fn(&[u8]) -> bool,
    answer: &mut Answer<'_>,
) -> Result<usize, &'static [u8]> {
    let end = bytes.iter().position(|&byte| byte == b'\n').ok_or(BAD_FORMAT)?;
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    let mut words: [&[u8]; WORDS_MAX] = [&[]; WORDS_MAX];
    let mut count = 0;
    for word in line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()) {
        *words.get_mut(count).ok_or(BAD_FORMAT)? = word;
        count += 1;
    }
    let (words, used) = (&words[..count], end + 1);
    let key = || checked_key(words, owns);
    match words.first().copied() {
        Some(b"mn") => answer.put(b"MN\r\n"),
        Some(b"mg") => get(store, key()?, Flags(&words[2..]), answer)?,
        Some(b"ms") => return Ok(used + set(store, key()?, words, &bytes[used..], answer)?),
        Some(b"md") => delete(store, key()?, Flags(&words[2..]), answer)?,
        _ => return Err(b"ERROR\r\n"),
    }
    Ok(used)
}

/// Returns the key of a command, which is its second word.
fn checked_key<'a>(words: &[&'a [u8]], owns: &impl Fn(&[u8]) -> bool) -> Result<&'a [u8], &'static [u8]> {
    let key: &[u8] = words.get(1).copied().ok_or(BAD_FORMAT)?;
    let printable = key.iter().all(|byte| byte.is_ascii_graphic() || *byte >= 0x80);
    if key.len() > KEY_BYTES_MAX || !printable {
        return Err(BAD_FORMAT);
    }
    if !owns(key) {
        return Err(b"SERVER_ERROR another partition has the key\r\n");
    }
    Ok(key)
}

/// Serves a meta get: `mg <key> <flags>*`.
fn get(store: &Store, key: &[u8], flags: Flags<'_>, answer: &mut Answer<'_>) -> Result<(), &'static [u8]> {
    flags.check(b"vksqO")?;
    match store.get(key) {
        Some(value) if flags.has(b'v') => {
            answer.put(b"VA ");
            answer.put_number(value.len());
            answer.flags(&flags, key, Some(value.len()));
            answer.put(value);
            answer.put(b"\r\n");
        }
        Some(value) => {
            answer.put(b"HD");
            answer.flags(&flags, key, Some(value.len()));
        }
        None if flags.has(b'q') => {}
        None => answer.put(b"EN\r\n"),
    }
    Ok(())
}

/// Serves a meta set: `ms <key> <bytes> <flags>*`, then `data`. Returns the bytes of `data` that it took.
fn set(
    store: &mut Store,
    key: &[u8],
    words: &[&[u8]],
    data: &[u8],
    answer: &mut Answer<'_>,
) -> Result<usize, &'static [u8]> {
    let text = words.get(2).and_then(|word| std::str::from_utf8(word).ok());
    let length: usize = text.and_then(|text| text.parse().ok()).ok_or(BAD_FORMAT)?;
    let flags = Flags(&words[3..]);
    flags.check(b"kqOTF")?;
    if length > VALUE_BYTES_MAX {
        return Err(b"SERVER_ERROR object too large for cache\r\n");
    }
    let value = data.get(..length).ok_or(BAD_FORMAT)?;
    if data.get(length..length + 2) != Some(b"\r\n") {
        return Err(b"CLIENT_ERROR bad data chunk\r\n");
    }
    if store.set(key, value) == Set::TooLong {
        return Err(b"SERVER_ERROR object too large for cache\r\n");
    }
    if !flags.has(b'q') {
        answer.put(b"HD");
        answer.flags(&flags, key, None);
    }
    Ok(length + 2)
}

/// Serves a meta delete: `md <key> <flags>*`.
fn delete(
    store: &mut Store,
    key: &[u8],
    flags: Flags<'_>,
    answer: &mut Answer<'_>,
) -> Result<(), &'static [u8]> {
    flags.check(b"kqO")?;
    let (word, silent): (&[u8], _) = if store.delete(key) { (b"HD", true) } else { (b"NF", false) };
    if !(silent && flags.has(b'q')) {
        answer.put(word);
        answer.flags(&flags, key, None);
    }
    Ok(())
}
