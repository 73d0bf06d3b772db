//! `Gauge`: memory whose size is reported, and not charged step by step.

use std::mem;

use crate::group::{Charge, Group};
use crate::sync::lock::{Lock, Rank};
use crate::units::{Bytes, IntoBytes};

/// A charge for memory whose size is only reported now and then: what a library, a pool of buffers
/// or an embedded store says that it uses. Each [`report`](Self::report) replaces the one before,
/// and the drop gives all bytes back.
///
/// The memory exists when it is reported, so the bytes are charged by force, as
/// [`Group::force_charge`] does: they may take the group above its max, and then other charges
/// wait, have caches give back, or are refused. If memory can be charged before it is allocated,
/// use [`Charged`](crate::Charged) instead.
///
/// Between two reports the group is charged for what was reported last, so its usage is off by what
/// the memory has grown or shrunk since.
///
/// ```
/// use memcg::{Gauge, Limits, Runtime};
///
/// /// Stands for a library that has memory of its own and tells how much.
/// fn memory_of_the_store() -> usize {
///     40 << 20
/// }
///
/// let runtime = Runtime::builder().build()?;
/// let store = runtime.root().create("store", Limits::new().max(64 << 20))?;
/// let gauge = Gauge::new(&store);
/// gauge.report(memory_of_the_store()); // once a second, say, by any thread
/// assert_eq!(store.live(), 40 << 20);
/// assert!(store.try_charge(30 << 20).is_err(), "it counts beside what is charged");
/// gauge.report(8 << 20);
/// assert_eq!((gauge.bytes(), store.live()), (8 << 20, 8 << 20));
/// drop(gauge);
/// assert_eq!(store.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once it gives the bytes back at once"]
pub struct Gauge {
    state: Lock<GaugeState>,
}

/// The two figures of a gauge: what its owner has reported, and what is charged for that.
struct GaugeState {
    reported: u64,
    /// `None` while a thread brings it to what was reported. It has no lock then: to charge may
    /// call listeners and wakers.
    charge: Option<Charge>,
}

impl Gauge {
    /// Makes a gauge that charges a group, with nothing reported yet. It never blocks and never
    /// fails, also if the group is offline. The gauge keeps the group's object.
    pub fn new(group: &Group) -> Gauge {
        Gauge {
            state: Lock::new(
                Rank::Bookkeeping,
                GaugeState {
                    reported: 0,
                    charge: Some(group.force_charge(0)),
                },
            ),
        }
    }

    /// Reports that the memory has so many bytes now. What is more than before is charged by force,
    /// and what is less is given back. It takes a lock that is held for a few words only, never
    /// blocks otherwise, and costs what [`Group::force_charge`] or the drop of a [`Charge`] costs.
    ///
    /// Any thread may report. Of several reports at once, the one that takes the lock last counts,
    /// and is what is charged when all calls have returned: a thread that finds another one at work
    /// leaves its figure to that one, and may return before it is charged. Fewer bytes are charged
    /// only if usage would pass 2^63.
    pub fn report(&self, bytes: impl IntoBytes) {
        let Bytes(bytes) = bytes.into_bytes();
        let charge = {
            let mut state = self.state.lock();
            state.reported = bytes;
            state.charge.take()
        };
        // Another thread has the charge, or this one has, in a listener that reports: that call
        // looks again before it leaves.
        let Some(charge) = charge else { return };
        let mut moving = ChargeInMotion {
            gauge: self,
            charge: Some(charge),
        };
        let mut bytes = bytes;
        while let Some(charge) = &mut moving.charge {
            charge.force_resize(Bytes(bytes));
            let mut state = self.state.lock();
            if state.reported == bytes {
                mem::swap(&mut state.charge, &mut moving.charge);
            }
            bytes = state.reported;
        }
    }

    /// Returns the bytes that were reported last, by whichever thread. They may not be charged yet
    /// as long as another thread is inside [`report`](Self::report). It takes the gauge's lock for
    /// a moment.
    pub fn bytes(&self) -> u64 {
        self.state.lock().reported
    }
}

/// The charge outside of the lock. A panic of a listener puts it back.
struct ChargeInMotion<'a> {
    gauge: &'a Gauge,
    charge: Option<Charge>,
}

impl Drop for ChargeInMotion<'_> {
    fn drop(&mut self) {
        if let Some(charge) = self.charge.take() {
            self.gauge.state.lock().charge = Some(charge);
        }
    }
}

debug_figures!(Gauge, |gauge| bytes: gauge.bytes());

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, OnceLock};

    use super::*;
    use crate::sync::many;
    use crate::{Event, Limits, Runtime};

    #[test]
    fn the_last_report_is_charged() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime
            .root()
            .create("store", Limits::new().max(100))
            .unwrap();
        let gauge = Gauge::new(&group);
        for bytes in [0, 130, 130, 1, 2 << 20, 70, 0, 50] {
            gauge.report(Bytes(bytes));
            assert_eq!((gauge.bytes(), group.live()), (bytes, bytes));
            assert_eq!(group.forced(), bytes.saturating_sub(100), "beyond its max");
        }
        group.offline().unwrap();
        gauge.report(30);
        assert_eq!((group.live(), runtime.root().live()), (30, 30), "offline");
        drop(gauge);
        assert_eq!((group.live(), runtime.counts().underflows), (0, 0));
    }

    /// Reports up and down by several threads: no uncharge comes before its charge, and the report
    /// that was last is what is charged.
    #[test]
    fn threads_that_report_leave_the_last_report() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("store", Limits::new()).unwrap();
        let gauge = Gauge::new(&group);
        for round in 0..many(20) {
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let gauge = &gauge;
                    scope.spawn(move || {
                        for step in 0..many(500) {
                            gauge.report(Bytes((thread * 31 + step * 17) % 1_000 * 1_000));
                        }
                    });
                }
            });
            assert_eq!(group.live(), gauge.bytes(), "round {round}");
        }
        drop(gauge);
        assert_eq!((group.live(), runtime.counts().underflows), (0, 0));
        assert!(runtime.verify().is_ok());
    }

    /// A listener of the group may report to the gauge, and may panic: neither is lost.
    #[test]
    fn a_listener_may_report_and_panic() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime
            .root()
            .create("store", Limits::new().max(100))
            .unwrap();
        let gauge = Arc::new(Gauge::new(&group));
        let inside = Arc::clone(&gauge);
        let told = Arc::new(OnceLock::new());
        let once = Arc::clone(&told);
        let _listener = group.on_event(Event::Overcharge, move |_| {
            if once.set(()).is_ok() {
                inside.report(20);
                panic!("on purpose");
            }
        });
        let _ = catch_unwind(AssertUnwindSafe(|| gauge.report(130)));
        assert!(told.get().is_some());
        gauge.report(40);
        assert_eq!((gauge.bytes(), group.live()), (40, 40));
    }
}
