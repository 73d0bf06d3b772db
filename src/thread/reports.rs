//! Events of the crate `tracing`, with the feature of that name: what a thread has taken and
//! drained, and what was refused to it.
//!
//! | target | level | fields |
//! |---|---|---|
//! | `memcg::pool` | TRACE | `pool`, `asked`, `given`, `recycled`, and `node` where the pool has one: an object that a thread takes, as the kernel's `kmem_cache_alloc` |
//! | `memcg::refused` | WARN | `kind` as of an [incident](crate::figures::IncidentKind), `group` that asked, `limited`: the group whose max was met, `counter` if it is not memory, `requested`, `usage`, `max`, `left_out` |
//! | `memcg::drain` | DEBUG | `stocks` that a thread looked at, `units` that it took out of them, `closing`: the stocks hold no credit from now on, `complete`: no thread kept some back |
//!
//! A subscriber is foreign code, and threads take objects and drain stocks under locks and inside
//! charges. So the thread notes each event in words of its own, and reports them at the end of the
//! slow path, where it holds no lock and runs foreign code. Where one slow path has more events
//! than there are words, a last event has the number of the others, `unreported`. The thread does
//! not note what a subscriber causes, or there would be no end.
//!
//! A service that is full refuses thousands of charges a second. So of the refusals at one group at
//! most one in each second is an event, and at most [`TURNS`] of a process: groups share so many
//! turns. `left_out` counts those that had the same turn and were no event, since the last one that
//! was.

/// Result of a drain.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub(crate) struct DrainReport {
    pub(crate) stocks: usize,
    pub(crate) units: u64,
    pub(crate) closing: bool,
    pub(crate) complete: bool,
}

/// A charge that was refused.
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub(crate) struct RefusalReport<'a> {
    pub(crate) kind: &'static str,
    /// The paths of the group that asked, and of that whose max was met.
    pub(crate) group: String,
    pub(crate) limited: String,
    /// The name of the counter; `None` for memory.
    pub(crate) counter: Option<&'a str>,
    pub(crate) requested: u64,
    pub(crate) usage: u64,
    pub(crate) max: u64,
}

/// Refusals that may be events in one second: groups share these turns by their keys.
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub(crate) const TURNS: usize = 64;

#[cfg(feature = "tracing")]
pub(crate) use noted::{note_drain, note_object, note_refusal, report, wants_refusals};

/// Without the feature the thread reports nothing.
#[cfg(not(feature = "tracing"))]
#[inline(always)]
pub(crate) fn report() {}

/// Without the feature the thread notes nothing.
#[cfg(not(feature = "tracing"))]
#[inline(always)]
pub(crate) fn note_drain(_: DrainReport) {}

/// Without the feature nothing wants them.
#[cfg(not(feature = "tracing"))]
#[inline(always)]
pub(crate) fn wants_refusals() -> bool {
    false
}

/// Without the feature the thread notes nothing.
#[cfg(not(feature = "tracing"))]
#[inline(always)]
pub(crate) fn note_refusal<'a>(_: u64, _: impl FnOnce() -> RefusalReport<'a>) {}

#[cfg(feature = "tracing")]
mod noted {
    use std::cell::Cell;

    use tracing::level_filters::LevelFilter;
    use tracing::{Level, event};

    use std::time::Instant;

    use super::{DrainReport, RefusalReport, TURNS};
    use crate::numa::NodeId;
    use crate::pool::shape::Shape;
    use crate::sync::stat_atomic::AtomicU64 as StatU64;
    use crate::sync::{Ordering, per_thread, process_wide};
    use crate::thread::context::{self, RestoredWord};
    use crate::thread::foreign::contain;

    const POOL: &str = "memcg::pool";
    const DRAIN: &str = "memcg::drain";
    const REFUSED: &str = "memcg::refused";

    /// The most objects of one slow path that a thread reports. The first write of statistics far
    /// below the root takes most objects: one for each level.
    const OBJECTS_MAX: usize = 16;
    /// The most drains of one slow path that a thread reports.
    const DRAINS_MAX: usize = 4;
    /// The most refusals of one slow path that a thread reports. Mostly there is one.
    const REFUSALS_MAX: usize = 2;
    /// The most bytes of a path in an event; the rest of a longer one is left out.
    const PATH_MAX: usize = 119;

    /// A text of a thread's words, which have no destructor.
    #[derive(Clone, Copy)]
    struct ShortText {
        bytes: [u8; PATH_MAX],
        length: u8,
    }

    impl ShortText {
        fn new(text: &str) -> Self {
            let most = text.len().min(PATH_MAX);
            let length = (0..=most)
                .rev()
                // Cut before a character that does not fit whole, so that `get` finds UTF-8.
                .find(|&length| text.is_char_boundary(length))
                .unwrap_or_default();
            let mut bytes = [0; PATH_MAX];
            bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
            ShortText {
                bytes,
                length: length as u8,
            }
        }

