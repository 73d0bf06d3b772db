//! Objects of the global allocator, blocks of an allocator of one group, and memory that no allocator
//! sees. The allocator below them refuses where the script says so.

// An allocator is unsafe to write, and to call.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};
use memcg::allocator::catch_up;
use memcg::{Group, GroupName, Limit, Limits, Runtime};
use memcg_alloc::{
    EVERY_OBJECT, ExternalCharge, GroupAlloc, LARGE_OBJECTS, MemcgAlloc, PROCESS_ONLY,
    charge_external, is_installed, unowned_bytes, unowned_panic_hook,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::super::Life;
use crate::holds::{Holds, ensure_eq};
use crate::script::{Adapter, Op, pick as pick_of};
use crate::twin::Key;

const OBJECTS_MAX: usize = 24;

const ALONE_STEPS: usize = 60;

thread_local! {
    /// The group of a hook of a panic, and what that keeps.
    static KEPT: RefCell<Option<(Option<Group>, ExternalCharge)>> = const { RefCell::new(None) };
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, which refuses where it is told to.
#[derive(Clone, Copy, Debug, Default)]
struct Inner;

/// Runs `work`, in which [`Inner`] refuses or not.
fn while_refusing<R>(refuses: bool, work: impl FnOnce() -> R) -> R {
    REFUSES.set(refuses);
    let result = work();
    REFUSES.set(false);
    result
}

/// Blocks come in sizes of their own, as those of most allocators, and never with nothing.
const GRAIN: usize = 32;

fn with_grain(layout: Layout, size: usize) -> Option<Layout> {
    let size = size.max(1).checked_next_multiple_of(GRAIN)?;
    Layout::from_size_align(size, layout.align()).ok()
}

// SAFETY: the system's allocator, or null.
unsafe impl GlobalAlloc for Inner {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match with_grain(layout, layout.size()).filter(|_| !REFUSES.get()) {
            // SAFETY: the layout has a size.
            Some(whole) => unsafe { System.alloc(whole) },
            None => std::ptr::null_mut(),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let wholes = with_grain(layout, layout.size()).zip(with_grain(layout, size));
        match wholes.filter(|_| !REFUSES.get()) {
            // SAFETY: as the caller promises; a block has the same whole layout for each of its
            // sizes.
            Some((old, new)) => unsafe { System.realloc(block, old, new.size()) },
            None => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let whole = with_grain(layout, layout.size()).expect("it was allocated");
        // SAFETY: as above.
        unsafe { System.dealloc(block, whole) }
    }
}

// SAFETY: the blocks are the system's, and a copy is the same allocator.
unsafe impl Allocator for Inner {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: its blocks have a size.
        let block = unsafe { self.alloc(layout) };
        let block = NonNull::new(block).ok_or(AllocError)?;
        let whole = with_grain(layout, layout.size()).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, whole.size()))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { self.dealloc(block.as_ptr(), layout) }
    }
}

/// What no allocator has: a size that leaves no room for a word, or for anything else. What was
/// there stays, and nothing is charged. This program's allocator is none of the crate's, and asking
/// for such a size tells that.
fn refuse_too_large(group: &Group) {
    let (live, unowned) = (group.live(), unowned_bytes());
    for of in [Of::Every, Of::Large, Of::Process] {
        let allocator = of.allocator();
        for size in [
            isize::MAX as usize,
            isize::MAX as usize - 3,
            usize::MAX / 16 * 3,
        ] {
            let huge = Layout::from_size_align(size, 1).expect("an alignment of one");
            let small = Layout::from_size_align(2_000, 1).expect("small");
            // SAFETY: the layouts have sizes. The small object is freed once, with its own.
            let refused = group.run(|| unsafe {
                let object = allocator.alloc(small);
                let moved = allocator.realloc(object, small, size);
                let refused = [allocator.alloc(huge), allocator.alloc_zeroed(huge), moved];
                allocator.dealloc(object, small);
                refused.iter().all(|object| object.is_null())
            });
            assert!(refused, "{size} bytes of {of:?}");
        }
    }
    group.run(catch_up);
    let found = (group.live(), unowned_bytes());
    assert_eq!(found, (live, unowned), "charged for what was refused");
    assert!(!is_installed(), "the allocator of this program");
}

