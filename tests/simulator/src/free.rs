//! The same scripts with threads that run at once.
//!
//! What comes out of an operation depends on the schedule then, so the twin has no part in it. What
//! holds in any schedule is looked at meanwhile: no usage is above a limit, where none is moved or
//! passed by force, and no charge is refused that fits beside all that was held or asked for during
//! its call. Once all threads have ended, everything is at rest: what each group is charged is the
//! sum of what the run holds, to the byte; then all of it goes, and nothing is left.
//!
//! Operations name their subjects as they do where threads take turns; a subject that another thread
//! works with is not there meanwhile.
//!
//! The threads are the system's, and a seed is a script and no schedule; or they are shuttle's, which
//! are scheduled by the seed, so that one seed is one run.

#[cfg_attr(shuttle, path = "free/shuttle.rs")]
#[cfg_attr(not(shuttle), path = "free/system.rs")]
mod side;

#[cfg(feature = "kmem")]
mod containers;

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use memcg::figures::Incident;
use memcg::kmem::{Kmem, NodeId, Placement};
use memcg::simulated_time as clock;
use memcg::{
    ApplyOptions, Bytes, CentralStock, Charge, ChargeError, ChargeFuture, ChargedVec, CounterKey,
    Event, Freshness, Group, GroupId, GroupSpec, Limits, OnFull, OomPolicy, Percent, Reclaim,
    ReclaimContext, ReclaimPriority, ReclaimPromise, Registration, Runtime, StatKey, Unit,
};

use crate::configuration::{ITEMS, configure, form_of_limits, limit, pools_of};
use crate::holds::{ensure, ensure_eq};
#[cfg(feature = "kmem")]
use crate::machine::Machine;
use crate::script::{Act, Kind, Nature, Op, Setup, Size, Verb, What};
use side::{Mutex, MutexGuard, Patience, thread};

/// More objects of a kind make a run slow and show nothing new.
const MOST: usize = 48;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Objects of one kind. Who works with one has it alone.
struct Bag<T>(Mutex<Vec<T>>);

impl<T> Bag<T> {
    fn new() -> Self {
        Bag(Mutex::new(Vec::new()))
    }

    fn put(&self, it: T) {
        lock(&self.0).push(it);
    }

    fn take(&self, number: u8) -> Option<T> {
        let mut all = lock(&self.0);
        let most = all.len();
        (most > 0).then(|| all.swap_remove(usize::from(number) % most))
    }

    fn take_all(&self) -> Vec<T> {
        std::mem::take(&mut *lock(&self.0))
    }

    fn is_full(&self) -> bool {
        lock(&self.0).len() >= MOST
    }
}

/// Bytes that may be charged. Each sum is an upper bound: bytes are added before they are asked for,
/// and taken off after they have gone.
#[derive(Default)]
struct Asked {
    may_be_held: AtomicU64,
    ever: AtomicU64,
    /// Calls that move a max: how many have begun, and how many have ended.
    moves_begun: AtomicU64,
    moves_ended: AtomicU64,
    #[cfg(feature = "kmem")]
    numbers: AtomicU64,
}

impl Asked {
    /// A number that is not given twice.
    #[cfg(feature = "kmem")]
    fn next(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    fn add(&self, bytes: u64) {
        self.may_be_held.fetch_add(bytes, Ordering::SeqCst);
        self.ever.fetch_add(bytes, Ordering::SeqCst);
    }

    fn take_off(&self, bytes: u64) {
        self.may_be_held.fetch_sub(bytes, Ordering::SeqCst);
    }

    fn moves<T>(&self, call: impl FnOnce() -> T) -> T {
        self.moves_begun.fetch_add(1, Ordering::SeqCst);
        let made = call();
        self.moves_ended.fetch_add(1, Ordering::SeqCst);
        made
    }

    /// How many calls have moved a max. `None`: one does now.
    fn moved(&self) -> Option<u64> {
        let ended = self.moves_ended.load(Ordering::SeqCst);
        (self.moves_begun.load(Ordering::SeqCst) == ended).then_some(ended)
    }
}

struct Cache {
    group: Group,
    nature: Nature,
    shelf: Mutex<Option<Charge>>,
    asked: Arc<Asked>,
    registration: Mutex<Option<Registration>>,
    promises: Mutex<Vec<ReclaimPromise>>,
}

impl Cache {
    fn evict(&self, want: u64) -> u64 {
        let freed = lock(&self.shelf)
            .as_mut()
            .map_or(0, |held| held.shrink(Bytes(want)));
        self.asked.take_off(freed);
        freed
    }
}

struct AskedCache(Arc<Cache>);

impl Reclaim for AskedCache {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        let cache = &self.0;
        match cache.nature {
            Nature::Stubborn => 0,
            Nature::Forgets => {
                drop(context.promise());
                0
            }
            Nature::Greedy => cache.evict(u64::MAX),
            Nature::Boasts => u64::MAX,
            Nature::PanicsAtOnce => {
                side::panic_on_purpose();
                0
            }
            Nature::PanicsLate => {
                let freed = cache.evict(want.div_ceil(2));
                side::panic_on_purpose();
                freed
            }
            Nature::Half => {
                cache.evict(want / 2);
                want
            }
            Nature::Quits => {
                let mine = lock(&cache.registration).take();
                drop(mine);
                cache.evict(want)
            }
            Nature::Keeps => {
                lock(&cache.promises).push(context.promise());
                0
            }
            Nature::Promises => {
                let later = context.promise();
                later.report(cache.evict(want));
                0
            }
            Nature::Modest => {
                cache.evict(want);
                0
            }
            Nature::Refills
            | Nature::Honest
            | Nature::Busy
            | Nature::EstimatesNothing
            | Nature::EstimatesAll
            | Nature::PanicsInEstimate => cache.evict(want),
        }
    }
}

