//! Ours beside the patch series'.

#![cfg(not(loom))]
#![allow(
    unsafe_code,
    reason = "the plain loop that the allocator is compared with writes through addresses"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::kmem::MovePages;

use super::machine::{BATCH, MODELS, Machine, Model, NODES1, NODES2};
use super::turns::{Cost, PARTS, costs, takes};
use super::variant::Variant;
use super::verdicts::Verdicts;
use super::{SIZES, end_to_end, series};
use crate::common::rows::Rows;

/// Ours at most, in per cent, by size: with one node, and with more.
const ONE_NODE_MAX: [f64; 5] = [6.0, 6.0, 3.0, 2.0, 2.0];
const NODES_MAX: [f64; 5] = [40.0, 20.0, 8.0, 3.0, 3.0];

/// None, against a bitmap and the same zeroes.
const PLAIN_MAX: f64 = 3.0;

/// The most that 176 processors may cost, against 16.
const SCALE_MAX: f64 = 1.5;

/// The tables, and what came of their goals.
pub(crate) struct Tables {
    turns: usize,
    has_head: bool,
    goals: Goals,
    pub(crate) verdicts: Verdicts,
}

#[derive(Default)]
struct Goals {
    met: usize,
    missed: Vec<String>,
}

impl Goals {
    fn at_most(&mut self, what: String, measured: f64, most: f64) {
        if measured <= most {
            self.met += 1;
        } else {
            self.missed
                .push(format!("{what}: {measured:.2}, at most {most}"));
        }
    }
}

impl Tables {
    pub(crate) fn new(turns: usize) -> Self {
        Tables {
            turns,
            has_head: false,
            goals: Goals::default(),
            verdicts: Verdicts::default(),
        }
    }

    /// Each a row, with the slices that it takes.
    pub(crate) fn rows(&mut self, rows: &mut Rows) {
        let turns = self.turns;
        for model in MODELS {
            let takes = takes(turns, Variant::ALL.len() + 1) * SIZES.len() as u32;
            rows.table(&format!("kmem/table/nodes{}", model.nodes), takes, |_| {
                self.head();
                self.model(model);
            });
        }
        rows.table("kmem/table/move_pages", takes(turns, 1), |_| asking(turns));
        rows.table(
            "kmem/table/scale",
            takes(turns * 2, 2) * SCALE.len() as u32,
            |_| self.scale(),
        );
        rows.table(
            "kmem/table/end_to_end",
            takes(turns, 2) * SIZES.len() as u32,
            |_| self.whole(),
        );
    }

    fn model(&mut self, model: Model) {
        let measured = model_table(model, self.turns, &mut self.goals);
        let mut spreads = Spreads::new(&format!("nodes{}", model.nodes));
        for (place, variant) in Variant::ALL.into_iter().enumerate() {
            for (size, (costs, _)) in SIZES.into_iter().zip(&measured) {
                spreads.row(
                    variant.name(),
                    size,
                    series::percent(model.nodes, variant, size),
                    costs[place],
                );
            }
        }
        spreads.print();
        for (size, (costs, _)) in SIZES.into_iter().zip(&measured) {
            self.verdicts.of_model(model, size, costs);
        }
    }

    /// Above the first table.
    fn head(&mut self) {
        if !std::mem::replace(&mut self.has_head, true) {
            print_head();
        }
    }

    pub(crate) fn print_goals(&self) {
        let Goals { met, missed } = &self.goals;
        if met + missed.len() > 0 {
            println!("{met} goals met, {} missed", missed.len());
            missed
                .iter()
                .for_each(|missed| println!("  missed: {missed}"));
        }
    }
}

fn print_head() {
    println!(
        "Cost of accounting an allocation for each processor and its end, over none, in per cent.\n\
         The machines are simulated: processors and nodes of {}, nodes of pages by table. The memory is this machine's,\n\
         the library and its allocator are what they would be there; `per_page` and `per_node` pay for a walk of page\n\
         tables in memory for each processor. A thread keeps {} of credit. After a cost stands half of what lies between\n\
         its quartiles. The patch series: {}, measured in the kernel.\n",
        MODELS
            .map(|model| format!("{} on {}", model.processors, model.nodes))
            .join(", "),
        BATCH,
        series::SOURCE,
    );
}