/// What a hook allocates as a task of a group panics is no group's.
fn panic_in(group: &Group) {
    let told = std::panic::take_hook();
    std::panic::set_hook(unowned_panic_hook(|_| {
        let kept = (Group::current(), charge_external(1_000));
        KEPT.with(|keeps| *keeps.borrow_mut() = Some(kept));
    }));
    let (live, unowned) = (group.live(), unowned_bytes());
    let panicked = catch_unwind(AssertUnwindSafe(|| group.run(|| panic!("on purpose"))));
    std::panic::set_hook(told);
    assert!(panicked.is_err(), "it panics");
    let found = (group.live() - live, unowned_bytes() - unowned);
    let kept = KEPT.with(|keeps| keeps.borrow_mut().take());
    assert_eq!(found, (0, 1_000), "what a hook keeps");
    let inside = kept.map(|(group, _)| group);
    assert_eq!(inside, Some(None), "the group of a hook of a panic");
}

/// The global allocators, by their thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Every,
    Large,
    Process,
}

static EVERY: MemcgAlloc<Inner> = MemcgAlloc::new(Inner);
static LARGE: MemcgAlloc<Inner, LARGE_OBJECTS> = MemcgAlloc::with_threshold(Inner);
static PROCESS: MemcgAlloc<Inner, PROCESS_ONLY> = MemcgAlloc::with_threshold(Inner);

impl Of {
    fn allocator(self) -> &'static dyn GlobalAlloc {
        match self {
            Of::Every => &EVERY,
            Of::Large => &LARGE,
            Of::Process => &PROCESS,
        }
    }

    fn owns(self, size: usize) -> bool {
        let from = match self {
            Of::Every => EVERY_OBJECT,
            Of::Large => LARGE_OBJECTS,
            Of::Process => PROCESS_ONLY,
        };
        from != PROCESS_ONLY && size >= from
    }
}

/// Memory that a thread gives to another.
#[derive(Clone, Copy)]
struct Place(NonNull<u8>);

// SAFETY: its owner alone uses it.
unsafe impl Send for Place {}

impl Place {
    /// Writes to each byte, and so over what an allocator would have left within.
    fn fill(self, from: usize, size: usize) {
        for at in from..size {
            // SAFETY: the memory has so many bytes, says the caller.
            unsafe { self.0.as_ptr().add(at).write(at as u8) };
        }
    }

    fn is_zeroed(self, from: usize, size: usize) {
        for at in from..size {
            // SAFETY: the memory has so many bytes, says the caller, and they are written.
            let found = unsafe { self.0.as_ptr().add(at).read() };
            assert_eq!(found, 0, "byte {at} of {size}, which are zeroed");
        }
    }

    fn check(self, size: usize) {
        for at in 0..size {
            // SAFETY: as above, and they are written.
            let found = unsafe { self.0.as_ptr().add(at).read() };
            assert_eq!(found, at as u8, "byte {at} of {size}");
        }
    }
}

/// An object of a global allocator.
struct Object {
    of: Of,
    layout: Layout,
    place: Place,
    /// `None`: no group owns it.
    key: Option<Key>,
}

/// A block of an allocator of one group.
struct Block {
    key: Key,
    group: usize,
    allocator: GroupAlloc<Inner>,
    layout: Layout,
    place: Place,
}

/// A charge of memory that no allocator sees.
struct External {
    /// `None`: no group has it.
    key: Option<Key>,
    charge: ExternalCharge,
}

