//! Charts as SVG, drawn by plotters: layers stacked over time, grouped bars, lines and points, over
//! linear and logarithmic axes. They are readable on a light and on a dark page.
//!
//! ```
//! use memcg_report::chart::{Axis, Chart, Series, Unit, WIDE};
//!
//! let chart = Chart::new("Stranded bytes against the cost of a charge")
//!     .note("2 threads, 1 second each")
//!     .x(Axis::new("nanoseconds for a charge and its return").log())
//!     .y(Axis::new("bytes stranded in stocks").unit(Unit::Bytes).log())
//!     .with(Series::line("1 counter").at(2.4, 524_288.0).at(57.0, 0.0).labelled("no stock"))
//!     .rule("a stock of 256 KiB", 262_144.0);
//! let text = chart.svg(WIDE);
//! assert!(text.starts_with("<svg") && text.contains("no stock"));
//! ```

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::terminal::wrap;

/// Width and height of a picture that is as wide as a page. Its text is 12 high.
pub const WIDE: (u32, u32) = (860, 400);

/// A dark page shows the picture with its lightness turned round, in the same hues.
const DARK: &str =
    "<style>@media(prefers-color-scheme:dark){svg{filter:invert(1) hue-rotate(180deg)}}</style>";

/// Eight that differ for readers who see no red or green, after Okabe and Ito (2008), made darker
/// for white.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(198, 81, 2),
    RGBColor(0, 128, 94),
    RGBColor(166, 58, 121),
    RGBColor(138, 109, 0),
    RGBColor(45, 143, 192),
    RGBColor(107, 63, 160),
    RGBColor(110, 119, 129),
];
const TEXT: RGBColor = RGBColor(31, 35, 40);
const MUTED: RGBColor = RGBColor(89, 99, 110);
const GRID: RGBColor = RGBColor(216, 222, 228);

/// Between the edge of the picture and what it shows.
const EDGE: i32 = 14;

/// A line with more points than this is drawn without marks.
const MARKS_MAX: usize = 40;

/// The unit of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A number.
    #[default]
    Count,
    /// Bytes in binary units: `64 KiB`.
    Bytes,
    /// Of a hundred: `12.5 %`.
    Percent,
    /// Seconds: `3 s`.
    Seconds,
}

impl Unit {
    fn format(self, value: f64) -> String {
        // Three digits, and no zeros at the end of a fraction.
        let rounded = |value: f64| (value * 100.0).round() / 100.0;
        match self {
            Self::Count => rounded(value).to_string(),
            Self::Bytes => {
                let power = (value.max(1.0).log2() / 10.0).floor().min(4.0);
                let unit = ["B", "KiB", "MiB", "GiB", "TiB"][power as usize];
                format!("{} {unit}", rounded(value / (10.0 * power).exp2()))
            }
            Self::Percent => format!("{} %", rounded(value)),
            Self::Seconds => format!("{} s", rounded(value)),
        }
    }
}

/// One of the two axes.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    label: String,
    unit: Unit,
    log: bool,
    most: f64,
    names: Vec<String>,
}

impl Axis {
    /// A linear axis from 0 to the most, with a label.
    pub fn new(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            ..Self::default()
        }
    }

    /// Sets the unit that it counts.
    #[must_use]
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Equal distances for equal ratios. Figures of 0 and less stand at the lower edge, whose tick
    /// says `0`.
    #[must_use]
    pub fn log(mut self) -> Self {
        self.log = true;
        self
    }

    /// Ends here or beyond.
    #[must_use]
    pub fn to(mut self, most: f64) -> Self {
        self.most = most;
        self
    }

    /// Names in the place of figures, for bars.
    #[must_use]
    pub fn categories<Name: Into<String>>(mut self, names: impl IntoIterator<Item = Name>) -> Self {
        self.names = names.into_iter().map(Into::into).collect();
        self
    }

    /// The scale that holds all of `values`. `rounded`: it ends on a tick.
    fn scale(&self, values: impl Iterator<Item = f64> + Clone, rounded: bool) -> Scale {
        let most = values.clone().fold(self.most, f64::max);
        let mut scale = Scale {
            axis: self.clone(),
            range: 0.0..most,
            ticks: Vec::new(),
        };
        if !self.names.is_empty() {
            scale.range = -0.5..self.names.len() as f64 - 0.5;
            scale.ticks = (0..self.names.len()).map(|at| at as f64).collect();
        } else if self.log {
            let base: f64 = if self.unit == Unit::Bytes { 2.0 } else { 10.0 };
            let least = values
                .clone()
                .filter(|&value| value > 0.0)
                .fold(most, f64::min);
            let (most, least) = if most > 0.0 {
                (most, least)
            } else {
                (base, 1.0)
            };
            let powers = least.log(base).floor() as i32..=most.log(base).ceil() as i32;
            let parts: &[f64] = if base > 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let all =
                powers.flat_map(|power| parts.iter().map(move |part| part * base.powi(power)));
            scale.ticks = all
                .filter(|&tick| tick > least / base && tick < most * base)
                .collect();
            let stride = scale.ticks.len().div_ceil(10).max(1);
            scale.ticks = scale.ticks.into_iter().step_by(stride).collect();
            scale.range =
                scale.ticks.first().copied().unwrap_or(least).min(least)..most * base.sqrt();
            if values.clone().any(|value| value <= 0.0) {
                scale.range.start /= base.powi(if base > 2.0 { 1 } else { stride as i32 });
                scale.ticks.insert(0, 0.0);
            }
        } else {
            let raw = (if most > 0.0 { most } else { 1.0 }) / 8.0;
            let power = 10_f64.powf(raw.log10().floor());
            let step = match [1.0, 2.0, 5.0]
                .map(|part| part * power)
                .into_iter()
                .find(|&step| step >= raw)
            {
                _ if self.unit == Unit::Bytes => raw.max(1.0).log2().ceil().exp2(),
                step => step.unwrap_or(10.0 * power),
            };
            let last = if rounded {
                (most / step).ceil().max(1.0)
            } else {
                most / step
            };
            scale.range.end = last * step;
            scale.ticks = (0..=last as u32).map(|at| f64::from(at) * step).collect();
        }
        scale
    }
}

