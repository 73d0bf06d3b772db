//! A run's answers to the claims of a patch series: a line for each, at the end of a program's
//! output.
//!
//! ```text
//! machine: AMD EPYC, 2 processors on 1 node, 7.75 GiB, Linux 6.18, rustc 1.95.0
//! claim stock-14 confirmed (timed): 32 counters: 0.998 (0.991 to 1.004) (at most 1.035)
//! claim stock-4 confirmed: 32 counters strand 8 MiB, the formula says 8 MiB
//! claim stock-7 open: 3 rounds are too few to judge
//! ```
//!
//! A chapter (`docs/src/series/NAME.md`) lists the claims; `benches/series/chapter.rs` says how.
//! `.ci/series` runs the programs, holds these lines against the chapters, and fails where one is
//! missing or contradicts.
//!
//! Usage: make `Claims::new()`, call one method for each id, written out as a literal, and
//! `print()` last.
//! - [`Claims::holds`] for what is counted or computed and is the same in each run.
//! - [`Claims::timed`] for ratios of times: a [`Ratio`] of two ways that took turns round by round,
//!   against a bound. It is decided only where the bound lies outside the ratio's interval, and
//!   *open* otherwise.
//! - [`Claims::open`] where a run cannot say, with the reason.
//!
//! A bound is a ratio that the series itself states or shows; it says nothing of one machine's
//! speed.

#![cfg(not(loom))]

use std::fmt::{self, Display};

use super::host;
use super::stats::median;

/// Five rounds have the true median between them 94 times of 100; fewer say too little.
const ROUNDS_MIN: usize = 5;

/// One way's figure over another's: the median of paired rounds, and the interval that has the true
/// one 95 times of 100, 94 with five rounds. Rounds that another program disturbed lie at the ends
/// and move neither.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    median: f64,
    low: f64,
    high: f64,
    rounds: usize,
}

impl Ratio {
    /// Of the values of two ways that took turns: the first by the second, round by round.
    pub(crate) fn of(ours: &[f64], base: &[f64]) -> Ratio {
        let rounds: Vec<f64> = ours
            .iter()
            .zip(base)
            .map(|(ours, base)| ours / base)
            .collect();
        Ratio::of_rounds(&rounds)
    }

    pub(crate) fn of_rounds(rounds: &[f64]) -> Ratio {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        // Each round lies above the true median as often as below: so many at either end are left
        // out.
        let count = sorted.len() as f64;
        let left_out = (count / 2.0 - 0.98 * count.sqrt()).floor().max(1.0) as usize - 1;
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Ratio {
            median: median(rounds.to_vec()).unwrap_or(f64::NAN),
            low: at(left_out),
            high: at(sorted.len().wrapping_sub(1 + left_out)),
            rounds: sorted.len(),
        }
    }
}

impl Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3} ({:.3} to {:.3})",
            self.median, self.low, self.high
        )
    }
}

/// The claim about a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    /// True if the ratio keeps it; `None` where the bound lies within the interval, or rounds are
    /// too few.
    fn holds(self, ratio: &Ratio) -> Option<bool> {
        let Ratio { low, high, .. } = *ratio;
        let (holds, fails) = match self {
            Bound::AtMost(bound) => (high <= bound, low > bound),
            Bound::AtLeast(bound) => (low >= bound, high < bound),
        };
        (ratio.rounds >= ROUNDS_MIN && (holds || fails)).then_some(holds)
    }
}

impl Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtMost(bound) => write!(f, "at most {bound}"),
            Bound::AtLeast(bound) => write!(f, "at least {bound}"),
        }
    }
}

/// The lines of one run.
#[derive(Default)]
pub(crate) struct Claims(Vec<String>);

impl Claims {
    pub(crate) fn new() -> Self {
        Claims::default()
    }

    fn line(&mut self, id: &str, verdict: &str, text: &dyn Display) {
        let text = text
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        self.0.push(format!("claim {id} {verdict}: {text}"));
    }

    /// Adds a claim about a count or a computed figure: another run says the same.
    pub(crate) fn holds(&mut self, id: &str, holds: bool, text: impl Display) {
        self.line(id, if holds { "confirmed" } else { "refuted" }, &text);
    }

    /// All of these ratios keep to the bound. One that clearly does not refutes the claim; where
    /// the bound lies within the interval of one, the claim stays open.
    pub(crate) fn timed(&mut self, id: &str, ratios: &[(&str, Ratio)], bound: Bound) {
        let verdicts: Vec<Option<bool>> =
            ratios.iter().map(|(_, ratio)| bound.holds(ratio)).collect();
        let listed: Vec<String> = ratios
            .iter()
            .map(|(what, ratio)| format!("{what}: {ratio}"))
            .collect();
        let text = format!("{} ({bound})", listed.join("; "));
        let few = ratios
            .iter()
            .map(|(_, ratio)| ratio.rounds)
            .min()
            .filter(|&rounds| rounds < ROUNDS_MIN);
        if let Some(rounds) = few {
            self.open(
                id,
                format_args!("{rounds} rounds are too few to judge; {text}"),
            );
        } else if verdicts.contains(&Some(false)) {
            self.line(id, "refuted (timed)", &text);
        } else if verdicts.contains(&None) || verdicts.is_empty() {
            self.open(id, format_args!("too noisy to judge; {text}"));
        } else {
            self.line(id, "confirmed (timed)", &text);
        }
    }

    /// This run cannot say, and why.
    pub(crate) fn open(&mut self, id: &str, why: impl Display) {
        self.line(id, "open", &why);
    }

    pub(crate) fn print(self) {
        println!("machine: {}", host::describe());
        self.0.iter().for_each(|line| println!("{line}"));
    }
}
