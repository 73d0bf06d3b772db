//! A charge that did not fit and is tried again: what each step needs of it, and what a step
//! returns.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::error::USAGE_MAX;
use crate::hierarchy::events;
use crate::pressure::line::Ticket;
use crate::pressure::stalls::Stall;
use crate::pressure::victims::ExcludedVictims;
use crate::state::events::Event;
use crate::state::waiting::Decision;
use crate::sync::clock;
use crate::sync::is_over;
use crate::thread::context;

/// Parameters of one attempt to charge, and its place in line. On their own they are an attempt to
/// charge plain bytes to a group; a checkpoint and a transfer put something of their own beside
/// them (see [`Attempt`]).
pub(crate) struct AttemptTerms<'a> {
    pub(super) group: &'a Counter,
    pub(super) bytes: u64,
    /// Bytes that come on top of usage: those that a victim has to give beyond what is above max.
    /// None where the bytes are charged already, as at a checkpoint.
    pub(super) adds: u64,
    /// True if the thread may wait for others: for victims, promises, and rounds of reclaim on
    /// other threads.
    pub(super) may_block: bool,
    /// True if the attempt may cancel groups, as long as there is time for that.
    pub(super) cancels: bool,
    /// When the caller's time is over, for reclaim and for all that the attempt waits for.
    pub(super) end: Option<Instant>,
    /// After reclaim and victims it waits for room in line, so it keeps a place that it has taken
    /// while it waited for a victim.
    pub(super) stays_in_line: bool,
    /// Its place in line, once it has one.
    pub(super) line: RefCell<Option<Ticket>>,
}

impl<'a> AttemptTerms<'a> {
    /// An attempt to charge `bytes` that may cancel groups and has no end.
    pub(super) fn new(group: &'a Counter, bytes: u64, may_block: bool) -> Self {
        let end = None;
        let line = RefCell::new(None);
        AttemptTerms {
            group,
            bytes,
            adds: bytes,
            may_block,
            cancels: true,
            end,
            stays_in_line: false,
            line,
        }
    }

    pub(super) fn may_cancel(&self) -> bool {
        self.cancels && !self.end.is_some_and(is_over)
    }

    /// Gives up the place in line, unless the attempt is to wait there. Another thread may have
    /// decided the charge just before: then that holds, and is returned.
    pub(super) fn leave(&self) -> Option<ChargeResult<'a>> {
        let ticket = if self.stays_in_line {
            None
        } else {
            self.line.take()
        };
        ticket?
            .leave()
            .map(|decision| decided(self.group, decision, self.bytes, true))
    }

    /// The end of the charge, if another thread has decided it in line.
    pub(super) fn ended(&self) -> Option<ChargeResult<'a>> {
        let mut line = self.line.borrow_mut();
        let decision = line.as_mut()?.poll(Waker::noop()).ok()?;
        *line = None;
        Some(decided(self.group, decision, self.bytes, true))
    }

    /// The charge has a place in line. From then on only whoever serves the line makes it: an
    /// attempt that charged by itself, too, would charge twice.
    pub(super) fn is_in_line(&self) -> bool {
        self.line.borrow().is_some()
    }
}

/// What is tried again after each step that may have made room. There are three: plain bytes
/// ([`AttemptTerms`]), a checkpoint, which fits once nothing is above max, and a transfer, which
/// charges some of the levels.
pub(crate) trait Attempt<'a> {
    fn terms(&self) -> &AttemptTerms<'a>;

    /// Charges, if there is room.
    fn charge(&self) -> Progress<'a>;

    /// Waits while there is `more` to come until the charge fits at `level`, or until `until`.
    /// `None`: it does not fit, and may keep a place in line.
    fn wait(
        &self,
        level: &'a Counter,
        until: Instant,
        more: &dyn Fn() -> bool,
    ) -> Option<ChargeResult<'a>>;
}

/// The bytes that a delay above a high is for: those that the charge took up the tree.
pub(crate) type ChargeResult<'a> = Result<u64, ChargeFailure<'a>>;

pub(crate) enum ChargeFailure<'a> {
    Refused {
        refusal: LevelRefusal<'a>,
        /// [`Event::Oom`] has been counted for it.
        counted: bool,
        kind: RefusalKind,
    },
    /// The group went offline meanwhile, perhaps by a reclaimer.
    Offline,
    /// The group was chosen as a victim: it is to give its memory back, and gets none.
    Cancelled,
}

