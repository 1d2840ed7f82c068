//! The driver's counters for Prometheus: `[metrics] listen` of its configuration.
//!
//! A thread answers one request at a time, each within a second, whatever its peer does. A peer can delay
//! other scrapes, and nothing else of the driver. The thread reads the driver as `pd top` does.

mod text;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::{bind, socket_with, sockopt, AddressFamily, SocketFlags, SocketType};

use crate::live::Source;

/// From the connection to the end of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest request.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;
/// The driver is looked at this often, however often it is asked for.
const SAMPLE_AGE_MAX: Duration = Duration::from_millis(100);
/// Scrapes that may wait.
const BACKLOG: i32 = 128;
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Starts to listen.
pub fn listen(listen: SocketAddr) -> Result<TcpListener> {
    bind_beside(listen).with_context(|| {
        format!("metrics.listen = \"{listen}\" is not usable; use another port or an address of this host")
    })
}

/// Binds as [`TcpListener::bind`], also beside another driver of this user whose place this one takes.
fn bind_beside(listen: SocketAddr) -> rustix::io::Result<TcpListener> {
    let family = if listen.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &listen)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Starts a thread that answers until the program ends. Returns the address.
pub fn start(listener: TcpListener, admin_socket: &Path) -> Result<SocketAddr> {
    let address = listener.local_addr().context("no address")?;
    if !is_loopback(address.ip()) {
        tracing::warn!(%address, "whoever can reach this address can read the driver's metrics");
    }
    let admin_socket = admin_socket.to_owned();
    std::thread::Builder::new()
        .name("pd-metrics".into())
        .spawn(move || serve(&listener, admin_socket))
        .context("cannot start a thread")?;
    Ok(address)
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn serve(listener: &TcpListener, admin_socket: PathBuf) {
    let mut page = Page { source: Source::new(&admin_socket), made: None };
    loop {
        match listener.accept() {
            // A peer that breaks off is no news.
            Ok((stream, _)) => drop(answer(&stream, |form| page.text(form))),
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// The answer to a scrape.
struct Page {
    source: Source,
    /// As OpenMetrics.
    made: Option<(Instant, String)>,
}

impl Page {
    fn text(&mut self, form: Form) -> Result<String> {
        let text = match self.made.as_ref().filter(|(at, _)| at.elapsed() < SAMPLE_AGE_MAX) {
            Some((_, text)) => text.clone(),
            None => {
                let text = text::encode(self.source.sample()?)?;
                self.made = Some((Instant::now(), text.clone()));
                text
            }
        };
        Ok(match form {
            Form::OpenMetrics => text,
            Form::Plain => text::plain(&text),
        })
    }
}

/// The form of a page: the one that the scraper accepts, or the older one, which all understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    OpenMetrics,
    Plain,
}

impl Form {
    fn wanted(headers: &[httparse::Header<'_>]) -> Form {
        let accept = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
        let mut values = accept.map(|header| String::from_utf8_lossy(header.value));
        match values.any(|value| value.contains("application/openmetrics-text")) {
            true => Form::OpenMetrics,
            false => Form::Plain,
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Form::OpenMetrics => text::CONTENT_TYPE,
            Form::Plain => text::CONTENT_TYPE_PLAIN,
        }
    }
}

fn answer(stream: &TcpStream, page: impl FnOnce(Form) -> Result<String>) -> std::io::Result<()> {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    let unavailable = |problem| ("503 Service Unavailable", PLAIN, format!("{problem:#}\n"));
    let (status, kind, body) = match read_request(stream, deadline)? {
        Asked::Metrics(form) => match page(form) {
            Ok(text) => ("200 OK", form.content_type(), text),
            Err(problem) => unavailable(problem),
        },
        Asked::Health => match page(Form::Plain) {
            Ok(_) => ("200 OK", PLAIN, "ok\n".to_owned()),
            Err(problem) => unavailable(problem),
        },
        Asked::SomethingElse => ("404 Not Found", PLAIN, "the metrics are at /metrics\n".to_owned()),
        Asked::OtherMethod => ("405 Method Not Allowed", PLAIN, "only GET\n".to_owned()),
        Asked::Nonsense => ("400 Bad Request", PLAIN, "no HTTP\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    write_all(stream, head.as_bytes(), deadline)?;
    write_all(stream, body.as_bytes(), deadline)?;
    stream.shutdown(std::net::Shutdown::Write)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Metrics(Form),
    /// Tells whether the driver answers.
    Health,
    SomethingElse,
    OtherMethod,
    Nonsense,
}

fn read_request(mut stream: &TcpStream, deadline: Instant) -> std::io::Result<Asked> {
    let (mut bytes, mut len) = ([0; REQUEST_BYTES_MAX], 0);
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let got = stream.read(&mut bytes[len..])?;
        len += got;
        if let Some(asked) = parse(&bytes[..len]) {
            return Ok(asked);
        }
        if got == 0 || len == bytes.len() {
            return Ok(Asked::Nonsense);
        }
    }
}

/// Returns the request; none while it is incomplete.
fn parse(bytes: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => None,
        Err(_) => Some(Asked::Nonsense),
        Ok(httparse::Status::Complete(_)) => Some(match (request.method, request.path) {
            (Some("GET"), Some(path)) => match path.split('?').next() {
                Some("/metrics") => Asked::Metrics(Form::wanted(request.headers)),
                Some("/healthz") => Asked::Health,
                _ => Asked::SomethingElse,
            },
            _ => Asked::OtherMethod,
        }),
    }
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_when_they_are_complete() {
        for (request, asked) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some(Asked::Metrics(Form::Plain))),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", Some(Asked::Metrics(Form::Plain))),
            (
                "GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n",
                Some(Asked::Metrics(Form::OpenMetrics)),
            ),
            ("GET /healthz HTTP/1.1\r\n\r\n", Some(Asked::Health)),
            ("GET /metricsx HTTP/1.1\r\n\r\n", Some(Asked::SomethingElse)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(Asked::OtherMethod)),
            ("GET /metrics HTTP/1.1\r\nHost", None),
            ("", None),
            ("\x16\x03\x01\x02", Some(Asked::Nonsense)),
        ] {
            assert_eq!(parse(request.as_bytes()), asked, "{request:?}");
        }
    }

    #[test]
    fn whoever_says_nothing_or_too_much_is_hung_up_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ask = |request: &[u8]| {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.write_all(request).unwrap();
            let (stream, _) = listener.accept().unwrap();
            let result = answer(&stream, |form| match form {
                Form::Plain => Ok("page".to_owned()),
                Form::OpenMetrics => anyhow::bail!("the driver is gone"),
            });
            drop(stream);
            let mut text = String::new();
            let _ = client.read_to_string(&mut text);
            (result.is_ok(), text)
        };
        assert_eq!(ask(b"GET"), (false, String::new()));
        assert!(ask(&[b'a'; REQUEST_BYTES_MAX]).1.starts_with("HTTP/1.1 400"));
        let (ok, text) = ask(b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(ok && text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\npage"), "{text}");
        assert!(ask(b"GET /healthz HTTP/1.1\r\n\r\n").1.ends_with("\r\n\r\nok\n"));
        let gone = ask(b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n").1;
        assert!(gone.starts_with("HTTP/1.1 503") && gone.contains("the driver is gone"), "{gone}");
        assert!(ask(b"DELETE / HTTP/1.1\r\n\r\n").1.starts_with("HTTP/1.1 405"));
    }
}
