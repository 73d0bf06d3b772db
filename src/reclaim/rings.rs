//! The walk of reclaim: rings of the groups that matter, and whose turn it is.
//!
//! Three rings for each group, one for each pass: of its children that are in excess of their soft limit or have such
//! below them; and twice of its children that have reclaimers or have such below. Who is in none is never looked at, so
//! idle groups cost nothing, however many. The kernel skips whole subtrees instead, and still looks at each sibling
//! (`mem_cgroup_iter` with a predicate); here leaving a subtree is one step, for what is to be skipped is not linked.
//!
//! The pass below low has rings, turns and balances of its own. Each round looks at everybody before it, finds them
//! protected, and ends its laps where they began: with one ring for both, the same group would be asked below its low
//! each time.
//!
//! **Laps.** A group stands in its parent's ring; the ring has a lap number, each member the lap in which it was last
//! served. Served members go to the end, so the first member tells whether the lap is over. Where a lap is over, its
//! owner is served in the ring above. All of it persists between calls: the next one goes on where the last one
//! stopped, and several threads share one lap.
//!
//! Links are numbers into one vector under a lock of the lowest rank: it is taken in the middle of a charge that
//! crosses a soft limit. So nothing is allocated under it; room is made outside.

use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::counter::protection::{Moment, View};
use crate::counter::tree::Tree;
use crate::pool::NoMemory;
use crate::reclaim::ReclaimPass;
use crate::reclaim::protection::share;
use crate::sync::Ordering;

/// Bytes that a group is asked for at least, where so many are wanted.
const CLUSTER: u64 = 4 * 4096;

/// All that a group has, in the unit in which laps say what part of it they ask for.
pub(crate) const WHOLE: u64 = 1 << 40;

/// What a lap asks for unless it was begun with another part. The kernel starts at a 4096th (DEF_PRIORITY), for its
/// groups are of the size of a machine.
const SMALL: u64 = WHOLE >> 6;

/// No ring.
pub(crate) const NO_RING: u32 = u32::MAX;

/// What a group counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In excess of a soft limit.
    Excess = 0,
    /// With reclaimers.
    Reclaimers = 1,
}

/// Which ring: one for each pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Of those in excess; whatever is below one of them is in [`Everyone`](Self::Everyone).
    Soft = 0,
    Everyone = 1,
    Low = 2,
}

impl Lane {
    const ALL: [Lane; 3] = [Lane::Soft, Lane::Everyone, Lane::Low];

    /// Who stands in it.
    fn kind(self) -> Kind {
        if self == Lane::Soft { Kind::Excess } else { Kind::Reclaimers }
    }

    /// Where the groups stand that a pass asks.
    fn of(pass: ReclaimPass) -> Lane {
        if pass == ReclaimPass::Low { Lane::Low } else { Lane::Everyone }
    }
}

/// All rings of a tree, by number; each group that has ever had a soft limit or a reclaimer, and all above it, have
/// one.
#[derive(Default)]
pub(crate) struct Rings {
    all: Vec<Ring>,
    /// First of the free ones, which are linked by `parent`.
    free: Option<u32>,
}

struct Ring {
    node: Option<(&'static Counter, Generation)>,
    parent: u32,
    counts: [Counted; 2],
    links: [Links; 3],
    /// What the present lap of each pass with this group as its target asks everybody for. Kept until that lap is over:
    /// whoever goes on with it asks those that are left for as much as the others gave.
    parts: [u64; 3],
    /// The group when one of its children had a turn first in the present lap.
    moment: Moment,
    /// Bytes that the group is being asked for.
    asked: u64,
    /// Calls here and below that freed something.
    fruitful: u64,
    /// Rounds under way for this group, and for groups below.
    rounds: i32,
    rounds_below: i32,
}

/// What a round has for a group whose turn it is.
pub(crate) struct Turn {
    pub(crate) pass: ReclaimPass,
    /// The ring of the group that all this is for.
    pub(crate) target: u32,
    pub(crate) able: u64,
    pub(crate) protection: u64,
    pub(crate) weight: u64,
    pub(crate) left: u64,
    pub(crate) all: bool,
}

impl Ring {
    const EMPTY: Ring = Ring {
        node: None,
        parent: NO_RING,
        counts: [Counted { own: false, below: 0 }; 2],
        links: [UNLINKED; 3],
        parts: [SMALL; 3],
        moment: Moment::NONE,
        asked: 0,
        fruitful: 0,
        rounds: 0,
        rounds_below: 0,
    };
}

/// Why a group stands in a ring.
#[derive(Clone, Copy)]
struct Counted {
    /// It belongs there for its own sake.
    own: bool,
    /// Groups below that do.
    below: u64,
}

/// A group in the rings of one lane: as a member of its parent's, and as the owner of its own.
#[derive(Clone, Copy)]
struct Links {
    linked: bool,
    next: u32,
    prev: u32,
    /// Lap of the ring above in which it was served last.
    served: u64,

