#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! A global allocator that counts: a scope that is numbered or unnamed allocates no more than its
//! group must, which is nothing once the pool has a free object, and nothing is formatted. To enter
//! a group allocates nothing, and a map weighs what it has allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;

use memcg::{Group, GroupName, GroupScope, Limits, Runtime, Weigh};

struct Counting;

thread_local! {
    /// Calls and bytes by which this thread has allocated while it counted.
    static ALLOCATED: Cell<Option<(u64, usize)>> = const { Cell::new(None) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(
            ALLOCATED
                .get()
                .map(|(calls, bytes)| (calls + 1, bytes + layout.size())),
        );
        // SAFETY: the caller's layout, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocated(of: impl FnOnce()) -> (u64, usize) {
    ALLOCATED.set(Some((0, 0)));
    of();
    ALLOCATED.take().expect("it counted")
}

fn allocations(of: impl FnOnce()) -> u64 {
    allocated(of).0
}

fn scope(parent: &Group, name: GroupName<'_>) -> GroupScope {
    parent
        .scope(name, Limits::new())
        .expect("a name that is free")
}

#[test]
fn a_scope_allocates_what_its_group_must() {
    let runtime = Runtime::builder().build().expect("a configuration");
    let tenant = runtime
        .root()
        .create("tenant", Limits::new())
        .expect("a name");
    // One that stays: the tenant's list of children, the tables and this thread's slots are made.
    let _stays = scope(&tenant, GroupName::Number(u64::MAX));
    let one_charge = |group: &Group| {
        group.raw().charge(100).expect("no limit");
        group.raw().uncharge(100);
    };
    let life = |name: GroupName<'_>| one_charge(&scope(&tenant, name));
    (0..1_000).for_each(|number| life(GroupName::Number(number)));
    let numbered = allocations(|| {
        (0..1_000_000)
            .step_by(997)
            .for_each(|number| life(GroupName::Number(number)))
    });
    let unnamed = allocations(|| (0..1_000).for_each(|_| life(GroupName::Unnamed)));
    let short = allocations(|| (0..1_000).for_each(|_| life(GroupName::Text("a-query"))));
    let long = allocations(|| {
        (0..1_000).for_each(|_| life(GroupName::Text("a-query-with-a-name-that-is-longer")))
    });
    assert_eq!((numbered, unnamed, short), (0, 0, 0));
    assert_eq!(long, 1_000, "the text of each");
    // A charge from the stock counts a refill: the statistics of a group, which is no more with a
    // scope.
    let more_charges = |group: &Group| (0..3).for_each(|_| one_charge(group));
    let plain = allocations(|| {
        let group = tenant
            .create("a-query", Limits::new())
            .expect("a name that is free");
        more_charges(&group);
        group.offline().expect("no children");
    });
    let scoped = allocations(|| more_charges(&scope(&tenant, GroupName::Number(1))));
    assert!(scoped <= plain, "{scoped} beside {plain}");
    // New objects from the pool's chunks: as many as a group with a short text needs.
    let many = |name: fn(u64) -> GroupName<'static>| {
        let mut scopes = Vec::with_capacity(2_000);
        allocations(|| scopes.extend((0..2_000).map(|number| scope(&tenant, name(number)))))
    };
    let first = many(GroupName::Number);
    let unnamed = many(|_| GroupName::Unnamed);
    let again = many(GroupName::Number);
    // The objects are there. A table of an index that many entries have left may be built again,
    // larger.
    assert!(
        first >= unnamed && again <= 8,
        "{first} at first, {unnamed} unnamed, {again} again"
    );
    assert!(allocations(|| drop(tenant.path())) > 0, "a path is text");
    assert_eq!(
        (tenant.children().len(), runtime.counts().underflows),
        (1, 0)
    );
}

/// Of nine guards at a time the last one takes its scope from the heap.
#[test]
fn to_enter_a_group_allocates_nothing() {
    let runtime = Runtime::builder().build().expect("a configuration");
    let [eight, nine] = [8, 9].map(|guards| {
        let enter = || {
            drop(std::array::from_fn::<_, 9, _>(|at| {
                (at < guards).then(|| runtime.root().enter())
            }))
        };
        enter();
        allocations(enter)
    });
    assert_eq!([eight, nine], [0, 1]);
}

/// To the byte: buckets, and their bytes of control.
#[test]
fn a_map_weighs_what_it_allocates() {
    for entries in [0, 1, 3, 7, 14, 100, 1_000, 100_000] {
        let mut map = HashMap::new();
        let (_, bytes) = allocated(|| map = HashMap::<u64, u64>::with_capacity(entries));
        assert_eq!(map.heap_bytes(), bytes, "{entries}");
    }
}
