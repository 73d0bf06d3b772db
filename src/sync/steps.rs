//! Steps: what a search in a list costs, which unit tests count. Elsewhere a step is nothing.

/// One comparison of a search.
#[cfg(not(all(test, not(any(loom, shuttle)))))]
#[inline(always)]
pub(crate) fn step() {}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use counted::{step, takes_n_log_n};

#[cfg(all(test, not(any(loom, shuttle))))]
mod counted {
    use std::cell::Cell;

    std::thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn step() {
        STEPS.set(STEPS.get() + 1);
    }

    /// Runs `work`, in which this thread does something with each of `entries` entries of a list.
    /// It takes n log n steps: more than n, as keys find the entries, and far less than n squared.
    #[track_caller]
    pub(crate) fn takes_n_log_n(entries: usize, work: impl FnOnce()) {
        let before = STEPS.get();
        work();
        let (steps, entries) = (STEPS.get() - before, entries as u64);
        // An entry is found a few times, and a node of a B-tree has up to eleven keys, which are
        // compared one after another.
        let most = 16 * entries * u64::from(entries.ilog2());
        assert!(
            (entries..=most).contains(&steps),
            "{steps} steps for {entries} entries: {most} at most"
        );
    }
}
