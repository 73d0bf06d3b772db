//! Charts as SVG: layers stacked over time, lines, points, grouped bars; linear and logarithmic axes.
//!
//! A chart is text: each label stays text, each mark has a title that a browser shows under the pointer. The colours
//! follow the reader's scheme, light or dark, and each has a contrast of at least 3 to 1 against its background, as
//! WCAG 2.2 asks of graphics (criterion 1.4.11). Lines differ in their dashes too, and points in their shape.
//!
//! The `svg` crate writes the elements: it has no dependencies. `plotters` would bring its own colours into each
//! element, where no style of a page can change them for a dark scheme.
//!
//! ```
//! use memcg_report::chart::{Axis, Chart, Series, Size, Unit};
//!
//! let chart = Chart::new("Stranded bytes against the cost of a charge")
//!     .note("2 threads, 1 second each")
//!     .x(Axis::new("nanoseconds for a charge and its return").unit(Unit::Nanos).log())
//!     .y(Axis::new("bytes stranded in stocks").unit(Unit::Bytes).log())
//!     .with(Series::points("1 counter").at(2.4, 524_288.0).at(57.0, 0.0).labelled("no stock"))
//!     .with(Series::points("32 counters").at(3.2, 16_777_216.0))
//!     .rule("a stock of 256 KiB", 262_144.0);
//! let text = chart.svg(Size::WIDE);
//! assert!(text.starts_with("<svg") && text.contains("no stock"));
//! ```

mod axis;
mod draw;
mod layout;
mod palette;
mod series;
#[cfg(test)]
mod tests;
mod units;

pub use axis::Axis;
pub use series::Series;
pub use units::Unit;

pub(crate) use palette::style;

/// Width and height of a picture, in the units of its text, which is 13 high.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// From the left to the right edge.
    pub width: f64,
    /// From the upper to the lower edge.
    pub height: f64,
}

impl Size {
    /// The whole width of a page.
    pub const WIDE: Self = Self { width: 860.0, height: 400.0 };
    /// Two of them side by side.
    pub const HALF: Self = Self { width: 560.0, height: 360.0 };
    /// The screen of a telephone.
    pub const NARROW: Self = Self { width: 368.0, height: 340.0 };
}

/// A picture of some series of figures over the same two axes.
#[derive(Clone, Debug)]
pub struct Chart {
    title: String,
    note: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    rules: Vec<(String, f64)>,
}

impl Chart {
    /// An empty chart with a title.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            note: String::new(),
            x: Axis::default(),
            y: Axis::default(),
            series: Vec::new(),
            rules: Vec::new(),
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

    /// Layers of which each lies on those before it, over the same places of the horizontal axis. A value that a layer
    /// lacks counts as 0.
    #[must_use]
    pub fn stack<Name: Into<String>>(mut self, xs: &[f64], layers: impl IntoIterator<Item = (Name, Vec<f64>)>) -> Self {
        for (name, ys) in layers {
            let mut layer = Series::layer(name);
            for (at, &x) in xs.iter().enumerate() {
                layer = layer.at(x, ys.get(at).copied().unwrap_or(0.0));
            }
            self.series.push(layer);
        }
        self
    }

    /// A dashed line across the chart: a limit.
    #[must_use]
    pub fn rule(mut self, name: impl Into<String>, y: f64) -> Self {
        self.rules.push((name.into(), y));
        self
    }

    /// Returns the title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The picture as a file of its own, with its style.
    pub fn svg(&self, size: Size) -> String {
        format!("{}\n", draw::document(self, size, true))
    }

    /// The picture for a page that has the style already.
    pub(crate) fn inline(&self, size: Size) -> svg::node::element::Element {
        draw::document(self, size, false)
    }
}
