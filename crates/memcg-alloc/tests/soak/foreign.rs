//! Foreign code: reclaimers, hooks, listeners and orders of choice that do their work, sleep, lie
//! or panic.

use std::panic::panic_any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use std::time::Duration;

use memcg::{
    CancelInfo, Event, EventInfo, Group, Reclaim, ReclaimCause, ReclaimContext, ReclaimPriority,
    ReclaimPromise,
};
use memcg::{OomCandidate, OomOrder};
use memcg::{OomPolicy, Registration};

use crate::known_group::KnownGroup;
use crate::lock;
use crate::tally::{Tally, What};

/// The payload of a panic that the crate has to contain.
pub(crate) struct Contained;

/// Lists that foreign code adds to do not grow: the list would belong to the group that is current
/// there.
const LIST_MAX: usize = 256;

/// Shared by all foreign code of a tree.
pub(crate) struct Shared {
    /// Foreign code frees under this gate. While the tree rests it is closed.
    pub(crate) gate: RwLock<()>,
    /// Promises that are due.
    pub(crate) due: Mutex<Vec<(ReclaimPromise, Arc<KnownGroup>)>>,
    /// Groups whose hook was called.
    pub(crate) stopped: Mutex<Vec<Arc<KnownGroup>>>,
    pub(crate) tally: Tally,
    /// Panics that [`Event::Panic`] has to count.
    panics: AtomicU64,
    /// Panics of drops of reclaimers: it counts those that a round of reclaim drops.
    drops: AtomicU64,
    /// Calls, so that each has a fate of its own without a lock.
    calls: AtomicU64,
}

impl Shared {
    pub(crate) fn new() -> Shared {
        Shared {
            gate: RwLock::new(()),
            due: Mutex::new(Vec::with_capacity(LIST_MAX)),
            stopped: Mutex::new(Vec::with_capacity(LIST_MAX)),
            tally: Tally::default(),
            panics: AtomicU64::new(0),
            drops: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        }
    }

    /// `None` while the tree rests.
    fn open(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.gate.try_read().ok()
    }

    /// A number for the fate of a call.
    fn draw(&self) -> u64 {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        (call.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) ^ (call >> 7)
    }

    /// True if so many panics are as many as there were.
    pub(crate) fn are_panics(&self, counted: u64) -> bool {
        let [panics, drops] = [&self.panics, &self.drops].map(|count| count.load(Ordering::SeqCst));
        (panics..=panics + drops).contains(&counted)
    }

    /// Panics; an event counts it.
    fn panic(&self) -> ! {
        self.panics.fetch_add(1, Ordering::SeqCst);
        self.tally.one(What::Panics);
        panic_any(Contained);
    }
}

fn nap(draw: u64) {
    std::thread::sleep(Duration::from_micros(50 + draw % 3_000));
}

/// Adds to a list that has room; returns false where it has none.
fn add<T>(list: &Mutex<Vec<T>>, make: impl FnOnce() -> T) -> bool {
    let mut list = lock(list);
    let has_room = list.len() < list.capacity();
    if has_room {
        list.push(make());
    }
    has_room
}

/// A value whose drop panics.
struct PanicsAtTheEnd {
    shared: Arc<Shared>,
    /// An event counts it in any case.
    counts: bool,
}

impl Drop for PanicsAtTheEnd {
    fn drop(&mut self) {
        let count = if self.counts {
            &self.shared.panics
        } else {
            &self.shared.drops
        };
        count.fetch_add(1, Ordering::SeqCst);
        self.shared.tally.one(What::DropPanics);
        panic_any(Contained);
    }
}

// === Reclaimers ===

/// The answer of a reclaimer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Character {
    Honest,
    Sleeps,
    /// Says more, or less, than it frees.
    Lies,
    Panics,
    /// Another thread frees.
    Promises,
    /// Charges and allocates itself.
    Charges,
}

const CHARACTERS: [Character; 6] = [
    Character::Honest,
    Character::Sleeps,
    Character::Lies,
    Character::Panics,
    Character::Promises,
    Character::Charges,
];

struct Reclaimer {
    shared: Arc<Shared>,
    known: Arc<KnownGroup>,
    character: Character,
    _end: Option<PanicsAtTheEnd>,
}

impl Reclaimer {
    fn tell_cause(&self, context: &ReclaimContext<'_>) {
        match context.cause() {
            ReclaimCause::Background => self.shared.tally.one(What::Background),
            ReclaimCause::Lowered => self.shared.tally.one(What::Lowered),
            _ => {}
        }
    }

    fn free(&self, want: u64) -> u64 {
        let freed = self.known.free(want);
        self.shared.tally.add(What::Reclaimed, freed);
        freed
    }

    /// Its charges do not reclaim.
    fn charge(&self, context: &ReclaimContext<'_>) {
        let group = context.group();
        match group.charge(1 << 20) {
            Ok(charge) => drop(charge),
            Err(error) if error.is_in_reclaim() => self.shared.tally.one(What::InReclaim),
            Err(error) if error.is_offline() || error.is_cancelled() => {}
            Err(other) => panic!("a charge inside reclaim: {other}"),
        }
        if !self.known.strict {
            group.run(|| drop(crate::support::bytes(1, 3_000)));
        }
    }
}

