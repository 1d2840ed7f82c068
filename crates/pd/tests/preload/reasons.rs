//! `pd ls --all`: whatever is on the kernel is there with its reason.

use super::compiled::compiled;
use super::{Site, With, PORT};
use serde_json::Value;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

/// Accepts on a port, echoes, and keeps all connections.
const SERVER: &str = "
import socket, sys, threading
listener = socket.create_server(('', int(sys.argv[1])))
print('ready', flush=True)
def echo(connection):
    while part := connection.recv(1 << 16): connection.sendall(part)
    threading.Event().wait()
while True:
    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
";

/// Connects to each address, says something, with an urgent byte on the first, and keeps all connections. `user`: becomes
/// that user before.
const CLIENT: &str = "
import encodings.idna, os, socket, sys, threading
user, addresses = int(sys.argv[1]), sys.argv[2:]
if user: os.setgroups([]); os.setgid(user); os.setuid(user)
made = [socket.create_connection(address.split(':')) for address in addresses]
for one in made: one.sendall(b'x'); one.recv(1)
if not user: made[0].send(b'!', socket.MSG_OOB); made[0].sendall(b'y'); made[0].recv(1)
print('ready', flush=True)
threading.Event().wait()
";

/// Listens, without any library.
const STATIC: &str = "
#include <netinet/in.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_in any = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&any, sizeof any) || listen(fd, 1)) return 1;
    puts(\"ready\");
    fflush(stdout);
    for (;;) pause();
}
";

fn static_program(site: &Site) -> String {
    let source = site.folder.path().join("static.c");
    std::fs::write(&source, STATIC).unwrap();
    compiled(&source, site.folder.path(), &["-static"]).to_str().unwrap().to_owned()
}

/// Returns the reasons of the container of this name in a list of `pd ls --all`.
fn reasons<'a>(kernel: &'a Value, list: &str, container: &str) -> Vec<&'a Value> {
    let all = kernel[list].as_array().unwrap().iter();
    all.filter(|one| one["container"] == container).collect()
}

/// Makes the policy refuse processes of user 65534.
fn deny_nobody(site: &Site) {
    let policy = site.folder.path().join("deny.toml");
    std::fs::write(&policy, "[attach]\ndeny = [{ uid = 65534 }]\n").unwrap();
    let mut apply = Command::new(env!("CARGO_BIN_EXE_pd"));
    apply.args(["policy", "apply"]).arg(policy);
    assert!(apply
        .arg("--admin-socket")
        .arg(site.folder.path().join("admin.sock"))
        .status()
        .unwrap()
        .success());
}