    first: u32,
    last: u32,
    lap: u64,
    /// Lap in which the owner itself was served.
    own_served: u64,
    /// Bytes that the owner may be asked for before it is somebody else's turn; below zero, it has given too much.
    balance: i64,
    /// The owner's present turn began in an earlier call.
    kept: bool,
}

const UNLINKED: Links = Links {
    linked: false,
    next: NO_RING,
    prev: NO_RING,
    served: 0,
    first: NO_RING,
    last: NO_RING,
    lap: 1,
    own_served: 0,
    balance: 0,
    kept: false,
};

/// A step of a walk.
pub(crate) enum Step {
    /// A group with reclaimers, with a handle for the caller.
    Visit(&'static Counter, u32),
    /// Many that hold nothing have been passed over: others may want the lock.
    OnlyIdle,
    /// Everybody has been served.
    LapOver,
}

/// Groups that hold nothing which are passed over under one hold of the lock.
const IDLE_MAX: u32 = 64;

impl Rings {
    /// Bytes of all this, as far as it has been written to.
    pub(crate) fn bytes(&self) -> u64 {
        (self.all.len() * size_of::<Ring>()) as u64
    }

    /// Counts of `kind` at a group: itself, and below it.
    pub(crate) fn counts(&self, ring: u32, kind: Kind) -> (bool, u64) {
        self.all.get(ring as usize).map_or((false, 0), |ring| {
            let Counted { own, below } = ring.counts[kind as usize];
            (own, below)
        })
    }

    fn counted(&mut self, ring: u32, kind: Kind) -> &mut Counted {
        &mut self.all[ring as usize].counts[kind as usize]
    }

    fn links(&mut self, ring: u32, lane: Lane) -> &mut Links {
        &mut self.all[ring as usize].links[lane as usize]
    }

    /// Whether a group belongs there for its own sake: told to all above it.
    pub(crate) fn set_own(&mut self, ring: u32, kind: Kind, own: bool) {
        if std::mem::replace(&mut self.counted(ring, kind).own, own) == own {
            return;
        }
        self.relink(ring);
        let mut above = self.all[ring as usize].parent;
        while above != NO_RING {
            let counted = self.counted(above, kind);
            counted.below = if own { counted.below + 1 } else { counted.below - 1 };
            self.relink(above);
            above = self.all[above as usize].parent;
        }
    }

    /// Into the rings above, or out of them, as its counts say. Whoever is in excess and has nobody to ask is in none.
    fn relink(&mut self, ring: u32) {
        let Ring { parent, counts, .. } = self.all[ring as usize];
        if parent == NO_RING {
            return;
        }
        let [excess, reclaimers] = counts.map(|counted| counted.own || counted.below > 0);
        for lane in Lane::ALL {
            let wanted = reclaimers && (excess || lane.kind() == Kind::Reclaimers);
            if wanted == self.links(ring, lane).linked {
                continue;
            }
            if wanted {
                // Where the lap has begun its turn comes with the next one: who goes in and out must not overtake those
                // who stay.
                let Links { last, lap, .. } = *self.links(parent, lane);
                let begun = last != NO_RING && self.links(last, lane).served == lap;
                self.append(ring, parent, lane, if begun { lap } else { lap - 1 });
            } else {
                self.take_out(ring, parent, lane);
            }
            self.links(ring, lane).linked = wanted;
        }
    }

    /// To the end of the ring above.
    fn append(&mut self, ring: u32, parent: u32, lane: Lane, served: u64) {
        let above = self.links(parent, lane);
        let last = std::mem::replace(&mut above.last, ring);
        if last == NO_RING {
            above.first = ring;
        } else {
            self.links(last, lane).next = ring;
        }
        let links = self.links(ring, lane);
        (links.prev, links.next, links.served) = (last, NO_RING, served);
    }

    fn take_out(&mut self, ring: u32, parent: u32, lane: Lane) {
        let Links { prev, next, .. } = *self.links(ring, lane);
        match prev {
            NO_RING => self.links(parent, lane).first = next,
            _ => self.links(prev, lane).next = next,
        }
        match next {
            NO_RING => self.links(parent, lane).last = prev,
            _ => self.links(next, lane).prev = prev,
        }
    }

