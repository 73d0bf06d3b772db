//! The medians of one run beside the goals: ratios to a baseline of the same run, which travel from
//! one machine to another.

use std::collections::BTreeMap;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

/// Nanoseconds of one iteration of one thread, by id.
pub type Medians = BTreeMap<String, f64>;

/// The measures of a run.
#[derive(Debug, Default)]
pub struct Measured {
    /// The rows that have been run.
    pub medians: Medians,
    /// The run was to show that it works: it judges no goal.
    pub is_small: bool,
}

/// One line of the table: what is wanted is an upper bound.
struct Goal {
    what: String,
    measured: f64,
    unit: &'static str,
    most: f64,
}

impl Goal {
    /// A figure that is no number meets nothing.
    fn is_met(&self) -> bool {
        self.measured <= self.most
    }
}

/// Those goals for which a run has the figures: a filter may have left out any row.
pub struct Goals<'a> {
    title: &'static str,
    measured: &'a Measured,
    goals: Vec<Goal>,
}

impl<'a> Goals<'a> {
    /// For the rows of a run.
    #[must_use]
    pub fn new(measured: &'a Measured) -> Self {
        Goals {
            title: "goal (medians of this run)",
            measured,
            goals: Vec::new(),
        }
    }

    /// Under another heading, for what no row has measured.
    #[must_use]
    pub fn titled(title: &'static str, measured: &'a Measured) -> Self {
        Goals {
            title,
            ..Goals::new(measured)
        }
    }

    /// Something that was measured beside the rows: a ratio, or a count.
    pub fn at_most(
        &mut self,
        what: impl Into<String>,
        measured: f64,
        unit: &'static str,
        most: f64,
    ) {
        self.goals.push(Goal {
            what: what.into(),
            measured,
            unit,
            most,
        });
    }

    /// The row takes at most `most` times what its baseline takes.
    pub fn ratio(&mut self, row: &str, baseline: &str, most: f64) {
        if let (Some(one), Some(other)) = (self.median(row), self.median(baseline)) {
            self.at_most(format!("{row} / {baseline}"), one / other, "x", most);
        }
    }

    /// The slowest of the rows takes at most `most` times the fastest, if all have been run.
    pub fn flat(&mut self, what: &str, ids: &[String], most: f64) {
        let measured: Vec<f64> = ids.iter().filter_map(|id| self.median(id)).collect();
        if !measured.is_empty() && measured.len() == ids.len() {
            let slowest = measured.iter().copied().fold(f64::MIN, f64::max);
            let fastest = measured.iter().copied().fold(f64::MAX, f64::min);
            self.at_most(what, slowest / fastest, "x", most);
        }
    }

    /// Nanoseconds of a row, if it has been run.
    #[must_use]
    pub fn median(&self, id: &str) -> Option<f64> {
        self.measured.medians.get(id).copied()
    }

    /// Print them and what came of them; nothing for a run that was to show that it works.
    pub fn print(&self) {
        if let Some(table) = self.table() {
            println!("{table}");
        }
    }

    /// `None` where this run judges none.
    fn table(&self) -> Option<String> {
        let mut table = Table::new();
        table
            .load_style(ASCII_MARKDOWN)
            .set_header([self.title, "measured", "at most", ""]);
        for goal in &self.goals {
            let Goal {
                what,
                measured,
                unit,
                most,
            } = goal;
            let verdict = if goal.is_met() { "met" } else { "missed" };
            table.add_row([
                what,
                &format!("{measured:.3} {unit}"),
                &format!("{most:.3} {unit}"),
                verdict,
            ]);
        }
        (!self.measured.is_small && !self.goals.is_empty()).then(|| table.trim_fmt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(is_small: bool) -> Measured {
        let medians = [("row", 2.0), ("slow", 6.0), ("baseline", 4.0)]
            .map(|(id, nanos)| (id.to_owned(), nanos));
        Measured {
            medians: medians.into(),
            is_small,
        }
    }

    /// The verdicts of a table, from the top.
    fn verdicts(goals: &Goals<'_>) -> Vec<String> {
        let verdict = |line: &str| {
            line.trim_matches('|')
                .rsplit('|')
                .next()
                .unwrap_or("")
                .trim()
                .to_owned()
        };
        goals.table().map_or(Vec::new(), |table| {
            table.lines().skip(2).map(verdict).collect()
        })
    }

    #[test]
    fn a_ratio_to_the_baseline_is_judged() {
        let measured = measured(false);
        let mut goals = Goals::new(&measured);
        goals.ratio("row", "baseline", 0.5);
        goals.ratio("slow", "baseline", 1.0);
        goals.flat("all", &["row", "slow", "baseline"].map(str::to_owned), 3.0);
        goals.flat("all", &["row", "slow"].map(str::to_owned), 2.9);
        goals.at_most("no figure", f64::NAN, "x", 1.0);
        assert_eq!(
            verdicts(&goals),
            ["met", "missed", "met", "missed", "missed"]
        );
        let table = goals.table().expect("five goals");
        assert!(
            table.contains("row / baseline") && table.contains("0.500 x"),
            "{table}"
        );
    }

    #[test]
    fn a_row_that_was_not_run_is_not_judged() {
        let measured = measured(false);
        let mut goals = Goals::new(&measured);
        goals.ratio("row", "filtered_out", 1.0);
        goals.ratio("filtered_out", "row", 1.0);
        goals.flat("all", &["row", "filtered_out"].map(str::to_owned), 1.0);
        goals.flat("none", &[], 1.0);
        assert_eq!(goals.table(), None);
    }

    #[test]
    fn a_small_run_judges_nothing() {
        let measured = measured(true);
        let mut goals = Goals::new(&measured);
        goals.ratio("row", "baseline", 0.5);
        assert_eq!(goals.table(), None);
    }
}
