use super::site::{program, Running, Site, CLIENT, SERVER};
use std::process::Command;

/// Compiles the program; returns the folder of its classes.
fn compile(site: &Site) -> String {
    let folder = site.folder("java").to_str().unwrap().to_owned();
    let compiled = Command::new("javac").args(["-d", &folder, &program("Echo.java")]).status().unwrap();
    assert!(compiled.success());
    folder
}

fn serve(site: &Site, library: bool, classes: &str) -> Running {
    site.serve(SERVER, library, 8100, &["java", "-Xmx256m", "-cp", classes, "Echo", "server"])
}

#[test]
#[ignore = "needs a JDK: make test-programs"]
fn java_channels_selectors_and_streams_get_what_they_send() {
    let site = Site::new(16);
    let classes = compile(&site);
    site.compare(30 << 20, |site, library| {
        let server = serve(site, library, &classes);
        let command = ["java", "-Xmx256m", "-cp", &classes, "Echo", "client", &site.server()];
        let answer = site.run(CLIENT, library, &command);
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs a JDK: make test-programs"]
fn a_killed_java_leaves_nothing() {
    let site = Site::new(17);
    let classes = compile(&site);
    for victim in ["server", "client"] {
        let before = site.delivered();
        let server = serve(&site, true, &classes);
        let command = ["java", "-Xmx256m", "-cp", &classes, "Echo", "forever", &site.server()];
        let mut client = site.start(CLIENT, true, &command);
        site.wait_for_bytes(before, 1 << 20);
        if victim == "server" {
            server.kill("java");
            assert!(!client.wait(), "the client has not noticed");
        } else {
            client.kill("java");
            site.wait_for_ends();
        }
        drop((server, client));
        site.expect_nothing_left();
    }
}
