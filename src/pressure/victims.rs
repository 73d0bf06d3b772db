//! Who is cancelled where reclaim brings nothing: the group furthest above its share.
//!
//! Decided on counters as they are, never on flushed statistics. Only groups with a hook are looked at, so a choice
//! costs a look-up for each level above each of them, and takes no lock but that of the list. One victim at a time in a
//! domain: who comes while one is being waited for waits for that one, too. After `select_bad_process` and
//! `mem_cgroup_oom_group` in `mm/oom_kill.c` and `mm/memcontrol.c`, with the overrun of a share in the place of points.

use std::ptr;
use std::time::Instant;

use smallvec::SmallVec;

use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::counter::protection::Protection;
use crate::counter::slow_path::slow_path;
use crate::counter::tree::Tree;
use crate::hierarchy::events;
use crate::pressure::line::Decision;
use crate::pressure::wakers::Wakers;
use crate::pressure::{Cancel, OomPolicy};
use crate::reclaim::effective;
use crate::reclaim::round::TIME_MAX;
use crate::state::events::Event;
use crate::sync::stat_atomic::AtomicBool;
use crate::sync::{Arc, Ordering, is_over, model_failed};
use crate::thread::context;
use crate::thread::foreign::{Calls, Foreign};

/// Bits of `Counter::oom`: it stands for its whole subtree; it and all below are spared; it and all below are only
/// observed; its policy.
pub(crate) const TOGETHER: u8 = 1;
pub(crate) const EXEMPT: u8 = 1 << 1;
pub(crate) const OBSERVES: u8 = 1 << 2;
const REFUSES: u8 = 1 << 3;
const CHOOSES: u8 = 1 << 4;

/// What a tree knows of hooks and victims.
#[derive(Default)]
pub(crate) struct Oom {
    hooks: Vec<Arc<Hook>>,
    victims: Vec<Victim>,
}

/// What a user gives the crate to call.
type OnCancel = Box<dyn Fn(&Cancel) + Send + Sync>;

/// Foreign code that makes a group give its memory back. Keeps the group: a call may outlive its place.
struct Hook {
    node: &'static Counter,
    calls: Calls,
    hook: Foreign<OnCancel>,
}

impl Drop for Hook {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        if self.hook.end().is_err() {
            events::count_and_notify(self.node, Event::Panic);
        }
        self.node.release();
    }
}

/// One whose memory is being waited for. It may be gone: nothing but its generation and its usage is read.
struct Victim {
    node: &'static Counter,
    /// Itself and all above it.
    levels: SmallVec<[Name; 8]>,
    until: Instant,
    /// What its usage is once it has no more to give.
    share: u64,
    inner: Inner,
    spared: Spared,
}

/// Whether the thread that chose a victim has spared it, and told it nothing. Read and written under the lock.
type Spared = Arc<AtomicBool>;

/// Groups below a victim that have hooks of their own, and answer for themselves.
type Inner = SmallVec<[Name; 4]>;

/// A group for ever.
pub(crate) type Name = (u32, Generation);

fn name(node: &Counter) -> Name {
    (node.number, node.state().generation())
}

impl Victim {
    fn name(&self) -> Name {
        self.levels[0]
    }

    fn hits(&self, node: &Counter) -> bool {
        hits(self.name(), &self.inner, node)
    }

    /// More may come from it.
    fn is_awaited(&self) -> bool {
        self.name() == name(self.node) && self.node.usage() > self.share && !is_over(self.until)
    }
}

/// Groups that one charge has chosen or waited for already.
#[derive(Default)]
pub(crate) struct Excluded(SmallVec<[(Name, Spared); 4]>);

impl Excluded {
    fn contains(&self, group: Name) -> bool {
        self.0.iter().any(|(excluded, _)| *excluded == group)
    }

    /// A victim that another thread chose and then spared has been asked for nothing: this charge may choose it.
    fn forget_spared(&mut self) {
        // Relaxed: under the lock.
        self.0.retain(|(_, spared)| !spared.load(Ordering::Relaxed));
    }
}

