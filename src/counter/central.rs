//! The central stock of a counter: credit that one thread gives and another takes, without a walk.
//!
//! Near a limit the stocks of threads are closed. Then a producer and a consumer both write the
//! usage of each level: the one charges a message, the other uncharges it. In the central stock the
//! units stay charged, and one word changes.
//!
//! One word has the credit, and the room for more; in a closed stock it has neither. So whatever a
//! thread does there is one exchange, and no thread is ever in transit: to close the stock and to
//! take all credit out is one exchange, too, without a barrier. It opens, counts and closes under
//! the tree's lock, as the other stocks do: `drain.md`.
//!
//! A group that covers (`cover`) has a shared word of prepaid bytes, too, and the two are not one:
//!
//! | | central stock | spare of a group that covers |
//! |---|---|---|
//! | whose bytes | nobody's: a refusal has them taken back | the caller's who has reserved them: no drain may take them |
//! | values | 0 to a bound that is reserved from the root's budget | any, below zero where allocated bytes are unpaid |
//! | where | at the charged counter alone | at each covering level of the path, which moves its own usage by it |
//! | end | closed in one exchange, since credit and room are in one word | none |
//!
//! A word for both would need a sign and 63 bits for the one, and the room beside the credit for
//! the other. So one mechanism would have two words: a central stock's credit in `spare`, its bound
//! in `reserved`. A put is bytes that go then, a take is bytes that come and may charge nothing.
//! Tried in code, that saves 26 of 900 lines, and a charge that is taken from the stock and given
//! back costs 214 instructions, 140 here. For with the bound in another word a put has to look again
//! after its exchange, and to take out what is above: in a stock that has closed meanwhile the units
//! would be stranded. Another thread may have taken a part of them by then, so the put would return
//! the rest to its caller, and E53 would need a proof of its own. What makes up most of either file
//! (visits, budget and openings here; levels, underflow and order against usage there) has no
//! counterpart in the other.
//!
//! Edges: E4 (forced charge/opening), E10 (open count), E35 (opening/offline), E36
//! (closing/offline), E43 (usage/mark), E53 (put and take/close).

use crate::counter::central_word::CentralWord;
use crate::counter::exceeded_mark;
use crate::counter::live_peak;
use crate::counter::object::tree::{Stocks, Tree};
use crate::counter::object::{Counter, CounterRef};
use crate::counter::slow_path::SlowPath;
use crate::counter::stocks;
use crate::counter::watch::{OBSERVED, WAITING};
use crate::sync::{Ordering, fence_after_exchange};

/// A central stock may have this part of the root's budget at most: the stocks of threads, and the
/// central stocks of other groups, live on the same budget.
const SHARE_OF_BUDGET: u64 = 4;

/// Stocks that a visit for idle credit looks at before it lets other threads have the tree's lock.
const VISITED_MAX: usize = 4_096;

/// Keeps `n` charged units in the central stock, as credit for the next charge. False: they stay
/// charged, and the caller uncharges them. The caller keeps the counter by a handle.
#[inline]
pub(crate) fn put(counter: &Counter, stock: &CentralWord, n: u64) -> bool {
    // An open stock with room takes the units by one exchange. A stock that is closed may be opened
    // for them, but not at each put (see `is_due`). An open one without room is not due: then the
    // units go up the tree.
    // Mutation: central-credit-is-kept-above-high
    let kept = !has_to_walk(counter)
        && (stock.put(n) || (stock.is_due(n) && open(counter, stock) && stock.put(n)));
    // The audit counts live units, and from here on these are credit.
    if kept && counter.tree().config.audit {
        counter.usage.audit_shared.fetch_sub(n, Ordering::Relaxed);
    }
    kept
}

/// Charges `n` from the central stock: usage of all levels stays as it is. The caller keeps the
/// counter by a handle.
#[inline]
pub(crate) fn take(counter: &Counter, stock: &CentralWord, n: u64) -> bool {
    // Mutation: central-credit-is-taken-above-high
    let taken = !has_to_walk(counter) && stock.take(n);
    // Mutation: what-a-central-stock-gives-is-not-audited
    if taken && counter.tree().config.audit {
        counter.usage.audit_shared.fetch_add(n, Ordering::Relaxed);
    }
    taken
}

/// True if the central stock is out of use for now: each charge is to walk, or more was uncharged
/// than charged here, so that there may be no usage behind the credit.
#[inline]
fn has_to_walk(counter: &Counter) -> bool {
    let is_poisoned = counter.poisoned.load(Ordering::Relaxed);
    if is_poisoned {
        close_poisoned(counter);
    }
    is_poisoned || is_to_walk(counter)
}

