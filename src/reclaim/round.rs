//! A round of reclaim: which groups are asked, for how much, and what came of it.
//!
//! The kernel scans each group's lists by a share that doubles with each priority. Here the first
//! lap of the rings asks each group for a small part of what it could give, and so learns how much
//! there is. The laps after it ask each for its part of what is missing, the last one for
//! everything. A group's *balance* is what it may still be asked for. Bytes that it gives beyond
//! that are held against it in later laps. So groups give in proportion to what they could,
//! whatever is asked for at a time.
//!
//! No lock is held while foreign code runs, and this thread is not in transit. The round checks a
//! reclaimer's claim against what this thread uncharged meanwhile and against the fall of usage:
//! below a refusing level no stock is open, so what is freed goes up the tree at once. After
//! `shrink_node_memcgs` in `mm/vmscan.c` and the soft limit rework (Hocko, 2013).

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::counter::effective::{proportion, views};
use crate::counter::handle::{Handle, WeakCounter};
use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::counter::protection::Protection;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{events, group_tree, importance};
use crate::reclaim::turns::{GroupTurn, WalkStep};
use crate::reclaim::{registrations, rings, shares, watch};
use crate::state::events::Event;
use crate::state::history::{History, ReclaimerStanding};
use crate::state::reclaim::{RingReason, Rings, WHOLE};
use crate::state::reclaimer::{ReclaimCause, ReclaimContext, ReclaimPass, Reclaimer};
use crate::sync::clock;
use crate::sync::stat_atomic::AtomicU64;
use crate::sync::{Arc, Ordering, is_over, pause};
use crate::thread::{context, freed};

/// Laps of a pass after those that learn how much there is: one is not enough where groups give
/// less than they said.
const LAPS_MAX: u32 = 6;

/// Longer than any thread waits: points in time have an end.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The earlier one of a time and the end of the caller's time, if that has one.
pub(crate) fn earlier(time: Instant, end: Option<Instant>) -> Instant {
    end.map_or(time, |end| end.min(time))
}

/// Reclaimers of one group, and what each says it could free.
type ReadyReclaimers = SmallVec<[(Arc<Reclaimer>, u64); 2]>;

/// Protection of a group against the target.
#[derive(Default)]
struct ProtectedBytes {
    low: u64,
    /// In this pass, as things are now: the group is not asked for these.
    now: u64,
    /// In this pass, as things were when the lap began. The group's weight follows from it, so that
    /// the order of turns does not matter.
    in_lap: u64,
}

/// What [`Group::reclaim`](crate::Group::reclaim) has done.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let report = runtime.root().reclaim(4_096)?;
/// assert_eq!((report.requested, report.freed, report.visited), (4_096, 0, 0), "no group has anything to give");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReclaimReport {
    /// Bytes that were asked for.
    pub requested: u64,
    /// Bytes that reclaimers have freed, as far as it shows: by what this thread has uncharged, or
    /// by how much usage fell.
    pub freed: u64,
    /// Bytes that reclaimers have [promised](crate::ReclaimContext::promise) and not yet reported.
    pub pending: u64,
    /// How often a group with reclaimers was visited.
    pub visited: u64,
    /// How many of those visits were to groups in excess of their soft limits.
    pub soft_visited: u64,
    /// How many calls of reclaimers panicked.
    pub panics: u64,
    /// True if the time was over before enough had been freed.
    pub timed_out: bool,
}

impl ReclaimReport {
    /// Another round for the same request.
    pub(crate) fn add(&mut self, round: &ReclaimReport) {
        self.freed = self.freed.saturating_add(round.freed);
        self.pending = self.pending.saturating_add(round.pending);
        self.visited += round.visited;
        self.soft_visited += round.soft_visited;
        self.panics += round.panics;
        self.timed_out |= round.timed_out;
    }
}

/// What came of one round.
pub(crate) struct RoundOutcome {
    pub(crate) report: ReclaimReport,
    /// Reclaimers that have promised to free more.
    pub(crate) owing: SmallVec<[Arc<History>; 1]>,
    /// The round came to nothing, but rounds of other threads freed something.
    pub(crate) others: bool,
    /// The round came to nothing, and it did not wait for the rounds of other threads.
    pub(crate) unwaited: bool,
}

