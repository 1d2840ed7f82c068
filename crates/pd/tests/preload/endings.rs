//! Ends of connections that threads and the kernel's calls bring about.

use super::{Site, With, PORT};

/// Equipment, and whether connections are short.
const EVERY_WAY: [(With, bool); 3] = [(With::Library, false), (With::Mediated, false), (With::Library, true)];

/// Compares a program that has both ends in the given ways, with or without short connections. Returns nothing: panics on a difference, or if
/// fewer than `made_min` connections were on the fabric each time.
fn compare_alone(site: &Site, command: &[&str], ways: &[(With, bool)], made_min: u64) {
    let expected = site.answer(With::Nothing, command);
    let short = [&["env", "PD_PRELOAD=short"], command].concat();
    for &(has, is_short) in ways {
        let before = site.connections();
        let answer = site.answer(has, if is_short { &short } else { command });
        let what = if is_short { "short connections" } else { "" };
        assert!(answer == expected, "{has:?} {command:?} {what}\n{}", super::differing(&answer, &expected));
        let made = site.connections() - before;
        assert!(made >= made_min, "{made} on the fabric, {has:?} {what}");
    }
}

/// [`compare_alone`] of a program by its source's name, which gets the path of a socket and `arguments`. On both paths, and with short connections.
pub(super) fn compare_in_every_way(site: &Site, name: &str, arguments: &[&str], made_min: u64) {
    let (program, path) = (site.compiled(name, &[]), site.folder.path().join("socket"));
    let command = [&[program.as_str(), path.to_str().unwrap()], arguments].concat();
    compare_alone(site, &command, &EVERY_WAY, made_min);
}

