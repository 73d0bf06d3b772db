//! Counters that are charged together, as the kernel's memory and memory+swap.
//!
//! Each counter of a set has its own tree and its own limits. With [`SetStock::Independent`] each has its own stock as
//! well; with [`SetStock::Shared`] one slot serves them all: a unit of its credit is a unit at every counter of the
//! set, so a hit costs the same for one counter and for four, and no counter of the set can read lower than an earlier
//! one.

use crate::counter::config::CounterConfig;
use crate::counter::join;
use crate::counter::object::Counter;
use crate::counter::retire;
use crate::counter::slow_path::slow_path;
use crate::counter::tree::Tree;
use crate::counter::verify::Verdict;
use crate::error::SetRefused;
use crate::page_counter::PageCounter;
use crate::sync::{Arc, model_failed};
use crate::thread::directory::Header;
use crate::thread::slot::{Consume, Put};

/// How the counters of a set keep credit.
///
/// ```
/// use memcg::{CounterConfig, CounterSet, SetRefused, SetStock};
///
/// let credit = |stock| {
///     let fixed = CounterConfig::new().batch(64).adaptive(false);
///     let set = CounterSet::root(vec![fixed.clone(), fixed], stock);
///     set.try_charge(10)?;
///     Ok::<u64, SetRefused>(set.drain())
/// };
/// assert_eq!(credit(SetStock::Independent)?, 54 + 54);
/// assert_eq!(credit(SetStock::Shared)?, 54);
/// # Ok::<(), SetRefused>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetStock {
    /// Each counter has a stock of its own. A later counter may read lower than an earlier one by at most the bound on
    /// stocked credit, and a refusal may leave a peak at the counters charged before.
    Independent,
    /// One stock for all. Equal amounts hit it; what one counter is charged beyond the others walks its tree.
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
/// assert_eq!(refused.counter, 1, "full in both, and the last is charged first");
/// job.uncharge_each(&[10, 15]);
/// # Ok::<(), memcg::SetRefused>(())
/// ```
#[derive(Clone)]
pub struct CounterSet {
    stock: SetStock,
    front: Option<Front>,
    counters: Arc<[PageCounter]>,
}

/// The one stock of a set.
#[derive(Clone)]
struct Front {
    header: &'static Header,
    keep: Arc<KeepFront>,
}

/// Keeps the front in its tree. Dropped before the counters whose credit it holds.
struct KeepFront {
    node: &'static Counter,
}

impl Drop for KeepFront {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        slow_path(|_, _| retire::retire(self.node));
    }
}

impl CounterSet {
    /// One root for each configuration. Barrier, audit, adaptivity and pressure hook are those of the first; batch, max
    /// and budget each counter's own, the batch of a shared stock the first one's.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let configs = [1_000, 1_500].map(|max| CounterConfig::new().max(max)).to_vec();
    /// let machine = CounterSet::root(configs, SetStock::Shared);
    /// assert_eq!(machine.try_charge(1_001).unwrap_err().counter, 0);
    /// assert_eq!(machine.try_charge(1_501).unwrap_err().counter, 1);
    /// ```
    pub fn root(configs: Vec<CounterConfig>, stock: SetStock) -> CounterSet {
        let Some(first) = configs.first() else {
            return CounterSet { stock, front: None, counters: Arc::from([]) };
        };
        slow_path(|_, _| {
            let tree = Tree::new(first.clone());
            let own = stock == SetStock::Independent;
            let counters = configs.iter().map(|config| PageCounter::keep_root(join::root(&tree, config, own)));
            CounterSet::new(&tree, stock, counters.collect())
        })
    }

    /// A set below this one, counter for counter, with the same stock and without limits.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, PageCounter, SetStock};
    ///
    /// let machine = CounterSet::root(vec![CounterConfig::new(); 2], SetStock::Shared);
    /// let job = machine.child();
    /// let parent = job.counter(1).and_then(PageCounter::parent);
    /// assert_eq!(parent.as_ref(), machine.counter(1));
    /// ```
    pub fn child(&self) -> CounterSet {
        let Some(first) = self.counters.first() else { return self.clone() };
        slow_path(|_, _| {
            let own = self.stock == SetStock::Independent;
            let counters = self.counters.iter().map(|parent| parent.child_with_stock(own));
            CounterSet::new(&first.node().incarnation().tree.counted(), self.stock, counters.collect())
        })
    }

    fn new(tree: &Arc<Tree>, stock: SetStock, counters: Arc<[PageCounter]>) -> CounterSet {
        let front = (stock == SetStock::Shared).then(|| {
            let members = counters.iter().map(PageCounter::node).collect();
            let node = join::front(tree, members, counters[0].batch());
            Front { header: node.header, keep: Arc::new(KeepFront { node }) }
        });
        CounterSet { stock, front, counters }
    }

