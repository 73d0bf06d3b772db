//! A round of reclaim: who is asked, for how much, and what came of it.
//!
//! The kernel scans each group's lists by a share that doubles with each priority. Here the first lap of the rings lets
//! each group give a small share of what it could, which tells how much there is; the laps after it ask each for its
//! part of what is missing; the last one for everything. A group's *balance* is what it may still be asked for; what it
//! gives beyond is held against it in the laps to come, so groups give in proportion to what they could, whatever is
//! asked for at a time.
//!
//! No lock is held while foreign code runs, and this thread is not in transit. What a reclaimer says is checked against
//! what this thread uncharged meanwhile and against the fall of usage: below a refusing level no stock is open, so what
//! is freed goes up the tree at once. After `shrink_node_memcgs` in `mm/vmscan.c` and the soft limit rework (Hocko,
//! 2013).

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::counter::make::slow_path;
use crate::counter::object::Counter;
use crate::counter::protection::{Protection, protected};
use crate::counter::tree::Tree;
use crate::hierarchy::events;
use crate::hierarchy::stats::Fresh;
use crate::pressure::delay::DELAY_MAX;
use crate::reclaim::entry::{Entry, Record, Standing};
use crate::reclaim::protection::{share, unprotected};
use crate::reclaim::rings::{Kind, NO_RING, Rings, Step, Turn, WHOLE};
use crate::reclaim::{ReclaimCause, ReclaimContext, ReclaimPass, ReclaimReport};
use crate::stat::Stat;
use crate::stat::visits::Unlist;
use crate::state::events::Event;
use crate::sync::stat_atomic::AtomicU64;
use crate::sync::{Arc, Ordering, is_over, pause};
use crate::thread::registry;

/// Laps of a pass: more than one after the first are needed where groups give less than they said.
const LAPS_MAX: u32 = 6;

/// Time that one charge may spend in reclaim, unless configured otherwise.
pub(crate) const TIME: Duration = Duration::from_millis(100);

/// More than anybody waits for: points in time have an end.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Time that a charge waits for one victim's memory, unless configured otherwise.
pub(crate) const OOM_TIME: Duration = Duration::from_secs(1);

/// How a tree reclaims, and what it does where that brings nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReclaimConfig {
    pub(crate) time: Duration,
    /// The longest delay of a charge above high.
    pub(crate) delay_max: Duration,
    /// How long a charge waits for one victim's memory.
    pub(crate) oom_time: Duration,
    /// Weighs groups, in place of what reclaimers say.
    pub(crate) weight: Option<Stat>,
}

impl Default for ReclaimConfig {
    fn default() -> Self {
        ReclaimConfig { time: TIME, delay_max: DELAY_MAX, oom_time: OOM_TIME, weight: None }
    }
}

/// Reclaimers of one group, and what each says it could free.
type Ready = SmallVec<[(Arc<Entry>, u64); 2]>;

/// A handle for the time of a visit.
struct Held(&'static Counter);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// What is protected of a group against the target.
#[derive(Default)]
struct Protected {
    low: u64,
    /// In this pass, as things are now: nobody is asked for that.
    now: u64,
    /// As they were when the lap began: what the group weighs follows from it, so that the order of turns does not
    /// matter.
    in_lap: u64,
}

/// What came of a round.
pub(crate) struct Outcome {
    pub(crate) report: ReclaimReport,
    /// They have promised to free more.
    pub(crate) owing: Owing,
    /// It came to nothing, but not the rounds of other threads.
    pub(crate) others: bool,
    /// It came to nothing, and did not wait for the rounds of other threads.
    pub(crate) unwaited: bool,
}

/// Reclaimers that have promised.
#[derive(Default)]
pub(crate) struct Owing(SmallVec<[Arc<Record>; 1]>);

impl Owing {
    /// One of them has not reported yet.
    pub(crate) fn is_open(&self) -> bool {
        self.0.iter().any(|record| record.owed() > 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, record: &Arc<Record>) {
        if !self.0.iter().any(|other| Arc::ptr_eq(other, record)) {
            self.0.push(Arc::clone(record));
        }
    }
}

/// How patient a round is with those that have promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promises {
    /// As long as a group in excess owes memory, others are left alone.
    Count,
    /// They took too long.
    Lapse,
}

/// What several rounds are for.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    cause: ReclaimCause,
    pub(crate) deadline: Instant,
    pub(crate) promises: Promises,
    /// Whether this thread may wait for the rounds of other threads.
    waits: bool,
    /// Believed without a trace of it: credit in open stocks.
    unseen: u64,
    /// Somebody has been asked: from then on time counts. A thread that was not running for a while is not refused for
    /// it.
    asked: bool,
}

