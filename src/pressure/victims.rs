//! Groups that are cancelled where reclaim frees nothing: the least important, of these the one
//! furthest above its share.
//!
//! A choice looks at counters as they are, never at flushed statistics. Only groups with a hook are
//! looked at, so a choice costs a look-up for each level above each of them, and takes no lock but
//! that of the list. One victim at a time in a domain: a charge that comes while one is being
//! waited for waits for that one, too. After `select_bad_process` and `mem_cgroup_oom_group` in
//! `mm/oom_kill.c` and `mm/memcontrol.c`, with the overrun of a share in the place of points.

use std::cmp::Reverse;
use std::ptr;

use smallvec::SmallVec;

use crate::counter::effective;
use crate::counter::handle::{Handle, WeakCounter};
use crate::counter::object::tree::Tree;
use crate::counter::object::{Counter, CounterRef};
use crate::counter::protection::Protection;
use crate::counter::slow_path::SlowPath;
use crate::error::USAGE_MAX;
use crate::hierarchy::{events, group_object, group_tree, importance};
use crate::pressure::delays;
use crate::pressure::incidents;
use crate::pressure::line::expel;
use crate::pressure::wakers::Wakers;
use crate::reclaim::round::TIME_MAX;
use crate::reclaim::shares;
use crate::state::callback::{Callback, CallbackFunction};
use crate::state::events::Event;
use crate::state::incidents::IncidentKind;
use crate::state::key::Key;
use crate::state::oom::{
    CancelInfo, EXEMPT, ORDERS, Oom, OomCandidate, OomFlags, OomOrder, OomPolicy, TOGETHER, Victim,
};
use crate::state::waiting::Decision;
use crate::sync::clock;
use crate::sync::lock::Lock;
use crate::sync::stat_atomic::AtomicBool;
use crate::sync::{Arc, Ordering, is_over, model_failed};
use crate::thread::context;
use crate::thread::foreign::Panicked;

pub(crate) fn oom_flags(of: &Counter) -> &OomFlags {
    &group_object::of(of).oom
}

/// True if a victim is chosen for memory at this level.
pub(crate) fn chooses(level: &Counter) -> bool {
    chooser(level).is_some()
}

/// The level whose policy chooses a victim for memory at this one: itself, or the nearest above
/// that has a policy.
fn chooser(level: &Counter) -> Option<&Counter> {
    // A hook gives memory back, so nobody is cancelled for a counter beside it. The nearest policy
    // holds alone: one that says "refuse" ends the search as one that says "choose" does, so that a
    // tenant can be spared what the root asks for.
    let mut levels = level.path_to_root().filter(|_| level.is_memory());
    let set = levels.find(|level| oom_flags(level).policy() != OomPolicy::Inherit)?;
    (oom_flags(set).policy() == OomPolicy::Choose).then_some(set)
}

/// Sets the policy of a group, and with it the order that the service gives itself, or none. The
/// caller holds no lock.
pub(crate) fn set_policy(group: &Counter, OomOrder { policy, order }: OomOrder) {
    let dropped = {
        let _path = SlowPath::enter();
        let mut oom = table(group.tree()).lock();
        // Orders of groups that have ended go with this one. Nothing else visits the list, and it
        // keeps no group.
        let is_over = |&mut (of, _): &mut (WeakCounter, _)| {
            of == WeakCounter::new(group) || !of.is_there() || of.object.state().is_offline()
        };
        let dropped: Vec<_> = oom.orders.extract_if(.., is_over).collect();
        oom_flags(group).set_policy(policy);
        oom_flags(group).set(ORDERS, order.is_some());
        oom.orders
            .extend(order.map(|order| (WeakCounter::new(group), order)));
        dropped
    };
    // Foreign code is dropped without the lock.
    drop(dropped);
}

/// The group's own policy, with the order that the service gave it.
pub(crate) fn policy_of(group: &Counter) -> OomOrder {
    let _path = SlowPath::enter();
    let oom = table(group.tree()).lock();
    let is_own = |(of, _): &&(WeakCounter, _)| *of == WeakCounter::new(group);
    OomOrder {
        policy: oom_flags(group).policy(),
        order: oom
            .orders
            .iter()
            .find(is_own)
            .map(|(_, order)| Arc::clone(order)),
    }
}

