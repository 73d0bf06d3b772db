//! Work that a charge leaves to other threads, because it never blocks or is that of a task:
//! reclaim, a victim, the service of levels; and the listeners that this makes due.
//!
//! ```text
//! none ── a charge leaves something ──> takes one after another ── nothing for a second, or no runtime ──> none
//! ```
//!
//! A tree has two such threads at most, one for jobs and one for listeners. A level has one job at
//! most: a charge that finds it listed raises its amount, and a charge that comes while the thread
//! works on it lists it again, behind all others. So a level that is refused all the time holds up
//! no other level. A level is once at most among those whose listeners are due, however often its
//! events happen: a listener learns the number of times. Either thread serves levels, before all
//! else; charges leave levels to the one that runs no foreign code just now. So a listener that
//! blocks holds up no reclaim and no waiter, and a reclaimer that blocks holds up no listener and
//! no waiter.
//!
//! One lock holds all of that, the threads, and whether they run. So a charge that leaves something
//! starts the thread, or finds it running, and then the thread sees it. A thread decides to end
//! under the lock, too. Nothing else is shared, so there is no ordering to model. A thread holds no
//! lock while it works, and keeps the tree; what is left keeps its level.
//!
//! A reclaimer that blocks holds up the jobs of its own tree. No charge waits for them, nor does
//! the drop of the runtime.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::counter::handle::{Handle, WeakCounter};
use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::counter::slow_path::SlowPath;
use crate::counter::{cover, thresholds};
use crate::error::USAGE_MAX;
use crate::hierarchy::{events, group_tree, importance};
use crate::pressure::victims::{self, ExcludedVictims, VictimChoice, VictimRequest};
use crate::pressure::wakers::Wakers;
use crate::pressure::{background, high, line, throttle};
use crate::reclaim::registrations;
use crate::reclaim::repeat::{ASK_AGAIN_MAX, ask_again_after, deadline, shrink, spare};
use crate::reclaim::round::ReclaimRequest;
use crate::state::events::Event;
use crate::state::reclaimer::ReclaimCause;
use crate::state::started::{
    BackgroundLevel, Job, LeftService, ListeningLevel, StartedWork, ThreadDuty, TurnReason,
};
use crate::sync::clock;
use crate::sync::{Arc, park};
use crate::thread::context;
use crate::thread::foreign::DueWakers;
use crate::thread::foreign::Foreign;

enum NextJob {
    Work(Job),
    Reclaim(BackgroundLevel),
    Serve(Vec<LeftService>),
    Call(ListeningLevel),
    Sleep(Duration),
    End,
}

fn with<R>(tree: &Tree, work: impl FnOnce(&mut StartedWork) -> R) -> R {
    let _path = SlowPath::enter();
    work(&mut group_tree::shared(tree).started.lock())
}

// === What charges leave ===

/// Has room made for `bytes` of that importance at a level that has refused them. Where reclaimers
/// have promised what is missing, the thread counts and drains.
pub(crate) fn make_room(level: &Counter, bytes: u64, importance: u8, promised: bool) {
    leave(level, importance, |job| {
        if bytes >= job.bytes {
            job.bytes = bytes;
            job.promised = promised;
        }
    });
}

/// Has room made for the tasks that wait in the line of the level. One of that importance has just
/// come. False: the system has no thread.
pub(crate) fn make_room_in_line(level: &Counter, importance: u8) -> bool {
    leave(level, importance, |job| job.in_line = true)
}

/// Has what is above high reclaimed, for a charge of that importance, and the event counted.
pub(crate) fn shrink_to_high(level: &Counter, importance: u8) {
    leave(level, importance, |job| {
        (job.above_high, job.counts_high) = (true, true);
    });
}

/// The same for a task that has counted the event and is delayed: it is woken once that is done.
/// False: the system has no thread.
pub(crate) fn shrink_to_high_and_wake(
    level: &Counter,
    importance: u8,
    waker: Foreign<Waker>,
) -> bool {
    leave(level, importance, |job| {
        job.above_high = true;
        job.wakers.push(waker);
    })
}

