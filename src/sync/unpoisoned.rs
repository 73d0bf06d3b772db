//! A mutex with parking_lot's signatures where parking_lot's own cannot be: a checker has to see
//! the lock, and Miri takes no pointer that is made of an integer, as parking_lot makes them.

#[cfg(miri)]
use std::sync as checker;
use std::sync::{PoisonError, TryLockError};

#[cfg(not(miri))]
use super::model::checker;

pub(crate) use checker::MutexGuard;

#[derive(Debug)]
pub(crate) struct Mutex<T>(checker::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(checker::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Ok(guard) => Some(guard),
        }
    }
}
