//! Counts of what has happened: of one tree, and of all.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($name:ident: $text:literal,)*) => {
        /// A count.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum What { $($name,)* }

        const ALL: &[(What, &str)] = &[$((What::$name, $text),)*];
    };
}

// Each must occur in a run. The first are in the line of a tree.
counts! {
    Operations: "operations",
    Refusals: "refusals",
    Waits: "waits",
    Victims: "victims",
    Panics: "panics",
    Reclaimed: "bytes reclaimed",
    Idle: "bytes of idle credit",
    Rests: "rests",
    Samples: "samples of maxima",
    Admitted: "admitted",
    TimedOut: "timed out",
    Dropped: "futures dropped in line",
    Kept: "futures kept over other calls",
    Cancelled: "charges of cancelled groups",
    Offline: "charges of groups that are offline",
    Forced: "charges by force",
    DropPanics: "panics of drops",
    Lies: "lies of reclaimers",
    Naps: "naps of reclaimers",
    Promises: "promises kept",
    Forgotten: "promises forgotten",
    Started: "reclaimers started",
    InReclaim: "charges refused in reclaim",
    Background: "calls of the background thread",
    Lowered: "calls for a max that was lowered",
    High: "charges above high",
    Low: "reclaims below low",
    Orders: "orders of choice",
    Observed: "charges let through where limits only count",
    Levels: "changes of a pressure level",
    Limits: "limits set",
    Covered: "groups that cover",
    Unpaid: "unpaid bytes",
    Objects: "objects",
    Elsewhere: "objects freed in another group",
    Checkpoints: "checkpoints refused",
    Outlived: "groups outlived by what they hold",
    Ended: "groups that went offline",
    Threads: "threads that ended",
    Transfers: "transfers",
    Central: "charges of central stocks",
    Kmem: "accounts of nodes",
    Moved: "bytes moved between nodes",
    Rows: "additions to statistics",
    Sets: "sets of charges",
    Raw: "charges without a guard",
    Probes: "charges of all that was free",
}

pub(crate) struct Tally([AtomicU64; ALL.len()]);

impl Default for Tally {
    fn default() -> Tally {
        Tally(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Tally {
    pub(crate) fn add(&self, what: What, count: u64) {
        self.0[what as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn one(&self, what: What) {
        self.add(what, 1);
    }

    pub(crate) fn get(&self, what: What) -> u64 {
        self.0[what as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn add_all(&self, other: &Tally) {
        ALL.iter()
            .for_each(|&(what, _)| self.add(what, other.get(what)));
    }

    /// The line of a tree.
    pub(crate) fn line(&self) -> String {
        let counts = ALL.iter().take(What::Samples as usize + 1);
        let counts: Vec<_> = counts
            .map(|&(what, text)| format!("{} {text}", self.get(what)))
            .collect();
        counts.join(", ")
    }

    /// Names of counts that are zero.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        ALL.iter()
            .filter(|&&(what, _)| self.get(what) == 0)
            .map(|&(_, text)| text)
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ALL.iter()
            .try_for_each(|&(what, text)| writeln!(f, "{:>14} {text}", self.get(what)))
    }
}