fn model_table(model: Model, turns: usize, goals: &mut Goals) -> Vec<(Vec<Cost>, f64)> {
    let machine = Machine::new(model);
    let addresses: Vec<usize> = (0..model.processors)
        .map(|unit| machine.data + unit * machine.unit)
        .collect();
    println!(
        "nodes{}: {} processors (simulated); a walk to the node of a page takes {:.1} ns (measured)",
        model.nodes,
        model.processors,
        machine.walk.nanos(&addresses)
    );
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(
        ["way", ""]
            .into_iter()
            .map(str::to_owned)
            .chain(SIZES.map(|size| format!("{size} B"))),
    );
    let measured: Vec<(Vec<Cost>, f64)> = SIZES.map(|size| measure(&machine, size, turns)).into();
    let row = |name: &str, what: &str, cells: &mut dyn Iterator<Item = String>| {
        [name.to_owned(), what.to_owned()]
            .into_iter()
            .chain(cells)
            .collect::<Vec<_>>()
    };
    let ours = Variant::ALL.len() - 1;
    let none = |(costs, _): &(Vec<Cost>, f64)| {
        format!("{:.0} +-{:.0}", costs[ours].none, costs[ours].none_spread)
    };
    table.add_row(row("none", "ns", &mut measured.iter().map(none)));
    table.add_row(row(
        "bitmap and zeroes",
        "ns",
        &mut measured.iter().map(|(_, plain)| format!("{plain:.0}")),
    ));
    for (place, variant) in Variant::ALL.into_iter().enumerate() {
        let cost = |at: usize| measured[at].0[place];
        let cells = (0..SIZES.len()).map(cost);
        table.add_row(row(
            variant.name(),
            "%",
            &mut cells
                .clone()
                .map(|cost| format!("{:+.1} +-{:.1}", cost.percent, cost.spread)),
        ));
        table.add_row(row(
            "",
            "ns",
            &mut cells.map(|cost| format!("{:+.0}", cost.nanos)),
        ));
        if SIZES
            .iter()
            .any(|size| series::percent(model.nodes, variant, *size).is_some())
        {
            let of = |size| {
                series::percent(model.nodes, variant, size)
                    .map_or(String::new(), |of| format!("{of:+.1}"))
            };
            table.add_row(row("", "series, %", &mut SIZES.into_iter().map(of)));
        }
    }
    let most = if model.nodes == 1 {
        ONE_NODE_MAX
    } else {
        NODES_MAX
    };
    table.add_row(row(
        "",
        "at most, %",
        &mut most.iter().map(|most| format!("{most:+.1}")),
    ));
    println!("{}\n", table.trim_fmt());
    for ((size, most), (costs, plain)) in SIZES.into_iter().zip(most).zip(&measured) {
        let id = format!("kmem/ours/size{size}/nodes{}", model.nodes);
        goals.at_most(format!("{id}, %"), costs[ours].percent, most);
        goals.at_most(
            format!("{id}: none / bitmap and zeroes"),
            costs[ours].none / plain,
            PLAIN_MAX,
        );
    }
    measured
}

/// A line for each way and size: the series' figure, ours, and how far the parts of the run lie
/// apart.
struct Spreads(Table);

impl Spreads {
    fn new(what: &str) -> Self {
        let mut table = Table::new();
        let head = [
            what,
            "size",
            "series, %",
            "ours, %",
            "min",
            "max",
            "std",
            "runs",
        ];
        table.load_style(ASCII_MARKDOWN).set_header(head);
        Spreads(table)
    }

    fn row(&mut self, way: &str, size: usize, series: Option<f64>, cost: Cost) {
        let parts = cost.parts();
        let figures = [cost.percent, parts.min, parts.max].map(|figure| format!("{figure:+.1}"));
        let series = series.map_or_else(String::new, |figure| format!("{figure:+.1}"));
        let cells = [way.to_owned(), format!("{size} B"), series]
            .into_iter()
            .chain(figures);
        self.0
            .add_row(cells.chain([format!("{:.1}", parts.std), PARTS.to_string()]));
    }

    fn print(&self) {
        println!("{}\n", self.0.trim_fmt());
    }
}

