//! Random charges of groups that cover and of groups that do not, and random objects, against exact
//! counts of both. The allocator is a value here, not the process's.

mod support;

use std::alloc::System;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use memcg::{Charge, Group, Limits, Runtime};
use memcg_alloc::MemcgAlloc;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{Object, alone, assert_all_gone};

const GROUPS: usize = 6;
const SIZE_MAX: usize = 100_000;

static EVERY: MemcgAlloc = MemcgAlloc::new(System);

fn size(random: &mut StdRng) -> usize {
    let most = [16, 200, 5_000, SIZE_MAX][random.random_range(0..4)];
    random.random_range(1..=most)
}

fn limits(at: usize) -> Limits {
    if at.is_multiple_of(2) {
        Limits::new().cover_allocations()
    } else {
        Limits::new()
    }
}

/// The bytes that a group has to be charged for.
fn live(at: usize, reserved: u64, allocated: u64) -> u64 {
    if at.is_multiple_of(2) {
        reserved.max(allocated)
    } else {
        reserved + allocated
    }
}

fn unpaid(at: usize, reserved: u64, allocated: u64) -> u64 {
    if at.is_multiple_of(2) {
        allocated.saturating_sub(reserved)
    } else {
        0
    }
}

/// A group, and what the test knows of it.
struct Known {
    group: Group,
    charges: Vec<Charge>,
    allocated: u64,
}

impl Known {
    #[track_caller]
    fn assert_exact(&self, at: usize) {
        let reserved = self.charges.iter().map(Charge::bytes).sum();
        let allocated = self.allocated;
        let ledger = self.group.ledger();
        assert_eq!(
            (ledger.reserved(), ledger.allocated()),
            (reserved, allocated)
        );
        assert_eq!(
            (ledger.unpaid(), ledger.max_error()),
            (unpaid(at, reserved, allocated), 0)
        );
        assert_eq!(self.group.live(), live(at, reserved, allocated));
    }

    fn change_charges(&mut self, random: &mut StdRng) {
        let bytes = size(random);
        if self.charges.is_empty() || random.random_range(0..4) == 0 {
            self.charges.push(self.group.force_charge(bytes));
            return;
        }
        let at = random.random_range(0..self.charges.len());
        match random.random_range(0..6) {
            0 => drop(self.charges.swap_remove(at)),
            1 => self.charges[at].force_grow(bytes),
            2 => drop(self.charges[at].shrink(bytes)),
            3 => {
                let part = self.charges[at].bytes() / 2;
                let part = self.charges[at].split(part as usize).unwrap();
                self.charges.push(part);
            }
            4 if self.charges.len() > 1 => {
                let other = self.charges.swap_remove(at);
                self.charges[0].merge(other).unwrap();
            }
            _ => {
                let (word, bytes) = self.charges.swap_remove(at).into_raw();
                // SAFETY: from `into_raw`, once.
                #[allow(unsafe_code)]
                self.charges.push(unsafe { Charge::from_raw(word, bytes) });
            }
        }
    }
}

/// Objects know their group by its number.
#[test]
fn each_step_is_exact() {
    let _alone = alone();
    let runtime = Runtime::builder().build().unwrap();
    let known = |at: usize| Known {
        group: runtime.root().create(at as u64, limits(at)).unwrap(),
        charges: Vec::new(),
        allocated: 0,
    };
    let mut groups: Vec<Known> = (0..GROUPS).map(known).collect();
    let mut random = StdRng::seed_from_u64(21);
    let mut objects = Vec::<Object>::new();
    for step in 0..20_000 {
        let at = random.random_range(0..GROUPS);
        match random.random_range(0..10) {
            0..4 => {
                let size = size(&mut random);
                let of = &mut groups[at];
                objects.push(
                    of.group
                        .run(|| Object::allocate(&EVERY, size, 8, at, false)),
                );
                of.allocated += size as u64;
            }
            4 if !objects.is_empty() => {
                let object = random.random_range(0..objects.len());
                let size = size(&mut random);
                let object = &mut objects[object];
                let of = &mut groups[object.owner];
                of.allocated = of.allocated + size as u64 - object.layout.size() as u64;
                object.resize(&EVERY, size);
            }
            5..7 if !objects.is_empty() => {
                let object = objects.swap_remove(random.random_range(0..objects.len()));
                groups[object.owner].allocated -= object.layout.size() as u64;
                // In another group, or in none: it is the object's own that counts.
                match step % 2 {
                    0 => groups[at].group.run(|| object.free(&EVERY)),
                    _ => object.free(&EVERY),
                }
            }
            _ => groups[at].change_charges(&mut random),
        }
        if step % 8 == 0 {
            groups[at].assert_exact(at);
        }
    }
    groups
        .iter()
        .enumerate()
        .for_each(|(at, of)| of.assert_exact(at));
    let total = runtime.root().ledger();
    assert_eq!(
        total.allocated(),
        groups.iter().map(|of| of.allocated).sum::<u64>()
    );
    assert!(runtime.verify().is_ok(), "{}", runtime.verify());
    // Groups end before charges, and charges before objects.
    groups.iter().for_each(|of| of.group.offline().unwrap());
    drop(groups);
    assert_eq!(runtime.root().ledger().allocated(), runtime.root().live());
    objects.into_iter().for_each(|object| object.free(&EVERY));
    assert_all_gone(&runtime);
}

/// Bytes of one kind, ever: those that a thread has begun to count with the crate, and those that
/// it has counted.
#[derive(Default)]
struct Moved {
    begun: AtomicU64,
    done: AtomicU64,
}

