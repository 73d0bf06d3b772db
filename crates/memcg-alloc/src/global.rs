//! The global allocator.

use std::alloc::{GlobalAlloc, Layout, System};

use memcg::allocator::{
    BegunStep, Owner, UnfinishedStep, charge_unowned, try_uncharge_unowned, uncharge_unowned,
};

use crate::{probe, word};

/// The threshold of an allocator that owns every object: the default.
pub const EVERY_OBJECT: usize = 0;

/// The threshold of an allocator that owns none: it counts for the process only.
pub const PROCESS_ONLY: usize = usize::MAX;

/// A threshold that leaves objects up to 1 KiB to the group of the process.
///
/// With it a tenant of many small strings holds several times its max before a checkpoint stops it:
/// its group sees the vector that refers to them, and none of them.
///
/// ```
/// use std::alloc::System;
///
/// use memcg::{Group, Limits, Runtime};
/// use memcg_alloc::{LARGE_OBJECTS, MemcgAlloc};
///
/// #[global_allocator]
/// static ALLOCATOR: MemcgAlloc<System, LARGE_OBJECTS> = MemcgAlloc::with_threshold(System);
///
/// let runtime = Runtime::builder().build()?;
/// let tenant = runtime.root().create("tenant", Limits::new().max(1 << 20))?;
/// let mut strings = Vec::new();
/// tenant.run(|| while Group::checkpoint().is_ok() { strings.push("x".repeat(200)) });
/// assert!(200 * strings.len() > 6 << 20, "stopped at six times its max: the default stops it at 1 MiB");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// So take a threshold only if you have measured that every object costs too much. Up to 1 KiB
/// allocators have their fast paths, and the word would push an object of 1 KiB out of mimalloc's.
pub const LARGE_OBJECTS: usize = 1_025;

/// A global allocator that charges each object to the thread's
/// [current group](memcg::Group::current), and gives it back to the same group, wherever it is
/// freed.
///
/// It wraps any other allocator. Each object is *owned*: 4 bytes behind the object name its group.
/// With a threshold `FROM` only objects of at least so many bytes are, as [`LARGE_OBJECTS`] shows
/// with its price, and with [`PROCESS_ONLY`] none. The others are together
/// [charged to one group](crate::charge_unowned_to). The threshold is a part of the type, because
/// an object must have the same layout when it is allocated and when it is freed.
///
/// The allocator never refuses, never unwinds and never waits: what a group allocates above its max
/// is [forced](memcg::Group::forced), and the group's next charge or
/// [checkpoint](memcg::Group::checkpoint) fails. A `realloc` keeps its owner, and grows in place
/// where the inner allocator does.
///
/// ```
/// use std::alloc::System;
///
/// use memcg::{Limits, Runtime};
/// use memcg_alloc::MemcgAlloc;
///
/// #[global_allocator]
/// static ALLOCATOR: MemcgAlloc<System> = MemcgAlloc::new(System);
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let rows = query.run(|| vec![String::from("four"); 1_000]);
/// assert_eq!(query.live(), 1_000 * (24 + 4));
/// std::thread::spawn(move || drop(rows)).join().unwrap();
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MemcgAlloc<A = System, const FROM: usize = EVERY_OBJECT> {
    inner: A,
}

impl<A> MemcgAlloc<A> {
    /// An allocator over `inner` that owns every object.
    pub const fn new(inner: A) -> Self {
        MemcgAlloc { inner }
    }
}

impl<A, const FROM: usize> MemcgAlloc<A, FROM> {
    /// An allocator over `inner` with the threshold of the type.
    ///
    /// ```
    /// use std::alloc::System;
    ///
    /// use memcg_alloc::{MemcgAlloc, PROCESS_ONLY};
    ///
    /// #[global_allocator]
    /// static ALLOCATOR: MemcgAlloc<System, PROCESS_ONLY> = MemcgAlloc::with_threshold(System);
    /// # fn main() {}
    /// ```
    pub const fn with_threshold(inner: A) -> Self {
        MemcgAlloc { inner }
    }

    /// Returns the inner allocator.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    #[inline(always)]
    const fn owns(size: usize) -> bool {
        FROM != PROCESS_ONLY && size >= FROM
    }
}

/// The layout of `size` bytes with the alignment of another layout. `None`: no object can be that
/// large.
#[inline(always)]
fn resized(layout: Layout, size: usize) -> Option<Layout> {
    Layout::from_size_align(size, layout.align()).ok()
}

// The rest of a step, each in a function of its own, which returns the object: so the allocator's
// short way saves no registers for it.

/// # Safety
///
/// The object is new, and its charge has begun on this thread.
#[inline(never)]
#[allow(unsafe_code)]
unsafe fn finish_charge(memory: *mut u8, size: usize, rest: UnfinishedStep) -> *mut u8 {
    // SAFETY: says the caller.
    unsafe { word::write(memory, size, Owner::finish_charge(size, rest)) };
    memory
}

