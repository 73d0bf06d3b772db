//! Which group's turn it is: the rings of a tree as numbers, without the groups that stand in them.
//!
//! Each group has three rings, one for each pass. One ring has the children in excess of their soft
//! limit, or with such groups below them. Two rings have the children with reclaimers, or with
//! reclaimers below them. A group in no ring is never looked at, so idle groups cost nothing,
//! however many. The kernel skips whole subtrees instead, and still looks at each sibling
//! (`mem_cgroup_iter` with a predicate). Here the walk leaves a subtree in one step, because what
//! it would skip is not linked.
//!
//! The pass below low has rings, turns and balances of its own. Each round looks at all groups
//! before that pass, finds them protected, and ends its laps where they began. With one ring for
//! both passes, each round would ask the same group below its low.
//!
//! **Laps.** A group stands in its parent's ring. The ring has a lap number, and each member has
//! the lap in which it was last served. Served members go to the end, so the first member tells
//! whether the lap is over. When a lap is over, its owner is served in the ring above. A lap that
//! comes to a group from above begins a lap of that group's ring: each group has a turn in each lap
//! of each ring above. All of it persists between calls: the next call goes on where the last one
//! stopped, and several threads share one lap.
//!
//! Links are numbers into one vector under a lock of the lowest rank, which a charge that crosses a
//! soft limit takes in the middle of its walk. So the vector's room comes from the system, and not
//! from the process's allocator.

use smallvec::SmallVec;

use crate::counter::effective::ParentFigures;
use crate::state::reclaim::{
    LapFigures, NO_RING, ReasonCount, Ring, RingLinks, RingReason, Rings, SMALL, WHOLE,
};
use crate::state::reclaimer::ReclaimPass;

/// Bytes that a group is asked for at least, where so many are wanted.
const CLUSTER: u64 = 4 * 4096;

/// A group as the rings have it.
pub(crate) trait RingMember: Copy {
    fn usage(self) -> u64;

    /// Takes a handle for the caller. Fails where the group's object is released, or another
    /// group's by now.
    fn take_handle(self) -> bool;
}

/// There is a ring for each pass. What is below a group in excess stands in that of the
/// unprotected.
const RINGS: [ReclaimPass; 3] = [
    ReclaimPass::Soft,
    ReclaimPass::Unprotected,
    ReclaimPass::Low,
];

/// Why groups stand in a ring.
fn reason(ring_of: ReclaimPass) -> RingReason {
    if ring_of == ReclaimPass::Soft {
        RingReason::Excess
    } else {
        RingReason::Reclaimers
    }
}

/// The ring of the groups that a pass asks.
fn asked_in(pass: ReclaimPass) -> ReclaimPass {
    if pass == ReclaimPass::Low {
        ReclaimPass::Low
    } else {
        ReclaimPass::Unprotected
    }
}

/// What a round knows about the group whose turn begins.
pub(crate) struct GroupTurn {
    pub(crate) pass: ReclaimPass,
    /// The ring of the group under pressure.
    pub(crate) target: u32,
    /// Bytes that the group's reclaimers could free.
    pub(crate) able: u64,
    /// Bytes that no round may take from it.
    pub(crate) protection: u64,
    /// Its weight against other groups.
    pub(crate) weight: u64,
    /// Bytes that the round still wants.
    pub(crate) left: u64,
    /// The round asks for all that the group has.
    pub(crate) all: bool,
}

pub(crate) enum WalkStep<M> {
    /// A group with reclaimers, with a handle for the caller, and its ring.
    Visit(M, u32),
    /// The walk has passed over many groups that hold nothing: other threads may want the lock.
    OnlyIdle,
    /// Each group has been served.
    LapOver,
}

