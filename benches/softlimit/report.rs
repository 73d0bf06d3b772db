//! Tables in the patch series' manner.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use super::policy::Variant;
use super::scene::Run;
use super::series::{Figure, Setup, per_cent};
use crate::common::claims::Ratio;
use crate::common::stats::Summary;

/// A figure of a run.
pub(crate) type Of = fn(&Run) -> f64;

/// The runs of one setup, by variant.
pub(crate) struct Runs {
    pub(crate) setup: Setup,
    pub(crate) of: Vec<(Variant, Vec<Run>)>,
}

/// A line of the table for each variant.
struct Measure {
    name: &'static str,
    decimals: usize,
    series: Option<Figure>,
    of: Of,
}

const MEASURES: [Measure; 7] = [
    Measure {
        name: "system, ms",
        decimals: 2,
        series: Some(Figure::System),
        of: |run| run.system * 1e3,
    },
    Measure {
        name: "elapsed, ms",
        decimals: 1,
        series: Some(Figure::Elapsed),
        of: |run| run.elapsed * 1e3,
    },
    Measure {
        name: "refaults",
        decimals: 1,
        series: Some(Figure::Refaults),
        of: |run| run.refaults,
    },
    Measure {
        name: "hits",
        decimals: 1,
        series: None,
        of: |run| run.hits,
    },
    Measure {
        name: "evicted, pages",
        decimals: 1,
        series: None,
        of: |run| run.evicted,
    },
    Measure {
        name: "evicted / asked",
        decimals: 3,
        series: None,
        of: Run::evicted_per_asked,
    },
    Measure {
        name: "asks",
        decimals: 1,
        series: None,
        of: |run| run.asks,
    },
];

impl Run {
    pub(crate) fn evicted_per_asked(&self) -> f64 {
        if self.asked == 0.0 {
            0.0
        } else {
            self.evicted / self.asked
        }
    }
}

impl Runs {
    /// Runs of each variant.
    pub(crate) fn count(&self) -> usize {
        self.of
            .iter()
            .map(|(_, runs)| runs.len())
            .min()
            .unwrap_or(0)
    }

    /// One value for each run, in the order of the rounds.
    pub(crate) fn values(&self, variant: Variant, of: Of) -> Vec<f64> {
        let runs = self
            .of
            .iter()
            .find(|(other, _)| *other == variant)
            .map_or(&[][..], |(_, runs)| runs);
        runs.iter().map(of).collect()
    }

    pub(crate) fn summary(&self, variant: Variant, of: Of) -> Summary {
        Summary::of(&self.values(variant, of))
    }

    /// One variant's times by another's, round by round.
    pub(crate) fn ratio(&self, variant: Variant, base: Variant, of: Of) -> Ratio {
        Ratio::of(&self.values(variant, of), &self.values(base, of))
    }

    /// The average of ours in per cent of base's.
    pub(crate) fn ours(&self, of: Of) -> f64 {
        self.summary(Variant::Reworkoptim, of).mean / self.summary(Variant::Base, of).mean * 100.0
    }

    pub(crate) fn print(&self, what: &str) {
        let mut table = Table::new();
        let head = [
            what, "variant", "min", "max", "avg", "std", "runs", "of base", "series",
        ];
        table.load_style(ASCII_MARKDOWN).set_header(head);
        for Measure {
            name,
            decimals,
            series,
            of,
        } in MEASURES
        {
            let base = self.summary(Variant::Base, of);
            for (place, (variant, runs)) in self.of.iter().enumerate() {
                let row = self.summary(*variant, of);
                let number = |value: f64| format!("{value:.decimals$}");
                let series = series.and_then(|figure| per_cent(self.setup, figure, *variant));
                table.add_row([
                    if place == 0 {
                        name.to_owned()
                    } else {
                        String::new()
                    },
                    variant.name(),
                    number(row.min),
                    number(row.max),
                    number(row.mean),
                    number(row.std),
                    runs.len().to_string(),
                    self.of_base(*variant, &row, &base),
                    series.map_or_else(String::new, |per_cent| format!("{per_cent:.1} %")),
                ]);
            }
        }
        println!("{}\n", table.trim_fmt());
        for (variant, runs) in &self.of {
            let refused: f64 = runs.iter().map(|run| run.refused).sum();
            if refused > 0.0 {
                println!(
                    "{}: {refused} charges were refused, and made again\n",
                    variant.name()
                );
            }
        }
    }

    fn of_base(&self, variant: Variant, row: &Summary, base: &Summary) -> String {
        if base.mean == 0.0 {
            return String::new();
        }
        let noise = if variant != Variant::Base && row.is_noise(base) {
            " (noise)"
        } else {
            ""
        };
        format!("{:.1} %{noise}", row.mean / base.mean * 100.0)
    }
}
