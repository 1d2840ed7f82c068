//! Connections opened and accepted many at a time.
use pd_client::{Listener, ListenerOptions, SendBuffer, Stream};
use pd_tests::TestDriver;
use std::collections::HashSet;

fn numbered(stream: &Stream, number: u64) {
    let mut buffer = SendBuffer::new(8).unwrap();
    buffer.wait_mut().unwrap().copy_from_slice(&number.to_le_bytes());
    stream.send(&buffer, ..).unwrap();
}

fn number(stream: &Stream) -> u64 {
    let mut bytes = Vec::new();
    while bytes.len() < 8 {
        let part = stream.recv(8 - bytes.len()).unwrap();
        assert!(!part.is_empty());
        bytes.extend_from_slice(&part);
    }
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// A single test and driver: the process has one attachment.
#[test]
fn many_connections_at_a_time() {
    let driver = TestDriver::new();
    driver.attach_here();
    let any = "127.0.0.1:0".parse().unwrap();
    let listen = |backlog| {
        Listener::bind_with(any, ListenerOptions { backlog, ..ListenerOptions::default() }).unwrap()
    };

    // Each reaches its own accepted socket, in order.
    let listener = listen(500);
    let to = listener.local_addr().unwrap();
    let streams = Stream::connect_several(to, 300).unwrap();
    let ports: HashSet<u16> = streams.iter().map(|stream| stream.local_addr().unwrap().port()).collect();
    assert_eq!(ports.len(), 300);
    for (stream, number) in streams.iter().zip(0..) {
        numbered(stream, number);
    }
    let accepted: Vec<Stream> = (0..300).map(|_| listener.accept().unwrap()).collect();
    for (expected, (ours, theirs)) in (0..).zip(streams.iter().zip(&accepted)) {
        assert_eq!(theirs.peer_addr().unwrap(), ours.local_addr().unwrap());
        assert_eq!(number(theirs), expected);
        numbered(theirs, expected + 1000);
        assert_eq!(number(ours), expected + 1000);
    }
    drop((streams, accepted));

    // The socket of another thread: it was handed over with others to the first that accepted.
    let streams = Stream::connect_several(to, 5).unwrap();
    let first = listener.accept().unwrap();
    let others = std::thread::scope(|scope| {
        let accept = || (0..2).map(|_| listener.accept().unwrap()).collect::<Vec<_>>();
        [scope.spawn(accept), scope.spawn(accept)].map(|thread| thread.join().unwrap())
    });
    for (stream, expected) in streams.iter().zip(0..) {
        numbered(stream, expected);
    }
    let mut numbers: Vec<u64> = others.iter().flatten().chain([&first]).map(number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    drop((streams, first, others));

    // A closing listener closes the connections that nobody has accepted, handed over or not.
    let streams = Stream::connect_several(to, 100).unwrap();
    drop(listener.accept().unwrap());
    drop(listener);
    for stream in &streams[1..] {
        let end = stream.recv(1).map(|part| part.len());
        assert!(matches!(end, Ok(0)) || end.is_err_and(|error| error.errno() == libc::ECONNRESET));
    }
    drop(streams);

    // All or none: the backlog is too small for all.
    let listener = listen(10);
    let to = listener.local_addr().unwrap();
    let error = Stream::connect_several(to, 11).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED);
    assert!(Stream::connect_several(to, 0).unwrap().is_empty());
    drop(listener);
    let error = Stream::connect_several(to, 3).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED);

    // Only connections on stock are left.
    let report = driver.wait_for("all connections ended", |report| report.connections.is_empty());
    let sockets: usize = report.clients.iter().map(|client| client.sockets).sum();
    assert!(sockets <= 15, "{sockets} sockets");
}
