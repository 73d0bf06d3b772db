//! Tasks that DataFusion spawns run in the query's group.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::runtime::{JoinSetTracer, SpawnedTask};
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use futures::future::BoxFuture;
use memcg::{Group, Limits};
use memcg_datafusion::{GroupTracer, InGroupSession, PoolConfig};
use tokio::sync::oneshot;

use crate::data::{assert_empty, runtime, session};

static TRACED: AtomicUsize = AtomicUsize::new(0);

struct Counts;

type Output = Box<dyn Any + Send>;

impl JoinSetTracer for Counts {
    fn trace_future(&self, future: BoxFuture<'static, Output>) -> BoxFuture<'static, Output> {
        TRACED.fetch_add(1, Ordering::Relaxed);
        future
    }

    fn trace_block(
        &self,
        work: Box<dyn FnOnce() -> Output + Send>,
    ) -> Box<dyn FnOnce() -> Output + Send> {
        TRACED.fetch_add(1, Ordering::Relaxed);
        work
    }
}

/// The process has one tracer, so this is one test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_run_in_the_querys_group() {
    GroupTracer::install_over(Counts).unwrap();
    let again = GroupTracer::install().unwrap_err();
    assert_eq!(
        again.to_string(),
        "GroupTracer is installed already: install it once, at the start of the program"
    );

    let session = session(8);
    let runtime = runtime();
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let notes = Arc::clone(&seen);
    let note = move |arguments: &[ColumnarValue]| {
        let path = Group::current().map_or("none".to_string(), |group| group.path());
        notes
            .lock()
            .unwrap()
            .insert((path, format!("{:?}", tokio::task::try_id())));
        Ok(arguments[0].clone())
    };
    let note = create_udf(
        "note",
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Volatile,
        Arc::new(note),
    );
    session.register_udf(note);
    let before = TRACED.load(Ordering::Relaxed);
    let query = session
        .for_query(&runtime.root(), 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let rows = query
        .sql("SELECT note(id) % 7, count(*) FROM rows GROUP BY 1")
        .await
        .unwrap();
    assert_eq!(Group::current(), None);
    rows.collect().await.unwrap();
    drop(query);
    assert!(
        TRACED.load(Ordering::Relaxed) > before,
        "the other tracer is called, too"
    );
    let seen = seen.lock().unwrap().clone();
    let q18 = runtime.root().scope("18", Limits::new()).unwrap();
    blocking_work_and_drops_are_in_the_group(&q18).await;
    drop(q18);
    assert!(seen.iter().all(|(path, _)| path == "/17"), "{seen:?}");
    assert!(
        seen.len() > 1,
        "in tasks that DataFusion has spawned: {seen:?}"
    );
    assert_empty(&runtime);
}

/// Blocking work runs in the group that spawns it, and a task that is aborted drops what it holds
/// there.
async fn blocking_work_and_drops_are_in_the_group(group: &Group) {
    /// Its drop says where it is.
    struct Held(Option<oneshot::Sender<Option<Group>>>);

    impl Drop for Held {
        fn drop(&mut self) {
            if let Some(sender) = self.0.take() {
                let _ = sender.send(Group::current());
            }
        }
    }

    let (sender, dropped) = oneshot::channel();
    let (blocking, task) = group.run(|| {
        let held = Held(Some(sender));
        let forever = async move {
            let _held = held;
            std::future::pending::<()>().await;
        };
        (
            SpawnedTask::spawn_blocking(Group::current),
            SpawnedTask::spawn(forever),
        )
    });
    assert_eq!(blocking.join().await.unwrap(), Some(group.clone()));
    // The drop aborts it.
    drop(task);
    assert_eq!(dropped.await.unwrap(), Some(group.clone()));
}
