//! The charge for the bytes that a tree takes for itself.

use crate::counter::handle::Handle;
use crate::sync::AtomicU64;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::{AtomicBool, AtomicU64 as StatU64};

pub(crate) struct Own {
    /// Whether a group has the charge.
    pub(crate) on: AtomicBool,
    /// Updates asked for since a thread began one; 0: no thread updates the charge.
    pub(crate) asked: AtomicU64,
    /// Groups that have been created or released.
    pub(crate) calls: StatU64,
    pub(crate) books: Lock<Books>,
}

impl Own {
    pub(crate) fn new() -> Own {
        Own {
            on: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            calls: StatU64::new(0),
            books: Lock::new(Rank::Bookkeeping, Books::default()),
        }
    }
}

#[derive(Default)]
pub(crate) struct Books {
    /// The group that has the charge, and how much. A thread that updates the charge takes it out.
    pub(crate) home: Option<Home>,
    /// The group that is to have the charge from now on, if it is to change: a group, or none.
    pub(crate) next: Option<Option<Handle>>,
}

pub(crate) struct Home {
    pub(crate) group: Handle,
    pub(crate) bytes: u64,
}
