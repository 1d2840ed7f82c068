//! Report of a run: one self-contained HTML page, and `results.json` beside it.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use pd_harness::machine::Machine;
use serde::Serialize;
use serde_json::Value;

use super::plot;
use super::tables::{columns, cores, figure, settings};
use crate::baseline;
use crate::bench::{isolation, tune, Bench};
use crate::catalogue::{LIMITS, PEERS};
use crate::row::Row;

const STYLE: &str =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#0f172a}\
h1,h2{line-height:1.2}table{border-collapse:collapse;font-size:14px;margin:1em 0}\
th,td{padding:.25em .7em;border-bottom:1px solid #e2e8f0;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}tr.pd td{background:#f0fdfa;font-weight:600}\
td.x{color:#94a3b8}code{background:#f1f5f9;padding:.1em .3em}svg{max-width:100%;height:auto}";

/// Everything of a run.
#[derive(Debug)]
pub struct Report {
    /// Machine of the run.
    pub machine: Machine,
    /// Cores that others kept busy before the first round.
    pub background_cores: f64,
    /// Options of the command that all benchmarks had.
    pub options: String,
    /// The results.
    pub rows: Vec<Row>,
}

#[derive(Serialize)]
struct Results<'a> {
    machine: &'a Machine,
    background_cores: f64,
    unix_time_s: u64,
    rows: Vec<Value>,
}

impl Report {
    /// Writes `index.html` and `results.json` to `dir`.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let write = |name: &str, text: String| {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let unix_time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let results = Results {
            machine: &self.machine,
            background_cores: self.background_cores,
            unix_time_s,
            rows: self.rows.iter().map(Row::to_json).collect(),
        };
        write("results.json", serde_json::to_string_pretty(&results)? + "\n")?;
        write("index.html", self.html()?)
    }

    /// Returns the page.
    pub fn html(&self) -> Result<String> {
        let mut page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>PipeDevice: benchmarks</title>\
             <style>{STYLE}</style><h1>PipeDevice beside its peers</h1>\n"
        );
        page += "<p>Schemes take turns round by round. Both sides of every scheme touch every byte and agree on \
                 a checksum. CPU time is that of the whole machine. Figures are medians over the rounds, with \
                 the smallest and the largest. Ratios to TCP are to the better of <code>tcp</code>, Linux's default, and \
                 <code>tcp-tuned</code>.</p>\n";
        page += &self.machine_table();
        for bench in Bench::ALL {
            page += &self.section(bench)?;
        }
        page += &tunings();
        page += "</html>\n";
        Ok(page)
    }

    fn machine_table(&self) -> String {
        let machine = &self.machine;
        let rows = [
            ("processor", format!("{}, {} cores", machine.cpu, machine.cores)),
            ("memory", format!("{:.1} GB", machine.memory_bytes as f64 / 1e9)),
            ("kernel", machine.kernel.clone()),
            ("hugepages of 2 MB", machine.hugepages.to_string()),
            (
                "TCP of the machine (each scheme's own: below)",
                format!(
                    "{} of {}; wmem {}; rmem {}",
                    machine.tcp_congestion_control,
                    machine.tcp_available_congestion_control,
                    machine.tcp_wmem,
                    machine.tcp_rmem
                ),
            ),
            ("bridged packets pass iptables", machine.bridge_netfilter.to_string()),
            ("frequency governor", or_none(&machine.frequency_governor)),
            ("transparent hugepages", machine.transparent_hugepages.clone()),
            ("cores that others kept busy", format!("{:.2}", self.background_cores)),
        ];
        let cells = rows.iter().map(|(name, value)| format!("<tr><th>{name}<td>{}", escape(value)));
        format!("<h2>Machine</h2><table>{}</table>\n", cells.collect::<String>())
    }

    fn section(&self, bench: Bench) -> Result<String> {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.bench == bench.name()).collect();
        if rows.is_empty() {
            return Ok(String::new());
        }
        let mut html = format!("<h2>{}</h2>\n", escape(bench.title()));
        html += &format!("<p><code>pd bench {}{}</code></p>\n", bench.name(), escape(&self.options));
        for plot in plot::plots(bench.name()) {
            html += &plot::svg(&plot, &rows)?.unwrap_or_default();
        }
        html += &table(bench.name(), &rows);
        if bench == Bench::Tune {
            html += &format!("<p>{}</p>\n", escape(&tune::verdict(&rows)));
        }
        if bench == Bench::Isolation {
            html += &format!("<p>{}</p>\n", escape(&isolation::verdict(&rows)).replace('\n', "<br>"));
        }
        let said = settings(&rows);
        if !said.is_empty() {
            let lines = said.iter().map(|(scheme, text)| format!("<tr><td>{scheme}<td>{}", escape(text)));
            html += &format!("<p>What both ends had:</p><table>{}</table>\n", lines.collect::<String>());
        }
        if let Some(cores) = cores(&rows) {
            html += &format!("<p>{}</p>\n", escape(&cores));
        }
        Ok(html)
    }
}

