//! Objects of a pool, as a thread takes and puts them: from the stash of its number, with an event for each that it
//! takes.
//!
//! With the feature `tracing` an event has the target `memcg::pool` and the level TRACE, as the kernel's
//! `kmem_cache_alloc`. Its fields are `pool`, `asked`, `given`, `recycled`, and `node` where the pool has one.
//!
//! A subscriber is foreign code, and threads take objects under locks and inside charges. So the thread notes each
//! object in words of its own, and reports them at the end of the slow path, where it holds no lock. Where one slow
//! path takes more objects than there are words, a last event has the number of the others, `unreported`. The thread
//! does not note what a subscriber takes, or there would be no end.

use super::local;
use crate::pool::cache::{Cache, Object};
use crate::pool::pages::NoMemory;

#[cfg(feature = "tracing")]
pub(crate) use reports::report;

/// Takes an object that no other thread has, as its last user has left it.
#[inline]
pub(crate) fn take(cache: &Cache) -> Result<Object, NoMemory> {
    let object = cache.take(local::number())?;
    #[cfg(feature = "tracing")]
    reports::note(&cache.shape, object.recycled);
    Ok(object)
}

/// Gives an object back, of which the caller is the last user.
#[inline]
pub(crate) fn put(cache: &Cache, number: u32) {
    cache.put(local::number(), number);
}

/// Without the feature the thread reports nothing.
#[cfg(not(feature = "tracing"))]
#[inline(always)]
pub(crate) fn report() {}

#[cfg(feature = "tracing")]
mod reports {
    use std::cell::Cell;

    use tracing::level_filters::LevelFilter;
    use tracing::{Level, event};

    use crate::pool::shape::Shape;
    use crate::sync::per_thread;
    use crate::thread::context;
    use crate::thread::foreign::contain;

    const TARGET: &str = "memcg::pool";

    /// The most objects of one slow path that a thread reports. The first write of statistics far below the root takes
    /// most objects: one for each level.
    const MOST: usize = 16;

    #[derive(Clone, Copy, Debug)]
    struct TakenObject {
        pool: &'static str,
        asked: usize,
        given: usize,
        node: Option<u16>,
        recycled: bool,
    }

    struct AllTaken {
        first: [Cell<Option<TakenObject>>; MOST],
        /// All objects, those that have no place in `first` included.
        count: Cell<usize>,
        reporting: Cell<bool>,
    }

    impl AllTaken {
        const fn new() -> Self {
            AllTaken { first: [const { Cell::new(None) }; MOST], count: Cell::new(0), reporting: Cell::new(false) }
        }
    }

    per_thread!(with_all: AllTaken = AllTaken::new());

    /// Notes an object that the thread has taken, unless it reports objects now. Calls no foreign code.
    pub(super) fn note(shape: &Shape, recycled: bool) {
        // A load: what the subscribers have asked for already.
        if LevelFilter::current() != LevelFilter::TRACE {
            return;
        }
        let node = shape.node.map(|node| node.get());
        let taken = TakenObject { pool: shape.kind.name(), asked: shape.asked, given: shape.given(), node, recycled };
        with_all(|all| {
            if !all.reporting.get() {
                if let Some(place) = all.first.get(all.count.get()) {
                    place.set(Some(taken));
                }
                all.count.set(all.count.get() + 1);
            }
        });
    }

    /// Reports to the subscribers what the thread has noted. The thread holds no lock and is in no slow path.
    #[inline]
    pub(crate) fn report() {
        with_all(|all| {
            if all.count.get() == 0 || all.reporting.replace(true) {
                return;
            }
            for TakenObject { pool, asked, given, node, recycled } in all.first.iter().filter_map(Cell::take) {
                foreign(|| event!(target: TARGET, Level::TRACE, pool, asked, given, node, recycled));
            }
            let unreported = all.count.replace(0).saturating_sub(MOST);
            if unreported > 0 {
                foreign(|| event!(target: TARGET, Level::TRACE, unreported));
            }
            all.reporting.set(false);
        });
    }

    /// Whatever a subscriber does, the caller goes on.
    fn foreign(work: impl FnOnce()) {
        context::in_listener(|| drop(contain(work)));
    }
}
