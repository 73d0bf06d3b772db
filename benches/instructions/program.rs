//! The probes, and the run under callgrind.

#![cfg(not(loom))]

mod groups;
mod kmem;
mod waits;

use std::hint::black_box;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use memcg::allocator::Owner;
use memcg::errors::CounterChargeError;
use memcg::{
    Bytes, Charge, ChargeError, CounterConfig, CounterKey, Group, Grouped, InGroup, Limits,
    PageCounter, Runtime, StatKey,
};
use memcg_bench_rows::Bench;
use memcg_bench_rows::instructions::{CountedPath, ROUNDS, count_paths, counted};

/// Instructions of one charge and one uncharge, both from the stock: 45 as measured on x86-64 with
/// rustc 1.95, and a tenth more for other compilers. A locked instruction would not show here, a
/// longer path does.
const PAIR_INSTRUCTIONS_MAX: f64 = 49.0;

/// The same through a group and the guard that it returns: 49.
const GROUP_PAIR_INSTRUCTIONS_MAX: f64 = 54.0;

/// The same through a group without a guard: 47. A load and an add on either side count the bytes
/// that no guard holds, and simpler tests of a miss make up for them. It may cost what a guard
/// costs.
const RAW_PAIR_INSTRUCTIONS_MAX: f64 = GROUP_PAIR_INSTRUCTIONS_MAX;

/// That through a trait object, for a pool that has only amounts: 71, with the two calls. It may
/// cost half as much again.
const DYN_PAIR_INSTRUCTIONS_MAX: f64 = 1.5 * GROUP_PAIR_INSTRUCTIONS_MAX;

/// An object of an allocator, charged to the thread's group and given back: 52.
const OWNED_PAIR_INSTRUCTIONS_MAX: f64 = 58.0;

/// An object of an allocator that grows by a byte and shrinks by it: 48, of which a `realloc` runs
/// the half.
const OWNED_GROWTH_INSTRUCTIONS_MAX: f64 = 53.0;

/// A set of charges and its drop: 57 for memory alone, 155 and 318 for two and four counters.
const SET_INSTRUCTIONS_MAX: f64 = 63.0;
const SET_OF_TWO_INSTRUCTIONS_MAX: f64 = 170.0;
const SET_OF_FOUR_INSTRUCTIONS_MAX: f64 = 350.0;

/// A poll of a future in a group, beside one of the same future without: at most half of a pair
/// without a guard.
const SWITCH_INSTRUCTIONS_MAX: f64 = 22.0;

/// A checkpoint where nothing is wrong: 17, with its look at what allocators have left.
const CHECKPOINT_INSTRUCTIONS_MAX: f64 = 18.0;

/// A look at the pressure level of a group that has thresholds and is below them: one load of its
/// word.
const PRESSURE_LEVEL_INSTRUCTIONS_MAX: f64 = 12.0;

/// The same where the level is raised: what is live is compared, so that no credit keeps it up.
const RAISED_PRESSURE_LEVEL_INSTRUCTIONS_MAX: f64 = 52.0;

/// One add to a statistic, of an item that the compiler knows: 29, with its part of the
/// announcement that is due every half batch.
const STAT_ADD_INSTRUCTIONS_MAX: f64 = 32.0;

/// A charge of a whole batch and its uncharge, of a counter below another one: 545. Some hit, the
/// others walk, and settle the peak of live units first.
const REFILL_INSTRUCTIONS_MAX: f64 = 595.0;

/// A charge and an uncharge of such a counter without stock: 406, for two walks of two levels.
const WALK_INSTRUCTIONS_MAX: f64 = 450.0;

/// A charge that the lower of the two refuses, which it has done before: 272.
const REFUSAL_INSTRUCTIONS_MAX: f64 = 300.0;

/// The account of an object for each of eight processors, more than the object takes without: 268,
/// with the charge.
const KMEM_OBJECT_INSTRUCTIONS_MAX: f64 = 295.0;

/// The same on two nodes: 647.
const KMEM_OBJECT_ON_NODES_INSTRUCTIONS_MAX: f64 = 712.0;

/// A stale read of a group: 329, loads of all that is published.
const STALE_READ_INSTRUCTIONS_MAX: f64 = 362.0;

/// An exact read of a group that this thread has just written, with the add: 8,711 for two flushes.
const EXACT_READ_INSTRUCTIONS_MAX: f64 = 9_583.0;

/// The life of a group: 4,437.
const LIFE_INSTRUCTIONS_MAX: f64 = 4_881.0;

