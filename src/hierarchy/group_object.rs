//! The object of a group: its counters, and what each policy keeps about it.
//!
//! ```text
//! memory | what only groups have | further counter 1 | … | a place for published statistics on each node
//! ```
//!
//! A group is one object of its tree's cache (`crate::pool`), and begins with its first counter.
//! The further counters lie behind it, each from a line on. Where the tree has more memory nodes
//! than one, places for the group's published statistics on them follow. The place of a counter
//! tells its group.

use std::cell::UnsafeCell;

use crate::counter::make::{is_made, made, new_counter};
use crate::counter::object::Object;
use crate::counter::object::tree::Tree;
use crate::counter::object::{Counter, CounterObject, HeaderRef, PlaceInGroup, TreeLinks};
use crate::hierarchy::declared_counters::DeclaredCounters;
use crate::hierarchy::group_tree::{self, GroupTree};
use crate::pool::shape::{PoolKind, Shape};
use crate::pool::{Cache, NoMemory, PoolAlign, cache};
use crate::stat::published::PublishedPlace;
use crate::state::applied::AppliedSettings;
use crate::state::events::EventsPlace;
use crate::state::limits::Percents;
use crate::state::name::Name;
use crate::state::oom::OomFlags;
use crate::state::reclaim::{NO_RING, RingPlace};
use crate::state::waiting::FirstInLine;
use crate::sync::stat_atomic::{AtomicPtr, AtomicU8};
use crate::sync::{Ordering, Shared};
use crate::thread::objects;

/// A group: its first counter, which counts memory, and what only groups have.
#[repr(C)]
pub(crate) struct GroupObject {
    object: CounterObject,
    state: CounterState,
    pub(crate) oom: OomFlags,
    /// The settings that come from a spec.
    pub(crate) applied: AppliedSettings,
    pub(crate) ring: RingPlace,
    /// The group's statistics; empty until a thread writes to it or to a group below.
    pub(crate) stats: PublishedPlace,
    name: UnsafeCell<Name>,
}

#[repr(C)]
struct FurtherCounter {
    counter: Object,
    state: CounterState,
}

/// The policies' state of each counter of a group.
#[derive(Default)]
pub(crate) struct CounterState {
    pub(crate) events: EventsPlace,
    pub(crate) first_in_line: FirstInLine,
    /// The next level in the list of the thread that serves this one; what it was, where the level
    /// is in no list.
    pub(crate) next_served: AtomicPtr<()>,
    pub(crate) percents: Percents,
    /// The number of the name that a service has for the limits, in the table of the process, plus
    /// 1; 0 where they have none.
    pub(crate) setting: AtomicU8,
}

impl CounterState {
    fn is_clean(&self) -> bool {
        self.events.get().is_none()
            && self.first_in_line.is_clean()
            && self.percents.is_clean()
            && self.setting.load(Ordering::Relaxed) == 0
    }
}

// SAFETY: only `begin` and `end` write `name`. Their caller took the object from the pool and has
// shown it to no other thread, or has won its release; all else is atomic.
#[allow(unsafe_code)]
unsafe impl Sync for GroupObject {}

/// Bytes from one further counter to the next.
const STRIDE: usize = size_of::<FurtherCounter>().next_multiple_of(PoolAlign::LINE);

/// The offset of the first further counter.
const FURTHER_AT: usize = size_of::<GroupObject>().next_multiple_of(PoolAlign::LINE);

// The places for published statistics lie behind the counters.
const _: () = assert!(
    size_of::<FurtherCounter>().is_multiple_of(PoolAlign::WORD)
        && size_of::<GroupObject>().is_multiple_of(PoolAlign::WORD)
        && align_of::<GroupObject>() <= PoolAlign::WORD
        && align_of::<PublishedPlace>() <= PoolAlign::WORD
);

/// The group of a counter, which is one of a tree of groups: the one cast from a counter to its
/// group.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn of(counter: &Counter) -> &GroupObject {
    // In release builds, too: the object of a bare counter is smaller, and the cast would read past
    // its end.
    assert!(
        counter.tree().policies().is_some(),
        "the counter of a group"
    );
    // SAFETY: the counters of a tree with policies lie in objects that `take` has made; objects are
    // never freed.
    unsafe { &*counter.head().cast::<GroupObject>() }
}

