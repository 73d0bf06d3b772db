//! Charges to counters of a group: a charge for each, made as one.

use std::ops::{Deref, DerefMut};
use std::{array, mem};

use smallvec::SmallVec;

use super::charge::{Charge, charge_and_sleep_slow, try_charge_slow};
use super::counter::CounterKey;
use super::error::ChargeError;
use super::handle::Group;
use crate::counter::look_ahead;
use crate::counter::object::{Counter, HeaderRef};
use crate::sync::Ordering;
use crate::thread::slot::Consume;
use crate::units::IntoBytes;

/// Counters of a group and an amount for each: the argument of [`Group::charge_set`] and
/// [`Group::try_charge_set`]. It is an array, or a slice if the number of counters is known only at
/// run time.
///
/// The trait is sealed: no other crate implements it.
pub trait Amounts: Sealed {
    /// What the call returns: a charge for each amount, in their order. An array for an array, and
    /// [`Charges`] for a slice.
    type Charges;

    #[doc(hidden)]
    fn charge_to(&self, group: &Group, verb: SetVerb) -> Result<Self::Charges, ChargeError>;
}

mod sealed {
    pub trait Sealed {}

    /// How each charge of a set is made.
    #[derive(Clone, Copy, Debug)]
    pub enum SetVerb {
        Charge,
        TryCharge,
    }
}
use sealed::{Sealed, SetVerb};

impl<const N: usize, A> Sealed for [(CounterKey, A); N] {}

impl<const N: usize, A: IntoBytes + Copy> Amounts for [(CounterKey, A); N] {
    type Charges = [Charge; N];

    #[inline(always)]
    fn charge_to(&self, group: &Group, verb: SetVerb) -> Result<[Charge; N], ChargeError> {
        let amounts = self.map(|(counter, amount)| (counter, amount.into_bytes().0));
        let mut headers = [group.header; N];
        group.charge_each(&amounts, &mut headers, |missed| {
            // A copy, so that none of the amounts goes through memory unless a charge misses.
            let copied = amounts;
            group.charge_rest_slow(&copied, missed, verb)
        })?;
        // Charges are made of numbers here, and not kept while others are made: then none of them
        // goes through memory.
        Ok(array::from_fn(|at| Charge::new(headers[at], amounts[at].1)))
    }
}

impl<A> Sealed for [(CounterKey, A)] {}

impl<A: IntoBytes + Copy> Amounts for [(CounterKey, A)] {
    type Charges = Charges;

    #[inline]
    fn charge_to(&self, group: &Group, verb: SetVerb) -> Result<Charges, ChargeError> {
        let amounts: SmallVec<[(CounterKey, u64); ON_STACK]> = self
            .iter()
            .map(|&(counter, amount)| (counter, amount.into_bytes().0))
            .collect();
        let mut headers: SmallVec<[HeaderRef; ON_STACK]> =
            SmallVec::from_elem(group.header, amounts.len());
        // Room for the charges, too, before the first is made: from then on nothing allocates.
        let mut charges = SmallVec::with_capacity(amounts.len());
        group.charge_each(&amounts, &mut headers, |missed| {
            group.charge_rest_slow(&amounts, missed, verb)
        })?;
        charges.extend(
            headers
                .iter()
                .zip(&amounts)
                .map(|(&header, &(_, bytes))| Charge::new(header, bytes)),
        );
        Ok(Charges(charges))
    }
}

/// Charges of a slice that need no memory of the heap.
const ON_STACK: usize = 4;

/// The charges of a set whose length is known only at run time, in the order of the amounts: what
/// [`Group::charge_set`] and [`Group::try_charge_set`] return for a slice. Up to four lie in the
/// value itself, more of them on the heap. The drop gives all of them back.
///
/// It is a slice of [`Charge`]s, which grow, shrink and are read one by one, and it iterates by
/// value.
///
/// ```
/// # let mut builder = memcg::Runtime::builder();
/// let engines: Vec<_> = ["sort", "join"].iter().map(|name| builder.counter(name, memcg::Unit::Bytes)).collect();
/// let runtime = builder.build()?;
/// let root = runtime.root();
/// let amounts: Vec<_> = engines.iter().map(|&engine| (engine, 64usize)).collect();
/// let mut charges = root.try_charge_set(amounts.as_slice())?;
/// charges[0].try_grow(36)?;
/// assert_eq!(charges.iter().map(memcg::Charge::bytes).collect::<Vec<_>>(), [100, 64]);
/// let [sort, join]: [memcg::Charge; 2] = charges.into_iter().collect::<Vec<_>>().try_into().unwrap();
/// drop(sort);
/// assert_eq!((root.counter(engines[0])?.live(), join.bytes()), (0, 64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped at once it gives all charges back at once"]
pub struct Charges(SmallVec<[Charge; ON_STACK]>);

