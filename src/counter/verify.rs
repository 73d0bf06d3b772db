//! `verify`: does the count add up?
//!
//! With audit: at every level, usage = audited live charge of the subtree + credit in its slots. Without: what can be
//! checked from the counters alone, which is less, and the verdict says which of the two it was.

use std::fmt;

use crate::counter::object::Counter;
use crate::counter::protection::Protection;
use crate::counter::stocks::Stocks;
use crate::counter::tree::Tree;
use crate::error::CounterId;
use crate::hierarchy::limits::LimitKind;
use crate::reclaim::excess;
use crate::sync::Ordering;

/// What a look at the whole count found. Prints as one line.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let job = PageCounter::root(CounterConfig::new().batch(0));
/// job.charge(10);
/// job.uncharge(12);
/// let verdict = job.verify();
/// assert_eq!(
///     verdict.to_string(),
///     format!("1 counters verified without audit: {}: 2 uncharged that were never charged", job.id()),
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    audited: bool,
    counters: usize,
    faults: Vec<Fault>,
}

/// One thing that does not add up. Prints which counter and by how much.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let job = PageCounter::root(CounterConfig::new().audit(true));
/// job.charge(10);
/// job.cancel(3);
/// let verdict = job.verify();
/// let fault = &verdict.faults()[0];
/// assert_eq!((fault.counter, fault.expected, fault.found), (job.id(), 10, 7));
/// assert!(fault.to_string().ends_with("usage is 7, live charge and credit are 10: 3 too few"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub counter: CounterId,
    /// The path of its group, as `/acme`, after the name of a further counter, as `spill of /acme`; `None` for a
    /// counter alone.
    pub path: Option<String>,
    /// What.
    pub kind: FaultKind,
    /// Units that there should be (for a bound: at most).
    pub expected: u64,
    /// Units that there are.
    pub found: u64,
}

/// Kinds of [`Fault`]. Without audit [`Identity`](Self::Identity) is not looked for.
///
/// ```
/// use memcg::{CounterConfig, FaultKind, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new().batch(0));
/// let job = machine.child();
/// job.charge(10);
/// machine.cancel(10);
/// let verdict = machine.verify();
/// let fault = &verdict.faults()[0];
/// assert_eq!((fault.counter, fault.kind), (machine.id(), FaultKind::Children));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Usage is not audited live charge plus credit.
    Identity,
    /// Usage is less than the usage of the children together.
    Children,
    /// Credit is above its published bound.
    StockBound,
    /// The protected usage that the children report is not what they have.
    Protection,
    /// The groups below that are counted as in excess of their soft limits are not those that are.
    Excess,
    /// Units were uncharged that had not been charged.
    Underflow,
}

impl Verdict {
    /// Nothing was found.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let job = PageCounter::root(CounterConfig::new().batch(0));
    /// job.charge(10);
    /// assert!(job.verify().is_ok());
    /// job.uncharge(11);
    /// assert!(!job.verify().is_ok());
    /// ```
    pub fn is_ok(&self) -> bool {
        self.faults.is_empty()
    }

    /// Whether usage was compared with the second, independent count.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let audited = |audit| PageCounter::root(CounterConfig::new().audit(audit)).verify().audited();
    /// assert_eq!((audited(false), audited(true)), (false, true));
    /// ```
    pub fn audited(&self) -> bool {
        self.audited
    }

    /// Counters looked at.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new());
    /// let jobs = [machine.child(), machine.child()];
    /// assert_eq!((machine.verify().counters(), jobs[0].verify().counters()), (3, 1));
    /// ```
    pub fn counters(&self) -> usize {
        self.counters
    }

