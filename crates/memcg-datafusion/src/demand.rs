//! Spilling on demand: what other groups want of one account's operators, and which of them have
//! been told.
//!
//! An operator spills only on its own task, when its growth is refused. So a demand stays open
//! until the operators come: each that is worth it is refused once, and what they give back from
//! then on counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use memcg::{Group, Reclaim, ReclaimContext, ReclaimPromise};

use crate::sorts::Sorts;

/// A reservation below this is refused only where it is all that is wanted: a file costs more than
/// it brings.
const WORTH: u64 = 256 << 10;

/// Time that a demand stays open that no operator has taken, and one that an operator has: it sorts
/// and writes first.
const UNTAKEN: Duration = Duration::from_millis(500);
const TAKEN: Duration = Duration::from_secs(10);

/// The demands of the process that are open.
static OPEN: Mutex<Vec<Weak<Demand>>> = Mutex::new(Vec::new());

/// Stage that a demand has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// No operator has come yet.
    Asked,
    /// An operator was refused, and is about to give memory back.
    Spilling,
}

/// Farthest stage of the operators that were asked for the memory of `level`. `None`: none is
/// asked.
pub(crate) fn stage_below(level: &Group) -> Option<Stage> {
    let open: Vec<_> = {
        let mut open = lock(&OPEN);
        open.retain(|demand| demand.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).collect()
    };
    open.iter().filter_map(|demand| demand.stage(level)).max()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that is wanted of the spillable consumers of one group.
#[derive(Debug)]
pub(crate) struct Demand {
    group: Group,
    this: Weak<Demand>,
    /// The sorts among the consumers.
    pub(crate) sorts: Sorts,
    /// True if `open` has something. Relaxed wherever it is used: a hint, `open` decides under its
    /// lock.
    is_open: AtomicBool,
    open: Mutex<Option<OpenDemand>>,
}

#[derive(Debug)]
struct OpenDemand {
    later: ReclaimPromise,
    /// The group that is full.
    target: Group,
    /// Bytes that are still wanted.
    left: u64,
    freed: u64,
    since: Instant,
    told: Vec<Told>,
}

/// A consumer that was refused.
#[derive(Debug)]
struct Told {
    consumer: usize,
    /// Bytes that its reservation held then.
    held: u64,
    /// It has given nothing back yet.
    is_spilling: bool,
}

impl OpenDemand {
    fn is_over(&self) -> bool {
        let time = if self.told.is_empty() { UNTAKEN } else { TAKEN };
        self.left == 0 || self.since.elapsed() > time
    }

    /// Bytes that the operators that were told still have to give.
    fn coming(&self) -> u64 {
        self.told
            .iter()
            .filter(|told| told.is_spilling)
            .map(|told| told.held)
            .sum()
    }
}

impl Demand {
    pub(crate) fn new(group: Group) -> Arc<Demand> {
        Arc::new_cyclic(|this| Demand {
            group,
            this: Weak::clone(this),
            sorts: Sorts::default(),
            is_open: AtomicBool::new(false),
            open: Mutex::new(None),
        })
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Stage of the demand, if it is for this level.
    fn stage(&self, level: &Group) -> Option<Stage> {
        let mut open = lock(&self.open);
        self.close_if_over(&mut open);
        let demand = open.as_ref().filter(|demand| &demand.target == level)?;
        let is_spilling = demand.told.iter().any(|told| told.is_spilling);
        Some(if is_spilling {
            Stage::Spilling
        } else {
            Stage::Asked
        })
    }

    /// Returns the bytes that are wanted if this growth of a consumer, whose reservation holds
    /// `held` bytes, is to be refused: then the consumer spills.
    #[cold]
    pub(crate) fn refuses(&self, consumer: usize, held: u64) -> Option<u64> {
        let mut open = lock(&self.open);
        self.close_if_over(&mut open);
        let demand = open.as_mut()?;
        let is_worth_it = held >= WORTH || (held > 0 && held >= demand.left);
        let was_told = demand.told.iter().any(|told| told.consumer == consumer);
        if !is_worth_it || was_told || demand.coming() >= demand.left {
            return None;
        }
        demand.told.push(Told {
            consumer,
            held,
            is_spilling: true,
        });
        Some(demand.left)
    }

    /// A consumer has given `bytes` back.
    #[cold]
    pub(crate) fn came_back(&self, consumer: usize, bytes: u64) {
        let mut open = lock(&self.open);
        let Some(demand) = open.as_mut() else { return };
        demand.left = demand.left.saturating_sub(bytes);
        demand.freed = demand.freed.saturating_add(bytes);
        demand.has_given(consumer);
        self.close_if_over(&mut open);
    }

    /// A consumer has gone.
    #[cold]
    pub(crate) fn gone(&self, consumer: usize) {
        let mut open = lock(&self.open);
        if let Some(demand) = open.as_mut() {
            demand.has_given(consumer);
        }
        self.close_if_over(&mut open);
    }

    fn close_if_over(&self, open: &mut Option<OpenDemand>) {
        if open.as_ref().is_some_and(OpenDemand::is_over) {
            self.is_open.store(false, Ordering::Relaxed);
            // The report takes a lock of the core that no thread holds over a call of ours.
            if let Some(OpenDemand { later, freed, .. }) = open.take() {
                later.report(freed);
            }
        }
    }

    fn ask(&self, want: u64, context: &ReclaimContext<'_>) {
        let mut open = lock(&self.open);
        self.close_if_over(&mut open);
        if open.is_none() && want > 0 && self.reclaimable() > 0 {
            *open = Some(OpenDemand {
                later: context.promise(),
                target: context.target(),
                left: want,
                freed: 0,
                since: Instant::now(),
                told: Vec::new(),
            });
            self.is_open.store(true, Ordering::Relaxed);
            drop(open);
            let mut all = lock(&OPEN);
            if !all.iter().any(|demand| Weak::ptr_eq(demand, &self.this)) {
                all.push(Weak::clone(&self.this));
            }
        }
    }
}

impl OpenDemand {
    fn has_given(&mut self, consumer: usize) {
        self.told
            .iter_mut()
            .filter(|told| told.consumer == consumer)
            .for_each(|told| told.is_spilling = false);
    }
}

impl Reclaim for Demand {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        self.ask(want, context);
        0
    }

    fn start(&self, want: u64, context: &ReclaimContext<'_>) {
        self.ask(want, context);
    }

    /// No demand can ask for the bytes that sorters have given to their merges.
    fn reclaimable(&self) -> u64 {
        self.group.usage().saturating_sub(self.sorts.of_merges())
    }
}
