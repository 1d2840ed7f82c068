//! A program on smol, whose reactor waits by system calls of its own (`rustix`). `smol_echo server PORT` prints "ready" and
//! echoes; `smol_echo client IP PORT` prints lines that do not depend on the transport of the bytes.
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};
use std::net::TcpStream as StdStream;
use std::time::Duration;

const CONNECTIONS: usize = 8;
const BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn byte(connection: usize, place: usize) -> u8 {
    (place * 7 + connection * 31 + (place >> 9)) as u8
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; 8192];
    loop {
        match stream.read(&mut bytes).await? {
            0 => return Ok(()),
            read => stream.write_all(&bytes[..read]).await?,
        }
    }
}

async fn serve(port: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(format!("0.0.0.0:{port}")).await?;
    println!("ready");
    loop {
        let (stream, _) = listener.accept().await?;
        smol::spawn(echo(stream)).detach();
    }
}

/// Bytes there and back, with pauses in which nothing is on its way.
async fn ask(connection: usize, stream: TcpStream) -> std::io::Result<bool> {
    let (mut reads, mut writes) = (stream.clone(), stream);
    let sends = smol::spawn(async move {
        let all: Vec<u8> = (0..BYTES).map(|place| byte(connection, place)).collect();
        for (piece, bytes) in all.chunks(BYTES / 8 + connection).enumerate() {
            if piece % 3 == 0 {
                smol::Timer::after(Duration::from_millis(20)).await;
            }
            writes.write_all(bytes).await?;
        }
        writes.shutdown(std::net::Shutdown::Write)
    });
    let mut received = Vec::new();
    reads.read_to_end(&mut received).await?;
    sends.await?;
    Ok(received.len() == BYTES
        && received.iter().enumerate().all(|(place, &got)| got == byte(connection, place)))
}

async fn ask_all(ip: &str, port: &str) -> std::io::Result<()> {
    let mut tasks = Vec::new();
    for connection in 0..CONNECTIONS {
        // The standard library connects by the C library's functions, smol by system calls.
        let stream = match connection % 2 {
            0 => TcpStream::connect(format!("{ip}:{port}")).await?,
            _ => {
                let stream = StdStream::connect(format!("{ip}:{port}"))?;
                TcpStream::from(smol::Async::new(stream)?)
            }
        };
        tasks.push(smol::spawn(ask(connection, stream)));
    }
    for (connection, task) in tasks.into_iter().enumerate() {
        println!("connection {connection}: right: {}", task.await?);
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let late = async {
        smol::Timer::after(PATIENCE).await;
        panic!("nothing more comes");
    };
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["server", port] => smol::block_on(serve(port)),
        ["client", ip, port] => smol::block_on(smol::future::or(ask_all(ip, port), late)),
        _ => panic!("smol_echo server PORT | smol_echo client IP PORT"),
    }
}
