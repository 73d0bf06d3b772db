//! Counters that every group of a runtime has beside memory.

use super::{BuildError, RuntimeBuilder};
use crate::group::Counter;
use crate::hierarchy::group_tree::{CounterDecl, Members};
use crate::stat::Unit;

/// The most counters of a group, that of memory and a shared stock included. They are one object.
const COUNTERS_MAX: usize = 1_024;

/// A further counter, named by [`RuntimeBuilder::counter`]. It counts bytes, or what [`unit`](Self::unit) says. The last
/// call says which stock it has, declares it and returns its handle. [`Counter`] says what such a counter does not do
/// (reclaim, waiting, a high), and what its batch is.
///
/// ```
/// use memcg::{Counter, Runtime};
///
/// let mut builder = Runtime::builder();
/// let spill = builder.counter("spill").independent();
/// let memsw = builder.counter("memsw").shared();
/// let runtime = builder.build()?;
/// // One hit pays for memory and memsw, another one for the spill.
/// let held = runtime.root().try_charge_set(&[(Counter::MEMORY, 64), (memsw, 64), (spill, 1_000)])?;
/// assert_eq!((held.bytes(memsw), held.bytes(spill)), (64, 1_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "`independent` or `shared` declares the counter"]
pub struct NewCounter<'a> {
    builder: &'a mut RuntimeBuilder,
    name: &'a str,
    unit: Unit,
}

impl NewCounter<'_> {
    /// Says what the counter counts: bytes by default, [`Unit::Events`] for descriptors, sessions or other things. Its
    /// errors print amounts in this unit. Amounts and limits are numbers of the unit, and cost the same.
    ///
    /// ```
    /// use memcg::{Limits, Runtime, Unit};
    ///
    /// let mut builder = Runtime::builder();
    /// let descriptors = builder.counter("descriptors").unit(Unit::Events).independent();
    /// let runtime = builder.build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// acme.counter(descriptors)?.set_max(3)?;
    /// let files = acme.try_charge_counter(descriptors, 3)?;
    /// let refused = acme.try_charge_counter(descriptors, 1).unwrap_err();
    /// let line = "/acme refused 1 of descriptors for /acme: short by 1, usage 3 of max 3; \
    ///             to fit, uncharge some of descriptors in /acme or raise max of descriptors of /acme";
    /// assert_eq!(refused.to_string(), line);
    /// # drop(files);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Declares the counter, with a stock of its own. A set of charges looks into each such stock. See [`Counter`] for
    /// an example.
    pub fn independent(self) -> Counter {
        self.declare(false)
    }

    /// Declares the counter, and lets it share a stock with memory. Equal amounts for memory and all such counters
    /// ([`Group::try_charge_set`](crate::Group::try_charge_set)) are one charge: where it hits, it costs less than a set
    /// of memory alone.
    ///
    /// Memory keeps a stock of its own, for charges that go to memory alone. Charges to such a counter alone hit its
    /// own stock, too. The bound on credit ([`Group::stocked_bound`](crate::Group::stocked_bound)) counts all of them.
    /// Each group takes the memory of one counter more, however many share. Only the first 63 counters that a builder
    /// declares can share: [`BuildError::TooLateToShare`].
    ///
    /// ```
    /// # use memcg::{Counter, Runtime};
    /// let mut builder = Runtime::builder();
    /// let memsw = builder.counter("memsw").shared();
    /// let runtime = builder.build()?;
    /// let root = runtime.root();
    /// root.counter(memsw)?.set_max(1_000)?;
    /// let held = root.try_charge_set(&[(Counter::MEMORY, 600), (memsw, 600)])?;
    /// assert!(root.try_charge_set(&[(Counter::MEMORY, 401), (memsw, 401)]).is_err());
    /// assert_eq!((root.live(), root.counter(memsw)?.live()), (600, 600));
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared(self) -> Counter {
        self.declare(true)
    }

    fn declare(self, shared: bool) -> Counter {
        let NewCounter { builder, name, unit } = self;
        let id = builder.id();
        builder.counters.push(CounterDecl { name: name.into(), builder: id, shared, unit });
        Counter::new(builder.counters.len(), id)
    }
}

impl RuntimeBuilder {
    /// Names a further counter that every group has beside memory: `builder.counter("spill").independent()` gives it a
    /// stock of its own, `builder.counter("memsw").shared()` has it share one with memory. Either returns the handle
    /// that [`Group::counter`](crate::Group::counter) and [`Group::try_charge_set`](crate::Group::try_charge_set) take.
    /// [`Counter`] and [`NewCounter`] have examples.
    pub fn counter<'a>(&'a mut self, name: &'a str) -> NewCounter<'a> {
        NewCounter { builder: self, name, unit: Unit::Bytes }
    }

    pub(super) fn check_counters(&self) -> Result<(), BuildError> {
        for (before, CounterDecl { name, shared, .. }) in self.counters.iter().enumerate() {
            let taken = self.counters[..before].iter().any(|other| other.name == *name);
            if taken || name.is_empty() || **name == *"memory" {
                return Err(BuildError::CounterName(name.to_string()));
            }
            if *shared && before >= Members::MAX {
                return Err(BuildError::TooLateToShare { name: name.to_string(), most: Members::MAX });
            }
        }
        // A shared stock takes the place of a counter in each group's object.
        let stock = self.counters.iter().any(|counter| counter.shared);
        let counters = 1 + self.counters.len() + usize::from(stock);
        if counters > COUNTERS_MAX {
            return Err(BuildError::TooManyCounters { counters, most: COUNTERS_MAX });
        }
        Ok(())
    }
}