impl Request {
    /// Its time is up.
    pub(crate) fn is_over(&self) -> bool {
        self.asked && is_over(self.deadline)
    }

    pub(crate) fn new(cause: ReclaimCause, deadline: Instant) -> Self {
        Request { cause, deadline, promises: Promises::Count, waits: true, unseen: 0, asked: false }
    }

    pub(crate) fn waits(self, waits: bool) -> Self {
        Request { waits, ..self }
    }
}

struct Round<'a> {
    target: &'static Counter,
    ring: u32,
    request: &'a mut Request,
    number: u64,
    want: u64,
    report: ReclaimReport,
    owing: Owing,
    /// Somebody was spared for its low.
    low_kept: bool,
    /// Somebody is protected by more than it claims itself, and by less as others give.
    shares: bool,
    /// Groups that were reclaimed below their low: one event each.
    low_broken: SmallVec<[u32; 4]>,
    /// Somebody was spared for having freed nothing lately, and may be asked when nothing else is left: now.
    spared: bool,
    last: bool,
    /// Counted among the rounds of its target.
    under_way: bool,
    unwaited: bool,
}

impl Counter {
    /// Whether there is anybody to ask in this subtree.
    pub(crate) fn can_reclaim(&self) -> bool {
        let ring = self.ring.load(Ordering::Relaxed);
        ring != NO_RING && {
            let (own, below) = slow_path(|_, _| self.tree().rings.lock().counts(ring, Kind::Reclaimers));
            own || below > 0
        }
    }

    /// One round for `want` bytes of the subtree. `None` inside a reclaimer: reclaim does not nest.
    pub(crate) fn reclaim(&'static self, want: u64, request: &mut Request) -> Option<Outcome> {
        static ROUNDS: AtomicU64 = AtomicU64::new(1);
        registry::in_hook(|| {
            // In this order: a ring comes before the first reclaimer.
            let asked = want > 0 && self.can_reclaim();
            let mut round = Round {
                target: self,
                ring: self.ring.load(Ordering::Relaxed),
                request,
                number: ROUNDS.fetch_add(1, Ordering::Relaxed),
                want,
                report: ReclaimReport { requested: want, ..ReclaimReport::default() },
                owing: Owing::default(),
                low_kept: false,
                shares: false,
                low_broken: SmallVec::new(),
                spared: false,
                last: false,
                under_way: false,
                unwaited: false,
            };
            // What others got may be what this one needs.
            let mut others = false;
            if asked {
                let before = round.rings(|rings, ring| rings.fruitful(ring));
                round.set_under_way(true);
                round.run(before);
                round.set_under_way(false);
                others = round.came_to_nothing() && round.rings(|rings, ring| rings.fruitful(ring)) != before;
            }
            Outcome { report: round.report, owing: round.owing, others, unwaited: round.unwaited }
        })
    }
}