    /// Whose turn it is below `top` in a pass: among the groups in excess and all that is below them, or among all with
    /// reclaimers. Who is returned has been served, unless [`keep_turn`](Self::keep_turn) takes it back.
    pub(crate) fn next(&mut self, top: u32, pass: ReclaimPass) -> Step {
        let (soft, asked) = (pass == ReclaimPass::Soft, Lane::of(pass));
        let (mut at, mut came_by) = (top, Lane::Soft);
        let (mut covered, mut idle) = (!soft, 0);
        loop {
            // Whatever is below a group in excess is to be reclaimed with it.
            covered |= self.counted(at, Kind::Excess).own;
            let lane = if covered { asked } else { Lane::Soft };
            let own = self.counted(at, lane.kind()).own;
            let links = self.links(at, lane);
            if covered && own && links.own_served < links.lap {
                links.own_served = links.lap;
                let (node, of) = self.all[at as usize].node.expect("a ring in use has a group");
                // Not one that holds nothing, nor one that is being buried.
                if node.usage() > 0 && node.state().try_pin(of) {
                    return Step::Visit(node, at);
                }
                idle += 1;
                if idle == IDLE_MAX {
                    return Step::OnlyIdle;
                }
                continue;
            }
            let (first, lap) = (links.first, links.lap);
            if first != NO_RING && self.links(first, lane).served < lap {
                (at, came_by) = (first, lane);
                continue;
            }
            self.links(at, lane).lap += 1;
            if at == top {
                self.begin_lap(top, pass, SMALL);
                return Step::LapOver;
            }
            // Served: to the end of the ring above, and on from the top.
            let parent = self.all[at as usize].parent;
            let lap = self.links(parent, came_by).lap;
            self.take_out(at, parent, came_by);
            self.append(at, parent, came_by, lap);
            (at, covered) = (top, !soft);
        }
    }

    /// Everybody is asked for `part` of [`WHOLE`] in the lap that begins.
    pub(crate) fn begin_lap(&mut self, target: u32, pass: ReclaimPass, part: u64) {
        self.all[target as usize].parts[pass as usize] = part;
    }

    /// The group that was visited last has more to give: it goes on where this call stopped.
    pub(crate) fn keep_turn(&mut self, ring: u32, pass: ReclaimPass) {
        let links = self.links(ring, Lane::of(pass));
        links.own_served = links.own_served.min(links.lap - 1);
        links.kept = true;
    }

