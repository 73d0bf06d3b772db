//! The cost that the charge adds to a malloc and its free, over each allocator and in each mode,
//! beside the cost of others: in multiples of a charge without a guard and its uncharge (the raw
//! pair). And to a program of strings and maps, in percent.
//!
//! ```text
//! cargo bench -p memcg-alloc-benches                                  the tables, about three minutes
//! cargo bench -p memcg-alloc-benches -- --rounds 20 "glibc 64 B"      only rows whose names begin so
//! cargo bench -p memcg-alloc-benches -- --least 1                     each row's best round: for a busy machine
//! cargo bench -p memcg-alloc-benches -- resident                      bytes of memory that an object takes
//! cargo bench -p memcg-alloc-benches -- --pairs 100000 ROW            one row, without a clock: to count instructions
//! ```
//!
//! With `--pairs`, the row `raw` is the raw pair; `above` is a charge of an allocator and its
//! uncharge in a group above its max, three levels deep; `forced` is a forced charge without stock
//! and its uncharge there.
//!
//! The row `word only` has 4 bytes behind each object and no count, `one group` the least count
//! with it: the floor of every design that finds an object's group by such a word.
//!
//! All rows of one allocator and size run in turns, round by round. Each figure is the median of
//! what the rounds say, and in brackets the interval that has the true median with 95 %.
#![allow(unsafe_code, reason = "allocators are called directly")]

mod collections;
mod peers;
mod resident;

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use cap::Cap;
use memcg::allocator::Owner;
use memcg::{Group, Limits, Runtime};
use memcg_alloc::{LARGE_OBJECTS, MemcgAlloc, PROCESS_ONLY};
use mimalloc::MiMalloc;
use stats_alloc::StatsAlloc;
use thresher::Thresher;
use tikv_jemallocator::Jemalloc;
use tracking_allocator::Allocator as Tracking;

/// Sizes, and pairs of one round: so few that most rounds are not interrupted.
const SIZES: [(&str, usize, usize); 3] = [
    ("64 B", 64, 20_000),
    ("1 KiB", 1_024, 10_000),
    ("64 KiB", 65_536, 5_000),
];
const STRINGS: &str = "strings";
const STRING_ROWS: usize = 4_000;
const ROUNDS: usize = 61;
const WRAPPERS: [&str; 11] = [
    "bare",
    "process only",
    "above 1 KiB",
    "every object",
    "word only",
    "one group",
    "naive",
    "cap",
    "stats_alloc",
    "tracking",
    "thresher",
];

type Run = Box<dyn Fn(usize) + Sync>;

pub(crate) struct Row {
    name: String,
    count: usize,
    run: Run,
}

/// A program reaches its global allocator by a call. So do these, whatever the allocator is.
///
/// # Safety
///
/// As for [`GlobalAlloc::alloc`].
#[inline(never)]
pub(crate) unsafe fn malloc<A: GlobalAlloc>(allocator: &A, layout: Layout) -> *mut u8 {
    // SAFETY: says the caller.
    unsafe { allocator.alloc(layout) }
}

/// # Safety
///
/// As for [`GlobalAlloc::dealloc`].
#[inline(never)]
pub(crate) unsafe fn free<A: GlobalAlloc>(allocator: &A, object: *mut u8, layout: Layout) {
    // SAFETY: says the caller.
    unsafe { allocator.dealloc(object, layout) };
}

/// So many pairs of malloc and free.
fn pairs<A: GlobalAlloc>(allocator: &A, size: usize, count: usize) {
    let layout = Layout::from_size_align(black_box(size), 8).expect("a layout");
    for _ in 0..count {
        // SAFETY: the layout has a size; each object is freed once with its layout.
        unsafe {
            let object = black_box(malloc(allocator, layout));
            object.write(1);
            free(allocator, black_box(object), layout);
        }
    }
}

