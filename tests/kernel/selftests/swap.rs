//! `test_memcg_swap_max_peak`: swap is a further counter, which the owner of the memory charges
//! when it is moved there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::figures::PeakWindow;
use memcg::{Event, Limit, Limits};

use super::{Cell, PAGE, assert_current, assert_sound, build, count, create, values_close};
use crate::support::reclaimers::MIB;
use crate::support::swapping::Anon;
use crate::support::workers::Other;

/// `test_memcg_swap_max_peak` in `test_memcontrol.c`: 30M of memory and 30M of swap hold no 100M,
/// but 50M. Peaks of both and windows on them, others of which are opened, reset and closed.
fn test_memcg_swap_max_peak(cell: Cell) {
    let mut builder = cell.builder();
    let swap = builder.counter("swap", memcg::Unit::Bytes);
    let runtime = build(builder);
    let group = create(&runtime.root(), "memcg_test", Limits::new());
    let swap_of = group.counter(swap).expect("declared");
    let windows = [group.memory().peak_window(), swap_of.peak_window()];
    let peaks = || {
        [
            group.peak(),
            swap_of.peak(),
            windows[0].peak(),
            windows[1].peak(),
        ]
    };
    assert_eq!((peaks(), swap_of.usage()), ([0; 4], 0));
    windows.iter().for_each(PeakWindow::reset);
    assert_eq!(peaks(), [0; 4]);
    assert_eq!((group.max(), swap_of.max()), (u64::MAX, u64::MAX));
    swap_of.set_max(Limit::Bytes(30 * MIB)).expect("a number");
    group.set_max(Limit::Bytes(30 * MIB)).expect("a number");

    let alloc_anon = create(&group, "alloc_anon", Limits::new());
    let (anon, registration) = Anon::of(&alloc_anon, swap, PAGE);
    let kills = Arc::new(AtomicU64::new(0));
    let hook = {
        let kills = Arc::clone(&kills);
        alloc_anon.on_cancel(move |_| {
            kills.fetch_add(1, Ordering::SeqCst);
        })
    };
    let process = Other::spawn();
    let killed = process
        .with(&anon, |anon| anon.allocate(100 * MIB))
        .expect_err("60M is all there is");
    assert!(
        killed.is_cancelled() && *killed.group() == alloc_anon,
        "{killed}"
    );
    process.with(&anon, |anon| anon.exit());
    assert_eq!(
        (
            count(&group, Event::Oom),
            count(&group, Event::OomKill),
            kills.load(Ordering::SeqCst)
        ),
        (1, 1, 1)
    );
    assert!(
        peaks().iter().all(|&peak| peak >= 29 * MIB),
        "{:?}",
        peaks()
    );

    // A few pages are left of the process: the credit of its thread.
    for window in [group.memory().peak_window(), swap_of.peak_window()]
        .iter()
        .chain(&windows)
    {
        window.reset();
    }
    let [memory, swapped] = windows.each_ref().map(PeakWindow::peak);
    assert!(
        memory <= MIB && swapped <= 10 * MIB,
        "{memory} and {swapped}"
    );
    assert!(group.peak() >= 29 * MIB && swap_of.peak() >= 29 * MIB);

    // `alloc_anon_50M_check_swap`: 30M stay in memory, 20M are moved.
    process
        .with(&anon, |anon| anon.allocate(50 * MIB))
        .expect("60M is enough");
    assert_current(&group, 30 * MIB, 3);
    for sum in [
        group.usage() + swap_of.usage(),
        group.live() + swap_of.live(),
    ] {
        assert!(values_close(sum, 50 * MIB, 3), "{sum}");
    }
    assert!(count(&group, Event::Max) > 0);
    for (peak, least) in peaks().into_iter().zip([29, 29, 29, 19]) {
        assert!(peak >= least * MIB, "{peak}, not {least} MiB");
    }
    assert_eq!(kills.load(Ordering::SeqCst), 1);
    process.with(&anon, |anon| anon.exit());
    drop((hook, registration));
    assert_sound(&runtime);
}

matrix! { test_memcg_swap_max_peak }
