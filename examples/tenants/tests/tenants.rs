#![cfg(not(loom))]
//! The example `tenants`, run as its users run it: what it prints, and how it takes bad input.

#[path = "../../tests/program.rs"]
mod program;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::{Value, json};

/// Small enough for a debug build, large enough for every tenant to be asked.
const SMALL: [&str; 4] = ["--budget", "1MiB", "--requests", "6000"];

fn run(args: &[&str]) -> Output {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    Command::new(PROGRAM.get_or_init(|| program::program("tenants")))
        .args(args)
        .output()
        .expect("the example starts")
}

/// Runs to a report that holds, with nothing on stderr: it is no terminal, so it has no bar.
fn report(args: &[&str]) -> Value {
    let output = run(&[&["--json"], args].concat());
    assert_eq!(
        (
            String::from_utf8_lossy(&output.stderr),
            output.status.success()
        ),
        ("".into(), true)
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("a JSON report");
    assert_eq!(report["faults"], json!([]));
    report
}

/// The same of the job itself.
fn job(args: &[&str]) -> Value {
    let report = report(args);
    let sum = |field: &str| {
        tenants(&report)
            .iter()
            .map(|tenant| number(&tenant[field]))
            .sum::<u64>()
    };
    assert_eq!(sum("live"), number(&report["live_bytes"]));
    assert_eq!(
        number(&report["live_bytes"]) + number(&report["stocked_bytes"]),
        number(&report["usage_bytes"])
    );
    assert!(number(&report["usage_bytes"]) <= number(&report["peak_bytes"]));
    assert!(number(&report["peak_bytes"]) <= number(&report["budget_bytes"]));
    assert!(number(&report["samples"]) > 0 && number(&report["max_excess_bytes"]) == 0);
    for field in [
        "requests",
        "gets",
        "hits",
        "met_max",
        "refused",
        "evicted",
        "evicted_for_others",
    ] {
        assert_eq!(sum(field), number(&report[field]), "{field}");
    }
    for tenant in tenants(&report) {
        assert!(number(&tenant["live"]) <= number(&tenant["peak"]));
        assert!(number(&tenant["peak"]) <= tenant["max"].as_u64().unwrap_or(u64::MAX));
    }
    report
}

fn under(policy: &str, more: &[&str]) -> Value {
    job(&[&SMALL[..], &["--policy", policy], more].concat())
}

fn tenants(report: &Value) -> &[Value] {
    report["tenants"].as_array().expect("a list of tenants")
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no whole number"))
}

#[test]
fn clusters_are_asked_as_often_as_they_are_in_production() {
    let report = job(&["--requests", "200000", "--budget", "1MiB"]);
    assert_eq!(
        (tenants(&report).len(), number(&report["requests"])),
        (53, 200_000)
    );
    for figure in [
        "hits",
        "met_max",
        "met_budget",
        "evicted",
        "evicted_for_others",
    ] {
        assert!(
            number(&report[figure]) > 0,
            "no {figure}: a budget that no tenant feels"
        );
    }
    // Thousands of requests per second, of 377.96 together.
    for (name, rate) in [
        ("cluster18", 26.40),
        ("cluster52", 24.25),
        ("cluster01", 11.40),
        ("cluster03", 1.36),
    ] {
        let tenant = tenants(&report)
            .iter()
            .find(|tenant| tenant["tenant"] == name)
            .expect(name);
        let expected = 200_000.0 * rate / 377.96;
        let off = number(&tenant["requests"]) as f64 - expected;
        // Five standard deviations.
        assert!(
            off.abs() < 5.0 * f64::sqrt(expected),
            "{name}: {off:+} of {expected}"
        );
    }
}

/// At the full budget: what the main job shows, but for its length.
#[test]
fn every_limit_is_met() {
    let report = job(&["--seconds", "0.3"]);
    for tenant in tenants(&report) {
        assert!(number(&tenant["met_max"]) > 0, "{tenant}");
        assert!(
            number(&tenant["peak"]) > number(&tenant["max"]) / 4 * 3,
            "{tenant}"
        );
    }
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        let ratio =
            number(&report["rss_growth_bytes"]) as f64 / number(&report["live_bytes"]) as f64;
        assert!(
            (0.85..1.15).contains(&ratio),
            "resident memory grew by {ratio} of what is charged"
        );
    }
}

