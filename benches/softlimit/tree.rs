//! The kernel's old tree of groups in excess, which is always a little out of date.

#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// SOFTLIMIT_EVENTS_TARGET: pages that come or go between two looks at a group's excess.
const EVENTS: u64 = 1_024;

pub(crate) struct SoftTree {
    exceeding: Mutex<Exceeding>,
    /// Of each group.
    events: Vec<AtomicU64>,
}

struct Exceeding {
    /// By excess, then group. A group that is not in excess is not in it.
    order: BTreeSet<(u64, usize)>,
    /// Of each group, as it stands in `order`; nothing where it does not.
    excess: Vec<Option<u64>>,
}

impl SoftTree {
    pub(crate) fn new(groups: usize) -> Self {
        SoftTree {
            exceeding: Mutex::new(Exceeding {
                order: BTreeSet::new(),
                excess: vec![None; groups],
            }),
            events: (0..groups).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// `memcg_check_events`.
    pub(crate) fn event(&self, group: usize, pages: u64, excess: impl FnOnce() -> u64) {
        let before = self.events[group].fetch_add(pages, Ordering::Relaxed);
        if before / EVENTS != (before + pages) / EVENTS {
            self.update(group, excess());
        }
    }

    /// `mem_cgroup_update_tree`.
    pub(crate) fn update(&self, group: usize, excess: u64) {
        let exceeding = &mut *self.exceeding.lock();
        let now = (excess > 0).then_some(excess);
        if let Some(before) = std::mem::replace(&mut exceeding.excess[group], now) {
            exceeding.order.remove(&(before, group));
        }
        if let Some(excess) = now {
            exceeding.order.insert((excess, group));
        }
    }

    /// `mem_cgroup_largest_soft_limit_node`: takes it out. The caller puts it back.
    pub(crate) fn pop_largest(&self) -> Option<usize> {
        let exceeding = &mut *self.exceeding.lock();
        let (_, group) = exceeding.order.pop_last()?;
        exceeding.excess[group] = None;
        Some(group)
    }
}
