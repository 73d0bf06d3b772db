//! The items that the tenants count in the statistics of their groups, beside the service's own figures.

use std::sync::atomic::{AtomicU64, Ordering};

use memcg::figures::Stats;
use memcg::{RuntimeBuilder, Stat, Unit};
use serde::Serialize;

/// Figures that only grow: look-ups, those that hit, entries that had to go for others.
pub(crate) const GROWING: usize = 3;

/// The items that are declared. The bytes of the entries are [`Stat::FILE`]: what is cached can be had again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items {
    pub(crate) gets: Stat,
    pub(crate) hits: Stat,
    pub(crate) evictions: Stat,
}

/// A tenant's own figures, for threads that read them while others count.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// In the order of [`Items::growing`].
    growing: [AtomicU64; GROWING],
    /// Of the evictions, those that made room for others.
    for_others: AtomicU64,
}

/// Of one group, with everything that was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Exact {
    pub(crate) cached_bytes: i64,
    pub(crate) gets: i64,
    pub(crate) hits: i64,
    pub(crate) evictions: i64,
}

impl Items {
    pub(crate) fn declare(builder: &mut RuntimeBuilder) -> Self {
        let mut events = |name| builder.stat(name, Unit::Events);
        Self { gets: events("gets"), hits: events("hits"), evictions: events("evictions") }
    }

    pub(crate) fn growing(&self) -> [(&'static str, Stat); GROWING] {
        [("gets", self.gets), ("hits", self.hits), ("evictions", self.evictions)]
    }

    /// These items of what was read.
    pub(crate) fn of(&self, stats: &Stats) -> Exact {
        let Self { gets, hits, evictions } = *self;
        Exact {
            cached_bytes: stats.get(Stat::FILE),
            gets: stats.get(gets),
            hits: stats.get(hits),
            evictions: stats.get(evictions),
        }
    }
}

impl Own {
    /// Shows what has been counted, after it went into the statistics. The thread that serves the tenant calls it.
    pub(crate) fn show(&self, gets: u64, hits: u64) {
        for (place, figure) in self.growing.iter().zip([gets, hits]) {
            // Release: a tenant that sees it finds it in the statistics, too.
            place.store(figure, Ordering::Release);
        }
    }

    /// Counts an entry that had to go, after it went into the statistics; by any tenant.
    pub(crate) fn evicted(&self, for_others: bool) {
        self.for_others.fetch_add(for_others.into(), Ordering::Relaxed);
        // Release: as above, for all that were counted before, too.
        self.growing[2].fetch_add(1, Ordering::Release);
    }

    /// So much at least is in the statistics.
    pub(crate) fn read(&self) -> [i64; GROWING] {
        // Acquire: pairs with `show` and `evicted`.
        self.growing.each_ref().map(|place| place.load(Ordering::Acquire).cast_signed())
    }

    /// Entries that had to go, and of those, how many for others.
    pub(crate) fn evictions(&self) -> (u64, u64) {
        (self.growing[2].load(Ordering::Relaxed), self.for_others.load(Ordering::Relaxed))
    }
}

impl Exact {
    /// Every figure, with its name.
    pub(crate) fn figures(&self) -> [(&'static str, i64); GROWING + 1] {
        let Self { cached_bytes, gets, hits, evictions } = *self;
        [("cached bytes", cached_bytes), ("gets", gets), ("hits", hits), ("evictions", evictions)]
    }
}
