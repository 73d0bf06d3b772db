//! A runtime, its groups and their reclaimers, and what must hold of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::barrier::BarrierMode;
use memcg::{
    Bytes, Charge, ChargeError, Group, GroupId, Limit, Limits, Reclaim, ReclaimContext,
    ReclaimPriority, ReclaimPromise, Registration, Runtime,
};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{ON_PURPOSE, lock};
use crate::forced::Forced;
use crate::support::waiters::until;

/// Groups that stay for the life of their tree, the root first, and places for those that do not.
pub(crate) const STAYS: usize = 9;
pub(crate) const PASSING: usize = 12;
pub(crate) const MAX: u64 = 8 << 20;

// === impl Stay ===

/// A group that stays, and what the sampler has to know about it.
pub(crate) struct Stay {
    pub(crate) group: Group,
    /// One setter at a time; the number is odd while one is at work.
    setter: Mutex<()>,
    setting: AtomicU64,
    forced: Arc<Forced>,
}

impl Stay {
    fn new(group: Group, forced: &Arc<Forced>) -> Self {
        Self {
            group,
            setter: Mutex::new(()),
            setting: AtomicU64::new(0),
            forced: Arc::clone(forced),
        }
    }

    pub(crate) fn set_max(&self, limit: Limit) {
        let _one = lock(&self.setter);
        self.setting.fetch_add(1, Ordering::SeqCst);
        self.group.set_max(limit).expect("a number");
        self.setting.fetch_add(1, Ordering::SeqCst);
    }

    /// Looks once; `false` when a limit or a forced charge came in between.
    pub(crate) fn sample(&self) -> bool {
        let setting = self.setting.load(Ordering::SeqCst);
        let still = self.forced.still();
        // Forced excess first: while none is added it only falls, so it was at least as large when
        // usage was read.
        let forced = self.group.forced();
        let max = self.group.max();
        let usage = self.group.usage();
        let quiet = still.is_some() && self.forced.still() == still;
        if !quiet || setting % 2 == 1 || self.setting.load(Ordering::SeqCst) != setting {
            return false;
        }
        let ordinary = usage.saturating_sub(forced);
        assert!(
            ordinary <= max,
            "{}: usage {usage}, forced {forced}, max {max}",
            self.group.path()
        );
        true
    }
}

// === impl Cache ===

/// The answer of a cache.
#[derive(Clone, Copy, PartialEq)]
enum Character {
    Honest,
    Modest,
    Greedy,
    Boasts,
    Panics,
    Later,
    /// Charges a buffer while it works.
    Works,
}

type Due = Arc<Mutex<Vec<(ReclaimPromise, Arc<Shelf>)>>>;

/// The memory of a cache, and whether it may be asked.
struct Shelf {
    held: Mutex<Charge>,
    gone: AtomicBool,
    /// Questions after its end.
    late: Arc<AtomicU64>,
}

struct Cache {
    shelf: Arc<Shelf>,
    character: Character,
    due: Due,
}

impl Shelf {
    fn evict(&self, want: u64) -> u64 {
        // Freed after the lock is given back: an uncharge may be long.
        let part = {
            let mut held = lock(&self.held);
            let part = want.min(held.bytes());
            held.split(Bytes(part)).expect("no more than there is")
        };
        part.bytes()
    }
}

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        if self.shelf.gone.load(Ordering::SeqCst) {
            self.shelf.late.fetch_add(1, Ordering::SeqCst);
        }
        match self.character {
            Character::Honest => self.shelf.evict(want),
            Character::Modest => self.shelf.evict(want) / 2,
            Character::Greedy => self.shelf.evict(u64::MAX),
            Character::Boasts => want,
            Character::Panics => std::panic::panic_any(ON_PURPOSE),
            Character::Later => {
                lock(&self.due).push((context.promise(), Arc::clone(&self.shelf)));
                0
            }
            Character::Works => {
                let buffer = context.group().charge(4_096);
                let freed = self.shelf.evict(want);
                drop(buffer);
                freed
            }
        }
    }

    fn reclaimable(&self) -> u64 {
        lock(&self.shelf.held).bytes()
    }
}

/// A cache and its registration.
struct Kept {
    group: Group,
    shelf: Arc<Shelf>,
    character: Character,
    registration: Option<Registration>,
}

impl Kept {
    fn new(world: &Shared, group: &Group, character: Character) -> Self {
        let held = Mutex::new(group.force_charge(0));
        let shelf = Arc::new(Shelf {
            held,
            gone: AtomicBool::new(false),
            late: Arc::clone(&world.late),
        });
        let cache = Cache {
            shelf: Arc::clone(&shelf),
            character,
            due: Arc::clone(&world.due),
        };
        let registration = group.register_reclaimer(Arc::new(cache), ReclaimPriority::NORMAL);
        Self {
            group: group.clone(),
            shelf,
            character,
            registration: Some(registration),
        }
    }

