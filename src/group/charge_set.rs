//! Charges to several counters of a group at once.
//!
//! Counters that share a stock with memory have a *front*: one slot for all of them. Equal amounts for all of them are
//! one charge of the front, and one hit. A front that has no room is no reason to refuse: the charge is then made counter
//! by counter, each with its own reclaim, line and error.

use std::fmt;
use std::mem::{self, ManuallyDrop};

use smallvec::SmallVec;

use super::charge::Charge;
use super::counter::Counter;
use super::error::ChargeError;
use super::handle::Group;
use crate::admission::steps;
use crate::counter::object;
use crate::hierarchy::group_tree::{self, GroupTree, Members};
use crate::pressure::throttle;
use crate::thread::slot::Consume;
use crate::units::Bytes;

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
#[must_use = "dropped at once it gives the bytes back at once"]
pub struct ChargeSet {
    /// The charge of the front, which holds as much of all counters that share a stock; else that of the first counter.
    first: Option<Charge>,
    /// The others, in the order in which the caller asked for them. `drop` drops them.
    others: ManuallyDrop<Others>,
}

type Others = SmallVec<[Charge; COMMON - 1]>;

impl ChargeSet {
    #[inline(always)]
    fn new(first: Option<Charge>, others: Others) -> Self {
        ChargeSet { first, others: ManuallyDrop::new(others) }
    }

    /// Returns the bytes held of a counter.
    pub fn bytes(&self, counter: Counter) -> u64 {
        let of = |charge: &&Charge| counters(charge).any(|(of, _)| of == counter);
        self.first.iter().chain(self.others.iter()).filter(of).map(Charge::bytes).sum()
    }

    /// Returns the charges one by one, in the order in which the caller asked for them. Those of counters that share a
    /// stock come first, memory before the others.
    pub fn into_charges(mut self) -> impl Iterator<Item = (Counter, Charge)> {
        let charges = self.first.take().into_iter().chain(mem::take(&mut *self.others));
        charges.flat_map(|charge| {
            let each: SmallVec<[_; COMMON]> = counters(&charge).collect();
            // What the charge holds is what the charges of its counters hold from here on.
            let bytes = charge.forget();
            each.into_iter().map(move |(of, counter)| (of, Charge::new(counter.header, bytes)))
        })
    }
}

impl fmt::Debug for ChargeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.first.iter().chain(self.others.iter())).finish()
    }
}

/// A set of one charge stays in registers from the charge to the drop: nothing here shows its address. The others are
/// passed by value for that, in a slow path of their own.
impl Drop for ChargeSet {
    #[inline]
    fn drop(&mut self) {
        drop(self.first.take());
        if !self.others.is_empty() {
            drop_others_slow(mem::take(&mut *self.others));
        }
    }
}

#[inline(never)]
fn drop_others_slow(others: Others) {
    drop(others);
}

/// The counters that a charge charges: one, or in the order of their declarations those that share a stock.
fn counters(charge: &Charge) -> impl Iterator<Item = (Counter, &'static object::Counter)> {
    charge.header().counter().charged().map(|counter| (Counter::of_counter(counter), counter))
}

