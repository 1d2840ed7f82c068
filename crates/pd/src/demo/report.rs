//! Results of the demo: medians and spreads per scheme, PipeDevice compared with the best form of kernel TCP, and whether the
//! bars are reached.

use std::path::PathBuf;

use comfy_table::{presets, CellAlignment, Table};
use pd_bench::report::bars::{Bar as Drawn, Chart};
use pd_harness::measure::stats::Summary;
use serde::Serialize;

use super::cells::Sample;
use super::schemes::{Part, Scheme};

/// A bar: the ratios to the best of kernel TCP that PipeDevice must reach.
struct Bar {
    part: Part,
    scheme: Scheme,
    throughput_min: f64,
    cpu_max: f64,
}

const BARS: [Bar; 4] = [
    Bar { part: Part::File, scheme: Scheme::Pipedevice, throughput_min: 2.0, cpu_max: 0.55 },
    Bar { part: Part::File, scheme: Scheme::PipedeviceMediated, throughput_min: 1.2, cpu_max: 1.0 },
    Bar { part: Part::Bulk, scheme: Scheme::Pipedevice, throughput_min: 2.8, cpu_max: 0.45 },
    Bar { part: Part::Bulk, scheme: Scheme::PipedeviceMediated, throughput_min: 1.7, cpu_max: 1.0 },
];

/// A scheme over all rounds of a part.
#[derive(Clone, Debug, Serialize)]
pub struct SchemeSummary {
    /// Part of the demo.
    pub part: Part,
    /// The scheme.
    pub scheme: Scheme,
    /// Throughput.
    pub gbit_per_s: Summary,
    /// CPU time of the whole machine for every 10^9 bytes.
    pub cpu_s_per_gb: Summary,
    /// Cores busy at that throughput.
    pub cores: Summary,
}

/// PipeDevice over the best of kernel TCP, taken round by round.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Part of the demo.
    pub part: Part,
    /// The scheme of PipeDevice.
    pub scheme: Scheme,
    /// `throughput` or `cpu_s_per_gb`.
    pub figure: &'static str,
    /// The best of kernel TCP.
    pub baseline: Scheme,
    /// The ratio.
    pub ratio: Summary,
    /// The bar: the least ratio for throughput, the most for CPU.
    pub bar: f64,
    /// Tells whether the median is.
    pub reached: bool,
}

/// Settings of a scheme's connection, as both ends report them.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The scheme.
    pub scheme: Scheme,
    /// A congestion control, or a path.
    pub has: String,
}

/// A file that was streamed.
#[derive(Clone, Debug, Serialize)]
pub struct FileRow {
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file.
    pub bytes: u64,
}

/// A scheme that brought every byte of the source unchanged.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// The scheme.
    pub scheme: Scheme,
    /// SHA-256 of the received bytes.
    pub sha256: String,
}

/// Everything the demo found, as written to `demo.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: pd_harness::machine::Machine,
    /// Bytes of one message.
    pub message_bytes: u64,
    /// Memory that senders send from.
    pub window_bytes: u64,
    /// PipeDevice's rings.
    pub ring_bytes: u64,
    /// PipeDevice's engine.
    pub engine: String,
    /// Cores that others kept busy before the first round.
    pub background_cores: f64,
    /// Settings of the connections.
    pub settings: Vec<Setting>,
    /// Files that were streamed.
    pub files: Vec<FileRow>,
    /// SHA-256 of all files.
    pub sha256: String,
    /// Schemes whose received bytes had that SHA-256.
    pub verified: Vec<Verified>,
    /// Every round of every scheme.
    pub rounds: Vec<Sample>,
    /// Medians and spreads.
    pub summary: Vec<SchemeSummary>,
    /// Ratios and bars.
    pub comparisons: Vec<Comparison>,
}

/// Medians and spreads per part and scheme, in the order of the enumerations.
pub fn summarise(samples: &[Sample]) -> Vec<SchemeSummary> {
    let mut keys: Vec<(Part, Scheme)> = samples.iter().map(|s| (s.part, s.scheme)).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .filter_map(|(part, scheme)| {
            let figures = |figure: fn(&Sample) -> f64| {
                Summary::of(samples.iter().filter(|s| (s.part, s.scheme) == (part, scheme)).map(figure))
            };
            Some(SchemeSummary {
                part,
                scheme,
                gbit_per_s: figures(|s| s.gbit_per_s)?,
                cpu_s_per_gb: figures(|s| s.cpu_s_per_gb)?,
                cores: figures(|s| s.cores)?,
            })
        })
        .collect()
}