pub(super) struct Allocators {
    objects: Vec<Object>,
    blocks: Vec<Block>,
    externals: Vec<External>,
    /// Bytes that no group owns, before and of the life.
    unowned_before: u64,
    unowned: u64,
}

impl Allocators {
    pub(super) fn new() -> Self {
        Allocators {
            objects: Vec::new(),
            blocks: Vec::new(),
            externals: Vec::new(),
            unowned_before: unowned_bytes(),
            unowned: 0,
        }
    }
}

/// What a life of its own has: objects with the group that owns them, blocks, and memory that no
/// allocator sees.
struct Alone {
    /// It keeps the tree.
    runtime: Runtime,
    groups: [Group; 2],
    objects: Vec<(Of, Layout, Place, Option<usize>)>,
    blocks: Vec<(usize, GroupAlloc<Inner>, Layout, Place)>,
    externals: Vec<(Option<usize>, ExternalCharge)>,
    unowned_before: u64,
}

/// Sizes around those from which an object has an owner.
const ALONE: [usize; 9] = [1, 8, 100, 1_000, 1_023, 1_024, 1_025, 2_000, 4_000];

/// Of the second group, which blocks do not pass.
const ALONE_MAX: u64 = 12_000;

impl Alone {
    fn live(&self, group: usize) -> u64 {
        let objects = self.objects.iter().filter(|it| it.3 == Some(group));
        let blocks = self.blocks.iter().filter(|it| it.0 == group);
        let externals = self.externals.iter().filter(|it| it.0 == Some(group));
        let all = objects
            .map(|it| it.1.size())
            .chain(blocks.map(|it| it.2.size()))
            .chain(externals.map(|it| it.1.bytes()));
        all.sum::<usize>() as u64
    }

    fn unowned(&self) -> u64 {
        let objects = self.objects.iter().filter(|it| it.3.is_none());
        let externals = self.externals.iter().filter(|it| it.0.is_none());
        let all = objects
            .map(|it| it.1.size())
            .chain(externals.map(|it| it.1.bytes()));
        all.sum::<usize>() as u64
    }

    fn fits(&self, group: usize, more: usize) -> bool {
        group == 0 || more == 0 || self.live(1) + more as u64 <= ALONE_MAX
    }

    /// In that group, or in none.
    fn inside<R>(&self, group: Option<usize>, work: impl FnOnce() -> R) -> R {
        match group {
            Some(group) => self.groups[group].run(work),
            None => work(),
        }
    }

