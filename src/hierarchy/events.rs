//! Counts the events of a group: at the group, and at each group above it.
//!
//! Most groups never have an event. The counts are an object of a pool. A thread takes it with the
//! first event of the group or of a group below. So counting does not enter the process's
//! allocator, which may be the code that charges.
//!
//! Edge: E26 (an event/a listener).

use std::ptr::{self, NonNull};

use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_object;
use crate::hierarchy::group_tree::{self, GroupTree};
use crate::hierarchy::service::{self, LISTENS};
use crate::pool::Cache;
use crate::state::events::{Event, EventCounts, EventsPlace};
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::slow_path::Entered;
use crate::thread::{objects, slow_path};

/// Levels that get counts in one pass over a path.
const AT_ONCE: usize = 64;

fn place(of: &Counter) -> &EventsPlace {
    &group_object::state(of).events
}

/// Counts an event of this group. It takes no lock that another thread holds for long. The thread
/// notifies listeners before this returns, or at the end of the slow path that it is in.
///
/// A group without counts gets none if the system has no memory for them, and inside an allocator
/// that charges. Then the count starts at the nearest ancestor that has some, at the latest at the
/// root.
pub(crate) fn count(group: &Counter, event: Event) {
    make_all(group);
    count_made(group, event);
}

/// Counts an event of a group whose counts were made earlier. The caller may hold locks, or be in
/// transit of a slow path.
pub(crate) fn count_made(group: &Counter, event: Event) {
    let mut listened = false;
    for level in group.path_to_root() {
        listened |= count_at(level, counts(level), group, event);
    }
    // Once for the whole path, after all levels have counted: a listener may read the counts of any
    // of them.
    if listened {
        let _path = SlowPath::enter();
        group
            .path_to_root()
            .filter(|level| level.limits.watched.is_for(LISTENS))
            .for_each(service::schedule);
    }
}

/// Counts an event of `group` at one level. Returns whether a thread listens there.
#[inline]
fn count_at(level: &Counter, counts: Option<&EventCounts>, group: &Counter, event: Event) -> bool {
    if let Some(counts) = counts {
        let tally = if ptr::eq(level, group) {
            &counts.local
        } else {
            &counts.below
        };
        // SeqCst (E26): the count, then a look for listeners; pairs with `ListenerGuard::poll`.
        tally.count(event);
    }
    // Mutation: e26-count-without-fence
    fence_after_exchange();
    level.limits.watched.is_for(LISTENS)
}

/// The count of the group itself, or of its subtree.
pub(crate) fn read(group: &Counter, event: Event, local: bool) -> u64 {
    let of = |counts: &EventCounts| {
        if local {
            counts.local.get(event)
        } else {
            counts.subtree(event)
        }
    };
    counts(group).map_or(0, of)
}

pub(crate) fn counts(group: &Counter) -> Option<&EventCounts> {
    place(group).get()
}

/// Gives the group and all above it counts. False where the system has no memory for one of them.
#[inline]
pub(crate) fn make_all(group: &Counter) -> bool {
    counts(group).is_some() || make_missing(group)
}

/// From the highest level down: a thread that finds the counts of a level (E40) finds those of all
/// levels above.
#[cold]
fn make_missing(group: &Counter) -> bool {
    let cache = &group_tree::of(group).events;
    loop {
        // The highest of those that have none, in turn: a long path is not passed once for each
        // level.
        let mut highest = [None; AT_ONCE];
        let mut without = 0;
        for level in group.path_to_root().filter(|level| counts(level).is_none()) {
            highest[without % AT_ONCE] = Some(level);
            without += 1;
        }
        if without == 0 {
            return true;
        }
        // Mutation: e40-counts-are-made-from-the-group-up
        // The last ones found are the highest. Where there are more than fit, the loop begins anew
        // for those below.
        let from_above = (without.saturating_sub(AT_ONCE)..without).rev();
        // Mutation: counts-are-made-for-the-highest-alone
        for level in from_above.filter_map(|number| highest[number % AT_ONCE]) {
            if make_counts(level, cache).is_none() {
                return false;
            }
        }
    }
}

#[cold]
#[allow(unsafe_code)]
fn make_counts<'a>(group: &'a Counter, cache: &Cache) -> Option<&'a EventCounts> {
    // A nested thread may hold the pool's locks, and must not take them again.
    if slow_path::is_nested() {
        return None;
    }
    let _entered = Entered::enter();
    let object = objects::take(cache).ok()?;
    let made = object.first::<EventCounts>();
    // SAFETY: of that size and alignment, and this thread's alone.
    unsafe {
        made.write(EventCounts {
            number: object.number,
            ..EventCounts::default()
        })
    };
    if place(group).set_first(made) {
        group_tree::of(group)
            .event_counts
            .fetch_add(1, Ordering::Relaxed);
    } else {
        // Another thread has given the group counts meanwhile, and may have counted there already:
        // its counts stay.
        put_back(cache, made);
    }
    counts(group)
}

#[allow(unsafe_code)]
fn put_back(cache: &Cache, counts: NonNull<EventCounts>) {
    // SAFETY: made in an object of the cache; the caller has it alone.
    let number = unsafe { counts.read() }.number;
    objects::put(cache, number);
}

/// Gives the counts of a group that is gone back to the pool.
pub(crate) fn forget(group: &Counter) {
    if let Some(counts) = place(group).take() {
        let GroupTree {
            events,
            event_counts,
            ..
        } = group_tree::of(group);
        put_back(events, counts);
        // Mutation: event-counts-are-counted-for-ever
        event_counts.fetch_sub(1, Ordering::Relaxed);
    }
}
