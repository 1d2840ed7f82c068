//! `pd driver`: the daemon.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{bail, Result};
use pd_driver::{rights, Confined, Driver, Settings, SystemClock};
use pd_harness::config::{Config, LogLevel};
use pd_harness::signals::Signals;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use crate::exporter;

/// Runs the driver in the foreground.
#[derive(Debug, clap::Args)]
pub struct DriverArgs {
    /// Configuration file, TOML [default: built-in values]
    #[arg(long)]
    config: Option<PathBuf>,
    /// Check the configuration, print it with all defaults filled in, and exit
    #[arg(long)]
    check: bool,
    /// Take the place of the driver that runs on the same sockets: its clients and their connections go on with this one
    #[arg(long, conflicts_with = "check")]
    take_over: bool,
}

impl DriverArgs {
    /// Returns the configuration that the options ask for.
    pub fn config(&self) -> Result<Config> {
        self.config.as_deref().map_or_else(|| Ok(Config::default()), Config::load)
    }
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &DriverArgs) -> Result<i32> {
    let config = args.config()?;
    if args.check {
        config.settings()?;
        print!("{}", toml::to_string(&config)?);
        return Ok(0);
    }
    run(&config, args.take_over)
}

fn run(config: &Config, takes_over: bool) -> Result<i32> {
    // Before the driver's threads start, so that they have the signals blocked as well.
    let signals = Signals::watch()?;
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_max_level(filter(config.log.level))
        .init();
    let settings = config.settings()?;
    let engine = pd_harness::engines::by_name(&config.driver.engine)?;
    // A running driver makes no such socket.
    let metrics = config.metrics.address()?.map(exporter::listen).transpose()?;
    for limit in rights::limits(&settings) {
        tracing::warn!("{limit}");
    }
    let prober = Some("/proc/self/exe".into());
    let settings = Settings { confined: Confined::Process, prober, ..settings };
    let clock = Arc::new(SystemClock::default());
    let driver = match takes_over {
        true => Driver::take_over(settings, clock, &*engine)?,
        false => Driver::start(settings, clock, &*engine)?,
    };
    if let Some(listener) = metrics {
        let address = exporter::start(listener, &config.admin_socket)?;
        tracing::info!(%address, "metrics at /metrics");
    }
    tracing::info!(
        socket = %config.socket.display(),
        engine = config.driver.engine,
        movers = %config.driver.movers,
        "driver ready"
    );
    let stop = loop {
        let mut fds = [PollFd::new(&signals, PollFlags::IN)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ = poll(&mut fds, Some(&second));
        match signals.next() {
            // The terminal's hang-up is not meant as one.
            Some(caught) if caught.signal == Signal::HUP.as_raw() && !caught.from_terminal => {
                reload(config, &driver)
            }
            Some(caught) => break caught,
            None => {}
        }
        if driver.is_handed_over() {
            tracing::info!("another driver has this one's place");
            return Ok(0);
        }
        if !driver.is_running() {
            bail!("a thread of the driver has ended; its clients see ECONNRESET, start it again");
        }
    };
    tracing::info!(signal = stop.signal, "driver stops");
    drop(driver);
    Ok(0)
}

/// Reads the policy again; a faulty one changes nothing.
fn reload(config: &Config, driver: &Driver) {
    match config.read_policy() {
        Ok(_) if config.policy.is_none() => {
            tracing::warn!("nothing to reload: the configuration names no policy file");
        }
        Ok(policy) => driver.apply(policy),
        Err(error) => tracing::error!("the policy stays as it is: {error:#}"),
    }
}

fn filter(level: LogLevel) -> tracing_subscriber::filter::LevelFilter {
    use tracing_subscriber::filter::LevelFilter;
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
