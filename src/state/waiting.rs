//! Charges that wait for room: for a counter the first of its line, for a tree all lines.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

use crate::counter::object::Counter;
use crate::sync::{AtomicU64, Ordering};
use crate::thread::foreign::Foreign;

/// The part of its line that a level shows to walks that take no lock. Relaxed, all of it: nothing but the sum depends
/// on it.
#[derive(Default)]
pub(crate) struct FirstInLine {
    ticket: AtomicU64,
    bytes: AtomicU64,
    budget: AtomicU64,
    /// Number of waiters in the line.
    length: AtomicU64,
}

impl FirstInLine {
    /// Nothing resets it: the last waiter that leaves the line shows that it is empty.
    pub(crate) fn is_clean(&self) -> bool {
        self.ticket() == 0 && self.bytes() == 0
    }

    /// 0 where no charge waits.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The bytes that other charges may take before the first in line has its own.
    pub(crate) fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// True if the waiter is the only one in the line.
    pub(crate) fn is_alone(&self, ticket: u64) -> bool {
        self.ticket() == ticket && self.length.load(Ordering::Relaxed) == 1
    }

    pub(crate) fn show_length(&self, length: usize) {
        self.length.store(length as u64, Ordering::Relaxed);
    }

    /// Shows another number of bytes of the first waiter: other charges may take no more than that before it.
    pub(crate) fn show_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.change_budget(|left| Some(left.min(bytes)));
    }

    /// False where `change` returns `None`.
    pub(crate) fn change_budget(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    /// Another waiter is first. Returns what was left of the budget.
    pub(crate) fn show(&self, ticket: u64, bytes: u64, budget: u64) -> u64 {
        self.ticket.store(ticket, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        // One step: what barges meanwhile takes from the one budget or the other.
        // Mutation: a-budget-changes-in-two-steps
        self.budget.swap(budget, Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) tickets: u64,
    pub(crate) waiters: BTreeMap<u64, Waiter>,
    /// By the key of the level.
    pub(crate) lines: BTreeMap<u64, Line>,
    /// Charges that each group waits with, by its key.
    pub(crate) groups: BTreeMap<u64, usize>,
}

#[derive(Default)]
pub(crate) struct Line {
    pub(crate) tickets: BTreeSet<u64>,
    /// The waiter whose bytes and barging budget the level shows.
    pub(crate) first: u64,
    /// The number that the level admitted when all waiters in it were last compared with it.
    pub(crate) admits: u64,
}

pub(crate) struct Waiter {
    pub(crate) group: &'static Counter,
    pub(crate) bytes: u64,
    /// The level in whose line it is; its group keeps it.
    pub(crate) level: &'static Counter,
    /// The bytes that may yet barge past it, as long as it is not first: one budget for the whole wait.
    pub(crate) budget: u64,
    /// The decision. Then it is in no line.
    pub(crate) decided: Option<Decision>,
    pub(crate) waker: Option<Foreign<Waker>>,
}

/// The end of a wait.
#[derive(Clone, Copy)]
pub(crate) enum Decision {
    /// The bytes are charged. A delay above a high is the waiter's.
    Granted,
    /// They can never fit below this level.
    Full(&'static Counter),
    /// The group went offline.
    Offline,
    /// The group was chosen to give its memory back.
    Cancelled,
}
