//! `verify`: does the count add up?
//!
//! With audit it checks at every level that usage = audited live charge of the subtree + credit in
//! its slots. Without audit it checks what the counters alone show, which is less.

use std::fmt;

use crate::counter::credit::credit_at;
use crate::counter::ledger::{self, LedgerSums};
use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::counter::protection::Protection;
use crate::counter::slow_path::SlowPath;
use crate::counter::{cover, exceeded_mark, thresholds};
use crate::error::CounterId;
use crate::sync::Ordering;

/// The result of a check of the whole count: of [`Runtime::verify`](crate::Runtime::verify) or
/// [`PageCounter::verify`](crate::PageCounter::verify). It prints as one line.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let job = PageCounter::root(CounterConfig::new().batch(0));
/// job.force_charge(10);
/// assert!(job.verify().is_ok());
/// job.uncharge(12);
/// let verdict = job.verify();
/// assert_eq!((verdict.is_ok(), verdict.counter_count(), verdict.audited()), (false, 1, false));
/// let fault = "2 uncharged that were never charged";
/// assert_eq!(
///     verdict.to_string(),
///     format!("1 counter verified without a second count (audit is off): {}: {fault}", job.id()),
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct VerifyReport {
    audited: bool,
    counters: usize,
    faults: Vec<VerifyFault>,
}

/// One thing that does not add up. It prints which counter it is, and by how much it is off.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let job = PageCounter::root(CounterConfig::new().audit(true));
/// job.force_charge(10);
/// job.cancel(3);
/// let verdict = job.verify();
/// let [fault] = verdict.faults() else { panic!("{verdict}") };
/// assert_eq!((fault.counter, fault.expected, fault.found), (job.id(), 10, 7));
/// assert!(fault.to_string().ends_with("usage is 7, live charge and credit are 10: 3 too few"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyFault {
    /// The counter at which the count does not add up.
    pub counter: CounterId,
    /// The path of its group, as `/acme`, after the name of a further counter, as `spill of /acme`;
    /// `None` for a counter alone.
    pub path: Option<String>,
    /// The kind of sum that does not add up.
    pub kind: VerifyFaultKind,
    /// The units that there should be; for a bound, the most that there may be.
    pub expected: u64,
    /// The units that there are.
    pub found: u64,
}

/// The kinds of [`VerifyFault`]. [`Identity`](Self::Identity) is checked only if the audit is on.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
/// use memcg::inspect::VerifyFaultKind;
///
/// let machine = PageCounter::root(CounterConfig::new().batch(0));
/// let job = machine.child();
/// job.force_charge(10);
/// machine.cancel(10);
/// let verdict = machine.verify();
/// let fault = &verdict.faults()[0];
/// assert_eq!((fault.counter, fault.kind), (machine.id(), VerifyFaultKind::Children));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyFaultKind {
    /// Usage is not audited live charge plus credit.
    Identity,
    /// Usage is less than the usage of the children together.
    Children,
    /// Credit is above its published bound.
    StockBound,
    /// The protected usage that the children report is not what they have.
    Protection,
    /// The children that are counted as in excess of their soft limits, themselves or somewhere
    /// below, are not those that are.
    Excess,
    /// Units were uncharged that had not been charged: those for which usage was too low, and those
    /// that lie as credit without any usage behind them.
    Underflow,
    /// More is allocated than is live: see [`Group::ledger`](crate::Group::ledger). Or a group that
    /// [covers](crate::Limits::cover_allocations) has not counted what is allocated, with credit.
    Ledger,
    /// Usage of a group that covers is not the larger of what is reserved and what is allocated.
    Cover,
    /// Usage is above max or high and no mark tells checkpoints so, or the reverse; or the marks
    /// were miscounted.
    Mark,
}

impl VerifyReport {
    /// Returns true if the check found no fault.
    pub fn is_ok(&self) -> bool {
        self.faults.is_empty()
    }

    /// Returns true if the check compared usage with the second, independent count.
    pub fn audited(&self) -> bool {
        self.audited
    }

    /// Returns the number of counters that were checked.
    pub fn counter_count(&self) -> usize {
        self.counters
    }

    /// Returns what does not add up, parents first.
    pub fn faults(&self) -> &[VerifyFault] {
        &self.faults
    }

