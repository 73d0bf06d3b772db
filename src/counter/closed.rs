//! Charges and uncharges of a counter whose stock is closed and where this thread has no credit: the walk, and nothing
//! else.
//!
//! These are the steps of `charge`, less those that find nothing to do here. A thread takes them outside of any slow
//! path: they take no lock, wait for no thread, allocate nothing and call no foreign code. Where a level needs more, the
//! walk stops there, in transit, and the thread goes on from there in a slow path.
//!
//! Edges: E5 (transit), E14 (a second charger).

use crate::counter::counted;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::SlowPath;
use crate::counter::walk::{Amount, Stopped, StoppedDown, Walked, WalkedAtOnce};
use crate::sync::Ordering;
use crate::thread::block::Block;
use crate::thread::slow_path::{Entered, Outside};

/// Walk for exactly `n`, where `forced` also above a max. The margin is 0 for the first walk of the counter, which opens no
/// stock. `None`: the charge takes all steps. Where the walk has stopped the thread is still in transit.
#[inline(always)]
pub(crate) fn charge(counter: &Counter, n: u64, forced: bool) -> Option<Result<WalkedAtOnce<'_>, Stopped<'_>>> {
    if n == 0 {
        return None;
    }
    let (thread, first) = begin(counter)?;
    // Mutation: e5-closed-walk-not-in-transit
    let walked = counter.walk_at_once(n, if first { 0 } else { u64::MAX }, forced);
    if walked.is_ok() {
        thread.block().transit.end();
    }
    Some(walked)
}

/// Uncharge `n` at all levels. Afterwards the counter may be gone. As in [`charge`]; it is counted in any case but
/// `None`.
#[inline(always)]
pub(crate) fn uncharge(counter: &Counter, n: u64) -> Option<Result<(), StoppedDown<'_>>> {
    if n == 0 {
        return None;
    }
    let (thread, _) = begin(counter)?;
    counted::uncharged_without_audit(counter, n);
    let walked = counter.uncharge_at_once(n);
    if walked.is_ok() {
        thread.block().transit.end();
    }
    Some(walked)
}

/// Go on with a charge that has stopped.
pub(crate) fn go_on<'a>(
    counter: &'a Counter,
    path: &Entered,
    n: u64,
    forced: bool,
    stopped: Stopped<'a>,
) -> Result<Walked, LevelRefusal<'a>> {
    let walked = if forced { counter.walk_forced_on(n, stopped) } else { counter.walk_on(n, Amount::Needed, stopped) };
    end(path);
    walked
}

/// Go on with an uncharge that has stopped.
#[cold]
#[inline(never)]
pub(crate) fn go_on_down(stopped: StoppedDown<'_>, n: u64) {
    let path = SlowPath::enter();
    stopped.go_on(n);
    end(&path);
}

/// End the transit of a walk that had stopped.
fn end(path: &Entered) {
    if let Some(block) = path.own_block() {
        block.transit.end();
    }
}

/// Begin a transit. Also returns whether no thread has charged here before.
#[inline(always)]
fn begin(counter: &Counter) -> Option<(Outside, bool)> {
    let incarnation = counter.incarnation();
    // Relaxed: a first look, there is another in transit.
    let is_open = counter.header.capacity.load(Ordering::Relaxed) > 0;
    if is_open || incarnation.careful {
        return None;
    }
    let thread = Outside::this_thread()?;
    let block = thread.block();
    let first = counter.enter(block);
    if may_have_credit(counter, block) {
        block.transit.end();
        return None;
    }
    Some((thread, first))
}

#[inline(always)]
fn may_have_credit(counter: &Counter, block: &Block) -> bool {
    // SeqCst (E5, E14): in transit, as in `refill`.
    let capacity = counter.header.capacity.load(Ordering::SeqCst);
    capacity > 0 || block.slot(counter.index).is_some_and(|slot| slot.owned() > 0)
}
