//! nginx and wrk: files by HTTP.
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::{words, Load, Work};
use crate::row::Params;
use crate::scheme::Scheme;

const CONNECTIONS: u32 = 16;

/// Requests for a file of so many bytes, each on a connection of its own if so.
pub(super) struct Nginx {
    pub bytes: usize,
    pub short: bool,
}

impl Load for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn params(&self) -> Params {
        let keep_alive = self.short.then_some(("keep_alive", json!(false)));
        [("file_bytes", json!(self.bytes))].into_iter().chain(keep_alive).collect()
    }

    fn suits(&self, scheme: Scheme) -> bool {
        scheme != Scheme::PreloadShort || self.short
    }

    fn needs(&self) -> &'static [(&'static str, &'static str)] {
        &[("nginx", "nginx-light"), ("wrk", "wrk")]
    }

    fn port(&self) -> u16 {
        8080
    }

    fn server(&self, dir: &Path) -> Result<Vec<String>> {
        let at = dir.display();
        std::fs::write(dir.join("file"), vec![b'x'; self.bytes])?;
        let text = format!(
            "user root; worker_processes 1; daemon off; pid {at}/nginx.pid; error_log stderr;
             events {{ worker_connections 512; }}
             http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
             client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};
             uwsgi_temp_path {at}; scgi_temp_path {at};
             server {{ listen {port}; root {at}; }} }}",
            port = self.port()
        );
        std::fs::write(dir.join("nginx.conf"), text)?;
        Ok(words(&format!("nginx -e stderr -c {at}/nginx.conf")))
    }

    fn client(
        &self,
        _scheme: Scheme,
        server: &str,
        _dir: &Path,
        seconds: f64,
        _requests: u64,
    ) -> Vec<String> {
        let (port, seconds) = (self.port(), seconds.ceil().max(1.0));
        let load = format!("wrk -t 1 -c {CONNECTIONS} -d {seconds} http://{server}:{port}/file");
        let header = self.short.then(|| ["-H".to_owned(), "Connection: close".to_owned()]);
        words(&load).into_iter().chain(header.into_iter().flatten()).collect()
    }

    fn parse(&self, text: &str, _requests: u64) -> Option<Work> {
        parse_wrk(text)
    }
}

/// What wrk prints; none if it has met errors.
pub(super) fn parse_wrk(text: &str) -> Option<Work> {
    // "  12345 requests in 2.00s, ..." and "Requests/sec:  6172.39".
    let word = |line: &str, place| line.split_whitespace().nth(place)?.parse::<f64>().ok();
    let count = text.lines().find(|line| line.contains(" requests in ")).and_then(|line| word(line, 0));
    let rate = text.lines().find(|line| line.starts_with("Requests/sec:")).and_then(|line| word(line, 1));
    let faulty = text.contains("Socket errors") || text.contains("Non-2xx");
    count.zip(rate).filter(|_| !faulty).map(|(count, rate)| Work::Requests(count, count / rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_errors_do_not_count() {
        let nginx = Nginx { bytes: 64, short: false };
        let text = "  2000 requests in 1.00s, 2.0GB read\nRequests/sec:   1000.00\n";
        assert_eq!(nginx.parse(text, 0), Some(Work::Requests(2000.0, 2.0)));
        assert_eq!(nginx.parse(&format!("{text}  Non-2xx or 3xx responses: 7\n"), 0), None);
    }
}
