//! DataFusion's pools of the tests of `datafusion-execution`, over a group.

use std::fmt;

use datafusion_common::Result;
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use memcg::{Limit, Limits, Runtime};
use memcg_datafusion::GroupPool;

macro_rules! pool {
    ($name:ident) => {
        #[derive(Debug)]
        pub struct $name(GroupPool, Runtime);

        impl $name {
            pub fn new(bytes: usize) -> $name {
                let runtime = Runtime::builder().build().expect("a runtime");
                let max = Limits::new().max(Limit::Bytes(bytes as u64));
                let group = runtime.root().create("pool", max).expect("a group");
                $name(GroupPool::new(&group), runtime)
            }
        }

        impl MemoryPool for $name {
            fn name(&self) -> &str {
                self.0.name()
            }

            fn register(&self, consumer: &MemoryConsumer) {
                self.0.register(consumer);
            }

            fn unregister(&self, consumer: &MemoryConsumer) {
                self.0.unregister(consumer);
            }

            fn grow(&self, reservation: &MemoryReservation, additional: usize) {
                self.0.grow(reservation, additional);
            }

            fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
                self.0.shrink(reservation, shrink);
            }

            fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
                self.0.try_grow(reservation, additional)
            }

            fn reserved(&self) -> usize {
                self.0.reserved()
            }

            fn memory_limit(&self) -> MemoryLimit {
                self.0.memory_limit()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

pool!(GreedyMemoryPool);
pool!(FairSpillPool);
