//! What a charge that never blocks leaves to another thread: reclaim, a victim, calls of foreign code.
//!
//! ```text
//! none ── a charge leaves something ──> takes one job after another ── nothing for a second, or no runtime ──> none
//! ```
//!
//! A tree has one such thread at most. A level has one job at most: a charge that finds it listed raises its amount, and
//! a charge that comes while the thread works on it lists it again. One lock holds the jobs, the thread, and whether it
//! runs. So a charge that leaves a job starts the thread, or finds it running, and then the thread sees the job. The
//! thread decides to end under the lock, too. Nothing else is shared, so there is no ordering to model. The thread
//! holds no lock while it works, and keeps the tree; a job keeps its level.
//!
//! A reclaimer that blocks holds up the jobs of its own tree. No charge waits for them, nor does the drop of the runtime.

use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{events, group_tree};
use crate::pressure::victims::{self, Choice, Excluded};
use crate::pressure::{high, line, throttle};
use crate::reclaim::repeat::{close_below, deadline, shrink, spare};
use crate::reclaim::round::Request;
use crate::state::events::Event;
use crate::state::reclaimer::ReclaimCause;
use crate::state::started::{ForeignCalls, Job, Started};
use crate::sync::{Arc, park, start_thread};

/// The thread stays so long after the last job.
const LINGER: Duration = Duration::from_secs(1);

enum NextJob {
    Work(Job),
    Call(Vec<ForeignCalls>),
    Sleep(Duration),
    End,
}

fn with<R>(tree: &Tree, work: impl FnOnce(&mut Started) -> R) -> R {
    let _path = SlowPath::enter();
    work(&mut group_tree::shared(tree).started.lock())
}

// === What charges leave ===

/// Has room made for `bytes` at a level that has refused them. The caller keeps the level. Where reclaimers have promised
/// what is missing, the thread counts and drains.
pub(crate) fn make_room(level: &'static Counter, bytes: u64, promised: bool) {
    leave(level, |job| {
        if bytes >= job.bytes {
            (job.bytes, job.promised) = (bytes, promised);
        }
    });
}

/// Has what is above high reclaimed. The caller keeps the level.
pub(crate) fn shrink_to_high(level: &'static Counter) {
    leave(level, |job| job.above_high = true);
}

fn leave(level: &'static Counter, note: impl FnOnce(&mut Job)) {
    let job = Job { level: Handle::pin(level), bytes: 0, promised: false, above_high: false };
    let tree = level.incarnation().tree.counted();
    let needless = with(&tree, |started| {
        if !started.runs(&tree) {
            return Some(job);
        }
        match started.jobs.entry(level.key()) {
            Entry::Vacant(vacant) => {
                note(vacant.insert(job));
                None
            }
            Entry::Occupied(mut listed) => {
                note(listed.get_mut());
                Some(job)
            }
        }
    });
    // Its handle is dropped without the lock.
    drop(needless);
}

/// Leaves calls of foreign code to the thread. `Err`: the system has no thread for them.
pub(crate) fn leave_calls(tree: &Arc<Tree>, calls: ForeignCalls) -> Result<(), ForeignCalls> {
    with(tree, |started| {
        if !started.runs(tree) {
            return Err(calls);
        }
        started.calls.push(calls);
        Ok(())
    })
}

/// The runtime is gone: the thread ends after the job that it works on.
pub(crate) fn end(tree: &Tree) {
    let jobs = with(tree, |started| {
        started.over = true;
        started.thread.iter().for_each(|(_, thread)| thread.unpark());
        std::mem::take(&mut started.jobs)
    });
    // Their handles are dropped without the lock.
    drop(jobs);
}

impl Started {
    /// Starts the thread where there is none, or wakes it. False: there is none. The caller leaves what is to be done
    /// under the same lock.
    fn runs(&mut self, tree: &Arc<Tree>) -> bool {
        if self.over {
            return false;
        }
        let process = std::process::id();
        self.thread.take_if(|(started_in, _)| *started_in != process);
        if self.thread.is_none() {
            let tree = Arc::clone(tree);
            self.thread = start_thread("memcg-reclaim", move || run(&tree)).ok().map(|thread| (process, thread));
        }
        self.idle = None;
        self.thread.iter().for_each(|(_, thread)| thread.unpark());
        self.thread.is_some()
    }

    fn next(&mut self, now: Instant) -> NextJob {
        if !self.calls.is_empty() {
            return NextJob::Call(std::mem::take(&mut self.calls));
        }
        if let Some((_, job)) = self.jobs.pop_first() {
            return NextJob::Work(job);
        }
        let idle = now.saturating_duration_since(*self.idle.get_or_insert(now));
        if idle < LINGER && !self.over {
            return NextJob::Sleep(LINGER - idle);
        }
        self.thread = None;
        NextJob::End
    }
}

// === The thread ===

