//! Memory that sorts keep while they spill.
//!
//! A sort reserves memory for merging before it reads. When it begins to spill it gives that back,
//! and its sorted runs give back what they hold, batch by batch; bit by bit it asks for as much
//! again to merge the runs into a file. In a full group another query would take what was given
//! back, and the sort would fail while it frees memory. So what a sort frees stays charged until
//! the merge has loaded its runs. Its first reservation stays charged until the merge is gone, and
//! room for the batch whose growth was refused until it is asked for again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::consumer::Part;

/// The sorts of an account.
#[derive(Debug, Default)]
pub(crate) struct Sorts {
    state: Mutex<State>,
    /// Number of sorts that keep something, or are about to. Relaxed wherever it is used: the tasks
    /// of a sort that spills know that it does by what they have done themselves, or by the task
    /// that spawned them.
    busy: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// By the numbers of the merges' consumers.
    sorts: HashMap<usize, Sort>,
    /// The merges of the sorters.
    merges: HashMap<usize, usize>,
    /// The last sorter that a thread registered: its merge is registered next.
    last: HashMap<ThreadId, usize>,
}

#[derive(Debug, Default)]
struct Sort {
    sorter: Option<usize>,
    /// Number of the attempt that it is of, if any.
    attempt: Option<u64>,
    /// Bytes that DataFusion believes the merge to hold.
    held: u64,
    /// Bytes that are charged beyond that.
    kept: u64,
    /// Bytes that the merge reserved first.
    first: u64,
    /// It has reserved nothing beforehand.
    has_none: bool,
    /// The growth of the sorter that was refused: it spills, and asks again.
    refused: u64,
    spill: Option<Spill>,
}

/// A merge has given its first reservation back: the sorted runs are merged into a file, or into
/// what is read.
#[derive(Debug, Default)]
struct Spill {
    /// The merge has loaded a run.
    has_begun: bool,
    /// It has given rows or let go of a run: all are loaded.
    is_loaded: bool,
}

/// Result of a growth or a return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) charge: u64,
    pub(crate) uncharge: u64,
    /// The consumer whose memory came back.
    pub(crate) sorter: Option<usize>,
    /// The sort is about to give memory back: it gets what is there.
    pub(crate) is_spilling: bool,
    /// Refused, the consumer writes what it has in its hands.
    pub(crate) may_write: bool,
    /// Refused, the merge reads fewer files at once.
    pub(crate) takes_less: bool,
}

impl Sort {
    /// Bytes that stay charged at least, beside those that the sorter holds.
    fn floor(&self) -> u64 {
        self.first.saturating_add(self.refused)
    }

    /// Lets go of what is kept beyond the floor, but while the merge loads its runs.
    fn release(&mut self) -> u64 {
        if self.loads() {
            return 0;
        }
        let released = self
            .kept
            .saturating_sub(self.floor().saturating_sub(self.held));
        self.kept -= released;
        released
    }

    fn loads(&self) -> bool {
        self.spill.as_ref().is_some_and(|spill| !spill.is_loaded)
    }

    /// True if it is merged into what is read, and not into a file.
    fn gives_rows(&self) -> bool {
        self.refused == 0 && self.spill.is_some()
    }

    /// True if it matters what its sorter does.
    fn is_busy(&self) -> bool {
        self.spill.is_some() || self.refused > 0 || self.kept > 0
    }

    fn grow_sorter(&mut self, bytes: u64) -> Step {
        let is_spilling = self.spill.is_some();
        // Before, it is the sorted run that is larger than what was read.
        let may_write = is_spilling && (self.held > 0 || self.kept > self.floor());
        let mut covered = 0;
        match &mut self.spill {
            // A merge that gives its first rows has loaded all runs.
            Some(spill) => spill.is_loaded |= spill.has_begun,
            None => {
                covered = self.refused.min(self.kept).min(bytes);
                self.kept -= covered;
                self.refused = 0;
            }
        }
        let charge = bytes - covered;
        let uncharge = self.release();
        Step {
            charge,
            uncharge,
            sorter: self.sorter,
            is_spilling,
            may_write,
            takes_less: false,
        }
    }

    fn shrink_sorter(&mut self, bytes: u64) -> Step {
        let kept = if self.loads() { bytes } else { 0 };
        self.kept = self.kept.saturating_add(kept);
        Step {
            uncharge: bytes - kept,
            sorter: self.sorter,
            ..Step::default()
        }
    }

