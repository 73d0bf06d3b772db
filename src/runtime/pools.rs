//! Pools of a runtime: how objects lie in them.

use super::RuntimeBuilder;
use crate::pool::PoolAlign;

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