    fn step(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let group = pick_of(rng, &[None, Some(0), Some(0), Some(1)]);
        let size = pick_of(rng, &ALONE);
        let refuses = rng.random_bool(0.3);
        let zeroed = rng.random();
        let at = |rng: &mut Xoshiro256PlusPlus, many: usize| {
            (many > 0).then(|| rng.random_range(0..many.max(1)))
        };
        match rng.random_range(0..16) {
            0..=2 => {
                let of = pick_of(rng, &[Of::Every, Of::Large, Of::Process]);
                let layout = Layout::from_size_align(size, 1 << rng.random_range(0..6));
                let layout = layout.expect("small");
                // SAFETY: the layout has a size.
                let allocate = || unsafe {
                    match zeroed {
                        true => of.allocator().alloc_zeroed(layout),
                        false => of.allocator().alloc(layout),
                    }
                };
                let memory = self.inside(group, || while_refusing(refuses, allocate));
                assert_eq!(memory.is_null(), refuses, "as the allocator below");
                if let Some(place) = NonNull::new(memory).map(Place) {
                    if zeroed {
                        place.is_zeroed(0, size);
                    }
                    place.fill(0, size);
                    let owner = group.filter(|_| of.owns(size));
                    self.objects.push((of, layout, place, owner));
                }
            }
            3..=6 => {
                let Some(at) = at(rng, self.objects.len()) else {
                    return;
                };
                let (of, old, place, owner) = self.objects[at];
                // SAFETY: the memory is of that allocator and layout, and the new size is no nothing.
                let resize = || unsafe { of.allocator().realloc(place.0.as_ptr(), old, size) };
                let memory = self.inside(group, || while_refusing(refuses, resize));
                assert_eq!(memory.is_null(), refuses, "as the allocator below");
                let Some(moved) = NonNull::new(memory).map(Place) else {
                    return place.check(old.size());
                };
                moved.check(old.size().min(size));
                moved.fill(0, size);
                let new = Layout::from_size_align(size, old.align()).expect("small");
                // It keeps its owner, or that it has none, as long as it may have one.
                let owner = match of.owns(old.size()) && of.owns(size) {
                    true => owner,
                    false => group.filter(|_| of.owns(size)),
                };
                self.objects[at] = (of, new, moved, owner);
            }
            7 => {
                if let Some(at) = at(rng, self.objects.len()) {
                    let (of, layout, place, _) = self.objects.swap_remove(at);
                    place.check(layout.size());
                    // SAFETY: the memory is of that allocator and layout, and nobody else has it.
                    unsafe { of.allocator().dealloc(place.0.as_ptr(), layout) };
                }
            }
            8 | 9 => {
                let (group, size) = (group.unwrap_or(0), pick_of(rng, &[size, size, 0]));
                let layout = Layout::from_size_align(size, 8).expect("small");
                let allocator = GroupAlloc::over(&self.groups[group], Inner);
                let made = while_refusing(refuses, || match zeroed {
                    true => allocator.allocate_zeroed(layout),
                    false => allocator.allocate(layout),
                });
                let is_right = made.is_ok() == (!refuses && self.fits(group, size));
                assert!(is_right, "a block of {size}, refused: {refuses}");
                if let Ok(block) = made {
                    assert_eq!(block.len(), size, "no more than was asked for");
                    let place = Place(block.cast());
                    if zeroed {
                        place.is_zeroed(0, size);
                    }
                    place.fill(0, size);
                    self.blocks.push((group, allocator, layout, place));
                }
            }
            10 | 11 => {
                let Some(at) = at(rng, self.blocks.len()) else {
                    return;
                };
                let (group, allocator, old, place) = self.blocks.swap_remove(at);
                let size = pick_of(rng, &[size, size, 0]);
                let new = Layout::from_size_align(size, 8).expect("small");
                // SAFETY: the block is of that allocator and layout; the new one is larger, or smaller.
                let resize = || unsafe {
                    match size >= old.size() {
                        true if zeroed => allocator.grow_zeroed(place.0, old, new),
                        true => allocator.grow(place.0, old, new),
                        false => allocator.shrink(place.0, old, new),
                    }
                };
                let moved = while_refusing(refuses, resize);
                let more = size.saturating_sub(old.size());
                // It is in none of the lists, and held all the same.
                let fits = group == 0
                    || more == 0
                    || self.live(1) + (old.size() + more) as u64 <= ALONE_MAX;
                assert_eq!(moved.is_ok(), !refuses && fits, "{more} more");
                let (layout, place) = match moved {
                    Ok(block) => {
                        let moved = Place(block.cast());
                        assert_eq!(block.len(), size, "no more than was asked for");
                        moved.check(old.size().min(size));
                        if zeroed && more > 0 {
                            moved.is_zeroed(old.size(), size);
                        }
                        moved.fill(0, size);
                        (new, moved)
                    }
                    Err(_) => {
                        place.check(old.size());
                        (old, place)
                    }
                };
                self.blocks.push((group, allocator, layout, place));
            }
            12 => {
                if let Some(at) = at(rng, self.blocks.len()) {
                    let (_, allocator, layout, place) = self.blocks.swap_remove(at);
                    place.check(layout.size());
                    // SAFETY: the block is of that allocator and layout, and nobody else has it.
                    unsafe { allocator.deallocate(place.0, layout) };
                }
            }
            13 => {
                let bytes = pick_of(rng, &[0, 1, 5_000]);
                let charge = self.inside(group, || charge_external(bytes));
                self.externals.push((group.filter(|_| bytes > 0), charge));
            }
            14 => {
                if let Some(at) = at(rng, self.externals.len()) {
                    let bytes = pick_of(rng, &[0, 1, 5_000]);
                    let (owner, mut charge) = self.externals.swap_remove(at);
                    let before = charge.bytes();
                    self.inside(group, || charge.resize(bytes));
                    let owner = match before > 0 && bytes > 0 {
                        true => owner,
                        // That of no bytes has no group, and is the present one's from here on.
                        false => group.filter(|_| bytes > 0),
                    };
                    self.externals.push((owner, charge));
                }
            }
            _ => {
                if let Some(at) = at(rng, self.externals.len()) {
                    drop(self.externals.swap_remove(at));
                }
            }
        }
    }