#[test]
fn one_thread_and_one_seed_give_one_result() {
    let run = |seed| {
        let args = [
            "--requests",
            "20000",
            "--budget",
            "8MiB",
            "--threads",
            "1",
            "--seed",
            seed,
        ];
        job(&args)["tenants"].clone()
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn time_ends_a_run_and_what_is_too_large_is_a_request() {
    let report = job(&[
        "--seconds",
        "0.2",
        "--budget",
        "1KiB",
        "--requests",
        "18446744073709551615",
    ]);
    let seconds = report["seconds"].as_f64().expect("a number");
    assert!((0.05..5.0).contains(&seconds), "{seconds} s");
    assert!(number(&report["too_large"]) > 0);
    assert!(number(&report["too_large"]) <= number(&report["requests"]) - number(&report["hits"]));
}

/// Two that flood stand behind the others, ask far more often, and never hit.
#[test]
fn requests_are_the_same_under_each_policy() {
    let requests = |policy, threads| -> Vec<_> {
        let report = under(policy, &["--noisy", "2", "--threads", threads]);
        assert_eq!(report["policy"], policy);
        let (calm, noisy) = tenants(&report).split_at(53);
        assert_eq!(
            noisy
                .iter()
                .map(|tenant| &tenant["tenant"])
                .collect::<Vec<_>>(),
            ["noisy1", "noisy2"]
        );
        assert!(
            noisy.iter().all(|tenant| tenant["hits"] == 0),
            "each key is for the first time"
        );
        let sum = |tenants: &[Value]| {
            tenants
                .iter()
                .map(|tenant| number(&tenant["requests"]))
                .sum::<u64>()
        };
        assert!(
            sum(noisy) > 10 * sum(calm),
            "{} beside {}",
            sum(noisy),
            sum(calm)
        );
        tenants(&report)
            .iter()
            .map(|tenant| (tenant["requests"].clone(), tenant["digest"].clone()))
            .collect()
    };
    let expected = requests("memcg", "1");
    for policy in ["shared", "static", "shares", "memcg"] {
        assert_eq!(requests(policy, "2"), expected, "{policy}");
    }
}

#[test]
fn policies_set_their_limits() {
    for tenant in tenants(&under("static", &[])) {
        assert_eq!(tenant["max"], tenant["fair_share"]);
        assert_eq!(tenant["evicted_for_others"], 0, "no tenant gives to others");
    }
    let shared = under("shared", &[]);
    assert!(
        tenants(&shared)
            .iter()
            .all(|tenant| tenant["max"].is_null())
    );
    assert!(
        tenants(&shared)
            .iter()
            .any(|tenant| number(&tenant["evicted"]) > 0)
    );
}

#[test]
fn comparison_has_a_row_for_each_policy() {
    let comparison = report(&[&SMALL[..], &["--compare"]].concat());
    let rows = comparison["rows"].as_array().expect("rows");
    let how: Vec<_> = rows.iter().map(|row| &row["how"]).collect();
    assert_eq!(how, ["alone", "shared", "static", "shares", "memcg"]);
    for (row, repeats) in rows.iter().zip([0, 3, 3, 3, 3]) {
        let count = |figure: &str| {
            row[figure]
                .as_array()
                .expect("a figure for each repeat")
                .len()
        };
        assert_eq!(
            ["hit_ratio", "lost", "used_alone"].map(count),
            [3, repeats, repeats]
        );
    }
    let figure = |row: usize, figure: &str| rows[row][figure][1].as_f64().expect("the median");
    assert!(
        figure(0, "hit_ratio") > 95.0,
        "everything fits, and was filled before"
    );
    assert!(figure(2, "used_alone") < 50.0, "a split is not borrowed");
    for groups in [3, 4] {
        assert!(
            figure(1, "lost") > 5.0 + figure(groups, "lost"),
            "shares and lows protect, shared does not"
        );
        assert!(
            figure(groups, "used_alone") > 90.0,
            "under both one tenant has all"
        );
    }

    let text = run(&[&SMALL[..], &["--compare", "--noisy", "3"]].concat()).stdout;
    let text = String::from_utf8(text).expect("text");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    for words in [
        "memcg: no tenant loses",
        "21 tenants under 1 MiB, and 3 that flood.",
        "one alone, %",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}

#[test]
fn live_tables_come_before_the_report() {
    let args = ["--seconds", "2", "--budget", "4MiB"];
    let print =
        |more: &[&str]| String::from_utf8(run(&[&args[..], more].concat()).stdout).expect("text");
    let text = print(&[]);
    let (live, report) = text
        .split_once("ok: 54 groups")
        .expect("the report's first line");
    assert!(
        live.starts_with("53 tenants under 4 MiB: a warm-up, then 2 s.\n"),
        "{live}"
    );
    assert!(
        live.contains("Live, after ") && live.contains("the service "),
        "{live}"
    );
    assert_eq!(
        report
            .lines()
            .filter(|line| line.starts_with("cluster"))
            .count(),
        10,
        "{report}"
    );
    assert!(
        report
            .trim_end()
            .ends_with("and 43 tenants that hold less (--all)"),
        "{report}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let all = print(&["--quiet", "--all"]);
    assert!(
        !all.contains("Live")
            && all
                .lines()
                .filter(|line| line.starts_with("cluster"))
                .count()
                == 53,
        "{all}"
    );
}

#[test]
fn a_chart_is_written() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let picture = folder.join("tenants.svg");
    let nowhere = folder.join("no/such/folder.svg");
    let named = |path: &PathBuf| path.to_str().expect("a name").to_owned();
    job(&[&SMALL[..], &["--svg", &named(&picture)]].concat());
    let svg = std::fs::read_to_string(&picture).expect("a picture");
    assert!(
        svg.starts_with("<svg")
            && svg.contains("53 tenants under one limit of 1 MiB")
            && svg.contains("46 others")
    );
    let output = run(&["--svg", &named(&nowhere)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("folder.svg: cannot write it: "),
        "{said}"
    );
    assert_eq!((output.stdout.len(), said.lines().count()), (0, 1));
}

#[test]
fn bad_arguments_are_named() {
    for (args, words) in [
        (
            ["--budget", "64mb"],
            "\"64mb\" is no size: unknown unit at byte 2; expected 4096, 64KiB, 1.5GiB or 64MB",
        ),
        (["--budget", "0"], "expected more than 0 bytes"),
        (["--requests", "0"], "0 is not in 1.."),
        (["--threads", "0"], "number would be zero"),
        (["--seconds", "0"], "expected more than 0 seconds"),
        (["--seconds", "1e99"], "expected more than 0 seconds"),
        (["--seconds", "soon"], "expected a number of seconds"),
        (
            ["--policy", "fair"],
            "possible values: shared, static, shares, memcg",
        ),
        (["--low", "101"], "101 is not in 0..=100"),
        (["--noisy", "0"], "0 is not in 1..=1000"),
        (["--compare", "--seconds=1"], "cannot be used with"),
        (["--compare", "--policy=shared"], "cannot be used with"),
    ] {
        let output = run(&args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(words), "{words:?} is not in {stderr}");
    }
    if cfg!(target_os = "linux") {
        let output = run(&["--budget", "8PiB"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.starts_with(
                "tenants: the tenants would fill a budget of 8 PiB, and the machine has "
            ),
            "{said}"
        );
    }
}
