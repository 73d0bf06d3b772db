//! The parts of every model: schedules, two threads that race, and counters with the smallest
//! stock.

use std::time::Duration;

#[cfg_attr(loom, path = "schedules/loom.rs")]
#[cfg_attr(miri, path = "schedules/miri.rs")]
mod checker;

/// The same with one preemption fewer, for models of more steps.
pub(super) use checker::large_model_without_pair;
/// Every schedule of a model that the checker tries.
pub(super) use checker::model;
/// The same with the loads and the words of figures, which other models leave out.
pub(super) use checker::model_of_figures;
/// The same without the barrier pair: neither *light* nor *heavy* is a fence. For edges that hold
/// without either, see `docs::orderings`. All that happens with the pair happens here, too.
pub(super) use checker::model_without_pair;
use checker::{JoinHandle, spawn};
pub(super) use checker::{in_one_go, loads_are_exchanges};

use crate::{CounterConfig, PageCounter};

/// Time stands still in a model. Under Miri it goes on, a thousand times as fast as on a processor.
pub(super) const EVER: Duration = Duration::from_secs(5);

/// The same where loads count as exchanges, else no schedule: with loads of older values it takes
/// too long.
pub(super) fn model_of_exchanges(f: impl Fn() + Sync + Send + 'static) {
    if loads_are_exchanges() {
        model(f);
    }
}

/// Runs `work` on another thread of the model, with what it is given.
pub(super) fn beside<T: Send + 'static, R: Send + 'static>(
    given: T,
    work: impl FnOnce(T) -> R + Send + 'static,
) -> JoinHandle<R> {
    spawn(move || work(given))
}

/// Runs `there` on another thread of the model, with what it is given, and `here` on this one.
/// Returns what both return.
pub(super) fn race<T: Send + 'static, R: Send + 'static, S>(
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
    counter.charge(1).unwrap();
    counter.uncharge(1);
}

/// The end of every model: the identity, here with no charge in flight.
#[track_caller]
pub(super) fn assert_settled(counter: &PageCounter, live: u64) {
    assert_eq!(
        counter.usage(),
        live + counter.stocked(),
        "usage is live charge and credit"
    );
    counter.drain();
    assert_eq!(counter.usage(), live, "a drain leaves no credit behind");
    assert_eq!(counter.counts().underflows, 0, "no unit is returned twice");
}
