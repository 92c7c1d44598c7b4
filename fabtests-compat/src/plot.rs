//! Benchmark results as an SVG picture: time and bandwidth over size, both libraries and the
//! machine's limits.

use crate::{Measured, Report};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

type Points = Vec<(f64, f64)>;

/// One curve: its name, whether it is ours, and the points.
struct Curve<'a> {
    program: &'a str,
    ours: bool,
    points: Points,
}

/// Curves of every program of both libraries; `y` picks from (microseconds, MB/s).
fn curves(rows: &[Measured], y: impl Fn((f64, f64)) -> f64) -> Vec<Curve<'_>> {
    let mut all: BTreeMap<(&str, bool), Points> = BTreeMap::new();
    for m in rows {
        for (ours, v) in [(true, m.ours), (false, m.peer)] {
            if let Some(v) = v {
                let at = all.entry((m.program.as_str(), ours)).or_default();
                at.push((m.bytes as f64, y(v)));
            }
        }
    }
    let curve = |((program, ours), points)| Curve {
        program,
        ours,
        points,
    };
    all.into_iter().map(curve).collect()
}

/// The smallest and largest of some values, with room around.
fn range(v: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let low = v.clone().fold(f64::INFINITY, f64::min);
    let high = v.fold(0.0, f64::max);
    low * 0.7..high * 1.4
}

fn panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    title: &str,
    unit: &str,
    curves: &[Curve],
    limits: &[(&str, f64)],
) -> Result<(), String>
where
    DB::ErrorType: 'static,
{
    let e = |e: DrawingAreaErrorKind<DB::ErrorType>| e.to_string();
    let points = || curves.iter().flat_map(|c| c.points.iter().copied());
    let x = range(points().map(|p| p.0));
    let y = range(points().map(|p| p.1).chain(limits.iter().map(|l| l.1)));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 26))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(x.clone().log_scale(), y.log_scale())
        .map_err(e)?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(unit)
        .draw()
        .map_err(e)?;
    for (name, v) in limits {
        let line = LineSeries::new([(x.start, *v), (x.end, *v)], BLACK.mix(0.35));
        chart.draw_series(line).map_err(e)?;
        // To the right of the legend.
        let at = (x.start.powf(0.5) * x.end.powf(0.5), *v);
        let note = Text::new(name.to_string(), at, ("sans-serif", 14).into_font());
        chart.draw_series([note]).map_err(e)?;
    }
    let programs: Vec<&str> = curves.iter().map(|c| c.program).collect();
    for c in curves {
        let color = Palette99::pick(programs.iter().position(|p| *p == c.program).unwrap_or(0));
        let style = color.stroke_width(if c.ours { 3 } else { 1 });
        let who = if c.ours { "ours" } else { "peer" };
        let line = LineSeries::new(c.points.iter().copied(), style).point_size(3);
        chart
            .draw_series(line)
            .map_err(e)?
            .label(format!("{} ({who})", c.program))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    chart
        .configure_series_labels()
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.8))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()
        .map_err(e)
}

/// Writes the picture, an SVG. Errors say what is missing.
pub fn draw(r: &Report, file: &Path) -> Result<(), String> {
    if r.rows.iter().all(|m| m.ours.is_none() && m.peer.is_none()) {
        return Err("--plot: nothing was measured".into());
    }
    let f = &r.floors;
    let root = SVGBackend::new(file, (1700, 800)).into_drawing_area();
    let e = |e: DrawingAreaErrorKind<_>| format!("--plot: {}: {e}", file.display());
    root.fill(&WHITE).map_err(e)?;
    let (left, right) = root.split_horizontally(850);
    let hand_over = [("cache line from core to core", f.hand_over_ns / 1000.0)];
    panel(
        &left,
        "Time per transfer",
        "microseconds",
        &curves(&r.rows, |v| v.0),
        &hand_over,
    )?;
    let copies = [
        ("memcpy", f.memcpy_gb * 1000.0),
        ("process_vm_writev", f.attach_gb * 1000.0),
    ];
    let copies: Vec<_> = copies.into_iter().filter(|c| c.1 > 0.0).collect();
    panel(
        &right,
        "Bandwidth",
        "MB/s",
        &curves(&r.rows, |v| v.1),
        &copies,
    )?;
    root.present().map_err(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_curves_by_program_and_library() {
        let row = |bytes, peer| Measured {
            runs: 5,
            disturbed: false,
            program: "p".into(),
            bytes,
            ours: Some((1.0, 2.0)),
            peer,
            ratio: None,
            floor: None,
        };
        let rows = [row(8, Some((3.0, 4.0))), row(64, None)];
        let c = curves(&rows, |v| v.1);
        assert_eq!(c.len(), 2);
        assert_eq!((c[0].ours, &c[0].points[..]), (false, &[(8.0, 4.0)][..]));
        assert_eq!(c[1].points, [(8.0, 2.0), (64.0, 2.0)]);
        assert_eq!(range([2.0, 10.0].into_iter()), 1.4..14.0);
    }
}
