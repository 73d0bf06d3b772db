//! `reclaim/background/{charges,thread}`: a stream of pages at a max, two gigabytes a second, whose
//! cache gives memory back for the charges themselves, or for a thread of the runtime before they
//! need it.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::{
    Bytes, Limit, Limits, Reclaim, ReclaimCause, ReclaimContext, ReclaimPriority, Runtime,
};
use memcg_bench_rows::Goals;
use parking_lot::Mutex;

use super::cache::Cache;
use crate::common::rows::Rows;
use crate::common::team::Team;

const PAGE: u64 = 4_096;
const MAX: u64 = 64 << 20;
const TOUCHES: u64 = 100_000;
/// From one page to the next.
const PACE: Duration = Duration::from_nanos(2_000);

/// Charges of one row.
#[derive(Default)]
pub(crate) struct Stream {
    /// Reclaimers were asked by the charge itself.
    own: AtomicU64,
    times: Mutex<Vec<u32>>,
}

pub(crate) type Streams = Vec<(&'static str, Arc<Stream>)>;

pub(crate) fn rows(rows: &mut Rows) -> Streams {
    let mut streams = Streams::new();
    for (name, mark) in [
        ("charges", Limit::Unlimited),
        ("thread", Limit::percent(85)),
    ] {
        let id = format!("reclaim/background/{name}");
        let stream = Arc::new(Stream::default());
        rows.wall(&id, || team(mark, &stream));
        if rows.ran(&id) {
            stream.print(&id);
            streams.push((name, stream));
        }
    }
    streams
}

/// No charge reclaims itself where a thread does.
pub(crate) fn goals(goals: &mut Goals<'_>, streams: &Streams) {
    for (name, stream) in streams.iter().filter(|(name, _)| *name == "thread") {
        let own = stream.own.load(Ordering::Relaxed) as f64;
        goals.at_most(
            format!("reclaim/background/{name}: charges that reclaim"),
            own,
            "charges",
            0.0,
        );
    }
}

impl Stream {
    fn print(&self, id: &str) {
        let mut times = self.times.lock();
        times.sort_unstable();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        let share = self.own.load(Ordering::Relaxed) as f64 / times.len() as f64;
        let half = at(0.5);
        let most = at(0.99);
        let all = at(0.999);
        println!(
            "{id}: {:.3}% reclaim themselves; p50 {half} ns, p99 {most} ns, p99.9 {all} ns\n",
            share * 100.0
        );
    }
}

/// The cache, which counts the calls for a charge.
struct Counted {
    cache: Arc<Cache>,
    stream: Arc<Stream>,
}

impl Reclaim for Counted {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        if context.cause() != ReclaimCause::Background {
            self.stream.own.fetch_add(1, Ordering::Relaxed);
        }
        self.cache.evict(want)
    }

    fn reclaimable(&self) -> u64 {
        self.cache.bytes()
    }
}

fn team(mark: Limit, stream: &Arc<Stream>) -> Team {
    let stream = Arc::clone(stream);
    Team::new(1, move |station| {
        let runtime = Runtime::builder().build().expect("the defaults hold");
        let limits = Limits::new().max(Limit::Bytes(MAX)).reclaim_above(mark);
        let group = runtime
            .root()
            .create("stream", limits)
            .expect("a free name in a group that is");
        let cache = Arc::new(Cache::new(&group, MAX / 2));
        let counted = Counted {
            cache: Arc::clone(&cache),
            stream: Arc::clone(&stream),
        };
        let _registration = group.register_reclaimer(Arc::new(counted), ReclaimPriority::NORMAL);
        let pages = |pages: u64| {
            let mut times = Vec::with_capacity(pages as usize);
            let mut next = Instant::now();
            for _ in 0..pages {
                // A page that comes late is followed by the next one at the same distance.
                next = next.max(Instant::now()) + PACE;
                while Instant::now() < next {
                    std::hint::spin_loop();
                }
                let began = Instant::now();
                let charge = group
                    .charge(Bytes(black_box(PAGE)))
                    .expect("the cache makes room");
                times.push(u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX));
                cache.put(charge);
            }
            times
        };
        pages(TOUCHES);
        // The warm-up fills the cache.
        std::thread::sleep(Duration::from_millis(20));
        stream.own.store(0, Ordering::Relaxed);
        station.serve(|iters| stream.times.lock().extend(pages(iters)));
    })
}
