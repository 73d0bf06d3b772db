//! Pipeline A: limits that are exact and may refuse.
//!
//! ```text
//! try_charge(n)
//!   this thread's stock ── hit ──> done                          no shared write, no read-modify-write
//!         │ miss: ask for a batch
//!   counter ─> parent ─> … ─> root                               each level: usage + n <= max, or refuse
//!         │ refused at level L
//!   close and drain L's subtree ─> retry ─> pressure hook ─> retry ─> refuse
//! ```
//!
//! This file is the whole path of a charge and of an uncharge. The protocol, its races and their answers are in
//! `README.md`; the steps at one level in `page_counter`, the slot in `stock`, what moves credit in `drain`.

pub(crate) mod audit;
mod config;
mod counter;
mod drain;
mod page_counter;
mod peak;
mod protection;
mod set;
pub(crate) mod stock;
mod tree;
mod verify;

pub use config::{CounterConfig, Pressure};
pub use counter::{Counts, PageCounter, PeakWindow};
pub use set::{CounterSet, SetStock};
pub use verify::{Fault, FaultKind, Verdict};

use crate::error::Refused;
use crate::sync::Ordering;
use crate::sync::per_thread::{self, Block};
use crate::sync::slots::Gate;
use page_counter::{Node, Refusal, USAGE_MAX};
use stock::{Consume, Put, Slot};

/// Times a charge is tried again while the pressure hook frees something: the kernel's MAX_RECLAIM_RETRIES.
const RECLAIM_RETRIES_MAX: usize = 16;

/// Whether a refusal asks the pressure hook first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Hook,
    Nobody,
}

// === The hit path ===

impl Gate {
    /// Charge `n` from this thread's stock.
    #[inline(always)]
    pub(crate) fn consume(&self, n: u64) -> Consume {
        crate::sync::with_local(|local| match local.fast_block().and_then(|block| block.slot_behind(self)) {
            Some(slot) => slot.consume(n, false),
            None => Consume::Miss,
        })
    }

    /// Uncharge `n` into this thread's stock.
    #[inline(always)]
    pub(crate) fn put(&self, n: u64) -> Put {
        crate::sync::with_local(|local| match local.fast_block().and_then(|block| block.slot_behind(self)) {
            Some(slot) => slot.put(n, &self.capacity, false),
            None => Put::Full,
        })
    }
}

// === The slow path of a charge ===

impl Node {
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_slow(&self, n: u64, missed: Consume) -> Result<(), Refused> {
        self.charge_slow(n, missed, Ask::Hook)
    }

    /// Never refused: what does not fit is forced, after stranded credit was drained.
    #[cold]
    #[inline(never)]
    pub(crate) fn force_slow(&self, n: u64, missed: Consume) {
        if self.charge_slow(n, missed, Ask::Nobody).is_ok() {
            return;
        }
        per_thread::slow_path(|block, nested| {
            let charged = n.min(self.countable());
            if charged < n {
                self.tree.counts.overflows.fetch_add(1, Ordering::Relaxed);
            }
            let crossed = self.force(charged);
            self.count_charged(block.filter(|_| !nested), charged);
            if crossed && !nested {
                self.tree.close_crossed(self);
            }
        });
    }

    fn charge_slow(&self, n: u64, missed: Consume, ask: Ask) -> Result<(), Refused> {
        if n == 0 {
            return Ok(());
        }
        per_thread::slow_path(|block, nested| {
            let missed = if self.careful { self.consume_careful(block, n) } else { missed };
            if missed == Consume::Undone {
                self.undo(block, n);
            }
            if missed != Consume::Hit {
                self.charge_missed(block, nested, n, ask)?;
            }
            self.count_charged(block.filter(|_| !nested), n);
            Ok(())
        })
    }