/// The runtime is gone: what its orders hold goes, perhaps the tree's last handles. The caller
/// holds no lock.
pub(crate) fn forget_orders(tree: &Tree) {
    let dropped = {
        let _path = SlowPath::enter();
        std::mem::take(&mut table(tree).lock().orders)
    };
    drop(dropped);
}

fn is_spared(group: &Counter) -> bool {
    // Mutation: one-group-alone-is-exempt
    group
        .path_to_root()
        .any(|level| oom_flags(level).has(EXEMPT))
}

fn table(of: &Tree) -> &Lock<Oom> {
    &group_tree::shared(of).oom
}

impl Victim {
    fn name(&self) -> WeakCounter {
        self.levels[0]
    }

    /// True if `group` goes with the victim: it is below, it is not spared, and no hook of its own
    /// answers for it.
    pub(crate) fn includes(&self, group: &Counter) -> bool {
        let answers = |level: &&Counter| {
            WeakCounter::new(level) == self.name() || self.inner.contains(&WeakCounter::new(level))
        };
        !is_spared(group)
            && group
                .path_to_root()
                .find(answers)
                .is_some_and(|level| WeakCounter::new(level) == self.name())
    }

    /// More may come from it.
    fn is_awaited(&self) -> bool {
        // Usage at or below its share: it has given what it can be asked for. A group that is gone
        // holds nothing. And one that gives nothing in its time holds up the others no longer.
        // Mutation: a-victim-out-of-time-is-waited-for
        self.name().is_there() && self.name().object.usage() > self.share && !is_over(self.until)
    }
}

/// Groups that one charge has chosen or waited for already.
#[derive(Default)]
pub(crate) struct ExcludedVictims(SmallVec<[Arc<Victim>; 4]>);

impl ExcludedVictims {
    fn contains(&self, group: WeakCounter) -> bool {
        self.0.iter().any(|excluded| excluded.name() == group)
    }

    /// A victim that another thread chose and then spared has been asked for nothing: this charge
    /// may choose it.
    fn forget_spared(&mut self) {
        // Relaxed: under the lock.
        self.0
            .retain(|victim| !victim.spared.load(Ordering::Relaxed));
    }
}

pub(crate) enum VictimChoice<'a> {
    NoCandidate,
    /// There is room by now.
    Room,
    /// The group that asks has been chosen itself.
    Asker,
    /// Another thread has chosen one, and waits for it.
    Awaited(Arc<Victim>),
    Victim(ChosenVictim<'a>),
}

/// The request that a victim is chosen for.
pub(crate) struct VictimRequest<'a> {
    /// The group whose charge it is, if one asks.
    pub(crate) asker: Option<&'a Counter>,
    /// No group that is more important gives for it.
    pub(crate) importance: u8,
    pub(crate) bytes: u64,
    /// The part of `bytes` that comes on top of usage: nothing where usage is to come below max.
    pub(crate) adds: u64,
    /// Bytes that reclaim may still give.
    pub(crate) may_come: u64,
}

impl VictimRequest<'_> {
    fn has_room(&self, domain: &Counter) -> bool {
        // The second is for a checkpoint, whose bytes are in usage already: it has room once
        // nothing is above max.
        domain.room(domain.admits()) >= self.bytes.max(1) || self.short(domain) == 0
    }

    /// Bytes that have to come back in the domain, before it fits.
    fn short(&self, domain: &Counter) -> u64 {
        let most = if self.adds > 0 {
            domain.admits()
        } else {
            domain.max()
        };
        domain
            .usage()
            .saturating_add(self.adds)
            .saturating_sub(most.min(USAGE_MAX))
    }
}

/// A group to be cancelled, which is kept meanwhile.
pub(crate) struct ChosenVictim<'a> {
    unit: Handle,
    domain: &'a Counter,
    hooks: SmallVec<[Arc<Callback<CancelInfo>>; 2]>,
    together: bool,
    wanted: u64,
    overrun: u64,
    pub(crate) victim: Arc<Victim>,
}

/// A hook in the list, and its number there. Dropped, it is removed.
pub(crate) struct HookGuard(Key, Arc<Callback<CancelInfo>>);