impl Round<'_> {
    fn tree(&self) -> &'static Tree {
        self.target.tree()
    }

    /// Wanted, and neither freed nor promised.
    fn left(&self) -> u64 {
        self.want.saturating_sub(self.report.freed).saturating_sub(self.report.pending)
    }

    fn is_done(&mut self) -> bool {
        let over = self.left() > 0 && self.request.is_over();
        self.report.timed_out |= over;
        over || self.left() == 0
    }

    /// `before`: what others had got when it began.
    fn run(&mut self, before: u64) {
        if self.tree().reclaim.weight.is_some() {
            // What is weighed is this subtree; the rest of the tree may write as much as it likes.
            self.target.flush_stats(Unlist::Never);
        }
        if self.has_excess() {
            self.pass(ReclaimPass::Soft);
            // They went, or went below their limits, before anybody looked.
            if self.report.soft_visited == 0 && self.has_excess() {
                self.pass(ReclaimPass::Soft);
            }
            // Also where the answer has come meanwhile: the charge that it is for comes first.
            if !self.owing.is_empty() && self.request.promises == Promises::Count {
                return;
            }
        }
        self.pass(ReclaimPass::Everyone);
        if self.came_to_nothing() && self.spared {
            self.last = true;
            self.pass(ReclaimPass::Everyone);
        }
        if self.came_to_nothing() && self.others_came_to_nothing(before) && self.low_kept {
            self.pass(ReclaimPass::Low);
        }
    }

    /// Other threads may be at the same groups and have taken all the turns: wait until something comes of it, or they
    /// are done.
    fn others_came_to_nothing(&mut self, before: u64) -> bool {
        // Who waits is not under way: two do not wait for each other.
        self.set_under_way(false);
        let undecided = |rings: &mut Rings, ring| rings.fruitful(ring) == before && rings.overlapping(ring) > 0;
        while self.rings(undecided) && !is_over(self.request.deadline) {
            if !self.request.waits {
                // It stays uncounted, so the last of several that do not wait finds nobody and goes on.
                self.unwaited = true;
                return false;
            }
            pause();
        }
        self.set_under_way(true);
        self.rings(|rings, ring| rings.fruitful(ring)) == before
    }

    fn set_under_way(&mut self, under_way: bool) {
        if std::mem::replace(&mut self.under_way, under_way) != under_way {
            self.rings(|rings, ring| rings.count_round(ring, if under_way { 1 } else { -1 }));
        }
    }

    /// With the rings, and the target's.
    fn rings<R>(&self, work: impl FnOnce(&mut Rings, u32) -> R) -> R {
        slow_path(|_, _| work(&mut self.tree().rings.lock(), self.ring))
    }

    fn came_to_nothing(&self) -> bool {
        self.report.freed == 0 && (self.request.promises == Promises::Lapse || !self.owing.is_open())
    }

    /// Whether the target or anybody below is in excess: else nobody is visited for it. What is above the target does
    /// not count.
    fn has_excess(&self) -> bool {
        let (own, below) = self.rings(|rings, ring| rings.counts(ring, Kind::Excess));
        own || below > 0
    }

    /// Laps until there is enough, or nobody has more.
    fn pass(&mut self, pass: ReclaimPass) {
        // What remains of the lap that somebody else has begun, and a whole one.
        let _ = self.lap(pass, false);
        let mut all = self.lap(pass, false);
        for lap in 1..=LAPS_MAX {
            if self.is_done() || all == 0 {
                return;
            }
            // What others give leaves less protection to each. As long as a lap asks for half of all at most, what it
            // asks of each is not protected when its turn comes, whoever had one before.
            let most = if self.shares { all.div_ceil(2) } else { u64::MAX };
            // Rounded up: a byte that is left over is a question of its own.
            let part = share(WHOLE, self.left().min(most), all).saturating_add(1);
            self.rings(|rings, ring| rings.begin_lap(ring, pass, part));
            all = self.lap(pass, lap == LAPS_MAX);
        }
    }

    /// Everybody's turn, for all that everybody has or for the lap's part of it. Returns the weight of all that had
    /// anything.
    fn lap(&mut self, pass: ReclaimPass, everything: bool) -> u64 {
        let mut all: u64 = 0;
        while !self.is_done() {
            match self.rings(|rings, ring| rings.next(ring, pass)) {
                Step::Visit(node, ring) => all = all.saturating_add(self.visit(&Held(node), ring, pass, everything)),
                Step::OnlyIdle => {}
                Step::LapOver => break,
            }
        }
        all
    }

    /// Returns what the group weighs in this pass: 0 where it has nothing for it.
    fn visit(&mut self, held: &Held, ring: u32, pass: ReclaimPass, everything: bool) -> u64 {
        let &Held(node) = held;
        self.report.visited += 1;
        self.report.soft_visited += u64::from(pass == ReclaimPass::Soft);
        let usage = node.usage();
        let Protected { low, now: protection, in_lap } = self.protection(node, pass);
        // Where usage equals its protection it is protected. The target is not, against what it is asked itself.
        let (able, weight, ready) = if usage > protection { self.weigh(node, ring, usage) } else { Default::default() };
        // The more of it is protected, the less it gives, until the last lap.
        let most = able.min(usage.saturating_sub(protection));
        let weight = unprotected(weight, usage, in_lap).max(1);
        let (target, left) = (self.ring, self.left());
        let turn = Turn { pass, target, able, protection, weight, left, all: everything };
        let asked = if most == 0 { None } else { self.rings(|rings, _| rings.ask(ring, &turn)) };
        let Some(ask) = asked.filter(|&ask| ask > 0) else {
            self.let_go(node, ready);
            if most == 0 {
                self.rings(|rings, _| rings.lapse(ring, pass));
            }
            return asked.map_or(0, |_| weight);
        };
        let mut freed: u64 = 0;
        for &(ref entry, able) in &ready {
            let want = able.min(ask.saturating_sub(freed));
            if want > 0 && !self.is_done() {
                freed = freed.saturating_add(self.call(node, entry, want, pass));
            }
        }
        self.let_go(node, ready);
        if pass == ReclaimPass::Low && freed > 0 && node.usage() < low && !self.low_broken.contains(&ring) {
            self.low_broken.push(ring);
            events::count(node, Event::Low);
        }
        let keep = self.left() == 0 && freed > 0;
        self.rings(|rings, _| {
            if rings.give(ring, pass, ask, freed) > 0 && keep {
                rings.keep_turn(ring, pass);
            }
        });
        // A weight may be of another unit than bytes: what is left of the group weighs as much of it as it can still give.
        share(weight, most.saturating_sub(freed), most).max(1)
    }

    /// What is protected of a group.
    fn protection(&mut self, node: &'static Counter, pass: ReclaimPass) -> Protected {
        let Some(mut views) = node.views(self.target) else { return Protected::default() };
        let [min, low] = [Protection::Min, Protection::Low].map(|kind| protected(&views, kind));
        let of_pass = |min: u64, low: u64| if pass == ReclaimPass::Low { min } else { min.max(low) };
        self.low_kept |= pass != ReclaimPass::Low && low > min;
        let now = of_pass(min, low);
        if now == 0 || views.len() == 1 {
            return Protected { low, now, in_lap: now };
        }
        self.shares = true;
        self.rings(|rings, _| rings.recall(pass, &mut views[1..]));
        let [min, in_lap_low] = [Protection::Min, Protection::Low].map(|kind| protected(&views, kind));
        Protected { low, now, in_lap: of_pass(min, in_lap_low) }
    }

    /// What a group could give, what it weighs against others, and the reclaimers to ask, first things first.
    fn weigh(&mut self, node: &'static Counter, ring: u32, usage: u64) -> (u64, u64, Ready) {
        let tree = self.tree();
        let entries: SmallVec<[Arc<Entry>; 2]> =
            slow_path(|_, _| tree.reclaimers.lock().get(ring as usize).into_iter().flatten().cloned().collect());
        let mut ready = Ready::new();
        let mut all: u64 = 0;
        for entry in entries {
            let asked = match entry.record.standing(self.number, usage, tree.reclaim.time) {
                Standing::Ready => true,
                Standing::Spared { unless_last } => {
                    self.spared |= unless_last;
                    unless_last && self.last
                }
                Standing::Owes => {
                    self.owing.add(&entry.record);
                    false
                }
            };
            let able = if asked { entry.reclaimable() } else { Ok(0) };
            if able.is_err() {
                self.panicked(node, &entry, usage);
            }
            let able = able.unwrap_or(0);
            all = all.saturating_add(able);
            ready.push((entry, able));
        }
        let all = all.min(usage);
        let weight = match tree.reclaim.weight {
            Some(stat) if all > 0 => node.read_stats(Fresh::Stale).local(stat).max(0).cast_unsigned().min(all),
            _ => all,
        };
        (all, weight, ready)
    }

    /// Whoever dropped a registration meanwhile left the last of it to us.
    fn let_go(&mut self, node: &Counter, ready: Ready) {
        for (entry, _) in ready {
            if Arc::into_inner(entry).is_some_and(|entry| entry.end().is_err()) {
                self.report.panics += 1;
                events::count(node, Event::Panic);
            }
        }
    }

    /// Foreign code. Returns what it freed, as far as it shows.
    fn call(&mut self, node: &'static Counter, entry: &Arc<Entry>, want: u64, pass: ReclaimPass) -> u64 {
        let (target, Request { cause, deadline, .. }) = (self.target, *self.request);
        let context = ReclaimContext {
            group: node.header,
            target: target.header,
            cause,
            pass,
            deadline,
            want,
            usage: node.usage(),
            entry,
        };
        self.request.asked = true;
        let (usage, uncharged, promised) = (target.usage(), registry::uncharged(), entry.record.promised());
        let calls = entry.calls_begun();
        let claimed = entry.reclaim(want, &context);
        let seen = registry::uncharged_since(uncharged);
        let seen = seen.max(claimed.as_ref().map_or(0, |&claimed| claimed.min(usage.saturating_sub(target.usage()))));
        // In open stocks more may have come back than shows, but not time and again.
        let unseen = claimed.as_ref().map_or(0, |&claimed| claimed.saturating_sub(seen));
        let unseen = unseen.min(target.bound().saturating_sub(self.request.unseen));
        self.request.unseen += unseen;
        let freed = seen.saturating_add(unseen);
        let promised = entry.record.promised().wrapping_sub(promised);
        if promised > 0 {
            self.owing.add(&entry.record);
        }
        match claimed {
            // It is judged by its answer.
            Ok(_) if freed == 0 && promised > 0 => {}
            // Another thread was in the same reclaimer: that this one got nothing says nothing.
            Ok(_) if freed == 0 && entry.was_contended(calls) => {}
            Ok(_) => entry.record.judge(freed > 0, node.usage()),
            Err(_) => self.panicked(node, entry, node.usage()),
        }
        self.report.freed = self.report.freed.saturating_add(freed);
        self.report.pending = self.report.pending.saturating_add(promised);
        freed
    }

    fn panicked(&mut self, node: &Counter, entry: &Entry, usage: u64) {
        self.report.panics += 1;
        events::count(node, Event::Panic);
        entry.record.judge(false, usage);
    }
}
