//! The runtime of a run, as its script wants it.

use std::time::Duration;

use memcg::barrier::BarrierMode;
use memcg::footprint::PoolAlign;
use memcg::kmem::NodeId;
use memcg::{Bytes, CounterKey, Limit, Limits, Runtime, RuntimeBuilder, StatKey, Unit};

use crate::script::Setup;

/// The counter of what lies on the first of several nodes.
pub(crate) const TIER: &str = "near";

/// The name of what has set a group's limits.
pub(crate) const SETTING: &str = "tenant";

/// Items of statistics that operations add to.
pub(crate) const ITEMS: usize = 4;

/// For how long a victim is waited for. A victim whose memory does not come stays one for so long.
pub(crate) const OOM_TIME: Duration = Duration::from_millis(3);

/// Objects in use, of each pool.
pub(crate) fn pools_of(runtime: &Runtime) -> Vec<u64> {
    runtime.pools().rows().iter().map(|row| row.live).collect()
}

/// Limits of some forms that a group is created with.
pub(crate) fn form_of_limits(form: u8) -> Limits {
    let limits = Limits::new();
    match form % 7 {
        0 => limits,
        1 => limits.max(1_000).pressure_levels(50, 80),
        2 => limits.soft(100).low(50),
        3 => limits.min(64).high(2_000).max(4_000),
        5 => limits.share(3).low(50),
        6 => limits.importance(1).setting(SETTING).high(2_000),
        _ => limits.pressure_levels(10, 0).soft(0),
    }
}

type Configured = (RuntimeBuilder, CounterKey, [(StatKey, Unit); ITEMS]);

pub(crate) fn configure(setup: &Setup) -> Configured {
    let mut builder = Runtime::builder()
        .batch(Bytes(setup.batch))
        .adaptive(setup.adaptive)
        .audit(setup.audit)
        .max(limit(setup.max))
        .groups_max(setup.groups_max)
        .recursive_protection(setup.recursive)
        .nodes(setup.nodes)
        .pool_align(if setup.packed {
            PoolAlign::Packed
        } else {
            PoolAlign::CacheLine
        })
        .reclaim_time(Duration::from_millis(setup.reclaim_time))
        .delay_max(Duration::from_millis(setup.delay))
        .count_stalls(setup.stalls)
        .oom_time(OOM_TIME);
    if setup.fence {
        builder = builder.barrier(BarrierMode::Fence);
    }
    if let Some(budget) = setup.budget {
        builder = builder.budget(Bytes(budget));
    }
    if let Some(batch) = setup.stat_batch {
        builder = builder.stat_batch(batch);
    }
    // What it counts is for those alone who read its figures.
    let unit = match (setup.packed, setup.fence) {
        (true, _) => Unit::Nanoseconds,
        (false, true) => Unit::Events,
        (false, false) => Unit::Bytes,
    };
    let further = builder.counter("further", unit);
    if setup.nodes > 1 {
        builder.tier(TIER, [NodeId::new(0)]);
    }
    let items = [
        (StatKey::ANON, Unit::Bytes),
        (StatKey::SOCK, Unit::Bytes),
        (builder.stat("hits", Unit::Events), Unit::Events),
        (builder.stat("waits", Unit::Nanoseconds), Unit::Nanoseconds),
    ];
    (builder, further, items)
}

pub(crate) fn limit(bytes: u64) -> Limit {
    if bytes == u64::MAX {
        Limit::Unlimited
    } else {
        Limit::Bytes(bytes)
    }
}