    /// What does not add up, parents first.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().audit(true));
    /// let job = machine.child();
    /// job.charge(10);
    /// job.cancel(3);
    /// let verdict = machine.verify();
    /// assert!(verdict.faults().iter().all(|fault| fault.counter == job.id()), "{verdict}");
    /// assert_eq!(verdict.faults().len(), 1);
    /// ```
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// One verdict over several trees of counters.
    pub(crate) fn merge(mut self, other: Verdict) -> Verdict {
        self.audited &= other.audited;
        self.counters += other.counters;
        self.faults.extend(other.faults);
        self
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.audited { "against the audited count" } else { "without audit" };
        write!(f, "{} counters verified {how}: ", self.counters)?;
        if self.faults.is_empty() {
            return f.write_str("all add up");
        }
        for (i, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{fault}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { expected, found, .. } = self;
        let counter = self.path.clone().unwrap_or_else(|| self.counter.to_string());
        let by = found.abs_diff(*expected);
        let sign = if found < expected { "too few" } else { "too many" };
        match self.kind {
            FaultKind::Identity => {
                write!(f, "{counter}: usage is {found}, live charge and credit are {expected}: {by} {sign}")
            }
            FaultKind::Children => {
                write!(f, "{counter}: usage is {found}, its children hold {expected}: {by} too few")
            }
            FaultKind::StockBound => {
                write!(f, "{counter}: {found} stocked, bound {expected}: {by} too many")
            }
            FaultKind::Protection => {
                write!(f, "{counter}: children report {found} protected, they have {expected}: {by} {sign}")
            }
            FaultKind::Excess => {
                write!(f, "{counter}: {found} groups below are counted in excess, {expected} are: {by} {sign}")
            }
            FaultKind::Underflow => write!(f, "{counter}: {found} uncharged that were never charged"),
        }
    }
}

/// What one pass over a subtree adds up for each place.
#[derive(Clone, Copy, Default)]
struct Sums {
    live: i64,
    credit: u64,
    children: u64,
    min: u64,
    low: u64,
    excess: u64,
}

// === impl Tree ===

impl Tree {
    /// Credit below `top`, fronts of counter sets included.
    pub(crate) fn stocked(&self, top: &Counter) -> u64 {
        let stocks = self.stocks.lock();
        let online: u64 = self.hierarchy.snapshot().subtree(top.header.node()).map(|node| self.credit_at(node)).sum();
        online + self.unsettled_below(&stocks, top)
    }

    /// What `read` says of every counter below `top`, parents first, and the credit of its subtree. Under the lock,
    /// which keeps them.
    pub(crate) fn figures<R>(&self, top: &Counter, read: impl Fn(&Counter, u64) -> R) -> Vec<R> {
        let stocks = self.stocks.lock();
        let shape = self.hierarchy.snapshot();
        let order = numbered(shape.subtree(top.header.node()).collect());
        let mut credit = vec![0_u64; order.len()];
        for &death in &stocks.pending_close {
            if let Some(at) =
                nearest_live_ancestor(death).and_then(|nearest_live_ancestor| number(&order, nearest_live_ancestor))
            {
                credit[at] += self.credit_at(death);
            }
        }
        for (at, &node) in order.iter().enumerate().rev() {
            credit[at] += self.credit_at(node);
            if let Some(above) = node.incarnation().parent.and_then(|parent| number(&order, parent)) {
                credit[above] += credit[at];
            }
        }
        order.iter().zip(credit).map(|(node, credit)| read(node, credit)).collect()
    }

    /// Credit that groups below `top` went offline with.
    fn unsettled_below(&self, stocks: &Stocks, top: &Counter) -> u64 {
        let below = |death: &&&'static Counter| death.path_to_root().skip(1).any(|level| std::ptr::eq(level, top));
        stocks.pending_close.iter().filter(below).map(|&death| self.credit_at(death)).sum()
    }

    /// Credit of a counter's own stock, and what those went offline with that it stands for.
    pub(crate) fn stocked_local(&self, node: &Counter) -> u64 {
        let stocks = self.stocks.lock();
        let stands_for = |death: &&&'static Counter| {
            nearest_live_ancestor(death).is_some_and(|nearest_live_ancestor| std::ptr::eq(nearest_live_ancestor, node))
        };
        let left = stocks.pending_close.iter().filter(stands_for).map(|&death| self.credit_at(death));
        self.credit_at(node.header.node()) + left.sum::<u64>()
    }

    /// Credit of the stocks that sit directly on a counter.
    fn credit_at(&self, node: &'static Counter) -> u64 {
        stocks_at(node).filter(|node| node.touched.load(Ordering::Relaxed) > 0).map(|node| self.credit(node)).sum()
    }