/// # Charges to counters beside memory
impl Group {
    /// Charges one counter of this group. It may block where the counter is memory: in async code call it on a thread
    /// for blocking work.
    ///
    /// The amount is in the counter's unit, and so are the charge's bytes. A counter beside memory refuses at once what
    /// does not fit: it asks no reclaimer and waits in no line ([`Counter`]).
    ///
    /// # Errors
    ///
    /// As [`try_charge`](Self::try_charge); [`ChargeError::UnknownCounter`] where this runtime has no such counter.
    ///
    /// ```
    /// use memcg::{Limits, Runtime, Unit};
    /// use std::fs::File;
    ///
    /// let mut builder = Runtime::builder();
    /// let descriptors = builder.counter("descriptors").unit(Unit::Events).independent();
    /// let runtime = builder.build()?;
    /// // No thread takes descriptors in advance.
    /// runtime.root().counter(descriptors)?.set_batch(0);
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// acme.counter(descriptors)?.set_max(1)?;
    /// let charge = acme.try_charge_counter(descriptors, 1)?;
    /// let file = (File::open(std::env::current_exe()?)?, charge);
    /// assert_eq!(acme.counter(descriptors)?.usage(), 1);
    /// assert!(acme.try_charge_counter(descriptors, 1).is_err());
    /// drop(file); // closes it, then gives the descriptor back
    /// assert_eq!(acme.counter(descriptors)?.usage(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge_counter(&self, counter: Counter, amount: impl Into<Bytes>) -> Result<Charge, ChargeError> {
        let Bytes(amount) = amount.into();
        self.charge_one(&(counter, amount))
    }

    /// Charges bytes to several counters, the last one first: to all or to none. It may block: in async code call it on
    /// a thread for blocking work.
    ///
    /// Each amount is in its counter's unit; the slice has one type for all of them, `u64`. For one counter
    /// [`try_charge_counter`](Self::try_charge_counter) needs no slice. Memory asks reclaimers and waits as
    /// [`try_charge`](Self::try_charge) does. A counter beside memory refuses at once what does not fit ([`Counter`]).
    ///
    /// Equal amounts for memory and all counters that [share its stock](crate::NewCounter::shared) are one charge: a hit
    /// in one stock pays for all. With its drop that is 132 instructions for two counters and 16 for each further one.
    /// Other amounts are charged counter by counter: 201 instructions for one that hits.
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
    /// let line = "/ refused 11 B of swap for /: short by 1 B, max 10 B; to fit, raise max of swap of / or charge less";
    /// assert_eq!(refused.to_string(), line);
    /// assert_eq!(root.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn try_charge_set(&self, amounts: &[(Counter, u64)]) -> Result<ChargeSet, ChargeError> {
        let missed = match self.first().front() {
            Some(front) => match alike(&group_tree::of(front).members, amounts) {
                Some(bytes) => match front.header.consume_open(bytes) {
                    Consume::Hit => return Ok(ChargeSet::new(Some(Charge::new(front.header, bytes)), Others::new())),
                    missed => Some((bytes, missed)),
                },
                None => None,
            },
            None => None,
        };
        let (first, others) = self.charge_set_slow(amounts, missed)?;
        Ok(ChargeSet::new(first, others))
    }

    /// Goes on after the front has missed. Otherwise the counters that share no stock are charged by themselves, and the
    /// others as one where their stock has room.
    #[inline(never)]
    fn charge_set_slow(
        &self,
        amounts: &[(Counter, u64)],
        missed: Option<(u64, Consume)>,
    ) -> Result<(Option<Charge>, Others), ChargeError> {
        let groups = group_tree::of(self.first());
        let Some(front) = self.first().front() else { return self.charge_each(amounts) };
        if let Some((bytes, missed)) = missed {
            if let Some(common) = self.charge_front_slow(front, bytes, missed) {
                return Ok((Some(common), Others::new()));
            }
        } else if let Some(bytes) = common(groups, amounts) {
            let alone = |(counter, _): &&(Counter, u64)| !groups.members.has(counter.number());
            let alone: SmallVec<[_; COMMON]> = amounts.iter().filter(alone).copied().collect();
            let (first, mut others) = self.charge_each(&alone)?;
            let common = match front.header.consume_open(bytes) {
                Consume::Hit => Some(Charge::new(front.header, bytes)),
                missed => self.charge_front_slow(front, bytes, missed),
            };
            if common.is_some() {
                others.insert_many(0, first);
                return Ok((common, others));
            }
        }
        self.charge_each(amounts)
    }

    /// Charges counter by counter, the last one first.
    fn charge_each(&self, amounts: &[(Counter, u64)]) -> Result<(Option<Charge>, Others), ChargeError> {
        let mut others = Others::new();
        let Some((first, rest)) = amounts.split_first() else { return Ok((None, others)) };
        for amount in rest.iter().rev() {
            others.push(self.charge_one(amount)?);
        }
        others.reverse();
        Ok((Some(self.charge_one(first)?), others))
    }

    #[inline(always)]
    fn charge_one(&self, &(counter, bytes): &(Counter, u64)) -> Result<Charge, ChargeError> {
        Charge::attempt(self.find_counter(counter)?.header, bytes)
    }

    /// `None`: the front has no room in one step.
    #[cold]
    fn charge_front_slow(&self, front: &'static object::Counter, bytes: u64, missed: Consume) -> Option<Charge> {
        // Mutation: shared-charge-without-room
        throttle::sleep_after(self.first(), steps::charge_front(front, bytes, missed)?, None);
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
