//! Groups' objects: type-stable, of the process, recycled across trees.
//!
//! ```text
//! counter 0 (memory) | counter 1 | … | counter n - 1 | a place for the part on each node
//! ```
//!
//! A group is one object of its tree's cache (`crate::pool`): its counters one behind the other, each from a line on,
//! then, where the tree has more memory nodes than one, places for the group's parts on them. A counter alone is a group
//! of one. Whose counters they are can be told from where they lie.
//!
//! An object keeps its memory, its slot indices and its headers for ever; what changes is its `incarnation`. So a late
//! look at a header or a state word finds a header or a state word, and a stale id finds another generation. The cache is
//! there before the tree is: no counter exists without it.

use std::mem::offset_of;
use std::ptr::NonNull;

use crate::counter::incarnation::Generation;
use crate::counter::object::{Counter, InGroup, Incarnation};
use crate::counter::tree::Tree;
use crate::pool::shape::{Kind, Shape};
use crate::pool::{Cache, NoMemory, PoolAlign, cache, directory};
use crate::stat::coordinator::Coordinator;
use crate::stat::published::PublishedPlace;
use crate::sync::{Ordering, Shared};
use crate::thread::directory::Header;
use crate::thread::objects;
use crate::thread::registry::registry;

/// Bytes from one counter of a group to the next.
const STRIDE: usize = size_of::<Counter>().next_multiple_of(PoolAlign::LINE);

// The places for parts lie behind the counters.
const _: () =
    assert!(size_of::<Counter>().is_multiple_of(PoolAlign::WORD) && align_of::<PublishedPlace>() <= PoolAlign::WORD);

/// The cache of groups of so many counters, with a place for a part on each of so many nodes where there are more than
/// one.
pub(crate) fn group_cache(counters: usize, nodes: usize, align: PoolAlign) -> Shared<Cache> {
    let nodes = places_for(nodes);
    let asked = parts_at(counters) + nodes * size_of::<PublishedPlace>();
    cache(Shape { kind: Kind::Group { counters, nodes }, asked, align, node: None }, unmake)
}

/// With one node all is the group's own.
fn places_for(nodes: usize) -> usize {
    if nodes > 1 { nodes } else { 0 }
}

/// Where in an object the places for parts lie.
fn parts_at(counters: usize) -> usize {
    (counters - 1) * STRIDE + size_of::<Counter>()
}

/// Drops the counters of an object that have been made.
#[allow(unsafe_code)]
unsafe fn unmake(object: NonNull<u8>) {
    let mut counter = object.cast::<Counter>();
    // SAFETY: the caller's object, which nobody uses; its first counter, where it is made, tells how many there are.
    unsafe {
        let mut left = if is_made(counter) { counter.as_ref().counters } else { 0 };
        while left > 0 && is_made(counter) {
            counter.drop_in_place();
            counter = counter.byte_add(STRIDE);
            left -= 1;
        }
    }
}

/// Whether there is a counter yet, or zeroed memory for one.
///
/// # Safety
///
/// A place for a counter in an object of the caller's, which is zeroed or made.
#[allow(unsafe_code)]
unsafe fn is_made(counter: NonNull<Counter>) -> bool {
    // SAFETY: as above: a pointer that is null or a header.
    unsafe { !counter.byte_add(offset_of!(Counter, header)).cast::<*const Header>().read().is_null() }
}

/// A process shares its caches by reference, a model by counted references.
fn cache_of(shared: &Shared<Cache>) -> &Cache {
    shared
}

// === impl Tree ===

impl Tree {
    /// A group's object that nobody else has. Clean.
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
                // Whoever takes it next goes on with it.
                objects::put(cache_of(&self.pool), object.number);
                return Err(refused);
            }
        }
        Ok(node(first))
    }

    /// The places for parts in an object of this tree, which nobody else has.
    #[allow(unsafe_code)]
    fn make_places(&self, first: NonNull<Counter>) {
        let nodes = self.stats.as_ref().map_or(0, |stats| places_for(stats.nodes));
        // SAFETY: the object was asked for with so many places behind its counters.
        unsafe {
            let places = first.byte_add(parts_at(1 + self.further.len())).cast::<PublishedPlace>();
            (0..nodes).for_each(|at| places.add(at).write(PublishedPlace::empty()));
        }
    }

    /// Give an object back that was never shown to anybody, or whose last user is the caller. Drops what its lives
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

    /// Where the objects of this tree come from; groups first.
    pub(crate) fn caches(&self) -> impl Iterator<Item = &Cache> {
        let parts = self.stats.as_ref().into_iter().flat_map(Coordinator::caches);
        std::iter::once(&self.pool).chain(&self.events).map(cache_of).chain(parts)
    }

    /// Give a buried object back; its state word is in the next generation already.
    pub(crate) fn recycle(&self, group: &'static Counter) -> Option<Incarnation> {
        let life = group.end();
        for counter in group.group().skip(1) {
            drop(counter.end());
            counter.state().end();
        }
        if !group.usage.spent.load(Ordering::Relaxed) {
            objects::put(cache_of(&self.pool), group.number);
        }
        life
    }
}

/// The object of an id, with a handle for the caller, if it is still in that life. `number` is that of a group which is
/// there or was. Takes no lock.
pub(crate) fn pin(number: u32, of: Generation) -> Option<&'static Counter> {
    let group = node(directory().object(number)?.cast());
    group.state().try_pin(of).then_some(group)
}

/// The group of that number, which is there. Takes no lock.
#[inline]
pub(crate) fn group(number: u32) -> Option<&'static Counter> {
    Some(node(directory().object(number)?.cast()))
}

/// Make a counter, unless somebody has. Whether it was made.
#[allow(unsafe_code)]
fn make(place: InGroup) -> Result<bool, NoMemory> {
    // SAFETY: an object of the caller's has so many places for counters.
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

/// What is made of an object is a counter for ever.
#[allow(unsafe_code)]
fn node(made: NonNull<Counter>) -> &'static Counter {
    // SAFETY: made, of a chunk that is never given back while a counter may be used: the cache is the process's, or the
    // model's.
    unsafe { made.as_ref() }
}

// === impl Counter ===

impl Counter {
    /// The counters of the group that this is one of, the first first.
    #[allow(unsafe_code)]
    pub(crate) fn group(&self) -> impl Iterator<Item = &'static Counter> + use<> {
        let first = self.object;
        // SAFETY: all counters of an object are made before the first is shown to anybody, and stay.
        (0..usize::from(self.counters)).map(move |position| unsafe { &*first.byte_add(position * STRIDE) })
    }

    /// Places for the parts on nodes of the group that this is the first counter of, null where there is none; empty
    /// where its tree has one node.
    #[allow(unsafe_code)]
    pub(crate) fn parts(&self) -> &'static [PublishedPlace] {
        let nodes = self.tree().stats.as_ref().map_or(0, |stats| places_for(stats.nodes));
        // SAFETY: the object was asked for with so many places behind its counters, which were made with them.
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
