//! Runtimes of other configurations than that of a life: what is no configuration, counters that
//! are declared late, a flusher, a root that covers.

// What an allocator gives back to a group is its word for it.
#![allow(unsafe_code)]

use std::time::Duration;

use memcg::allocator::Owner;
use memcg::errors::DeclareError;
use memcg::figures::Stats;
use memcg::kmem::{NodeId, NumaTable, Placement};
use memcg::simulated_time as clock;
use memcg::{
    BuildError, Bytes, CounterKey, Event, Freshness, Group, Limit, Limits, OnFull, Runtime,
    StatKey, Unit,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What, pick};
use crate::threads::rest;

/// After so many periods a flusher has flushed all, and taken back what nobody uses.
const PERIODS: u32 = 16;

/// Levels of a tree that is very deep.
const DEEP: usize = 1_000;

/// Characters of an error at most, which shows a path or two.
const TOLD: usize = 1_200;

/// Bytes that stay from one flush to the next: of changes 128 KiB, and some for each level.
const KEPT: u64 = (128 << 10) + DEEP as u64 * 64;

const NAMES: [&str; 4] = ["a", "b", "memory", ""];

impl Life {
    pub(super) fn other_runtime(&mut self, op: &Op) {
        let What::Runtimes(seed) = op.1 else {
            unreachable!("another runtime");
        };
        let lived = self.actor(op).run(move || {
            let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
            match rng.random_range(0..20) {
                0..4 => (0..6).try_for_each(|_| cannot_be(rng)),
                4..11 => declares(rng),
                11..13 => flushes(rng),
                13 => texts(rng),
                14..16 => was_deep(rng),
                _ => covers(rng),
            }
        });
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

/// One thing is wrong with it, and that is what its builder says.
fn cannot_be(rng: &mut Xoshiro256PlusPlus) -> Holds {
    let mut builder = Runtime::builder();
    let wrong = rng.random_range(0..10);
    builder = match wrong {
        0 => builder.max(Limit::percent(50)),
        1 => builder.batch(Bytes(u64::MAX)),
        2 => builder.max(100).budget(101),
        3 => builder.groups_max(0),
        4 => builder.counter_places(1_024),
        5 => builder.stat_batch(u64::MAX),
        6 => builder.nodes(0),
        _ => builder,
    };
    match wrong {
        7 => {
            builder.counter("a", Unit::Bytes);
            builder.counter(pick(rng, &["a", "", "memory"]), Unit::Bytes);
        }
        8 => {
            builder.stat("rows", Unit::Events);
            let names = ["rows", "", "anon", "reserved", "left_behind"];
            builder.stat(pick(rng, &names), Unit::Events);
        }
        9 => {
            builder = builder.nodes(2);
            // There is no third node, and a tier of none is none.
            let third = Some(NodeId::new(2)).filter(|_| rng.random());
            builder.tier("near", third);
        }
        _ => {}
    }
    let built = builder.build().map(drop);
    let is_right = matches!(
        (wrong, &built),
        (0, Err(BuildError::PercentOfNothing))
            | (1, Err(BuildError::BatchTooLarge(_)))
            | (2, Err(BuildError::BudgetAboveMax { .. }))
            | (3, Err(BuildError::NoGroups))
            | (4, Err(BuildError::TooManyCounters { .. }))
            | (5, Err(BuildError::StatBatchTooLarge(_)))
            | (6, Err(BuildError::Topology(_)))
            | (7, Err(BuildError::CounterName(_)))
            | (8, Err(BuildError::StatName(_)))
            | (9, Err(BuildError::Tier { .. }))
    );
    ensure!(is_right, "fault {wrong} of a configuration: {built:?}");
    Ok(())
}

/// Counters are declared while there are places for them, and no group; all groups have those.
fn declares(rng: &mut Xoshiro256PlusPlus) -> Holds {
    let places = rng.random_range(0..4_usize);
    let (batch, has_budget) = (1_024, rng.random());
    let mut builder = Runtime::builder()
        .batch(Bytes(batch))
        .adaptive(false)
        .counter_places(places);
    if has_budget {
        builder = builder.budget(0);
    }
    let mut known: Vec<(String, Unit, CounterKey)> = Vec::new();
    for name in ["first", "second"] {
        if rng.random() {
            let unit = pick(rng, &[Unit::Bytes, Unit::Events]);
            known.push((name.to_string(), unit, builder.counter(name, unit)));
        }
    }
    let built = known.len();
    let runtime = builder.build().map_err(|error| error.to_string())?;
    let root = runtime.root();
    let mut groups: Vec<Group> = vec![root.clone()];
    for step in 0..rng.random_range(1..12_u64) {
        if rng.random_bool(0.2) {
            let above = pick(rng, &(0..groups.len()).collect::<Vec<_>>());
            let made = groups[above].create(step, Limits::new());
            groups.push(made.map_err(|error| error.to_string())?);
        }
        let (name, unit) = (pick(rng, &NAMES), pick(rng, &[Unit::Events, Unit::Bytes]));
        let is_bad = name.is_empty() || name == "memory";
        let is_taken = known.iter().any(|(other, ..)| other == name);
        let declared = runtime.declare_counter(name, unit);
        let is_right = match &declared {
            Err(DeclareError::Name(_)) => is_bad || is_taken,
            _ if is_bad || is_taken => false,
            Err(DeclareError::GroupsExist) => groups.len() > 1 && places > 0,
            _ if groups.len() > 1 && places > 0 => false,
            Err(DeclareError::NoPlace { counters }) => {
                known.len() == built + places && *counters == 1 + known.len()
            }
            Ok(_) => known.len() < built + places,
            Err(_) => false,
        };
        ensure!(is_right, "{name:?} beside {known:?}: {declared:?}");
        if let Ok(key) = declared {
            known.push((name.to_string(), unit, key));
        }
        for group in &groups {
            let counters = group
                .counters()
                .map(|it| (it.name().to_string(), it.unit()));
            let found: Vec<_> = counters.collect();
            let told: Vec<_> = known
                .iter()
                .map(|(name, unit, _)| (name.clone(), *unit))
                .collect();
            ensure_eq!(found, told, "counters of {group}");
            for (name, unit, key) in &known {
                ensure_eq!(group.counter_key(name), Some(*key), "the key of {name}");
                uses(group, (name, *unit, *key), has_budget)?;
            }
            ensure_eq!(group.counter_key("another"), None, "a key of nothing");
        }
    }
    let table = runtime.snapshot();
    let names: Vec<&str> = table.counters().map(|(name, _)| name).collect();
    let told: Vec<&str> = known.iter().map(|(name, ..)| name.as_str()).collect();
    ensure_eq!(names, told, "counters of the table");
    let verdict = runtime.verify();
    ensure!(verdict.is_ok(), "{verdict}");
    counts_of_stocks(&root)
}

/// Of a counter as much is charged as was asked for, and no other one is. It has credit of its own.
fn uses(group: &Group, (name, unit, key): (&str, Unit, CounterKey), has_budget: bool) -> Holds {
    let counter = group.counter(key).map_err(|error| error.to_string())?;
    counter
        .set_max(Limit::Unlimited)
        .map_err(|error| error.to_string())?;
    let before = (counter.live(), group.live());
    let amounts = [(CounterKey::MEMORY, Bytes(3)), (key, Bytes(5))];
    let set = || {
        group
            .charge_set(&amounts)
            .map_err(|error| error.to_string())
    };
    let held = [set()?, set()?];
    let found = (counter.live() - before.0, group.live() - before.1);
    ensure_eq!(found, (10, 6), "(of {name}, of memory) that two sets hold");
    let bounds = (counter.stocked_bound(), group.memory().stocked_bound());
    ensure!(
        bounds.0 > 0 && (bounds.1 == 0 || !has_budget),
        "credit of {name} and of memory: {bounds:?}, of a budget: {has_budget}"
    );
    drop(held);
    counter.set_max(1).map_err(|error| error.to_string())?;
    let refused = group.try_charge_set(&[(key, Bytes(2))]).map(drop);
    let told = refused.as_ref().err().and_then(|error| error.over_limit());
    let told = told.map(|it| (it.counter().map(str::to_string), it.unit(), it.max()));
    let known = Some((Some(name.to_string()), unit, 1));
    ensure_eq!(told, known, "{refused:?}");
    counter
        .set_max(Limit::Unlimited)
        .map_err(|error| error.to_string())?;
    counter.drain();
    group.memory().drain();
    // Half of the max above, which goes with the group.
    if let Some(above) = group.parent() {
        let above = above.counter(key).map_err(|error| error.to_string())?;
        let set = |max: Limit| above.set_max(max).map_err(|error| error.to_string());
        set(Limit::bytes(100))?;
        counter
            .set_max(Limit::percent(50))
            .map_err(|error| error.to_string())?;
        ensure_eq!(counter.max(), 50, "half of a max of {name}");
        set(Limit::Unlimited)?;
    }
    Ok(())
}

/// What goes to stocks and what comes back is counted each by itself.
fn counts_of_stocks(root: &Group) -> Holds {
    let counted = || {
        let stats = root.read(Freshness::Exact);
        [StatKey::STOCK_REFILL, StatKey::STOCK_RETURN].map(|stat| stats.get(stat))
    };
    root.memory().drain();
    let before = counted();
    let held = [800, 800, 800, 800].map(|bytes| root.charge(Bytes(bytes)));
    let refilled = counted();
    drop(held);
    let returned = counted();
    let has_stock = root.memory().stocked_bound() > 0;
    ensure!(
        refilled[1] == before[1]
            && returned[0] == refilled[0]
            && (returned[1] > refilled[1] || !has_stock),
        "(refills, returns): {before:?}, {refilled:?}, {returned:?}"
    );
    Ok(())
}

/// What is written, settled, idle or charged to nobody a flusher sees to, once in its period.
fn flushes(rng: &mut Xoshiro256PlusPlus) -> Holds {
    let nodes = rng.random_range(1..3);
    let mut builder = Runtime::builder().nodes(nodes);
    let placed = builder.stat_per_node("placed", Unit::Bytes);
    let runtime = builder.build().map_err(|error| error.to_string())?;
    let root = runtime.root();
    let period = Duration::from_millis(pick(rng, &[10, 500]));
    runtime
        .start_flusher(period)
        .map_err(|error| error.to_string())?;
    let ended = root
        .create("ended", Limits::new())
        .map_err(|error| error.to_string())?;
    let there = root
        .create("there", Limits::new())
        .map_err(|error| error.to_string())?;
    // Two leave credit: of one that is there, and of one that has ended.
    for group in [&ended, &there] {
        for _ in 0..2 {
            drop(group.charge(10).map_err(|error| error.to_string())?);
        }
        group.stat_add(StatKey::ANON, 70_000);
    }
    let node = NodeId::new(nodes as u16 - 1);
    let kmem = there.precharge(100).map_err(|error| error.to_string())?;
    let kmem = kmem.account_as(placed, &Placement::on(node, 100));
    drop(kmem);
    let kmem = there.precharge(300).map_err(|error| error.to_string())?;
    let kmem = kmem.account(&Placement::on(node, 300));
    let stale = root.numa_stat(StatKey::KERNEL, Freshness::Stale);
    let (found, error) = (stale.get(node), stale.max_error() * Unit::Bytes.grain());
    ensure!(
        found.abs_diff(300) <= error,
        "{found} of 300 on a node, off by {error} at most"
    );
    let table = NumaTable::of(&root);
    let kernel = table.rows().find(|(name, _)| *name == "kernel");
    let kernel = kernel.map(|(_, row)| (row.get(node), row.sum()));
    ensure_eq!(kernel, Some((300, 300)), "the row of the kernel: {table}");
    let names: Vec<&str> = table.rows().map(|(name, _)| name).collect();
    let has = |name: &str| names.contains(&name);
    ensure!(
        has("placed") && has("anon") && !has("sock"),
        "rows by node: {names:?}"
    );
    drop(ended);
    let ended = root.child("ended").map(|ended| ended.offline().is_ok());
    ensure_eq!(ended, Some(true), "a group that ends");
    let found = || {
        let stats = root.read(Freshness::Stale);
        let found = (stats.get(StatKey::ANON), stats.max_error());
        // Not by what is live: to read that settles.
        let used = (root.usage(), runtime.dying_count());
        (found, used)
    };
    for _ in 0..PERIODS {
        clock::advance(period);
        rest();
    }
    ensure_eq!(
        found(),
        ((140_000, 0), (300, 0)),
        "after many periods of a flusher: (of an item, off by), (used, dying)"
    );
    drop(kmem);
    runtime.stop_flusher();
    root.inspect().flush();
    // Without it a flush is late after the kernel's period alone.
    clock::advance(Duration::from_millis(1_100));
    (0..200).for_each(|_| there.stat_add(StatKey::ANON, 4 << 20));
    let flushed = root.inspect().flush_ratelimited();
    ensure!(
        !flushed,
        "a flush is late after a second, and no flusher runs"
    );
    // One of another group is none of the root.
    clock::advance(Duration::from_secs(5));
    (0..200).for_each(|_| root.stat_add(StatKey::ANON, 4 << 20));
    there.inspect().flush();
    let is_far_off = root.read(Freshness::Stale).max_error() > 100_000;
    let flushed = root.inspect().flush_ratelimited();
    ensure!(flushed || !is_far_off, "a flush that is late is not made");
    // Nor is one that is late, and that nothing lacks.
    clock::advance(Duration::from_secs(5));
    let flushed = root.inspect().flush_ratelimited();
    ensure!(!flushed, "a flush that nothing lacks");
    // Of the ledger a counter has nothing.
    let of = |stats: Stats| stats.max_error_of(StatKey::ALLOCATED);
    let error = of(root.memory().read(Freshness::Exact));
    ensure_eq!(error, u64::MAX, "of what a read has not");
    Ok(())
}

/// Sizes as text, beside their grammar in a few words.
fn texts(rng: &mut Xoshiro256PlusPlus) -> Holds {
    for _ in 0..40 {
        let bytes = Bytes(rng.random::<u64>() >> rng.random_range(0..64));
        let near = pick(rng, &[0, 1, 10, 20, 30, 40, 50, 60]);
        let near = Bytes((1_u64 << near).wrapping_add_signed(rng.random_range(-60..60)));
        for bytes in [bytes, near] {
            let exact = format!("{bytes:#}");
            ensure_eq!(exact.parse(), Ok(bytes), "what {exact} is");
            ensure_eq!(
                Limit::from(bytes).to_string(),
                exact,
                "a limit of {exact} as text"
            );
            // Rounded it is near, and has four digits at most.
            let text = bytes.to_string();
            let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
            let shown: f64 = number.parse().map_err(|_| text.clone())?;
            let unit = format!("1{unit}").parse::<Bytes>();
            let unit = unit.map_err(|error| error.to_string())?.as_u64() as f64;
            // A product of floating point numbers may be off by its last bits.
            let off = (shown * unit - bytes.as_u64() as f64).abs() - unit * 1e-9;
            ensure!(
                off <= unit / 20.0 && shown < 1_024.0 && (shown >= 1.0 || bytes == Bytes(0)),
                "{exact} is shown as {text}"
            );
        }
        let (whole, digits) = (rng.random_range(0..3_000_u64), rng.random_range(0..4_u32));
        let part = rng.random_range(0..10_u64.pow(digits));
        let at = rng.random_range(0..6);
        let prefix = ["K", "M", "G", "T", "P", "E"][at];
        let (unit, base) = pick(rng, &[("", 1_024_u128), ("iB", 1_024), ("B", 1_000)]);
        let (unit, size) = match rng.random_range(0..3) {
            0 => (String::from("B"), 1),
            1 => (String::new(), 1),
            _ => (format!("{prefix}{unit}"), base.pow(at as u32 + 1)),
        };
        let text = match digits {
            0 => format!("{whole}{unit}"),
            digits => format!("{whole}.{part:0width$}{unit}", width = digits as usize),
        };
        // In so many parts of a byte.
        let parts = 10_u128.pow(digits);
        let all = (u128::from(whole) * parts + u128::from(part)) * size;
        let known = (all % parts == 0).then(|| u64::try_from(all / parts).ok());
        let known = known.flatten().map(Bytes);
        ensure_eq!(text.parse().ok(), known, "what {text} is");
    }
    Ok(())
}

/// A flush of a very deep tree takes memory for each item of each level, and keeps a part of it.
fn was_deep(rng: &mut Xoshiro256PlusPlus) -> Holds {
    let runtime = Runtime::builder()
        .build()
        .map_err(|error| error.to_string())?;
    let mut lowest = runtime.root();
    // One thread writes in all of them between two flushes.
    let each = rng.random_range(1..4);
    for _ in 0..DEEP {
        let below = lowest.create(0, Limits::new());
        lowest = below.map_err(|error| error.to_string())?;
        lowest.stat_add(StatKey::ANON, each);
    }
    let more = rng.random_range(1..1 << 20);
    lowest.stat_add(StatKey::ANON, more);
    let written = more + each * DEEP as i64;
    // An error shows the beginning and the end of a path.
    lowest.set_max(0).map_err(|error| error.to_string())?;
    let told = lowest
        .charge_with(1, OnFull::Reclaim)
        .map(drop)
        .map_err(|error| error.to_string());
    let shown = told.map_or_else(|told| told.chars().count(), |()| 0);
    ensure!((1..TOLD).contains(&shown), "an error of {shown} characters");
    let root = runtime.root();
    let counted = [&lowest, &root].map(|group| group.events().get(Event::Max));
    ensure_eq!(counted, [1, 1], "refusals that are counted at each end");
    let before = runtime.own_bytes().cells;
    root.inspect().flush();
    let found = root.read(Freshness::Stale).get(StatKey::ANON);
    ensure_eq!(found, written, "what is written far below");
    let kept = runtime.own_bytes().cells - before;
    ensure!(
        kept <= KEPT,
        "{kept} bytes of cells are kept after a flush of {DEEP} levels"
    );
    drop(lowest);
    // What so many took is there for as many again, also beyond the first chunks of the pools.
    let end = || {
        root.children().iter().for_each(Group::offline_tree);
        runtime.settle();
        let pools = runtime.pools();
        let chunks = pools.rows().iter().map(|row| row.chunks);
        chunks.collect::<Vec<_>>()
    };
    let before = end();
    for number in 0..DEEP as u64 {
        let made = root.create(number, Limits::new());
        made.map_err(|error| error.to_string())?;
    }
    ensure_eq!(end(), before, "chunks after {DEEP} groups, twice");
    Ok(())
}

/// The root covers, so all groups do: what is reserved anywhere pays for what is allocated.
fn covers(rng: &mut Xoshiro256PlusPlus) -> Holds {
    let limits = Limits::new().max(100_000).cover_allocations();
    let runtime = Runtime::builder().limits(limits);
    let runtime = runtime.build().map_err(|error| error.to_string())?;
    let root = runtime.root();
    let group = root
        .create("covers", Limits::new())
        .map_err(|error| error.to_string())?;
    let (reserved, allocated) = (rng.random_range(0..900), rng.random_range(1..900_u64));
    let charge = group
        .charge(Bytes(reserved))
        .map_err(|error| error.to_string())?;
    let owner = group.run(|| Owner::charge(allocated as usize));
    let live = reserved.max(allocated);
    let found = (root.live(), group.live(), root.limits().cover_allocations);
    ensure_eq!(found, (live, live, true), "live where a root covers");
    drop(charge);
    ensure_eq!(root.live(), allocated, "live of what is allocated");
    let more = rng.random_range(1..900_u64);
    // SAFETY: charged for these bytes; grown by some, and given back once.
    let group_of = unsafe {
        owner.grow(more as usize);
        let word = Owner::from_word(owner.to_word());
        word.group().map(|group| group.id())
    };
    ensure_eq!(group_of, Some(group.id()), "the group of an owner");
    ensure_eq!(root.live(), allocated + more, "live of what has grown");
    let other = Owner::charge_to(&root, 7);
    ensure_eq!(
        root.ledger().allocated(),
        allocated + more + 7,
        "allocated in all"
    );
    let local = root.inspect().allocated_local();
    ensure_eq!(local, 7, "allocated in the root itself");
    let beside = more << 10;
    root.inspect().show_uncharged(Bytes(beside));
    let found = (root.inspect().uncharged(), group.inspect().uncharged());
    ensure_eq!(found, (beside, 0), "memory that no group is charged for");
    let table = root.snapshot(0);
    let names: Vec<&str> = table.items().map(|(name, _)| name).collect();
    for (name, bytes) in [("reserved", 0), ("allocated", allocated + more + 7)] {
        let found = table.rows()[0].stats.get(name).copied().unwrap_or(0);
        ensure_eq!(found, bytes as i64, "{name} in the table");
        ensure!(names.contains(&name), "items of the table: {names:?}");
    }
    // The max of the root alone leaves it out.
    let told = format!("memory that is not charged holds {}", Bytes(beside));
    let tells = || {
        let refused = group.try_charge(Bytes(100_001)).map(drop);
        refused.is_err_and(|refused| refused.to_string().contains(&told))
    };
    ensure!(tells(), "a refusal of the root: {told}");
    group.set_max(100_000).map_err(|error| error.to_string())?;
    ensure!(!tells(), "a refusal of a group below the root: {told}");
    // SAFETY: as above.
    unsafe {
        other.uncharge(7);
        owner.uncharge((allocated + more) as usize);
    }
    ensure_eq!(root.live(), 0, "live at the end");
    Ok(())
}
