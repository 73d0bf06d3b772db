//! Loom models of the production types. Each names the race that it explores; `.ci/mutations` breaks the code on
//! purpose, and the model that it names must fail.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --profile loom --lib loom_
//! ```

mod common;
mod loom_drain;
mod loom_kmem;
mod loom_level;
mod loom_lifecycle;
mod loom_numa;
mod loom_owners;
mod loom_pool;
mod loom_reclaim;
mod loom_shape;
mod loom_stat;
mod loom_thread;
mod loom_transit;
mod loom_waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::model::Builder;
use loom::thread::JoinHandle;

use self::common::group;
use crate::sync::checker::loads_are_exchanges;
use crate::sync::set_paired;
use crate::{CounterConfig, Group, PageCounter, Runtime, RuntimeBuilder};

/// Every schedule of `f`, up to the preemption bound of the environment. Prints how many there were.
fn model(f: impl Fn() + Sync + Send + 'static) {
    set_paired(true);
    explore(Builder::new(), f);
}

/// The same without the barrier pair: neither *light* nor *heavy* is a fence. For edges that hold without either, see
/// `docs::orderings`. All that happens with the pair happens here, too.
fn model_without_pair(f: impl Fn() + Sync + Send + 'static) {
    set_paired(false);
    explore(Builder::new(), f);
}

/// The same with one preemption fewer, for models of more steps.
fn large_model_without_pair(f: impl Fn() + Sync + Send + 'static) {
    set_paired(false);
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|most| most.saturating_sub(1));
    explore(builder, f);
}

fn explore(mut builder: Builder, f: impl Fn() + Sync + Send + 'static) {
    let schedules = Arc::new(AtomicU64::new(0));
    builder.max_branches = 20_000;
    builder.check({
        let schedules = Arc::clone(&schedules);
        move || {
            schedules.fetch_add(1, Ordering::Relaxed);
            f();
        }
    });
    println!("{} schedules", schedules.load(Ordering::Relaxed));
}

/// The same where loads count as exchanges, else no schedule: with loads of older values it takes too long.
fn model_of_exchanges(f: impl Fn() + Sync + Send + 'static) {
    if loads_are_exchanges() {
        model(f);
    }
}

/// Runs `work` on another thread of the model, with what it is given.
fn beside<T: Send + 'static, R: 'static>(given: T, work: impl FnOnce(T) -> R + Send + 'static) -> JoinHandle<R> {
    loom::thread::spawn(move || work(given))
}

/// Runs `there` on another thread of the model, with what it is given, and `here` on this one. Returns what both return.
fn race<T: Send + 'static, R: 'static, S>(
    given: T,
    there: impl FnOnce(T) -> R + Send + 'static,
    here: impl FnOnce() -> S,
) -> (R, S) {
    let other = beside(given, there);
    let ours = here();
    (other.join().unwrap(), ours)
}

/// A runtime and its root.
fn build(builder: RuntimeBuilder) -> (Runtime, Group) {
    let runtime = builder.build().unwrap();
    let root = runtime.root();
    (runtime, root)
}

/// A runtime with a group below its root.
fn with_group(builder: RuntimeBuilder, name: &str) -> (Runtime, Group) {
    let (runtime, root) = build(builder);
    (runtime, group(&root, name))
}

/// A batch of two units, never closed by margin: the smallest stock that has credit to lose.
fn stocked() -> CounterConfig {
    CounterConfig::new().batch(2).adaptive(false)
}

/// What every model ends with: the identity, here with no charge in flight.
#[track_caller]
fn assert_settled(counter: &PageCounter, live: u64) {
    assert_eq!(counter.usage(), live + counter.stocked(), "usage is live charge and credit");
    counter.drain();
    assert_eq!(counter.usage(), live, "a drain leaves no credit behind");
    assert_eq!(counter.counts().underflows, 0, "no unit is returned twice");
}