    pub(crate) fn verify(&self, top: &Counter) -> Verdict {
        let top = top.header.node();
        let _stocks = self.stocks.lock();
        let shape = self.hierarchy.snapshot();
        let order = numbered(shape.subtree(top).chain(shape.dying_below(top)).collect());
        let mut sums = vec![Sums::default(); order.len()];
        let mut faults = Vec::new();
        // Children stand after their parents: from the end, each finds its own sums complete.
        for (at, &node) in order.iter().enumerate().rev() {
            let sum = &mut sums[at];
            sum.credit = sum.credit.saturating_add(self.credit_at(node));
            let live = stocks_at(node).map(|node| self.audited_live(node));
            sum.live = live.fold(sum.live, i64::wrapping_add);
            let sum = *sum;
            self.judge(node, &sum, &mut faults);
            if let Some(above) = node.incarnation().parent.and_then(|parent| number(&order, parent)).filter(|_| at > 0)
            {
                let usage = node.usage();
                let above = &mut sums[above];
                above.live = above.live.wrapping_add(sum.live);
                above.credit = above.credit.saturating_add(sum.credit);
                above.children = above.children.saturating_add(usage);
                above.min = above.min.saturating_add(usage.min(node.setting(Protection::Min)));
                above.low = above.low.saturating_add(usage.min(node.setting(Protection::Low)));
                above.excess += sum.excess + u64::from(usage > node.kind(LimitKind::Soft));
            }
        }
        faults.reverse();
        Verdict { audited: self.audited, counters: order.len(), faults }
    }

    fn judge(&self, node: &'static Counter, sum: &Sums, faults: &mut Vec<Fault>) {
        let usage = node.usage();
        let mut fault = |kind, expected, found| {
            let path = self.stats.is_some().then(|| match node.further_name() {
                Some(name) => format!("{} of {}", name, node.path()),
                None => node.path(),
            });
            faults.push(Fault { counter: node.id(), path, kind, expected, found });
        };
        let underflowed = node.usage.underflowed.load(Ordering::Relaxed);
        if underflowed > 0 {
            fault(FaultKind::Underflow, 0, underflowed);
        }
        let expected = sum.live.wrapping_add_unsigned(sum.credit).max(0).cast_unsigned();
        if self.audited && expected != usage {
            fault(FaultKind::Identity, expected, usage);
        }
        if sum.children > usage {
            fault(FaultKind::Children, sum.children, usage);
        }
        let bound = node.bound.load(Ordering::Relaxed);
        if sum.credit > bound {
            fault(FaultKind::StockBound, bound, sum.credit);
        }
        for (kind, expected) in [(Protection::Min, sum.min), (Protection::Low, sum.low)] {
            let found = node.children_protected(kind);
            if found != expected {
                fault(FaultKind::Protection, expected, found);
            }
        }
        let excess = excess::count_below(node);
        if excess != sum.excess {
            fault(FaultKind::Excess, sum.excess, excess);
        }
    }
}

/// The nearest ancestor that is online: what is left below counts as its own.
fn nearest_live_ancestor(node: &Counter) -> Option<&Counter> {
    node.path_to_root().skip(1).find(|level| !level.state().is_offline())
}

/// A counter, and the front of the counter set that it is a member of.
fn stocks_at(node: &'static Counter) -> impl Iterator<Item = &'static Counter> {
    [Some(node), node.front()].into_iter().flatten()
}

/// Each knows where it stands. Under the locks of the tree and of its whole shape.
fn numbered(order: Vec<&'static Counter>) -> Vec<&'static Counter> {
    (0..).zip(&order).for_each(|(number, node)| node.usage.mark.store(number, Ordering::Relaxed));
    order
}

/// Where it stands, if it does.
fn number(order: &[&'static Counter], node: &Counter) -> Option<usize> {
    let at = node.usage.mark.load(Ordering::Relaxed) as usize;
    order.get(at).is_some_and(|&there| std::ptr::eq(there, node)).then_some(at)
}
