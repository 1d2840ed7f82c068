//! Requests that the program makes and learns of later: POSIX aio.

use super::{Site, PORT};

#[test]
fn requests_of_posix_aio_answer_the_same_whatever_carries_the_bytes() {
    let site = Site::new(221);
    let program = site.compiled("aio", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
    let (server, client) = ([program, "server", PORT], [program, "client", &ip, PORT]);
    site.compare(&server, &client);
    // Such connections stay with their process.
    let short = ["env", "PD_PRELOAD=short"];
    site.compare(&[&short[..], &server].concat(), &[&short[..], &client, &["alone"]].concat());
}

/// Connections leave the fabric for such requests. Short ones cannot; only waits for their readiness are refused.
#[test]
fn requests_of_the_kernels_answer_the_same_whatever_carries_the_bytes() {
    let site = Site::new(222);
    let program = site.compiled("submit", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
    let (server, client) = ([program, "server", PORT], [program, "client", &ip, PORT]);
    site.compare_moving(&server, &client);
    let short = ["env", "PD_PRELOAD=short"];
    let client = [&short[..], &client, &["moving"]].concat();
    site.compare_moving(&[&short[..], &server].concat(), &client);
    let reason = "waits where the library does not see it";
    assert!(std::fs::read_to_string(site.log()).unwrap().contains(reason));
}

#[test]
fn a_process_takes_a_connection_from_another_one_whatever_carries_the_bytes() {
    let site = Site::new(223);
    let (server, client) = (site.compiled("submit", &[]), site.compiled("getfd", &[]));
    for way in ["function", "syscall"] {
        site.compare_moving(&[&server, "server", PORT], &[&client, &site.address(2), PORT, way]);
    }
}
