//! Reclaim before charges need it: a level whose usage passes a threshold is reclaimed down to a
//! second one, by a thread of the tree.
//!
//! A bit of the level's word (`counter::watch::RECLAIMS`) says that no thread reclaims there. A
//! walk that leaves usage above the threshold and finds the bit has its thread serve the level.
//! There one thread takes the bit and leaves the level to the tree's thread. That one sets the bit
//! once usage is at the second threshold, and reads usage again (E55). In between no walk looks.
//!
//! The list names levels without a handle, so a pause keeps no group.

use std::mem;
use std::time::Duration;

use crate::counter::object::Counter;
use crate::counter::thresholds;
use crate::reclaim::repeat::{ROUNDS_MAX, deadline};
use crate::reclaim::round::ReclaimRequest;
use crate::reclaim::{registrations, round};
use crate::state::reclaimer::ReclaimCause;
use crate::state::started::BackgroundLevel;
use crate::sync::clock;
use crate::sync::model_failed;

/// Pauses where nothing is freed: each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// One turn of a level, on the tree's thread: foreign code runs, and no lock is held. Returns its
/// next turn.
pub(crate) fn turn(job: BackgroundLevel) -> Option<BackgroundLevel> {
    let level = &*job.level.try_pin()?;
    // The group's threshold has gone with it. Its bit stays clear, so no walk looks any more.
    if level.state().is_offline() {
        return None;
    }
    let watches = WatchesAgain(level);
    let next = until_armed(level, job);
    mem::forget(watches);
    next
}

/// A panic of the engine ends the turn, and the thread with it: the next walk above the threshold
/// has a thread reclaim.
struct WatchesAgain<'a>(&'a Counter);

impl Drop for WatchesAgain<'_> {
    #[cold]
    fn drop(&mut self) {
        if !model_failed() {
            thresholds::watch_again(self.0);
        }
    }
}

fn until_armed(level: &Counter, mut job: BackgroundLevel) -> Option<BackgroundLevel> {
    loop {
        // Credit is no group's excess: what is above after this is live.
        if over(level) > 0 {
            // From here on an uncharge below goes up the tree, so what reclaimers give shows in
            // usage.
            level.tree().close_below(level);
        }
        if over(level) > 0 {
            let before = over(level);
            let comes = one_round(level);
            // A reclaimer may say that it has freed bytes while usage stays, because other threads
            // charge as much or because it counts what it will free later. Without this the thread
            // would ask it without a pause, for ever.
            job.unseen = if over(level) < before {
                0
            } else {
                job.unseen + 1
            };
            // No pause while rounds bring something, but each round is a turn of its own: other
            // levels get theirs in between.
            let goes_on = comes && job.unseen < ROUNDS_MAX;
            job.pause = if goes_on {
                Duration::ZERO
            } else {
                (job.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX)
            };
            if over(level) > 0 {
                // Usage is still above the second threshold, so the bit stays clear: the level has
                // a turn to come, and a walk need not ask for one.
                job.at = clock::now() + job.pause;
                return Some(job);
            }
        }
        // Usage is low enough. Where it has passed the threshold between the last look and the bit,
        // this thread has the bit again, and goes on.
        if !thresholds::arm(level) {
            return None;
        }
        job.pause = Duration::ZERO;
        job.unseen = 0;
    }
}

/// Bytes above the second threshold.
fn over(level: &Counter) -> u64 {
    level
        .usage()
        .saturating_sub(thresholds::reclaim_down_to(level))
}

