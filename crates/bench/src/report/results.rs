//! The results of a machine that the documents are made from: `DIR/MACHINE/results.json`, and plots beside it.
//!
//! `machine` describes the machine and its kernel. `runs` has for each benchmark the command, the time, and how quiet the machine was.
//! `rows` are those of [`crate::row`], one a line. A benchmark replaces its own part of the file and leaves the others, unless they are of
//! another machine or kernel.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use pd_harness::machine::Machine;
use pd_harness::measure::cpu::Quiet;
use serde_json::{json, Map, Value};

use super::plot;
use crate::row::Row;

/// Digits of a figure that are kept.
const DIGITS: usize = 4;
/// Figures that no document shows: quartiles, and the state of the machine around a round.
const LEFT_OUT: [&str; 6] = ["_quartile_low", "_quartile_high", "cores_", "repeats", "round_s", "steal_s"];

/// A benchmark that has run.
#[derive(Debug)]
pub struct Run<'a> {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// The command that repeats it.
    pub command: &'a str,
    /// The machine before it.
    pub before: Quiet,
    /// The machine after it.
    pub after: Quiet,
    /// Rows that it found.
    pub rows: &'a [Row],
}

impl Run<'_> {
    /// Returns the disturbance of the machine before or after the run, which spoils its figures.
    pub fn disturbance(&self) -> Option<String> {
        self.before.disturbance().or_else(|| self.after.disturbance())
    }
}