/// An axis for certain figures.
#[derive(Clone)]
struct Scale {
    axis: Axis,
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, &value: &f64, (from, to): (i32, i32)) -> i32 {
        let Range { start, end } = self.range;
        let part = match self.axis.log {
            true if value <= 0.0 => 0.0,
            true => (value / start).ln() / (end / start).ln(),
            false => (value - start) / (end - start),
        };
        from + (part.clamp(0.0, 1.0) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, &value: &f64) -> String {
        match self.axis.names.get(value as usize) {
            Some(name) => name.clone(),
            None if self.axis.log && value <= 0.0 => "0".to_owned(),
            None => self.axis.unit.format(value),
        }
    }
}

/// The way in which a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Layer,
    Line,
    Points,
    Bars,
}

/// Figures with a name and a colour: a line, a row of points, bars of one colour, or a layer of a
/// stack.
#[derive(Clone, Debug)]
pub struct Series {
    name: String,
    kind: Kind,
    marks: Vec<(f64, f64)>,
    labels: Vec<(usize, String)>,
}

impl Series {
    /// Figures in their order, joined.
    pub fn line(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: Kind::Line,
            marks: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// Figures that are not joined.
    pub fn points(name: impl Into<String>) -> Self {
        Self {
            kind: Kind::Points,
            ..Self::line(name)
        }
    }

    /// One bar for each category of the horizontal axis, in their order: see [`Axis::categories`].
    pub fn bars(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let marks = values
            .into_iter()
            .enumerate()
            .map(|(at, value)| (at as f64, value))
            .collect();
        Self {
            kind: Kind::Bars,
            marks,
            ..Self::line(name)
        }
    }

    /// One more figure.
    #[must_use]
    pub fn at(mut self, x: f64, y: f64) -> Self {
        self.marks.push((x, y));
        self
    }

    /// Words beside the last figure.
    #[must_use]
    pub fn labelled(mut self, label: impl Into<String>) -> Self {
        self.labels.push((self.marks.len() - 1, label.into()));
        self
    }
}

/// A picture of some series of figures over the same two axes.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    title: String,
    note: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    rules: Vec<(String, f64)>,
}

type Drawn<T = ()> = Result<T, Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn font(size: i32, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour)
}

fn colour(at: usize) -> RGBColor {
    COLOURS[at % COLOURS.len()]
}

impl Chart {
    /// An empty chart with a title.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// A line below the title: what was measured, on what.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// The horizontal axis.
    #[must_use]
    pub fn x(mut self, axis: Axis) -> Self {
        self.x = axis;
        self
    }

    /// The vertical axis.
    #[must_use]
    pub fn y(mut self, axis: Axis) -> Self {
        self.y = axis;
        self
    }

    /// One more series. The colours go round after the eighth.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Layers of which each lies on those before it, over the same places of the horizontal axis.
    #[must_use]
    pub fn stack<Name: Into<String>>(
        mut self,
        xs: &[f64],
        layers: impl IntoIterator<Item = (Name, Vec<f64>)>,
    ) -> Self {
        let mut sums = vec![0.0; xs.len()];
        for (name, ys) in layers {
            sums.iter_mut().zip(ys).for_each(|(sum, y)| *sum += y);
            let marks = xs.iter().copied().zip(sums.iter().copied()).collect();
            self.series.push(Series {
                kind: Kind::Layer,
                marks,
                ..Series::line(name)
            });
        }
        self
    }

