//! Plots of benchmarks as SVG: lines over a logarithmic axis.

use std::collections::BTreeMap;

use anyhow::{anyhow, Result};
use plotters::prelude::*;

use crate::row::Row;

const SIZE: (u32, u32) = (900, 420);
pub(super) const FONT: &str = "sans-serif";

/// A plot of one figure over one parameter.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// Above it.
    pub title: &'static str,
    /// The parameter along the x axis.
    pub x: &'static str,
    /// The title of the x axis.
    pub x_title: &'static str,
    /// The metric.
    pub y: &'static str,
    /// Tells whether the y axis is logarithmic.
    pub y_log: bool,
    /// Only rows that have this parameter.
    pub only_with: Option<&'static str>,
    /// Only rows that lack these parameters.
    pub only_without: &'static [&'static str],
}

/// Parameters of rows that are no point of a line over the message size.
const CONDITIONS: [&str; 5] = ["connections", "cores_of_ends", "cores_of_all", "waiting", "hugepages"];

/// Returns the plots of a benchmark.
pub fn plots(bench: &str) -> Vec<Plot> {
    let plot = |title, x, x_title, y, y_log| Plot {
        title,
        x,
        x_title,
        y,
        y_log,
        only_with: None,
        only_without: &[],
    };
    let size = ("message_bytes", "message, bytes");
    match bench {
        "throughput" => {
            let rate = "Throughput, Gbit/s (more is better)";
            let cpu = "CPU of the whole machine, s per GB (less is better)";
            [(rate, "throughput_gbit_per_s"), (cpu, "cpu_s_per_gb")]
                .map(|(title, y)| Plot { only_without: &CONDITIONS, ..plot(title, size.0, size.1, y, true) })
                .to_vec()
        }
        "cpu" => vec![
            Plot {
                only_with: Some("target_gbit_per_s"),
                ..plot(
                    "Cores busy at target throughputs (less is better)",
                    "target_gbit_per_s",
                    "target, Gbit/s",
                    "cpu_cores",
                    false,
                )
            },
            Plot {
                only_with: Some("target_gbit_per_s"),
                ..plot(
                    "Throughput reached",
                    "target_gbit_per_s",
                    "target, Gbit/s",
                    "throughput_gbit_per_s",
                    false,
                )
            },
        ],
        "connections" => vec![
            plot(
                "Throughput, of that with 128 connections",
                "connections",
                "connections",
                "throughput_normalised",
                false,
            ),
            plot(
                "Bytes per idle connection",
                "connections",
                "connections",
                "idle_bytes_per_connection",
                true,
            ),
        ],
        "latency" => {
            let p50 = plot("Round trip, P50, us (less is better)", size.0, size.1, "latency_us_p50", true);
            let p99 = plot("Round trip, P99, us (less is better)", size.0, size.1, "latency_us_p99", true);
            [p50, p99].map(|plot| Plot { only_without: &CONDITIONS, ..plot }).to_vec()
        }
        "fairness" => vec![plot(
            "Jain's index (1 is fair)",
            "connections",
            "connections of a pair",
            "jain_index",
            false,
        )],
        "memory" => vec![plot("Memory, bytes", "containers", "containers", "memory_bytes", true)],
        "setup" => {
            let title = "Connections opened, used and closed per second";
            let used = plot(title, "at_a_time", "connections at a time", "connections_per_s", false);
            vec![Plot { only_with: Some("message_bytes"), ..used }]
        }
        _ => Vec::new(),
    }
}

type Series = BTreeMap<String, Vec<(f64, f64)>>;

fn series(plot: &Plot, rows: &[&Row]) -> Series {
    let mut series = Series::new();
    for row in rows {
        let lacks = plot.only_with.is_some_and(|name| row.param(name).is_none());
        if lacks || row.params.iter().any(|(name, _)| plot.only_without.contains(name)) {
            continue;
        }
        let x = row.param(plot.x);
        if let (Some(x), Some(y)) = (x, row.median(plot.y)) {
            series.entry(row.scheme.clone()).or_default().push((x, y));
        }
    }
    series.values_mut().for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    series
}

