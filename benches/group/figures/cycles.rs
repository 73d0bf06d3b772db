//! Ten million lives, one after the other: is anything left of them?
//!
//! Two threads create, charge, drop and take offline. Of each batch they take half offline
//! themselves; the other half the other thread charges, too, before it takes it offline.

#![cfg(not(loom))]

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{Group, Runtime};
use memcg_bench_rows::Goals;

use super::Options;
use crate::common::alone::{Alone, say};
use crate::common::host::Others;
use crate::common::resident;
use crate::common::team::pin;
use crate::program::names::Names;
use crate::program::{BARRIERS_MAX, RELEASES, create, pair, runtime};

pub(crate) const WHAT: &str = "cycles";

/// Groups of a batch; half of them are handed over at once.
const BATCH: u64 = 64;
const THREADS: u64 = 2;

/// The points at which the curve is looked at, in per cent of the way.
const LOOKS: [u64; 6] = [0, 1, 10, 25, 50, 100];

/// The most that counts as no growth, in KiB: a few hundred groups are under way at once, now more,
/// now fewer.
const FLAT_KIB: f64 = 256.0;

/// The figures of the process, in this order.
struct Told {
    resident: Vec<f64>,
    /// The most after the first per cent.
    most: f64,
    barriers: f64,
    dying: f64,
    settled: f64,
    seconds: f64,
}

impl Told {
    fn of(answer: &[f64]) -> Told {
        let (resident, rest) = answer.split_at(LOOKS.len());
        let &[most, barriers, dying, settled, seconds] = rest else {
            panic!("{WHAT} says {answer:?}")
        };
        Told {
            resident: resident.to_vec(),
            most,
            barriers,
            dying,
            settled,
            seconds,
        }
    }
}

pub(crate) fn print(options: &Options, goals: &mut Goals<'_>) {
    let cycles = whole(options.cycles);
    println!(
        "{cycles} lives by two threads, half of them charged by both; resident memory on the way. At the end\n\
         the tree has its root alone, and `verify` holds.\n"
    );
    let others = Others::watch();
    let told = Told::of(&Alone::start(WHAT, &[cycles.to_string()]).answer());
    let mut table = Table::new();
    let looks = LOOKS.iter().map(|percent| format!("{percent} %"));
    let kib = |bytes: &f64| format!("{:.0}", bytes / 1_024.0);
    table
        .load_style(ASCII_MARKDOWN)
        .set_header(["of the way".to_owned()].into_iter().chain(looks));
    table.add_row(
        ["resident, KiB".to_owned()]
            .into_iter()
            .chain(told.resident.iter().map(kib)),
    );
    println!("{}\n", table.trim_fmt());
    let by_two = cycles as f64 / 2.0;
    println!(
        "the most after 1 %: {} KiB; {:.0} ns for each life; {} barriers for {by_two} releases of groups that both charged\n\
         dying at the end {}, after `settle` {}\n{others}\n",
        kib(&told.most),
        told.seconds * 1e9 / cycles as f64,
        told.barriers,
        told.dying,
        told.settled,
    );
    let grown = (told.most - told.resident[1]).max(0.0) / 1_024.0;
    goals.at_most(
        format!("{cycles} lives: growth after the first 1 %"),
        grown,
        "KiB",
        FLAT_KIB,
    );
    goals.at_most(
        format!("{cycles} lives: dying when all is settled"),
        told.settled,
        "groups",
        0.0,
    );
    let barriers = told.barriers / (by_two / RELEASES);
    goals.at_most(
        format!("{cycles} lives: barriers for {RELEASES} releases of groups that two charged"),
        barriers,
        "barriers",
        BARRIERS_MAX,
    );
}

/// Fewer lives, for how long they take.
pub(crate) fn once(options: &Options) {
    Alone::start(WHAT, &[whole(options.cycles).to_string()]).answer();
}

/// Whole batches for each thread, and a hundred looks.
fn whole(cycles: u64) -> u64 {
    cycles.next_multiple_of(BATCH * THREADS)
}

/// The process.
pub(crate) fn here(args: &[String]) {
    let cycles: u64 = args[0].parse().expect("a number");
    let runtime = runtime();
    let batches = cycles / BATCH / THREADS;
    let before = runtime.counts().barriers;
    let ready = &Barrier::new(2);
    let start = Instant::now();
    let curve = thread::scope(|scope| {
        let (to_second, second_inbox) = sync_channel(1);
        let (to_first, first_inbox) = sync_channel(1);
        let runtime = &runtime;
        scope.spawn(move || {
            lives(
                runtime,
                1,
                batches,
                ready,
                (to_first, second_inbox),
                &mut |_| {},
            )
        });
        let mut curve = Curve::new(batches);
        lives(
            runtime,
            0,
            batches,
            ready,
            (to_second, first_inbox),
            &mut |batch| curve.look(batch),
        );
        curve
    });
    let seconds = start.elapsed().as_secs_f64();
    let barriers = runtime.counts().barriers - before;
    let dying = runtime.dying_count();
    runtime.settle();
    let settled = runtime.dying_count();
    assert_eq!(
        (settled, runtime.group_count()),
        (0, 1),
        "no thread holds any of them: the root is left"
    );
    assert!(runtime.verify().is_ok(), "{}", runtime.verify());
    let rest = [
        curve.most,
        barriers as f64,
        dying as f64,
        settled as f64,
        seconds,
    ];
    say(&curve.looks.iter().copied().chain(rest).collect::<Vec<_>>());
}

type Mail = (SyncSender<Vec<Group>>, Receiver<Vec<Group>>);

/// One thread's share. Every batch sent is answered by one of the other's, so that neither gets
/// ahead.
fn lives(
    runtime: &Runtime,
    thread: usize,
    batches: u64,
    ready: &Barrier,
    mail: Mail,
    look: &mut dyn FnMut(u64),
) {
    let (give, take) = mail;
    let root = runtime.root();
    let mut names = Names::new(thread);
    pin(thread);
    // Names and stacks first: what is looked at are groups.
    ready.wait();
    for batch in 0..batches {
        look(batch);
        let mut groups: Vec<Group> = (0..BATCH)
            .map(|_| create(&root, &mut names))
            .inspect(pair)
            .collect();
        let theirs = groups.split_off(BATCH as usize / 2);
        groups
            .into_iter()
            .for_each(|group| group.offline().expect("no child is online"));
        give.send(theirs).expect("the other thread is there");
        for group in take.recv().expect("the other thread is there") {
            pair(&group);
            group.offline().expect("no child is online");
        }
    }
    // While both threads are there: the code that ends one is not a group's either.
    ready.wait();
    look(batches);
    ready.wait();
}

/// Resident memory on the way.
struct Curve {
    batches: u64,
    looks: Vec<f64>,
    most: f64,
    next: u64,
}

impl Curve {
    fn new(batches: u64) -> Self {
        Curve {
            batches,
            looks: Vec::with_capacity(LOOKS.len()),
            most: 0.0,
            next: 0,
        }
    }

    /// Before this batch, and at the end; looks where a per cent is full.
    fn look(&mut self, batch: u64) {
        let percent = batch * 100 / self.batches;
        if percent < self.next {
            return;
        }
        self.next = percent + 1;
        let now = resident::bytes().expect("a system that says what is resident") as f64;
        if LOOKS.get(self.looks.len()).is_some_and(|at| percent >= *at) {
            self.looks.push(now);
        }
        if percent >= 1 {
            self.most = self.most.max(now);
        }
    }
}
