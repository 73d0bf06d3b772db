#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! A global allocator that charges a tree for every allocation, those that the library makes inside
//! its own slow paths included. Nothing deadlocks, and in the end the tree holds exactly what the
//! allocator has handed out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use memcg::{CounterConfig, PageCounter};

#[global_allocator]
static ALLOCATOR: Charging = Charging;

struct Charging;

/// In front of every block whose alignment is not larger: charged size, 0 for none, and index of
/// the tenant.
const HEADER: usize = 16;

const TENANTS: usize = 3;
/// Threads that end at one time.
const MANY: usize = 48;
const NO_TENANT: usize = usize::MAX;

/// The root, and the counters that allocations are charged to.
static TREE: OnceLock<(PageCounter, [PageCounter; TENANTS])> = OnceLock::new();
static ON: AtomicBool = AtomicBool::new(false);
/// Bytes that the allocator has charged and not uncharged yet.
static CHARGED: AtomicI64 = AtomicI64::new(0);
/// Charges and uncharges from inside a call into the library.
static NESTED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

thread_local! {
    /// The tenant to which this thread's allocations are charged.
    static TENANT: Cell<usize> = const { Cell::new(NO_TENANT) };
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Calls into the library. Tells whether that happens inside another call.
fn call<R>(work: impl FnOnce(bool) -> R) -> R {
    let nested = IN_CALL.replace(true);
    let result = work(nested);
    IN_CALL.set(nested);
    result
}

/// The size to put into the header, charged.
fn charge(tenant: usize, size: usize) -> usize {
    let Some(counter) = TREE.get().and_then(|(_, tenants)| tenants.get(tenant)) else {
        return 0;
    };
    if !ON.load(Ordering::Relaxed) {
        return 0;
    }
    call(|nested| {
        NESTED[0].fetch_add(nested.into(), Ordering::Relaxed);
        counter.force_charge(size as u64);
    });
    CHARGED.fetch_add(size as i64, Ordering::Relaxed);
    size
}

fn uncharge(tenant: usize, charged: usize) {
    let Some(counter) = TREE.get().and_then(|(_, tenants)| tenants.get(tenant)) else {
        return;
    };
    call(|nested| {
        NESTED[1].fetch_add(nested.into(), Ordering::Relaxed);
        counter.uncharge(charged as u64);
    });
    CHARGED.fetch_sub(charged as i64, Ordering::Relaxed);
}

impl Charging {
    /// With room for the header. `None`: goes without one.
    fn with_header(layout: Layout) -> Option<Layout> {
        if layout.align() > HEADER {
            return None;
        }
        Layout::from_size_align(layout.size().checked_add(HEADER)?, HEADER).ok()
    }

    /// # Safety
    ///
    /// `block` is null or a new block of the layout that `with_header` gave for `layout`.
    unsafe fn hand_out(block: *mut u8, layout: Layout) -> *mut u8 {
        if block.is_null() {
            return block;
        }
        let tenant = TENANT.get();
        let charged = charge(tenant, layout.size());
        // SAFETY: the block starts with 16 bytes that are the header's, aligned to 16.
        unsafe {
            block.cast::<[usize; 2]>().write([charged, tenant]);
            block.add(HEADER)
        }
    }
}

// SAFETY: blocks come from the system's allocator and go back to it with the layout they came with,
// which depends on the caller's layout alone; what lies behind the header has the caller's size and
// an alignment of 16.
unsafe impl GlobalAlloc for Charging {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match Self::with_header(layout) {
            // SAFETY: not of size 0, and handed out as what it is.
            Some(whole) => unsafe { Self::hand_out(System.alloc(whole), layout) },
            // SAFETY: the caller's own promise.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match Self::with_header(layout) {
            // SAFETY: as in `alloc`; only the header is written.
            Some(whole) => unsafe { Self::hand_out(System.alloc_zeroed(whole), layout) },
            // SAFETY: the caller's own promise.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(whole) = Self::with_header(layout) else {
            // SAFETY: came from the system as it is.
            return unsafe { System.dealloc(block, layout) };
        };
        // SAFETY: `hand_out` moved it by the size of the header, and wrote that.
        let (block, [charged, tenant]) = unsafe {
            let block = block.sub(HEADER);
            (block, block.cast::<[usize; 2]>().read())
        };
        if charged > 0 {
            uncharge(tenant, charged);
        }
        // SAFETY: the whole block, with the layout it came with.
        unsafe { System.dealloc(block, whole) };
    }
}

/// Ends the process if the test does not end.
fn watch() -> impl FnOnce() {
    let (done, ended) = channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            ON.store(false, Ordering::Relaxed);
            eprintln!("deadlock: the allocations of 60 seconds ago have not ended");
            std::process::abort();
        }
    });
    move || {
        drop(done);
        watchdog.join().expect("the watchdog only waits");
    }
}

