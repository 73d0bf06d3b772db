//! Charges to several counters of a group at once.
//!
//! Counters that share a stock with memory have a *front*: one slot for all of them. Equal amounts for all of them are
//! one charge of the front, and one hit. A front that has no room is no reason to refuse: the charge is then made counter
//! by counter, each with its own reclaim, line and error.

use smallvec::SmallVec;

use super::charge::Charge;
use super::counters::Counter;
use super::error::ChargeError;
use super::handle::Group;
use crate::admission::steps;
use crate::counter::object;
use crate::hierarchy::group_tree::{self, GroupTree};
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
pub struct ChargeSet {
    /// What each counter holds by itself, in the order in which the caller asked.
    each: SmallVec<[(Counter, Charge); COMMON]>,
    /// What memory and all counters that share its stock hold, alike.
    common: Option<Charge>,
}

impl ChargeSet {
    /// Returns the bytes held of a counter.
    pub fn bytes(&self, counter: Counter) -> u64 {
        let own: u64 = self.each.iter().filter(|(of, _)| *of == counter).map(|(_, charge)| charge.bytes()).sum();
        let common = self.common.as_ref().filter(|common| members(common).any(|(of, _)| of == counter));
        own + common.map_or(0, Charge::bytes)
    }

    /// Returns the charges one by one, in the order in which the caller asked for them. Those of counters that share a
    /// stock come first, memory before the others.
    pub fn into_charges(self) -> impl Iterator<Item = (Counter, Charge)> {
        let mut charges = SmallVec::<[(Counter, Charge); COMMON]>::new();
        if let Some(common) = self.common {
            charges.extend(members(&common).map(|(of, member)| (of, Charge::new(member.header, common.bytes()))));
            // Its bytes are those of the charges above now.
            common.forget();
        }
        charges.extend(self.each);
        charges.into_iter()
    }
}

/// The counters that a charge of a front charges, in the order of their declarations.
fn members(common: &Charge) -> impl Iterator<Item = (Counter, &'static object::Counter)> {
    let front = common.header().counter();
    let further = &group_tree::of(front).further;
    front.charged().map(|member| {
        let declared = member.number_in_group().checked_sub(1).and_then(|at| further.get(at));
        (Counter::new(member.number_in_group(), declared.map_or(0, |further| further.builder)), member)
    })
}

impl Group {
    /// Charges bytes to several counters, the last one first: to all or to none. It may block: in async code call it on
    /// a thread for blocking work.
    ///
    /// Equal amounts for memory and all counters that [share its stock](crate::NewCounter::shared) are one
    /// charge: a hit in one stock pays for all.
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
        let groups = group_tree::of(self.first());
        if let Some(Common { bytes, members }) = common(groups, amounts)
            && let Some(front) = self.first().front()
        {
            let each = if members == amounts.len() { SmallVec::new() } else { self.charge_others(groups, amounts)? };
            if let Some(common) = self.charge_front(front, bytes) {
                return Ok(ChargeSet { each, common: Some(common) });
            }
        }
        self.charge_one_by_one(amounts)
    }

    #[inline]
    fn charge_one_by_one(&self, amounts: &[(Counter, u64)]) -> Result<ChargeSet, ChargeError> {
        Ok(ChargeSet { each: self.charge_each(amounts.iter())?, common: None })
    }

    /// Charges the counters that share no stock.
    #[inline(never)]
    fn charge_others(
        &self,
        groups: &GroupTree,
        amounts: &[(Counter, u64)],
    ) -> Result<SmallVec<[(Counter, Charge); COMMON]>, ChargeError> {
        self.charge_each(amounts.iter().filter(|(counter, _)| !groups.is_member(counter.number())))
    }

    #[inline]
    fn charge_each<'a>(
        &self,
        amounts: impl DoubleEndedIterator<Item = &'a (Counter, u64)>,
    ) -> Result<SmallVec<[(Counter, Charge); COMMON]>, ChargeError> {
        let mut charges = SmallVec::new();
        for &(counter, bytes) in amounts.rev() {
            charges.push((counter, Charge::attempt(self.find_counter(counter)?.header, bytes)?));
        }
        charges.reverse();
        Ok(charges)
    }

    /// `None`: the front has no room in one step.
    #[inline]
    fn charge_front(&self, front: &'static object::Counter, bytes: u64) -> Option<Charge> {
        match front.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => throttle::sleep_after(self.first(), steps::charge_front(front, bytes, missed)?),
        }
        Some(Charge::new(front.header, bytes))
    }
}

/// What the counters that share a stock are charged alike, and how many they are.
struct Common {
    bytes: u64,
    members: usize,
}

/// `None` where their amounts differ, or where one is missing or there twice.
#[inline]
fn common(groups: &GroupTree, amounts: &[(Counter, u64)]) -> Option<Common> {
    if groups.members == 0 {
        return None;
    }
    let (mut seen, mut members, mut common) = (0_u64, 0, 0);
    for &(counter, bytes) in amounts.iter().filter(|(counter, _)| groups.is_member(counter.number())) {
        let bit = 1 << counter.number();
        if seen & bit != 0 || (seen != 0 && bytes != common) || !counter.is_of(groups) {
            return None;
        }
        (seen, members, common) = (seen | bit, members + 1, bytes);
    }
    (seen == groups.members && common > 0).then_some(Common { bytes: common, members })
}
