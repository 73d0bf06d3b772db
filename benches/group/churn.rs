//! `group/churn/charged_by…`: groups that one thread creates and charges, and perhaps a second
//! charges too, before they go. One iteration is the whole life of one group. Beside the time stand
//! the barriers that the releases cost.

#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::{Group, Runtime};
use parking_lot::Mutex;

use super::names::Names;
use super::{RELEASES, create, pair, runtime};
use crate::common::rows::Rows;
use crate::common::team::Team;

/// Groups that are handed from one thread to the other at a time.
const HANDED: u64 = 512;

/// The figures of a churn beside its time.
pub(crate) struct Churn {
    pub(crate) what: String,
    pub(crate) barriers_per_64: f64,
}

pub(crate) fn rows(rows: &mut Rows) -> Vec<Churn> {
    let mut churns = Vec::new();
    for chargers in [1, 2] {
        let id = format!("group/churn/charged_by{chargers}");
        let runtime = Arc::new(runtime());
        let offline = Arc::new(AtomicU64::new(0));
        let before = runtime.counts();
        rows.timed(&id, || team(&runtime, chargers, &offline));
        if rows.ran(&id) {
            // Those that still wait for their barrier do not count: it has not been paid.
            let waiting = runtime.dying_count() as u64;
            let released = offline.load(Ordering::Relaxed) - waiting;
            let barriers = runtime.counts().barriers - before.barriers;
            let barriers_per_64 = barriers as f64 / (released as f64 / RELEASES);
            println!(
                "{id}: {barriers_per_64:.3} barriers for 64 destroyed groups ({barriers} for {released})\n"
            );
            runtime.settle();
            assert_eq!(
                runtime.dying_count(),
                0,
                "{id}: no thread holds any of them"
            );
            assert_eq!(runtime.group_count(), 1, "{id}: the root is left");
            churns.push(Churn {
                what: format!("{id}: barriers for 64 destroyed groups"),
                barriers_per_64,
            });
        }
    }
    churns
}

/// The first thread creates and charges, the last takes offline and drops the handle. The hand-over
/// is not timed; an iteration is what all do for one group together.
fn team(runtime: &Arc<Runtime>, chargers: usize, offline: &Arc<AtomicU64>) -> Team {
    let runtime = Arc::clone(runtime);
    let offline = Arc::clone(offline);
    let handed: Arc<Mutex<Vec<Group>>> = Arc::default();
    Team::new(chargers, move |station| {
        let root = runtime.root();
        let mut names = Names::new(station.index);
        station.serve_timed(|lives| {
            let mut timed = Duration::ZERO;
            let mut left = lives;
            while left > 0 {
                let batch = left.min(HANDED);
                if station.index == 0 {
                    let start = Instant::now();
                    handed
                        .lock()
                        .extend((0..batch).map(|_| create(&root, &mut names)).inspect(pair));
                    timed += start.elapsed();
                }
                station.meet();
                if station.index + 1 == station.threads {
                    let start = Instant::now();
                    for group in handed.lock().drain(..) {
                        if station.threads > 1 {
                            pair(&group);
                        }
                        group.offline().expect("no child is online");
                    }
                    timed += start.elapsed();
                    offline.fetch_add(batch, Ordering::Relaxed);
                }
                station.meet();
                left -= batch;
            }
            timed
        });
    })
}