/// What all threads of a run share.
struct World {
    runtime: Runtime,
    further: CounterKey,
    items: [(StatKey, Unit); ITEMS],
    nodes: usize,
    groups: Mutex<Vec<Group>>,
    /// With whether it is one of the further counter.
    charges: Bag<(Charge, bool)>,
    raws: Bag<(Group, u64)>,
    vectors: Bag<ChargedVec<u64>>,
    tasks: Bag<(u64, Pin<Box<ChargeFuture>>)>,
    kmems: Bag<Kmem>,
    caches: Mutex<Vec<Arc<Cache>>>,
    registrations: Bag<Registration>,
    added: Mutex<BTreeMap<GroupId, [i64; ITEMS]>>,
    asked: Arc<Asked>,
    #[cfg(feature = "kmem")]
    containers: containers::Containers,
    /// A group may be cancelled, whatever it holds.
    cancels: bool,
}

impl World {
    fn group(&self, number: u8) -> Group {
        let groups = lock(&self.groups);
        groups[usize::from(number) % groups.len()].clone()
    }

    fn cache(&self, number: u8) -> Option<Arc<Cache>> {
        let caches = lock(&self.caches);
        (!caches.is_empty()).then(|| Arc::clone(&caches[usize::from(number) % caches.len()]))
    }

    /// The amount of a size as things are.
    fn bytes(&self, group: &Group, size: Size) -> u64 {
        let room = || group.headroom().min(1 << 20);
        match size {
            Size::Bytes(bytes) => bytes,
            Size::Less(bytes) | Size::Beyond(bytes) => room().saturating_sub(bytes),
            Size::More(bytes) => room() + bytes,
            Size::Above(bytes) => group.live().min(1 << 40).saturating_add(bytes),
            Size::Part(part) => group.effective_max().min(1 << 16) / 16 * u64::from(part),
        }
    }

    /// Makes a charge of so many bytes, and judges its refusal.
    fn ask<T>(
        &self,
        bytes: u64,
        may_leave_credit: bool,
        call: impl FnOnce() -> Result<T, ChargeError>,
    ) -> Option<T> {
        let ever = self.asked.ever.load(Ordering::SeqCst);
        let held = self.asked.may_be_held.load(Ordering::SeqCst);
        let moved = self.asked.moved();
        self.asked.add(bytes);
        let error = match call() {
            Ok(made) => return Some(made),
            Err(error) => error,
        };
        let since = self.asked.ever.load(Ordering::SeqCst) - ever;
        self.asked.take_off(bytes);
        // A wait may end just as a max rises, and the refusal tells the max of its end.
        let stood = moved.is_some() && self.asked.moved() == moved;
        if let Some(refusal) = error.over_limit()
            && stood
            && !may_leave_credit
            && !refusal.is_behind()
        {
            let most = held.saturating_add(since);
            assert!(
                most > refusal.max(),
                "{error}, and no more than {most} bytes were held or asked for at any time"
            );
        }
        assert!(!error.is_cancelled() || self.cancels, "{error}");
        None
    }

    fn charge(&self, group: &Group, verb: Verb, bytes: u64) -> Option<Charge> {
        let amount = Bytes(bytes);
        let leaves = matches!(verb, Verb::Start | Verb::Now | Verb::IfRoom);
        self.ask(bytes, leaves, || match verb {
            Verb::Plain => group.charge(amount),
            Verb::Try => group.try_charge(amount),
            Verb::Force => Ok(group.force_charge(amount)),
            Verb::Reclaims => group.charge_with(amount, OnFull::Reclaim),
            Verb::Start => group.charge_with(amount, OnFull::Start),
            Verb::Now => group.charge_with(amount, OnFull::Now),
            Verb::IfRoom => group.charge_with(amount, OnFull::IfRoom),
            Verb::WaitNot => group.charge_with(amount, OnFull::Wait(Duration::ZERO)),
        })
    }

    fn drop_charge(&self, charge: Charge) {
        let bytes = charge.bytes();
        drop(charge);
        self.asked.take_off(bytes);
    }

