//! Events of a group, counted: at the group, and at all above it.
//!
//! Most groups never have one. Counts are an object of a pool, taken with the first event of the group or of a group below:
//! the process's allocator, which may be charging, is not entered for it.
//!
//! Edges: E26 (an event/somebody who waits for it), E40 (counts are made/read).

use std::ptr::{self, NonNull};

use crate::counter::object::Counter;
use crate::counter::watch::LISTENS;
use crate::pool::shape::{Kind, Shape};
use crate::pool::{Cache, PoolAlign, cache};
use crate::reclaim::Event;
use crate::reclaim::event::EventCounts;
use crate::sync::{Ordering, Shared, fence_after_exchange};
use crate::thread::{objects, registry};

/// Where counts of events come from.
pub(crate) fn event_cache(align: PoolAlign) -> Shared<Cache> {
    #[allow(unsafe_code)]
    unsafe fn unmake(_: NonNull<u8>) {}
    cache(Shape { kind: Kind::Events, asked: size_of::<EventCounts>(), align, node: None }, unmake)
}

/// Counts that nobody has any more.
#[allow(unsafe_code)]
fn put_back(cache: &Cache, counts: NonNull<EventCounts>) {
    // SAFETY: made in an object of the cache, and nobody's any more, says the caller.
    let number = unsafe { counts.read() }.number;
    objects::put(cache, number);
}

impl Counter {
    /// An event of this group. Takes no lock that anybody holds for long; who waits for it is told at the end of the
    /// slow path. Counters that are no groups have no events.
    ///
    /// Where the system has no memory for counts, and inside an allocator that charges, a group without any goes without:
    /// the event is counted from the nearest group on that has some, the root at last.
    pub(crate) fn count_event(&self, event: Event) {
        let Some(cache) = &self.tree().events else { return };
        if let Some(counts) = self.counts_or_make(cache) {
            counts.local.count(event);
        }
        for level in self.path_to_root() {
            // SeqCst (E26): counted, then a look for somebody who waits; pairs with `Hearing::poll`.
            if let Some(counts) = level.counts_or_make(cache) {
                counts.subtree.count(event);
            }
            fence_after_exchange();
            if level.is_watched_for(LISTENS) {
                level.schedule_service();
            }
        }
    }

    /// How often it has happened, to the group itself or in its subtree.
    pub(crate) fn event_count(&self, event: Event, local: bool) -> u64 {
        let of = |counts: &EventCounts| if local { counts.local.get(event) } else { counts.subtree.get(event) };
        self.counts().map_or(0, of)
    }

    #[allow(unsafe_code)]
    pub(crate) fn counts(&self) -> Option<&EventCounts> {
        // SeqCst (E26): as for the counts themselves. Acquire (E40): whoever finds them finds them made. Both pair with
        // `make_counts`.
        let counts = self.usage.events.load(Ordering::SeqCst);
        // SAFETY: an object of the pool, which never goes; the group's until it is buried, and who has the group keeps it.
        unsafe { counts.as_ref() }
    }

    fn counts_or_make(&self, cache: &Cache) -> Option<&EventCounts> {
        self.counts().or_else(|| self.make_counts(cache))
    }

    #[cold]
    #[allow(unsafe_code)]
    pub(crate) fn make_counts(&self, cache: &Cache) -> Option<&EventCounts> {
        // Whoever charges inside the pool's locks must not come back to them.
        if registry::is_nested() {
            return None;
        }
        registry::slow_path(|_, _| {
            let object = objects::take(cache).ok()?;
            let made = object.first::<EventCounts>();
            // SAFETY: of that size and alignment, and nobody else's.
            unsafe { made.write(EventCounts::new(object.number)) };
            // SeqCst (E26): before the count; pairs with `counts`. Release (E40): after all is made.
            let first =
                self.usage.events.compare_exchange(ptr::null_mut(), made.as_ptr(), Ordering::SeqCst, Ordering::SeqCst);
            if first.is_ok() {
                self.tree().counts.event_counts.fetch_add(1, Ordering::Relaxed);
            } else {
                put_back(cache, made);
            }
            self.counts()
        })
    }

    /// The group is nobody's any more.
    pub(crate) fn forget_events(&self) {
        if let (Some(cache), Some(counts)) = (&self.tree().events, self.counts()) {
            let counts = NonNull::from(counts);
            self.usage.events.store(ptr::null_mut(), Ordering::Relaxed);
            put_back(cache, counts);
            self.tree().counts.event_counts.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