/// Writes a run into the machine's results under `dir`, or says why it is discarded.
pub fn record(dir: &Path, machine: &Machine, run: &Run<'_>) -> Result<()> {
    if let Some(disturbance) = run.disturbance() {
        eprintln!("pd: warning: {} is discarded, not recorded: {disturbance}", run.bench);
        return Ok(());
    }
    let dir = dir.join(machine.slug());
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let path = dir.join("results.json");
    let unix_time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (mut runs, mut rows) = earlier(&path, machine)?;
    rows.retain(|row| row["bench"] != run.bench);
    rows.extend(run.rows.iter().map(|row| shortened(row.to_json())));
    let busiest = run.before.background_cores.max(run.after.background_cores);
    let share = run.before.cpu_share.min(run.after.cpu_share);
    let ran = shortened(json!({
        "command": run.command,
        "unix_time_s": unix_time_s,
        "background_cores": busiest,
        "cpu_share": share,
    }));
    runs.insert(run.bench.to_owned(), ran);
    write(&path, &text(machine, &runs, &rows)?)?;
    let ran: Vec<&Row> = run.rows.iter().collect();
    for plot in plot::plots(run.bench) {
        if let Some(svg) = plot::svg(&plot, &ran)? {
            // Ties the plot to the rows that it shows.
            let svg = format!("<!-- {} {unix_time_s} -->\n{svg}", run.bench);
            write(&dir.join(format!("{}-{}.svg", run.bench, plot.y)), &svg)?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Runs and rows that the file has of this machine under this kernel.
fn earlier(path: &Path, machine: &Machine) -> Result<(Map<String, Value>, Vec<Value>)> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(Default::default()) };
    let mut results: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no results.json", path.display()))?;
    let same = ["kernel", "cpu", "cores"].iter().all(|name| {
        serde_json::to_value(machine).is_ok_and(|machine| machine[name] == results["machine"][name])
    });
    let Value::Object(runs) = results["runs"].take() else { return Ok(Default::default()) };
    let Value::Array(rows) = results["rows"].take() else { return Ok(Default::default()) };
    Ok(if same { (runs, rows) } else { Default::default() })
}

/// Returns the text of the file, with a line for each run and for each row.
fn text(machine: &Machine, runs: &Map<String, Value>, rows: &[Value]) -> Result<String> {
    let runs: Vec<String> = runs.iter().map(|(name, run)| format!("\"{name}\": {run}")).collect();
    let rows: Vec<String> = rows.iter().map(Value::to_string).collect();
    Ok(format!(
        "{{\n\"machine\": {},\n\"runs\": {{\n{}\n}},\n\"rows\": [\n{}\n]\n}}\n",
        serde_json::to_string(machine)?,
        runs.join(",\n"),
        rows.join(",\n")
    ))
}

/// Reduces an object to the figures that documents may show, with meaningful digits only.
fn shortened(mut object: Value) -> Value {
    if let Some(object) = object.as_object_mut() {
        object.retain(|name, _| {
            !LEFT_OUT.iter().any(|left_out| name.starts_with(left_out) || name.ends_with(left_out))
                || name == "cores_of_ends"
                || name == "cores_of_all"
        });
    }
    for value in object.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let figure = value.as_f64().filter(|_| value.is_f64());
        if let Some(figure) = figure.and_then(|f| format!("{f:.*e}", DIGITS - 1).parse::<f64>().ok()) {
            *value = json!(figure);
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Metrics;

    const QUIET: Quiet = Quiet { background_cores: 0.0, cpu_share: 1.0 };

    fn rows(bench: &'static str, gbit: f64) -> [Row; 1] {
        let metrics = Metrics::from([("throughput_gbit_per_s", gbit)]);
        [Row::of(bench, "tcp", vec![("message_bytes", json!(65536))], &[metrics])]
    }

    fn read(dir: &Path, machine: &Machine) -> Value {
        let text = fs::read_to_string(dir.join(machine.slug()).join("results.json")).unwrap();
        assert_eq!(
            text.lines().count(),
            text.matches("\"bench\"").count() + text.matches("\"command\"").count() + 7
        );
        serde_json::from_str(&text).unwrap()
    }

    fn recorded(dir: &Path, machine: &Machine, bench: &'static str, gbit: f64, after: Quiet) {
        let rows = rows(bench, gbit);
        let command = "pd bench x";
        record(dir, machine, &Run { bench, command, before: QUIET, after, rows: &rows }).unwrap();
    }

    #[test]
    fn a_benchmark_replaces_its_rows_and_leaves_the_others() {
        let (dir, machine) = (tempfile::tempdir().unwrap(), Machine::describe());
        recorded(dir.path(), &machine, "throughput", 10.0, QUIET);
        recorded(dir.path(), &machine, "latency", 1.0, QUIET);
        recorded(dir.path(), &machine, "throughput", 12.34567, QUIET);
        let results = read(dir.path(), &machine);
        let figures: Vec<_> =
            results["rows"].as_array().unwrap().iter().map(|row| &row["throughput_gbit_per_s"]).collect();
        assert_eq!(figures, [&json!(1.0), &json!(12.35)]);
        assert_eq!(results["rows"][1]["message_bytes"], 65536);
        assert_eq!(results["runs"].as_object().unwrap().len(), 2);
        let svg = dir.path().join(machine.slug()).join("throughput-throughput_gbit_per_s.svg");
        let tied = format!("<!-- throughput {} -->", results["runs"]["throughput"]["unix_time_s"]);
        assert!(fs::read_to_string(svg).unwrap().starts_with(&tied));
    }

    #[test]
    fn figures_under_another_kernel_go() {
        let (dir, machine) = (tempfile::tempdir().unwrap(), Machine::describe());
        recorded(dir.path(), &machine, "throughput", 10.0, QUIET);
        let newer = Machine { kernel: "99.0".to_owned(), ..machine };
        recorded(dir.path(), &newer, "latency", 1.0, QUIET);
        assert_eq!(read(dir.path(), &newer)["rows"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn figures_of_a_disturbed_machine_are_not_recorded() {
        let (dir, machine) = (tempfile::tempdir().unwrap(), Machine::describe());
        let loaded = Quiet { background_cores: 0.5, ..QUIET };
        recorded(dir.path(), &machine, "throughput", 10.0, loaded);
        assert!(!dir.path().join(machine.slug()).exists());
    }
}
