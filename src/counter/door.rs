//! The one door through which charging speaks to the policies above it.
//!
//! Charging knows marks: numbers and bits in a counter. Where a counter has a mark, a `*_slow` function comes here; where
//! it has none, no policy is asked and none is told. A tree of bare counters has no policies at all.

use crate::counter::object::Counter;
use crate::thread::block::Block;

/// What a tree's policies are asked and told: one object for each tree.
///
/// The caller keeps each counter that it names. It may hold the tree's lock; so no method calls foreign code, and none
/// takes a lock that ranks before the tree's.
pub(crate) trait Policies: Sync {
    /// A walk has added `n` units at `counter`, where charges wait for room. Whether the units may stay.
    fn may_barge(&self, counter: &Counter, n: u64) -> bool;

    /// A walk takes `n` units back that [`may_barge`](Self::may_barge) let stay: a level above has refused.
    fn barge_undone(&self, counter: &Counter, n: u64);

    /// A walk has got through and tells what it has found on its way, once, at its end.
    fn crossed(&self, crossings: &[Crossing<'_>]);

    /// Usage has fallen, or a max has moved, at a counter where charges wait for room or whose mark of excess is wrong.
    fn fell(&self, counter: &Counter);

    /// A charge has moved a batch between the stock of `counter` and the counters.
    fn stock_moved(&self, counter: &Counter, block: &Block, moved: StockMove);
}

/// What a walk has found at one counter.
pub(crate) enum Crossing<'a> {
    /// Usage is on the other side of the soft limit than the mark of excess says.
    Soft(&'a Counter),
    /// Usage is above a max that is only observed.
    ObservedMax(&'a Counter),
    /// A forced charge went above max.
    Forced(&'a Counter),
}

/// Which way a batch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StockMove {
    /// From the counters into the stock.
    Refill,
    /// From the stock, which was full, to the counters.
    Return,
}
