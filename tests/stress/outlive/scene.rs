//! Runtimes one after the other, and what can be had of their groups.

use std::alloc::Layout;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::barrier::BarrierMode;
use memcg::footprint::PoolAlign;
use memcg::kmem::KmemMember;
use memcg::kmem::{NodeId, Placement};
use memcg::{
    Bytes, Charge, CounterKey, Event, Freshness, Group, GroupId, Limit, Limits, OomPolicy, Reclaim,
    ReclaimContext, ReclaimPriority, Runtime, RuntimeBuilder, StatKey,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Heap;
use super::lock;
use super::things::{Tally, Thing, Token};
use crate::support::waiters::until;

/// A max that is met now and then.
const TIGHT: u64 = 4_000;

const ALIGNS: [PoolAlign; 2] = [PoolAlign::CacheLine, PoolAlign::Packed];

/// Memory that a tenant could do without.
pub(crate) struct Cache {
    held: Mutex<Vec<Charge>>,
    tally: Arc<Tally>,
    _token: Token,
}

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        assert!(
            context.target().path().starts_with('/') && context.group().path().starts_with('/')
        );
        let mut freed = 0;
        while freed < want {
            let Some(charge) = lock(&self.held).pop() else {
                break;
            };
            freed += charge.bytes();
        }
        self.tally
            .gave
            .fetch_add(u64::from(freed > 0), Ordering::Relaxed);
        freed
    }

    fn reclaimable(&self) -> u64 {
        lock(&self.held).iter().map(Charge::bytes).sum()
    }
}

/// The present runtime. Only the handle on its root keeps an earlier one.
pub(crate) struct Scene {
    now: Mutex<Arc<Runtime>>,
    /// Roots of all there were, and the further counter of each.
    roots: Mutex<Vec<(Group, CounterKey)>>,
    /// Ids of groups of any runtime.
    ids: Mutex<Vec<GroupId>>,
    seeds: AtomicU64,
    /// Each piece of foreign code has one.
    token: Token,
    pub(crate) tally: Arc<Tally>,
}

/// Objects in use, of all pools that these runtimes take from, when there is no more than a root of
/// each.
pub(crate) fn objects() -> Vec<u64> {
    let live = |align| {
        let mut builder = Runtime::builder().pool_align(align);
        let _further = builder.counter("further", memcg::Unit::Bytes);
        let runtime = builder.build().expect("a configuration that holds");
        runtime
            .pools()
            .rows()
            .iter()
            .map(|row| row.live)
            .collect::<Vec<_>>()
    };
    ALIGNS.into_iter().flat_map(live).collect()
}

fn runtime(rng: &mut SmallRng) -> (Runtime, CounterKey) {
    let mut builder: RuntimeBuilder = Runtime::builder()
        .audit(rng.random_bool(0.3))
        .batch(Bytes([0, 64, 64, 4_096][rng.random_range(0..4)]))
        .adaptive(rng.random_bool(0.7))
        .pool_align(ALIGNS[rng.random_range(0..2)])
        // No thread is waited for here.
        .reclaim_time(Duration::ZERO)
        .oom_time(Duration::ZERO)
        .delay_max(Duration::ZERO);
    if rng.random_bool(0.2) {
        builder = builder.barrier(BarrierMode::Fence);
    }
    if rng.random_bool(0.2) {
        builder = builder.groups_max(20);
    }
    let further = builder.counter("further", memcg::Unit::Bytes);
    (
        builder.build().expect("a configuration that holds"),
        further,
    )
}

impl Scene {
    pub(crate) fn new(seed: u64, tally: &Arc<Tally>) -> Self {
        let (runtime, further) = runtime(&mut SmallRng::seed_from_u64(seed));
        Self {
            roots: Mutex::new(vec![(runtime.root(), further)]),
            now: Mutex::new(Arc::new(runtime)),
            ids: Mutex::default(),
            seeds: AtomicU64::new(seed << 20),
            token: Token::default(),
            tally: Arc::clone(tally),
        }
    }

    pub(crate) fn runtime(&self) -> Arc<Runtime> {
        Arc::clone(&lock(&self.now))
    }

    pub(crate) fn token(&self) -> Token {
        self.token.clone()
    }

    /// An id of any time.
    pub(crate) fn any_id(&self, rng: &mut SmallRng) -> Option<GroupId> {
        let ids = lock(&self.ids);
        (!ids.is_empty()).then(|| ids[rng.random_range(0..ids.len())])
    }

    pub(crate) fn note(&self, id: GroupId) {
        let mut ids = lock(&self.ids);
        if ids.len() >= 1_000 {
            ids.clear();
        }
        ids.push(id);
    }

    /// Another runtime takes over; the old one lies around like anything else.
    pub(crate) fn turn(&self, heap: &Heap, rng: &mut SmallRng) {
        let seed = self.seeds.fetch_add(1, Ordering::Relaxed);
        let (next, further) = runtime(&mut SmallRng::seed_from_u64(seed));
        lock(&self.roots).push((next.root(), further));
        let old = std::mem::replace(&mut *lock(&self.now), Arc::new(next));
        if rng.random_bool(0.5) {
            heap.put(Thing::Runtime(old));
        }
    }