/// Returns the bytes that these reclaimers have promised and not reported yet.
pub(crate) fn owed(promised: &[Arc<History>]) -> u64 {
    promised
        .iter()
        .map(|history| history.owed())
        .fold(0, u64::saturating_add)
}

/// True if nothing waits for a group any longer.
pub(crate) type HasEnded = fn(&Counter) -> bool;

/// Cause, deadline and options shared by a series of rounds.
#[derive(Clone, Copy)]
pub(crate) struct ReclaimRequest<'a> {
    cause: ReclaimCause,
    /// When the time of reclaim is over. A look at shares moves it: that is no time of reclaim.
    pub(crate) deadline: Instant,
    /// When the caller's time is over.
    end: Option<Instant>,
    /// Promises took too long. Else a round leaves other groups alone, as long as a group in excess
    /// owes memory.
    pub(crate) lapsed: bool,
    /// True if this thread may wait for the rounds of other threads.
    waits: bool,
    /// Bytes that were believed although no figure shows them: credit in open stocks.
    unseen: u64,
    /// The round that has believed them: no later one does, for the credit is drained by then.
    believed_in: Option<u64>,
    /// A reclaimer has been asked. Time counts from then on, so that a thread that did not run for
    /// a while is not refused for it.
    asked: bool,
    /// The group that all this is for, and whether nothing waits for it any longer.
    ends_with: Option<(&'a Counter, HasEnded)>,
    /// Low of groups up to this importance is broken, where nothing else is left. `None`: of no
    /// group.
    breaks_low: Option<u8>,
}

impl<'a> ReclaimRequest<'a> {
    pub(crate) fn is_over(&self) -> bool {
        self.asked && is_over(self.deadline) || self.has_ended()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ends_with
            .is_some_and(|(group, has_ended)| has_ended(group))
    }

    pub(crate) fn new(cause: ReclaimCause, deadline: Instant) -> Self {
        ReclaimRequest {
            cause,
            deadline,
            end: None,
            lapsed: false,
            waits: true,
            unseen: 0,
            believed_in: None,
            asked: false,
            ends_with: None,
            breaks_low: Some(u8::MAX),
        }
    }

    /// The caller's time ends then, if it has an end.
    pub(crate) fn until(self, end: Option<Instant>) -> Self {
        ReclaimRequest {
            deadline: earlier(self.deadline, end),
            end,
            ..self
        }
    }

    /// Low of groups that are more important is not broken.
    pub(crate) fn breaks_low(self, importance: Option<u8>) -> Self {
        ReclaimRequest {
            breaks_low: importance,
            ..self
        }
    }

    /// No reclaimer is asked and no round waited for, once that has happened to the group. No low
    /// of a more important group is broken for it.
    pub(crate) fn ends_with(self, group: &'a Counter, has_ended: HasEnded) -> Self {
        ReclaimRequest {
            ends_with: Some((group, has_ended)),
            ..self
        }
        .breaks_low(Some(importance::of(group)))
    }

    pub(crate) fn waits(self, waits: bool) -> Self {
        ReclaimRequest { waits, ..self }
    }
}

/// One round while it is under way: what it is for, what it has got so far, and what it has learnt
/// about groups and reclaimers.
struct Round<'r, 'a> {
    target: &'r Counter,
    ring: u32,
    request: &'r mut ReclaimRequest<'a>,
    number: u64,
    report: ReclaimReport,
    owing: SmallVec<[Arc<History>; 1]>,
    /// A group was spared for its low: there may be a pass below low.
    low_kept: bool,
    /// The protection of a group depends on what others use, and so falls as they give.
    shares: bool,
    /// Groups that were reclaimed below their low: one event each.
    low_broken: SmallVec<[u32; 4]>,
    /// A reclaimer was passed over because it has freed nothing lately. It is asked once nothing
    /// else is left.
    spared: bool,
    /// Nothing else is left: such reclaimers are asked, too.
    last: bool,
    /// The round is counted among those of its target.
    under_way: bool,
    unwaited: bool,
    /// The time when the lap began, or the last call ended: the clock is not read for each group.
    now: Instant,
    /// The groups that had been visited by then.
    visited_by_now: u64,
    lap_begun: Instant,
    /// How many calls have freed nothing, of those that say something about their reclaimer.
    fruitless: u64,
}

