//! Options, and the order of the tables.

#![cfg(not(loom))]

mod events;
mod machine;
mod series;
mod sizes;
mod verdicts;
mod weigh;

use crate::common::alone;
use crate::common::host::describe;
use crate::options::{Options, SIZES, WEIGHTS};

pub(crate) fn main() {
    if let Some((what, args)) = alone::asked() {
        assert_eq!(what, weigh::WHAT, "nothing else is measured alone here");
        return weigh::here(&args);
    }
    let options = Options::read();
    let chosen = options.chosen();
    println!(
        "memcg {} on {}\nThe series: {}.\n",
        env!("CARGO_PKG_VERSION"),
        describe(),
        series::SOURCE
    );
    events::listen();
    let machines = machine::NODES.map(sizes::trace);
    if chosen.wants(SIZES) {
        sizes::print(&machines);
    }
    if chosen.wants(WEIGHTS) {
        weigh::print(&machines, options.groups, options.runs);
    }
    verdicts::print(&machines);
}
