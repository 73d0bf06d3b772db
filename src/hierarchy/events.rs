//! Events of a group, counted: at the group, and at each group above it.
//!
//! Most groups never have one. The counts are an object of a pool, taken with the first event of the group or of a group
//! below: counting does not enter the process's allocator, which may be the one that charges.
//!
//! Edges: E26 (an event/a listener), E40 (counts are made/read).

use std::ptr::{self, NonNull};

use crate::counter::object::Counter;
use crate::counter::slow_path::slow_path;
use crate::counter::tree::Tree;
use crate::counter::watch::LISTENS;
use crate::pool::shape::{Kind, Shape};
use crate::pool::{Cache, PoolAlign, cache};
use crate::state::events::{Event, EventCounts};
use crate::sync::{AtomicPtr, Ordering, Shared, fence_after_exchange};
use crate::thread::{objects, slow_path};

/// The cache that counts of events are taken from.
pub(crate) fn event_cache(align: PoolAlign) -> Shared<Cache> {
    #[allow(unsafe_code)]
    unsafe fn unmake(_: NonNull<u8>) {}
    cache(Shape { kind: Kind::Events, asked: size_of::<EventCounts>(), align, node: None }, unmake)
}

/// The group's counts; null before its first event.
fn pointer(group: &Counter) -> &AtomicPtr<EventCounts> {
    &group.usage.events
}

/// `None` in a tree of counters that are no groups, which have no events.
fn event_cache_of(tree: &Tree) -> Option<&Shared<Cache>> {
    tree.events.as_ref()
}

/// Count an event of this group, inside a slow path. No lock is taken that another thread holds for long; listeners are
/// notified at the end of the slow path.
///
/// Where the system has no memory for counts, and inside an allocator that charges, a group without counts gets none:
/// the event is counted from the nearest ancestor on that has some, at the latest the root.
pub(crate) fn count(group: &Counter, event: Event) {
    let Some(cache) = event_cache_of(group.tree()) else { return };
    if let Some(counts) = counts_or_make(group, cache) {
        counts.local.count(event);
    }
    for level in group.path_to_root() {
        // SeqCst (E26): the count, then a look for listeners; pairs with `ListenerGuard::poll`.
        if let Some(counts) = counts_or_make(level, cache) {
            counts.subtree.count(event);
        }
        fence_after_exchange();
        if level.is_watched_for(LISTENS) {
            level.schedule_service();
        }
    }
}

/// Count an event outside of any slow path: its listeners are notified before this returns.
pub(crate) fn count_and_notify(group: &Counter, event: Event) {
    slow_path(|_, _| count(group, event));
}

/// How often the event has happened: to the group itself, or in its subtree.
pub(crate) fn read(group: &Counter, event: Event, local: bool) -> u64 {
    let of = |counts: &EventCounts| if local { counts.local.get(event) } else { counts.subtree.get(event) };
    counts(group).map_or(0, of)
}

#[allow(unsafe_code)]
pub(crate) fn counts(group: &Counter) -> Option<&EventCounts> {
    // SeqCst (E26): as for the counts themselves. Acquire (E40): a thread that finds the counts finds them made. Both
    // pair with `make_counts`.
    let counts = pointer(group).load(Ordering::SeqCst);
    // SAFETY: an object of the pool, which never goes; the group has it until `forget`, and the caller keeps the group.
    unsafe { counts.as_ref() }
}

fn counts_or_make<'a>(group: &'a Counter, cache: &Cache) -> Option<&'a EventCounts> {
    counts(group).or_else(|| make_counts(group, cache))
}

#[cold]
#[allow(unsafe_code)]
fn make_counts<'a>(group: &'a Counter, cache: &Cache) -> Option<&'a EventCounts> {
    // A thread that charges inside the pool's locks must not come back to them.
    if slow_path::is_nested() {
        return None;
    }
    slow_path::run(|_, _| {
        let object = objects::take(cache).ok()?;
        let made = object.first::<EventCounts>();
        // SAFETY: of that size and alignment, and this thread's alone.
        unsafe { made.write(EventCounts::new(object.number)) };
        // SeqCst (E26): before the count; pairs with `counts`. Release (E40): after all is made.
        let first = pointer(group).compare_exchange(ptr::null_mut(), made.as_ptr(), Ordering::SeqCst, Ordering::SeqCst);
        if first.is_ok() {
            group.tree().counts.event_counts.fetch_add(1, Ordering::Relaxed);
        } else {
            put_back(cache, made);
        }
        counts(group)
    })
}

/// Give counts back to the pool.
#[allow(unsafe_code)]
fn put_back(cache: &Cache, counts: NonNull<EventCounts>) {
    // SAFETY: made in an object of the cache; the caller has it alone.
    let number = unsafe { counts.read() }.number;
    objects::put(cache, number);
}

/// Give a new root its counts: events of groups that get none are counted there.
pub(crate) fn prepare_root(root: &Counter) {
    if let Some(cache) = event_cache_of(root.tree()) {
        make_counts(root, cache);
    }
}

/// The group is gone: its counts go back to the pool.
pub(crate) fn forget(group: &Counter) {
    if let (Some(cache), Some(counts)) = (event_cache_of(group.tree()), counts(group)) {
        let counts = NonNull::from(counts);
        pointer(group).store(ptr::null_mut(), Ordering::Relaxed);
        put_back(cache, counts);
        group.tree().counts.event_counts.fetch_sub(1, Ordering::Relaxed);
    }
}