/// A charge that waits as a task, the end of the charge that it waits for, and its next poll: 8,209.
const SERVED_WAIT_INSTRUCTIONS_MAX: f64 = 9_030.0;

/// Rounds of paths of thousands of instructions.
const LONG_ROUNDS: u64 = ROUNDS / 5;

const BENCH: Bench = Bench {
    name: "instructions",
    about: "Counts the instructions of hits, refills and walks under valgrind, and fails above a ceiling.",
};

// SAFETY of the exported names, here and below: the prefix is the crate's, and nothing else defines
// them.

/// A charge in another crate.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_charge(counter: &PageCounter, n: u64) -> Result<(), CounterChargeError> {
    counter.charge(n)
}

/// An uncharge in another crate.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_uncharge(counter: &PageCounter, n: u64) {
    counter.uncharge(n);
}

/// A charge of a group in another crate: the guard is the caller's to keep.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_group_charge(group: &Group, n: u64) -> Result<Charge, ChargeError> {
    group.charge(Bytes(n))
}

/// The end of a guard in another crate.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_group_uncharge(charge: Charge) {
    drop(charge);
}

/// A charge of a group in another crate, without a guard.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_raw_charge(group: &Group, n: u64) -> Result<(), ChargeError> {
    group.raw().charge(Bytes(n))
}

/// Its end.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_raw_uncharge(group: &Group, n: u64) {
    group.raw().uncharge(Bytes(n));
}

/// A charge of two counters in another crate. Its end is that of two charges.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_set_charge(
    group: &Group,
    amounts: &[(CounterKey, usize); 2],
) -> Result<[Charge; 2], ChargeError> {
    group.charge_set(amounts)
}

/// The interface of a query engine's pool: amounts, and no value that it keeps.
pub(crate) trait Pool {
    fn try_grow(&self, bytes: usize) -> Result<(), ChargeError>;
    fn shrink(&self, bytes: usize);
}

impl Pool for Group {
    fn try_grow(&self, bytes: usize) -> Result<(), ChargeError> {
        self.raw().charge(Bytes(bytes as u64))
    }

    fn shrink(&self, bytes: usize) {
        self.raw().uncharge(Bytes(bytes as u64));
    }
}

/// An add to a statistic in another crate, of any item.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_stat_add(group: &Group, stat: StatKey, delta: i64) {
    group.stat_add(stat, delta);
}

/// The same through the guard of a charge, of an item that the compiler knows.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_charge_stat_add(charge: &Charge, delta: i64) {
    charge.stat_add(StatKey::ANON, delta);
}

/// A future that has nothing to do.
pub(crate) struct Never;

impl Future for Never {
    type Output = ();

    // The compiler does not see that it does nothing.
    #[inline(never)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        black_box(Poll::Pending)
    }
}

/// A poll in a group, in another crate.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_switch(task: Pin<&mut Grouped<Never>>) -> bool {
    task.poll(&mut Context::from_waker(Waker::noop()))
        .is_pending()
}

/// A checkpoint in another crate.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) fn memcg_probe_checkpoint() -> Result<(), ChargeError> {
    Group::checkpoint()
}

/// So many charges and uncharges.
#[inline(never)]
fn memcg_probe_pairs(counter: &PageCounter, pairs: u64) {
    for _ in 0..pairs {
        let n = black_box(1);
        counter.charge(n).expect("no limit is set");
        counter.uncharge(n);
    }
}

/// So many guards that come and go.
#[inline(never)]
fn memcg_probe_group_pairs(group: &Group, pairs: u64) {
    for _ in 0..pairs {
        drop(group.charge(black_box(1)).expect("no limit is set"));
    }
}

/// So many amounts that come and go.
#[inline(never)]
fn memcg_probe_raw_pairs(group: &Group, pairs: u64) {
    for _ in 0..pairs {
        let n = black_box(1);
        group.raw().charge(n).expect("no limit is set");
        group.raw().uncharge(n);
    }
}

/// The same through a trait object, which the compiler does not see through.
#[inline(never)]
fn memcg_probe_dyn_pairs(pool: &Arc<dyn Pool>, pairs: u64) {
    for _ in 0..pairs {
        let n = black_box(1);
        pool.try_grow(n).expect("no limit is set");
        pool.shrink(n);
    }
}

/// So many objects of an allocator that come and go.
#[inline(never)]
fn memcg_probe_owner_pairs(pairs: u64) {
    for _ in 0..pairs {
        let bytes = black_box(1);
        let owner = Owner::charge(bytes);
        // SAFETY: the byte is charged, and given back once.
        unsafe { black_box(owner).uncharge(bytes) };
    }
}

