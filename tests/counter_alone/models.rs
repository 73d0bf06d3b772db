//! The models of counters, of pools and of threads.

#[path = "../../src/tests/loom_drain.rs"]
mod loom_drain;
#[path = "../../src/tests/loom_idle.rs"]
mod loom_idle;
#[path = "../../src/tests/loom_level.rs"]
mod loom_level;
#[path = "../../src/tests/loom_pool.rs"]
mod loom_pool;
#[path = "../../src/tests/loom_transit.rs"]
mod loom_transit;
#[path = "../../src/tests/schedules.rs"]
mod schedules;

use schedules::{assert_settled, beside, model, model_without_pair, race, stocked, walk_first};
