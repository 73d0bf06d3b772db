//! The statistics of the tenants: what the example finds of figures that do not agree, and what it shows.

use memcg::{Freshness, Limits, Runtime, Stat};
use serde_json::Value;

use super::agree::{Agreement, Reading};
use super::{Folder, number, report, run, trace};

fn agreement(readings: &[Reading]) -> Agreement {
    let mut agreement = Agreement::default();
    readings.iter().for_each(|&reading| agreement.live("shop", "hits", reading));
    agreement
}

const READING: Reading = Reading { before: 100, live: 90, max_error: 10, after: 120 };

#[test]
fn live_figure_within_its_bound_agrees() {
    let readings = [
        READING,
        Reading { live: 100, ..READING },
        Reading { live: 110, max_error: 0, ..READING },
        Reading { live: 130, ..READING },
        Reading { before: -7, live: -8, max_error: 1, after: -7 },
    ];
    let agreement = agreement(&readings);
    assert_eq!(agreement.faults(), [""; 0]);
    assert_eq!((agreement.figures, agreement.off, agreement.beyond), (5, 3, 0));
    assert_eq!((agreement.largest_error, agreement.its_bound), (10, 10));
    assert_eq!(agreement.nearest, "shop, hits");
}

#[test]
fn live_figure_beyond_its_bound_is_a_fault() {
    for (reading, fault) in [
        (Reading { live: 89, ..READING }, "89 with 100 before and 120 after, off by 11, where 10 are stated"),
        (Reading { live: 131, ..READING }, "131 with 100 before and 120 after, off by 11, where 10 are stated"),
        (
            Reading { live: 99, max_error: 0, ..READING },
            "99 with 100 before and 120 after, off by 1, where 0 are stated",
        ),
        (
            Reading { live: i64::MIN, max_error: u64::MAX >> 2, ..READING },
            "-9223372036854775808 with 100 before and 120 after, off by 9223372036854775807, where \
             4611686018427387903 are stated",
        ),
    ] {
        let agreement = agreement(&[READING, reading]);
        assert_eq!(agreement.faults(), [format!("shop, hits live: {fault}")]);
        assert_eq!(agreement.beyond, 1);
    }
}

#[test]
fn exact_read_that_misses_something_is_a_fault() {
    let fault = "shop, hits exactly: 99, and 100 had been counted before";
    assert_eq!(agreement(&[Reading { after: 99, ..READING }]).faults(), [fault]);
}

#[test]
fn exact_figures_agree_to_the_last_unit() {
    let mut agreement = Agreement::default();
    agreement.exact("shop", "hits", "its own count", 7, 7);
    assert_eq!(agreement.faults(), [""; 0]);
    agreement.exact("shop", "hits", "its own count", 7, 8);
    assert_eq!(agreement.faults(), ["shop, hits beside its own count: expected 7, found 8"]);
    assert_eq!((agreement.exact, agreement.unequal), (2, 1));
}

#[test]
fn many_faults_are_a_few_lines() {
    let faults = agreement(&[Reading { live: 0, ..READING }; 100]).faults();
    assert_eq!(faults.len(), 9);
    assert_eq!(faults[8], "statistics: 92 more figures that do not agree");
}

#[test]
fn largest_error_is_the_one_nearest_to_its_bound() {
    let readings = [(50, 100), (40, 50), (60, 1_000), (0, 0)];
    let readings = readings.map(|(error, max_error)| Reading { live: 100 - error, max_error, ..READING });
    let agreement = agreement(&readings);
    assert_eq!((agreement.largest_error, agreement.its_bound), (40, 50));
}

/// The figures are a real group's, but for one that is wrong.
#[test]
fn wrong_figure_of_a_group_is_found() {
    let runtime = Runtime::builder().stat_batch(64).build().expect("a runtime");
    let tenant = runtime.root().create("shop", Limits::new()).expect("a tenant");
    for _ in 0..1_000 {
        tenant.stat_add(Stat::WORKINGSET_REFAULT, 1);
    }
    let live = tenant.read(Freshness::Within(u64::MAX));
    let (before, after) = (1_000, tenant.read(Freshness::Exact).get(Stat::WORKINGSET_REFAULT));
    let max_error = live.max_error_of(Stat::WORKINGSET_REFAULT);
    let reading = Reading { before, live: live.get(Stat::WORKINGSET_REFAULT), max_error, after };

    let right = agreement(&[reading]);
    assert_eq!(right.faults(), [""; 0]);
    assert_eq!((right.off, right.largest_error, after), (1, 1_000, 1_000), "nothing was published");
    let wrong = before - max_error.cast_signed() - 1;
    assert_eq!(agreement(&[Reading { live: wrong, ..reading }]).faults().len(), 1);
}

#[test]
fn live_figures_are_read_while_they_are_off() {
    let report = report(&["--seconds", "1", "--budget", "16MiB", "--threads", "2"], &[]);
    let statistics = &report["statistics"];
    assert!(number(&statistics["off"]) > 0, "a tenant that reads exact figures finds every bound kept: {statistics}");
    assert!(statistics["nearest"].as_str().is_some_and(|nearest| !nearest.is_empty()));
}

#[test]
fn live_tables_come_before_the_report() {
    let args = ["--seconds", "1", "--budget", "4MiB", "--live", "0.1", "--details"];
    let print = |more: &[&str]| {
        let output = run(&[&args[..], more].concat(), &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "no bar where stderr is no terminal");
        String::from_utf8(output.stdout).expect("text")
    };
    let text = print(&[]);
    let tables = text.matches("Live, after ").count();
    // At 0.1, 0.2, 0.4 and 0.8 seconds, but for those that a busy machine is late for.
    assert!((1..=4).contains(&tables), "{text}");
    let (live, report) = text.split_once("ok: 54 groups").expect("the report's first line");
    assert_eq!(live.matches("off by at most").count(), tables);
    assert_eq!(live.matches("the service ").count(), tables);
    // Five tenants in each.
    assert_eq!(live.matches("cluster").count(), 5 * tables);
    assert!(report.contains("270 of 270 as counted"), "{report}");
    assert!(!print(&["--quiet"]).contains("Live"));
    let json: Value = serde_json::from_str(&print(&["--format", "json"])).expect("nothing but the report");
    assert_eq!(json["faults"], Value::Array(Vec::new()));
}

#[test]
fn statistics_of_a_trace_are_its_figures() {
    let folder = Folder::new("statistics");
    let path = folder.file("t.csv", trace([(1, 10), (2, 10), (1, 10), (3, 10), (1, 300)]));
    let statistics = &report(&[], &[&path])["tenants"][0]["statistics"];
    // The last one finds another size: a look-up, no hit.
    assert_eq!(["gets", "hits", "evictions"].map(|item| number(&statistics[item])), [5, 1, 0]);
}
