//! The children of a group, listed while other groups come and go.
//!
//! A [snapshot of the hierarchy](crate::counter::links) locks all shards, so no group is created meanwhile. A
//! *listing* of the children of one parent holds one lock at a time, and each over a few children only:
//!
//! 1. Lock a shard. Take handles on the next few children of the parent in its list.
//! 2. If there are more, leave a *cursor* in the shard, which names the next child. Unlock, and go on with 1.
//! 3. Else unlock, and go on with the next shard.
//!
//! | race | answer |
//! |---|---|
//! | the child that a cursor names goes offline | the thread that unlinks it moves the cursor on to the next child, under the same lock |
//! | a child is created | it is put before the others: a listing that is past the first returns it in no later step |
//! | a name is taken again | both children are in one shard, and the new one is put before the others: a listing returns one of the two at most |
//! | the parent goes offline | the caller keeps it; its lists are empty |
//!
//! So a child that is online through the whole listing is returned once, and any other once or not at all.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::object::tree::ShardPlace;
use crate::counter::slow_path::SlowPath;
use crate::sync::{SLICE, pause_point};

/// Handles on the children of `parent` that are online, in no order. The caller keeps the parent and holds no lock.
pub(crate) fn pin(parent: &'static Counter) -> Vec<Handle> {
    let children = parent.child_count().get();
    let mut pinned = Vec::with_capacity(children as usize);
    if children > 0 {
        for place in parent.tree().hierarchy.places() {
            let mut cursor = None;
            loop {
                let (slice, next) = pin_slice(place, parent, cursor);
                // Outside of the lock, because this may allocate.
                pinned.extend(slice);
                if next.is_none() {
                    break;
                }
                cursor = next;
                pause_point("between children");
            }
        }
    }
    pinned
}

/// Calls `found` for each child of `parent` that is online, in no order, under the lock of its shard. The caller keeps
/// the parent and holds no lock.
pub(crate) fn each(parent: &'static Counter, mut found: impl FnMut(&'static Counter)) {
    if parent.child_count().get() == 0 {
        return;
    }
    for place in parent.tree().hierarchy.places() {
        let mut cursor = each_in_slice(place, parent, None, &mut found);
        while cursor.is_some() {
            pause_point("between children");
            cursor = each_in_slice(place, parent, cursor, &mut found);
        }
    }
}

/// Handles on the `n` children of `parent` with the highest usage, each with its usage, the highest first. It keeps no
/// more handles than twice as many. The caller keeps the parent and holds no lock.
pub(crate) fn largest(parent: &'static Counter, n: usize) -> Vec<(Handle, u64)> {
    let mut kept: Vec<(Handle, u64)> = Vec::new();
    // No child below this usage is among them.
    let mut least = 0;
    if parent.child_count().get() == 0 || n == 0 {
        return kept;
    }
    let prune = |kept: &mut Vec<(Handle, u64)>| {
        kept.sort_by_key(|&(_, usage)| Reverse(usage));
        kept.truncate(n);
    };
    for place in parent.tree().hierarchy.places() {
        let mut cursor = None;
        loop {
            let mut slice: SmallVec<[(Handle, u64); SLICE]> = SmallVec::new();
            cursor = each_in_slice(place, parent, cursor, &mut |child| {
                let usage = child.usage();
                if usage >= least {
                    slice.push((Handle::pin(child), usage));
                }
            });
            // Outside of the lock, because this may allocate, and the drop of a handle may release a group.
            kept.extend(slice);
            if kept.len() / 2 >= n {
                prune(&mut kept);
                least = kept.last().map_or(0, |&(_, usage)| usage.saturating_add(1));
            }
            if cursor.is_none() {
                break;
            }
            pause_point("between children");
        }
    }
    prune(&mut kept);
    kept
}

/// Calls `found` for the next few children. Returns the number of the cursor that names the one after them.
fn each_in_slice(
    place: &ShardPlace,
    parent: &'static Counter,
    cursor: Option<u64>,
    found: &mut impl FnMut(&'static Counter),
) -> Option<u64> {
    let _path = SlowPath::enter();
    let mut shard = place.shard.lock();
    let mut next = match cursor {
        None => shard.first_child(parent),
        Some(cursor) => shard.end_cursor(cursor),
    };
    for _ in 0..SLICE {
        let Some(child) = next else { break };
        found(child);
        next = child.links().next();
    }
    next.map(|child| shard.begin_cursor(child))
}

/// The next few children, and the number of the cursor that names the one after them.
fn pin_slice(
    place: &ShardPlace,
    parent: &'static Counter,
    cursor: Option<u64>,
) -> (SmallVec<[Handle; SLICE]>, Option<u64>) {
    let mut slice = SmallVec::new();
    let cursor = each_in_slice(place, parent, cursor, &mut |child| slice.push(Handle::pin(child)));
    (slice, cursor)
}

/// Calls `found` for each group below `top` that went offline and still holds something, under the lock of its shard:
/// until then no thread releases it. The caller keeps `top` and holds no lock.
pub(crate) fn each_dying(top: &'static Counter, mut found: impl FnMut(&Counter)) {
    for place in top.tree().hierarchy.places() {
        let _path = SlowPath::enter();
        let shard = place.shard.lock();
        let mut next = shard.dying;
        while let Some(group) = next {
            if group.path_to_root().skip(1).any(|level| std::ptr::eq(level, top)) {
                found(group);
            }
            next = group.links().next();
        }
    }
}
