//! Forced charges under way: while there is one, no thread can tell what usage owes to it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Forced charges begun and ended.
#[derive(Default)]
pub(crate) struct Forced {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Forced {
    pub(crate) fn run<R>(&self, force: impl FnOnce() -> R) -> R {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let result = force();
        self.ended.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// The number of forced charges, if none is under way. Two equal answers: none was under way
    /// from the first to the second.
    pub(crate) fn still(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(ended)
    }
}