    fn holds(&self) {
        catch_up();
        for (number, group) in self.groups.iter().enumerate() {
            assert_eq!(group.live(), self.live(number), "live at {}", group.path());
        }
        let found = unowned_bytes().wrapping_sub(self.unowned_before);
        assert_eq!(found, self.unowned(), "bytes that no group owns");
    }
}

/// Objects, blocks and memory that no allocator sees come and go in two groups and in none, and the
/// allocator below refuses each third call. Nobody else is there, so each byte is known after each
/// of them.
pub(super) fn live(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder().batch(pick_of(rng, &[0, 4_096])).build();
    let runtime = runtime.expect("a configuration that holds");
    let limits = [Limits::new(), Limits::new().max(Limit::Bytes(ALONE_MAX))];
    let groups = limits.map(|limits| {
        let made = runtime.root().create(GroupName::Unnamed, limits);
        made.expect("nothing is in the way")
    });
    let mut alone = Alone {
        runtime,
        groups,
        objects: Vec::new(),
        blocks: Vec::new(),
        externals: Vec::new(),
        unowned_before: unowned_bytes(),
    };
    for _ in 0..ALONE_STEPS {
        alone.step(rng);
        alone.holds();
    }
    for (of, layout, place, _) in alone.objects.drain(..) {
        place.check(layout.size());
        // SAFETY: the memory is of that allocator and layout, and nobody else has it.
        unsafe { of.allocator().dealloc(place.0.as_ptr(), layout) };
    }
    for (_, allocator, layout, place) in alone.blocks.drain(..) {
        // SAFETY: as above.
        unsafe { allocator.deallocate(place.0, layout) };
    }
    alone.externals.clear();
    alone.holds();
    assert_eq!(alone.runtime.root().live(), 0, "live at the end");
}

fn layout(bytes: u32, align: u8) -> Layout {
    Layout::from_size_align(bytes as usize, 1 << (align % 7)).expect("small")
}

fn pick<T>(of: &[T], number: u8) -> Option<usize> {
    (!of.is_empty()).then(|| usize::from(number) % of.len())
}