impl Drop for HookGuard {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        let HookGuard(number, hook) = self;
        let path = SlowPath::enter();
        // Mutation: a-hook-that-ends-stays-in-the-list
        let in_list = table(hook.group.tree()).lock().hooks.remove(number);
        drop(path);
        // The guard has the last of it, or a thread that calls it.
        drop(in_list);
        // Last, and without the lock: it waits for a call of the hook that is under way, and that
        // call may choose or register.
        hook.end();
    }
}

/// From here on this group can be chosen.
pub(crate) fn hook(group: &Counter, function: CallbackFunction<CancelInfo>) -> HookGuard {
    let hook = Callback::new(group, function);
    let _path = SlowPath::enter();
    let mut oom = table(group.tree()).lock();
    // Mutation: two-hooks-of-one-number
    oom.numbers += 1;
    let number = Key(oom.numbers);
    oom.hooks.insert(number, Arc::clone(&hook));
    HookGuard(number, hook)
}

/// The group that stands for this one in `domain`: the highest there that is cancelled together
/// with its subtree, or the group itself.
fn unit<'a>(group: &'a Counter, domain: &'a Counter) -> &'a Counter {
    let inside = group.path_below(Some(domain)).chain([domain]);
    // Mutation: of-those-that-go-together-the-nearest-goes
    inside
        // The highest, as `memory.oom.group` has it: a tenant that goes as one goes with all of its
        // parts that do.
        .filter(|level| oom_flags(level).has(TOGETHER))
        .last()
        .unwrap_or(group)
}

/// Distance of usage above what low protects against `domain`, or above the soft limit.
fn overrun(group: &Counter, domain: &Counter) -> u64 {
    let soft = Some(group.limits.soft.load(Ordering::Relaxed)).filter(|&soft| soft < u64::MAX);
    // Whichever leaves it more: a group should not go for what one of its two settings grants it.
    let share = effective::protected(group, Protection::Low, domain).max(soft.unwrap_or(0));
    group.usage().saturating_sub(share)
}

/// What the service's own order of victims has answered.
enum VictimWish {
    /// There is none, or it has failed: the order of this crate holds.
    Ours,
    This(WeakCounter),
    None,
}

/// Looks for a victim in `domain`, for a charge that has `excluded` some. None is a candidate where
/// all of them together hold too little. Foreign code may run: the caller holds no lock.
pub(crate) fn choose<'a>(
    domain: &'a Counter,
    want: &VictimRequest<'_>,
    excluded: &mut ExcludedVictims,
) -> VictimChoice<'a> {
    // Again where a victim has just given its last: what it gave may be on its way up, and a choice
    // before that would take one group too many.
    loop {
        shares::look(domain);
        let wish = match chooser(domain).filter(|chooser| oom_flags(chooser).has(ORDERS)) {
            Some(chooser) => ask_order(chooser, domain, want, excluded),
            None => VictimWish::Ours,
        };
        if let Some(choice) = choose_by(domain, want, excluded, &wish) {
            return choice;
        }
        forget_done(domain.tree());
    }
}

/// Asks the order of a service, where no victim is under way. Its answer is a wish: other threads
/// may choose meanwhile.
fn ask_order(
    chooser: &Counter,
    domain: &Counter,
    want: &VictimRequest<'_>,
    excluded: &ExcludedVictims,
) -> VictimWish {
    let (order, candidates) = {
        let _path = SlowPath::enter();
        let oom = table(domain.tree()).lock();
        let is_here = |victim: &Arc<Victim>| {
            victim.levels.contains(&WeakCounter::new(domain)) && !excluded.contains(victim.name())
        };
        let has = |(of, _): &&(WeakCounter, _)| *of == WeakCounter::new(chooser);
        let Some((_, order)) = oom.orders.iter().find(has) else {
            return VictimWish::Ours;
        };
        let order = Arc::clone(order);
        // The order is foreign code and may take its time, so it is not asked where there is
        // nothing to choose. The hook in the list keeps each candidate until it has a handle.
        let needless = want.has_room(domain) || oom.victims.iter().any(is_here);
        let candidates = if needless {
            Vec::new()
        } else {
            oom.ranked(domain, want, excluded)
        };
        let shown = candidates.into_iter().map(|candidate| OomCandidate {
            group: Handle::pin(&candidate.unit),
            importance: candidate.importance,
            overrun: candidate.overrun.saturating_sub(candidate.below),
            wants: candidate.wants,
            usage: candidate.own_usage(),
        });
        (order, shown.collect::<Vec<_>>())
    };
    // The choice itself finds out that there is none.
    if candidates.is_empty() {
        return VictimWish::Ours;
    }
    // No lock is held, and nothing nests: a charge inside of the order asks for no victim.
    match context::in_hook(|| order.call(|order| order(&candidates))) {
        Some(Ok(Some(at))) => candidates.get(at).map_or(VictimWish::Ours, |chosen| {
            VictimWish::This(WeakCounter::new(&chosen.group))
        }),
        Some(Ok(None)) => VictimWish::None,
        Some(Err(Panicked)) => {
            events::count(chooser, Event::Panic);
            VictimWish::Ours
        }
        None => VictimWish::Ours,
    }
}

