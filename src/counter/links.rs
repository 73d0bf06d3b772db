//! The hierarchy of a tree: each group's parent, children and name.
//!
//! Many threads create and release groups at once, so no single lock guards the hierarchy. Names
//! and lists of siblings lie in *shards*, each behind a lock of its own; a group's parent and name
//! decide its shard. One word of the parent has what must hold of a parent and all its children
//! together: the number of its children, and whether there may be more. A parent that goes offline
//! *bars* the word; a new child counts itself there last (E37). A thread that needs the hierarchy
//! to stand still takes a *snapshot*: it locks all shards, in their order.
//!
//! Only groups are linked, each by its first counter. A linked group is online, and keeps its place
//! as long as its shard is locked.
//!
//! Edge: E37 (a child comes/its parent goes offline).

use std::hash::BuildHasher;

use hashbrown::TryReserveError;

use crate::counter::handle::Handle;
use crate::counter::index::NamesHint;
use crate::counter::make::group;
use crate::counter::object::tree::{Children, Cursor, Hierarchy, Shard};
use crate::counter::object::{Counter, CounterRef, Object, TreeLinks};
use crate::counter::slow_path::SlowPath;
use crate::pool::NoMemory;
use crate::sync::lock::{Lock, LockGuard, LockGuards};
use crate::sync::stat_atomic::AtomicPtr as StatPtr;
use crate::sync::{Ordering, SHARDS};

/// The hash of a group's name below its parent, which decides its shard.
#[derive(Clone, Copy)]
pub(crate) struct NameHash(u64);

/// Stores a link, as a pointer to the object. The caller has locked the shard, which orders it; so
/// Relaxed will do here and in `get`.
fn set(link: &StatPtr<Object>, counter: Option<&Counter>) {
    let object = counter.map_or(std::ptr::null(), |counter| {
        std::ptr::from_ref(counter.object())
    });
    link.store(object.cast_mut(), Ordering::Relaxed);
}

/// The counter that `set` has stored. The caller has locked the shard.
#[allow(unsafe_code)]
fn get(link: &StatPtr<Object>) -> Option<&Counter> {
    // SAFETY: `set` has stored it; objects are never freed, and a linked counter is in its
    // incarnation.
    unsafe {
        link.load(Ordering::Relaxed)
            .as_ref()
            .map(|object| object.kept())
    }
}

/// The group as its shard has it, which the caller has locked.
#[allow(unsafe_code)]
pub(in crate::counter) fn linked(group: &Counter) -> CounterRef {
    // SAFETY: a group that ends is unlinked before, under the same lock; the children that are
    // linked keep their parent.
    unsafe { CounterRef::new(group) }
}

impl TreeLinks {
    fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }

    /// The next of the siblings in the shard. The caller has locked the shard.
    pub(crate) fn next(&self) -> Option<&Counter> {
        get(&self.next)
    }
}

/// Takes the group out of its parent's count. It is the last step of leaving it: from then on the
/// parent may go offline.
pub(crate) fn leave_parent(group: &Counter) {
    if let Some(parent) = group.parent() {
        parent.child_count().remove();
    }
}

/// The groups below `top` that are online, as the snapshot's `subtree` has them, each with a
/// handle: what the caller does to them may need their shards.
pub(crate) fn pin_below(top: &Counter) -> Vec<Handle> {
    let _path = SlowPath::enter();
    top.tree()
        .hierarchy
        .snapshot()
        .subtree(top)
        .map(Handle::pin)
        .collect()
}

impl Hierarchy {
    /// Returns the hash of a name below its parent, and prefetches the place of the name: where
    /// there are many groups it is in no cache.
    pub(crate) fn hash_name(&self, parent: &Counter, name: impl std::hash::Hash) -> NameHash {
        let hash = self.hasher.hash_one((parent.number, name));
        self.hints[shard_of(hash)].fetch(hash);
        NameHash(hash)
    }

    /// The hint of the shard of a group, for [`Shard::reserve`].
    pub(crate) fn hint_of(&self, group: &Counter) -> &NamesHint {
        &self.hints[shard_of(group.links().hash())]
    }

