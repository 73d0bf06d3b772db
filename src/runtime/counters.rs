//! Counters that every group of a runtime has beside memory.

use super::RuntimeBuilder;
use crate::group::Counter;
use crate::hierarchy::group_tree::CounterDecl;

impl RuntimeBuilder {
    /// Declares a further counter that every group has beside memory. See [`Counter`] for an example.
    pub fn counter(&mut self, name: &str) -> Counter {
        self.declare(name, false)
    }

    /// Declares a further counter that shares a stock with memory. Equal amounts for memory and all such counters
    /// ([`Group::try_charge_set`](crate::Group::try_charge_set)) are paid from one slot: one hit for all of them.
    ///
    /// Memory keeps a stock of its own, for charges that go to memory alone. Charges to such a counter alone hit its
    /// own stock, too. The bound on credit ([`Group::stocked_bound`](crate::Group::stocked_bound)) counts all of them.
    ///
    /// ```
    /// # use memcg::{Counter, Runtime};
    /// let mut builder = Runtime::builder();
    /// let memsw = builder.shared_counter("memsw");
    /// let runtime = builder.build()?;
    /// let root = runtime.root();
    /// root.counter(memsw)?.set_max(1_000)?;
    /// let held = root.try_charge_set(&[(Counter::MEMORY, 600), (memsw, 600)])?;
    /// assert!(root.try_charge_set(&[(Counter::MEMORY, 401), (memsw, 401)]).is_err());
    /// assert_eq!((root.live(), root.counter(memsw)?.live()), (600, 600));
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared_counter(&mut self, name: &str) -> Counter {
        self.declare(name, true)
    }

    fn declare(&mut self, name: &str, shared: bool) -> Counter {
        let builder = self.id();
        self.counters.push(CounterDecl { name: name.into(), builder, shared });
        Counter::new(self.counters.len(), builder)
    }
}