    pub(crate) fn merge(mut self, other: VerifyReport) -> VerifyReport {
        self.audited &= other.audited;
        self.counters += other.counters;
        self.faults.extend(other.faults);
        self
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.audited {
            "against the audited count"
        } else {
            "without a second count (audit is off)"
        };
        let many = if self.counters == 1 { "" } else { "s" };
        write!(f, "{} counter{many} verified {how}: ", self.counters)?;
        if self.faults.is_empty() {
            return f.write_str("all add up");
        }
        for (i, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{fault}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Display for VerifyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VerifyFault {
            expected, found, ..
        } = self;
        let counter = self
            .path
            .clone()
            .unwrap_or_else(|| self.counter.to_string());
        let by = found.abs_diff(*expected);
        let sign = if found < expected {
            "too few"
        } else {
            "too many"
        };
        match self.kind {
            VerifyFaultKind::Identity => {
                write!(
                    f,
                    "{counter}: usage is {found}, live charge and credit are {expected}: {by} {sign}"
                )
            }
            VerifyFaultKind::Children => {
                write!(
                    f,
                    "{counter}: usage is {found}, its children hold {expected}: {by} too few"
                )
            }
            VerifyFaultKind::StockBound => {
                write!(
                    f,
                    "{counter}: {found} stocked, bound {expected}: {by} too many"
                )
            }
            VerifyFaultKind::Protection => {
                write!(
                    f,
                    "{counter}: children report {found} protected, they have {expected}: {by} {sign}"
                )
            }
            VerifyFaultKind::Excess => {
                write!(
                    f,
                    "{counter}: {found} children are counted in excess or above a group that is, {expected} are: {by} {sign}"
                )
            }
            VerifyFaultKind::Ledger => {
                write!(
                    f,
                    "{counter}: {found} are counted as allocated, {expected} are or may be: {by} {sign}"
                )
            }
            VerifyFaultKind::Cover => {
                write!(
                    f,
                    "{counter}: usage is {found}, the larger of reserved and allocated is {expected}: {by} {sign}"
                )
            }
            VerifyFaultKind::Mark => write!(
                f,
                "{counter}: {found} marks of excess, {expected} are right: {by} {sign}"
            ),
            VerifyFaultKind::Underflow => {
                write!(f, "{counter}: {found} uncharged that were never charged")
            }
        }
    }
}

/// Sums of one pass over a subtree, for each counter.
#[derive(Clone, Copy, Default)]
struct SubtreeSums {
    live: i64,
    credit: u64,
    children: u64,
    /// By [`Protection`].
    protected: [u64; 2],
    excess: u64,
    ledger: LedgerSums,
    marks: u64,
}

// === The check of a tree ===

/// Knowledge of a verdict from outside of the counters.
pub(crate) struct KnownOutside<'a> {
    /// The path of a counter, where it has one.
    pub(crate) path: &'a dyn Fn(&Counter) -> Option<String>,
    /// Children of a counter that are counted as in excess, themselves or somewhere below.
    pub(crate) children_in_excess: &'a dyn Fn(&Counter) -> u64,
}

impl KnownOutside<'_> {
    /// For bare counters, which have neither names nor soft limits.
    pub(crate) const NOTHING: KnownOutside<'static> = KnownOutside {
        path: &|_| None,
        children_in_excess: &|_| 0,
    };
}

/// Checks the counts below `top`. Takes the tree's lock and all locks of its hierarchy.
pub(crate) fn verify(tree: &Tree, top: &Counter, known: &KnownOutside<'_>) -> VerifyReport {
    let path = SlowPath::enter();
    let _stocks = tree.lock(&path);
    let hierarchy = tree.hierarchy.snapshot();
    let order = numbered(
        hierarchy
            .subtree(top)
            .chain(hierarchy.dying_below(top))
            .collect(),
    );
    let mut sums = vec![SubtreeSums::default(); order.len()];
    let mut faults = Vec::new();
    // Children stand after their parents: in reverse order each counter finds its own sums
    // complete.
    for (at, &counter) in order.iter().enumerate().rev() {
        let sum = &mut sums[at];
        let own_credit = credit_at(tree, counter);
        sum.credit = sum.credit.saturating_add(own_credit);
        sum.live = sum.live.wrapping_add(tree.audited_live(counter));
        sum.ledger += ledger::own(counter);
        sum.marks += u64::from(exceeded_mark::is_marked(counter));
        let sum = *sum;
        judge(tree, counter, own_credit, &sum, known, &mut faults);
        // Above the topmost group that covers, only the larger of reserved and allocated bytes was
        // charged.
        let sum = if counter.cover_above().is_some() {
            sum
        } else {
            sum.of_top(counter)
        };
        let parent = counter.parent().and_then(|parent| number(&order, parent));
        if let Some(above) = parent.filter(|_| at > 0) {
            let usage = counter.usage();
            let covers = order[above].cover().is_some();
            let above = &mut sums[above];
            above.live = above.live.wrapping_add(sum.live);
            above.credit = above.credit.saturating_add(sum.credit);
            // One child may have allocated the bytes that another has reserved.
            above.children = if covers {
                above.children.max(usage)
            } else {
                above.children.saturating_add(usage)
            };
            for (sum, kind) in above.protected.iter_mut().zip(Protection::ALL) {
                *sum = sum.saturating_add(usage.min(thresholds::protection(counter, kind)));
            }
            above.excess += u64::from(sum.excess > 0 || usage > thresholds::soft(counter));
            above.ledger += sum.ledger;
            above.marks += sum.marks;
        }
    }
    faults.reverse();
    VerifyReport {
        audited: tree.config.audit,
        counters: order.len(),
        faults,
    }
}

