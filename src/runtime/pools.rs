//! Pools of a runtime: how objects lie in them, and how many there are.

use super::{Runtime, RuntimeBuilder};
use crate::charge::pool::slow_path;
use crate::pool::{PoolAlign, PoolTable};

impl RuntimeBuilder {
    /// How groups lie in memory: at whole cache lines, by default, or without a byte between them.
    ///
    /// ```
    /// use memcg::{PoolAlign, Runtime};
    ///
    /// let runtime = Runtime::builder().pool_align(PoolAlign::Packed).build()?;
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn pool_align(mut self, align: PoolAlign) -> Self {
        self.pool_align = align;
        self
    }
}

impl Runtime {
    /// The pools that this runtime takes from: sizes, and what there is of each, as `/proc/slabinfo` says it for the
    /// kernel's. Takes the locks of each pool in turn, and allocates.
    ///
    /// ```
    /// use memcg::{Limits, PoolAlign, Runtime};
    ///
    /// let runtime = Runtime::builder().pool_align(PoolAlign::Packed).nodes(2).build()?;
    /// let _query = runtime.root().create("q17", Limits::new())?;
    /// let pools = runtime.pools();
    /// let groups = &pools.rows()[0];
    /// assert_eq!((groups.name, groups.waste), ("group", 0));
    /// assert!(groups.live >= 2 && groups.size_class_waste() > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pools(&self) -> PoolTable {
        slow_path(|_, _| PoolTable::of(self.tree.caches()))
    }
}