fn run(tree: &Tree) {
    loop {
        match with(tree, |started| started.next(Instant::now())) {
            NextJob::Work(job) => work(&job),
            NextJob::Call(calls) => calls.into_iter().for_each(|call| call()),
            NextJob::Sleep(time) => park(Some(time)),
            NextJob::End => return,
        }
    }
}

fn work(job: &Job) {
    let level = job.level.counter();
    if job.bytes > 0 && !level.state().is_offline() {
        reclaim_and_cancel(level, job);
    }
    if job.above_high && high::above(level) > 0 {
        events::count_and_notify(level, Event::High);
        throttle::shrink_to_high(level);
    }
}

/// Does what a charge that may block does before it is refused: drains, has reclaimers asked, cancels one group. It waits
/// for no promise and for no victim.
fn reclaim_and_cancel(level: &'static Counter, &Job { bytes, promised, .. }: &Job) {
    events::count_and_notify(level, Event::Max);
    close_below(level);
    if promised {
        return;
    }
    // The first in line comes before.
    let short = || line::ahead(level).saturating_add(bytes).saturating_sub(level.room(level.admits()));
    let want = || if short() > 0 { short().max(spare(level, level.admits())) } else { 0 };
    shrink(level, &mut Request::new(ReclaimCause::Full, deadline(level)), want);
    // What came back may be credit of this thread.
    close_below(level);
    if short() == 0 {
        return;
    }
    events::count_and_notify(level, Event::Oom);
    let mut excluded = Excluded::default();
    while victims::chooses(level) {
        match victims::choose(level, None, bytes, &mut excluded) {
            Choice::Unsettled => victims::settle(level.tree()),
            Choice::Victim(mut chosen) => return chosen.cancel(),
            Choice::NoCandidate | Choice::Room | Choice::Asker | Choice::Awaited(_) => return,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::thread::context;
    use crate::{Limit, Limits, Runtime};

    /// Notes the threads that wake it.
    #[derive(Default)]
    struct WokenBy(Mutex<Vec<ThreadId>>);

    impl Wake for WokenBy {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().push(thread::current().id());
        }
    }

    fn until(is: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is() {
            assert!(Instant::now() < end);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Bytes come back in a slow path that may run no foreign code: another thread serves the line.
    #[test]
    fn a_line_is_served_elsewhere() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("q", Limits::new().max(Limit::Bytes(100))).unwrap();
        let held = group.try_charge(100).unwrap();
        let woken = Arc::new(WokenBy::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut future = pin!(group.charge_async(40));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        context::without_foreign(|| drop(held));
        until(|| !woken.0.lock().unwrap().is_empty());
        assert!(woken.0.lock().unwrap().iter().all(|&by| by != thread::current().id()));
        let Poll::Ready(charge) = future.poll(&mut Context::from_waker(&waker)) else { panic!("woken for nothing") };
        assert_eq!((charge.unwrap().bytes(), group.waiting_count()), (40, 0));
    }

    /// The thread ends with the runtime, and none starts afterwards: then the caller serves the line itself.
    #[test]
    fn the_thread_ends_with_the_runtime() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let tree = group.first().incarnation().tree.counted();
        make_room(group.first(), 1, false);
        assert!(with(&tree, |started| started.thread.is_some()));
        drop(runtime);
        until(|| with(&tree, |started| started.thread.is_none() && started.jobs.is_empty()));
        make_room(group.first(), 1, false);
        assert!(with(&tree, |started| started.thread.is_none() && started.jobs.is_empty()));
        assert!(leave_calls(&tree, Box::new(|| ())).is_err());
    }

    /// Without work it ends by itself; a level is listed once, for the largest charge.
    #[test]
    fn a_level_is_listed_once() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        // No thread takes what is listed.
        let mut started = Started { thread: Some((std::process::id(), thread::current())), ..Started::default() };
        let job = |bytes| Job { level: Handle::pin(group.first()), bytes, promised: false, above_high: false };
        started.jobs.insert(group.first().key(), job(1));
        let begun = Instant::now();
        assert!(matches!(started.next(begun), NextJob::Work(Job { bytes: 1, .. })));
        assert!(matches!(started.next(begun), NextJob::Sleep(LINGER)));
        assert!(matches!(started.next(begun + LINGER), NextJob::End));
        assert!(started.thread.is_none());
        let tree = group.first().incarnation().tree.counted();
        with(&tree, |started| started.thread = Some((std::process::id(), thread::current())));
        for (bytes, promised) in [(3, false), (7, true), (5, false)] {
            make_room(group.first(), bytes, promised);
        }
        shrink_to_high(group.first());
        let listed = with(&tree, |started| std::mem::take(&mut started.jobs));
        let listed: Vec<_> = listed.values().map(|job| (job.bytes, job.promised, job.above_high)).collect();
        assert_eq!(listed, [(7, true, true)]);
        with(&tree, |started| started.thread = None);
    }
}