impl Reclaim for Reclaimer {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        let Some(_open) = self.shared.open() else {
            return 0;
        };
        self.tell_cause(context);
        let draw = self.shared.draw();
        match self.character {
            Character::Honest => self.free(want),
            Character::Sleeps => {
                self.shared.tally.one(What::Naps);
                nap(draw);
                if draw.is_multiple_of(4) {
                    0
                } else {
                    self.free(want)
                }
            }
            Character::Lies => {
                self.shared.tally.one(What::Lies);
                match draw % 3 {
                    0 => want,
                    1 => self.free(want).saturating_mul(3),
                    _ => self.free(want) / 2,
                }
            }
            Character::Panics => {
                if draw.is_multiple_of(2) {
                    self.free(want / 2);
                }
                if draw % 8 < 5 {
                    self.shared.panic();
                }
                self.free(want)
            }
            Character::Promises => {
                add(&self.shared.due, || {
                    (context.promise(), Arc::clone(&self.known))
                });
                0
            }
            Character::Charges => {
                self.charge(context);
                self.free(want)
            }
        }
    }

    fn start(&self, want: u64, context: &ReclaimContext<'_>) {
        let Some(_open) = self.shared.open() else {
            return;
        };
        self.shared.tally.one(What::Started);
        match self.character {
            Character::Panics => self.shared.panic(),
            Character::Promises | Character::Sleeps => {
                add(&self.shared.due, || {
                    (context.promise(), Arc::clone(&self.known))
                });
            }
            Character::Honest => {
                self.free(want);
            }
            _ => {}
        }
    }

    fn reclaimable(&self) -> u64 {
        let Some(_open) = self.shared.open() else {
            return 0;
        };
        match self.character {
            Character::Panics if self.shared.draw().is_multiple_of(16) => self.shared.panic(),
            Character::Lies => self.shared.draw() << 12,
            Character::Promises => u64::MAX,
            _ => self.known.bytes(),
        }
    }
}

/// Registers a reclaimer that frees what the group holds.
pub(crate) fn reclaimer(
    shared: &Arc<Shared>,
    known: &Arc<KnownGroup>,
    group: &Group,
) -> Registration {
    let draw = shared.draw();
    let end = draw.is_multiple_of(5).then(|| PanicsAtTheEnd {
        shared: Arc::clone(shared),
        counts: false,
    });
    let character = CHARACTERS[draw as usize / 5 % CHARACTERS.len()];
    let reclaimer = Reclaimer {
        shared: Arc::clone(shared),
        known: Arc::clone(known),
        character,
        _end: end,
    };
    group.register_reclaimer(Arc::new(reclaimer), ReclaimPriority::new((draw >> 8) as u8))
}

// === Hooks, listeners, orders ===

/// Registers a hook that has the group give back what it holds: at once, later, or never.
pub(crate) fn hook(shared: &Arc<Shared>, known: &Arc<KnownGroup>, group: &Group) -> Registration {
    let shared = Arc::clone(shared);
    let known = Arc::clone(known);
    let end = shared.draw().is_multiple_of(6).then(|| PanicsAtTheEnd {
        shared: Arc::clone(&shared),
        counts: true,
    });
    group.on_cancel(move |cancel: &CancelInfo| {
        let _end = &end;
        let Some(_open) = shared.open() else { return };
        assert_eq!(cancel.group().id(), known.id, "the hook of another group");
        match shared.draw() % 8 {
            0 => shared.panic(),
            1 => {}
            2..5 => {
                known.free(u64::MAX);
            }
            _ => {
                add(&shared.stopped, || Arc::clone(&known));
            }
        }
    })
}

/// Registers listeners of the whole tree; some panic.
pub(crate) fn listeners(shared: &Arc<Shared>, root: &Group) -> Vec<Registration> {
    let listen = |event| {
        let shared = Arc::clone(shared);
        let end = (event == Event::High).then(|| PanicsAtTheEnd {
            shared: Arc::clone(&shared),
            counts: true,
        });
        root.on_event(event, move |happened: &EventInfo| {
            let _end = &end;
            if happened.event() == Event::PressureLevel {
                shared.tally.add(What::Levels, happened.times());
            }
            if let Some(_open) = shared.open()
                && shared.draw().is_multiple_of(64)
            {
                shared.panic();
            }
        })
    };
    [
        Event::Max,
        Event::High,
        Event::PressureLevel,
        Event::OomKill,
        Event::TimedOut,
    ]
    .map(listen)
    .into()
}

/// An order that is not to be relied on.
pub(crate) fn order(shared: &Arc<Shared>) -> OomOrder {
    let shared = Arc::clone(shared);
    OomPolicy::by(move |candidates: &[OomCandidate]| {
        shared.tally.one(What::Orders);
        let draw = shared.draw() as usize;
        match draw % 8 {
            0 if shared.open().is_some() => shared.panic(),
            1 => None,
            2 => Some(candidates.len()),
            3..5 => (0..candidates.len()).min_by_key(|&at| candidates[at].usage()),
            _ => Some(draw / 8 % candidates.len()),
        }
    })
}
