//! Line against packed, in turn.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::footprint::PoolAlign;

use super::Options;
use crate::common::claims::{Bound, Claims, Ratio};
use crate::common::host::Others;
use crate::common::slices::{Series, Way, in_turn};
use crate::common::team::Team;
use crate::program::align::{Neighbours, What, given, team};

const ALIGNS: [PoolAlign; 2] = [PoolAlign::CacheLine, PoolAlign::Packed];

/// The place of groups matters beside their layout: each is measured with several sets of them.
const PLACES: usize = 4;

/// Less than this is no benefit that a program would notice: packed groups take so much of aligned
/// ones.
const BENEFIT: Bound = Bound::AtLeast(1.05);

pub(crate) fn print(options: &Options) {
    println!(
        "Groups at whole cache lines, {} bytes, and packed, {}, on two nodes (by table). Neighbours in memory are charged by\n\
         different threads, and have nothing else in common; one thread alone charges every second one. Medians of {} slices\n\
         of {} ms, in turn, in {PLACES} places in memory.\n",
        given(ALIGNS[0]),
        given(ALIGNS[1]),
        options.turns,
        options.slice,
    );
    let others = Others::watch();
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "",
        "threads",
        "line, ns",
        "packed, ns",
        "packed against line",
        "line again, against line",
    ]);
    let mut ratios: Vec<(&str, Ratio)> = Vec::new();
    for what in What::ALL {
        for threads in [1, 2] {
            let series = measure(options, what, threads);
            if let (What::Walk, 2) = (what, threads) {
                ratios.push((
                    "packed against line, 2 threads that charge up the tree",
                    series[1].ratio(&series[0]),
                ));
            }
            let nanos = |of: usize| {
                format!(
                    "{:.1} +-{:.1}",
                    series[of].median(),
                    series[of].summary().std
                )
            };
            table.add_row([
                if threads == 1 {
                    what.says()
                } else {
                    String::new()
                },
                threads.to_string(),
                nanos(0),
                nanos(1),
                series[1].against(&series[0]).percent(),
                series[2].against(&series[0]).percent(),
            ]);
        }
    }
    println!("{}\n", table.trim_fmt());
    for align in ALIGNS {
        let beside = Neighbours::new(align, false, 1_000).beside();
        println!(
            "{align:?}: {beside:.0} % of the groups have one of the other thread on both sides"
        );
    }
    println!("{others}\n");
    let mut claims = Claims::new();
    claims.timed("pools-7", &ratios, BENEFIT);
    claims.print();
}

/// So many slices of three ways.
pub(crate) fn takes(options: &Options) -> std::time::Duration {
    let slices = What::ALL.len() * 2 * PLACES * 3 * options.turns.div_ceil(PLACES);
    options.slice() * slices as u32
}

/// Line, packed, and line again: what lies between two of a kind is what such a comparison cannot
/// see.
fn measure(options: &Options, what: What, threads: usize) -> Vec<Series> {
    // Those of before stay, so that others come.
    let mut kept: Vec<[Team; 3]> = Vec::new();
    let mut all: Vec<Series> = Vec::new();
    for _ in 0..PLACES {
        let teams = [ALIGNS[0], ALIGNS[1], ALIGNS[0]].map(|align| team(what, align, threads));
        let mut ways: Vec<Way<'_>> = Vec::new();
        for team in &teams {
            ways.push(Box::new(move |iters| team.wall(iters)));
        }
        let series = in_turn(options.turns.div_ceil(PLACES), options.slice(), &mut ways);
        drop(ways);
        if all.is_empty() {
            all = series;
        } else {
            all.iter_mut()
                .zip(series)
                .for_each(|(all, series)| all.extend(series));
        }
        kept.push(teams);
    }
    all
}