    fn step(&self, op: &Op) {
        match op.1 {
            What::Create(parent, name, max) => {
                let limits = max.map_or(Limits::new(), |max| Limits::new().max(limit(max)));
                self.create(parent, name, limits);
            }
            What::CreateWith(parent, name, form) | What::CreateDenied(parent, name, form) => {
                self.create(parent, name, form_of_limits(form));
            }
            What::CloneHandle(group) => drop(self.group(group).clone()),
            What::Find(group) => {
                let group = self.group(group);
                if let Some(found) = self.runtime.find(group.id()) {
                    assert_eq!(found.path(), group.path());
                }
            }
            What::Offline(group) => {
                let group = self.group(group);
                if group.parent().is_some() {
                    let _ = group.offline();
                }
            }
            What::OfflineTree(group) => {
                let group = self.group(group);
                if group.parent().is_some() {
                    group.offline_tree();
                }
            }
            What::Set(group, kind, size) => {
                let group = self.group(group);
                let bytes = self.bytes(&group, size);
                self.set(&group, kind, bytes);
            }
            What::Unset(group, kind) => {
                let none = if matches!(kind, Kind::Low | Kind::Min) {
                    0
                } else {
                    u64::MAX
                };
                self.set(&self.group(group), kind, none);
            }
            What::SetPart(group, kind, percent) => {
                let to = Percent::new(percent).expect("a percentage");
                let limits = Limits::new();
                let limits = match kind {
                    Kind::High => limits.high(to),
                    Kind::Low => limits.low(to),
                    Kind::Min => limits.min(to),
                    Kind::Max => limits.max(to),
                    _ => limits.soft(to),
                };
                let group = self.group(group);
                let _ = self.asked.moves(|| group.set_limits(limits));
            }
            What::MoveMax(group, size, shrinks) => {
                let group = self.group(group);
                let bytes = self.bytes(&group, size);
                self.asked.moves(|| group.inspect().move_max(Bytes(bytes)));
                if shrinks {
                    group.inspect().shrink_to_max();
                }
            }
            What::EndVainWaits(group, keeps) => {
                let group = self.group(group);
                group.inspect().end_vain_waits();
                if keeps {
                    group.inspect().keep_max();
                }
            }
            What::Checkpoint(group) => {
                let _ = self.group(group).run(Group::checkpoint);
            }
            What::BelowHigh(group) => {
                let _ = self.group(group).below_high().wait(Duration::ZERO);
            }
            What::GetOrCreate(parent, name) => {
                let made = self
                    .group(parent)
                    .get_or_create(&format!("g{name}"), Limits::new());
                if let Ok(made) = made {
                    let mut groups = lock(&self.groups);
                    if !groups.contains(&made) {
                        groups.push(made);
                    }
                }
            }
            What::ScopeOf(group) => drop(self.group(group).scope("a scope", Limits::new())),
            What::Incidents(most) => {
                self.runtime.keep_incidents(most.into());
                let kept = self.runtime.root().inspect().incidents();
                let in_order = |pair: &[Incident]| pair[0].number < pair[1].number;
                assert!(kept.windows(2).all(in_order), "{kept:?}");
            }
            What::Thresholds(group, elevated, critical) => {
                let limits = Limits::new().pressure_levels(elevated, critical);
                let _ = self.group(group).set_limits(limits);
            }
            What::Importance(group, importance) => {
                let _ = self
                    .group(group)
                    .set_limits(Limits::new().importance(importance));
            }
            What::Share(group, share) => {
                let _ = self.group(group).set_limits(Limits::new().share(share));
            }
            What::Apply(group, name, size, prunes) => {
                let group = self.group(group);
                let limits = Limits::new().max(limit(self.bytes(&group, size)));
                let below = GroupSpec::new().limits(limits);
                let spec = GroupSpec::new().group(format!("g{name}"), below);
                let options = ApplyOptions::new().prune(prunes);
                let _ = self.asked.moves(|| spec.apply_with(&group, options));
            }
            What::Observe(group, whether) => {
                // Its max comes or goes.
                let group = self.group(group);
                self.asked.moves(|| group.set_observe_only(whether));
            }
            What::Batch(group, batch) => self.group(group).memory().set_batch(batch),
            What::Charge(..)
            | What::ChargeSet(..)
            | What::Grow(..)
            | What::Resize(..)
            | What::Shrink(..)
            | What::Split(..)
            | What::Take(_)
            | What::Merge(..)
            | What::Transfer(..)
            | What::Drop(_)
            | What::DropAll(_)
            | What::RawCharge(..)
            | What::RawUncharge(..)
            | What::CentralTake(..)
            | What::CentralGive(_)
            | What::CentralRelease(_)
            | What::Wait(..) => self.step_charge(op),
            What::VecNew(group) if !self.vectors.is_full() => {
                self.vectors.put(ChargedVec::new(&self.group(group)));
            }
            What::VecPush(number, verb, items) => self.push(number, verb, items),
            What::VecPop(number, items) => self.edit(number, |vector| {
                (0..items).for_each(|_| _ = vector.pop());
            }),
            What::VecShrink(number) => self.edit(number, ChargedVec::shrink_to_fit),
            What::VecDrop(number) => {
                if let Some(vector) = self.vectors.take(number) {
                    let bytes = vector.charge().bytes();
                    drop(vector);
                    self.asked.take_off(bytes);
                }
            }
            What::Begin(group, size, _)
            | What::BeginTimed(group, size)
            | What::BeginUntil(group, size)
            | What::BeginAbove(group, size) => {
                if !self.tasks.is_full() {
                    let group = self.group(group);
                    let bytes = self.bytes(&group, size);
                    self.asked.add(bytes);
                    let future = group.charge_async(Bytes(bytes));
                    let future = match op.1 {
                        What::BeginTimed(..) => future.timeout(Duration::from_millis(5)),
                        _ => future,
                    };
                    match op.1 {
                        What::BeginAbove(..) => self.poll_once((bytes, Box::pin(future))),
                        // A task that waits for a delay holds bytes, and at rest those that wait hold none.
                        _ => self.poll((bytes, Box::pin(future.undelayed()))),
                    }
                }
            }
            What::Poll(number) => {
                if let Some(task) = self.tasks.take(number) {
                    self.poll(task);
                }
            }
            What::DropTask(number) => {
                if let Some((bytes, future)) = self.tasks.take(number) {
                    drop(future);
                    self.asked.take_off(bytes);
                }
            }
            What::Cache(..)
            | What::Fill(..)
            | What::Evict(..)
            | What::Keep(..)
            | What::Unregister(_)
            | What::CacheDrop(_)
            | What::Reclaim(..)
            | What::ShareReclaim(..)
            | What::Listen(..)
            | What::Unlisten(_)
            | What::Hook(..)
            | What::Unhook(_)
            | What::Oom(..)
            | What::OomBy(..)
            | What::OomGroup(..)
            | What::OomExempt(..) => self.step_callback(op),
            What::StatAdd(group, item, delta) => {
                let group = self.group(group);
                let item = usize::from(item) % ITEMS;
                group.stat_add(self.items[item].0, delta);
                lock(&self.added).entry(group.id()).or_default()[item] += delta;
            }
            What::StatRead(group, within) => {
                let freshness = match within {
                    0 => Freshness::Exact,
                    1 => Freshness::Threshold,
                    within => Freshness::Within(within.into()),
                };
                drop(self.group(group).read(freshness));
            }
            What::Kmem(..)
            | What::KmemMove(..)
            | What::KmemMigrate(..)
            | What::KmemShrink(..)
            | What::KmemTransfer(..)
            | What::KmemDrop(_) => self.step_kmem(op),
            What::Drain(group) => _ = self.group(group).memory().drain(),
            What::Settle => self.runtime.settle(),
            What::Idle(visits) => {
                (0..visits).for_each(|_| _ = self.runtime.release_idle_credit());
            }
            What::OwnCredit => _ = self.runtime.release_thread_credit(),
            What::Look => {
                drop(format!("{}", self.runtime.snapshot()));
                _ = self.runtime.counts();
            }
            What::VecNew(_)
            | What::CreateWithPercent(..)
            | What::Await(..)
            | What::Counters(..)
            | What::Lines(..)
            | What::Sets(..)
            | What::Tiers(..)
            | What::Marks(..)
            | What::Specs(..)
            | What::Runtimes(..)
            | What::Weighed(..)
            | What::Foreign(_)
            | What::Gauge(..)
            | What::KmemPack(..)
            | What::Scopes(..)
            | What::Unowned(..)
            | What::Background(..)
            | What::IntoRaw(_)
            | What::FromRaw(_)
            | What::KmemMerge(..)
            | What::KmemRelocate(..)
            | What::KmemShrinkTwo(..)
            | What::Cover(..)
            | What::Peak(_)
            | What::PeakReset(_)
            | What::PeakDrop(_)
            | What::DropHandle(_)
            | What::Time(_)
            | What::End
            | What::DropRuntime => {}
            #[cfg(feature = "kmem")]
            What::With(ref adapter) => self.step_containers(adapter),
        }
    }

