//! `wait/async/beside_a_cache/…`: one task charges what it puts into a cache, in a full group. What
//! lacks is evicted on the thread of the tree, which wakes the task.

#![cfg(not(loom))]

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use memcg::{Bytes, Charge, Limit, Limits, Reclaim, ReclaimContext, ReclaimPriority, Runtime};
use parking_lot::Mutex;

use crate::common::rows::Rows;
use crate::common::team::Team;

const MAX: u64 = 64 << 20;

/// A charge as large as what one reclaim frees, so that each of them waits for one; and one that is
/// mostly paid by what the last one has freed.
const SIZES: [(&str, u64); 2] = [("1mib", 1 << 20), ("4kib", 4 << 10)];

pub(crate) fn rows(rows: &mut Rows) {
    for (name, size) in SIZES {
        rows.wall(&format!("wait/async/beside_a_cache/{name}"), || team(size));
    }
}

struct Bell(Thread);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The oldest entries go first.
struct Entries(Mutex<VecDeque<Charge>>);

impl Reclaim for Entries {
    fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
        let (mut gone, mut freed) = (Vec::new(), 0);
        while freed < want
            && let Some(entry) = self.0.lock().pop_front()
        {
            freed += entry.bytes();
            gone.push(entry);
        }
        freed
    }
}

fn team(size: u64) -> Team {
    Team::new(1, move |station| {
        let runtime = Runtime::builder()
            .build()
            .expect("nothing is asked for that cannot be had");
        let group = runtime
            .root()
            .create("cached", Limits::new().max(Limit::Bytes(MAX)))
            .expect("a free name");
        let entries = Arc::new(Entries(Mutex::default()));
        let _registration = group.register_reclaimer(entries.clone(), ReclaimPriority::NORMAL);
        let waker = Waker::from(Arc::new(Bell(std::thread::current())));
        let charges = |times| {
            for _ in 0..times {
                let mut future = pin!(group.charge_async(Bytes(size)));
                let charge = loop {
                    match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        Poll::Ready(charge) => break charge.expect("the cache gives"),
                        Poll::Pending => std::thread::park(),
                    }
                };
                entries.0.lock().push_back(charge);
            }
        };
        charges(2 * MAX / size);
        station.serve(charges);
    })
}
