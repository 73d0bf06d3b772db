//! The agreement of figures: live ones with the truth within the bound that they state, exact ones to the last unit.
//!
//! Knows numbers only, so that a test can show it wrong ones.

use serde::Serialize;

/// Faults that are told; of the others, how many there are.
const FAULTS_TOLD: usize = 8;

/// One figure of one group, read live, between two that hold whatever is counted meanwhile. For a figure that only
/// grows these are what had been counted before the read and what an exact read said after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) before: i64,
    pub(crate) live: i64,
    /// The error that it may have, as the read itself said.
    pub(crate) max_error: u64,
    pub(crate) after: i64,
}

/// The figures that were compared, and those that did not agree.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Agreement {
    /// Figures that were read live and checked.
    pub(crate) figures: u64,
    /// Of those, how many were off, and how many by more than they said.
    pub(crate) off: u64,
    pub(crate) beyond: u64,
    /// The figure that was nearest to its bound: whose, how far off it was, and how far it might have been.
    pub(crate) nearest: String,
    pub(crate) largest_error: u64,
    pub(crate) its_bound: u64,
    /// Figures that were read exactly and compared.
    pub(crate) exact: u64,
    /// Of those, how many were not the same.
    pub(crate) unequal: u64,
    #[serde(skip)]
    faults: Vec<String>,
    #[serde(skip)]
    untold: u64,
}

impl Reading {
    /// The least error of the figure: its distance from the values that it can have had.
    fn error(&self) -> u64 {
        let missing = self.before.saturating_sub(self.live).max(0);
        let too_many = self.live.saturating_sub(self.after).max(0);
        missing.max(too_many).unsigned_abs()
    }
}

impl Agreement {
    /// Checks a live figure against its bound, and that nothing is missing from the exact one after it.
    pub(crate) fn live(&mut self, group: &str, item: &str, reading: Reading) {
        let Reading { before, live, max_error, after } = reading;
        let error = reading.error();
        self.figures += 1;
        self.off += u64::from(error > 0);
        if is_nearer((error, max_error), (self.largest_error, self.its_bound)) {
            (self.largest_error, self.its_bound) = (error, max_error);
            self.nearest = format!("{group}, {item}");
        }
        if error > max_error {
            self.beyond += 1;
            let between = format!("{before} before and {after} after");
            self.fault(format!(
                "{group}, {item} live: {live} with {between}, off by {error}, where {max_error} are stated"
            ));
        }
        if after < before {
            self.fault(format!("{group}, {item} exactly: {after}, and {before} had been counted before"));
        }
    }

    /// Compares a figure that was read exactly with the same from elsewhere.
    pub(crate) fn exact(&mut self, group: &str, item: &str, beside: &str, expected: i64, found: i64) {
        self.exact += 1;
        if expected != found {
            self.unequal += 1;
            self.fault(format!("{group}, {item} beside {beside}: expected {expected}, found {found}"));
        }
    }

    fn fault(&mut self, fault: String) {
        if self.faults.len() < FAULTS_TOLD {
            self.faults.push(fault);
        } else {
            self.untold += 1;
        }
    }

    /// A line for each fault, up to a few.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = self.faults.clone();
        if self.untold > 0 {
            faults.push(format!("statistics: {} more figures that do not agree", self.untold));
        }
        faults
    }
}

/// True if an error is a larger part of its bound than the other; beyond a bound of nothing any error is.
fn is_nearer((error, bound): (u64, u64), (other, others_bound): (u64, u64)) -> bool {
    let (this, that) = (u128::from(error) * u128::from(others_bound), u128::from(other) * u128::from(bound));
    error > 0 && (this > that || other == 0 || (bound == 0 && others_bound > 0))
}
