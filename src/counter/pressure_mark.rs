//! The pressure of a group, as bits in its word: from usage beside max, and from stalls. One load
//! reads it.
//!
//! Each thread that changes usage or max, sets the thresholds, or takes the group offline,
//! compares. Where the bits are wrong it corrects them in one exchange of the word, and then
//! compares again, until both agree. The pressure falls only once usage is a sixteenth below the
//! threshold. In between, the bits stay as they are.
//!
//! Usage has credit in it, and a put into a stock tells no one. So the bits may stay raised by
//! credit alone, and only then: where a look at them finds that the pressure would be lower without
//! all the credit that there may be ([`may_be_credit`]), `pressure::pressure_levels` counts the
//! credit and gives it back.
//!
//! Edge: E43 (usage/mark).

use crate::counter::object::{Counter, Object};
use crate::counter::watch::{OBSERVED, PRESSURE_KNOWN, PRESSURE_PARTS};
use crate::sync::{Ordering, fence_after_exchange};

/// The places of the parts in the word: by usage, by stalls, and the larger of the two.
const BY_USAGE: u32 = PRESSURE_PARTS.trailing_zeros();
const BY_STALLS: u32 = BY_USAGE + 2;
const SHOWN: u32 = BY_USAGE + 4;
const PART: u64 = 3;

/// Pressure falls once usage is below its threshold by this part, as a shift.
const SLACK_SHIFT: u32 = 4;

/// Percentages of max from which the pressure is elevated and critical; 0 where it is never so.
pub(crate) fn thresholds(counter: &Object) -> [u8; 2] {
    let [elevated, critical, ..] = counter.pressure_from.load(Ordering::Relaxed).to_le_bytes();
    [elevated, critical]
}

/// Sets the thresholds that are named. The caller corrects the bits afterwards; it forgets them
/// where this returns false: no threshold is left.
pub(crate) fn set_thresholds(counter: &Object, wanted: [Option<u8>; 2]) -> bool {
    let [elevated, critical] = thresholds(counter);
    let [elevated, critical] = [wanted[0].unwrap_or(elevated), wanted[1].unwrap_or(critical)];
    counter.pressure_from.store(
        u32::from_le_bytes([elevated, critical, 0, 0]),
        Ordering::Relaxed,
    );
    if [elevated, critical] == [0, 0] {
        return false;
    }
    // E43: the thresholds, then the exchange of the bits, then usage; pairs with the exchange on
    // usage before `is_wrong`.
    counter.limits.watched.set(PRESSURE_KNOWN);
    // Mutation: e43-thresholds-move-without-a-fence
    fence_after_exchange();
    true
}

/// The group has the pressure of the groups above from now on. Calls `changed` where it had
/// pressure of its own.
pub(crate) fn forget(counter: &Object, changed: impl FnOnce()) {
    let before = counter
        .limits
        .watched
        .clear(PRESSURE_KNOWN | PRESSURE_PARTS);
    if part(before, SHOWN) > 0 {
        changed();
    }
}

/// So many per cent of `whole`, at most 100. It divides by a constant alone.
fn share(whole: u64, percent: u8) -> u64 {
    let percent = u64::from(percent);
    whole / 100 * percent + whole % 100 * percent / 100
}

fn part(bits: u64, at: u32) -> u64 {
    bits >> at & PART
}

/// The pressure of so much usage, where the bits are these.
fn by_usage(counter: &Object, bits: u64, usage: u64) -> u64 {
    // SeqCst (E43): usage and max are read after the bits, of which `watched.bits` has the order.
    // Where the level is observed from now on, or no longer, the bits have changed. Pairs with the
    // exchanges on usage in `level`, and on max in `store_max`.
    let now = part(bits, BY_USAGE);
    let observed = || counter.usage.observed_max.load(Ordering::Relaxed);
    // Mutation: an-observed-group-has-no-pressure
    let max = if bits & OBSERVED != 0 {
        observed()
    } else {
        counter.limits.max.load(Ordering::SeqCst)
    };
    // Up at the threshold, down a sixteenth below it: at the threshold itself usage goes up and
    // down all the time, and each change is an event that wakes listeners.
    let is_from = |pressure: u64, percent: u8| {
        // A part that rounds to nothing is one byte.
        let from = share(max, percent).max(1);
        percent > 0
            && usage
                >= if now >= pressure {
                    from - (from >> SLACK_SHIFT)
                } else {
                    from
                }
    };
    let [elevated, critical] = thresholds(counter);
    if max == u64::MAX {
        0
    } else if is_from(2, critical) {
        2
    } else {
        u64::from(is_from(1, elevated))
    }
}

