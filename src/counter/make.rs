//! Group objects: type-stable, owned by the process, recycled across trees.
//!
//! ```text
//! counter 0 (memory) | counter 1 | … | counter n - 1 | a place for published statistics on each node
//! ```
//!
//! A group is one object of its tree's cache (`crate::pool`). Its counters lie one behind the other, each from a line
//! on. Where the tree has more memory nodes than one, places for the group's published statistics on them follow. A
//! counter alone is a group of one. The place of a counter tells its group.
//!
//! An object keeps its memory, its slot indices and its headers for ever; only its `incarnation` changes. So a late
//! read of a header or a state word finds a header or a state word, and a stale id finds another generation. The tree's
//! cache is made before the tree: no counter exists without it.

use std::mem::offset_of;
use std::ptr::NonNull;

use crate::counter::incarnation::Generation;
use crate::counter::object::tree::Tree;
use crate::counter::object::{Counter, InGroup, Incarnation};
use crate::pool::shape::{Kind, Shape};
use crate::pool::{Cache, NoMemory, PoolAlign, cache, directory};
use crate::stat::coordinator::Coordinator;
use crate::stat::published::PublishedPlace;
use crate::sync::Shared;
use crate::thread::directory::Header;
use crate::thread::objects;
use crate::thread::registry::registry;

/// Bytes from one counter of a group to the next.
const STRIDE: usize = size_of::<Counter>().next_multiple_of(PoolAlign::LINE);

// The places for published statistics lie behind the counters.
const _: () =
    assert!(size_of::<Counter>().is_multiple_of(PoolAlign::WORD) && align_of::<PublishedPlace>() <= PoolAlign::WORD);

/// The cache of groups of so many counters. Where there is more than one node, each object has a place for published
/// statistics on each.
pub(crate) fn group_cache(counters: usize, nodes: usize, align: PoolAlign) -> Shared<Cache> {
    let nodes = places_for(nodes);
    let asked = parts_at(counters) + nodes * size_of::<PublishedPlace>();
    cache(Shape { kind: Kind::Group { counters, nodes }, asked, align, node: None }, unmake)
}

/// With one node the group's own place has all statistics.
fn places_for(nodes: usize) -> usize {
    if nodes > 1 { nodes } else { 0 }
}

/// The offset in an object of the places for published statistics.
fn parts_at(counters: usize) -> usize {
    (counters - 1) * STRIDE + size_of::<Counter>()
}

/// Drop the counters of an object that have been initialised.
#[allow(unsafe_code)]
unsafe fn unmake(object: NonNull<u8>) {
    let mut counter = object.cast::<Counter>();
    // SAFETY: the caller has the object, and no other thread uses it; its first counter, once initialised, has the
    // number of its counters.
    unsafe {
        let mut left = if is_made(counter) { counter.as_ref().counters } else { 0 };
        while left > 0 && is_made(counter) {
            counter.drop_in_place();
            counter = counter.byte_add(STRIDE);
            left -= 1;
        }
    }
}

/// Whether `counter` is initialised, or still zeroed memory.
///
/// # Safety
///
/// `counter` is a place for a counter in an object of the caller's, which is zeroed or initialised.
#[allow(unsafe_code)]
unsafe fn is_made(counter: NonNull<Counter>) -> bool {
    // SAFETY: the caller guarantees the place: the pointer read is null or a header.
    unsafe { !counter.byte_add(offset_of!(Counter, header)).cast::<*const Header>().read().is_null() }
}

/// A process shares its caches by reference, a model by counted references.
fn cache_of(shared: &Shared<Cache>) -> &Cache {
    shared
}

// === impl Tree ===

