//! Charges that wait for room: for a counter the first of its line, for a tree all lines.

use std::collections::BTreeSet;
use std::task::Waker;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::counter::by_number::{ByNumber, take_out};
use crate::counter::handle::WeakCounter;
use crate::counter::object::{Counter, CounterRef};
use crate::sync::clock;
use crate::sync::{AtomicU64, Ordering};
use crate::thread::foreign::Foreign;

/// Places behind the first in which a waiter may barge.
pub(crate) const WINDOW: usize = 64;

/// The place of a charge among all that wait in a tree, in whatever line: the most important first,
/// of these the oldest. The low bits are its ticket. A charge of the highest importance, and one
/// that has let enough others go before, has no other bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlaceInLine(u64);

impl PlaceInLine {
    /// No charge waits.
    pub(crate) const NONE: PlaceInLine = PlaceInLine(0);
    const TICKET_BITS: u32 = 56;

    pub(crate) fn new(importance: u8, ticket: u64) -> PlaceInLine {
        PlaceInLine(u64::from(u8::MAX - importance) << PlaceInLine::TICKET_BITS | ticket)
    }

    /// As the word of a thread that charges for it.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn ticket(self) -> u64 {
        self.0 & ((1 << PlaceInLine::TICKET_BITS) - 1)
    }

    /// Before all charges that have come later.
    pub(crate) fn by_age(self) -> PlaceInLine {
        PlaceInLine(self.ticket())
    }

    /// The first place of those behind that are less important. `None`: this one has no importance.
    pub(crate) fn next_importance(self) -> Option<PlaceInLine> {
        let rank = self.0 >> PlaceInLine::TICKET_BITS;
        (rank < u64::from(u8::MAX)).then(|| PlaceInLine((rank + 1) << PlaceInLine::TICKET_BITS))
    }

    /// The charge goes before one that came earlier and is less important.
    pub(crate) fn passes(self, other: PlaceInLine) -> bool {
        self < other && self.ticket() > other.ticket()
    }
}

/// The part of its line that a level shows to walks that take no lock. Relaxed, all of it: nothing
/// but the sum depends on it.
#[derive(Default)]
pub(crate) struct FirstInLine {
    place: AtomicU64,
    bytes: AtomicU64,
    budget: AtomicU64,
    /// Number of waiters in the line.
    length: AtomicU64,
}

impl FirstInLine {
    /// Nothing resets it: the last waiter that leaves the line shows that it is empty.
    pub(crate) fn is_clean(&self) -> bool {
        self.place() == PlaceInLine::NONE && self.bytes() == 0
    }

    pub(crate) fn place(&self) -> PlaceInLine {
        PlaceInLine(self.place.load(Ordering::Relaxed))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The bytes that other charges may take before the first in line has its own.
    pub(crate) fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// True if the waiter is the only one in the line.
    pub(crate) fn is_alone(&self, ticket: u64) -> bool {
        self.place().ticket() == ticket && self.length.load(Ordering::Relaxed) == 1
    }

    pub(crate) fn show_length(&self, length: usize) {
        self.length.store(length as u64, Ordering::Relaxed);
    }

    /// Shows another number of bytes of the first waiter: other charges may take no more than that
    /// before it.
    pub(crate) fn show_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.change_budget(|left| Some(left.min(bytes)));
    }

    /// The first waiter goes by age from here on.
    pub(crate) fn show_place(&self, place: PlaceInLine) {
        self.place.store(place.0, Ordering::Relaxed);
    }

    /// False where `change` returns `None`.
    pub(crate) fn change_budget(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        self.budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
            .is_ok()
    }

