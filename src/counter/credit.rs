//! Sums of credit: in the stocks of a subtree, in those of one counter.

use std::ptr;

use crate::counter::central_word::CentralWord;
use crate::counter::children;
use crate::counter::cover::{self, counted_credit};
use crate::counter::object::Counter;
use crate::counter::object::tree::{Stocks, Tree};
use crate::counter::slow_path::SlowPath;

/// Credit below `top` that is in its usage.
pub(crate) fn stocked(top: &Counter) -> u64 {
    count(top).credit
}

/// The credit below a counter at one moment.
pub(crate) struct CreditBelow {
    /// What is in the counter's usage.
    pub(crate) credit: u64,
    /// The number of slots that it was read from.
    pub(crate) slots: usize,
    /// The counter's usage, read after its credit.
    usage: u64,
}

/// Counts the credit below `top`. While no stock is open below there is none: then the call takes no
/// lock.
pub(crate) fn count(top: &Counter) -> CreditBelow {
    let path = SlowPath::enter();
    // The lock would keep a drain waiting for a figure that is nothing, as it is near a limit.
    if !top.may_have_credit_below() {
        let usage = top.usage();
        return CreditBelow {
            credit: 0,
            slots: 0,
            usage,
        };
    }
    let tree = top.tree();
    let stocks = tree.lock(&path);
    let snapshot;
    let (mut sum, mut counters) = (CreditSum::new(top), 0);
    let mut add = |counter| {
        sum.add(counter, credit_at(tree, counter));
        counters += 1;
    };
    // Either way finds the same stocks. Of a small subtree in a large tree the groups are fewer
    // than the open stocks of the whole tree; of a large one it is the other way round.
    if stocks.are_few_below(top) {
        snapshot = tree.hierarchy.snapshot();
        let is_open = |counter: &&Counter| counter.is_open() || counter.is_open_central();
        snapshot.subtree(top).filter(is_open).for_each(&mut add);
        pending_below(&stocks, top).for_each(add);
    } else {
        let is_within = |counter: &&Counter| counter.is_within(top);
        stocks.all_open().filter(is_within).for_each(add);
    }
    // Usage is read within the slow path and under the lock: its end may drain these very stocks, and
    // so may another thread.
    CreditBelow {
        credit: sum.total(),
        slots: counters * tree.registry.listed().count(),
        usage: top.usage(),
    }
}

/// Adds up credit. That of groups that cover is in usage only as far as it is unpaid at their top.
struct CreditSum<'a> {
    top: &'a Counter,
    credit: u64,
    covering: Vec<(&'a Counter, u64)>,
}

impl<'a> CreditSum<'a> {
    fn new(top: &'a Counter) -> Self {
        CreditSum {
            top,
            credit: 0,
            covering: Vec::new(),
        }
    }

    fn add(&mut self, counter: &'a Counter, credit: u64) {
        // A group that covers has its credit in usage only as far as no reserved bytes pay for it,
        // and that is known only for all of its credit together. So it is summed up for each
        // topmost covering level first.
        match cover::top(counter).filter(|_| self.top.cover().is_none() && credit > 0) {
            None => self.credit += credit,
            Some(top) => match self
                .covering
                .iter_mut()
                .find(|(known, _)| ptr::eq(*known, top))
            {
                Some((_, sum)) => *sum += credit,
                None => self.covering.push((top, credit)),
            },
        }
    }

    fn total(&self) -> u64 {
        let covering = self
            .covering
            .iter()
            .map(|&(top, credit)| counted_credit(top, credit));
        counted_credit(self.top, self.credit) + covering.sum::<u64>()
    }
}

/// Usage minus credit. What is stocked between the two reads makes this larger, never negative.
pub(crate) fn live(top: &Counter) -> u64 {
    let CreditBelow { credit, usage, .. } = count(top);
    usage.saturating_sub(credit)
}

