//! Line against packed, in turn.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::PoolAlign;

use super::Options;
use crate::common::host::Others;
use crate::common::slices::{Way, in_turn};
use crate::program::align::{Neighbours, What, team};

const ALIGNS: [PoolAlign; 2] = [PoolAlign::CacheLine, PoolAlign::Packed];

pub(crate) fn print(options: &Options) {
    println!(
        "Groups at whole cache lines, and packed. Neighbours in memory are charged by different threads, and have nothing\n\
         else in common; one thread alone charges every second one. Medians of {} slices of {} ms, in turn.\n",
        options.turns, options.slice,
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
    for what in What::ALL {
        for threads in [1, 2] {
            // Line twice: what lies between two of a kind is what such a comparison cannot see.
            let teams = [ALIGNS[0], ALIGNS[1], ALIGNS[0]].map(|align| team(what, align, threads));
            let mut ways: Vec<Way<'_>> = Vec::new();
            for team in &teams {
                ways.push(Box::new(move |iters| team.wall(iters)));
            }
            let series = in_turn(options.turns, options.slice(), &mut ways);
            let nanos = |of: usize| format!("{:.1} +-{:.1}", series[of].median(), series[of].summary().std);
            table.add_row([
                if threads == 1 { what.says() } else { String::new() },
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
        println!("{align:?}: {beside:.0} % of the groups have one of the other thread on both sides");
    }
    println!("{others}\n");
}
