//! Connections that leave the fabric while bytes are on their way, and programs that make them.

use super::{programs, Site, With, PORT};
use std::path::PathBuf;
use std::process::Command;

fn compiled(site: &Site, name: &str) -> PathBuf {
    let program = site.folder.path().join(name);
    let status = Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&program)
        .arg(programs().join(format!("{name}.c")))
        .status()
        .unwrap();
    assert!(status.success());
    program
}

/// How often the library says so.
fn said(site: &Site, what: &str) -> usize {
    std::fs::read_to_string(site.log()).unwrap_or_default().matches(what).count()
}

#[test]
fn connections_leave_the_fabric_at_any_time_without_loss() {
    let site = Site::new(102);
    let program = compiled(&site, "aside");
    let (program, ip) = (program.to_str().unwrap(), site.address(2));
    let (server, client) = ([program, "server", PORT], [program, "client", &ip, PORT]);
    site.compare(&server, &client);
    let left = said(&site, "leaves the fabric: signals for each event");
    let followed = said(&site, "leaves the fabric: the peer has left");
    assert!(left > 100 && followed > 100, "{left} left, {followed} followed");
    // Those that stand alone stay.
    let short = ["env", "PD_PRELOAD=short"];
    let running = site.serve(With::Library, &[&short[..], &server].concat());
    let answer = site.answer(With::Library, &[&short[..], &client, &["40"]].concat());
    drop(running);
    assert!(answer.starts_with("40 rounds"), "{answer}");
}

#[test]
fn programs_that_wait_past_the_library_are_the_kernels() {
    let site = Site::new(103);
    let program = compiled(&site, "raw_waits");
    let (program, ip) = (program.to_str().unwrap(), site.address(2));
    let (server, client) = ([program, "server", PORT], [program, "client", &ip, PORT]);
    let ways: [(With, With); 5] = [
        (With::Nothing, With::Nothing),
        (With::Library, With::Library),
        (With::Mediated, With::Mediated),
        (With::Library, With::Nothing),
        (With::Nothing, With::Library),
    ];
    let answers = ways.map(|(server_has, client_has)| {
        let running = site.serve(server_has, &server);
        let answer = site.answer(client_has, &client);
        drop(running);
        answer
    });
    assert_eq!(answers[0].lines().count(), 4);
    answers.iter().for_each(|answer| assert_eq!(answer, &answers[0]));
    assert!(said(&site, "waits by an epoll instance that the library does not know") > 0);
    // A listener is not the fabric's alone either.
    let short = ["env", "PD_PRELOAD=short"];
    let running = site.serve(With::Library, &[&short[..], &server].concat());
    let answer = site.answer(With::Library, &client);
    drop(running);
    assert_eq!(answer, answers[0]);
}
