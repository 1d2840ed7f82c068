//! Connections that leave the fabric while bytes are on their way, and programs that make them.

use super::{Site, With, PORT};

/// Returns how often the library's log has a text.
fn said(site: &Site, what: &str) -> usize {
    std::fs::read_to_string(site.log()).unwrap_or_default().matches(what).count()
}

#[test]
fn connections_leave_the_fabric_at_any_time_without_loss() {
    let site = Site::new(106);
    let program = site.compiled("aside", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
    let (server, client) = ([program, "server", PORT], [program, "client", &ip, PORT]);
    site.compare(&server, &client);
    let left = said(&site, "leaves the fabric: signals for each event");
    let followed = said(&site, "leaves the fabric: the peer has left");
    assert!(left > 20 && followed > 20, "{left} left, {followed} followed");
    // Connections that stand alone stay on the fabric.
    let short = ["env", "PD_PRELOAD=short"];
    let running = site.serve(With::Library, &[&short[..], &server].concat());
    let answer = site.answer(With::Library, &[&short[..], &client, &["40"]].concat());
    drop(running);
    assert!(answer.starts_with("40 rounds"), "{answer}");
}

#[test]
fn programs_that_wait_past_the_library_are_the_kernels() {
    let site = Site::new(107);
    let program = site.compiled("raw_waits", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
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

/// Echoes, as long as something comes.
const ECHO: &str = "
import socket, sys
listener = socket.create_server(('', int(sys.argv[1])))
print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    while part := connection.recv(1 << 16): connection.sendall(part)
";

/// Asks for zero-copy sends, sends without and with them, and learns when its memory is free.
const ZERO_COPY: &str = "
import select, socket, sys
SO_ZEROCOPY, MSG_ZEROCOPY, MSG_ERRQUEUE = 60, 0x4000000, 0x2000
made = socket.socket()
made.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
made.connect((sys.argv[1], int(sys.argv[2])))
def echoed(count):
    got = b''
    while len(got) < count: got += made.recv(count - len(got))
    return got
for round in range(3):
    made.sendall(bytes([round]) * 9000)
    print(echoed(9000) == bytes([round]) * 9000)
for round in range(3):
    sent = made.send(bytes([round + 9]) * 30000, MSG_ZEROCOPY)
    print(echoed(sent) == bytes([round + 9]) * sent)
    poll = select.poll()
    poll.register(made, 0)
    print(bool(poll.poll(5000)[0][1] & select.POLLERR))
    data, control, flags, _ = made.recvmsg(0, 512, MSG_ERRQUEUE)
    first, last = (int.from_bytes(control[0][2][at:at + 4], 'little') for at in (8, 12))
    print(first, last)
";

#[test]
fn zero_copy_sends_are_the_kernels() {
    let site = Site::new(108);
    let ip = site.address(2);
    site.compare(&["python3", "-c", ECHO, PORT], &["python3", "-c", ZERO_COPY, &ip, PORT]);
    assert!(said(&site, "leaves the fabric: zero-copy sends") > 0);
}

/// Neither end learns of bytes that are not the program's, and no unread bytes are lost.
#[test]
fn nothing_tells_where_a_connection_left_the_fabric() {
    let site = Site::new(140);
    let program = site.compiled("boundary", &[]);
    let path = site.folder.path().join("boundary.sock");
    let command = [program.as_str(), path.to_str().unwrap()];
    let expected = site.answer(With::Nothing, &command);
    assert!(expected.lines().count() > 30, "{expected}");
    for has in [With::Library, With::Mediated] {
        assert_eq!(site.answer(has, &command), expected, "{has:?}");
    }
    assert!(said(&site, "leaves the fabric: an option of the kernel's") > 10);
}

/// A thread in `poll` or `select` is told of what comes by the kernel, whichever thread has followed the peer, and at whichever instant.
#[test]
fn a_thread_that_polls_goes_on_when_another_one_has_left() {
    let site = Site::new(144);
    let program = site.compiled("left_in_poll", &[]);
    let command = [program.as_str(), "300"];
    let expected = "poll: 0 lost, 0 wrong\nselect: 0 lost, 0 wrong\n";
    for has in [With::Nothing, With::Library, With::Mediated] {
        assert_eq!(site.answer(has, &command), expected, "{has:?}");
    }
    assert!(said(&site, "leaves the fabric: the peer has left") > 10);
}
