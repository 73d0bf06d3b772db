//! How much credit lies where: in the stocks of a subtree, in those of one counter.

use crate::counter::object::Counter;
use crate::counter::object::tree::{Stocks, Tree};
use crate::counter::slow_path::SlowPath;
use crate::sync::Ordering;

/// Credit below `top`, fronts of counter sets included.
pub(crate) fn stocked(top: &Counter) -> u64 {
    let _path = SlowPath::enter();
    let tree = top.tree();
    let stocks = tree.stocks.lock();
    let online: u64 =
        tree.hierarchy.snapshot().subtree(top.header.counter()).map(|counter| credit_at(tree, counter)).sum();
    online + pending_below(tree, &stocks, top)
}

/// Usage minus credit. The credit is read first: what is stocked between the two reads makes this larger, never negative.
pub(crate) fn live(top: &Counter) -> u64 {
    let stocked = stocked(top);
    top.usage().saturating_sub(stocked)
}

/// What `read` returns for every counter below `top`, parents first, given the credit of its subtree. This takes the
/// tree's lock, which keeps the counters.
pub(crate) fn figures<R>(tree: &Tree, top: &Counter, read: impl Fn(&Counter, u64) -> R) -> Vec<R> {
    let _path = SlowPath::enter();
    let stocks = tree.stocks.lock();
    let hierarchy = tree.hierarchy.snapshot();
    let order = numbered(hierarchy.subtree(top.header.counter()).collect());
    let mut credit = vec![0_u64; order.len()];
    for &pending in &stocks.pending_close {
        for counter in pending.charged() {
            if let Some(at) = nearest_live_ancestor(counter).and_then(|above| number(&order, above)) {
                credit[at] += tree.credit(pending);
            }
        }
    }
    for (at, &counter) in order.iter().enumerate().rev() {
        credit[at] += credit_at(tree, counter);
        if let Some(above) = counter.incarnation().parent.and_then(|parent| number(&order, parent)) {
            credit[above] += credit[at];
        }
    }
    order.iter().zip(credit).map(|(counter, credit)| read(counter, credit)).collect()
}

fn pending_below(tree: &Tree, stocks: &Stocks, top: &Counter) -> u64 {
    let is_below = |counter: &'static Counter| counter.path_to_root().skip(1).any(|level| std::ptr::eq(level, top));
    let pending = stocks.pending_close.iter().filter(|pending| pending.charged().any(is_below));
    pending.map(|pending| tree.credit(pending)).sum()
}

/// Credit of a counter's own stock, and of the stocks below whose nearest live ancestor it is.
pub(crate) fn stocked_local(counter: &Counter) -> u64 {
    let _path = SlowPath::enter();
    let tree = counter.tree();
    let stocks = tree.stocks.lock();
    let counts_here =
        |below: &'static Counter| nearest_live_ancestor(below).is_some_and(|above| std::ptr::eq(above, counter));
    let pending = stocks.pending_close.iter().filter(|pending| pending.charged().any(counts_here));
    let left = pending.map(|pending| tree.credit(pending));
    credit_at(tree, counter.header.counter()) + left.sum::<u64>()
}

/// Credit of the stocks that sit directly on a counter.
pub(crate) fn credit_at(tree: &Tree, counter: &'static Counter) -> u64 {
    let touched = |stock: &&'static Counter| stock.usage.touched.load(Ordering::Relaxed) > 0;
    stocks_at(counter).filter(touched).map(|stock| tree.credit(stock)).sum()
}

/// The nearest ancestor that is online: the credit of stocks left below it counts as its own.
fn nearest_live_ancestor(counter: &Counter) -> Option<&Counter> {
    counter.path_to_root().skip(1).find(|level| !level.state().is_offline())
}

/// A counter, and the front of the counter set that it is a member of.
pub(crate) fn stocks_at(counter: &'static Counter) -> impl Iterator<Item = &'static Counter> {
    [Some(counter), counter.front()].into_iter().flatten()
}

/// Store in each counter its index in `order`. The caller holds the tree's lock and all locks of its hierarchy.
pub(crate) fn numbered(order: Vec<&'static Counter>) -> Vec<&'static Counter> {
    (0..).zip(&order).for_each(|(number, counter)| counter.usage.mark.store(number, Ordering::Relaxed));
    order
}

/// The index of a counter in `order`, if it is there.
pub(crate) fn number(order: &[&'static Counter], counter: &Counter) -> Option<usize> {
    let at = counter.usage.mark.load(Ordering::Relaxed) as usize;
    order.get(at).is_some_and(|&there| std::ptr::eq(there, counter)).then_some(at)
}
