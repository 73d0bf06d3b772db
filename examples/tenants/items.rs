//! What the tenants count in the statistics of their groups, beside the service's own figures.

use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{RuntimeBuilder, Stat, Stats, Unit};
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

/// A tenant's own figures in the order of [`Items::growing`], for those who read them without the cache's lock.
#[derive(Debug, Default)]
pub(crate) struct Own([AtomicU64; GROWING]);

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
    /// Shows what has been counted, after it went into the statistics; by who has the cache locked.
    pub(crate) fn show(&self, figures: [u64; GROWING]) {
        for (place, figure) in self.0.iter().zip(figures) {
            // Release: whoever sees it finds it in the statistics, too.
            place.store(figure, Ordering::Release);
        }
    }

    /// So much at least is in the statistics.
    pub(crate) fn read(&self) -> [i64; GROWING] {
        // Acquire: pairs with `show`.
        self.0.each_ref().map(|place| place.load(Ordering::Acquire).cast_signed())
    }
}

impl Exact {
    /// Every figure, with its name.
    pub(crate) fn figures(&self) -> [(&'static str, i64); GROWING + 1] {
        let Self { cached_bytes, gets, hits, evictions } = *self;
        [("cached bytes", cached_bytes), ("gets", gets), ("hits", hits), ("evictions", evictions)]
    }
}