/// Compares PipeDevice with the best form of kernel TCP in every part that has both.
pub fn compare(samples: &[Sample], summary: &[SchemeSummary]) -> Vec<Comparison> {
    BARS.iter().filter_map(|bar| compare_with(bar, samples, summary)).flatten().collect()
}

fn compare_with(bar: &Bar, samples: &[Sample], summary: &[SchemeSummary]) -> Option<[Comparison; 2]> {
    let scheme = bar.scheme;
    let baseline = best_baseline(summary, bar.part)?;
    let of = |scheme: Scheme| samples.iter().filter(move |s| s.part == bar.part && s.scheme == scheme);
    let same_round = |own: &Sample| of(baseline).find(|other| other.round == own.round);
    let ratio = |figure: fn(&Sample) -> f64| {
        Summary::of(of(scheme).filter_map(|own| Some(figure(own) / figure(same_round(own)?))))
    };
    let (throughput, cpu) = (ratio(|s| s.gbit_per_s)?, ratio(|s| s.cpu_s_per_gb)?);
    Some([
        Comparison {
            part: bar.part,
            scheme,
            figure: "throughput",
            baseline,
            ratio: throughput,
            bar: bar.throughput_min,
            reached: throughput.median >= bar.throughput_min,
        },
        Comparison {
            part: bar.part,
            scheme,
            figure: "cpu_s_per_gb",
            baseline,
            ratio: cpu,
            bar: bar.cpu_max,
            reached: cpu.median <= bar.cpu_max,
        },
    ])
}

/// Returns the fastest form of kernel TCP in a part, by median throughput.
pub fn best_baseline(summary: &[SchemeSummary], part: Part) -> Option<Scheme> {
    summary
        .iter()
        .filter(|s| s.part == part && s.scheme.in_catalogue().is_baseline())
        .max_by(|a, b| a.gbit_per_s.median.total_cmp(&b.gbit_per_s.median))
        .map(|s| s.scheme)
}

impl Report {
    /// Returns the tables as text for people.
    pub fn tables(&self) -> String {
        let mut text = self.scheme_table().to_string();
        for Setting { scheme, has } in &self.settings {
            text.push_str(&format!("\n{}: {has}", scheme.name()));
        }
        if !self.comparisons.is_empty() {
            text.push_str("\n\n");
            text.push_str(&self.comparison_table().to_string());
        }
        text
    }

    /// Returns the picture's two charts.
    pub fn charts(&self) -> [Chart; 2] {
        let bars = |figure: fn(&SchemeSummary) -> Summary| {
            let bar = |row: &SchemeSummary| Drawn {
                group: row.part.name(),
                scheme: row.scheme.name(),
                value: figure(row),
            };
            self.summary.iter().map(bar).collect()
        };
        [
            Chart { caption: "Throughput, Gbit/s (more is better)", bars: bars(|row| row.gbit_per_s) },
            Chart {
                caption: "CPU of the whole machine, s per GB (less is better)",
                bars: bars(|row| row.cpu_s_per_gb),
            },
        ]
    }