/// Calls `found` for each stock below `top` that a group left when it went offline, and that is not
/// closed yet: with the nearest ancestor that is online, whose credit this counts as, and the units
/// in its usage. It takes the tree's lock; there are few.
pub(crate) fn each_left(top: &Counter, mut found: impl FnMut(&Counter, u64)) {
    let path = SlowPath::enter();
    let tree = top.tree();
    for pending in &tree.lock(&path).pending_close {
        if let Some(above) = nearest_live_ancestor(pending).filter(|above| above.is_within(top)) {
            let credit = credit_at(tree, pending);
            // What reserved bytes pay for is known only of all credit of the covering level
            // together, and the caller has the rest of it: it compares the sum.
            let counted = if above.cover().is_some() {
                credit
            } else {
                counted_credit(pending, credit)
            };
            found(above, counted);
        }
    }
}

fn pending_below<'a>(stocks: &'a Stocks, top: &'a Counter) -> impl Iterator<Item = &'a Counter> {
    let pending = stocks.pending_close.iter().map(|pending| &**pending);
    pending.filter(move |&pending| !ptr::eq(pending, top) && pending.is_within(top))
}

/// Usage of a counter without that of the counters below it that are online.
fn usage_local(counter: &Counter) -> u64 {
    let mut below: u64 = 0;
    children::each(counter, |child| below = below.saturating_add(child.usage()));
    counter.usage().saturating_sub(below)
}

/// The same without credit.
pub(crate) fn live_local(counter: &Counter) -> u64 {
    // One path around both reads, for the same reason as in `count`: what an allocator has left to do
    // is done at the end of the outermost one.
    let _path = SlowPath::enter();
    usage_local(counter).saturating_sub(stocked_local(counter))
}

/// Credit of a counter's own stock, and of the stocks below whose nearest live ancestor it is, as
/// far as it is in usage.
fn stocked_local(counter: &Counter) -> u64 {
    let path = SlowPath::enter();
    let tree = counter.tree();
    let stocks = tree.lock(&path);
    let counts_here =
        |below: &Counter| nearest_live_ancestor(below).is_some_and(|above| ptr::eq(above, counter));
    let pending = stocks
        .pending_close
        .iter()
        .filter(|pending| counts_here(pending));
    let mut sum = CreditSum::new(counter);
    sum.add(counter, credit_at(tree, counter));
    pending.for_each(|pending| sum.add(pending, tree.credit(pending)));
    sum.total()
}

/// Credit of the stocks that sit directly on a counter, and its usage: as they are together while
/// no drain runs.
pub(crate) fn own(counter: &Counter) -> (u64, u64) {
    let path = SlowPath::enter();
    let tree = counter.tree();
    let _stocks = tree.lock(&path);
    let credit = credit_at(tree, counter);
    (credit, counter.usage())
}

/// Credit of a counter's own stocks.
pub(crate) fn credit_at(tree: &Tree, counter: &Counter) -> u64 {
    // Most counters were never charged through a stock, and then no thread's block need be looked
    // at.
    let is_touched = counter.touched() > 0;
    let of_threads = if is_touched { tree.credit(counter) } else { 0 };
    of_threads + counter.central().map_or(0, CentralWord::credit)
}

/// The nearest ancestor that is online: the credit of stocks left below it counts as its own.
fn nearest_live_ancestor(counter: &Counter) -> Option<&Counter> {
    counter
        .path_to_root()
        .skip(1)
        .find(|level| !level.state().is_offline())
}

/// The counter, or the nearest ancestor that is online; the root where none is. The caller keeps
/// the counter, and with it its ancestors.
pub(crate) fn online_or_above(counter: &Counter) -> &Counter {
    let mut level = counter;
    // Not for good: a group may go offline right after this. Its charge then stays with it and
    // shows at all levels above, as any other that was made just before.
    while level.first().state().is_offline()
        && let Some(above) = level.parent()
    {
        level = above;
    }
    level
}