/// A level has one job for each importance: no charge has a more important one's victims.
/// False: the system has no thread, and nothing is left.
fn leave(level: &Counter, importance: u8, note: impl FnOnce(&mut Job)) -> bool {
    let job = Job {
        level: Handle::pin(level),
        importance,
        bytes: 0,
        in_line: false,
        promised: false,
        above_high: false,
        counts_high: false,
        wakers: DueWakers::new(),
    };
    let tree = level.incarnation().tree.counted();
    let (is_left, needless) = with(&tree, |started| {
        if !started.runs(&tree, ThreadDuty::Jobs) {
            return (false, Some((job, Some(note))));
        }
        let needless = started.jobs.add((level.key(), importance), job, note);
        (true, needless.map(|job| (job, None)))
    });
    // The handle, and a waker that the note has, are dropped without the lock.
    drop(needless);
    is_left
}

/// A thread serves the level: where usage has passed the threshold, the tree's thread reclaims from
/// here on. The caller holds no lock. Where the system has no thread, the next walk above the
/// threshold tries again.
pub(crate) fn reclaim_if_crossed(level: &Counter) {
    if !thresholds::is_to_reclaim(level) || !thresholds::take_bit(level) {
        return;
    }
    let job = BackgroundLevel {
        level: WeakCounter::new(level),
        reason: TurnReason::Threshold,
        at: clock::now(),
        pause: Duration::ZERO,
        unseen: 0,
    };
    let tree = level.incarnation().tree.counted();
    let is_left = with(&tree, |started| {
        started.list(job);
        started.runs(&tree, ThreadDuty::Jobs) || started.over
    });
    if !is_left {
        thresholds::watch_again(level);
    }
}

/// Has reclaimers asked again, at `at`, for what waits in the line of the level. Where the system
/// has no thread, threads that wait there ask themselves.
fn ask_again(level: &Counter, at: Instant, pause: Duration) {
    let job = BackgroundLevel {
        level: WeakCounter::new(level),
        reason: TurnReason::Line,
        at,
        pause,
        unseen: 0,
    };
    let tree = level.incarnation().tree.counted();
    with(&tree, |started| {
        if started.runs(&tree, ThreadDuty::Jobs) {
            started.list(job);
        }
    });
}

/// A reclaimer has come at the group: it is asked for what waits in line there and above. The
/// caller holds no lock.
pub(crate) fn ask_for_lines(group: &Counter) {
    for level in line::with_line(group) {
        ask_again(&level, clock::now(), Duration::ZERO);
    }
}

/// Levels that are to be reclaimed in the background.
#[cfg(test)]
#[allow(dead_code, reason = "some models ask")]
pub(crate) fn listed(tree: &Tree) -> usize {
    with(tree, |started| started.background.len())
}

/// Leaves the service of levels to a thread. `Err`: the system has none.
pub(crate) fn leave_service(tree: &Arc<Tree>, service: LeftService) -> Result<(), LeftService> {
    with(tree, |started| {
        // Either thread can serve. One that is inside a reclaimer or a listener may stay there for
        // long, and those who wait in line would wait with it.
        let free = if started.threads[ThreadDuty::Jobs as usize].is_busy {
            ThreadDuty::Listeners
        } else {
            ThreadDuty::Jobs
        };
        if !started.runs(tree, free) {
            return Err(service);
        }
        started.services.push(service);
        Ok(())
    })
}

/// Leaves the calls of a level's listeners to a thread. `Err`: the system has none.
pub(crate) fn leave_listeners(listened: ListeningLevel) -> Result<(), ListeningLevel> {
    let tree = listened.level.incarnation().tree.counted();
    let key = listened.level.key();
    let needless = with(&tree, |started| {
        if !started.runs(&tree, ThreadDuty::Listeners) {
            return Err(listened);
        }
        Ok(started.listened.add((key, 0), listened, |_| ()))
    });
    // Its handle is dropped without the lock.
    needless.map(drop)
}

