//! Events that are waited for and listened to.
//!
//! * `counts`: what a snapshot shows; `waiting`: until the next, blocking or as a future;
//!   `listening`: calls of foreign code; `inside`: what a listener may do; `dropping`: when it
//!   ends; `panics`: when it panics; `above`: at a group above; `racing`: nothing is lost between
//!   threads.

mod above;
mod counts;
mod dropping;
mod inside;
mod listening;
mod panics;
mod racing;
mod underflow;
mod waiting;

use std::sync::{Arc, Mutex};

use memcg::{Event, EventInfo, Group, Limits, Registration};

pub(crate) use crate::support::reclaimers::{Cache, Log, call, lock};
pub(crate) use crate::support::trees::{assert_sound, build, create, kinds, left_empty, runtimes};
pub(crate) use crate::support::waiters::{Polled, WATCHDOG, Wakes, block_on, join, until};

/// Makes a group where nothing fits: each charge that is refused is one *oom*.
#[track_caller]
pub(crate) fn full(parent: &Group, name: &str) -> Group {
    parent
        .create(name, Limits::new().max(0))
        .expect("a name that is free")
}

/// One *oom* of a group without room.
#[track_caller]
pub(crate) fn oom(group: &Group) {
    drop(group.charge(1).expect_err("nothing fits"));
}

/// One call of a listener.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Notified {
    pub(crate) group: String,
    pub(crate) event: Event,
    pub(crate) count: u64,
    pub(crate) times: u64,
}

/// All that was told, in order.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Notified>>>);

impl Recorder {
    pub(crate) fn listen(&self, group: &Group, event: Event) -> Registration {
        self.and(group, event, |_| ())
    }

    /// Notes it, then does something.
    pub(crate) fn and(
        &self,
        group: &Group,
        event: Event,
        then: impl Fn(&EventInfo) + Send + Sync + 'static,
    ) -> Registration {
        let recorder = self.clone();
        group.on_event(event, move |happened| {
            recorder.note(happened);
            then(happened);
        })
    }

    fn note(&self, happened: &EventInfo) {
        let event = happened.event();
        let count = happened.count();
        let times = happened.times();
        let notified = Notified {
            group: happened.group().path(),
            event,
            count,
            times,
        };
        lock(&self.0).push(notified);
    }

    pub(crate) fn take(&self) -> Vec<Notified> {
        std::mem::take(&mut *lock(&self.0))
    }

    /// Happenings that were told, over all calls.
    pub(crate) fn times(&self) -> u64 {
        lock(&self.0).iter().map(|notified| notified.times).sum()
    }
}
