//! Charges between two counters: below what both have in common.

use crate::counter::at_limit;
use crate::counter::counted;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::SlowPath;
use crate::counter::walk::Amount;
use crate::thread::block::Block;

/// Charge `n` to a counter and its ancestors below `top`, which holds it already: exactly, or not at all.
#[cold]
pub(crate) fn charge_slow<'a>(counter: &'a Counter, n: u64, top: &Counter) -> Result<(), LevelRefusal<'a>> {
    let path = SlowPath::enter();
    let alone = path.own_block();
    let mut walked = in_transit(counter, alone, || counter.walk_below(n, Amount::Needed, Some(top)));
    // Mutation: transfer-refused-while-credit-is-stranded
    if let Some(outermost) = path.outermost() {
        walked = walked.or_else(|refusal| at_limit::drain_and_retry(counter, n, Some(top), refusal, outermost));
    }
    walked.map(|_| counted::charged(counter, alone, n))
}

/// Uncharge `n` from a counter and its ancestors below `top`, which keeps it. Afterwards the counter may be
/// gone.
#[cold]
pub(crate) fn uncharge_slow(counter: &Counter, n: u64, top: &Counter) {
    let path = SlowPath::enter();
    let alone = path.own_block();
    counted::uncharged(counter, alone, n);
    // In transit: a thread that lowers max meanwhile waits for this one before it notifies the levels above.
    in_transit(counter, alone, || counter.uncharge_below(n, top));
}

fn in_transit<T>(counter: &Counter, block: Option<&Block>, step: impl FnOnce() -> T) -> T {
    let Some(block) = block else { return step() };
    counter.enter(block);
    let _transit = block.transit.until_dropped();
    step()
}
