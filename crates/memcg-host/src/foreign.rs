//! Calls of code that is the user's.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls the closure; `None` where it panics. What a panic carries is foreign, too: where its drop
/// panics, what that carries is leaked.
pub(crate) fn contain<T>(hook: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(hook)) {
        Ok(value) => Some(value),
        Err(payload) => {
            if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(next);
            }
            None
        }
    }
}
