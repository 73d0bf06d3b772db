//! A round of reclaim: who is asked, for how much, and what came of it.
//!
//! The kernel scans each group's lists by a share that doubles with each priority; here each lap of the rings lets each
//! group give a share of what it could, and shares double from lap to lap. A group's *balance* is what it may still be
//! asked for; what it gives beyond is held against it in the laps to come, so groups give in proportion to what they
//! could, whatever they are asked for at a time.
//!
//! No lock is held while foreign code runs, and this thread is not in transit. What a reclaimer says is checked against
//! what this thread uncharged meanwhile and against the fall of usage: below a refusing level no stock is open, so what
//! is freed goes up the tree at once. After `shrink_node_memcgs` in `mm/vmscan.c` and the soft limit rework (Hocko, 2013).

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::page_counter::Node;
use super::pool::slow_path;
use super::protection::Protection;
use super::ring::{Kind, NO_RING, Step};
use super::stat::Fresh;
use super::tree::Tree;
use crate::reclaim::entry::{Entry, Standing};
use crate::reclaim::protection::unprotected;
use crate::reclaim::{Event, ReclaimCause, ReclaimContext, ReclaimPass, ReclaimReport};
use crate::stat::Stat;
use crate::stat::flush::Unlist;
use crate::sync::stat_atomic::AtomicU64;
use crate::sync::{Arc, Ordering, is_over, per_thread};

/// The first lap of a pass takes this share of what a group could give, as a shift; the last lap takes all. The kernel
/// starts at 12 (DEF_PRIORITY), for its groups are of the size of a machine.
const SHIFT: u32 = 6;

/// Bytes that a group is asked for at least, where so many are wanted.
const CLUSTER: u64 = 4 * 4096;

/// Time that one charge may spend in reclaim, unless configured otherwise.
pub(crate) const TIME: Duration = Duration::from_millis(100);

/// How a tree reclaims.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReclaimConfig {
    pub(crate) time: Duration,
    /// Weighs groups, in place of what reclaimers say.
    pub(crate) weight: Option<Stat>,
}

impl Default for ReclaimConfig {
    fn default() -> Self {
        ReclaimConfig { time: TIME, weight: None }
    }
}

/// A handle for the time of a visit.
struct Held(&'static Node);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.release();
    }
}

struct Round {
    target: &'static Node,
    ring: u32,
    cause: ReclaimCause,
    deadline: Instant,
    number: u64,
    want: u64,
    report: ReclaimReport,
    /// Somebody in the present pass has been asked before and will report.
    owes: bool,
    /// Somebody was spared for its low.
    low_kept: bool,
}

impl Node {
    /// Whether there is anybody to ask in this subtree.
    pub(crate) fn can_reclaim(&self) -> bool {
        let ring = self.ring.load(Ordering::Relaxed);
        ring != NO_RING && {
            let (own, below) = slow_path(|_, _| self.tree().rings.lock().counts(ring, Kind::Reclaimers));
            own || below > 0
        }
    }

    /// One round for `want` bytes of the subtree. `None` inside a reclaimer: reclaim does not nest.
    pub(crate) fn reclaim(&'static self, want: u64, cause: ReclaimCause, deadline: Instant) -> Option<ReclaimReport> {
        static ROUNDS: AtomicU64 = AtomicU64::new(1);
        per_thread::in_hook(|| {
            let mut round = Round {
                target: self,
                ring: self.ring.load(Ordering::Relaxed),
                cause,
                deadline,
                number: ROUNDS.fetch_add(1, Ordering::Relaxed),
                want,
                report: ReclaimReport { requested: want, ..ReclaimReport::default() },
                owes: false,
                low_kept: false,
            };
            if want > 0 && self.can_reclaim() {
                round.run();
            }
            round.report
        })
    }
}

