//! A mutex with parking_lot's signatures where parking_lot's own cannot be.

#[cfg(miri)]
use std::sync as checker;
use std::sync::PoisonError;

#[cfg(not(miri))]
use super::model::checker;

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(checker::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(checker::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> checker::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
