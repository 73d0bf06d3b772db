//! `stat/flush…`: one iteration is one flush of a root, after another thread has written to so many
//! of the groups below it.

#![cfg(not(loom))]

use std::cell::LazyCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memcg::Freshness;

use super::{ITEM, TOUCHES, print_counts};
use crate::common::rows::Rows;
use crate::common::statistics::ROOT;
use crate::common::statistics::library::Library;
use crate::common::statistics::shape::Shape;
use crate::common::team::Team;

/// Groups below the root, however many are written.
const GROUPS: usize = 10_000;

pub(crate) fn rows(rows: &mut Rows) {
    for updated in [1, 100, GROUPS] {
        let id = format!("stat/flush/updated{updated}");
        let library =
            LazyCell::new(|| Arc::new(Library::new(&Shape::fan(GROUPS), Freshness::Exact)));
        let start = Instant::now();
        rows.timed(&id, || after_writes(Arc::clone(&library), updated));
        if rows.ran(&id) {
            print_counts(
                &id,
                &Default::default(),
                &library.runtime.counts(),
                start.elapsed(),
            );
        }
    }
    rows.wall("stat/flush_ratelimited", flush_ratelimited);
}

/// The flush is timed, with the two looks at the clock that this takes.
fn after_writes(library: Arc<Library>, updated: usize) -> Team {
    Team::new(2, move |station| {
        let root = &library.groups[ROOT];
        station.serve_timed(|iters| {
            let mut timed = Duration::ZERO;
            for _ in 0..iters {
                if station.index == 1 {
                    library.groups[1..=updated]
                        .iter()
                        .for_each(|group| group.stat_add(ITEM.stat(), 1));
                }
                station.meet();
                if station.index == 0 {
                    let before = root.read(Freshness::Stale).get(ITEM.stat());
                    let start = Instant::now();
                    root.inspect().flush();
                    timed += start.elapsed();
                    assert_eq!(
                        root.read(Freshness::Stale).get(ITEM.stat()) - before,
                        updated as i64,
                        "what was written"
                    );
                }
                station.meet();
            }
            timed
        });
    })
}

/// The cost of the answer that the periodic flusher is on time.
fn flush_ratelimited() -> Team {
    let library = Library::new(&Shape::chain(4), Freshness::Exact);
    library
        .runtime
        .start_flusher(Duration::from_secs(3_600))
        .expect("a thread");
    Team::new(1, move |station| {
        let group = &library.groups[3];
        (0..TOUCHES).for_each(|_| group.stat_add(ITEM.stat(), 1));
        library.groups[ROOT].inspect().flush();
        station.serve(|iters| {
            for _ in 0..iters {
                assert!(
                    !black_box(group.inspect().flush_ratelimited()),
                    "the root has just been flushed"
                );
            }
        });
    })
}