/// The runtime is gone: the threads end after what they work on, and what is left to serve and to
/// call.
pub(crate) fn end(tree: &Tree) {
    let jobs = with(tree, |started| {
        started.over = true;
        started
            .threads
            .iter()
            .for_each(|running| running.helper.wake());
        started.background.clear();
        std::mem::take(&mut started.jobs)
    });
    // Their handles are dropped without the lock.
    drop(jobs);
}

impl StartedWork {
    /// Starts the thread where there is none, or wakes it. False: there is none. The caller leaves
    /// what is to be done under the same lock.
    fn runs(&mut self, tree: &Arc<Tree>, duty: ThreadDuty) -> bool {
        // The runtime is gone. A thread that is started now would keep the tree for nobody.
        if self.over {
            return false;
        }
        let helper = &mut self.threads[duty as usize].helper;
        let tree = Arc::clone(tree);
        let name = match duty {
            ThreadDuty::Jobs => "memcg-reclaim",
            ThreadDuty::Listeners => "memcg-listeners",
        };
        let runs = helper.start(name, move || run(&tree, duty));
        helper.wake();
        runs
    }

    /// Lists a level once.
    fn list(&mut self, job: BackgroundLevel) {
        if !self.over {
            self.background.add(job);
        }
    }

    /// The level whose turn is due. Charges' jobs and these take turns.
    fn due(&mut self, now: Instant) -> Option<BackgroundLevel> {
        // A level that stays above its threshold is due again at once. Without turns it would keep
        // the jobs of charges waiting, which somebody waits for.
        if self.was_background && !self.jobs.is_empty() {
            return None;
        }
        self.background.take_due(now)
    }

    /// What the thread does next. Service comes first: it wakes those that wait, and what the
    /// thread does after it may be foreign code that takes its time.
    fn next(&mut self, duty: ThreadDuty, now: Instant) -> NextJob {
        let next = if !self.services.is_empty() {
            Some(NextJob::Serve(std::mem::take(&mut self.services)))
        } else {
            match duty {
                ThreadDuty::Jobs => {
                    let due = self.due(now);
                    self.was_background = due.is_some();
                    due.map(NextJob::Reclaim)
                        .or_else(|| self.jobs.next().map(NextJob::Work))
                }
                ThreadDuty::Listeners => self.listened.next().map(NextJob::Call),
            }
        };
        let running = &mut self.threads[duty as usize];
        // Under the lock, with what is taken: who leaves a service next sees which thread is inside
        // foreign code.
        running.is_busy = next.is_some();
        let later = self.background.first().filter(|_| duty == ThreadDuty::Jobs);
        next.unwrap_or_else(|| match later {
            // The thread stays as long as a level is listed.
            Some(at) => NextJob::Sleep(at.saturating_duration_since(now)),
            None => running
                .helper
                .rest(now, self.over)
                .map_or(NextJob::End, NextJob::Sleep),
        })
    }
}

// === The threads ===

fn run(tree: &Tree, duty: ThreadDuty) {
    loop {
        match with(tree, |started| started.next(duty, clock::now())) {
            NextJob::Work(job) => context::leaving_listeners(|| work(job)),
            NextJob::Reclaim(job) => {
                let turn = match job.reason {
                    TurnReason::Threshold => background::turn,
                    TurnReason::Line => turn_of_line,
                };
                if let Some(next) = context::leaving_listeners(|| turn(job)) {
                    with(tree, |started| started.list(next));
                }
            }
            NextJob::Serve(services) => {
                context::leaving_listeners(|| services.into_iter().for_each(|service| service()));
            }
            NextJob::Call(ListeningLevel { level, call }) => call(level),
            NextJob::Sleep(time) => park(Some(time)),
            NextJob::End => return,
        }
    }
}