    fn lock_shard(&self, hash: u64) -> LockGuard<'_, Shard> {
        self.shards[shard_of(hash)].lock()
    }

    /// The shard of a group that is in its incarnation but not linked yet, by the hash of its name.
    pub(crate) fn lock_for(
        &self,
        group: &Counter,
        NameHash(hash): NameHash,
    ) -> LockGuard<'_, Shard> {
        group.links().hash.store(hash, Ordering::Relaxed);
        self.lock_shard(hash)
    }

    /// The shard of a group that is linked, or was.
    pub(crate) fn lock_of(&self, group: &Counter) -> LockGuard<'_, Shard> {
        self.lock_shard(group.links().hash())
    }

    /// The child of that hash that is `the_one`.
    pub(crate) fn find(
        &self,
        NameHash(hash): NameHash,
        the_one: impl Fn(&Counter) -> bool,
    ) -> Option<Handle> {
        let shard = self.lock_shard(hash);
        // While the shard is locked: right after that the group may go.
        // Mutation: a-found-child-is-not-kept
        shard.child(hash, the_one).map(Handle::pin)
    }

    /// Returns how many groups are online or dying, and the bytes of the tables. Takes the locks of
    /// the shards one after the other, so the figures are of no single moment.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let sizes = self.places().map(|place| {
            let shard = place.lock();
            let tables = shard.names.bytes() + shard.parents.allocation_size();
            (u64::from(shard.online + shard.dead), tables as u64)
        });
        sizes.fold((0, 0), |(groups, bytes), shard| {
            (groups + shard.0, bytes + shard.1)
        })
    }

    /// Locks all shards, in their order: no group is linked or unlinked for as long as the result
    /// lives.
    pub(crate) fn snapshot(&self) -> HierarchySnapshot<'_> {
        HierarchySnapshot(LockGuards::lock(self.places()))
    }

    /// No listing of children is between two steps.
    #[cfg(test)]
    #[allow(dead_code)]
    pub(crate) fn has_no_cursors(&self) -> bool {
        self.places().all(|place| place.lock().cursors.is_empty())
    }

    /// All shards, each behind its lock.
    pub(in crate::counter) fn places(&self) -> impl Iterator<Item = &Lock<Shard>> + Clone {
        self.shards.iter().map(|place| &**place)
    }

    /// `None` where another thread holds a shard just now.
    pub(crate) fn try_snapshot(&self) -> Option<HierarchySnapshot<'_>> {
        LockGuards::try_lock(self.places()).map(HierarchySnapshot)
    }
}

fn shard_of(hash: u64) -> usize {
    // Bits that the tables of one shard make little use of.
    (hash >> 40) as usize % SHARDS
}

impl NameHash {
    /// The hash of a counter without a name, which no thread looks up.
    pub(crate) fn of_unnamed(counter: &Counter) -> NameHash {
        NameHash(spread(counter.number))
    }
}

