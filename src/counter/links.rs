//! The shape of a tree: who is whose child, and under which name.
//!
//! Groups are made and thrown away by many threads at once, so no one lock stands over it. Names and lists of siblings lie
//! in *shards*, each behind a lock of its own; a group's shard follows from its parent and its name. What must hold of a
//! parent and all its children together is in one word of the parent, the number of its children and whether there may
//! be more: a parent that goes offline *bars* it, a child that comes counts itself there last (E37). Whoever needs the
//! shape to stand still *freezes* it: takes all shards, in their order.
//!
//! Only groups are linked, each by its first counter; the trees of its other counters have the same shape. Who is linked
//! is online, and stays where it is as long as its shard is locked.
//!
//! Edge: E37 (a child comes/its parent goes offline).

use std::hash::BuildHasher;

use hashbrown::{HashTable, TryReserveError};

use crate::counter::index::{Hint, Names, Refused};
use crate::counter::make::group;
use crate::counter::object::Counter;
use crate::sync::lock::{Lock, LockGuard, LockGuards, Rank};
use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU64 as StatU64};
use crate::sync::{CachePadded, NameHasher, Ordering, SHARDS};

/// No children any more; the rest of the word is their number.
const BARRED: u32 = 1 << 31;

/// All groups of a tree by name, and by parent.
pub(crate) struct Hierarchy {
    shards: [CachePadded<Place>; SHARDS],
    hasher: NameHasher,
}

struct Place {
    shard: Lock<Shard>,
    /// Where the shard has its names.
    hint: Hint,
}

/// A group's name below its parent, and where it stands.
#[derive(Clone, Copy)]
pub(crate) struct Hash(u64);

/// What is linked here.
#[derive(Default)]
pub(crate) struct Shard {
    /// Groups by parent and name.
    names: Names,
    /// Parents that have children here, and the youngest of these.
    parents: HashTable<Children>,
    /// Who went offline and still holds something, the youngest first.
    dying: Option<&'static Counter>,
    /// Groups that are online, and dying.
    online: u32,
    pub(crate) dead: u32,
}

struct Children {
    of: &'static Counter,
    first: &'static Counter,
}

/// Among which siblings a group stands; written under the lock of its shard.
pub(crate) struct Sibling {
    hash: StatU64,
    next: StatPtr<Counter>,
    prev: StatPtr<Counter>,
}

/// Memory for an entry was refused: so many bytes.
pub(crate) struct NoRoom(pub(crate) usize);

/// Why a group was not taken offline.
#[derive(Debug)]
pub(crate) struct HasChildren(pub(crate) usize);

// === impl Counter: its place in the shape ===

impl Sibling {
    pub(crate) fn new() -> Sibling {
        let nobody = || StatPtr::new(std::ptr::null_mut());
        Sibling { hash: StatU64::new(0), next: nobody(), prev: nobody() }
    }
}

fn set(link: &StatPtr<Counter>, node: Option<&'static Counter>) {
    link.store(node.map_or(std::ptr::null(), std::ptr::from_ref).cast_mut(), Ordering::Relaxed);
}

#[allow(unsafe_code)]
fn get(link: &StatPtr<Counter>) -> Option<&'static Counter> {
    // SAFETY: `set` has stored it; objects are never freed, and who is linked is in its life.
    unsafe { link.load(Ordering::Relaxed).as_ref() }
}

impl Counter {
    fn hash(&self) -> u64 {
        self.sibling.hash.load(Ordering::Relaxed)
    }

    /// Children that are online.
    pub(crate) fn children(&self) -> u32 {
        // Acquire (E37): whoever finds no child finds nothing of it linked; pairs with the end of a child.
        self.children.load(Ordering::Acquire) & !BARRED
    }

    /// One child more, unless there may be none. Whether it is the first.
    fn add_child(&self) -> Option<bool> {
        let more = |children: u32| (children & BARRED == 0).then_some(children + 1);
        // AcqRel (E37): pairs with `bar`.
        self.children.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok().map(|before| before == 0)
    }

    /// The last of what leaving a parent is: that may go offline now.
    pub(crate) fn leave_parent(&self) {
        if let Some(parent) = self.incarnation().parent {
            // Release (E37): pairs with `bar`: nothing of the child is linked then, and it is offline.
            parent.first().children.fetch_sub(1, Ordering::Release);
        }
    }

