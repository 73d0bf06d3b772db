//! Random operations of every kind against exact counts of what each group owns: the allocator is a
//! value here, not the process's.

mod support;

use std::alloc::System;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use memcg::{Limits, Runtime};
use memcg_alloc::{LARGE_OBJECTS, MemcgAlloc, PROCESS_ONLY};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{Counted, Object, alone, assert_all_gone};

const GROUPS: usize = 8;
const ALIGNS: [usize; 7] = [1, 2, 8, 16, 64, 512, 4_096];

static EVERY: MemcgAlloc = MemcgAlloc::new(System);
static LARGE: MemcgAlloc<System, LARGE_OBJECTS> = MemcgAlloc::with_threshold(System);
static NONE: MemcgAlloc<System, PROCESS_ONLY> = MemcgAlloc::with_threshold(System);

fn size(random: &mut StdRng) -> usize {
    let most = [16, 64, 200, 1_100, 5_000, 70_000][random.random_range(0..6)];
    random.random_range(1..=most)
}

const fn owns<const FROM: usize>(size: usize) -> bool {
    FROM != PROCESS_ONLY && size >= FROM
}

/// One thread: random groups, sizes, alignments and reallocs. After each step each group is exact.
fn steps<const FROM: usize>(allocator: &MemcgAlloc<System, FROM>, steps: usize) {
    let runtime = Runtime::builder().build().unwrap();
    let groups: Vec<Counted> = (0..GROUPS)
        .map(|at| Counted::new(&runtime.root(), &format!("g{at}")))
        .collect();
    let mut random = StdRng::seed_from_u64(FROM as u64);
    let mut objects = Vec::<Object>::new();
    let mut unowned = 0;
    let before = memcg_alloc::unowned_bytes() as i64;
    let count = |owner: usize, bytes: usize, sign: i64, unowned: &mut i64| {
        if owns::<FROM>(bytes) && owner < GROUPS {
            groups[owner].change(sign * bytes as i64, || ());
        } else {
            *unowned += sign * bytes as i64;
        }
    };
    for step in 0..steps {
        let current = random.random_range(0..=GROUPS);
        let within = |work: &mut dyn FnMut()| match groups.get(current) {
            Some(of) => of.group.run(work),
            None => work(),
        };
        match random.random_range(0..10) {
            0..4 => {
                let size = size(&mut random);
                let align = ALIGNS[random.random_range(0..ALIGNS.len())];
                let zeroed = random.random();
                let mut object = None;
                within(&mut || {
                    object = Some(Object::allocate(allocator, size, align, current, zeroed))
                });
                count(current, size, 1, &mut unowned);
                objects.extend(object);
            }
            4..7 if !objects.is_empty() => {
                let at = random.random_range(0..objects.len());
                let object = &mut objects[at];
                let size = size(&mut random);
                let before = object.layout.size();
                let owner = object.owner;
                within(&mut || object.resize(allocator, size));
                // An object that is owned before and after keeps its owner; else the current group
                // has it.
                let after = if owns::<FROM>(before) && owns::<FROM>(size) {
                    owner
                } else {
                    current
                };
                count(owner, before, -1, &mut unowned);
                count(after, size, 1, &mut unowned);
                object.owner = after;
            }
            _ if !objects.is_empty() => {
                let object = objects.swap_remove(random.random_range(0..objects.len()));
                count(object.owner, object.layout.size(), -1, &mut unowned);
                let mut object = Some(object);
                within(&mut || object.take().unwrap().free(allocator));
            }
            _ => {}
        }
        if step % 16 == 0 {
            groups.iter().for_each(Counted::assert_exact);
            assert_eq!(memcg_alloc::unowned_bytes() as i64 - before, unowned);
        }
    }
    objects
        .into_iter()
        .for_each(|object| object.free(allocator));
    assert!(groups.iter().all(|of| of.group.live() == 0));
    assert_eq!(memcg_alloc::unowned_bytes() as i64, before);
    groups.iter().for_each(|of| of.group.offline().unwrap());
    drop(groups);
    assert_all_gone(&runtime);
}