    /// Takes what is seen of a group's ancestors back to the moment at which the present laps below them began.
    pub(crate) fn recall(&mut self, pass: ReclaimPass, above: &mut [View<'_>]) {
        let lane = Lane::of(pass);
        for view in above {
            let ring = &mut self.all[view.level.ring.load(Ordering::Relaxed) as usize];
            // Where only some are eligible, either lap may be the one that is under way.
            let soft = if pass == ReclaimPass::Low { 0 } else { ring.links[Lane::Soft as usize].lap };
            ring.moment.recall((lane as u8, soft + ring.links[lane as usize].lap), view);
        }
    }

    /// A turn of a group that could give `able` down to its `protection`: what to ask it for, of the `left` that is
    /// wanted. Nothing while it has given too much, unless `all` it has is wanted. `None`: it has nothing, but for what
    /// others ask for already.
    pub(crate) fn ask(&mut self, at: u32, turn: &Turn) -> Option<u64> {
        let part = self.all[turn.target as usize].parts[turn.pass as usize];
        let ring = &mut self.all[at as usize];
        let (node, _) = ring.node?;
        let links = &mut ring.links[Lane::of(turn.pass) as usize];
        // Usage as it is under the lock: what others have got is off it, or is asked for yet.
        let most = turn.able.min(node.usage().saturating_sub(turn.protection)).saturating_sub(ring.asked);
        let part = share(turn.weight, part, WHOLE).saturating_add(1).min(most.max(1));
        let part = if std::mem::take(&mut links.kept) { 0 } else { part };
        let [least, most_signed] = [turn.able, most].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        links.balance = links.balance.saturating_add_unsigned(part).clamp(-least, most_signed.max(-least));
        if most == 0 {
            return None;
        }
        let balance = if turn.all { most } else { links.balance.max(0).cast_unsigned() };
        let ask = if balance > 0 { turn.left.min(balance.max(CLUSTER)).min(most) } else { 0 };
        ring.asked += ask;
        Some(ask)
    }

    /// What came of it. Returns what the group may be asked for yet.
    pub(crate) fn give(&mut self, at: u32, pass: ReclaimPass, asked: u64, freed: u64) -> i64 {
        self.all[at as usize].asked -= asked;
        let links = self.links(at, Lane::of(pass));
        links.balance = links.balance.saturating_sub_unsigned(freed);
        let left = links.balance;
        let mut at = if freed > 0 { at } else { NO_RING };
        while at != NO_RING {
            let ring = &mut self.all[at as usize];
            ring.fruitful += 1;
            at = ring.parent;
        }
        left
    }

    /// A round for a target begins (1) or ends (-1).
    pub(crate) fn count_round(&mut self, target: u32, change: i32) {
        self.all[target as usize].rounds += change;
        let mut above = self.all[target as usize].parent;
        while above != NO_RING {
            self.all[above as usize].rounds_below += change;
            above = self.all[above as usize].parent;
        }
    }

    /// Calls below a target that freed something.
    pub(crate) fn fruitful(&self, target: u32) -> u64 {
        self.all[target as usize].fruitful
    }

    /// Rounds that may be at the groups below a target.
    pub(crate) fn overlapping(&self, target: u32) -> i32 {
        let Ring { rounds, rounds_below, mut parent, .. } = self.all[target as usize];
        let mut sum = rounds + rounds_below;
        while parent != NO_RING {
            sum += self.all[parent as usize].rounds;
            parent = self.all[parent as usize].parent;
        }
        sum
    }

    /// It has nothing to give: what it was allowed lapses, what it has given too much stays given.
    pub(crate) fn lapse(&mut self, ring: u32, pass: ReclaimPass) {
        let links = self.links(ring, Lane::of(pass));
        (links.balance, links.kept) = (links.balance.min(0), false);
    }
}

// === Groups and their rings ===

impl Tree {
    /// A ring for a group and for all above it, unless the system has no memory for them. Allocates, not under the lock of
    /// the rings.
    pub(crate) fn make_rings(&self, node: &'static Counter) -> Result<(), NoMemory> {
        let without = |node: &'static Counter| node.ring.load(Ordering::Relaxed) == NO_RING;
        let above =
            || std::iter::successors(Some(node), |node| node.incarnation().parent).take_while(|&level| without(level));
        let mut levels: Vec<&'static Counter> = room_for(above().count())?;
        levels.extend(above());
        if levels.is_empty() {
            return Ok(());
        }
        // Room is freed after the lock is, `levels` too: the allocator may uncharge.
        let mut room: Vec<Ring> = Vec::new();
        loop {
            let mut rings = self.rings.lock();
            let needed = rings.all.len() + levels.len();
            if rings.all.capacity() < needed {
                if room.capacity() < needed {
                    drop(rings);
                    room = room_for(2 * needed.max(16))?;
                    continue;
                }
                room.append(&mut rings.all);
                std::mem::swap(&mut rings.all, &mut room);
            }
            for &level in levels.iter().rev().filter(|&&level| without(level)) {
                rings.put(level);
            }
            return Ok(());
        }
    }

    /// The group is buried: nobody is below it, and it has neither reclaimers nor excess.
    pub(crate) fn drop_ring(&self, node: &Counter) {
        let ring = node.ring.load(Ordering::Relaxed);
        if ring != NO_RING {
            self.rings.lock().release(ring);
        }
    }
}

/// An empty vector with room for so many.
fn room_for<T>(many: usize) -> Result<Vec<T>, NoMemory> {
    let mut room = Vec::new();
    room.try_reserve_exact(many).map_err(|_| NoMemory { bytes: many.saturating_mul(size_of::<T>()) })?;
    Ok(room)
}

impl Rings {
    fn put(&mut self, node: &'static Counter) {
        let new = Ring {
            node: Some((node, node.state().generation())),
            parent: node.incarnation().parent.map_or(NO_RING, |parent| parent.ring.load(Ordering::Relaxed)),
            ..Ring::EMPTY
        };
        let number = match self.free {
            Some(number) => {
                let free = std::mem::replace(&mut self.all[number as usize], new);
                self.free = (free.parent != NO_RING).then_some(free.parent);
                number
            }
            None => {
                self.all.push(new);
                (self.all.len() - 1) as u32
            }
        };
        node.ring.store(number, Ordering::Relaxed);
    }

    fn release(&mut self, ring: u32) {
        for kind in [Kind::Excess, Kind::Reclaimers] {
            self.set_own(ring, kind, false);
        }
        let parent = self.free.replace(ring).unwrap_or(NO_RING);
        self.all[ring as usize] = Ring { parent, ..Ring::EMPTY };
    }
}
