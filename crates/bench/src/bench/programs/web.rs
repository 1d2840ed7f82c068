//! wrk, and the servers that it loads: nginx with files, by itself and behind HAProxy; hyper on tokio with small answers.
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::{words, Load, Work};
use crate::catalogue::Scheme;
use crate::row::Params;

/// Bytes of hyper's answers.
const HYPER_BYTES: usize = 64;
/// Connections to nginx.
const NGINX_CONNECTIONS: u32 = 16;

/// Requests by wrk, one after the other on each connection.
pub(super) enum Web {
    /// nginx with a file of this size; each request on a connection of its own if `short`.
    Nginx { bytes: usize, short: bool },
    /// HAProxy before nginx with a file of this size, in one container; it splices the answers, or copies them.
    Haproxy { bytes: usize, splices: bool },
    /// hyper with this number of connections that stay.
    Hyper { connections: u32 },
}

/// Returns hyper's server, an example of the tests, beside this program.
fn hyper() -> Option<PathBuf> {
    let program = pd_harness::own_exe().parent()?.join("examples/tokio_web");
    program.is_file().then_some(program)
}

/// Port of nginx behind HAProxy.
const BEHIND_PORT: u16 = 8081;

/// Writes the files of both to `dir`; the command of both, which is HAProxy's process.
fn haproxy(dir: &Path, bytes: usize, splices: bool, port: u16) -> Result<Vec<String>> {
    let nginx = nginx(dir, bytes, BEHIND_PORT)?.join(" ");
    let option = if splices { "option splice-response" } else { "" };
    let text = format!(
        "global\n nbthread 1\ndefaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n {option}\n\
         frontend front\n bind :{port}\n default_backend back\n\
         backend back\n http-reuse always\n server one 127.0.0.1:{BEHIND_PORT}\n"
    );
    let file = dir.join("haproxy.cfg");
    std::fs::write(&file, text)?;
    let both = format!("{nginx} & exec haproxy -db -f {}", file.display());
    Ok(["sh", "-c", &both].map(str::to_owned).into())
}

/// Writes nginx's files to `dir`; its command.
fn nginx(dir: &Path, bytes: usize, port: u16) -> Result<Vec<String>> {
    let at = dir.display();
    std::fs::write(dir.join("file"), vec![b'x'; bytes])?;
    let text = format!(
        "user root; worker_processes 1; daemon off; pid {at}/nginx.pid; error_log stderr;
         events {{ worker_connections 512; }}
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
         client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};
         uwsgi_temp_path {at}; scgi_temp_path {at};
         server {{ listen {port}; root {at}; }} }}"
    );
    std::fs::write(dir.join("nginx.conf"), text)?;
    Ok(words(&format!("nginx -e stderr -c {at}/nginx.conf")))
}

impl Load for Web {
    fn name(&self) -> &'static str {
        match self {
            Web::Nginx { .. } => "nginx",
            Web::Haproxy { .. } => "haproxy",
            Web::Hyper { .. } => "hyper",
        }
    }

    fn params(&self) -> Params {
        match self {
            Web::Nginx { bytes, short } => {
                let keep_alive = short.then_some(("keep_alive", json!(false)));
                [("file_bytes", json!(bytes))].into_iter().chain(keep_alive).collect()
            }
            Web::Haproxy { bytes, splices } => {
                vec![("file_bytes", json!(bytes)), ("splice", json!(splices))]
            }
            Web::Hyper { connections } => vec![("connections", json!(connections))],
        }
    }

    fn suits(&self, scheme: Scheme) -> bool {
        scheme != Scheme::PreloadShort || matches!(self, Web::Nginx { short: true, .. })
    }

    fn needs(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Web::Nginx { .. } => &[("nginx", "nginx-light"), ("wrk", "wrk")],
            Web::Haproxy { .. } => &[("haproxy", "haproxy"), ("nginx", "nginx-light"), ("wrk", "wrk")],
            Web::Hyper { .. } => &[("wrk", "wrk")],
        }
    }

    fn lacks(&self) -> Option<&'static str> {
        let build = "tokio_web is not built; run: \
                     cargo build --release --package pd-tests --features programs --example tokio_web";
        (matches!(self, Web::Hyper { .. }) && hyper().is_none()).then_some(build)
    }

    fn port(&self) -> u16 {
        match self {
            Web::Nginx { .. } | Web::Haproxy { .. } => 8080,
            Web::Hyper { .. } => 7501,
        }
    }

    fn server(&self, dir: &Path) -> Result<Vec<String>> {
        match self {
            Web::Nginx { bytes, .. } => nginx(dir, *bytes, self.port()),
            Web::Haproxy { bytes, splices } => haproxy(dir, *bytes, *splices, self.port()),
            Web::Hyper { .. } => {
                Ok(vec![hyper().unwrap_or_default().display().to_string(), "server".to_owned()])
            }
        }
    }

    fn client(
        &self,
        _scheme: Scheme,
        server: &str,
        _dir: &Path,
        seconds: f64,
        _requests: u64,
    ) -> Vec<String> {
        let (connections, path, header) = match self {
            Web::Nginx { short, .. } => {
                let header = short.then(|| ["-H".to_owned(), "Connection: close".to_owned()]);
                (NGINX_CONNECTIONS, "file".to_owned(), header)
            }
            Web::Haproxy { .. } => (NGINX_CONNECTIONS, "file".to_owned(), None),
            Web::Hyper { connections } => (*connections, HYPER_BYTES.to_string(), None),
        };
        let (port, seconds) = (self.port(), seconds.ceil().max(1.0));
        let load = format!("wrk -t 1 -c {connections} -d {seconds} http://{server}:{port}/{path}");
        words(&load).into_iter().chain(header.into_iter().flatten()).collect()
    }

    /// Parses wrk's output; none if it has met errors.
    fn parse(&self, text: &str, _requests: u64) -> Option<Work> {
        // "  12345 requests in 2.00s, ..." and "Requests/sec:  6172.39".
        let word = |line: &str, place| line.split_whitespace().nth(place)?.parse::<f64>().ok();
        let count = text.lines().find(|line| line.contains(" requests in ")).and_then(|line| word(line, 0));
        let rate = text.lines().find(|line| line.starts_with("Requests/sec:")).and_then(|line| word(line, 1));
        let faulty = text.contains("Socket errors") || text.contains("Non-2xx");
        count.zip(rate).filter(|_| !faulty).map(|(count, rate)| Work::Requests(count, count / rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_errors_do_not_count() {
        let nginx = Web::Nginx { bytes: 64, short: false };
        let text = "  2000 requests in 1.00s, 2.0GB read\nRequests/sec:   1000.00\n";
        assert_eq!(nginx.parse(text, 0), Some(Work::Requests(2000.0, 2.0)));
        assert_eq!(nginx.parse(&format!("{text}  Non-2xx or 3xx responses: 7\n"), 0), None);
    }
}
