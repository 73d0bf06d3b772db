//! Delays: one thread of the process wakes each future when its delay is over, or when it is to ask
//! again.
//!
//! ```text
//! none ── a future is delayed ──> looks at the table, sleeps until the next look ── empty for a second ──> none
//! ```
//!
//! The thread starts with the first delay and ends when there has been none for a second. It looks
//! whether a delay is still due, so the future itself is polled once more and not time and again. A
//! look is seldom: 10 ms after the delay began at first, then whenever it has become a quarter
//! older, and in the end when its time is over. A thread that is delayed sleeps itself, and looks
//! every 10 ms also whether its group has ended.
//!
//! A delay ends with its group. A thread that cancels groups ends their delays in the table. A
//! delay that comes into the table after that finds its group cancelled: its caller looks then
//! (`delayed.rs`). A thread that takes a group offline ends delays only where it sees that there
//! are some: the look after 10 ms finds those that it has missed.
//!
//! One lock holds the table and whether the thread runs. So a delay is in the table, or its end was
//! decided and its waker is taken out; a future that is dropped takes its delay out, or finds it
//! decided and is woken in vain at most. The thread decides to end under the lock, too: a future
//! that finds it running is seen by it. Nothing else is shared but a hint, so there is no ordering
//! to model. The thread sleeps without the lock, and a thread that wakes it leaves a token, which
//! ends its next sleep at once: its own, or that of a waker, after which it looks again. Wakers are
//! foreign code: they are cloned, called and dropped without the lock. So is credit drained that
//! may be all that a delay is still due to.

use std::collections::BTreeSet;
use std::ptr;
use std::task::Waker;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::counter::by_number::{ByNumber, take_out};
use crate::counter::handle::Handle;
use crate::counter::object::{Counter, CounterRef};
use crate::counter::slow_path::SlowPath;
use crate::pressure::high::{LOOK, drain_credit, is_delayed, is_delayed_by_credit};
use crate::pressure::wakers::Wakers;
use crate::sync::clock;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::AtomicU64 as StatU64;
#[cfg(test)]
use crate::sync::this_thread;
use crate::sync::{Ordering, is_over, model_failed, park, process_wide};
use crate::thread::foreign::Foreign;
use crate::thread::helper::Helper;

/// A delay is looked at again when it has become older by this part.
const OLDER: u32 = 4;

/// The thread sleeps so long at least: many delays share a look.
const REST: Duration = Duration::from_millis(1);

/// Delays that are looked at under one hold of the lock.
const SLICE: usize = 64;

process_wide!(delays: Lock<Delays> = || Lock::new(Rank::Bookkeeping, Delays::default()));

/// Delays in the table that have a group, for a thread that would look in vain.
static COUNT: StatU64 = StatU64::new(0);

/// The process in which the thread was started last.
static STARTED_IN: StatU64 = StatU64::new(0);

#[derive(Default)]
pub(crate) struct Delays {
    /// Delays that there were.
    numbers: u64,
    all: ByNumber<Delay>,
    /// When each is looked at next.
    looks: BTreeSet<(Instant, u64)>,
    /// Those at and below each level of the path of a group, by the address of the level.
    below: BTreeSet<(u64, u64)>,
    helper: Helper,
    /// Those that have a group.
    of_groups: u64,
}

/// One charge that is delayed, or is to ask again. Its future keeps the group.
struct Delay {
    /// As long as a level above it is above high; `None`: in any case.
    group: Option<CounterRef>,
    begun: Instant,
    /// Moves to the moment in which the group is cancelled or goes offline.
    until: Instant,
    look: Instant,
    waker: Foreign<Waker>,
}

/// Work that the thread has found, and does without the lock.
#[derive(Default)]
struct DelaysFound {
    ended: Wakers,
    /// Groups whose delay may be due to credit alone.
    by_credit: SmallVec<[Handle; 1]>,
}

enum DelaysStep {
    Look,
    Sleep(Duration),
    End,
}

