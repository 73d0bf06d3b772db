//! Under loom a model is every schedule, up to the preemption bound of the environment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use loom::model::Builder;
pub(crate) use loom::thread::{JoinHandle, spawn};

pub(crate) use crate::sync::checker::loads_are_exchanges;
use crate::sync::{set_of_figures, set_paired};

/// Prints how many schedules there were.
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

pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    set_paired(true);
    explore(Builder::new(), f);
}

pub(crate) fn model_of_figures(f: impl Fn() + Sync + Send + 'static) {
    set_paired(true);
    set_of_figures(true);
    explore(Builder::new(), f);
    set_of_figures(false);
}

pub(crate) fn model_without_pair(f: impl Fn() + Sync + Send + 'static) {
    set_paired(false);
    explore(Builder::new(), f);
}

pub(crate) fn large_model_without_pair(f: impl Fn() + Sync + Send + 'static) {
    set_paired(false);
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|most| most.saturating_sub(1));
    explore(builder, f);
}

/// Explores nothing in `f`: it is one step of the model.
pub(crate) fn in_one_go<R>(f: impl FnOnce() -> R) -> R {
    loom::stop_exploring();
    let result = f();
    loom::explore();
    result
}
