//! The watchdog does bark: a process that has stopped on purpose ends, and names the functions in
//! which it stands.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::lock;
use crate::support::turns::turn;
use crate::support::watchdog::Watchdog;

/// Set in the process that is to hang.
const ALONE: &str = "MEMCG_STORM_HANGS";

/// For a machine that is busy with other things.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

type Two = Arc<(Mutex<()>, Mutex<()>, Barrier)>;

#[inline(never)]
fn holds_the_left_and_wants_the_right(two: &Two) {
    let _left = lock(&two.0);
    two.2.wait();
    let _right = lock(&two.1);
}

#[inline(never)]
fn holds_the_right_and_wants_the_left(two: &Two) {
    let _right = lock(&two.1);
    two.2.wait();
    let _left = lock(&two.0);
}

#[inline(never)]
fn waits_for_what_no_thread_sends(told: &(Mutex<bool>, Condvar)) {
    let mut told_so = lock(&told.0);
    while !*told_so {
        told_so = told.1.wait(told_so).expect("no thread panics");
    }
}

#[inline(never)]
fn never_ends_its_round(rounds: &AtomicU64) {
    while rounds.fetch_add(1, Ordering::Relaxed) < u64::MAX / 2 {
        std::hint::spin_loop();
    }
}

fn hang() {
    let admitted = Arc::new(AtomicU64::new(17));
    let progress = move || admitted.load(Ordering::SeqCst);
    let describe = Arc::new(|| "state: as it was".to_owned());
    let _watchdog = Watchdog::start("hang", Duration::from_millis(500), progress, describe);
    let two: Two = Arc::new((Mutex::new(()), Mutex::new(()), Barrier::new(2)));
    let other = Arc::clone(&two);
    let name = |name: &str| std::thread::Builder::new().name(name.to_owned());
    name("spinner")
        .spawn(|| never_ends_its_round(&AtomicU64::new(0)))
        .expect("a thread");
    name("sleeper")
        .spawn(|| waits_for_what_no_thread_sends(&Default::default()))
        .expect("a thread");
    name("right-left")
        .spawn(move || holds_the_right_and_wants_the_left(&other))
        .expect("a thread");
    let left = name("left-right")
        .spawn(move || holds_the_left_and_wants_the_right(&two))
        .expect("a thread");
    left.join().expect("it does not end");
    println!("not reached");
}

#[test]
fn the_watchdog_says_where_a_process_that_hangs_hangs() {
    let _turn = turn(module_path!());
    if std::env::var_os(ALONE).is_some() {
        return hang();
    }
    let mut child = Command::new(std::env::current_exe().expect("a test program has a path"))
        .args([
            "storm::dog::the_watchdog_says_where_a_process_that_hangs_hangs",
            "--exact",
        ])
        .env(ALONE, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a test program starts");
    let began = Instant::now();
    while child.try_wait().expect("it is ours").is_none() {
        if began.elapsed() > ENDS_WITHIN {
            child.kill().expect("it is ours");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("it is ours");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && !stdout.contains("not reached"),
        "{}\n{stdout}\n{stderr}",
        output.status
    );
    assert!(
        stderr.contains("watchdog: hang: nothing for 500ms, after 17"),
        "{stderr}"
    );
    assert!(stderr.contains("state: as it was"), "{stderr}");
    if !cfg!(target_os = "linux") {
        return;
    }
    // Each below the name of its thread.
    for (thread, function) in [
        ("right-left", "holds_the_right_and_wants_the_left"),
        ("sleeper", "waits_for_what_no_thread_sends"),
        ("spinner", "never_ends_its_round"),
        ("left-right", "holds_the_left_and_wants_the_right"),
    ] {
        let paragraph = stderr
            .split("thread ")
            .find(|paragraph| paragraph.contains(&format!("\"{thread}\":")));
        let paragraph = paragraph.unwrap_or_else(|| panic!("no stack of {thread}:\n{stderr}"));
        assert!(
            paragraph.contains(function),
            "{thread} is not in {function}:\n{stderr}"
        );
    }
}