/// A hash of a number that no user chooses, or of a part of a hash (Fibonacci hashing).
fn spread(number: u32) -> u64 {
    u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Shard {
    fn child(&self, hash: u64, the_one: impl Fn(&Counter) -> bool) -> Option<&Counter> {
        let is_it = |number| named(self, number).is_some_and(&the_one);
        named(self, self.names.find(hash, is_it)?)
    }

    /// True if the shard of a new group has a group of its hash that is `the_one`.
    pub(crate) fn has(&self, new: &Counter, the_one: impl Fn(&Counter) -> bool) -> bool {
        self.child(new.links().hash(), the_one).is_some()
    }

    /// The youngest child of `parent` in this shard.
    pub(in crate::counter) fn first_child(&self, parent: &Counter) -> Option<&Counter> {
        Some(
            &*self
                .parents
                .find(spread(parent.number), |children| children.are_of(parent))?
                .first,
        )
    }

    /// Leaves a cursor that names `at`, where a listing of children goes on once the shard is
    /// locked again. Returns the cursor's number.
    pub(in crate::counter) fn begin_cursor(&mut self, at: &Counter) -> u64 {
        let number = self
            .cursors
            .iter()
            .map(|cursor| cursor.number + 1)
            .max()
            .unwrap_or(0);
        self.cursors.push(Cursor {
            number,
            at: Some(linked(at)),
        });
        number
    }

    /// Takes a cursor out. Returns the child that it names by now, if one is left: `pull` has moved
    /// it on where the child has gone.
    pub(in crate::counter) fn end_cursor(&mut self, number: u64) -> Option<CounterRef> {
        let at = self
            .cursors
            .iter()
            .position(|cursor| cursor.number == number)?;
        self.cursors.swap_remove(at).at
    }

    /// Reserves room for one more group, so that a creation is refused for lack of memory before
    /// anything is linked: no step after this allocates.
    pub(crate) fn reserve(&mut self, hint: &NamesHint) -> Result<(), NoMemory> {
        self.names.reserve(hint)?;
        let parents = self
            .parents
            .try_reserve(1, |children| spread(children.of.number));
        parents.map_err(|refused| match refused {
            TryReserveError::AllocError { layout } => NoMemory {
                bytes: layout.size(),
            },
            TryReserveError::CapacityOverflow => NoMemory { bytes: usize::MAX },
        })
    }

    /// Links a group into its parent's children, if the parent may have any; a root is only
    /// counted. A search finds the group where it is `named`. Returns whether the group is the
    /// first child; `None`: the parent is barred.
    pub(crate) fn link(&mut self, group: &Counter, named: bool) -> Option<bool> {
        let mut first = false;
        if let Some(parent) = group.parent() {
            // This is the last step that may refuse (E37).
            first = parent.child_count().add()?;
            // From here on the group pins its ancestors. Next to the count: one line of the
            // processor has both.
            Handle::pin(parent).into_raw();
            self.push(group, parent.first());
            if named {
                self.names.insert(group.links().hash(), group.number);
            }
        }
        self.online += 1;
        Some(first)
    }

    /// Puts a group in front of its siblings in this shard. The first one enters its parent into
    /// the table.
    fn push(&mut self, group: &Counter, parent: &Counter) {
        let first = linked(group);
        let next = match self
            .parents
            .find_mut(spread(parent.number), |children| children.are_of(parent))
        {
            Some(children) => Some(std::mem::replace(&mut children.first, first)),
            None => {
                let rehash = |children: &Children| spread(children.of.number);
                let children = Children {
                    of: linked(parent),
                    first,
                };
                // The caller has reserved room, so this allocates nothing.
                self.parents
                    .insert_unique(spread(parent.number), children, rehash);
                None
            }
        };
        link_before(group, next.as_deref());
    }

    /// Unlinks a group from its parent's children: its name is free. The parent counts it until
    /// `leave_parent`, so it stays online meanwhile.
    fn pull(&mut self, group: &Counter) {
        let Some(parent) = group.parent() else { return };
        let parent = parent.first();
        // A listing that has stopped at this group goes on with the next one.
        for cursor in self
            .cursors
            .iter_mut()
            .filter(|cursor| cursor.at.is_some_and(|at| std::ptr::eq(&*at, group)))
        {
            // Mutation: a-listing-is-not-moved-on
            cursor.at = group.links().next().map(linked);
        }
        self.names.remove(group.links().hash(), group.number);
        // The group was the front of its siblings: the parent's entry names the next one, or goes.
        if let Some(next) = unlink(group)
            && let Ok(mut children) = self
                .parents
                .find_entry(spread(parent.number), |children| children.are_of(parent))
        {
            match next {
                Some(next) => children.get_mut().first = linked(next),
                None => drop(children.remove()),
            }
        }
    }

    /// Moves a group from the children to the dying. Its parent still counts it.
    pub(crate) fn leave(&mut self, group: &Counter) {
        self.pull(group);
        link_before(group, self.dying.replace(linked(group)).as_deref());
        self.online -= 1;
        self.dead += 1;
    }

    /// Unlinks a group that ends without going offline, as a counter alone does.
    pub(crate) fn retire(&mut self, group: &Counter) {
        self.pull(group);
        leave_parent(group);
        self.online -= 1;
    }

    /// Unlinks one of the dying, which is released.
    pub(crate) fn unlink_dying(&mut self, group: &Counter) {
        if let Some(next) = unlink(group) {
            self.dying = next.map(linked);
        }
        self.dead -= 1;
    }
}

fn link_before(group: &Counter, next: Option<&Counter>) {
    set(&group.links().prev, None);
    set(&group.links().next, next);
    if let Some(next) = next {
        set(&next.links().prev, Some(group));
    }
}

/// Unlinks a group from its list. Where it was the front, returns the new front, which the caller
/// has to store.
fn unlink(group: &Counter) -> Option<Option<&Counter>> {
    let TreeLinks { next, prev, .. } = group.links();
    let next = get(next);
    let prev = get(prev);
    if let Some(next) = next {
        set(&next.links().prev, prev);
    }
    match prev {
        Some(prev) => {
            set(&prev.links().next, next);
            None
        }
        None => Some(next),
    }
}

/// All shards of a tree, locked.
pub(crate) struct HierarchySnapshot<'a>(LockGuards<'a, Shard>);

