//! A tree's memory of a reclaimer: whether it freed anything lately, and its promises.

use std::time::{Duration, Instant};

use crate::sync::clock;
use crate::sync::lock::{Lock, Rank};

/// A reclaimer that freed nothing is believed for so many times as long as the lap took until it
/// said so: no round asks it meanwhile, not even before a refusal. One whose call takes a
/// microsecond is asked again by the next charge. Where it takes long to ask all, as with 10,000
/// of them (all of them take 2 ms), refusals one after the other do not ask all of them each time.
const BELIEVED: u32 = 8;

/// It is believed for no longer, however slow it is: what it said is true for a few milliseconds.
/// As long as 10,000 of them need to be asked twice: with less, the first ones would be asked again
/// while the last ones are.
const BELIEVED_MAX: Duration = Duration::from_millis(4);

/// After that it is asked where nothing else is left. A round asks the others before it for so
/// long, and each time that it frees nothing for twice as long as before.
const LEFT_TO_THE_END_MIN: Duration = Duration::from_millis(1);
const LEFT_TO_THE_END_MAX: Duration = Duration::from_millis(64);

/// Apart from the reclaimer's registration, because promises outlive that.
pub(crate) struct History(Lock<ReclaimerRecord>);

/// How the last calls of a reclaimer have ended, and what it has promised.
#[derive(Default)]
struct ReclaimerRecord {
    /// The round in which it has freed nothing last.
    failed_in: u64,
    said: Option<FreedNothing>,
    /// Times in a row that it has freed nothing.
    times: u32,
    /// The usage of its group when it did, or when it promised.
    held: u64,
    /// Promises that are open, their bytes, and when the first was made.
    promises: u32,
    owed: u64,
    /// All bytes ever promised, but for promises that brought nothing; wraps.
    promised: u64,
    since: Option<Instant>,
}

/// It has freed nothing.
#[derive(Clone, Copy)]
struct FreedNothing {
    believed_until: Instant,
    left_until: Instant,
}

/// The answer that a round can expect of a reclaimer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReclaimerStanding {
    /// Ask.
    Ready,
    /// It has nothing.
    Spared,
    /// It freed nothing lately: the round asks it where nothing else is left.
    Last,
    /// It has promised and has not reported yet.
    Owes,
}

impl History {
    pub(crate) fn new() -> Self {
        History(Lock::new(Rank::Bookkeeping, ReclaimerRecord::default()))
    }

    /// Returns the standing of the reclaimer in a round at that time; its group holds `usage`. One
    /// that owes for longer than `patience` counts as having freed nothing. A round spares none
    /// whose group has grown: there may be something now.
    pub(crate) fn standing(
        &self,
        round: u64,
        now: Instant,
        usage: u64,
        patience: Duration,
    ) -> ReclaimerStanding {
        let remembered = self.0.lock();
        // A round asks each reclaimer once, whatever else it remembers of it: a round that came
        // back to it would never end.
        if remembered.promises == 0 && remembered.failed_in == round {
            return ReclaimerStanding::Spared;
        }
        remembered.standing(now, usage, patience)
    }

    /// Returns its standing before a charge that never blocks has it begin.
    pub(crate) fn standing_before_start(
        &self,
        usage: u64,
        patience: Duration,
    ) -> ReclaimerStanding {
        self.0.lock().standing(clock::now(), usage, patience)
    }

    /// If it freed nothing while its group held `usage`, the rest of the round spares it. Its lap
    /// `took` so long until now.
    pub(crate) fn judge(
        &self,
        fruitful: bool,
        usage: u64,
        round: u64,
        took: Duration,
        now: Instant,
    ) {
        let mut remembered = self.0.lock();
        // A promise is no failure: the reclaimer will give, and a round that has nothing else may
        // wait for it.
        if remembered.note(fruitful, usage, now, took) {
            remembered.failed_in = round;
        }
    }

    /// It promises `bytes`; its group holds `usage`.
    pub(crate) fn promise(&self, bytes: u64, usage: u64) {
        let mut remembered = self.0.lock();
        remembered.held = usage;
        remembered.promises += 1;
        remembered.owed = remembered.owed.saturating_add(bytes);
        remembered.promised = remembered.promised.wrapping_add(bytes);
        remembered.since.get_or_insert_with(clock::now);
    }

