//! Statistics of a runtime: which items its groups have, and how much may be missing from them.

use super::RuntimeBuilder;
use crate::stat::{Stat, Unit};

impl RuntimeBuilder {
    /// Declare an item of the statistics that every group has. See [`Stat`], which has some already.
    ///
    /// ```
    /// use memcg::{Runtime, Unit};
    ///
    /// let mut builder = Runtime::builder();
    /// let rows = builder.stat("rows_scanned", Unit::Events);
    /// let runtime = builder.build()?;
    /// runtime.root().stat_add(rows, 1_000);
    /// assert_eq!(runtime.root().read_exact().get(rows), 1_000);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn stat(&mut self, name: &str, unit: Unit) -> Stat {
        let builder = self.id();
        self.items.declare(name, unit, false, builder)
    }

    /// [`stat`](Self::stat) for an item that counts memory which lies on nodes.
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

    /// Grains that [`Group::read`](crate::Group::read) may miss for each writer, 1,024 by default, at most 2^40: half of it before a thread
    /// announces what it has written, half before a read flushes. More make announcements rarer, which walk the
    /// ancestors; 0 makes every addition one.
    ///
    /// ```
    /// use memcg::{Runtime, Stat};
    ///
    /// let runtime = Runtime::builder().stat_batch(64).build()?;
    /// runtime.root().stat_add(Stat::WORKINGSET_REFAULT, 1);
    /// assert_eq!(runtime.root().read().max_error(), 32);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn stat_batch(mut self, grains: u64) -> Self {
        self.stat_batch = grains;
        self
    }
}