/// One round for `want` bytes of the subtree of `target`, where the caller has found [a
/// reclaimer](registrations::any_below). `None`: nothing is wanted, or this thread is inside a
/// reclaimer, where reclaim does not nest.
pub(crate) fn run(
    target: &Counter,
    want: u64,
    request: &mut ReclaimRequest<'_>,
) -> Option<RoundOutcome> {
    static ROUNDS: AtomicU64 = AtomicU64::new(1);
    if want == 0 {
        return None;
    }
    // Which groups are in excess follows from their shares, so these are looked at first. The time
    // of that look is given back to reclaim.
    request.deadline = earlier(request.deadline + shares::look(target), request.end);
    context::in_hook(|| {
        let now = clock::now();
        let mut round = Round {
            target,
            ring: rings::number(target),
            request,
            number: ROUNDS.fetch_add(1, Ordering::Relaxed),
            report: ReclaimReport {
                requested: want,
                ..ReclaimReport::default()
            },
            owing: SmallVec::new(),
            low_kept: false,
            shares: false,
            low_broken: SmallVec::new(),
            spared: false,
            last: false,
            under_way: false,
            unwaited: false,
            now,
            visited_by_now: 0,
            lap_begun: now,
            fruitless: 0,
        };
        // To tell at the end whether other threads have freed something below the target meanwhile.
        let before = round.rings(|rings, ring| rings.fruitful(ring));
        // Where nothing has come since the last round that came to nothing, no reclaimer is worth
        // asking before those that gave nothing lately: all are asked at once.
        round.last = round.rings(|rings, ring| rings.is_barren(ring));
        round.set_under_way(true);
        round.make_passes(before);
        round.set_under_way(false);
        // Remembered until a call below the target frees something again.
        if round.report.freed == 0 {
            round.rings(|rings, ring| rings.note_barren(ring));
        }
        // Memory that other threads got may be what this round's caller needs.
        // Mutation: reclaim-by-others-counts-for-nothing
        let others =
            round.came_to_nothing() && round.rings(|rings, ring| rings.fruitful(ring)) != before;
        RoundOutcome {
            report: round.report,
            owing: round.owing,
            others,
            unwaited: round.unwaited,
        }
    })
}