    /// A dashed line across the chart: a limit.
    #[must_use]
    pub fn rule(mut self, name: impl Into<String>, y: f64) -> Self {
        self.rules.push((name.into(), y));
        self
    }

    /// The picture, of a width and a height.
    ///
    /// # Panics
    ///
    /// Never: a string takes any picture.
    pub fn svg(&self, size: (u32, u32)) -> String {
        let mut text = String::new();
        let drawn = SVGBackend::with_string(&mut text, size).into_drawing_area();
        self.draw(&drawn).expect("a string takes any picture");
        drop(drawn);
        text.replacen(">\n", &format!(">\n{DARK}\n"), 1)
    }

    fn draw(&self, root: &Area<'_>) -> Drawn {
        root.fill(&WHITE)?;
        let (_, below) = root.split_vertically(self.draw_head(root)?);
        let marks = || self.series.iter().flat_map(|series| &series.marks);
        let rules = self.rules.iter().map(|(_, y)| *y);
        let x = self.x.scale(marks().map(|mark| mark.0), false);
        let y = self.y.scale(marks().map(|mark| mark.1).chain(rules), true);
        let left = x.range.start;
        let right = x.range.end;
        let mut chart = ChartBuilder::on(&below)
            .margin_right(EDGE + 10)
            .margin_bottom(6)
            .margin_top(16)
            .x_label_area_size(if self.x.label.is_empty() { 24 } else { 44 })
            .y_label_area_size(if self.y.label.is_empty() { 64 } else { 84 })
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(MUTED)
            .label_style(font(12, MUTED))
            .axis_desc_style(font(12, MUTED))
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .draw()?;
        let of = |kind: Kind| {
            self.series
                .iter()
                .enumerate()
                .filter(move |(_, series)| series.kind == kind)
        };
        // From the highest to the lowest: each covers what belongs to those below it.
        for (at, layer) in of(Kind::Layer).collect::<Vec<_>>().into_iter().rev() {
            let area = AreaSeries::new(layer.marks.iter().copied(), 0.0, colour(at).filled());
            chart.draw_series(area.border_style(WHITE))?;
        }
        let wide = 0.84 / of(Kind::Bars).count().max(1) as f64;
        for (place, (at, bars)) in of(Kind::Bars).enumerate() {
            let start = place as f64 * wide - 0.42;
            let bar = |&(x, y): &(f64, f64)| {
                Rectangle::new(
                    [(x + start + 0.01, 0.0), (x + start + wide - 0.01, y)],
                    colour(at).filled(),
                )
            };
            chart.draw_series(bars.marks.iter().map(bar))?;
            let above = font(12, TEXT).pos(Pos::new(HPos::Center, VPos::Bottom));
            let told = |&(x, y): &(f64, f64)| {
                Text::new(
                    self.y.unit.format(y),
                    (x + start + wide / 2.0, y),
                    above.clone(),
                )
            };
            chart.draw_series(bars.marks.iter().map(told))?;
        }
        for (at, line) in self
            .series
            .iter()
            .enumerate()
            .filter(|(_, series)| series.kind == Kind::Line)
        {
            chart.draw_series(LineSeries::new(
                line.marks.iter().copied(),
                colour(at).stroke_width(2),
            ))?;
        }
        for (at, series) in self.series.iter().enumerate() {
            if series.kind == Kind::Points
                || series.kind == Kind::Line && series.marks.len() <= MARKS_MAX
            {
                chart.draw_series(
                    series
                        .marks
                        .iter()
                        .map(|&mark| Circle::new(mark, 4, colour(at).filled())),
                )?;
            }
            let beside = |(mark, label): &(usize, String)| {
                EmptyElement::at(series.marks[*mark])
                    + Text::new(label.clone(), (8, -5), font(12, TEXT))
            };
            chart.draw_series(series.labels.iter().map(beside))?;
        }
        for (name, y) in &self.rules {
            chart.draw_series(DashedLineSeries::new(
                [(left, *y), (right, *y)],
                7,
                4,
                TEXT.stroke_width(2),
            ))?;
            let above = font(12, TEXT).pos(Pos::new(HPos::Right, VPos::Bottom));
            chart.draw_series([
                EmptyElement::at((right, *y)) + Text::new(name.clone(), (-4, -4), above)
            ])?;
        }
        Ok(())
    }

