//! Native sockets with the kernel at the other end: the calls are those of the fabric.
use pd_client::core::{ready, Epoll as CoreEpoll, Socket};
use pd_client::{poll, Epoll, Interest, Listener, Path, PollFd, Reading, Shutdown, Stream};
use pd_tests::{fill, verify, TestDriver};
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

const LOOPBACK: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn any(index: usize) -> SocketAddr {
    LOOPBACK[index].parse().unwrap()
}

/// Makes a native stream, and the kernel's other end.
fn connected() -> (Stream, TcpStream) {
    let listener = TcpListener::bind(any(0)).unwrap();
    let stream = Stream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(stream.path(), Path::Kernel);
    (stream, listener.accept().unwrap().0)
}

fn a_listener_hears_both(index: usize) {
    let listener = Listener::bind(any(index)).unwrap();
    let addr = listener.local_addr().unwrap();
    let epoll = Epoll::new();
    epoll.add(&listener, Interest::READ, 7).unwrap();
    let mut events = Vec::new();
    let is_there = || {
        poll(&mut [PollFd::socket(&listener, Interest::READ)], Some(Duration::from_secs(20))).unwrap() == 1
    };
    for from_kernel in [true, false, false, true] {
        epoll.wait(&mut events, 1, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty());
        let (mut plain, mut native) = (None, None);
        match from_kernel {
            true => plain = Some(TcpStream::connect(addr).unwrap()),
            false => native = Some(Stream::connect(addr).unwrap()),
        }
        epoll.wait(&mut events, 1, Some(Duration::from_secs(20))).unwrap();
        assert!(events.len() == 1 && events[0].data == 7 && events[0].readable());
        assert!(is_there());
        let peer = listener.accept().unwrap();
        assert_eq!(peer.path() == Path::Kernel, from_kernel);
        assert_eq!(peer.local_addr().unwrap(), addr);
        let other = plain.as_ref().map(|plain| plain.local_addr().unwrap());
        assert_eq!(
            other.or(native.as_ref().map(|native| native.local_addr().unwrap())),
            peer.peer_addr().ok()
        );
    }
    // An accept that sleeps is woken by either.
    thread::scope(|scope| {
        let acceptor = scope.spawn(|| [(); 2].map(|()| listener.accept().unwrap().path()));
        thread::sleep(Duration::from_millis(50));
        let _plain = TcpStream::connect(addr).unwrap();
        thread::sleep(Duration::from_millis(50));
        let _native = Stream::connect(addr).unwrap();
        assert_eq!(acceptor.join().unwrap(), [Path::Kernel, Path::Offloaded]);
    });
    listener.set_nonblocking(true);
    assert_eq!(listener.accept().unwrap_err().errno(), libc::EAGAIN);
}