    fn create(&self, parent: u8, name: u8, limits: Limits) {
        if let Ok(made) = self.group(parent).create(&format!("g{name}"), limits) {
            lock(&self.groups).push(made);
        }
    }

    fn set(&self, group: &Group, kind: Kind, bytes: u64) {
        let to = limit(bytes);
        let _ = match kind {
            Kind::Max => self.asked.moves(|| group.set_max(to)),
            Kind::MaxNow => self.asked.moves(|| group.memory().set_max_now(to)),
            Kind::FurtherMax => {
                let counter = group.counter(self.further).expect("declared");
                self.asked.moves(|| counter.set_max(to))
            }
            Kind::High => group.set_limits(Limits::new().high(to)),
            Kind::Soft => group.set_limits(Limits::new().soft(to)),
            Kind::Low => group.set_limits(Limits::new().low(to)),
            Kind::Min => group.set_limits(Limits::new().min(to)),
            Kind::Mark => group.set_limits(Limits::new().reclaim_above(to)),
            // Only what is placed elsewhere has no room there.
            Kind::TierMax => return,
        };
    }

    fn step_charge(&self, op: &Op) {
        match op.1 {
            What::Charge(group, verb, size) if !self.charges.is_full() => {
                let group = self.group(group);
                let bytes = self.bytes(&group, size).min(1 << 40);
                self.charge(&group, verb, bytes)
                    .into_iter()
                    .for_each(|made| self.charges.put((made, false)));
            }
            What::Wait(group, size, milliseconds) if !self.charges.is_full() => {
                let group = self.group(group);
                let (bytes, time) = (self.bytes(&group, size), u64::from(milliseconds));
                let wait = OnFull::Wait(Duration::from_millis(time));
                let made = self.ask(bytes, false, || group.charge_with(Bytes(bytes), wait));
                made.into_iter()
                    .for_each(|made| self.charges.put((made, false)));
            }
            What::ChargeSet(group, at_once, memory, further) if !self.charges.is_full() => {
                let group = self.group(group);
                let bytes = [memory, further].map(|size| self.bytes(&group, size).min(1 << 20));
                let amounts = [
                    (CounterKey::MEMORY, Bytes(bytes[0])),
                    (self.further, Bytes(bytes[1])),
                ];
                let sum = bytes[0] + bytes[1];
                let made = self.ask(sum, false, || match at_once {
                    true => group.try_charge_set(&amounts),
                    false => group.charge_set(&amounts),
                });
                made.into_iter().for_each(|[memory, further]| {
                    self.charges.put((memory, false));
                    self.charges.put((further, true));
                });
            }
            What::RawCharge(group, verb, size) if !self.raws.is_full() => {
                let group = self.group(group);
                let bytes = self.bytes(&group, size).min(1 << 40);
                if let Some(made) = self.charge(&group, verb, bytes) {
                    // Its bytes go on without the guard.
                    let raw = group.raw();
                    let more = self.ask(bytes, true, || raw.try_charge(Bytes(bytes)));
                    self.drop_charge(made);
                    if more.is_some() {
                        self.raws.put((group, bytes));
                    }
                }
            }
            What::RawUncharge(number, bytes) => {
                if let Some((group, held)) = self.raws.take(number) {
                    let bytes = bytes.min(held);
                    group.raw().uncharge(Bytes(bytes));
                    self.asked.take_off(bytes);
                    if bytes < held {
                        self.raws.put((group, held - bytes));
                    }
                }
            }
            What::CentralTake(group, size) if !self.charges.is_full() => {
                let group = self.group(group);
                let bytes = self.bytes(&group, size);
                self.asked.add(bytes);
                match CentralStock::of(&group).charge_if_room(Bytes(bytes)) {
                    Some(made) => self.charges.put((made, false)),
                    None => self.asked.take_off(bytes),
                }
            }
            What::CentralRelease(group) => {
                _ = CentralStock::of(&self.group(group)).release_credit()
            }
            What::Merge(into, from) => {
                let (into, from) = (self.charges.take(into), self.charges.take(from));
                if let Some((mut into, of)) = into {
                    if let Some((from, of)) = from
                        && let Err(other) = into.merge(from)
                    {
                        self.charges.put((other.into_charge(), of));
                    }
                    self.charges.put((into, of));
                }
            }
            What::DropAll(group) => {
                let group = self.group(group);
                let all = self.charges.take_all().into_iter();
                let (gone, left): (Vec<_>, Vec<_>) =
                    all.partition(|(charge, _)| charge.group() == group);
                left.into_iter().for_each(|charge| self.charges.put(charge));
                gone.into_iter()
                    .for_each(|(charge, _)| self.drop_charge(charge));
            }
            What::Grow(number, ..)
            | What::Resize(number, ..)
            | What::Shrink(number, _)
            | What::Split(number, _)
            | What::Take(number)
            | What::Transfer(number, _)
            | What::Drop(number)
            | What::CentralGive(number) => {
                if let Some((charge, further)) = self.charges.take(number) {
                    self.step_part(op, charge, further);
                }
            }
            _ => {}
        }
    }

