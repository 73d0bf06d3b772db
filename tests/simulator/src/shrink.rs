//! A script that fails, with the fewest operations.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::holds::PATIENCE;
use crate::script::{Op, Setup, Size, What};
use crate::{Failure, run};

/// Reduces a script that fails to the fewest operations and the plainest setup that fail, for so
/// long at most. Returns them with their failure.
///
/// Failures are one where they say the same, but for numbers.
pub fn shrink(
    setup: &Setup,
    ops: &[Op],
    failure: Failure,
    time: Duration,
) -> (Setup, Vec<Op>, Failure) {
    let until = Instant::now() + time;
    PATIENCE.store(200, Ordering::Relaxed);
    let mut best = (setup.clone(), ops.to_vec(), failure);
    // What came after the failure has no part in it.
    let first = best.2.operation.saturating_add(1).min(best.1.len());
    try_it(&mut best, setup.clone(), ops[..first].to_vec());
    loop {
        let before = (best.0.clone(), best.1.clone());
        leave_out(&mut best, until);
        make_plain(&mut best, until);
        if (&best.0, &best.1) == (&before.0, &before.1) || Instant::now() >= until {
            PATIENCE.store(5_000, Ordering::Relaxed);
            return best;
        }
    }
}

type Best = (Setup, Vec<Op>, Failure);

/// Schedules that a script is tried in: one with fewer operations has another one of the same seed.
const SCHEDULES: u64 = if cfg!(shuttle) { 12 } else { 1 };

fn try_it(best: &mut Best, mut setup: Setup, ops: Vec<Op>) -> bool {
    for _ in 0..SCHEDULES {
        match run(&setup, &ops) {
            Err(failure) if kind(&failure) == kind(&best.2) => {
                *best = (setup, ops, failure);
                return true;
            }
            _ => setup.schedule = setup.schedule.wrapping_add(1),
        }
    }
    false
}

/// What a failure says, without numbers and paths.
fn kind(failure: &Failure) -> String {
    let line = failure.message.lines().next().unwrap_or_default();
    let is_told = |it: &char| !it.is_ascii_digit() && !"/gB.".contains(*it);
    line.chars().filter(is_told).take(60).collect()
}

/// Leaves out halves, quarters, eighths, ... single operations.
fn leave_out(best: &mut Best, until: Instant) {
    let mut part = best.1.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < best.1.len() && Instant::now() < until {
            let end = (at + part).min(best.1.len());
            let mut ops = best.1.clone();
            ops.drain(at..end);
            let setup = best.0.clone();
            if !try_it(best, setup, ops) {
                at += part;
            }
        }
        part /= 2;
    }
}

/// Makes the setup and the operations that are left plainer: one thread, round figures.
fn make_plain(best: &mut Best, until: Instant) {
    let plain = Setup::default();
    let setups: [fn(&mut Setup, &Setup); 11] = [
        |it, of| it.adaptive = of.adaptive,
        |it, of| it.audit = of.audit,
        |it, of| it.fence = of.fence,
        |it, of| it.budget = of.budget,
        |it, of| it.max = of.max,
        |it, of| it.groups_max = of.groups_max,
        |it, of| it.nodes = of.nodes,
        |it, of| it.stat_batch = of.stat_batch,
        |it, of| it.delay = of.delay,
        |it, of| it.stalls = of.stalls,
        |it, of| {
            it.recursive = of.recursive;
            it.incidents = of.incidents;
        },
    ];
    for change in setups {
        let mut setup = best.0.clone();
        change(&mut setup, &plain);
        if setup != best.0 && Instant::now() < until {
            let ops = best.1.clone();
            try_it(best, setup, ops);
        }
    }
    for at in 0..best.1.len() {
        if best.1[at].0 != 0 && Instant::now() < until {
            let mut ops = best.1.clone();
            ops[at].0 = 0;
            let setup = best.0.clone();
            try_it(best, setup, ops);
        }
        if let Some(plainer) = plainer(&best.1[at].1)
            && Instant::now() < until
        {
            let mut ops = best.1.clone();
            ops[at].1 = plainer;
            let setup = best.0.clone();
            try_it(best, setup, ops);
        }
    }
}

fn plainer(what: &What) -> Option<What> {
    match *what {
        What::Charge(group, verb, Size::Less(_) | Size::Part(_) | Size::More(_)) => {
            Some(What::Charge(group, verb, Size::Bytes(100)))
        }
        _ => None,
    }
}

/// A test to copy.
pub fn as_test(setup: &Setup, ops: &[Op], failure: &Failure) -> String {
    let mut text = format!(
        "/// {}\n#[test]\nfn a_run_that_failed() {{\n    let setup = {setup:?};\n    let ops = [\n",
        failure.message.lines().next().unwrap_or_default()
    );
    for op in ops {
        text.push_str(&format!("        {op:?},\n"));
    }
    text.push_str("    ];\n    replay(&setup, &ops);\n}\n");
    text
}