fn table(bench: &str, rows: &[&Row]) -> String {
    let columns = columns(bench);
    let mut html = String::from("<table><tr><th>scheme<th>parameters");
    for (_, title, _) in columns {
        html += &format!("<th>{}", escape(title));
    }
    let compared = baseline::is_in(rows);
    for (_, title) in baseline::RATIOS.iter().filter(|_| compared) {
        html += &format!("<th>{title}");
    }
    let winners = baseline::winners(bench, rows);
    let won = winners.iter().any(|winner| !winner.is_empty());
    if won {
        html += "<th>wins";
    }
    for (row, winner) in rows.iter().zip(winners) {
        html += if row.scheme.starts_with("pipedevice") { "<tr class=pd>" } else { "<tr>" };
        html += &format!("<td>{}<td>{}", escape(&row.scheme), escape(&row.params_text()));
        if let Some(reason) = &row.not_run {
            html += &format!("<td class=x colspan={}>not run: {}", columns.len() + 2, escape(reason));
            continue;
        }
        for (metric, _, decimals) in columns {
            let text = row.metrics.get(metric).map_or(String::new(), |s| {
                let figure = |value| figure(value, *decimals);
                format!("<span title=\"{}..{}\">{}</span>", figure(s.min), figure(s.max), figure(s.median))
            });
            html += &format!("<td class=n>{text}");
        }
        for (ratio, _) in baseline::RATIOS.iter().filter(|_| compared) {
            html +=
                &format!("<td class=n>{}", row.median(ratio).map_or(String::new(), |ratio| figure(ratio, 2)));
        }
        if won {
            html += &format!("<td>{}", escape(winner));
        }
        if let Some((metric, _, decimals)) = columns.first() {
            if let Some(s) = row.metrics.get(metric) {
                html += &format!("<td class=x>({}..{})", figure(s.min, *decimals), figure(s.max, *decimals));
            }
        }
    }
    html + "</table>\n"
}

fn tunings() -> String {
    let rows = PEERS
        .iter()
        .chain(&LIMITS)
        .map(|scheme| format!("<tr><td>{}<td>{}", scheme.name(), escape(&scheme.tuning())));
    format!("<h2>How each scheme is run</h2><table>{}</table>\n", rows.collect::<String>())
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "none" } else { text }.to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Metrics;
    use serde_json::json;

    fn report() -> Report {
        let metrics = Metrics::from([("throughput_gbit_per_s", 12.5), ("cpu_s_per_gb", 0.5)]);
        let size = || vec![("message_bytes", json!(65536))];
        Report {
            machine: Machine::describe(),
            background_cores: 0.0,
            options: " --quick".into(),
            rows: vec![
                Row::of("throughput", "pipedevice", size(), std::slice::from_ref(&metrics)),
                Row::of("throughput", "tcp", size(), std::slice::from_ref(&metrics)),
                Row::not_run("throughput", "sockmap", size(), "BPF <not> permitted".into()),
            ],
        }
    }

    #[test]
    fn the_page_stands_alone_and_says_what_did_not_run() {
        let html = report().html().unwrap();
        for text in ["<svg", "pd bench throughput --quick", "not run: BPF &lt;not&gt; permitted", "12.50"] {
            assert!(html.contains(text), "{text}");
        }
        for fetched in ["<script", "<link", "src=", "url("] {
            assert!(!html.contains(fetched), "{fetched}");
        }
    }

    #[test]
    fn results_are_rows_beside_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        report().write(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join("results.json")).unwrap();
        let results: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(results["rows"].as_array().unwrap().len(), 3);
        assert!(results["machine"]["kernel"].is_string());
        assert!(dir.path().join("index.html").exists());
    }
}
