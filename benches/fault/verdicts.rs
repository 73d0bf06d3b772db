//! A run's answers to the claims of the series: `docs/src/series/stock.md`.

#![cfg(not(loom))]

use memcg::CounterConfig;

use super::others::walks;
use super::{COUNTS, Trials, Variant};
use crate::common::Library;
use crate::common::claims::{Bound, Claims, Ratio};
use crate::common::no_return::NoReturn;
use crate::common::slots7::{Random, SLOTS, Slots7};
use crate::common::tree::{fan, unstocked};

/// The largest difference in the tables that the series calls negligible: 3.470 %.
const NEGLIGIBLE: Bound = Bound::AtMost(1.035);

/// Units that each counter holds at most: what a stock can serve without a walk.
const HELD: usize = 16;

pub(crate) fn print(trials: &[(usize, Trials)], others: &[(String, Ratio)]) {
    let mut claims = Claims::new();
    evictions(&mut claims);
    let of = |(count, trials): &(usize, Trials)| {
        (
            format!("with {count}"),
            Ratio::of(trials.runs(Variant::Stock), trials.runs(Variant::Slots7)),
        )
    };
    let tables: Vec<(String, Ratio)> = trials.iter().map(of).collect();
    if tables.len() == COUNTS.len() {
        claims.timed("stock-14", &borrowed(&tables), NEGLIGIBLE);
    } else {
        claims.open("stock-14", "not all numbers of counters were chosen");
    }
    claims.timed("stock-16", &borrowed(others), NEGLIGIBLE);
    frees(&mut claims);
    claims.print();
}

fn borrowed(ratios: &[(String, Ratio)]) -> Vec<(&str, Ratio)> {
    ratios
        .iter()
        .map(|(what, ratio)| (what.as_str(), *ratio))
        .collect()
}

/// Walks for each operation of the seven slots and of the stock.
fn both(counters: usize) -> (f64, f64) {
    let bare = fan(unstocked(), counters).1;
    let stocked = fan(CounterConfig::new(), counters).1;
    (
        walks(&mut Slots7::<Random>::new(&bare), &bare, HELD),
        walks(&mut Library { leaves: &stocked }, &stocked, HELD),
    )
}

/// With as many counters as slots none is evicted; with one more, counters in turn evict each
/// other.
fn evictions(claims: &mut Claims) {
    let (fit, _) = both(SLOTS);
    let (evict, stock) = both(SLOTS + 1);
    let text = format!(
        "walks for each operation, counters in turn: {fit:.3} with {SLOTS}, {evict:.3} with {}; a stock for each \
         counter {stock:.3}",
        SLOTS + 1
    );
    claims.holds("stock-1", fit < 0.01 && evict > 0.1, text);
}

/// Without return to the stock each free walks; the slots, like our stock, take frees back.
fn frees(claims: &mut Claims) {
    let (slots7, stock) = both(1);
    let leaves = fan(unstocked(), 1).1;
    let no_return = walks(&mut NoReturn::new(&leaves), &leaves, HELD);
    let text = format!(
        "walks for each operation: {no_return:.3} where frees do not return, {slots7:.3} in the seven slots, {stock:.3} \
         in our stock"
    );
    claims.holds("stock-18", no_return <= 2.0 * slots7 + 0.01, text);
}
