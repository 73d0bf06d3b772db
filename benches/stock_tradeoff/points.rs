//! The three points with which the patch series qualified its bound, each against the figures of
//! this run.

#![cfg(not(loom))]

use std::thread;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{Bytes, PageCounter};

use super::worst::fill;
use super::{BUDGET_SHARE, Line, PAGE, Setup};
use crate::common::claims::Claims;
use crate::common::tree::fan;
use crate::common::{BATCH, Library};

/// Counters of the second point, and how many of them stay active.
const GROUPS: usize = 1_000;
const GROUPS_ACTIVE: usize = 32;

/// Rounds over the active counters, in each of which all of a slot's credit is consumed and put
/// back.
const ROUNDS: usize = 1_000;

pub(crate) fn print(setup: &Setup, lines: &[Line], claims: &mut Claims) {
    println!(
        "The points of Joshua Hahn, \"[PATCH 0/7 v3] mm/memcontrol, page_counter: move stock from mem_cgroup to\n\
         page_counter\", 25 May 2026:\n"
    );
    larger_machines(setup, lines, claims);
    active_groups(setup, claims);
    all_processors(setup, lines, claims);
}

fn verdict(confirmed: bool) -> &'static str {
    if confirmed { "confirmed" } else { "refuted" }
}

/// Threads come with memory: if the share of it that is stranded does not fall, size does not help.
fn larger_machines(setup: &Setup, lines: &[Line], claims: &mut Claims) {
    println!("(1) \"larger machines should be able to tolerate the additional overhead\"\n");
    let per_thread = setup.max / setup.threads as u64;
    let budget = 100.0 / BUDGET_SHARE as f64;
    let mut tolerable = true;
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "counters".to_owned(),
        "a thread's stock, uncut".to_owned(),
        format!("of {} a thread", Bytes(per_thread * PAGE)),
        "the series', of the same".to_owned(),
        "ours with budget, measured".to_owned(),
    ]);
    for line in lines {
        let uncut = line.counters as u64 * 2 * BATCH;
        let share = uncut as f64 / per_thread as f64 * 100.0;
        tolerable &= share / 2.0 <= budget;
        table.add_row([
            line.counters.to_string(),
            Bytes(uncut * PAGE).to_string(),
            format!("{share:.3} %"),
            format!("{:.3} %", share / 2.0),
            format!("{:.3} %", setup.share(line.worst_stock)),
        ]);
    }
    let most = lines
        .iter()
        .map(|line| line.counters)
        .max()
        .unwrap_or_default();
    let share = (most as u64 * BATCH) as f64 / per_thread as f64 * 100.0;
    claims.holds(
        "stock-7",
        tolerable,
        format_args!("{most} counters strand {share:.1} % of a thread's share of memory, on a machine of any size"),
    );
    println!(
        "{}\n\n    {}: threads come with memory, so the share is the same on a machine of any size. It grows with the\n\
         \x20   number of counters; what holds it is the budget, at {budget} %.\n",
        table.trim_fmt(),
        verdict(tolerable)
    );
}

/// All counters are touched, then most fall silent: what stays in them is stale, what is in the
/// others turns over.
fn active_groups(setup: &Setup, claims: &mut Claims) {
    println!(
        "(2) \"the stock should not remain stale as long as the cgroups are actively charging memory\""
    );
    let (root, leaves) = fan(setup.config(), GROUPS);
    let work = |leaves: &[PageCounter], rounds: usize| {
        thread::scope(|scope| {
            for _ in 0..setup.threads {
                scope.spawn(|| {
                    (0..rounds).for_each(|_| fill(&mut Library { leaves }, leaves.len(), 2))
                });
            }
        });
    };
    let stocked = |leaves: &[PageCounter]| leaves.iter().map(PageCounter::stocked).sum::<u64>();
    work(&leaves, 1);
    let (active, silent) = leaves.split_at(GROUPS_ACTIVE);
    let before = stocked(silent);
    work(active, ROUNDS);
    let after = stocked(silent);
    let turning = stocked(active);
    println!(
        "    {GROUPS} counters, then {GROUPS_ACTIVE} of them {ROUNDS} times more by {} threads: in the active ones {},\n\
         \x20   which turns over at each round; in the silent ones {} before and {} after.",
        setup.threads,
        setup.cell(turning),
        setup.cell(before),
        setup.cell(after),
    );
    // All that is left, and not a unit less: admitted only if what is stranded comes back.
    let rest = setup.max - root.live();
    let admitted = active[0].charge(rest).is_ok();
    println!(
        "    A charge of all that max leaves beside live charge: {}.",
        if admitted { "admitted" } else { "refused" }
    );
    let bound = setup.bound_uncut(GROUPS_ACTIVE);
    claims.holds(
        "stock-8",
        turning <= bound && admitted,
        format_args!(
            "{GROUPS_ACTIVE} active counters hold {} and turn over; {} of silent ones stay, and come back where needed",
            Bytes(turning * PAGE),
            Bytes(after * PAGE)
        ),
    );
    let promised = if admitted {
        "which a drain whose losers skip does not promise"
    } else {
        "which failed here"
    };
    println!(
        "    {} for active counters, and beside the question: credit of silent ones stays until something needs it.\n\
         \x20   Then it is there at once, {}.\n",
        verdict(turning <= bound),
        promised,
    );
}

/// Tasks that move do what a process that migrates would.
fn all_processors(setup: &Setup, lines: &[Line], claims: &mut Claims) {
    println!("(3) \"a process would have to migrate across all CPUs to incur this upper bound\"\n");
    let mut rare = true;
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "counters",
        "tasks stolen",
        "pairs (thread, counter) that met",
        "peak of the worst case",
    ]);
    for line in lines {
        let typical = &line.typical_stock;
        let met = typical.touched as f64 / (line.counters * setup.threads) as f64 * 100.0;
        rare &= met < 50.0;
        table.add_row([
            line.counters.to_string(),
            format!(
                "{:.1} %",
                typical.stolen as f64 / typical.tasks as f64 * 100.0
            ),
            format!("{met:.1} %"),
            format!(
                "{:.1} %",
                typical.peak as f64 / line.worst_stock.max(1) as f64 * 100.0
            ),
        ]);
    }
    let met = |line: &Line| {
        line.typical_stock.touched as f64 / (line.counters * setup.threads) as f64 * 100.0
    };
    let most = lines.iter().map(met).fold(0.0, f64::max);
    claims.holds(
        "stock-9",
        rare,
        format_args!("work stealing brings at most {most:.0} % of all pairs of thread and counter together (below 50)"),
    );
    println!(
        "{}\n\n    {}: in this run tasks migrate, threads do not.",
        table.trim_fmt(),
        verdict(rare)
    );
}
