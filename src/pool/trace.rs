//! One event for each object that is taken, with the feature `tracing`: target `memcg::pool`, level TRACE, with the
//! fields `pool`, `asked`, `given`, `node` where the pool has one, and `recycled`; as the kernel's `kmem_cache_alloc`.
//!
//! A subscriber is foreign code, and objects are taken under locks and inside charges. So each is noted in words of the
//! thread's own and told at the end of the slow path, where no lock is held; where one slow path takes more than there is
//! place for, a last event has their number, `untold`. What a subscriber takes itself is not told, or there would be no
//! end.

#[cfg(feature = "tracing")]
pub(crate) use told::{note, tell};

#[cfg(not(feature = "tracing"))]
pub(crate) use silent::{note, tell};

#[cfg(not(feature = "tracing"))]
mod silent {
    use crate::pool::shape::Shape;

    #[inline(always)]
    pub(crate) fn note(_: &Shape, _: bool) {}

    #[inline(always)]
    pub(crate) fn tell() {}
}

#[cfg(feature = "tracing")]
mod told {
    use tracing::level_filters::LevelFilter;
    use tracing::{Level, event};

    use crate::pool::shape::Shape;
    use crate::thread::foreign::contain;
    use crate::thread::taken::{Taken, note_taken, tell_taken};

    const TARGET: &str = "memcg::pool";

    /// An object was taken. No foreign code is called.
    pub(crate) fn note(shape: &Shape, recycled: bool) {
        // What a subscriber has said already: a load.
        if LevelFilter::current() == LevelFilter::TRACE {
            let node = shape.node.map(|node| node.get());
            let (pool, asked, given) = (shape.kind.name(), shape.asked, shape.given());
            note_taken(Taken { pool, asked, given, node, recycled });
        }
    }

    /// Tell what was noted. No lock is held, and no slow path of this thread is under way.
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
        crate::thread::context::tell(|| drop(contain(work)));
    }
}