/// `None`: a victim has given all it has, and the last of it may be on its way up to the domain.
/// See [`forget_done`].
fn choose_by<'a>(
    domain: &'a Counter,
    want: &VictimRequest<'_>,
    excluded: &mut ExcludedVictims,
    wish: &VictimWish,
) -> Option<VictimChoice<'a>> {
    let _path = SlowPath::enter();
    // Credit that was given back after the last drain is no reason to cancel a group.
    // It also makes the usages comparable which follow: two groups that hold the same would differ
    // by the credit of their threads.
    if domain.may_have_credit_below() {
        domain.tree().close_below(domain);
    }
    let mut oom = table(domain.tree()).lock();
    // Mutation: shuttle-spared-victim-counts-as-excluded
    excluded.forget_spared();
    // Such a victim is in the list until its last walks are through. A choice beside it would
    // cancel a second group for bytes that are about to arrive.
    if oom
        .victims
        .iter()
        .any(|victim| !victim.is_awaited() && victim.levels.contains(&WeakCounter::new(domain)))
    {
        return None;
    }
    let is_here = |victim: &&Arc<Victim>| {
        victim.levels.contains(&WeakCounter::new(domain)) && !excluded.contains(victim.name())
    };
    if let Some(victim) = oom.victims.iter().find(is_here) {
        excluded.0.push(Arc::clone(victim));
        // One victim at a time in a domain: the charge waits for that one, too. A charge of the
        // victim itself would wait for its own end, and is told so instead.
        let asks_itself = want.asker.is_some_and(|asker| victim.includes(asker));
        return Some(if asks_itself {
            VictimChoice::Asker
        } else {
            VictimChoice::Awaited(Arc::clone(victim))
        });
    }
    // Under the lock: what a victim gave meanwhile is not asked of another one.
    // Mutation: room-is-not-looked-for-before-a-choice
    if want.has_room(domain) {
        return Some(VictimChoice::Room);
    }
    let mut ranked = oom.ranked(domain, want, excluded);
    let wished = match wish {
        // It may have gone, or given its memory back, since it was shown: then the first of ours.
        VictimWish::This(wished) => ranked
            .iter()
            .position(|candidate| WeakCounter::new(&candidate.unit) == *wished)
            .or(Some(0)),
        VictimWish::Ours => Some(0),
        VictimWish::None => None,
    };
    let chosen = wished
        .filter(|&at| at < ranked.len())
        .map(|at| ranked.swap_remove(at));
    let victim = chosen.map(|candidate| oom.note_victim(candidate, domain, want.bytes, excluded));
    Some(victim.map_or(VictimChoice::NoCandidate, VictimChoice::Victim))
}

/// Victims that have no more to give are forgotten, once what they gave has come.
fn forget_done(tree: &Tree) {
    let _path = SlowPath::enter();
    let is_done = |victim: &&Arc<Victim>| !victim.is_awaited();
    // The list is copied before the wait: a victim that has given its last only after this may
    // still have a walk under way, and is for the next call.
    let done: Vec<Arc<Victim>> = table(tree)
        .lock()
        .victims
        .iter()
        .filter(is_done)
        .cloned()
        .collect();
    // Mutation: what-a-victim-gave-last-is-not-waited-for
    tree.wait_for_walks();
    table(tree).lock().forget(tree, |victim| {
        done.iter().any(|done| done.name() == victim.name())
    });
}

