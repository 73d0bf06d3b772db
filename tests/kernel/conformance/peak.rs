//! Statements 62 to 64: peaks. A peak is the highest usage that admitted charges left behind,
//! credit included.

use memcg::{CounterConfig, PageCounter};

use super::{adaptive, assert_sound, bare, fixed};

/// 50 million units, charged and freed in chunks as a program would.
const BURST: u64 = 50_000_000;
const CHUNK: u64 = 1_000;

fn burst(counter: &PageCounter) {
    for _ in 0..BURST / CHUNK {
        counter.charge(CHUNK).expect("unlimited");
    }
}

fn free(counter: &PageCounter) {
    for _ in 0..BURST / CHUNK {
        counter.uncharge(CHUNK);
    }
    counter.drain();
}

fn peak_stays_when_usage_drops(config: CounterConfig) {
    let r = PageCounter::root(config);
    let a = r.child();
    assert_eq!((a.usage(), a.peak()), (0, 0));
    burst(&a);
    assert!(a.usage() >= BURST && a.peak() >= BURST && r.peak() >= BURST);
    let peak = a.peak();
    free(&a);
    assert_eq!((a.usage(), r.usage()), (0, 0));
    assert_eq!(a.peak(), peak);
    assert_sound(&r);
}

twins! {
    peak_stays_when_usage_drops:
    /// Fresh: nothing. After a burst: usage and peak show it. After the free: usage drops, the peak
    /// stays. (The statement's statistics belong to another part.)
    s062_peak_stays_when_usage_drops(bare())(fixed()),
    s062_adaptive(adaptive()),
}

fn windows_are_private(config: CounterConfig) {
    let r = PageCounter::root(config);
    let a = r.child();
    burst(&a);
    free(&a);
    let first = a.peak_window();
    let second = a.peak_window();
    let third = a.peak_window();
    for window in [&first, &second, &third] {
        window.reset();
    }
    assert!(
        a.peak() >= BURST,
        "the counter's own peak is no group's to reset"
    );
    drop(second);
    let fourth = a.peak_window();
    fourth.reset();
    assert!(
        first.peak() < BURST,
        "reset after the burst: {}",
        first.peak()
    );
    burst(&a);
    assert!(a.peak() >= BURST && first.peak() >= BURST && fourth.peak() >= BURST);
    free(&a);
    // The second window of this name: one reset later does not lower what another has recorded.
    let recorded = first.peak();
    third.reset();
    assert!(third.peak() < BURST);
    assert_eq!(first.peak(), recorded);
    assert_eq!(fourth.peak(), recorded);
    drop(third);
    drop(fourth);
    assert_eq!(first.peak(), recorded);
    assert_sound(&r);
}

twins! {
    windows_are_private:
    /// Private windows on the peak, reset one by one, dropped in another order than they were
    /// reset.
    s063_peak_windows_are_private(bare())(fixed()),
    s063_adaptive(adaptive()),
}

/// A window counts what is charged when it is reset: the peak of a window is never below usage.
#[test]
fn s063_reset_window_starts_at_usage() {
    let r = PageCounter::root(bare());
    r.charge(30).expect("unlimited");
    r.uncharge(20);
    let window = r.peak_window();
    window.reset();
    assert_eq!((r.peak(), window.peak()), (30, 10));
    r.charge(5).expect("unlimited");
    r.uncharge(5);
    assert_eq!((r.peak(), window.peak()), (30, 15));
}

/// One unit makes a peak of a batch, as in the kernel: the credit counts against the limit, so it
/// counts here.
#[test]
fn s064_peak_includes_credit() {
    let r = PageCounter::root(fixed());
    let a = r.child();
    a.charge(1).expect("unlimited");
    assert_eq!((a.peak(), r.peak()), (64, 64));
    let r = PageCounter::root(bare());
    r.charge(1).expect("unlimited");
    assert_eq!(r.peak(), 1);
}

#[test]
fn s064_adaptive() {
    let r = PageCounter::root(adaptive());
    let a = r.child();
    a.charge(1).expect("unlimited");
    assert!(a.peak() >= 1);
    assert!(a.peak() >= a.usage() && r.peak() >= r.usage());
}