/// Returns the colour of a scheme: PipeDevice and kernel TCP have fixed ones, others follow `number`.
pub(super) fn color(scheme: &str, number: usize) -> RGBColor {
    match scheme {
        "pipedevice" => RGBColor(13, 148, 136),
        "pipedevice-default" => RGBColor(20, 110, 180),
        "pipedevice-direct" => RGBColor(94, 190, 80),
        "pipedevice-mediated" => RGBColor(94, 190, 180),
        "tcp" => RGBColor(71, 85, 105),
        "tcp-sendfile" => RGBColor(100, 116, 139),
        "tcp-sendfile-untouched" => RGBColor(203, 213, 225),
        "tcp-tuned" => RGBColor(148, 163, 184),
        "tcp-tuned-sendfile" => RGBColor(140, 115, 80),
        _ => {
            let (r, g, b) = Palette99::COLORS[(number + 1) % Palette99::COLORS.len()];
            RGBColor(r, g, b)
        }
    }
}

/// Returns the plot as an SVG element; none if there is nothing to show.
pub fn svg(plot: &Plot, rows: &[&Row]) -> Result<Option<String>> {
    let series = series(plot, rows);
    if series.is_empty() {
        return Ok(None);
    }
    let mut text = String::new();
    draw_lines(&mut text, plot, &series).map_err(|e| anyhow!("cannot draw '{}': {e}", plot.title))?;
    Ok(Some(text))
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
}

fn draw_lines(text: &mut String, plot: &Plot, series: &Series) -> Drawn {
    let points = || series.values().flatten();
    let (x_low, x_high) = bounds(points().map(|p| p.0));
    let (y_low, y_high) = bounds(points().map(|p| p.1).filter(|y| *y > 0.0 || !plot.y_log));
    if !y_low.is_finite() {
        return Ok(());
    }
    // A logarithmic axis needs room on both sides of a single value.
    let x = (x_low.max(1e-9) / 1.2..x_high.max(1e-9) * 1.2).log_scale();
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(&root);
    builder.caption(plot.title, (FONT, 18)).margin(10).x_label_area_size(40).y_label_area_size(70);
    macro_rules! draw {
        ($y:expr) => {{
            let mut chart = builder.build_cartesian_2d(x, $y)?;
            chart
                .configure_mesh()
                .x_desc(plot.x_title)
                .x_label_formatter(&|x| short(*x))
                .y_label_formatter(&|y| short(*y))
                .light_line_style(WHITE)
                .bold_line_style(RGBColor(226, 232, 240))
                .label_style((FONT, 14))
                .draw()?;
            for (n, (scheme, points)) in series.iter().enumerate() {
                let color = color(scheme, n);
                let points: Vec<_> = points.iter().copied().filter(|p| !plot.y_log || p.1 > 0.0).collect();
                chart
                    .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)).point_size(3))?
                    .label(scheme.clone())
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
                chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .label_font((FONT, 13))
                .draw()?;
        }};
    }
    match plot.y_log {
        true => draw!((y_low / 1.3..y_high * 1.3).log_scale()),
        false => draw!(0.0..(y_high * 1.1).max(1e-9)),
    }
    root.present()?;
    Ok(())
}

/// Formats a figure on an axis: powers of 1024 for sizes, thousands for others.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.3}G", v / 1e9).replace(".000", ""),
        v if v >= 1048576.0 && v % 1048576.0 == 0.0 => format!("{}M", v / 1048576.0),
        v if v >= 1024.0 && v % 1024.0 == 0.0 => format!("{}K", v / 1024.0),
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 10.0 || v == v.trunc() => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Metrics;
    use serde_json::json;

    #[test]
    fn a_plot_has_every_scheme_that_ran() {
        let row = |scheme: &str, size: u64, gbit: f64| {
            let metrics = Metrics::from([("throughput_gbit_per_s", gbit), ("cpu_s_per_gb", 1.0 / gbit)]);
            Row::of("throughput", scheme, vec![("message_bytes", json!(size))], &[metrics])
        };
        let rows =
            [row("tcp", 64, 0.5), row("tcp", 65536, 20.0), row("pipedevice", 64, 1.0), row("unix", 64, 0.8)];
        let not = Row::not_run("throughput", "ucx", vec![("message_bytes", json!(64))], "missing".into());
        let rows: Vec<&Row> = rows.iter().chain([&not]).collect();
        for plot in plots("throughput") {
            let svg = svg(&plot, &rows).unwrap().unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("pipedevice") && svg.contains("unix"));
            assert!(!svg.contains("ucx"));
        }
    }

    #[test]
    fn every_benchmark_s_plots_survive_rows_without_figures() {
        for bench in crate::cli::names() {
            for plot in plots(bench) {
                assert!(svg(&plot, &[]).unwrap().is_none());
            }
        }
    }
}
