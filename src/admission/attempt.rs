//! A charge that did not fit and is tried again: what each step needs of it, and what a step returns.

use std::time::{Duration, Instant};

use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::error::USAGE_MAX;
use crate::hierarchy::events;
use crate::pressure::stalls::Stall;
use crate::pressure::victims::Excluded;
use crate::state::events::Event;
use crate::thread::context;

pub(crate) trait Attempt<'a> {
    fn group(&self) -> &'a Counter;

    fn bytes(&self) -> u64;

    /// Bytes that come on top of usage.
    fn adds(&self) -> u64 {
        self.bytes()
    }

    /// Charges, if there is room.
    fn charge(&self) -> Progress<'a>;

    /// Waits while there is `more` to come until the charge fits at `level`, or until `until`. `None`: it does not fit,
    /// and may keep a place in line.
    fn wait(&self, level: &'a Counter, until: Instant, more: &dyn Fn() -> bool) -> Option<ChargeResult<'a>>;

    /// Gives the place in line up. What was decided in time holds.
    fn leave(&self) -> Option<ChargeResult<'a>> {
        None
    }

    /// End of the charge, if it was decided in line.
    fn ended(&self) -> Option<ChargeResult<'a>> {
        None
    }

    /// The charge has a place in line: no thread makes it any other way.
    fn is_in_line(&self) -> bool {
        false
    }

    /// True if the thread may wait for others: for victims, promises, and rounds of reclaim on other threads.
    fn may_block(&self) -> bool {
        true
    }

    /// True if the attempt may cancel groups, and there is time for that.
    fn may_cancel(&self) -> bool {
        true
    }

    /// When the caller's time is over, for reclaim and for all that the attempt waits for.
    fn end(&self) -> Option<Instant> {
        None
    }
}

/// The bytes that a delay above a high is for: those that the charge took up the tree.
pub(crate) type ChargeResult<'a> = Result<u64, ChargeFailure<'a>>;

pub(crate) enum ChargeFailure<'a> {
    Refused {
        refusal: LevelRefusal<'a>,
        /// [`Event::Oom`] has been counted for it.
        counted: bool,
        /// Source that is about to give memory back there, where the attempt does not wait for it.
        pending: Option<Pending>,
    },
    /// The charge waited in line for the whole time, and did not fit.
    TimedOut {
        /// The refusal at the end of that time.
        refusal: LevelRefusal<'a>,
        counted: bool,
        waited: Duration,
    },
    /// All that the level uses is held by tasks that wait in its line, and this is the youngest wait.
    Deadlock { refusal: LevelRefusal<'a>, counted: bool },
    /// The group went offline meanwhile, perhaps by a reclaimer.
    Offline,
    /// The group was chosen to give its memory back.
    Cancelled,
}

/// Source that is about to give memory back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pending {
    /// A victim, or a reclaimer that has promised: a charge in line gets it.
    Promised,
    /// A round of reclaim on another thread, which may come to nothing.
    Round,
    /// Credit, reclaimers or a victim, which this attempt has not asked.
    Unasked,
}

/// State of an attempt after a step.
pub(crate) enum Progress<'a> {
    Ended(ChargeResult<'a>),
    /// This is the refusal to go on with.
    Refused(LevelRefusal<'a>),
}

impl<'a> From<Result<u64, LevelRefusal<'a>>> for Progress<'a> {
    fn from(charged: Result<u64, LevelRefusal<'a>>) -> Self {
        match charged {
            Ok(walked) => Progress::Ended(Ok(walked)),
            Err(refusal) => Progress::Refused(refusal),
        }
    }
}

/// Efforts made for one charge.
#[derive(Default)]
pub(crate) struct Efforts {
    /// [`Event::Oom`] has been counted.
    pub(super) counted: bool,
    /// See [`ChargeFailure::Refused`].
    pub(super) pending: Option<Pending>,
    pub(super) excluded: Excluded,
    /// Bytes that reclaim may still give where it has ended: promised ones. It may be any number where time or rounds
    /// ended it.
    pub(super) may_come: u64,
    /// From the first round of reclaim on, or from the first victim on.
    stall: Option<Stall>,
}

impl Efforts {
    /// From now on the charger stands still for memory of `level`, until the attempt is over: since an instant that this
    /// thread has read just before, if it has. The attempt keeps the group.
    pub(super) fn stand_still(&mut self, group: &Counter, level: &Counter, since: Option<Instant>) {
        match &mut self.stall {
            Some(stall) => stall.moves_to(level),
            None => self.stall = Stall::begin(group, level, since.unwrap_or_else(Instant::now)),
        }
    }
}

impl<'a> ChargeFailure<'a> {
    /// A first refusal: nothing has been done about it yet.
    pub(super) fn refused(refusal: LevelRefusal<'a>) -> ChargeFailure<'a> {
        ChargeFailure::Refused { refusal, counted: false, pending: None }
    }

    /// The charge is given up: a refusal is counted.
    #[cold]
    pub(super) fn count(self) -> ChargeFailure<'a> {
        if let ChargeFailure::Refused { refusal, counted, .. }
        | ChargeFailure::TimedOut { refusal, counted, .. }
        | ChargeFailure::Deadlock { refusal, counted } = &self
        {
            refusal.level.count_refusal();
            match &self {
                ChargeFailure::TimedOut { .. } => events::count(refusal.level, Event::TimedOut),
                ChargeFailure::Deadlock { .. } => events::count(refusal.level, Event::Deadlock),
                _ => {}
            }
            // Inside reclaim no reclaimer was asked, so the refusal says nothing about what other groups hold.
            if !counted && !context::in_reclaim() {
                events::count(refusal.level, Event::Oom);
            }
        }
        self
    }
}

/// True if the charge could ever fit, at the level that refused and further up: else no reclaim makes room for it.
pub(super) fn fits_ever(bytes: u64, refusal: &LevelRefusal<'_>) -> bool {
    bytes <= refusal.max.min(USAGE_MAX) && refusal.level.path_to_root().all(|level| bytes <= level.admits())
}
