//! Time of a whole life, beside few siblings and many, by one thread and by two.
//!
//! Each number of siblings has a process of its own, so that a crowd is in no other thread's pools,
//! tables and pages; those take turns.

#![cfg(not(loom))]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use memcg_bench_rows::Goals;

use super::Options;
use crate::common::alone::{Alone, serve};
use crate::common::host::Others;
use crate::common::slices::{Series, Way, in_turn};
use crate::program::siblings::Crowd;
use crate::program::{CREATE_DESTROY_MAX, SIBLINGS_FLAT, TWO_THREADS_MAX, map, team};

pub(crate) const WHAT: &str = "siblings";

pub(crate) fn print(options: &Options, goals: &mut Goals<'_>) {
    let counts = counts(options);
    println!(
        "Create to release: under a new name of 16 bytes; charged, uncharged, taken offline, dropped. Medians of {} slices of\n\
         {} ms, in turn; +- is one standard deviation from slice to slice, and a difference inside it is noise. Of two\n\
         threads: the time of one group of each, and how long one group takes of both together.\n",
        options.turns, options.slice,
    );
    let others = Others::watch();
    let (series, map) = measure(options, &counts);
    println!("{}\n", table(&counts, &series).trim_fmt());
    println!(
        "A count in a map behind a mutex instead, in turn with these, 1 thread: {:.0} ns",
        map.median()
    );
    println!("{others}\n");
    judge(&counts, &series, &map, goals);
}

/// Numbers of siblings, each once.
fn counts(options: &Options) -> Vec<u32> {
    BTreeSet::from([1, 1_000, options.groups])
        .into_iter()
        .collect()
}

/// So many slices of one thread, of two, and of the map.
pub(crate) fn takes(options: &Options) -> Duration {
    options.slice() * ((2 * counts(options).len() + 1) * options.turns) as u32
}

/// By place: two series for each number of siblings, of one thread and of two. And the series of
/// the map.
fn measure(options: &Options, counts: &[u32]) -> (Vec<[Series; 2]>, Series) {
    let crowds: Vec<RefCell<Alone>> = counts
        .iter()
        .map(|count| RefCell::new(Alone::start(WHAT, &[count.to_string()])))
        .collect();
    let map = map::team();
    let mut ways: Vec<Way<'_>> = Vec::new();
    for crowd in &crowds {
        for threads in [1, 2] {
            ways.push(Box::new(move |iters| {
                let answer = crowd.borrow_mut().ask(&[threads, iters]);
                // Two live two lives in that time.
                Duration::from_secs_f64(answer[0] / threads as f64)
            }));
        }
    }
    ways.push(Box::new(|iters| map.wall(iters)));
    let mut series = in_turn(options.turns, options.slice(), &mut ways);
    let map = series.pop().expect("one for each way");
    (series.as_chunks().0.to_vec(), map)
}

fn table(counts: &[u32], series: &[[Series; 2]]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "siblings",
        "1 thread, ns",
        "against fewest",
        "2 threads, ns of each",
        "ns in total",
        "against fewest",
        "2 threads against 1",
    ]);
    for (count, [one, two]) in counts.iter().zip(series) {
        let nanos =
            |series: &Series| format!("{:.0} +-{:.0}", series.median(), series.summary().std);
        let fewest = |of: &Series, threads: usize| {
            if *count == counts[0] {
                String::new()
            } else {
                of.against(&series[0][threads]).percent()
            }
        };
        table.add_row([
            count.to_string(),
            nanos(one),
            fewest(one, 0),
            format!("{:.0}", two.median() * 2.0),
            nanos(two),
            fewest(two, 1),
            two.against(one).percent(),
        ]);
    }
    table
}

fn judge(counts: &[u32], series: &[[Series; 2]], map: &Series, goals: &mut Goals<'_>) {
    let most = counts.last().copied().unwrap_or_default();
    let what = "create to release, 1 sibling, 1 thread / a count in a map";
    goals.at_most(
        what,
        series[0][0].against(map).ratio,
        "x",
        CREATE_DESTROY_MAX,
    );
    for threads in [1, 2] {
        let medians: Vec<f64> = series.iter().map(|of| of[threads - 1].median()).collect();
        let slowest = medians.iter().copied().fold(f64::MIN, f64::max);
        let fastest = medians.iter().copied().fold(f64::MAX, f64::min);
        goals.at_most(
            format!(
                "create to release, 1 to {most} siblings, {threads} threads: slowest / fastest"
            ),
            slowest / fastest,
            "x",
            SIBLINGS_FLAT,
        );
    }
    for (count, [one, two]) in counts.iter().zip(series) {
        let what = format!("lives of 2 threads in total / of 1, {count} siblings");
        goals.at_most(what, two.against(one).ratio, "x", TWO_THREADS_MAX);
    }
}

/// A process that has so many siblings: each order is threads and lives, each answer nanoseconds.
pub(crate) fn here(args: &[String]) {
    let count = args[0].parse().expect("a number");
    let crowd = Crowd::new(count);
    let teams = [1, 2].map(|threads| team(crowd.runtime(), threads));
    serve(|order| {
        let &[threads, lives] = order else {
            panic!("{WHAT}: threads and lives")
        };
        vec![teams[threads as usize - 1].wall(lives).as_secs_f64()]
    });
}