fn a_port_is_one() {
    let plain = TcpListener::bind(any(0)).unwrap();
    assert_eq!(Listener::bind(plain.local_addr().unwrap()).unwrap_err().errno(), libc::EADDRINUSE);
    let native = Listener::bind(any(0)).unwrap();
    let addr = native.local_addr().unwrap();
    assert_eq!(TcpListener::bind(addr).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert_eq!(Listener::bind(addr).unwrap_err().errno(), libc::EADDRINUSE);
    drop(native);
    assert_eq!(Stream::connect(addr).unwrap_err().errno(), libc::ECONNREFUSED);
    TcpListener::bind(addr).expect("the port is free again");
}

fn bytes_are_lent_read_and_peeked_at() {
    let (stream, mut plain) = connected();
    let mut bytes = vec![0; 300_000];
    fill(5, 0, &mut bytes);
    thread::scope(|scope| {
        scope.spawn(|| plain.write_all(&bytes).unwrap());
        let (mut position, mut held) = (0, Vec::new());
        while position < 200_000 {
            let lent = stream.recv(3_000).unwrap();
            verify(5, position, &lent);
            position += lent.len() as u64;
            held.push((position - lent.len() as u64, lent));
            if held.len() == 9 {
                held.drain(2..7).for_each(|(at, lent)| verify(5, at, &lent));
            }
            assert_eq!((&stream).read(&mut [0; 9]).unwrap_err().raw_os_error(), None);
            if held.len() > 6 {
                held.clear();
            }
        }
        held.drain(..).rev().for_each(|(at, lent)| verify(5, at, &lent));
        let mut some = [0; 5_000];
        let mut others = [0; 70_000];
        while position < 300_000 {
            let peeked = stream.peek(&mut some).unwrap();
            verify(5, position, &some[..peeked]);
            let all = Reading { all: true, ..Reading::default() };
            let want = ((300_000 - position) as usize).min(some.len() + others.len());
            let (first, second) = (some.len().min(want), want - some.len().min(want));
            let mut pieces = [IoSliceMut::new(&mut some[..first]), IoSliceMut::new(&mut others[..second])];
            assert_eq!(stream.recv_into(&mut pieces, all).unwrap(), want);
            verify(5, position, &some[..first]);
            verify(5, position + first as u64, &others[..second]);
            position += want as u64;
        }
    });
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(stream.recv(1).unwrap_err().errno(), libc::EAGAIN);
    assert!((&stream).read(&mut [0; 9]).is_err());
    drop(plain);
    assert!(stream.recv(1).unwrap().is_empty());
    assert_eq!((&stream).read(&mut [0; 9]).unwrap(), 0);
}

fn epoll_tells_of_edges_and_ends() {
    let (stream, mut plain) = connected();
    let epoll = Epoll::new();
    epoll.add(&stream, Interest::READ.edge(), 1).unwrap();
    let mut events = Vec::new();
    let mut wait = |time: u64| {
        epoll.wait(&mut events, 4, Some(Duration::from_millis(time))).unwrap();
        events.pop()
    };
    assert_eq!(wait(0), None);
    plain.write_all(b"one").unwrap();
    assert!(wait(20_000).unwrap().readable());
    assert_eq!(wait(20), None, "nothing has come since");
    plain.write_all(b"two").unwrap();
    assert!(wait(20_000).unwrap().readable());
    assert_eq!(&*stream.recv(10).unwrap(), b"onetwo");
    epoll.modify(&stream, Interest::READ.and(Interest::WRITE), 1).unwrap();
    let event = wait(20_000).unwrap();
    assert!(event.writable() && !event.readable());
    epoll.modify(&stream, Interest::READ, 1).unwrap();
    assert_eq!(wait(20), None);
    plain.shutdown(std::net::Shutdown::Write).unwrap();
    let event = wait(20_000).unwrap();
    assert!(event.readable() && event.read_closed() && !event.failed());
    stream.shutdown(Shutdown::Write).unwrap();
    assert!((&stream).write(b"x").is_err());
    drop(stream);
    assert_eq!(wait(0), None, "closing takes it out");
    assert_eq!(plain.read(&mut [0]).unwrap(), 0);
}

fn a_connect_need_not_wait() {
    let plain = TcpListener::bind(any(0)).unwrap();
    let addr = plain.local_addr().unwrap();
    for listens in [true, false] {
        let _listening = listens.then(|| plain.try_clone().unwrap());
        let epoll = CoreEpoll::new();
        let socket = Socket::new(false).unwrap();
        epoll.add(&socket, ready::OUT | ready::EDGE, 3).unwrap();
        socket.set_nonblocking(true);
        let to = if listens { addr } else { "127.0.0.1:1".parse().unwrap() };
        let begun = socket.connect(to);
        match &begun {
            Err(error) if error.errno() == libc::EINPROGRESS => {
                epoll.wait(1, Some(Duration::from_secs(20)), &mut |_, _| ()).unwrap();
                assert_eq!(socket.take_error().unwrap(), if listens { 0 } else { libc::ECONNREFUSED });
            }
            Err(error) => assert!(!listens && error.errno() == libc::ECONNREFUSED, "{error}"),
            Ok(()) => assert!(listens),
        }
        if listens {
            assert!(socket.ready(ready::OUT) & ready::OUT != 0);
            // TCP may say once more that it is done.
            let _ = socket.connect(to);
            assert_eq!(socket.connect(to).unwrap_err().errno(), libc::EISCONN);
        }
        socket.close().unwrap();
    }
}

fn without_the_driver_the_kernel_goes_on(mut driver: TestDriver) {
    let (stream, mut plain) = connected();
    let listener = Listener::bind(any(0)).unwrap();
    let addr = listener.local_addr().unwrap();
    driver.stop();
    plain.write_all(b"still").unwrap();
    assert_eq!(&*stream.recv(5).unwrap(), b"still");
    (&stream).write_all(b"here").unwrap();
    let mut bytes = [0; 4];
    plain.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"here");
    let _plain = TcpStream::connect(addr).unwrap();
    let accepted = listener.accept().unwrap();
    assert_eq!(accepted.path(), Path::Kernel);
    let epoll = Epoll::new();
    epoll.add(&accepted, Interest::WRITE, 1).unwrap();
    driver.start();
    // The client repeats its connect until the listener is back.
    thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let again = || {
                thread::sleep(Duration::from_millis(10));
                Stream::connect(addr).ok()
            };
            (0..500).find_map(|_| again()).expect("no driver").path()
        });
        let has_come = poll(&mut [PollFd::socket(&listener, Interest::READ)], Some(Duration::from_secs(20)));
        assert_eq!(has_come.unwrap(), 1);
        assert_eq!(
            (listener.accept().unwrap().path(), connecting.join().unwrap()),
            (Path::Offloaded, Path::Offloaded)
        );
    });
}