impl<'r> Round<'r, '_> {
    fn tree(&self) -> &'r Tree {
        self.target.tree()
    }

    /// Wanted, and neither freed nor promised.
    fn left(&self) -> u64 {
        self.report
            .requested
            .saturating_sub(self.report.freed)
            .saturating_sub(self.report.pending)
    }

    /// True if the round has to end: there is enough, the time is up, or nothing waits for the
    /// group any longer.
    fn is_done(&mut self) -> bool {
        let over = self.left() > 0 && self.request.is_over();
        self.report.timed_out |= over;
        over || self.left() == 0
    }

    /// Makes the passes of a round, until there is enough. They go from the groups that should give
    /// first to those that are to be spared longest. `before` is how many calls had freed something
    /// when the round began.
    fn make_passes(&mut self, before: u64) {
        // Groups above their soft limits have more than their part: they give before all others.
        if self.has_excess() {
            self.pass(ReclaimPass::Soft);
            // The groups in excess went, or went below their limits, before the pass looked.
            if self.report.soft_visited == 0 && self.has_excess() {
                self.pass(ReclaimPass::Soft);
            }
            // Also where the report has come meanwhile: the charge that it is for comes first.
            if !self.owing.is_empty() && !self.request.lapsed {
                return;
            }
        }
        // All groups, as far as neither min nor low covers what they have.
        self.pass(ReclaimPass::Unprotected);
        // The reclaimers that freed nothing lately were left out, to save calls. Before a charge is
        // refused each of them is asked after all.
        if self.came_to_nothing() && self.spared && !self.last {
            self.last = true;
            self.pass(ReclaimPass::Unprotected);
        }
        // Low is broken only where nothing else is left: neither this round nor those of other
        // threads got anything.
        if self.came_to_nothing() && self.others_came_to_nothing(before) && self.low_kept {
            self.pass(ReclaimPass::Low);
        }
    }

    /// Rounds of other threads may have taken all the turns of the same groups: waits until one of
    /// them frees something, or they are over.
    fn others_came_to_nothing(&mut self, before: u64) -> bool {
        // A round that waits is not under way, so two do not wait for each other.
        self.set_under_way(false);
        let undecided = |rings: &mut Rings<WeakCounter>, ring| {
            rings.fruitful(ring) == before && rings.overlapping(ring) > 0
        };
        while self.rings(undecided) && !is_over(self.request.deadline) && !self.request.has_ended()
        {
            if !self.request.waits {
                // It stays uncounted, so the last of several that do not wait finds no other round
                // and goes on.
                self.unwaited = true;
                return false;
            }
            pause();
        }
        self.set_under_way(true);
        self.rings(|rings, ring| rings.fruitful(ring)) == before
    }

    /// Counts the round among those of its target, or no longer. Rounds that overlap it wait for
    /// the counted ones alone.
    fn set_under_way(&mut self, under_way: bool) {
        if std::mem::replace(&mut self.under_way, under_way) != under_way {
            self.rings(|rings, ring| rings.count_round(ring, if under_way { 1 } else { -1 }));
        }
    }

    /// Works with the rings, and the number of the target's.
    fn rings<R>(&self, work: impl FnOnce(&mut Rings<WeakCounter>, u32) -> R) -> R {
        let _path = SlowPath::enter();
        work(&mut rings::lock(self.tree()), self.ring)
    }

    fn came_to_nothing(&self) -> bool {
        self.report.freed == 0 && (self.request.lapsed || owed(&self.owing) == 0)
    }

    /// True if the target or a group below is in excess: else the soft pass visits none. What is
    /// above the target does not count.
    fn has_excess(&self) -> bool {
        self.rings(|rings, ring| rings.counts(ring, RingReason::Excess).any())
    }

    /// Makes laps until there is enough, or no group has more. The first laps learn how much there
    /// is, each further one asks for a part of what is missing, and the last for everything.
    fn pass(&mut self, pass: ReclaimPass) {
        // The rest of a lap that another round has begun, and a whole one.
        let is_whole = self.rings(|rings, ring| rings.is_fresh(ring, pass));
        let rest = self.lap(pass, false);
        // All groups have been looked at, by this round alone, and none had anything: a further lap
        // would find the same.
        if is_whole && rest == 0 && self.rings(|rings, ring| rings.overlapping(ring)) <= 1 {
            return;
        }
        let mut all = self.lap(pass, false);
        for lap in 1..=LAPS_MAX {
            if self.is_done() || all == 0 {
                return;
            }
            // Memory that one group gives leaves less protection to the others. As long as a lap
            // asks for half of all at most, what it asks of a group is not protected at its turn,
            // whichever groups had theirs before.
            let most = if self.shares {
                all.div_ceil(2)
            } else {
                u64::MAX
            };
            // Each group is asked for the part of its weight that the missing bytes are of all
            // weights; for a little at least, so that the lap brings something.
            let part = proportion(WHOLE, self.left().min(most), all).max(1);
            self.rings(|rings, ring| rings.begin_lap(ring, pass, part));
            all = self.lap(pass, lap == LAPS_MAX);
        }
    }

    /// A turn for each group, for all that it has or for the lap's part of it. Returns the weight
    /// of all groups that had anything.
    fn lap(&mut self, pass: ReclaimPass, everything: bool) -> u64 {
        // Where no group was visited since the clock was read, that is still the time: mostly the
        // first lap of a round, to which another look at the clock would be a tenth of all.
        if self.report.visited != self.visited_by_now {
            self.read_clock();
        }
        self.lap_begun = self.now;
        let mut all: u64 = 0;
        while !self.is_done() {
            match self.rings(|rings, ring| rings.next_turn(ring, pass)) {
                WalkStep::Visit(group, ring) => {
                    // The walk has taken the handle, under the lock: the group stays until the end
                    // of its turn.
                    let group = Handle::adopt(group.object);
                    all = all.saturating_add(self.visit(&group, ring, pass, everything));
                }
                WalkStep::OnlyIdle => {}
                WalkStep::LapOver => break,
            }
        }
        all
    }

    /// Gives a group its turn: looks at what it has, asks its reclaimers for its part, and counts
    /// what came back. Returns what the group weighs in this pass: 0 where it has nothing for it.
    fn visit(&mut self, group: &Counter, ring: u32, pass: ReclaimPass, everything: bool) -> u64 {
        self.report.visited += 1;
        self.report.soft_visited += u64::from(pass == ReclaimPass::Soft);
        let usage = group.usage();
        let ProtectedBytes {
            low,
            now: protection,
            in_lap,
        } = self.protection(group, pass);
        // If usage equals protection, all of it is protected. The target is not, against what it is
        // asked itself.
        let (able, ready) = if usage > protection {
            self.weigh(group, ring, usage)
        } else {
            Default::default()
        };
        // The more of it is protected, the less it gives, until the last lap.
        let most = able.min(usage.saturating_sub(protection));
        let weight = unprotected(able, usage, in_lap).max(1);
        let target = self.ring;
        let left = self.left();
        let turn = GroupTurn {
            pass,
            target,
            able,
            protection,
            weight,
            left,
            all: everything,
        };
        let asked = if most == 0 {
            None
        } else {
            self.rings(|rings, _| rings.begin_turn(ring, &turn))
        };
        // It has nothing for this pass, other threads ask for all of it already, or it has given
        // more than its part before. Where it has nothing, it must not save up for a later turn
        // what it cannot give now.
        let Some(ask) = asked.filter(|&ask| ask > 0) else {
            self.drop_last(group, ready);
            if most == 0 {
                self.rings(|rings, _| rings.forfeit(ring, pass));
            }
            return asked.map_or(0, |_| weight);
        };
        let (mut freed, fruitless, mut calls) = (0_u64, self.fruitless, 0);
        let pending = self.report.pending;
        // Lowest priority first. The next one is asked only for what those before it neither
        // brought nor promised.
        for &(ref reclaimer, able) in &ready {
            let promised = self.report.pending.saturating_sub(pending);
            let want = able.min(ask.saturating_sub(freed).saturating_sub(promised));
            // More may have come back than shows in what those before it have freed.
            let left = group.usage().saturating_sub(protection);
            let want = want.min(left.saturating_sub(promised));
            if want > 0 && !self.is_done() {
                calls += 1;
                freed = freed.saturating_add(self.call(group, reclaimer, want, pass));
            }
        }
        self.drop_last(group, ready);
        // One event for each group and round, and only where its low was really broken.
        if pass == ReclaimPass::Low
            && freed > 0
            && group.usage() < low
            && !self.low_broken.contains(&ring)
        {
            self.low_broken.push(ring);
            events::count(group, Event::Low);
        }
        // The round has enough before the group has given its part: its turn goes on in the next
        // round.
        let keep = self.left() == 0 && freed > 0;
        self.rings(|rings, _| {
            if rings.end_turn(ring, pass, ask, freed) > 0 && keep {
                rings.keep_turn(ring, pass);
            }
        });
        if calls > 0 && self.fruitless - fruitless == calls {
            // All of them have nothing, for the rest of the round.
            return 0;
        }
        // The group keeps the part of its weight that it can still give.
        proportion(weight, most.saturating_sub(freed), most).max(1)
    }

    /// Works out which bytes of a group no reclaimer is asked for in this pass: as things are now,
    /// and as they were when the lap began.
    fn protection(&mut self, group: &Counter, pass: ReclaimPass) -> ProtectedBytes {
        let Some(mut views) = views(group, self.target) else {
            return ProtectedBytes::default();
        };
        let [min, low] = [Protection::Min, Protection::Low].map(|kind| views.protected(kind));
        // Mutation: low-is-broken-by-what-the-target-matters
        let breaks_low = self
            .request
            .breaks_low
            .is_some_and(|most| importance::of(group) <= most);
        // Min always holds. The pass below low leaves low aside, but not for groups that are more
        // important than the charge.
        let of_pass = |min: u64, low: u64| {
            if pass == ReclaimPass::Low && breaks_low {
                min
            } else {
                min.max(low)
            }
        };
        self.low_kept |= pass != ReclaimPass::Low && low > min && breaks_low;
        let now = of_pass(min, low);
        // Nothing is protected, or by the group's own setting alone: what other groups give changes
        // nothing, so both figures are the same.
        if now == 0 || views.parents().len() == 0 {
            return ProtectedBytes {
                low,
                now,
                in_lap: now,
            };
        }
        // The group has a share of what its parents protect, and a larger one the more the others
        // give. Its weight is to be that of the beginning of the lap, or the order of turns would
        // decide.
        self.shares = true;
        let parents = views
            .parents()
            .map(|(level, figures)| (rings::number(level), figures));
        self.rings(|rings, _| rings.recall(pass, parents));
        let [min, in_lap_low] =
            [Protection::Min, Protection::Low].map(|kind| views.protected(kind));
        ProtectedBytes {
            low,
            now,
            in_lap: of_pass(min, in_lap_low),
        }
    }

    /// Asks the reclaimers of a group how much each could free. Returns the bytes that the group
    /// could give, and the reclaimers in their order. One that is not to be asked in this round
    /// counts with nothing.
    fn weigh(&mut self, group: &Counter, ring: u32, usage: u64) -> (u64, ReadyReclaimers) {
        let time = group_tree::of(self.target).settings.reclaim_time;
        let reclaimers = registrations::listed(self.tree(), ring);
        let mut ready = ReadyReclaimers::new();
        let mut all: u64 = 0;
        for reclaimer in reclaimers {
            let standing = reclaimer
                .history
                .standing(self.number, self.now, usage, time);
            let asked = match standing {
                ReclaimerStanding::Ready => true,
                ReclaimerStanding::Spared => false,
                ReclaimerStanding::Last => {
                    self.spared = true;
                    self.last
                }
                // It has promised memory. To ask it again would bring nothing sooner.
                ReclaimerStanding::Owes => {
                    self.note_promise(&reclaimer.history);
                    false
                }
            };
            // `reclaimable` is foreign code, too, and may panic.
            let able = if asked {
                watch::during(group, || reclaimer.reclaimable())
            } else {
                Ok(0)
            };
            if able.is_err() {
                self.panicked(group, &reclaimer, usage);
            }
            let able = able.unwrap_or(0);
            all = all.saturating_add(able);
            ready.push((reclaimer, able));
        }
        (all.min(usage), ready)
    }

    /// Gives the copies of the list of reclaimers up. Where a registration was dropped meanwhile
    /// this is the last of it, and its drop may panic.
    fn drop_last(&mut self, group: &Counter, ready: ReadyReclaimers) {
        for (reclaimer, _) in ready {
            self.report.panics += u64::from(registrations::drop_last(group, reclaimer));
        }
    }

    /// Calls foreign code. Returns what it freed, as far as it shows.
    fn call(
        &mut self,
        group: &Counter,
        reclaimer: &Reclaimer,
        want: u64,
        pass: ReclaimPass,
    ) -> u64 {
        let target = self.target;
        let ReclaimRequest {
            cause, deadline, ..
        } = *self.request;
        let context = ReclaimContext {
            group,
            target,
            cause,
            pass,
            deadline,
            want,
            usage: group.usage(),
            history: &reclaimer.history,
        };
        self.request.asked = true;
        // Two figures show what comes back, and neither is enough alone: a reclaimer that frees on
        // another thread uncharges nothing here, and usage also moves by what others charge. So the
        // larger one counts: what this thread uncharged, or the claim as far as usage has fallen.
        let usage = target.usage();
        let uncharged = freed::uncharged();
        let promised = reclaimer.history.promised();
        let calls = reclaimer.calls.begun();
        let claimed = watch::during(group, || reclaimer.call(want, &context));
        let seen = freed::uncharged_since(uncharged);
        let seen = seen.max(claimed.as_ref().map_or(0, |&claimed| {
            claimed.min(usage.saturating_sub(target.usage()))
        }));
        // In open stocks more may have come back than shows, but not time and again: whoever wants
        // the bytes drains them before the next round. One that claims a byte in each round would
        // otherwise be asked for as long as all credit lasts that there may be.
        let unseen = claimed
            .as_ref()
            .map_or(0, |&claimed| claimed.saturating_sub(seen));
        let is_believed = self
            .request
            .believed_in
            .is_none_or(|round| round == self.number);
        let unseen = if is_believed {
            unseen.min(target.bound().saturating_sub(self.request.unseen))
        } else {
            0
        };
        if unseen > 0 {
            self.request.unseen += unseen;
            self.request.believed_in = Some(self.number);
        }
        let freed = seen.saturating_add(unseen);
        // What has come to nothing by now is no promise: others are asked for it. One of an earlier
        // call may have, too.
        let promised = reclaimer.history.promised().wrapping_sub(promised);
        let promised = promised.cast_signed().max(0).cast_unsigned();
        if promised > 0 {
            self.note_promise(&reclaimer.history);
        }
        match claimed {
            // Its report judges it.
            Ok(_) if freed == 0 && promised > 0 => {}
            // Another thread was in the same reclaimer: that this one got nothing says nothing.
            Ok(_) if freed == 0 && reclaimer.was_contended(calls) => {}
            Ok(_) => self.judge(reclaimer, freed > 0, group.usage()),
            Err(_) => self.panicked(group, reclaimer, group.usage()),
        }
        self.report.freed = self.report.freed.saturating_add(freed);
        self.report.pending = self.report.pending.saturating_add(promised);
        freed
    }

    /// Notes a reclaimer that has promised more, once each.
    fn note_promise(&mut self, history: &Arc<History>) {
        if !self.owing.iter().any(|other| Arc::ptr_eq(other, history)) {
            self.owing.push(Arc::clone(history));
        }
    }

    /// Remembers whether a reclaimer freed anything. Its call also moves the time of the round on,
    /// so that the clock is read once for each call.
    fn judge(&mut self, reclaimer: &Reclaimer, fruitful: bool, usage: u64) {
        self.fruitless += u64::from(!fruitful);
        self.read_clock();
        let took = self.now.saturating_duration_since(self.lap_begun);
        reclaimer
            .history
            .judge(fruitful, usage, self.number, took, self.now);
    }

    fn read_clock(&mut self) {
        self.now = clock::now();
        self.visited_by_now = self.report.visited;
    }

    fn panicked(&mut self, group: &Counter, reclaimer: &Reclaimer, usage: u64) {
        self.report.panics += 1;
        events::count(group, Event::Panic);
        // It has not said that it has nothing.
        reclaimer
            .history
            .judge(false, usage, self.number, Duration::ZERO, self.now);
    }
}