pub(crate) enum RefusalKind {
    /// It does not fit. Where something is about to give memory back and the attempt does not wait
    /// for it, that is said, too: the caller may try again soon.
    Full(Option<PendingMemory>),
    /// The charge waited in line for this whole time. The refusal is that at its end.
    TimedOut(Duration),
}

/// From where memory is about to come back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PendingMemory {
    /// Memory of a victim, or of a reclaimer that has promised: a charge in line gets it. Or
    /// credit, a reclaimer or a victim that the attempt has not asked.
    Memory,
    /// A round of reclaim on another thread, which may come to nothing.
    Round,
}

/// State of an attempt after a step: it has ended, or this is the refusal to go on with.
pub(crate) type Progress<'a> = ControlFlow<ChargeResult<'a>, LevelRefusal<'a>>;

/// What has been done for one charge so far, over all of its rounds and levels.
#[derive(Default)]
pub(crate) struct EffortsSoFar {
    /// [`Event::Oom`] has been counted: a charge counts one, however many levels refuse it in turn.
    pub(super) counted: bool,
    /// See [`RefusalKind::Full`].
    pub(super) pending: Option<PendingMemory>,
    /// Groups that are no candidates for this charge any more.
    pub(super) excluded: ExcludedVictims,
    /// Bytes that reclaim has promised and may still give after it has ended. Nobody knows the
    /// number where time or rounds ended it: then it is the largest, and no group is cancelled for
    /// bytes that may be on their way.
    pub(super) may_come: u64,
    /// The charge stands still from its first round of reclaim on, or from its first victim on.
    stall: Option<Stall>,
}

impl EffortsSoFar {
    /// From now on the charger stands still for memory of `level`, until the attempt is over: since
    /// an instant that this thread has read just before, if it has. The attempt keeps the group.
    pub(super) fn stand_still(&mut self, group: &Counter, level: &Counter, since: Option<Instant>) {
        match &mut self.stall {
            Some(stall) => stall.moves_to(level),
            None => self.stall = Stall::begin(group, level, since.unwrap_or_else(clock::now)),
        }
    }
}

impl<'a> ChargeFailure<'a> {
    /// A refusal about which nothing has been done yet.
    pub(super) fn refused(refusal: LevelRefusal<'a>) -> ChargeFailure<'a> {
        ChargeFailure::Refused {
            refusal,
            counted: false,
            kind: RefusalKind::Full(None),
        }
    }

    /// Counts the refusal of a charge that is given up. Steps in between count nothing, so a charge
    /// that succeeds in the end is no refusal.
    #[cold]
    pub(super) fn count(self) -> ChargeFailure<'a> {
        if let ChargeFailure::Refused {
            refusal,
            counted,
            kind,
        } = &self
        {
            refusal.level.count_refusal();
            match kind {
                RefusalKind::Full(_) => {}
                RefusalKind::TimedOut(_) => events::count(refusal.level, Event::TimedOut),
            }
            // Inside reclaim no reclaimer was asked, so the refusal says nothing about what other
            // groups hold.
            if !counted && !context::in_reclaim() {
                events::count(refusal.level, Event::Oom);
            }
        }
        self
    }
}

/// The decision that was made in line, as the result of an attempt for `bytes`. `counted`: the
/// failure is counted already.
pub(super) fn decided(
    group: &Counter,
    decision: Decision,
    bytes: u64,
    counted: bool,
) -> ChargeResult<'_> {
    let (level, max) = match decision {
        Decision::Granted => return Ok(bytes),
        Decision::Full(level, max) => (level, max),
        Decision::Offline => return Err(ChargeFailure::Offline),
        Decision::Cancelled => return Err(ChargeFailure::Cancelled),
    };
    Err(ChargeFailure::Refused {
        // It names the max that was too small, which another thread may have raised since.
        refusal: LevelRefusal {
            max,
            ..group.level(&level).refusal_now()
        },
        counted,
        kind: RefusalKind::Full(None),
    })
}

/// True if the charge fits below each max of its path as they are now: else no reclaim makes room
/// for it.
pub(super) fn fits_ever(group: &Counter, bytes: u64) -> bool {
    let fits = |level: &Counter| bytes <= level.admits().min(USAGE_MAX);
    group.path_to_root().all(fits)
}
