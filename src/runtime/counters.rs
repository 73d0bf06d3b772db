//! Counters that every group of a runtime has beside memory.

use super::{BuildError, RuntimeBuilder};
use crate::group::Counter;
use crate::hierarchy::group_tree::CounterDecl;
use crate::stat::Unit;
use crate::sync::Arc;

/// The most counters of a group, that of memory included. They are one object.
const COUNTERS_MAX: usize = 1_024;

impl RuntimeBuilder {
    /// Declares a counter that every group has beside memory, with a stock of its own. Returns the handle that
    /// [`Group::counter`](crate::Group::counter) and [`Group::try_charge_set`](crate::Group::try_charge_set) take.
    ///
    /// It counts bytes, or with [`Unit::Events`] descriptors, sessions or other things. Its errors print amounts in
    /// this unit. Amounts and limits are numbers of the unit, and cost the same. [`Counter`] says what such a counter
    /// does not do (reclaim, waiting, a high), and how large its batch is.
    ///
    /// ```
    /// use memcg::{Counter, Limits, Runtime, Unit};
    ///
    /// let mut builder = Runtime::builder();
    /// let spill = builder.counter("spill", Unit::Bytes);
    /// let descriptors = builder.counter("descriptors", Unit::Events);
    /// let runtime = builder.build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// acme.counter(descriptors)?.set_max(3)?;
    /// let held = acme.try_charge_set(&[(Counter::MEMORY, 64), (spill, 1_000), (descriptors, 3)])?;
    /// assert_eq!(held.each_ref().map(memcg::Charge::bytes), [64, 1_000, 3]);
    /// let refused = acme.try_charge_set(&[(descriptors, 1)]).unwrap_err();
    /// let line = "/acme refused 1 of descriptors for /acme: short by 1, usage 3 of max 3; \
    ///             neither waiting nor reclaim can help; to fit, uncharge some of descriptors in /acme or raise max of descriptors of /acme";
    /// assert_eq!(refused.to_string(), line);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counter(&mut self, name: &str, unit: Unit) -> Counter {
        let builder = Arc::make_mut(&mut self.items).builder;
        self.counters.push(CounterDecl { name: name.into(), builder, unit });
        Counter::new(self.counters.len(), builder)
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
