//! What every model is made of: schedules, two threads that race, and counters with the smallest stock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use loom::model::Builder;
use loom::thread::JoinHandle;

use crate::sync::checker::loads_are_exchanges;
use crate::sync::set_paired;
use crate::{CounterConfig, PageCounter};

/// Every schedule of `f`, up to the preemption bound of the environment. Prints how many there were.
pub(super) fn model(f: impl Fn() + Sync + Send + 'static) {
    set_paired(true);
    explore(Builder::new(), f);
}

/// The same without the barrier pair: neither *light* nor *heavy* is a fence. For edges that hold without either, see
/// `docs::orderings`. All that happens with the pair happens here, too.
pub(super) fn model_without_pair(f: impl Fn() + Sync + Send + 'static) {
    set_paired(false);
    explore(Builder::new(), f);
}

/// The same with one preemption fewer, for models of more steps.
pub(super) fn large_model_without_pair(f: impl Fn() + Sync + Send + 'static) {
    set_paired(false);
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|most| most.saturating_sub(1));
    explore(builder, f);
}

fn explore(mut builder: Builder, f: impl Fn() + Sync + Send + 'static) {
    let schedules = Arc::new(AtomicU64::new(0));
    builder.max_branches = 20_000;
    let began = Instant::now();
    builder.check({
        let schedules = Arc::clone(&schedules);
        move || {
            schedules.fetch_add(1, Ordering::Relaxed);
            f();
        }
    });
    // Loom does not say whether it has tried them all or stopped because of `LOOM_MAX_DURATION`.
    let stopped = builder.max_duration.is_some_and(|most| began.elapsed() >= most);
    let thread = std::thread::current();
    let (model, end) = (thread.name().unwrap_or("a model"), if stopped { "stopped" } else { "complete" });
    println!("{model}: {} schedules, {end}", schedules.load(Ordering::Relaxed));
}

/// The same where loads count as exchanges, else no schedule: with loads of older values it takes too long.
pub(super) fn model_of_exchanges(f: impl Fn() + Sync + Send + 'static) {
    if loads_are_exchanges() {
        model(f);
    }
}

/// Runs `work` on another thread of the model, with what it is given.
pub(super) fn beside<T: Send + 'static, R: 'static>(
    given: T,
    work: impl FnOnce(T) -> R + Send + 'static,
) -> JoinHandle<R> {
    loom::thread::spawn(move || work(given))
}

/// Runs `there` on another thread of the model, with what it is given, and `here` on this one. Returns what both return.
pub(super) fn race<T: Send + 'static, R: 'static, S>(
    given: T,
    there: impl FnOnce(T) -> R + Send + 'static,
    here: impl FnOnce() -> S,
) -> (R, S) {
    let other = beside(given, there);
    let ours = here();
    (other.join().unwrap(), ours)
}

/// A batch of two units, never closed by margin: the smallest stock that has credit to lose.
pub(super) fn stocked() -> CounterConfig {
    CounterConfig::new().batch(2).adaptive(false)
}

/// The first walk of a counter opens no stock: the next one may.
pub(super) fn walk_first(counter: &PageCounter) {
    counter.try_charge(1).unwrap();
    counter.uncharge(1);
}

/// What every model ends with: the identity, here with no charge in flight.
#[track_caller]
pub(super) fn assert_settled(counter: &PageCounter, live: u64) {
    assert_eq!(counter.usage(), live + counter.stocked(), "usage is live charge and credit");
    counter.drain();
    assert_eq!(counter.usage(), live, "a drain leaves no credit behind");
    assert_eq!(counter.counts().underflows, 0, "no unit is returned twice");
}