/// True if the group is cancelled, and its memory is being waited for. Victims that have no more to
/// give are forgotten.
pub(crate) fn is_cancelled(group: &Counter) -> bool {
    let tree = group.tree();
    if !tree.alerts.any_victim() {
        return false;
    }
    let (is_cancelled, is_any_done) = {
        let _path = SlowPath::enter();
        let victims = &table(tree).lock().victims;
        // Relaxed: under the lock.
        // The mark in the tree's word goes with the last victim, so most checkpoints do not get
        // here.
        let is_hit = |victim: &Arc<Victim>| {
            victim.cancelled.load(Ordering::Relaxed)
                && victim.is_awaited()
                && victim.includes(group)
        };
        (
            victims.iter().any(is_hit),
            victims.iter().any(|victim| !victim.is_awaited()),
        )
    };
    // Not under the lock above, since it waits for threads in transit, and these may want the lock.
    if is_any_done {
        forget_done(tree);
    }
    is_cancelled
}

/// Nothing waits for the group any longer: it is offline, or cancelled. The caller holds no lock.
pub(crate) fn has_ended(group: &Counter) -> bool {
    group.state().is_offline() || is_cancelled(group)
}

/// End of a wait of the group that begins now. A group that was cancelled before may have given all
/// back, and charge anew while no thread has looked: that does not end what it begins afterwards.
pub(crate) fn ends(group: &Counter) -> fn(&Counter) -> bool {
    if is_cancelled(group) {
        |group| group.state().is_offline()
    } else {
        has_ended
    }
}

/// More may come from a victim.
pub(crate) fn is_awaited(tree: &Tree, awaited: &Victim) -> bool {
    let is_it = |victim: &Arc<Victim>| victim.name() == awaited.name() && victim.is_awaited();
    let _path = SlowPath::enter();
    table(tree).lock().victims.iter().any(is_it)
}

impl Oom {
    fn forget(&mut self, tree: &Tree, is_done: impl Fn(&Victim) -> bool) {
        let before = self.victims.len();
        // Mutation: all-victims-are-forgotten
        self.victims.retain(|victim| !is_done(victim));
        tree.alerts.uncount_victims(before - self.victims.len());
    }

    /// The groups that may go, the one to go first of all: of the lowest importance that alone
    /// holds enough, or of the lowest. Of these the one that is furthest above its share, less what
    /// the candidates below it are above theirs: of a tenant and its queries the query that has it
    /// all, or the tenant, whichever has more of its own. What the asker wants is its own. Empty
    /// also where all of them hold less than is short: they would be cancelled in vain.
    #[allow(unsafe_code)]
    fn ranked(
        &self,
        domain: &Counter,
        want: &VictimRequest<'_>,
        excluded: &ExcludedVictims,
    ) -> Vec<VictimCandidate> {
        let hooked = self.hooks.values().map(|hook| &*hook.group);
        let inside = hooked.filter(|group| group.is_within(domain) && !is_spared(group));
        let candidate = |group: &Counter| {
            let unit = unit(group, domain);
            VictimCandidate {
                // SAFETY: the hook in the list has a handle on the group, which keeps what is
                // above; its caller holds the lock.
                unit: unsafe { CounterRef::new(unit) },
                importance: importance::of(group).max(importance::of(unit)),
                overrun: overrun(unit, domain),
                below: 0,
                wants: 0,
                held: unit.usage(),
                held_below: 0,
            }
        };
        let mut over: Vec<VictimCandidate> = inside.map(candidate).collect();
        over.retain(|candidate| !excluded.contains(WeakCounter::new(&candidate.unit)));
        // By number, not by address: of two that are as far above their shares each run takes the
        // same.
        over.sort_unstable_by_key(|candidate| candidate.unit.number);
        // A unit may have several hooks, in it and below it. It is as important as the most
        // important of the groups that would go with it: to cancel it cancels that one, too.
        over.dedup_by(|next, kept| {
            let is_same = next.unit.number == kept.unit.number;
            // Mutation: of-two-hooks-the-first-says-how-important
            if is_same {
                kept.importance = kept.importance.max(next.importance);
            }
            is_same
        });
        let find = |over: &[VictimCandidate], group: &Counter| {
            over.binary_search_by_key(&group.number, |candidate| candidate.unit.number)
        };
        let asker = want.asker.filter(|asker| !is_spared(asker));
        if let Some(at) = asker.and_then(|asker| {
            asker
                .path_to_root()
                .find_map(|level| find(&over, level).ok())
        }) {
            // Else a group could charge again and again while its neighbours go for what it takes.
            over[at].wants = want.adds;
        }
        // What a candidate holds is counted once, at the lowest candidate that has it: the tenant's
        // own part is what its queries do not hold.
        for at in 0..over.len() {
            let VictimCandidate {
                unit,
                overrun,
                held,
                ..
            } = over[at];
            let mut above = unit.path_below(Some(domain)).chain([domain]).skip(1);
            if let Some(above) = above.find_map(|level| find(&over, level).ok()) {
                over[above].below = over[above].below.saturating_add(overrun);
                over[above].held_below = over[above].held_below.saturating_add(held);
            }
        }
        over.retain(|candidate| candidate.own() > 0 && candidate.importance <= want.importance);
        // `None` for all of them together.
        let enough = |importance: Option<u8>| {
            let counts = |candidate: &&VictimCandidate| {
                importance.is_none_or(|importance| candidate.importance == importance)
            };
            let held = over.iter().filter(counts).map(VictimCandidate::own_usage);
            held.fold(want.may_come, u64::saturating_add) >= want.short(domain)
        };
        // The charge is refused then, and nobody is cancelled for a charge that does not fit even
        // so.
        if !enough(None) {
            return Vec::new();
        }
        let lowest = over
            .iter()
            .map(|candidate| candidate.importance)
            .filter(|&importance| enough(Some(importance)));
        // Those of the lowest importance that can do it alone go first. Where none can alone, it
        // begins with the least important, and goes on from there.
        let gives = lowest.min();
        over.sort_by_key(|candidate| {
            (
                Some(candidate.importance) != gives,
                candidate.importance,
                Reverse((candidate.own(), candidate.unit.number)),
            )
        });
        over
    }

