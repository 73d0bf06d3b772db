//! Charges and uncharges without a guard.
//!
//! They move credit and usage as a guard does. A guard gives back what it holds and no more; a
//! caller without one may give back too much, and usage then falls below what guards hold. Where no
//! handle is left either, usage of zero would end the group under its guards. So each thread counts
//! what it charges and uncharges without a guard. The thread that claims the object adds these
//! counts up. Where guards still hold something, the object stays for ever: a late drop of a guard
//! finds its own group, and is counted there as an underflow. That count is the drop's last use of
//! the object: with it the guard no longer holds anything.
//!
//! Every call without a guard has a handle, or its bytes keep the object. The handle goes, or the
//! bytes, before the claim, so the claimer reads all counts (E15).

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
    /// [`consume_open`](Self::consume_open) without a guard. It also misses for the whole capacity
    /// and more, and before the thread's first count here. 0 units hit where the stock is open, and
    /// hold nothing.
    #[inline(always)]
    pub(crate) fn consume_raw(&self, n: u64) -> Consume {
        // Relaxed: as in `miss_mask`. Tested first: no register keeps the capacity over what
        // follows.
        // Mutation: offline-leaves-credit-to-hit-without-guard
        if n >= self.capacity.load(Ordering::Relaxed) {
            return Consume::Miss;
        }
        with_local(|local| {
            let consume = |slot: &Slot, counted: &RawCell| {
                let consumed = slot.consume_within_capacity(n);
                if consumed == Consume::Hit {
                    counted.charged(n);
                }
                consumed
            };
            local
                .fast_block()
                .and_then(|block| block.raw_behind(self, consume))
                .unwrap_or(Consume::Miss)
        })
    }

    /// [`put`](Self::put) without a guard.
    #[inline(always)]
    pub(crate) fn put_raw(&self, n: u64) -> Put {
        with_local(|local| {
            let put = |slot: &Slot, counted: &RawCell| {
                let Some(left) = counted.left_without(n) else {
                    return Put::Full;
                };
                let put = slot.put_tested(n, &self.capacity);
                if put == Put::Kept {
                    // Mutation: e15-hit-without-count
                    counted.leave(left);
                }
                put
            };
            local
                .fast_block()
                .and_then(|block| block.raw_behind(self, put))
                .unwrap_or(Put::Full)
        })
    }
}

/// Which way bytes went without a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardlessMove {
    Charged,
    Uncharged,
}

/// Counts what did not hit. The caller has a handle, or the bytes keep the counter.
#[cold]
pub(crate) fn count(counter: &Counter, n: u64, way: GuardlessMove) {
    // No counter holds more, and none finds more missing.
    let n = n.min(USAGE_MAX);
    let path = SlowPath::enter();
    // Relaxed (E15), here and below: as in `RawCell::charged`.
    counter.tree().registry.raw.store(1, Ordering::Relaxed);
    let block = path.outermost().and_then(Outermost::block);
    let n = if way == GuardlessMove::Charged {
        n.cast_signed()
    } else {
        -n.cast_signed()
    };
    if let Some(cell) = block.and_then(|block| block.raw_or_make(counter.index)) {
        cell.count_slow(n.into());
        return;
    }
    let sum = |sum: i64| sum.checked_add(n);
    let shared = &counter.usage.raw_shared;
    let counted = shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    if counted.is_err() {
        keep_for_ever(counter);
    }
}

/// Keeps the object of a counter for ever: a sum cannot tell what guards hold. The caller has a
/// handle, or its bytes keep the counter.
#[cold]
pub(crate) fn keep_for_ever(counter: &Counter) {
    // Relaxed (E15): as in `RawCell::charged`.
    counter.tree().registry.raw.store(1, Ordering::Relaxed);
    counter.kept.store(true, Ordering::Relaxed);
}

/// True if guards hold something, or may, of a group whose usage is zero. The caller has claimed
/// the group.
pub(crate) fn hides_guards(first: &Counter) -> bool {
    // Relaxed (E15): as in `RawCell::net`.
    let hides =
        |counter: &Counter| counter.kept.load(Ordering::Relaxed) || held_by_guards(counter) != 0;
    first.tree().registry.raw.load(Ordering::Relaxed) != 0 && first.group().any(hides)
}

/// Units that guards hold beyond usage: what was uncharged without a guard and not charged so, less
/// what the counter has found missing already. Another thread may be counting what it finds
/// missing: a count that is too small makes this larger.
fn held_by_guards(counter: &Counter) -> i128 {
    let cells = counter
        .tree()
        .registry
        .blocks()
        .filter_map(|block| block.raw(counter.index))
        .map(RawCell::net);
    // Relaxed (E15): as in `RawCell::net`.
    let shared = counter.usage.raw_shared.load(Ordering::Relaxed);
    let charged = cells.fold(i128::from(shared), i128::saturating_add);
    // Acquire (E15): pairs with `Counter::count_underflow`. A guard that has counted its units here
    // no longer uses the object.
    // Mutation: e15-underflow-is-read-relaxed
    let underflowed = counter.usage.underflowed.load(Ordering::Acquire);
    -charged.saturating_add_unsigned(underflowed.into())
}

/// Clears the counts for the next counter with the object. No thread uses the counter.
pub(crate) fn reset(counter: &Counter) {
    let tree = counter.tree();
    if tree.registry.raw.load(Ordering::Relaxed) != 0 {
        tree.registry
            .blocks()
            .filter_map(|block| block.raw(counter.index))
            .for_each(RawCell::reset);
    }
}
