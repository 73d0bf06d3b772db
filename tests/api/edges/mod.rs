//! Threads begin and end, callbacks call back, the system says no, and numbers do not fit.
//!
//! Fork and seccomp stand in `system`: each runs in a process of its own.

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod system;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memcg::barrier::BarrierMode;
use memcg::inspect::VerifyFaultKind;
use memcg::{CounterConfig, PageCounter};
use thread_local::ThreadLocal;

fn configs() -> [CounterConfig; 3] {
    let config = CounterConfig::new().audit(true);
    [
        config.clone().adaptive(false),
        config.clone(),
        config.barrier(BarrierMode::Fence),
    ]
}

/// A counter and its child.
fn with_child(config: CounterConfig) -> (PageCounter, PageCounter) {
    let root = PageCounter::root(config);
    let child = root.child();
    (root, child)
}

/// The whole tree adds up, and a drain leaves nothing but what is live.
#[track_caller]
fn assert_sound(root: &PageCounter, live: u64) {
    let verdict = root.verify();
    assert!(verdict.is_ok(), "{verdict}");
    assert_eq!(root.live(), live);
    root.drain();
    assert_eq!((root.usage(), root.stocked()), (live, 0));
    let verdict = root.verify();
    assert!(verdict.is_ok(), "{verdict}");
}

// === Threads that begin and end ===

/// Charges when its thread ends.
struct AtExit(PageCounter);

impl Drop for AtExit {
    fn drop(&mut self) {
        self.0.charge(10).expect("unlimited");
        self.0.force_charge(5);
        self.0.uncharge(14);
        self.0.drain();
        drop(self.0.child());
    }
}

