//! Charges to several counters of a group at once.
//!
//! Counters that share a stock with memory have a *front*: one slot for all of them. Equal amounts for all of them are
//! one charge of the front, and one hit. A front that has no room is no reason to refuse: the charge is then made counter
//! by counter, each with its own reclaim, line and error.

use std::slice;

use smallvec::SmallVec;

use super::charge::Charge;
use super::counters::Counter;
use super::error::ChargeError;
use super::handle::Group;
use crate::admission::steps;
use crate::counter::object;
use crate::hierarchy::group_tree::{self, GroupTree, Members};
use crate::pressure::throttle;
use crate::thread::slot::Consume;

/// A set of up to this many counters needs no allocation.
const COMMON: usize = 4;

/// Charges to several counters of one group, made as one. The drop gives all of them back.
///
/// ```
/// # let runtime = memcg::Runtime::builder().build()?;
/// let set = runtime.root().try_charge_set(&[(memcg::Counter::MEMORY, 10)])?;
/// assert_eq!(set.bytes(memcg::Counter::MEMORY), 10);
/// assert_eq!(set.into_charges().next().map(|(_, charge)| charge.bytes()), Some(10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped at once it gives the bytes back at once"]
pub struct ChargeSet(SetCharges);

#[derive(Debug)]
enum SetCharges {
    /// All counters that share a stock, alike, and no others: one charge of their front.
    Common(Charge),
    /// A charge of the front, where there is one, comes first. The others follow in the order in which the caller asked
    /// for them.
    Each(SmallVec<[Charge; COMMON]>),
}

impl ChargeSet {
    /// Returns the bytes held of a counter.
    pub fn bytes(&self, counter: Counter) -> u64 {
        let charges = match &self.0 {
            SetCharges::Common(common) => slice::from_ref(common),
            SetCharges::Each(charges) => charges,
        };
        let of = |charge: &&Charge| counters(charge).any(|(of, _)| of == counter);
        charges.iter().filter(of).map(Charge::bytes).sum()
    }

    /// Returns the charges one by one, in the order in which the caller asked for them. Those of counters that share a
    /// stock come first, memory before the others.
    pub fn into_charges(self) -> impl Iterator<Item = (Counter, Charge)> {
        let charges = match self.0 {
            SetCharges::Common(common) => SmallVec::from_iter([common]),
            SetCharges::Each(charges) => charges,
        };
        charges.into_iter().flat_map(|charge| {
            let each: SmallVec<[_; COMMON]> = counters(&charge).collect();
            // What the charge holds is what the charges of its counters hold from here on.
            let bytes = charge.forget();
            each.into_iter().map(move |(of, counter)| (of, Charge::new(counter.header, bytes)))
        })
    }
}

/// The counters that a charge charges: one, or in the order of their declarations those that share a stock.
fn counters(charge: &Charge) -> impl Iterator<Item = (Counter, &'static object::Counter)> {
    let charged = charge.header().counter();
    let further = &group_tree::of(charged).further;
    charged.charged().map(|counter| {
        let declared = counter.number_in_group().checked_sub(1).and_then(|at| further.get(at));
        (Counter::new(counter.number_in_group(), declared.map_or(0, |further| further.builder)), counter)
    })
}

