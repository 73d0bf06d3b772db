//! The pool as DataFusion's operators call it.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use memcg::{Bytes, Limits, Runtime};
use memcg_datafusion::{EndReason, EndedError, GroupPool, InGroupSession, PoolConfig, PoolError};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::data::{
    KIB, MIB, assert_empty, exhausted, limit, pool_of, runtime, session, spillable, unspillable,
};

#[test]
fn growths_are_charges_of_the_group() {
    let runtime = runtime();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(100))
        .unwrap();
    let query = acme.create("q17", Limits::new()).unwrap();
    let pool = pool_of(&query);
    let sorter = spillable("Sorter[0]", &pool);
    sorter.try_grow(80).unwrap();
    assert_eq!(
        (pool.reserved(), acme.live(), pool.to_string().as_str()),
        (80, 80, "group(/acme/q17)")
    );
    let line = exhausted(sorter.try_grow(30));
    assert!(
        line.starts_with("Sorter[0]: /acme refused 30 B for /acme/q17: short by 10 B"),
        "{line}"
    );
    assert!(line.contains("most in /acme/q17 80 B"), "{line}");
    assert_eq!(
        (sorter.size(), acme.live()),
        (80, 80),
        "nothing of it remains"
    );
    let part = sorter.split(30);
    let other = part.new_empty();
    other.try_grow(20).unwrap();
    drop(part);
    assert_eq!(acme.live(), 70);
    drop((sorter, other, pool));
    acme.offline_tree();
    drop((acme, query));
    assert_empty(&runtime);
}

/// A growth that DataFusion does not let fail goes above the max, and is shown there.
#[test]
fn what_cannot_fail_is_forced() {
    let runtime = runtime();
    let query = runtime
        .root()
        .create("q17", Limits::new().max(100))
        .unwrap();
    let pool = pool_of(&query);
    let join = unspillable("Join", &pool);
    join.grow(130);
    assert_eq!(
        (query.usage(), query.forced(), pool.reserved()),
        (130, 30, 130)
    );
    exhausted(join.try_grow(1));
    join.shrink(31);
    join.try_grow(1).unwrap();
    join.resize(50);
    assert_eq!((query.live(), query.forced()), (50, 0));
}

#[test]
fn the_limit_is_the_least_on_the_way_up() {
    let runtime = runtime();
    let limit = |pool: &GroupPool| match pool.memory_limit() {
        MemoryLimit::Finite(limit) => Some(limit),
        MemoryLimit::Infinite => None,
        MemoryLimit::Unknown => panic!("a group knows its limit"),
    };
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let query = acme.create("q17", Limits::new().max(80)).unwrap();
    let pools = [&acme, &query].map(GroupPool::new);
    assert_eq!(pools.each_ref().map(limit), [None, Some(80)]);
    acme.set_max(60).unwrap();
    assert_eq!(pools.each_ref().map(limit), [Some(60), Some(60)]);
}

/// A consumer that holds nothing takes nothing from the others: one of five sorts may have all.
#[test]
fn a_chain_of_sorts_shares_one_limit() {
    let runtime = runtime();
    let query = runtime.root().create("q17", limit(100 * KIB)).unwrap();
    for config in [
        PoolConfig::new(),
        PoolConfig::new().spill_on_demand(),
        PoolConfig::new().by_operator(),
    ] {
        let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
        let sorts: Vec<_> = (0..5)
            .map(|at| spillable(&format!("ExternalSorter[{at}]"), &pool))
            .collect();
        sorts[4].try_grow(100 << 10).unwrap();
        exhausted(sorts[4].try_grow(1));
        sorts[4].free();
        sorts[0].try_grow(100 << 10).unwrap();
        drop(sorts);
        assert_eq!(query.live(), 0);
    }
}

/// Two names of operators, of which one begins with the other, have a group each.
#[test]
fn operators_are_told_apart_by_their_whole_name() {
    let runtime = runtime();
    let query = runtime.root().create("q17", Limits::new()).unwrap();
    let pool: Arc<dyn MemoryPool> =
        Arc::new(GroupPool::with_config(&query, &PoolConfig::new().by_operator()).unwrap());
    let names = ["Join", "JoinInput", "Join[1]", "JoinInput[1]", ""];
    let all: Vec<_> = names.iter().map(|name| unspillable(name, &pool)).collect();
    all.iter()
        .enumerate()
        .for_each(|(at, one)| one.try_grow(1 << at).unwrap());
    let held = |name: &str| runtime.group(&format!("/q17/{name}")).expect(name).live();
    assert_eq!(
        (held("Join"), held("JoinInput"), query.live()),
        (0b101, 0b1010, 0b11111)
    );
}

