//! Loom models of the production types. Each names the race that it explores; `.ci/mutations`
//! breaks the code on purpose, and the model that it names must fail.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --profile loom --lib loom_
//! ```
//!
//! Miri runs them, too (`.ci/miri`): one schedule of each, and it looks at each access to memory.

mod common;
#[cfg(miri)]
mod forced;
mod loom_ahead;
mod loom_allocator;
mod loom_central;
mod loom_closed;
mod loom_cover;
mod loom_drain;
mod loom_exceeded;
mod loom_idle;
mod loom_idle_groups;
mod loom_kmem;
mod loom_level;
mod loom_lifecycle;
mod loom_peak;
mod loom_pool;
mod loom_pressure;
mod loom_raw;
mod loom_reclaim;
mod loom_shape;
mod loom_stat;
mod loom_transit;
mod loom_waiting;
mod schedules;

use self::common::group;
use self::schedules::{
    assert_settled, beside, large_model_without_pair, model, model_of_exchanges,
    model_without_pair, race, stocked, walk_first,
};
use crate::{Group, Runtime, RuntimeBuilder};

fn build(builder: RuntimeBuilder) -> (Runtime, Group) {
    let runtime = builder.build().unwrap();
    let root = runtime.root();
    (runtime, root)
}

fn with_group(builder: RuntimeBuilder, name: &str) -> (Runtime, Group) {
    let (runtime, root) = build(builder);
    (runtime, group(&root, name))
}