impl Delays {
    /// Those whose end has come leave the table, [`SLICE`] at most.
    fn look(&mut self, now: Instant, found: &mut DelaysFound) -> DelaysStep {
        for _ in 0..SLICE {
            let Some(&(look, number)) = self.looks.first() else {
                // The thread outlives the last delay by a second. Delays come in bursts, and a
                // thread for each burst would cost more than the sleep.
                return self
                    .helper
                    .rest(now, false)
                    .map_or(DelaysStep::End, DelaysStep::Sleep);
            };
            // Not to the microsecond: many delays share a look, and a delay is some 10 ms at least.
            if look > now {
                return DelaysStep::Sleep(look.saturating_duration_since(now).max(REST));
            }
            // Either it goes back below, with a later look, or its delay is over.
            self.looks.pop_first();
            let Some(delay) = self.all.get_mut(&number) else {
                continue;
            };
            // The waker is taken out under the lock and woken without. So a future that is dropped
            // meanwhile finds nothing of its own in the table, and is woken in vain at most.
            // Mutation: usage-that-falls-ends-no-delay
            if delay.until <= now || delay.group.is_some_and(|group| !is_delayed(&group)) {
                found
                    .ended
                    .extend(self.remove(number).map(|delay| delay.waker));
                continue;
            }
            // Looks become rare as the delay becomes old: what kept it up for a second will hardly
            // be gone in the next 10 ms, and thousands of delays would keep the thread busy.
            let mut rest = (now.saturating_duration_since(delay.begun) / OLDER).max(LOOK);
            if let Some(group) = delay.group.filter(|group| is_delayed_by_credit(group)) {
                // The delay is in the table, so its future keeps the group.
                // Mutation: credit-keeps-a-delay-up
                found.by_credit.push(Handle::pin(&group));
                // The drain may end the delay at once, and only a look notices.
                rest = LOOK;
            }
            delay.look = delay.until.min(now + rest);
            self.looks.insert((delay.look, number));
        }
        DelaysStep::Look
    }

    /// `Err`: the system has no thread. The caller drops the waker, which is foreign code, without
    /// the lock.
    fn insert(&mut self, delay: Delay) -> Result<u64, Delay> {
        if !self.start() {
            return Err(delay);
        }
        self.numbers += 1;
        self.looks.insert((delay.look, self.numbers));
        // The thread sleeps until the look that was first before. Only one that comes before that
        // has to wake it.
        if self.looks.first() == Some(&(delay.look, self.numbers)) {
            self.helper.wake();
        }
        if let Some(group) = delay.group {
            self.of_groups += 1;
            self.below
                .extend(path(&group).map(|level| (level, self.numbers)));
        }
        self.all.insert(self.numbers, delay);
        Ok(self.numbers)
    }

    /// False: the system has no thread.
    fn start(&mut self) -> bool {
        let has_started = self.helper.start("memcg-delays", run);
        if has_started {
            STARTED_IN.store(std::process::id().into(), Ordering::Relaxed);
        }
        has_started
    }

    /// The numbers of the delays at and below that level.
    fn below(&self, top: &Counter) -> Vec<u64> {
        let top = address(top);
        let found = self.below.range((top, 0)..=(top, u64::MAX));
        found.map(|&(_, number)| number).collect()
    }

    /// The delays of the groups at and below `top` that are meant have ended: the thread wakes
    /// those futures now. No others are looked at.
    fn end(&mut self, top: &Counter, is_meant: impl Fn(&Counter) -> bool) {
        let now = clock::now();
        let mut any = false;
        // Mutation: offline-ends-one-delay-of-two
        for number in self.below(top) {
            let Some(delay) = self.all.get_mut(&number) else {
                continue;
            };
            // The caller may hold locks, and a waker is foreign code. So the delay is not ended
            // here: it is due at once, and the thread wakes its future.
            if delay.until > now && delay.group.is_some_and(|group| is_meant(&group)) {
                self.looks.remove(&(delay.look, number));
                delay.until = now;
                delay.look = now;
                self.looks.insert((now, number));
                any = true;
            }
        }
        if any {
            self.helper.wake();
        }
    }

    fn remove(&mut self, number: u64) -> Option<Delay> {
        let delay = take_out(&mut self.all, number)?;
        self.looks.remove(&(delay.look, number));
        if let Some(group) = delay.group {
            self.of_groups -= 1;
            // Mutation: a-delay-that-ends-stays-listed-above
            for level in path(&group) {
                self.below.remove(&(level, number));
            }
        }
        Some(delay)
    }
}

/// A name of a level among those of all trees, as long as it is kept.
fn address(level: &Counter) -> u64 {
    ptr::from_ref(level.object()).addr() as u64
}

fn path(group: &Counter) -> impl Iterator<Item = u64> {
    group.path_to_root().map(address)
}

fn with<R>(work: impl FnOnce(&mut Delays) -> R) -> R {
    let _path = SlowPath::enter();
    let of_process = delays();
    let mut delays = of_process.lock();
    let result = work(&mut delays);
    // A hint, for a thread that takes a group offline: where no delay has a group it leaves the
    // lock to others. What it misses so, the look after 10 ms finds.
    COUNT.store(delays.of_groups, Ordering::Relaxed);
    result
}

/// No delay of the groups at and below `top` that are meant goes on.
pub(crate) fn end(top: &Counter, is_meant: impl Fn(&Counter) -> bool) {
    with(|delays| delays.end(top, is_meant));
}

