//! The children of a group, listed while other groups come and go.
//!
//! A [snapshot of the hierarchy](crate::counter::links) locks all shards, so no group is created
//! meanwhile. A *listing* of the children of one parent holds the locks of a few shards, and over a
//! few children only:
//!
//! 1. Lock a few shards, in their order. Take handles on the next few children of the parent in
//!    their lists, from each list in turn.
//! 2. Where a list has more, leave a *cursor* in its shard, which names the next child. Unlock, and
//!    go on with 1.
//! 3. When the lists are over go on with the next few shards.
//!
//! | race | answer |
//! |---|---|
//! | the child that a cursor names goes offline | the thread that unlinks it moves the cursor on to the next child, under the same lock |
//! | a child is created | it is put before the others: a listing that is past the first returns it in no later step |
//! | a name is taken again | both children are in one shard, and the new one is put before the others: a listing returns one of the two at most |
//! | the parent goes offline | the caller keeps it; its lists are empty |
//!
//! So a child that is online through the whole listing is returned once, and any other once or not
//! at all.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::counter::handle::Handle;
use crate::counter::links::linked;
use crate::counter::object::tree::Shard;
use crate::counter::object::{Counter, CounterRef};
use crate::counter::slow_path::SlowPath;
use crate::sync::lock::{Lock, LockGuards};
use crate::sync::{CachePadded, SHARDS, SLICE, pause_point, prefetch};

/// Handles on the children of `parent` that are online, in no order. The caller holds no lock.
pub(crate) fn pin(parent: &Counter) -> Vec<Handle> {
    let children = parent.child_count().get();
    let mut pinned = Vec::with_capacity(children as usize);
    in_slices(parent, |listing| {
        let mut slice: SmallVec<[Handle; SLICE]> = SmallVec::new();
        let goes_on = listing.step(&mut |child| slice.push(Handle::pin(child)));
        // Outside of the locks, because this may allocate.
        pinned.extend(slice);
        goes_on
    });
    pinned
}

/// Calls `found` for each child of `parent` that is online, in no order, under the lock of its
/// shard. The caller holds no lock.
pub(crate) fn each(parent: &Counter, mut found: impl FnMut(&Counter)) {
    in_slices(parent, |listing| listing.step(&mut found));
}

/// Handles on the `n` children of `parent` with the highest usage, each with its usage, the highest
/// first. It keeps no more handles than twice as many. The caller holds no lock.
pub(crate) fn largest(parent: &Counter, n: usize) -> Vec<(Handle, u64)> {
    let mut kept: Vec<(Handle, u64)> = Vec::new();
    // No child below this usage is among them.
    let mut least = 0;
    if n == 0 {
        return kept;
    }
    let prune = |kept: &mut Vec<(Handle, u64)>| {
        kept.sort_by_key(|&(_, usage)| Reverse(usage));
        kept.truncate(n);
    };
    in_slices(parent, |listing| {
        let mut slice: SmallVec<[(Handle, u64); SLICE]> = SmallVec::new();
        let goes_on = listing.step(&mut |child| {
            let usage = child.usage();
            if usage >= least {
                slice.push((Handle::pin(child), usage));
            }
        });
        // Outside of the locks, because this may allocate, and the drop of a handle may release a
        // group.
        kept.extend(slice);
        if kept.len() / 2 >= n {
            prune(&mut kept);
            // Mutation: the-largest-child-hides-others
            least = kept.last().map_or(0, |&(_, usage)| usage.saturating_add(1));
        }
        goes_on
    });
    prune(&mut kept);
    kept
}

/// Shards whose lists a listing follows at once. Each child lies on a page of its own. To find the
/// next one of a list takes two loads from memory, one after the other, and those of several lists
/// overlap.
const TOGETHER: usize = if SHARDS < 4 { SHARDS } else { 4 };

/// The children of a parent in a few shards, from the next one on.
struct Listing<'a> {
    parent: &'a Counter,
    shards: &'a [CachePadded<Lock<Shard>>],
    next: [NextChild; TOGETHER],
}

#[derive(Clone, Copy)]
enum NextChild {
    First,
    /// The number of the cursor that names it.
    AtCursor(u64),
    None,
}

/// Makes all listings of the children, one after the other: `step` makes a step, and returns
/// whether there are more.
fn in_slices(parent: &Counter, mut step: impl FnMut(&mut Listing<'_>) -> bool) {
    if parent.child_count().get() == 0 {
        return;
    }
    for shards in parent.tree().hierarchy.shards.chunks(TOGETHER) {
        let mut listing = Listing {
            parent,
            shards,
            next: [NextChild::First; TOGETHER],
        };
        while step(&mut listing) {
            pause_point("between children");
        }
    }
}

impl Listing<'_> {
    /// Calls `found` for the next few children, under the locks of their shards. Returns whether
    /// there are more. Compiled once for all callers: it is long, and a child costs more than a call.
    fn step(&mut self, found: &mut dyn FnMut(&Counter)) -> bool {
        let _path = SlowPath::enter();
        let mut shards = LockGuards::lock(self.shards.iter().map(|shard| &**shard));
        let mut heads: [Option<CounterRef>; TOGETHER] = [None; TOGETHER];
        for (at, head) in heads.iter_mut().enumerate().take(self.shards.len()) {
            *head = match self.next[at] {
                NextChild::First => shards[at].first_child(self.parent).map(linked),
                NextChild::AtCursor(cursor) => shards[at].end_cursor(cursor),
                NextChild::None => None,
            };
        }
        // First along the links alone: what `found` looks at comes from memory meanwhile.
        let mut slice: SmallVec<[CounterRef; SLICE]> = SmallVec::new();
        while slice.len() < SLICE && heads.iter().any(Option::is_some) {
            for head in &mut heads {
                let Some(child) = head.filter(|_| slice.len() < SLICE) else {
                    continue;
                };
                prefetch(&raw const *child.usage);
                slice.push(child);
                *head = child.links().next().map(linked);
            }
        }
        slice.iter().for_each(|child| found(child));
        for (at, head) in heads.into_iter().enumerate().take(self.shards.len()) {
            let begin = |child: CounterRef| NextChild::AtCursor(shards[at].begin_cursor(&child));
            self.next[at] = head.map_or(NextChild::None, begin);
        }
        heads.iter().any(Option::is_some)
    }
}

/// Calls `found` for each group below `top` that went offline and still holds something, under the
/// lock of its shard: until then no thread releases it. The caller holds no lock.
pub(crate) fn each_dying(top: &Counter, mut found: impl FnMut(&Counter)) {
    for place in top.tree().hierarchy.places() {
        let _path = SlowPath::enter();
        let shard = place.lock();
        let mut next = shard.dying;
        while let Some(group) = next {
            if group
                .path_to_root()
                .skip(1)
                .any(|level| std::ptr::eq(level, top))
            {
                found(&group);
            }
            next = group.links().next().map(linked);
        }
    }
}
