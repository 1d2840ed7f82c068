//! The driver as it runs, watched from outside: numbers out of its counter region, names from its admin socket.
//!
//! Numbers change all the time and are read from shared memory, which costs the driver nothing. Names change when
//! clients and connections come and go; the driver is asked for them then, and not more often than it likes.

mod services;
mod traffic;
mod view;

pub use services::ServiceView;
pub use traffic::TrafficView;
pub use view::{ConnectionView, ContainerView, DriverView, View};

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use pd_abi::counters::{AgentCounters, ClientCounters, FlowCounters, Gauges, Header};
use pd_driver::admin::{ask, counters, Answer, Ask, Counters, PipesReport, Report};
use pd_harness::known::Names;
use pd_harness::measure::cpu::of_process;

/// Shortest interval at which names are read, although they have changed.
const NAMES_PAUSE: Duration = Duration::from_millis(500);
/// Longest interval at which names are read, for changes without a trace in the counters: listeners, memory of a client. Counts of services
/// change so, too, and are read at each pause.
const NAMES_AGE_MAX: Duration = Duration::from_secs(5);

/// The driver at a moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// Facts that do not change while it runs.
    pub header: Header,
    /// The driver's process, if it can be seen from here.
    pub pid: Option<u32>,
    /// CPU time that it has used, likewise.
    pub cpu: Option<Duration>,
    /// The driver's counters.
    pub totals: AgentCounters,
    /// The driver's gauges.
    pub gauges: Gauges,
    /// Names of clients and connections.
    pub names: Arc<Report>,
    /// The names before these, and the seconds from those to these.
    pub names_before: Option<(Arc<Report>, f64)>,
    /// For each client of `names`.
    pub clients: Vec<ClientCounters>,
    /// For each connection of `names`, there and back.
    pub flows: Vec<[FlowCounters; 2]>,
    /// Ports and pipes.
    pub pipes: Arc<PipesReport>,
}

/// A driver that is looked at now and then.
#[derive(Debug)]
pub struct Source {
    admin_socket: PathBuf,
    link: Option<Link>,
    /// Of containers of other engines.
    containers: Names,
}

#[derive(Debug)]
struct Link {
    counters: Counters,
    names: Arc<Report>,
    names_before: Option<(Arc<Report>, f64)>,
    asked: Instant,
    /// Of the counters, when the names were asked for.
    news: [u64; 4],
    pipes: Arc<PipesReport>,
}

impl Source {
    /// Makes a source for the driver at `admin_socket`, whether it runs or not.
    pub fn new(admin_socket: &Path) -> Source {
        Source { admin_socket: admin_socket.to_owned(), link: None, containers: Names::default() }
    }

    /// Looks at the driver. A restarted driver has another start time.
    pub fn sample(&mut self) -> Result<Sample> {
        let mut link = match self.link.take().filter(|link| link.counters.is_live()) {
            Some(link) => link,
            None => Link::new(&self.admin_socket, &mut self.containers)?,
        };
        link.refresh(&self.admin_socket, &mut self.containers)?;
        let sample = link.sample();
        self.link = Some(link);
        Ok(sample)
    }
}

impl Link {
    fn new(socket: &Path, containers: &mut Names) -> Result<Link> {
        let counters = counters(socket).map_err(|error| anyhow!(no_answer(socket, &error)))?;
        let news = news(&counters.view.total());
        let names = names(socket, containers)?;
        Ok(Link { counters, names, names_before: None, asked: Instant::now(), news, pipes: Arc::default() })
    }

    fn refresh(&mut self, socket: &Path, containers: &mut Names) -> Result<()> {
        let (news, age) = (news(&self.counters.view.total()), self.asked.elapsed());
        let may_differ = news != self.news || !self.names.services.is_empty();
        if age >= NAMES_AGE_MAX || (age >= NAMES_PAUSE && may_differ) {
            let before = std::mem::replace(&mut self.names, names(socket, containers)?);
            self.names_before = Some((before, self.asked.elapsed().as_secs_f64()));
            (self.asked, self.news) = (Instant::now(), news);
        }
        // Ports have no counters in memory. The agent of pipes answers, or the conductor where there are no ports.
        self.pipes = pipes(socket)?;
        Ok(())
    }

    fn sample(&self) -> Sample {
        let view = &self.counters.view;
        let flow = |connection: u32, at: u32, serial: u64| {
            view.flow(connection.saturating_mul(2).saturating_add(at), serial).unwrap_or_default()
        };
        Sample {
            at: Instant::now(),
            header: *view.header(),
            pid: self.counters.pid,
            cpu: self.counters.pid.and_then(of_process).map(|(user, system)| user + system),
            totals: view.total(),
            gauges: view.gauges(),
            clients: self.names.clients.iter().map(|c| view.client(c.client.into(), c.serial)).collect(),
            flows: self
                .names
                .connections
                .iter()
                .map(|c| [0, 1].map(|at| flow(c.connection, at, c.serial)))
                .collect(),
            names: Arc::clone(&self.names),
            names_before: self.names_before.clone(),
            pipes: Arc::clone(&self.pipes),
        }
    }
}

/// Returns the fault and the remedy, where the driver's admin socket gives no answer.
pub fn no_answer(socket: &Path, error: &std::io::Error) -> String {
    let remedy = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "start it with pd driver, or name its --admin-socket"
        }
        ErrorKind::PermissionDenied => "ask as root, or as the driver's user",
        // The driver itself names the fault.
        _ => return format!("the driver at {}: {error}", socket.display()),
    };
    format!("no driver answers at {}: {error}; {remedy}", socket.display())
}

fn names(socket: &Path, containers: &mut Names) -> Result<Arc<Report>> {
    match ask(socket, &Ask::List).context("the driver gives no names")? {
        Answer::Report(mut report) => {
            fill_in(&mut report, containers);
            Ok(Arc::from(report))
        }
        _ => bail!("the driver at {} is of another version", socket.display()),
    }
}

fn pipes(socket: &Path) -> Result<Arc<PipesReport>> {
    match ask(socket, &Ask::Pipes).context("the driver says nothing of pipes")? {
        Answer::Pipes(report) => Ok(Arc::from(report)),
        _ => bail!("the driver at {} is of another version", socket.display()),
    }
}

/// Fills in facts about clients' containers from files of engines.
pub fn fill_in(report: &mut Report, containers: &mut Names) {
    for client in &mut report.clients {
        let Some(container) = &client.engine_container else { continue };
        let known = containers.of(container);
        client.container.get_or_insert(known.name);
        (client.image, client.pod) = (known.image, known.pod);
    }
}

/// Returns counters that change when names change.
fn news(totals: &AgentCounters) -> [u64; 4] {
    [totals.clients_attached, totals.clients_left, totals.connections_made, totals.connections_closed]
}

/// A view of an invented driver.
#[cfg(test)]
pub use view::tests::{sample as sample_for_tests, view as view_for_tests};