/// # Safety
///
/// The object is one of the owner's, and the charge for its growth has begun on this thread.
#[inline(never)]
#[allow(unsafe_code)]
unsafe fn finish_grow(memory: *mut u8, owner: Owner, more: usize, rest: UnfinishedStep) -> *mut u8 {
    // SAFETY: says the caller.
    unsafe { owner.finish_grow(more, rest) };
    memory
}

/// # Safety
///
/// The object is one of the owner's, and has been so much larger.
#[inline(never)]
#[allow(unsafe_code)]
unsafe fn shrink(memory: *mut u8, owner: Owner, less: usize) -> *mut u8 {
    // SAFETY: says the caller.
    unsafe { owner.uncharge(less) };
    memory
}

#[inline(never)]
fn shrink_unowned(memory: *mut u8, less: usize) -> *mut u8 {
    uncharge_unowned(less);
    memory
}

impl<A: GlobalAlloc, const FROM: usize> MemcgAlloc<A, FROM> {
    /// # Safety
    ///
    /// As for [`GlobalAlloc::alloc`].
    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn allocate_inner<const ZEROED: bool>(&self, layout: Layout) -> *mut u8 {
        // SAFETY: says the caller.
        unsafe {
            if ZEROED {
                self.inner.alloc_zeroed(layout)
            } else {
                self.inner.alloc(layout)
            }
        }
    }

    /// # Safety
    ///
    /// As for [`GlobalAlloc::alloc`].
    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn allocate<const ZEROED: bool>(&self, object: Layout) -> *mut u8 {
        let size = object.size();
        // SAFETY: says the caller.
        unsafe {
            if Self::owns(size) {
                if FROM == EVERY_OBJECT {
                    self.allocate_owned::<ZEROED>(object)
                } else {
                    self.allocate_owned_apart::<ZEROED>(object)
                }
            } else {
                let memory = self.allocate_inner::<ZEROED>(object);
                if memory.is_null() {
                    return probe::refuse(size);
                }
                charge_unowned(size);
                memory
            }
        }
    }

    /// # Safety
    ///
    /// As for `allocate`.
    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn allocate_owned<const ZEROED: bool>(&self, object: Layout) -> *mut u8 {
        let size = object.size();
        let Some(whole) = word::with_word(object) else {
            return probe::refuse(size);
        };
        // SAFETY: the layout has a size, says the caller; the word is in the block.
        unsafe {
            let memory = self.allocate_inner::<ZEROED>(whole);
            if memory.is_null() {
                return memory;
            }
            // Once there is memory: for an object that the inner allocator refuses nothing has to
            // be given back.
            match Owner::begin_charge(size) {
                BegunStep::Done(owner) => word::write(memory, size, owner),
                BegunStep::Unfinished(rest) => return finish_charge(memory, size, rest),
            }
            memory
        }
    }

    /// Apart from the code of small objects, which is shorter so.
    ///
    /// # Safety
    ///
    /// As for `allocate`.
    #[inline(never)]
    #[allow(unsafe_code)]
    unsafe fn allocate_owned_apart<const ZEROED: bool>(&self, object: Layout) -> *mut u8 {
        // SAFETY: says the caller.
        unsafe { self.allocate_owned::<ZEROED>(object) }
    }

    /// # Safety
    ///
    /// As for [`GlobalAlloc::dealloc`], of an owned object.
    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn free_owned(&self, memory: *mut u8, object: Layout) {
        let size = object.size();
        // SAFETY: the object was allocated with this layout, says the caller, so its word is there,
        // and it fitted then.
        unsafe {
            match word::read(memory, size).begin_uncharge(size) {
                BegunStep::Done(()) => self
                    .inner
                    .dealloc(memory, word::with_word_unchecked(object)),
                BegunStep::Unfinished(rest) => self.finish_free(memory, object, rest),
            }
        }
    }

    /// The rest of `free_owned` after the first part of the uncharge.
    ///
    /// # Safety
    ///
    /// As for `free_owned`, which has begun the uncharge.
    #[inline(never)]
    #[allow(unsafe_code)]
    unsafe fn finish_free(&self, memory: *mut u8, object: Layout, rest: UnfinishedStep) {
        let size = object.size();
        // SAFETY: says the caller.
        unsafe {
            word::read(memory, size).finish_uncharge(size, rest);
            self.inner
                .dealloc(memory, word::with_word_unchecked(object));
        }
    }

    /// # Safety
    ///
    /// As for [`GlobalAlloc::dealloc`], of an object that is not owned.
    #[cold]
    #[inline(never)]
    #[allow(unsafe_code)]
    unsafe fn free_unowned(&self, memory: *mut u8, object: Layout) {
        uncharge_unowned(object.size());
        // SAFETY: says the caller.
        unsafe { self.inner.dealloc(memory, object) };
    }

    /// # Safety
    ///
    /// As for `free_owned`.
    #[inline(never)]
    #[allow(unsafe_code)]
    unsafe fn free_owned_apart(&self, memory: *mut u8, object: Layout) {
        // SAFETY: says the caller.
        unsafe { self.free_owned(memory, object) };
    }

