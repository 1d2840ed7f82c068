//! Signal handlers that use connections, whatever their thread was doing.

use super::{Site, PORT};

#[test]
fn signal_handlers_use_connections_whatever_they_interrupt() {
    let site = Site::new(101);
    let program = site.compiled("signals", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
    let (server, client) = ([program, "server", PORT], [program, "client", &ip, PORT]);
    site.compare(&server, &client);
    let short = ["env", "PD_PRELOAD=short"];
    site.compare(&[&short[..], &server].concat(), &[&short[..], &client].concat());
}
