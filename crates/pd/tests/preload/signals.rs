//! Signal handlers that use connections, whatever their thread was doing.

use super::{Site, PORT};

/// Compares the program's answers on all ways, each process behind `words`.
fn compare(third: u8, words: &[&str]) {
    let site = Site::new(third);
    let program = site.compiled("signals", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
    let (server, client) = ([program, "server", PORT], [program, "client", &ip, PORT]);
    site.compare(&[words, &server].concat(), &[words, &client].concat());
}

#[test]
fn signal_handlers_use_connections_whatever_they_interrupt() {
    compare(101, &[]);
}

#[test]
fn signal_handlers_use_short_connections_whatever_they_interrupt() {
    compare(114, &["env", "PD_PRELOAD=short"]);
}
