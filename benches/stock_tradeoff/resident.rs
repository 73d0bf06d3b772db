//! The memory of the tables of slots: the formula, and the growth of a fresh process when every
//! thread touches every counter.

#![cfg(not(loom))]

use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Barrier;
use std::thread;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{Bytes, CounterConfig, PageCounter};

use crate::common::claims::Claims;
use crate::common::resident;
use crate::common::slots7::{Random, Slots7};
use crate::common::tree::{chain, fan, unstocked};

/// A slot is four words; slots come in pages of 252, with two bits more for each.
const SLOT: u64 = 32;
/// Two words of the series.
const SERIES_SLOT: u64 = 16;
const SLOTS_PER_PAGE: u64 = 252;
const SLOT_PAGE: u64 = 8_192;

/// With whole pages and what a thread has beside its slots, a slot of four words, two of them for the
/// peak of live units, takes less than a half more.
const SLOT_MAX: u64 = 48;

/// Processes asked for one figure.
const RUNS: usize = 3;

/// The stacks of a thousand threads need not be large.
const STACK: usize = 128 << 10;

pub(crate) fn print(tables: &[(usize, usize)], claims: &mut Claims) {
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
    let mut worst: Option<(f64, String)> = None;
    for &(threads, counters) in tables {
        let pages = (counters as u64).div_ceil(SLOTS_PER_PAGE);
        let measured = measured(threads, counters);
        // A page of slots for a single counter says nothing of the slot.
        if let (Ok(bytes), true) = (&measured, counters as u64 > SLOTS_PER_PAGE) {
            let each = *bytes as f64 / (threads * counters) as f64;
            let text = format!(
                "{each:.1} bytes for each of {threads} x {counters} slots, measured; a slot is {SLOT}"
            );
            worst = worst
                .filter(|(most, _)| *most > each)
                .or(Some((each, text)));
        }
        table.add_row([
            format!("{threads} x {counters}"),
            Bytes(threads as u64 * pages * SLOT_PAGE).to_string(),
            measured.map_or_else(|why| why, |bytes| Bytes(bytes).to_string()),
            Bytes(threads as u64 * counters as u64 * SERIES_SLOT).to_string(),
            Bytes((threads * Slots7::<Random>::BYTES) as u64).to_string(),
        ]);
    }
    println!("{}\n", table.trim_fmt());
    match worst {
        Some((each, text)) => claims.holds("stock-10", each <= SLOT_MAX as f64, text),
        None => claims.open(
            "stock-10",
            "the system does not say what is resident, or the tables are too small",
        ),
    }
}

/// The middle of a few runs: now and then the allocator has memory at hand that is resident
/// already.
fn measured(threads: usize, counters: usize) -> Result<u64, String> {
    let runs: Result<Vec<u64>, String> = (0..RUNS).map(|_| measure(threads, counters)).collect();
    let mut runs = runs?;
    runs.sort_unstable();
    Ok(runs[RUNS / 2])
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
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|_| "not measured".to_owned())
}

/// The fresh process: prints the growth in bytes.
pub(crate) fn measure_here(threads: usize, counters: usize) -> ExitCode {
    let walked = chain(unstocked(), 2);
    let (_root, leaves) = fan(CounterConfig::new(), counters);
    let ready = Barrier::new(threads + 1);
    let go = Barrier::new(threads + 1);
    let touched = Barrier::new(threads + 1);
    let read = Barrier::new(threads + 1);
    let growth = thread::scope(|scope| {
        for _ in 0..threads {
            let started = thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, || {
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
        before
            .zip(after)
            .map(|(before, after)| after.saturating_sub(before))
    });
    match growth {
        Some(growth) => println!("{growth}"),
        None => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn pair(counter: &PageCounter) {
    counter.charge(1).expect("no limit is set");
    counter.uncharge(1);
}
