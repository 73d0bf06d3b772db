//! What the tables of slots take: the formula, and the growth of a fresh process when every thread touches every
//! counter.

#![cfg(not(loom))]

use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Barrier;
use std::thread;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{Bytes, CounterConfig, PageCounter};

use crate::common::resident;
use crate::common::slots7::{Random, Slots7};
use crate::common::tree::{chain, fan, unstocked};

/// A slot is two words; slots come in pages of 256.
const SLOT: u64 = 16;
const SLOTS_PER_PAGE: u64 = 256;

/// Processes asked for one figure.
const RUNS: usize = 3;

/// The stacks of a thousand threads need not be large.
const STACK: usize = 128 << 10;

pub(crate) fn print(tables: &[(usize, usize)]) {
    println!(
        "Tables: whole pages of {SLOTS_PER_PAGE} slots of {SLOT} bytes for each thread; the series' two words for each\n\
         (processor, group); seven slots. Measured: growth of the resident set in a process of its own.\n"
    );
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "threads x counters",
        "stock, formula",
        "stock, measured",
        "series, formula",
        "slots7, formula",
    ]);
    for &(threads, counters) in tables {
        let pages = (counters as u64).div_ceil(SLOTS_PER_PAGE);
        table.add_row([
            format!("{threads} x {counters}"),
            Bytes(threads as u64 * pages * SLOTS_PER_PAGE * SLOT).to_string(),
            measured(threads, counters),
            Bytes(threads as u64 * counters as u64 * SLOT).to_string(),
            Bytes((threads * Slots7::<Random>::BYTES) as u64).to_string(),
        ]);
    }
    println!("{}\n", table.trim_fmt());
}

/// The middle of a few runs: now and then the allocator has memory at hand that is resident already.
fn measured(threads: usize, counters: usize) -> String {
    let runs: Result<Vec<u64>, String> = (0..RUNS).map(|_| measure(threads, counters)).collect();
    runs.map_or_else(
        |why| why,
        |mut runs| {
            runs.sort_unstable();
            Bytes(runs[RUNS / 2]).to_string()
        },
    )
}

/// Ask a fresh process.
fn measure(threads: usize, counters: usize) -> Result<u64, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["--resident", &threads.to_string(), &counters.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    String::from_utf8_lossy(&output.stdout).trim().parse().map_err(|_| "not measured".to_owned())
}

/// The fresh process: prints the growth in bytes.
pub(crate) fn measure_here(threads: usize, counters: usize) -> ExitCode {
    let walked = chain(unstocked(), 2);
    let (_root, leaves) = fan(CounterConfig::new(), counters);
    let (ready, go) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let (touched, read) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let growth = thread::scope(|scope| {
        for _ in 0..threads {
            let started = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || {
                // Stacks and what a thread has without any stock come first.
                pair(&walked);
                ready.wait();
                go.wait();
                leaves.iter().for_each(pair);
                touched.wait();
                read.wait();
            });
            started.expect("a thread");
        }
        ready.wait();
        let before = resident::bytes();
        go.wait();
        touched.wait();
        let after = resident::bytes();
        read.wait();
        before.zip(after).map(|(before, after)| after.saturating_sub(before))
    });
    match growth {
        Some(growth) => println!("{growth}"),
        None => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn pair(counter: &PageCounter) {
    counter.try_charge(1).expect("no limit is set");
    counter.uncharge(1);
}
