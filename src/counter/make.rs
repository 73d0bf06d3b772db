//! Objects of the pool: type-stable, owned by the process, recycled across trees.
//!
//! An object keeps its memory, its slot indices and its headers for ever; only the incarnations of
//! its counters change. So a late read of a header or a state word finds a header or a state word,
//! and a stale id finds another generation. The tree's cache is made before the tree: no counter
//! exists without it.

use std::mem::offset_of;
use std::ptr::NonNull;

use crate::counter::object::tree::Tree;
use crate::counter::object::{CounterObject, Incarnation, Object, PlaceInGroup, TreeLinks};
use crate::pool::shape::{PoolKind, Shape};
use crate::pool::{Cache, NoMemory, PoolAlign, cache, directory};
use crate::sync::Shared;
use crate::thread::directory::Header;
use crate::thread::registry::registry;
use crate::thread::{objects, owner};

/// The cache of counters alone, which are no group's.
pub(crate) fn counter_cache() -> Shared<Cache> {
    let asked = size_of::<CounterObject>();
    cache(Shape {
        kind: PoolKind::Counter,
        asked,
        align: PoolAlign::default(),
        node: None,
    })
}

/// True if `counter` is initialised, or still zeroed memory.
///
/// # Safety
///
/// `counter` is a place for a counter in an object of the caller's, which is zeroed or initialised.
#[allow(unsafe_code)]
pub(crate) unsafe fn is_made(counter: NonNull<Object>) -> bool {
    // SAFETY: the caller guarantees the place: the pointer read is null or a header.
    unsafe {
        !counter
            .byte_add(offset_of!(Object, header))
            .cast::<*const Header>()
            .read()
            .is_null()
    }
}

/// A counter that the caller writes to `at`, with a header of its own.
pub(crate) fn new_counter(at: NonNull<Object>, place: PlaceInGroup) -> Result<Object, NoMemory> {
    // An index once taken stays the object's. To give it back would need a proof that no thread
    // still has the place of its slot.
    let (index, header) = registry()
        .take_index()
        .map_err(|bytes| NoMemory { bytes })?;
    header.bind(at.as_ptr().cast(), owner::word(index));
    Ok(Object::new(place, index, header))
}

/// A clean object for a counter alone, which no other thread has.
#[allow(unsafe_code)]
pub(crate) fn take(tree: &Tree) -> Result<&'static Object, NoMemory> {
    let cache = cache_of(&tree.pool);
    let object = objects::take(cache)?;
    let first = object.first::<CounterObject>();
    // SAFETY: an object of `counter_cache`, zeroed or made, that no other thread has.
    unsafe {
        // An object that had a counter before has all of this, and is made clean when it is given
        // back: a counter that is made takes no index and no page, mostly.
        if !is_made(first.cast()) {
            let place = PlaceInGroup {
                object: first.as_ptr(),
                number: object.number,
                position: 0,
                next: 0,
            };
            let counter = new_counter(first.cast(), place)
                .inspect_err(|_| objects::put(cache, object.number))?;
            first.write(CounterObject {
                counter,
                links: TreeLinks::new(),
            });
        }
    }
    Ok(made(first.cast()))
}

/// Gives an object back that no other thread has seen, or whose last user is the caller. Drops what
/// its incarnations held.
pub(crate) fn recycle_unused(tree: &Tree, group: &'static Object) {
    group.state().end();
    drop(recycle(tree, group));
}

/// Gives a released object back; its state word is in the next generation already.
pub(crate) fn recycle(tree: &Tree, group: &'static Object) -> Option<Incarnation> {
    let incarnation = group.end();
    // The first one, memory, has the state word that ids and late threads go by: its incarnation
    // ends before the others', above.
    for counter in group.objects().skip(1) {
        drop(counter.end());
        counter.state().end();
    }
    // An object whose generations are used up is kept out of the pool: an id of long ago would name
    // its next group.
    if !group.state().is_spent() {
        let is_root = incarnation.as_ref().is_some_and(|own| own.parent.is_none());
        objects::put(tree.pool_of(is_root), group.number);
    }
    incarnation
}

/// A process shares its caches by reference, a model by counted references.
pub(crate) fn cache_of(shared: &Shared<Cache>) -> &Cache {
    shared
}

/// The group of that number, which exists or existed. Takes no lock.
#[inline]
pub(crate) fn group(number: u32) -> Option<&'static Object> {
    Some(made(directory().object(number)?.cast()))
}

/// The counter in an initialised place, which stays a counter for ever.
#[allow(unsafe_code)]
pub(crate) fn made(counter: NonNull<Object>) -> &'static Object {
    // SAFETY: the counter is initialised. Its chunk is never freed while a thread may use a
    // counter: the process or the model owns the cache.
    unsafe { counter.as_ref() }
}
