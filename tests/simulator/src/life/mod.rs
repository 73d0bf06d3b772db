//! A life: a runtime and its twin go through a script side by side, and are compared after each
//! operation.
//!
//! The threads are real, so each has its own stock, but they take turns: what must come out of
//! each operation is known.
//!
//! * here: the state, the operations on the tree, and the end; `limits`: limits, and who may be
//!   cancelled;
//! * `charges`: what charges, and turns charges into others; `values`: vectors, memory on nodes,
//!   statistics; `tasks`: charges that wait;
//! * `told`: tasks that wait for an event, or for usage below a high; `counters`: counters without
//!   groups; `others`: another runtime, groups that are found or made, or end with a value;
//! * `runtimes`: runtimes of other configurations;
//! * `lines`: who goes when in lines of a tree of its own; `sets`: many counters beside memory;
//!   `marks`: levels of pressure by usage; `tiers`: memory on nodes of several tiers;
//! * `delays`: tasks that have their bytes, and are delayed above a high; `standing`: for how long
//!   charges stand still; `checkpoints`: work that asks whether it is to go on;
//! * `fairness`: groups that give in proportion; `background`: one that the crate's own thread reclaims;
//! * `covered`: charges that pay for what is allocated; `trees`: trees that are applied; `specs`: trees
//!   that are applied time and again, and all that they set;
//! * `orders`: victims of the run's own choice; `peaks`: peaks of live bytes that start over;
//! * `scopes`: which group is a thread's current one, and which pays for what no group owns;
//! * `weighed`: values and what they weigh, and the rarer calls of vectors, gauges and charges;
//! * `words`: charges without a guard that were some; `placements`: memory on nodes that meets;
//! * `callbacks`: caches, listeners, hooks and wakers; `promises`: what a cache gives later;
//! * `figures`: what must hold after each step; `protection`: what is kept from reclaim; `pools`: the
//!   objects; `cycles`: what comes and goes leaves no byte in the heap;
//! * `adapters`: allocators, channels, requests, containers, the host's files, the page of metrics.

#[cfg(feature = "adapters")]
mod adapters;
mod background;
mod callbacks;
mod charges;
mod checkpoints;
mod counters;
mod covered;
mod cycles;
mod delays;
mod fairness;
pub(crate) mod figures;
mod limits;
mod lines;
mod marks;
mod orders;
mod others;
mod peaks;
mod placements;
mod pools;
mod promises;
mod protection;
mod runtimes;
mod scopes;
mod sets;
mod specs;
mod standing;
mod tasks;
mod tiers;
mod told;
mod trees;
mod values;
mod weighed;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;

use memcg::errors::CreateError;
use memcg::figures::Events;
use memcg::{
    Bytes, Charge, ChargedVec, CheckpointFuture, CounterKey, Freshness, Gauge, Group, GroupId,
    Limit, Limits, Runtime, StatKey, Unit,
};

use crate::configuration::{ITEMS, configure, form_of_limits, pools_of};
use crate::denied;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Act, Op, Setup, Size, What};
use crate::threads::Actor;
use crate::twin::{COUNTERS, Key, NotMade, Twin};

use callbacks::{Cache, Hook, Listener, Shared};
use tasks::Task;
use values::NodeMemory;

/// More of them make an operation slow and show nothing new.
const GROUPS_MADE_MAX: usize = 32;
const CHARGES_MAX: usize = 32;

/// So many reads find that nobody writes statistics any more.
const READS_MAX: u32 = 200;