#[test]
fn each_step_is_exact_where_every_object_is_owned() {
    let _alone = alone();
    steps(&EVERY, 20_000);
}

#[test]
fn each_step_is_exact_from_a_threshold() {
    let _alone = alone();
    steps(&LARGE, 20_000);
}

#[test]
fn each_step_is_exact_where_no_object_is_owned() {
    let _alone = alone();
    steps(&NONE, 20_000);
}

const THREADS: usize = 4;

/// The state that the threads of one test share.
struct Shared<const FROM: usize> {
    allocator: &'static MemcgAlloc<System, FROM>,
    groups: Vec<Counted>,
    /// The group that is charged for what no group owns.
    unowned: Counted,
    handed: [Mutex<Vec<Object>>; THREADS],
}

impl<const FROM: usize> Shared<FROM> {
    fn of(&self, size: usize, owner: usize) -> &Counted {
        if owns::<FROM>(size) {
            &self.groups[owner]
        } else {
            &self.unowned
        }
    }

    fn allocate(&self, random: &mut StdRng) -> Object {
        let owner = random.random_range(0..GROUPS);
        let size = size(random);
        let align = ALIGNS[random.random_range(0..5)];
        let allocate = || Object::allocate(self.allocator, size, align, owner, false);
        self.of(size, owner)
            .change(size as i64, || self.groups[owner].group.run(allocate))
    }

    /// Outside of all groups: what becomes owned by it is no group's, so an object stays owned or
    /// does not.
    fn resize(&self, object: &mut Object, random: &mut StdRng) {
        let before = object.layout.size();
        let after = size(random);
        if owns::<FROM>(before) == owns::<FROM>(after) {
            let of = self.of(after, object.owner);
            of.change(after as i64 - before as i64, || {
                object.resize(self.allocator, after)
            });
        }
    }

    fn free(&self, object: Object) {
        let size = object.layout.size();
        self.of(size, object.owner)
            .change(-(size as i64), || object.free(self.allocator));
    }

    fn work(&self, me: usize, seed: usize) {
        let mut random = StdRng::seed_from_u64(seed as u64);
        let mut mine = Vec::new();
        for _ in 0..1_000 {
            let mut object = self.allocate(&mut random);
            if random.random_range(0..3) == 0 {
                self.resize(&mut object, &mut random);
            }
            mine.push(object);
            if mine.len() > 50 {
                let to = random.random_range(0..THREADS);
                self.handed[to].lock().unwrap().append(&mut mine);
                let others = std::mem::take(&mut *self.handed[me].lock().unwrap());
                others.into_iter().for_each(|object| self.free(object));
            }
        }
        self.handed[me].lock().unwrap().append(&mut mine);
    }

    /// While threads allocate: the ledger of a group is what its objects may be at that time.
    fn sample(&self, random: &mut StdRng) {
        let of = &self.groups[random.random_range(0..GROUPS)];
        let (ledger, bounds) = of.between(|| of.group.ledger());
        assert!(
            bounds.contains(&ledger.allocated()),
            "{}: {ledger:?}, and {bounds:?}",
            of.group.path()
        );
    }

    /// While no thread allocates: each group is exact, and all together have what was handed out.
    fn assert_exact(&self, runtime: &Runtime, unowned_before: u64) {
        memcg_alloc::catch_up();
        self.groups.iter().for_each(Counted::assert_exact);
        assert_eq!(
            memcg_alloc::unowned_bytes() - unowned_before,
            self.unowned.owned()
        );
        assert_eq!(self.unowned.group.live(), memcg_alloc::unowned_bytes());
        let owned = self.groups.iter().map(Counted::owned).sum::<u64>();
        assert_eq!(runtime.root().live(), owned + memcg_alloc::unowned_bytes());
    }
}