    fn grow_merge(&mut self, bytes: u64) -> Step {
        if self.first == 0 {
            // If the session reserves nothing for merging, a merge begins after a growth was
            // refused.
            self.has_none |= self.refused > 0;
            self.first = if self.has_none { 0 } else { bytes };
        }
        // The growths of a merge on top of its first reservation are for files, one after the
        // other; it needs two.
        let takes_less =
            !self.has_none && self.spill.is_none() && self.held >= bytes.saturating_mul(2);
        if let Some(spill) = &mut self.spill {
            // The next first reservation: the file is written.
            let is_over = self.held == 0 && (spill.has_begun || bytes == self.first);
            spill.has_begun = true;
            if is_over {
                self.spill = None;
            }
        }
        let covered = self.kept.min(bytes);
        self.kept -= covered;
        self.held = self.held.saturating_add(bytes);
        let uncharge = self.release();
        Step {
            charge: bytes - covered,
            uncharge,
            sorter: self.sorter,
            takes_less,
            ..Step::default()
        }
    }

    fn shrink_merge(&mut self, bytes: u64) -> Step {
        self.held = self.held.saturating_sub(bytes);
        let kept = self
            .floor()
            .saturating_sub(self.held.saturating_add(self.kept))
            .min(bytes);
        self.kept += kept;
        match &mut self.spill {
            Some(spill) => spill.is_loaded = true,
            None if self.held == 0 && !self.has_none => self.spill = Some(Spill::default()),
            None => {}
        }
        Step {
            uncharge: bytes - kept + self.release(),
            sorter: self.sorter,
            ..Step::default()
        }
    }
}

impl Sorts {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A consumer is there: DataFusion registers the two of a sort one after the other, on one
    /// thread.
    pub(crate) fn register(&self, part: Part, consumer: usize, attempt: Option<u64>) {
        let mut state = self.lock();
        let thread = thread::current().id();
        match part {
            Part::Sorter => {
                state.last.insert(thread, consumer);
            }
            Part::Merge => {
                let sorter = state.last.remove(&thread);
                state.sorts.insert(
                    consumer,
                    Sort {
                        sorter,
                        attempt,
                        ..Sort::default()
                    },
                );
                if let Some(sorter) = sorter {
                    state.merges.insert(sorter, consumer);
                }
            }
        }
    }

    /// True if the consumer takes or gives without more ado: a sorter, if no sort of the account
    /// spills.
    #[inline]
    pub(crate) fn is_plain(&self, part: Part) -> bool {
        part == Part::Sorter && self.are_quiet()
    }

