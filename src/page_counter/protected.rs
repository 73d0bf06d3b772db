//! What a counter's children need protected, and what protects it.

use crate::counter::protection::Protection;
use crate::counter::{effective, marks};
use crate::page_counter::handle::PageCounter;

/// What min and low protect, of a [`Group`](crate::Group) in bytes and of a [`PageCounter`] in its units.
///
/// ```
/// use memcg::expert::Protected;
/// use memcg::{CounterConfig, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new().batch(0));
/// let tenants = [machine.child(), machine.child()];
/// tenants.each_ref().map(|tenant| tenant.set_min(10));
/// tenants[0].charge(4);
/// tenants[1].charge(40);
/// assert_eq!((machine.children_min_usage(), tenants[1].effective_min(&machine)), (4 + 10, 10));
/// ```
pub trait Protected: Sealed {
    /// Returns the sum over the children of min(usage, min), in bytes. One load. Exact at every quiescent point.
    fn children_min_usage(&self) -> u64;

    /// Returns the sum over the children of min(usage, low), in bytes. One load. Exact at every quiescent point.
    fn children_low_usage(&self) -> u64;

    /// Returns the bytes of usage that min protects against pressure on `root`: this group's share of what the groups
    /// between have. 0 for `root` itself. The call computes it from the counters as they are, with a few loads a level.
    ///
    /// Source: `effective_protection` in `mm/page_counter.c`.
    ///
    /// ```
    /// # use memcg::expert::Protected as _;
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().min(50))?;
    /// let [a, b] = ["a", "b"].map(|name| acme.create(name, Limits::new().min(100)).unwrap());
    /// let _held = [a.try_charge(100)?, b.try_charge(100)?];
    /// assert_eq!(a.effective_min(&runtime.root()), 25, "acme has 50 for both");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn effective_min(&self, root: &Self) -> u64;

    /// Returns the bytes of usage that low protects against pressure on `root`, as
    /// [`effective_min`](Self::effective_min) does for min.
    ///
    /// ```
    /// # use memcg::expert::Protected as _;
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().low(50))?;
    /// let _held = acme.try_charge(100)?;
    /// assert_eq!((acme.effective_low(&runtime.root()), acme.effective_low(&acme)), (50, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn effective_low(&self, root: &Self) -> u64;
}

impl<K> Protected for PageCounter<K> {
    fn children_min_usage(&self) -> u64 {
        marks::children_protected(self.counter(), Protection::Min)
    }

    fn children_low_usage(&self) -> u64 {
        marks::children_protected(self.counter(), Protection::Low)
    }

    fn effective_min(&self, root: &Self) -> u64 {
        effective::protected(self.counter(), Protection::Min, root.counter())
    }

    fn effective_low(&self, root: &Self) -> u64 {
        effective::protected(self.counter(), Protection::Low, root.counter())
    }
}

/// Only types of this crate have figures to read.
pub trait Sealed {}

impl<K> Sealed for PageCounter<K> {}