/// True if usage of a level is above a limit, so that a charge is to walk: only the walk delays it,
/// or asks for reclaim.
#[inline]
pub(crate) fn is_to_walk(counter: &Counter) -> bool {
    // E43: a charge above a limit has counted and set its mark when it returns. Pairs with
    // `exceeded_mark::correct`.
    let is_above =
        |level: &Counter| exceeded_mark::is_marked(level) && exceeded_mark::is_exceeded(level);
    // A group that covers takes no credit for charges. In any other, one load answers while no
    // group of the tree is above a limit. Where one is, the levels of the path are compared with
    // their limits: a mark stays for a while after usage has fallen.
    counter.cover().is_some()
        || (counter.tree().alerts.exceeded() > 0 && counter.path_to_root().any(is_above))
}

#[cold]
#[inline(never)]
fn close_poisoned(counter: &Counter) {
    // A look without the lock: mostly the stock has been closed for this before.
    if counter.is_open_central() {
        let path = SlowPath::enter();
        // A nested slow path may not take the tree's lock. It leaves the stock to the next thread
        // that comes here.
        if path.outermost().is_some() {
            close_at_once(counter);
        }
    }
}

/// Returns the counter's central stock, and makes it where there is none. It is never freed: an
/// object of the pool keeps it for its next groups.
pub(crate) fn get_or_make(counter: &Counter) -> &'static CentralWord {
    let path = SlowPath::enter();
    let _stocks = counter.tree().lock(&path);
    // Under the lock, so that two threads do not make two.
    if let Some(made) = counter.central() {
        return made;
    }
    let made = Box::leak(Box::new(CentralWord::new()));
    counter.central.store(made, Ordering::Relaxed);
    made
}

// === Under the tree's lock ===

/// True while no central stock may open here: a charge waits at a level of the path, or the level
/// only counts what it would have refused, so each charge is to walk. The mark *tight* forbids
/// nothing here: it stays where a limit never has room for the stocks of threads.
fn is_forbidden(counter: &Counter) -> bool {
    counter
        .path_to_root()
        .any(|level| level.limits.watched.is_for(WAITING | OBSERVED))
}

/// Opens the stock for a put, if nothing forbids it. It does not wait for the tree's lock: where
/// another thread has it, the put goes up the tree.
#[cold]
#[inline(never)]
fn open(counter: &Counter, stock: &CentralWord) -> bool {
    // Looks that need no lock come first. Each is repeated once the stock is counted, for none of
    // them holds until then.
    let opens =
        !is_forbidden(counter) && !counter.child_count().is_barred() && try_open(counter, stock);
    // Whatever forbade it is likely to last, so the next puts walk without a try.
    if !opens {
        stock.wait();
    }
    opens
}

#[allow(unsafe_code)]
fn try_open(counter: &Counter, stock: &CentralWord) -> bool {
    let path = SlowPath::enter();
    let tree = counter.tree();
    let Some(mut stocks) = path.outermost().and_then(|_| tree.try_lock()) else {
        return false;
    };
    // Another thread has opened it since this one looked.
    if counter.is_open_central() {
        return true;
    }
    let most = counter
        .batch()
        .min(stocks::budget(stocks::root(counter)) / SHARE_OF_BUDGET);
    // The word has half of its bits for credit, and half for room.
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    // Without memory the counter goes without. The list is asked before the budget, of which a
    // failure would have to give a part back.
    if most == 0 || stocks.central.try_reserve(1).is_err() || !stocks::reserve(counter, most.into())
    {
        return false;
    }
    // SAFETY: no thread releases a counter that is counted as open; `uncount` takes it out of the
    // list.
    stocks.central.push(unsafe { CounterRef::new(counter) });
    // SeqCst (E35): counted, then a look whether the group is barred; pairs with `ChildCount::bar`
    // in `offline`.
    counter
        .central_opened
        .swap(stocks.central.len() as u32, Ordering::SeqCst);
    for level in counter.path_to_root() {
        // E10: counted before the first put. Pairs with the read of `open` in `Counter::take`.
        // Mutation: e10-a-central-stock-is-not-counted
        level.limits.open.add_one();
    }
    // E4, E35: as in `Tree::open`. The stock is counted, and only now comes the look for what
    // forbids it. A thread that has forbidden it before this look is found here; one that does so
    // later finds the stock counted, and closes it under the lock.
    fence_after_exchange();
    let is_above = counter.path_to_root().any(|level| level.forced() > 0);
    // Mutation: central-opens-while-a-charge-waits
    // Mutation: e35-a-barred-central-stock-opens
    // Mutation: e4-a-central-stock-opens-above-max
    if is_above || counter.child_count().is_barred() || is_forbidden(counter) {
        uncount(&mut stocks, counter, most.into());
        return false;
    }
    // Its credit is no thread's. Who has moved the levels alone so far does not know how much there
    // is, so what its walks leave behind is no exact peak of live units from here on.
    live_peak::note_mover(counter, None);
    stock.open(most);
    true
}