    /// True if none spills.
    #[inline]
    pub(crate) fn are_quiet(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    /// Does `work` with the sort of a consumer. `None`: it has none, as a sorter without its merge.
    fn with<R>(&self, part: Part, consumer: usize, work: impl FnOnce(&mut Sort) -> R) -> Option<R> {
        let mut state = self.lock();
        let sort = state.sort(part, consumer)?;
        let was_busy = sort.is_busy();
        let done = work(sort);
        match (was_busy, sort.is_busy()) {
            (false, true) => drop(self.busy.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.busy.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        Some(done)
    }

    /// A consumer grows by `bytes`.
    pub(crate) fn grow(&self, part: Part, consumer: usize, bytes: u64) -> Step {
        let all = Step {
            charge: bytes,
            ..Step::default()
        };
        if self.is_plain(part) {
            return all;
        }
        let grow = if part == Part::Sorter {
            Sort::grow_sorter
        } else {
            Sort::grow_merge
        };
        self.with(part, consumer, |sort| grow(sort, bytes))
            .unwrap_or(all)
    }

    /// A consumer gives `bytes` back.
    pub(crate) fn shrink(&self, part: Part, consumer: usize, bytes: u64) -> Step {
        let sorter = (part == Part::Sorter).then_some(consumer);
        let all = Step {
            uncharge: bytes,
            sorter,
            ..Step::default()
        };
        if self.is_plain(part) {
            return all;
        }
        let shrink = if part == Part::Sorter {
            Sort::shrink_sorter
        } else {
            Sort::shrink_merge
        };
        self.with(part, consumer, |sort| shrink(sort, bytes))
            .unwrap_or(all)
    }

    /// A growth by `bytes` was refused, of which `charge` were to be charged. `spills`: the
    /// consumer makes room and asks again.
    pub(crate) fn undo(&self, part: Part, consumer: usize, bytes: u64, charge: u64, spills: bool) {
        self.with(part, consumer, |sort| {
            sort.kept = sort.kept.saturating_add(bytes - charge);
            match part {
                Part::Merge => {
                    sort.held = sort.held.saturating_sub(bytes);
                    if sort.held == 0 && sort.kept == 0 {
                        sort.first = 0;
                    }
                }
                Part::Sorter if spills && sort.spill.is_none() => sort.refused = bytes,
                Part::Sorter => {}
            }
        });
    }

    /// Lets go of up to `bytes` that sorts of the attempt keep, those that give their rows first:
    /// returns how many. The caller uncharges them. `is_needed`: else the operator would fail, which
    /// is to have them.
    pub(crate) fn take_kept(&self, bytes: u64, is_needed: bool, attempt: Option<u64>) -> u64 {
        if self.are_quiet() {
            return 0;
        }
        let mut state = self.lock();
        let mut taken = 0;
        for gives_rows in [true, false] {
            let own = |sort: &&mut Sort| sort.attempt == attempt;
            for sort in state.sorts.values_mut().filter(own) {
                let was_busy = sort.is_busy();
                if sort.gives_rows() == gives_rows {
                    let most = match (is_needed, gives_rows) {
                        (true, _) => sort.kept,
                        // Its runs' bytes are those that its merge is about to load.
                        (false, true) => sort.kept.min(sort.first),
                        (false, false) => 0,
                    };
                    let of_sort = most.min(bytes - taken);
                    sort.kept -= of_sort;
                    taken += of_sort;
                }
                if was_busy && !sort.is_busy() {
                    self.busy.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        taken
    }

    /// A consumer is gone. Returns what was kept for it.
    pub(crate) fn end(&self, part: Part, consumer: usize) -> u64 {
        let mut state = self.lock();
        match part {
            Part::Sorter => {
                state.last.retain(|_, sorter| *sorter != consumer);
                state.merges.remove(&consumer);
                0
            }
            Part::Merge => {
                let Some(sort) = state.sorts.remove(&consumer) else {
                    return 0;
                };
                if sort.is_busy() {
                    self.busy.fetch_sub(1, Ordering::Relaxed);
                }
                if let Some(sorter) = sort.sorter {
                    state.merges.remove(&sorter);
                }
                sort.kept
            }
        }
    }

    /// Bytes that are charged for merges: no sorter can spill them.
    pub(crate) fn of_merges(&self) -> u64 {
        self.lock()
            .sorts
            .values()
            .map(|sort| sort.held.saturating_add(sort.kept))
            .sum()
    }
}

impl State {
    /// The sort of a consumer. A sorter without its merge has none.
    fn sort(&mut self, part: Part, consumer: usize) -> Option<&mut Sort> {
        let merge = if part == Part::Sorter {
            self.merges.get(&consumer).copied()?
        } else {
            consumer
        };
        self.sorts.get_mut(&merge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sort of consumers 1 and 2, and what is charged for it.
    struct Charged {
        sorts: Sorts,
        bytes: u64,
    }

    impl Charged {
        fn new() -> Charged {
            let sorts = Sorts::default();
            sorts.register(Part::Sorter, 1, None);
            sorts.register(Part::Merge, 2, None);
            Charged { sorts, bytes: 0 }
        }

        #[track_caller]
        fn grow(&mut self, part: Part, bytes: u64, charge: u64) -> Step {
            let step = self.sorts.grow(part, part as usize + 1, bytes);
            assert_eq!(step.charge, charge, "of {bytes}: {step:?}");
            self.bytes = self.bytes + step.charge - step.uncharge;
            step
        }

        #[track_caller]
        fn shrink(&mut self, part: Part, bytes: u64, uncharge: u64) {
            let step = self.sorts.shrink(part, part as usize + 1, bytes);
            assert_eq!((step.uncharge, step.charge), (uncharge, 0), "of {bytes}");
            self.bytes -= step.uncharge;
        }

        fn refused(&mut self, part: Part, bytes: u64) {
            let step = self.sorts.grow(part, part as usize + 1, bytes);
            self.bytes -= step.uncharge;
            self.sorts
                .undo(part, part as usize + 1, bytes, step.charge, true);
        }

        /// The merge ends: nothing is kept for it.
        #[track_caller]
        fn end(mut self, held: u64) {
            self.bytes -= self.sorts.end(Part::Merge, 2);
            assert_eq!(self.bytes, held);
            assert_eq!(
                (self.sorts.end(Part::Merge, 2), self.sorts.of_merges()),
                (0, 0)
            );
            assert_eq!(self.sorts.busy.into_inner(), 0);
        }
    }

    /// The charge for a merge without its sorter is what it holds, and at least its first
    /// reservation.
    #[test]
    fn the_first_reservation_stays() {
        let sorts = Sorts::default();
        sorts.register(Part::Merge, 2, None);
        let mut sort = Charged { sorts, bytes: 0 };
        sort.grow(Part::Merge, 100, 100);
        sort.shrink(Part::Merge, 100, 0);
        sort.grow(Part::Merge, 70, 0);
        sort.grow(Part::Merge, 50, 20);
        sort.refused(Part::Merge, 30);
        sort.shrink(Part::Merge, 90, 20);
        assert_eq!((sort.bytes, sort.sorts.of_merges()), (100, 100));
        assert_eq!(
            sort.sorts.grow(Part::Sorter, 9, 7).charge,
            7,
            "of another sort"
        );
        assert_eq!(sort.sorts.shrink(Part::Merge, 9, 7).uncharge, 7);
        sort.grow(Part::Merge, 80, 10);
        sort.sorts.undo(Part::Merge, 2, 80, 10, false);
        sort.bytes -= 10;
        assert_eq!(sort.sorts.of_merges(), 100);
        sort.shrink(Part::Merge, 30, 0);
        sort.end(0);
    }

    /// While a sort spills, nothing that it frees goes to others until its merge has loaded the
    /// runs.
    #[test]
    fn what_a_sort_frees_is_for_its_merge() {
        let mut sort = Charged::new();
        sort.grow(Part::Merge, 10, 10);
        assert!(!sort.grow(Part::Sorter, 60, 60).is_spilling);
        sort.refused(Part::Sorter, 20);
        sort.shrink(Part::Merge, 10, 0);
        for run in [20, 20, 20] {
            sort.shrink(Part::Sorter, run, 0);
        }
        assert_eq!((sort.bytes, sort.sorts.of_merges()), (70, 70));
        for run in [15, 15, 15] {
            sort.grow(Part::Merge, run, 0);
        }
        let step = sort.grow(Part::Sorter, 5, 5);
        assert_eq!(
            (step.may_write, step.uncharge),
            (true, 25),
            "all runs are loaded"
        );
        sort.shrink(Part::Merge, 15, 15);
        sort.shrink(Part::Sorter, 5, 5);
        assert_eq!(
            (sort.bytes, sort.sorts.of_merges()),
            (30, 30),
            "its first reservation, and the growth refused"
        );
        sort.shrink(Part::Merge, 30, 0);
        sort.grow(Part::Merge, 10, 0);
        assert_eq!(sort.bytes, 30, "the file is written");
        assert!(!sort.grow(Part::Sorter, 20, 0).is_spilling);
        sort.shrink(Part::Sorter, 20, 20);
        sort.end(10);
    }

    /// A merge of files is told apart: it can do with two of them. One of sorted runs needs all
    /// that it asks for.
    #[test]
    fn a_merge_of_files_takes_less() {
        let mut sort = Charged::new();
        sort.grow(Part::Merge, 10, 10);
        sort.grow(Part::Sorter, 60, 60);
        sort.refused(Part::Sorter, 20);
        sort.shrink(Part::Merge, 10, 0);
        sort.shrink(Part::Sorter, 60, 0);
        for run in [20, 20, 20] {
            assert!(!sort.grow(Part::Merge, run, 0).takes_less, "of sorted runs");
        }
        sort.shrink(Part::Merge, 60, 40);
        assert!(
            !sort.grow(Part::Merge, 10, 0).takes_less,
            "the file is written"
        );
        assert!(!sort.grow(Part::Merge, 10, 0).takes_less, "the second file");
        assert!(sort.grow(Part::Merge, 10, 0).takes_less);
        assert!(sort.grow(Part::Merge, 10, 10).takes_less);
        sort.end(40);
    }

    /// A sort whose session reserves nothing for merging keeps nothing.
    #[test]
    fn a_sort_without_a_reservation() {
        let mut sort = Charged::new();
        sort.grow(Part::Sorter, 60, 60);
        sort.refused(Part::Sorter, 20);
        sort.shrink(Part::Sorter, 60, 60);
        sort.grow(Part::Merge, 50, 50);
        sort.shrink(Part::Merge, 50, 30);
        assert!(
            !sort.grow(Part::Sorter, 20, 0).is_spilling,
            "the file is written"
        );
        sort.shrink(Part::Sorter, 20, 20);
        sort.end(0);
    }

    /// A sort that writes its only run has no merge in between.
    #[test]
    fn a_spill_without_a_merge() {
        let mut sort = Charged::new();
        sort.grow(Part::Merge, 10, 10);
        sort.grow(Part::Sorter, 60, 60);
        sort.refused(Part::Sorter, 20);
        sort.shrink(Part::Merge, 10, 0);
        sort.shrink(Part::Sorter, 60, 0);
        let step = sort.grow(Part::Merge, 10, 0);
        assert_eq!((step.uncharge, step.sorter, sort.bytes), (40, Some(1), 30));
        sort.grow(Part::Sorter, 15, 0);
        assert_eq!(sort.bytes, 25);
        sort.end(25);
    }

    /// What is kept can be taken for the reader of the sort, from sorts that give their rows first;
    /// all adds up then, too.
    #[test]
    fn what_is_kept_can_be_taken() {
        let mut sort = Charged::new();
        sort.grow(Part::Merge, 10, 10);
        sort.grow(Part::Sorter, 60, 60);
        sort.shrink(Part::Merge, 10, 0);
        for run in [20, 20, 20] {
            sort.shrink(Part::Sorter, run, 0);
        }
        assert_eq!(sort.bytes, 70, "its first reservation, and its runs");
        for (bytes, taken) in [(25, 25), (100, 45), (1, 0)] {
            assert_eq!(sort.sorts.take_kept(bytes, true, None), taken);
            sort.bytes -= taken;
        }
        sort.grow(Part::Merge, 15, 15);
        sort.shrink(Part::Merge, 15, 5);
        sort.end(0);
    }

    /// An operator that could spill takes the first reservation of a sort that gives its rows, and
    /// nothing of one that is merged into a file.
    #[test]
    fn what_is_kept_is_for_others_that_would_spill() {
        for is_refused in [false, true] {
            let mut sort = Charged::new();
            sort.grow(Part::Merge, 10, 10);
            sort.grow(Part::Sorter, 60, 60);
            if is_refused {
                sort.refused(Part::Sorter, 20);
            }
            sort.shrink(Part::Merge, 10, 0);
            for run in [20, 20, 20] {
                sort.shrink(Part::Sorter, run, 0);
            }
            let taken = if is_refused { 0 } else { 10 };
            assert_eq!(sort.sorts.take_kept(100, false, None), taken);
            sort.bytes -= taken;
            for run in [20, 20, 20] {
                sort.grow(Part::Merge, run, 0);
            }
            let kept = if is_refused { 30 } else { 10 };
            sort.shrink(Part::Merge, 60, 60 - kept + (10 - taken));
            sort.end(0);
        }
    }

    /// Two sorts of one thread have a merge each, and a sorter that goes leaves nothing.
    #[test]
    fn sorts_are_told_apart() {
        let sorts = Sorts::default();
        sorts.register(Part::Sorter, 1, None);
        sorts.register(Part::Sorter, 3, None);
        sorts.register(Part::Merge, 4, None);
        assert_eq!(
            sorts.grow(Part::Sorter, 1, 5),
            Step {
                charge: 5,
                ..Step::default()
            }
        );
        sorts.undo(Part::Sorter, 3, 7, 7, true);
        assert_eq!(sorts.grow(Part::Sorter, 3, 5).sorter, Some(3));
        assert_eq!(
            sorts.grow(Part::Sorter, 3, 5).sorter,
            None,
            "it is not busy any more"
        );
        assert_eq!(
            (
                sorts.end(Part::Sorter, 1),
                sorts.end(Part::Sorter, 3),
                sorts.end(Part::Merge, 4)
            ),
            (0, 0, 0)
        );
        let state = sorts.lock();
        assert!(state.sorts.is_empty() && state.merges.is_empty() && state.last.is_empty());
    }
}
