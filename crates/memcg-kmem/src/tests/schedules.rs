//! The parts of every model: schedules, and two threads that race.

#[cfg(loom)]
pub(super) use loom::thread::{JoinHandle, spawn, yield_now};
/// Under Miri a model is one schedule, which the seed of the run chooses.
#[cfg(miri)]
pub(super) use std::thread::{JoinHandle, spawn, yield_now};

/// Every schedule of a model, up to the preemption bound of the environment. Prints how many there
/// were.
#[cfg(loom)]
pub(super) fn model(f: impl Fn() + Sync + Send + 'static) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    let schedules = Arc::new(AtomicU64::new(0));
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    let began = std::time::Instant::now();
    builder.check({
        let schedules = Arc::clone(&schedules);
        move || {
            schedules.fetch_add(1, Ordering::Relaxed);
            f();
        }
    });
    // Loom does not say whether it has tried them all or stopped because of `LOOM_MAX_DURATION`.
    let stopped = builder
        .max_duration
        .is_some_and(|most| began.elapsed() >= most);
    let thread = std::thread::current();
    let model = thread.name().unwrap_or("a model");
    let end = if stopped { "stopped" } else { "complete" };
    println!(
        "{model}: {} schedules, {end}",
        schedules.load(Ordering::Relaxed)
    );
}

#[cfg(miri)]
pub(super) fn model(f: impl FnOnce()) {
    f();
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
