//! Random operations of every kind against exact counts of what each group owns: the allocator is a value here, not the
//! process's.

mod support;

use std::alloc::System;
use std::sync::{Barrier, Mutex};
use std::thread;

use memcg::{Limits, Runtime};
use memcg_alloc::{EVERY_OBJECT, MemcgAlloc, OWNED_FROM, PROCESS_ONLY};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{Counted, Object, alone, assert_all_gone};

const GROUPS: usize = 8;
const ALIGNS: [usize; 7] = [1, 2, 8, 16, 64, 512, 4_096];

static EVERY: MemcgAlloc<System, EVERY_OBJECT> = MemcgAlloc::with_threshold(System);
static FROM_1024: MemcgAlloc = MemcgAlloc::new(System);
static NONE: MemcgAlloc<System, PROCESS_ONLY> = MemcgAlloc::with_threshold(System);
/// The bytes that no group owns are the process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn size(random: &mut StdRng) -> usize {
    let most = [16, 64, 200, 1_100, 5_000, 70_000][random.random_range(0..6)];
    random.random_range(1..=most)
}

/// One thread: random groups, sizes, alignments and reallocs. After each step each group is exact.
fn steps<const FROM: usize>(allocator: &MemcgAlloc<System, FROM>, steps: usize) {
    let _alone = ALONE.lock();
    let runtime = Runtime::builder().build().unwrap();
    let groups: Vec<Counted> = (0..GROUPS).map(|at| Counted::new(&runtime.root(), &format!("g{at}"))).collect();
    let owns = |bytes: usize| FROM != PROCESS_ONLY && bytes >= FROM;
    let mut random = StdRng::seed_from_u64(FROM as u64);
    let (mut objects, mut unowned) = (Vec::<Object>::new(), 0);
    let before = memcg_alloc::unowned_bytes() as i64;
    let count = |owner: usize, bytes: usize, sign: i64, unowned: &mut i64| {
        if owns(bytes) && owner < GROUPS {
            groups[owner].count(sign * bytes as i64);
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
                let (size, align) = (size(&mut random), ALIGNS[random.random_range(0..ALIGNS.len())]);
                let (zeroed, mut object) = (random.random(), None);
                within(&mut || object = Some(Object::allocate(allocator, size, align, current, zeroed)));
                count(current, size, 1, &mut unowned);
                objects.extend(object);
            }
            4..7 if !objects.is_empty() => {
                let at = random.random_range(0..objects.len());
                let (object, size) = (&mut objects[at], size(&mut random));
                let (before, owner) = (object.layout.size(), object.owner);
                within(&mut || object.resize(allocator, size));
                // An object that is owned before and after keeps its owner; else the current group has it.
                let after = if owns(before) && owns(size) { owner } else { current };
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
    objects.into_iter().for_each(|object| object.free(allocator));
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
    steps(&FROM_1024, 20_000);
}

#[test]
fn each_step_is_exact_where_no_object_is_owned() {
    let _alone = alone();
    steps(&NONE, 20_000);
}

/// Small objects are shown gross, by group.
#[test]
fn small_objects_are_counted_where_they_were_allocated() {
    let _alone = alone();
    let _alone = ALONE.lock();
    let runtime = Runtime::builder().build().unwrap();
    let [one, two] = ["one", "two"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    let objects: Vec<_> = one.run(|| (1..=100).map(|size| Object::allocate(&FROM_1024, size, 1, 0, false)).collect());
    let large = two.run(|| Object::allocate(&FROM_1024, OWNED_FROM, 1, 0, false));
    let elsewhere = thread::scope(|scope| {
        scope.spawn(|| two.run(|| Object::allocate(&FROM_1024, OWNED_FROM - 1, 1, 0, true))).join().unwrap()
    });
    objects.into_iter().chain([large, elsewhere]).for_each(|object| object.free(&FROM_1024));
    assert_eq!([&one, &two].map(memcg::Group::small_allocated), [5_050, OWNED_FROM as u64 - 1]);
    // The next group in the object starts over.
    for group in [one, two] {
        group.offline().unwrap();
    }
    let next = runtime.root().create("next", Limits::new()).unwrap();
    assert_eq!(next.small_allocated(), 0);
}

/// Threads allocate in random groups, pass objects on, and free what others have allocated; groups go offline meanwhile
/// and new ones come. In the end each group is exact, and then all are gone.
#[test]
fn threads_free_what_others_have_allocated() {
    let _alone = alone();
    const THREADS: usize = 4;
    const ROUNDS: usize = 12;
    let _alone = ALONE.lock();
    let runtime = Runtime::builder().build().unwrap();
    let handed: [Mutex<Vec<Object>>; THREADS] = std::array::from_fn(|_| Mutex::default());
    for round in 0..ROUNDS {
        let tenant = runtime.root().create(&format!("tenant{round}"), Limits::new().max(1 << 20)).unwrap();
        let groups: Vec<Counted> = (0..GROUPS).map(|at| Counted::new(&tenant, &format!("g{at}"))).collect();
        let exact = Barrier::new(THREADS);
        thread::scope(|scope| {
            for me in 0..THREADS {
                let (groups, handed, exact) = (&groups, &handed, &exact);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64((round * THREADS + me) as u64);
                    let mut mine = Vec::new();
                    for _ in 0..3_000 {
                        let owner = random.random_range(0..GROUPS);
                        let (size, align) = (size(&mut random), ALIGNS[random.random_range(0..5)]);
                        let of = &groups[owner];
                        let mut object = of.group.run(|| Object::allocate(&EVERY, size, align, owner, false));
                        of.count(size as i64);
                        if random.random_range(0..3) == 0 {
                            let size = self::size(&mut random);
                            of.count(size as i64 - object.layout.size() as i64);
                            object.resize(&EVERY, size);
                        }
                        mine.push(object);
                        if mine.len() > 50 {
                            let to = random.random_range(0..THREADS);
                            handed[to].lock().unwrap().append(&mut mine);
                            let others = std::mem::take(&mut *handed[me].lock().unwrap());
                            for object in others {
                                groups[object.owner].count(-(object.layout.size() as i64));
                                object.free(&EVERY);
                            }
                        }
                    }
                    handed[me].lock().unwrap().append(&mut mine);
                    if exact.wait().is_leader() {
                        groups.iter().for_each(Counted::assert_exact);
                    }
                    exact.wait();
                });
            }
        });
        assert_eq!(tenant.live(), groups.iter().map(|of| of.group.live()).sum::<u64>());
        // The groups end before their objects.
        tenant.offline_tree();
        drop((groups, tenant));
        for object in handed.iter().flat_map(|handed| std::mem::take(&mut *handed.lock().unwrap())) {
            object.free(&EVERY);
        }
        assert_all_gone(&runtime);
    }
}

/// What runs in a group that went offline is charged to the nearest group above.
#[test]
fn a_group_goes_offline_under_a_running_task() {
    let _alone = alone();
    let _alone = ALONE.lock();
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
    let _alone = ALONE.lock();
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create("g", Limits::new()).unwrap();
    let objects: Vec<_> = group.run(|| (1..500).map(|size| Object::allocate(&EVERY, size, 1, 0, false)).collect());
    drop((group, runtime));
    let others = Runtime::builder().build().unwrap();
    let other = others.root().create("g", Limits::new()).unwrap();
    thread::spawn(move || objects.into_iter().for_each(|object| object.free(&EVERY))).join().unwrap();
    assert_eq!((other.usage(), others.counts().underflows), (0, 0));
    memcg_alloc::settle();
}
