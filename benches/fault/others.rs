//! Other ways of taking and giving back memory, as the memory stressors of stress-ng have them: the
//! series says that those microbenchmarks agree with its tables.
//!
//! *mmap*: map a region, charge and touch it page by page, unmap it, uncharge it whole. *malloc*: a
//! table of blocks of 1 to 16 pages; each step frees one and allocates another. *bigheap*: grow
//! page by page, then give everything back at once. Counters take turns page by page or block by
//! block.

#![cfg(not(loom))]

use std::hint::black_box;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{CounterConfig, PageCounter};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::region::Region;
use crate::common::claims::Ratio;
use crate::common::clock::OwnTime;
use crate::common::slots7::{Random, Slots7};
use crate::common::stats::Summary;
use crate::common::tree::{fan, unstocked};
use crate::common::{Library, Policy};

/// Pages that one iteration charges, over all counters.
const PAGES: usize = 1_024;

/// Blocks of the table, over all counters, and the largest block in pages.
const BLOCKS: usize = 128;
const BLOCK_PAGES_MAX: usize = 16;

/// Heaps that one iteration grows, one after the other.
const HEAPS: usize = 16;

#[derive(Clone, Copy)]
enum Stressor {
    Mmap,
    Malloc,
    Bigheap,
}

const STRESSORS: [(&str, Stressor); 3] = [
    ("mmap", Stressor::Mmap),
    ("malloc", Stressor::Malloc),
    ("bigheap", Stressor::Bigheap),
];

/// Run all of them with 1, 4 and 32 counters, and print what the stock takes of the seven slots.
pub(crate) fn run(trials: usize, iterations: usize) -> Vec<(String, Ratio)> {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "stressor", "counters", "runs", "slots7", "std", "stock", "std", "min", "max", "delta",
    ]);
    let mut ratios = Vec::new();
    for (name, stressor) in STRESSORS {
        for count in [1, 4, 32] {
            let [slots7, stock] = pair(stressor, count, trials, iterations);
            let base = Summary::of(&slots7);
            let ours = Summary::of(&stock);
            let cells = [base.mean, base.std, ours.mean, ours.std, ours.min, ours.max]
                .map(|ms| format!("{ms:.3}"));
            let head = [name.to_owned(), count.to_string(), trials.to_string()];
            let delta = format!("{:+.2}", ours.delta(&base));
            table.add_row(head.into_iter().chain(cells).chain([delta]));
            ratios.push((format!("{name} {count}"), Ratio::of(&stock, &slots7)));
        }
    }
    println!(
        "Memory stressors, ms an iteration; delta of stock to slots7 in per cent:\n\n{}\n",
        table.trim_fmt()
    );
    ratios
}

/// The time that it takes, from one iteration of each.
pub(crate) fn takes(trials: usize, iterations: usize) -> Duration {
    let start = Instant::now();
    for (_, stressor) in STRESSORS {
        drop(pair(stressor, 1, 0, 1));
    }
    // Both policies were run, with one of the three numbers of counters.
    start.elapsed() * (3 * (trials + 1) * iterations) as u32
}

/// The two policies take turns trial by trial; the first trial warms up.
fn pair(stressor: Stressor, count: usize, trials: usize, iterations: usize) -> [Vec<f64>; 2] {
    let stocked = fan(CounterConfig::new(), count).1;
    let bare = fan(unstocked(), count).1;
    let mut slots7 = Slots7::<Random>::new(&bare);
    let mut stock = Library { leaves: &stocked };
    let mut times = [Vec::new(), Vec::new()];
    for trial in 0..=trials {
        for place in 0..2 {
            let which = (trial + place) % 2;
            let start = OwnTime::start();
            for _ in 0..iterations {
                match which {
                    0 => iteration(stressor, &mut slots7, count),
                    _ => iteration(stressor, &mut stock, count),
                }
            }
            if trial > 0 {
                times[which].push(start.elapsed().as_secs_f64() * 1e3 / iterations as f64);
            }
        }
    }
    times
}

/// Never inlined, so that both policies are loops of one shape.
#[inline(never)]
fn iteration(stressor: Stressor, policy: &mut impl Policy, count: usize) {
    match stressor {
        Stressor::Mmap => mmap(policy, count),
        Stressor::Malloc => malloc(policy, count),
        // A heap that has grown before brings no faults: it takes a fraction of the others' time.
        Stressor::Bigheap => (0..HEAPS).for_each(|_| bigheap(policy, count)),
    }
}

fn mmap(policy: &mut impl Policy, count: usize) {
    let pages = PAGES / count;
    let regions: Vec<Region> = (0..count).map(|_| Region::map(pages)).collect();
    for page in 0..pages {
        for (leaf, region) in regions.iter().enumerate() {
            policy.charge(leaf, 1).expect("no limit is set");
            region.touch(page);
        }
    }
    for (leaf, region) in regions.into_iter().enumerate() {
        drop(region);
        policy.uncharge(leaf, pages as u64);
    }
}

fn malloc(policy: &mut impl Policy, count: usize) {
    let mut rng = SmallRng::seed_from_u64(16);
    let mut blocks: Vec<Vec<u8>> = vec![Vec::new(); BLOCKS];
    let pages = |block: &[u8]| (block.len() / Region::page_size()) as u64;
    for step in 0..2 * BLOCKS {
        let at = step % BLOCKS;
        let leaf = step % BLOCKS % count;
        let size = rng.random_range(1..=BLOCK_PAGES_MAX);
        policy.uncharge(leaf, pages(&blocks[at]));
        blocks[at] = Vec::new();
        policy.charge(leaf, size as u64).expect("no limit is set");
        // Not zero, so that each page is written here.
        blocks[at] = black_box(vec![1; size * Region::page_size()]);
    }
    for (at, block) in blocks.iter().enumerate() {
        policy.uncharge(at % count, pages(block));
    }
}

fn bigheap(policy: &mut impl Policy, count: usize) {
    let pages = PAGES / count;
    let mut heaps: Vec<Vec<u8>> = vec![Vec::new(); count];
    for _ in 0..pages {
        for (leaf, heap) in heaps.iter_mut().enumerate() {
            policy.charge(leaf, 1).expect("no limit is set");
            heap.resize(heap.len() + Region::page_size(), 1);
        }
    }
    drop(black_box(heaps));
    (0..count).for_each(|leaf| policy.uncharge(leaf, pages as u64));
}

/// Walks of the tree for each operation where counters are charged and uncharged unit by unit in
/// turn: what changes their usage. `held` units of each are charged before the first is uncharged.
pub(crate) fn walks(policy: &mut impl Policy, leaves: &[PageCounter], held: usize) -> f64 {
    const ROUNDS: usize = 512;
    const ROUNDS_BEFORE: usize = 16;
    let mut walks = 0;
    for round in 0..ROUNDS_BEFORE + ROUNDS {
        let mut step = |charge: bool| {
            for (leaf, counter) in leaves.iter().enumerate() {
                let usage = counter.usage();
                if charge {
                    policy.charge(leaf, 1).expect("no limit is set")
                } else {
                    policy.uncharge(leaf, 1)
                }
                walks += usize::from(round >= ROUNDS_BEFORE && counter.usage() != usage);
            }
        };
        (0..held).for_each(|_| step(true));
        (0..held).for_each(|_| step(false));
    }
    walks as f64 / (2 * ROUNDS * held * leaves.len()) as f64
}