    /// No child from here on, and no stock that opens: the group is going offline. Not where it has children.
    pub(crate) fn bar(&self) -> Result<(), HasChildren> {
        // SeqCst (E35, E37): pairs with `add_child`, and with the look in `Tree::open`.
        match self.children.compare_exchange(0, BARRED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) | Err(BARRED) => Ok(()),
            Err(children) => Err(HasChildren(children as usize)),
        }
    }

    pub(crate) fn is_barred(&self) -> bool {
        // SeqCst (E35): after `Stocks::set_open`, pairs with `bar`.
        self.children.load(Ordering::SeqCst) & BARRED != 0
    }
}

// === impl Hierarchy ===

impl Hierarchy {
    pub(crate) fn new() -> Hierarchy {
        let shard = || Lock::new(Rank::Hierarchy, Shard::default());
        let place = |_| CachePadded::new(Place { shard: shard(), hint: Hint::new() });
        Hierarchy { shards: std::array::from_fn(place), hasher: NameHasher::default() }
    }

    /// Of a name below `parent`; of a counter without a name, which nobody looks for.
    fn hash_of(&self, parent: Option<&Counter>, name: &str, number: u32) -> u64 {
        match parent {
            Some(parent) if !name.is_empty() => self.hasher.hash_one((parent.number, name)),
            _ => spread(number),
        }
    }

    fn place(&self, hash: u64) -> &Place {
        &self.shards[shard_of(hash)]
    }

    fn lock_shard(&self, hash: u64) -> LockGuard<'_, Shard> {
        self.place(hash).shard.lock()
    }

    /// Of a child that there is to be: what a look for its name needs comes while it is made. Takes no lock.
    pub(crate) fn expect(&self, parent: &Counter, name: &str) -> Hash {
        let hash = self.hash_of(Some(parent), name, 0);
        self.place(hash).hint.fetch(hash);
        Hash(hash)
    }

    /// The same of a group that is going to leave.
    pub(crate) fn expect_leave(&self, group: &Counter) {
        self.place(group.hash()).hint.fetch(group.hash());
    }

    /// The shard of a group that is in its life but not linked yet.
    pub(crate) fn lock_for(&self, node: &Counter) -> LockGuard<'_, Shard> {
        let life = node.incarnation();
        self.lock_expected(node, Hash(self.hash_of(life.parent, &life.name, node.number)))
    }

    /// The same of one that was [expected](Self::expect).
    pub(crate) fn lock_expected(&self, node: &Counter, Hash(hash): Hash) -> LockGuard<'_, Shard> {
        node.sibling.hash.store(hash, Ordering::Relaxed);
        self.lock_shard(hash)
    }

    /// Room for one more in the shard of a group, which the caller has locked; nothing is allocated after this.
    pub(crate) fn reserve(&self, shard: &mut Shard, node: &Counter) -> Result<(), NoRoom> {
        shard.reserve(&self.place(node.hash()).hint)
    }

    /// The shard of a group that is linked, or was.
    pub(crate) fn lock_of(&self, node: &Counter) -> LockGuard<'_, Shard> {
        self.lock_shard(node.first().hash())
    }

    /// The child of that name, with a handle for the caller, who keeps the parent.
    pub(crate) fn find(&self, parent: &Counter, name: &str) -> Option<&'static Counter> {
        let hash = self.hash_of(Some(parent), name, 0);
        let shard = self.lock_shard(hash);
        let child = shard.child(hash, parent, name)?;
        child.state().pin();
        Some(child)
    }

    /// Groups that are online or dying, and bytes of the tables: shard after shard.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let sizes = self.shards.iter().map(|place| {
            let shard = place.shard.lock();
            let tables = shard.names.bytes() + shard.parents.allocation_size();
            (u64::from(shard.online + shard.dead), tables as u64)
        });
        sizes.fold((0, 0), |(groups, bytes), shard| (groups + shard.0, bytes + shard.1))
    }

    /// Nobody comes and nobody goes, for as long as the result lives.
    pub(crate) fn snapshot(&self) -> HierarchySnapshot<'_> {
        HierarchySnapshot(LockGuards::lock(self.shards.iter().map(|place| &place.shard)))
    }

    /// The groups below `top` that are online, parents first, itself first of all; for a further counter, the same one of
    /// each group. With handles: what is done to them may need their shards.
    pub(crate) fn pinned_below(&self, top: &'static Counter) -> Pinned {
        let pin = |node: &'static Counter| {
            node.first().state().pin();
            node
        };
        Pinned(self.snapshot().subtree(top).map(pin).collect())
    }

    /// The whole shape, unless somebody comes or goes just now.
    pub(crate) fn try_snapshot(&self) -> Option<HierarchySnapshot<'_>> {
        LockGuards::try_lock(self.shards.iter().map(|place| &place.shard)).map(HierarchySnapshot)
    }
}

