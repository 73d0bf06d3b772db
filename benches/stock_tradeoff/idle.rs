//! Credit of threads that charged once and sleep: what it adds to usage, how it goes home, what
//! that costs.

#![cfg(not(loom))]

use std::sync::Barrier;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{Bytes, Charge, Group, Limits, Runtime};

use crate::common::clock::thread_time;

/// The bytes that a thread charges at a time, and keeps.
const BYTES: usize = 64;

/// One thread in so many charges in every period; the others sleep.
const AWAKE: usize = 20;

/// Visits, one at the end of each period.
const VISITS: usize = 5;

/// Rounds of a thread that sleeps and wakes up.
const ROUNDS: usize = 200;

/// The stacks of a thousand threads need not be large.
const STACK: usize = 128 << 10;

#[derive(Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) threads: usize,
    pub(crate) groups: usize,
}

/// The credit that one visit left, and its cost.
struct Visit {
    usage: u64,
    live: u64,
    took: Duration,
    barriers: u64,
}

pub(crate) fn print(scene: Scene) {
    let Scene { threads, groups } = scene;
    println!(
        "Idle credit: {threads} threads charge {BYTES} bytes in each of {groups} groups and keep them. One in {AWAKE}\n\
         charges as much again in every period; the others sleep. Usage of the root, and how often live charge goes into\n\
         it; then one visit (`Runtime::release_idle_credit`) at the end of each period.\n"
    );
    let mut table = Table::new();
    let mut header = vec!["policy".to_owned(), "live, then usage".to_owned()];
    header.extend((1..=VISITS).map(|visit| format!("period {visit}")));
    table.load_style(ASCII_MARKDOWN).set_header(header);
    let mut costs = Vec::new();
    for (name, adaptive, visits) in [
        ("whole batches", false, false),
        ("whole batches, visits", false, true),
        ("batches that grow", true, false),
        ("batches that grow, visits", true, true),
    ] {
        let periods = periods(scene, adaptive, visits);
        let cell = |visit: &Visit| {
            format!(
                "{} ({:.1})",
                Bytes(visit.usage),
                visit.usage as f64 / visit.live as f64
            )
        };
        let mut row = vec![
            name.to_owned(),
            format!("{}, {}", Bytes(periods[0].live), cell(&periods[0])),
        ];
        row.extend(periods[1..].iter().map(cell));
        table.add_row(row);
        if visits {
            costs.push((name, periods));
        }
    }
    println!("{}\n", table.trim_fmt());
    print_visits(scene, &costs);
    print_woken(groups);
}

fn print_visits(Scene { threads, groups }: Scene, costs: &[(&str, Vec<Visit>)]) {
    let slots = threads * groups;
    println!(
        "What a visit costs, of {slots} slots: time for each slot, and barriers. The third finds what sleeps.\n"
    );
    let mut table = Table::new();
    let mut header = vec!["policy".to_owned()];
    header.extend((1..=VISITS).map(|visit| format!("visit {visit}")));
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for (name, periods) in costs {
        let mut row = vec![(*name).to_owned()];
        row.extend(periods[1..].iter().map(|Visit { took, barriers, .. }| {
            format!(
                "{:.1} ns, {barriers}",
                took.as_secs_f64() * 1e9 / slots as f64
            )
        }));
        table.add_row(row);
    }
    println!("{}\n", table.trim_fmt());
}

// === Usage over time ===

fn runtime(adaptive: bool, groups: usize) -> (Runtime, Vec<Group>) {
    let runtime = Runtime::builder()
        .adaptive(adaptive)
        .build()
        .expect("a configuration that holds");
    let create = |number: usize| {
        runtime
            .root()
            .create(&number.to_string(), Limits::new())
            .expect("a new name")
    };
    let groups: Vec<_> = (0..groups).map(create).collect();
    // An adaptive stock opens with the first charge.
    groups
        .iter()
        .for_each(|group| drop(group.charge(1).expect("no limit")));
    (runtime, groups)
}

fn charge(groups: &[Group], held: &mut Vec<Charge>) {
    held.extend(
        groups
            .iter()
            .map(|group| group.charge(BYTES).expect("no limit")),
    );
}