/// Threads allocate in random groups, pass objects on, and free what others have allocated, and
/// another one takes samples. After each round each group is exact; then the groups end before
/// their objects.
fn threads<const FROM: usize>(allocator: &'static MemcgAlloc<System, FROM>) {
    const ROUNDS: usize = 5;
    let runtime = Runtime::builder().build().unwrap();
    let before = memcg_alloc::unowned_bytes();
    for round in 0..ROUNDS {
        let tenant = runtime
            .root()
            .create(&format!("tenant{round}"), Limits::new().max(1 << 20))
            .unwrap();
        let shared = Shared {
            allocator,
            groups: (0..GROUPS)
                .map(|at| Counted::new(&tenant, &format!("g{at}")))
                .collect(),
            unowned: Counted::new(&runtime.root(), &format!("unowned{round}")),
            handed: std::array::from_fn(|_| Mutex::default()),
        };
        memcg_alloc::charge_unowned_to(Some(&shared.unowned.group));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let shared = &shared;
            let over = &over;
            let start = |me| scope.spawn(move || shared.work(me, round * THREADS + me));
            let workers: Vec<_> = (0..THREADS).map(start).collect();
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(round as u64);
                while !over.load(Ordering::Relaxed) {
                    shared.sample(&mut random);
                }
            });
            let ended: Vec<_> = workers
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect();
            over.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|worker| worker.unwrap());
        });
        shared.assert_exact(&runtime, before);
        tenant.offline_tree();
        let left = shared
            .handed
            .iter()
            .flat_map(|handed| std::mem::take(&mut *handed.lock().unwrap()));
        let half = left.enumerate().filter_map(|(at, object)| {
            if at % 2 == 0 {
                shared.free(object);
                return None;
            }
            Some(object)
        });
        let half: Vec<_> = half.collect();
        thread::scope(|scope| {
            drop(scope.spawn(|| half.into_iter().for_each(|object| shared.free(object))))
        });
        shared.assert_exact(&runtime, before);
        assert_eq!((shared.unowned.owned(), tenant.live()), (0, 0));
        memcg_alloc::charge_unowned_to(None);
        shared.unowned.group.offline().unwrap();
        drop((shared, tenant));
        assert_all_gone(&runtime);
    }
}

#[test]
fn threads_are_exact_where_every_object_is_owned() {
    let _alone = alone();
    threads(&EVERY);
}

#[test]
fn threads_are_exact_from_a_threshold() {
    let _alone = alone();
    threads(&LARGE);
}

#[test]
fn threads_are_exact_where_no_object_is_owned() {
    let _alone = alone();
    threads(&NONE);
}

/// Code that runs in a group that went offline is charged to the nearest group above.
#[test]
fn a_group_goes_offline_under_a_running_task() {
    let _alone = alone();
    let runtime = Runtime::builder().build().unwrap();
    let tenant = Counted::new(&runtime.root(), "tenant");
    let query = Counted::new(&tenant.group, "query");
    let _guard = query.group.enter();
    let mut first = Object::allocate(&EVERY, 3_000, 8, 0, false);
    query.group.offline().unwrap();
    let second = Object::allocate(&EVERY, 500, 8, 0, false);
    assert_eq!((query.group.live(), tenant.group.live()), (3_000, 3_500));
    first.resize(&EVERY, 4_000);
    assert_eq!((query.group.live(), tenant.group.live()), (4_000, 4_500));
    first.free(&EVERY);
    second.free(&EVERY);
    assert_eq!((query.group.live(), tenant.group.live()), (0, 0));
}

/// The objects outlive everything that they were charged to.
#[test]
fn objects_outlive_their_runtime() {
    let _alone = alone();
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create("g", Limits::new()).unwrap();
    let objects: Vec<_> = group.run(|| {
        (1..500)
            .map(|size| Object::allocate(&EVERY, size, 1, 0, false))
            .collect()
    });
    drop((group, runtime));
    let others = Runtime::builder().build().unwrap();
    let other = others.root().create("g", Limits::new()).unwrap();
    thread::spawn(move || objects.into_iter().for_each(|object| object.free(&EVERY)))
        .join()
        .unwrap();
    assert_eq!((other.usage(), others.counts().underflows), (0, 0));
    memcg_alloc::catch_up();
}