    fn step_part(&self, op: &Op, mut charge: Charge, further: bool) {
        match op.1 {
            What::Grow(_, verb, size) | What::Resize(_, verb, size) => {
                let bytes = self.bytes(&charge.group(), size).min(1 << 40);
                self.ask(bytes, false, || match verb {
                    Verb::Force => {
                        charge.force_grow(Bytes(bytes));
                        Ok(())
                    }
                    Verb::Try | Verb::Now | Verb::IfRoom | Verb::Start => {
                        charge.try_grow(Bytes(bytes))
                    }
                    _ => charge.grow(Bytes(bytes)),
                });
            }
            What::Shrink(_, bytes) => self.asked.take_off(charge.shrink(Bytes(bytes))),
            What::Split(_, bytes) => {
                if let Ok(part) = charge.split(Bytes(bytes)) {
                    self.charges.put((part, further));
                }
            }
            What::Take(_) => self.charges.put((charge.take(), further)),
            What::Transfer(_, to) => {
                let bytes = charge.bytes();
                let to = self.group(to);
                // Charged there, then given back here.
                if self.ask(bytes, false, || charge.transfer(&to)).is_some() {
                    self.asked.take_off(bytes);
                }
            }
            What::Drop(_) => return self.drop_charge(charge),
            What::CentralGive(_) if !further => {
                let bytes = charge.bytes();
                CentralStock::of(&charge.group()).give_back(charge);
                return self.asked.take_off(bytes);
            }
            _ => {}
        }
        self.charges.put((charge, further));
    }

    fn edit(&self, number: u8, edit: impl FnOnce(&mut ChargedVec<u64>)) {
        if let Some(mut vector) = self.vectors.take(number) {
            let before = vector.charge().bytes();
            edit(&mut vector);
            self.asked.take_off(before - vector.charge().bytes());
            self.vectors.put(vector);
        }
    }

    fn push(&self, number: u8, verb: Verb, items: u16) {
        let Some(mut vector) = self.vectors.take(number) else {
            return;
        };
        let spare = vector.capacity() - vector.len();
        let items = match items {
            0 => spare + 1,
            items => items.into(),
        };
        let before = vector.charge().bytes();
        // Both blocks are charged while it grows, which it does by twice of what it has.
        let most = (vector.capacity() + items + 4) as u64 * 8 * 3;
        let leaves = matches!(verb, Verb::Start | Verb::Now | Verb::IfRoom);
        let made = self.ask(most, leaves, || {
            match verb {
                Verb::Plain => vector.reserve(items)?,
                Verb::Start => vector.reserve_with(items, OnFull::Start)?,
                Verb::Now => vector.reserve_with(items, OnFull::Now)?,
                Verb::IfRoom => vector.reserve_with(items, OnFull::IfRoom)?,
                _ => vector.try_reserve(items)?,
            }
            let fits = (0..items).all(|item| vector.push(item as u64).is_ok());
            assert!(fits, "it has the room");
            Ok(())
        });
        let bytes = vector.charge().bytes();
        assert_eq!(bytes, vector.capacity() as u64 * 8, "of a vector");
        if made.is_some() {
            self.asked.take_off(most - (bytes - before));
        }
        self.vectors.put(vector);
    }

