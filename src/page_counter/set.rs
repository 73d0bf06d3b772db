//! Counters that one call charges together, as the kernel's memory and memory+swap.
//!
//! Each counter of a set has its own tree and its own limits. With [`SetStock::Independent`] each has its own stock as
//! well. With [`SetStock::Shared`] one slot serves them all: a unit of its credit is a unit at every counter of the
//! set. So a hit costs the same for one counter and for four, and no counter of the set can read lower than an earlier
//! one.

use crate::counter::config::CounterConfig;
use crate::counter::join;
use crate::counter::object::tree::Tree;
use crate::counter::slow_path::SlowPath;
use crate::counter::verify::Verdict;
use crate::error::SetChargeError;
use crate::page_counter::handle::PageCounter;
use crate::sync::Arc;
use crate::thread::slot::Consume;

/// How the counters of a set keep credit.
///
/// ```
/// # use memcg::expert::FixedBatch as _;
/// use memcg::{CounterConfig, CounterSet, SetChargeError, SetStock};
///
/// let credit = |stock| {
///     let fixed = CounterConfig::new().batch(64).adaptive(false);
///     let set = CounterSet::root(vec![fixed.clone(), fixed], stock);
///     set.try_charge(10)?;
///     Ok::<u64, SetChargeError>(set.drain())
/// };
/// assert_eq!(credit(SetStock::Independent)?, 54 + 54);
/// assert_eq!(credit(SetStock::Shared)?, 54);
/// # Ok::<(), SetChargeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetStock {
    /// Each counter has a stock of its own. A later counter may read lower than an earlier one by at most the bound on
    /// stocked credit. A refusal may leave a peak at the counters charged before.
    Independent,
    /// All counters share one stock. Equal amounts hit it. What one counter gets beyond them walks its tree.
    Shared,
}

/// Several counters that are charged and refused as one.
///
/// ```
/// use memcg::{CounterConfig, CounterSet, SetStock};
///
/// let memory = CounterConfig::new().max(1_000);
/// let memsw = CounterConfig::new().max(1_500);
/// let machine = CounterSet::root(vec![memory, memsw], SetStock::Shared);
/// let job = machine.child();
/// job.try_charge(10)?;
/// job.try_charge_each(&[0, 5])?;
/// let refused = job.try_charge(1_490).unwrap_err();
/// assert_eq!(refused.counter(), 1, "full in both, and the last is charged first");
/// job.uncharge_each(&[10, 15]);
/// # Ok::<(), memcg::SetChargeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CounterSet {
    stock: SetStock,
    /// The one stock of a shared set. It drops before the counters whose credit it holds.
    front: Option<PageCounter>,
    counters: Arc<[PageCounter]>,
}

impl CounterSet {
    /// Creates one root for each configuration. Each counter has the batch, max and budget of its own configuration.
    /// Barrier, audit, adaptivity and pressure hook are those of the first, and so is the batch of a shared stock. The
    /// counters of a set have no nodes and no statistics, whatever the configurations declare.
    ///
    /// ```
    /// # use memcg::{CounterConfig, CounterSet, SetStock};
    /// let configs = [1_000, 1_500].map(|max| CounterConfig::new().max(max)).to_vec();
    /// let machine = CounterSet::root(configs, SetStock::Shared);
    /// assert_eq!(machine.try_charge(1_001).unwrap_err().counter(), 0);
    /// assert_eq!(machine.try_charge(1_501).unwrap_err().counter(), 1);
    /// ```
    pub fn root(configs: Vec<CounterConfig>, stock: SetStock) -> CounterSet {
        let Some(first) = configs.first() else {
            return CounterSet { stock, front: None, counters: Arc::from([]) };
        };
        let _path = SlowPath::enter();
        let tree = join::bare_tree(CounterConfig { extension: None, ..first.clone() });
        let own = stock == SetStock::Independent;
        let counters = configs.iter().map(|config| PageCounter::of_set(join::root(&tree, config, own)));
        CounterSet::new(&tree, stock, counters.collect())
    }

    /// Creates a set below this one, counter for counter, with the same stock and without limits.
    ///
    /// ```
    /// # use memcg::{CounterConfig, CounterSet, PageCounter, SetStock};
    /// let machine = CounterSet::root(vec![CounterConfig::new(); 2], SetStock::Shared);
    /// let job = machine.child();
    /// assert_eq!((job.len(), job.stock()), (2, SetStock::Shared));
    /// let parent = job.counter(1).and_then(PageCounter::parent);
    /// assert_eq!(parent.as_ref(), machine.counter(1));
    /// ```
    pub fn child(&self) -> CounterSet {
        let Some(first) = self.counters.first() else { return self.clone() };
        let _path = SlowPath::enter();
        let own = self.stock == SetStock::Independent;
        let counters = self.counters.iter().map(|parent| parent.child_with("", own));
        CounterSet::new(&first.counter().incarnation().tree.counted(), self.stock, counters.collect())
    }

