//! What the driver tells and is told on its admin socket: one JSON object a line, each way.
use crate::messages::ClientId;
use crate::metrics::Metrics;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A question or an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Everything there is: [`Report`].
    List,
    /// The network namespace of process `pid` belongs to a container with these addresses.
    Register {
        /// The container's name.
        name: String,
        /// Its tenant.
        tenant: String,
        /// A process in it.
        pid: u32,
        /// Its addresses.
        addresses: Vec<IpAddr>,
    },
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// No, and why.
    Error(String),
    /// To [`Ask::List`].
    Report(Box<Report>),
}

/// The driver at a moment.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Bytes of all regions.
    pub memory_used_bytes: u64,
    /// Bytes that they may have.
    pub memory_budget_bytes: u64,
    /// Flows that wait for memory.
    pub rings_waiting: usize,
    /// Clients attached.
    pub clients: Vec<ClientReport>,
    /// Connections.
    pub connections: Vec<ConnectionReport>,
    /// Counters.
    pub metrics: serde_json::Value,
}

/// A client.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClientReport {
    /// Its number.
    pub client: ClientId,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its container, if `pd run` made it.
    pub container: Option<String>,
    /// Its tenant, likewise.
    pub tenant: Option<String>,
    /// Channels.
    pub channels: usize,
    /// Regions.
    pub regions: usize,
    /// Bytes of them.
    pub region_bytes: u64,
    /// Bytes of them that are receive rings in use.
    pub ring_bytes: u64,
    /// Sockets in all.
    pub sockets: usize,
    /// Addresses that it listens on, with the connections waiting.
    pub listening: Vec<(SocketAddr, usize)>,
}

/// A connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Its number.
    pub connection: u32,
    /// The connecting client and its address, unless gone.
    pub from: Option<(ClientId, SocketAddr)>,
    /// The accepting client and its address, unless gone.
    pub to: Option<(ClientId, SocketAddr)>,
    /// Bytes delivered, there and back.
    pub bytes: [u64; 2],
    /// Sends completed, there and back.
    pub messages: [u64; 2],
}

/// Asks the driver at `socket`.
///
/// # Errors
/// If there is no driver, or it answers with an error.
pub fn ask(socket: &Path, ask: &Ask) -> std::io::Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut line = serde_json::to_string(ask)?;
    line.push('\n');
    (&stream).write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    match serde_json::from_str(&answer)? {
        Answer::Error(why) => Err(std::io::Error::other(why)),
        answer => Ok(answer),
    }
}

pub(crate) fn metrics(metrics: &Metrics) -> serde_json::Value {
    serde_json::to_value(metrics).unwrap_or_default()
}
