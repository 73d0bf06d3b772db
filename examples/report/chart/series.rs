//! Figures that belong together.

/// The way in which a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Layer,
    Line,
    Points,
    Bars,
}

/// One figure.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) x: f64,
    pub(super) y: f64,
    /// The least and the most of several runs.
    pub(super) range: Option<(f64, f64)>,
    pub(super) label: String,
}

/// Figures with a name and a colour: a line, a row of points, bars of one colour, or a layer of a stack.
#[derive(Clone, Debug)]
pub struct Series {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) marks: Vec<Mark>,
}

impl Series {
    /// Figures in their order, joined.
    pub fn line(name: impl Into<String>) -> Self {
        Self::new(name, Kind::Line)
    }

    /// Figures that are not joined.
    pub fn points(name: impl Into<String>) -> Self {
        Self::new(name, Kind::Points)
    }

    /// One bar for each category of the horizontal axis, in their order: see [`Axis::categories`](super::Axis).
    pub fn bars(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let mut bars = Self::new(name, Kind::Bars);
        for (at, value) in values.into_iter().enumerate() {
            bars = bars.at(at as f64, value);
        }
        bars
    }

    pub(super) fn layer(name: impl Into<String>) -> Self {
        Self::new(name, Kind::Layer)
    }

    fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: name.into(), kind, marks: Vec::new() }
    }

    /// One more figure. A figure that is no number is left out.
    #[must_use]
    pub fn at(mut self, x: f64, y: f64) -> Self {
        if x.is_finite() && y.is_finite() {
            self.marks.push(Mark { x, y, range: None, label: String::new() });
        }
        self
    }

    /// Words beside the last figure.
    #[must_use]
    pub fn labelled(mut self, label: impl Into<String>) -> Self {
        if let Some(mark) = self.marks.last_mut() {
            mark.label = label.into();
        }
        self
    }

    /// The least and the most that the last figure was, over several runs.
    #[must_use]
    pub fn ranging(mut self, least: f64, most: f64) -> Self {
        if let Some(mark) = self.marks.last_mut().filter(|_| least.is_finite() && most.is_finite()) {
            mark.range = Some((least, most));
        }
        self
    }
}