    fn new(tree: &Arc<Tree>, stock: SetStock, counters: Arc<[PageCounter]>) -> CounterSet {
        let front = (stock == SetStock::Shared).then(|| {
            let members = counters.iter().map(PageCounter::counter).collect();
            PageCounter::of_set(join::front(tree, members, counters[0].batch()))
        });
        CounterSet { stock, front, counters }
    }

    /// Returns how the set keeps credit.
    pub fn stock(&self) -> SetStock {
        self.stock
    }

    /// Returns a counter of the set, for its limits and figures. A charge to that counter charges it alone.
    ///
    /// ```
    /// # use memcg::{CounterConfig, CounterSet, SetStock};
    /// let machine = CounterSet::root(vec![CounterConfig::new().batch(0); 2], SetStock::Independent);
    /// let [memory, memsw] = [0, 1].map(|index| machine.counter(index).unwrap());
    /// machine.try_charge(10)?;
    /// memory.uncharge(4); // swapped out
    /// assert_eq!((memory.usage(), memsw.usage()), (6, 10));
    /// assert_eq!(machine.counter(2), None);
    /// # Ok::<(), memcg::SetChargeError>(())
    /// ```
    pub fn counter(&self, index: usize) -> Option<&PageCounter> {
        self.counters.get(index)
    }

    /// Returns the number of counters in the set.
    pub fn len(&self) -> usize {
        self.counters.len()
    }

    /// Returns whether the set has no counters. To charge such a set does nothing.
    ///
    /// ```
    /// # use memcg::{CounterSet, SetStock};
    /// let unmetered = CounterSet::root(vec![], SetStock::Shared);
    /// assert!(unmetered.is_empty());
    /// assert_eq!(unmetered.try_charge(u64::MAX), Ok(()));
    /// ```
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// Charges `n` units to every counter of the set, or to none. It may block in the pressure hook, if there is one.
    ///
    /// The last counter comes first. From a shared stock one hit pays for all. Independent counters are charged one by
    /// one, and a refusal gives back what the later ones were charged. A charge is exact as [`PageCounter::try_charge`]
    /// at each counter.
    ///
    /// # Errors
    ///
    /// [`SetChargeError`] names the counter and its level that was full.
    ///
    /// ```
    /// # use memcg::{CounterConfig, CounterSet, SetStock};
    /// let [memory, memsw] = [1_000, 1_500].map(|max| CounterConfig::new().max(max));
    /// let job = CounterSet::root(vec![memory, memsw], SetStock::Shared).child();
    /// job.try_charge(900)?;
    /// assert_eq!(job.try_charge(101).unwrap_err().counter(), 0);
    /// assert_eq!([0, 1].map(|index| job.counter(index).unwrap().usage()), [900, 900]);
    /// # Ok::<(), memcg::SetChargeError>(())
    /// ```
    #[inline]
    pub fn try_charge(&self, n: u64) -> Result<(), SetChargeError> {
        let Some(front) = &self.front else { return self.try_charge_independent(|_| n, || Ok(())) };
        match front.header().consume(n) {
            Consume::Hit => Ok(()),
            missed => self.try_charge_shared_slow(front, n, missed),
        }
    }

    /// Gives `n` units back at every counter of the set, on whatever thread. It never fails. Each counter clamps and
    /// counts what is too much, as in [`PageCounter::uncharge`].
    ///
    /// ```
    /// # use memcg::{CounterConfig, CounterSet, SetStock};
    /// let job = CounterSet::root(vec![CounterConfig::new().max(100); 2], SetStock::Independent);
    /// job.try_charge(100)?;
    /// job.uncharge(100);
    /// job.try_charge(100)?;
    /// # Ok::<(), memcg::SetChargeError>(())
    /// ```
    #[inline]
    pub fn uncharge(&self, n: u64) {
        match &self.front {
            Some(front) => front.uncharge(n),
            // The first counter comes first, so that a later one never reads lower than an earlier one.
            None => self.counters.iter().for_each(|counter| counter.uncharge(n)),
        }
    }

