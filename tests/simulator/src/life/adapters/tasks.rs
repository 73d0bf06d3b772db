//! Tasks of tokio that run in groups: polled, aborted, panicking, dropped with their runtime.
//!
//! Wherever code of a task runs, and where it is dropped, its group is the current one. All of it lives
//! within one operation, in a tree of its own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use memcg::allocator::Owner;
use memcg::{Bytes, Group, Limits, Runtime};
use memcg_tokio::{checkpoint, release_credit, spawn_blocking_in, spawn_in};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Builder;

const TASKS: usize = 12;

/// How a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Well,
    Panics,
    Never,
}

/// A task, or its work: it is somewhere, and counted.
struct Work {
    group: Group,
    turns: usize,
    ending: Ending,
    there: Arc<AtomicUsize>,
}

impl Work {
    fn is_inside(&self, does: &str) {
        let found = Group::current();
        assert_eq!(found.as_ref(), Some(&self.group), "a task {does}");
    }

    fn end(&self) -> usize {
        self.is_inside("ends");
        assert!(self.ending != Ending::Panics, "on purpose");
        self.turns
    }
}

impl Future for Work {
    type Output = usize;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<usize> {
        self.is_inside("runs");
        // As an allocator does; no code of a task may see it in another group.
        let object = Owner::charge(100);
        let live = self.group.live();
        assert!(live >= 100, "{live} bytes of a task");
        #[allow(unsafe_code)]
        // SAFETY: charged for these bytes, and given back once.
        unsafe {
            object.uncharge(100);
        }
        match self.turns.checked_sub(1) {
            Some(turns) => self.turns = turns,
            None if self.ending == Ending::Never => return Poll::Pending,
            None => return Poll::Ready(self.end()),
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.there.fetch_sub(1, Ordering::SeqCst);
        if !std::thread::panicking() {
            self.is_inside("is dropped");
        }
    }
}

pub(super) fn live(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder().batch(4_096).build();
    let runtime = runtime.expect("a configuration that holds");
    let root = runtime.root();
    let make = |name| root.create(name, Limits::new().max(10_000));
    let groups = ["one", "two"].map(|name| make(name).expect("nothing is in the way"));
    let tokio = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .max_blocking_threads(2)
        .build();
    let tokio = tokio.expect("a runtime of one thread");
    let there = Arc::<AtomicUsize>::default();
    let mut tasks = Vec::new();
    for _ in 0..rng.random_range(1..TASKS) {
        let group = &groups[rng.random_range(0..2)];
        let other = &groups[rng.random_range(0..2)];
        let endings = [Ending::Well, Ending::Well, Ending::Panics, Ending::Never];
        let ending = endings[rng.random_range(0..4)];
        there.fetch_add(1, Ordering::SeqCst);
        let work = Work {
            group: group.clone(),
            turns: rng.random_range(0..4),
            ending,
            there: Arc::clone(&there),
        };
        let _inside = tokio.enter();
        let is_blocking = rng.random_bool(0.25) && ending != Ending::Never;
        // Which group is current where a task begins is nothing to it.
        let task = other.run(|| match is_blocking {
            true => spawn_blocking_in(group, move || {
                work.is_inside("runs");
                _ = work.end();
                0
            }),
            false => spawn_in(group, work),
        });
        tasks.push((ending, is_blocking, task));
    }
    tokio.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    let mut expected = 0;
    for (ending, is_blocking, task) in tasks {
        if ending == Ending::Never || rng.random_bool(0.1) {
            // Some are aborted, and some left to the end of the runtime.
            if !is_blocking && rng.random() {
                task.abort();
                let error = tokio.block_on(task);
                let is_right = error.is_ok()
                    || error.is_err_and(|it| !it.is_panic() || ending == Ending::Panics);
                assert!(is_right, "of a task that was aborted");
            } else {
                expected += usize::from(ending == Ending::Never);
            }
            continue;
        }
        let ended = tokio.block_on(task);
        match ending {
            Ending::Panics => assert!(ended.is_err_and(|error| error.is_panic()), "it panics"),
            _ => assert_eq!(ended.ok(), Some(0), "turns that are left"),
        }
    }
    let left = there.load(Ordering::SeqCst);
    assert!(left >= expected, "{left} tasks, and {expected} never end");
    checkpoints(&groups[0]);
    assert_eq!(Group::current(), None, "the current group of the thread");
    drop(tokio);
    let left = there.load(Ordering::SeqCst);
    assert_eq!((left, root.live()), (0, 0), "tasks, and bytes, at the end");
    credit_goes_home(&runtime, &groups[1]);
}

/// The group is that of the call, and is over its max by what it was charged by force.
fn checkpoints(group: &Group) {
    let mut context = Context::from_waker(Waker::noop());
    let mut ask = |forced: u64| {
        let held = group.force_charge(Bytes(forced));
        let asks = group.run(checkpoint);
        let mut asks = Box::pin(asks);
        let polled = asks.as_mut().poll(&mut context);
        drop(held);
        polled
    };
    let below = ask(9_000);
    assert!(
        matches!(below, Poll::Ready(Ok(()))),
        "below its max: {below:?}"
    );
    let above = ask(12_000);
    let is_right = matches!(&above, Poll::Ready(Err(error)) if error.group() == group);
    assert!(is_right, "above its max: {above:?}");
}

/// A worker that parks has no credit afterwards.
fn credit_goes_home(runtime: &Runtime, group: &Group) {
    drop(group.charge(100));
    let parks = release_credit(runtime);
    parks();
    let (usage, live) = (group.usage(), group.live());
    assert_eq!(usage, live, "used by a thread that parks");
}