/// Makes two ends on the fabric.
fn on_the_fabric() -> (Stream, Stream) {
    let listener = Listener::bind(any(0)).unwrap();
    let stream = Stream::connect(listener.local_addr().unwrap()).unwrap();
    (stream, listener.accept().unwrap())
}

/// From the fabric to the kernel, back, and from kernel to kernel, by blocking and non-blocking sockets.
fn forwards_between_carriers() {
    const BYTES: usize = 3 << 20;
    for (from_kernel, to_kernel) in [(true, true), (true, false), (false, true)] {
        for waits in [true, false] {
            let (from, source): (Stream, Box<dyn Write + Send>) = if from_kernel {
                let (stream, plain) = connected();
                (stream, Box::new(plain))
            } else {
                let (stream, other) = on_the_fabric();
                (stream, Box::new(other))
            };
            let (to, mut sink): (Stream, Box<dyn Read + Send>) = if to_kernel {
                let (stream, plain) = connected();
                (stream, Box::new(plain))
            } else {
                let (stream, other) = on_the_fabric();
                (stream, Box::new(other))
            };
            from.set_nonblocking(!waits);
            to.set_nonblocking(!waits);
            thread::scope(|scope| {
                scope.spawn(move || {
                    let mut source = source;
                    let mut bytes = vec![0; BYTES];
                    fill(9, 0, &mut bytes);
                    source.write_all(&bytes).unwrap();
                });
                scope.spawn(move || {
                    let mut bytes = Vec::new();
                    sink.read_to_end(&mut bytes).unwrap();
                    assert_eq!(bytes.len(), BYTES);
                    verify(9, 0, &bytes);
                });
                let mut moved = 0;
                loop {
                    match from.forward(&to, 100_000) {
                        Ok(0) => break,
                        Ok(bytes) => moved += bytes,
                        Err(error) if error.would_block() && !waits => {
                            thread::sleep(Duration::from_micros(200))
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                assert_eq!(moved, BYTES);
                to.shutdown(Shutdown::Write).unwrap();
            });
        }
    }
}

#[test]
fn calls_are_those_of_the_fabric() {
    let driver = TestDriver::new();
    driver.attach_here();
    (0..2).for_each(a_listener_hears_both);
    a_port_is_one();
    bytes_are_lent_read_and_peeked_at();
    epoll_tells_of_edges_and_ends();
    a_connect_need_not_wait();
    forwards_between_carriers();
    without_the_driver_the_kernel_goes_on(driver);
}