/// The part of a weight that a lap asks for. It is rounded up, where the part itself is rounded
/// down: so a share that is a whole number is that number, and no byte is left over that would take
/// a lap of its own.
fn share(weight: u64, part: u64) -> u64 {
    let share = (u128::from(weight) * u128::from(part)).div_ceil(u128::from(WHOLE));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Groups that [`Rings::with_reclaimers`] finds, and groups that it looks at, under one hold of the
/// lock.
pub(crate) const WITH_RECLAIMERS_MAX: usize = 64;
const LOOKED_AT_MAX: u32 = 256;

/// Groups without usage that a walk passes over under one hold of the lock.
const IDLE_MAX: u32 = 64;

impl<M: RingMember> Rings<M> {
    /// The memory of all rings that have ever been in use, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.all.len() * size_of::<Ring<M>>()) as u64
    }

    /// Counts of a reason: for the group itself, and for its children, themselves or below.
    pub(crate) fn counts(&self, ring: u32, reason: RingReason) -> ReasonCount {
        self.all
            .get(ring as usize)
            .map_or(ReasonCount::default(), |ring| ring.counts[reason as usize])
    }

    fn count(&mut self, ring: u32, reason: RingReason) -> &mut ReasonCount {
        &mut self.all[ring as usize].counts[reason as usize]
    }

    fn links(&mut self, ring: u32, kind: ReclaimPass) -> &mut RingLinks {
        &mut self.all[ring as usize].links[kind as usize]
    }

    /// Notes whether `reason` holds for a group itself, and corrects the counts and rings above.
    /// The group above counts its children for which it holds, themselves or somewhere below. So a
    /// change ends at the first level for which it changes nothing: a charge that changes this at
    /// each level of its path passes the path once.
    pub(crate) fn set_own(&mut self, ring: u32, reason: RingReason, own: bool) {
        let mut before = self.count(ring, reason).any();
        self.count(ring, reason).own = own;
        let mut at = ring;
        // A level above counts this one or does not. Where that has not changed, nothing has
        // changed further up, either.
        while self.count(at, reason).any() != before {
            self.relink(at);
            at = self.all[at as usize].parent;
            if at == NO_RING {
                return;
            }
            let count = self.count(at, reason);
            before = count.any();
            count.below = if own {
                count.below + 1
            } else {
                count.below - 1
            };
        }
    }

    /// Puts a group into the rings above, or takes it out of them, as its counts say. A group in
    /// excess without a reclaimer here or below stands in none.
    fn relink(&mut self, ring: u32) {
        let Ring { parent, counts, .. } = self.all[ring as usize];
        if parent == NO_RING {
            return;
        }
        let [excess, reclaimers] = counts.map(ReasonCount::any);
        for kind in RINGS {
            let wanted = reclaimers && (excess || reason(kind) == RingReason::Reclaimers);
            if wanted == self.links(ring, kind).linked {
                continue;
            }
            if wanted {
                // If the lap has begun, its turn comes with the next one: a group that goes in and
                // out must not overtake those that stay.
                let RingLinks { last, lap, .. } = *self.links(parent, kind);
                let begun = last != NO_RING && self.links(last, kind).served == lap;
                self.append(ring, parent, kind, if begun { lap } else { lap - 1 });
            } else {
                self.take_out(ring, parent, kind);
            }
            self.links(ring, kind).linked = wanted;
        }
    }

    /// Puts a group at the end of the ring above. `served` is the lap in which it counts as served:
    /// with the present one its turn comes in the next lap.
    fn append(&mut self, ring: u32, parent: u32, kind: ReclaimPass, served: u64) {
        let above = self.links(parent, kind);
        let last = std::mem::replace(&mut above.last, ring);
        if last == NO_RING {
            above.first = ring;
        } else {
            self.links(last, kind).next = ring;
        }
        let links = self.links(ring, kind);
        links.prev = last;
        links.next = NO_RING;
        links.served = served;
    }

    /// Takes a group out of the ring above, from wherever it stands there.
    fn take_out(&mut self, ring: u32, parent: u32, kind: ReclaimPass) {
        let RingLinks { prev, next, .. } = *self.links(ring, kind);
        match prev {
            NO_RING => self.links(parent, kind).first = next,
            _ => self.links(prev, kind).next = next,
        }
        match next {
            NO_RING => self.links(parent, kind).last = prev,
            _ => self.links(next, kind).prev = prev,
        }
    }

    /// Groups with reclaimers of their own, `top` and below, in the order of the rings, with a
    /// handle each for the caller and their rings, [`WITH_RECLAIMERS_MAX`] at most. No turn is
    /// taken, and nothing allocated.
    pub(crate) fn with_reclaimers(&self, top: u32) -> SmallVec<[(M, u32); WITH_RECLAIMERS_MAX]> {
        let kind = ReclaimPass::Unprotected as usize;
        let mut found = SmallVec::new();
        let mut at = top;
        for _ in 0..LOOKED_AT_MAX {
            let Ring {
                member,
                counts,
                links,
                ..
            } = &self.all[at as usize];
            // A group stands in a ring also for what is below it, and then has no reclaimer of its
            // own.
            let own = member.filter(|_| counts[RingReason::Reclaimers as usize].own);
            if let Some(member) = own.filter(|member| member.usage() > 0 && member.take_handle()) {
                found.push((member, at));
                if found.len() == WITH_RECLAIMERS_MAX {
                    break;
                }
            }
            // Down to the first member of its ring, else on to the next one of the ring above, or
            // of the nearest ring further up that has a next one.
            let mut next = links[kind].first;
            while next == NO_RING && at != top {
                next = self.all[at as usize].links[kind].next;
                if next == NO_RING {
                    at = self.all[at as usize].parent;
                }
            }
            if next == NO_RING {
                break;
            }
            at = next;
        }
        found
    }

    /// Finds the group at or below `top` that has its turn in a pass: among the groups in excess
    /// and all that is below them, or among all with reclaimers. The group that it returns counts
    /// as served, unless [`keep_turn`](Self::keep_turn) takes that back.
    pub(crate) fn next_turn(&mut self, top: u32, pass: ReclaimPass) -> WalkStep<M> {
        let soft = pass == ReclaimPass::Soft;
        let asked = asked_in(pass);
        let mut at = top;
        let mut came_by = ReclaimPass::Soft;
        // True at and below a group whose reclaimers this pass asks: anywhere, or in a soft pass
        // from a group in excess on.
        let mut covered = !soft;
        let mut idle = 0;
        loop {
            // Groups below one in excess are reclaimed with it.
            covered |= self.count(at, RingReason::Excess).own;
            let kind = if covered { asked } else { ReclaimPass::Soft };
            // A lap of `top`'s own ring goes on where the last call stopped. Further down a lap
            // begins with each lap above.
            if at != top {
                self.enter(at, came_by, kind);
            }
            let own = self.count(at, reason(kind)).own;
            let links = self.links(at, kind);
            // The group itself comes before those below it.
            if covered && own && links.own_served < links.lap {
                links.own_served = links.lap;
                let member = self.all[at as usize]
                    .member
                    .expect("a ring in use has a group");
                // Not one that holds nothing, nor one that is being released.
                if member.usage() > 0 && member.take_handle() {
                    return WalkStep::Visit(member, at);
                }
                idle += 1;
                // Charges take this lock in their walks, so no walk over rings keeps it for long.
                if idle == IDLE_MAX {
                    return WalkStep::OnlyIdle;
                }
                continue;
            }
            let first = links.first;
            let lap = links.lap;
            // Served members are at the end of the ring. So the first one tells whether any is left
            // in this lap.
            if first != NO_RING && self.links(first, kind).served < lap {
                at = first;
                came_by = kind;
                continue;
            }
            // All members of this ring have been served: the next lap begins.
            self.links(at, kind).lap += 1;
            if at == top {
                self.begin_lap(top, pass, SMALL);
                return WalkStep::LapOver;
            }
            // It is served: it goes to the end of the ring above, and the walk starts again at the
            // top.
            let parent = self.all[at as usize].parent;
            let lap = self.links(parent, came_by).lap;
            self.take_out(at, parent, came_by);
            self.append(at, parent, came_by, lap);
            at = top;
            covered = !soft;
        }
    }

    /// True if no group has had its turn in the present lap of a pass over all groups, so that the
    /// lap will look at all of them. A few steps a level.
    pub(crate) fn is_fresh(&self, top: u32, pass: ReclaimPass) -> bool {
        let (kind, mut at) = (asked_in(pass), top);
        loop {
            let ring = &self.all[at as usize];
            let links = &ring.links[kind as usize];
            let is_served = |ring: u32| {
                ring != NO_RING && self.all[ring as usize].links[kind as usize].served == links.lap
            };
            let own = ring.counts[reason(kind) as usize].own && links.own_served == links.lap;
            if pass == ReclaimPass::Soft || own || is_served(links.last) {
                return false;
            }
            let first = links.first;
            if first == NO_RING
                || self.all[first as usize].links[kind as usize].entered != links.lap
            {
                return true;
            }
            at = first;
        }
    }

    /// The walk comes to a group from the ring above. With each lap above, a lap of the group's own
    /// ring begins. What a round for the group itself has left of a lap would not do: the groups
    /// with turns before it would miss the lap above.
    fn enter(&mut self, at: u32, came_by: ReclaimPass, kind: ReclaimPass) {
        let above = self.all[at as usize].parent;
        let lap = self.links(above, came_by).lap;
        // Not when the walk comes again in the same lap above: then it goes on with the lap that it
        // has begun here.
        if std::mem::replace(&mut self.links(at, came_by).entered, lap) != lap {
            self.links(at, kind).lap += 1;
        }
    }

    /// Begins a lap that asks each group for `part` of [`WHOLE`].
    pub(crate) fn begin_lap(&mut self, target: u32, pass: ReclaimPass, part: u64) {
        self.all[target as usize].parts[pass as usize] = part;
    }

    /// The group that was visited last has more to give: its turn goes on with the next call.
    pub(crate) fn keep_turn(&mut self, ring: u32, pass: ReclaimPass) {
        let links = self.links(ring, asked_in(pass));
        links.own_served = links.own_served.min(links.lap - 1);
        links.kept = true;
    }

    /// Takes the figures of a group's parents, each with its ring, back to the moment at which the
    /// present laps below them began.
    pub(crate) fn recall<'a>(
        &mut self,
        pass: ReclaimPass,
        parents: impl Iterator<Item = (u32, &'a mut ParentFigures)>,
    ) {
        let kind = asked_in(pass);
        for (ring, figures) in parents {
            let ring = &mut self.all[ring as usize];
            // If only some are eligible, either lap may be the one that is under way.
            let soft = if pass == ReclaimPass::Low {
                0
            } else {
                ring.links[ReclaimPass::Soft as usize].lap
            };
            ring.moment
                .recall((kind as u8, soft + ring.links[kind as usize].lap), figures);
        }
    }

    /// A group's turn begins. Returns what to ask it for: nothing while it has given too much,
    /// unless the round wants all that it has. `None`: it has nothing beyond what other threads ask
    /// it for already.
    pub(crate) fn begin_turn(&mut self, at: u32, turn: &GroupTurn) -> Option<u64> {
        let part = self.all[turn.target as usize].parts[turn.pass as usize];
        let ring = &mut self.all[at as usize];
        let member = ring.member?;
        let links = &mut ring.links[asked_in(turn.pass) as usize];
        // Usage as it is under the lock: what other threads have got is off it, or still counts as
        // asked for.
        let most = turn
            .able
            .min(member.usage().saturating_sub(turn.protection))
            .saturating_sub(ring.asked);
        let part = share(turn.weight, part).min(most.max(1));
        // A turn that goes on has had its part added to the balance when it began.
        // Mutation: a-turn-that-goes-on-has-its-part-again
        let part = if std::mem::take(&mut links.kept) {
            0
        } else {
            part
        };
        // The balance is what the group may be asked for. It stays within what the group could
        // give: neither what it owes nor what it has given too much grows beyond that.
        let [least, most_signed] =
            [turn.able, most].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        // Mutation: what-a-group-gave-too-much-is-forgotten
        links.balance = links
            .balance
            .saturating_add_unsigned(part)
            .clamp(-least, most_signed.max(-least));
        // Other threads are asking for all of it. The balance has been brought up to date all the
        // same.
        if most == 0 {
            return None;
        }
        let balance = if turn.all {
            most
        } else {
            links.balance.max(0).cast_unsigned()
        };
        // At least a cluster, so that no call is made for a few bytes. What comes beyond the
        // balance makes it negative, and is held against the group in later laps.
        let ask = if balance > 0 {
            turn.left.min(balance.max(CLUSTER)).min(most)
        } else {
            0
        };
        // Until the turn ends no other thread asks for these bytes.
        ring.asked += ask;
        Some(ask)
    }

    /// Ends a turn: the group was `asked` for bytes and `freed` some. Returns what it may still be
    /// asked for.
    pub(crate) fn end_turn(&mut self, at: u32, pass: ReclaimPass, asked: u64, freed: u64) -> i64 {
        self.all[at as usize].asked -= asked;
        let links = self.links(at, asked_in(pass));
        // Mutation: what-a-group-gave-is-not-in-its-balance
        links.balance = links.balance.saturating_sub_unsigned(freed);
        let left = links.balance;
        let mut at = if freed > 0 { at } else { NO_RING };
        // Each level above learns that something came below it: rounds for these targets look at
        // the number before they give up.
        while at != NO_RING {
            let ring = &mut self.all[at as usize];
            ring.fruitful += 1;
            at = ring.parent;
        }
        left
    }

    /// Counts a round for a target that begins (1) or ends (-1).
    pub(crate) fn count_round(&mut self, target: u32, change: i32) {
        self.all[target as usize].rounds += change;
        let mut above = self.all[target as usize].parent;
        while above != NO_RING {
            self.all[above as usize].rounds_below += change;
            above = self.all[above as usize].parent;
        }
    }

    /// How many calls below a target have freed something so far.
    pub(crate) fn fruitful(&self, target: u32) -> u64 {
        self.all[target as usize].fruitful
    }

    /// Notes that a round for a target has come to nothing.
    pub(crate) fn note_barren(&mut self, target: u32) {
        let ring = &mut self.all[target as usize];
        ring.barren = ring.fruitful;
    }

    /// True if no call below a target has freed anything since a round for it came to nothing.
    pub(crate) fn is_barren(&self, target: u32) -> bool {
        let ring = &self.all[target as usize];
        ring.barren == ring.fruitful
    }

    /// How many rounds may be at the groups below a target: those for the target, for a group below
    /// it, and for a group above it.
    pub(crate) fn overlapping(&self, target: u32) -> i32 {
        let Ring {
            rounds,
            rounds_below,
            mut parent,
            ..
        } = self.all[target as usize];
        let mut sum = rounds + rounds_below;
        while parent != NO_RING {
            sum += self.all[parent as usize].rounds;
            parent = self.all[parent as usize].parent;
        }
        sum
    }

    /// Notes that a group has nothing to give: what it might have been asked for lapses, what it
    /// has given too much stays.
    pub(crate) fn forfeit(&mut self, ring: u32, pass: ReclaimPass) {
        let links = self.links(ring, asked_in(pass));
        links.balance = links.balance.min(0);
        links.kept = false;
    }

    /// Makes a ring for a group whose parent has the ring `parent`, and returns its number. The
    /// caller has reserved room for it.
    pub(crate) fn add(&mut self, member: M, parent: u32) -> u32 {
        let new = Ring {
            member: Some(member),
            parent,
            ..Ring::EMPTY
        };
        if let Some(number) = self.free {
            let free = std::mem::replace(&mut self.all[number as usize], new);
            self.free = (free.parent != NO_RING).then_some(free.parent);
            return number;
        }
        self.all.push(new);
        (self.all.len() - 1) as u32
    }

    /// Frees the ring of a group that is released. No group is below it, and it has neither
    /// reclaimers nor excess.
    pub(crate) fn remove(&mut self, ring: u32) {
        for reason in [RingReason::Excess, RingReason::Reclaimers] {
            self.set_own(ring, reason, false);
        }
        // Mutation: ring-numbers-are-lost
        let parent = self.free.replace(ring).unwrap_or(NO_RING);
        self.all[ring as usize] = Ring {
            parent,
            ..Ring::EMPTY
        };
    }
}