/// An operator whose group cannot be made, here because its query is offline, charges the query.
#[test]
fn without_a_group_of_its_own_an_operator_charges_its_query() {
    let runtime = runtime();
    let query = runtime.root().create("q17", Limits::new()).unwrap();
    let pool: Arc<dyn MemoryPool> =
        Arc::new(GroupPool::with_config(&query, &PoolConfig::new().by_operator()).unwrap());
    query.offline().unwrap();
    let join = unspillable("Join", &pool);
    join.grow(100);
    assert_eq!((query.live(), pool.reserved()), (100, 100));
    drop(join);
    assert_eq!(query.live(), 0);
}

/// Threads that ask for operators at the same time have one group for each kind.
#[test]
fn operators_come_on_many_threads() {
    let runtime = runtime();
    let query = runtime.root().create("q17", Limits::new()).unwrap();
    let pool: Arc<dyn MemoryPool> =
        Arc::new(GroupPool::with_config(&query, &PoolConfig::new().by_operator()).unwrap());
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pool = &pool;
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for kind in 0..20 {
                    let one = unspillable(&format!("Kind{}[{thread}]", (kind + thread) % 20), pool);
                    one.try_grow(1 << 10).unwrap();
                }
            });
        }
    });
    assert_eq!((query.children().len(), query.live()), (20, 0));
}

/// Each kind of operator has a group, which all its partitions charge. A refusal names the largest.
#[test]
fn operators_have_groups() {
    let runtime = runtime();
    let query = runtime.root().create("q17", limit(100 * KIB)).unwrap();
    let pool: Arc<dyn MemoryPool> =
        Arc::new(GroupPool::with_config(&query, &PoolConfig::new().by_operator()).unwrap());
    let sorts = [0, 1].map(|partition| spillable(&format!("ExternalSorter[{partition}]"), &pool));
    let join = unspillable("HashJoinInput", &pool);
    for sort in &sorts {
        sort.try_grow(30 << 10).unwrap();
    }
    join.try_grow(20 << 10).unwrap();
    let held = |name: &str| runtime.group(&format!("/q17/{name}")).expect(name).live();
    assert_eq!(
        ["ExternalSorter", "HashJoinInput"].map(held),
        [60 * KIB, 20 * KIB]
    );
    let line = exhausted(join.try_grow(30 << 10));
    assert!(
        line.contains("/q17 refused 30 KiB for /q17/HashJoinInput"),
        "{line}"
    );
    assert!(
        line.contains("most in /q17/ExternalSorter 60 KiB, /q17/HashJoinInput 20 KiB"),
        "{line}"
    );
    drop((sorts, join));
    assert_eq!(query.live(), 0);
    drop(pool);
    assert_eq!(query.children().len(), 0);
}

/// Consumers that can spill leave room for those that cannot.
#[test]
fn a_reserve_is_for_what_cannot_spill() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(100 * KIB)).unwrap();
    let query = acme.create("q17", Limits::new()).unwrap();
    let config = PoolConfig::new().unspillable_reserve(Bytes(30 * KIB));
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
    let sorter = spillable("Sorter", &pool);
    let join = unspillable("Join", &pool);
    sorter.try_grow(70 << 10).unwrap();
    let line = exhausted(sorter.try_grow(1));
    assert!(
        line.contains("/acme/q17 has 30 KiB of headroom for 1 B, and keeps 30 KiB"),
        "{line}"
    );
    join.try_grow(30 << 10).unwrap();
    exhausted(join.try_grow(1));
}

/// A refused aggregate grows twice in order to make room: it takes of the reserve, up to the bytes
/// that it held.
#[test]
fn an_aggregate_grows_to_spill() {
    let runtime = runtime();
    let query = runtime.root().create("q17", limit(100 * KIB)).unwrap();
    let on_demand = PoolConfig::new().spill_on_demand();
    for config in [
        PoolConfig::new(),
        on_demand.patience(Duration::ZERO),
        PoolConfig::new().by_operator(),
    ] {
        let config = config.unspillable_reserve(Bytes(40 * KIB));
        let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
        let grouped = spillable("GroupedHashAggregateStream[0] (median)", &pool);
        let join = unspillable("Join", &pool);
        grouped.try_grow(60 << 10).unwrap();
        exhausted(grouped.try_grow(1));
        grouped.try_resize(1 << 10).unwrap();
        join.try_grow(60 << 10).unwrap();
        grouped.try_grow(30 << 10).unwrap(); // to sort
        grouped.shrink(30 << 10);
        grouped.try_resize(20 << 10).unwrap(); // to go on
        exhausted(grouped.try_grow(1));
        grouped.try_resize(1 << 10).unwrap();
        exhausted(grouped.try_grow(20 << 10)); // more than it held
        drop((grouped, join, pool));
        assert_eq!(query.live(), 0);
    }
}

