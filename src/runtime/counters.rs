//! Counters that every group of a runtime has beside memory.

use super::{BuildError, RuntimeBuilder};
use crate::group::Counter;
use crate::hierarchy::group_tree::CounterDecl;
use crate::stat::Unit;

/// The most counters of a group, that of memory included. They are one object.
const COUNTERS_MAX: usize = 1_024;

/// A further counter, named by [`RuntimeBuilder::counter`]. It counts bytes, or what [`unit`](Self::unit) says. The last
/// call declares it, with a stock of its own, and returns its handle. [`Counter`] says what such a counter does not do
/// (reclaim, waiting, a high), and what its batch is.
///
/// ```
/// use memcg::{Counter, Runtime};
///
/// let mut builder = Runtime::builder();
/// let spill = builder.counter("spill").independent();
/// let memsw = builder.counter("memsw").independent();
/// let runtime = builder.build()?;
/// let held = runtime.root().try_charge_set(&[(Counter::MEMORY, 64), (memsw, 64), (spill, 1_000)])?;
/// assert_eq!(held.map(|charge| charge.bytes()), [64, 64, 1_000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "`independent` declares the counter"]
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
    /// let files = acme.try_charge_set(&[(descriptors, 3)])?;
    /// let refused = acme.try_charge_set(&[(descriptors, 1)]).unwrap_err();
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

    /// Declares the counter, with a stock of its own. See [`Counter`] for an example.
    pub fn independent(self) -> Counter {
        let NewCounter { builder, name, unit } = self;
        let id = builder.id();
        builder.counters.push(CounterDecl { name: name.into(), builder: id, unit });
        Counter::new(builder.counters.len(), id)
    }
}

impl RuntimeBuilder {
    /// Names a further counter that every group has beside memory. `builder.counter("spill").independent()` returns the
    /// handle that [`Group::counter`](crate::Group::counter) and [`Group::try_charge_set`](crate::Group::try_charge_set)
    /// take. [`Counter`] and [`NewCounter`] have examples.
    pub fn counter<'a>(&'a mut self, name: &'a str) -> NewCounter<'a> {
        NewCounter { builder: self, name, unit: Unit::Bytes }
    }

    pub(super) fn check_counters(&self) -> Result<(), BuildError> {
        for (before, CounterDecl { name, .. }) in self.counters.iter().enumerate() {
            let taken = self.counters[..before].iter().any(|other| other.name == *name);
            if taken || name.is_empty() || **name == *"memory" {
                return Err(BuildError::CounterName(name.to_string()));
            }
        }
        let counters = 1 + self.counters.len();
        if counters > COUNTERS_MAX {
            return Err(BuildError::TooManyCounters { counters, most: COUNTERS_MAX });
        }
        Ok(())
    }
}