/// The further counters of a group, for one search or several.
#[derive(Clone, Copy)]
pub(crate) struct FurtherCounters<'a> {
    group: &'a Counter,
    declared: &'a DeclaredCounters,
}

#[inline(always)]
pub(crate) fn further(group: &Counter) -> FurtherCounters<'_> {
    FurtherCounters {
        group,
        declared: &group_tree::of(group).further,
    }
}

impl FurtherCounters<'_> {
    /// The counter of that number, where that builder has declared it. The group keeps it.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn header(self, number: usize, builder: u64) -> Option<HeaderRef> {
        if !self.declared.is_of(number, builder) {
            return None;
        }
        // SAFETY: the group has so many counters: the root has a place for each, and a group below
        // is created after the last one was declared. `take` has made each before it showed the
        // object to a thread, and objects are never freed; the pointer is that of the whole object.
        // The counters of a group are kept together.
        Some(unsafe {
            let counter = self.group.head().byte_add(counter_at(number));
            HeaderRef::new((*counter.cast::<Object>()).header)
        })
    }
}

#[allow(unsafe_code)]
pub(crate) fn state(counter: &Counter) -> &CounterState {
    let group = of(counter);
    match counter.number_in_group() {
        0 => &group.state,
        // SAFETY: `take` has made a further counter there; the pointer is that of the whole object.
        position => unsafe {
            &(*counter
                .head()
                .byte_add(counter_at(position))
                .cast::<FurtherCounter>())
            .state
        },
    }
}

/// The cache of groups of so many counters. Where there is more than one node, each object has a
/// place for published statistics on each.
pub(crate) fn group_cache(counters: usize, nodes: usize, align: PoolAlign) -> Shared<Cache> {
    let nodes = places_for(nodes);
    let asked = places_at(counters) + nodes * size_of::<PublishedPlace>();
    cache(Shape {
        kind: PoolKind::Group { counters, nodes },
        asked,
        align,
        node: None,
    })
}

/// With one node the group's own place has all statistics.
fn places_for(nodes: usize) -> usize {
    if nodes > 1 { nodes } else { 0 }
}

/// The offset in an object of the counter at that position.
#[inline]
fn counter_at(position: usize) -> usize {
    position
        .checked_sub(1)
        .map_or(0, |further| FURTHER_AT + further * STRIDE)
}

/// The offset in an object of the places for published statistics.
fn places_at(counters: usize) -> usize {
    if counters > 1 {
        counter_at(counters - 1) + size_of::<FurtherCounter>()
    } else {
        size_of::<GroupObject>()
    }
}

/// A clean group object that no other thread has: of the root, or of a group below it.
#[allow(unsafe_code)]
pub(crate) fn take(
    tree: &Tree,
    groups: &GroupTree,
    is_root: bool,
) -> Result<&'static Object, NoMemory> {
    let cache = tree.pool_of(is_root);
    let object = objects::take(cache)?;
    let first = object.first::<GroupObject>();
    let number = object.number;
    let counters = if is_root {
        groups.counters_of_root()
    } else {
        groups.counters_below()
    };
    for position in 0..counters {
        // SAFETY: an object of `group_cache` for so many counters and nodes, zeroed or made, that
        // no other thread has.
        unsafe {
            let at = |position| first.cast::<Object>().byte_add(counter_at(position));
            // The object has been a group before, or a thread has run out of memory halfway through
            // it.
            if is_made(at(position)) {
                continue;
            }
            // The counters of an object find each other by these offsets; 0 ends the row.
            let next = if position + 1 < counters {
                counter_at(position + 1) / PoolAlign::WORD
            } else {
                0
            };
            let object = first.as_ptr().cast();
            let place = PlaceInGroup {
                object,
                number,
                position: position as u16,
                next: next as u16,
            };
            match new_counter(at(position), place) {
                Ok(memory) if position == 0 => {
                    first.write(GroupObject::new(memory));
                    let places = first.byte_add(places_at(counters)).cast::<PublishedPlace>();
                    (0..places_for(groups.stats.nodes))
                        .for_each(|at| places.add(at).write(PublishedPlace::default()));
                }
                Ok(counter) => at(position).cast().write(FurtherCounter {
                    counter,
                    state: CounterState::default(),
                }),
                Err(refused) => {
                    // No counter is taken back: each is whole by itself.
                    // The next thread that takes the object initialises the rest.
                    objects::put(cache, number);
                    return Err(refused);
                }
            }
        }
    }
    Ok(made(first.cast()))
}

