//! The policies: the same requests under each, none above the limit, and what the comparison prints.

use serde_json::{Value, json};

use super::{Folder, number, report, run, tenants, trace};

const POLICIES: [&str; 4] = ["shared", "static", "memcg", "waiting"];

/// Small enough for a debug build, large enough for every tenant to be asked.
const SMALL: [&str; 6] = ["--budget", "1MiB", "--batch", "1K", "--requests", "6000"];

pub(crate) fn under(policy: &str, more: &[&str]) -> Value {
    report(&[&SMALL[..], &["--policy", policy], more].concat(), &[])
}

/// A comparison that holds.
fn comparison(more: &[&str]) -> Value {
    let output = run(&[&SMALL[..], &["--compare", "--format", "json"], more].concat(), &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "");
    serde_json::from_slice(&output.stdout).expect("a JSON comparison")
}

#[test]
fn requests_are_the_same_under_each_policy() {
    let requests = |policy, threads| -> Vec<_> {
        let report = under(policy, &["--noisy", "2", "--threads", threads]);
        assert_eq!(report["policy"], policy);
        flood(&report);
        tenants(&report).iter().map(|tenant| (tenant["requests"].clone(), tenant["digest"].clone())).collect()
    };
    let expected = requests("memcg", "1");
    for policy in POLICIES {
        assert_eq!(requests(policy, "2"), expected, "{policy}");
    }
}

/// Two that flood stand behind the others, ask far more often, and never hit.
fn flood(report: &Value) {
    let (calm, noisy) = tenants(report).split_at(53);
    assert_eq!(noisy.iter().map(|tenant| &tenant["tenant"]).collect::<Vec<_>>(), ["noisy1", "noisy2"]);
    assert!(noisy.iter().all(|tenant| tenant["hits"] == 0), "each key is for the first time");
    let sum = |tenants: &[Value]| tenants.iter().map(|tenant| number(&tenant["requests"])).sum::<u64>();
    assert!(sum(noisy) > 10 * sum(calm), "{} beside {}", sum(noisy), sum(calm));
}

#[test]
fn static_tenants_are_held_to_their_shares() {
    let report = under("static", &[]);
    for tenant in tenants(&report) {
        assert_eq!(tenant["max"], tenant["fair_share"]);
        assert_eq!(tenant["evicted_for_others"], 0, "no tenant gives to others");
    }
}

#[test]
fn shared_tenants_have_no_max_and_take_from_each_other() {
    let report = under("shared", &[]);
    assert!(tenants(&report).iter().all(|tenant| tenant["max"].is_null()));
    assert!(tenants(&report).iter().any(|tenant| number(&tenant["evicted"]) > 0));
}

#[test]
fn comparison_has_a_row_for_each_policy() {
    let comparison = comparison(&[]);
    let rows = comparison["rows"].as_array().expect("rows");
    let how: Vec<_> = rows.iter().map(|row| &row["how"]).collect();
    assert_eq!(how, ["alone", "shared", "static", "memcg", "waiting"]);
    assert_eq!(comparison["faults"], json!([]));
    for (row, repeats) in rows.iter().zip([0, 3, 3, 3, 3]) {
        let figures = |figure: &str| row[figure].as_array().expect("a figure for each repeat").clone();
        assert_eq!(figures("hit_ratio").len(), 3);
        for figure in ["lost", "lost_by_worst", "noisy_hit_ratio", "used_alone", "waited", "timed_out"] {
            assert_eq!(figures(figure).len(), repeats, "{figure}");
        }
        assert!(number(&row["peak_bytes"]) <= number(&comparison["budget_bytes"]), "{row}");
    }

    let figure = |row: usize, figure: &str| rows[row][figure][1].as_f64().expect("the median");
    assert!(figure(0, "hit_ratio") > 95.0, "everything fits, and was filled before");
    assert!(figure(1, "lost") > 5.0 + figure(3, "lost"), "memcg protects, shared does not");
    assert!(figure(1, "lost") > 5.0 + figure(4, "lost"), "and so does memcg where charges wait");
    assert_eq!([1, 2, 3].map(|row| figure(row, "waited")), [0.0; 3]);
    assert!(figure(4, "waited") > 0.0 && figure(4, "wait_p99_us") >= figure(4, "wait_p50_us"));
    assert!(figure(2, "used_alone") < 50.0, "a split is not borrowed");
    assert!(figure(3, "used_alone") > 90.0, "under memcg it is");
    assert_eq!(comparison["goals"].as_array().map(Vec::len), Some(3));
}

#[test]
fn comparison_is_one_table() {
    let folder = Folder::new("compare");
    // A loop over more than the budget is a miss each time, alone, too.
    let path = folder.file("loop.csv", trace((0..30).map(|key| (key, 10_000))));
    let args = ["--compare", "--budget", "128K", "--batch", "1K", "--requests", "3000", "--noisy", "3"];
    let output = run(&args, &[&path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let table = text.split("\n\n").find(|part| part.starts_with("policy")).expect("a table");
    let names: Vec<_> = table.lines().filter(|line| line.starts_with(char::is_alphabetic)).collect();
    let names: Vec<_> = names.into_iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["policy", "alone", "shared", "static", "memcg", "waiting"], "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for words in ["Tenants: 1, whose", "that flood: 3.", "One alone: live", ": 0.00, ok", "of the budget of 128 KiB"] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}