/// What comes of looking for a victim.
pub(crate) enum Choice {
    /// There is none.
    Nobody,
    /// There is room by now.
    Room,
    /// Who asks has been chosen itself.
    Asker,
    /// A victim has given all it has, and the last of it may be on its way up to the domain: see
    /// [`Tree::settle_victims`].
    Unsettled,
    /// Somebody has chosen one, and waits for it.
    Awaited(Awaited),
    Victim(Chosen),
}

/// A victim whose memory is to be waited for.
#[derive(Clone, Copy)]
pub(crate) struct Awaited {
    victim: Name,
    pub(crate) until: Instant,
}

/// Somebody to be cancelled. Keeps it meanwhile.
pub(crate) struct Chosen {
    unit: &'static Counter,
    domain: &'static Counter,
    hooks: SmallVec<[Arc<Hook>; 2]>,
    together: bool,
    wanted: u64,
    overrun: u64,
    inner: Inner,
    spared: Spared,
    pub(crate) awaited: Awaited,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        if !model_failed() {
            self.unit.release();
        }
    }
}

/// A hook's place in its group. Dropped, it is gone.
pub(crate) struct Hooked(Arc<Hook>);

impl Drop for Hooked {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        let Hooked(hook) = self;
        hook.calls.retire();
        slow_path(|_, _| hook.node.tree().oom.lock().hooks.retain(|other| !Arc::ptr_eq(other, hook)));
        // Inside foreign code nobody waits: two that drop each other would wait for each other.
        if !context::in_foreign() {
            hook.calls.wait();
        }
    }
}

// === impl Counter: its settings ===

impl Counter {
    pub(crate) fn oom_policy(&self) -> OomPolicy {
        match self.oom.load(Ordering::Relaxed) & (REFUSES | CHOOSES) {
            0 => OomPolicy::Inherit,
            REFUSES => OomPolicy::Refuse,
            _ => OomPolicy::Choose,
        }
    }

    pub(crate) fn set_oom_policy(&self, policy: OomPolicy) {
        let bits = match policy {
            OomPolicy::Inherit => 0,
            OomPolicy::Refuse => REFUSES,
            OomPolicy::Choose => CHOOSES,
        };
        let set = |old: u8| Some(old & !(REFUSES | CHOOSES) | bits);
        let _ = self.oom.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    /// Its own policy, or that of the nearest above which has one.
    pub(crate) fn chooses(&self) -> bool {
        let policy = self.path_to_root().map(Counter::oom_policy).find(|&policy| policy != OomPolicy::Inherit);
        policy == Some(OomPolicy::Choose)
    }

    pub(crate) fn set_oom_bit(&self, bit: u8, set: bool) {
        if set {
            self.oom.fetch_or(bit, Ordering::Relaxed)
        } else {
            self.oom.fetch_and(!bit, Ordering::Relaxed)
        };
    }

    fn has_oom_bit(&self, bit: u8) -> bool {
        self.oom.load(Ordering::Relaxed) & bit != 0
    }

    pub(crate) fn set_together(&self, together: bool) {
        self.set_oom_bit(TOGETHER, together);
    }

    pub(crate) fn is_together(&self) -> bool {
        self.has_oom_bit(TOGETHER)
    }

    pub(crate) fn set_exempt(&self, exempt: bool) {
        self.set_oom_bit(EXEMPT, exempt);
    }

    pub(crate) fn is_exempt(&self) -> bool {
        self.has_oom_bit(EXEMPT)
    }

    /// It, or one above it, is exempt.
    pub(crate) fn is_spared(&self) -> bool {
        self.path_to_root().any(Counter::is_exempt)
    }

    fn is_below(&self, top: &Counter) -> bool {
        self.path_to_root().any(|level| ptr::eq(level, top))
    }

    /// Who stands for this group in `domain`: the highest there that wants its subtree to go as one, or itself.
    fn unit(&'static self, domain: &'static Counter) -> &'static Counter {
        let inside = self.path_below(Some(domain)).chain([domain]);
        inside.filter(|level| level.is_together()).last().map_or(self, |level| level.header.node())
    }