impl Round {
    fn tree(&self) -> &'static Tree {
        self.target.tree()
    }

    /// Wanted, and neither freed nor promised.
    fn left(&self) -> u64 {
        self.want.saturating_sub(self.report.freed).saturating_sub(self.report.pending)
    }

    fn is_done(&mut self) -> bool {
        let over = self.left() > 0 && is_over(self.deadline);
        self.report.timed_out |= over;
        over || self.left() == 0
    }

    fn run(&mut self) {
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
            if self.owes || self.report.pending > 0 {
                return;
            }
        }
        self.pass(ReclaimPass::Everyone);
        if self.report.freed == 0 && self.report.pending == 0 && !self.owes && self.low_kept {
            self.pass(ReclaimPass::Low);
        }
    }

    /// Whether the target or anybody below is in excess: else nobody is visited for it. What is above the target does
    /// not count.
    fn has_excess(&self) -> bool {
        let (own, below) = slow_path(|_, _| self.tree().rings.lock().counts(self.ring, Kind::Excess));
        own || below > 0
    }

    /// Laps until there is enough, or nobody has more.
    fn pass(&mut self, pass: ReclaimPass) {
        for shift in (0..=SHIFT).rev() {
            // The first lap may have been begun by somebody else.
            let laps = if shift == SHIFT { 2 } else { 1 };
            if self.is_done() || !self.lap(pass, shift, laps) {
                return;
            }
        }
    }

    /// Everybody's turn. False where nobody had anything.
    fn lap(&mut self, pass: ReclaimPass, shift: u32, mut laps: u32) -> bool {
        let mut able = false;
        while !self.is_done() {
            match slow_path(|_, _| self.tree().rings.lock().next(self.ring, pass == ReclaimPass::Soft)) {
                Step::Visit(node, ring) => able |= self.visit(&Held(node), ring, pass, shift),
                Step::LapOver => {
                    laps -= 1;
                    if laps == 0 {
                        return able;
                    }
                }
            }
        }
        true
    }

    /// False where the group has nothing for this pass.
    fn visit(&mut self, held: &Held, ring: u32, pass: ReclaimPass, shift: u32) -> bool {
        let &Held(node) = held;
        self.report.visited += 1;
        self.report.soft_visited += u64::from(pass == ReclaimPass::Soft);
        let usage = node.usage();
        let [min, low] = [Protection::Min, Protection::Low].map(|kind| node.effective(kind, self.target));
        let protection = if pass == ReclaimPass::Low { min } else { min.max(low) };
        self.low_kept |= pass != ReclaimPass::Low && low > min;
        // Where usage equals its protection it is protected. The target is not, against what it is asked itself.
        let (weight, ready) = if usage > protection { self.weigh(node, ring) } else { (0, SmallVec::new()) };
        let weight = unprotected(weight.min(usage), usage, protection).min(usage.saturating_sub(protection));
        if weight == 0 {
            slow_path(|_, _| self.tree().rings.lock().lapse(ring));
            return false;
        }
        let share = (weight >> shift).max(1);
        let balance = slow_path(|_, _| self.tree().rings.lock().allow(ring, share, weight));
        if balance <= 0 {
            return true;
        }
        if pass == ReclaimPass::Low && usage <= low {
            node.count_event(Event::Low);
        }
        let ask = self.left().min(balance.cast_unsigned().max(CLUSTER)).min(weight);
        let mut freed = 0;
        for (entry, able) in ready {
            let want = able.min(ask.saturating_sub(freed));
            if want > 0 && !self.is_done() {
                freed += self.call(node, &entry, want, pass);
            }
        }
        let keep = self.left() == 0;
        slow_path(|_, _| {
            let mut rings = self.tree().rings.lock();
            if rings.give(ring, freed) > 0 && freed > 0 && keep {
                rings.keep_turn(ring);
            }
        });
        true
    }

    /// What a group could give, and the reclaimers to ask for it, first things first.
    fn weigh(&mut self, node: &'static Node, ring: u32) -> (u64, SmallVec<[(Arc<Entry>, u64); 2]>) {
        let tree = self.tree();
        let entries: SmallVec<[Arc<Entry>; 2]> =
            slow_path(|_, _| tree.reclaimers.lock().get(ring as usize).into_iter().flatten().cloned().collect());
        let mut ready = SmallVec::new();
        let mut weight: u64 = 0;
        for entry in entries {
            match entry.standing(self.number, tree.reclaim.time) {
                Standing::Spared => continue,
                Standing::Owes => {
                    self.owes = true;
                    continue;
                }
                Standing::Ready => {}
            }
            match entry.reclaimable() {
                Ok(0) => {}
                Ok(able) => {
                    weight = weight.saturating_add(able);
                    ready.push((entry, able));
                }
                Err(_) => self.panicked(node, &entry),
            }
        }
        if let Some(stat) = tree.reclaim.weight.filter(|_| weight > 0) {
            weight = node.read_stats(Fresh::Stale).local(stat).max(0).cast_unsigned();
        }
        (weight, ready)
    }

    /// Foreign code. Returns what it freed, as far as it shows.
    fn call(&mut self, node: &'static Node, entry: &Arc<Entry>, want: u64, pass: ReclaimPass) -> u64 {
        let Round { target, cause, deadline, .. } = *self;
        let context = ReclaimContext { group: node.gate, target: target.gate, cause, pass, deadline, want, entry };
        let (usage, uncharged, owed) = (target.usage(), per_thread::uncharged(), entry.owed());
        let Ok(claimed) = entry.reclaim(want, &context) else {
            self.panicked(node, entry);
            return 0;
        };
        let seen = per_thread::uncharged().wrapping_sub(uncharged);
        let fallen = usage.saturating_sub(target.usage()).saturating_add(target.bound());
        let freed = seen.max(claimed.min(fallen));
        let promised = entry.owed().saturating_sub(owed);
        entry.judge(freed > 0 || promised > 0);
        self.report.freed = self.report.freed.saturating_add(freed);
        self.report.pending = self.report.pending.saturating_add(promised);
        freed
    }

    fn panicked(&mut self, node: &Node, entry: &Entry) {
        self.report.panics += 1;
        node.count_event(Event::Panic);
        entry.judge(false);
    }
}