    /// How the set keeps credit.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let machine = CounterSet::root(vec![CounterConfig::new(); 2], SetStock::Shared);
    /// assert_eq!(machine.child().stock(), SetStock::Shared);
    /// ```
    pub fn stock(&self) -> SetStock {
        self.stock
    }

    /// A counter of the set, for its limits and figures. Charged directly it is charged alone.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let machine = CounterSet::root(vec![CounterConfig::new().batch(0); 2], SetStock::Independent);
    /// let [memory, memsw] = [0, 1].map(|index| machine.counter(index).unwrap());
    /// machine.try_charge(10)?;
    /// memory.uncharge(4); // swapped out
    /// assert_eq!((memory.usage(), memsw.usage()), (6, 10));
    /// assert_eq!(machine.counter(2), None);
    /// # Ok::<(), memcg::SetRefused>(())
    /// ```
    pub fn counter(&self, index: usize) -> Option<&PageCounter> {
        self.counters.get(index)
    }

    /// Counters in the set.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let machine = CounterSet::root(vec![CounterConfig::new(); 3], SetStock::Shared);
    /// assert_eq!(machine.child().len(), 3);
    /// ```
    pub fn len(&self) -> usize {
        self.counters.len()
    }

    /// Whether the set has no counters; charging it does nothing.
    ///
    /// ```
    /// use memcg::{CounterSet, SetStock};
    ///
    /// let unmetered = CounterSet::root(vec![], SetStock::Shared);
    /// assert!(unmetered.is_empty());
    /// assert_eq!(unmetered.try_charge(u64::MAX), Ok(()));
    /// ```
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// Charge `n` units to every counter of the set, or to none. May block: in the pressure hook, if there is one.
    ///
    /// Exact as [`PageCounter::try_charge`] at each counter, last counter first. From a shared stock one hit pays for
    /// all; independent counters are charged one by one, and a refusal gives back what the later ones were charged.
    ///
    /// # Errors
    ///
    /// [`SetRefused`] names the counter and its level that was full.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let [memory, memsw] = [1_000, 1_500].map(|max| CounterConfig::new().max(max));
    /// let job = CounterSet::root(vec![memory, memsw], SetStock::Shared).child();
    /// job.try_charge(900)?;
    /// assert_eq!(job.try_charge(101).unwrap_err().counter, 0);
    /// assert_eq!([0, 1].map(|index| job.counter(index).unwrap().usage()), [900, 900]);
    /// # Ok::<(), memcg::SetRefused>(())
    /// ```
    #[inline]
    pub fn try_charge(&self, n: u64) -> Result<(), SetRefused> {
        let Some(front) = &self.front else { return self.try_charge_independent(|_| n, || Ok(())) };
        match front.header.consume(n) {
            Consume::Hit => Ok(()),
            missed => self.try_charge_shared_slow(front, n, missed),
        }
    }

    /// Give `n` units back at every counter of the set, on whatever thread. Never fails; too much is clamped and
    /// counted at each counter, as in [`PageCounter::uncharge`].
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let job = CounterSet::root(vec![CounterConfig::new().max(100); 2], SetStock::Independent);
    /// job.try_charge(100)?;
    /// job.uncharge(100);
    /// job.try_charge(100)?;
    /// # Ok::<(), memcg::SetRefused>(())
    /// ```
    #[inline]
    pub fn uncharge(&self, n: u64) {
        let Some(front) = &self.front else {
            // First counter first: a later one never reads lower for it.
            return self.counters.iter().for_each(|counter| counter.uncharge(n));
        };
        match front.header.put(n) {
            Put::Kept => {}
            missed => front.header.uncharge_slow(n, missed),
        }
    }

    /// Charge each counter its own amount, missing ones 0, or none anything. May block: in the pressure hook, if any.
    ///
    /// Exact as [`try_charge`](Self::try_charge). What all amounts have in common is paid from a shared stock, the rest
    /// by each counter.
    ///
    /// # Errors
    ///
    /// [`SetRefused`] names the counter and its level that was full.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let [memory, files] = [1_000, 3].map(|max| CounterConfig::new().max(max));
    /// let query = CounterSet::root(vec![memory, files], SetStock::Independent).child();
    /// query.try_charge_each(&[400, 1])?;
    /// assert_eq!(query.try_charge_each(&[400, 3]).unwrap_err().counter, 1);
    /// assert_eq!(query.counter(0).unwrap().usage(), 400);
    /// # Ok::<(), memcg::SetRefused>(())
    /// ```
    pub fn try_charge_each(&self, amounts: &[u64]) -> Result<(), SetRefused> {
        let amount = |index: usize| amounts.get(index).copied().unwrap_or(0);
        let common = self.common(amounts);
        self.try_charge_independent(
            |index| amount(index) - common,
            || if common > 0 { self.try_charge(common) } else { Ok(()) },
        )
    }

