//! Groups of different sizes, all with soft limit 0: what each gives when the root is asked,
//! against what it holds.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::Bytes;

use super::device::Waiters;
use super::lru::PAGE;
use super::policy::Variant;
use super::scene::{Member, Scene};
use memcg_bench_rows::Goals;

/// Pages of the smallest group; each of the others has twice as many as the one before.
const SMALLEST: usize = 512;
const GROUPS: u32 = 7;

/// Pages of one ask of many: half a batch.
const ASK: u64 = 32;

const SHARE_ERROR_MAX: f64 = 10.0;
const EVICTED_MAX: f64 = 1.1;

pub(crate) fn run(goals: &mut Goals<'_>) {
    println!(
        "Groups of different sizes, all with soft limit 0; the root is asked for half of what they hold.\n"
    );
    let pages: Vec<usize> = (0..GROUPS).map(|group| SMALLEST << group).collect();
    let total: usize = pages.iter().sum();
    for (what, ask) in [("many asks of 128 KiB", ASK), ("one ask", total as u64 / 2)] {
        let members: Vec<_> = pages
            .iter()
            .map(|&blocks| Member {
                soft: 0,
                blocks,
                dirty: false,
            })
            .collect();
        let scene = Scene::new(
            Variant::Reworkoptim,
            total as u64 * PAGE * 2,
            &members,
            &Waiters::default(),
        );
        for (cache, &blocks) in scene.caches.iter().zip(&pages) {
            for block in 0..blocks {
                cache.serve(block as u32, 0);
            }
        }
        let root = scene.runtime.root();
        let mut asked = 0;
        while asked < total as u64 / 2 {
            root.reclaim(Bytes(ask * PAGE))
                .expect("no group is inside a reclaimer");
            asked += ask;
        }
        let freed: Vec<usize> = scene
            .caches
            .iter()
            .zip(&pages)
            .map(|(cache, pages)| pages - cache.len())
            .collect();
        let all: usize = freed.iter().sum();
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header([
            what,
            "held",
            "freed",
            "share of its own",
            "to the mean share",
        ]);
        let mut worst = 0.0_f64;
        for (group, (&freed, &held)) in freed.iter().zip(&pages).enumerate() {
            let share = freed as f64 / held as f64;
            let mean = all as f64 / total as f64;
            let error = (share / mean - 1.0) * 100.0;
            worst = worst.max(error.abs());
            table.add_row([
                format!("group-{group}"),
                Bytes(held as u64 * PAGE).to_string(),
                Bytes(freed as u64 * PAGE).to_string(),
                format!("{:.1} %", share * 100.0),
                format!("{error:+.1} %"),
            ]);
        }
        println!("{}\n", table.trim_fmt());
        goals.at_most(
            format!("proportional, {what}: furthest from the mean share"),
            worst,
            "%",
            SHARE_ERROR_MAX,
        );
        goals.at_most(
            format!("proportional, {what}: evicted / asked"),
            all as f64 / asked as f64,
            "x",
            EVICTED_MAX,
        );
    }
}
