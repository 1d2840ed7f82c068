//! `pd stats`: the driver's counters, once or again and again, with rates over the time between.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use comfy_table::{presets, CellAlignment, Table};

use crate::live::{DriverView, Source, View};

/// Prints the driver's counters.
#[derive(Debug, clap::Args)]
pub struct StatsArgs {
    /// Print JSON; with --watch, one object a line
    #[arg(long)]
    json: bool,
    /// Print again every SECONDS, with rates in between, until interrupted
    #[arg(long, value_name = "SECONDS", value_parser = parse_interval)]
    watch: Option<Duration>,
    /// End after this number of prints
    #[arg(long, value_name = "TIMES", requires = "watch")]
    count: Option<u64>,
    /// Admin socket of the driver
    #[arg(long, default_value = pd_harness::config::DEFAULT_ADMIN_SOCKET)]
    admin_socket: PathBuf,
}

/// Reads seconds, with a fraction if need be.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("'{text}' is no interval; use 0.05 to 3600 seconds")),
    }
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &StatsArgs) -> Result<i32> {
    pd_harness::sys::end_on_closed_output();
    let mut source = Source::new(&args.admin_socket);
    let mut before = source.sample()?;
    let Some(interval) = args.watch else {
        print(&View::between(None, &before).driver, args.json, false)?;
        return Ok(0);
    };
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        std::thread::sleep(interval);
        let now = source.sample()?;
        print(&View::between(Some(&before), &now).driver, args.json, true)?;
        before = now;
    }
    Ok(0)
}

fn print(driver: &DriverView, json: bool, again: bool) -> Result<()> {
    match (json, again) {
        (true, false) => println!("{}", serde_json::to_string_pretty(driver)?),
        (true, true) => println!("{}", serde_json::to_string(driver)?),
        (false, _) => println!("{}\n", table(driver, again)),
    }
    Ok(())
}

fn table(driver: &DriverView, rates: bool) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(if rates {
        vec!["COUNTER", "TOTAL", "PER SECOND"]
    } else {
        vec!["COUNTER", "TOTAL"]
    });
    for (&name, total) in &driver.counters {
        let mut row = vec![name.to_owned(), total.to_string()];
        if rates {
            row.push(format!("{:.1}", driver.per_second.get(name).copied().unwrap_or_default()));
        }
        table.add_row(row);
    }
    for (name, value) in [
        ("clients", driver.clients),
        ("connections", driver.connections),
        ("memory_used_bytes", driver.memory_used_bytes),
        ("memory_budget_bytes", driver.memory_budget_bytes),
        ("rings_waiting", driver.rings_waiting),
    ] {
        table.add_row([name.to_owned(), value.to_string()]);
    }
    if let Some(seconds) = driver.cpu_seconds {
        let mut row = vec!["cpu_seconds".to_owned(), format!("{seconds:.2}")];
        row.extend(driver.cpu_percent.map(|percent| format!("{percent:.0} %")));
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "1e9", "soon"] {
            assert!(parse_interval(text).unwrap_err().contains(text));
        }
    }

    #[test]
    fn every_counter_is_printed_with_its_rate() {
        let view = crate::live::view_for_tests();
        let text = table(&view.driver, true).to_string();
        let line = text.lines().find(|line| line.contains("bytes_delivered")).unwrap();
        assert!(line.contains("3000000000"), "{line}");
        for name in view.driver.counters.keys() {
            assert!(text.contains(name), "{name}");
        }
        assert!(!table(&view.driver, false).to_string().contains("PER SECOND"));
    }
}