    /// How far usage is above what low protects against `domain`, or the soft limit.
    fn overrun(&self, domain: &Counter) -> u64 {
        let soft = Some(self.limits.soft.load(Ordering::Relaxed)).filter(|&soft| soft < u64::MAX);
        let share = effective::protected(self, Protection::Low, domain).max(soft.unwrap_or(0));
        self.usage().saturating_sub(share)
    }

    /// From here on this group can be chosen. The caller keeps it meanwhile.
    pub(crate) fn hook(&'static self, hook: OnCancel) -> Hooked {
        self.state().pin();
        let hook = Arc::new(Hook { node: self, calls: Calls::new(), hook: Foreign::new(hook) });
        slow_path(|_, _| self.tree().oom.lock().hooks.push(Arc::clone(&hook)));
        Hooked(hook)
    }
}

// === impl Tree ===

impl Tree {
    /// Look for a victim in `domain`, for a charge of `wanted` to `asker`, which has `excluded` some.
    pub(crate) fn choose(
        &self,
        domain: &'static Counter,
        asker: Option<&'static Counter>,
        wanted: u64,
        excluded: &mut Excluded,
    ) -> Choice {
        slow_path(|_, _| {
            let mut oom = self.oom.lock();
            excluded.forget_spared();
            if oom.victims.iter().any(|victim| !victim.is_awaited() && victim.levels.contains(&name(domain))) {
                return Choice::Unsettled;
            }
            for victim in &oom.victims {
                let (name_of, until) = (victim.name(), victim.until);
                if victim.levels.contains(&name(domain)) && !excluded.contains(name_of) {
                    excluded.0.push((name_of, Arc::clone(&victim.spared)));
                    let awaited = Awaited { victim: name_of, until };
                    let asks_itself = asker.is_some_and(|asker| victim.hits(asker));
                    return if asks_itself { Choice::Asker } else { Choice::Awaited(awaited) };
                }
            }
            // Under the lock: what a victim gave meanwhile is not asked of another one.
            if domain.room(domain.admits()) >= wanted.max(1) {
                return Choice::Room;
            }
            let Some(Candidate { unit, overrun, below }) = oom.worst(domain, excluded) else { return Choice::Nobody };
            let together = unit.is_together();
            let is_hit = |hook: &&Arc<Hook>| {
                let inside = if together { hook.node.is_below(unit) } else { ptr::eq(hook.node, unit) };
                inside && !hook.node.is_spared()
            };
            let hooks = oom.hooks.iter().filter(is_hit).cloned().collect();
            let spared = Spared::default();
            excluded.0.push((name(unit), Arc::clone(&spared)));
            let until = Instant::now() + self.reclaim.oom_time.min(TIME_MAX);
            // What candidates below it hold they are asked for themselves.
            let share = unit.usage().saturating_sub(overrun.saturating_sub(below));
            let is_inner = |hook: &&Arc<Hook>| !together && hook.node.is_below(unit) && !ptr::eq(hook.node, unit);
            let inner: Inner = oom.hooks.iter().filter(is_inner).map(|hook| name(hook.node)).collect();
            let levels = unit.path_to_root().map(name).collect();
            oom.victims.push(Victim {
                node: unit,
                levels,
                until,
                share,
                inner: inner.clone(),
                spared: Arc::clone(&spared),
            });
            let awaited = Awaited { victim: name(unit), until };
            // Its hook is in the list, and so keeps it.
            unit.state().pin();
            Choice::Victim(Chosen { unit, domain, hooks, together, wanted, overrun, inner, spared, awaited })
        })
    }
}

impl Tree {
    /// Victims that have no more to give are forgotten, once what they gave has come.
    pub(crate) fn settle_victims(&self) {
        slow_path(|_, _| {
            let is_done = |victim: &&Victim| !victim.is_awaited();
            let done: Vec<Name> = self.oom.lock().victims.iter().filter(is_done).map(Victim::name).collect();
            self.wait_for_walks();
            self.oom.lock().victims.retain(|victim| !done.contains(&victim.name()));
        });
    }

    /// More may come from a victim.
    pub(crate) fn awaits(&self, awaited: Awaited) -> bool {
        let is_it = |victim: &Victim| victim.name() == awaited.victim && victim.is_awaited();
        slow_path(|_, _| self.oom.lock().victims.iter().any(is_it))
    }
}

