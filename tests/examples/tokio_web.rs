//! Servers and clients on tokio: an echo of bytes, and HTTP/1.1 by hyper. `tokio_web server` serves at ports 7500 and 7501.
//! `tokio_web client IP` prints the outcome of several connections at a time, which does not depend on the transport of the
//! bytes. `tokio_web forever IP` goes on.
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

type Failure = Box<dyn Error + Send + Sync>;

const ECHO: u16 = 7500;
const WEB: u16 = 7501;
const CONNECTIONS: usize = 12;
const REQUESTS: usize = 20;
const BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 13 + seed * 7 + (place >> 8)) as u8).collect()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let (mut from, mut to) = stream.split();
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

/// Answers a request: `POST` comes back reversed; `GET /N` gives N bytes.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Failure> {
    if request.method() == Method::GET {
        let len = request.uri().path().trim_start_matches('/').parse()?;
        return Ok(Response::new(Full::new(pattern(len, len).into())));
    }
    let mut body = request.into_body().collect().await?.to_bytes().to_vec();
    body.reverse();
    Ok(Response::new(Full::new(body.into())))
}

async fn serve() -> Result<(), Failure> {
    let [echoes, web] =
        [TcpListener::bind(("0.0.0.0", ECHO)).await?, TcpListener::bind(("0.0.0.0", WEB)).await?];
    println!("ready");
    loop {
        tokio::select! {
            accepted = echoes.accept() => drop(tokio::spawn(echo(accepted?.0))),
            accepted = web.accept() => {
                let stream = TokioIo::new(accepted?.0);
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(stream, service_fn(answer)));
            }
        }
    }
}

async fn echoed(ip: String, number: usize) -> Result<String, Failure> {
    let stream = TcpStream::connect((ip.as_str(), ECHO)).await?;
    let (mut from, mut to) = stream.into_split();
    let sender = tokio::spawn(async move {
        to.write_all(&pattern(number, BYTES)).await?;
        to.shutdown().await
    });
    let mut received = Vec::new();
    from.read_to_end(&mut received).await?;
    sender.await??;
    Ok(format!("echo {number}: {} {}", received.len(), received == pattern(number, BYTES)))
}

async fn requested(ip: String, number: usize) -> Result<String, Failure> {
    let stream = TokioIo::new(TcpStream::connect((ip.as_str(), WEB)).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    let mut text = format!("web {number}:");
    for place in 0..REQUESTS {
        let len = place * place * 500 + number;
        let request = Request::builder().header("host", "here");
        let request = match place % 2 {
            0 => request.method(Method::GET).uri(format!("/{len}")).body(Full::default())?,
            _ => request.method(Method::POST).uri("/").body(Full::<Bytes>::from(pattern(number, len)))?,
        };
        let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        text += &format!(" {}/{:x}", body.len(), sum(&body) & 0xffff);
    }
    Ok(text)
}

async fn ask(ip: &str) -> Result<Vec<String>, Failure> {
    let mut tasks = JoinSet::new();
    for number in 0..CONNECTIONS {
        tasks.spawn(echoed(ip.to_owned(), number));
        tasks.spawn(requested(ip.to_owned(), number));
    }
    let mut lines = Vec::new();
    while let Some(line) = timeout(PATIENCE, tasks.join_next()).await? {
        lines.push(line??);
    }
    lines.sort();
    Ok(lines)
}

#[tokio::main(worker_threads = 3)]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["server"] => serve().await,
        ["client", ip] => {
            println!("{}", ask(ip).await?.join("\n"));
            Ok(())
        }
        ["forever", ip] => loop {
            ask(ip).await?;
        },
        _ => Err("tokio_web server | client IP | forever IP".into()),
    }
}
