//! Programs that give up rights, and waits with masks of signals.

use super::{Site, With, PORT};

#[test]
fn programs_that_give_up_rights_are_served_whatever_carries_the_bytes() {
    let site = Site::new(161);
    let program = site.compiled("sandbox", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
    site.compare(&[program, "server", PORT], &[program, "client", &ip, PORT]);
}

#[test]
fn waits_with_masks_answer_the_same_whatever_carries_the_bytes() {
    let site = Site::new(162);
    let program = site.compiled("masks", &[]);
    let (program, ip) = (program.as_str(), site.address(2));
    let answers = [With::Nothing, With::Library, With::Mediated].map(|has| {
        let running = site.serve(has, &[program, "server", PORT]);
        let answer = site.answer(has, &[program, "client", &ip, PORT]);
        drop(running);
        answer
    });
    assert!(site.connections() > 0);
    answers.iter().skip(1).for_each(|answer| assert_eq!(answer, &answers[0]));
}

/// A server that changes its root for a connection, where no driver is to be found, and then has a process receive and another one send, as
/// rsync's daemon does with files that come.
#[test]
fn processes_that_share_a_connection_in_another_root_go_on_with_it() {
    const SERVER: &str = "
import os, socket, sys
listener = socket.create_server(('', int(sys.argv[1])))
print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    if os.fork() == 0:
        if connection.recv(4, socket.MSG_WAITALL) != b'root': os._exit(1)
        os.chroot(sys.argv[2])
        os.chdir('/')
        if connection.recv(3, socket.MSG_WAITALL) != b'on\\n': os._exit(1)
        connection.sendall(b'go on')
        receives, told = os.pipe()
        if os.fork() == 0:
            count = 0
            while got := connection.recv(65536): count += sum(got)
            os.write(told, str(count).encode())
            os._exit(0)
        os.close(told)
        connection.sendall(b'.' * 100000)
        connection.sendall(os.read(receives, 100))
        os._exit(0)
    connection.close()
";
    const CLIENT: &str = "
import socket, sys, threading
for length in [3, 3000, 3000000]:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    connection.sendall(b'root')
    connection.sendall(b'on\\n')
    print(connection.recv(5, socket.MSG_WAITALL), flush=True)
    sender = threading.Thread(target=lambda: (connection.sendall(b'ab' * length), connection.shutdown(socket.SHUT_WR)))
    sender.start()
    answer = b''.join(iter(lambda: connection.recv(65536), b''))
    sender.join()
    print(len(answer), answer[99990:], flush=True)
";
    let mut site = Site::new(191);
    let ip = site.address(2);
    let root = site.folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let server = ["python3", "-c", SERVER, PORT, root.to_str().unwrap()];
    for preload in ["--preload=all", "--preload"] {
        site.preload = preload;
        site.compare_moving(&server, &["python3", "-c", CLIENT, &ip, PORT]);
    }
}
