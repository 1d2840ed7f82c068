//! An engine that fails, delays and reorders: the stream is right all the same.
use pd_client::{Listener, SendBuffer, Shutdown, Stream};
use pd_tests::{fill, verify, TestDriver};
use std::thread;

#[test]
fn faults_are_done_again_and_a_dead_engine_is_quarantined() {
    let driver = TestDriver::with("fault:seed=7,fail=50,delay=5,dead_after=4000,reorder", |_| {});
    driver.attach_here();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let stream = Stream::connect(addr).unwrap();
                let mut buffers: Vec<_> = (0..8).map(|_| SendBuffer::new(20_000).unwrap()).collect();
                for message in 0..2000u64 {
                    let buffer = &mut buffers[message as usize % 8];
                    fill(seed, message * 20_000, buffer.wait_mut().unwrap());
                    buffer.wait_mut().unwrap()[0] = seed as u8;
                    stream.send(buffer, ..).unwrap();
                }
                stream.shutdown(Shutdown::Write).unwrap();
                assert!(stream.recv(1).unwrap().is_empty());
            });
        }
        for _ in 0..4 {
            let accepted = listener.accept().unwrap();
            scope.spawn(move || {
                let (mut position, mut seed) = (0u64, None);
                loop {
                    let left = 20_000 - position % 20_000;
                    let received = accepted.recv(left as usize).unwrap();
                    if received.is_empty() {
                        break;
                    }
                    let skip = usize::from(left == 20_000);
                    let seed = *seed.get_or_insert(u64::from(received[0]));
                    assert!(skip == 0 || u64::from(received[0]) == seed);
                    verify(seed, position + skip as u64, &received[skip..]);
                    position += received.len() as u64;
                }
                assert_eq!(position, 2000 * 20_000);
            });
        }
    });
    assert!(driver.metrics().commands_redone > 100);
    assert_eq!(driver.metrics().engines_quarantined, 1);
}
