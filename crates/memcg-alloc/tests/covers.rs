//! Random charges that cover, and random objects under them and beside them, against exact counts of both. The allocator
//! is a value here, not the process's.

mod support;

use std::alloc::System;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use memcg::{Charge, Group, Limits, Runtime};
use memcg_alloc::{EVERY_OBJECT, MemcgAlloc};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{Object, alone, assert_all_gone};

const GROUPS: usize = 6;
const SIZE_MAX: usize = 100_000;

static EVERY: MemcgAlloc<System, EVERY_OBJECT> = MemcgAlloc::with_threshold(System);

fn size(random: &mut StdRng) -> usize {
    let most = [16, 200, 5_000, SIZE_MAX][random.random_range(0..4)];
    random.random_range(1..=most)
}

/// A group, and what the test knows of it.
struct Known {
    group: Group,
    charges: Vec<Charge>,
    /// The bytes of charges that have covered, in the order of `charges`: none for the others.
    covers: Vec<bool>,
    covered: u64,
    uncovered: u64,
}

impl Known {
    #[track_caller]
    fn assert_exact(&self) {
        self.group.flush();
        let sum = |covering: bool| {
            let wanted = self.charges.iter().zip(&self.covers).filter(|&(_, &covers)| covers || !covering);
            wanted.map(|(charge, _)| charge.bytes()).sum::<u64>()
        };
        let ledger = self.group.ledger();
        let unpaid = self.covered.saturating_sub(sum(true));
        assert_eq!((ledger.covered(), ledger.uncovered()), (self.covered, self.uncovered));
        assert_eq!((ledger.covering(), ledger.unpaid(), ledger.reserved()), (sum(true), unpaid, sum(false)));
        assert_eq!((self.group.live(), ledger.max_error()), (sum(false) + self.uncovered + unpaid, 0));
    }

    fn change_charges(&mut self, random: &mut StdRng) {
        let bytes = size(random);
        if self.charges.is_empty() || random.random_range(0..4) == 0 {
            self.charges.push(self.group.force_charge(bytes));
            self.covers.push(false);
            return;
        }
        let at = random.random_range(0..self.charges.len());
        match random.random_range(0..7) {
            0 => drop((self.charges.swap_remove(at), self.covers.swap_remove(at))),
            1 => self.charges[at].force_grow(bytes),
            2 => drop(self.charges[at].shrink(bytes)),
            3 => {
                let part = self.charges[at].bytes() / 2;
                let part = self.charges[at].split(part as usize).unwrap();
                self.charges.push(part);
                self.covers.push(self.covers[at]);
            }
            4 if self.charges.len() > 1 => {
                let (other, covers) = (self.charges.swap_remove(at), self.covers.swap_remove(at));
                self.charges[0].merge(other).unwrap();
                self.covers[0] |= covers;
            }
            5 => {
                let (word, bytes) = self.charges.swap_remove(at).into_raw();
                self.covers.swap_remove(at);
                // SAFETY: from `into_raw`, once.
                #[allow(unsafe_code)]
                self.charges.push(unsafe { Charge::from_raw(word, bytes) });
                self.covers.push(false);
            }
            _ => {
                self.charges[at].cover(|| {});
                self.covers[at] = true;
            }
        }
    }
}

