//! Java's own channels and streams, and Netty.
use super::pair::Pair;
use super::site::{program, Site};
use std::process::Command;

/// Folder of Debian's Netty.
const JARS: &str = "/usr/share/java";

/// Compiles `name`.java with `jars`, and has it run.
fn pair(site: &Site, name: &str, port: u16, jars: &[&str]) -> Pair {
    let folder = site.folder("java").to_str().unwrap().to_owned();
    let jars = jars.iter().map(|jar| format!("{JARS}/netty-{jar}.jar"));
    let path = std::iter::once(folder.clone()).chain(jars).collect::<Vec<_>>().join(":");
    let source = program(&format!("{name}.java"));
    let compiled = Command::new("javac").args(["-cp", &path, "-d", &folder, &source]).status().unwrap();
    assert!(compiled.success());
    Pair::new(port, "java", &["java", "-Xmx256m", "-cp", &path, name])
}

fn channels(site: &Site) -> Pair {
    pair(site, "Echo", 8100, &[])
}

fn netty(site: &Site) -> Pair {
    let jars = ["transport", "buffer", "common", "codec", "codec-http", "handler", "resolver"];
    pair(site, "NettyEcho", 8300, &jars)
}

#[test]
#[ignore = "needs a JDK: make test-programs"]
fn java_channels_selectors_and_streams_get_what_they_send() {
    let site = Site::new(16);
    channels(&site).answers(&site, 30 << 20);
}

#[test]
#[ignore = "needs a JDK: make test-programs"]
fn a_killed_java_leaves_nothing() {
    let site = Site::new(17);
    channels(&site).killed_leaves_nothing(&site);
}

#[test]
#[ignore = "needs a JDK and Netty: make test-programs"]
fn a_netty_server_answers_a_netty_client() {
    let site = Site::new(40);
    netty(&site).answers(&site, 40 << 20);
}

#[test]
#[ignore = "needs a JDK and Netty: make test-programs"]
fn a_killed_netty_leaves_nothing() {
    let site = Site::new(41);
    netty(&site).killed_leaves_nothing(&site);
}
