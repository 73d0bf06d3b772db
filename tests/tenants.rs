//! The example `tenants`, run as its users run it: what it prints, and how it takes bad input.
#![cfg(not(loom))]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

/// A folder of this test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tenants-{test}-{}", std::process::id()));
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
        // What is left behind lies in the target folder and hurts nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where cargo puts examples: beside the folder of this test's own program.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().expect("the path of this test");
        let profile = test.parent().and_then(Path::parent).expect("a profile folder");
        let program = profile.join("examples").join(format!("tenants{}", std::env::consts::EXE_SUFFIX));
        if !program.exists() {
            // `cargo test` builds the examples, `cargo test --test tenants` does not.
            build(profile);
        }
        assert!(program.exists(), "no example at {}", program.display());
        program
    })
}

fn build(profile: &Path) {
    let name = profile.file_name().expect("target/<profile>").to_str().expect("a profile's name");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--example", "tenants", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .args(["--profile", if name == "debug" { "dev" } else { name }, "--target-dir"])
        .arg(profile.parent().expect("a target folder"))
        .status();
    assert!(status.expect("cargo runs").success());
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

/// What every report must say.
fn check(report: &Value) {
    let totals = &report["totals"];
    let tenants = report["tenants"].as_array().expect("a list of tenants");
    let sum = |field: &str| tenants.iter().map(|tenant| number(&tenant[field])).sum::<u64>();
    assert_eq!(totals["verify_ok"], true);
    assert_eq!(report["faults"], Value::Array(Vec::new()));
    assert!(totals["requests_per_second"].as_f64() > Some(0.0));
    assert_eq!(sum("live"), number(&totals["live"]));
    assert_eq!(number(&totals["live"]) + number(&totals["stocked"]), number(&totals["usage"]));
    assert!(number(&totals["usage"]) <= number(&totals["peak"]));
    assert!(number(&totals["peak"]) <= number(&totals["budget"]));
    for field in ["requests", "hits", "refused", "evicted", "passed_through"] {
        assert_eq!(sum(field), number(&totals[field]), "{field}");
    }
    for tenant in tenants {
        let ratio = number(&tenant["hits"]) as f64 / number(&tenant["requests"]) as f64;
        assert_eq!(tenant["hit_ratio"].as_f64(), Some(ratio));
        assert!(number(&tenant["live"]) <= number(&tenant["peak"]));
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

/// The figures of one tenant: hits, live, refused, evicted, passed through.
fn figures(report: &Value, tenant: usize) -> [u64; 5] {
    ["hits", "live", "refused", "evicted", "passed_through"].map(|field| number(&report["tenants"][tenant][field]))
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

#[test]
fn generated_load_adds_up() {
    let report = report(&["--requests", "3000", "--budget", "4MiB", "--batch", "64K"], &[]);
    assert_eq!(number(&report["totals"]["requests"]), 5 * 3_000);
    assert!(number(&report["totals"]["hits"]) > 0);
    assert!(number(&report["totals"]["refused"]) > 0, "a budget that nobody feels");
    assert_eq!(report["totals"]["audited"], true);
}

#[test]
fn one_thread_and_one_seed_give_one_result() {
    let run = |seed| {
        let args = ["--requests", "2000", "--budget", "2MiB", "--threads", "1", "--seed", seed];
        report(&args, &[])["tenants"].clone()
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn oldest_entry_goes_for_a_new_one() {
    let folder = Folder::new("oldest");
    // Room for three: the hit on 1 keeps it, so 2 goes for 4, then 2 is a miss and 3 goes.
    let requests = [(1, 10), (2, 10), (3, 10), (1, 10), (4, 10), (2, 10), (1, 10)];
    let path = folder.file("t.csv", trace(requests));
    for stock in [&["--no-stock"][..], &["--batch", "8B"], &["--batch", "64KiB"]] {
        let report = report(&[&["--budget", "30B"], stock].concat(), &[&path]);
        assert_eq!(figures(&report, 0), [2, 30, 2, 2, 0], "{stock:?}");
    }
}

#[test]
fn entry_that_can_never_fit_passes_through_and_evicts_nothing() {
    let folder = Folder::new("never");
    let path = folder.file("t.csv", trace([(1, 10), (2, 31), (1, 10), (3, u64::MAX), (1, 10)]));
    assert_eq!(figures(&report(&["--budget", "30B"], &[&path]), 0), [2, 10, 0, 0, 2]);
    assert_eq!(figures(&report(&["--budget", "0"], &[&path]), 0), [0, 0, 0, 0, 5]);
}

#[test]
fn entry_that_the_others_leave_no_room_for_passes_through() {
    let folder = Folder::new("no-room");
    let (first, second) = (folder.file("a.csv", trace([(1, 30)])), folder.file("b.csv", trace([(1, 20)])));
    let report = report(&["--budget", "30B", "--threads", "1"], &[&first, &second]);
    assert_eq!(figures(&report, 0), [0, 30, 0, 0, 0]);
    assert_eq!(figures(&report, 1), [0, 0, 1, 0, 1]);
}

#[test]
fn entry_with_a_new_size_replaces_the_old_one() {
    let folder = Folder::new("replaced");
    let path = folder.file("t.csv", trace([(1, 10), (1, 25), (1, 25)]));
    assert_eq!(figures(&report(&["--budget", "30B"], &[&path]), 0), [1, 25, 0, 0, 0]);
}

#[test]
fn tenant_max_holds_below_the_budget() {
    let folder = Folder::new("tenant-max");
    let path = folder.file("t.csv", trace((0..50).map(|key| (key, 1_000))));
    for max in ["25%", "10_000"] {
        let report = report(&["--budget", "40000", "--tenant-max", max], &[&path, &path]);
        for tenant in 0..2 {
            assert_eq!(number(&report["tenants"][tenant]["live"]), 10_000);
            assert!(number(&report["tenants"][tenant]["peak"]) <= 10_000);
        }
    }
}

#[test]
fn gzip_is_seen_in_the_bytes_and_not_in_the_name() {
    let folder = Folder::new("gzip");
    let text = trace((0..2_000).map(|i| (i * i % 97, 100 + i * i % 97)));
    let plain = folder.file("plain.csv.gz", &text);
    let packed = folder.file("packed.csv", gzip(&text));
    // Two members one after the other are one file.
    let members = folder.file("members", [gzip(&text[..700]), gzip(&text[700..])].concat());

    let args = ["--threads", "1", "--budget", "4000", "--no-stock"];
    let results = [&plain, &packed, &members].map(|path| figures(&report(&args, &[path]), 0));
    assert!(results[0][0] > 0 && results[0][3] > 0);
    assert_eq!(results, [results[0]; 3]);
}

#[test]
fn tenants_are_named_after_their_files() {
    let folder = Folder::new("names");
    let text = trace([(1, 1)]);
    let (first, second) = (folder.file("a.csv.gz", &text), folder.file("b.csv", &text));
    let report = report(&["--threads", "9"], &[&first, &second, &first, &first]);
    let names: Vec<_> = (0..4).map(|tenant| report["tenants"][tenant]["name"].as_str()).collect();
    assert_eq!(names, [Some("a"), Some("b"), Some("a#2"), Some("a#3")]);
    assert_eq!(report["totals"]["threads"], 4);
}

#[test]
fn requests_cap_each_tenant() {
    let folder = Folder::new("cap");
    // A bad line behind the cap is not read.
    let path = folder.file("t.csv", trace((0..10).map(|key| (key, 1))) + "bad\n");
    let report = report(&["--requests", "10"], &[&path, &path]);
    assert_eq!(number(&report["totals"]["requests"]), 20);
}

#[test]
fn blank_lines_and_line_ends_do_not_matter() {
    let folder = Folder::new("blank");
    let path = folder.file("t.csv", "key,size\r\n\r\n 1 , 5 \r\n\n1,5");
    assert_eq!(figures(&report(&[], &[&path]), 0), [1, 5, 0, 0, 0]);
}

#[test]
fn table_shows_every_tenant_and_the_verdict() {
    let folder = Folder::new("table");
    let path = folder.file("shop.csv", trace([(1, 2 << 20), (1, 2 << 20)]));
    let output = run(&["--no-stock", "--audit", "false"], &[&path]);
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).expect("text");
    for word in ["shop", "0.5000", "2 MiB", "256 MiB", "ok, without audit"] {
        assert!(table.contains(word), "{word:?} is not in\n{table}");
    }
}

#[test]
fn bad_traces_are_named_with_file_and_line() {
    let folder = Folder::new("bad");
    let missing = folder.0.join("missing.csv");
    assert!(
        refusal(&[], &[&missing]).starts_with(&format!("{}:1: cannot read the trace: ", missing.display())),
        "the system's own words follow"
    );

    let long_line = format!("key,size\n{}", "7".repeat(10_000));
    let cases: [(&str, &[u8], u64, &str); 13] = [
        ("empty.csv", b"", 1, "the file is empty, expected the head line `key,size`"),
        ("blank.csv", b"\n\n", 1, "the file is empty, expected the head line `key,size`"),
        ("head.csv", b"key,size\n", 2, "no request follows the head line"),
        ("wrong.csv", b"id,bytes\n1,2\n", 1, "head line \"id,bytes\" where `key,size` is expected"),
        ("headless.csv", b"1,2\n", 1, "head line \"1,2\" where `key,size` is expected"),
        ("binary.csv", b"\x7fELF\xff\0", 1, "head line \"\\u{7f}ELF\u{fffd}\\0\" where `key,size` is expected"),
        ("word.csv", b"key,size\n1,2\n2,two\n", 3, "size \"two\" is no whole number of 64 bits"),
        ("sign.csv", b"key,size\n-1,2\n", 2, "key \"-1\" is no whole number of 64 bits"),
        (
            "huge.csv",
            b"key,size\n1,18446744073709551616\n",
            2,
            "size \"18446744073709551616\" is no whole number of 64 bits",
        ),
        ("zero.csv", b"key,size\r\n1,2\r\n\r\n2,0\r\n", 4, "size 0, an entry has at least one byte"),
        ("short.csv", b"key,size\n1,2\n3\n", 3, "expected the two fields `key,size`, found 1"),
        ("wide.csv", b"key,size\n1,2,3\n", 2, "expected the two fields `key,size`, found 3"),
        ("long.csv", long_line.as_bytes(), 2, "expected the two fields `key,size`, found 1"),
    ];
    for (name, bytes, line, fault) in cases {
        let path = folder.file(name, bytes);
        assert_eq!(refusal(&[], &[&path]), format!("{}:{line}: {fault}", path.display()));
        // Behind a good trace, and packed, it is the same fault.
        let good = folder.file("good.csv", trace([(1, 1)]));
        let packed = folder.file("packed", gzip(&String::from_utf8_lossy(bytes)));
        assert_eq!(refusal(&[], &[&good, &packed]), format!("{}:{line}: {fault}", packed.display()));
    }
}

#[test]
fn damaged_gzip_is_named_with_file_and_line() {
    let folder = Folder::new("damaged");
    let whole = gzip(&trace((0..5_000).map(|key| (key, 1 + key * key % 1_009))));
    let cut = folder.file("cut.csv.gz", &whole[..whole.len() / 2]);
    let fake = folder.file("fake.csv.gz", b"\x1f\x8bnothing of the kind");
    for path in [cut, fake] {
        let message = refusal(&[], &[&path]);
        let rest = message.strip_prefix(&format!("{}:", path.display())).expect("the file");
        let (line, fault) = rest.split_once(": ").expect("the line");
        assert!(line.parse::<u64>().is_ok_and(|line| line >= 1), "{message}");
        assert!(fault.starts_with("cannot read the trace: "), "{message}");
    }
}

#[test]
fn bad_arguments_are_named() {
    for (args, words) in [
        (["--budget", "64MB"], "unknown unit (B, or K, M, G, T, P, E with or without iB) at byte 2"),
        (["--budget", "max"], "expected a digit at byte 0"),
        (["--tenant-max", "101%"], "percentage above 100 at byte 0"),
        (["--requests", "0"], "0 is not in 1.."),
        (["--threads", "0"], "number would be zero"),
        (["--format", "xml"], "possible values: table, json"),
    ] {
        let output = run(&args, &[]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(words), "{words:?} is not in {stderr}");
    }
}

/// The production traces, where `MEMCG_TRACES` names their folder.
#[test]
fn production_traces_add_up() {
    let Some(folder) = std::env::var_os("MEMCG_TRACES").map(PathBuf::from) else {
        println!("MEMCG_TRACES names no folder of traces: skipped");
        return;
    };
    let files = fs::read_dir(&folder).expect("the folder of MEMCG_TRACES");
    let mut traces: Vec<_> = files.map(|file| file.expect("listed").path()).collect();
    traces.retain(|path| path.to_string_lossy().ends_with(".csv.gz"));
    assert!(!traces.is_empty(), "no trace in {}", folder.display());
    let traces: Vec<&Path> = traces.iter().map(PathBuf::as_path).collect();
    for stock in [&["--no-stock"][..], &[]] {
        report(&[&["--requests", "30000", "--budget", "32MiB"], stock].concat(), &traces);
    }
}
