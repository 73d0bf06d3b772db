//! A run's answers to the claims of the series: `docs/src/series/pools.md`.

#![cfg(not(loom))]

use super::series::{self, GROUP, PART, Structure};
use super::sizes::{Machine, Object, nodes, sum};
use crate::common::claims::Claims;

/// A line of the processor's cache, to which SLAB_HWCACHE_ALIGN rounds; the library rounds to two,
/// which are fetched together.
const LINE: usize = 64;
const LINES: usize = 2 * LINE;

pub(crate) fn print(machines: &[Machine]) {
    let mut claims = Claims::new();
    classes(machines, &mut claims);
    per_node(&mut claims);
    aligned(machines, &mut claims);
    let objects = objects(machines).map(|object| object.count).sum::<usize>();
    claims.holds(
        "pools-8",
        objects > 0,
        format_args!("{objects} events, each with what was asked and what was given"),
    );
    claims.print();
}

/// Every object of every machine.
fn objects(machines: &[Machine]) -> impl Iterator<Item = &Object> {
    machines.iter().flat_map(|machine| &machine.everywhere)
}

/// Above 192 bytes there are size classes for powers of two alone.
fn class(asked: usize) -> usize {
    asked.next_power_of_two()
}

fn classes(machines: &[Machine], claims: &mut Claims) {
    let theirs = [GROUP, PART]
        .iter()
        .all(|of| class(of.asked) == of.given[0] && of.given[0] == 4_096);
    let ours = objects(machines).all(|object| object.given[0] >= object.asked);
    claims.holds(
        "pools-1",
        theirs && ours,
        format_args!(
            "{} and {} bytes both get the class of {}",
            GROUP.asked,
            PART.asked,
            class(GROUP.asked)
        ),
    );
    let waste = |of: &Structure| class(of.asked) - of.asked;
    let group = waste(&GROUP);
    let part = waste(&PART);
    claims.holds(
        "pools-2",
        (group, part, group + part) == (1_784, 1_200, 2_984),
        format_args!("{group} and {part} bytes, together {}", group + part),
    );
}

/// The pointer to a part is asked for with the group: more of them fill the class, and waste less
/// of it.
fn per_node(claims: &mut Claims) {
    const NODES: usize = 8;
    let further = NODES - 1;
    let group = GROUP.asked + series::POINTER * further;
    let wasted = class(group) - group + NODES * (class(PART.asked) - PART.asked);
    let said = series::waste(NODES)[0];
    claims.holds(
        "pools-3",
        wasted == said,
        format_args!(
            "{NODES} nodes waste {wasted} bytes; with 8 more for each pointer it would be {said}"
        ),
    );
}

fn aligned(machines: &[Machine], claims: &mut Claims) {
    let up = |bytes: usize, to: usize| bytes.div_ceil(to) * to;
    let theirs = [GROUP, PART]
        .iter()
        .all(|of| up(of.asked, LINE) == of.given[1]);
    let lines = objects(machines).all(|object| object.given[1] == up(object.asked, LINES));
    claims.holds(
        "pools-4",
        theirs && lines,
        format_args!(
            "{} and {} bytes; every object of ours is what it asked, rounded to {LINES}",
            GROUP.given[1], PART.given[1]
        ),
    );
    let packed = objects(machines).all(|object| object.given[2] == object.asked);
    claims.holds(
        "pools-5",
        packed,
        "every object that is packed is given what it asked",
    );
    let of = |machine: &Machine| sum(&machine.everywhere).1;
    let saves = machines
        .iter()
        .map(of)
        .all(|[class, aligned, packed]| packed <= aligned && aligned <= class);
    let listed: Vec<String> = machines
        .iter()
        .map(|machine| {
            let [class, aligned, _] = of(machine);
            format!("{class} and {aligned} on {}", nodes(machine.nodes))
        })
        .collect();
    claims.holds(
        "pools-6",
        saves,
        format_args!(
            "bytes of one group, by size class and from a pool: {}",
            listed.join(", ")
        ),
    );
}