/// Uncounts a stock that has no credit any more. It is the last access to the counter: once
/// `central_opened` is 0, a thread may release it.
fn uncount(stocks: &mut Stocks, counter: &Counter, most: u64) {
    // Mutation: e36-a-central-stock-is-uncounted-before-its-levels
    for level in counter.path_to_root() {
        // E10: uncounted after the credit is back. Pairs with the read of `open` in
        // `Counter::take`.
        level.limits.open.remove_one();
    }
    stocks::unreserve(counter, most);
    let Some(at) = counter
        .central_opened
        .load(Ordering::Relaxed)
        .checked_sub(1)
    else {
        return;
    };
    // The last stock of the list moves into the place that is free now, and has to know its new
    // place.
    stocks.central.swap_remove(at as usize);
    // Mutation: one-of-two-central-stocks-loses-its-place
    if let Some(moved) = stocks.central.get(at as usize) {
        moved.central_opened.store(at + 1, Ordering::Relaxed);
    }
    // Release (E36): pairs with `is_open_central` of the thread that takes the group offline, after
    // which one may release it.
    counter.central_opened.store(0, Ordering::Release);
}

/// Closes one stock and uncharges its credit, for a charge that lacks it: the next few puts do not
/// open it again. Returns the units.
pub(crate) fn close_own(stocks: &mut Stocks, counter: &Counter) -> u64 {
    shut(stocks, counter, CentralWord::wait)
}

/// Closes one stock whose credit no charge lacks: the next put may open it again.
fn rest(stocks: &mut Stocks, counter: &Counter) -> u64 {
    shut(stocks, counter, CentralWord::end_wait)
}

/// Closes a stock, uncharges what it held, and uncounts it last. `note` says whether puts open it
/// again at once.
fn shut(stocks: &mut Stocks, counter: &Counter, note: fn(&CentralWord)) -> u64 {
    let Some(stock) = counter.central().filter(|_| counter.is_open_central()) else {
        return 0;
    };
    note(stock);
    // From this exchange on no thread takes or puts. No barrier and no wait: a thread that was
    // about to do so finds its exchange refused, and walks.
    let (credit, most) = stock.shut();
    // The credit goes back while the stock still counts as open. The other way round, a refusal
    // above could find no stock open, and be for good beside this credit.
    // Mutation: e10-a-central-stock-is-uncounted-before-its-credit-is-back
    let units = counter.uncharge_drained(credit);
    uncount(stocks, counter, most);
    units
}

/// Closes the stock of `top` and those below it, for a charge that lacks their credit. Returns the
/// units.
pub(crate) fn close_below(stocks: &mut Stocks, top: &Counter) -> u64 {
    for_each_below(stocks, top, close_own)
}

/// Does what [`close_below`] does where no charge lacks the credit: the next put may open the
/// stocks again.
pub(crate) fn drain(stocks: &mut Stocks, top: &Counter) -> u64 {
    for_each_below(stocks, top, rest)
}

/// Visits the stock of `top`, and the open ones below it.
fn for_each_below(
    stocks: &mut Stocks,
    top: &Counter,
    visit: fn(&mut Stocks, &Counter) -> u64,
) -> u64 {
    let mut units = visit(stocks, top);
    for at in (0..stocks.central.len()).rev() {
        // The group alone had one, in most cases. Relaxed: it changes under the lock alone.
        if !top.limits.open.load(Ordering::Relaxed).is_any() {
            break;
        }
        // A stock that closes leaves its place to the last one, which this thread has looked at.
        let counter = stocks.central[at];
        if counter.is_within(top) {
            units += visit(stocks, &counter);
        }
    }
    units
}

/// Closes the stocks below `top` for a charge that may not wait, so not while another thread has
/// the lock. Returns whether that has brought any credit back.
pub(crate) fn close_at_once(top: &Counter) -> bool {
    let tree = top.tree();
    // Relaxed: a first look.
    if !top.limits.open.load(Ordering::Relaxed).is_any() {
        return false;
    }
    let Some(mut stocks) = tree.try_lock() else {
        return false;
    };
    close_below(&mut stocks, top) > 0
}

/// Closes the stocks that have not changed for two visits: others may lack their credit, and their
/// part of the budget. Returns the units of credit.
pub(crate) fn visit(tree: &Tree, path: &SlowPath) -> u64 {
    let mut left = usize::MAX;
    let mut released = 0;
    while left > 0 {
        // The lock is given up after each part, so that a visit of many stocks holds up no refusal.
        let mut stocks = tree.lock(path);
        // From the last one down, as in `for_each_below`; those that open meanwhile are new.
        left = left.min(stocks.central.len());
        let end = left.saturating_sub(VISITED_MAX);
        for at in (end..left).rev() {
            let counter = stocks.central[at];
            if counter.central().is_some_and(CentralWord::is_idle) {
                released += rest(&mut stocks, &counter);
            }
        }
        left = end;
    }
    released
}

/// Closes one stock and uncharges its credit. Returns the units.
pub(crate) fn release_credit(counter: &Counter) -> u64 {
    if !counter.is_open_central() {
        return 0;
    }
    let path = SlowPath::enter();
    rest(&mut counter.tree().lock(&path), counter)
}
