//! What the medians of one run say about the goals.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use super::rows::{Medians, is_quick};

/// One line of the table: what is wanted is an upper bound.
struct Goal {
    what: String,
    measured: f64,
    unit: &'static str,
    most: f64,
}

/// Those goals for which a run has the figures: a filter may have left out any row.
pub(crate) struct Goals<'a> {
    title: &'static str,
    medians: &'a Medians,
    goals: Vec<Goal>,
}

impl<'a> Goals<'a> {
    pub(crate) fn new(medians: &'a Medians) -> Self {
        Goals { title: "goal (medians of this run)", medians, goals: Vec::new() }
    }

    /// Under another heading, for what no row has measured.
    pub(crate) fn titled(title: &'static str, medians: &'a Medians) -> Self {
        Goals { title, ..Goals::new(medians) }
    }

    pub(crate) fn median(&self, id: &str) -> Option<f64> {
        self.medians.get(id).copied()
    }

    /// Something that was measured beside the rows.
    pub(crate) fn at_most(&mut self, what: impl Into<String>, measured: f64, unit: &'static str, most: f64) {
        self.goals.push(Goal { what: what.into(), measured, unit, most });
    }

    /// The row takes at most so many nanoseconds. For a goal that was set for the machine at hand.
    pub(crate) fn nanos(&mut self, id: &str, most: f64) {
        if let Some(measured) = self.median(id) {
            self.at_most(id, measured, "ns", most);
        }
    }

    /// `left` divided by `right` is at most `most`: what travels from one machine to another.
    pub(crate) fn ratio(&mut self, left: &str, right: &str, most: f64) {
        if let (Some(one), Some(other)) = (self.median(left), self.median(right)) {
            self.at_most(format!("{left} / {right}"), one / other, "x", most);
        }
    }

    /// The slowest of the rows takes at most `most` times the fastest, if all have been run.
    pub(crate) fn flat(&mut self, what: &str, ids: &[String], most: f64) {
        let measured: Vec<f64> = ids.iter().filter_map(|id| self.median(id)).collect();
        if measured.len() == ids.len() {
            let slowest = measured.iter().copied().fold(f64::MIN, f64::max);
            let fastest = measured.iter().copied().fold(f64::MAX, f64::min);
            self.at_most(what, slowest / fastest, "x", most);
        }
    }

    pub(crate) fn print(self) {
        if self.goals.is_empty() {
            return;
        }
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header([self.title, "measured", "at most", ""]);
        for Goal { what, measured, unit, most } in self.goals {
            let verdict = match measured <= most {
                _ if is_quick() => "not judged: --quick",
                true => "met",
                false => "missed",
            };
            table.add_row([what, format!("{measured:.3} {unit}"), format!("{most:.3} {unit}"), verdict.to_owned()]);
        }
        println!("{}", table.trim_fmt());
    }
}
