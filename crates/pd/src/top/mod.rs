//! `pd top`: the driver, its containers and their connections, as they are now.

mod app;
mod columns;
mod draw;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use comfy_table::{presets, Table};
use ratatui::crossterm::event::{self, Event};
use ratatui::DefaultTerminal;

use crate::foreign::{json, json_line};
use crate::live::{Sample, Source, View};
use app::App;
use columns::{Column, CONNECTIONS, CONTAINERS, SERVICES, TRAFFIC};
use pd_harness::signals::Signals;

/// Longest time until a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(200);

/// Shows what the driver does, live.
///
/// Press h for the keys.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Look twice, print what happened in between, and exit
    #[arg(long)]
    once: bool,
    /// Print JSON instead: one object a line, until interrupted, or one in all with --once
    #[arg(long)]
    json: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::stats::parse_interval)]
    interval: Duration,
    /// Admin socket of the driver
    #[arg(long, default_value = pd_harness::config::DEFAULT_ADMIN_SOCKET)]
    admin_socket: PathBuf,
}

/// Looks at a driver again and again.
struct Watch {
    source: Source,
    before: Option<Sample>,
}

impl Watch {
    fn look(&mut self) -> Result<View> {
        let now = self.source.sample()?;
        let view = View::between(self.before.as_ref(), &now);
        self.before = Some(now);
        Ok(view)
    }
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &TopArgs) -> Result<i32> {
    let mut watch = Watch { source: Source::new(&args.admin_socket), before: None };
    if !args.once && !args.json {
        if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            bail!("pd top needs a terminal; use --once or --json without one");
        }
        // Before the terminal is touched: whether there is a driver at all.
        let first = watch.look()?;
        return interactive(watch, first, args.interval);
    }
    pd_harness::sys::end_on_closed_output();
    watch.look()?;
    loop {
        std::thread::sleep(args.interval);
        let view = watch.look();
        match (args.json, args.once) {
            (true, true) => println!("{}", json(&view?)?),
            (true, false) => match view {
                Ok(view) => println!("{}", json_line(&view)?),
                Err(problem) => println!("{}", serde_json::json!({ "problem": format!("{problem:#}") })),
            },
            (false, _) => print(view?),
        }
        if args.once {
            return Ok(0);
        }
    }
}

fn print(view: View) {
    for line in draw::head(&view.driver, 0) {
        println!("{line}");
    }
    let mut app = App::new(Duration::ZERO);
    app.take(Ok(view));
    println!(
        "\n{}\n\n{}",
        table(&CONTAINERS, &app.container_rows()),
        table(&CONNECTIONS, &app.connection_rows())
    );
    if app.has_services() {
        println!("\n{}", table(&SERVICES, &app.service_rows()));
    }
    if app.has_traffic() {
        println!("\n{}", table(&TRAFFIC, &app.traffic_rows()));
    }
}

fn table<T>(columns: &[Column<T>], rows: &[&T]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(columns.iter().map(|column| column.title));
    for row in rows {
        table.add_row(columns.iter().map(|column| column.text(row)));
    }
    table
}

/// The terminal as it was, whichever way this is left: a panic restores it before it is reported, everything else
/// here.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn interactive(watch: Watch, first: View, interval: Duration) -> Result<i32> {
    let signals = Signals::watch()?;
    let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore());
    let mut screen = Screen(terminal.context("cannot use the terminal")?);
    let mut app = App::new(interval);
    app.take(Ok(first));
    run(&mut screen.0, watch, app, &signals)
}

fn run(terminal: &mut DefaultTerminal, mut watch: Watch, mut app: App, signals: &Signals) -> Result<i32> {
    let mut looked = Instant::now();
    while !app.done {
        terminal.draw(|frame| draw::draw(frame, &app)).context("cannot draw")?;
        let left = app.interval.saturating_sub(looked.elapsed());
        if event::poll(left.min(SIGNAL_POLL)).context("cannot read the keyboard")? {
            if let Event::Key(key) = event::read().context("cannot read the keyboard")? {
                app.press(key);
            }
        }
        if let Some(caught) = signals.next() {
            return Ok(128 + caught.signal);
        }
        if looked.elapsed() >= app.interval {
            looked = Instant::now();
            if !app.paused {
                app.take(watch.look().map_err(|problem| format!("{problem:#}")));
            }
        }
    }
    Ok(0)
}
