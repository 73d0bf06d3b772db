//! A tree's memory of a reclaimer: whether it freed anything lately, and its promises.

use std::time::{Duration, Instant};

use crate::sync::lock::{Lock, Rank};

/// The most rounds that spare a reclaimer which freed nothing: 1, 3, 7 … 63.
const SPARED_MAX: u32 = 63;

/// One in so many rounds asks even a reclaimer that never frees anything, where nothing else is
/// left: once six fruitless calls in a row have earned it the longest pause.
const LAST_EVERY: u32 = 8;

/// Apart from the reclaimer's registration, because promises outlive that.
pub(crate) struct History(Lock<Remembered>);

#[derive(Default)]
struct Remembered {
    /// The round that looked at it last, whether that round spares it, and whether it has freed
    /// nothing in it.
    round: u64,
    spared: bool,
    failed: bool,
    /// The rounds that still spare it, the rounds that the last fruitless call earned it, and the
    /// usage of its group then.
    to_spare: u32,
    last_spared: u32,
    held: u64,
    /// Promises that are open, their bytes, and when the first was made.
    promises: u32,
    owed: u64,
    /// All bytes ever promised; wraps.
    promised: u64,
    since: Option<Instant>,
}

/// The answer that a round can expect of a reclaimer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Ask.
    Ready,
    /// It freed nothing lately. `unless_last`: the round asks it where nothing else is left.
    Spared { unless_last: bool },
    /// It has promised and has not reported yet.
    Owes,
}

impl History {
    pub(crate) fn new() -> Self {
        History(Lock::new(Rank::Bookkeeping, Remembered::default()))
    }

    /// Returns the standing of the reclaimer in a round; its group holds `usage`. One that owes for
    /// longer than `patience` counts as having freed nothing. A round spares none whose group has
    /// grown: there may be something now.
    pub(crate) fn standing(&self, round: u64, usage: u64, patience: Duration) -> Standing {
        let mut remembered = self.0.lock();
        if remembered.promises > 0 {
            let late = remembered
                .since
                .is_some_and(|since| since.elapsed() > patience);
            return if late {
                Standing::Spared { unless_last: false }
            } else {
                Standing::Owes
            };
        }
        if remembered.round != round {
            remembered.round = round;
            remembered.failed = false;
            remembered.spared = remembered.to_spare > 0 && usage <= remembered.held;
            remembered.to_spare = remembered.to_spare.saturating_sub(1);
        }
        if remembered.spared {
            // One that never frees anything is asked once in a while, where nothing else is left.
            let gone_by = SPARED_MAX - remembered.to_spare.min(SPARED_MAX);
            let once_in_a_while =
                remembered.last_spared < SPARED_MAX || gone_by.is_multiple_of(LAST_EVERY);
            Standing::Spared {
                unless_last: !remembered.failed && once_in_a_while,
            }
        } else {
            Standing::Ready
        }
    }

    /// Returns its standing before a charge that never blocks has it begin: as in
    /// [`standing`](Self::standing), and no round counts.
    pub(crate) fn standing_before_start(&self, usage: u64, patience: Duration) -> Standing {
        let remembered = self.0.lock();
        let late = remembered
            .since
            .is_some_and(|since| since.elapsed() > patience);
        match remembered.promises {
            0 if remembered.to_spare == 0 || usage > remembered.held => Standing::Ready,
            1.. if !late => Standing::Owes,
            _ => Standing::Spared { unless_last: false },
        }
    }

    /// If it freed nothing while its group held `usage`, the rest of the round and the next ones
    /// spare it.
    pub(crate) fn judge(&self, fruitful: bool, usage: u64) {
        let mut remembered = self.0.lock();
        if fruitful {
            remembered.last_spared = 0;
            remembered.to_spare = 0;
            remembered.spared = false;
        } else if remembered.promises == 0 {
            let spare = (2 * remembered.last_spared + 1).min(SPARED_MAX);
            remembered.last_spared = spare;
            remembered.to_spare = spare;
            remembered.held = usage;
            remembered.spared = true;
            remembered.failed = true;
        }
    }

    /// It promises `bytes`; its group holds `usage`.
    pub(crate) fn promise(&self, bytes: u64, usage: u64) {
        let mut remembered = self.0.lock();
        remembered.held = usage;
        remembered.promises += 1;
        remembered.owed = remembered.owed.saturating_add(bytes);
        remembered.promised = remembered.promised.wrapping_add(bytes);
        remembered.since.get_or_insert_with(Instant::now);
    }

    pub(crate) fn report(&self, freed: u64) {
        let mut remembered = self.0.lock();
        remembered.promises -= 1;
        if remembered.promises == 0 {
            remembered.owed = 0;
            remembered.since = None;
        }
        let held = remembered.held;
        drop(remembered);
        self.judge(freed > 0, held);
    }

    /// All bytes that it has ever promised, reported or not; wraps.
    pub(crate) fn promised(&self) -> u64 {
        self.0.lock().promised
    }

    pub(crate) fn owed(&self) -> u64 {
        self.0.lock().owed
    }
}