/// The group has gone offline. The caller may hold its shard's lock.
pub(crate) fn went_offline(group: &Counter) {
    if COUNT.load(Ordering::Relaxed) > 0 {
        end(group, |delayed| ptr::eq(delayed, group));
    }
}

/// The caller counts on a delay that is in the table. The child of a fork has the table, and not
/// the thread.
pub(crate) fn start_after_fork() {
    if STARTED_IN.load(Ordering::Relaxed) != u64::from(std::process::id()) {
        // The child of a fork has the parent's table and none of its threads. A delay there would
        // last for ever.
        with(|delays| delays.all.is_empty() || delays.start());
    }
}

fn run() {
    loop {
        let mut found = DelaysFound::default();
        let next = with(|delays| delays.look(clock::now(), &mut found));
        // Look again at once then, and sleep only after a look that has found nothing to wake.
        // A waker may sleep, and so take the token of a delay that has come meanwhile: what comes
        // next is out of date then.
        let next = if found.ended.is_empty() {
            next
        } else {
            DelaysStep::Look
        };
        found
            .by_credit
            .into_iter()
            .for_each(|group| drain_credit(&group));
        found.ended.wake();
        match next {
            DelaysStep::Look => {}
            DelaysStep::Sleep(time) => park(Some(time)),
            DelaysStep::End => return,
        }
    }
}

/// A delay in the table, or decided. Dropped, nothing of it is left there.
pub(crate) struct Alarm(u64);

impl Alarm {
    /// Have `waker` woken once: then, or as soon as no level above the `group` of a delay is above
    /// its high, or that group is cancelled or goes offline. The caller keeps the group until the
    /// alarm is dropped. `None`: the system has no thread for it.
    #[allow(unsafe_code)]
    pub(crate) fn set(group: Option<&Counter>, until: Instant, waker: &Waker) -> Option<Alarm> {
        let begun = clock::now();
        let look = if group.is_some() {
            until.min(begun + LOOK)
        } else {
            until
        };
        // SAFETY: the caller keeps the group until the alarm is dropped.
        let group = group.map(|group| unsafe { CounterRef::new(group) });
        let delay = Delay {
            group,
            begun,
            until,
            look,
            waker: Foreign::new(waker.clone()),
        };
        with(|delays| delays.insert(delay)).ok().map(Alarm)
    }

    /// From now on `waker` is the one to be woken. False: it is over.
    pub(crate) fn renew(&self, waker: &Waker) -> bool {
        let is_known = |delays: &mut Delays| {
            let delay = delays
                .all
                .get(&self.0)
                .filter(|delay| !is_over(delay.until));
            delay.map(|delay| delay.waker.get().will_wake(waker))
        };
        if let known @ (None | Some(true)) = with(is_known) {
            return known.is_some();
        }
        // The other waker is cloned outside of the lock, and the old one dropped there: both are
        // foreign code. Meanwhile the delay may have ended, so it is looked up again.
        let mut waker = Foreign::new(waker.clone());
        with(|delays| {
            let delay = delays.all.get_mut(&self.0);
            // Mutation: a-delay-wakes-who-polled-first
            delay
                .map(|delay| std::mem::swap(&mut delay.waker, &mut waker))
                .is_some()
        })
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if !model_failed() {
            drop(with(|delays| delays.remove(self.0)));
        }
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "no model asks")]
impl Delays {
    /// As a fork leaves the table of the process.
    pub(crate) fn in_another_process() {
        STARTED_IN.store(0, Ordering::Relaxed);
        let thread = this_thread();
        with(|delays| delays.helper = Helper::idle_in(std::process::id().wrapping_add(1), thread));
    }

