//! An echo server and its client on `mio`, whose epoll instances have several numbers. `mio_echo server PORT` prints "ready";
//! `mio_echo client IP PORT` prints the outcome of some connections, which does not depend on their transport.
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

const CONNECTIONS: usize = 8;
const BYTES: usize = 300_000;
/// No event is long in coming.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes that have been read from a connection, and the part of them that is still to be written.
struct Echo {
    stream: TcpStream,
    bytes: Vec<u8>,
    ended: bool,
}

impl Echo {
    /// Reads and writes as much as possible. Returns whether the connection is over.
    fn go_on(&mut self) -> std::io::Result<bool> {
        loop {
            let mut part = [0; 16 << 10];
            match self.stream.read(&mut part) {
                Ok(0) => self.ended = true,
                Ok(read) => {
                    self.bytes.extend_from_slice(&part[..read]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            break;
        }
        while !self.bytes.is_empty() {
            match self.stream.write(&self.bytes) {
                Ok(written) => drop(self.bytes.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(self.ended && self.bytes.is_empty())
    }
}

fn serve(port: &str) -> std::io::Result<()> {
    let mut poll = Poll::new()?;
    // As in runtimes: registrations use another number of the instance than waits.
    let registry = poll.registry().try_clone()?;
    let mut listener = TcpListener::bind(format!("0.0.0.0:{port}").parse().expect("a port"))?;
    registry.register(&mut listener, Token(0), Interest::READABLE)?;
    println!("ready");
    let (mut events, mut echoes, mut next) = (Events::with_capacity(64), HashMap::new(), 1);
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() != Token(0) {
                let over =
                    echoes.get_mut(&event.token()).is_none_or(|echo: &mut Echo| echo.go_on().unwrap_or(true));
                if over {
                    echoes.remove(&event.token());
                }
                continue;
            }
            while let Ok((mut stream, _)) = listener.accept() {
                registry.register(&mut stream, Token(next), Interest::READABLE | Interest::WRITABLE)?;
                echoes.insert(Token(next), Echo { stream, bytes: Vec::new(), ended: false });
                next += 1;
            }
        }
    }
}

/// A connection's bytes, sent and returned.
struct Exchange {
    stream: TcpStream,
    sent: usize,
    received: Vec<u8>,
}

fn byte(connection: usize, place: usize) -> u8 {
    (place * 7 + connection * 31 + (place >> 9)) as u8
}

fn ask(ip: &str, port: &str) -> std::io::Result<()> {
    let mut poll = Poll::new()?;
    let registry = poll.registry().try_clone()?;
    let waker = mio::Waker::new(&registry, Token(CONNECTIONS))?;
    let mut exchanges = Vec::new();
    for connection in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(format!("{ip}:{port}").parse().expect("an address"))?;
        registry.register(&mut stream, Token(connection), Interest::READABLE | Interest::WRITABLE)?;
        exchanges.push(Exchange { stream, sent: 0, received: Vec::new() });
    }
    let mut events = Events::with_capacity(4);
    while exchanges.iter().any(|exchange| exchange.received.len() < BYTES) {
        poll.poll(&mut events, Some(PATIENCE))?;
        assert!(!events.is_empty(), "nothing more comes");
        for event in &events {
            let connection = event.token().0;
            let exchange = &mut exchanges[connection];
            while exchange.sent < BYTES {
                let part: Vec<u8> = (exchange.sent..BYTES.min(exchange.sent + 8192))
                    .map(|place| byte(connection, place))
                    .collect();
                match exchange.stream.write(&part) {
                    Ok(written) => exchange.sent += written,
                    Err(error)
                        if [ErrorKind::WouldBlock, ErrorKind::NotConnected].contains(&error.kind()) =>
                    {
                        break
                    }
                    Err(error) => return Err(error),
                }
            }
            let mut part = [0; 16 << 10];
            loop {
                match exchange.stream.read(&mut part) {
                    Ok(0) => panic!("connection {connection} ends early"),
                    Ok(read) => exchange.received.extend_from_slice(&part[..read]),
                    Err(error)
                        if [ErrorKind::WouldBlock, ErrorKind::NotConnected].contains(&error.kind()) =>
                    {
                        break
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    for (connection, exchange) in exchanges.iter().enumerate() {
        let right = exchange.received.iter().enumerate().all(|(place, &got)| got == byte(connection, place));
        println!("connection {connection}: {} bytes, right: {right}", exchange.received.len());
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            waker.wake()
        });
        // Level or edge: nothing else is left.
        while !events.iter().any(|event| event.token() == Token(CONNECTIONS)) {
            poll.poll(&mut events, Some(PATIENCE)).expect("a poll");
            assert!(!events.is_empty(), "nobody wakes it");
        }
    });
    println!("woken");
    Ok(())
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["server", port] => serve(port),
        ["client", ip, port] => ask(ip, port),
        _ => panic!("mio_echo server PORT | mio_echo client IP PORT"),
    }
}
