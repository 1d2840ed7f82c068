//! Signal handlers that use connections, whatever their thread was doing.

use super::{programs, Site, PORT};
use std::process::Command;

#[test]
fn signal_handlers_use_connections_whatever_they_interrupt() {
    let site = Site::new(101);
    let program = site.folder.path().join("signals");
    let compiled = Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&program)
        .arg(programs().join("signals.c"))
        .status()
        .unwrap();
    assert!(compiled.success());
    let (program, ip) = (program.to_str().unwrap(), site.address(2));
    let (server, client) = ([program, "server", PORT], [program, "client", &ip, PORT]);
    site.compare(&server, &client);
    let short = ["env", "PD_PRELOAD=short"];
    site.compare(&[&short[..], &server].concat(), &[&short[..], &client].concat());
}