/// False: nothing came.
fn one_round(level: &Counter) -> bool {
    if !registrations::any_below(level) {
        return false;
    }
    let mut request = ReclaimRequest::new(ReclaimCause::Background, deadline(level))
        // Nobody waits for this round: it takes nothing that low protects, and leaves the level to
        // a round that is under way for a charge.
        .waits(false)
        .breaks_low(None);
    let round = round::run(level, over(level), &mut request);
    // `None`: nothing was short by the time that the round began, so there is no reason to pause.
    round.is_none_or(|round| round.report.freed > 0 || round.others)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::thread::{self, ThreadId};

    use std::time::Instant;

    use super::*;
    use crate::allocator::Owner;
    use crate::counter::handle::WeakCounter;
    use crate::state::started::{BackgroundLevels, TurnReason};
    use crate::sync::takes_n_log_n;
    use crate::{
        Bytes, Charge, Event, Group, Limit, Limits, Reclaim, ReclaimContext, ReclaimPriority,
        Registration, Runtime,
    };

    const MIB: u64 = 1 << 20;

    /// Gives what it is asked for, and notes on which thread.
    struct Cache {
        held: Mutex<Charge>,
        threads: Mutex<Vec<ThreadId>>,
    }

    impl Reclaim for Cache {
        fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
            assert_eq!(context.cause(), ReclaimCause::Background);
            self.threads.lock().unwrap().push(thread::current().id());
            self.held.lock().unwrap().shrink(Bytes(want))
        }
    }

    /// A group of 64 MiB whose threshold is at 48 MiB, with a cache.
    fn cached(runtime: &Runtime, bytes: u64) -> (Group, Arc<Cache>, Registration) {
        let limits = Limits::new()
            .max(Limit::Bytes(64 * MIB))
            .reclaim_above(Limit::percent(75));
        let group = runtime.root().create("tenant", limits).unwrap();
        let held = Mutex::new(group.charge(Bytes(bytes)).unwrap());
        let cache = Arc::new(Cache {
            held,
            threads: Mutex::default(),
        });
        let registration = group.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
        (group, cache, registration)
    }

    fn until(is: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is() {
            assert!(Instant::now() < end);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_armed(group: &Group) -> bool {
        group
            .first()
            .limits
            .watched
            .is_for(crate::counter::watch::RECLAIMS)
    }

    #[test]
    fn another_thread_reclaims_down_to_the_lower_threshold() {
        for builder in [Runtime::builder().batch(0), Runtime::builder()] {
            let runtime = builder.build().unwrap();
            let (group, cache, _registration) = cached(&runtime, 40 * MIB);
            assert_eq!(
                (
                    thresholds::reclaim_above(group.first()),
                    thresholds::reclaim_down_to(group.first())
                ),
                (48 * MIB, 45 * MIB)
            );
            let more = group.charge(Bytes(7 * MIB)).unwrap();
            assert!(
                is_armed(&group) && cache.threads.lock().unwrap().is_empty(),
                "below the threshold"
            );
            drop(more);
            for _ in 0..3 {
                let more = group.charge(Bytes(12 * MIB)).unwrap();
                until(|| group.live() <= 45 * MIB && is_armed(&group));
                assert!(group.live() >= 44 * MIB, "not much more than is above");
                let threads = std::mem::take(&mut *cache.threads.lock().unwrap());
                assert!(!threads.is_empty() && !threads.contains(&thread::current().id()));
                drop(more);
                cache
                    .held
                    .lock()
                    .unwrap()
                    .grow(Bytes(45 * MIB - group.live()))
                    .unwrap();
            }
            assert_eq!(
                (
                    group.events().get(Event::Max),
                    group.events().get(Event::High)
                ),
                (0, 0)
            );
        }
    }

    /// A threshold that is set below usage, a max that is lowered, and an allocator's charge: each
    /// is a crossing.
    #[test]
    fn each_way_across_the_threshold() {
        let runtime = Runtime::builder().build().unwrap();
        let (group, cache, _registration) = cached(&runtime, 40 * MIB);
        let asked = |most: u64| {
            until(|| group.live() <= most && is_armed(&group));
            assert!(!std::mem::take(&mut *cache.threads.lock().unwrap()).is_empty());
        };
        group
            .set_limits(Limits::new().reclaim_above(Limit::Bytes(32 * MIB)))
            .unwrap();
        asked(30 * MIB);
        group
            .set_limits(Limits::new().reclaim_above(Limit::percent(75)))
            .unwrap();
        assert_eq!(group.limits().reclaim_above, Some(Limit::percent(75)));
        group.set_max(Limit::Bytes(32 * MIB)).unwrap();
        asked(24 * MIB);
        let _objects = group.run(|| Owner::charge(6 << 20));
        asked(24 * MIB);
        group
            .set_limits(Limits::new().reclaim_above(Limit::Unlimited))
            .unwrap();
        assert!(!is_armed(&group));
    }

    #[test]
    fn a_percentage_is_one_of_the_own_max_or_of_the_nearest_above() {
        let runtime = Runtime::builder().max(Limit::Bytes(1_000)).build().unwrap();
        let half = Limits::new().reclaim_above(Limit::percent(50));
        let own = runtime
            .root()
            .create("own", half.max(Limit::Bytes(400)))
            .unwrap();
        let none = runtime.root().create("none", half).unwrap();
        let threshold = |group: &Group| thresholds::reclaim_above(group.first());
        assert_eq!((threshold(&own), threshold(&none)), (200, 500));
        runtime.root().set_max(Limit::Bytes(600)).unwrap();
        assert_eq!((threshold(&own), threshold(&none)), (200, 300));
        own.set_max(Limit::Bytes(100)).unwrap();
        assert_eq!(threshold(&own), 50);
        own.set_limits(
            Limits::new()
                .max(Limit::Bytes(80))
                .reclaim_above(Limit::percent(25)),
        )
        .unwrap();
        assert_eq!(threshold(&own), 20, "of the max that is set with it");
    }

    /// Nothing that low protects is taken.
    #[test]
    fn low_holds() {
        let runtime = Runtime::builder().build().unwrap();
        let limits = Limits::new().reclaim_above(Limit::Bytes(32 * MIB));
        let tenant = runtime.root().create("tenant", limits).unwrap();
        tenant
            .set_limits(Limits::new().low(Limit::Bytes(64 * MIB)))
            .unwrap();
        let protected = tenant
            .create("protected", Limits::new().low(Limit::Bytes(40 * MIB)))
            .unwrap();
        let held = Mutex::new(protected.charge(Bytes(40 * MIB)).unwrap());
        let cache = Arc::new(Cache {
            held,
            threads: Mutex::default(),
        });
        let _registration = protected.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
        thread::sleep(Duration::from_millis(50));
        assert_eq!(
            (protected.live(), cache.threads.lock().unwrap().len()),
            (40 * MIB, 0)
        );
        assert!(!is_armed(&tenant), "its next turn comes");
    }

    /// A reclaimer says that it has freed what does not come back: after some rounds it has pauses.
    #[test]
    fn a_reclaimer_that_lies_has_pauses() {
        struct Lies(Mutex<u64>);
        impl Reclaim for Lies {
            fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
                *self.0.lock().unwrap() += 1;
                want
            }
        }
        let runtime = Runtime::builder().build().unwrap();
        let limits = Limits::new()
            .max(Limit::Bytes(64 * MIB))
            .reclaim_above(Limit::percent(75));
        let group = runtime.root().create("tenant", limits).unwrap();
        let lies = Arc::new(Lies(Mutex::default()));
        let _registration = group.register_reclaimer(lies.clone(), ReclaimPriority::NORMAL);
        // A stock below is open as long as this thread charges: then claims are believed.
        let busy = group.create("busy", Limits::new()).unwrap();
        let _held = group.charge(Bytes(50 * MIB)).unwrap();
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            drop(busy.charge(1).unwrap());
        }
        let asked = *lies.0.lock().unwrap();
        assert!((1..=400).contains(&asked), "{asked} calls");
    }

    /// A turn that a panic of the engine ends leaves its level to the next walk above the
    /// threshold.
    #[test]
    fn a_turn_that_unwinds_is_not_the_last() {
        let runtime = Runtime::builder().build().unwrap();
        let (group, _cache, _registration) = cached(&runtime, 40 * MIB);
        assert!(thresholds::take_bit(group.first()), "a thread reclaims");
        let unwinds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _watches = WatchesAgain(group.first());
            panic!("as a fault of the engine would");
        }));
        assert!(unwinds.is_err() && is_armed(&group));
        let _more = group.charge(Bytes(12 * MIB)).unwrap();
        until(|| group.live() <= 45 * MIB && is_armed(&group));
    }

    /// Levels that stay above their thresholds, because nothing gives, have a turn each, which
    /// costs a look-up in the list of them.
    #[test]
    fn levels_that_get_nothing_take_turns() {
        let runtime = Runtime::builder().batch(0).build().unwrap();
        let begun = Instant::now();
        let mut levels = BackgroundLevels::default();
        let above = |number: u64| {
            let group = runtime.root().create(number, Limits::new()).unwrap();
            let held = group.charge(Bytes(MIB)).unwrap();
            group
                .first()
                .usage
                .reclaim_above
                .store(1, crate::sync::Ordering::Relaxed);
            (group, held)
        };
        let groups: Vec<_> = (0..4_096).map(above).collect();
        takes_n_log_n(groups.len(), || {
            for (group, _) in &groups {
                levels.add(BackgroundLevel {
                    level: WeakCounter::new(group.first()),
                    reason: TurnReason::Threshold,
                    at: begun,
                    pause: Duration::ZERO,
                    unseen: 0,
                });
            }
        });
        let far = begun + Duration::from_secs(3_600);
        for pause in [10, 20, 40] {
            takes_n_log_n(groups.len(), || {
                for _ in &groups {
                    let next = turn(levels.take_due(far).unwrap()).unwrap();
                    assert_eq!(next.pause.as_millis(), pause, "each has its turn");
                    levels.add(next);
                }
            });
        }
        assert_eq!(levels.len(), groups.len());
    }

    /// Each pause without anything freed is twice the one before; a group that is offline or gone
    /// has no next turn.
    #[test]
    fn pauses_double() {
        let runtime = Runtime::builder().batch(0).build().unwrap();
        let group = runtime.root().create("tenant", Limits::new()).unwrap();
        let held = group.charge(Bytes(MIB)).unwrap();
        group
            .first()
            .usage
            .reclaim_above
            .store(1, crate::sync::Ordering::Relaxed);
        let first = BackgroundLevel {
            level: WeakCounter::new(group.first()),
            reason: TurnReason::Threshold,
            at: Instant::now(),
            pause: Duration::ZERO,
            unseen: 0,
        };
        let pauses = std::iter::successors(Some(first), |job| turn(*job))
            .skip(1)
            .take(9);
        let pauses: Vec<_> = pauses.map(|job| job.pause.as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        group.offline().unwrap();
        assert!(turn(first).is_none());
        drop((held, group));
        runtime.settle();
        assert!(
            first.level.try_pin().is_none() && turn(first).is_none(),
            "a pause keeps no group"
        );
    }
}