/// The table of an aggregate has grown before it asks: what it keeps once it has made room may be
/// more than it held.
#[test]
fn an_aggregate_keeps_more_than_it_held() {
    let runtime = runtime();
    let query = runtime.root().create("q17", limit(100 * KIB)).unwrap();
    let config = PoolConfig::new().unspillable_reserve(Bytes(40 * KIB));
    for name in [
        "PartialHashAggregateStream[0]",
        "FinalHashAggregateStream[0]",
        "SingleHashAggregateStream[0]",
    ] {
        let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
        let table = spillable(name, &pool);
        let join = unspillable("Join", &pool);
        table.try_grow(10 << 10).unwrap();
        join.try_grow(50 << 10).unwrap();
        exhausted(table.try_resize(40 << 10));
        table
            .try_resize(30 << 10)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        exhausted(table.try_resize(40 << 10));
        table.try_resize(1 << 10).unwrap();
        exhausted(table.try_resize(35 << 10)); // it has given memory back, so it is as any other
        drop((table, join, pool));
        assert_eq!(query.live(), 0);
    }
}

/// Credit of threads is no reason to spill: it is drained before a growth is refused for what is
/// kept.
#[test]
fn credit_is_not_taken_for_memory_in_use() {
    let runtime = Runtime::builder()
        .max(Bytes(64 * MIB))
        .adaptive(false)
        .build()
        .unwrap();
    let others: Vec<_> = (0..64)
        .map(|number| runtime.root().create(number, Limits::new()).unwrap())
        .collect();
    let query = runtime.root().create("q17", Limits::new()).unwrap();
    let config = PoolConfig::new().unspillable_reserve(Bytes(16 * MIB));
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
    let sorter = spillable("Sorter", &pool);
    sorter.try_grow(1 << 20).unwrap();
    let held: Vec<_> = others
        .iter()
        .map(|other| other.charge(1).unwrap())
        .collect();
    assert!(
        runtime.root().headroom() < 63 * MIB,
        "{}",
        runtime.root().headroom()
    );
    sorter.try_grow((47 << 20) - held.len()).unwrap();
    exhausted(sorter.try_grow(1));
}

/// However large, a reserve leaves what can spill a half; a pool that is to keep all there is, is
/// not made.
#[test]
fn a_reserve_is_at_most_half_of_max() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(100 * KIB)).unwrap();
    let query = acme.create("q17", limit(MIB)).unwrap();
    let config = PoolConfig::new().unspillable_reserve(Bytes(100 * KIB));
    let refused = GroupPool::with_config(&query, &config).unwrap_err();
    assert!(matches!(refused, PoolError::Reserve { .. }), "{refused}");
    let said = session(1).with_group(&query, &config).err().unwrap();
    assert!(matches!(said, DataFusionError::Configuration(_)), "{said}");
    assert!(
        said.to_string()
            .contains("/acme/q17 has a max of 100 KiB, and its pool is to keep 100 KiB"),
        "{said}"
    );
    let config = PoolConfig::new().unspillable_reserve(Bytes(99 * KIB));
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
    let sorter = spillable("Sorter", &pool);
    sorter.try_grow(1 << 10).unwrap();
    sorter.try_grow(49 << 10).unwrap();
    let line = exhausted(sorter.try_grow(1));
    assert!(
        line.contains("/acme/q17 has 50 KiB of headroom for 1 B, and keeps 50 KiB"),
        "{line}"
    );
}

/// An aggregate that reads back what it has spilled fails where it is refused, and so does one of
/// sorted rows: neither is asked for what others need.
#[test]
fn what_cannot_spill_any_more_is_not_asked_to() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MIB)).unwrap();
    let query = acme.create("q17", Limits::new()).unwrap();
    let config = PoolConfig::new().unspillable_reserve(512 << 10);
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
    let final_one = spillable("FinalHashAggregateStream[0]", &pool);
    final_one.try_grow(400 << 10).unwrap();
    let line = exhausted(final_one.try_grow(200 << 10));
    assert!(line.contains("to go on, spill"), "{line}");
    final_one.try_resize(0).unwrap();
    let replay = final_one.new_empty();
    replay.try_grow(400 << 10).unwrap();
    replay.try_grow(200 << 10).unwrap();
    replay.try_resize(0).unwrap();
    let ordered = spillable("OrderedFinalAggregateStream[0]", &pool);
    ordered.try_grow(400 << 10).unwrap();
    ordered.try_grow(200 << 10).unwrap();
    drop((ordered, replay, final_one));
    let next = spillable("FinalHashAggregateStream[0]", &pool);
    next.try_grow(400 << 10).unwrap();
    exhausted(next.try_grow(200 << 10));
    drop((next, pool));
    acme.offline_tree();
    drop((acme, query));
    assert_empty(&runtime);
}