    /// A group of now, or one that has just been made below it.
    fn any_group(&self, rng: &mut SmallRng) -> Option<Group> {
        let runtime = self.runtime();
        let root = runtime.root();
        let parent = match rng.random_range(0..3) {
            0 => runtime
                .group(&format!("/{}", rng.random_range(0..6)))
                .unwrap_or(root),
            _ => root,
        };
        let limits = match rng.random_range(0..4) {
            0 => Limits::new().max(Limit::Bytes(TIGHT)).low(100),
            1 => Limits::new().high(Limit::Bytes(TIGHT / 2)).soft(10),
            _ => Limits::new(),
        };
        let name = rng.random_range(0..6).to_string();
        let group = match parent.create(&name, limits) {
            Ok(group) => group,
            // Taken, full, or gone meanwhile.
            Err(_) => parent.children().pop().unwrap_or(parent),
        };
        if rng.random_bool(0.1) {
            group.set_oom_policy(OomPolicy::Choose);
        }
        self.note(group.id());
        Some(group)
    }

    /// Something of a group.
    pub(crate) fn make(&self, rng: &mut SmallRng) -> Option<Thing> {
        let group = self.any_group(rng)?;
        let bytes = rng.random_range(0..300);
        Some(match rng.random_range(0..24) {
            0..5 => Thing::Charge(group.charge(Bytes(bytes)).ok()?),
            5 => Thing::Charge(group.force_charge(Bytes(bytes))),
            6..9 => Thing::Group(group),
            9 => Thing::Window(group.memory().peak_window()),
            10 => Thing::Waits(group.charge_async(Bytes(TIGHT - bytes))),
            11 => Thing::Hears(Box::pin(group.events().changed(Event::Max))),
            12 => Thing::Events(if bytes % 2 == 0 {
                group.events()
            } else {
                group.events().local()
            }),
            13 => {
                let token = self.token();
                let tally = Arc::clone(&self.tally);
                Thing::Listener(group.on_event(Event::Max, move |happened| {
                    let _token = &token;
                    assert!(happened.times() > 0);
                    tally.told.fetch_add(1, Ordering::Relaxed);
                }))
            }
            14 => {
                let token = self.token();
                let tally = Arc::clone(&self.tally);
                Thing::Hook(group.on_cancel(move |why| {
                    let _token = &token;
                    tally.cancelled.fetch_add(1, Ordering::Relaxed);
                    assert!(why.group().path().len() >= why.domain().path().len());
                }))
            }
            15 | 16 => {
                let held = (0..4)
                    .filter_map(|_| group.charge(Bytes(bytes)).ok())
                    .collect();
                let cache = Arc::new(Cache {
                    held: Mutex::new(held),
                    tally: Arc::clone(&self.tally),
                    _token: self.token(),
                });
                let registration = group.register_reclaimer(
                    Arc::clone(&cache) as Arc<dyn Reclaim>,
                    ReclaimPriority::NORMAL,
                );
                Thing::Reclaimer((registration, cache))
            }
            17 => Thing::Member(KmemMember::of(&group)),
            18 => Thing::Mover(KmemMember::of(&group).mover()),
            19 => Thing::Precharge(group.precharge(Bytes(bytes)).ok()?),
            20 => {
                let mut placement = Placement::new();
                placement.add(None, Bytes(bytes));
                let precharge = group
                    .precharge(Placement::bound(Layout::new::<[u8; 512]>()))
                    .ok()?;
                Thing::Kmem(precharge.account_as(StatKey::SLAB, &placement))
            }
            21 | 22 => {
                let placement = Placement::on(NodeId::new(0), Bytes(bytes));
                Thing::Packed(
                    group
                        .precharge(Bytes(bytes))
                        .ok()?
                        .account(&placement)
                        .pack()
                        .ok()?,
                )
            }
            _ => {
                let refused = group
                    .charge(Bytes(u64::MAX))
                    .expect_err("no thread has as much");
                Thing::Refused(Box::new(refused))
            }
        })
    }

    /// All things are gone: of no runtime is anything left, and nothing of what was registered with
    /// any of them.
    pub(crate) fn end(self) {
        let Scene {
            now,
            roots,
            ids,
            token,
            ..
        } = self;
        let now = Arc::into_inner(now.into_inner().expect("no thread panics with it"))
            .expect("no other thread has it");
        now.root().children().iter().for_each(Group::offline_tree);
        now.settle();
        // A thread of the library that reclaims, wakes or tells keeps the group that it does so for,
        // also while the program ends it.
        until("no group of the last runtime is dying", || {
            now.dying_count() == 0
        });
        assert_eq!(now.group_count(), 1);
        let verdict = now.verify();
        assert!(verdict.is_ok(), "{verdict}");
        for &id in &*lock(&ids) {
            assert!(
                now.find(id).is_none_or(|group| group == now.root()),
                "{id} is still there"
            );
        }
        drop(now);
        for (root, further) in roots.into_inner().expect("no thread panics with it") {
            assert!(root.is_offline() && root.children().is_empty());
            root.memory().drain();
            until("nothing is charged", || root.usage() == 0);
            let counter = root.counter(further).expect("its own");
            assert_eq!(
                (
                    root.usage(),
                    root.forced(),
                    root.memory().stocked_bound(),
                    root.waiting_count()
                ),
                (0, 0, 0, 0)
            );
            assert_eq!((counter.usage(), counter.forced()), (0, 0));
            let left = root.read(Freshness::Exact);
            assert_eq!(
                [StatKey::SLAB, StatKey::KERNEL, StatKey::PERCPU].map(|stat| left.get(stat)),
                [0; 3],
                "of kernel memory"
            );
        }
        until(
            "no listener, hook, reclaimer or waker is left that no thread can call any more",
            || token.others() == 0,
        );
    }
}

/// A future that a thread polls once in a while.
pub(crate) type Hears = Pin<Box<memcg::EventFuture>>;