// === Registrations ===

impl Tree {
    /// From here on it may be asked, for `node`; where that is offline, for the nearest above that is not.
    pub(crate) fn register(&self, node: &'static Node, entry: &Arc<Entry>) {
        self.make_rings(node);
        let mut lists = self.reclaimers.lock();
        // Under the lock: whoever goes offline hands on what it finds here afterwards.
        let online = std::iter::successors(Some(node), |level| level.life().parent)
            .find(|level| !level.state().is_offline() || level.life().parent.is_none());
        if let Some(home) = online {
            self.settle_in(&mut lists, home, Arc::clone(entry));
        }
    }

    fn settle_in(&self, lists: &mut Vec<Vec<Arc<Entry>>>, home: &'static Node, entry: Arc<Entry>) {
        let ring = home.ring.load(Ordering::Relaxed);
        if lists.len() <= ring as usize {
            lists.resize_with(ring as usize + 1, Vec::new);
        }
        entry.home.store(ring, Ordering::Relaxed);
        let list = &mut lists[ring as usize];
        let at = list.partition_point(|other| other.priority <= entry.priority);
        list.insert(at, entry);
        self.rings.lock().set_own(ring, Kind::Reclaimers, true);
    }

    /// Nobody finds it any more. What is returned is to be dropped without a lock.
    pub(crate) fn unregister(&self, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        let mut lists = self.reclaimers.lock();
        let ring = entry.home.load(Ordering::Relaxed);
        let list = lists.get_mut(ring as usize)?;
        let at = list.iter().position(|other| Arc::ptr_eq(other, entry))?;
        let gone = list.remove(at);
        if list.is_empty() {
            self.rings.lock().set_own(ring, Kind::Reclaimers, false);
        }
        Some(gone)
    }

    /// `group` has gone offline: what it could give its parent can, which keeps its charges. The root keeps its own.
    pub(crate) fn inherit(&self, group: &'static Node) {
        let ring = group.ring.load(Ordering::Relaxed);
        let Some(parent) = group.life().parent.filter(|_| ring != NO_RING) else { return };
        let mut lists = self.reclaimers.lock();
        let entries = lists.get_mut(ring as usize).map(std::mem::take).unwrap_or_default();
        if entries.is_empty() {
            return;
        }
        for entry in entries {
            self.settle_in(&mut lists, parent, entry);
        }
        self.rings.lock().set_own(ring, Kind::Reclaimers, false);
    }
}
