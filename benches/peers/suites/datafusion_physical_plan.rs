//! `datafusion-execution` for the tests of `datafusion-physical-plan`: what it has, but for its pools with a limit, which
//! are groups.

mod pools;

pub use datafusion_execution::*;

pub mod memory_pool {
    pub use datafusion_execution::memory_pool::*;

    pub use crate::pools::{FairSpillPool, GreedyMemoryPool};
}

pub mod runtime_env {
    use std::sync::Arc;

    use datafusion_common::Result;
    use datafusion_execution::disk_manager::DiskManagerBuilder;
    use datafusion_execution::memory_pool::MemoryPool;
    use datafusion_execution::runtime_env;
    pub use datafusion_execution::runtime_env::*;

    use crate::pools::GreedyMemoryPool;

    /// A builder whose limit is that of a group.
    #[derive(Default)]
    pub struct RuntimeEnvBuilder(runtime_env::RuntimeEnvBuilder);

    impl RuntimeEnvBuilder {
        pub fn new() -> RuntimeEnvBuilder {
            RuntimeEnvBuilder::default()
        }

        pub fn with_memory_limit(self, bytes: usize, part: f64) -> RuntimeEnvBuilder {
            let bytes = (bytes as f64 * part) as usize;
            self.with_memory_pool(Arc::new(GreedyMemoryPool::new(bytes)))
        }

        pub fn with_memory_pool(self, pool: Arc<dyn MemoryPool>) -> RuntimeEnvBuilder {
            RuntimeEnvBuilder(self.0.with_memory_pool(pool))
        }

        pub fn with_disk_manager_builder(self, disk: DiskManagerBuilder) -> RuntimeEnvBuilder {
            RuntimeEnvBuilder(self.0.with_disk_manager_builder(disk))
        }

        pub fn with_max_spill_merge_fan_in(self, files: usize) -> RuntimeEnvBuilder {
            RuntimeEnvBuilder(self.0.with_max_spill_merge_fan_in(files))
        }

        pub fn build(self) -> Result<RuntimeEnv> {
            self.0.build()
        }

        pub fn build_arc(self) -> Result<Arc<RuntimeEnv>> {
            self.0.build_arc()
        }
    }
}