/// The figures before the first period, and after each.
fn periods(Scene { threads, groups }: Scene, adaptive: bool, visits: bool) -> Vec<Visit> {
    let (runtime, groups) = runtime(adaptive, groups);
    let awake = threads.div_ceil(AWAKE);
    let charged = Barrier::new(threads + 1);
    let read = Barrier::new(threads + 1);
    let begun = Barrier::new(awake + 1);
    let ended = Barrier::new(awake + 1);
    let work = |number: usize| {
        let mut held = Vec::new();
        charge(&groups, &mut held);
        charged.wait();
        for _ in (0..VISITS).filter(|_| number < awake) {
            begun.wait();
            charge(&groups, &mut held);
            ended.wait();
        }
        read.wait();
    };
    thread::scope(|scope| {
        let work = &work;
        (0..threads).for_each(|number| drop(spawn(scope, move || work(number))));
        charged.wait();
        let mut found = vec![look(
            &runtime,
            (threads * groups.len() * BYTES) as u64,
            false,
        )];
        for visit in 1..=VISITS {
            begun.wait();
            ended.wait();
            let live = ((threads + visit * awake) * groups.len() * BYTES) as u64;
            found.push(look(&runtime, live, visits));
        }
        read.wait();
        found
    })
}

fn spawn<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    work: impl FnOnce() + Send + 'scope,
) -> ScopedJoinHandle<'scope, ()> {
    thread::Builder::new()
        .stack_size(STACK)
        .spawn_scoped(scope, work)
        .expect("a thread")
}

fn look(runtime: &Runtime, live: u64, visits: bool) -> Visit {
    let barriers = runtime.counts().barriers;
    let start = Instant::now();
    let ran = thread_time();
    if visits {
        runtime.release_idle_credit();
    }
    // Beside other programs, the thread's own time says more.
    let own = ran
        .zip(thread_time())
        .map(|(before, after)| after.saturating_sub(before));
    let took = own.unwrap_or_else(|| start.elapsed());
    Visit {
        usage: runtime.root().usage(),
        live,
        took,
        barriers: runtime.counts().barriers - barriers,
    }
}

// === The next charge of a thread that wakes up ===

/// Nanoseconds of a charge and its uncharge, in the middle of all rounds.
#[derive(Default)]
struct Woken {
    first: Vec<f64>,
    hit: Vec<f64>,
    release: Vec<f64>,
    refill: Vec<f64>,
}

fn print_woken(groups: usize) {
    let (runtime, groups) = runtime(true, groups);
    let asleep = Barrier::new(2);
    let visited = Barrier::new(2);
    let woken = thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut woken = Woken::default();
            pairs(&groups);
            for _ in 0..ROUNDS {
                asleep.wait();
                visited.wait();
                woken.first.push(pairs(&groups));
                woken.hit.push(pairs(&groups));
                let start = Instant::now();
                runtime.release_thread_credit();
                woken
                    .release
                    .push(start.elapsed().as_secs_f64() * 1e9 / groups.len() as f64);
                woken.refill.push(pairs(&groups));
                woken.hit.push(pairs(&groups));
            }
            woken
        });
        for _ in 0..ROUNDS {
            asleep.wait();
            (0..3).for_each(|_| _ = runtime.release_idle_credit());
            visited.wait();
        }
        sleeper.join().expect("the thread does not panic")
    });
    let Woken {
        first,
        hit,
        release,
        refill,
    } = woken;
    let [first, hit, release, refill] = [first, hit, release, refill].map(middle);
    println!(
        "A thread that wakes up: a charge and its uncharge in each of {} groups in turn, in the middle of {ROUNDS}\n\
         rounds, in nanoseconds and as a multiple of a hit and of a refill.\n",
        groups.len()
    );
    let mut table = Table::new();
    table
        .load_style(ASCII_MARKDOWN)
        .set_header(["pair", "ns", "of a hit", "of a refill"]);
    for (name, nanos) in [
        ("a hit", hit),
        (
            "a refill: its credit was given back by the thread itself",
            refill,
        ),
        ("the first after a visit", first),
        ("to give its own credit back, for each group", release),
    ] {
        let cells = [
            format!("{nanos:.1}"),
            format!("{:.2}", nanos / hit),
            format!("{:.2}", nanos / refill),
        ];
        table.add_row([vec![name.to_owned()], cells.to_vec()].concat());
    }
    println!("{}\n", table.trim_fmt());
}

/// Nanoseconds of a pair.
fn pairs(groups: &[Group]) -> f64 {
    let start = Instant::now();
    groups
        .iter()
        .for_each(|group| drop(group.charge(BYTES).expect("no limit")));
    start.elapsed().as_secs_f64() * 1e9 / groups.len() as f64
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}
