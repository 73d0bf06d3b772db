//! The few statistics that the tables give.

#![cfg(not(loom))]

/// Runs of one kind, in one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Summary {
    pub(crate) mean: f64,
    pub(crate) std: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// With the sample's standard deviation; nothing for no runs.
    pub(crate) fn of(runs: &[f64]) -> Self {
        if runs.is_empty() {
            return Summary::default();
        }
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        let squares: f64 = runs.iter().map(|run| (run - mean).powi(2)).sum();
        Summary {
            mean,
            std: (squares / (runs.len() - 1).max(1) as f64).sqrt(),
            min: runs.iter().copied().fold(f64::INFINITY, f64::min),
            max: runs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// The difference to `base` in per cent of it.
    pub(crate) fn delta(&self, base: &Summary) -> f64 {
        (self.mean / base.mean - 1.0) * 100.0
    }

    /// The difference lies inside one standard deviation of either.
    pub(crate) fn is_noise(&self, base: &Summary) -> bool {
        (self.mean - base.mean).abs() <= self.std.max(base.std)
    }
}

/// The middle one; `None` for none.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}