fn work(job: Job) {
    let level = &*job.level;
    if job.bytes > 0 && !level.state().is_offline() {
        reclaim_and_cancel(level, &job);
    }
    // After the drain and the round above, which may have served the line already.
    if job.in_line {
        make_room_for_first(level, job.importance);
    }
    if job.above_high {
        high::drain_excess(level);
    }
    if job.above_high && high::above(level) > 0 {
        if job.counts_high {
            events::count(level, Event::High);
        }
        throttle::shrink_to_high(level, job.importance);
    }
    let mut wakers = Wakers::default();
    job.wakers
        .into_iter()
        .for_each(|waker| wakers.extend(Some(waker)));
    wakers.wake();
}

/// Does what a charge that may block does before it is refused: drains, has reclaimers asked,
/// cancels one group. It waits for no promise and for no victim.
fn reclaim_and_cancel(
    level: &Counter,
    &Job {
        importance,
        bytes,
        promised,
        ..
    }: &Job,
) {
    events::count(level, Event::Max);
    level.tree().close_below(level);
    // Reclaimers have said that the missing bytes will come. To ask again would make them give
    // twice.
    if promised {
        return;
    }
    // What is freed goes to the first in line before it is there for this charge.
    let short = || {
        line::ahead(level)
            .saturating_add(bytes)
            .saturating_sub(level.room(level.admits()))
    };
    let want = || {
        if short() > 0 {
            short().max(spare(level, level.admits()))
        } else {
            0
        }
    };
    let mut request =
        ReclaimRequest::new(ReclaimCause::Full, deadline(level)).breaks_low(Some(importance));
    let may_come = shrink(level, &mut request, want);
    // Bytes that came back may be credit of this thread.
    level.tree().close_below(level);
    if short() == 0 {
        return;
    }
    events::count(level, Event::Oom);
    let want = VictimRequest {
        asker: None,
        importance,
        bytes,
        adds: bytes,
        may_come,
    };
    if victims::chooses(level)
        && let VictimChoice::Victim(mut chosen) =
            victims::choose(level, &want, &mut ExcludedVictims::default())
    {
        chosen.cancel();
    }
}

/// Does what a charge that may block does before it waits: has reclaimers asked, cancels one group.
/// It does so for the first in line, which the thread that gives bytes back charges them for; and
/// for the next one at a turn of its own, so that a level where many wait holds up no other.
fn make_room_for_first(level: &Counter, importance: u8) {
    let Some((group, bytes)) = line::first_at(level) else {
        return;
    };
    let before = line::length(level);
    let may_come = shrink_for_first(level, importance);
    let waits = line::length(level);
    // Some were served. The next one has its turn behind the jobs of other levels.
    if waits < before && waits > 0 {
        make_room_in_line(level, importance);
    }
    // Reclaimers that had nothing now may have something later, and no task looks by itself.
    if waits > 0 && registrations::any_below(level) {
        let pause = ask_again_after(level);
        ask_again(level, clock::now() + pause, pause);
    }
    // A group is cancelled only where reclaim has served nobody: otherwise reclaim gets another
    // turn first.
    if waits < before || short_of_first(level) == 0 || !victims::chooses(level) {
        return;
    }
    events::count(level, Event::Oom);
    let want = VictimRequest {
        asker: Some(&group),
        importance,
        bytes,
        adds: cover::rise_at(&group, bytes, level).max(1),
        may_come,
    };
    if let VictimChoice::Victim(mut chosen) =
        victims::choose(level, &want, &mut ExcludedVictims::default())
    {
        chosen.cancel();
    }
}

/// Bytes that the first in line lacks.
fn short_of_first(level: &Counter) -> u64 {
    line::ahead(level).saturating_sub(level.room(level.admits()))
}

/// Asks reclaimers for the first in line. Returns what may still come.
fn shrink_for_first(level: &Counter, importance: u8) -> u64 {
    let want = || match short_of_first(level) {
        0 => 0,
        short => short.max(spare(level, level.admits())),
    };
    // Those that waited may leave, or be served by others meanwhile.
    let mut request = ReclaimRequest::new(ReclaimCause::Full, deadline(level))
        .ends_with(level, |level| line::length(level) == 0)
        .breaks_low(Some(importance));
    shrink(level, &mut request, want)
}

