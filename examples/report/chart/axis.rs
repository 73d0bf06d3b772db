//! Axes: from figures to places, and where the ticks stand.

use super::units::Unit;

/// One of the two axes.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    pub(super) label: String,
    unit: Unit,
    log: bool,
    bounds: (Option<f64>, Option<f64>),
    pub(super) names: Vec<String>,
}

impl Axis {
    /// A linear axis from the least to the most, with a label.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// Sets the unit that it counts.
    #[must_use]
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Equal distances for equal ratios. Figures of 0 and less stand at the lower edge, whose tick says `0`.
    #[must_use]
    pub fn log(mut self) -> Self {
        self.log = true;
        self
    }

    /// Starts here. A linear axis of bars or layers starts at 0 by itself.
    #[must_use]
    pub fn from(mut self, least: f64) -> Self {
        self.bounds.0 = Some(least).filter(|least| least.is_finite());
        self
    }

    /// Ends here or beyond.
    #[must_use]
    pub fn to(mut self, most: f64) -> Self {
        self.bounds.1 = Some(most).filter(|most| most.is_finite());
        self
    }

    /// Names in the place of figures, for bars.
    #[must_use]
    pub fn categories<Name: Into<String>>(mut self, names: impl IntoIterator<Item = Name>) -> Self {
        self.names = names.into_iter().map(Into::into).collect();
        self
    }

    pub(super) fn is_log(&self) -> bool {
        self.log
    }

    /// The text of a figure of this axis.
    pub(super) fn format(&self, value: f64) -> String {
        self.unit.format(value)
    }

    /// The scale that holds all of `values`, with about `ticks` ticks. `rounded`: it ends on ticks.
    pub(super) fn scale(&self, values: &[f64], ticks: usize, rounded: bool) -> Scale {
        if !self.names.is_empty() {
            let names = self.names.iter().enumerate().map(|(at, name)| (at as f64, name.clone()));
            return Scale { least: -0.5, most: self.names.len() as f64 - 0.5, log: false, ticks: names.collect() };
        }
        if self.log { self.logarithmic(values, ticks) } else { self.linear(values, ticks, rounded) }
    }

    fn linear(&self, values: &[f64], ticks: usize, rounded: bool) -> Scale {
        let fold = |start: f64, pick: fn(f64, f64) -> f64| values.iter().copied().fold(start, pick);
        let least = self.bounds.0.unwrap_or_else(|| fold(f64::INFINITY, f64::min));
        let most = fold(f64::NEG_INFINITY, f64::max).max(self.bounds.1.unwrap_or(f64::NEG_INFINITY));
        let (mut least, mut most) = if least.is_finite() && most.is_finite() { (least, most) } else { (0.0, 1.0) };
        if most <= least {
            most = least + if least == 0.0 { 1.0 } else { least.abs() };
        }
        let step = step((most - least) / ticks.max(1) as f64, self.unit.is_binary());
        if rounded {
            least = self.bounds.0.unwrap_or((least / step).floor() * step);
            most = (most / step - 1e-9).ceil() * step;
        }
        let (first, last) = ((least / step - 1e-9).ceil() as i64, (most / step + 1e-9).floor() as i64);
        let ticks = (first..=last).map(|at| at as f64 * step).map(|value| (value, self.format(value)));
        Scale { least, most, log: false, ticks: ticks.collect() }
    }

    fn logarithmic(&self, values: &[f64], ticks: usize) -> Scale {
        let bounds = [self.bounds.0, self.bounds.1];
        let above = || values.iter().copied().chain(bounds.into_iter().flatten()).filter(|&value| value > 0.0);
        let (least, most) = (above().fold(f64::INFINITY, f64::min), above().fold(0.0, f64::max));
        let (least, most) = if most > 0.0 { (least, most) } else { (1.0, 10.0) };
        let base: f64 = if self.unit.is_binary() { 2.0 } else { 10.0 };
        // Decades or octaves; within one or two decades their halves and fifths.
        let fine = base == 10.0 && (most / least).log10() <= 2.0;
        let whole = |value: f64| value.log(base);
        let (first, last) = ((whole(least) + 1e-9).floor() as i32, (whole(most) - 1e-9).ceil() as i32);
        let last = last.max(first + 1);
        let stride = if fine { 1 } else { ((last - first) as usize).div_ceil(ticks.max(1)).max(1) };
        let last = first + (last - first + stride as i32 - 1) / stride as i32 * stride as i32;
        let tick = |power: i32| base.powi(power);
        let mut all: Vec<f64> = (first..=last).step_by(stride).map(tick).collect();
        if fine {
            all.extend((first..last).flat_map(|power| [2.0, 5.0].map(|part| part * tick(power))));
            all.sort_by(f64::total_cmp);
            let from = all.iter().rposition(|&value| value <= least * (1.0 + 1e-9)).unwrap_or(0);
            let to = all.iter().position(|&value| value >= most * (1.0 - 1e-9)).unwrap_or(all.len() - 1);
            all = all[from..=to.max(from + 1).min(all.len() - 1)].to_vec();
        }
        let mut labels: Vec<_> = all.iter().map(|&value| (value, self.format(value))).collect();
        let (mut lower, upper) = (all[0], all[all.len() - 1]);
        if values.iter().any(|&value| value <= 0.0) {
            lower /= if fine { 2.0 } else { tick(stride as i32) };
            labels.insert(0, (lower, "0".to_owned()));
        }
        Scale { least: lower, most: upper, log: true, ticks: labels }
    }
}

/// The next larger round step: 1, 2 or 5 times a power of ten, or a power of two.
fn step(raw: f64, binary: bool) -> f64 {
    let raw = raw.max(f64::MIN_POSITIVE);
    if binary && raw >= 1.0 {
        return raw.log2().ceil().exp2();
    }
    let power = 10f64.powf(raw.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.map(|part| part * power).into_iter().find(|&step| step >= raw * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// An axis for certain figures.
pub(super) struct Scale {
    least: f64,
    most: f64,
    log: bool,
    /// Figures with their words.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Scale {
    /// The part of the axis that lies before a figure, 0 to 1.
    pub(super) fn part(&self, value: f64) -> f64 {
        let part = match self.log {
            true if value <= 0.0 => 0.0,
            true => (value / self.least).ln() / (self.most / self.least).ln(),
            false => (value - self.least) / (self.most - self.least),
        };
        part.clamp(0.0, 1.0)
    }
}