/// Weight of a group of `weight` bytes that is protected in part: the more of it is protected, the
/// less.
///
/// After `apply_proportional_protection` in `mm/vmscan.c`.
fn unprotected(weight: u64, usage: u64, protection: u64) -> u64 {
    let usage = usage.max(protection);
    // Plus 1, so that no usage divides by zero.
    let whole = u128::from(usage) + 1;
    let spared = u128::from(weight) * u128::from(protection) / whole;
    weight - u64::try_from(spared).unwrap_or(weight)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Limits, Reclaim, ReclaimCause, ReclaimContext, ReclaimPriority, Runtime};

    /// The time that a look takes is not reclaim's, and is the caller's all the same.
    #[test]
    fn a_look_at_shares_takes_no_time_of_reclaim() {
        struct Empty;
        impl Reclaim for Empty {
            fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
                0
            }
        }

        let runtime = Runtime::builder().max(1_000).batch(0).build().unwrap();
        let root = runtime.root();
        let group = root.create("group", Limits::new().share(1)).unwrap();
        let _registration =
            group.register_reclaimer(std::sync::Arc::new(Empty), ReclaimPriority::NORMAL);
        let begun = Instant::now();
        for end in [None, Some(begun + Duration::from_secs(5))] {
            root.set_max(if end.is_some() { 900 } else { 800 }).unwrap();
            let mut request =
                ReclaimRequest::new(ReclaimCause::Full, begun + Duration::from_secs(10)).until(end);
            run(root.first(), 1, &mut request);
            let later = request.deadline.saturating_duration_since(begun);
            if end.is_some() {
                assert_eq!(later, Duration::from_secs(5));
            } else {
                assert!(later > Duration::from_secs(10), "{later:?}");
            }
        }
    }
}
