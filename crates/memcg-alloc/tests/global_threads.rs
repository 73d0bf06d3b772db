//! The process's allocator at the edges of a thread's life: before `main`, in the first act of a
//! thread, in destructors of thread-locals and of keys, on threads that no Rust code has made.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "threads and keys of the system")]

mod support;

use std::alloc::System;
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use memcg::{Group, Limits, Runtime};
use memcg_alloc::{MemcgAlloc, is_installed, unowned_bytes};
use support::{alone, bytes};

#[global_allocator]
static ALLOCATOR: MemcgAlloc = MemcgAlloc::new(System);

// === Before main ===

static EARLY: AtomicPtr<Vec<u8>> = AtomicPtr::new(null_mut());
static EARLY_UNOWNED: AtomicU64 = AtomicU64::new(0);

/// Runs before `main`, and before any runtime.
extern "C" fn early() {
    let before = unowned_bytes();
    let mut early = Box::new(Vec::with_capacity(100));
    early.resize(3_000, 1);
    early.shrink_to_fit();
    EARLY.store(Box::into_raw(early), Ordering::Relaxed);
    EARLY_UNOWNED.store(unowned_bytes() - before, Ordering::Relaxed);
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = early;

#[test]
fn what_was_allocated_before_main_is_counted() {
    let _alone = alone();
    let early = EARLY.swap(null_mut(), Ordering::Relaxed);
    assert!(!early.is_null() && is_installed());
    assert_eq!(
        EARLY_UNOWNED.load(Ordering::Relaxed),
        3_000 + size_of::<Vec<u8>>() as u64
    );
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create("g", Limits::new()).unwrap();
    // SAFETY: from `Box::into_raw` in `early`.
    group.run(|| drop(unsafe { Box::from_raw(early) }));
    assert_eq!((group.live(), runtime.counts().underflows), (0, 0));
}

// === Threads of the system ===

fn on_pthread(body: extern "C" fn(*mut c_void) -> *mut c_void) {
    let mut thread = 0;
    // SAFETY: the body takes no argument; the thread is joined.
    unsafe {
        assert_eq!(
            libc::pthread_create(&raw mut thread, null(), body, null_mut()),
            0
        );
        assert_eq!(libc::pthread_join(thread, null_mut()), 0);
    }
}

/// The group of the test that runs, and what its threads leave to the next.
static GROUP: Mutex<Option<Group>> = Mutex::new(None);
static LEFT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

fn group() -> Group {
    GROUP.lock().unwrap().clone().unwrap()
}

fn with_group(name: &str, test: impl FnOnce(&Group)) {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create(name, Limits::new()).unwrap();
    *GROUP.lock().unwrap() = Some(group.clone());
    test(&group);
    LEFT.lock().unwrap().clear();
    assert_eq!(group.live(), 0, "all is freed");
    GROUP.lock().unwrap().take();
    group.offline().unwrap();
    drop(group);
    memcg_alloc::catch_up();
    runtime.settle();
    assert_eq!(
        (
            runtime.dying_count(),
            runtime.root().usage(),
            runtime.counts().underflows
        ),
        (0, 0, 0)
    );
    assert!(runtime.verify().is_ok());
}

/// Allocates in the group, and leaves it to another thread; frees what an earlier call has left.
fn leave(count: usize) {
    let left = group().run(|| bytes(7, count));
    let before = {
        let mut all = LEFT.lock().unwrap();
        let before = if all.len() > 2 {
            Some(all.swap_remove(0))
        } else {
            None
        };
        if all.len() == all.capacity() {
            all.reserve(16);
        }
        all.push(left);
        before
    };
    drop(before);
}

fn left_bytes() -> u64 {
    LEFT.lock()
        .unwrap()
        .iter()
        .map(|left| left.capacity() as u64)
        .sum()
}

extern "C" fn first_act(_: *mut c_void) -> *mut c_void {
    for count in [1, 100, 5_000, 300_000, 70] {
        leave(count);
    }
    null_mut()
}

#[test]
fn the_first_act_of_a_thread_is_an_allocation() {
    let _alone = alone();
    with_group("first", |group| {
        for _ in 0..20 {
            on_pthread(first_act);
            assert_eq!(group.live(), left_bytes());
        }
    });
}

thread_local! {
    static FIRST: RefCell<Option<InDestructor>> = const { RefCell::new(None) };
    static SECOND: RefCell<Option<InDestructor>> = const { RefCell::new(None) };
    static THIRD: RefCell<Option<InDestructor>> = const { RefCell::new(None) };
}

/// Allocates and frees in the destructor of a thread-local.
struct InDestructor {
    held: Vec<u8>,
}

static DESTRUCTORS: AtomicU64 = AtomicU64::new(0);

impl InDestructor {
    fn new(count: usize) -> Option<InDestructor> {
        Some(InDestructor {
            held: group().run(|| bytes(1, count)),
        })
    }
}

impl Drop for InDestructor {
    fn drop(&mut self) {
        self.held = group().run(|| bytes(2, self.held.len() + 1));
        leave(self.held.len());
        DESTRUCTORS.fetch_add(1, Ordering::Relaxed);
    }
}

type Slot = &'static std::thread::LocalKey<RefCell<Option<InDestructor>>>;

/// The first use decides the order of destructors, among them that of the crate's own thread-local.
fn use_in_order(order: [usize; 4]) {
    let slots: [Slot; 3] = [&FIRST, &SECOND, &THIRD];
    for at in order {
        match slots.get(at) {
            Some(slot) => slot.set(InDestructor::new(1_000 * (at + 1))),
            None => leave(64),
        }
    }
}

/// Each order of three thread-locals and a plain allocation.
fn orders() -> impl Iterator<Item = [usize; 4]> {
    let all = (0..256_usize).map(|code| [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6]);
    all.filter(|order| (0..4).all(|at| order.contains(&at)))
}

#[test]
fn destructors_of_thread_locals_allocate_in_any_order() {
    let _alone = alone();
    with_group("destructors", |group| {
        assert_eq!(orders().count(), 24);
        for order in orders() {
            let before = DESTRUCTORS.load(Ordering::Relaxed);
            std::thread::spawn(move || use_in_order(order))
                .join()
                .unwrap();
            assert_eq!(DESTRUCTORS.load(Ordering::Relaxed), before + 3);
            assert_eq!(group.live(), left_bytes(), "{order:?}");
        }
    });
}

static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
static KEYS: AtomicU64 = AtomicU64::new(0);

/// Runs after the destructors of thread-locals, some rounds long.
extern "C" fn key_destructor(rounds: *mut c_void) {
    let round = rounds.addr();
    leave(round * 100);
    leave(round * 2_000);
    KEYS.fetch_add(1, Ordering::Relaxed);
    if round > 1 {
        // SAFETY: a key that exists, on a thread that ends.
        unsafe {
            libc::pthread_setspecific(*KEY.get().unwrap(), std::ptr::without_provenance(round - 1))
        };
    }
}

extern "C" fn with_key(_: *mut c_void) -> *mut c_void {
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: makes a key, whose destructor takes any pointer.
        let failed = unsafe { libc::pthread_key_create(&raw mut key, Some(key_destructor)) };
        assert_eq!(failed, 0);
        key
    });
    // SAFETY: a key that exists.
    unsafe { libc::pthread_setspecific(*key, std::ptr::without_provenance(3)) };
    use_in_order(
        orders()
            .nth(KEYS.load(Ordering::Relaxed) as usize / 3 % 24)
            .unwrap(),
    );
    null_mut()
}