    fn charge_missed(&self, block: Option<&Block>, nested: bool, n: u64, ask: Ask) -> Result<(), Refused> {
        let mut refusal = match self.refill(block.filter(|_| !nested), n) {
            Ok((open, margin)) => {
                if !nested {
                    self.tree.adapt(self, open, margin);
                }
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        if nested {
            // Inside another slow path of this thread: no lock may be taken and nobody waited for.
            self.tree.counts.refused_in_transit.fetch_add(1, Ordering::Relaxed);
        } else {
            refusal = match self.tree.charge_at_limit(self, n, refusal) {
                Ok(_) => return Ok(()),
                Err(refusal) => refusal,
            };
            if ask == Ask::Hook {
                refusal = match self.ask_hook(block, n, refusal) {
                    Ok(()) => return Ok(()),
                    Err(refusal) => refusal,
                };
            }
        }
        if ask == Ask::Hook {
            refusal.level.failcnt.fetch_add(1, Ordering::Relaxed);
        }
        Err(refusal.refused(self, n))
    }

    /// A walk for a batch, whose surplus stays in the slot, or for exactly `n`. Returns whether the stock was open, and the
    /// margin that the walk left.
    fn refill(&self, block: Option<&Block>, n: u64) -> Result<(bool, u64), Refusal<'_>> {
        let Some(block) = block else { return self.walk(n).map(|margin| (false, margin)) };
        block.transit.begin(self.tree.number, self.fenced);
        // Acquire (E5): read in transit. Whoever closes the stock after this waits for us.
        let capacity = self.gate.capacity.load(Ordering::Acquire);
        let batch = capacity / 2;
        let walked = match self.ready_slot(block, capacity) {
            Some(slot) if n <= batch => match self.walk(batch) {
                Ok(margin) => {
                    self.keep_surplus(slot, batch - n);
                    Ok(margin)
                }
                // No room for a batch: ask for what is needed.
                Err(_) => self.walk(n).map(|_| 0),
            },
            _ => self.walk(n),
        };
        block.transit.end();
        walked.map(|margin| (capacity > 0, margin))
    }

    /// What a refill got beyond the charge becomes credit, or goes back up the tree.
    fn keep_surplus(&self, slot: &Slot, surplus: u64) {
        let back = match slot.put(surplus, &self.gate.capacity, self.fenced) {
            Put::Kept => 0,
            Put::Full => surplus,
            Put::Closed => slot.take_back(u64::MAX, self.fenced),
        };
        self.uncharge_levels(back);
    }

    /// This thread's slot, active: its share of the published bound is set aside. `None`: go without stock.
    fn ready_slot<'a>(&self, block: &'a Block, capacity: u64) -> Option<&'a Slot> {
        if capacity == 0 {
            // Left behind when the barrier failed or the closer ran out of patience: nobody else may come for it.
            let slot = block.slot(self.index)?;
            self.uncharge_levels(slot.take_back(u64::MAX, self.fenced));
            return None;
        }
        let slot = block.slot_or_page(self.index)?;
        if slot.is_vacant() {
            if !self.reserve(capacity) {
                return None;
            }
            self.touched.fetch_add(1, Ordering::Relaxed);
            slot.activate();
        }
        Some(slot)
    }

    /// Pressure, and the charge again for as long as somebody frees something.
    fn ask_hook<'a>(&'a self, block: Option<&Block>, n: u64, mut refusal: Refusal<'a>) -> Result<(), Refusal<'a>> {
        let Some(hook) = &self.tree.config.hook else { return Err(refusal) };
        for _ in 0..RECLAIM_RETRIES_MAX {
            let refused = refusal.refused(self, n);
            let freed = per_thread::in_hook(|| hook(&Pressure { refused: &refused }));
            if freed.unwrap_or(0) == 0 {
                break;
            }
            refusal = match self.refill(block, n) {
                Ok(_) => return Ok(()),
                Err(refusal) => match self.tree.charge_at_limit(self, n, refusal) {
                    Ok(_) => return Ok(()),
                    Err(refusal) => refusal,
                },
            };
        }
        Err(refusal)
    }
}

// === The slow path of an uncharge ===