thread_local! {
    static EARLIER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
    static LATER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

/// Each destructor leaves one unit. One is registered before the thread's first charge and one
/// after it, so whatever the order of destructors is, one of them runs when the thread's stock is
/// gone.
#[test]
fn a_thread_charges_in_a_thread_local_destructor() {
    let neighbours: Arc<ThreadLocal<Cell<u64>>> = Arc::default();
    for config in configs() {
        let (root, a) = with_child(config);
        for round in 0..20 {
            let counter = a.clone();
            let neighbours = neighbours.clone();
            let thread = std::thread::spawn(move || {
                neighbours.get_or(|| Cell::new(0)).set(1);
                EARLIER.set(Some(AtExit(counter.clone())));
                counter.charge(1).expect("unlimited");
                counter.uncharge(1);
                LATER.set(Some(AtExit(counter)));
                let uses = neighbours.get_or_default();
                uses.set(uses.get() + 1);
            });
            thread.join().expect("destructors do not panic");
            assert_eq!(a.live(), 2 * (round + 1));
        }
        assert_sound(&root, 40);
    }
}

#[test]
fn a_thread_charges_first_in_a_thread_local_destructor() {
    let neighbours: Arc<ThreadLocal<Cell<u64>>> = Arc::default();
    for config in configs() {
        let (root, a) = with_child(config);
        for round in 0..20 {
            let counter = a.clone();
            let neighbours = neighbours.clone();
            let thread = std::thread::spawn(move || {
                EARLIER.set(Some(AtExit(counter)));
                neighbours.get_or(|| Cell::new(1));
            });
            thread.join().expect("destructors do not panic");
            assert_eq!(a.live(), round + 1);
        }
        assert_sound(&root, 20);
    }
}

/// The last handle of a counter may go in a destructor too.
#[test]
fn the_last_handle_goes_in_a_thread_local_destructor() {
    let root = PageCounter::root(CounterConfig::new().audit(true));
    for _ in 0..20 {
        let child = root.child();
        let thread = std::thread::spawn(move || {
            EARLIER.set(Some(AtExit(child.clone())));
            child.charge(1).expect("unlimited");
            LATER.set(Some(AtExit(child)));
        });
        thread.join().expect("destructors do not panic");
        assert_eq!(root.usage(), 0, "what was charged to it left with it");
    }
    assert_sound(&root, 0);
}

// === Callbacks ===

/// Everything that a program may do with the tree, done inside the pressure hook.
#[test]
fn the_pressure_hook_uses_the_tree() {
    for config in configs() {
        let cell: Arc<Mutex<Option<PageCounter>>> = Arc::default();
        let calls = Arc::new(AtomicU64::new(0));
        let target = cell.clone();
        let counted = calls.clone();
        let root = PageCounter::root(config.on_pressure(move |pressure| {
            let counter = target
                .lock()
                .expect("no panic holds it")
                .clone()
                .expect("set before the first charge");
            let call = counted.fetch_add(1, Ordering::Relaxed);
            assert_eq!(pressure.level, counter.id());
            assert!(pressure.want() > 0 && pressure.want() <= pressure.requested);
            counter.uncharge(2);
            counter.charge(1).expect("two were freed");
            counter.force_charge(1);
            counter
                .charge(1_000)
                .expect_err("refused inside the hook, which is not called again for it");
            counter.uncharge(2);
            let child = counter.child();
            child.charge(1).expect("the freed ones");
            drop(child);
            counter.drain();
            counter
                .set_max(counter.max())
                .expect("nothing more is live");
            assert!(counter.verify().is_ok());
            counter.charge(2).expect("the freed ones");
            // The first time something is freed, the second time not.
            if call == 0 {
                counter.uncharge(10);
                10
            } else {
                0
            }
        }));
        let a = root.child();
        a.set_max(100).expect("nothing is charged yet");
        *cell.lock().expect("no panic holds it") = Some(a.clone());
        a.charge(100).expect("100 of 100");
        a.charge(10).expect("the hook freed ten");
        assert_eq!((a.live(), calls.load(Ordering::Relaxed)), (100, 1));
        assert_eq!(
            a.charge(10).expect_err("the hook freed nothing").level,
            a.id()
        );
        assert_eq!((a.live(), calls.load(Ordering::Relaxed)), (100, 2));
        assert_sound(&root, 100);
        *cell.lock().expect("no panic holds it") = None;
    }
}

#[test]
fn a_hook_that_panics_leaves_the_tree_whole() {
    let root = PageCounter::root(
        CounterConfig::new()
            .audit(true)
            .on_pressure(|_| panic!("the hook's own fault")),
    );
    let a = root.child();
    a.set_max(100).expect("nothing is charged yet");
    a.charge(90).expect("90 of 100");
    for _ in 0..3 {
        catch_unwind(AssertUnwindSafe(|| a.charge(20))).expect_err("the hook panics");
        assert_eq!((a.live(), root.live()), (90, 90));
    }
    a.charge(10).expect("100 of 100");
    a.uncharge(100);
    assert_sound(&root, 0);
}

// === Numbers that do not fit ===

#[test]
fn the_largest_settings_are_taken() {
    let config = CounterConfig::new()
        .batch(u64::MAX)
        .budget(u64::MAX)
        .max(u64::MAX)
        .audit(true);
    let (root, a) = with_child(config);
    a.set_batch(u64::MAX);
    a.set_min(u64::MAX);
    a.set_low(u64::MAX);
    a.set_max(u64::MAX).expect("unlimited");
    for units in [1, 1 << 40, 1 << 62] {
        a.charge(units).expect("unlimited");
        assert_eq!(a.live(), units);
        assert_eq!(root.children_min_usage(), a.usage());
        assert!(a.stocked() <= a.stocked_bound());
        a.uncharge(units);
    }
    assert_sound(&root, 0);
}

fn more_is_uncharged_than_charged(config: CounterConfig) {
    let root = PageCounter::root(config);
    let a = root.child();
    let sibling = root.child();
    sibling.charge(20).expect("unlimited");
    a.charge(3).expect("unlimited");
    a.uncharge(10);
    // With a stock the surplus poses as credit until that is called in.
    root.drain();
    assert_eq!((a.usage(), a.live()), (0, 0), "clamped");
    assert_eq!(
        (sibling.live(), root.live()),
        (20, 20),
        "the others keep what is theirs"
    );
    assert_eq!(root.counts().underflows, 1);
    let verdict = root.verify();
    let fault = verdict
        .faults()
        .iter()
        .find(|fault| fault.kind == VerifyFaultKind::Underflow);
    let fault = fault.unwrap_or_else(|| panic!("no underflow in: {verdict}"));
    assert_eq!(
        (fault.counter, fault.expected.abs_diff(fault.found)),
        (a.id(), 7)
    );
    assert!(
        fault.to_string().contains(&a.id().to_string()) && fault.to_string().contains('7'),
        "{fault}"
    );
    // Later charges are right, and what is charged is never taken for the missing units.
    for _ in 0..200 {
        a.charge(1).expect("unlimited");
    }
    assert_eq!((a.live(), sibling.live(), root.live()), (200, 20, 220));
    a.uncharge(200);
    sibling.uncharge(20);
    root.drain();
    assert_eq!((root.usage(), root.counts().underflows), (0, 1));
}

#[test]
fn too_much_uncharged_is_clamped_and_named() {
    for config in configs() {
        more_is_uncharged_than_charged(config.clone());
        more_is_uncharged_than_charged(config.batch(0));
    }
}

#[test]
fn uncharged_without_any_charge() {
    for config in configs() {
        let root = PageCounter::root(config);
        let a = root.child();
        let sibling = root.child();
        sibling.charge(20).expect("unlimited");
        for units in [1, 1_000, u64::MAX] {
            a.uncharge(units);
        }
        root.drain();
        assert_eq!((a.usage(), sibling.live(), root.live()), (0, 20, 20));
        assert!(root.counts().underflows > 0);
        assert!(
            root.verify()
                .faults()
                .iter()
                .any(|fault| fault.counter == a.id())
        );
        drop(a);
        assert_eq!(
            (sibling.live(), root.live()),
            (20, 20),
            "it takes nothing along when it goes"
        );
        let next = root.child();
        next.charge(5).expect("unlimited");
        assert_eq!(
            (next.live(), root.live()),
            (5, 25),
            "a thread that has its slots now starts clean"
        );
    }
}

/// A count broken on purpose: `cancel` takes units off one level only.
#[test]
fn verify_names_counter_and_amount() {
    for config in configs() {
        let root = PageCounter::root(config);
        let a = root.child();
        let b = root.child();
        let leaf = a.child();
        leaf.charge(10).expect("unlimited");
        b.charge(5).expect("unlimited");
        assert!(root.verify().is_ok());
        leaf.cancel(4);
        let verdict = root.verify();
        assert!(!verdict.is_ok() && verdict.audited());
        let fault = verdict.faults().first().expect("something is wrong");
        assert_eq!(
            (fault.counter, fault.kind),
            (leaf.id(), VerifyFaultKind::Identity)
        );
        assert_eq!(fault.expected - fault.found, 4);
        assert_eq!(verdict.faults().len(), 1, "and nowhere else: {verdict}");
        let text = verdict.to_string();
        assert!(
            text.contains(&leaf.id().to_string()) && text.contains('4'),
            "{text}"
        );
        a.cancel(4);
        root.cancel(4);
        assert!(
            root.verify()
                .faults()
                .iter()
                .all(|fault| fault.expected - fault.found == 4)
        );
        assert_eq!(root.verify().faults().len(), 3, "each level lacks the same");
    }
}

/// Without the second count, `verify` sees what the levels say of each other, and says that this is
/// all it did.
#[test]
fn verify_without_audit_compares_the_levels() {
    let root = PageCounter::root(CounterConfig::new().batch(0));
    let a = root.child();
    a.charge(10).expect("unlimited");
    assert!(root.verify().is_ok() && !root.verify().audited());
    root.cancel(3);
    let verdict = root.verify();
    let fault = verdict
        .faults()
        .first()
        .expect("the child holds more than the root");
    assert_eq!(
        (fault.counter, fault.kind),
        (root.id(), VerifyFaultKind::Children)
    );
    assert_eq!(fault.expected.abs_diff(fault.found), 3);
}

// === Types ===

/// Compiles, or does not.
#[test]
fn handles_and_errors_cross_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn cloned<T: Clone + Send + Sync + 'static>() {}
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    cloned::<PageCounter>();
    cloned::<CounterConfig>();
    cloned::<memcg::inspect::VerifyReport>();
    shared::<memcg::figures::PeakWindow>();
    shared::<memcg::figures::TreeCounts>();
    shared::<memcg::CounterId>();
    error::<memcg::errors::CounterChargeError>();
    error::<memcg::errors::CounterLimitError>();
    error::<memcg::errors::ParseLimitError>();
}
