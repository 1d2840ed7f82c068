//! The driver stops and starts again: open connections break, listeners come back by themselves.
use pd_client::{Listener, SendBuffer, Stream};
use pd_tests::TestDriver;
use std::thread;
use std::time::Duration;

#[test]
fn listeners_survive_a_restart() {
    let mut driver = TestDriver::new();
    driver.attach_here();
    // No port that the kernel gives out: while the driver is away, others' connections may come to the port.
    let addr = "127.0.0.1:7263".parse().unwrap();
    let listener = Listener::bind(addr).unwrap();
    let stream = Stream::connect(addr).unwrap();
    let accepted = listener.accept().unwrap();
    let buffer = SendBuffer::new(100).unwrap();
    stream.send(&buffer, ..).unwrap();
    assert_eq!(accepted.recv(100).unwrap().len(), 100);

    let waiting = thread::spawn(move || (accepted.recv(1).map(|r| r.len()), accepted));
    thread::sleep(Duration::from_millis(100));
    driver.stop();
    let (broken, _accepted) = waiting.join().unwrap();
    assert_eq!(broken.unwrap_err().errno(), libc::ECONNRESET);
    assert_eq!(stream.send(&buffer, ..).unwrap_err().errno(), libc::ECONNRESET);

    let server = thread::spawn(move || {
        let accepted = listener.accept().unwrap();
        let received = accepted.recv(5).unwrap();
        received.to_vec()
    });
    driver.start();
    let stream = loop {
        match Stream::connect(addr) {
            Ok(stream) => break stream,
            Err(error) => assert!(
                [libc::ECONNREFUSED, libc::ECONNRESET, libc::EHOSTUNREACH].contains(&error.errno()),
                "{error}"
            ),
        }
        if server.is_finished() {
            panic!("the listener has ended: {:?}", server.join());
        }
        thread::sleep(Duration::from_millis(20));
    };
    // Memory of before the restart is not sent from.
    assert_eq!(stream.send(&buffer, ..5).unwrap_err().errno(), libc::EFAULT);
    let mut fresh = SendBuffer::new(5).unwrap();
    fresh.wait_mut().unwrap().copy_from_slice(b"hello");
    stream.send(&fresh, ..).unwrap();
    assert_eq!(server.join().unwrap(), b"hello");
}