impl Node {
    #[cold]
    #[inline(never)]
    pub(crate) fn uncharge_slow(&self, n: u64, missed: Put) {
        let n = n.min(USAGE_MAX);
        if n == 0 {
            return;
        }
        per_thread::slow_path(|block, nested| {
            // The second count first: once the credit is put back the counter may be somebody else's.
            self.count_uncharged(block.filter(|_| !nested), n);
            let missed = if self.careful { self.put_careful(block, n) } else { missed };
            if missed != Put::Full {
                // Put, and if the stock has closed meanwhile taken back.
                return if missed == Put::Closed {
                    self.take_back(block)
                };
            }
            match block.filter(|_| !nested) {
                Some(block) => {
                    block.transit.begin(self.tree.number, self.fenced);
                    self.cut(block, n);
                    block.transit.end();
                }
                None => self.uncharge_levels(n),
            }
            let poisoned = self.poisoned.load(Ordering::Relaxed) && self.gate.capacity.load(Ordering::Relaxed) > 0;
            if poisoned && !nested {
                self.tree.close_poisoned(self);
            }
        });
    }

    /// Keep one batch, and let the rest go up the tree: trimming only the excess would overflow again at once.
    fn cut(&self, block: &Block, n: u64) {
        // Acquire (E5): as in `refill`.
        let capacity = self.gate.capacity.load(Ordering::Acquire);
        let Some(slot) = self.ready_slot(block, capacity) else { return self.uncharge_levels(n) };
        match slot.put(n, &self.gate.capacity, self.fenced) {
            Put::Kept => return,
            Put::Closed => return self.uncharge_levels(slot.take_back(u64::MAX, self.fenced)),
            Put::Full => {}
        }
        let batch = capacity / 2;
        let owned = slot.owned().max(0).cast_unsigned();
        if owned >= batch {
            return self.uncharge_levels(n.saturating_add(slot.take_back(owned - batch, self.fenced)));
        }
        let keep = (batch - owned).min(n);
        self.keep_surplus(slot, keep);
        self.uncharge_levels(n - keep);
    }

    /// The credit just put is in the slot of a counter that has closed: everything in the slot goes up the tree.
    fn take_back(&self, block: Option<&Block>) {
        let Some(block) = block else { return };
        // An allocator that charges inside a transit is covered by it.
        let entered = block.transit.is_over();
        if entered {
            block.transit.begin(self.tree.number, self.fenced);
        } else {
            block.transit.widen();
        }
        let back = block.slot(self.index).map_or(0, |slot| slot.take_back(u64::MAX, self.fenced));
        self.uncharge_levels(back);
        if entered {
            block.transit.end();
        }
    }

    /// A drainer claimed what a charge was about to pay with: raise the level again. The charge goes on as a miss.
    fn undo(&self, block: Option<&Block>, n: u64) {
        let Some(slot) = block.and_then(|block| block.slot(self.index)) else { return };
        if slot.undo(n, &self.gate.capacity, self.fenced) == Put::Closed {
            self.take_back(block);
        }
    }
}

// === Hits that cost more: with a real fence, or counted twice ===

impl Node {
    fn consume_careful(&self, block: Option<&Block>, n: u64) -> Consume {
        let slot = block.and_then(|block| block.slot(self.index));
        slot.map_or(Consume::Miss, |slot| slot.consume(n, self.fenced))
    }

    fn put_careful(&self, block: Option<&Block>, n: u64) -> Put {
        let slot = block.and_then(|block| block.slot(self.index));
        slot.map_or(Put::Full, |slot| slot.put(n, &self.gate.capacity, self.fenced))
    }

    fn count_charged(&self, block: Option<&Block>, n: u64) {
        if self.tree.audited {
            match block.and_then(|block| block.audit_or_page(self.index)) {
                Some(cell) => cell.charged(n),
                None => self.audit_shared.charged_shared(n),
            }
        }
    }

    fn count_uncharged(&self, block: Option<&Block>, n: u64) {
        if self.tree.audited {
            match block.and_then(|block| block.audit_or_page(self.index)) {
                Some(cell) => cell.uncharged(n),
                None => self.audit_shared.uncharged_shared(n),
            }
        }
    }
}
