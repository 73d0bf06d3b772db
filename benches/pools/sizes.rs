//! The bytes that one group asks for, the bytes that it is given each way, and the waste.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::Runtime;
use memcg::footprint::{PoolAlign, PoolTable};

use super::events::{Allocation, told};
use super::machine::{ALIGNS, create, hold, runtime};
use super::series::{self, Structure};

/// The size in which the kernel's slabs are counted.
const SLAB: usize = 32 << 10;

/// In this order everywhere.
pub(crate) const WAYS: [&str; 3] = ["size class", "aligned", "packed"];

/// Objects of one kind, of one group.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) pool: String,
    pub(crate) count: usize,
    pub(crate) asked: usize,
    /// Each way.
    pub(crate) given: [usize; 3],
    /// Aligned and packed.
    per_chunk: [usize; 2],
}

/// The bytes of a group on a machine.
pub(crate) struct Machine {
    pub(crate) nodes: u16,
    /// Created, charged and uncharged.
    pub(crate) idle: Vec<Object>,
    /// With memory on every node.
    pub(crate) everywhere: Vec<Object>,
    /// As they were told, aligned.
    lines: Vec<String>,
    /// The runtime's table of its pools, aligned.
    table: PoolTable,
}

/// The events of the pools for one group.
struct Traced {
    idle: Vec<Allocation>,
    further: Vec<Allocation>,
    again: Vec<Allocation>,
    runtime: Runtime,
}

pub(crate) fn trace(nodes: u16) -> Machine {
    let [aligned, packed] = ALIGNS.map(|align| group(nodes, align));
    let both = |of: fn(&Traced) -> Vec<Allocation>| {
        objects([&aligned, &packed], [&of(&aligned), &of(&packed)])
    };
    let everywhere = |traced: &Traced| traced.idle.iter().chain(&traced.further).cloned().collect();
    let told = [&aligned.idle, &aligned.further, &aligned.again]
        .into_iter()
        .flatten();
    Machine {
        nodes,
        idle: both(|traced| traced.idle.clone()),
        everywhere: both(everywhere),
        lines: told.map(ToString::to_string).collect(),
        table: aligned.runtime.pools(),
    }
}

/// A group below another one that has all there is already, so that nothing is told but of this
/// group.
fn group(nodes: u16, align: PoolAlign) -> Traced {
    let runtime = runtime(nodes, align);
    let parent = create(&runtime.root(), "parent");
    let first = create(&parent, "first");
    drop(first.charge(1).expect("no limit"));
    drop(hold(&first, nodes));
    told();
    let group = create(&parent, "second");
    drop(group.charge(1).expect("no limit"));
    let idle = told();
    drop(hold(&group, nodes));
    let further = told();
    group.offline().expect("no children");
    drop(group);
    drop(create(&parent, "third"));
    Traced {
        idle,
        further,
        again: told(),
        runtime,
    }
}

/// The same objects, aligned and packed.
fn objects(of: [&Traced; 2], told: [&[Allocation]; 2]) -> Vec<Object> {
    let [aligned, packed] = told;
    assert_eq!(
        aligned.len(),
        packed.len(),
        "a group asks for the same, however it is given"
    );
    let mut objects: Vec<Object> = Vec::new();
    for (line, word) in aligned.iter().zip(packed) {
        assert_eq!((&line.pool, line.asked), (&word.pool, word.asked));
        if let Some(object) = objects
            .iter_mut()
            .find(|object| object.pool == line.pool && object.asked == line.asked)
        {
            object.count += 1;
            continue;
        }
        let tables = of.map(|traced| traced.runtime.pools());
        let rows = tables.each_ref().map(|table| {
            let mut rows = table.rows().iter();
            rows.find(|row| row.name == line.pool && row.asked == line.asked)
                .expect("what is told stands in the table")
        });
        assert_eq!((rows[0].given, rows[1].given), (line.given, word.given));
        objects.push(Object {
            pool: line.pool.clone(),
            count: 1,
            asked: line.asked,
            given: [rows[0].size_class(), line.given, word.given],
            per_chunk: rows.map(|row| row.objects_per_chunk),
        });
    }
    objects
}