/// The cost of each way, and nanoseconds of a plain loop that does the work of an allocator.
fn measure(machine: &Machine, size: usize, turns: usize) -> (Vec<Cost>, f64) {
    let held = machine
        .allocator
        .allocate_uncharged(Machine::layout(size))
        .expect("memory");
    let first = held.as_ptr(0).expect("a processor").as_ptr();
    let plain = |times: u64| {
        let mut bits = [0_u64; 64];
        let start = Instant::now();
        for _ in 0..times {
            let word = black_box(&mut bits)
                .iter_mut()
                .find(|word| **word != u64::MAX)
                .expect("a free one");
            *word |= 1 << word.trailing_ones();
            for unit in 0..machine.model.processors {
                // SAFETY: the copy of that unit, which has so many bytes; no other thread has the
                // object.
                unsafe {
                    first
                        .wrapping_add(unit * machine.unit)
                        .write_bytes(0, black_box(size))
                };
            }
            *black_box(word) = 0;
        }
        start.elapsed()
    };
    let ways = Variant::ALL.len();
    let run = |way: usize, times: u64| -> Duration {
        match way {
            way if way < ways => machine.run(Variant::ALL[way], size, times),
            way if way == ways => plain(times),
            _ => machine.run(Variant::None, size, times),
        }
    };
    let mut costs = costs(turns, ways + 1, run);
    let plain = costs.pop().map_or(0.0, |cost| cost.none + cost.nanos);
    (costs, plain)
}

/// One row that asks this machine.
fn asking(turns: usize) {
    let machine = Machine::new(NODES1);
    let node_of = match MovePages::new() {
        Ok(node_of) => node_of,
        Err(error) => return println!("kmem/per_page/move_pages: left out, {error}\n"),
    };
    let of = |way: usize, times: u64| match way {
        0 => machine.run_asking(&node_of, SIZES[0], times),
        _ => machine.run(Variant::None, SIZES[0], times),
    };
    for cost in costs(turns, 1, of) {
        println!(
            "kmem/per_page/move_pages/size{}/nodes1: {:+.1} % +-{:.1}, {:+.0} ns over {:.0} ns: this machine's kernel is\n\
             asked for the pages of all {} processors, one call for an allocation and one for its end\n",
            SIZES[0], cost.percent, cost.spread, cost.nanos, cost.none, machine.model.processors
        );
    }
}

/// Copies of 64 bytes, a unit apart, fall into one set of the first cache: what is accounted hides
/// in the wait for it.
const SCALE_SIZE: usize = SIZES[2];

/// Processors of the machines that are compared.
const SCALE: [usize; 4] = [8, 16, 80, 176];

impl Tables {
    /// The cost of ours and of the series' way with more processors.
    fn scale(&mut self) {
        let turns = self.turns * 2;
        let mut of_sixteen = f64::NAN;
        for processors in SCALE {
            let machine = Machine::new(Model::with_processors(processors));
            let ways = [Variant::Ours, Variant::PerNode, Variant::None];
            let costs = costs(turns, 2, |way, times| {
                machine.run(ways[way], SCALE_SIZE, times)
            });
            for (variant, cost) in ways.iter().zip(&costs) {
                println!(
                    "kmem/scale/processors{processors}: {} {:+.1} ns +-{:.1} over {:.0} ns, 2 nodes (simulated), {} B",
                    variant.name(),
                    cost.nanos,
                    cost.error(turns) * cost.none / 100.0,
                    cost.none,
                    SCALE_SIZE
                );
            }
            let [ours, theirs] = [costs[0], costs[1]];
            self.verdicts.of_scale(processors, theirs);
            if processors == 16 {
                of_sixteen = ours.nanos;
            }
            if processors == 176 {
                self.goals.at_most(
                    "kmem/scale: 176 processors / 16".to_owned(),
                    ours.nanos / of_sixteen,
                    SCALE_MAX,
                );
            }
        }
        println!();
    }

    /// None against none has a spread, too.
    fn whole(&mut self) {
        let machine = Machine::new(NODES2);
        let mut spreads = Spreads::new("end to end");
        for size in SIZES {
            let costs = costs(self.turns, 2, |way, times| {
                end_to_end::run(&machine, way == 0, size, times)
            });
            let [ours, none] = [costs[0], costs[1]];
            println!(
                "kmem/end_to_end/size{size}: {:+.2} % +-{:.2} over {:.0} ns, none against none {:+.2} % +-{:.2}",
                ours.percent, ours.spread, ours.none, none.percent, none.spread
            );
            let most = none.percent.abs() + none.spread;
            self.goals
                .at_most(format!("kmem/end_to_end/size{size}, %"), ours.percent, most);
            self.verdicts.of_whole(size, ours);
            spreads.row("ours", size, series::end_to_end(size), ours);
        }
        println!();
        spreads.print();
    }
}
