//! Pools of a runtime: how objects lie in them, and how many objects there are.

use super::{Runtime, RuntimeBuilder};
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_tree::caches;
use crate::pool::{PoolAlign, PoolTable};

impl RuntimeBuilder {
    /// Sets how groups lie in memory: at whole cache lines (default), or without a byte between them.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().pool_align(memcg::PoolAlign::Packed).build()?;
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn pool_align(mut self, align: PoolAlign) -> Self {
        self.pool_align = align;
        self
    }
}

impl Runtime {
    /// Returns the pools that this runtime takes from: their sizes, and how many objects each has, as `/proc/slabinfo`
    /// does for the kernel's. The call takes the locks of each pool in turn, and allocates.
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
        let _path = SlowPath::enter();
        PoolTable::of(caches(&self.tree))
    }
}
