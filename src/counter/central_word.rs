//! The word of a central stock, in which credit lies that one thread gives and another takes:
//! `central.md`.
//!
//! Edges: E10 (open count), E53 (put and take/close).

use crate::sync::stat_atomic::{AtomicU32 as StatU32, AtomicU64 as StatU64};
use crate::sync::{AtomicU64, CachePadded, Ordering, PUTS_WHILE_CLOSED};

/// A stock closes once it has not changed for so many visits of idle credit.
const VISITS_MAX: u32 = 2;

/// Lies on lines of its own: two threads write it all the time.
pub(crate) struct CentralWord(CachePadded<Words>);

struct Words {
    /// Credit in the low half, room for more in the high half. Closed: neither.
    units: AtomicU64,
    /// Puts that are still to go up the tree before one may open the stock.
    wait: StatU32,
    /// Visits for idle credit since it changed.
    visits: StatU32,
}

#[derive(Clone, Copy)]
struct Units {
    credit: u32,
    room: u32,
}

impl Units {
    const NONE: Units = Units { credit: 0, room: 0 };

    fn of(word: u64) -> Units {
        Units {
            credit: word as u32,
            room: (word >> 32) as u32,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.room) << 32 | u64::from(self.credit)
    }

    fn take(self, n: u32) -> Option<Units> {
        Some(Units {
            credit: self.credit.checked_sub(n)?,
            // Together they stay the bound of this opening, which fits into a half: no sum
            // overflows.
            room: self.room + n,
        })
    }

    fn put(self, n: u32) -> Option<Units> {
        Some(Units {
            room: self.room.checked_sub(n)?,
            credit: self.credit + n,
        })
    }
}

/// Central stocks of the process: each belongs to an object of the pool, and stays with it.
static MADE: StatU64 = StatU64::new(0);

/// The memory that all central stocks take, in bytes.
pub(crate) fn bytes() -> u64 {
    MADE.load(Ordering::Relaxed) * size_of::<CentralWord>() as u64
}

impl CentralWord {
    pub(super) fn new() -> CentralWord {
        MADE.fetch_add(1, Ordering::Relaxed);
        CentralWord(CachePadded::new(Words {
            units: AtomicU64::new(Units::NONE.word()),
            wait: StatU32::new(0),
            visits: StatU32::new(0),
        }))
    }

    /// Credit: exact under the tree's lock while no thread charges, else an estimate.
    pub(crate) fn credit(&self) -> u64 {
        // No edge: a figure.
        Units::of(self.0.units.load(Ordering::Relaxed))
            .credit
            .into()
    }

    /// Takes `n` units of credit, which are live charge from then on. False: there are fewer.
    #[inline]
    pub(super) fn take(&self, n: u64) -> bool {
        self.change(n, Units::take)
    }

    /// Keeps `n` charged units as credit. False: they stay charged, because the stock is closed or
    /// has no room.
    #[inline]
    pub(super) fn put(&self, n: u64) -> bool {
        self.change(n, Units::put)
    }

    /// Exchanges the word for what `to` makes of it. False, and nothing is written, where `to`
    /// refuses.
    #[inline]
    fn change(&self, n: u64, to: impl Fn(Units, u32) -> Option<Units>) -> bool {
        // More than a half can count never fits, and a put of nothing must not look like use to the
        // visits of idle credit.
        let Some(n) = u32::try_from(n).ok().filter(|&n| n > 0) else {
            return false;
        };
        let to = |word| to(Units::of(word), n).map(Units::word);
        // AcqRel (E53): what a thread charged, or took out, comes before another one takes it.
        // Acquire (E10): a thread that finds the stock open finds it counted; pairs with the count
        // in `central::open`.
        // Mutation: e53-credit-is-taken-in-two-steps
        let changed = self
            .0
            .units
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, to)
            .is_ok();
        // The stock is in use: the visits begin to count anew.
        if changed {
            self.0.visits.store(0, Ordering::Relaxed);
        }
        changed
    }

    /// Closes the stock. Returns its credit, which the caller uncharges, and the bound that it was
    /// opened with: credit and room together, so that no other word has to keep it.
    pub(super) fn shut(&self) -> (u64, u64) {
        // AcqRel (E53): pairs with `change`.
        // Mutation: e53-closed-credit-is-taken
        // Mutation: e53-closed-without-a-mark
        let Units { credit, room } =
            Units::of(self.0.units.swap(Units::NONE.word(), Ordering::AcqRel));
        (credit.into(), u64::from(credit) + u64::from(room))
    }

    /// Lets threads put up to `most` units. The caller has counted the stock as open, and holds the
    /// tree's lock: nobody else writes a word without credit and room, so a store will do.
    pub(super) fn open(&self, most: u32) {
        self.0.visits.store(0, Ordering::Relaxed);
        // Release (E10): after the count; pairs with `change`.
        self.0.units.store(
            Units {
                credit: 0,
                room: most,
            }
            .word(),
            Ordering::Release,
        );
    }

    /// True if a thread whose put found no room may open the stock: where it is closed, and once
    /// enough puts have walked since it closed. Otherwise a stock near a limit would open and close
    /// all the time.
    pub(super) fn is_due(&self, n: u64) -> bool {
        let is_amount = (1..=u64::from(u32::MAX)).contains(&n);
        // No edge: where it has opened or closed meanwhile, the thread finds that under the lock.
        if !is_amount || self.0.units.load(Ordering::Relaxed) != Units::NONE.word() {
            return false;
        }
        // Two threads may count their puts as one. Nothing rests on the number.
        let wait = self.0.wait.load(Ordering::Relaxed);
        self.0.wait.store(wait.saturating_sub(1), Ordering::Relaxed);
        wait == 0
    }

    /// From here on some puts go up the tree before one may open the stock.
    pub(super) fn wait(&self) {
        self.0.wait.store(PUTS_WHILE_CLOSED, Ordering::Relaxed);
    }

    /// For the next channel, or the next group with the object: its first put may open the stock.
    pub(super) fn end_wait(&self) {
        self.0.wait.store(0, Ordering::Relaxed);
    }

    /// Counts a visit of idle credit. Returns whether the stock has not changed for two visits
    /// before it.
    pub(super) fn is_idle(&self) -> bool {
        self.0.visits.fetch_add(1, Ordering::Relaxed) >= VISITS_MAX
    }
}