/// An object of an allocator that grows and shrinks so often.
#[inline(never)]
fn memcg_probe_owner_growths(growths: u64) {
    let owner = Owner::charge(1);
    for _ in 0..growths {
        let more = black_box(1);
        // SAFETY: the owner has the first byte until the end, and what it grows by is given back
        // once.
        unsafe {
            black_box(owner).grow(more);
            black_box(owner).uncharge(more);
        }
    }
    // SAFETY: the first byte is charged.
    unsafe { owner.uncharge(1) };
}

/// So many sets of one counter that come and go.
#[inline(never)]
fn memcg_probe_sets(group: &Group, amounts: &[(CounterKey, usize); 1], sets: u64) {
    charge_sets(group, amounts, sets);
}

/// Of two counters.
#[inline(never)]
fn memcg_probe_sets_of_two(group: &Group, amounts: &[(CounterKey, usize); 2], sets: u64) {
    charge_sets(group, amounts, sets);
}

/// Of four.
#[inline(never)]
fn memcg_probe_sets_of_four(group: &Group, amounts: &[(CounterKey, usize); 4], sets: u64) {
    charge_sets(group, amounts, sets);
}

#[inline(always)]
fn charge_sets<const N: usize>(group: &Group, amounts: &[(CounterKey, usize); N], sets: u64) {
    for _ in 0..sets {
        drop(
            group
                .charge_set(black_box(amounts))
                .expect("no limit is set"),
        );
    }
}

/// Sets of memory and of counters beside it.
fn sets<const N: usize>(charge: fn(&Group, &[(CounterKey, usize); N], u64), rounds: u64) {
    let mut builder = Runtime::builder();
    let amounts = std::array::from_fn(|number| match number {
        0 => (CounterKey::MEMORY, 1),
        further => (
            builder.counter(&format!("c{further}"), memcg::Unit::Bytes),
            1,
        ),
    });
    let runtime = builder
        .build()
        .expect("nothing is asked for that cannot be had");
    let group = runtime.root();
    // The first touch.
    drop(group.charge_set(&amounts).expect("no limit is set"));
    counted(|| charge(&group, &amounts, rounds));
}

/// So many adds of one event.
#[inline(never)]
fn memcg_probe_stat_adds(group: &Group, adds: u64) {
    for _ in 0..adds {
        group.stat_add(StatKey::WORKINGSET_REFAULT, black_box(1));
    }
}

/// So many polls of two tasks in turn, each in its group.
#[inline(never)]
fn memcg_probe_switches(tasks: &mut [Grouped<Never>; 2], polls: u64) {
    poll_in_turns(tasks, polls);
}

/// The same without groups.
#[inline(never)]
fn memcg_probe_polls(tasks: &mut [Never; 2], polls: u64) {
    poll_in_turns(tasks, polls);
}

#[inline(always)]
fn poll_in_turns(tasks: &mut [impl Future + Unpin; 2], polls: u64) {
    let context = &mut Context::from_waker(Waker::noop());
    for turn in 0..polls {
        let task = Pin::new(&mut tasks[black_box(turn as usize % 2)]);
        assert!(task.poll(context).is_pending());
    }
}

/// So many checkpoints.
#[inline(never)]
fn memcg_probe_checkpoints(checkpoints: u64) {
    for _ in 0..checkpoints {
        black_box(1u64);
        Group::checkpoint().expect("no limit is set");
    }
}

/// So many looks at the pressure level of a group.
#[inline(never)]
fn memcg_probe_pressure_levels(group: &Group, looks: u64) {
    for _ in 0..looks {
        black_box(black_box(group).pressure_level());
    }
}

/// A group of 100 bytes with thresholds, of which so many are charged.
fn pressure_levels(held: usize, level: &str, rounds: u64) {
    let runtime = Runtime::builder()
        .batch(0)
        .build()
        .expect("nothing is asked for that cannot be had");
    let group = runtime
        .root()
        .create("q", Limits::new().max(100).pressure_levels(80, 95))
        .expect("a free name");
    let _held = group.charge(held).expect("there is room");
    assert_eq!(group.pressure_level().name(), level);
    counted(|| memcg_probe_pressure_levels(&group, rounds));
}

/// So many charges of a batch each, four at a time.
#[inline(never)]
fn memcg_probe_refills(counter: &PageCounter, charges: u64) {
    let batch = counter.batch();
    for _ in 0..charges / 4 {
        (0..4).for_each(|_| counter.charge(black_box(batch)).expect("no limit is set"));
        (0..4).for_each(|_| counter.uncharge(black_box(batch)));
    }
}

