//! A life: a runtime and its twin go through a script side by side, and are compared after each
//! operation.
//!
//! The threads are real, so each has its own stock, but they take turns: what must come out of
//! each operation is known.
//!
//! * here: the state, the operations on the tree and its limits, and the end;
//! * `charges`: what charges, and turns charges into others; `values`: vectors, memory on nodes,
//!   statistics; `tasks`: charges that wait;
//! * `delays`: tasks that have their bytes, and are delayed above a high;
//! * `fairness`: groups that give in proportion; `background`: one that the crate's own thread reclaims;
//! * `covered`: charges that pay for what is allocated; `trees`: trees that are applied;
//! * `orders`: victims of the run's own choice; `peaks`: peaks of live bytes that start over;
//! * `scopes`: which group is a thread's current one, and which pays for what no group owns;
//! * `words`: charges without a guard that were some; `placements`: memory on nodes that meets;
//! * `callbacks`: caches, listeners, hooks and wakers; `figures`: what must hold after each step;
//!   `pools`: the objects; `cycles`: what comes and goes leaves no byte in the heap.
//! * `adapters`: allocators, channels, requests, containers, the host's files, the page of metrics.

#[cfg(feature = "adapters")]
mod adapters;
mod background;
mod callbacks;
mod charges;
mod covered;
mod cycles;
mod delays;
mod fairness;
pub(crate) mod figures;
mod orders;
mod peaks;
mod placements;
mod pools;
mod scopes;
mod tasks;
mod trees;
mod values;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;

use memcg::errors::CreateError;
use memcg::{
    Bytes, Charge, ChargedVec, CounterKey, Group, GroupId, Limit, Limits, OomPolicy, Percent,
    Runtime, StatKey, Unit,
};

use crate::configuration::{ITEMS, configure, form_of_limits, limit, pools_of};
use crate::denied;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Kind, Op, Setup, Size, What};
use crate::threads::Actor;
use crate::twin::{COUNTERS, Key, NotMade, Twin};

use callbacks::{Cache, Hook, Listener, Shared};
use tasks::Task;
use values::NodeMemory;

/// More of them make an operation slow and show nothing new.
const GROUPS_MADE_MAX: usize = 32;
const CHARGES_MAX: usize = 32;

/// Operations between two looks at everything.
const LOOK_EVERY: usize = 16;

/// A life under way.
pub(crate) struct Life {
    setup: Setup,
    twin: Twin,
    runtime: Option<Runtime>,
    further: CounterKey,
    items: [(StatKey, Unit); ITEMS],
    /// Of each of the twin's groups.
    ids: Vec<GroupId>,
    handles: Vec<Vec<Group>>,
    charges: Vec<(Key, Charge)>,
    raws: Vec<Key>,
    /// The words of those that were charges.
    words: BTreeMap<Key, usize>,
    vectors: Vec<(Key, ChargedVec<u64>)>,
    tasks: Vec<Task>,
    caches: Vec<Arc<Cache>>,
    listeners: Vec<Listener>,
    hooks: Vec<Hook>,
    kmems: Vec<NodeMemory>,
    shared: Arc<Shared>,
    actors: Vec<Actor>,
    /// Live objects of the pools when there is a root and nothing else.
    pools: Vec<u64>,
    /// Something was used that keeps groups in a way that the twin does not know.
    keeps: bool,
    /// A group was cancelled: it may be refused for a while.
    cancelled: bool,
    /// A central stock has credit, or had.
    central: bool,
    /// Threads of the runtime may ask caches, or might once.
    had_caches: bool,
    /// Groups differ in importance, or did.
    ranked: bool,
    /// Groups that were cancelled, and until when they are waited for.
    victims: Vec<(usize, Instant)>,
    /// Some groups go as one with all below them, or did.
    together: bool,
    /// What an order of the run's own has chosen last, once it was asked: a group, or none.
    chosen: Option<Option<usize>>,
    peaks: Vec<peaks::Peak>,
    #[cfg(feature = "adapters")]
    adapters: adapters::Adapters,
    /// The present step, for the message of a failure.
    at: String,
}