    fn fill(&self, bytes: u64) -> Result<(), ChargeError> {
        let more = self.group.charge(Bytes(bytes))?;
        // Dropped when it cannot be merged: no thread moves it.
        lock(&self.shelf.held)
            .merge(more)
            .expect("of the same group");
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.registration.take());
        self.shelf.gone.store(true, Ordering::SeqCst);
    }
}

/// A group that comes and goes, with a cache.
pub(crate) struct Passing {
    pub(crate) group: Group,
    cache: Kept,
}

impl Passing {
    pub(crate) fn new(world: &World, group: Group, rng: &mut SmallRng) -> Self {
        let cache = Kept::new(&world.shared, &group, character(rng));
        // Refused: it starts empty.
        let _ = cache.fill(rng.random_range(0..64 << 10));
        Self { group, cache }
    }

    /// It goes, its cache now or at some time after it, by a thread that is left with it.
    pub(crate) fn end(self, emptied: bool) {
        if emptied {
            self.cache.shelf.evict(u64::MAX);
        }
        drop(self);
    }
}

fn character(rng: &mut SmallRng) -> Character {
    match rng.random_range(0..16) {
        0 => Character::Modest,
        1 => Character::Greedy,
        2 => Character::Boasts,
        3 => Character::Panics,
        4 => Character::Later,
        5 | 6 => Character::Works,
        _ => Character::Honest,
    }
}

// === impl World ===

/// The state that reclaimers share with their world.
#[derive(Default)]
struct Shared {
    due: Due,
    late: Arc<AtomicU64>,
}

/// One runtime, its groups and their caches.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) stays: Vec<Stay>,
    pub(crate) passing: Vec<Mutex<Option<Passing>>>,
    pub(crate) forced: Arc<Forced>,
    /// One honest cache for each group that stays, and others.
    caches: Vec<Kept>,
    others: Mutex<Vec<Kept>>,
    shared: Shared,
}

impl World {
    pub(crate) fn random(rng: &mut SmallRng) -> Self {
        let mut builder = Runtime::builder()
            .audit(true)
            .batch(Bytes([0, 4_096, 65_536][rng.random_range(0..3)]))
            .adaptive(rng.random_bool(0.7))
            .recursive_protection(rng.random_bool(0.7))
            .reclaim_time(Duration::from_millis(2))
            .max(Limit::Bytes(MAX));
        if rng.random_bool(0.3) {
            builder = builder.barrier(BarrierMode::Fence);
        }
        let runtime = builder.build().expect("a configuration that holds");
        let forced = Arc::<Forced>::default();
        let shared = Shared::default();
        let mut stays = vec![Stay::new(runtime.root(), &forced)];
        while stays.len() < STAYS {
            let parent = rng.random_range(0..stays.len().min(4));
            let limits = [
                Limits::new(),
                Limits::new().soft(0),
                Limits::new()
                    .soft(Limit::Bytes(MAX / 10))
                    .max(Limit::Bytes(MAX / 2)),
                Limits::new().low(Limit::Bytes(MAX / 20)),
                Limits::new()
                    .min(Limit::Bytes(MAX / 40))
                    .soft(Limit::Bytes(MAX / 20)),
            ];
            let group = stays[parent]
                .group
                .create(&format!("stay{}", stays.len()), limits[stays.len() % 5]);
            stays.push(Stay::new(group.expect("a name"), &forced));
        }
        let caches = stays[1..]
            .iter()
            .map(|stay| Kept::new(&shared, &stay.group, Character::Honest))
            .collect();
        let passing = (0..PASSING).map(|_| Mutex::default()).collect();
        Self {
            runtime,
            stays,
            passing,
            forced,
            caches,
            others: Mutex::default(),
            shared,
        }
    }

    pub(crate) fn any_group(&self, rng: &mut SmallRng) -> Group {
        match rng.random_range(0..STAYS + PASSING / 2) {
            stay if stay < STAYS => self.stays[stay].group.clone(),
            place => {
                let passing = lock(&self.passing[(place - STAYS) % PASSING])
                    .as_ref()
                    .map(|at| at.group.clone());
                passing.unwrap_or_else(|| self.stays[place % STAYS].group.clone())
            }
        }
    }

    /// A cache takes more. What is charged is charged without a lock: it may be this very cache
    /// that has to give.
    pub(crate) fn fill(&self, rng: &mut SmallRng, bytes: u64) -> Result<(), ChargeError> {
        self.caches[rng.random_range(0..self.caches.len())].fill(bytes)
    }

    /// Another reclaimer in a group that stays; there are few at a time.
    pub(crate) fn register(&self, rng: &mut SmallRng) {
        let kept = Kept::new(
            &self.shared,
            &self.stays[rng.random_range(0..STAYS)].group,
            character(rng),
        );
        // Refused: it starts empty.
        let _ = kept.fill(rng.random_range(0..128 << 10));
        let old = {
            let mut others = lock(&self.others);
            others.push(kept);
            (others.len() > 6).then(|| others.remove(0))
        };
        drop(old);
    }

