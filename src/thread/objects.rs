//! Objects of a pool, as a thread takes and puts them: from the stash of its number, with an event for each that it
//! takes.
//!
//! With the feature `tracing` an event has the target `memcg::pool` and the level TRACE, as the kernel's
//! `kmem_cache_alloc`. Its fields are `pool`, `asked`, `given`, `recycled`, and `node` where the pool has one.
//!
//! A subscriber is foreign code, and threads take objects under locks and inside charges. So the thread notes each
//! object in words of its own, and reports them at the end of the slow path, where it holds no lock. Where one slow
//! path takes more objects than there are words, a last event has the number of the others, `untold`. The thread does
//! not note what a subscriber takes, or there would be no end.

use super::local;
use crate::pool::cache::{Cache, Object};
use crate::pool::pages::NoMemory;

#[cfg(feature = "tracing")]
pub(crate) use told::tell;

/// Takes an object that no other thread has, as its last user has left it.
#[inline]
pub(crate) fn take(cache: &Cache) -> Result<Object, NoMemory> {
    let object = cache.take(local::number())?;
    #[cfg(feature = "tracing")]
    told::note(&cache.shape, object.recycled);
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
pub(crate) fn tell() {}

#[cfg(feature = "tracing")]
mod told {
    use tracing::level_filters::LevelFilter;
    use tracing::{Level, event};

    use crate::pool::shape::Shape;
    use crate::thread::context;
    use crate::thread::foreign::contain;
    use crate::thread::taken::{Taken, note_taken, tell_taken};

    const TARGET: &str = "memcg::pool";

    /// Notes an object that the thread has taken. Calls no foreign code.
    pub(super) fn note(shape: &Shape, recycled: bool) {
        // A load: what the subscribers have asked for already.
        if LevelFilter::current() == LevelFilter::TRACE {
            let node = shape.node.map(|node| node.get());
            let (pool, asked, given) = (shape.kind.name(), shape.asked, shape.given());
            note_taken(Taken { pool, asked, given, node, recycled });
        }
    }

    /// Reports to the subscribers what the thread has noted. The thread holds no lock and is in no slow path.
    #[inline]
    pub(crate) fn tell() {
        tell_taken(tell_one, |untold| foreign(|| event!(target: TARGET, Level::TRACE, untold)));
    }

    fn tell_one(taken: Taken) {
        let Taken { pool, asked, given, node, recycled } = taken;
        foreign(|| event!(target: TARGET, Level::TRACE, pool, asked, given, node, recycled));
    }

    /// Whatever a subscriber does, the caller goes on.
    fn foreign(work: impl FnOnce()) {
        context::in_listener(|| drop(contain(work)));
    }
}