fn add_rows<A: GlobalAlloc + Send + Sync + 'static>(
    rows: &mut Vec<Row>,
    inner: &str,
    wrapper: &str,
    allocator: A,
) {
    let allocator: &'static A = Box::leak(Box::new(allocator));
    for (text, size, count) in SIZES {
        let run = Box::new(move |count| pairs(allocator, size, count));
        rows.push(Row {
            name: format!("{inner} {text} {wrapper}"),
            count,
            run,
        });
    }
    let run = Box::new(|count| collections::group_rows(allocator, count));
    rows.push(Row {
        name: format!("{inner} {STRINGS} {wrapper}"),
        count: STRING_ROWS,
        run,
    });
}

/// The rows of an inner allocator: by size, and each size in the order of [`WRAPPERS`].
fn rows_over<A: GlobalAlloc + Send + Sync + 'static>(inner: &str, value: fn() -> A) -> Vec<Row> {
    let mut rows = Vec::new();
    add_rows(&mut rows, inner, WRAPPERS[0], value());
    add_rows(
        &mut rows,
        inner,
        WRAPPERS[1],
        MemcgAlloc::<A, PROCESS_ONLY>::with_threshold(value()),
    );
    add_rows(
        &mut rows,
        inner,
        WRAPPERS[2],
        MemcgAlloc::<A, LARGE_OBJECTS>::with_threshold(value()),
    );
    add_rows(&mut rows, inner, WRAPPERS[3], MemcgAlloc::new(value()));
    add_rows(
        &mut rows,
        inner,
        WRAPPERS[4],
        peers::WordBehind::<A, false>(value()),
    );
    add_rows(
        &mut rows,
        inner,
        WRAPPERS[5],
        peers::WordBehind::<A, true>(value()),
    );
    add_rows(&mut rows, inner, WRAPPERS[6], peers::Naive(value()));
    add_rows(&mut rows, inner, WRAPPERS[7], Cap::new(value(), usize::MAX));
    add_rows(&mut rows, inner, WRAPPERS[8], StatsAlloc::new(value()));
    add_rows(
        &mut rows,
        inner,
        WRAPPERS[9],
        Tracking::from_allocator(value()),
    );
    add_rows(&mut rows, inner, WRAPPERS[10], Thresher::new(value()));
    let kinds = SIZES.map(|(text, ..)| text).into_iter().chain([STRINGS]);
    let place = |row: &Row| {
        kinds
            .clone()
            .position(|kind| row.name.contains(&format!(" {kind} ")))
    };
    rows.sort_by_key(place);
    rows
}

fn raw_pairs(group: &Group, count: usize) {
    for _ in 0..count {
        group.raw().charge(black_box(64_usize)).expect("no limit");
        group.raw().uncharge(black_box(64_usize));
    }
}

/// Nanoseconds of a pair, on so many threads at once.
fn time(threads: usize, group: &Group, count: usize, run: &(dyn Fn(usize) + Sync)) -> f64 {
    let start = Barrier::new(threads);
    let of_thread = || {
        let work = || {
            run(count / 10);
            start.wait();
            let begun = Instant::now();
            run(count);
            begun.elapsed().as_nanos() as f64 / count as f64
        };
        peers::within(|| group.run(work))
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(of_thread)).collect();
        let mine = of_thread();
        others
            .into_iter()
            .map(|other| other.join().expect("no panic"))
            .fold(mine, f64::max)
    })
}

/// The median, and the ranks that have the true one between them with 95 %.
fn median(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    let count = figures.len() as f64;
    let half = 0.98 * (figures.len() as f64).sqrt();
    [
        count / 2.0,
        count / 2.0 - half - 0.5,
        count / 2.0 + half + 0.5,
    ]
    .map(|rank| figures[(rank.max(0.0) as usize).min(figures.len() - 1)])
}

