//! The short-connection mode: connections that the kernel knows nothing of.

use super::{programs, terminate, Server, Site, With, PORT, TRIES};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Returns the command of a program in the short mode, which matters if it has the library.
fn short<'a>(program: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    let mut command = vec!["env", "PD_PRELOAD=short", "python3", program];
    command.extend(arguments);
    command
}

fn program() -> String {
    programs().join("short.py").to_str().unwrap().to_owned()
}

#[test]
fn short_connections_answer_the_same_whatever_carries_the_bytes() {
    let (site, program) = (Site::new(73), program());
    site.compare(&short(&program, &["server", PORT]), &short(&program, &["client", "10.97.73.2", PORT]));
    let [kernel, fabric] =
        [With::Nothing, With::Library].map(|has| site.answer(has, &short(&program, &["own"])));
    assert_eq!(kernel, fabric);
}

/// The kernel's sockets behind ended connections are reused for the next ones, without any visible difference.
#[test]
fn a_socket_has_nothing_of_an_earlier_one() {
    let (site, program) = (Site::new(85), programs().join("again.py").to_str().unwrap().to_owned());
    let kernel = site.answer(With::Nothing, &short(&program, &[]));
    assert_eq!(site.connections(), 0);
    assert_eq!(kernel, site.answer(With::Library, &short(&program, &[])));
    // With the first of each of four listeners, which is the kernel's as well. A busy machine leaves more of them to the kernel.
    let connections = site.connections();
    assert!((46..=88 + 4).contains(&connections), "{connections}");
}

#[test]
fn short_connections_are_not_the_kernels_and_kernel_peers_have_the_same_port() {
    let (site, program) = (Site::new(74), program());
    let client = short(&program, &["client", "10.97.74.2", PORT]);
    // A server that gets no core leaves more of them to the kernel.
    for tries_left in (0..TRIES).rev() {
        let server = site.serve(With::Library, &short(&program, &["server", PORT]));
        let before = site.connections();
        // Two clients at the same time, with the library and without.
        let [with, without] = [(3, With::Library), (4, With::Nothing)].map(|(host, has)| {
            site.run(host, has, &client).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let outputs = [with, without].map(|child| child.wait_with_output().unwrap());
        drop(server);
        let answers = outputs
            .each_ref()
            .map(|o| String::from_utf8_lossy(&o.stdout).replace("10.97.74.4", "10.97.74.3"));
        assert_eq!(answers[0], answers[1]);
        assert!(!answers[0].is_empty());
        let opened =
            outputs.each_ref().map(|o| String::from_utf8_lossy(&o.stderr).trim().parse::<u64>().unwrap());
        assert!(opened[1] > 450, "{opened:?}");
        let made = site.connections() - before;
        // Descriptors before the server's threads and processes first accept: for a bound socket, for refused connections.
        if made > 450 && opened[0] < 50 {
            break;
        }
        assert!(tries_left > 0, "{made} made, {opened:?}");
    }
}

/// Processes that wait for a listener and leave accepting to a child, and workers that serve one connection after the other.
#[test]
fn no_connection_waits_for_a_process_that_does_not_accept() {
    let (site, program) = (Site::new(89), program());
    site.compare(&short(&program, &["workers", PORT]), &short(&program, &["visit", "10.97.89.2", PORT]));
}

/// Processes that share a listener have kernel peers and fabric peers at the same time, and each is accepted by one.
#[test]
fn processes_that_share_a_listener_accept_both_kinds_of_peers() {
    let (site, program) = (Site::new(79), program());
    for tries_left in (0..TRIES).rev() {
        let before = site.connections();
        let _server = site.serve(With::Library, &short(&program, &["server", PORT]));
        let answer = site.answer(With::Library, &short(&program, &["crowd", "10.97.79.2", PORT]));
        assert_eq!(answer, "1200 1\n");
        // But those before the server's processes first accept, which a busy machine makes more.
        let made = site.connections() - before;
        assert!(made <= 600, "{made}");
        if made >= 550 {
            break;
        }
        assert!(tries_left > 0, "{made}");
    }
}

#[test]
fn a_killed_server_ends_short_connections_and_frees_the_port() {
    let (site, program) = (Site::new(75), program());
    let server = site.serve(With::Library, &short(&program, &["server", PORT]));
    let mut client = site.run(3, With::Library, &short(&program, &["hold", "10.97.75.2", PORT]));
    let mut client = client.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "held");
    let mut server = std::mem::ManuallyDrop::new(server);
    let Server(child) = &mut *server;
    child.kill().unwrap();
    child.wait().unwrap();
    let end = lines.next().unwrap().unwrap();
    assert!(end.starts_with("ended"), "{end}");
    assert!(client.wait().unwrap().success());
    let _again = site.serve(With::Library, &short(&program, &["server", PORT]));
    // The first connection stays with the process that made it; later ones go from process to process. A server that has not waited yet listens on
    // the kernel alone.
    let fork = || site.answer(With::Library, &short(&program, &["fork", "10.97.75.2", PORT]));
    let answers = std::iter::repeat_with(fork).take(TRIES as usize);
    let answer = answers.inspect(|answer| println!("{answer}")).find(|answer| !answer.starts_with("child 1"));
    assert_eq!(answer.as_deref(), Some("child ENOTCONN\nparent 64\nchild 64\nparent b''\n"));
    terminate(&mut client);
}
