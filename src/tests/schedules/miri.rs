//! Under Miri a model is one schedule, which the seed of the run chooses. Miri finds what loom does
//! not look at: a use of memory that aliasing, its end or its bytes forbid, and a race on what is
//! no atomic. Threads, locks and time are those of the standard library; the barrier pair is a
//! fence in each model.

pub(crate) use std::thread::{JoinHandle, spawn};

pub(crate) fn model(f: impl FnOnce()) {
    f();
}

pub(crate) use model as model_of_figures;
pub(crate) use model as model_without_pair;
pub(crate) use model as large_model_without_pair;

pub(crate) fn loads_are_exchanges() -> bool {
    true
}

pub(crate) fn in_one_go<R>(f: impl FnOnce() -> R) -> R {
    f()
}