    /// From here on the candidate is waited for, as long as its usage is above its share.
    fn note_victim<'a>(
        &mut self,
        candidate: VictimCandidate,
        domain: &'a Counter,
        wanted: u64,
        excluded: &mut ExcludedVictims,
    ) -> ChosenVictim<'a> {
        let VictimCandidate {
            unit,
            overrun,
            below,
            ..
        } = candidate;
        let together = oom_flags(&unit).has(TOGETHER);
        let is_hit = |hook: &&Arc<Callback<CancelInfo>>| {
            let inside = if together {
                hook.group.is_within(&unit)
            } else {
                ptr::eq(&*hook.group, &*unit)
            };
            inside && !is_spared(&hook.group)
        };
        // Each by a reference of its own: the hooks are called without the lock, and a guard that
        // is dropped meanwhile takes its hook out of the list.
        let hooks = self.hooks.values().filter(is_hit).cloned().collect();
        // Mutation: a-victim-is-one-for-ever
        let until = clock::now() + group_tree::of(domain).settings.oom_time.min(TIME_MAX);
        // Candidates below it are asked themselves for what they hold.
        let share = unit.usage().saturating_sub(overrun.saturating_sub(below));
        let is_inner = |hook: &&Arc<Callback<CancelInfo>>| {
            !together && hook.group.is_within(&unit) && !ptr::eq(&*hook.group, &*unit)
        };
        let inner = self
            .hooks
            .values()
            .filter(is_inner)
            .map(|hook| WeakCounter::new(&hook.group))
            .collect();
        let levels = unit.path_to_root().map(WeakCounter::new).collect();
        let victim = Arc::new(Victim {
            levels,
            until,
            share,
            inner,
            spared: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
        });
        excluded.0.push(Arc::clone(&victim));
        self.victims.push(Arc::clone(&victim));
        domain.tree().alerts.count_victim();
        // Its hook is in the list, and so keeps it meanwhile.
        let unit = Handle::pin(&unit);
        ChosenVictim {
            unit,
            domain,
            hooks,
            together,
            wanted,
            overrun,
            victim,
        }
    }
}