    /// Charges each counter its own amount, or charges none of them. Missing amounts are 0. It may block in the
    /// pressure hook, if there is one.
    ///
    /// A shared stock pays what all amounts have in common, and each counter pays the rest. A charge is exact as
    /// [`try_charge`](Self::try_charge).
    ///
    /// # Errors
    ///
    /// [`SetChargeError`] names the counter and its level that was full.
    ///
    /// ```
    /// # use memcg::{CounterConfig, CounterSet, SetStock};
    /// let [memory, files] = [1_000, 3].map(|max| CounterConfig::new().max(max));
    /// let query = CounterSet::root(vec![memory, files], SetStock::Independent).child();
    /// query.try_charge_each(&[400, 1])?;
    /// assert_eq!(query.try_charge_each(&[400, 3]).unwrap_err().counter(), 1);
    /// assert_eq!(query.counter(0).unwrap().usage(), 400);
    /// # Ok::<(), memcg::SetChargeError>(())
    /// ```
    pub fn try_charge_each(&self, amounts: &[u64]) -> Result<(), SetChargeError> {
        let amount = |index: usize| amounts.get(index).copied().unwrap_or(0);
        let common = self.common(amounts);
        self.try_charge_independent(
            |index| amount(index) - common,
            || if common > 0 { self.try_charge(common) } else { Ok(()) },
        )
    }

    /// Gives each counter's own amount back. Missing amounts are 0. It never fails.
    ///
    /// ```
    /// # use memcg::{CounterConfig, CounterSet, SetStock};
    /// let job = CounterSet::root(vec![CounterConfig::new().batch(0); 2], SetStock::Shared);
    /// job.try_charge_each(&[10, 15])?;
    /// job.uncharge_each(&[0, 15]);
    /// assert_eq!([0, 1].map(|index| job.counter(index).unwrap().usage()), [10, 0]);
    /// # Ok::<(), memcg::SetChargeError>(())
    /// ```
    pub fn uncharge_each(&self, amounts: &[u64]) {
        let common = self.common(amounts);
        self.counters.iter().zip(amounts).for_each(|(counter, amount)| counter.uncharge(amount - common));
        if self.front.is_some() {
            self.uncharge(common);
        }
    }

    /// What all amounts have in common; that goes through the shared stock. 0 without one.
    fn common(&self, amounts: &[u64]) -> u64 {
        if self.front.is_none() || amounts.len() < self.counters.len() {
            return 0;
        }
        amounts.iter().take(self.counters.len()).copied().min().unwrap_or(0)
    }

    /// Takes back all credit of the set and of all sets below it. Returns its units, those of a shared stock once.
    ///
    /// It costs a [`PageCounter::drain`] for each counter. It is complete where no thread charges meanwhile.
    pub fn drain(&self) -> u64 {
        self.counters.iter().map(PageCounter::drain).sum()
    }

    /// Runs [`PageCounter::verify`] for each counter of the set, and merges the verdicts.
    ///
    /// ```
    /// # use memcg::{CounterConfig, CounterSet, SetStock};
    /// let machine = CounterSet::root(vec![CounterConfig::new().audit(true); 2], SetStock::Shared);
    /// let job = machine.child();
    /// job.try_charge(10)?;
    /// assert_eq!(machine.verify().to_string(), "4 counters verified against the audited count: all add up");
    /// # Ok::<(), memcg::SetChargeError>(())
    /// ```
    pub fn verify(&self) -> Verdict {
        self.counters.iter().map(PageCounter::verify).reduce(Verdict::merge).unwrap_or_default()
    }

    #[cold]
    #[inline(never)]
    fn try_charge_shared_slow(&self, front: &PageCounter, n: u64, missed: Consume) -> Result<(), SetChargeError> {
        front.counter().try_charge_slow(n, missed).map_err(|refusal| {
            // The level that refused is on the path of exactly one of the counters: the one that did not fit.
            let below = |counter: &PageCounter| {
                counter.counter().path_to_root().any(|level| std::ptr::eq(level, refusal.level))
            };
            let counter = self.counters.iter().position(below).unwrap_or(0);
            SetChargeError { counter, refused: refusal.refused(self.counters[counter].counter(), n) }
        })
    }

    /// Charges each counter its own amount, the last counter first, and then runs `then`. If any refuses, nothing stays
    /// charged.
    #[inline]
    fn try_charge_independent(
        &self,
        amount: impl Fn(usize) -> u64 + Copy,
        then: impl FnOnce() -> Result<(), SetChargeError>,
    ) -> Result<(), SetChargeError> {
        let mut charged = ChargedMembers { counters: &self.counters, from: self.counters.len(), amount };
        for (index, counter) in self.counters.iter().enumerate().rev() {
            if let Err(refused) = counter.try_charge(amount(index)) {
                return Err(SetChargeError { counter: index, refused });
            }
            charged.from = index;
        }
        then()?;
        std::mem::forget(charged);
        Ok(())
    }
}

/// Counters that a charge has passed. A refusal or a panic of the pressure hook drops this, which uncharges them.
struct ChargedMembers<'a, A: Fn(usize) -> u64> {
    counters: &'a [PageCounter],
    from: usize,
    amount: A,
}

impl<A: Fn(usize) -> u64> Drop for ChargedMembers<'_, A> {
    #[cold]
    fn drop(&mut self) {
        for (index, counter) in self.counters.iter().enumerate().skip(self.from) {
            counter.uncharge((self.amount)(index));
        }
    }
}
