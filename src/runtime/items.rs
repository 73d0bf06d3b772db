//! Statistics of a runtime: the items that its groups have, and how much a read may miss of them.

use super::RuntimeBuilder;
use crate::stat::{Stat, Unit};

impl RuntimeBuilder {
    /// Declares an item of the statistics that every group has. [`Stat`] has the items that are built in.
    ///
    /// ```
    /// let mut builder = memcg::Runtime::builder();
    /// let rows = builder.stat("rows_scanned", memcg::Unit::Events);
    /// let runtime = builder.build()?;
    /// runtime.root().stat_add(rows, 1_000);
    /// assert_eq!(runtime.root().read_exact().get(rows), 1_000);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn stat(&mut self, name: &str, unit: Unit) -> Stat {
        let builder = self.id();
        self.items.declare(name, unit, false, builder)
    }

    /// Declares an item as [`stat`](Self::stat) does, one that counts memory which lies on nodes.
    ///
    /// ```
    /// let mut builder = memcg::Runtime::builder();
    /// let arena = builder.stat_per_node("arena", memcg::Unit::Bytes);
    /// let runtime = builder.build()?;
    /// assert!(runtime.items().any(|item| item.stat == arena && item.per_node));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn stat_per_node(&mut self, name: &str, unit: Unit) -> Stat {
        let builder = self.id();
        self.items.declare(name, unit, true, builder)
    }

    /// Sets the grains that [`Group::read`](crate::Group::read) may miss for each writer: 1,024 by default, at most
    /// 2^40. A thread announces what it has written after half of them, and a read flushes after the other half. An
    /// announcement walks the ancestors. A larger batch makes announcements rarer, and with 0 a thread announces every
    /// addition.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().stat_batch(64).build()?;
    /// runtime.root().stat_add(memcg::Stat::WORKINGSET_REFAULT, 1);
    /// assert_eq!(runtime.root().read().max_error(), 32);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn stat_batch(mut self, grains: u64) -> Self {
        self.stat_batch = grains;
        self
    }
}