pub(crate) fn print(machines: &[Machine]) {
    println!(
        "Told of one group, which is charged, then holds memory on every node; and of the next one in its place:\n"
    );
    for machine in machines.iter().filter(|machine| machine.nodes <= 2) {
        println!("{} of {}:", machine.lines.len(), nodes(machine.nodes));
        machine.lines.iter().for_each(|line| println!("  {line}"));
        println!();
    }
    println!(
        "Bytes of one object, asked for and given each way; objects in 32 KiB, and in a chunk of the pool:\n"
    );
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "",
        "object",
        "of one group",
        "asked",
        WAYS[0],
        WAYS[1],
        WAYS[2],
        "wasted",
        "in 32 KiB",
        "in a chunk",
    ]);
    for (place, Structure { name, asked, given }) in
        [series::GROUP, series::PART].iter().enumerate()
    {
        let of = if place == 0 { "1" } else { "1 on each node" };
        let head = [if place == 0 { "series" } else { "" }, name, of].map(str::to_owned);
        table.add_row(
            head.into_iter()
                .chain(sizes(*asked, given))
                .chain([String::new()]),
        );
    }
    for machine in machines {
        for (place, object) in machine.everywhere.iter().enumerate() {
            let head = if place == 0 {
                nodes(machine.nodes)
            } else {
                String::new()
            };
            let head = [head, object.pool.clone(), object.count.to_string()];
            let chunk = format!("{}, {}", object.per_chunk[0], object.per_chunk[1]);
            table.add_row(
                head.into_iter()
                    .chain(sizes(object.asked, &object.given))
                    .chain([chunk]),
            );
        }
    }
    println!("{}\n", table.trim_fmt());
    wastes(machines);
    for machine in machines.iter().filter(|machine| machine.nodes <= 2) {
        println!(
            "`Runtime::pools` on {}:\n\n{}",
            nodes(machine.nodes),
            machine.table
        );
    }
}

pub(crate) fn nodes(nodes: u16) -> String {
    format!("{nodes} {}", if nodes == 1 { "node" } else { "nodes" })
}

/// Six cells.
fn sizes(asked: usize, given: &[usize; 3]) -> impl Iterator<Item = String> {
    let list = |of: &dyn Fn(usize) -> usize| {
        given
            .iter()
            .map(|given| of(*given).to_string())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let wasted = list(&|given| given - asked);
    let in_slab = list(&|given| SLAB / given);
    let cells = [asked, given[0], given[1], given[2]].map(|bytes| bytes.to_string());
    cells.into_iter().chain([wasted, in_slab])
}

/// Bytes of all objects of one group: asked, and given each way.
pub(crate) fn sum(objects: &[Object]) -> (usize, [usize; 3]) {
    let asked = objects
        .iter()
        .map(|object| object.count * object.asked)
        .sum();
    let given = [0, 1, 2].map(|way| {
        objects
            .iter()
            .map(|object| object.count * object.given[way])
            .sum()
    });
    (asked, given)
}

fn wastes(machines: &[Machine]) {
    println!(
        "Bytes that one group wastes, all its objects together ({}):\n",
        WAYS.join(", ")
    );
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "",
        "idle: asked",
        "wasted",
        "memory on every node: asked",
        "wasted",
        "the series, which makes all parts at once: wasted",
    ]);
    for machine in machines {
        let cells = [&machine.idle, &machine.everywhere].map(|objects| {
            let (asked, given) = sum(objects);
            [
                asked.to_string(),
                given.map(|given| (given - asked).to_string()).join(", "),
            ]
        });
        let series = series::waste(machine.nodes.into())
            .map(|bytes| bytes.to_string())
            .join(", ");
        table.add_row(
            [nodes(machine.nodes)]
                .into_iter()
                .chain(cells.into_iter().flatten())
                .chain([series]),
        );
    }
    println!("{}\n", table.trim_fmt());
}