impl Oom {
    /// Who is furthest above its share, less what the candidates below it are above theirs: of a tenant and its queries
    /// the query that has it all, or the tenant, whoever has more of its own.
    fn worst(&self, domain: &'static Counter, excluded: &Excluded) -> Option<Candidate> {
        let inside = self.hooks.iter().filter(|hook| hook.node.is_below(domain) && !hook.node.is_spared());
        let units = inside.map(|hook| hook.node.unit(domain)).filter(|unit| !excluded.contains(name(unit)));
        let mut over: Vec<Candidate> = units.map(|unit| Candidate::new(unit, domain)).collect();
        // By number, not by address: of two that are as far above their shares each run takes the same.
        over.sort_unstable_by_key(|candidate| candidate.unit.number);
        over.dedup_by_key(|candidate| candidate.unit.number);
        let find = |over: &[Candidate], node: &Counter| {
            over.binary_search_by_key(&node.number, |candidate| candidate.unit.number)
        };
        for at in 0..over.len() {
            let Candidate { unit, overrun, .. } = over[at];
            let mut above = unit.path_below(Some(domain)).chain([domain]).skip(1);
            if let Some(above) = above.find_map(|level| find(&over, level).ok()).filter(|&above| above != at) {
                over[above].below = over[above].below.saturating_add(overrun);
            }
        }
        let own = |candidate: &Candidate| candidate.overrun.saturating_sub(candidate.below);
        over.into_iter().filter(|candidate| own(candidate) > 0).max_by_key(own)
    }
}

/// Somebody who could be chosen.
struct Candidate {
    unit: &'static Counter,
    overrun: u64,
    /// Of those candidates below it that have no other one in between.
    below: u64,
}

impl Candidate {
    fn new(unit: &'static Counter, domain: &'static Counter) -> Self {
        Candidate { unit, overrun: unit.overrun(domain), below: 0 }
    }
}

impl Chosen {
    /// Not after all.
    pub(crate) fn spare(&self) {
        let victim = name(self.unit);
        slow_path(|_, _| {
            let mut oom = self.unit.tree().oom.lock();
            // Relaxed: under the lock.
            self.spared.store(true, Ordering::Relaxed);
            oom.victims.retain(|other| other.name() != victim);
        });
    }

    /// Send away whoever waits in it, so that he can let go of what he holds, and tell its hooks; then those who came
    /// between. Foreign code runs; no lock is held.
    pub(crate) fn cancel(&mut self) {
        self.send_away();
        if self.together {
            events::count_and_notify(self.unit, Event::OomGroupKill);
        }
        for hook in self.hooks.drain(..) {
            // Whoever is gone by now is not called. Counted outside of the call, for whoever waits for the event may
            // drop the hook's place.
            if hook.calls.is_gone() {
                continue;
            }
            events::count_and_notify(hook.node, Event::OomKill);
            let (group, domain) = (hook.node.header, self.domain.header);
            let why = Cancel { group, domain, wanted: self.wanted, overrun: self.overrun };
            let call = || hook.calls.begin().map(|_call| hook.hook.call(|hook| hook(&why)));
            if let Some(Some(Err(_))) = context::in_hook(call) {
                events::count_and_notify(hook.node, Event::Panic);
            }
        }
        self.send_away();
    }

    /// Nobody waits in it any longer, but who is spared.
    fn send_away(&self) {
        let mut wakers = Wakers::default();
        let is_hit = |node: &Counter| self.includes(node);
        slow_path(|_, _| self.unit.tree().expel(Decision::Cancelled, is_hit, &mut wakers));
        wakers.wake();
    }

    /// Whether `node` is among those that are cancelled.
    pub(crate) fn includes(&self, node: &Counter) -> bool {
        hits(name(self.unit), &self.inner, node)
    }
}

/// Whether `node` goes with a victim: it is below, nobody spares it, and no hook of its own answers for it.
fn hits(victim: Name, inner: &Inner, node: &Counter) -> bool {
    let answers = |level: &&Counter| name(level) == victim || inner.contains(&name(level));
    !node.is_spared() && node.path_to_root().find(answers).is_some_and(|level| name(level) == victim)
}