/// The group of an entry of the names of a shard.
#[allow(unsafe_code)]
fn named(_: &Shard, number: u32) -> Option<&Counter> {
    // SAFETY: a linked group is in its incarnation; the caller has locked the shard that has the
    // entry.
    group(number).map(|group| unsafe { group.kept() })
}

impl Children {
    fn are_of(&self, parent: &Counter) -> bool {
        std::ptr::eq(&*self.of, parent)
    }
}

impl HierarchySnapshot<'_> {
    pub(crate) fn shard_of(&mut self, group: &Counter) -> &mut Shard {
        &mut self.0[shard_of(group.links().hash())]
    }

    /// The youngest child of `parent` in the shards from `from` on.
    fn first_child(&self, parent: &Counter, from: usize) -> Option<&Counter> {
        // Most groups have no child: one load, and no look at each shard.
        if parent.child_count().get() == 0 {
            return None;
        }
        self.0
            .iter()
            .skip(from)
            .find_map(|shard| shard.first_child(parent))
    }

    fn next_sibling<'a>(&'a self, group: &'a Counter) -> Option<&'a Counter> {
        let parent = group.parent()?.first();
        // The siblings of this shard first, then those of the shards behind it.
        get(&group.links().next)
            .or_else(|| self.first_child(parent, shard_of(group.links().hash()) + 1))
    }

    /// The group after `group` in a walk over all below `top`, parents first.
    fn after<'a>(&'a self, group: &'a Counter, top: &Counter) -> Option<&'a Counter> {
        // Down to a child, else to the next sibling, else to that of the nearest ancestor that has
        // one. A walk needs no stack for this: each group has its parent.
        let mut at = group;
        let mut next = self.first_child(at, 0);
        while next.is_none() && !std::ptr::eq(at, top) {
            next = self.next_sibling(at);
            at = at.parent()?.first();
        }
        next
    }

    /// The groups below `top` that are online, parents first, `top` itself first of all; for a
    /// further counter, the same counter of each group.
    pub(crate) fn subtree<'a>(&'a self, top: &'a Counter) -> impl Iterator<Item = &'a Counter> {
        // Only the first counter of a group is linked. The walk is over groups, and each is asked
        // for its counter of that number; not all have as many.
        let first = top.first();
        let number = top.number_in_group();
        let groups = std::iter::successors(Some(first), move |&group| self.after(group, first));
        groups.filter_map(move |group| group.group().nth(number))
    }

    /// The children of a group that are online, shard by shard, the youngest of each shard first.
    pub(crate) fn children<'a>(&'a self, group: &'a Counter) -> impl Iterator<Item = &'a Counter> {
        std::iter::successors(self.first_child(group, 0), |child| self.next_sibling(child))
    }

    /// The counters below `top` that went offline and still hold something, parents before
    /// children.
    pub(crate) fn dying_below<'a>(&'a self, top: &'a Counter) -> Vec<&'a Counter> {
        let number = top.number_in_group();
        let lists = self.0.iter().filter_map(|shard| shard.dying.as_deref());
        let groups = lists
            .flat_map(|first| std::iter::successors(Some(first), |group| get(&group.links().next)));
        // The lists have the dying groups of the whole tree. They are in no list of children any
        // more, so each asks its own path.
        let below = |counter: &&Counter| {
            counter
                .path_to_root()
                .skip(1)
                .any(|level| std::ptr::eq(level, top))
        };
        let mut dying: Vec<_> = groups
            .filter_map(|group| group.group().nth(number))
            .filter(below)
            .collect();
        // A parent is nearer to the root than its children.
        dying.sort_by_key(|counter| counter.path_to_root().count());
        dying
    }

    /// The numbers of groups that are online, and that are dying.
    pub(crate) fn groups(&self) -> (usize, usize) {
        let counts = self
            .0
            .iter()
            .map(|shard| (shard.online as usize, shard.dead as usize));
        counts.fold((0, 0), |(online, dying), shard| {
            (online + shard.0, dying + shard.1)
        })
    }
}