/// By so many visits in a row all credit comes home.
const IDLE_VISITS: u8 = 4;

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
    /// A thread of the runtime may take credit home at any time.
    drains: bool,
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
    /// Groups that were cancelled, with those below that answered for themselves then.
    cancelled_with: Vec<(usize, Vec<usize>)>,
    /// The group whose charge the present operation makes, which may block.
    asking: Option<usize>,
    /// What an order of the run's own has chosen last, once it was asked: a group, or none.
    chosen: Option<Option<usize>>,
    /// What the orders of the run hold.
    orders: Vec<Weak<()>>,
    /// How many orders there have been, and which of them others have followed.
    orders_made: usize,
    orders_over: BTreeSet<usize>,
    /// An order was asked in the present operation.
    was_ordered: bool,
    peaks: Vec<peaks::Peak>,
    /// Groups whose max has moved by itself since the program set it: when it did, and from where.
    moved: BTreeMap<usize, Vec<(Instant, u64)>>,
    /// Checkpoints that have ended, and are kept.
    checkpoints: Vec<CheckpointFuture>,
    /// One that is delayed.
    delayed: Option<checkpoints::DelayedCheckpoint>,
    awaited: Vec<told::Awaited>,
    /// Counts of events that were read a while ago, of this group.
    read_events: Option<(usize, Events)>,
    gauges: Vec<(Key, Gauge)>,
    /// Incidents that are kept at most.
    incidents: usize,
    /// Threads that there have been.
    threads: u64,
    /// When the present operation has begun.
    began: Instant,
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
        runtime.keep_incidents(setup.incidents);
        let shared = Arc::new(Shared::default());
        shared.set_reclaim_time(setup.reclaim_time);
        Life {
            setup: setup.clone(),
            twin: Twin::new(setup.max, setup.batch),
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
            shared,
            actors: (0..setup.threads.max(1)).map(|_| Actor::spawn()).collect(),
            pools,
            keeps: false,
            drains: false,
            cancelled: false,
            central: false,
            had_caches: false,
            ranked: false,
            victims: Vec::new(),
            together: false,
            cancelled_with: Vec::new(),
            asking: None,
            chosen: None,
            orders: Vec::new(),
            orders_made: 0,
            orders_over: BTreeSet::new(),
            was_ordered: false,
            peaks: Vec::new(),
            moved: BTreeMap::new(),
            checkpoints: Vec::new(),
            delayed: None,
            awaited: Vec::new(),
            read_events: None,
            gauges: Vec::new(),
            incidents: setup.incidents,
            threads: setup.threads.max(1).into(),
            began: clock::now(),
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
            self.check_delayed(op);
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

    /// A number that is another one with each of many operations, also on one thread: for choices
    /// that no script names.
    fn some(&self, op: &Op) -> usize {
        usize::from(op.0) + self.twin.held.len() + self.ids.len()
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
        let usage = self.handles[0].first().map_or(0, Group::usage);
        self.shared
            .begin(usage.saturating_sub(self.twin.live(0, 0)));
        self.asking = None;
        self.was_ordered = false;
        self.began = clock::now();
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
                // Not with a share, whose table takes its memory in any case.
                self.create(op, parent, name, form_of_limits(given % 5), Some(given));
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
                    let pools = |life: &Life| life.runtime.as_ref().map(|it| it.own_bytes().pools);
                    let before = pools(self);
                    let found = self.on(op, group, |group| {
                        group.offline().map_err(|refused| refused.children)
                    });
                    // It takes as much as before, or what it took is free.
                    let now = pools(self);
                    assert!(
                        now >= before || !self.shared.is_quiet() || self.drains,
                        "{now:?} bytes of pools after the end of a group, {before:?} before"
                    );
                    let expected = self.twin.offline(group);
                    assert_eq!(found, expected, "children in the way");
                }
            }
            What::OfflineTree(group) => {
                if let Some(group) = self.group(group).filter(|&group| group > 0) {
                    self.on(op, group, Group::offline_tree);
                    self.twin.offline_tree(group);
                    self.hold(Life::no_credit_keeps_groups);
                }
            }
            What::Find(number) => self.find(number),
            What::Set(group, kind, size) => self.set(op, group, kind, Some(size)),
            What::Unset(group, kind) => self.set(op, group, kind, None),
            What::SetPart(group, kind, percent) => self.set_part(op, group, kind, percent),
            What::MoveMax(group, size, shrinks) => self.move_max(op, group, size, shrinks),
            What::EndVainWaits(group, keeps) => self.end_vain_waits(op, group, keeps),
            What::Await(group, event) => self.await_event(op, group, event),
            What::BelowHigh(group) => self.below_high(op, group),
            What::Lines(..) => self.wait_in_lines(op),
            What::Sets(..) => self.charge_sets(op),
            What::Tiers(..) => self.fill_tiers(op),
            What::Marks(..) => self.mark_pressure(op),
            What::Counters(..) => self.count_without_groups(op),
            What::Specs(..) => self.specs(op),
            What::Runtimes(..) => self.other_runtime(op),
            What::Weighed(..) => self.weigh_values(op),
            What::Foreign(number) => self.meet_another_runtime(op, number),
            What::GetOrCreate(parent, name) => self.get_or_create(op, parent, name),
            What::ScopeOf(group) => self.end_with_scope(op, group),
            What::Gauge(group, size) => self.report(op, group, size),
            What::Checkpoint(group) => self.checkpoint(op, group),
            What::Incidents(most) => self.keep_incidents(most.into()),
            What::Unowned(one, other, bytes) => self.pay_for_unowned(op, one, other, bytes),
            What::Scopes(first, many, order) => self.scopes(op, first, many, order),
            What::Background(percent, moves) => self.background(op, percent, moves),
            What::Thresholds(group, elevated, critical) => {
                // A charge that is one byte too large stands still from then on, or from before.
                let stands = |life: &mut Life, group: u8| {
                    life.begin(op, group, Size::More(1), Some(Act::Nothing));
                    life.time_goes_by(Duration::from_millis(1));
                    life.settle_accounts();
                };
                let may_stand = self.setup.stalls && self.shared.is_quiet();
                let first = self.some(op) % 3;
                if may_stand && first == 0 {
                    stands(self, group);
                }
                let other = group.wrapping_add(1);
                if let Some(group) = self.group(group) {
                    // Of the two each may be set alone.
                    let alone = self.some(op) % 4;
                    self.on(op, group, move |group| {
                        let mut limits = Limits::new().pressure_levels(elevated, critical);
                        match alone {
                            1 => limits.critical = None,
                            2 => limits.elevated = None,
                            _ => {}
                        }
                        group.set_limits(limits).expect("no percentage")
                    });
                    let before = self.twin.groups[group].thresholds;
                    self.twin.groups[group].thresholds = match alone {
                        1 => (elevated, before.1),
                        2 => (before.0, critical),
                        _ => (elevated, critical),
                    };
                    if may_stand && first == 1 {
                        stands(self, other);
                    }
                    self.stand_for_long();
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
                    for below in 0..self.twin.groups.len() {
                        if self.twin.is_within(below, group) && self.twin.groups[below].online {
                            self.twin.groups[below].batch = batch;
                        }
                    }
                    let bound = self.on(op, group, move |group| {
                        group.memory().set_batch(batch);
                        group.memory().stocked_bound()
                    });
                    assert!(
                        batch > 0 || bound == 0,
                        "{bound} may be credit without a batch"
                    );
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
                        self.first_look_at_shares(op, group);
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
                    self.give_back(op, |group| group.memory().drain(), group);
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
                for _ in 0..visits {
                    self.give_credit_back(op, Runtime::release_idle_credit);
                }
                if visits >= IDLE_VISITS {
                    self.hold(Life::has_no_idle_credit);
                }
            }
            What::OwnCredit => {
                self.give_credit_back(op, Runtime::release_thread_credit);
                let left = self.give_credit_back(op, Runtime::release_thread_credit);
                assert_eq!(left, 0, "credit is left behind");
            }
            What::Look => self.look(),
            What::End => {
                let at = usize::from(op.0) % self.actors.len();
                if !self.actors[at].is_busy() {
                    self.actors[at] = Actor::spawn();
                    self.threads += 1;
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
            | What::KmemMigrate(..)
            | What::KmemPack(..)
            | What::KmemMerge(..)
            | What::KmemRelocate(..)
            | What::KmemShrink(..)
            | What::KmemShrinkTwo(..)
            | What::KmemTransfer(..)
            | What::KmemDrop(..) => self.step_value(op),
            What::Time(milliseconds) => {
                let time = Duration::from_millis(milliseconds.into());
                self.time_goes_by(time);
                #[cfg(feature = "adapters")]
                self.adapters.advance(time);
                self.settle_accounts();
            }
            What::Begin(..)
            | What::BeginTimed(..)
            | What::BeginUntil(..)
            | What::BeginAbove(..)
            | What::Wait(..)
            | What::Poll(..)
            | What::DropTask(..) => self.step_task(op),
            What::Cache(..)
            | What::Fill(..)
            | What::Evict(..)
            | What::Unregister(..)
            | What::CacheDrop(..)
            | What::Keep(..)
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
        if let Some(runtime) = self.runtime.as_ref().filter(|_| op.0.is_multiple_of(2)) {
            // Credit that waits for its barrier keeps a group that the twin has lost. A call that
            // finds no place for that does the same.
            runtime.settle();
        }
        // A thread of the runtime keeps groups that pass a high for a moment, while it reclaims.
        self.may_drain(limits.high.is_some());
        self.ranked |= limits.importance.is_some();
        // A number is one as a text, too. A zero before it makes it another name.
        let number = Some(u64::from(name)).filter(|name| name % 12 >= 10);
        let name = match (number, name % 12) {
            (Some(number), _) => number.to_string(),
            (None, 9) => String::from("010"),
            (None, 6) => String::from("+7"),
            (None, 8) => String::from("a name that does not fit where short ones lie"),
            (None, 7) => String::from("N\u{fc}rnberg"),
            _ => format!("g{name}"),
        };
        let number = number.filter(|_| op.0.is_multiple_of(2));
        let expected = self.twin.create(parent, &name, limits);
        let made = self.on(op, parent, move |parent| match given {
            Some(given) => denied::after(given.into(), || parent.create(&name, limits)),
            None => match number {
                Some(number) => (parent.create(number, limits), 0),
                None => (parent.create(&name, limits), 0),
            },
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

    /// Nobody has used it for so many visits, a central stock's or a thread's.
    fn has_no_idle_credit(&self) -> Holds {
        let Some(root) = self.handles[0].first() else {
            return Ok(());
        };
        // A thread of the crate goes on where it has served somebody.
        if !self.shared.is_quiet() || !crate::threads::of_the_crate().is_empty() {
            return Ok(());
        }
        for number in 0..COUNTERS {
            let counter = root.counter(self.counter(number)).expect("declared");
            ensure_eq!(
                counter.stocked(),
                0,
                "credit that has been idle, of {counter:?}"
            );
        }
        Ok(())
    }

    /// What ended at once has given its credit back with it.
    fn no_credit_keeps_groups(&self) -> Holds {
        let online = self.twin.online_below(0).count();
        let is_known = self.shared.is_quiet() && !self.keeps;
        if let Some(runtime) = self.runtime.as_ref().filter(|_| is_known) {
            let (dying, most) = (runtime.dying_count(), self.there() - online);
            ensure!(dying <= most, "{dying} groups are dying, of {most}");
        }
        Ok(())
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
        for wrong in [
            format!("{path}/"),
            format!("/{path}"),
            path[1..].to_string(),
        ] {
            assert!(runtime.group(&wrong).is_none(), "{wrong} is no path");
        }
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
            let left = self.orders.iter().filter(|order| order.strong_count() > 0);
            assert_eq!(left.count(), 0, "orders of victims outlive their runtime");
        }
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
        self.delayed = None;
        self.peaks.clear();
        self.awaited.clear();
        self.read_events = None;
        for (key, gauge) in std::mem::take(&mut self.gauges) {
            self.twin.release(key);
            self.actor(&op(2)).run(move || drop(gauge));
        }
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
        self.ended_threads_hold_nothing();
        let handles = std::mem::take(&mut self.handles);
        let root = handles[0].first().cloned();
        self.actor(&op(0)).run(move || drop(handles));
        self.hold(Life::runtime_is_empty);
        self.checkpoints.clear();
        // Else each look at the heap gives them a while.
        self.threads_of_the_crate_end();
        self.make_most_groups();
        self.cycles_leave_nothing();
        if let Some(root) = root {
            // Of writers that have stopped a read knows no more after a while.
            let is_exact = |_| {
                drop(root.read(Freshness::Threshold));
                root.read(Freshness::Stale).max_error() == 0
            };
            assert!((0..READS_MAX).any(is_exact), "writers that have stopped");
            for number in 0..COUNTERS {
                let counter = root.counter(self.counter(number)).expect("declared");
                counter.drain();
                let left = (counter.usage(), counter.live(), counter.forced());
                assert_eq!(left, (0, 0, 0), "bytes are left behind");
                counter.set_batch(0);
                let bound = counter.stocked_bound();
                assert_eq!(bound, 0, "bytes that may be credit, without a batch");
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
        self.threads_of_the_crate_end();
    }

    /// What threads hold back that have ended goes home with the next visit.
    fn ended_threads_hold_nothing(&mut self) {
        let Some(runtime) = self.runtime.clone() else {
            return;
        };
        let many = self.actors.len();
        self.actors.clear();
        self.actors = (0..many).map(|_| Actor::spawn()).collect();
        self.threads += many as u64;
        // The run's own thread goes on.
        runtime.release_thread_credit();
        runtime.release_idle_credit();
        // A central stock is no thread's.
        if self.central {
            return;
        }
        for number in 0..COUNTERS {
            let counter = runtime.root().counter(self.counter(number));
            let left = counter.expect("declared").stocked();
            // A thread of the crate that has served somebody goes on, with credit of its own.
            let others = crate::threads::of_the_crate();
            assert!(
                left == 0 || !others.is_empty(),
                "{left} of credit of threads that have ended"
            );
        }
    }

    /// They do so a while after their last work.
    fn threads_of_the_crate_end(&mut self) {
        self.keeps = true;
        self.hold(|_| {
            let left = crate::threads::of_the_crate();
            if !left.is_empty() {
                // One that wakes has rested for no time yet.
                clock::advance(Duration::from_secs(2));
            }
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
                // With all that a group has beside its object.
                root.create(&name, Limits::new().soft(0).pressure_levels(50, 80))
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
            // What the groups before them were written goes with those.
            for group in &made[..8.min(made.len())] {
                let written = group.read(Freshness::Exact).get(self.items[0].0);
                assert_eq!(written, self.actors.len() as i64, "written to {group:?}");
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