#[test]
fn destructors_of_keys_allocate_after_all_others() {
    let _alone = alone();
    with_group("keys", |group| {
        for round in 1..=24 {
            on_pthread(with_key);
            assert_eq!(KEYS.load(Ordering::Relaxed), 3 * round);
            assert_eq!(group.live(), left_bytes());
        }
    });
}

/// Threads that come and go, as those of a pool of blocking tasks: nothing is lost with a thread.
#[test]
fn what_ended_threads_have_counted_stays() {
    let _alone = alone();
    with_group("many", |group| {
        let before = unowned_bytes();
        let mut held = Vec::with_capacity(400);
        for round in 0..100 {
            std::thread::scope(|scope| {
                let threads = [0; 4].map(|_| {
                    scope.spawn(move || (group.run(|| bytes(0, 777 + round)), bytes(0, 99)))
                });
                held.extend(threads.map(|thread| thread.join().unwrap()));
            });
        }
        assert_eq!(
            group.live(),
            held.iter()
                .map(|(owned, _)| owned.capacity() as u64)
                .sum::<u64>()
        );
        drop(held);
        assert_eq!(group.live(), 0);
        // Memory that `std` keeps of threads, and the vector above.
        assert!(
            unowned_bytes().abs_diff(before) < 16 << 10,
            "{} and {before}",
            unowned_bytes()
        );
    });
}
