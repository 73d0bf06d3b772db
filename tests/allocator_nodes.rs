#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! A global allocator that precharges and accounts every allocation to a node, those that the
//! library makes inside its own slow paths included. Nothing deadlocks, every byte is charged, and
//! each is on its node, or is said not to be: in the guard, and in `counts().nested_stats`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use memcg::kmem::NumaTable;
use memcg::kmem::{Kmem, NodeId, Placement};
use memcg::{Bytes, Freshness, Group, Limits, Runtime, StatKey};

/// Accounts each allocation, on nodes in turn, and gives it back at once or later.
struct Accounting;

const NODES: usize = 3;
const KEPT: usize = 32;

/// Has a part on each node, so that what is accounted inside a slow path finds it.
static GROUP: OnceLock<Group> = OnceLock::new();
/// A group that has just been made, mostly without: what is accounted inside a slow path may be on
/// no account.
static FRESH: Mutex<Option<Group>> = Mutex::new(None);
/// Bytes that are held by that group, by node, and by the others.
static HELD: [AtomicI64; NODES] = [const { AtomicI64::new(0) }; NODES];
static HELD_FRESH: [AtomicI64; NODES] = [const { AtomicI64::new(0) }; NODES];
/// Bytes that were ever accounted.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);
/// Those from inside another call into the library.
static NESTED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
    /// Guards of this thread, some of which are freed by each further allocation: inside slow paths
    /// too.
    static KEPT_HERE: RefCell<Kept> = const { RefCell::new(Kept([const { None }; KEPT])) };
}

/// Guards that are left go back with the thread.
struct Kept([Option<Guard>; KEPT]);

struct Guard {
    kmem: Kmem,
    of: usize,
    is_fresh: bool,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|kept| give_back(kept.take()));
    }
}

/// Calls into the library.
fn call<R>(work: impl FnOnce() -> R) -> R {
    let nested = IN_CALL.replace(true);
    let result = work();
    IN_CALL.set(nested);
    result
}

fn give_back(kept: Option<Guard>) {
    if let Some(Guard { kmem, of, is_fresh }) = kept {
        let bytes = kmem.bytes().cast_signed();
        call(|| drop(kmem));
        let sums = if is_fresh { &HELD_FRESH } else { &HELD };
        sums[of].fetch_sub(bytes, Ordering::SeqCst);
    }
}

fn account(bytes: usize) {
    let Some(group) = GROUP.get() else { return };
    let number = CALLS.fetch_add(1, Ordering::Relaxed) as usize;
    NESTED.fetch_add(IN_CALL.get().into(), Ordering::Relaxed);
    let of = number % NODES;
    let fresh = if number.is_multiple_of(4) {
        FRESH.try_lock().ok().and_then(|fresh| fresh.clone())
    } else {
        None
    };
    let group = fresh.as_ref().unwrap_or(group);
    // Nothing of this allocates by itself: one node is within a placement and a guard.
    let placement = Placement::on(NodeId::new(of as u16), Bytes(bytes as u64));
    let kmem = call(|| {
        Some(
            group
                .precharge(Bytes(bytes as u64))
                .ok()?
                .account(&placement),
        )
    });
    let is_fresh = fresh.is_some();
    // It may have been the last handle.
    call(|| drop(fresh));
    let Some(kmem) = kmem else { return };
    ALLOCATED.fetch_add(bytes as u64, Ordering::Relaxed);
    let sums = if is_fresh { &HELD_FRESH } else { &HELD };
    sums[of].fetch_add(kmem.bytes().cast_signed(), Ordering::SeqCst);
    let old = KEPT_HERE.try_with(|kept| {
        // Borrowed where a guard is put away just now: then this one is not kept.
        kept.try_borrow_mut()
            .ok()
            .map(|mut kept| kept.0[number % KEPT].take())
    });
    match old {
        Ok(Some(old)) => {
            give_back(old);
            let put = KEPT_HERE.with(|kept| {
                kept.borrow_mut().0[number % KEPT].replace(Guard { kmem, of, is_fresh })
            });
            give_back(put);
        }
        _ => give_back(Some(Guard { kmem, of, is_fresh })),
    }
}