/// # Charges to several counters
impl Group {
    /// Charges bytes to several counters, the last one first: to all or to none. It may block: in async code call it on
    /// a thread for blocking work.
    ///
    /// Equal amounts for memory and all counters that [share its stock](crate::NewCounter::shared) are one charge: a hit
    /// in one stock pays for all. With its drop that is 160 instructions for two counters and 16 for each further one.
    /// Other amounts are charged counter by counter: 223 instructions for one that hits.
    ///
    /// # Errors
    ///
    /// [`ChargeError::Limit`] names the counter and the group that was full. [`ChargeError::UnknownCounter`] names a
    /// counter that this runtime does not have.
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// let swap = builder.counter("swap").independent();
    /// # let runtime = builder.build()?;
    /// let root = runtime.root();
    /// root.counter(swap)?.set_max(10)?;
    /// let refused = root.try_charge_set(&[(memcg::Counter::MEMORY, 5), (swap, 11)]).unwrap_err();
    /// let line = "/ refused 11 B of swap for /: short by 1 B of max 10 B; to fit, raise max of swap of / or charge less";
    /// assert_eq!(refused.to_string(), line);
    /// assert_eq!(root.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_charge_set(&self, amounts: &[(Counter, u64)]) -> Result<ChargeSet, ChargeError> {
        let (first, groups) = (self.first(), group_tree::of(self.first()));
        let Some(front) = first.front() else { return self.charge_each(amounts.iter()) };
        let Some(bytes) = alike(&groups.members, amounts) else { return self.charge_mixed(front, amounts) };
        match front.header.consume_open(bytes) {
            Consume::Hit => Ok(ChargeSet(SetCharges::Common(Charge::new(front.header, bytes)))),
            missed => self.charge_common_slow(front, bytes, missed, amounts),
        }
    }

    #[cold]
    #[inline(never)]
    fn charge_common_slow(
        &self,
        front: &'static object::Counter,
        bytes: u64,
        missed: Consume,
        amounts: &[(Counter, u64)],
    ) -> Result<ChargeSet, ChargeError> {
        match self.charge_front_slow(front, bytes, missed) {
            Some(common) => Ok(ChargeSet(SetCharges::Common(common))),
            None => self.charge_each(amounts.iter()),
        }
    }

    /// Charges the counters that share no stock by themselves, and the others as one where their stock has room.
    #[inline(never)]
    fn charge_mixed(
        &self,
        front: &'static object::Counter,
        amounts: &[(Counter, u64)],
    ) -> Result<ChargeSet, ChargeError> {
        let groups = group_tree::of(front);
        if let Some(bytes) = common(groups, amounts) {
            let others = amounts.iter().filter(|(counter, _)| !groups.members.has(counter.number()));
            let mut set = self.charge_each(others)?;
            let common = match front.header.consume_open(bytes) {
                Consume::Hit => Some(Charge::new(front.header, bytes)),
                missed => self.charge_front_slow(front, bytes, missed),
            };
            if let (SetCharges::Each(charges), Some(common)) = (&mut set.0, common) {
                charges.insert(0, common);
                return Ok(set);
            }
        }
        self.charge_each(amounts.iter())
    }

    #[inline(never)]
    fn charge_each<'a>(
        &self,
        amounts: impl DoubleEndedIterator<Item = &'a (Counter, u64)>,
    ) -> Result<ChargeSet, ChargeError> {
        let mut charges = SmallVec::new();
        for &(counter, bytes) in amounts.rev() {
            charges.push(Charge::attempt(self.find_counter(counter)?.header, bytes)?);
        }
        charges.reverse();
        Ok(ChargeSet(SetCharges::Each(charges)))
    }

    /// `None`: the front has no room in one step.
    #[cold]
    fn charge_front_slow(&self, front: &'static object::Counter, bytes: u64, missed: Consume) -> Option<Charge> {
        throttle::sleep_after(self.first(), steps::charge_front(front, bytes, missed)?);
        Some(Charge::new(front.header, bytes))
    }
}

/// What the counters that share a stock are all charged, where `amounts` are those of all of them and of no others. It
/// knows only counters that one builder declared.
#[inline]
fn alike(members: &Members, amounts: &[(Counter, u64)]) -> Option<u64> {
    if amounts.len() != members.count {
        return None;
    }
    let &(_, bytes) = amounts.first()?;
    let mut seen = 0;
    for &(counter, each) in amounts {
        if each != bytes || !counter.is_of_builder(members.builder) {
            return None;
        }
        // So many bits are there only where no counter is there twice.
        seen |= Members::bit(counter.number());
    }
    (seen == members.bits && bytes > 0).then_some(bytes)
}

/// What the counters that share a stock are all charged, beside others. `None` where their amounts differ, or where one
/// is missing or there twice.
fn common(groups: &GroupTree, amounts: &[(Counter, u64)]) -> Option<u64> {
    let (mut seen, mut common) = (0, 0);
    for &(counter, bytes) in amounts.iter().filter(|(counter, _)| groups.members.has(counter.number())) {
        let bit = Members::bit(counter.number());
        if seen & bit != 0 || (seen != 0 && bytes != common) || !counter.is_of(groups) {
            return None;
        }
        (seen, common) = (seen | bit, bytes);
    }
    (seen == groups.members.bits && common > 0).then_some(common)
}