/// A group that may be cancelled, and the figures by which the choice among several is made.
struct VictimCandidate {
    /// Its hook is in the list, and so keeps it.
    unit: CounterRef,
    /// The highest of the groups that go with it and have a hook.
    importance: u8,
    overrun: u64,
    /// The overruns of those candidates below it that have no other one in between.
    below: u64,
    /// Bytes that the charge wants, where the candidate is the nearest above its group.
    wants: u64,
    held: u64,
    /// Bytes that those candidates below it hold.
    held_below: u64,
}

impl VictimCandidate {
    fn own_usage(&self) -> u64 {
        self.held.saturating_sub(self.held_below)
    }

    fn own(&self) -> u64 {
        self.overrun
            .saturating_sub(self.below)
            .saturating_add(self.wants)
    }
}

impl ChosenVictim<'_> {
    /// The victim is not cancelled after all.
    pub(crate) fn spare(&self) {
        let _path = SlowPath::enter();
        let mut oom = table(self.unit.tree()).lock();
        // Relaxed: under the lock.
        self.victim.spared.store(true, Ordering::Relaxed);
        // Other charges that wait for it go on at once, and choose for themselves.
        oom.forget(self.unit.tree(), |other| other.name() == self.victim.name());
    }

    /// Ends the waits in the victim, so that their threads can let go of what they hold, and calls
    /// its hooks; then it ends the waits that began in between. Foreign code runs; this thread
    /// holds no lock.
    #[allow(unsafe_code)]
    pub(crate) fn cancel(&mut self) {
        // First the checkpoints, then the waits, then the hooks: a thread that is woken from a wait
        // looks whether it is cancelled, and must find that it is.
        self.tell_checkpoints();
        self.end_waits();
        if self.together {
            events::count(&self.unit, Event::OomGroupKill);
        }
        for hook in self.hooks.drain(..) {
            // A hook whose guard is dropped by now is not called. Counted outside of the call, for
            // a listener of the event may drop the hook's guard.
            if hook.calls.is_gone() {
                continue;
            }
            events::count(&hook.group, Event::OomKill);
            incidents::note(
                IncidentKind::Victim,
                &hook.group,
                self.wanted,
                &self.domain.refusal_now(),
            );
            // SAFETY: the hook has a handle on its group, which keeps the domain, for as long as
            // the call.
            let group = unsafe { CounterRef::new(&hook.group) }.header();
            // SAFETY: as above.
            let domain = unsafe { CounterRef::new(self.domain) }.header();
            let why = CancelInfo {
                group,
                domain,
                wanted: self.wanted,
                overrun: self.overrun,
            };
            if context::in_hook(|| hook.call(&why)) == Some(false) {
                hook.count_panic();
            }
        }
        self.end_waits();
    }

    fn tell_checkpoints(&self) {
        let _path = SlowPath::enter();
        let _oom = table(self.unit.tree()).lock();
        // Relaxed: under the lock.
        self.victim.cancelled.store(true, Ordering::Relaxed);
    }

    /// No charge of the victim waits any longer or is delayed, but those of groups that are spared.
    fn end_waits(&self) {
        let mut wakers = Wakers::default();
        let is_hit = |group: &Counter| self.victim.includes(group);
        let path = SlowPath::enter();
        // A thread that waits holds what it has, and would give none of it back while it waits.
        expel(&self.unit, Decision::Cancelled, is_hit, &mut wakers);
        // Mutation: a-cancel-ends-no-delay
        delays::end(&self.unit, is_hit);
        drop(path);
        wakers.wake();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::sync::takes_n_log_n;
    use crate::{Limits, Runtime};

    /// Queries that end find their hooks by number, whichever goes first.
    #[test]
    #[cfg_attr(miri, ignore = "Miri: thousands of groups take minutes")]
    fn hooks_are_found_by_number() {
        let runtime = Runtime::builder().build().unwrap();
        let root = runtime.root();
        let groups: Vec<_> = (0..4_096_u64)
            .map(|number| root.create(number, Limits::new()).unwrap())
            .collect();
        let hooked = || groups.iter().map(|group| group.on_cancel(|_| ()));
        let in_order: Vec<_> = hooked().collect();
        takes_n_log_n(groups.len(), || in_order.into_iter().for_each(drop));
        let reversed: Vec<_> = hooked().collect();
        takes_n_log_n(groups.len(), || reversed.into_iter().rev().for_each(drop));
        let oom = super::table(root.first().tree()).lock();
        assert!(oom.hooks.is_empty());
    }
}
