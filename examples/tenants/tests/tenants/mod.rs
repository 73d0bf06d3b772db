//! The example `tenants`, run as its users run it: what it prints, and how it takes bad input.
#[path = "../../agree.rs"]
mod agree;
#[path = "../../control_group.rs"]
#[expect(dead_code, reason = "made for the example")]
mod control_group;
#[path = "../../entry.rs"]
#[expect(dead_code, reason = "made for the example")]
mod entry;
#[path = "../../hierarchy.rs"]
mod hierarchy;
#[path = "../../items.rs"]
#[expect(dead_code, reason = "made for the example")]
mod items;
#[path = "../../lru.rs"]
mod lru;
#[path = "../../shelf.rs"]
#[expect(dead_code, reason = "made for the example")]
mod shelf;

#[path = "../../waits.rs"]
mod waits;

mod bad_input;
mod clusters;
mod control_groups;
mod hierarchies;
mod kills;
mod looks;
mod policies;
mod reclaimers;
mod statistics;
mod traces;
mod waiting;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::program;

/// A folder of this test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tenants-{test}-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a folder for the traces");
        Self(path)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("a trace");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that is left behind lies in the target folder and hurts no tenant.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| program::program("tenants"))
}

fn run(args: &[&str], traces: &[&Path]) -> Output {
    let mut command = Command::new(program());
    command.args(args);
    for trace in traces {
        command.arg("--trace").arg(trace);
    }
    command.output().expect("the example starts")
}

/// Runs to a report that holds.
fn report(args: &[&str], traces: &[&Path]) -> Value {
    let output = run(&[&["--format", "json"], args].concat(), traces);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    // Stderr is no terminal here: no progress bar, nothing to complain about.
    assert_eq!(stderr, "");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a JSON report");
    check(&report);
    report
}

/// Checks the fields of every report.
fn check(report: &Value) {
    let tenants = tenants(report);
    let sum = |field: &str| tenants.iter().map(|tenant| number(&tenant[field])).sum::<u64>();
    assert_eq!(report["verify_ok"], true);
    assert_eq!(report["faults"], Value::Array(Vec::new()));
    assert_eq!(number(&report["max_budget_excess_bytes"]), 0);
    for figure in ["seconds", "requests_per_second", "charge_ns_stock", "charge_ns_no_stock"] {
        assert!(report[figure].as_f64() > Some(0.0), "{figure}: {}", report[figure]);
    }
    assert_eq!(sum("live"), number(&report["live_bytes"]));
    assert_eq!(number(&report["live_bytes"]) + number(&report["stocked_bytes"]), number(&report["usage_bytes"]));
    assert!(number(&report["usage_bytes"]) <= number(&report["peak_bytes"]));
    assert!(number(&report["peak_bytes"]) <= number(&report["budget_bytes"]));
    for field in [
        "requests",
        "hits",
        "met_max",
        "refused",
        "waited",
        "timed_out",
        "delayed",
        "evicted",
        "evicted_for_others",
        "too_large",
        "passed_through",
    ] {
        assert_eq!(sum(field), number(&report[field]), "{field}");
    }
    assert!(number(&report["samples"]) > 0);
    assert!(["drains", "barriers"].iter().all(|figure| report[figure].is_u64()));
    if cfg!(target_os = "linux") {
        assert!(number(&report["rss_bytes"]) > number(&report["live_bytes"]));
    }
    check_statistics(report);
    for tenant in tenants {
        let ratio = number(&tenant["hits"]) as f64 / number(&tenant["gets"]).max(1) as f64;
        assert_eq!(tenant["hit_ratio"].as_f64(), Some(ratio));
        assert_eq!(tenant["live"], tenant["cache_bytes"]);
        assert!(number(&tenant["live"]) <= number(&tenant["peak"]));
        assert!(number(&tenant["peak"]) <= tenant["max"].as_u64().unwrap_or(u64::MAX));
    }
}

/// The statistics are what the service has counted itself, and live ones were where they said.
fn check_statistics(report: &Value) {
    let (statistics, tenants) = (&report["statistics"], tenants(report));
    let pairs = [("cached_bytes", "cache_bytes"), ("gets", "gets"), ("hits", "hits"), ("evictions", "evicted")];
    for (item, own) in pairs {
        assert!(tenants.iter().all(|tenant| tenant["statistics"][item] == tenant[own]), "{item}");
        let sum = tenants.iter().map(|tenant| number(&tenant[own])).sum::<u64>();
        assert_eq!(number(&statistics[item]), sum, "{item}");
    }
    // Every group at every look, and once more at the end; of every tenant and of the root; empty ones.
    let groups = tenants.len() as u64 + 1;
    assert!(number(&statistics["looks"]) > 0);
    assert!(number(&statistics["figures"]) > number(&statistics["looks"]) * groups * 3);
    assert_eq!(number(&statistics["exact"]), groups * 5);
    assert_eq!(["beyond", "unequal"].map(|figure| number(&statistics[figure])), [0, 0]);
    assert!(number(&statistics["largest_error"]) <= number(&statistics["its_bound"]));
}

fn tenants(report: &Value) -> &[Value] {
    report["tenants"].as_array().expect("a list of tenants")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

/// The figures of one tenant: hits, live, evicted, too large.
fn figures(report: &Value, tenant: usize) -> [u64; 4] {
    ["hits", "live", "evicted", "too_large"].map(|field| number(&report["tenants"][tenant][field]))
}

/// The charge of an entry of so many bytes: a run with it alone tells.
fn cost(size: u64) -> u64 {
    let folder = Folder::new("cost");
    let path = folder.file("t.csv", trace([(1, size)]));
    let live = number(&report(&[], &[&path])["live_bytes"]);
    assert!(live > size, "an entry is more than its bytes");
    live
}

/// Runs to a message, and returns it without the program's name.
fn refusal(args: &[&str], traces: &[&Path]) -> String {
    let output = run(args, traces);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty(), "no report beside {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr.trim_end().strip_prefix("tenants: ").expect("the program's name").to_string()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

fn trace(requests: impl IntoIterator<Item = (u64, u64)>) -> String {
    let lines = requests.into_iter().map(|(key, size)| format!("{key},{size}\n"));
    std::iter::once("key,size\n".to_string()).chain(lines).collect()
}

/// The folder of the production data, if `MEMCG_TRACES` names one.
fn folder_of_traces() -> Option<PathBuf> {
    let folder = std::env::var_os("MEMCG_TRACES").map(PathBuf::from);
    if folder.is_none() {
        println!("MEMCG_TRACES names no folder of traces: skipped");
    }
    folder
}
