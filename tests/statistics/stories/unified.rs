//! The kernel's way before the patch series: a flush is one of the whole tree, and a thread that
//! finds one under way goes without.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Sender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::Statistics;

/// The groups of a tree, each with what threads have added and what the last flush has published.
#[derive(Clone)]
pub(crate) struct UnifiedSkip(Arc<Shared>);

struct Shared {
    /// Of the groups after the root.
    parents: Vec<usize>,
    pending: Mutex<Vec<i64>>,
    published: Vec<AtomicI64>,
    /// `stats_flush_ongoing`.
    flush_ongoing: AtomicBool,
}

impl UnifiedSkip {
    pub(crate) fn new(parents: &[usize]) -> Self {
        let groups = parents.len() + 1;
        Self(Arc::new(Shared {
            parents: parents.to_vec(),
            pending: Mutex::new(vec![0; groups]),
            published: (0..groups).map(|_| AtomicI64::new(0)).collect(),
            flush_ongoing: AtomicBool::new(false),
        }))
    }

    /// `do_flush_stats`. Between what it collects and what it publishes it calls `halfway`.
    fn flush(&self, halfway: impl FnOnce()) {
        let shared = &*self.0;
        if shared.flush_ongoing.load(Ordering::SeqCst)
            || shared.flush_ongoing.swap(true, Ordering::SeqCst)
        {
            return;
        }
        let mut deltas = {
            let mut pending = shared
                .pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let groups = pending.len();
            std::mem::replace(&mut *pending, vec![0; groups])
        };
        halfway();
        // Children come after their parents.
        for group in (1..deltas.len()).rev() {
            deltas[shared.parents[group - 1]] += deltas[group];
        }
        for (published, delta) in shared.published.iter().zip(deltas) {
            published.fetch_add(delta, Ordering::SeqCst);
        }
        shared.flush_ongoing.store(false, Ordering::SeqCst);
    }
}

/// A flush that has collected and not published yet.
struct Halfway {
    go_on: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Halfway {
    fn drop(&mut self) {
        drop(self.go_on.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

impl Statistics for UnifiedSkip {
    fn add(&self, group: usize, bytes: i64) {
        self.0
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)[group] += bytes;
    }

    /// `mem_cgroup_flush_stats`, then the figure as it stands.
    fn read(&self, group: usize) -> i64 {
        self.flush(|| {});
        self.0.published[group].load(Ordering::SeqCst)
    }

    fn flush_under_way(&self) -> Box<dyn Any> {
        let (begun, begins) = sync_channel(0);
        let (go_on, goes_on) = std::sync::mpsc::channel();
        let stats = self.clone();
        let thread = std::thread::spawn(move || {
            stats.flush(|| {
                begun.send(()).expect("a thread waits");
                // Ends with an error: the other side is dropped when the flush may go on.
                let _: Result<(), _> = goes_on.recv();
            });
        });
        begins.recv().expect("it begins");
        Box::new(Halfway {
            go_on: Some(go_on),
            thread: Some(thread),
        })
    }
}