impl Deref for Charges {
    type Target = [Charge];

    fn deref(&self) -> &[Charge] {
        &self.0
    }
}

impl DerefMut for Charges {
    fn deref_mut(&mut self) -> &mut [Charge] {
        &mut self.0
    }
}

/// An iterator over the charges of a set, by value: see [`Charges`]. Its drop gives back those that
/// are left.
#[derive(Debug)]
pub struct ChargesIter(smallvec::IntoIter<[Charge; ON_STACK]>);

impl Iterator for ChargesIter {
    type Item = Charge;

    fn next(&mut self) -> Option<Charge> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for ChargesIter {}

impl IntoIterator for Charges {
    type Item = Charge;
    type IntoIter = ChargesIter;

    fn into_iter(self) -> ChargesIter {
        ChargesIter(self.0.into_iter())
    }
}

/// # Charges to counters beside memory
impl Group {
    /// Charges one counter or several: all of them, or none. They are charged from the last to the
    /// first. It may block if memory is among them: in async code call it on a thread for blocking
    /// work.
    ///
    /// Returns a charge for each counter, in the order of the amounts: an array for an array, and
    /// [`Charges`] for a slice. Each is a charge of its own, which the caller may drop, grow or
    /// keep apart from the others. Each amount is in the unit of its counter, and all are of one
    /// type. A counter may be named twice, for two charges; an empty set charges nothing. Memory
    /// asks reclaimers and waits as [`charge`](Self::charge) does. A counter beside memory refuses
    /// at once an amount that does not fit ([`CounterKey`]). If one counter refuses, those that
    /// were charged before it are uncharged again. If a counter of the set has refused lately, the
    /// one that lacks room is charged first, so that its refusal leaves the others untouched. If
    /// several lack room, that is the one which has refused most often, and the error names it.
    ///
    /// Each counter has a stock of its own, so a set costs what its charges cost, and a few loads
    /// to find each counter. A slice of more than four amounts allocates, before the first is
    /// charged.
    ///
    /// # Errors
    ///
    /// [`ChargeErrorKind::OverLimit`](crate::ChargeErrorKind::OverLimit): the refusal names the
    /// counter and the group that was full.
    /// [`ChargeErrorKind::OtherRuntime`](crate::ChargeErrorKind::OtherRuntime) for a counter that
    /// this runtime does not have.
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// let swap = builder.counter("swap", memcg::Unit::Bytes);
    /// # let runtime = builder.build()?;
    /// let root = runtime.root();
    /// root.counter(swap)?.set_max(10)?;
    /// let refused = root.charge_set(&[(memcg::CounterKey::MEMORY, 5), (swap, 11)]).unwrap_err();
    /// let line = "/ refused 11 B of swap for /: short by 1 B, max 10 B; \
    ///             neither waiting nor reclaim can help; to fit, raise max of swap of / or charge less";
    /// assert_eq!(refused.to_string(), line);
    /// assert_eq!(root.live(), 0);
    /// let [memory, swapped] = root.charge_set(&[(memcg::CounterKey::MEMORY, 5), (swap, 10)])?;
    /// drop(memory); // it is swapped out
    /// assert_eq!((root.live(), swapped.bytes()), (0, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// One counter alone:
    ///
    /// ```
    /// use memcg::{Limits, Runtime, Unit};
    /// use std::fs::File;
    ///
    /// let mut builder = Runtime::builder();
    /// let descriptors = builder.counter("descriptors", Unit::Events);
    /// let runtime = builder.build()?;
    /// // No thread takes descriptors in advance.
    /// runtime.root().counter(descriptors)?.set_batch(0);
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// acme.counter(descriptors)?.set_max(1)?;
    /// let [charge] = acme.charge_set(&[(descriptors, 1)])?;
    /// let file = (File::open(std::env::current_exe()?)?, charge);
    /// assert_eq!(acme.counter(descriptors)?.usage(), 1);
    /// assert!(acme.charge_set(&[(descriptors, 1)]).is_err());
    /// drop(file); // closes it, then gives the descriptor back
    /// assert_eq!(acme.counter(descriptors)?.usage(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge_set<S: Amounts + ?Sized>(&self, amounts: &S) -> Result<S::Charges, ChargeError> {
        amounts.charge_to(self, SetVerb::Charge)
    }