#[test]
fn what_is_on_the_kernel_is_listed_with_its_reason() {
    let site = Site::new(130);
    deny_nobody(&site);
    let name = |host: u8| format!("t130-{host}");
    let program = static_program(&site);
    let at = |host: u8, port: &str| format!("{}:{port}", site.address(host));
    let _server = site.serve(With::Library, &["python3", "-c", SERVER, PORT]);
    let _without = site.serve_at(4, With::Nothing, &["python3", "-c", SERVER, "7301"]);
    let _static = site.serve_at(5, With::Library, &[&program]);
    // The host has the bridge's address, and nobody there is attached.
    let host = TcpListener::bind((format!("10.97.{}.1", site.third), 7302)).unwrap();
    std::thread::spawn(move || {
        let (mut one, _) = host.accept().unwrap();
        std::io::copy(&mut one.try_clone().unwrap(), &mut one).unwrap();
    });
    let addresses = [at(2, PORT), at(4, "7301"), at(1, "7302")];
    let client = [&["python3", "-c", CLIENT, "0"][..], &addresses.each_ref().map(String::as_str)].concat();
    let _client = site.serve_at(3, With::Library, &client);
    let _other = site.serve_at(6, With::Library, &["python3", "-c", CLIENT, "65534", &addresses[0]]);

    let end = Instant::now() + Duration::from_secs(20);
    let kernel = loop {
        let kernel = site.json(&["ls", "--all", "--json"])["kernel"].take();
        // The server follows when it receives.
        let followed = |one: &&Value| one["label"] == "peer_left";
        if reasons(&kernel, "connections", &name(2)).iter().any(followed) {
            break kernel;
        }
        assert!(Instant::now() < end, "{kernel:#}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let process = |host: u8| {
        let [one] = reasons(&kernel, "processes", &name(host))[..] else { panic!("{host}: {kernel:#}") };
        one["reason"].as_str().unwrap().to_owned()
    };
    assert!(process(4).contains("LD_PRELOAD does not name it"), "{}", process(4));
    assert!(process(5).contains("is a static program"), "{}", process(5));
    assert!(
        process(6).contains("Permission denied") && process(6).contains("[attach] deny"),
        "{}",
        process(6)
    );
    assert!(
        reasons(&kernel, "processes", &name(2)).is_empty()
            && reasons(&kernel, "processes", &name(3)).is_empty()
    );
    let connections = |host: u8| {
        let mut all: Vec<_> = reasons(&kernel, "connections", &name(host))
            .iter()
            .map(|one| {
                (one["peer"].as_str().unwrap().to_owned(), one["label"].as_str().unwrap_or("").to_owned())
            })
            .collect();
        all.sort();
        all
    };
    let [fabric, without, unknown] = addresses;
    assert_eq!(
        connections(3),
        [(unknown, "peer_unknown"), (fabric, "urgent_bytes"), (without, "peer_without_library")]
            .map(|(peer, label)| (peer, label.to_owned())),
        "{kernel:#}"
    );
    // Of the two that were accepted one began on the fabric.
    let labels: Vec<_> = connections(2).into_iter().map(|(_, label)| label).collect();
    assert!(
        labels.contains(&"peer_left".to_owned()) && labels.contains(&"peer_plain".to_owned()),
        "{labels:?}"
    );
    assert_eq!(kernel["connections_by_reason"]["urgent_bytes"], 1);
    let log = std::fs::read_to_string(site.log()).unwrap();
    assert!(log.contains("leaves the fabric: urgent bytes"), "{log}");
}

/// Answers each message with a byte, whatever comes with it.
const UNIX_SERVER: &str = "
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print('ready', flush=True)
connection = listener.accept()[0]
while connection.recvmsg(10, 100)[0]: connection.sendall(b'.')
";

/// Passes a descriptor on its first connection; has another to an abstract name, and a pair.
const UNIX_CLIENT: &str = "
import socket, sys, threading
made = socket.socket(socket.AF_UNIX)
made.connect(sys.argv[1])
made.sendall(b'x'); made.recv(1)
socket.send_fds(made, [b'y'], [0]); made.recv(1)
abstract, other, pair = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX), socket.socketpair()
abstract.bind('\\0pd-reasons'); abstract.listen(); other.connect('\\0pd-reasons'); kept = abstract.accept()
print('ready', flush=True)
threading.Event().wait()
";

#[test]
fn unix_connections_on_the_kernel_are_listed_with_their_files() {
    let site = Site::new(134);
    let path = site.folder.path().join("unix").to_str().unwrap().to_owned();
    let _server = site.serve(With::Library, &["python3", "-c", UNIX_SERVER, &path]);
    let _client = site.serve_at(3, With::Library, &["python3", "-c", UNIX_CLIENT, &path]);
    let kernel = site.json(&["ls", "--all", "--json"])["kernel"].take();
    let ends = |host: u8| -> Vec<_> {
        let all = reasons(&kernel, "connections", &format!("t134-{host}"));
        all.iter().map(|one| (one["local"].clone(), one["peer"].clone(), one["label"].clone())).collect()
    };
    let (server, client) = (ends(2), ends(3));
    assert_eq!(server, [(path.clone().into(), "".into(), "peer_left".into())], "{kernel:#}");
    assert!(client.contains(&("".into(), path.into(), "control_data".into())), "{kernel:#}");
    assert!(client.contains(&("".into(), "@pd-reasons".into(), "address".into())), "{kernel:#}");
    // The accepted end of the abstract name, and no pair.
    assert_eq!(client.len(), 3, "{kernel:#}");
}

/// The line has the kernel's error, and no advice to start a driver.
#[test]
fn a_program_that_may_not_attach_says_why_once() {
    let site = Site::new(131);
    let ip = site.address(2);
    let _server = site.serve(With::Library, &["python3", "-c", SERVER, PORT]);
    deny_nobody(&site);
    let several =
        "import encodings.idna, os, socket, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n\
                   for _ in range(20): socket.create_connection((sys.argv[1], sys.argv[2]))";
    let mut run = site.run(3, With::Library, &["python3", "-c", several, &ip, PORT]);
    let output = run.env("PD_PRELOAD_LOG", "-").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("connections are the kernel's for now").count(), 1, "{said}");
    assert!(said.contains("[attach] deny of the policy names it"), "{said}");
    assert!(!said.contains("pd driver"), "{said}");
}