    /// Another waiter is first. Returns what was left of the budget.
    pub(crate) fn show(&self, place: PlaceInLine, bytes: u64, budget: u64) -> u64 {
        self.place.store(place.0, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        // One step: what barges meanwhile takes from the one budget or the other.
        // Mutation: a-budget-changes-in-two-steps
        self.budget.swap(budget, Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) tickets: u64,
    pub(crate) waiters: ByNumber<Waiter>,
    /// By the key of the level.
    pub(crate) lines: ByNumber<Line>,
    /// Charges that each group waits with, by its key.
    pub(crate) groups: ByNumber<usize>,
    /// The charges that wait below each level, in whatever line: the key of the level, what
    /// [may be asked for](Waiter::may_ask_for), and the ticket.
    pub(crate) below: BTreeSet<(u64, u64, u64)>,
    pub(crate) falls: FallenMaxes,
}

/// A max that moves by itself has stood for so long before it ends the waits that it can never
/// serve: it may rise again by then.
const STANDS: Duration = Duration::from_secs(1);

/// A level whose max has fallen by itself.
struct FallenMax {
    level: WeakCounter,
    /// When it fell within [`STANDS`], and the max that it had before.
    from: SmallVec<[(Instant, u64); 4]>,
}

/// Maxes that have fallen by themselves within [`STANDS`], by the key of the level.
#[derive(Default)]
pub(crate) struct FallenMaxes(ByNumber<FallenMax>);

impl FallenMaxes {
    /// Before the max falls.
    pub(crate) fn note(&mut self, level: &Counter) {
        let of = WeakCounter::new(level);
        let new = || FallenMax {
            level: of,
            from: SmallVec::new(),
        };
        let known = self.0.entry(level.key()).or_insert_with(new);
        // The key may be that of a group that has gone.
        if known.level != of {
            *known = new();
        }
        known.from.push((clock::now(), level.admits()));
    }

    /// The program sets the max, which counts as it is.
    pub(crate) fn forget(&mut self, level: &Counter) {
        take_out(&mut self.0, level.key());
    }

    /// The most bytes for which a charge may wait at the level: its max, or the largest that it had
    /// within [`STANDS`].
    pub(crate) fn lasting(&self, level: &Counter) -> u64 {
        let now = clock::now();
        let known = self.0.get(&level.key());
        let known = known.filter(|fall| fall.level == WeakCounter::new(level));
        known
            .into_iter()
            .flat_map(|fall| &fall.from)
            .filter(|(at, _)| now.saturating_duration_since(*at) < STANDS)
            .map(|&(_, max)| max)
            .fold(level.admits(), u64::max)
    }

    pub(crate) fn levels(&self) -> Vec<WeakCounter> {
        self.0.values().map(|fall| fall.level).collect()
    }

    /// Forgets what is older. Returns the levels where something was.
    pub(crate) fn expire(&mut self) -> Vec<WeakCounter> {
        let now = clock::now();
        let mut stood = Vec::new();
        self.0.retain(|_, fall| {
            let before = fall.from.len();
            fall.from
                .retain(|(at, _)| now.saturating_duration_since(*at) < STANDS);
            if fall.from.len() < before {
                stood.push(fall.level);
            }
            !fall.from.is_empty()
        });
        stood
    }
}

#[derive(Default)]
pub(crate) struct Line {
    pub(crate) places: BTreeSet<PlaceInLine>,
    /// The waiter whose bytes and barging budget the level shows.
    pub(crate) first: PlaceInLine,
    /// The barging budget of that waiter as the level showed it, less what has been counted of it.
    pub(crate) shown: u64,
}

impl Line {
    /// The charge that has waited longest, where one at `place` goes before it for its importance
    /// alone. It is the first one of some importance.
    pub(crate) fn passed_by(&self, place: PlaceInLine) -> Option<PlaceInLine> {
        // Mostly all are of one importance, which the last place shows.
        if *self.places.last()? < place.next_importance()? {
            return None;
        }
        let mut oldest = *self.places.first()?;
        let mut at = oldest;
        while let Some(behind) = at
            .next_importance()
            .and_then(|from| self.places.range(from..).next())
        {
            at = *behind;
            if at.ticket() < oldest.ticket() {
                oldest = at;
            }
        }
        place.passes(oldest).then_some(oldest)
    }
}

pub(crate) struct Waiter {
    pub(crate) group: CounterRef,
    pub(crate) bytes: u64,
    /// The level in whose line it is; its group keeps it.
    pub(crate) level: CounterRef,
    pub(crate) holder: PlaceHolder,
    /// The bytes that may yet barge past it, as long as it is not first: one budget for the whole
    /// wait.
    pub(crate) budget: u64,
    pub(crate) place: PlaceInLine,
    /// The bytes that more important charges which come later may yet take before it, where it is
    /// the oldest in line.
    pub(crate) patience: u64,
    /// The decision. Then it is in no line.
    pub(crate) decided: Option<Decision>,
    pub(crate) waker: Option<Foreign<Waker>>,
}

/// Whose place in line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceHolder {
    Charge,
    /// A queue of charges, whose first one the place is for. Those behind it may ask for more: so
    /// the place is woken whenever a max on its path has fallen, and the queue looks which of them
    /// can never be served.
    Queue,
}

impl Waiter {
    /// The bytes by which it is found among those that a max can never serve. A queue is always
    /// found, since only it knows what those behind its first one ask for.
    pub(crate) fn may_ask_for(&self) -> u64 {
        match self.holder {
            PlaceHolder::Charge => self.bytes,
            PlaceHolder::Queue => u64::MAX,
        }
    }
}

/// The end of a wait.
#[derive(Clone, Copy)]
pub(crate) enum Decision {
    /// The bytes are charged. A delay above a high is the waiter's.
    Granted,
    /// They can never fit below this level, which had that max.
    Full(CounterRef, u64),
    /// The group went offline.
    Offline,
    /// The group was chosen to give its memory back.
    Cancelled,
}
