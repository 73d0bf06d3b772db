//! The load of the clusters: all of it counted, every limit met, the same each time.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::{folder_of_traces, number, report, tenants};

#[test]
fn clusters_add_up() {
    let report = report(&["--requests", "30000", "--budget", "8MiB", "--batch", "64K"], &[]);
    assert_eq!(tenants(&report).len(), 53);
    assert_eq!(report["left_out"], json!(["cluster05"]), "the one without figures is named, not served");
    assert!(tenants(&report).iter().all(|tenant| tenant["tenant"] != "cluster05"));
    assert_eq!(number(&report["requests"]), 30_000);
    for figure in ["hits", "met_max", "met_budget", "evicted", "evicted_for_others"] {
        assert!(number(&report[figure]) > 0, "no {figure}: a budget that no tenant feels");
    }
    assert_eq!(report["audited"], true);
}

#[test]
fn clusters_are_asked_as_often_as_they_are_in_production() {
    let report = report(&["--requests", "200000", "--budget", "1MiB"], &[]);
    // Thousands of requests per second, of 377.96 together.
    for (name, rate) in [("cluster18", 26.40), ("cluster52", 24.25), ("cluster01", 11.40), ("cluster03", 1.36)] {
        let tenant = tenants(&report).iter().find(|tenant| tenant["tenant"] == name).expect(name);
        let expected = 200_000.0 * rate / 377.96;
        let off = number(&tenant["requests"]) as f64 - expected;
        // Five standard deviations.
        assert!(off.abs() < 5.0 * f64::sqrt(expected), "{name}: {off:+} of {expected}");
    }
}

/// At the full budget: what the main job shows, but for its length.
#[test]
fn every_limit_is_met() {
    let report = report(&["--seconds", "0.3"], &[]);
    assert_eq!(report["unmet"], json!([]));
    for tenant in tenants(&report) {
        assert!(number(&tenant["met_max"]) > 0, "{tenant}");
        assert!(number(&tenant["peak"]) > number(&tenant["max"]) / 4 * 3, "{tenant}");
    }
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        let growth = number(&report["rss_bytes"]) - number(&report["rss_before_bytes"]);
        let ratio = growth as f64 / number(&report["live_bytes"]) as f64;
        assert!((0.85..1.15).contains(&ratio), "resident memory grew by {ratio} of what is charged");
    }
    // Their ratio is the machine's matter, and that of the other programs on it.
    for figure in ["charge_ns_stock", "charge_ns_no_stock"] {
        assert!(report[figure].as_f64().is_some_and(|ns| ns > 0.0), "{figure}: {}", report[figure]);
    }
}

#[test]
fn without_stock_nothing_is_stocked() {
    let args = ["--requests", "20000", "--budget", "16MiB"];
    let with = report(&[&args[..], &["--batch", "4K"]].concat(), &[]);
    let without = report(&[&args[..], &["--no-stock"]].concat(), &[]);
    assert_eq!(["batch_bytes", "stocked_bytes", "drains"].map(|figure| number(&without[figure])), [0; 3]);
    assert!(number(&with["drains"]) > 0, "a budget that is met takes the credit back");
}

#[test]
fn one_thread_and_one_seed_give_one_result() {
    let run = |seed| {
        let args = ["--requests", "20000", "--budget", "8MiB", "--threads", "1", "--seed", seed];
        report(&args, &[])["tenants"].clone()
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

/// A warm-up offers entries that no request has asked for: what became of those is in no figure of requests.
#[test]
fn what_is_too_large_is_a_request() {
    let report = report(&["--seconds", "0.3", "--budget", "1KiB"], &[]);
    assert!(number(&report["too_large"]) > 0, "{}", report["too_large"]);
    for row in tenants(&report).iter().chain([&report]) {
        let [kept_out, requests] = [["too_large", "passed_through"], ["requests", "hits"]]
            .map(|[one, other]| [number(&row[one]), number(&row[other])]);
        assert!(kept_out[0] + kept_out[1] <= requests[0] - requests[1], "{row}");
    }
}

#[test]
fn time_ends_a_run() {
    let report = report(&["--seconds", "0.2", "--budget", "1MiB", "--requests", "18446744073709551615"], &[]);
    let seconds = report["seconds"].as_f64().expect("a number");
    assert!((0.05..5.0).contains(&seconds), "{seconds} s");
}

/// The table in the example is the published one, line by line.
#[test]
fn clusters_are_as_published() {
    let Some(folder) = folder_of_traces() else { return };
    let published = fs::read_to_string(folder.join("twitter-clusters.csv")).expect("the clusters beside the traces");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clusters.rs");
    let table = fs::read_to_string(source).expect("the example's source");
    let table: Vec<_> = table.lines().filter(|line| line.starts_with("    cluster(")).collect();
    let published = published.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    let expected: Vec<_> = published.filter(|line| !line.starts_with("5,")).map(line_of_table).collect();
    assert_eq!(table, expected);
}

/// A line of the published table as the example writes it.
fn line_of_table(line: &str) -> String {
    let fields: Vec<_> = line.splitn(8, ',').collect();
    let [number, _, key, value, rate, alpha, working_set, operations] = fields[..] else { panic!("{line}") };
    let alpha = match alpha {
        "NA" | "0" => "0.0",
        alpha => alpha,
    };
    format!("    cluster({number}, {key}, {value}, {rate}, {alpha}, {working_set}, {operations}),")
}