impl Life {
    /// A runtime as the script wants it.
    ///
    /// # Panics
    /// When it cannot be built.
    pub(crate) fn new(setup: &Setup) -> Self {
        clock::stop();
        let before = configure(setup).0;
        // The first one makes what a process has once.
        drop(before.build().expect("a configuration that holds"));
        let pools = pools_of(&configure(setup).0.build().expect("as before"));
        let (builder, further, items) = configure(setup);
        #[cfg(feature = "adapters")]
        let adapters = adapters::Adapters::new();
        #[cfg(feature = "adapters")]
        let builder = adapters.configure(setup, builder);
        let runtime = builder.build().expect("as before");
        let root = runtime.root();
        Life {
            setup: setup.clone(),
            twin: Twin::new(setup.max),
            ids: vec![root.id()],
            handles: vec![vec![root]],
            runtime: Some(runtime),
            further,
            items,
            charges: Vec::new(),
            raws: Vec::new(),
            words: BTreeMap::new(),
            vectors: Vec::new(),
            tasks: Vec::new(),
            caches: Vec::new(),
            listeners: Vec::new(),
            hooks: Vec::new(),
            kmems: Vec::new(),
            shared: Arc::new(Shared::default()),
            actors: (0..setup.threads.max(1)).map(|_| Actor::spawn()).collect(),
            pools,
            keeps: false,
            cancelled: false,
            central: false,
            had_caches: false,
            ranked: false,
            victims: Vec::new(),
            together: false,
            chosen: None,
            peaks: Vec::new(),
            #[cfg(feature = "adapters")]
            adapters,
            at: String::from("start"),
        }
    }

    /// Does all of the script, then lets go of what is left. `tell` hears of each operation.
    ///
    /// # Panics
    /// When the runtime and its twin disagree.
    pub(crate) fn live(mut self, ops: &[Op], tell: &mut dyn FnMut(usize, &Op, &str)) {
        for (number, op) in ops.iter().enumerate() {
            self.at = format!("operation {number}, {op:?}");
            self.lose_count(op);
            self.step(op);
            self.settle_accounts();
            self.check_delays();
            self.check_victims(op);
            self.glance();
            if number % LOOK_EVERY == LOOK_EVERY - 1 {
                self.look();
            }
            tell(number, op, &self.summary());
        }
        self.finish();
    }

    /// The operation's thread, or the next one where that has a call that waits.
    fn actor(&self, op: &Op) -> &Actor {
        let at = usize::from(op.0) % self.actors.len();
        let (before, from) = self.actors.split_at(at);
        let mut all = from.iter().chain(before);
        all.find(|actor| !actor.is_busy()).expect("one is free")
    }

    /// The groups that the run has a handle on.
    fn group(&self, number: u8) -> Option<usize> {
        let in_hand: Vec<usize> = (0..self.handles.len())
            .filter(|&group| !self.handles[group].is_empty())
            .collect();
        (!in_hand.is_empty()).then(|| in_hand[usize::from(number) % in_hand.len()])
    }

    fn handle(&self, group: usize) -> &Group {
        &self.handles[group][0]
    }