/// The same as [`memcg_probe_pairs`], of a counter without stock.
#[inline(never)]
fn memcg_probe_walks(counter: &PageCounter, pairs: u64) {
    memcg_probe_pairs(counter, pairs);
}

/// So many charges of a counter that is full.
#[inline(never)]
fn memcg_probe_refusals(counter: &PageCounter, charges: u64) {
    for _ in 0..charges {
        assert!(counter.charge(black_box(1)).is_err());
    }
}

/// Probes a counter below another one. It holds one unit, so a max of 1 leaves no room.
fn two_levels(probe: fn(&PageCounter, u64), config: CounterConfig, max: u64, rounds: u64) {
    let leaf = PageCounter::root(config).child();
    leaf.set_max(max).expect("nothing is charged");
    leaf.force_charge(1);
    counted(|| probe(&leaf, rounds));
}

/// What the paths share.
struct Prepared {
    counter: PageCounter,
    group: Group,
    pool: Arc<dyn Pool>,
    _runtime: Runtime,
}

impl Prepared {
    /// Also calls every probe that a disassembler looks for.
    fn new() -> Prepared {
        let counter = PageCounter::root(CounterConfig::new());
        let runtime = Runtime::builder()
            .build()
            .expect("nothing is asked for that cannot be had");
        let group = runtime.root();
        // The first touch, and whatever else the stock does only once.
        for _ in 0..1_000 {
            memcg_probe_charge(&counter, black_box(1)).expect("no limit is set");
            memcg_probe_uncharge(&counter, black_box(1));
            let charge = memcg_probe_group_charge(&group, black_box(1)).expect("no limit is set");
            memcg_probe_stat_add(&group, StatKey::WORKINGSET_REFAULT, black_box(1));
            memcg_probe_charge_stat_add(&charge, black_box(1));
            memcg_probe_group_uncharge(charge);
            memcg_probe_raw_charge(&group, black_box(1)).expect("no limit is set");
            memcg_probe_raw_uncharge(&group, black_box(1));
            let both = [(CounterKey::MEMORY, 1); 2];
            drop(memcg_probe_set_charge(&group, black_box(&both)).expect("no limit is set"));
        }
        assert!(memcg_probe_switch(Pin::new(&mut Never.in_group(&group))));
        group.run(memcg_probe_checkpoint).expect("no limit is set");
        for _ in 0..1_000 {
            group.run(|| memcg_probe_owner_pairs(1));
            group.run(|| memcg_probe_owner_growths(1));
        }
        let pool = black_box(Arc::new(group.clone()));
        Prepared {
            counter,
            group,
            pool,
            _runtime: runtime,
        }
    }
}

pub(crate) fn main() -> ExitCode {
    count_paths(&BENCH, PATHS, || {
        let prepared = Prepared::new();
        let barrier = format!("{:?}", prepared.counter.barrier());
        (prepared, barrier)
    })
}