/// Frees a charged block after the thread's other destructors.
struct AtExit(#[allow(dead_code, reason = "held, not read")] Vec<u8>);

impl Drop for AtExit {
    fn drop(&mut self) {
        drop(vec![0_u8; 3_000]);
    }
}

thread_local! {
    static AT_EXIT: Cell<Option<AtExit>> = const { Cell::new(None) };
}

/// A few numbers that look random.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Does now and then what a program does with the tree, while its allocations are charged.
fn administer(random: u64) {
    let (root, tenants) = TREE.get().expect("set before the threads start");
    let tenant = &tenants[random as usize / 64 % TENANTS];
    match random % 16 {
        0..6 => {
            let child = call(|_| tenant.child());
            call(|_| child.force_charge(random % 10_000));
            // A chain, dropped with what it holds.
            let leaf = call(|_| child.child());
            let _ = call(|_| leaf.charge(random % 5_000));
            call(|_| drop(child));
            call(|_| drop(leaf));
        }
        6..8 => drop(call(|_| root.drain())),
        8 => drop(call(|_| root.set_max(root.usage() + random % 100_000))),
        9 => drop(call(|_| tenant.set_max(tenant.usage() + random % 10_000))),
        10 => drop(call(|_| root.set_max(0))),
        11..13 => {
            call(|_| root.set_max(PageCounter::UNLIMITED)).expect("nothing is above that");
            call(|_| tenant.set_max(PageCounter::UNLIMITED)).expect("nothing is above that");
        }
        13 => call(|_| tenant.set_batch([0, 512, 4_096, 16_384][random as usize / 16 % 4])),
        14 => drop(call(|_| root.stocked())),
        _ => {
            // Enough to make the list of windows grow.
            let windows: Vec<_> = (0..6).map(|_| call(|_| tenant.peak_window())).collect();
            call(|_| windows[0].reset());
            for window in windows {
                call(|_| drop(window));
            }
        }
    }
}

fn work(mut random: u64) {
    AT_EXIT.set(Some(AtExit(vec![1; 700])));
    let mut held: Vec<Vec<u8>> = Vec::new();
    for _ in 0..400 {
        let number = next(&mut random);
        let size = match number % 8 {
            0 => number / 8 % 60_000,
            1..4 => number / 8 % 2_000,
            _ => number / 8 % 100,
        };
        let mut bytes = Vec::with_capacity(size as usize);
        bytes.push(1);
        held.push(bytes);
        if held.len() > 20 {
            held.swap_remove(number as usize / 1_024 % 20);
        }
        if (number / 4_096).is_multiple_of(8) {
            administer(next(&mut random));
        }
    }
}

/// Many threads end with their stocks closed: what the library keeps of them grows, and the charge
/// for that is the first to open a stock again.
fn end_together() {
    let (_, tenants) = TREE.get().expect("set before the threads start");
    let together = Arc::new(Barrier::new(MANY + 1));
    let threads: Vec<JoinHandle<()>> = (0..MANY)
        .map(|thread| {
            let together = together.clone();
            std::thread::spawn(move || {
                TENANT.set(thread % TENANTS);
                drop(vec![0_u8; 100]);
                together.wait();
                together.wait();
            })
        })
        .collect();
    together.wait();
    tenants
        .iter()
        .for_each(|tenant| call(|_| tenant.set_batch(4_096)));
    together.wait();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
}

/// The list of peak windows grows by more than fits, with credit about: the charge for that looks
/// for it.
fn windows_grow_at_a_limit() {
    let (_, tenants) = TREE.get().expect("set before the threads start");
    let tenant = &tenants[TENANT.get()];
    let mut windows = Vec::with_capacity(2_000);
    for _ in 0..1_024 {
        windows.push(call(|_| tenant.peak_window()));
    }
    call(|_| tenant.set_batch(64));
    drop(vec![0_u8; 10]);
    call(|_| tenant.set_max(tenant.usage() + 10_000)).expect("above usage");
    assert!(tenant.stocked() > 0, "open");
    let before = tenant.forced_total();
    windows.push(call(|_| tenant.peak_window()));
    assert!(tenant.forced_total() > before, "16 KiB do not fit");
    call(|_| tenant.set_max(PageCounter::UNLIMITED)).expect("nothing is above that");
    call(|_| tenant.set_batch(4_096));
    for window in windows {
        call(|_| drop(window));
    }
}

#[test]
fn a_global_allocator_charges_every_allocation() {
    let done = watch();
    TREE.get_or_init(|| {
        let root = PageCounter::root(CounterConfig::new().batch(4_096).audit(true));
        let tenants = std::array::from_fn(|_| root.child());
        (root, tenants)
    });
    let (root, tenants) = TREE.get().expect("just set");
    ON.store(true, Ordering::Relaxed);
    TENANT.set(0);
    end_together();
    windows_grow_at_a_limit();
    for wave in 0..300_u64 {
        let threads: Vec<JoinHandle<()>> = (0..4)
            .map(|thread| {
                std::thread::spawn(move || {
                    TENANT.set(thread as usize % TENANTS);
                    work((wave * 4 + thread + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                })
            })
            .collect();
        // Joined one by one: the destructors of a thread are over then, too.
        for thread in threads {
            thread.join().expect("no thread panics");
        }
    }
    ON.store(false, Ordering::Relaxed);
    TENANT.set(NO_TENANT);
    done();
    let nested = NESTED.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(
        nested[0] > 0 && nested[1] > 0,
        "charged and uncharged inside calls: {nested:?}"
    );
    let verdict = root.verify();
    assert!(verdict.audited() && verdict.is_ok(), "{verdict}");
    // In this order: the library may exchange a charged block of its own for one that is not.
    let live = root.live();
    let charged = CHARGED.load(Ordering::Relaxed);
    assert_eq!(
        i64::try_from(live),
        Ok(charged),
        "live, and what the allocator counts; {:?}",
        root.counts()
    );
    assert_eq!(
        tenants.iter().map(PageCounter::live).sum::<u64>(),
        root.live()
    );
    assert_eq!(root.counts().underflows, 0);
    call(|_| root.drain());
    assert_eq!(
        (root.usage().cast_signed(), root.stocked()),
        (CHARGED.load(Ordering::Relaxed), 0)
    );
    let verdict = root.verify();
    assert!(verdict.is_ok(), "{verdict}");
}