fn give_all_back() {
    for at in 0..KEPT {
        give_back(KEPT_HERE.with(|kept| kept.borrow_mut().0[at].take()));
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Accounting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        account(layout.size());
        // SAFETY: the caller's layout, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Accounting = Accounting;

#[test]
fn every_allocation_is_on_its_node_or_said_not_to_be() {
    let runtime = Runtime::builder()
        .stat_batch(8)
        .nodes(NODES)
        .build()
        .expect("a configuration");
    let root = runtime.root();
    let group = root.create("allocator", Limits::new()).expect("a name");
    // Parts on all nodes, so that even what is nested finds them; another thread's, so that cells
    // are still to be made.
    let theirs = group.clone();
    std::thread::spawn(move || {
        for of in 0..NODES as u16 {
            drop(
                theirs
                    .precharge(1)
                    .expect("no limits")
                    .account(&Placement::on(NodeId::new(of), 1)),
            );
        }
    })
    .join()
    .expect("no panic");
    assert!(GROUP.set(group.clone()).is_ok());
    // Slow paths of all kinds: first touches, parts, rows, flushes, releases, threads that end.
    std::thread::scope(|scope| {
        for worker in 0..3_u64 {
            let root = &root;
            scope.spawn(move || {
                for number in 0..300_u64 {
                    let of = NodeId::new((number % NODES as u64) as u16);
                    let query = call(|| root.create(&format!("{worker}.{number}"), Limits::new()))
                        .expect("a name");
                    let old = FRESH.lock().expect("no panic").replace(query.clone());
                    call(|| drop(old));
                    let mut kmem = call(|| {
                        query
                            .precharge(100)
                            .expect("no limits")
                            .account(&Placement::on(of, 100))
                    });
                    let thread = std::thread::spawn(move || {
                        call(|| kmem.migrated(Some(of), Some(NodeId::new(0)), 60));
                        give_all_back();
                        kmem
                    });
                    let kmem = thread.join().expect("no panic");
                    match number % 4 {
                        0 => drop(call(|| query.numa_stat(StatKey::KERNEL, Freshness::Exact))),
                        1 => call(|| root.inspect().flush()),
                        2 => drop(call(|| NumaTable::of(root))),
                        _ => {}
                    }
                    call(|| query.offline()).expect("no children");
                    call(|| drop((query, kmem)));
                }
                give_all_back();
            });
        }
    });
    let old = FRESH.lock().expect("no panic").take();
    call(|| drop(old));
    call(|| runtime.settle());
    give_all_back();
    // The read itself allocates a little, and accounts that.
    let before = HELD.each_ref().map(|held| held.load(Ordering::SeqCst));
    let now = call(|| group.numa_stat(StatKey::KERNEL, Freshness::Exact));
    let read = ALLOCATED.load(Ordering::SeqCst);
    let after = HELD.each_ref().map(|held| held.load(Ordering::SeqCst));
    for of in 0..NODES {
        let found = now.get(NodeId::new(of as u16));
        let bytes = before[of].abs_diff(found).max(after[of].abs_diff(found));
        assert!(
            bytes < 4_096,
            "node {of}: {} before, {} after, {found} read",
            before[of],
            after[of]
        );
    }
    let nested = NESTED.load(Ordering::SeqCst);
    println!(
        "{} calls, {nested} of them inside another, {read} bytes",
        CALLS.load(Ordering::SeqCst)
    );
    assert!(
        nested > 1_000,
        "{nested} allocations inside a call of the library"
    );
    let nowhere = runtime.counts().nested_stats;
    println!("{nowhere} of them on no account");
    assert!(
        nowhere < nested / 2,
        "{nowhere} of {nested} were on no account"
    );
    // All of them together: to the byte. Nothing is allocated between the two looks, so nothing is
    // held but that.
    give_all_back();
    let held = HELD
        .iter()
        .chain(&HELD_FRESH)
        .map(|held| held.load(Ordering::SeqCst));
    assert_eq!(
        (
            held.sum::<i64>(),
            group.live(),
            root.live(),
            runtime.dying_count()
        ),
        (0, 0, 0, 0)
    );
    let now = call(|| root.numa_stat(StatKey::KERNEL, Freshness::Exact));
    let rest = HELD.each_ref().map(|held| held.load(Ordering::SeqCst));
    for (of, bytes) in now.iter() {
        assert!(
            bytes.abs_diff(rest[usize::from(of.get())]) < 4_096,
            "{now}, and held are {rest:?}"
        );
    }
    give_all_back();
    assert_eq!(runtime.counts().underflows, 0);
    assert!(call(|| runtime.verify()).is_ok());
}