    pub(crate) fn has_thread() -> bool {
        with(|delays| {
            delays
                .helper
                .running()
                .is_some_and(|(process, _)| *process == std::process::id())
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::thread::helper::LINGER;
    use crate::{Group, Limits, Runtime};

    const TIME: Duration = Duration::from_secs(2);

    /// A group with a charge far above its high, and a table that no thread looks at, with one
    /// delay of the group in it.
    #[allow(unsafe_code)]
    fn far_above() -> ((Runtime, Group), crate::Charge, Instant, Delays) {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime
            .root()
            .create("q", Limits::new().high(1 << 20))
            .unwrap();
        let held = group.force_charge(8 << 20);
        let begun = Instant::now();
        let mut delays = Delays {
            helper: Helper::idle_in(std::process::id(), this_thread()),
            ..Delays::default()
        };
        let delay = Delay {
            // SAFETY: the caller has the group.
            group: Some(unsafe { CounterRef::new(group.first()) }),
            begun,
            until: begun + TIME,
            look: begun + LOOK,
            waker: Foreign::new(Waker::noop().clone()),
        };
        assert_eq!(delays.insert(delay).ok(), Some(1));
        ((runtime, group), held, begun, delays)
    }

    /// Looks until the table is empty, as the thread does. Returns how many there were, and when it
    /// was.
    fn look_on(delays: &mut Delays, mut now: Instant) -> (usize, Instant) {
        for looks in 1.. {
            let mut found = DelaysFound::default();
            let next = delays.look(now, &mut found);
            if !found.ended.is_empty() {
                return (looks, now);
            }
            let DelaysStep::Sleep(time) = next else {
                panic!("one delay is one look")
            };
            now += time;
        }
        unreachable!("it ends")
    }

    #[test]
    fn few_looks_and_one_end() {
        let (_groups, _held, begun, mut delays) = far_above();
        let (looks, ended) = look_on(&mut delays, begun);
        assert!(looks <= 25, "{looks}");
        assert!(
            ended >= begun + TIME && ended <= begun + TIME + REST,
            "{:?}",
            ended - begun
        );
        assert!(delays.all.is_empty() && delays.looks.is_empty());
    }

    #[test]
    fn below_high_it_ends_with_the_next_look() {
        let (_groups, held, begun, mut delays) = far_above();
        drop(held);
        assert_eq!(look_on(&mut delays, begun), (2, begun + LOOK));
    }

    /// A delay that ends with its group is looked at now, also where the group is above its high as
    /// before.
    #[test]
    fn with_its_group_it_ends_at_once() {
        let ((runtime, group), _held, begun, mut delays) = far_above();
        delays.end(group.first(), |_| false);
        assert_eq!(delays.looks.first(), Some(&(begun + LOOK, 1)));
        delays.end(runtime.root().first(), |delayed| {
            ptr::eq(delayed, group.first())
        });
        let now = Instant::now();
        assert_eq!(look_on(&mut delays, now), (1, now));
        assert!(delays.all.is_empty() && delays.looks.is_empty());
    }

    /// The end of one group looks at its own delays, and not at those of others.
    #[test]
    #[allow(unsafe_code)]
    fn a_group_finds_its_own() {
        let ((runtime, group), _held, begun, mut delays) = far_above();
        let others = ["a", "b", "c"].map(|name| group.create(name, Limits::new()).unwrap());
        for other in &others {
            let delay = Delay {
                // SAFETY: `others` has the group.
                group: Some(unsafe { CounterRef::new(other.first()) }),
                begun,
                until: begun + TIME,
                look: begun + LOOK,
                waker: Foreign::new(Waker::noop().clone()),
            };
            assert!(delays.insert(delay).is_ok());
        }
        let root = runtime.root();
        let found =
            |delays: &Delays| [&root, &group, &others[1]].map(|group| delays.below(group.first()));
        assert_eq!(
            found(&delays),
            [vec![1, 2, 3, 4], vec![1, 2, 3, 4], vec![3]]
        );
        delays.end(group.first(), |of| ptr::eq(of, others[0].first()));
        assert_eq!(
            (1..=4)
                .map(|number| delays.all[&number].until == begun + TIME)
                .collect::<Vec<_>>(),
            [true, false, true, true]
        );
        (1..=4).for_each(|number| drop(delays.remove(number)));
        assert!(delays.below.is_empty() && delays.of_groups == 0);
    }

    /// The child of a fork has the table, and the name of a thread that is not there.
    #[test]
    fn a_thread_of_another_process_is_none() {
        let (_groups, _held, _, mut delays) = far_above();
        let other = std::process::id().wrapping_add(1);
        delays.helper = Helper::idle_in(other, this_thread());
        let delay = delays.remove(1).unwrap();
        assert_eq!(delays.insert(delay).ok(), Some(2));
        let (process, thread) = delays.helper.running().unwrap();
        assert_eq!(
            (*process, thread.name()),
            (std::process::id(), Some("memcg-delays"))
        );
    }

    /// A delay that is taken out is not looked at, and a thread without work ends.
    #[test]
    fn what_is_taken_out_is_gone() {
        let (_groups, _held, begun, mut delays) = far_above();
        assert!(delays.remove(1).is_some() && delays.remove(1).is_none());
        assert!(delays.all.is_empty() && delays.looks.is_empty());
        let mut found = DelaysFound::default();
        assert!(matches!(
            delays.look(begun, &mut found),
            DelaysStep::Sleep(LINGER)
        ));
        assert!(matches!(
            delays.look(begun + LINGER, &mut found),
            DelaysStep::End
        ));
        assert!(delays.helper.running().is_none() && found.ended.is_empty());
    }
}