/// An aggregate is refused, writes a file, reads on, writes what it has read, and lets go of all.
fn write_two_files(table: &MemoryReservation) {
    table.try_grow(30 << 10).unwrap();
    exhausted(table.try_grow(1 << 20));
    table.try_resize(1 << 10).unwrap();
    table.try_grow(10 << 10).unwrap();
    table.try_resize(0).unwrap();
}

/// An aggregate that was refused once, for the last rows that it has read, has one file. It is read
/// without a merge, so the first growths are those of the table, and take all there is. Its table
/// may keep nothing, some, or more than it held.
#[test]
fn the_table_of_one_file_has_what_it_needs() {
    let runtime = runtime();
    let query = runtime.root().create("q17", limit(100 * KIB)).unwrap();
    for kept in [0, 1 << 10, 31 << 10] {
        let config = PoolConfig::new()
            .spill_on_demand()
            .unspillable_reserve(Bytes(20 * KIB));
        let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
        let table = spillable("FinalHashAggregateStream[0]", &pool);
        table.try_grow(30 << 10).unwrap();
        exhausted(table.try_grow(60 << 10));
        table.try_resize(kept).unwrap();
        table.try_resize(0).unwrap();
        let replay = table.new_empty();
        for grown in [40 << 10, 75 << 10, 100 << 10] {
            replay.try_resize(grown).unwrap();
        }
        replay.try_resize(10 << 10).unwrap(); // it has given rows
        replay.try_resize(100 << 10).unwrap();
        drop((replay, table, pool));
        assert_eq!(query.live(), 0);
    }
}

/// Until it reads back, an aggregate that was refused spills again where it is refused: also one
/// whose table keeps nothing. So it leaves the reserve, whatever it has written.
#[test]
fn an_aggregate_that_reads_on_spills_again() {
    let runtime = runtime();
    let query = runtime.root().create("q17", limit(100 * KIB)).unwrap();
    for kept in [0, 1 << 10] {
        let config = PoolConfig::new()
            .spill_on_demand()
            .unspillable_reserve(Bytes(20 * KIB));
        let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
        let table = spillable("SingleHashAggregateStream[0]", &pool);
        for _ in 0..3 {
            table.try_resize(30 << 10).unwrap();
            table.try_resize(60 << 10).unwrap();
            let line = exhausted(table.try_resize(90 << 10));
            assert!(line.contains("and keeps 20 KiB"), "{line}");
            table.try_resize(kept).unwrap();
        }
        drop((table, pool));
        assert_eq!(query.live(), 0);
    }
}

/// An aggregate that reads back its files can do with two at once: from the third on it leaves what
/// is kept for others, and waits for none. So it does in each of its passes. What its table needs
/// it gets.
#[test]
fn one_more_file_is_not_worth_the_reserve() {
    const FILE: usize = 10 << 10;
    let runtime = runtime();
    let query = runtime.root().create("q17", limit(100 * KIB)).unwrap();
    let config = PoolConfig::new().unspillable_reserve(Bytes(40 * KIB));
    for name in [
        "FinalHashAggregateStream[0]",
        "SingleHashAggregateStream[0]",
    ] {
        let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
        let table = spillable(name, &pool);
        let join = unspillable("Join", &pool);
        write_two_files(&table);
        join.try_grow(35 << 10).unwrap();
        let merge = table.new_empty();
        (0..2).for_each(|_| merge.try_grow(FILE).unwrap());
        let line = exhausted(merge.try_grow(FILE));
        assert!(
            line.contains("and keeps 40 KiB for what cannot spill"),
            "{line}"
        );
        merge.free(); // it has merged the two into one, and goes on
        (0..2).for_each(|_| merge.try_grow(FILE).unwrap());
        (0..2).for_each(|_| drop(exhausted(merge.try_grow(FILE))));
        let other = table.new_empty();
        (0..4).for_each(|_| other.try_grow(FILE).unwrap());
        other.free();
        (0..4).for_each(|_| other.try_grow(FILE).unwrap());
        drop((merge, other, table, join, pool));
        assert_eq!(query.live(), 0);
    }
}