/// Omits short connections: their sockets have no error of their own afterwards.
#[test]
fn connections_that_are_undone_are_reset_and_their_sockets_used_again() {
    let site = Site::new(224);
    let (program, path) = (site.compiled("undo", &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap()];
    compare_alone(&site, &command, &[(With::Library, false), (With::Mediated, false)], 20);
}

#[test]
fn a_call_goes_on_when_another_thread_closes_its_descriptor() {
    let site = Site::new(225);
    compare_in_every_way(&site, "outlives", &[], 40);
}

#[test]
fn a_thread_with_descriptors_of_its_own_ends_none_of_the_others() {
    let site = Site::new(246);
    compare_in_every_way(&site, "second_table", &[], 2);
}

/// Calls of `poll`, `select`, `epoll_wait` and `accept`.
#[test]
fn a_wait_goes_on_when_another_thread_closes_its_descriptor() {
    let site = Site::new(229);
    compare_in_every_way(&site, "waits_beside", &[], 380);
}

/// The fabric's end of a listener that an accept or poll is opening then ends with the listener.
#[test]
fn a_listener_that_ends_beside_an_accept_leaves_no_connection_unanswered() {
    let site = Site::new(234);
    let program = site.compiled("accept_beside", &[]);
    let whole = [(With::Library, false), (With::Library, true)];
    compare_alone(&site, &[&program, "40"], &whole, 100);
}

/// The descriptor may be another file's by the time that the connection is there.
#[test]
fn a_connection_that_is_closed_beside_its_connect_ends() {
    let site = Site::new(235);
    compare_in_every_way(&site, "connect_beside", &["300"], 10);
}

/// The driver would end the connection with the number that is closed.
#[test]
fn a_descriptor_that_is_closed_beside_its_duplication_goes_on_as_the_duplicate() {
    let site = Site::new(236);
    compare_in_every_way(&site, "dup_beside", &["100"], 400);
}

/// Every call returns, whatever threads do with numbers that they share.
#[test]
fn threads_race_for_numbers() {
    let site = Site::new(237);
    compare_in_every_way(&site, "number_races", &["40000"], 4);
}

/// Closes and shuts down at random moments of a send, also where the connection goes on in the kernel for want of memory, or because a third thread
/// has one of its ends leave then.
#[test]
fn a_close_beside_a_send_loses_nothing_at_any_moment() {
    let site = Site::new(226);
    let (program, path) = (site.compiled("close_beside", &[]), site.folder.path().join("socket"));
    let command = [program.as_str(), path.to_str().unwrap(), "24"];
    compare_alone(&site, &command, &EVERY_WAY, 80);
    compare_alone(&site, &command, &[(With::Scarce, false)], 40);
}

/// The driver may take a send before it learns of the close. The reset that TCP answers with is told all the same.
#[test]
fn a_send_just_after_the_peers_close_has_it_reset_the_connection() {
    let site = Site::new(230);
    let program = site.compiled("late_send", &[]);
    let whole =
        [(With::Library, false), (With::Mediated, false), (With::Library, true), (With::Mediated, true)];
    compare_alone(&site, &[&program], &whole, 60);
}

/// A handler may close the descriptor of the call that it interrupts, give the number to another file, or leave by a jump.
#[test]
fn a_handler_may_end_a_call_in_any_way() {
    let site = Site::new(227);
    compare_in_every_way(&site, "jumps", &[], 24);
}

/// A mark of the peer's that came after the close would have the kernel reset the connection.
#[test]
fn an_end_that_leaves_and_is_closed_at_once_loses_nothing() {
    let site = Site::new(228);
    compare_in_every_way(&site, "leaves_last", &[], 8);
}

/// The kernel tells of an end before the bytes in front of it are read, also those on the fabric.
#[test]
fn an_end_behind_a_departure_is_told_before_the_bytes_are_read() {
    let site = Site::new(238);
    compare_in_every_way(&site, "ends_behind", &[], 400);
}

/// Bytes that no process has read reset a connection, whoever closes it last: a child that refuses its client before it has read a word, as
/// nrpe's, or the parent of one that has read a part.
#[test]
fn the_last_of_several_processes_resets_what_nobody_has_read() {
    const SERVER: &str = "
import os, select, socket, sys
listener = socket.create_server(('', int(sys.argv[1])))
print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    way = connection.recv(1)
    if way != b'e': select.select([connection], [], [])
    goes, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(goes, 1)
        if way in b'pe': connection.recv(2)
        if way in b'ce': connection.close()
        os._exit(0)
    os.close(goes)
    if way == b'p':
        os.close(go)
        os.waitpid(child, 0)
        connection.close()
    else:
        connection.close()
        os.close(go)
        os.waitpid(child, 0)
";
    const CLIENT: &str = "
import socket, sys
for way in 'cpecpe':
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    connection.sendall(way.encode())
    connection.sendall(b'ab' if way == 'e' else b'abcd')
    try: print(way, connection.recv(1), flush=True)
    except OSError as error: print(way, error, flush=True)
";
    let mut site = Site::new(192);
    let ip = site.address(2);
    for preload in ["--preload=all", "--preload"] {
        site.preload = preload;
        site.compare_moving(&["python3", "-c", SERVER, PORT], &["python3", "-c", CLIENT, &ip, PORT]);
    }
}

/// A process is killed that went on in the kernel by its own doing, as its peer has not. The peer's mark would find a socket that nobody
/// holds: the kernel would answer it with a reset, and drop what the process has sent.
#[test]
fn a_process_that_is_killed_beside_the_fabric_has_sent_what_it_has_sent() {
    const SERVER: &str = "
import socket, sys
listener = socket.create_server(('', int(sys.argv[1])))
print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    end = listener.accept()[0]
    total = int(b''.join(iter(lambda: end.recv(100), b'')))
    end.close()
    again = listener.accept()[0]
    count = 0
    try:
        while got := connection.recv(65536): count += len(got)
        how = 'in order'
    except OSError as error: how = str(error)
    again.sendall(f'{total - count} missing, ended {how}'.encode())
    again.close()
    connection.close()
";
    const CLIENT: &str = "
import fcntl, os, signal, socket, sys
address = sys.argv[1], int(sys.argv[2])
for _ in range(3):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        connection = socket.create_connection(address)
        connection.sendall(b'begin')
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        connection.setblocking(False)
        count = 5
        try:
            while True: count += connection.send(bytes(100000))
        except BlockingIOError: pass
        os.write(tell, str(count).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(tell)
    os.waitpid(child, 0)
    end = socket.create_connection(address)
    end.sendall(os.read(told, 100))
    end.close()
    print(socket.create_connection(address).recv(200, socket.MSG_WAITALL).decode(), flush=True)
";
    let mut site = Site::new(193);
    let ip = site.address(2);
    for preload in ["--preload=all", "--preload"] {
        site.preload = preload;
        site.compare_moving(&["python3", "-c", SERVER, PORT], &["python3", "-c", CLIENT, &ip, PORT]);
    }
}
