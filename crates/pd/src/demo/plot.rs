//! The demo's picture: grouped bars, throughput on the left, CPU per GB on the right.

use std::path::Path;

use anyhow::{anyhow, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::protocol::{Part, Scheme};
use super::report::SchemeSummary;
use pd_harness::measure::stats::Summary;

const SIZE: (u32, u32) = (1240, 440);
const FONT: &str = "sans-serif";
const SCHEMES: [(Scheme, RGBColor); 7] = [
    (Scheme::Tcp, RGBColor(148, 163, 184)),
    (Scheme::TcpSendfile, RGBColor(100, 116, 139)),
    (Scheme::TcpSendfileUntouched, RGBColor(203, 213, 225)),
    (Scheme::TcpTuned, RGBColor(180, 160, 130)),
    (Scheme::TcpTunedSendfile, RGBColor(140, 115, 80)),
    (Scheme::Pipedevice, RGBColor(13, 148, 136)),
    (Scheme::PipedeviceMediated, RGBColor(94, 190, 180)),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes the picture to `path`.
pub fn write(path: &Path, summary: &[SchemeSummary]) -> Result<()> {
    draw(path, summary).map_err(|e| anyhow!("cannot write the plot {}: {e}", path.display()))
}

fn draw(path: &Path, summary: &[SchemeSummary]) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (charts, legend) = root.split_vertically(SIZE.1 - 40);
    let (left, right) = charts.split_horizontally(SIZE.0 / 2);
    chart(&left, "Throughput, Gbit/s (more is better)", summary, |s| s.gbit_per_s)?;
    chart(&right, "CPU of the whole machine, s per GB (less is better)", summary, |s| s.cpu_s_per_gb)?;
    draw_legend(&legend, summary)?;
    root.present()?;
    Ok(())
}

/// Draws the bars of one figure, with a line from its smallest to its largest value.
fn chart(
    area: &Area<'_>,
    caption: &str,
    summary: &[SchemeSummary],
    figure: fn(&SchemeSummary) -> Summary,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut parts: Vec<Part> = summary.iter().map(|s| s.part).collect();
    parts.dedup();
    let top = summary.iter().map(|s| figure(s).max).fold(0.0, f64::max) * 1.12;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 20))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..parts.len() as f64, 0.0..top.max(1e-9))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .max_light_lines(0)
        .bold_line_style(RGBColor(226, 232, 240))
        .axis_style(RGBColor(148, 163, 184))
        .y_label_style((FONT, 16))
        .y_labels(6)
        .draw()?;
    let label = |size: u32| (FONT, size).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Bottom));
    for (group, part) in parts.iter().enumerate() {
        let bars: Vec<&SchemeSummary> = summary.iter().filter(|s| s.part == *part).collect();
        let width = 0.8 / bars.len() as f64;
        for (n, bar) in bars.iter().enumerate() {
            let left = group as f64 + 0.1 + width * n as f64;
            let (low, high) = (left + width * 0.06, left + width * 0.94);
            let value = figure(bar);
            chart.draw_series([Rectangle::new(
                [(low, 0.0), (high, value.median)],
                color(bar.scheme).filled(),
            )])?;
            let middle = (low + high) / 2.0;
            let spread = [(middle, value.min), (middle, value.max)];
            chart.draw_series([PathElement::new(spread, BLACK.stroke_width(1))])?;
            let (x, y) = chart.backend_coord(&(middle, value.max.max(value.median)));
            let (x0, y0) = area.get_base_pixel();
            area.draw(&Text::new(short(value.median), (x - x0, y - y0 - 4), label(16)))?;
        }
        let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
        let (x0, y0) = area.get_base_pixel();
        area.draw(&Text::new(part.name(), (x - x0, y - y0 + 22), label(19)))?;
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, summary: &[SchemeSummary]) -> Result<(), Box<dyn std::error::Error>> {
    let mut x = 60;
    for (scheme, color) in SCHEMES.iter().filter(|(s, _)| summary.iter().any(|row| row.scheme == *s)) {
        area.draw(&Rectangle::new([(x, 8), (x + 14, 22)], color.filled()))?;
        area.draw(&Text::new(scheme.name(), (x + 20, 8), (FONT, 18)))?;
        x += 54 + 9 * scheme.name().len() as i32;
    }
    Ok(())
}

fn color(scheme: Scheme) -> RGBColor {
    SCHEMES.iter().find(|(s, _)| *s == scheme).map_or(BLACK, |(_, color)| *color)
}

fn short(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_every_bar_and_label() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("demo.svg");
        let row = |part, scheme, v: f64| SchemeSummary {
            part,
            scheme,
            gbit_per_s: Summary::of([v]).unwrap(),
            cpu_s_per_gb: Summary::of([v / 100.0]).unwrap(),
            cores: Summary::of([1.0]).unwrap(),
        };
        let rows = [
            row(Part::File, Scheme::Tcp, 12.0),
            row(Part::File, Scheme::Pipedevice, 50.0),
            row(Part::Bulk, Scheme::Tcp, 13.0),
        ];
        write(&path, &rows).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["Throughput", "CPU of the whole", "file", "bulk", "pipedevice", "0.500"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("tcp-sendfile"));
    }
}