impl GroupObject {
    fn new(memory: Object) -> GroupObject {
        GroupObject {
            object: CounterObject {
                counter: memory,
                links: TreeLinks::new(),
            },
            state: CounterState::default(),
            oom: OomFlags::default(),
            applied: AppliedSettings::default(),
            ring: RingPlace::new(),
            stats: PublishedPlace::default(),
            name: UnsafeCell::new(Name::NONE),
        }
    }

    /// Gives a new group its name. No other thread has seen the object.
    pub(crate) fn begin(&self, name: Name) {
        debug_assert!(
            self.is_clean(),
            "a thread has written to an object in the pool"
        );
        self.set_name(name);
    }

    #[allow(unsafe_code)]
    fn set_name(&self, name: Name) {
        // SAFETY: see `Sync`.
        unsafe { *self.name.get() = name };
    }

    #[allow(unsafe_code)]
    fn counter(&self) -> &Counter {
        // SAFETY: `of` has borrowed the object from a counter of the group.
        unsafe { self.object.counter.kept() }
    }

    fn states(&self) -> impl Iterator<Item = &CounterState> {
        self.counter().group().map(state)
    }

    fn is_clean(&self) -> bool {
        self.oom.is_clean()
            && self.applied.is_clean()
            && self.ring.number() == NO_RING
            && self.states().all(CounterState::is_clean)
    }

    /// The group's name among its siblings; empty for the root.
    #[allow(unsafe_code)]
    pub(crate) fn name(&self) -> &Name {
        // SAFETY: no thread writes it while another one may have the group.
        unsafe { &*self.name.get() }
    }

    /// The group's places for published statistics on the nodes, null where a node has none; empty
    /// where the tree has one node.
    #[allow(unsafe_code)]
    pub(crate) fn node_places(&self) -> &[PublishedPlace] {
        let memory = self.counter();
        let groups = group_tree::of(memory);
        // SAFETY: `group_cache` asked for an object with so many places behind its counters, and
        // `take` initialised them; the pointer is that of the whole object.
        unsafe {
            let places = memory
                .head()
                .byte_add(places_at(groups.counters_of(memory)));
            std::slice::from_raw_parts(places.cast(), places_for(groups.stats.nodes))
        }
    }

    /// The policies have nothing of the group any more: its object goes back to the pool. No thread
    /// uses it.
    pub(crate) fn end(&self) {
        self.oom.reset();
        self.applied.reset();
        self.ring.set(NO_RING);
        self.states().for_each(|state| state.percents.reset());
        self.state.setting.store(0, Ordering::Relaxed);
        self.set_name(Name::NONE);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::counter::object::Usage;

    #[test]
    fn a_group_has_four_lines() {
        assert!(
            size_of::<GroupObject>() <= 4 * PoolAlign::LINE,
            "{} bytes",
            size_of::<GroupObject>()
        );
        assert_eq!(offset_of!(GroupObject, object), 0);
        assert_eq!(
            (offset_of!(Object, usage), offset_of!(Usage, units)),
            (0, 64),
            "units begin a line of a processor"
        );
        assert_eq!(
            offset_of!(Object, limits) % PoolAlign::LINE,
            0,
            "usage has a line of its own"
        );
    }

    #[test]
    fn counters_of_a_group_follow_each_other() {
        let cache = group_cache(3, 8, PoolAlign::Packed);
        let further = FURTHER_AT + STRIDE + size_of::<FurtherCounter>();
        assert_eq!(cache.shape.asked, further + 8 * size_of::<PublishedPlace>());
        assert_eq!(
            group_cache(1, 1, PoolAlign::Packed).shape.asked,
            size_of::<GroupObject>()
        );
    }
}