    /// One that may be delayed, and is dropped meanwhile.
    fn poll_once(&self, (bytes, mut future): (u64, Pin<Box<ChargeFuture>>)) {
        let context = &mut Context::from_waker(Waker::noop());
        let polled = future.as_mut().poll(context);
        drop(future);
        match polled {
            Poll::Ready(Ok(charge)) => self.charges.put((charge, false)),
            _ => self.asked.take_off(bytes),
        }
    }

    fn poll(&self, (bytes, mut future): (u64, Pin<Box<ChargeFuture>>)) {
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Pending => self.tasks.put((bytes, future)),
            Poll::Ready(Ok(charge)) => self.charges.put((charge, false)),
            Poll::Ready(Err(_)) => self.asked.take_off(bytes),
        }
    }

    fn step_callback(&self, op: &Op) {
        match op.1 {
            What::Cache(group, nature, priority) => {
                let group = self.group(group);
                let cache = Arc::new(Cache {
                    group: group.clone(),
                    nature,
                    shelf: Mutex::new(None),
                    asked: Arc::clone(&self.asked),
                    registration: Mutex::new(None),
                    promises: Mutex::default(),
                });
                let priority = [
                    ReclaimPriority::LOW,
                    ReclaimPriority::NORMAL,
                    ReclaimPriority::HIGH,
                ][usize::from(priority) % 3];
                let asked = Arc::new(AskedCache(Arc::clone(&cache)));
                let registration = group.register_reclaimer(asked, priority);
                *lock(&cache.registration) = Some(registration);
                lock(&self.caches).push(cache);
            }
            What::Fill(number, size) => {
                if let Some(cache) = self.cache(number) {
                    let bytes = self.bytes(&cache.group, size).min(1 << 20);
                    if let Some(charge) = self.charge(&cache.group, Verb::Plain, bytes) {
                        let mut shelf = lock(&cache.shelf);
                        match shelf.as_mut() {
                            Some(all) => all.merge(charge).expect("of the same group"),
                            None => *shelf = Some(charge),
                        }
                    }
                }
            }
            What::Evict(number, bytes) => {
                if let Some(cache) = self.cache(number) {
                    cache.evict(bytes);
                }
            }
            What::Unregister(number) => {
                if let Some(cache) = self.cache(number) {
                    let mine = lock(&cache.registration).take();
                    drop(mine);
                }
            }
            What::CacheDrop(number) => {
                if let Some(cache) = self.cache(number) {
                    lock(&self.caches).retain(|other| !Arc::ptr_eq(other, &cache));
                    let mine = lock(&cache.registration).take();
                    drop(mine);
                    cache.evict(u64::MAX);
                }
            }
            What::Keep(number, how) => {
                if let Some(cache) = self.cache(number) {
                    let open = std::mem::take(&mut *lock(&cache.promises));
                    for promise in open {
                        let want = if how == 0 { 0 } else { promise.want() };
                        promise.report(cache.evict(want));
                    }
                }
            }
            What::Reclaim(group, size) => {
                let group = self.group(group);
                let _ = group.reclaim(Bytes(self.bytes(&group, size)));
            }
            What::Listen(group, event, act) if !self.registrations.is_full() => {
                let event = Event::ALL[usize::from(event) % Event::ALL.len()];
                let group = self.group(group);
                self.registrations.put(group.on_event(event, move |told| {
                    assert_eq!(told.event(), event);
                    do_act(act, &told.group());
                }));
            }
            What::Hook(group, bytes, act) if !self.registrations.is_full() => {
                let group = self.group(group);
                if let Some(charge) = self.charge(&group, Verb::Try, bytes) {
                    let bag = Mutex::new(Some(charge));
                    let asked = Arc::clone(&self.asked);
                    self.registrations.put(group.on_cancel(move |why| {
                        let bag = lock(&bag).take();
                        let bytes = bag.as_ref().map_or(0, Charge::bytes);
                        drop(bag);
                        asked.take_off(bytes);
                        do_act(act, &why.group());
                    }));
                }
            }
            What::Unlisten(number) | What::Unhook(number) => drop(self.registrations.take(number)),
            What::Oom(group, true) => self.group(group).set_oom_policy(OomPolicy::Choose),
            What::OomBy(group, number) => {
                let order = OomPolicy::by(move |candidates| match number % 3 {
                    0 => None,
                    of => candidates.len().checked_sub(usize::from(of)),
                });
                self.group(group).set_oom_policy(order);
            }
            What::Oom(group, false) => self.group(group).set_oom_policy(OomPolicy::Refuse),
            What::OomGroup(group, whether) => self.group(group).set_oom_group(whether),
            What::OomExempt(group, whether) => self.group(group).set_oom_exempt(whether),
            _ => {}
        }
    }

    fn node(&self, number: u8) -> Option<NodeId> {
        let node = usize::from(number) % self.nodes.max(1);
        Some(NodeId::new(node as u16))
    }

    fn step_kmem(&self, op: &Op) {
        if let What::Kmem(group, bytes, node) = op.1 {
            let group = self.group(group);
            let mut placement = Placement::new();
            placement.add(self.node(node), Bytes(bytes));
            let made = self.ask(bytes, false, || {
                Ok(group.precharge(Bytes(bytes))?.account(&placement))
            });
            made.into_iter().for_each(|made| self.kmems.put(made));
            return;
        }
        let (What::KmemMove(number, ..)
        | What::KmemMigrate(number, ..)
        | What::KmemShrink(number, ..)
        | What::KmemTransfer(number, _)
        | What::KmemDrop(number)) = op.1
        else {
            return;
        };
        let Some(mut kmem) = self.kmems.take(number) else {
            return;
        };
        match op.1 {
            What::KmemMove(_, from, to, bytes) => {
                kmem.migrated(self.node(from), self.node(to), Bytes(bytes));
            }
            What::KmemMigrate(_, from, to, bytes) => {
                let _ = kmem.migrate(self.node(from), self.node(to), Bytes(bytes));
            }
            What::KmemShrink(_, node, bytes) => {
                let mut part = Placement::new();
                part.add(self.node(node), Bytes(bytes));
                self.asked.take_off(kmem.shrink(&part));
            }
            What::KmemTransfer(_, to) => {
                let bytes = kmem.bytes();
                let to = self.group(to);
                if self.ask(bytes, false, || kmem.transfer(&to)).is_some() {
                    self.asked.take_off(bytes);
                }
            }
            _ => {
                let bytes = kmem.bytes();
                drop(kmem);
                return self.asked.take_off(bytes);
            }
        }
        self.kmems.put(kmem);
    }

    // === What must hold ===

    /// No limit is passed, where none moves.
    fn sample(&self) {
        for group in lock(&self.groups).clone() {
            for key in [CounterKey::MEMORY, self.further] {
                let counter = group.counter(key).expect("declared");
                let (usage, max) = (counter.usage(), counter.max());
                assert!(usage <= max, "{usage} used of {max} at {group:?}");
            }
        }
    }

    /// No thread of the run is at work: what is charged is what the run holds. A thread of the
    /// runtime may reclaim a little longer, and takes from a cache between two looks.
    fn rest(&self) {
        self.runtime.settle();
        soon("at rest", || self.holds_what_is_charged());
    }

    fn holds_what_is_charged(&self) -> Result<(), String> {
        // A thread of the runtime may have served one since.
        for task in self.tasks.take_all() {
            self.poll(task);
        }
        let mut held: Vec<(Group, bool, u64)> = Vec::new();
        for (charge, further) in lock(&self.charges.0).iter() {
            held.push((charge.group(), *further, charge.bytes()));
        }
        for (group, bytes) in lock(&self.raws.0).iter() {
            held.push((group.clone(), false, *bytes));
        }
        for vector in lock(&self.vectors.0).iter() {
            held.push((vector.charge().group(), false, vector.charge().bytes()));
        }
        for kmem in lock(&self.kmems.0).iter() {
            held.push((kmem.group(), false, kmem.bytes()));
        }
        for cache in lock(&self.caches).iter() {
            let bytes = lock(&cache.shelf).as_ref().map_or(0, Charge::bytes);
            held.push((cache.group.clone(), false, bytes));
        }
        #[cfg(feature = "kmem")]
        {
            let containers = self.containers.held().into_iter();
            held.extend(containers.map(|(group, bytes)| (group, false, bytes)));
            self.containers.hold(&self.runtime.root())?;
        }
        let added = lock(&self.added).clone();
        let is_within = |below: &Group, top: &Group| {
            below == top || below.ancestors().any(|above| above == *top)
        };
        let groups = lock(&self.groups).clone();
        for group in &groups {
            for (further, key) in [(false, CounterKey::MEMORY), (true, self.further)] {
                // A hook's bag is its closure's: it holds some.
                if !further && !lock(&self.registrations.0).is_empty() {
                    continue;
                }
                let counter = group.counter(key).expect("declared");
                let expected: u64 = held
                    .iter()
                    .filter(|(of, is_further, _)| *is_further == further && is_within(of, group))
                    .map(|(.., bytes)| bytes)
                    .sum();
                let stocked = counter.stocked();
                let found = (counter.live(), counter.usage() - stocked);
                ensure_eq!(found, (expected, expected), "live at rest of {group:?}");
            }
            let stats = group.read(Freshness::Exact);
            for (item, (stat, _)) in self.items.iter().enumerate() {
                let expected: i64 = groups
                    .iter()
                    .filter(|of| is_within(of, group))
                    .filter_map(|of| Some(added.get(&of.id())?[item]))
                    .sum();
                ensure_eq!(stats.get(*stat), expected, "item {item} of {group:?}");
            }
        }
        let verdict = self.runtime.verify();
        ensure!(verdict.is_ok(), "{verdict}");
        // What refusals are judged by.
        let root = self.runtime.root();
        let further = root.counter(self.further).expect("declared");
        let live = root.live() + further.live();
        let most = self.asked.may_be_held.load(Ordering::SeqCst);
        ensure!(
            live <= most,
            "{live} bytes are live, and {most} may be held"
        );
        Ok(())
    }

    /// All goes, and nothing is left.
    fn end(self) {
        let (runtime, further) = (&self.runtime, &self.further);
        drop(self.registrations.take_all());
        drop(self.tasks.take_all());
        for cache in std::mem::take(&mut *lock(&self.caches)) {
            let mine = lock(&cache.registration).take();
            drop(mine);
            drop(lock(&cache.shelf).take());
        }
        drop(self.vectors.take_all());
        drop(self.kmems.take_all());
        #[cfg(feature = "kmem")]
        self.containers.end();
        drop(self.charges.take_all());
        for (group, bytes) in self.raws.take_all() {
            group.raw().uncharge(Bytes(bytes));
        }
        drop(std::mem::take(&mut *lock(&self.groups)));
        let root = runtime.root();
        soon("groups are left", || {
            root.children().iter().for_each(Group::offline_tree);
            runtime.settle();
            let left = (runtime.group_count(), runtime.dying_count());
            if left == (1, 0) {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
        for key in [CounterKey::MEMORY, *further] {
            let counter = root.counter(key).expect("declared");
            counter.drain();
            let left = (counter.usage(), counter.live(), counter.forced());
            assert_eq!(left, (0, 0, 0), "bytes are left");
        }
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{verdict}");
        let counts = runtime.counts();
        let faults = (counts.underflows, counts.overflows, counts.discarded);
        assert_eq!(faults, (0, 0, 0), "counted faults");
    }
}

fn do_act(act: Act, group: &Group) {
    side::give_way();
    match act {
        Act::Nothing => {}
        Act::Panics => side::panic_on_purpose(),
        Act::Charges(bytes) => drop(group.try_charge(Bytes(bytes))),
        Act::Creates => {
            if let Ok(made) = group.create("made", Limits::new()) {
                made.offline_tree();
            }
        }
        Act::Reads => drop(group.read(Freshness::Exact)),
    }
}

/// Holds now, or soon: a thread of the crate may be at work.
fn soon(what: &str, holds: impl Fn() -> Result<(), String>) {
    let patience = Patience::at_rest();
    while let Err(fault) = holds() {
        assert!(patience.lasts(), "{what}: {fault}");
        side::pass();
    }
}

/// No operation of the script moves a max, or passes one.
fn keeps_limits(ops: &[Op]) -> bool {
    !ops.iter().any(|Op(_, what)| match what {
        What::Set(_, kind, _) | What::Unset(_, kind) => {
            matches!(kind, Kind::Max | Kind::MaxNow | Kind::FurtherMax)
        }
        What::Charge(_, verb, _)
        | What::Grow(_, verb, _)
        | What::Resize(_, verb, _)
        | What::RawCharge(_, verb, _) => *verb == Verb::Force,
        What::Observe(..) | What::Apply(..) | What::MoveMax(..) => true,
        What::SetPart(_, kind, _) => *kind == Kind::Max,
        _ => false,
    })
}

/// Runs a script on threads that run at once.
///
/// # Panics
/// When something does not hold.
pub(crate) fn live(setup: &Setup, ops: &[Op]) {
    side::live(setup, ops, live_in_time);
}

fn live_in_time(setup: &Setup, ops: &[Op]) {
    let pools = || {
        pools_of(
            &configure(setup)
                .0
                .build()
                .expect("a configuration that holds"),
        )
    };
    drop(pools());
    let before = pools();
    let (builder, further, items) = configure(setup);
    #[cfg(feature = "kmem")]
    let machine = Arc::new(Machine::default());
    #[cfg(feature = "kmem")]
    let builder = if setup.adapters {
        machine.has_nodes(setup.nodes.max(1));
        builder.node_of(Arc::clone(&machine))
    } else {
        builder
    };
    let runtime = builder.build().expect("as before");
    let world = Arc::new(World {
        #[cfg(feature = "kmem")]
        containers: containers::Containers::new(&runtime.root(), machine),
        groups: Mutex::new(vec![runtime.root()]),
        further,
        items,
        nodes: setup.nodes,
        charges: Bag::new(),
        raws: Bag::new(),
        vectors: Bag::new(),
        tasks: Bag::new(),
        kmems: Bag::new(),
        caches: Mutex::default(),
        registrations: Bag::new(),
        added: Mutex::default(),
        asked: Arc::default(),
        cancels: ops
            .iter()
            .any(|Op(_, what)| matches!(what, What::Oom(_, true) | What::OomBy(..))),
        runtime,
    });
    run(&world, setup, ops);
    world.rest();
    let world = Arc::into_inner(world).expect("the threads have ended");
    world.end();
    // The crate's threads end a while after their last work.
    clock::advance(Duration::from_secs(60));
    soon("objects are left", || {
        let now = pools();
        let is_back = now.iter().zip(&before).all(|(now, was)| now <= was);
        if is_back {
            Ok(())
        } else {
            Err(format!("{now:?}, and {before:?} before"))
        }
    });
    soon("threads are left", side::threads_have_ended);
}

/// The threads have their part of the script to themselves: one that hangs is left behind.
fn run(world: &Arc<World>, setup: &Setup, ops: &[Op]) {
    let threads = setup.threads.max(2);
    let samples = keeps_limits(ops);
    let actors: Vec<_> = (0..threads)
        .map(|number| {
            let mine = ops.iter().filter(|op| op.0 % threads == number);
            let mut mine: VecDeque<Op> = mine.cloned().collect();
            let world = Arc::clone(world);
            thread::spawn(move || {
                // A thread that ends is followed by another.
                while !mine.is_empty() {
                    let end = mine.iter().position(|op| op.1 == What::End);
                    let turn: Vec<Op> = mine
                        .drain(..end.map_or(mine.len(), |end| end + 1))
                        .collect();
                    let world = Arc::clone(&world);
                    let one = thread::spawn(move || turn.iter().for_each(|op| world.step(op)));
                    one.join().unwrap_or_else(|panic| resume_unwind(panic));
                }
            })
        })
        .collect();
    let patience = Patience::new();
    // Each thread has its handle of the world as long as it works.
    while Arc::strong_count(world) > 1 {
        if samples {
            world.sample();
        }
        assert!(patience.lasts(), "a thread hangs");
        side::pass();
    }
    for actor in actors {
        actor.join().unwrap_or_else(|panic| resume_unwind(panic));
    }
}
