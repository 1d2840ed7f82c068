//! Comparison of the constants of `include/pd.h` with the library's.
use crate::{options, pipe};
use std::collections::BTreeMap;

const HEADER: &str = include_str!("../include/pd.h");
/// Files that have constants of the header.
const SOURCES: [&str; 2] = [include_str!("options.rs"), include_str!("pipe.rs")];

/// Returns all constants of the header with their values in the library.
fn known() -> BTreeMap<&'static str, i64> {
    let mut known: BTreeMap<_, _> = options::CONSTANTS.iter().chain(&pipe::CONSTANTS).copied().collect();
    // Values of the kernel's, which `epoll` takes from libc.
    known.extend([
        ("PD_EPOLLIN", i64::from(libc::EPOLLIN)),
        ("PD_EPOLLOUT", i64::from(libc::EPOLLOUT)),
        ("PD_EPOLLERR", i64::from(libc::EPOLLERR)),
        ("PD_EPOLLHUP", i64::from(libc::EPOLLHUP)),
        ("PD_EPOLLRDHUP", i64::from(libc::EPOLLRDHUP)),
        ("PD_EPOLLONESHOT", i64::from(libc::EPOLLONESHOT)),
        ("PD_EPOLLET", i64::from(libc::EPOLLET as u32)),
        ("PD_EPOLL_CTL_ADD", i64::from(libc::EPOLL_CTL_ADD)),
        ("PD_EPOLL_CTL_DEL", i64::from(libc::EPOLL_CTL_DEL)),
        ("PD_EPOLL_CTL_MOD", i64::from(libc::EPOLL_CTL_MOD)),
    ]);
    known
}

/// Returns the value of a constant as the header writes it: a number, a power of two, or a name of the C library.
fn value(text: &str) -> Option<i64> {
    if text == "SOCK_NONBLOCK" {
        return Some(i64::from(libc::SOCK_NONBLOCK));
    }
    if let Some(power) = text.strip_prefix("(1u << ").and_then(|rest| rest.strip_suffix(')')) {
        return Some(1 << power.parse::<u32>().ok()?);
    }
    let number = text.trim_end_matches('u');
    match number.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => number.parse().ok(),
    }
}

/// Returns the constants of the header, with their values.
fn declared() -> BTreeMap<&'static str, i64> {
    let constants = HEADER.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let constant = |(name, rest): (&'static str, &'static str)| {
        let text = rest.split_once("/*").map_or(rest, |(text, _)| text).trim();
        (name, value(text).unwrap_or_else(|| panic!("{name} is {text:?}")))
    };
    constants.map(constant).collect()
}

#[test]
fn the_header_has_the_librarys_constants() {
    assert_eq!(declared(), known());
}

#[test]
fn no_constant_of_the_library_is_left_out() {
    let names = SOURCES.iter().flat_map(|source| source.lines()).filter_map(|line| {
        let name = line.trim_start().trim_start_matches("pub ").strip_prefix("const ")?.split_once(':')?.0;
        (name.starts_with("PD_") || name == "SOL_PD").then_some(name)
    });
    let known = known();
    let missing: Vec<_> = names.filter(|name| !known.contains_key(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}
