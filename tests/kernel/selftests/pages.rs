//! Pages and their holders: each is a charge of its own, and an item of the statistics says what it
//! is for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use memcg::{
    Bytes, Charge, ChargeError, Group, Reclaim, ReclaimContext, ReclaimPriority, Registration,
    StatKey,
};

use super::PAGE;
use crate::support::reclaimers::lock;

/// One page, for as long as it is charged.
pub(crate) struct Page {
    charge: Charge,
    stat: StatKey,
}

impl Page {
    pub(crate) fn of(group: &Group, stat: StatKey) -> Result<Page, ChargeError> {
        let charge = group.charge(Bytes(PAGE))?;
        charge.stat_add(stat, PAGE.cast_signed());
        Ok(Page { charge, stat })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.charge.stat_add(self.stat, -PAGE.cast_signed());
    }
}

/// Pages of one file that a group has read; reclaim takes the oldest first, one at a time.
pub(crate) struct PageCache {
    group: Group,
    pages: Mutex<VecDeque<Page>>,
}

impl PageCache {
    /// Empty, and registered with the group.
    pub(crate) fn of(group: &Group) -> (Registration, Arc<PageCache>) {
        let cache = Arc::new(PageCache {
            group: group.clone(),
            pages: Mutex::default(),
        });
        (
            group.register_reclaimer(
                Arc::clone(&cache) as Arc<dyn Reclaim>,
                ReclaimPriority::NORMAL,
            ),
            cache,
        )
    }

    /// `alloc_pagecache` of the kernel's `cgroup_util.c`: the file grows by so many bytes, which
    /// are read page after page. Reclaim may take from those that were read before.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<(), ChargeError> {
        for _ in 0..bytes / PAGE {
            let page = Page::of(&self.group, StatKey::FILE)?;
            lock(&self.pages).push_back(page);
        }
        Ok(())
    }
}

impl Reclaim for PageCache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut freed = 0;
        while freed < want {
            // The page goes when the lock is free again.
            let Some(page) = lock(&self.pages).pop_front() else {
                break;
            };
            drop(page);
            freed += PAGE;
        }
        freed
    }

    fn reclaimable(&self) -> u64 {
        lock(&self.pages).len() as u64 * PAGE
    }
}
