//! Charges and uncharges without a guard.
//!
//! They move credit and usage as a guard does. A guard gives back what it holds and no more; a caller without one may
//! give back too much, and usage then falls below what guards hold. Where no handle is left either, usage of zero would
//! end the group under its guards. So each thread counts what it charges and uncharges without a guard. The thread
//! that claims the object adds these counts up. Where guards still hold something, the object stays for ever: a late
//! drop of a guard finds its own group, and is counted there as an underflow.
//!
//! Every call without a guard has a handle, or its bytes keep the object. The handle goes, or the bytes, before the
//! claim, so the claimer reads all counts (E15).

use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::error::USAGE_MAX;
use crate::sync::Ordering;
use crate::thread::directory::Header;
use crate::thread::local::with_local;
use crate::thread::raw::RawCell;
use crate::thread::slot::{Consume, Put, Slot};
use crate::thread::slow_path::Outermost;

impl Header {
    /// [`consume_open`](Self::consume_open) without a guard. It also misses for more than the capacity, and before the
    /// thread's first count here.
    #[inline(always)]
    pub(crate) fn consume_raw(&self, n: u64) -> Consume {
        // Relaxed: as in `bar`. 0 units wrap. Tested first: no register keeps the capacity over what follows.
        // Mutation: offline-leaves-credit-to-hit-without-guard
        if n.wrapping_sub(1) >= self.capacity.load(Ordering::Relaxed) {
            return Consume::Miss;
        }
        with_local(|local| {
            let consume = |slot: &Slot, counted: &RawCell| {
                let consumed = slot.consume_within_capacity(n, false);
                if consumed == Consume::Hit {
                    counted.charged(n);
                }
                consumed
            };
            local.fast_block().and_then(|block| block.raw_behind(self, consume)).unwrap_or(Consume::Miss)
        })
    }

    /// [`put`](Self::put) without a guard.
    #[inline(always)]
    pub(crate) fn put_raw(&self, n: u64) -> Put {
        with_local(|local| {
            let put = |slot: &Slot, counted: &RawCell| {
                let put = slot.put(n, &self.capacity, false);
                if put == Put::Kept {
                    // Mutation: e15-hit-without-count
                    counted.uncharged(n);
                }
                put
            };
            local.fast_block().and_then(|block| block.raw_behind(self, put)).unwrap_or(Put::Full)
        })
    }
}

/// Which way bytes went without a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Charged,
    Uncharged,
}

/// Count what did not hit. The caller has a handle, or the bytes keep the counter.
#[cold]
pub(crate) fn count(counter: &Counter, n: u64, way: Way) {
    // No counter holds more, and none finds more missing.
    let n = n.min(USAGE_MAX);
    let path = SlowPath::enter();
    // Relaxed (E15), here and below: as in `RawCell::charged`.
    counter.tree().registry.raw.store(1, Ordering::Relaxed);
    let block = path.outermost().and_then(Outermost::block);
    let shared = &counter.usage.raw_shared;
    match (block.and_then(|block| block.raw_or_make(counter.index)), way) {
        (Some(cell), Way::Charged) => cell.charged(n),
        (Some(cell), Way::Uncharged) => cell.uncharged(n),
        (None, Way::Charged) => {
            shared.fetch_add(n, Ordering::Relaxed);
        }
        (None, Way::Uncharged) => {
            shared.fetch_sub(n, Ordering::Relaxed);
        }
    }
}

/// Whether guards hold something of a group whose usage is zero. The caller has claimed the group.
pub(crate) fn hides_guards(first: &Counter) -> bool {
    // Relaxed (E15): as in `RawCell::live`.
    first.tree().registry.raw.load(Ordering::Relaxed) != 0 && first.group().any(|counter| held_by_guards(counter) != 0)
}

/// Units that guards hold beyond usage: what was uncharged without a guard and not charged so, less what the counter
/// has found missing already. Another thread may be counting what it finds missing: a count that is too small makes this
/// larger.
fn held_by_guards(counter: &Counter) -> i64 {
    let cells = counter.tree().registry.blocks().filter_map(|block| block.raw(counter.index)).map(RawCell::live);
    // Relaxed (E15): as in `RawCell::live`.
    let shared = counter.usage.raw_shared.load(Ordering::Relaxed).cast_signed();
    let charged = cells.fold(shared, i64::wrapping_add);
    charged.wrapping_add_unsigned(counter.usage.underflowed.load(Ordering::Relaxed)).wrapping_neg()
}

/// Start over for the next counter with the object. No thread uses the counter.
pub(crate) fn reset(counter: &Counter) {
    let tree = counter.tree();
    if tree.registry.raw.load(Ordering::Relaxed) != 0 {
        tree.registry.blocks().filter_map(|block| block.raw(counter.index)).for_each(RawCell::reset);
    }
}