    /// Both objects are owned: the new one has the owner of the old one.
    ///
    /// # Safety
    ///
    /// As for [`GlobalAlloc::realloc`].
    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn move_owned(&self, object: *mut u8, old: Layout, size: usize) -> *mut u8 {
        // Before anything has changed: a `realloc` that fails leaves the object as it is.
        if !word::fits(size, old.align()) {
            return std::ptr::null_mut();
        }
        // SAFETY: `allocate` has written the word, so the old object fits. The word is read before
        // the inner allocator may overwrite it, and written anew once the object has its new size.
        // The owner is charged for the old size, and for the new one afterwards.
        unsafe {
            let owner = word::read(object, old.size());
            let memory =
                self.inner
                    .realloc(object, word::with_word_unchecked(old), size + word::BYTES);
            // Mutation: a-realloc-that-fails-gives-bytes-back
            if memory.is_null() {
                return memory;
            }
            word::write(memory, size, owner);
            if size >= old.size() {
                let more = size - old.size();
                match owner.begin_grow(more) {
                    BegunStep::Done(()) => memory,
                    BegunStep::Unfinished(rest) => finish_grow(memory, owner, more, rest),
                }
            } else {
                shrink(memory, owner, old.size() - size)
            }
        }
    }

    /// Apart from the code of small objects, which is shorter so.
    ///
    /// # Safety
    ///
    /// As for `move_owned`.
    #[inline(never)]
    #[allow(unsafe_code)]
    unsafe fn move_owned_apart(&self, object: *mut u8, old: Layout, size: usize) -> *mut u8 {
        // SAFETY: says the caller.
        unsafe { self.move_owned(object, old, size) }
    }

    /// Neither object is owned: the difference is counted.
    ///
    /// # Safety
    ///
    /// As for [`GlobalAlloc::realloc`].
    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn move_unowned(&self, object: *mut u8, old: Layout, size: usize) -> *mut u8 {
        // One register to keep over the call, and not two.
        let more = size.wrapping_sub(old.size()).cast_signed();
        // SAFETY: the caller's promise.
        let memory = unsafe { self.inner.realloc(object, old, size) };
        // Mutation: a-refused-growth-is-counted-as-unowned
        if memory.is_null() {
            return memory;
        }
        if more < 0 {
            return shrink_unowned(memory, more.unsigned_abs());
        }
        charge_unowned(more.unsigned_abs());
        memory
    }

    /// One of the objects is owned.
    ///
    /// # Safety
    ///
    /// As for [`GlobalAlloc::realloc`].
    #[cold]
    #[inline(never)]
    #[allow(unsafe_code)]
    unsafe fn move_between(&self, object: *mut u8, old: Layout, size: usize) -> *mut u8 {
        let was_owned = Self::owns(old.size());
        let is_owned = Self::owns(size);
        let layout = |owned: bool, layout: Layout| {
            if owned {
                word::with_word(layout)
            } else {
                Some(layout)
            }
        };
        let (Some(old_whole), Some(whole)) = (
            layout(was_owned, old),
            resized(old, size).and_then(|new| layout(is_owned, new)),
        ) else {
            return std::ptr::null_mut();
        };
        // SAFETY: as in `move_owned`; an object without owner is counted as unowned.
        unsafe {
            let before = if was_owned {
                Some(word::read(object, old.size()))
            } else {
                None
            };
            let memory = self.inner.realloc(object, old_whole, whole.size());
            if memory.is_null() {
                return memory;
            }
            if is_owned {
                word::write(memory, size, Owner::charge(size));
            } else {
                charge_unowned(size);
            }
            match before {
                Some(owner) => owner.uncharge(old.size()),
                None => uncharge_unowned(old.size()),
            }
            memory
        }
    }
}

// SAFETY: each block is one of the inner allocator, with the layout that follows from the caller's
// layout alone, and goes back with the same. An owned object has a larger block, whose last bytes
// the caller does not know. No method unwinds but where the inner one does: the calls of `memcg` do
// not.
#[allow(unsafe_code)]
unsafe impl<A: GlobalAlloc, const FROM: usize> GlobalAlloc for MemcgAlloc<A, FROM> {
    #[inline]
    unsafe fn alloc(&self, object: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.allocate::<false>(object) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, object: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.allocate::<true>(object) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, object: Layout) {
        let size = object.size();
        // SAFETY: the object was allocated with this layout, says the caller, so its word is there
        // where it is owned.
        unsafe {
            if Self::owns(size) {
                if FROM == EVERY_OBJECT {
                    self.free_owned(memory, object);
                } else {
                    self.free_owned_apart(memory, object);
                }
            } else if try_uncharge_unowned(size) {
                self.inner.dealloc(memory, object);
            } else {
                self.free_unowned(memory, object);
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, old: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe {
            match (Self::owns(old.size()), Self::owns(size)) {
                (true, true) if FROM == EVERY_OBJECT => self.move_owned(memory, old, size),
                (true, true) => self.move_owned_apart(memory, old, size),
                (false, false) => self.move_unowned(memory, old, size),
                _ => self.move_between(memory, old, size),
            }
        }
    }
}
