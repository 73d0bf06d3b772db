//! Futures that run in groups, on the executors of tokio: each poll and each drop is in the task's
//! own group.

use std::collections::BTreeMap;
use std::future::pending;
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use memcg::{Group, InGroup, Limits};
use tokio::task::{JoinSet, LocalSet, spawn_blocking, yield_now};

use super::{groups, here, runtime};

/// Number of drops by the group that was current then.
#[derive(Clone, Default)]
struct Drops(Arc<Mutex<BTreeMap<String, usize>>>);

impl Drops {
    fn one(&self) -> Dropped {
        Dropped(self.clone())
    }

    #[track_caller]
    fn assert(&self, expected: &[(&str, usize)]) {
        let seen = self.0.lock().unwrap();
        assert!(
            seen.iter()
                .map(|(path, &count)| (path.as_str(), count))
                .eq(expected.iter().copied()),
            "{seen:?}"
        );
    }
}

struct Dropped(Drops);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap().entry(here()).or_default() += 1;
    }
}

/// Asks after each turn where it is.
async fn turns(path: &str, turns: usize, _held: Dropped) {
    for _ in 0..turns {
        assert_eq!(here(), path);
        yield_now().await;
    }
}

#[tokio::test]
async fn tasks_take_turns_on_one_thread() {
    let runtime = runtime();
    let [a, b] = groups(&runtime, ["a", "b"]);
    let drops = Drops::default();
    let there = tokio::spawn(turns("/b", 50, drops.one()).in_group(&b));
    tokio::join!(
        turns("/a", 50, drops.one()).in_group(&a),
        turns("", 50, drops.one())
    );
    there.await.unwrap();
    assert_eq!(here(), "");
    drops.assert(&[("", 1), ("/a", 1), ("/b", 1)]);
}

/// Tasks move between threads, spawn others, and hold charges of the current group at each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_move_between_threads() {
    let runtime = runtime();
    let mut tasks = JoinSet::new();
    for name in 0..40 {
        let group = runtime.root().create(name, Limits::new()).unwrap();
        let path = group.path();
        let work = async move {
            let mut held = Vec::new();
            for turn in 0..50 {
                held.push(Group::current().unwrap().charge(turn + 1).unwrap());
                yield_now().await;
                assert_eq!(here(), path);
            }
            held
        };
        tasks.spawn(async move { (work.in_group(&group).await, group) });
    }
    while let Some(ended) = tasks.join_next().await {
        let (held, group) = ended.unwrap();
        assert_eq!(group.live(), 50 * 51 / 2);
        drop(held);
        assert_eq!((group.live(), here()), (0, String::new()));
    }
}

/// Neither a task nor a job of the blocking pool inherits the group: each is given its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_task_spawns_has_no_group() {
    let runtime = runtime();
    let [a] = groups(&runtime, ["a"]);
    let work = async {
        let spawned = tokio::spawn(async { here() });
        let wrapped = tokio::spawn(async { here() }.in_group(&Group::current().unwrap()));
        let blocking = spawn_blocking(here);
        let group = Group::current().unwrap();
        let run = spawn_blocking(move || group.run(here));
        [
            spawned.await.unwrap(),
            wrapped.await.unwrap(),
            blocking.await.unwrap(),
            run.await.unwrap(),
        ]
    };
    assert_eq!(work.in_group(&a).await, ["", "/a", "", "/a"]);
}

/// A task that polls many futures of many groups in one poll, as `FuturesUnordered` does, and
/// itself is in a group.
#[test]
fn many_groups_in_one_poll() {
    let runtime = runtime();
    let [outer] = groups(&runtime, ["outer"]);
    let all: Vec<Group> = (0..64)
        .map(|name| runtime.root().create(name, Limits::new()).unwrap())
        .collect();
    let drops = Drops::default();
    let mut futures: Vec<_> = all
        .iter()
        .map(|group| {
            let path = group.path();
            let held = drops.one();
            Box::pin(async move { turns(&path, 8, held).await }.in_group(group))
        })
        .collect();
    let context = &mut Context::from_waker(Waker::noop());
    outer.run(|| {
        while !futures.is_empty() {
            futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
            assert_eq!(here(), "/outer");
        }
    });
    let mut paths: Vec<String> = all.iter().map(Group::path).collect();
    paths.sort();
    drops.assert(
        &paths
            .iter()
            .map(|path| (path.as_str(), 1))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn a_drop_outside_of_any_poll() {
    let runtime = runtime();
    let [a, b] = groups(&runtime, ["a", "b"]);
    let drops = Drops::default();
    let new = || {
        let held = drops.one();
        async move {
            let _held = held;
            pending::<()>().await
        }
        .in_group(&a)
    };
    let mut polled = Box::pin(new());
    assert!(
        polled
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    b.run(|| drop(polled));
    drop(new()); // never polled
    thread::spawn({
        let future = new();
        move || drop(future)
    })
    .join()
    .unwrap();
    a.offline().unwrap();
    drop(new()); // in a group that is offline, and so in the root
    drops.assert(&[("/", 1), ("/a", 3)]);
    drop(a);
    assert_eq!(
        (here(), runtime.root().children().len()),
        (String::new(), 1)
    );
}

/// A guard that a future holds over an await ends with the poll: it does not get into other tasks.
#[test]
fn a_guard_over_an_await_ends_with_the_poll() {
    let runtime = runtime();
    let [a, b] = groups(&runtime, ["a", "b"]);
    let executor = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let work = async {
        let guard = b.enter();
        assert_eq!(here(), "/b");
        yield_now().await;
        assert_eq!(here(), "/a", "the next poll is in the task's group");
        mem::forget(b.enter());
        yield_now().await;
        drop(guard);
        here()
    };
    let other = async {
        for _ in 0..3 {
            assert_eq!(here(), "");
            yield_now().await;
        }
    };
    let joined = async { tokio::join!(work.in_group(&a), other) };
    assert_eq!(LocalSet::new().block_on(&executor, joined).0, "/a");
    assert_eq!(here(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_poll() {
    let runtime = runtime();
    let [a] = groups(&runtime, ["a"]);
    let drops = Drops::default();
    for _ in 0..8 {
        let held = drops.one();
        let panics = async move {
            let _held = held;
            yield_now().await;
            panic!("on purpose")
        };
        let ended: Result<(), _> = tokio::spawn(panics.in_group(&a)).await;
        assert!(ended.unwrap_err().is_panic());
        assert_eq!(tokio::spawn(async { here() }).await.unwrap(), "");
    }
    drops.assert(&[("/a", 8)]);
}

/// The group of the inner wrapper, then that of the outer one again.
#[test]
fn a_wrapper_in_a_wrapper() {
    let runtime = runtime();
    let [a, b] = groups(&runtime, ["a", "b"]);
    let inner = async { here() }.in_group(&b);
    assert_eq!(inner.group(), &b);
    let outer = pin!(async { (inner.await, here()) }.in_group(&a));
    let ended = outer.poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(ended, Poll::Ready(("/b".into(), "/a".into())));
}
