//! Spilling on demand, as operators see it: a growth that is refused although it fits.

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};
use memcg::{Bytes, Group, Limits, Runtime};
use memcg_datafusion::{GroupPool, PoolConfig};

use crate::data::{MIB, assert_empty, exhausted, limit, runtime, spillable, unspillable, until};

const HALF: usize = 512 << 10;

/// Two queries of a tenant that has 4 MiB. No consumer waits.
struct Queries {
    runtime: Runtime,
    pools: [Arc<dyn MemoryPool>; 2],
    groups: [Group; 2],
}

fn queries() -> Queries {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(4 * MIB)).unwrap();
    let groups = [1, 2].map(|number| acme.create(number, Limits::new()).unwrap());
    let config = PoolConfig::new().spill_on_demand().patience(Duration::ZERO);
    let pool = |group: &Group| Arc::new(GroupPool::with_config(group, &config).unwrap()) as _;
    Queries {
        pools: groups.each_ref().map(pool),
        groups,
        runtime,
    }
}

impl Queries {
    /// The last query's join is refused, and the first is asked.
    fn ask(&self, bytes: usize) -> MemoryReservation {
        let join = unspillable("HashJoinInput", &self.pools[1]);
        exhausted(join.try_grow(bytes));
        join
    }

    fn end(self) {
        let Queries {
            runtime,
            pools,
            groups,
        } = self;
        drop(pools);
        groups
            .iter()
            .for_each(|group| group.parent().unwrap().offline_tree());
        drop(groups);
        assert_empty(&runtime);
    }
}

#[test]
fn a_sort_is_refused_once_and_a_join_gets_the_room() {
    let queries = queries();
    let sorter = spillable("ExternalSorter[0]", &queries.pools[0]);
    sorter.try_grow(4 << 20).unwrap();
    let join = queries.ask(HALF);
    sorter.shrink(100 << 10); // what operators do between two growths
    let line = exhausted(sorter.try_grow(1));
    assert!(
        line.starts_with("ExternalSorter[0]: /acme/1/spillable is asked for"),
        "{line}"
    );
    sorter.try_grow(100 << 10).unwrap(); // a sort's buffer while it spills
    assert_eq!(sorter.free(), 4 << 20);
    join.try_grow(HALF).unwrap();
    sorter.try_grow(2 << 20).unwrap();
    assert_eq!(
        queries.groups.each_ref().map(Group::live),
        [2 * MIB, MIB / 2]
    );
    drop((sorter, join));
    queries.end();
}

/// No more consumers are refused than it takes, and none that has little.
#[test]
fn no_more_are_refused_than_it_takes() {
    let queries = queries();
    let sorts =
        [0, 1, 2].map(|number| spillable(&format!("ExternalSorter[{number}]"), &queries.pools[0]));
    for (sort, bytes) in sorts.iter().zip([64 << 10, 2 << 20, 1 << 20]) {
        sort.try_grow(bytes).unwrap();
    }
    let rest = unspillable("rest", &queries.pools[0]);
    rest.try_grow((1 << 20) - (64 << 10)).unwrap();
    let join = queries.ask(HALF);
    sorts[0].shrink(3);
    sorts[0].try_grow(1).expect("it has too little");
    exhausted(sorts[1].try_grow(1));
    sorts[2].try_grow(1).expect("the other one gives enough");
    sorts[1].free();
    sorts[1].try_grow(1).expect("it was refused already");
    join.try_grow(HALF).unwrap();
    drop((sorts, rest, join));
    queries.end();
}

/// An exchange has nothing to give: it is not asked, and neither is what cannot spill.
#[test]
fn what_has_nothing_to_give_is_not_asked() {
    let queries = queries();
    let [exchange, join] = [
        spillable("RepartitionExec[0]", &queries.pools[0]),
        unspillable("HashJoinInput", &queries.pools[0]),
    ];
    exchange.try_grow(2 << 20).unwrap();
    join.try_grow(2 << 20).unwrap();
    let late = queries.ask(HALF);
    for reservation in [&exchange, &join] {
        reservation.shrink(2);
        reservation.try_grow(1).expect("it is not asked");
    }
    drop((exchange, join, late));
    queries.end();
}

/// A demand that no operator comes for lapses.
#[test]
fn a_demand_lapses() {
    let queries = queries();
    let sorter = spillable("ExternalSorter[0]", &queries.pools[0]);
    sorter.try_grow(4 << 20).unwrap();
    let join = queries.ask(HALF);
    std::thread::sleep(Duration::from_secs(1));
    sorter.shrink(2);
    sorter.try_grow(1).expect("no query waits for it any more");
    drop((sorter, join));
    queries.end();
}

/// A query may ask its own operators.
#[test]
fn a_query_asks_itself() {
    let queries = queries();
    let sorter = spillable("ExternalSorter[0]", &queries.pools[1]);
    sorter.try_grow(4 << 20).unwrap();
    let join = queries.ask(HALF);
    sorter.shrink(2);
    exhausted(sorter.try_grow(1));
    sorter.free();
    join.try_grow(HALF).unwrap();
    drop((sorter, join));
    queries.end();
}

/// A small sort whose tenant's other query holds much has that one asked, and spills meanwhile as
/// any other does.
#[test]
fn the_poor_have_the_rich_asked() {
    let queries = queries();
    let [rich, poor] = [0, 1].map(|query| spillable("ExternalSorter[0]", &queries.pools[query]));
    poor.try_grow(HALF).unwrap();
    rich.try_grow((4 << 20) - HALF).unwrap();
    exhausted(rich.try_grow(HALF));
    poor.shrink(2);
    poor.try_grow(1)
        .expect("the rich one has had no other asked");
    exhausted(poor.try_grow(HALF));
    rich.shrink(2);
    exhausted(rich.try_grow(1));
    rich.free();
    poor.try_grow(HALF).unwrap();
    drop((rich, poor));
    queries.end();
}

/// The same where it is refused for what is kept for others.
#[test]
fn the_poor_have_the_rich_asked_for_what_is_kept() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(4 * MIB)).unwrap();
    let config = PoolConfig::new()
        .spill_on_demand()
        .unspillable_reserve(Bytes(MIB))
        .patience(Duration::ZERO);
    let [rich, poor] = [1, 2].map(|number| {
        let query = acme.create(number, Limits::new()).unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
        spillable("ExternalSorter[0]", &pool)
    });
    poor.try_grow(HALF / 8).unwrap();
    rich.try_grow(5 * HALF - HALF / 8).unwrap();
    assert!(exhausted(rich.try_grow(2 * HALF)).contains("and keeps 1 MiB"));
    poor.try_grow(1)
        .expect("the rich one has had no other asked");
    assert!(exhausted(poor.try_grow(2 * HALF)).contains("and keeps 1 MiB"));
    rich.shrink(2);
    assert!(exhausted(rich.try_grow(1)).contains("is asked for"));
    drop((rich, poor));
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// The pool goes while it owes: the promise goes with it.
#[test]
fn a_pool_may_go_with_a_demand_open() {
    let Queries {
        runtime,
        pools: [first, second],
        groups,
    } = queries();
    let sorter = spillable("ExternalSorter[0]", &first);
    sorter.try_grow(4 << 20).unwrap();
    let join = unspillable("HashJoinInput", &second);
    exhausted(join.try_grow(HALF));
    drop((sorter, first));
    until("it fits", || join.try_grow(HALF).is_ok());
    drop((join, second));
    groups[0].parent().unwrap().offline_tree();
    drop(groups);
    assert_empty(&runtime);
}
