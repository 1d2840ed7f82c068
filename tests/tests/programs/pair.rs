//! A program that is both sides: `COMMAND server`, `COMMAND client ADDRESS`, which prints checksums, and `COMMAND forever ADDRESS`.
use super::site::{Site, CLIENT, SERVER};

/// A program with a server and a client.
pub struct Pair {
    /// Port of the server.
    pub port: u16,
    /// Name of its processes.
    pub process: &'static str,
    /// The program and its own arguments.
    pub command: Vec<String>,
}

impl Pair {
    pub fn new(port: u16, process: &'static str, command: &[&str]) -> Self {
        Self { port, process, command: command.iter().map(|&word| word.to_owned()).collect() }
    }

    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        self.command.iter().map(String::as_str).chain(words.iter().copied()).collect()
    }

    /// The client's output is independent of the transport, with at least `bytes` on the fabric.
    pub fn answers(&self, site: &Site, bytes: u64) {
        site.compare(bytes, |site, library| {
            let server = site.serve(SERVER, library, self.port, &self.words(&["server"]));
            let answer = site.run(CLIENT, library, &self.words(&["client", &site.server()]));
            server.end();
            answer
        });
    }

    /// Either side is killed in the middle: the other notices, and nothing is left.
    pub fn killed_leaves_nothing(&self, site: &Site) {
        for victim in ["server", "client"] {
            let before = site.delivered();
            let server = site.serve(SERVER, true, self.port, &self.words(&["server"]));
            let mut client = site.start(CLIENT, true, &self.words(&["forever", &site.server()]));
            site.wait_for_bytes(before, 1 << 20);
            if victim == "server" {
                server.kill(self.process);
                assert!(!client.wait(), "the client has not noticed");
            } else {
                client.kill(self.process);
                site.wait_for_ends();
            }
            drop((server, client));
            site.expect_nothing_left();
        }
    }
}
