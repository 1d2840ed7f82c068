//! Files that one side sends, and the other splices on: the kernel carries such connections.

use super::{Site, With, PORT};

/// Sends a file by `sendfile`, as often as a connection asks for it.
const SERVER: &str = "
import os, socket, sys, tempfile
file = tempfile.TemporaryFile()
file.write(bytes(range(256)) * 4096)
listener = socket.create_server(('', int(sys.argv[1])))
print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    while connection.recv(1):
        at = 0
        while at < 1 << 20: at += os.sendfile(connection.fileno(), file.fileno(), at, (1 << 20) - at)
";

/// Asks for the file twelve times, and hands it on by a pipe, or receives it.
const CLIENT: &str = "
import hashlib, os, socket, sys
way, address, port = sys.argv[1:]
connection = socket.create_connection((address, port))
readable, writable = os.pipe()
ends = socket.socketpair()
seen = hashlib.md5()
for _ in range(12):
    connection.sendall(b'x')
    left = 1 << 20
    while left:
        if way == 'receives':
            part = connection.recv(left)
        else:
            moved = os.splice(connection.fileno(), writable, min(left, 1 << 16))
            part = b''
            while len(part) < moved:
                os.splice(readable, ends[0].fileno(), moved - len(part))
                part += ends[1].recv(moved, socket.MSG_DONTWAIT)
        seen.update(part)
        left -= len(part)
print(seen.hexdigest())
";

#[test]
fn files_that_are_spliced_on_are_the_kernels_to_carry() {
    let site = Site::new(115);
    let mut expected = None;
    for (has, way, leaves) in [
        (With::Nothing, "receives", false),
        (With::Library, "receives", false),
        (With::Library, "splices", true),
        // The policy has the driver move the bytes.
        (With::Mediated, "splices", false),
    ] {
        let before = site.connections();
        let reason = || {
            let all = site.json(&["ls", "--all", "--json"])["kernel"]["connections_by_reason"].take();
            all["forwarded"].as_u64().unwrap_or(0)
        };
        // Counts of containers that have ended may still be there.
        let reasons = reason();
        let _server = site.serve(has, &["python3", "-c", SERVER, PORT]);
        let answer = site.answer(has, &["python3", "-c", CLIENT, way, &site.address(2), PORT]);
        assert_eq!(&answer, expected.get_or_insert_with(|| answer.clone()), "{has:?}, {way}");
        assert_eq!(site.connections() - before, u64::from(has != With::Nothing), "{has:?}");
        assert_eq!(reason() > reasons, leaves, "{has:?}, {way}");
    }
}