/// Objects know their group by its number, and covered ones by a number more than there are.
#[test]
fn each_step_is_exact() {
    let _alone = alone();
    let runtime = Runtime::builder().build().unwrap();
    let known = |at: usize| Known {
        group: runtime.root().create(at as u64, Limits::new()).unwrap(),
        charges: Vec::new(),
        covers: Vec::new(),
        covered: 0,
        uncovered: 0,
    };
    let mut groups: Vec<Known> = (0..GROUPS).map(known).collect();
    let (mut random, mut objects) = (StdRng::seed_from_u64(21), Vec::<Object>::new());
    let count = |groups: &mut [Known], owner: usize, bytes: i64| {
        let of = &mut groups[owner % GROUPS];
        let figure = if owner < GROUPS { &mut of.uncovered } else { &mut of.covered };
        *figure = figure.checked_add_signed(bytes).unwrap();
    };
    for step in 0..20_000 {
        let at = random.random_range(0..GROUPS);
        match random.random_range(0..10) {
            0..4 => {
                let (size, of) = (size(&mut random), &mut groups[at]);
                let owner = if of.charges.is_empty() || random.random() { at } else { at + GROUPS };
                let allocate = || Object::allocate(&EVERY, size, 8, owner, false);
                objects.push(match of.charges.first() {
                    Some(charge) if owner >= GROUPS => charge.cover(allocate),
                    _ => of.group.run(allocate),
                });
                if owner >= GROUPS {
                    of.covers[0] = true;
                }
                count(&mut groups, owner, size as i64);
            }
            4 if !objects.is_empty() => {
                let (object, size) = (random.random_range(0..objects.len()), size(&mut random));
                let object = &mut objects[object];
                count(&mut groups, object.owner, size as i64 - object.layout.size() as i64);
                object.resize(&EVERY, size);
            }
            5..7 if !objects.is_empty() => {
                let object = objects.swap_remove(random.random_range(0..objects.len()));
                count(&mut groups, object.owner, -(object.layout.size() as i64));
                // Under the cover of another charge, or none: it is the object's own that counts.
                match groups[at].charges.first() {
                    Some(charge) if step % 2 == 0 => {
                        charge.cover(|| object.free(&EVERY));
                        groups[at].covers[0] = true;
                    }
                    _ => object.free(&EVERY),
                }
            }
            _ => groups[at].change_charges(&mut random),
        }
        if step % 8 == 0 {
            groups[at].assert_exact();
        }
    }
    groups.iter().for_each(Known::assert_exact);
    let total = runtime.root().ledger();
    assert_eq!(total.covered(), groups.iter().map(|of| of.covered).sum::<u64>());
    assert!(runtime.verify().is_ok(), "{}", runtime.verify());
    // Groups end before charges, and charges before objects.
    groups.iter().for_each(|of| of.group.offline().unwrap());
    drop(groups);
    assert_eq!(runtime.root().ledger().allocated(), runtime.root().live());
    objects.into_iter().for_each(|object| object.free(&EVERY));
    assert_all_gone(&runtime);
}

/// Bytes of one kind, ever: those that a thread has begun to count with the crate, and those that it has counted.
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

/// What came and what went.
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
    fn around<R>(figures: [&Figure; 3], work: impl FnOnce() -> R) -> (R, [RangeInclusive<u64>; 3]) {
        let before = figures.map(|figure| [figure.came.done(), figure.went.done()]);
        let result = work();
        let after = figures.map(|figure| [&figure.came, &figure.went].map(|moved| moved.begun.load(Ordering::SeqCst)));
        let range = |at: usize| {
            let ([came, went], [came_after, went_after]) = (before[at], after[at]);
            came.saturating_sub(went_after)..=came_after.saturating_sub(went)
        };
        (result, [range(0), range(1), range(2)])
    }
}

/// A group, and what threads have counted of it.
struct Shared {
    group: Group,
    covered: Figure,
    uncovered: Figure,
    /// By charges that cover.
    held: Figure,
}

impl Shared {
    /// Each figure of the ledger is within the error of what there was at one moment of the call.
    fn assert_within_error(&self) {
        let figures = [&self.covered, &self.uncovered, &self.held];
        let (ledger, [covered, uncovered, held]) = Figure::around(figures, || self.group.ledger());
        let assert_near = |shown: u64, range: &RangeInclusive<u64>, what: &str| {
            let error = ledger.max_error();
            let (least, most) = (range.start().saturating_sub(error), range.end().saturating_add(error));
            assert!((least..=most).contains(&shown), "{shown} {what} of {range:?}: {ledger:?}");
        };
        assert_near(ledger.covered(), &covered, "covered");
        assert_near(ledger.uncovered(), &uncovered, "uncovered");
        assert_near(ledger.covering(), &held, "covering");
        let unpaid = covered.start().saturating_sub(*held.end())..=covered.end().saturating_sub(*held.start());
        assert_near(ledger.unpaid(), &unpaid, "unpaid");
        assert!(ledger.unpaid() <= ledger.covered() + ledger.max_error(), "{ledger:?}");
    }
}