    /// Runs `job` with a handle of the group on the operation's thread.
    fn on<R: Send + 'static>(
        &self,
        op: &Op,
        group: usize,
        job: impl FnOnce(&Group) -> R + Send + 'static,
    ) -> R {
        let handle = self.handle(group).clone();
        self.actor(op).run(move || job(&handle))
    }

    fn counter(&self, number: usize) -> CounterKey {
        [CounterKey::MEMORY, self.further][number]
    }

    /// The amount of a size.
    fn bytes(&self, group: usize, counter: usize, size: Size) -> u64 {
        // The margin of an unlimited tree is no useful size for a charge.
        let room = || self.twin.margin(group, counter, None).min(1 << 20);
        match size {
            Size::Bytes(bytes) => bytes,
            Size::Less(bytes) => room().saturating_sub(bytes),
            Size::More(bytes) => room() + bytes,
            Size::Above(bytes) => self.twin.live(group, counter).saturating_add(bytes),
            Size::Beyond(bytes) => {
                let mut rooms: Vec<u64> = self
                    .twin
                    .levels(group)
                    .map(|level| {
                        let above = self.twin.groups[level].parent;
                        self.twin.margin(level, counter, above)
                    })
                    .collect();
                rooms.sort_unstable();
                let room = rooms.get(1).or(rooms.first()).copied().unwrap_or(0);
                room.min(1 << 20).saturating_sub(bytes)
            }
            Size::Part(part) => {
                let least = self
                    .twin
                    .levels(group)
                    .map(|level| self.twin.groups[level].max[counter])
                    .min();
                least.unwrap_or(0).min(1 << 16) / 16 * u64::from(part)
            }
        }
    }

    fn step(&mut self, op: &Op) {
        self.shared.begin();
        match op.1 {
            What::Create(parent, name, max) => {
                let limits = max.map_or(Limits::new(), |max| Limits::new().max(Limit::Bytes(max)));
                self.create(op, parent, name, limits, None);
            }
            What::CreateWith(parent, name, form) => {
                self.create(op, parent, name, form_of_limits(form), None);
            }
            What::CreateWithPercent(parent, name, percent) => {
                let limits = Limits::new().soft(Limit::percent(percent));
                self.create(op, parent, name, limits, None);
            }
            What::CreateDenied(parent, name, given) => {
                self.create(op, parent, name, form_of_limits(given), Some(given));
            }
            What::CloneHandle(group) => {
                if let Some(group) = self.group(group) {
                    let clone = self.on(op, group, Group::clone);
                    self.handles[group].push(clone);
                }
            }
            What::DropHandle(group) => self.drop_handle(op, group),
            What::Offline(group) => {
                // The root goes with its runtime.
                if let Some(group) = self.group(group).filter(|&group| group > 0) {
                    let found = self.on(op, group, |group| {
                        group.offline().map_err(|refused| refused.children)
                    });
                    let expected = self.twin.offline(group);
                    assert_eq!(found, expected, "children in the way");
                }
            }
            What::OfflineTree(group) => {
                if let Some(group) = self.group(group).filter(|&group| group > 0) {
                    self.on(op, group, Group::offline_tree);
                    self.twin.offline_tree(group);
                }
            }
            What::Find(number) => self.find(number),
            What::Set(group, kind, size) => self.set(op, group, kind, Some(size)),
            What::Unset(group, kind) => self.set(op, group, kind, None),
            What::SetPart(group, kind, percent) => self.set_part(op, group, kind, percent),
            What::Unowned(one, other, bytes) => self.pay_for_unowned(op, one, other, bytes),
            What::Scopes(first, many, order) => self.scopes(op, first, many, order),
            What::Background(percent, moves) => self.background(op, percent, moves),
            What::Thresholds(group, elevated, critical) => {
                if let Some(group) = self.group(group) {
                    self.on(op, group, move |group| {
                        let limits = Limits::new().pressure_levels(elevated, critical);
                        group.set_limits(limits).expect("no percentage")
                    });
                    self.twin.groups[group].thresholds = (elevated, critical);
                }
            }
            What::Importance(group, importance) => {
                self.ranked = true;
                if let Some(group) = self.group(group) {
                    self.twin.groups[group].importance = Some(importance);
                    self.on(op, group, move |group| {
                        let limits = Limits::new().importance(importance);
                        group.set_limits(limits).expect("no percentage")
                    });
                }
            }
            What::Observe(group, whether) => {
                if let Some(group) = self.group(group) {
                    self.twin.groups[group].observes = whether;
                    self.on(op, group, move |group| group.set_observe_only(whether));
                }
            }
            What::Batch(group, batch) => {
                if let Some(group) = self.group(group) {
                    self.on(op, group, move |group| group.memory().set_batch(batch));
                }
            }
            What::Share(group, share) => {
                if let Some(group) = self.group(group) {
                    self.on(op, group, move |group| {
                        let limits = Limits::new().share(share);
                        group.set_limits(limits).expect("no percentage")
                    });
                    // The root has no siblings.
                    if group > 0 && self.twin.groups[group].online {
                        self.twin.set_share(group, share);
                    }
                }
            }
            What::Apply(..) => self.apply_tree(op),
            What::Cover(..) => self.cover(op),
            What::Peak(_) | What::PeakReset(_) | What::PeakDrop(_) => self.step_peak(op),
            What::OomBy(..) => self.set_order(op),
            What::Oom(..) | What::OomGroup(..) | What::OomExempt(..) => self.set_oom(op),
            What::Drain(group) => {
                if let Some(group) = self.group(group) {
                    self.on(op, group, |group| group.memory().drain());
                    self.settle_accounts();
                    let usage = self.handle(group).usage();
                    let live = self.twin.live(group, 0);
                    assert_eq!(usage, live, "credit is left after a drain");
                }
            }
            What::Settle => {
                if let Some(runtime) = &self.runtime {
                    runtime.settle();
                }
            }
            What::Idle(visits) => {
                if let Some(runtime) = self.runtime.clone() {
                    self.actor(op).run(move || {
                        (0..visits).for_each(|_| _ = runtime.release_idle_credit());
                        drop(runtime);
                    });
                }
            }
            What::OwnCredit => {
                if let Some(runtime) = self.runtime.clone() {
                    let left = self.actor(op).run(move || {
                        runtime.release_thread_credit();
                        runtime.release_thread_credit()
                    });
                    assert_eq!(left, Bytes(0), "credit is left behind");
                }
            }
            What::Look => self.look(),
            What::End => {
                let at = usize::from(op.0) % self.actors.len();
                if !self.actors[at].is_busy() {
                    self.actors[at] = Actor::spawn();
                }
            }
            What::DropRuntime => self.drop_runtime(),
            What::Charge(..)
            | What::ChargeSet(..)
            | What::Grow(..)
            | What::Shrink(..)
            | What::Resize(..)
            | What::Split(..)
            | What::Take(..)
            | What::Merge(..)
            | What::Transfer(..)
            | What::Drop(..)
            | What::DropAll(..)
            | What::RawCharge(..)
            | What::RawUncharge(..)
            | What::IntoRaw(..)
            | What::FromRaw(..)
            | What::CentralTake(..)
            | What::CentralGive(..)
            | What::CentralRelease(..) => self.step_charge(op),
            What::VecNew(..)
            | What::VecPush(..)
            | What::VecPop(..)
            | What::VecShrink(..)
            | What::VecDrop(..)
            | What::StatAdd(..)
            | What::StatRead(..)
            | What::Kmem(..)
            | What::KmemMove(..)
            | What::KmemMerge(..)
            | What::KmemRelocate(..)
            | What::KmemShrink(..)
            | What::KmemShrinkTwo(..)
            | What::KmemTransfer(..)
            | What::KmemDrop(..) => self.step_value(op),
            What::Time(milliseconds) => {
                let time = Duration::from_millis(milliseconds.into());
                clock::advance(time);
                #[cfg(feature = "adapters")]
                self.adapters.advance(time);
                self.settle_accounts();
            }
            What::Begin(..)
            | What::BeginTimed(..)
            | What::BeginAbove(..)
            | What::Wait(..)
            | What::Poll(..)
            | What::DropTask(..) => self.step_task(op),
            What::Cache(..)
            | What::Fill(..)
            | What::Evict(..)
            | What::Unregister(..)
            | What::CacheDrop(..)
            | What::Reclaim(..)
            | What::ShareReclaim(..)
            | What::Listen(..)
            | What::Unlisten(..)
            | What::Hook(..)
            | What::Unhook(..) => self.step_callback(op),
            #[cfg(feature = "adapters")]
            What::With(ref adapter) => self.step_adapter(op, adapter),
        }
    }

    /// Something of an adapter waits for bytes.
    #[cfg(not(feature = "adapters"))]
    fn adapters_wait(&self) -> bool {
        false
    }

    /// An adapter has given back all that it had below that key.
    #[cfg(not(feature = "adapters"))]
    fn is_given_back(&self, _: Key) -> bool {
        false
    }

    // === The tree ===

    fn create(&mut self, op: &Op, parent: u8, name: u8, limits: Limits, given: Option<u8>) {
        if self.ids.len() >= GROUPS_MADE_MAX {
            return;
        }
        let Some(parent) = self.group(parent) else {
            return;
        };
        if let Some(runtime) = &self.runtime {
            // Credit that waits for its barrier keeps a group that the twin has lost.
            runtime.settle();
        }
        // A thread of the runtime keeps groups that pass a high for a moment, while it reclaims.
        self.keeps |= limits.high.is_some();
        let name = format!("g{name}");
        let expected = self.twin.create(parent, &name, limits);
        let made = self.on(op, parent, move |parent| match given {
            Some(given) => denied::after(given.into(), || parent.create(&name, limits)),
            None => (parent.create(&name, limits), 0),
        });
        match (made, expected) {
            ((Ok(group), _), Ok(number)) => {
                assert_eq!(number, self.ids.len());
                let id = group.id();
                assert!(!self.ids.contains(&id), "{id} for the second time");
                self.ids.push(id);
                self.handles.push(vec![group]);
            }
            ((Err(CreateError::Offline { .. }), _), Err(NotMade::Offline))
            | ((Err(CreateError::Taken { .. }), _), Err(NotMade::Taken))
            | ((Err(CreateError::Limit(_)), _), Err(NotMade::NoMax)) => {}
            // Objects that the twin does not know may be among the most.
            ((Err(CreateError::Full { .. }), _), Ok(_))
                if self.there() >= self.setup.groups_max as usize || self.keeps =>
            {
                self.twin.unmake_last();
            }
            ((Err(CreateError::Full { .. }), _), Err(_)) => {}
            ((Err(CreateError::Memory { .. }), refused), expected) if refused > 0 => {
                if expected.is_ok() {
                    self.twin.unmake_last();
                }
            }
            ((made, refused), expected) => {
                panic!("{made:?} beside {refused} refused allocations, the twin says {expected:?}")
            }
        }
    }

    /// Groups that something keeps.
    fn there(&self) -> usize {
        (0..self.ids.len())
            .filter(|&group| self.is_there(group))
            .count()
    }

    fn is_there(&self, group: usize) -> bool {
        self.twin.groups[group].online
            || !self.handles[group].is_empty()
            || group == 0 && self.runtime.is_some()
            || self
                .twin
                .held
                .iter()
                .any(|(&key, held)| held.group == group && !self.is_bare(key, held.bytes))
            || self.tasks.iter().any(|task| task.group == group)
            || self.twin.children(group).any(|child| self.is_there(child))
    }

    /// A cache or a hook that has no charge, or a request that has ended.
    fn is_bare(&self, key: Key, bytes: u64) -> bool {
        let is_shelf = self.caches.iter().any(|cache| cache.key == key)
            || self.hooks.iter().any(|hook| hook.key == key)
            || self.is_given_back(key);
        is_shelf && bytes == 0
    }

    fn drop_handle(&mut self, op: &Op, group: u8) {
        let Some(group) = self.group(group) else {
            return;
        };
        // Bytes without a guard are given back through a handle.
        let raw = self
            .raws
            .iter()
            .any(|&key| self.twin.of(key).group == group);
        if group == 0 || raw && self.handles[group].len() == 1 {
            return;
        }
        let handle = self.handles[group].pop();
        self.actor(op).run(move || drop(handle));
    }

    /// An id finds its own group as long as that is there, and never another one; a path finds the
    /// group that is online there.
    fn find(&mut self, number: u8) {
        let Some(runtime) = &self.runtime else { return };
        let group = usize::from(number) % self.ids.len();
        let id = self.ids[group];
        let path = self.twin.path(group);
        let online = self
            .twin
            .online_below(0)
            .find(|&group| self.twin.path(group) == path);
        let by_path = runtime.group(&path).map(|found| found.id());
        assert_eq!(by_path, online.map(|group| self.ids[group]), "at {path}");
        match runtime.find(id) {
            Some(found) => {
                assert_eq!((found.id(), found.path()), (id, path));
                self.handles[group].push(found);
            }
            None => assert!(!self.is_there(group), "{id} is there"),
        }
    }

    fn drop_runtime(&mut self) {
        for key in self.raws.clone() {
            // Without a runtime no call finds a group that only bytes without a guard keep.
            let group = self.twin.of(key).group;
            if self.handles[group].is_empty() {
                return;
            }
        }
        if let Some(runtime) = self.runtime.take() {
            #[cfg(feature = "adapters")]
            self.forget_pages();
            drop(runtime);
            self.twin.offline_tree(0);
        }
    }

    // === Limits ===

    fn set(&mut self, op: &Op, group: u8, kind: Kind, size: Option<Size>) {
        let Some(group) = self.group(group) else {
            return;
        };
        let counter = usize::from(kind == Kind::FurtherMax);
        let bytes = match (size, kind) {
            (Some(size), _) => self.bytes(group, counter, size),
            (None, Kind::Low | Kind::Min) => 0,
            (None, _) => u64::MAX,
        };
        let to = limit(bytes);
        let of = self.counter(counter);
        let above = self.on(op, group, move |group| match kind {
            Kind::Max => group.set_max(to),
            Kind::MaxNow => group.memory().set_max_now(to),
            Kind::FurtherMax => group.counter(of).expect("declared").set_max(to),
            Kind::High => group.set_limits(Limits::new().high(to)),
            Kind::Soft => group.set_limits(Limits::new().soft(to)),
            Kind::Low => group.set_limits(Limits::new().low(to)),
            Kind::Min => group.set_limits(Limits::new().min(to)),
            Kind::Mark => group.set_limits(Limits::new().reclaim_above(to)),
        });
        let above = above.expect("no percentage");
        let is_online = self.twin.groups[group].online;
        match kind {
            Kind::Max | Kind::MaxNow | Kind::FurtherMax => self.twin.set_max(group, counter, bytes),
            Kind::High => {
                self.twin.set_limit(group, kind, bytes, None);
                // A thread of the runtime reclaims for charges that do not block.
                self.keeps = true;
            }
            Kind::Soft | Kind::Low | Kind::Min if is_online => {
                self.twin.set_limit(group, kind, bytes, None);
            }
            Kind::Soft | Kind::Low | Kind::Min => {}
            Kind::Mark => self.keeps = true,
        }
        if matches!(kind, Kind::Max | Kind::MaxNow | Kind::FurtherMax) {
            // Before what is given back for it, after it, or in between.
            let before = self.twin.live(group, counter).saturating_sub(bytes);
            let mut found = vec![before];
            self.settle_accounts_with(|life| {
                found.push(life.twin.live(group, counter).saturating_sub(bytes));
            });
            // A max that only counts drains no credit, which is above it, too. And what callbacks do of themselves, or an adapter that is woken, may come after the call has looked.
            let others_act = !self.shared.is_quiet() || self.setup.adapters;
            let is_right = found.last() == Some(&above) || others_act && found.contains(&above);
            assert!(is_right, "{above} above {bytes}, the twin says {found:?}");
            if kind == Kind::Max && above > 0 && !self.twin.is_observed(group) {
                self.nothing_left_below(group, above);
            }
        }
    }

    /// A limit that is a part of a max is set where a level above has one, and else nothing is.
    fn set_part(&mut self, op: &Op, group: u8, kind: Kind, percent: u8) {
        let Some(group) = self.group(group) else {
            return;
        };
        if !self.twin.groups[group].online {
            return;
        }
        let part = Percent::new(percent).expect("a percentage");
        let set = self.on(op, group, move |group| {
            let (limits, to) = (Limits::new(), Limit::Percent(part));
            group.set_limits(match kind {
                Kind::High => limits.high(to),
                Kind::Low => limits.low(to),
                Kind::Min => limits.min(to),
                _ => limits.soft(to),
            })
        });
        // A thread of the runtime reclaims for charges that do not block.
        self.keeps |= kind == Kind::High;
        let above = self.twin.groups[group].parent;
        let max = above.and_then(|above| self.twin.max_above(above));
        assert_eq!(set.is_ok(), max.is_some(), "{set:?}, the twin has {max:?}");
        if let Some(max) = max {
            self.twin.set_limit(group, kind, part.of(max), Some(part));
        }
    }

    fn set_oom(&mut self, op: &Op) {
        let (What::Oom(group, whether)
        | What::OomGroup(group, whether)
        | What::OomExempt(group, whether)) = op.1
        else {
            unreachable!("an operation on the policy");
        };
        let Some(group) = self.group(group) else {
            return;
        };
        let what = op.1.clone();
        self.together |= matches!(what, What::OomGroup(..));
        match what {
            What::OomExempt(..) => self.twin.groups[group].exempt = whether,
            What::OomGroup(..) => self.twin.groups[group].together = whether,
            _ => {}
        }
        self.on(op, group, move |group| match what {
            What::Oom(..) if whether => group.set_oom_policy(OomPolicy::Choose),
            What::Oom(..) => group.set_oom_policy(OomPolicy::Refuse),
            What::OomGroup(..) => group.set_oom_group(whether),
            _ => group.set_oom_exempt(whether),
        });
    }

    // === The end ===

    /// All that is left goes, on several threads, and nothing of it may remain.
    fn finish(mut self) {
        self.at = String::from("the end");
        self.look();
        let op = |thread: usize| Op(thread as u8, What::Look);
        #[cfg(feature = "adapters")]
        self.end_adapters();
        self.end_threads();
        self.peaks.clear();
        for task in std::mem::take(&mut self.tasks) {
            self.end_task(&op(0), task);
            self.settle_accounts();
        }
        for key in std::mem::take(&mut self.raws) {
            let held = self.twin.of(key);
            if self.handles[held.group].is_empty() {
                let runtime = self.runtime.as_ref().expect("it keeps the handles");
                let found = runtime.find(self.ids[held.group]);
                self.handles[held.group].push(found.expect("bytes keep it"));
            }
            self.twin.release(key);
            self.on(&op(1), held.group, move |group| {
                group.raw().uncharge(Bytes(held.bytes));
            });
            self.settle_accounts();
        }
        let listeners = std::mem::take(&mut self.listeners);
        self.actor(&op(1)).run(move || drop(listeners));
        let hooks = std::mem::take(&mut self.hooks);
        for hook in &hooks {
            self.twin.release(hook.key);
        }
        self.actor(&op(2)).run(move || drop(hooks));
        for cache in std::mem::take(&mut self.caches) {
            self.end_cache(&op(0), &cache);
        }
        self.settle_accounts();
        for (key, vector) in std::mem::take(&mut self.vectors) {
            self.twin.release(key);
            self.actor(&op(1)).run(move || drop(vector));
        }
        for memory in std::mem::take(&mut self.kmems) {
            self.twin.release(memory.key);
            self.actor(&op(1)).run(move || drop(memory.kmem));
        }
        for (number, (key, charge)) in std::mem::take(&mut self.charges).into_iter().enumerate() {
            self.twin.release(key);
            self.actor(&op(number)).run(move || drop(charge));
        }
        self.settle_accounts();
        assert!(self.twin.held.is_empty(), "the twin has bytes left");
        self.glance();
        let handles = std::mem::take(&mut self.handles);
        let root = handles[0].first().cloned();
        self.actor(&op(0)).run(move || drop(handles));
        self.hold(Life::runtime_is_empty);
        self.make_most_groups();
        self.cycles_leave_nothing();
        if let Some(root) = root {
            for number in 0..COUNTERS {
                let counter = root.counter(self.counter(number)).expect("declared");
                counter.drain();
                let left = (counter.usage(), counter.live(), counter.forced());
                assert_eq!(left, (0, 0, 0), "bytes are left behind");
            }
        }
        drop(self.runtime.take());
        self.actors.clear();
        self.keeps = true;
        // The crate's threads end a while after their last work.
        clock::advance(Duration::from_secs(60));
        let (builder, ..) = configure(&self.setup);
        self.hold(|life| {
            let now = pools_of(&builder.clone().build().expect("as before"));
            // A run that failed before may have left some, which have come back by now.
            let is_back = now.iter().zip(&life.pools).all(|(now, was)| now <= was);
            ensure!(
                is_back,
                "objects are left: {now:?}, and {:?} before",
                life.pools
            );
            Ok(())
        });
        self.hold(|_| {
            let left = crate::threads::of_the_crate();
            ensure!(left.is_empty(), "threads are left: {left:?}");
            Ok(())
        });
    }

    /// As many groups as there may be are made, and no more: none is counted that has gone. And again:
    /// what the ones before took is there for the next. They get other objects at first, until all
    /// have been used by all threads.
    fn make_most_groups(&mut self) {
        let Some(runtime) = self.runtime.clone() else {
            return;
        };
        let root = runtime.root();
        let mut own = Vec::new();
        while own.len() < 2 || own[own.len() - 2] != own[own.len() - 1] {
            assert!(own.len() < 40, "bytes of the library itself: {own:?}");
            let make = |number: u32| {
                let name = format!("a name that does not fit where short ones lie, {number}");
                root.create(&name, Limits::new().soft(0))
            };
            let made: Vec<Group> = (1..self.setup.groups_max)
                .map(|number| make(number).expect("fewer than the most"))
                .collect();
            let more = make(0);
            assert!(matches!(more, Err(CreateError::Full { .. })), "{more:?}");
            for actor in &self.actors {
                let (some, stat) = (made[..8.min(made.len())].to_vec(), self.items[0].0);
                actor.run(move || some.iter().for_each(|group| group.stat_add(stat, 1)));
            }
            root.children().iter().for_each(Group::offline_tree);
            drop(made);
            self.hold(Life::runtime_is_empty);
            own.push(runtime.own_bytes().total());
        }
    }

    fn runtime_is_empty(&self) -> Holds {
        let Some(runtime) = &self.runtime else {
            return Ok(());
        };
        runtime
            .root()
            .children()
            .iter()
            .for_each(Group::offline_tree);
        runtime.settle();
        let left = (runtime.group_count(), runtime.dying_count());
        ensure_eq!(left, (1, 0), "groups left, and dying ones");
        runtime.root().memory().drain();
        let verdict = runtime.verify();
        ensure!(verdict.is_ok(), "{verdict}");
        let counts = runtime.counts();
        let faults = (
            counts.underflows,
            counts.overflows,
            counts.discarded,
            counts.refused_in_transit,
        );
        ensure_eq!(faults, (0, 0, 0, 0), "counted faults");
        Ok(())
    }
}
