//! The state of reclaim: for each group the number of its ring, for a tree its reclaimers and the
//! rings as data.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::counter::effective::ParentFigures;
use crate::pool::PageVec;
use crate::state::key::Key;
use crate::state::reclaimer::{ReclaimPriority, Reclaimer};
use crate::sync::{Arc, AtomicU32, Ordering, fence_after_exchange};

/// All that a group has, in the unit in which laps say what part of it they ask for.
pub(crate) const WHOLE: u64 = 1 << 40;

/// The part that a lap asks for unless it was begun with another one. The kernel starts at a 4096th
/// (DEF_PRIORITY), for its groups are of the size of a machine.
pub(crate) const SMALL: u64 = WHOLE >> 6;

pub(crate) const NO_RING: u32 = u32::MAX;

/// The time that one charge may spend in reclaim, unless configured otherwise.
pub(crate) const RECLAIM_TIME: Duration = Duration::from_millis(100);

/// The number of a group's ring. Written under the lock of the rings. Edge: E47 (a reclaimer is
/// registered/its group goes offline).
pub(crate) struct RingPlace(AtomicU32);

impl RingPlace {
    pub(crate) fn new() -> Self {
        RingPlace(AtomicU32::new(NO_RING))
    }

    pub(crate) fn number(&self) -> u32 {
        // SeqCst (E47): a thread that takes the group offline reads it after the bit; pairs with
        // `announce`.
        self.0.load(Ordering::SeqCst)
    }

    /// Let a thread that takes the group offline see the number, or this thread see the group
    /// offline.
    pub(crate) fn announce(&self) {
        // SeqCst (E47): before the look whether the group is offline; pairs with `number`.
        self.0.fetch_add(0, Ordering::SeqCst);
        fence_after_exchange();
    }

    pub(crate) fn set(&self, ring: u32) {
        self.0.store(ring, Ordering::Relaxed);
    }
}

/// The reclaimers of a tree.
#[derive(Default)]
pub(crate) struct RegisteredReclaimers {
    /// Those of each group, by the number of its ring, lowest priority first: by their places.
    pub(crate) lists: Vec<BTreeMap<(ReclaimPriority, Key), Arc<Reclaimer>>>,
    /// Registrations that there were.
    pub(crate) numbers: u64,
}

/// All rings of a tree, by number. Each group that has ever had a soft limit or a reclaimer has
/// one, and so have all groups above it. `M` is a group.
pub(crate) struct Rings<M> {
    pub(crate) all: PageVec<Ring<M>>,
    /// The first of the free ones, which are linked by `parent`.
    pub(crate) free: Option<u32>,
}

impl<M> Default for Rings<M> {
    fn default() -> Self {
        Rings {
            all: PageVec::new(),
            free: None,
        }
    }
}

/// Why a group stands in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingReason {
    Excess = 0,
    Reclaimers = 1,
}

pub(crate) struct Ring<M> {
    pub(crate) member: Option<M>,
    pub(crate) parent: u32,
    pub(crate) counts: [ReasonCount; 2],
    pub(crate) links: [RingLinks; 3],
    /// The parts that the present lap of each pass with this group as its target asks each group
    /// for. Kept until that lap is over: the round that goes on with it asks the groups that are
    /// left for as much as the others gave.
    pub(crate) parts: [u64; 3],
    /// The group as it was at the first turn of one of its children in the present lap.
    pub(crate) moment: LapFigures,
    /// Bytes that the group is being asked for.
    pub(crate) asked: u64,
    /// Calls here and below that freed something.
    pub(crate) fruitful: u64,
    /// That number when a round for this group last came to nothing.
    pub(crate) barren: u64,
    /// Rounds under way for this group, and for groups below.
    pub(crate) rounds: i32,
    pub(crate) rounds_below: i32,
}

impl<M> Ring<M> {
    pub(crate) const EMPTY: Ring<M> = Ring {
        member: None,
        parent: NO_RING,
        counts: [ReasonCount {
            own: false,
            below: 0,
        }; 2],
        links: [UNLINKED; 3],
        parts: [SMALL; 3],
        moment: LapFigures::NONE,
        asked: 0,
        fruitful: 0,
        barren: u64::MAX,
        rounds: 0,
        rounds_below: 0,
    };
}

/// One reason of a group itself, and the number of its children for which it holds, themselves or
/// somewhere below.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReasonCount {
    pub(crate) own: bool,
    pub(crate) below: u64,
}

impl ReasonCount {
    pub(crate) fn any(self) -> bool {
        self.own || self.below > 0
    }
}

/// A group in the rings of one kind: as a member of its parent's, and as the owner of its own.
#[derive(Clone, Copy)]
pub(crate) struct RingLinks {
    pub(crate) linked: bool,
    pub(crate) next: u32,
    pub(crate) prev: u32,
    /// The lap of the ring above in which it was served last.
    pub(crate) served: u64,
    /// The lap of the ring above in which a walk came to the group last.
    pub(crate) entered: u64,

    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) lap: u64,
    /// The lap in which the owner itself was served.
    pub(crate) own_served: u64,
    /// Bytes that the owner may be asked for before another group's turn comes. Below zero it has
    /// given too much.
    pub(crate) balance: i64,
    /// The owner's present turn began in an earlier call.
    pub(crate) kept: bool,
}

const UNLINKED: RingLinks = RingLinks {
    linked: false,
    next: NO_RING,
    prev: NO_RING,
    served: 0,
    entered: 0,
    first: NO_RING,
    last: NO_RING,
    lap: 1,
    own_served: 0,
    balance: 0,
    kept: false,
};

/// A parent's figures at the first turn of one of its children in a lap.
pub(crate) struct LapFigures {
    pub(crate) lap: (u8, u64),
    pub(crate) figures: ParentFigures,
}

impl LapFigures {
    pub(crate) const NONE: LapFigures = LapFigures {
        lap: (0, 0),
        figures: ParentFigures {
            usage: 0,
            children: [0; 2],
        },
    };
}
