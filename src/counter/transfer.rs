//! A charge goes from one counter to another: what happens below the level that both have in
//! common, and there.

use std::ptr;

use crate::counter::at_limit::{self, DrainReach};
use crate::counter::bookkeeping;
use crate::counter::cover::{self, Fallen};
use crate::counter::level::ChargeMode;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::reserve;
use crate::counter::slow_path::SlowPath;
use crate::counter::spare_word::CoverSide;
use crate::counter::walk;

/// Bytes that the side which takes a charge has been charged.
#[derive(Clone, Copy, Default)]
pub(crate) struct TakenBytes {
    /// At the highest level below the common one.
    rise: u64,
    /// Of that, what the common level is charged for.
    beyond: u64,
}

/// Charges `n` to a counter and its ancestors below `common`, which holds it already for `from`:
/// exactly, or not at all. `common` may have to hold more if the transfer leaves or enters a group
/// that covers.
#[cold]
pub(crate) fn transfer_in<'a>(
    counter: &'a Counter,
    n: u64,
    from: &Counter,
    common: &'a Counter,
) -> Result<TakenBytes, LevelRefusal<'a>> {
    let path = SlowPath::enter();
    let alone = path.own_block();
    let mut taken = TakenBytes::default();
    if counter.cover().is_none() && from.cover().is_none() {
        // Above the common level nothing moves: it has the units already.
        reserve::admit(counter, &path, n, Some(common), DrainReach::AllThreads)?;
        taken.rise = n;
    } else {
        // The side that gives may keep bytes in its usage that pay for allocated ones, and the side
        // that takes may need fewer than `n`. The common level is charged for the difference.
        let paid = || {
            if common.cover().is_some() {
                u64::MAX
            } else {
                cover::would_fall(from, n)
            }
        };
        let mut charge = |level: &'a Counter, more: u64, above: Option<&'a Counter>| {
            reserve::admit(level, &path, more, above, DrainReach::AllThreads)?;
            if above.is_some_and(|above| ptr::eq(above, common)) {
                taken.rise += more;
                let (rise, charged) = (taken.rise, taken.beyond);
                let missing = || rise.saturating_sub(paid()).saturating_sub(charged);
                let mut beyond = missing();
                // A refusal has drained credit below. What had paid for it is spare by now, and
                // leaves with the charge: less is missing.
                while beyond > 0
                    && let Err(refused) =
                        reserve::admit(common, &path, beyond, None, DrainReach::AllThreads)
                {
                    let less = missing();
                    if less >= beyond {
                        level.uncharge(more, Some(common));
                        return Err(refused);
                    }
                    beyond = less;
                }
                taken.beyond += beyond;
            }
            Ok(())
        };
        let come = if counter.cover().is_some() {
            cover::come(counter, n, CoverSide::Reserved, Some(common), &mut charge)
        } else {
            charge(counter, n, Some(common)).map(|()| n)
        };
        match come {
            Ok(rise) => taken.rise = rise,
            Err(refused) => {
                // Below the common level `come` has undone itself.
                common.uncharge(taken.beyond, None);
                return Err(refused);
            }
        }
    }
    bookkeeping::charged(counter, alone, n);
    Ok(taken)
}

/// Charges `n` to a counter and its ancestors below `common`, none of which covers, whatever their
/// limits are. It drains no credit first: what goes back was charged here a moment ago.
#[cold]
pub(crate) fn transfer_in_by_force(counter: &Counter, n: u64, common: &Counter) -> TakenBytes {
    let path = SlowPath::enter();
    let alone = path.own_block();
    let walked = counter.in_transit(alone, |_| {
        walk::walk(counter, n, ChargeMode::Force, Some(common))
    });
    if walked.is_ok_and(|walked| walked.above_max.is_some())
        && let Some(outermost) = path.outermost()
    {
        at_limit::close_crossed(counter, outermost);
    }
    bookkeeping::charged(counter, alone, n);
    TakenBytes { rise: n, beyond: 0 }
}

/// Uncharges `n` from a counter and its ancestors below `common`, which keeps it for the side that
/// has taken it. Afterwards the counter may be gone.
#[cold]
pub(crate) fn transfer_out(counter: &Counter, n: u64, common: &Counter, taken: TakenBytes) {
    let path = SlowPath::enter();
    let alone = path.own_block();
    bookkeeping::note_uncharged(counter, n);
    // Mutation: a-transfer-is-not-audited
    bookkeeping::audit_uncharged(counter, alone, n);
    // In transit: a thread that lowers max meanwhile waits for this one before it notifies the
    // levels above.
    let fallen = counter.in_transit(alone, |_| {
        let covers = counter.cover().is_some();
        let fallen = if covers {
            let (reserved, _kept) = cover::take_reserved(counter, n, Some(common));
            cover::go_below(counter, reserved, CoverSide::Reserved, Some(common))
        } else {
            counter.uncharge(n, Some(common));
            Fallen::by(n)
        };
        if common.cover().is_none() && (covers || taken.rise != n || taken.beyond > 0) {
            let held = fallen.top.saturating_add(taken.beyond);
            let needed = taken.rise;
            // Another thread has allocated meanwhile what the charge was spare for.
            if needed > held {
                let _ = walk::walk(common, needed - held, ChargeMode::Force, None);
            }
            common.uncharge(held.saturating_sub(needed), None);
        }
        fallen
    });
    fallen.serve_waiters();
}
