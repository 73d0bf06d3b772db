//! Sizes that models make small, so that they reach them. Miri has small ones too: the interpreter
//! would make and zero the entries one by one.

/// The size of the real crate, under Miri, in loom's models, and in runs of shuttle: those have a
/// tree of groups and a thread for each.
const fn size(real: usize, under_miri: usize, loom: usize, shuttle: usize) -> usize {
    if cfg!(loom) {
        loom
    } else if cfg!(shuttle) {
        shuttle
    } else if cfg!(miri) {
        under_miri
    } else {
        real
    }
}

pub(crate) const POOL_OBJECTS: usize = size(4_096, 16, 2, 4);

/// Free objects of a pool that are kept at hand for one number of threads.
pub(crate) const POOL_STASH: usize = size(32, 4, 1, 1);

/// Of the directory of pools' chunks: pages, and chunks of a page.
pub(crate) const POOL_PAGES: usize = size(4_096, 1_024, 4, 16);
pub(crate) const POOL_PAGE: usize = size(256, 4, 2, 4);

/// Entries of a page of a thread's directory: 8 KiB of 32-byte slots, with two bits more for each.
pub(crate) const PAGE_SLOTS: usize = size(252, 4, 4, 16);

/// Pages of a thread's directory. 16,384 x 252 slots: counters beyond four million at a time go
/// without stock. The directory takes address space; only what is touched becomes memory.
pub(crate) const PAGES_MAX: usize = size(16_384, 64, 3, 4);

/// Words of bits for blocks of threads that lie together: a shelf of 1,024 blocks.
pub(crate) const SHELF_WORDS: usize = size(16, 1, 1, 1);

/// Shelves: threads beyond a million at a time go without stock.
pub(crate) const SHELVES: usize = size(1_024, 16, 1, 1);

/// Pending closes of stocks that one barrier serves.
pub(crate) const PENDING_CLOSE_MAX: usize = size(64, 2, 2, 2);

/// Puts that go up the tree before a central stock opens again: a charge that lacks its credit
/// takes the tree's lock to close it.
pub(crate) const PUTS_WHILE_CLOSED: u32 = size(8, 8, 0, 0) as u32;

/// Shards of the names and children of a tree.
pub(crate) const SHARDS: usize = size(16, 2, 2, 2);

/// Cells of the statistics that are read, unmarked or unlisted under one hold of the coordinator's
/// lock; children of a group that are listed under one hold of a shard's lock.
pub(crate) const SLICE: usize = size(64, 4, 1, 2);

/// Visits in a row that find cells as they were before they are unlisted.
pub(crate) const IDLE_VISITS: u32 = size(4, 4, 1, 1) as u32;

/// A thread that stands still does so for some time. In a model time stands still.
pub(crate) const TIME_PASSES: bool = !cfg!(any(loom, shuttle));
