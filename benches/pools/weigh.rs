//! The resident memory of many groups, each way.

#![cfg(not(loom))]

use std::process::exit;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg_bench_rows::Progress;

use super::machine::{ALIGNS, create, hold, runtime};
use super::sizes::{Machine, Object, WAYS, nodes, sum};
use crate::common::alone::{Alone, say};
use crate::common::resident;
use crate::common::stats::median;
use crate::options::BENCH;

pub(crate) const WHAT: &str = "weigh";

/// Kinds of groups that are weighed.
const KINDS: usize = 2;

pub(crate) fn print(machines: &[Machine], groups: u32, runs: usize) {
    println!(
        "Resident bytes for each of {groups} groups with names of 16 bytes: a process that has them less one that has\n\
         none, median of {runs}, in turn. Those of size classes are computed: packed, and what the classes waste more.\n"
    );
    let weights = machines.len() * KINDS * runs * ALIGNS.len();
    let takes = machines.first().map_or(Duration::ZERO, |machine| {
        weight_takes(machine, groups) * weights as u32
    });
    let what = format!("{weights} weights, each of two processes");
    let mut progress = Progress::bar(BENCH.name, &what, weights, takes);
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "",
        "groups",
        WAYS[0],
        WAYS[1],
        WAYS[2],
        "in objects, packed",
    ]);
    for machine in machines {
        let kinds: [(&str, &[Object]); KINDS] = [
            ("idle", &machine.idle),
            ("memory on every node", &machine.everywhere),
        ];
        for (kind, (name, objects)) in kinds.into_iter().enumerate() {
            let mut weights = [Vec::new(), Vec::new()];
            for _ in 0..runs {
                for (align, weights) in weights.iter_mut().enumerate() {
                    weights.push(weigh(machine.nodes, align, kind, groups));
                    progress.step();
                }
            }
            let [aligned, packed] = weights.map(|weights| median(weights).unwrap_or_default());
            let (_, given) = sum(objects);
            let class = packed + given[0] as f64 - given[2] as f64;
            let head = [
                if kind == 0 {
                    nodes(machine.nodes)
                } else {
                    String::new()
                },
                name.to_owned(),
            ];
            let cells =
                [class, aligned, packed, given[2] as f64].map(|bytes| format!("{bytes:.0}"));
            table.add_row(head.into_iter().chain(cells));
        }
    }
    drop(progress);
    println!("{}\n", table.trim_fmt());
}

/// The time of one weight, as a process with a tenth of the groups shows.
fn weight_takes(machine: &Machine, groups: u32) -> Duration {
    let start = Instant::now();
    weigh(machine.nodes, 0, 1, groups.div_ceil(10));
    start.elapsed() * 10
}

fn weigh(nodes: u16, align: usize, kind: usize, groups: u32) -> f64 {
    let ask = |groups: u32| {
        let args = [
            nodes.to_string(),
            align.to_string(),
            kind.to_string(),
            groups.to_string(),
        ];
        Alone::start(WHAT, &args).answer()[0]
    };
    let empty = ask(0);
    (ask(groups) - empty) / f64::from(groups)
}

/// A process that has so many: says what is resident.
pub(crate) fn here(args: &[String]) {
    let numbers: Vec<usize> = args
        .iter()
        .map(|arg| arg.parse().expect("a number"))
        .collect();
    let &[nodes, align, kind, groups] = &numbers[..] else {
        panic!("{WHAT}: nodes, alignment, kind, groups")
    };
    let nodes = nodes as u16;
    let runtime = runtime(nodes, ALIGNS[align]);
    let parent = create(&runtime.root(), "parent");
    for number in 0..groups {
        let group = create(&parent, &format!("group-{number:010}"));
        drop(group.charge(1).expect("no limit"));
        if kind == 1 {
            drop(hold(&group, nodes));
        }
    }
    say(&[resident::bytes().expect("a system that says what is resident") as f64]);
    exit(0);
}