impl Moved {
    fn during<R>(&self, bytes: u64, work: impl FnOnce() -> R) -> R {
        self.begun.fetch_add(bytes, Ordering::SeqCst);
        let result = work();
        self.done.fetch_add(bytes, Ordering::SeqCst);
        result
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }
}

/// The bytes that came and went.
#[derive(Default)]
struct Figure {
    came: Moved,
    went: Moved,
}

impl Figure {
    fn now(&self) -> u64 {
        self.came.done() - self.went.done()
    }

    /// Within what the figure was throughout `work`.
    fn around<R>(figures: [&Figure; 2], work: impl FnOnce() -> R) -> (R, [RangeInclusive<u64>; 2]) {
        let before = figures.map(|figure| [figure.came.done(), figure.went.done()]);
        let result = work();
        let after = figures.map(|figure| {
            [&figure.came, &figure.went].map(|moved| moved.begun.load(Ordering::SeqCst))
        });
        let range = |at: usize| {
            let [came, went] = before[at];
            let [came_after, went_after] = after[at];
            came.saturating_sub(went_after)..=came_after.saturating_sub(went)
        };
        (result, [range(0), range(1)])
    }
}

/// A group, and what threads have counted of it.
struct Shared {
    group: Group,
    allocated: Figure,
    reserved: Figure,
}

impl Shared {
    /// Each figure of the ledger is within the error of what there was at one moment of the call.
    fn assert_within_error(&self) {
        let figures = [&self.allocated, &self.reserved];
        let (ledger, [allocated, reserved]) = Figure::around(figures, || self.group.ledger());
        let assert_near = |shown: u64, range: &RangeInclusive<u64>, what: &str| {
            let error = ledger.max_error();
            let least = range.start().saturating_sub(error);
            let most = range.end().saturating_add(error);
            assert!(
                (least..=most).contains(&shown),
                "{shown} {what} of {range:?}: {ledger:?}"
            );
        };
        assert_near(ledger.allocated(), &allocated, "allocated");
        if self.group.limits().cover_allocations {
            assert_near(ledger.reserved(), &reserved, "reserved");
            let unpaid = allocated.start().saturating_sub(*reserved.end())
                ..=allocated.end().saturating_sub(*reserved.start());
            assert_near(ledger.unpaid(), &unpaid, "unpaid");
            // Usage is never less than what is there throughout.
            let least = (*allocated.start()).max(*reserved.start());
            assert!(self.group.peak() >= least, "{least} of {ledger:?}");
        }
    }
}

/// Threads allocate, pass objects on, drop charges before the memory; another one takes samples.
#[test]
fn threads_free_what_others_have_allocated() {
    let _alone = alone();
    const THREADS: usize = 3;
    let runtime = Runtime::builder().build().unwrap();
    for round in 0..4_u64 {
        let tenant = runtime
            .root()
            .create(round, Limits::new().max(4 << 20))
            .unwrap();
        let shared = |at: usize| Shared {
            group: tenant.create(at as u64, limits(at)).unwrap(),
            allocated: Figure::default(),
            reserved: Figure::default(),
        };
        let groups: Vec<Shared> = (0..GROUPS).map(shared).collect();
        let handed: Mutex<Vec<Object>> = Mutex::default();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let groups = &groups;
            let handed = &handed;
            let over = &over;
            let work = |me: usize| {
                let mut random = StdRng::seed_from_u64(round * 100 + me as u64);
                let mut mine = Vec::new();
                for _ in 0..2_000 {
                    let owner = random.random_range(0..GROUPS);
                    let of = &groups[owner];
                    let bytes = random.random_range(0..20_000_usize);
                    let charge = of
                        .reserved
                        .came
                        .during(bytes as u64, || of.group.force_charge(bytes));
                    for _ in 0..random.random_range(1..4) {
                        let size = size(&mut random);
                        let allocate = || Object::allocate(&EVERY, size, 8, owner, false);
                        mine.push(
                            of.allocated
                                .came
                                .during(size as u64, || of.group.run(allocate)),
                        );
                    }
                    of.reserved.went.during(charge.bytes(), || drop(charge));
                    if mine.len() > 20 {
                        let others = {
                            let mut handed = handed.lock().unwrap();
                            std::mem::replace(&mut *handed, std::mem::take(&mut mine))
                        };
                        for object in others {
                            let bytes = object.layout.size() as u64;
                            groups[object.owner]
                                .allocated
                                .went
                                .during(bytes, || object.free(&EVERY));
                        }
                    }
                }
                handed.lock().unwrap().append(&mut mine);
            };
            let workers: Vec<_> = (0..THREADS)
                .map(|me| scope.spawn(move || work(me)))
                .collect();
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(round);
                while !over.load(Ordering::Relaxed) {
                    groups[random.random_range(0..GROUPS)].assert_within_error();
                }
            });
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
            over.store(true, Ordering::Relaxed);
        });
        memcg_alloc::catch_up();
        for (at, of) in groups.iter().enumerate() {
            let ledger = of.group.ledger();
            let allocated = of.allocated.now();
            assert_eq!(
                (ledger.allocated(), ledger.reserved(), ledger.max_error()),
                (allocated, 0, 0)
            );
            assert_eq!(
                (ledger.unpaid(), of.group.live()),
                (unpaid(at, 0, allocated), allocated)
            );
        }
        assert!(runtime.verify().is_ok(), "{}", runtime.verify());
        tenant.offline_tree();
        drop((groups, tenant));
        let left = handed.into_inner().unwrap();
        thread::scope(|scope| {
            drop(scope.spawn(|| left.into_iter().for_each(|object| object.free(&EVERY))))
        });
        memcg_alloc::catch_up();
    }
    assert_all_gone(&runtime);
}
