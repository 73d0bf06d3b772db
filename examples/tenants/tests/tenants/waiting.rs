//! Requests that wait for room, and tenants that are slowed down above high.

use std::time::Duration;

use serde_json::Value;

use super::policies::under;
use super::waits::Waits;
use super::{number, tenants};

/// Long enough for any machine.
const LONG: [&str; 4] = ["--noisy", "1", "--wait", "60s"];

#[test]
fn requests_wait_until_room_is_made() {
    let report = under("waiting", &LONG);
    assert_eq!(report["wait"], "wait(1m)");
    for figure in ["waited", "evicted", "evicted_for_others", "met_budget"] {
        assert!(number(&report[figure]) > 0, "no {figure}");
    }
    assert_eq!(["timed_out", "passed_through"].map(|figure| number(&report[figure])), [0; 2]);
    assert_eq!(report["refused"], report["waited"], "each was refused once, then admitted");
    let times = ["p50_us", "p99_us", "max_us"].map(|time| report["wait_times"][time].as_f64().expect("a time"));
    assert!(0.0 < times[0] && times[0] <= times[1] && times[1] <= times[2], "{times:?}");
}

#[test]
fn no_tenant_waits_where_others_are_asked() {
    let report = under("memcg", &["--noisy", "1"]);
    assert_eq!((number(&report["waited"]), &report["wait"], &report["wait_times"]), (0, &Value::Null, &Value::Null));
}

/// No tenant makes room within a nanosecond; a request that lets others pass has had its time as well.
#[test]
fn request_that_waited_in_vain_passes_through() {
    let report = under("waiting", &["--noisy", "1", "--wait", "1ns"]);
    let [waited, timed_out] = ["waited", "timed_out"].map(|figure| number(&report[figure]));
    assert!(0 < timed_out && timed_out <= waited, "{timed_out} of {waited}");
    assert_eq!(report["passed_through"], report["timed_out"]);
    assert_eq!(number(&report["refused"]), waited + timed_out, "once before the wait, and once after it");
}

/// Requests wait at the max of their own tenant, too; no other tenant gives anything then.
#[test]
fn room_below_a_tenants_own_max_is_made_by_that_tenant() {
    let report = under("waiting", &["--wait", "60s"]);
    assert!(number(&report["met_max"]) > 0 && number(&report["waited"]) > 0);
    let alone = tenants(&report).iter().filter(|tenant| {
        let [met, evicted, for_others] =
            ["met_max", "evicted", "evicted_for_others"].map(|figure| number(&tenant[figure]));
        met > 0 && evicted > for_others
    });
    assert!(alone.count() > 0, "tenants at their max evict for themselves");
    assert_eq!(number(&report["passed_through"]), 0);
}

#[test]
fn tenant_above_high_gives_of_its_own() {
    let args = ["--noisy", "1", "--high", "100%"];
    let report = under("memcg", &args);
    assert!(number(&report["above_high"]) > 0);
    assert_eq!(number(&report["evicted_for_others"]), 0, "no tenant takes from others: the budget is never met");
    let flood = tenants(&report).last().expect("tenants");
    assert!(number(&flood["evicted"]) > 0 && number(&flood["live"]) <= number(&flood["fair_share"]));
    assert_eq!(number(&under("memcg", &args[..2])["above_high"]), 0);
}

#[test]
fn waits_are_counted_with_their_times() {
    let mut waits = Waits::default();
    assert!(waits.times().is_none(), "no tenant waited");
    for millis in 1..=100 {
        waits.add(Duration::from_millis(millis), millis > 98);
    }
    let mut all = Waits::default();
    all.add(Duration::from_secs(3_600), true);
    all.append(&waits);
    assert_eq!((all.waited(), all.timed_out()), (101, 3));
    let times = all.times().expect("waits");
    for (found, expected) in [(times.p50_us, 51e3), (times.p99_us, 100e3), (times.max_us, 3.6e9)] {
        assert!((found / expected - 1.0).abs() < 0.002, "{found} where {expected} is near enough");
    }
    assert_eq!(waits.times().expect("waits").to_string(), "50.0ms, 99.0ms, 100.0ms");
}
