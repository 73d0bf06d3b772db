//! Charges to several counters of a group at once.
//!
//! Counters that share a stock with memory have a *front*: one slot for all of them. What the amounts of all of them
//! have in common is one charge of the front, and one hit. A front that has no room is no reason to refuse: its charge
//! is then made counter by counter, each with its own reclaim, line and error.

use smallvec::SmallVec;

use super::charge::Charge;
use super::counters::Counter;
use super::error::ChargeError;
use super::handle::Group;
use crate::admission::steps;
use crate::counter::object;
use crate::hierarchy::group_tree;
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
    /// What memory and each counter that shares its stock hold beside that.
    common: Option<(Charge, SmallVec<[Counter; COMMON]>)>,
}

impl ChargeSet {
    /// Returns the bytes held of a counter.
    pub fn bytes(&self, counter: Counter) -> u64 {
        let own: u64 = self.each.iter().filter(|(of, _)| *of == counter).map(|(_, charge)| charge.bytes()).sum();
        let common = self.common.as_ref().filter(|(_, members)| members.contains(&counter));
        own + common.map_or(0, |(charge, _)| charge.bytes())
    }

    /// Returns the charges one by one, in the order in which the caller asked for them. Those of counters that share a
    /// stock come first.
    pub fn into_charges(self) -> impl Iterator<Item = (Counter, Charge)> {
        let ChargeSet { mut each, common } = self;
        let mut charges = SmallVec::<[(Counter, Charge); COMMON]>::new();
        if let Some((common, members)) = common {
            let (group, bytes) = (common.header().counter().first(), common.bytes());
            for counter in members {
                let member = group.group().nth(counter.number()).map_or(common.header(), |member| member.header);
                let mut charge = Charge::new(member, bytes);
                if let Some(at) = each.iter().position(|(of, _)| *of == counter) {
                    // Both are of one counter.
                    let _ = charge.merge(each.remove(at).1);
                }
                charges.push((counter, charge));
            }
            // Its bytes are those of the charges above now.
            common.forget();
        }
        charges.extend(each);
        charges.into_iter()
    }
}

impl Group {
    /// Charges bytes to several counters, the last one first: to all or to none. It may block: in async code call it on
    /// a thread for blocking work.
    ///
    /// What memory and all counters that [share its stock](crate::RuntimeBuilder::shared_counter) are charged alike is
    /// one charge, and costs what one costs.
    ///
    /// # Errors
    ///
    /// [`ChargeError::Limit`] names the counter and the group that was full. [`ChargeError::UnknownCounter`] names a
    /// counter that this runtime does not have.
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// let swap = builder.counter("swap");
    /// # let runtime = builder.build()?;
    /// let root = runtime.root();
    /// root.counter(swap)?.set_max(10)?;
    /// let refused = root.try_charge_set(&[(memcg::Counter::MEMORY, 5), (swap, 11)]).unwrap_err();
    /// assert_eq!(refused.to_string(), "/ refused 11 B of swap for /: 0 B live of max 10 B, at most 0 B stocked");
    /// assert_eq!(root.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_charge_set(&self, amounts: &[(Counter, u64)]) -> Result<ChargeSet, ChargeError> {
        let front = group_tree::of(self.first()).front(self.first());
        let common = front.map_or(0, |front| common(front, amounts));
        let mut each = SmallVec::with_capacity(if common > 0 { 0 } else { amounts.len() });
        for &(counter, bytes) in amounts.iter().rev() {
            let of = self.find_counter(counter)?;
            let bytes = if of.front().is_some() { bytes - common } else { bytes };
            if bytes > 0 || common == 0 {
                each.push((counter, Charge::attempt(of.header, bytes)?));
            }
        }
        each.reverse();
        let mut set = ChargeSet { each, common: None };
        if let Some(front) = front.filter(|_| common > 0) {
            self.charge_common(front, common, amounts, &mut set)?;
        }
        Ok(set)
    }

    #[inline]
    fn charge_common(
        &self,
        front: &'static object::Counter,
        bytes: u64,
        amounts: &[(Counter, u64)],
        set: &mut ChargeSet,
    ) -> Result<(), ChargeError> {
        let shares = |counter: Counter| self.find_counter(counter).is_ok_and(|of| of.front().is_some());
        let members = || amounts.iter().map(|(counter, _)| *counter).filter(|&counter| shares(counter));
        match front.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => match steps::charge_front(front, bytes, missed) {
                Some(charged) => throttle::sleep_after(self.first(), charged),
                None => return self.charge_members(members().collect(), bytes, set),
            },
        }
        set.common = Some((Charge::new(front.header, bytes), members().collect()));
        Ok(())
    }

    /// Charges the members of a front one by one, the last one first. The set has them back where one refuses.
    #[cold]
    fn charge_members(
        &self,
        members: SmallVec<[Counter; COMMON]>,
        bytes: u64,
        set: &mut ChargeSet,
    ) -> Result<(), ChargeError> {
        for &counter in members.iter().rev() {
            let charge = Charge::attempt(self.find_counter(counter)?.header, bytes)?;
            match set.each.iter_mut().find(|(of, _)| *of == counter) {
                Some((_, own)) => drop(own.merge(charge)),
                None => set.each.insert(0, (counter, charge)),
            }
        }
        Ok(())
    }
}

/// What the amounts of all members of a front have in common. 0 where one of them is missing, or there twice.
fn common(front: &'static object::Counter, amounts: &[(Counter, u64)]) -> u64 {
    let mut common = u64::MAX;
    for member in front.charged() {
        let mut of = amounts.iter().filter(|(counter, _)| counter.number() == member.number_in_group());
        common = match (of.next(), of.next()) {
            (Some((_, bytes)), None) => common.min(*bytes),
            _ => return 0,
        };
    }
    common
}