/// A table fails where it is refused, and reserves after the files that it reads: in a pool that
/// spills on demand the merge leaves it as much as one file takes. Where two files do not, the
/// merge begins again with half of each.
#[test]
fn a_merge_leaves_room_for_its_table() {
    const FILE: usize = 20 << 10;
    let runtime = runtime();
    let query = runtime.root().create("q17", limit(100 * KIB)).unwrap();
    let config = PoolConfig::new().spill_on_demand();
    for name in [
        "FinalHashAggregateStream[0]",
        "SingleHashAggregateStream[0]",
    ] {
        let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
        let table = spillable(name, &pool);
        write_two_files(&table);
        let merge = table.new_empty();
        merge.try_grow(2 * FILE).unwrap();
        exhausted(merge.try_grow(2 * FILE));
        merge.free();
        (0..3).for_each(|_| merge.try_grow(FILE).unwrap());
        exhausted(merge.try_grow(FILE)); // it leaves what a file took before
        merge.free();
        (0..4).for_each(|_| merge.try_grow(FILE).unwrap());
        exhausted(merge.try_grow(FILE));
        table.try_grow(FILE).unwrap();
        exhausted(table.try_grow(1));
        drop((merge, table, pool));
        assert_eq!(query.live(), 0);
    }
}

/// The merge needs two files: where they fit with half the buffers alone, it gets them, though they
/// leave no room.
#[test]
fn a_merge_has_two_files() {
    const FILE: usize = 50 << 10;
    let runtime = runtime();
    let query = runtime.root().create("q17", limit(100 * KIB)).unwrap();
    let pool: Arc<dyn MemoryPool> =
        Arc::new(GroupPool::with_config(&query, &PoolConfig::new().spill_on_demand()).unwrap());
    let table = spillable("FinalHashAggregateStream[0]", &pool);
    write_two_files(&table);
    let merge = table.new_empty();
    for first in [2 * FILE, 4 * FILE] {
        // The first or the second file is refused.
        assert_eq!(merge.try_grow(first).is_ok(), first == 2 * FILE);
        exhausted(merge.try_grow(first));
        merge.free();
        (0..2).for_each(|_| merge.try_grow(FILE).unwrap());
        merge.free();
    }
    drop((merge, table, pool));
    assert_eq!(query.live(), 0);
}

/// Operators do not spill for a group that has ended: the error is another one.
#[test]
fn a_group_that_is_offline_ends() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let query = acme.scope(17, Limits::new()).unwrap();
    let pool = pool_of(&query);
    let sorter = spillable("Sorter", &pool);
    sorter.try_grow(100).unwrap();
    drop(query);
    let error = sorter.try_grow(1).unwrap_err();
    let ended = EndedError::of(&error).expect("typed");
    assert_eq!(
        (ended.path(), ended.reason()),
        ("/acme/17", EndReason::Offline)
    );
    sorter.grow(10);
    assert_eq!(
        acme.live(),
        110,
        "what exists already is charged, and nothing is lost"
    );
    drop((sorter, pool));
    assert_empty(&runtime);
}

/// Consumers of many threads, in two pools of one tenant: all bytes are back at the end, and no max
/// is passed.
#[test]
fn threads_add_up() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(8 * MIB)).unwrap();
    let configs = [
        PoolConfig::new(),
        PoolConfig::new().spill_on_demand().by_operator(),
    ];
    let pools: Vec<Arc<dyn MemoryPool>> = configs
        .iter()
        .map(|config| {
            let query = acme
                .create(memcg::GroupName::Unnamed, Limits::new())
                .unwrap();
            Arc::new(GroupPool::with_config(&query, config).unwrap()) as _
        })
        .collect();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let pool = &pools[seed % 2];
            let acme = &acme;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed as u64);
                let names = [
                    "ExternalSorter[0]",
                    "RepartitionExec[1]",
                    "GroupedHashAggregateStream[0]",
                ];
                let consumers = names.map(|name| [spillable(name, pool), unspillable(name, pool)]);
                let all: Vec<_> = consumers.iter().flatten().collect();
                for _ in 0..5_000 {
                    let reservation = all[random.random_range(0..all.len())];
                    match random.random_range(0..4) {
                        0 => drop(reservation.free()),
                        1 => drop(
                            reservation.try_shrink(random.random_range(0..=reservation.size())),
                        ),
                        _ => drop(reservation.try_grow(random.random_range(0..1 << 20))),
                    }
                    assert!(acme.usage() <= 8 * MIB);
                }
            });
        }
    });
    drop(pools);
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}