    /// Title, note and legend. Returns where they end.
    fn draw_head(&self, root: &Area<'_>) -> Drawn<i32> {
        let most = root.dim_in_pixel().0 as i32 - EDGE;
        let mut y = EDGE;
        root.draw(&Text::new(self.title.as_str(), (EDGE, y), font(20, TEXT)))?;
        y += 24;
        // A letter is about 6 wide.
        for line in wrap(&self.note, most as usize / 6).lines() {
            root.draw(&Text::new(line, (EDGE, y), font(14, MUTED)))?;
            y += 16;
        }
        if self.series.len() < 2 {
            return Ok(y);
        }
        let mut x = EDGE;
        let style = font(14, TEXT);
        y += 4;
        for (at, series) in self.series.iter().enumerate() {
            let wide = 22 + root.estimate_text_size(&series.name, &style)?.0 as i32;
            if x > EDGE && x + wide > most {
                x = EDGE;
                y += 18;
            }
            root.draw(&Rectangle::new(
                [(x, y), (x + 12, y + 12)],
                colour(at).filled(),
            ))?;
            root.draw(&Text::new(series.name.as_str(), (x + 17, y), style.clone()))?;
            x += wide + 12;
        }
        Ok(y + 18)
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, COLOURS, Chart, MUTED, Series, Unit, WIDE};

    #[test]
    fn a_stack_reaches_its_sum() {
        let chart = Chart::new("Usage <a & b>")
            .x(Axis::new("time").unit(Unit::Seconds))
            .y(Axis::new("bytes").unit(Unit::Bytes))
            .stack(
                &[0.0, 1.0, 2.0],
                [
                    ("a", vec![1024.0, 2048.0, 4096.0]),
                    ("b", vec![1024.0, 2048.0]),
                ],
            )
            .rule("limit", 8192.0);
        let text = chart.svg(WIDE);
        let areas: Vec<Vec<&str>> = text
            .split("<polygon")
            .skip(1)
            .map(|area| {
                area.split("points=\"")
                    .nth(1)
                    .unwrap()
                    .split('"')
                    .next()
                    .unwrap()
                    .split_whitespace()
                    .collect()
            })
            .collect();
        // The second layer ends where the first does, for it has no third value. It is drawn first,
        // and covered.
        let [second, first] = &areas[..] else {
            panic!("{text}")
        };
        assert_eq!((first[2], first.len()), (second[2], 5), "{text}");
        for words in [
            "0 B",
            "4 KiB",
            "8 KiB",
            "2 s",
            "limit",
            "&lt;a &amp; b&gt;",
            "prefers-color-scheme:dark",
        ] {
            assert!(text.contains(words), "no {words}: {text}");
        }
    }

    #[test]
    fn a_logarithmic_axis_has_a_place_for_zero() {
        let points = Series::points("p")
            .at(0.0, 1.0)
            .at(1.0, 10.0)
            .at(100.0, 1000.0);
        let text = Chart::new("t")
            .x(Axis::new("x").log())
            .y(Axis::new("y").log())
            .with(points)
            .svg(WIDE);
        let lines: Vec<&str> = text.lines().collect();
        for tick in ["0", "1", "10", "100"] {
            assert!(lines.contains(&tick), "no {tick}: {text}");
        }
        assert_eq!(text.matches("<circle").count(), 3, "{text}");
    }

    #[test]
    fn a_chart_without_figures_is_a_chart() {
        for chart in [
            Chart::new(""),
            Chart::new("t")
                .x(Axis::default().log())
                .y(Axis::default().log()),
        ] {
            chart.svg(WIDE);
            chart.with(Series::bars("b", [0.0])).svg((200, 200));
        }
    }

    #[test]
    fn figures_are_written_with_their_unit() {
        for (unit, value, text) in [
            (Unit::Count, 0.25, "0.25"),
            (Unit::Bytes, 0.0, "0 B"),
            (Unit::Bytes, 1_572_864.0, "1.5 MiB"),
            (Unit::Percent, 99.955, "99.96 %"),
            (Unit::Seconds, 3.0, "3 s"),
        ] {
            assert_eq!(unit.format(value), text);
        }
    }

    /// A contrast of at least 3 to 1, as WCAG 2.2 asks of graphics, and of 4.5 to 1 for text.
    #[test]
    fn colours_stand_out_from_white() {
        let linear = |part: u8| match f64::from(part) / 255.0 {
            part if part <= 0.040_45 => part / 12.92,
            part => ((part + 0.055) / 1.055).powf(2.4),
        };
        for (colour, least) in COLOURS
            .map(|colour| (colour, 3.0))
            .into_iter()
            .chain([(MUTED, 4.5)])
        {
            let luminance =
                0.2126 * linear(colour.0) + 0.7152 * linear(colour.1) + 0.0722 * linear(colour.2);
            assert!(1.05 / (luminance + 0.05) >= least, "{colour:?}");
        }
    }
}