impl LapFigures {
    /// Takes `figures` back to the beginning of `lap`, which is now unless the lap is known: what
    /// other groups have given since protects no group in this lap. What has been charged meanwhile
    /// is seen.
    pub(crate) fn recall(&mut self, lap: (u8, u64), figures: &mut ParentFigures) {
        if self.lap != lap {
            *self = LapFigures {
                lap,
                ..LapFigures::NONE
            };
        }
        // The larger of then and now: memory that was given back since still counts, and memory
        // that was charged since counts, too.
        let usage = self.figures.usage.max(figures.usage);
        let children = [0, 1].map(|kind| self.figures.children[kind].max(figures.children[kind]));
        self.figures = ParentFigures { usage, children };
        *figures = self.figures;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::counter::effective::proportion;

    impl RingMember for u64 {
        fn usage(self) -> u64 {
            self
        }

        fn take_handle(self) -> bool {
            true
        }
    }

    fn visited(rings: &mut Rings<u64>) -> Option<u64> {
        match rings.next_turn(0, ReclaimPass::Unprotected) {
            WalkStep::Visit(usage, _) => Some(usage),
            WalkStep::OnlyIdle | WalkStep::LapOver => None,
        }
    }

    #[test]
    fn a_share_is_in_proportion_to_the_byte() {
        for (weight, left, all, expected) in [
            (1 << 20, 1 << 20, 1 << 26, 1 << 14),
            (1_000_000, 300, 3_000_000, 100),
            (7, 3, 21, 1),
            (1_000_003, 999, 3_000_009, 333),
            (10, 1, 3, 4),
        ] {
            assert_eq!(
                share(weight, proportion(WHOLE, left, all).max(1)),
                expected,
                "{weight} of {all} for {left}"
            );
        }
    }

    fn rings() -> Rings<u64> {
        let mut rings = Rings::default();
        rings.all.reserve(100).unwrap();
        rings
    }

    #[test]
    fn a_group_that_goes_in_and_out_does_not_overtake() {
        let mut rings = rings();
        let top = rings.add(1, NO_RING);
        let [first, _, empty, _] = [10, 20, 0, 40].map(|usage| {
            let ring = rings.add(usage, top);
            rings.set_own(ring, RingReason::Reclaimers, true);
            ring
        });
        assert_eq!(
            [(); 3].map(|()| visited(&mut rings)),
            [Some(10), Some(20), Some(40)]
        );
        rings.set_own(first, RingReason::Reclaimers, false);
        rings.set_own(first, RingReason::Reclaimers, true);
        rings.remove(empty);
        let lap = [(); 5].map(|()| visited(&mut rings));
        assert_eq!(lap, [None, Some(20), Some(10), Some(40), None]);
        let ReasonCount { own, below } = rings.counts(top, RingReason::Reclaimers);
        assert_eq!((own, below), (false, 3));
    }

    /// A path on which each group is in excess, one after the other: each tells the one above it,
    /// once.
    #[test]
    fn a_change_goes_up_as_far_as_it_changes_anything() {
        let mut rings = rings();
        let mut path = vec![rings.add(1, NO_RING)];
        let levels = if cfg!(miri) { 12 } else { 100 };
        for usage in 2..=levels {
            path.push(rings.add(usage, *path.last().unwrap()));
        }
        let counts = |rings: &Rings<u64>| -> Vec<(bool, u64)> {
            let counts = path
                .iter()
                .map(|&ring| rings.counts(ring, RingReason::Excess));
            counts.map(|count| (count.own, count.below)).collect()
        };
        let mut expected = vec![(false, 0); path.len()];
        for own in [true, false] {
            for (at, &ring) in path.iter().enumerate().rev() {
                rings.set_own(ring, RingReason::Excess, own);
                rings.set_own(ring, RingReason::Excess, own);
                expected[at].0 = own;
                for level in 0..path.len() - 1 {
                    expected[level].1 =
                        u64::from(expected[level + 1..].iter().any(|&(own, _)| own));
                }
                assert_eq!(counts(&rings), expected);
            }
        }
    }
}
