//! Events of the crate `tracing`, with the feature of that name: what a thread has taken and
//! drained.
//!
//! | target | level | fields |
//! |---|---|---|
//! | `memcg::pool` | TRACE | `pool`, `asked`, `given`, `recycled`, and `node` where the pool has one: an object that a thread takes, as the kernel's `kmem_cache_alloc` |
//! | `memcg::drain` | DEBUG | `stocks` that a thread looked at, `units` that it took out of them, `closing`: the stocks hold no credit from now on, `complete`: no thread kept some back |
//!
//! A subscriber is foreign code, and threads take objects and drain stocks under locks and inside
//! charges. So the thread notes each event in words of its own, and reports them at the end of the
//! slow path, where it holds no lock and runs foreign code. Where one slow path has more events than there are words, a
//! last event has the number of the others, `unreported`. The thread does not note what a
//! subscriber causes, or there would be no end.

/// Result of a drain.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub(crate) struct Drained {
    pub(crate) stocks: usize,
    pub(crate) units: u64,
    pub(crate) closing: bool,
    pub(crate) complete: bool,
}

#[cfg(feature = "tracing")]
pub(crate) use noted::{note_drain, note_object, report};

/// Without the feature the thread reports nothing.
#[cfg(not(feature = "tracing"))]
#[inline(always)]
pub(crate) fn report() {}

/// Without the feature the thread notes nothing.
#[cfg(not(feature = "tracing"))]
#[inline(always)]
pub(crate) fn note_drain(_: Drained) {}

#[cfg(feature = "tracing")]
mod noted {
    use std::cell::Cell;

    use tracing::level_filters::LevelFilter;
    use tracing::{Level, event};

    use super::Drained;
    use crate::numa::NodeId;
    use crate::pool::shape::Shape;
    use crate::sync::per_thread;
    use crate::thread::context::{self, Restored};
    use crate::thread::foreign::contain;

    const POOL: &str = "memcg::pool";
    const DRAIN: &str = "memcg::drain";

    /// The most objects of one slow path that a thread reports. The first write of statistics far
    /// below the root takes most objects: one for each level.
    const OBJECTS_MAX: usize = 16;
    /// The most drains of one slow path that a thread reports.
    const DRAINS_MAX: usize = 4;

    struct NotedEvents<T, const MOST: usize> {
        first: [Cell<Option<T>>; MOST],
        /// All events, those that have no place in `first` included.
        count: Cell<usize>,
    }

    impl<T: Copy, const MOST: usize> NotedEvents<T, MOST> {
        const fn new() -> Self {
            NotedEvents {
                first: [const { Cell::new(None) }; MOST],
                count: Cell::new(0),
            }
        }

        fn add(&self, event: T) {
            if let Some(place) = self.first.get(self.count.get()) {
                place.set(Some(event));
            }
            self.count.set(self.count.get() + 1);
        }

        /// Calls `report` with each event. Returns how many have had no place.
        fn take(&self, report: impl Fn(T)) -> usize {
            self.first.iter().filter_map(Cell::take).for_each(report);
            self.count.replace(0).saturating_sub(MOST)
        }
    }

    struct AllNotedEvents {
        /// Of what shape, and whether another user had it before.
        objects: NotedEvents<(Shape, bool), OBJECTS_MAX>,
        drains: NotedEvents<Drained, DRAINS_MAX>,
        reporting: Cell<bool>,
    }

    impl AllNotedEvents {
        const fn new() -> Self {
            AllNotedEvents {
                objects: NotedEvents::new(),
                drains: NotedEvents::new(),
                reporting: Cell::new(false),
            }
        }
    }

    per_thread!(with_all: AllNotedEvents = AllNotedEvents::new());

    /// Notes an event of that level if some subscriber wants it (a load), unless the thread reports
    /// now. Calls no foreign code.
    fn note(level: LevelFilter, add: impl FnOnce(&AllNotedEvents)) {
        if LevelFilter::current() >= level {
            with_all(|all| {
                if !all.reporting.get() {
                    add(all);
                }
            });
        }
    }

    /// Notes an object that the thread has taken.
    pub(crate) fn note_object(shape: &Shape, recycled: bool) {
        note(LevelFilter::TRACE, |all| {
            all.objects.add((*shape, recycled))
        });
    }

    /// Notes a drain of this thread.
    pub(crate) fn note_drain(drained: Drained) {
        note(LevelFilter::DEBUG, |all| all.drains.add(drained));
    }

    /// Reports to the subscribers what the thread has noted. The thread holds no lock and is in no
    /// slow path. Where it runs no foreign code, the events wait for its next slow path.
    #[inline]
    pub(crate) fn report() {
        with_all(|all| {
            if all.objects.count.get() + all.drains.count.get() != 0
                && !all.reporting.get()
                && !context::leaves_foreign()
            {
                let _reporting = Restored::set(&all.reporting, true);
                report_slow(all);
            }
        });
    }

    #[cold]
    fn report_slow(all: &AllNotedEvents) {
        let unreported = all.objects.take(|(shape, recycled)| {
            let (pool, asked, given) = (shape.kind.name(), shape.asked, shape.given());
            let node = shape.node.map(NodeId::get);
            foreign(|| event!(target: POOL, Level::TRACE, pool, asked, given, node, recycled));
        });
        if unreported > 0 {
            foreign(|| event!(target: POOL, Level::TRACE, unreported));
        }
        let unreported = all.drains.take(
            |Drained {
                 stocks,
                 units,
                 closing,
                 complete,
             }| {
                foreign(|| event!(target: DRAIN, Level::DEBUG, stocks, units, closing, complete));
            },
        );
        if unreported > 0 {
            foreign(|| event!(target: DRAIN, Level::DEBUG, unreported));
        }
    }

    /// Whatever a subscriber does, the caller goes on.
    fn foreign(work: impl FnOnce()) {
        context::in_listener(|| drop(contain(work)));
    }
}
