//! The one door through which charging speaks to the policies above it.
//!
//! Charging knows marks: numbers and bits in a counter. Where a counter has a mark, a `*_slow` function comes here;
//! where it has none, charging calls no policy. A tree of bare counters has no policies at all.

use crate::counter::object::{Counter, Incarnation};
use crate::pool::NoMemory;
use crate::thread::block::Block;

/// What charging asks a tree's policies and reports to them: one object for each tree.
///
/// The caller keeps each counter that it passes. It may hold the tree's lock; so no method calls foreign code, and none
/// takes a lock that ranks before the tree's. The exceptions are [`before_soft`](Self::before_soft), which allocates,
/// [`serve`](Self::serve), which calls foreign code, and [`release`](Self::release): their caller holds no lock.
pub(crate) trait Policies: Sync {
    /// A walk has added `n` units at `counter`, where charges wait for room. Whether the units may stay.
    fn may_barge(&self, counter: &Counter, n: u64) -> bool;

    /// A walk subtracts `n` units that [`may_barge`](Self::may_barge) let stay: a level above has refused.
    fn barge_undone(&self, counter: &Counter, n: u64);

    /// A walk has got through and reports the marks that it crossed, once, at its end.
    fn crossed(&self, crossings: &[Crossing<'_>]);

    /// A counter is to have the soft limit `soft`. Allocates what the policies need for it.
    fn before_soft(&self, counter: &'static Counter, soft: u64) -> Result<(), NoMemory>;

    /// The soft limit of a counter has moved.
    fn soft_moved(&self, counter: &Counter);

    /// Usage has fallen, or a max has moved, at a counter where charges wait for room or whose mark of excess is wrong.
    fn fell(&self, counter: &Counter);

    /// Serves what this thread has scheduled: a list of counters, each with a handle. The thread holds no lock and runs
    /// no slow path.
    fn serve(&self, scheduled: *const ());

    /// Releases the object of a group that this thread has claimed, and then the handle on its parent. The caller drops
    /// the result outside of any slow path: with the root's incarnation the tree ends.
    fn release(&self, group: &'static Counter) -> Option<Incarnation>;

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