    /// A thread that has asked to be waited for is done, or gives up.
    pub(crate) fn answer(&self, report: bool) {
        let due = lock(&self.shared.due).pop();
        if let Some((later, shelf)) = due {
            if report {
                let freed = shelf.evict(later.want());
                later.report(freed);
            } else {
                drop(later);
            }
        }
    }

    /// No thread charges: everything must add up. `held` and the caches are all there is.
    pub(crate) fn check(&self, held: &[&Charge]) {
        let verdict = self.runtime.verify();
        assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
        let mut live: HashMap<GroupId, (Group, u64)> = HashMap::new();
        let mut add = |group: Group, bytes: u64| {
            for level in group.ancestors().chain([group]) {
                live.entry(level.id()).or_insert((level, 0)).1 += bytes;
            }
        };
        held.iter()
            .for_each(|charge| add(charge.group(), charge.bytes()));
        let others = lock(&self.others);
        let passing: Vec<_> = self.passing.iter().map(lock).collect();
        let due = lock(&self.shared.due);
        // A shelf that only an answer keeps is counted once, as all others are.
        let mut shelves: Vec<&Arc<Shelf>> = self
            .caches
            .iter()
            .chain(&*others)
            .map(|kept| &kept.shelf)
            .collect();
        shelves.extend(
            passing
                .iter()
                .filter_map(|passing| Some(&passing.as_ref()?.cache.shelf)),
        );
        shelves.extend(due.iter().map(|(_, shelf)| shelf));
        shelves.sort_by_key(|shelf| Arc::as_ptr(shelf));
        shelves.dedup_by_key(|shelf| Arc::as_ptr(shelf));
        for shelf in shelves {
            let held = lock(&shelf.held);
            add(held.group(), held.bytes());
        }
        for (group, bytes) in live.values() {
            assert_eq!(group.live(), *bytes, "{}", group.path());
        }
        for group in self
            .runtime
            .root()
            .inspect()
            .descendants()
            .chain([self.runtime.root()])
        {
            let usage = group.usage();
            let forced = group.forced();
            let max = group.max();
            assert!(
                usage - forced <= max,
                "{}: usage {usage}, forced {forced}, max {max}",
                group.path()
            );
            assert_eq!(
                group.inspect().is_in_excess(),
                usage > group.inspect().soft(),
                "{}",
                group.path()
            );
            let below = group
                .inspect()
                .descendants()
                .filter(|group| group.inspect().is_in_excess())
                .count() as u64;
            assert_eq!(
                group.inspect().descendants_in_excess(),
                below,
                "{}",
                group.path()
            );
        }
        assert_eq!(
            self.shared.late.load(Ordering::SeqCst),
            0,
            "asked after their end"
        );
        let counts = self.runtime.counts();
        assert_eq!(
            (counts.underflows, counts.overflows, counts.discarded),
            (0, 0, 0)
        );
    }

    /// Memory of honest caches that nothing protects is room: half of it must be had. The time for
    /// it is short here, and the processor may be elsewhere: not at once, but as long as any comes.
    pub(crate) fn check_reclaimable(&self, rng: &mut SmallRng) {
        // Answers that are due would be waited for.
        while !lock(&self.shared.due).is_empty() {
            self.answer(rng.random_bool(0.5));
        }
        let root = self.runtime.root();
        let free = |kept: &&Kept| {
            kept.group
                .memory()
                .effective_min(&root.memory())
                .max(kept.group.memory().effective_low(&root.memory()))
                == 0
        };
        let honest = self
            .caches
            .iter()
            .filter(|kept| kept.character == Character::Honest)
            .filter(free);
        let there: u64 = honest.map(|kept| lock(&kept.shelf.held).bytes()).sum();
        let room = root.max();
        let bytes = room.saturating_sub(root.live()) + there / 2;
        if bytes <= room {
            let mut made = root.charge(Bytes(bytes));
            let mut usage = u64::MAX;
            while made.is_err() && root.usage() < usage {
                usage = root.usage();
                made = root.charge(Bytes(bytes));
            }
            assert!(
                made.is_ok(),
                "{bytes} of {room}, {there} could be had: {made:?}"
            );
        }
    }

    /// All that is held is gone: nothing may be left.
    pub(crate) fn end(self) {
        let World {
            runtime,
            stays,
            passing,
            caches,
            others,
            shared,
            ..
        } = self;
        drop((passing, caches, others));
        // Some answer when all else has gone.
        let due = std::mem::take(&mut *lock(&shared.due));
        for (later, shelf) in due {
            later.report(shelf.evict(u64::MAX));
        }
        drop(stays);
        let root = runtime.root();
        root.children().iter().for_each(Group::offline_tree);
        runtime.settle();
        root.memory().drain();
        until("no group is dying", || runtime.dying_count() == 0);
        assert_eq!(runtime.group_count(), 1);
        assert_eq!(
            (
                root.usage(),
                root.forced(),
                root.inspect().descendants_in_excess()
            ),
            (0, 0, 0)
        );
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{verdict}");
    }
}