        fn get(&self) -> &str {
            str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
        }
    }

    #[derive(Clone, Copy)]
    struct NotedRefusal {
        kind: &'static str,
        group: ShortText,
        limited: ShortText,
        counter: Option<ShortText>,
        requested: u64,
        usage: u64,
        max: u64,
        left_out: u32,
    }

    /// The second of the last event of each turn, from 1 on, and below it how many refusals were
    /// left out since.
    static LAST: [StatU64; TURNS] = [const { StatU64::new(0) }; TURNS];

    process_wide!(begun: Instant = crate::sync::clock::now);

    /// Returns how many refusals were left out before this one. `None`: it is left out, too.
    fn take_turn(turn: &StatU64, second: u32) -> Option<u32> {
        let last = turn.load(Ordering::Relaxed);
        let is_new = last >> 32 != u64::from(second);
        let taken = is_new
            && turn
                .compare_exchange(
                    last,
                    u64::from(second) << 32,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        // One thread of those that see a new second wins. The others count themselves, and the
        // winner of the next second reports them. The count has half a word: it begins anew with
        // the first refusal of each second.
        if taken {
            Some(last as u32)
        } else {
            turn.fetch_add(1, Ordering::Relaxed);
            None
        }
    }

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
        drains: NotedEvents<DrainReport, DRAINS_MAX>,
        refusals: NotedEvents<NotedRefusal, REFUSALS_MAX>,
        reporting: Cell<bool>,
    }

    impl AllNotedEvents {
        const fn new() -> Self {
            AllNotedEvents {
                objects: NotedEvents::new(),
                drains: NotedEvents::new(),
                refusals: NotedEvents::new(),
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
    pub(crate) fn note_drain(drained: DrainReport) {
        note(LevelFilter::DEBUG, |all| all.drains.add(drained));
    }

    /// True if some subscriber wants them: a load.
    #[inline]
    pub(crate) fn wants_refusals() -> bool {
        LevelFilter::current() >= LevelFilter::WARN
    }

    /// Notes a refusal at the group with this key, if it has its turn. Else it is counted.
    #[cold]
    pub(crate) fn note_refusal<'a>(key: u64, refused: impl FnOnce() -> RefusalReport<'a>) {
        // Here, and not only in `note`: a refusal that a subscriber itself meets takes no turn from
        // the others.
        if with_all(|all| all.reporting.get()) {
            return;
        }
        let second = crate::sync::clock::now()
            .saturating_duration_since(*begun())
            .as_secs() as u32
            + 1;
        // Keys are numbers in a row, so groups that were created one after another do not share a
        // turn.
        let Some(left_out) = take_turn(&LAST[key as usize % TURNS], second) else {
            return;
        };
        let RefusalReport {
            kind,
            group,
            limited,
            counter,
            requested,
            usage,
            max,
        } = refused();
        let refusal = NotedRefusal {
            kind,
            group: ShortText::new(&group),
            limited: ShortText::new(&limited),
            counter: counter.map(ShortText::new),
            requested,
            usage,
            max,
            left_out,
        };
        note(LevelFilter::WARN, |all| all.refusals.add(refusal));
    }

    /// Reports to the subscribers what the thread has noted. The thread holds no lock and is in no
    /// slow path. Where it runs no foreign code, the events wait for its next slow path.
    #[inline]
    pub(crate) fn report() {
        with_all(|all| {
            let noted = all.objects.count.get() + all.drains.count.get() + all.refusals.count.get();
            if noted != 0 && !all.reporting.get() && !context::leaves_foreign() {
                let _reporting = RestoredWord::set(&all.reporting, true);
                report_slow(all);
            }
        });
    }

    #[cold]
    fn report_slow(all: &AllNotedEvents) {
        let unreported = all.objects.take(|(shape, recycled)| {
            let pool = shape.kind.name();
            let asked = shape.asked;
            let given = shape.given();
            let node = shape.node.map(NodeId::get);
            foreign(|| event!(target: POOL, Level::TRACE, pool, asked, given, node, recycled));
        });
        if unreported > 0 {
            foreign(|| event!(target: POOL, Level::TRACE, unreported));
        }
        let unreported = all.drains.take(
            |DrainReport {
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
        let unreported = all.refusals.take(|refusal| {
            let NotedRefusal {
                kind,
                requested,
                usage,
                max,
                left_out,
                ..
            } = refusal;
            let (group, limited) = (refusal.group.get(), refusal.limited.get());
            let counter = refusal.counter.as_ref().map(ShortText::get);
            foreign(|| {
                event!(target: REFUSED, Level::WARN, kind, group, limited, counter, requested, usage, max, left_out);
            });
        });
        if unreported > 0 {
            foreign(|| event!(target: REFUSED, Level::WARN, unreported));
        }
    }

    /// Whatever a subscriber does, the caller goes on.
    fn foreign(work: impl FnOnce()) {
        context::in_listener(|| drop(contain(work)));
    }
}
