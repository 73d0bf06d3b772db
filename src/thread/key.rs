//! The key of an entry in a list that may be long: tests count what finding it costs.

use std::cmp::Ordering;

#[cfg(test)]
#[allow(unused_imports, reason = "models look at no number of steps")]
pub(crate) use counted::takes_n_log_n;

/// Names one entry of a list. In unit tests each comparison of two keys is a step, so a test holds
/// how many steps a list takes for as many entries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Key(pub(crate) u64);

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        counted::compared(|steps| steps.set(steps.get() + 1));
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}

#[cfg(test)]
#[allow(dead_code, reason = "models look at no number of steps")]
mod counted {
    use std::cell::Cell;

    crate::sync::per_thread! {
        /// The comparisons that this thread has made.
        pub(super) compared: Cell<u64> = Cell::new(0)
    }

    /// Runs `work`, in which this thread does something with each of `entries` entries of a list.
    /// It takes n log n steps: more than n, as keys find the entries, and far less than n squared.
    #[track_caller]
    pub(crate) fn takes_n_log_n(entries: usize, work: impl FnOnce()) {
        let steps = || compared(Cell::get);
        let before = steps();
        work();
        let (steps, entries) = (steps() - before, entries as u64);
        // An entry is found a few times, and a node of a B-tree has up to eleven keys, which are
        // compared one after another.
        let most = 16 * entries * u64::from(entries.ilog2());
        assert!(
            (entries..=most).contains(&steps),
            "{steps} steps for {entries} entries: {most} at most"
        );
    }
}