impl Life {
    pub(super) fn step_allocators(&mut self, op: &Op, adapter: &Adapter) {
        match *adapter {
            Adapter::Allocate(group, form, bytes, refuses) => {
                self.allocate(op, group, form, bytes, refuses);
            }
            Adapter::Reallocate(number, group, bytes, refuses) => {
                self.reallocate(op, number, group, bytes, refuses);
            }
            Adapter::Free(number) => {
                if let Some(at) = pick(&self.adapters.allocators.objects, number) {
                    self.free(op, at);
                }
            }
            Adapter::Block(group, bytes, refuses) => self.block(op, group, bytes, refuses),
            Adapter::ResizeBlock(number, bytes, refuses) => {
                self.resize_block(op, number, bytes, refuses);
            }
            Adapter::FreeBlock(number) => {
                if let Some(at) = pick(&self.adapters.allocators.blocks, number) {
                    self.free_block(op, at);
                }
            }
            Adapter::External(group, bytes) => {
                let room = self.adapters.allocators.externals.len() < OBJECTS_MAX;
                if let Some(group) = self.group(group).filter(|_| room) {
                    let bytes = bytes as usize;
                    let charge =
                        self.on(op, group, move |group| group.run(|| charge_external(bytes)));
                    let key = self.own_external(group, bytes);
                    self.adapters
                        .allocators
                        .externals
                        .push(External { key, charge });
                }
            }
            Adapter::PanicHook(group) => {
                if let Some(group) = self.group(group) {
                    self.on(op, group, |group| {
                        panic_in(group);
                        refuse_too_large(group);
                    });
                }
            }
            Adapter::ResizeExternal(number, group, bytes) => {
                self.resize_external(op, number, group, bytes as usize);
            }
            Adapter::DropExternal(number) => {
                if let Some(at) = pick(&self.adapters.allocators.externals, number) {
                    let External { key, charge } =
                        self.adapters.allocators.externals.swap_remove(at);
                    self.disown(key, charge.bytes());
                    self.actor(op).run(move || drop(charge));
                }
            }
            _ => unreachable!("an operation on allocators"),
        }
        // What an allocator has left to a call outside of it.
        self.actor(op).run(catch_up);
        self.settle_accounts();
    }

    fn allocate(&mut self, op: &Op, group: u8, form: u8, bytes: u32, refuses: bool) {
        let room = self.adapters.allocators.objects.len() < OBJECTS_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let of = [Of::Every, Of::Large, Of::Process][usize::from(form % 3)];
        let zeroed = form / 3 % 2 == 1;
        let layout = layout(bytes.max(1), form / 2);
        let place = self.on(op, group, move |group| {
            let allocator = of.allocator();
            let allocate = || unsafe {
                // SAFETY: the layout has a size.
                if zeroed {
                    allocator.alloc_zeroed(layout)
                } else {
                    allocator.alloc(layout)
                }
            };
            let memory = while_refusing(refuses, || group.run(allocate));
            let place = NonNull::new(memory).map(Place);
            if let Some(place) = place {
                if zeroed {
                    // SAFETY: the allocator has written so many bytes.
                    let bytes = unsafe { std::slice::from_raw_parts(memory, layout.size()) };
                    assert!(bytes.iter().all(|&byte| byte == 0), "zeroed");
                }
                place.fill(0, layout.size());
            }
            place
        });
        assert_eq!(place.is_none(), refuses, "as the allocator below");
        let Some(place) = place else { return };
        let key = self.own(of, group, layout.size());
        self.adapters.allocators.objects.push(Object {
            of,
            layout,
            place,
            key,
        });
    }

    fn reallocate(&mut self, op: &Op, number: u8, group: u8, bytes: u32, refuses: bool) {
        let Some(at) = pick(&self.adapters.allocators.objects, number) else {
            return;
        };
        let Some(group) = self.group(group) else {
            return;
        };
        let Object {
            of,
            layout,
            place,
            key,
        } = self.adapters.allocators.objects.swap_remove(at);
        let size = bytes.max(1) as usize;
        let moved = self.on(op, group, move |group| {
            let place = place;
            // SAFETY: the memory is of that allocator and layout, and the new size is no nothing.
            let reallocate = || unsafe { of.allocator().realloc(place.0.as_ptr(), layout, size) };
            let memory = while_refusing(refuses, || group.run(reallocate));
            NonNull::new(memory).map(Place)
        });
        assert_eq!(moved.is_none(), refuses, "as the allocator below");
        let Some(moved) = moved else {
            // As before.
            place.check(layout.size());
            self.adapters.allocators.objects.push(Object {
                of,
                layout,
                place,
                key,
            });
            return;
        };
        moved.check(layout.size().min(size));
        moved.fill(0, size);
        let key = match key {
            // It keeps its owner, also where that is none.
            Some(key) if of.owns(size) => {
                self.twin.set(key, size as u64);
                Some(key)
            }
            None if of.owns(layout.size()) && of.owns(size) => {
                self.adapters.allocators.unowned -= layout.size() as u64;
                self.adapters.allocators.unowned += size as u64;
                None
            }
            key => {
                self.disown(key, layout.size());
                self.own(of, group, size)
            }
        };
        let layout = Layout::from_size_align(size, layout.align()).expect("small");
        self.adapters.allocators.objects.push(Object {
            of,
            layout,
            place: moved,
            key,
        });
    }