impl Tree {
    /// A clean group object that no other thread has.
    pub(crate) fn take_object(&self) -> Result<&'static Counter, NoMemory> {
        let object = objects::take(cache_of(&self.pool))?;
        let first = object.first::<Counter>();
        let counters = 1 + self.further.len();
        for position in 0..counters {
            let place = InGroup {
                object: first.as_ptr(),
                number: object.number,
                position: position as u16,
                counters: counters as u16,
            };
            let made = make(place);
            if position == 0 && made == Ok(true) {
                self.make_places(first);
            }
            if let Err(refused) = made {
                // The next thread that takes the object initialises the rest.
                objects::put(cache_of(&self.pool), object.number);
                return Err(refused);
            }
        }
        Ok(counter_in(first))
    }

    /// Initialise the places for published statistics in an object of this tree, which no other thread has.
    #[allow(unsafe_code)]
    fn make_places(&self, first: NonNull<Counter>) {
        let nodes = self.stats.as_ref().map_or(0, |stats| places_for(stats.nodes));
        // SAFETY: `group_cache` asked for an object with so many places behind its counters.
        unsafe {
            let places = first.byte_add(parts_at(1 + self.further.len())).cast::<PublishedPlace>();
            (0..nodes).for_each(|at| places.add(at).write(PublishedPlace::empty()));
        }
    }

    /// Give an object back that no other thread has seen, or whose last user is the caller. Drops what its incarnations
    /// held.
    pub(crate) fn give_back(&self, group: &'static Counter) {
        let mut usable = true;
        for counter in group.group() {
            drop(counter.end());
            usable &= counter.state().end();
        }
        if usable {
            objects::put(cache_of(&self.pool), group.number);
        }
    }

    /// The caches of this tree's objects; that of groups first.
    pub(crate) fn caches(&self) -> impl Iterator<Item = &Cache> {
        let parts = self.stats.as_ref().into_iter().flat_map(Coordinator::caches);
        std::iter::once(&self.pool).chain(&self.events).map(cache_of).chain(parts)
    }

    /// Give a released object back; its state word is in the next generation already.
    pub(crate) fn recycle(&self, group: &'static Counter) -> Option<Incarnation> {
        let incarnation = group.end();
        for counter in group.group().skip(1) {
            drop(counter.end());
            counter.state().end();
        }
        if !group.state().is_spent() {
            objects::put(cache_of(&self.pool), group.number);
        }
        incarnation
    }
}

/// The object of an id, with a handle for the caller, if it is still in that incarnation. `number` is that of a group
/// that exists or existed. Takes no lock.
pub(crate) fn pin(number: u32, of: Generation) -> Option<&'static Counter> {
    let group = counter_in(directory().object(number)?.cast());
    group.state().try_pin(of).then_some(group)
}

/// The group of that number, which exists. Takes no lock.
#[inline]
pub(crate) fn group(number: u32) -> Option<&'static Counter> {
    Some(counter_in(directory().object(number)?.cast()))
}

/// Initialise a counter, unless a thread has done so before. Returns whether this call did.
#[allow(unsafe_code)]
fn make(place: InGroup) -> Result<bool, NoMemory> {
    // SAFETY: the caller's object has so many places for counters.
    unsafe {
        let counter = NonNull::new_unchecked(place.object.cast_mut()).byte_add(usize::from(place.position) * STRIDE);
        if is_made(counter) {
            return Ok(false);
        }
        let (index, header) = registry().take_index().map_err(|bytes| NoMemory { bytes })?;
        header.bind(counter.as_ptr().cast());
        counter.write(Counter::new(place, index, header));
    }
    Ok(true)
}

/// The counter in an initialised place, which stays a counter for ever.
#[allow(unsafe_code)]
fn counter_in(made: NonNull<Counter>) -> &'static Counter {
    // SAFETY: the counter is initialised. Its chunk is never freed while a thread may use a counter: the process or the
    // model owns the cache.
    unsafe { made.as_ref() }
}

// === impl Counter ===

impl Counter {
    /// The counters of this counter's group, the first one first.
    #[allow(unsafe_code)]
    pub(crate) fn group(&self) -> impl Iterator<Item = &'static Counter> + use<> {
        let first = self.object;
        // SAFETY: the pool initialises all counters of an object before it shows the first to a thread, and they stay.
        (0..usize::from(self.counters)).map(move |position| unsafe { &*first.byte_add(position * STRIDE) })
    }

    /// The group's places for published statistics on the nodes, null where a node has none; empty where the tree has
    /// one node. For the first counter of a group.
    #[allow(unsafe_code)]
    pub(crate) fn parts(&self) -> &'static [PublishedPlace] {
        let nodes = self.tree().stats.as_ref().map_or(0, |stats| places_for(stats.nodes));
        // SAFETY: `group_cache` asked for an object with so many places behind its counters, initialised with them.
        unsafe {
            let places = self.object.byte_add(parts_at(self.counters.into()));
            std::slice::from_raw_parts(places.cast(), nodes)
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_counter_has_four_lines() {
        assert!(size_of::<Counter>() <= 4 * PoolAlign::LINE, "{} bytes", size_of::<Counter>());
        assert_eq!(offset_of!(Counter, usage), 0);
        assert_eq!(offset_of!(Counter, limits) % PoolAlign::LINE, 0, "usage has a line of its own");
    }

    #[test]
    fn counters_of_a_group_follow_each_other() {
        let cache = group_cache(3, 8, PoolAlign::Packed);
        assert_eq!(cache.shape.asked, 2 * STRIDE + size_of::<Counter>() + 8 * size_of::<PublishedPlace>());
        assert_eq!(group_cache(1, 1, PoolAlign::Packed).shape.asked, size_of::<Counter>());
    }
}
