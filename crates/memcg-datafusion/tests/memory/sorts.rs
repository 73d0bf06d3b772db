//! Sorts side by side: each finishes what it has begun to spill, and one that comes late gets
//! memory of the first.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use memcg::{Bytes, Group, Limits, Runtime};
use memcg_datafusion::{GroupPool, InGroupSession, PoolConfig, QuerySession};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::data::{
    MIB, assert_empty, batch, exhausted, fed, limit, runtime, session, spillable, unspillable,
};
use crate::queries::spills;

/// Bytes that the tenant has, and those that its sorts leave to their merges.
const MAX: u64 = 8 * MIB;
const RESERVE: u64 = MIB;
/// Batches of a sort: three times what fits.
const FED: usize = 150;

/// A sort that reads what it is sent.
struct Sort {
    query: QuerySession,
    plan: Arc<dyn ExecutionPlan>,
    rows: JoinHandle<Result<Vec<RecordBatch>>>,
    feed: mpsc::Sender<RecordBatch>,
    fed: usize,
}

impl Sort {
    async fn begin(session: &SessionContext, acme: &Group, number: u64) -> Sort {
        let name = format!("fed{number}");
        let feed = fed(session, &name);
        let config = PoolConfig::new()
            .spill_on_demand()
            .unspillable_reserve(Bytes(RESERVE));
        let query = session
            .for_query(acme, number, Limits::new(), &config)
            .unwrap();
        let frame = query
            .sql(&format!("SELECT text, id FROM {name} ORDER BY text"))
            .await
            .unwrap();
        let context = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await.unwrap();
        let rows = tokio::spawn(collect(Arc::clone(&plan), context));
        Sort {
            query,
            plan,
            rows,
            feed,
            fed: 0,
        }
    }

    /// One batch more. One that the sort has ended without is not missed: `end` shows why it ended.
    async fn feed(&mut self) {
        let _ = self.feed.send(batch(self.fed)).await;
        self.fed += 1;
    }

    async fn feed_until(&mut self, live: u64) {
        while self.query.group().live() < live {
            assert!(
                self.fed < FED && !self.rows.is_finished(),
                "it does not hold so much: {}",
                self.query.group().live()
            );
            self.feed().await;
        }
    }

    /// Returns how many files it has written.
    async fn end(mut self) -> usize {
        while self.fed < FED {
            self.feed().await;
        }
        drop(self.feed);
        let rows = self
            .rows
            .await
            .unwrap()
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            rows.iter().map(RecordBatch::num_rows).sum::<usize>(),
            FED * 1_000
        );
        spills(&self.plan)
    }
}

/// Behind the tasks that are to run now. `yield_now` would come behind those that they wake, too.
async fn next_turn() {
    let mut has_waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn end(runtime: &Runtime, acme: Group) {
    assert!(
        acme.peak() <= MAX && acme.forced() == 0,
        "{} and {}",
        acme.peak(),
        acme.forced()
    );
    acme.offline_tree();
    drop(acme);
    assert_empty(runtime);
}

/// Steps of a sort of DataFusion while it spills, while another query takes each byte that is free.
#[test]
fn what_a_sort_frees_is_for_its_merge() {
    const BATCH: usize = 64 << 10;
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(4 * MIB)).unwrap();
    let [query, rest] = ["query", "rest"].map(|name| acme.create(name, Limits::new()).unwrap());
    let config = PoolConfig::new().spill_on_demand();
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
    let sorter = spillable("ExternalSorter[0]", &pool);
    let merge = unspillable("ExternalSorterMerge[0]", &pool);
    merge.try_grow(4 * BATCH).unwrap();
    sorter.try_grow(20 * BATCH).unwrap();
    let take = || {
        while rest.raw().charge(1 << 10).is_ok() {}
        rest.live()
    };
    let taken = take();
    exhausted(sorter.try_grow(BATCH));
    merge.free();
    let runs: Vec<_> = (0..20).map(|_| sorter.split(BATCH)).collect();
    for run in runs {
        run.shrink(BATCH / 2);
        drop(run);
        assert_eq!(take(), taken, "of the sort");
    }
    let loaded = merge.new_empty();
    for _ in 0..20 {
        loaded.try_grow(BATCH).unwrap();
    }
    exhausted(sorter.try_grow(5 * BATCH));
    loaded.shrink(BATCH);
    drop(loaded);
    assert!(
        take() > taken + 14 * BATCH as u64,
        "the file is written: {}",
        rest.live()
    );
    merge.try_grow(4 * BATCH).unwrap();
    sorter.try_grow(BATCH).expect("the growth that was refused");
    assert_eq!(query.live(), 5 * BATCH as u64);
    rest.raw().uncharge(Bytes(rest.live()));
    drop((sorter, merge, pool, query, rest));
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// Another query takes each byte that is free while a sort reads and spills: what the sort frees is
/// still there for its own merge.
#[tokio::test(flavor = "current_thread")]
async fn a_spill_does_not_lose_what_it_frees() {
    let session = session(1);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MAX)).unwrap();
    let rest = acme.create("rest", Limits::new()).unwrap();
    let mut sort = Sort::begin(&session, &acme, 1).await;
    sort.feed_until(MAX / 2).await;
    let takes = tokio::spawn({
        let rest = rest.clone();
        async move {
            loop {
                while rest.raw().charge(1 << 10).is_ok() {}
                next_turn().await;
            }
        }
    });
    while sort.fed < FED {
        sort.feed().await;
        assert!(!sort.rows.is_finished(), "{:?}", sort.rows.await);
    }
    takes.abort();
    assert!(takes.await.is_err_and(|error| error.is_cancelled()));
    assert!(rest.live() > MAX / 4, "it has taken {}", rest.live());
    rest.raw().uncharge(Bytes(rest.live()));
    assert!(sort.end().await > 1, "it has spilled more than once");
    drop(rest);
    end(&runtime, acme);
}

/// A sort alone holds all that there is. One of the same shape that comes late has it asked: both
/// spill, neither holds what the other is due, and the group is never above its max. A
/// `FairSpillPool` leaves the first what it has, counts the late one's half on top, and is above
/// its limit.
#[tokio::test(flavor = "current_thread")]
async fn a_late_sort_has_the_first_one_asked() {
    let session = session(1);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MAX)).unwrap();
    let mut first = Sort::begin(&session, &acme, 1).await;
    first.feed_until(MAX - 2 * RESERVE).await;
    assert_eq!(spills(&first.plan), 0, "alone it has no need to");
    let mut late = Sort::begin(&session, &acme, 2).await;
    let mut most = 0;
    while first.fed < FED {
        late.feed().await;
        first.feed().await;
        most = most.max(late.query.group().live());
    }
    assert!(
        most > MAX / 4,
        "the late one has never held more than {most}"
    );
    let files = spills(&first.plan);
    assert!(files > 0, "the first one has given nothing");
    assert!(late.end().await > 0);
    assert!(first.end().await >= files);
    end(&runtime, acme);
}
