//! Two innocent processes with a connection that nothing may disturb.
use crate::{Puppet, TestDriver};

/// Bytes that have to arrive for the pair to count as alive.
const ALIVE_BYTES: u64 = 100_000;

/// The pair; the stream it moves is checked byte by byte.
#[derive(Debug)]
pub struct Bystander {
    receiver: Puppet,
    sender: Puppet,
}

impl Bystander {
    /// Starts the pair and waits until bytes flow.
    pub fn start(driver: &TestDriver) -> Self {
        let mut receiver = Puppet::new(driver.peer(&["steady-recv", "127.0.0.1:0", "77"]));
        let line = receiver.line();
        let addr = line.strip_prefix("ready ").unwrap_or_else(|| panic!("not ready but {line:?}"));
        let sender = Puppet::new(driver.peer(&["steady-send", addr, "77"]));
        let this = Self { receiver, sender };
        this.check(driver);
        this
    }

    /// Waits until bytes have arrived that had not when this was called.
    pub fn check(&self, driver: &TestDriver) {
        let before = self.moved(&driver.report());
        driver.wait_for("the bystanders go on", |report| self.moved(report) > before + ALIVE_BYTES);
    }

    fn moved(&self, report: &pd_driver::admin::Report) -> u64 {
        let client = report.clients.iter().find(|client| client.pid == self.sender.pid());
        let Some(client) = client.map(|client| client.client) else { return 0 };
        let connection = report.connections.iter().find(|c| c.from.is_some_and(|from| from.0 == client));
        connection.map_or(0, |connection| connection.bytes[0])
    }

    /// Ends the stream.
    ///
    /// # Panics
    /// If a byte was wrong or is missing.
    pub fn finish(mut self) {
        self.sender.close_input();
        let (sent, received) = (self.sender.line(), self.receiver.line());
        assert!(!sent.is_empty());
        assert_eq!(sent, received, "bytes");
        self.sender.finish();
        self.receiver.finish();
    }
}