/// The bits as they have to be, with this pressure by stalls.
fn with_stalls(counter: &Object, bits: u64, by_stalls: u64) -> u64 {
    if bits & PRESSURE_KNOWN == 0 {
        return bits;
    }
    let is_gone = counter.state().is_offline();
    // A group that is offline keeps its usage for a while, and nobody is to react to its pressure
    // any more.
    let [usage, stalls] = if is_gone {
        [0, 0]
    } else {
        [by_usage(counter, bits, counter.usage()), by_stalls]
    };
    bits & !PRESSURE_PARTS | usage << BY_USAGE | stalls << BY_STALLS | usage.max(stalls) << SHOWN
}

fn corrected(counter: &Object, bits: u64) -> u64 {
    with_stalls(counter, bits, part(bits, BY_STALLS))
}

/// The part of the pressure that stalls have.
pub(crate) fn by_stalls(counter: &Object) -> u64 {
    part(counter.limits.watched.bits(), BY_STALLS)
}

/// The bits contradict usage. This also answers for a counter that may be gone.
#[inline]
pub(crate) fn is_wrong(counter: &Object) -> bool {
    // SeqCst (E43): after the exchange on usage or max. Pairs with `exchange_until`.
    let bits = counter.limits.watched.bits();
    bits & PRESSURE_KNOWN != 0 && corrected(counter, bits) != bits
}

/// Corrects the bits, and calls `changed` once for each change of the pressure that is shown.
#[cold]
pub(crate) fn correct(counter: &Object, changed: impl FnMut()) {
    exchange_until(counter, changed, corrected);
}

/// Sets the pressure by stalls, and does what [`correct`] does.
#[cold]
pub(crate) fn set_by_stalls(counter: &Object, by_stalls: u64, changed: impl FnMut()) {
    exchange_until(counter, changed, |counter, bits| {
        with_stalls(counter, bits, by_stalls)
    });
}

fn exchange_until(
    counter: &Object,
    mut changed: impl FnMut(),
    right: impl Fn(&Object, u64) -> u64,
) {
    let watched = &counter.limits.watched;
    loop {
        let bits = watched.bits();
        let right = right(counter, bits);
        if right == bits {
            return;
        }
        // Mutation: e43-pressure-is-set-in-two-steps
        if watched.exchange(bits, right) {
            // The parts may change while the larger of the two stays, and that is what a program
            // has seen.
            if part(bits, SHOWN) != part(right, SHOWN) {
                changed();
            }
            // E43: the bits, then usage again; pairs with the exchange on usage before `is_wrong`.
            // Mutation: e43-pressure-is-not-looked-at-again
            fence_after_exchange();
        }
    }
}

/// The part by usage would be lower without so much credit, which is a part of usage.
pub(crate) fn is_up_by(counter: &Object, credit: u64) -> bool {
    let bits = counter.limits.watched.bits();
    let now = part(bits, BY_USAGE);
    now > 0 && by_usage(counter, bits, counter.usage().saturating_sub(credit)) < now
}

/// Credit below may be all that keeps the part by usage up. It loads only, and one word where that
/// part is none. This also answers for a counter that may be gone.
#[inline]
pub(crate) fn may_be_credit(counter: &Object) -> bool {
    part(counter.limits.watched.bits(), BY_USAGE) > 0
        && counter.may_have_credit_below()
        && is_up_by(counter, counter.bound())
}

/// The level whose pressure a group shows, and its bits: the group, or where it has no thresholds
/// the nearest group above that has some. One load where the group has them.
pub(crate) fn shown_by(counter: &Counter) -> Option<(&Counter, u64)> {
    let bits = |level: &Counter| level.limits.watched.bits_for_figures();
    let known = |level| Some((level, bits(level))).filter(|(_, bits)| bits & PRESSURE_KNOWN != 0);
    known(counter).or_else(|| counter.path_to_root().skip(1).find_map(known))
}

/// The pressure that these bits show: 0 to 2.
#[inline]
pub(crate) fn shown(bits: u64) -> u64 {
    part(bits, SHOWN)
}

/// True for the bits of a level that has thresholds and shows no pressure: what most looks find, in
/// one comparison.
#[inline]
pub(crate) fn is_normal(bits: u64) -> bool {
    bits & (PRESSURE_KNOWN | PART << SHOWN) == PRESSURE_KNOWN
}

/// True if usage has a part in the pressure of these bits.
#[inline]
pub(crate) fn is_by_usage(bits: u64) -> bool {
    part(bits, BY_USAGE) > 0
}