fn judge(
    tree: &Tree,
    counter: &Counter,
    own_credit: u64,
    sum: &SubtreeSums,
    known: &KnownOutside<'_>,
    faults: &mut Vec<VerifyFault>,
) {
    let usage = counter.usage();
    let mut fault = |kind, expected, found| {
        faults.push(VerifyFault {
            counter: counter.id(),
            path: (known.path)(counter),
            kind,
            expected,
            found,
        });
    };
    // What was uncharged too much lies as credit until usage is to pay for it. Usage of a group
    // that covers leaves out credit that reserved bytes pay for.
    let unbacked = match counter.cover() {
        None => own_credit.saturating_sub(usage),
        Some(_) => 0,
    };
    let underflowed = counter.underflowed().saturating_add(unbacked);
    if underflowed > 0 {
        fault(VerifyFaultKind::Underflow, 0, underflowed);
    }
    let expected = sum.usage(counter);
    if tree.config.audit && expected != usage {
        fault(VerifyFaultKind::Identity, expected, usage);
    }
    if sum.children > usage {
        fault(VerifyFaultKind::Children, sum.children, usage);
    }
    let bound = counter.bound();
    if sum.credit > bound {
        fault(VerifyFaultKind::StockBound, bound, sum.credit);
    }
    for (kind, expected) in Protection::ALL.into_iter().zip(sum.protected) {
        let found = thresholds::children_protected(counter, kind);
        if found != expected {
            fault(VerifyFaultKind::Protection, expected, found);
        }
    }
    let excess = (known.children_in_excess)(counter);
    if excess != sum.excess {
        fault(VerifyFaultKind::Excess, sum.excess, excess);
    }
    // The sums that allocators and checkpoints rely on.
    let LedgerSums {
        allocated, paid, ..
    } = sum.ledger;
    match counter.cover() {
        None => {
            let live = counter.usage().saturating_sub(sum.credit);
            if allocated.saturating_sub(paid) > live {
                fault(
                    VerifyFaultKind::Ledger,
                    live,
                    allocated.saturating_sub(paid),
                );
            }
        }
        Some(cover) => {
            let expected = allocated.saturating_add(sum.credit);
            let counted = cover
                .reserved()
                .saturating_add_signed(cover.spare().saturating_neg());
            if counted != expected {
                fault(VerifyFaultKind::Ledger, expected, counted);
            }
            let larger = cover.reserved().max(counted);
            if counter.usage() != larger {
                fault(VerifyFaultKind::Cover, larger, counter.usage());
            }
        }
    }
    if !exceeded_mark::is_mark_right(counter) {
        let marked = u64::from(exceeded_mark::is_marked(counter));
        fault(VerifyFaultKind::Mark, 1 - marked, marked);
    }
    // The tree counts the marks of all its groups.
    let is_root = counter.parent().is_none() && counter.is_memory();
    let counted = counter.tree().alerts.exceeded();
    if is_root && counter.tree().policies().is_some() && counted != sum.marks {
        fault(VerifyFaultKind::Mark, sum.marks, counted);
    }
}

impl SubtreeSums {
    /// Usage as it is to be, by the audit.
    fn usage(&self, counter: &Counter) -> u64 {
        let held = |units: i64| units.max(0).cast_unsigned();
        let allocated = self.ledger.allocated;
        match counter.cover() {
            None => held(self.live.wrapping_add_unsigned(self.credit)),
            Some(_) => held(self.live.wrapping_sub_unsigned(allocated))
                .max(allocated.saturating_add(self.credit)),
        }
    }

    /// The group covers and its parent does not.
    fn of_top(self, counter: &Counter) -> SubtreeSums {
        if counter.cover().is_none() {
            return self;
        }
        let credit = cover::counted_credit(counter, self.credit);
        let live = self.usage(counter).saturating_sub(credit).cast_signed();
        SubtreeSums {
            live,
            credit,
            ledger: ledger::compare(counter, self.ledger),
            ..self
        }
    }
}

/// Stores in each counter its index in `order`. The caller holds the tree's lock and all locks of
/// its hierarchy.
fn numbered(order: Vec<&Counter>) -> Vec<&Counter> {
    (0..).zip(&order).for_each(|(number, counter)| {
        counter
            .usage
            .snapshot_index
            .store(number, Ordering::Relaxed)
    });
    order
}

/// The index of a counter in `order`, if it is there.
fn number(order: &[&Counter], counter: &Counter) -> Option<usize> {
    let at = counter.usage.snapshot_index.load(Ordering::Relaxed) as usize;
    order
        .get(at)
        .is_some_and(|&there| std::ptr::eq(there, counter))
        .then_some(at)
}