/// The counted paths.
const PATHS: &[CountedPath<Prepared>] = &[
    CountedPath::new(
        "pairs",
        "one charge and one uncharge",
        PAIR_INSTRUCTIONS_MAX,
        |of, pairs| counted(|| memcg_probe_pairs(&of.counter, pairs)),
    ),
    CountedPath::new(
        "group-pairs",
        "one charge of a group and the drop of its guard",
        GROUP_PAIR_INSTRUCTIONS_MAX,
        |of, pairs| counted(|| memcg_probe_group_pairs(&of.group, pairs)),
    ),
    CountedPath::new(
        "raw-pairs",
        "one charge of a group and its uncharge, without a guard",
        RAW_PAIR_INSTRUCTIONS_MAX,
        |of, pairs| counted(|| memcg_probe_raw_pairs(&of.group, pairs)),
    ),
    CountedPath::new(
        "dyn-pairs",
        "the same through an `Arc<dyn Pool>`",
        DYN_PAIR_INSTRUCTIONS_MAX,
        |of, pairs| counted(|| memcg_probe_dyn_pairs(&of.pool, pairs)),
    ),
    CountedPath::new(
        "owned-pairs",
        "an object of an allocator that a group owns, and its free",
        OWNED_PAIR_INSTRUCTIONS_MAX,
        |of, pairs| of.group.run(|| counted(|| memcg_probe_owner_pairs(pairs))),
    ),
    CountedPath::new(
        "owned-growths",
        "an object that grows, and shrinks again",
        OWNED_GROWTH_INSTRUCTIONS_MAX,
        |of, growths| {
            of.group
                .run(|| counted(|| memcg_probe_owner_growths(growths)))
        },
    ),
    CountedPath::new(
        "sets",
        "a set of one counter and its drop",
        SET_INSTRUCTIONS_MAX,
        |_, rounds| sets(memcg_probe_sets, rounds),
    ),
    CountedPath::new(
        "sets-of-two",
        "a set of two counters",
        SET_OF_TWO_INSTRUCTIONS_MAX,
        |_, rounds| sets(memcg_probe_sets_of_two, rounds),
    ),
    CountedPath::new(
        "sets-of-four",
        "a set of four counters",
        SET_OF_FOUR_INSTRUCTIONS_MAX,
        |_, rounds| sets(memcg_probe_sets_of_four, rounds),
    ),
    CountedPath::new(
        "stat-adds",
        "one add to a statistic",
        STAT_ADD_INSTRUCTIONS_MAX,
        |of, adds| counted(|| memcg_probe_stat_adds(&of.group, adds)),
    ),
    CountedPath::new(
        "switches",
        "a poll in a group, more than without",
        SWITCH_INSTRUCTIONS_MAX,
        |of: &Prepared, polls| {
            let mut tasks = [(); 2].map(|()| Never.in_group(&of.group));
            counted(|| memcg_probe_switches(&mut tasks, polls));
        },
    )
    .beside(|_, polls| counted(|| memcg_probe_polls(&mut [Never, Never], polls))),
    CountedPath::new(
        "checkpoints",
        "a checkpoint where nothing is wrong",
        CHECKPOINT_INSTRUCTIONS_MAX,
        |of, rounds| of.group.run(|| counted(|| memcg_probe_checkpoints(rounds))),
    ),
    CountedPath::new(
        "pressure-levels",
        "a look at a group's pressure level",
        PRESSURE_LEVEL_INSTRUCTIONS_MAX,
        |_, looks| pressure_levels(50, "normal", looks),
    ),
    CountedPath::new(
        "raised-levels",
        "a look at a pressure level that is raised",
        RAISED_PRESSURE_LEVEL_INSTRUCTIONS_MAX,
        |_, looks| pressure_levels(90, "elevated", looks),
    ),
    CountedPath::new(
        "refills",
        "a charge of a whole batch and its uncharge",
        REFILL_INSTRUCTIONS_MAX,
        |_, charges| two_levels(memcg_probe_refills, CounterConfig::new(), u64::MAX, charges),
    ),
    CountedPath::new(
        "walks",
        "a charge and an uncharge of two levels without stock",
        WALK_INSTRUCTIONS_MAX,
        |_, pairs| {
            let config = CounterConfig::new().batch(0);
            two_levels(memcg_probe_walks, config, u64::MAX, pairs);
        },
    ),
    CountedPath::new(
        "refusals",
        "a charge that is refused",
        REFUSAL_INSTRUCTIONS_MAX,
        |_, charges| two_levels(memcg_probe_refusals, CounterConfig::new(), 1, charges),
    ),
    CountedPath::new(
        "kmem-objects",
        "an account of an object for each processor, on one node",
        KMEM_OBJECT_INSTRUCTIONS_MAX,
        |_, objects| kmem::objects(1, true, objects),
    )
    .beside(|_, objects| kmem::objects(1, false, objects)),
    CountedPath::new(
        "kmem-objects-on-nodes",
        "an account of an object for each processor, on two nodes",
        KMEM_OBJECT_ON_NODES_INSTRUCTIONS_MAX,
        |_, objects| kmem::objects(2, true, objects),
    )
    .beside(|_, objects| kmem::objects(2, false, objects)),
    CountedPath::new(
        "stale-reads",
        "a stale read",
        STALE_READ_INSTRUCTIONS_MAX,
        |of, reads| counted(|| groups::stale_reads(&of.group, reads)),
    ),
    CountedPath::new(
        "exact-reads",
        "an exact read after an add",
        EXACT_READ_INSTRUCTIONS_MAX,
        |of: &Prepared, reads| counted(|| groups::exact_reads(&of.group, reads)),
    )
    .over(LONG_ROUNDS),
    CountedPath::new(
        "lives",
        "a group that is created, charged once and ended",
        LIFE_INSTRUCTIONS_MAX,
        |_, lives| groups::lives(lives),
    )
    .over(LONG_ROUNDS),
    CountedPath::new(
        "served-waits",
        "a task that waits for room and gets it",
        SERVED_WAIT_INSTRUCTIONS_MAX,
        |_, waits| waits::served(waits),
    )
    .over(LONG_ROUNDS),
];
