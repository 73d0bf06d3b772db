//! Ways of keeping statistics of a tree of groups: the library's, the kernel's old and new ones,
//! and what people write themselves, all behind one trait.
//!
//! Free of criterion and of the rest of `benches/common`, so that tests can take this folder in as
//! it is. All are real: any thread may write, read and flush at any time. Threads stand for the
//! kernel's processors.

#![cfg(not(loom))]
#![allow(
    dead_code,
    reason = "each program and each test uses its own part of this module"
)]

pub(crate) mod folly;
pub(crate) mod library;
pub(crate) mod rstat;
pub(crate) mod shape;
pub(crate) mod shared_map;
pub(crate) mod threads;

/// The kernel's MEMCG_CHARGE_BATCH, and the library's default, in grains.
pub(crate) const BATCH: u64 = 64;

/// The root of every [`Shape`](shape::Shape).
pub(crate) const ROOT: usize = 0;

/// The items. Few: what a policy costs does not depend on how many items lie beside the one that is
/// written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Item {
    /// Bytes.
    Anon,
    /// Bytes.
    File,
    /// Events.
    Refault,
}

impl Item {
    pub(crate) const COUNT: usize = 3;

    /// The size of a change in grains, as the thresholds count it: pages, where bytes are counted,
    /// and less than a page is one.
    #[inline(always)]
    pub(crate) fn grains(self, delta: i64) -> u64 {
        match self {
            Item::Anon | Item::File => delta.unsigned_abs().div_ceil(4_096),
            Item::Refault => delta.unsigned_abs(),
        }
    }
}

/// Statistics of a tree of groups, whichever thread keeps them. Groups go by their index in a
/// [`Shape`](shape::Shape).
pub(crate) trait Statistics: Send + Sync {
    /// Count for a group, and so for its ancestors.
    fn add(&self, group: usize, item: Item, delta: i64);

    /// The figure of the group with all below it, as a reader gets it: a threshold that is not
    /// passed, or a thread else's flush, may leave it old.
    fn read(&self, group: usize, item: Item) -> i64;

    /// Bring the figures of the group up to date, as far as the policy does that, whatever its
    /// threshold says.
    fn flush(&self, group: usize);

    /// The sum of flushes, as far as the policy counts it.
    fn events(&self) -> Events {
        Events::default()
    }
}

/// The events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Events {
    pub(crate) flushes: u64,
    /// Pairs (thread, group) that flushes looked at.
    pub(crate) visits: u64,
    /// Flushes that were asked for while one was under way, and not made.
    pub(crate) skipped: u64,
    /// Those that waited for it instead.
    pub(crate) waited: u64,
}
