//! An HTTP server and a client that loads it: unmodified programs of `pd bench sidecar`, each a thread that waits with epoll.
//!
//! Both touch every byte of an answer's body. The server rewrites it in place and checksums it; the client checksums it in place and
//! compares. An answer from elsewhere, or one that changed on the way, thus ends the client with an error. Both use the C library's calls
//! only, which the preload library serves.

mod client;
mod server;

use std::net::Ipv4Addr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Header of answers with the checksum of the body, in hexadecimal.
const DIGEST: &str = "x-digest";
/// Header that proxies add to answers, with their name.
pub const PROXY: &str = "x-proxy";
/// Bytes of a body that are checksummed at a time.
const BLOCK_BYTES: usize = 4096;

/// Arguments of the hidden subcommand.
#[derive(Clone, Debug, clap::Args)]
pub struct WebArgs {
    #[command(subcommand)]
    role: Role,
}

/// The two programs.
#[derive(Clone, Debug, clap::Subcommand)]
enum Role {
    /// Answers requests until it is killed.
    Server {
        /// Port of the server, on all addresses.
        #[arg(long)]
        port: u16,
    },
    /// Loads a server, and prints the outcome.
    Client(Load),
}

/// The client's work.
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// The server's address.
    #[arg(long)]
    pub address: Ipv4Addr,
    /// The server's port.
    #[arg(long)]
    pub port: u16,
    /// Bytes of an answer's body.
    #[arg(long)]
    pub bytes: usize,
    /// Connections, each with one request under way.
    #[arg(long)]
    pub connections: usize,
    /// Milliseconds before the first request that counts.
    #[arg(long)]
    pub warm_up_ms: u64,
    /// Milliseconds in which requests count.
    #[arg(long)]
    pub ms: u64,
    /// The proxy that each answer has to name; none may, if it is absent.
    #[arg(long)]
    pub proxy: Option<String>,
}

impl Load {
    /// Returns the client's arguments, after the program's name.
    pub fn words(&self) -> Vec<String> {
        let Load { address, port, bytes, connections, warm_up_ms, ms, proxy } = self;
        let mut text = format!(
            "internal-bench-web client --address {address} --port {port} --bytes {bytes} --connections {connections} \
             --warm-up-ms {warm_up_ms} --ms {ms}"
        );
        if let Some(proxy) = proxy {
            text += &format!(" --proxy {proxy}");
        }
        text.split(' ').map(str::to_owned).collect()
    }
}

/// Results of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// Requests that were answered within the time that counts.
    pub requests: u64,
    /// All requests.
    pub requests_all: u64,
    /// Seconds of the measurement.
    pub seconds: f64,
    /// Median from request to the end of the answer.
    pub p50_us: f64,
    /// 99 % of answers take at most this.
    pub p99_us: f64,
    /// CPU time of the whole machine within that time.
    pub busy_s: f64,
}

/// Runs one of the two; returns the status to exit with.
pub fn main(args: &WebArgs) -> Result<i32> {
    match &args.role {
        Role::Server { port } => server::run(*port)?,
        Role::Client(load) => println!("{}", serde_json::to_string(&client::run(load)?)?),
    }
    Ok(0)
}

/// Returns the value of a header in the head of a message, whose names may be in any case.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (own, value) = line.split_once(':')?;
        own.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Returns the place after the head of a message, if the head is complete.
fn head_end(bytes: &[u8]) -> Option<usize> {
    const END: &[u8] = b"\r\n\r\n";
    bytes.windows(END.len()).position(|part| part == END).map(|at| at + END.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_passes_all_answers_of_the_server_or_fails() {
        let port = server::listen(0).unwrap();
        let address = port.local_addr().unwrap();
        // The server ends with the process.
        std::thread::spawn(move || server::serve(&port));
        let load = |bytes, proxy| Load {
            address: Ipv4Addr::LOCALHOST,
            port: address.port(),
            bytes,
            connections: 3,
            warm_up_ms: 1,
            ms: 50,
            proxy,
        };
        for bytes in [1, 1 << 10, (1 << 20) + 1] {
            let loaded = client::run(&load(bytes, None)).unwrap();
            assert!(loaded.requests > 0 && loaded.requests_all > loaded.requests, "{loaded:?}");
            assert!(loaded.p50_us > 0.0 && loaded.p99_us >= loaded.p50_us, "{loaded:?}");
        }
        let error = client::run(&load(64, Some("haproxy".to_owned()))).unwrap_err().to_string();
        assert!(error.contains("passed no proxy"), "{error}");
    }

    #[test]
    fn heads_are_found_and_read() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-DIGEST:00ff\r\n\r\nabcde";
        let end = head_end(text.as_bytes()).unwrap();
        assert_eq!(&text[end..], "abcde");
        assert_eq!(header(&text[..end], DIGEST), Some("00ff"));
        assert_eq!(header(&text[..end], "content-length"), Some("5"));
        assert_eq!((header(&text[..end], PROXY), head_end(b"HTTP/1.1 200 OK\r\n")), (None, None));
    }
}
