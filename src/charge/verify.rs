//! `verify`: does the count add up?
//!
//! With audit: at every level, usage = audited live charge of the subtree + credit in its slots. Without: what can be
//! checked from the counters alone, which is less, and the verdict says which of the two it was.

use std::fmt;

use super::knob::Knob;
use super::page_counter::Node;
use super::places::{NOWHERE, Places};
use super::protection::Protection;
use super::tree::Tree;
use crate::error::CounterId;
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
    pub(crate) fn stocked(&self, top: &Node) -> u64 {
        let places = self.places.lock();
        let online = places.subtree(top.place()).map(|place| self.credit_at(&places, place));
        online.sum::<u64>() + self.unsettled_below(&places, top)
    }

    /// What `read` says of every counter below `top`, parents first, and the credit of its subtree. Under the lock,
    /// which keeps them.
    pub(crate) fn figures<R>(&self, top: &Node, read: impl Fn(&Node, u64) -> R) -> Vec<R> {
        let places = self.places.lock();
        let order: Vec<u32> = places.subtree(top.place()).collect();
        let mut credit = vec![0_u64; places.all.len()];
        for &death in &places.deaths {
            if let Some(heir) = heir(places.node(death)) {
                credit[heir.place() as usize] += self.credit_at(&places, death);
            }
        }
        for &place in order.iter().rev() {
            credit[place as usize] += self.credit_at(&places, place);
            if let Some(parent) = places.node(place).life().parent {
                credit[parent.place() as usize] += credit[place as usize];
            }
        }
        order.into_iter().map(|place| read(places.node(place), credit[place as usize])).collect()
    }

    /// Credit that groups below `top` went offline with.
    fn unsettled_below(&self, places: &Places, top: &Node) -> u64 {
        let below = |&&death: &&u32| places.node(death).levels().skip(1).any(|level| std::ptr::eq(level, top));
        places.deaths.iter().filter(below).map(|&death| self.credit_at(places, death)).sum()
    }

    /// Credit of a counter's own stock, and what those went offline with that it stands for.
    pub(crate) fn stocked_local(&self, node: &Node) -> u64 {
        let places = self.places.lock();
        let stands_for = |&&death: &&u32| heir(places.node(death)).is_some_and(|heir| std::ptr::eq(heir, node));
        let left = places.deaths.iter().filter(stands_for).map(|&death| self.credit_at(&places, death));
        self.credit_at(&places, node.place()) + left.sum::<u64>()
    }

    /// Credit of the stocks that sit directly on a counter.
    fn credit_at(&self, places: &Places, place: u32) -> u64 {
        stocks_at(places, place)
            .filter(|node| node.touched.load(Ordering::Relaxed) > 0)
            .map(|node| self.credit(node))
            .sum()
    }

    pub(crate) fn verify(&self, top: &Node) -> Verdict {
        let places = self.places.lock();
        let mut sums = vec![Sums::default(); places.all.len()];
        let mut order: Vec<u32> = places.subtree(top.place()).collect();
        order.extend(places.dying_below(top));
        let mut faults = Vec::new();
        // Children stand after their parents: from the end, each finds its own sums complete.
        for &place in order.iter().rev() {
            let node = places.node(place);
            let sum = &mut sums[place as usize];
            sum.credit = sum.credit.saturating_add(self.credit_at(&places, place));
            let live = stocks_at(&places, place).map(|node| self.audited_live(node));
            sum.live = live.fold(sum.live, i64::wrapping_add);
            let sum = *sum;
            self.judge(node, &sum, &mut faults);
            if place != top.place() {
                let usage = node.usage();
                let above = &mut sums[node.life().parent.map_or(0, Node::place) as usize];
                above.live = above.live.wrapping_add(sum.live);
                above.credit = above.credit.saturating_add(sum.credit);
                above.children = above.children.saturating_add(usage);
                above.min = above.min.saturating_add(usage.min(node.setting(Protection::Min)));
                above.low = above.low.saturating_add(usage.min(node.setting(Protection::Low)));
                above.excess += sum.excess + u64::from(usage > node.knob(Knob::Soft));
            }
        }
        faults.reverse();
        Verdict { audited: self.audited, counters: order.len(), faults }
    }

    fn judge(&self, node: &'static Node, sum: &Sums, faults: &mut Vec<Fault>) {
        let usage = node.usage();
        let mut fault = |kind, expected, found| {
            let path = self.stats.is_some().then(|| match node.further_name() {
                Some(name) => format!("{} of {}", name, node.path()),
                None => node.path(),
            });
            faults.push(Fault { counter: node.id(), path, kind, expected, found });
        };
        let underflowed = node.underflowed.load(Ordering::Relaxed);
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
        let excess = node.children_in_excess();
        if excess != sum.excess {
            fault(FaultKind::Excess, sum.excess, excess);
        }
    }
}

/// The nearest ancestor that is online: what is left below counts as its own.
fn heir(node: &Node) -> Option<&Node> {
    node.levels().skip(1).find(|level| !level.state().is_offline())
}

/// The counter at a place, and the front of the counter set that it is a member of.
fn stocks_at(places: &Places, place: u32) -> impl Iterator<Item = &'static Node> {
    let front = places.all[place as usize].front;
    std::iter::once(places.node(place)).chain((front != NOWHERE).then(|| places.node(front)))
}
