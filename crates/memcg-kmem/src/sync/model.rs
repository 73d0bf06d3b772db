//! The checkers' side of the door.

#[cfg(loom)]
pub(crate) use loom::sync as checker;
#[cfg(shuttle)]
pub(crate) use shuttle::sync as checker;

/// A model has one processor, or its runs would differ.
pub(crate) fn processor() -> usize {
    0
}

/// A failed model unwinds through destructors that must not touch its objects any more.
pub(crate) fn model_failed() -> bool {
    std::thread::panicking()
}