    /// Charges one counter or several as [`charge_set`](Self::charge_set) does, each as
    /// [`try_charge`](Self::try_charge), and never blocks.
    ///
    /// A set that one counter refuses may have charged others for a moment, during which other
    /// charges may be refused. That is rare, because the counter that lacks room is charged first:
    /// it happens once after 4,096 charges that fit there, and if other threads take room or give
    /// it back at that moment.
    ///
    /// # Errors
    ///
    /// As [`charge_set`](Self::charge_set), and [`WouldBlock`](crate::ChargeErrorKind::WouldBlock)
    /// as [`try_charge`](Self::try_charge).
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// let descriptors = builder.counter("descriptors", memcg::Unit::Events);
    /// # let runtime = builder.build()?;
    /// let root = runtime.root();
    /// root.counter(descriptors)?.set_max(1)?;
    /// let [memory, descriptor] = root.try_charge_set(&[(memcg::CounterKey::MEMORY, 4096), (descriptors, 1)])?;
    /// assert!(root.try_charge_set(&[(memcg::CounterKey::MEMORY, 4096), (descriptors, 1)]).is_err());
    /// assert_eq!((root.live(), memory.bytes(), descriptor.bytes()), (4096, 4096, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge_set<S: Amounts + ?Sized>(
        &self,
        amounts: &S,
    ) -> Result<S::Charges, ChargeError> {
        amounts.charge_to(self, SetVerb::TryCharge)
    }

    /// Makes the charges of a set, and returns their headers in place of those given. `rest` makes
    /// those from the first that misses on, which it is given the place of.
    #[inline(always)]
    fn charge_each(
        &self,
        amounts: &[(CounterKey, u64)],
        headers: &mut [HeaderRef],
        rest: impl FnOnce((usize, Consume)) -> Result<(), ChargeError>,
    ) -> Result<(), ChargeError> {
        // Several keys are looked up where the first is.
        let header_of = (amounts.len() > 1).then(|| self.headers());
        for at in (0..amounts.len()).rev() {
            let (counter, bytes) = amounts[at];
            let header = match &header_of {
                Some(header_of) => header_of(counter),
                None => self.header_of(counter),
            };
            let missed = match header {
                Some(header) => {
                    headers[at] = header;
                    header.consume_open(bytes)
                }
                None => Consume::Miss,
            };
            if missed != Consume::Hit {
                rest((at, missed))?;
                for at in 0..at {
                    headers[at] = self.header_made_slow(amounts[at].0);
                }
                break;
            }
        }
        Ok(())
    }

    /// The header of a counter that has been charged: all of a set are this runtime's.
    #[cold]
    #[inline(never)]
    fn header_made_slow(&self, counter: CounterKey) -> HeaderRef {
        self.header_of(counter).unwrap_or(self.header)
    }

    /// Makes the charges of a set up to the one at `at`, which has missed. Those behind it are
    /// made; where one is refused, all of them go back.
    ///
    /// Where a level of one of the counters has refused lately, the charge that lacks room is
    /// made before the others: if it is refused, no other charge of the program meets those of a
    /// set that comes to nothing. The look decides the order alone.
    #[cold]
    #[inline(never)]
    fn charge_rest_slow(
        &self,
        amounts: &[(CounterKey, u64)],
        (at, missed): (usize, Consume),
        verb: SetVerb,
    ) -> Result<(), ChargeError> {
        let mut made = MadeCharges {
            group: self,
            amounts,
            from: at + 1,
            before: None,
        };
        let mut missed = Some(missed);
        // Looked for before anything is charged: a set that can never be made asks no reclaimer and
        // cancels nobody.
        let unknown = amounts
            .iter()
            .find(|&&(counter, _)| self.header_of(counter).is_none());
        let full = if unknown.is_none() {
            self.lacks_room(&amounts[..=at]).filter(|&full| full < at)
        } else {
            None
        };
        // The slot of the charge that has missed may be lowered for it. This charge is not the next
        // one to be made any more, so the slot is raised again.
        if (unknown.is_some() || full.is_some())
            && let Some(undone) = missed.take()
            && let Some(header) = self.header_of(amounts[at].0)
        {
            header.counter().undo_slow(amounts[at].1, undone);
        }
        if let Some(&(counter, _)) = unknown {
            return Err(self.unknown_counter_slow(counter));
        }
        // Mutation: set-begins-with-what-has-room
        if let Some(full) = full {
            self.charge_one(amounts[full], Consume::Miss, verb)?;
            made.before = Some(full);
        }
        for at in (0..=at).rev() {
            if made.before != Some(at) {
                let tried = missed.take().unwrap_or_else(|| {
                    let (counter, bytes) = amounts[at];
                    let header = self.header_of(counter);
                    header.map_or(Consume::Miss, |header| header.consume_open(bytes))
                });
                self.charge_one(amounts[at], tried, verb)?;
            }
            made.from = at;
        }
        // All are made, and none goes back.
        mem::forget(made);
        Ok(())
    }

    /// Goes on with a charge of a set that was tried.
    fn charge_one(
        &self,
        (counter, bytes): (CounterKey, u64),
        tried: Consume,
        verb: SetVerb,
    ) -> Result<(), ChargeError> {
        let header = self
            .header_of(counter)
            .ok_or_else(|| self.unknown_counter_slow(counter))?;
        if tried == Consume::Hit {
            return Ok(());
        }
        match verb {
            SetVerb::Charge => charge_and_sleep_slow(header, bytes, tried),
            SetVerb::TryCharge => try_charge_slow(header, bytes, tried),
        }
    }

    /// The place of the charge for which there is no room, where a level of one of the counters has
    /// refused lately. Of several it is the one whose levels have refused most often: another may
    /// only have its bytes elsewhere for this moment, and by the time that it is charged they are
    /// back.
    fn lacks_room(&self, amounts: &[(CounterKey, u64)]) -> Option<usize> {
        let counter = |at: usize| self.header_of(amounts[at].0);
        let is_due = |at| counter(at).is_some_and(|header| look_ahead::is_due(header.counter()));
        let is_full =
            |at| counter(at).is_some_and(|header| amounts[at].1 > header.counter().headroom());
        let refusals = |at: &usize| -> u64 {
            let of_level = |level: &Counter| level.usage.failcnt.load(Ordering::Relaxed);
            counter(*at).map_or(0, |header| {
                header.counter().path_to_root().map(of_level).sum()
            })
        };
        let mut places = 0..amounts.len();
        if amounts.len() > 1 && places.any(is_due) {
            // Of those that have refused as often, the last: it comes first in their order.
            (0..amounts.len())
                .filter(|&at| is_full(at))
                .max_by_key(refusals)
        } else {
            None
        }
    }
}

/// The charges of a set that were made already. The drop gives them back.
struct MadeCharges<'a> {
    group: &'a Group,
    amounts: &'a [(CounterKey, u64)],
    /// From here on all of them.
    from: usize,
    /// One that was made before its turn.
    before: Option<usize>,
}

impl Drop for MadeCharges<'_> {
    fn drop(&mut self) {
        // Mutation: the-first-of-a-refused-set-stays-charged
        let before = self.before.filter(|&before| before < self.from);
        for at in (self.from..self.amounts.len()).chain(before) {
            let (counter, bytes) = self.amounts[at];
            // Mutation: a-refused-set-keeps-what-it-has-made
            drop(
                self.group
                    .header_of(counter)
                    .map(|header| Charge::new(header, bytes)),
            );
        }
    }
}