    /// Returns a line for each verified scheme.
    pub fn verified(&self) -> String {
        let bytes: u64 = self.files.iter().map(|file| file.bytes).sum();
        let line = |verified: &Verified| {
            let engine = match verified.scheme.in_catalogue().is_pipedevice() {
                true => format!(" (engine {})", self.engine),
                false => String::new(),
            };
            format!(
                "{}{engine}: {bytes} bytes, SHA-256 {} as in the files",
                verified.scheme.name(),
                verified.sha256
            )
        };
        self.verified.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn scheme_table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["part", "scheme", "Gbit/s", "(min..max)", "CPU s/GB", "(min..max)", "cores"]);
        for row in &self.summary {
            let best = best_baseline(&self.summary, row.part) == Some(row.scheme);
            let marked = if best { format!("{} *", row.scheme.name()) } else { row.scheme.name().to_owned() };
            table.add_row([
                row.part.name().to_owned(),
                marked,
                format!("{:.1}", row.gbit_per_s.median),
                format!("{:.1}..{:.1}", row.gbit_per_s.min, row.gbit_per_s.max),
                format!("{:.3}", row.cpu_s_per_gb.median),
                format!("{:.3}..{:.3}", row.cpu_s_per_gb.min, row.cpu_s_per_gb.max),
                format!("{:.2}", row.cores.median),
            ]);
        }
        align_right(&mut table, &[2, 3, 4, 5, 6]);
        table
    }

    fn comparison_table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["part", "scheme", "over best TCP (*)", "ratio", "(min..max)", "bar", ""]);
        for row in &self.comparisons {
            let (name, sign) = match row.figure {
                "throughput" => ("throughput", ">="),
                _ => ("CPU seconds per GB", "<="),
            };
            table.add_row([
                row.part.name().to_owned(),
                row.scheme.name().to_owned(),
                name.to_owned(),
                format!("{:.2}", row.ratio.median),
                format!("{:.2}..{:.2}", row.ratio.min, row.ratio.max),
                format!("{sign} {:.2}", row.bar),
                if row.reached { "reached" } else { "NOT reached" }.to_owned(),
            ]);
        }
        align_right(&mut table, &[3, 4, 5]);
        table
    }
}

fn align_right(table: &mut Table, columns: &[usize]) {
    for &column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(scheme: Scheme, round: u32, gbit_per_s: f64, cpu_s_per_gb: f64) -> Sample {
        Sample {
            part: Part::File,
            scheme,
            round,
            bytes: 1,
            seconds: 1.0,
            gbit_per_s,
            cpu_s: 1.0,
            cpu_s_per_gb,
            cores: 1.0,
            steal_s: 0.0,
            sender_cpu_s: None,
            receiver_cpu_s: None,
            driver_cpu_s: None,
            checksum: String::new(),
        }
    }

    #[test]
    fn the_faster_tcp_is_the_baseline_and_the_untouched_one_never_is() {
        let samples = [
            sample(Scheme::Tcp, 1, 10.0, 1.0),
            sample(Scheme::TcpSendfile, 1, 12.0, 0.8),
            sample(Scheme::TcpSendfileUntouched, 1, 20.0, 0.5),
            // Rounds are paired by number, not by position.
            sample(Scheme::Pipedevice, 2, 30.0, 0.2),
            sample(Scheme::Pipedevice, 1, 60.0, 0.2),
            sample(Scheme::TcpSendfile, 2, 6.0, 0.8),
            sample(Scheme::TcpSendfile, 3, 12.0, 0.8),
            sample(Scheme::Pipedevice, 3, 60.0, 0.4),
        ];
        let summary = summarise(&samples);
        assert_eq!(summary.len(), 4);
        let comparisons = compare(&samples, &summary);
        assert_eq!(comparisons.len(), 2);
        assert_eq!(comparisons[0].baseline, Scheme::TcpSendfile);
        assert_eq!((comparisons[0].ratio.min, comparisons[0].ratio.max), (5.0, 5.0));
        assert!(comparisons[0].reached);
        assert!((comparisons[1].ratio.median - 0.25).abs() < 1e-9 && comparisons[1].reached);
    }

    #[test]
    fn tuned_tcp_is_the_baseline_where_it_is_faster_and_both_paths_are_compared_with_it() {
        let samples = [
            sample(Scheme::TcpSendfile, 1, 12.0, 0.8),
            sample(Scheme::TcpTunedSendfile, 1, 20.0, 0.5),
            sample(Scheme::Pipedevice, 1, 100.0, 0.1),
            sample(Scheme::PipedeviceMediated, 1, 60.0, 0.2),
        ];
        let comparisons = compare(&samples, &summarise(&samples));
        assert!(comparisons.iter().all(|c| c.baseline == Scheme::TcpTunedSendfile));
        let throughput = comparisons.iter().filter(|c| c.figure == "throughput");
        let ratios: Vec<_> = throughput.map(|c| (c.scheme, c.ratio.median)).collect();
        assert_eq!(ratios, [(Scheme::Pipedevice, 5.0), (Scheme::PipedeviceMediated, 3.0)]);
    }

    #[test]
    fn without_pipedevice_nothing_is_compared() {
        let samples = [sample(Scheme::Tcp, 1, 10.0, 1.0)];
        assert!(compare(&samples, &summarise(&samples)).is_empty());
    }
}