/// Threads allocate under covers, pass objects on, drop charges before the memory; another one takes samples.
#[test]
fn threads_cover_and_free_what_others_have_allocated() {
    let _alone = alone();
    const THREADS: usize = 3;
    let runtime = Runtime::builder().build().unwrap();
    for round in 0..4_u64 {
        let tenant = runtime.root().create(round, Limits::new().max(4 << 20)).unwrap();
        let shared = |at: usize| Shared {
            group: tenant.create(at as u64, Limits::new()).unwrap(),
            covered: Figure::default(),
            uncovered: Figure::default(),
            held: Figure::default(),
        };
        let groups: Vec<Shared> = (0..GROUPS).map(shared).collect();
        let handed: Mutex<Vec<Object>> = Mutex::default();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (groups, handed, over) = (&groups, &handed, &over);
            let work = |me: usize| {
                let mut random = StdRng::seed_from_u64(round * 100 + me as u64);
                let mut mine = Vec::new();
                for _ in 0..2_000 {
                    let owner = random.random_range(0..GROUPS);
                    let of = &groups[owner];
                    let charge = of.group.force_charge(random.random_range(0..20_000_usize));
                    let covers = random.random();
                    if covers {
                        of.held.came.during(charge.bytes(), || charge.cover(|| {}));
                    }
                    for _ in 0..random.random_range(1..4) {
                        let (size, covered) = (size(&mut random), covers && random.random());
                        let owner = if covered { owner + GROUPS } else { owner };
                        let allocate = || Object::allocate(&EVERY, size, 8, owner, false);
                        mine.push(if covered {
                            of.covered.came.during(size as u64, || charge.cover(allocate))
                        } else {
                            of.uncovered.came.during(size as u64, || of.group.run(allocate))
                        });
                    }
                    if covers {
                        of.held.went.during(charge.bytes(), || drop(charge));
                    }
                    if mine.len() > 20 {
                        let others = {
                            let mut handed = handed.lock().unwrap();
                            std::mem::replace(&mut *handed, std::mem::take(&mut mine))
                        };
                        for object in others {
                            let of = &groups[object.owner % GROUPS];
                            let figure = if object.owner < GROUPS { &of.uncovered } else { &of.covered };
                            let bytes = object.layout.size() as u64;
                            figure.went.during(bytes, || object.free(&EVERY));
                        }
                    }
                }
                handed.lock().unwrap().append(&mut mine);
            };
            let workers: Vec<_> = (0..THREADS).map(|me| scope.spawn(move || work(me))).collect();
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(round);
                while !over.load(Ordering::Relaxed) {
                    groups[random.random_range(0..GROUPS)].assert_within_error();
                }
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            over.store(true, Ordering::Relaxed);
        });
        for of in &groups {
            of.group.flush();
            let (ledger, covered, uncovered) = (of.group.ledger(), of.covered.now(), of.uncovered.now());
            assert_eq!((ledger.covered(), ledger.uncovered(), ledger.max_error()), (covered, uncovered, 0));
            // No charge is left: all that is covered is unpaid.
            assert_eq!((ledger.unpaid(), ledger.covering(), ledger.reserved()), (covered, 0, 0));
            assert_eq!(of.group.live(), covered + uncovered);
        }
        assert!(runtime.verify().is_ok(), "{}", runtime.verify());
        tenant.offline_tree();
        drop((groups, tenant));
        let left = handed.into_inner().unwrap();
        thread::scope(|scope| drop(scope.spawn(|| left.into_iter().for_each(|object| object.free(&EVERY)))));
        memcg_alloc::settle();
    }
    assert_all_gone(&runtime);
}
