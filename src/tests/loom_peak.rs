//! The peak of live units. Both of its bounds hold beside each step of a thread that charges and
//! frees: what all hold by a count of the model's own is never more than what is live, and what
//! they have begun to charge never less.

use super::schedules::model_of_figures;
use super::{race, stocked};
use crate::PageCounter;
use crate::sync::stat_atomic::AtomicU64;
use crate::sync::{Arc, Ordering};

/// A counter, and what its users hold.
#[derive(Clone)]
struct Counted(PageCounter, Arc<KnownOutside>);

#[derive(Default)]
struct KnownOutside {
    held: AtomicU64,
    begun: AtomicU64,
    most_held: AtomicU64,
    most_begun: AtomicU64,
}

impl Counted {
    fn new() -> Counted {
        Counted(PageCounter::root(stocked()), Arc::default())
    }

    fn charge(&self, n: u64) {
        let Counted(counter, known) = self;
        let begun = known.begun.fetch_add(n, Ordering::Relaxed) + n;
        known.most_begun.fetch_max(begun, Ordering::Relaxed);
        counter.charge(n).unwrap();
        let held = known.held.fetch_add(n, Ordering::Relaxed) + n;
        known.most_held.fetch_max(held, Ordering::Relaxed);
    }

    fn uncharge(&self, n: u64) {
        let Counted(counter, known) = self;
        known.held.fetch_sub(n, Ordering::Relaxed);
        counter.uncharge(n);
        known.begun.fetch_sub(n, Ordering::Relaxed);
    }

    fn assert_bounds(&self) {
        let Counted(counter, known) = self;
        let held = known.most_held.load(Ordering::Relaxed);
        let peak = counter.peak_live();
        let begun = known.most_begun.load(Ordering::Relaxed);
        assert!(
            peak.min() <= begun && held <= peak.max(),
            "{peak:?}: {held} were held, and {begun} were begun"
        );
    }
}

/// Hits, puts and walks of a thread that has charged one unit: they leave a peak of three.
fn up_and_down(counted: &Counted) {
    counted.charge(1);
    counted.uncharge(1);
    counted.charge(2);
    counted.uncharge(3);
}

/// Another thread reads while the only one that charges is in a walk, a put, or between two.
#[test]
fn loom_peak_of_one_mover_vs_reader() {
    model_of_figures(|| {
        let counted = Counted::new();
        counted.charge(1);
        race(
            counted.clone(),
            |counted| counted.assert_bounds(),
            || up_and_down(&counted),
        );
        assert_eq!(counted.0.peak_live().exact(), Some(3));
    });
}

/// A drain takes the credit whose least says what was live. The last charge walks where it finds
/// that credit claimed: usage and the least of the credit do not fit together then.
#[test]
fn loom_peak_of_one_mover_vs_drain() {
    model_of_figures(|| {
        let counted = Counted::new();
        counted.charge(1);
        race(
            counted.clone(),
            |counted| counted.0.drain(),
            || {
                counted.charge(1);
                counted.uncharge(2);
                counted.charge(1);
                counted.uncharge(1);
            },
        );
        counted.assert_bounds();
    });
}

/// A second thread begins to charge, while the first one frees, walks and counts what both have.
#[test]
fn loom_peak_of_two_movers() {
    model_of_figures(|| {
        let counted = Counted::new();
        counted.charge(1);
        race(
            counted.clone(),
            |counted| {
                counted.charge(1);
                counted.uncharge(1);
            },
            || {
                counted.uncharge(1);
                counted.charge(2);
            },
        );
        counted.assert_bounds();
    });
}
