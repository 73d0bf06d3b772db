//! A group, and what the test knows that it holds.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use memcg::{Group, GroupId, Registration};

use crate::holdings::{Held, Holding};
use crate::lock;

/// The most holdings that a group holds.
const HOLDINGS_MAX: usize = 40;

pub(crate) struct KnownGroup {
    pub(crate) id: GroupId,
    pub(crate) above: Option<Arc<KnownGroup>>,
    /// Number of groups above.
    pub(crate) depth: usize,
    pub(crate) covers: bool,
    /// Nothing is charged by force here or below.
    pub(crate) strict: bool,
    /// `None`: what is held keeps the group, and no handle does.
    group: Mutex<Option<Group>>,
    holdings: Mutex<Vec<Holding>>,
    /// Of a declared statistic, as added here and below.
    pub(crate) rows: AtomicI64,
    pub(crate) reclaimer: Mutex<Option<Registration>>,
    pub(crate) hook: Mutex<Option<Registration>>,
    /// The highest that usage may be; held while a max is set.
    pub(crate) ceiling: Mutex<u64>,
}

impl KnownGroup {
    pub(crate) fn new(
        group: Group,
        above: Option<&Arc<KnownGroup>>,
        strict: bool,
    ) -> Arc<KnownGroup> {
        Arc::new(KnownGroup {
            id: group.id(),
            above: above.cloned(),
            depth: above.map_or(0, |above| above.depth + 1),
            covers: group.limits().cover_allocations,
            strict,
            ceiling: Mutex::new(group.max()),
            group: Mutex::new(Some(group)),
            holdings: Mutex::new(Vec::with_capacity(HOLDINGS_MAX + 1)),
            rows: AtomicI64::new(0),
            reclaimer: Mutex::new(None),
            hook: Mutex::new(None),
        })
    }

    pub(crate) fn group(&self) -> Option<Group> {
        lock(&self.group).clone()
    }

    /// As long as it has not gone offline with one above.
    pub(crate) fn online(&self) -> Option<Group> {
        self.group().filter(|group| !group.is_offline())
    }

    /// This and all above.
    pub(crate) fn path(&self) -> impl Iterator<Item = &KnownGroup> {
        std::iter::successors(Some(self), |known| known.above.as_deref())
    }

    /// An object that is allocated here belongs to this group or, once it is offline, to one above:
    /// both count the same.
    pub(crate) fn is_even(&self) -> bool {
        let mut below_tenants = self.path().filter(|known| known.depth >= 2);
        below_tenants.all(|known| known.covers == self.covers)
    }

    pub(crate) fn put(&self, holding: Holding, at: usize) {
        let old = {
            let mut holdings = lock(&self.holdings);
            holdings.push(holding);
            (holdings.len() > HOLDINGS_MAX).then(|| holdings.swap_remove(at % HOLDINGS_MAX))
        };
        drop(old);
    }

    pub(crate) fn take(&self, at: usize) -> Option<Holding> {
        let mut holdings = lock(&self.holdings);
        if holdings.is_empty() {
            return None;
        }
        let at = at % holdings.len();
        Some(holdings.swap_remove(at))
    }

    /// Frees at least so many bytes, or all. Returns how many.
    pub(crate) fn free(&self, want: u64) -> u64 {
        let mut freed = 0;
        while freed < want
            && let Some(holding) = self.take(0)
        {
            freed += holding.bytes();
            drop(holding);
        }
        freed
    }

    pub(crate) fn held(&self) -> Held {
        let mut sum = Held::default();
        lock(&self.holdings)
            .iter()
            .for_each(|holding| sum += holding.held());
        sum
    }

    pub(crate) fn bytes(&self) -> u64 {
        let held = self.held();
        held.reserved + held.allocated
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.holdings).len()
    }

    pub(crate) fn add_rows(&self, rows: i64) {
        self.path()
            .for_each(|known| _ = known.rows.fetch_add(rows, Ordering::Relaxed));
    }

    /// The group goes offline; what it holds outlives it.
    pub(crate) fn end(&self) {
        let group = lock(&self.group).take();
        if let Some(group) = &group {
            group.offline_tree();
        }
        drop(group);
        // Outside of any lock: their drops wait for calls, and may panic, which the crate contains.
        let registrations = (lock(&self.reclaimer).take(), lock(&self.hook).take());
        drop(registrations);
    }
}