/// One turn of a level with a line, as [`background::turn`]: reclaimers that had nothing when the
/// charges came may have something by now, and there may be new ones. A thread that waits asks them
/// itself; this is for tasks. Pauses double where no charge leaves the line.
fn turn_of_line(mut job: BackgroundLevel) -> Option<BackgroundLevel> {
    let level = &*job.level.try_pin()?;
    let (group, bytes) = line::first_at(level)?;
    let before = line::length(level);
    // Where the max has fallen below the charge, it may rise again in time. Until then no cache is
    // emptied for a charge that cannot fit.
    let fits = |level: &Counter| bytes <= level.admits().min(USAGE_MAX);
    if group.path_to_root().all(fits) {
        shrink_for_first(level, importance::of(&group));
    }
    let waits = line::length(level);
    if waits == 0 || !registrations::any_below(level) {
        return None;
    }
    let least = ask_again_after(level);
    job.pause = if waits < before {
        least
    } else {
        (job.pause * 2).clamp(least, ASK_AGAIN_MAX)
    };
    job.at = clock::now() + job.pause;
    Some(job)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::state::started::{DutyThread, Turns};
    use crate::sync::this_thread;
    use crate::thread::context;
    use crate::thread::helper::{Helper, LINGER};
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
        let group = runtime
            .root()
            .create("q", Limits::new().max(Limit::Bytes(100)))
            .unwrap();
        let held = group.charge(100).unwrap();
        let woken = Arc::new(WokenBy::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut future = pin!(group.charge_async(40));
        assert!(
            future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        context::without_foreign(|| drop(held));
        until(|| !woken.0.lock().unwrap().is_empty());
        assert!(
            woken
                .0
                .lock()
                .unwrap()
                .iter()
                .all(|&by| by != thread::current().id())
        );
        let Poll::Ready(charge) = future.poll(&mut Context::from_waker(&waker)) else {
            panic!("woken for nothing")
        };
        assert_eq!((charge.unwrap().bytes(), group.waiting_count()), (40, 0));
    }

    /// A job shrinks a level to its high if a charge has left it above, and it is still above.
    #[test]
    fn a_job_shrinks_what_is_above_high() {
        let runtime = Runtime::builder().batch(0).build().unwrap();
        let group = runtime.root().create("q", Limits::new().high(100)).unwrap();
        let mut held = group.force_charge(150);
        for (above_high, held_then, events) in [(false, 150, 0), (true, 150, 1), (true, 100, 0)] {
            held.shrink(crate::Bytes(held.bytes() - held_then));
            let before = group.events().get(crate::Event::High);
            work(Job {
                above_high,
                counts_high: above_high,
                ..job(group.first(), 0)
            });
            assert_eq!(
                group.events().get(crate::Event::High) - before,
                events,
                "{above_high}, {held_then}"
            );
        }
    }

    /// The thread ends with the runtime, and none starts afterwards: then the caller serves the
    /// line itself.
    #[test]
    fn the_thread_ends_with_the_runtime() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let tree = group.first().incarnation().tree.counted();
        make_room(group.first(), 1, 0, false);
        let is_idle = || {
            with(&tree, |started| {
                !is_running(started) && started.jobs.is_empty()
            })
        };
        assert!(with(&tree, |started| is_running(started)));
        drop(runtime);
        until(is_idle);
        make_room(group.first(), 1, 0, false);
        assert!(is_idle());
        assert!(leave_service(&tree, Box::new(|| ())).is_err());
        assert!(
            leave_listeners(ListeningLevel {
                level: Handle::pin(group.first()),
                call: drop
            })
            .is_err()
        );
    }

    fn is_running(started: &StartedWork) -> bool {
        started.threads[0].helper.running().is_some()
    }

    /// A thread of the tree that takes nothing of what is left for it.
    fn idle() -> DutyThread {
        DutyThread {
            helper: Helper::idle_in(std::process::id(), this_thread()),
            is_busy: false,
        }
    }

    fn job(level: &Counter, bytes: u64) -> Job {
        Job {
            level: Handle::pin(level),
            importance: 0,
            bytes,
            in_line: false,
            promised: false,
            above_high: false,
            counts_high: false,
            wakers: DueWakers::new(),
        }
    }

    /// Without work it ends by itself; a level is listed once for each importance, for the largest
    /// of these charges.
    #[test]
    fn a_level_is_listed_once() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let mut started = StartedWork {
            threads: [idle(), DutyThread::default()],
            ..StartedWork::default()
        };
        started
            .jobs
            .add((group.first().key(), 0), job(group.first(), 1), |_| ());
        let begun = Instant::now();
        assert!(matches!(
            started.next(ThreadDuty::Jobs, begun),
            NextJob::Work(Job { bytes: 1, .. })
        ));
        assert!(matches!(
            started.next(ThreadDuty::Jobs, begun),
            NextJob::Sleep(LINGER)
        ));
        assert!(matches!(
            started.next(ThreadDuty::Jobs, begun + LINGER),
            NextJob::End
        ));
        assert!(!is_running(&started));
        let tree = group.first().incarnation().tree.counted();
        with(&tree, |started| started.threads[0] = idle());
        for (importance, bytes, promised) in
            [(2, 3, false), (2, 7, true), (2, 5, false), (1, 9, false)]
        {
            make_room(group.first(), bytes, importance, promised);
        }
        shrink_to_high(group.first(), 1);
        let listed = with(&tree, |started| [(); 3].map(|()| started.jobs.next()));
        let [
            Some(Job {
                importance: 2,
                bytes: 7,
                promised: true,
                above_high: false,
                ..
            }),
            Some(Job {
                importance: 1,
                bytes: 9,
                promised: false,
                above_high: true,
                ..
            }),
            None,
        ] = listed
        else {
            panic!("the largest of each importance");
        };
        with(&tree, |started| started.threads[0] = DutyThread::default());
    }

    /// A level that is refused again while the thread works for it comes behind the others,
    /// whichever is older.
    #[test]
    fn levels_take_turns() {
        let runtime = Runtime::builder().build().unwrap();
        let groups = ["old", "new"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        for [busy, other] in [[&groups[0], &groups[1]], [&groups[1], &groups[0]]] {
            let mut started = StartedWork {
                threads: [idle(), DutyThread::default()],
                ..StartedWork::default()
            };
            let leave = |started: &mut StartedWork, group: &crate::Group| {
                drop(
                    started
                        .jobs
                        .add((group.first().key(), 0), job(group.first(), 1), |_| ()),
                );
            };
            let mut taken = Vec::new();
            leave(&mut started, busy);
            for _ in 0..3 {
                let NextJob::Work(job) = started.next(ThreadDuty::Jobs, Instant::now()) else {
                    panic!("a job is listed")
                };
                taken.push(job.level.key());
                leave(&mut started, busy);
                leave(&mut started, other);
            }
            let busy = busy.first().key();
            let other = other.first().key();
            assert_eq!(taken, [busy, busy, other]);
        }
    }

    /// Levels are served before jobs and listeners, and are left to the thread that no foreign code
    /// holds up.
    #[test]
    fn levels_are_left_to_the_thread_that_is_free() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let level = group.first();
        let tree = group.first().incarnation().tree.counted();
        with(&tree, |started| started.threads = [idle(), idle()]);
        make_room(level, 1, 0, false);
        assert!(
            leave_listeners(ListeningLevel {
                level: Handle::pin(level),
                call: drop
            })
            .is_ok()
        );
        assert!(leave_service(&tree, Box::new(|| ())).is_ok());
        let now = Instant::now();
        let mut taken = Vec::new();
        for duty in [
            ThreadDuty::Listeners,
            ThreadDuty::Jobs,
            ThreadDuty::Listeners,
        ] {
            taken.push(with(&tree, |started| {
                (
                    started.next(duty, now),
                    started.threads[ThreadDuty::Jobs as usize].is_busy,
                )
            }));
        }
        assert!(matches!(
            &taken[..],
            [
                (NextJob::Serve(_), false),
                (NextJob::Work(_), true),
                (NextJob::Call(_), true)
            ]
        ));
        drop(taken);
        with(&tree, |started| started.threads = Default::default());
    }

    /// Levels that are reclaimed in the background come by their time, and one that is gone leaves
    /// its place to the group that has its object now.
    #[test]
    fn levels_come_by_their_time() {
        let runtime = Runtime::builder().build().unwrap();
        let now = Instant::now();
        let job = |group: &crate::Group, at| BackgroundLevel {
            level: WeakCounter::new(group.first()),
            reason: TurnReason::Threshold,
            at,
            pause: Duration::ZERO,
            unseen: 0,
        };
        let count = if cfg!(miri) { 6 } else { 20_u64 };
        let groups: Vec<_> = (0..count)
            .map(|number| runtime.root().create(number, Limits::new()).unwrap())
            .collect();
        let mut started = StartedWork::default();
        for (number, group) in groups.iter().enumerate().rev() {
            let at = now + LINGER * number as u32;
            started.list(job(group, at + LINGER));
            started.list(job(group, at)); // sooner, which counts
            started.list(job(group, at + LINGER));
        }
        let gone = WeakCounter::new(groups[0].first());
        assert_eq!(
            started.background.len(),
            groups.len(),
            "each is listed once"
        );
        for (number, group) in groups.iter().enumerate() {
            let at = now + LINGER * number as u32;
            assert_eq!(started.background.first(), Some(at));
            assert!(started.due(at - Duration::from_nanos(1)).is_none());
            let due = started.due(at).unwrap();
            assert!(due.level == WeakCounter::new(group.first()));
        }
        assert!(started.background.first().is_none());
        started.list(BackgroundLevel {
            level: gone,
            ..job(&groups[1], now + LINGER)
        });
        let object = gone.object;
        groups.into_iter().for_each(|group| {
            group.offline().unwrap();
        });
        runtime.settle();
        let again: Vec<_> = (0..count)
            .map(|number| runtime.root().create(number, Limits::new()).unwrap())
            .collect();
        let same = again
            .iter()
            .find(|group| std::ptr::eq(group.first().object(), object));
        if let Some(same) = same {
            started.list(job(same, now));
            assert_eq!(
                (started.background.len(), started.background.first()),
                (1, Some(now))
            );
        }
    }

    /// A level that is reclaimed in the background is listed once, and takes turns with the jobs of
    /// charges. The thread stays as long as one is listed.
    #[test]
    fn jobs_and_background_take_turns() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let level = group.first();
        let now = Instant::now();
        let mut started = StartedWork {
            threads: [idle(), DutyThread::default()],
            ..StartedWork::default()
        };
        let background = BackgroundLevel {
            level: WeakCounter::new(level),
            reason: TurnReason::Threshold,
            at: now,
            pause: Duration::ZERO,
            unseen: 0,
        };
        let mut taken = Vec::new();
        for _ in 0..4 {
            started.list(background);
            started.list(background);
            drop(started.jobs.add((level.key(), 0), job(level, 1), |_| ()));
            taken.push(matches!(
                started.next(ThreadDuty::Jobs, now),
                NextJob::Reclaim(_)
            ));
        }
        assert_eq!(
            (taken, started.background.len()),
            (vec![true, false, true, false], 1)
        );
        started.jobs = Turns::default();
        started.background.clear();
        started.list(BackgroundLevel {
            at: now + 2 * LINGER,
            ..background
        });
        assert!(
            matches!(started.next(ThreadDuty::Jobs, now), NextJob::Sleep(time) if time == 2 * LINGER)
        );
        assert!(matches!(
            started.next(ThreadDuty::Listeners, now),
            NextJob::Sleep(LINGER)
        ));
        started.over = true;
        started.background.clear();
        started.list(background);
        assert!(
            matches!(started.next(ThreadDuty::Jobs, now), NextJob::End)
                && started.background.len() == 0
        );
    }
}