/// The rows of one allocator and kind beside the first of them.
fn table(rows: &[&Row], threads: usize, rounds: usize, least: bool, group: &Group) {
    let mut figures = vec![Vec::new(); rows.len()];
    let mut raw = Vec::new();
    for _ in 0..rounds {
        for (row, figures) in rows.iter().zip(&mut figures) {
            figures.push(time(threads, group, row.count, &row.run));
        }
        raw.push(time(threads, group, 20_000, &|count| {
            raw_pairs(group, count)
        }));
    }
    let is_program = rows[0].name.contains(STRINGS);
    if least {
        figures.iter_mut().chain([&mut raw]).for_each(|of_row| {
            let best = of_row.iter().copied().fold(f64::INFINITY, f64::min);
            *of_row = vec![best];
        });
    }
    for (row, own) in rows.iter().zip(&figures) {
        let rounds = own.iter().zip(&figures[0]).zip(&raw);
        let added = rounds.map(|((own, bare), raw)| {
            if is_program {
                (own / bare - 1.0) * 100.0
            } else {
                (own - bare) / raw
            }
        });
        let [added, low, high] = median(added.collect());
        let unit = if is_program { "%" } else { "raw pairs" };
        let nanoseconds = median(own.clone())[0];
        println!(
            "{:34} {nanoseconds:8.2} ns {added:7.2} [{low:.2}, {high:.2}] {unit}",
            row.name
        );
    }
    println!("{:34} {:8.2} ns", "raw pair", median(raw)[0]);
}

fn above_max(case: &str, count: usize) {
    let builder = Runtime::builder();
    let runtime = if case == "forced" {
        builder.batch(memcg::Bytes(0))
    } else {
        builder
    }
    .build()
    .expect("a configuration");
    let tenant = runtime
        .root()
        .create("tenant", Limits::new())
        .expect("a name");
    let group = tenant
        .create("query", Limits::new().max(100))
        .expect("a name");
    let held = Owner::charge_to(&group, 200);
    memcg::allocator::catch_up();
    for _ in 0..count {
        if case == "forced" {
            group.raw().force_charge(black_box(64_usize));
            group.raw().uncharge(black_box(64_usize));
        } else {
            let owner = black_box(Owner::charge_to(&group, black_box(64)));
            // SAFETY: charged above.
            unsafe { owner.uncharge(black_box(64)) };
        }
    }
    // SAFETY: charged above.
    unsafe { held.uncharge(200) };
}

fn main() {
    let mut words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let mut option = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.remove(at);
        Some(words.remove(at).parse::<usize>().expect("a number"))
    };
    let counted = option("--pairs");
    let rounds = option("--rounds").unwrap_or(ROUNDS);
    let objects = option("--resident");
    let least = option("--least").is_some_and(|least| least > 0);
    let wanted = words.first().map_or("", String::as_str);
    if wanted == "resident" {
        return resident::table();
    }
    if let Some(objects) = objects {
        return resident::of_row(wanted, objects);
    }
    let runtime = Runtime::builder().build().expect("a configuration");
    let tenant = runtime
        .root()
        .create("tenant", Limits::new())
        .expect("a name");
    let group = tenant.create("query", Limits::new()).expect("a name");
    if let (Some(count), "above" | "forced") = (counted, wanted) {
        return above_max(wanted, count);
    }
    if let (Some(count), "raw") = (counted, wanted) {
        return group.run(|| raw_pairs(&group, count));
    }
    peers::install();
    let rows: Vec<Row> = rows_over("glibc", || System)
        .into_iter()
        .chain(rows_over("jemalloc", || Jemalloc))
        .chain(rows_over("mimalloc", || MiMalloc))
        .collect();
    if let Some(count) = counted {
        let row = rows
            .iter()
            .find(|row| row.name.starts_with(wanted))
            .expect("a row");
        // Once before: an allocator opens no stock.
        group.run(|| (row.run)(10));
        return peers::within(|| group.run(|| (row.run)(count)));
    }
    for threads in [1, 2] {
        println!(
            "{threads} thread{}: ns of a pair, and what it adds to bare",
            ["", "s"][threads - 1]
        );
        for of_one in rows.chunks(WRAPPERS.len()) {
            let (first, others) = of_one.split_first().expect("wrappers");
            let kind = first.name.trim_end_matches("bare").trim_end();
            if kind.starts_with(wanted) || wanted.starts_with(kind) {
                let chosen = others.iter().filter(|row| row.name.starts_with(wanted));
                table(
                    &std::iter::once(first).chain(chosen).collect::<Vec<_>>(),
                    threads,
                    rounds,
                    least,
                    &group,
                );
            }
        }
    }
}