/// Counters that are kept, each with a handle on its group.
pub(crate) struct Pinned(Vec<&'static Counter>);

impl Pinned {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static Counter> + '_ {
        self.0.iter().copied()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for node in self.0.drain(..) {
            let keeper = node.first();
            if let Some(of) = keeper.unpin() {
                keeper.part(of);
            }
        }
    }
}

fn shard_of(hash: u64) -> usize {
    // Bits that the tables of one shard make little use of.
    (hash >> 40) as usize % SHARDS
}

/// A hash of what nobody chooses (Fibonacci's).
fn spread(number: u32) -> u64 {
    u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

// === impl Shard ===

impl Shard {
    fn child(&self, hash: u64, parent: &Counter, name: &str) -> Option<&'static Counter> {
        let same = |child: &'static Counter| {
            let life = child.incarnation();
            *life.name == *name && life.parent.is_some_and(|of| std::ptr::eq(of, parent))
        };
        self.names.find(hash, |number| group(number).is_some_and(same)).and_then(group)
    }

    /// The parent of a new group has a child of its name.
    pub(crate) fn is_taken(&self, node: &Counter) -> bool {
        let life = node.incarnation();
        life.parent.is_some_and(|parent| self.child(node.hash(), parent, &life.name).is_some())
    }

    fn reserve(&mut self, hint: &Hint) -> Result<(), NoRoom> {
        self.names.reserve(hint).map_err(|Refused(bytes)| NoRoom(bytes))?;
        let parents = self.parents.try_reserve(1, |children| spread(children.of.number));
        parents.map_err(|refused| match refused {
            TryReserveError::AllocError { layout } => NoRoom(layout.size()),
            TryReserveError::CapacityOverflow => NoRoom(usize::MAX),
        })
    }

    /// Into its parent's children, if it may have any; a root is only counted. Whether it is the first.
    pub(crate) fn link(&mut self, node: &'static Counter) -> Option<bool> {
        let life = node.incarnation();
        let mut first = false;
        if let Some(parent) = life.parent {
            // The last that may refuse (E37).
            first = parent.first().add_child()?;
            self.push(node, parent.first());
            if !life.name.is_empty() {
                self.names.insert(node.hash(), node.number);
            }
        }
        self.online += 1;
        Some(first)
    }

    fn push(&mut self, node: &'static Counter, parent: &'static Counter) {
        let same = |children: &Children| std::ptr::eq(children.of, parent);
        let next = match self.parents.find_mut(spread(parent.number), same) {
            Some(children) => Some(std::mem::replace(&mut children.first, node)),
            None => {
                let rehash = |children: &Children| spread(children.of.number);
                self.parents.insert_unique(spread(parent.number), Children { of: parent, first: node }, rehash);
                None
            }
        };
        link_before(node, next);
    }

    /// Out of the children of its parent: its name is free. Counted there until `leave_parent`.
    fn pull(&mut self, node: &'static Counter) {
        let Some(parent) = node.incarnation().parent else { return };
        let parent = parent.first();
        self.names.remove(node.hash(), node.number);
        if let Some(next) = unlink(node)
            && let Ok(mut children) =
                self.parents.find_entry(spread(parent.number), |children| std::ptr::eq(children.of, parent))
        {
            match next {
                Some(next) => children.get_mut().first = next,
                None => drop(children.remove()),
            }
        }
    }

    /// From the children to the dying. Its parent counts it still.
    pub(crate) fn leave(&mut self, node: &'static Counter) {
        self.pull(node);
        link_before(node, self.dying.replace(node));
        self.online -= 1;
        self.dead += 1;
    }

    /// A counter that was not taken offline is done with.
    pub(crate) fn retire(&mut self, node: &'static Counter) {
        self.pull(node);
        node.leave_parent();
        self.online -= 1;
    }

    /// One of the dying is done with.
    pub(crate) fn release(&mut self, node: &'static Counter) {
        if let Some(next) = unlink(node) {
            self.dying = next;
        }
        self.dead -= 1;
    }
}