    /// Give each counter's own amount back, missing ones 0. Never fails.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let job = CounterSet::root(vec![CounterConfig::new().batch(0); 2], SetStock::Shared);
    /// job.try_charge_each(&[10, 15])?;
    /// job.uncharge_each(&[0, 15]);
    /// assert_eq!([0, 1].map(|index| job.counter(index).unwrap().usage()), [10, 0]);
    /// # Ok::<(), memcg::SetRefused>(())
    /// ```
    pub fn uncharge_each(&self, amounts: &[u64]) {
        let common = self.common(amounts);
        for (counter, amount) in self.counters.iter().zip(amounts) {
            counter.uncharge(amount - common);
        }
        if self.front.is_some() {
            self.uncharge(common);
        }
    }

    /// What all amounts have in common goes through the shared stock.
    fn common(&self, amounts: &[u64]) -> u64 {
        if self.front.is_none() || amounts.len() < self.counters.len() {
            return 0;
        }
        amounts.iter().take(self.counters.len()).copied().min().unwrap_or(0)
    }

    /// Take back all credit of the set and of all sets below it. Returns the units, those of a shared stock once.
    ///
    /// Complete when nobody charges meanwhile; costs a [`PageCounter::drain`] for each counter.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let fixed = CounterConfig::new().batch(64).adaptive(false);
    /// let machine = CounterSet::root(vec![fixed.clone(), fixed], SetStock::Shared);
    /// machine.child().try_charge(10)?;
    /// machine.drain();
    /// assert_eq!(machine.counter(1).unwrap().stocked(), 0);
    /// # Ok::<(), memcg::SetRefused>(())
    /// ```
    pub fn drain(&self) -> u64 {
        self.counters.iter().map(PageCounter::drain).sum()
    }

    /// [`PageCounter::verify`] for each counter of the set.
    ///
    /// ```
    /// use memcg::{CounterConfig, CounterSet, SetStock};
    ///
    /// let machine = CounterSet::root(vec![CounterConfig::new().audit(true); 2], SetStock::Shared);
    /// let job = machine.child();
    /// job.try_charge(10)?;
    /// assert_eq!(machine.verify().to_string(), "4 counters verified against the audited count: all add up");
    /// # Ok::<(), memcg::SetRefused>(())
    /// ```
    pub fn verify(&self) -> Verdict {
        let verdicts = self.counters.iter().map(PageCounter::verify);
        verdicts.reduce(Verdict::merge).unwrap_or_default()
    }

    #[cold]
    #[inline(never)]
    fn try_charge_shared_slow(&self, front: &Front, n: u64, missed: Consume) -> Result<(), SetRefused> {
        front.keep.node.try_charge_slow(n, missed).map_err(|refusal| {
            // The level that refused is above exactly one of the counters, which is who asked.
            let below =
                |counter: &PageCounter| counter.node().path_to_root().any(|level| std::ptr::eq(level, refusal.level));
            let counter = self.counters.iter().position(below).unwrap_or(0);
            SetRefused { counter, refused: refusal.refused(self.counters[counter].node(), n) }
        })
    }

    /// Each counter its own amount, the last counter first, and what comes `then`; or nothing.
    #[inline]
    fn try_charge_independent(
        &self,
        amount: impl Fn(usize) -> u64 + Copy,
        then: impl FnOnce() -> Result<(), SetRefused>,
    ) -> Result<(), SetRefused> {
        let mut charged = Charged { counters: &self.counters, from: self.counters.len(), amount };
        for (index, counter) in self.counters.iter().enumerate().rev() {
            if let Err(refused) = counter.try_charge(amount(index)) {
                return Err(SetRefused { counter: index, refused });
            }
            charged.from = index;
        }
        then()?;
        std::mem::forget(charged);
        Ok(())
    }
}

/// Counters of a set that a charge has passed. Dropped on a refusal, or by a pressure hook that panics: they get it
/// back.
struct Charged<'a, A: Fn(usize) -> u64> {
    counters: &'a [PageCounter],
    from: usize,
    amount: A,
}

impl<A: Fn(usize) -> u64> Drop for Charged<'_, A> {
    #[cold]
    fn drop(&mut self) {
        for (index, counter) in self.counters.iter().enumerate().skip(self.from) {
            counter.uncharge((self.amount)(index));
        }
    }
}