    fn free(&mut self, op: &Op, at: usize) {
        let Object {
            of,
            layout,
            place,
            key,
        } = self.adapters.allocators.objects.swap_remove(at);
        self.disown(key, layout.size());
        self.actor(op).run(move || {
            place.check(layout.size());
            let place = place;
            // SAFETY: the memory is of that allocator and layout, and nobody else has it.
            unsafe { of.allocator().dealloc(place.0.as_ptr(), layout) };
        });
    }

    fn block(&mut self, op: &Op, number: u8, bytes: u32, refuses: bool) {
        let room = self.adapters.allocators.blocks.len() < OBJECTS_MAX;
        let Some(group) = self.group(number).filter(|_| room) else {
            return;
        };
        let layout = layout(bytes, bytes as u8);
        let size = layout.size() as u64;
        let zeroed = number.is_multiple_of(2);
        let (allocator, place) = self.on(op, group, move |group| {
            let allocator = GroupAlloc::over(group, Inner);
            let block = while_refusing(refuses, || match zeroed {
                true => allocator.allocate_zeroed(layout),
                false => allocator.allocate(layout),
            });
            let place = block.ok().map(|block| {
                assert_eq!(block.len(), layout.size(), "no more than was asked for");
                Place(block.cast())
            });
            if let Some(place) = place.filter(|_| zeroed) {
                place.is_zeroed(0, layout.size());
            }
            (allocator, place)
        });
        // What the allocator below refuses has been charged for a moment.
        match place {
            Some(place) => {
                assert!(!refuses, "as the allocator below");
                if size > 0 {
                    self.agree_on_refusal(group, size, true);
                }
                place.fill(0, layout.size());
                let key = self.twin.hold(group, 0, size);
                self.adapters.allocators.blocks.push(Block {
                    key,
                    group,
                    allocator,
                    layout,
                    place,
                });
            }
            None if refuses => self.settle_accounts(),
            None => self.agree_on_refusal(group, size, false),
        }
    }

    fn resize_block(&mut self, op: &Op, number: u8, bytes: u32, refuses: bool) {
        let Some(at) = pick(&self.adapters.allocators.blocks, number) else {
            return;
        };
        let mut block = self.adapters.allocators.blocks.swap_remove(at);
        let (old, place) = (block.layout, block.place);
        let new = Layout::from_size_align(bytes as usize, old.align()).expect("small");
        let allocator = block.allocator.clone();
        let zeroed = number.is_multiple_of(2);
        let moved = self.actor(op).run(move || {
            let place = place;
            // SAFETY: the block is of that allocator and layout; the new one is larger, or smaller.
            let resize = || unsafe {
                match new.size() >= old.size() {
                    true if zeroed => allocator.grow_zeroed(place.0, old, new),
                    true => allocator.grow(place.0, old, new),
                    false => allocator.shrink(place.0, old, new),
                }
            };
            let moved = while_refusing(refuses, resize);
            let moved = moved.ok().map(|block| {
                assert_eq!(block.len(), new.size(), "no more than was asked for");
                Place(block.cast())
            });
            if let Some(moved) = moved.filter(|_| zeroed) {
                moved.is_zeroed(old.size(), new.size());
            }
            moved
        });
        let more = (new.size() as u64).saturating_sub(old.size() as u64);
        match moved {
            Some(moved) => {
                assert!(!refuses, "as the allocator below");
                if more > 0 {
                    self.agree_on_refusal(block.group, more, true);
                }
                moved.check(old.size().min(new.size()));
                moved.fill(0, new.size());
                self.twin.set(block.key, new.size() as u64);
                block.layout = new;
                block.place = moved;
            }
            // As before.
            None => {
                place.check(old.size());
                if refuses {
                    self.settle_accounts();
                } else {
                    self.agree_on_refusal(block.group, more, false);
                }
            }
        }
        self.adapters.allocators.blocks.push(block);
    }