/// In front of a list.
fn link_before(node: &'static Counter, next: Option<&'static Counter>) {
    set(&node.sibling.prev, None);
    set(&node.sibling.next, next);
    if let Some(next) = next {
        set(&next.sibling.prev, Some(node));
    }
}

/// Out of its list. What is in front of that now, where this was.
fn unlink(node: &'static Counter) -> Option<Option<&'static Counter>> {
    let Sibling { next, prev, .. } = &node.sibling;
    let (next, prev) = (get(next), get(prev));
    if let Some(next) = next {
        set(&next.sibling.prev, prev);
    }
    match prev {
        Some(prev) => {
            set(&prev.sibling.next, next);
            None
        }
        None => Some(next),
    }
}

// === The whole shape ===

/// The shape of a tree while nobody comes and nobody goes.
pub(crate) struct HierarchySnapshot<'a>(LockGuards<'a, Shard>);

impl HierarchySnapshot<'_> {
    pub(crate) fn shard_of(&mut self, node: &Counter) -> &mut Shard {
        &mut self.0[shard_of(node.hash())]
    }

    /// The youngest child of `parent` in the shards from `from` on.
    fn first_child(&self, parent: &Counter, from: usize) -> Option<&'static Counter> {
        if parent.children() == 0 {
            return None;
        }
        let same = |children: &Children| std::ptr::eq(children.of, parent);
        let mut shards = self.0.iter().skip(from);
        shards.find_map(|shard| Some(shard.parents.find(spread(parent.number), same)?.first))
    }

    fn next_sibling(&self, node: &Counter) -> Option<&'static Counter> {
        let parent = node.incarnation().parent?.first();
        get(&node.sibling.next).or_else(|| self.first_child(parent, shard_of(node.hash()) + 1))
    }

    /// The group after `group` in a walk over all below `top`, parents first.
    fn after(&self, group: &'static Counter, top: &Counter) -> Option<&'static Counter> {
        let mut at = group;
        let mut next = self.first_child(at, 0);
        while next.is_none() && !std::ptr::eq(at, top) {
            next = self.next_sibling(at);
            at = at.incarnation().parent?.first();
        }
        next
    }

    /// The groups below `top` that are online, parents first, itself first of all; for a further counter, the same one of
    /// each group.
    pub(crate) fn subtree(&self, top: &'static Counter) -> impl Iterator<Item = &'static Counter> + '_ {
        let (first, counter) = (top.first(), top.number_in_group());
        let groups = std::iter::successors(Some(first), move |&group| self.after(group, first));
        groups.filter_map(move |group| group.group().nth(counter))
    }

    /// The children that are online.
    pub(crate) fn children(&self, group: &'static Counter) -> impl Iterator<Item = &'static Counter> + '_ {
        std::iter::successors(self.first_child(group, 0), |child| self.next_sibling(child))
    }

    /// The counters below `top` that went offline and still hold something, parents before children.
    pub(crate) fn dying_below(&self, top: &'static Counter) -> Vec<&'static Counter> {
        let counter = top.number_in_group();
        let lists = self.0.iter().filter_map(|shard| shard.dying);
        let groups = lists.flat_map(|first| std::iter::successors(Some(first), |group| get(&group.sibling.next)));
        let below = |node: &&'static Counter| node.path_to_root().skip(1).any(|level| std::ptr::eq(level, top));
        let mut dying: Vec<_> = groups.filter_map(|group| group.group().nth(counter)).filter(below).collect();
        dying.sort_by_key(|node| node.path_to_root().count());
        dying
    }

    /// Groups that are online, and that are dying.
    pub(crate) fn groups(&self) -> (usize, usize) {
        let counts = self.0.iter().map(|shard| (shard.online as usize, shard.dead as usize));
        counts.fold((0, 0), |(online, dying), shard| (online + shard.0, dying + shard.1))
    }
}
