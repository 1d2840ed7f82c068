//! A picture of grouped bars, several charts beside each other.

use std::path::Path;

use anyhow::{anyhow, Result};
use pd_harness::measure::stats::Summary;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::plot::{color, FONT};

/// Pixels of a chart, and of the legend below all.
const CHART: (u32, u32) = (620, 400);
const LEGEND: u32 = 40;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The group that it stands in. Bars of a group follow each other.
    pub group: &'static str,
    /// The scheme, which decides its colour.
    pub scheme: &'static str,
    /// The bar's height, and the line from the smallest to the largest value.
    pub value: Summary,
}

/// Bars of one figure.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The text above it.
    pub caption: &'static str,
    /// From left to right.
    pub bars: Vec<Bar>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes the charts, of the same schemes, to `path` as SVG.
pub fn write(path: &Path, charts: &[Chart]) -> Result<()> {
    draw(path, charts).map_err(|e| anyhow!("cannot write the plot {}: {e}", path.display()))
}

fn draw(path: &Path, charts: &[Chart]) -> Result<(), Box<dyn std::error::Error>> {
    let size = (CHART.0 * charts.len() as u32, CHART.1 + LEGEND);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, legend) = root.split_vertically(CHART.1);
    for (area, chart) in above.split_evenly((1, charts.len())).iter().zip(charts) {
        draw_chart(area, chart)?;
    }
    draw_legend(&legend, charts.first().map_or(&[], |chart| &chart.bars))?;
    root.present()?;
    Ok(())
}

fn draw_chart(area: &Area<'_>, chart: &Chart) -> Result<(), Box<dyn std::error::Error>> {
    let Chart { caption, bars } = chart;
    let mut groups: Vec<&str> = bars.iter().map(|bar| bar.group).collect();
    groups.dedup();
    let top = bars.iter().map(|bar| bar.value.max).fold(0.0, f64::max) * 1.12;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 20))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..groups.len() as f64, 0.0..top.max(1e-9))?;
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
    for (group, name) in groups.iter().enumerate() {
        let bars: Vec<&Bar> = bars.iter().filter(|bar| bar.group == *name).collect();
        let width = 0.8 / bars.len() as f64;
        for (n, bar) in bars.iter().enumerate() {
            let left = group as f64 + 0.1 + width * n as f64;
            let (low, high) = (left + width * 0.06, left + width * 0.94);
            let value = bar.value;
            chart.draw_series([Rectangle::new(
                [(low, 0.0), (high, value.median)],
                color(bar.scheme, 0).filled(),
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
        area.draw(&Text::new(*name, (x - x0, y - y0 + 22), label(19)))?;
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, bars: &[Bar]) -> Result<(), Box<dyn std::error::Error>> {
    let mut x = 60;
    let mut drawn: Vec<&str> = Vec::new();
    for Bar { scheme, .. } in bars {
        if drawn.contains(scheme) {
            continue;
        }
        drawn.push(scheme);
        area.draw(&Rectangle::new([(x, 8), (x + 14, 22)], color(scheme, 0).filled()))?;
        area.draw(&Text::new(*scheme, (x + 20, 8), (FONT, 18)))?;
        x += 54 + 9 * scheme.len() as i32;
    }
    Ok(())
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
        let bar = |group, scheme, v: f64| Bar { group, scheme, value: Summary::of([v]).unwrap() };
        let bars = vec![bar("file", "tcp", 12.0), bar("file", "pipedevice", 50.0), bar("bulk", "tcp", 0.5)];
        let chart = |caption| Chart { caption, bars: bars.clone() };
        write(&path, &[chart("Throughput"), chart("CPU of the whole machine")]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["Throughput", "CPU of the whole", "file", "bulk", "pipedevice", "0.500"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("tcp-sendfile"));
    }
}
