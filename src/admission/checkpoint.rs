//! A checkpoint that does not find the tree's word at zero: is the group cancelled, is a level
//! above it over its max or its high?
//!
//! A level above max is treated as one that has refused a charge: credit is drained, reclaimers are
//! asked, victims are chosen. What is above max after that is the refusal of the checkpoint.

use std::ptr;
use std::time::Instant;

use crate::admission::attempt::{Attempt, AttemptTerms, ChargeFailure, ChargeResult, Progress};
use crate::admission::plain::WaitFor;
use crate::admission::steps::reclaim_and_retry;
use crate::counter::exceeded_mark::is_above_max;
use crate::counter::object::Counter;
use crate::pressure::high::{BATCH, levels_that_delay};
use crate::pressure::victims;
use crate::sync::{is_over, pause};
use crate::thread::slow_path;

/// Looks at the group and all levels above. Foreign code runs on this thread, which holds no lock
/// of this crate. The caller delays the task as after a charge of so many bytes.
#[cold]
pub(crate) fn check(group: &Counter, wait_for: WaitFor) -> Result<u64, ChargeFailure<'_>> {
    // Code that runs inside a slow path is an allocator: it is told nothing.
    if slow_path::is_running() || group.state().is_offline() {
        return Ok(0);
    }
    if victims::is_cancelled(group) {
        return Err(ChargeFailure::Cancelled);
    }
    for level in group.path_to_root() {
        // The bytes above max are charged already, so nothing is added. One byte stands for the
        // next charge: reclaim makes room for that, and not for usage that is right at the max.
        let terms = AttemptTerms {
            adds: 0,
            ..AttemptTerms::new(group, 1, wait_for != WaitFor::Nothing)
        };
        let excess = ExcessAttempt { terms, level };
        let Progress::Continue(refusal) = excess.charge() else {
            continue;
        };
        match reclaim_and_retry(&excess, refusal) {
            // The group went offline meanwhile: the next checkpoint asks for the group above.
            Ok(_) | Err(ChargeFailure::Offline) => {}
            Err(failure) => return Err(failure.count()),
        }
    }
    let is_delayed = levels_that_delay(group).next().is_some();
    // A checkpoint is delayed as a charge of one batch of the kernel's.
    Ok(if is_delayed { BATCH } else { 0 })
}

/// True if a checkpoint of the group has anything to find: the tree's word says only that something
/// is marked somewhere in the tree. It calls no foreign code and takes no lock.
pub(crate) fn concerns(group: &Counter) -> bool {
    group.tree().alerts.any_victim()
        || group.path_to_root().any(|level| is_above_max(level))
        || levels_that_delay(group).next().is_some()
}

/// Bytes of a level above its max, as an attempt to charge that fits once nothing is above.
struct ExcessAttempt<'a> {
    terms: AttemptTerms<'a>,
    level: &'a Counter,
}

impl<'a> Attempt<'a> for ExcessAttempt<'a> {
    fn terms(&self) -> &AttemptTerms<'a> {
        &self.terms
    }

    fn charge(&self) -> Progress<'a> {
        // Credit is counted in usage and may be all that is above max. It is no reason to refuse.
        if is_above_max(self.level) && self.level.may_have_credit_below() {
            self.level.tree().close_below(self.level);
        }
        if is_above_max(self.level) {
            Progress::Continue(self.level.refusal_now())
        } else {
            Progress::Break(Ok(0))
        }
    }

    fn wait(
        &self,
        level: &'a Counter,
        until: Instant,
        more: &dyn Fn() -> bool,
    ) -> Option<ChargeResult<'a>> {
        debug_assert!(ptr::eq(level, self.level));
        while is_above_max(level) {
            if self.terms.group.state().is_offline() {
                return Some(Err(ChargeFailure::Offline));
            }
            if victims::is_cancelled(self.terms.group) {
                return Some(Err(ChargeFailure::Cancelled));
            }
            if is_over(until) || !more() {
                return None;
            }
            pause();
        }
        Some(Ok(0))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::thread;

    use crate::counter::watch::EXCEEDED;
    use crate::sync::many;
    use crate::{Bytes, Charge, Group, Limit, Limits, OomPolicy, Runtime};

    /// Numbers that look random, the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) % most
        }
    }

    fn is_alert(group: &Group) -> bool {
        group.first().tree().alerts.any()
    }

    fn marked(groups: &[Group]) -> u64 {
        let is_marked = |group: &&Group| group.first().limits.watched.is_for(EXCEEDED);
        groups.iter().filter(is_marked).count() as u64
    }

    /// Threads force, uncharge, and move limits: the word counts the marks, and each group above a
    /// limit has one.
    #[test]
    fn the_word_counts_the_marks() {
        let runtime = Runtime::builder()
            .delay_max(std::time::Duration::ZERO)
            .build()
            .unwrap();
        let mut groups = vec![runtime.root()];
        for number in 0..6 {
            let parent = groups[number / 2].clone();
            groups.push(
                parent
                    .create(number as u64, Limits::new().max(1 << 12))
                    .unwrap(),
            );
        }
        let work = |seed: u64| {
            let mut numbers = Numbers(seed);
            let mut held: Vec<Charge> = Vec::new();
            for _ in 0..many(4_000) {
                let group = &groups[numbers.below(groups.len() as u64) as usize];
                match numbers.below(8) {
                    0..3 => held.push(group.force_charge(Bytes(numbers.below(1 << 12)))),
                    3..6 if !held.is_empty() => {
                        drop(held.swap_remove(numbers.below(held.len() as u64) as usize))
                    }
                    6 => _ = group.set_max(Limit::Bytes(numbers.below(1 << 15))).unwrap(),
                    7 => {
                        _ = group
                            .set_limits(Limits::new().high(Limit::Bytes(numbers.below(1 << 15))))
                            .unwrap()
                    }
                    _ => {}
                }
            }
            held
        };
        let held: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = (1..=3)
                .map(|seed| scope.spawn(move || work(seed)))
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect()
        });
        let is_above = |group: &&Group| group.usage() > group.max().min(group.inspect().high());
        let above = groups.iter().filter(is_above).count() as u64;
        let counted = groups[0].first().tree().alerts.exceeded();
        assert_eq!(counted, marked(&groups));
        assert!(
            counted >= above && above > 0,
            "{counted} marked, {above} above"
        );
        drop(held);
        runtime.root().memory().drain();
        assert!(!is_alert(&groups[0]), "{} marked", marked(&groups));
    }

    /// A victim is counted as long as it is waited for, and forgotten by the next checkpoint that
    /// finds the count.
    #[test]
    fn the_word_forgets_victims() {
        let runtime = Runtime::builder().max(Limit::Bytes(100)).build().unwrap();
        let root = runtime.root();
        root.set_oom_policy(OomPolicy::Choose);
        let [hog, other] = ["hog", "other"].map(|name| root.create(name, Limits::new()).unwrap());
        let _hook = hog.on_cancel(|_| {});
        let held = hog.force_charge(Bytes(200));
        assert!(hog.run(Group::checkpoint).is_err() && is_alert(&root));
        drop(held);
        assert!(is_alert(&root), "no checkpoint has asked since");
        assert!(other.run(Group::checkpoint).is_ok() && !is_alert(&root));
    }
}