    /// The promise of so many bytes is over.
    pub(crate) fn report(&self, bytes: u64, freed: u64) {
        let mut remembered = self.0.lock();
        remembered.promises -= 1;
        if freed == 0 {
            remembered.promised = remembered.promised.wrapping_sub(bytes);
        }
        // Promises are kept apart by their number alone, for a reclaimer may free more than it has
        // promised with one of them, and less with the next.
        if remembered.promises == 0 {
            remembered.owed = 0;
            // Mutation: a-second-promise-is-late-at-once
            remembered.since = None;
        }
        let held = remembered.held;
        // A promise has cost a wait: it is believed for as long as any.
        remembered.note(freed > 0, held, clock::now(), BELIEVED_MAX);
    }

    /// All bytes that it has ever promised, reported or not, but for promises that brought nothing;
    /// wraps.
    pub(crate) fn promised(&self) -> u64 {
        self.0.lock().promised
    }

    pub(crate) fn owed(&self) -> u64 {
        self.0.lock().owed
    }
}

impl ReclaimerRecord {
    fn standing(&self, now: Instant, usage: u64, patience: Duration) -> ReclaimerStanding {
        if self.promises > 0 {
            let is_late = self
                .since
                .is_some_and(|since| now.saturating_duration_since(since) > patience);
            return if is_late {
                ReclaimerStanding::Spared
            } else {
                ReclaimerStanding::Owes
            };
        }
        match self.said {
            // Its usage has grown since: then it may have something by now, whatever it said.
            Some(said) if usage <= self.held && now < said.believed_until => {
                ReclaimerStanding::Spared
            }
            Some(said) if usage <= self.held && now < said.left_until => ReclaimerStanding::Last,
            _ => ReclaimerStanding::Ready,
        }
    }

    /// True: it has freed nothing.
    fn note(&mut self, fruitful: bool, usage: u64, now: Instant, took: Duration) -> bool {
        if fruitful {
            (self.said, self.times) = (None, 0);
        } else if self.promises == 0 {
            // Twice as long after each time that it had nothing. What it takes to ask it does not
            // grow, so after some turns it costs next to nothing, and it is still asked where
            // nobody else has anything.
            let left = LEFT_TO_THE_END_MIN.saturating_mul(1 << self.times.min(16));
            self.times += 1;
            self.held = usage;
            self.said = Some(FreedNothing {
                believed_until: now + took.saturating_mul(BELIEVED).min(BELIEVED_MAX),
                left_until: now + left.min(LEFT_TO_THE_END_MAX),
            });
            return true;
        }
        false
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// What it said is true for a time, by how long it took to say so, whatever the number of
    /// rounds.
    #[test]
    fn what_it_said_is_true_for_a_time() {
        let (history, begun) = (History::new(), Instant::now());
        let standing = |at: Instant| history.standing(99, at, 100, MS);
        assert_eq!(standing(begun), ReclaimerStanding::Ready);
        for (took, believed) in [
            (Duration::from_micros(1), Duration::from_micros(8)),
            (Duration::from_micros(100), Duration::from_micros(800)),
            (MS, 4 * MS),
            (100 * MS, 4 * MS),
        ] {
            let ended = begun + took;
            for round in 1..20 {
                history.judge(false, 100, round, took, ended);
                assert_eq!(standing(ended), ReclaimerStanding::Spared);
                assert_eq!(
                    standing(ended + believed - Duration::from_nanos(1)),
                    ReclaimerStanding::Spared
                );
                assert_ne!(
                    standing(ended + believed),
                    ReclaimerStanding::Spared,
                    "{took:?}"
                );
            }
            let grown = history.standing(99, ended, 101, MS);
            assert_eq!(
                grown,
                ReclaimerStanding::Ready,
                "there may be something now"
            );
            history.judge(true, 100, 20, took, ended);
            assert_eq!(standing(ended), ReclaimerStanding::Ready);
        }
    }

    /// Each time in a row that it frees nothing, others are asked before it for longer, up to a
    /// bound; once in a round.
    #[test]
    fn left_to_the_end_for_longer_each_time() {
        let (history, begun) = (History::new(), Instant::now());
        for (round, left) in [1, 2, 4, 8, 16, 32, 64, 64, 64].into_iter().enumerate() {
            let round = round as u64;
            history.judge(false, 100, round, Duration::ZERO, begun);
            let standing = |round, at| history.standing(round, at, 100, MS);
            assert_eq!(standing(round, begun + 70 * MS), ReclaimerStanding::Spared);
            let end = begun + left * MS;
            assert_eq!(
                standing(99, end - Duration::from_nanos(1)),
                ReclaimerStanding::Last
            );
            assert_eq!(standing(99, end), ReclaimerStanding::Ready, "{left} ms");
        }
    }
}