    fn free_block(&mut self, op: &Op, at: usize) {
        let block = self.adapters.allocators.blocks.swap_remove(at);
        self.twin.release(block.key);
        self.actor(op).run(move || {
            let block = block;
            block.place.check(block.layout.size());
            // SAFETY: the block is of that allocator and layout, and nobody else has it.
            unsafe { block.allocator.deallocate(block.place.0, block.layout) };
        });
    }

    fn resize_external(&mut self, op: &Op, number: u8, group: u8, bytes: usize) {
        let Some(at) = pick(&self.adapters.allocators.externals, number) else {
            return;
        };
        let Some(group) = self.group(group) else {
            return;
        };
        let External { key, mut charge } = self.adapters.allocators.externals.swap_remove(at);
        let before = charge.bytes();
        let charge = self.on(op, group, move |group| {
            group.run(|| charge.resize(bytes));
            charge
        });
        assert_eq!(charge.bytes(), bytes, "of memory that no allocator sees");
        let key = match key {
            Some(key) if bytes > 0 => {
                self.twin.set(key, bytes as u64);
                Some(key)
            }
            // That of no bytes has no group, and is the present one's from here on.
            key if before == 0 || bytes == 0 => {
                self.disown(key, before);
                self.own_external(group, bytes)
            }
            _ => {
                self.disown(None, before);
                self.adapters.allocators.unowned += bytes as u64;
                None
            }
        };
        self.adapters
            .allocators
            .externals
            .push(External { key, charge });
    }

    /// The owner of a new object: the present group, which is the nearest that is online, or the
    /// root where none is.
    fn own(&mut self, of: Of, group: usize, size: usize) -> Option<Key> {
        let is_online = |&level: &usize| self.twin.groups[level].online;
        let present = self.twin.levels(group).find(is_online).unwrap_or(0);
        if of.owns(size) {
            Some(self.twin.hold(present, 0, size as u64))
        } else {
            self.adapters.allocators.unowned += size as u64;
            None
        }
    }

    fn own_external(&mut self, group: usize, bytes: usize) -> Option<Key> {
        if bytes == 0 {
            None
        } else {
            self.own(Of::Every, group, bytes)
        }
    }

    fn disown(&mut self, key: Option<Key>, bytes: usize) {
        match key {
            Some(key) => _ = self.twin.release(key),
            None => self.adapters.allocators.unowned -= bytes as u64,
        }
    }

    pub(super) fn unowned_holds(&self) -> Holds {
        let of = &self.adapters.allocators;
        let found = unowned_bytes().wrapping_sub(of.unowned_before);
        ensure_eq!(found, of.unowned, "bytes that no group owns");
        Ok(())
    }

    pub(super) fn end_allocators(&mut self, op: &Op) {
        while !self.adapters.allocators.objects.is_empty() {
            self.free(op, 0);
        }
        while !self.adapters.allocators.blocks.is_empty() {
            self.free_block(op, 0);
        }
        for External { key, charge } in std::mem::take(&mut self.adapters.allocators.externals) {
            self.disown(key, charge.bytes());
            self.actor(op).run(move || drop(charge));
        }
        self.actor(op).run(catch_up);
    }
}
