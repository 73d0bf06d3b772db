//! `--kill`: without a limit the system kills the service, with one it does not, and nothing is left behind.

use std::path::Path;

use serde_json::{Value, json};

use super::{Folder, number, refusal, run, trace};

/// Small enough for a debug build: control groups of 44 MiB.
const SMALL: [&str; 5] = ["--kill", "--budget", "8MiB", "--format", "json"];

/// The report, and the program's status; `None` where no control group can be made.
fn kill(more: &[&str]) -> Option<(Value, i32)> {
    let output = run(&[&SMALL[..], more].concat(), &[]);
    let (status, stderr) = (output.status.code(), String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {stderr}"));
    if let Some(reason) = report["skipped"].as_str() {
        println!("no control group can be made here, skipped: {reason}");
        assert_eq!((status, &report["forms"], &*stderr), (Some(0), &json!([]), ""));
        return None;
    }
    let faults = report["faults"].as_array().expect("a list of faults");
    let lines = faults.iter().map(|fault| format!("tenants: {}\n", fault.as_str().expect("a fault")));
    assert_eq!(stderr, lines.collect::<String>());
    for form in forms(&report) {
        let control_group = form["control_group"].as_str().expect("a path");
        assert!(!Path::new(control_group).exists(), "{control_group} is still there");
    }
    Some((report, status.expect("an exit status")))
}

fn forms(report: &Value) -> [&Value; 2] {
    let forms = report["forms"].as_array().expect("a list of forms");
    [("unlimited", 0), ("memcg", 1)].map(|(name, at)| {
        assert_eq!(forms[at]["form"], name);
        &forms[at]
    })
}

#[test]
fn service_without_a_limit_is_killed_and_ours_is_not() {
    let Some((report, status)) = kill(&[]) else { return };
    assert_eq!((status, &report["faults"]), (0, &json!([])));
    let (budget, limit) = (number(&report["budget_bytes"]), number(&report["control_group_bytes"]));
    assert!(limit > budget);
    let [unlimited, memcg] = forms(&report);
    assert_eq!([&unlimited["exit_status"], &memcg["exit_status"]], [137, 0]);
    let killed = [unlimited, memcg].map(|form| form["killed"].as_u64());
    assert!(killed == [Some(1), Some(0)] || killed == [None; 2], "{killed:?}");

    assert_eq!(memcg["requests"], report["requests"], "all are served");
    assert!(number(&unlimited["requests"]) < number(&report["requests"]));
    assert!((1..=budget).contains(&number(&memcg["live_bytes"])));
    assert!(number(&unlimited["live_bytes"]) <= limit, "bytes are charged before they are there, a block at most");
    if let [Some(unlimited), Some(memcg)] = [unlimited, memcg].map(|form| form["peak_bytes"].as_u64()) {
        assert!(memcg < limit && unlimited <= limit, "{memcg} and {unlimited} of {limit}");
        assert!(unlimited > limit / 8 * 7, "{unlimited} of {limit} when it was killed");
    }
}

#[test]
fn service_that_is_not_killed_without_a_limit_is_a_fault() {
    let Some((report, status)) = kill(&["--requests", "64", "--noisy", "2"]) else { return };
    assert_eq!(status, 1);
    let why = "unlimited: exit status 0, where 137 is expected: what it was sent did not fill the control group";
    assert_eq!(report["faults"], json!([why]));
    assert_eq!((&report["requests"], &report["noisy"]), (&json!(64), &json!(2)));
    assert_eq!(forms(&report).map(|form| number(&form["requests"])), [64; 2]);
}

#[test]
fn kill_is_a_table_for_people() {
    let output = run(&["--kill", "--budget", "4MiB", "--threads", "1"], &[]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    if text.starts_with("Skipped: no control group of 38 MiB can be made here: ") {
        println!("{text}");
        return;
    }
    for words in ["137, killed  ", "unlimited: killed by the system, ok\n", "memcg: not killed, and adds up, ok\n"] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}

/// The run as a user without rights sees it. A user that cannot become another one has no rights to begin with.
#[cfg(unix)]
#[test]
fn kill_without_permission_is_skipped_with_a_reason() {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    let nobody = 65_534;
    let output = match Command::new(super::program()).args(SMALL).uid(nobody).gid(nobody).output() {
        Ok(output) => output,
        Err(error) => return println!("cannot start the example as nobody, skipped: {error}"),
    };
    let report: Value = serde_json::from_slice(&output.stdout).expect("a JSON report");
    assert_eq!((output.status.code(), &report["forms"]), (Some(0), &json!([])));
    assert!(report["skipped"].as_str().is_some_and(|reason| !reason.is_empty()), "{report}");
}

/// Without a control group around it, the form without a limit would take the machine's memory.
#[test]
fn form_does_not_run_by_itself() {
    for form in ["unlimited", "memcg"] {
        let output = run(&["--kill", "--kill-form", form], &[]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr, "tenants: a form of --kill is started by --kill, not by itself\n");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    }
}

#[test]
fn bad_trace_is_named_once() {
    let folder = Folder::new("kill");
    let path = folder.file("wrong.csv", "id,bytes\n1,2\n");
    let expected = format!("{}:1: head line \"id,bytes\" where `key,size` is expected", path.display());
    assert_eq!(refusal(&["--kill"], &[&path]), expected);
}

#[test]
fn traces_are_served_beside_the_flood() {
    let folder = Folder::new("kill");
    let path = folder.file("shop.csv", trace((0..2_000).map(|key| (key % 100, 1_000))));
    let trace = path.to_str().expect("a path of plain letters");
    let Some((report, status)) = kill(&["--trace", trace, "--high", "100%", "--threads", "2"]) else { return };
    assert_eq!((status, &report["faults"]), (0, &json!([])));
}

#[test]
fn budget_that_cannot_be_flooded_is_refused() {
    if cfg!(target_os = "linux") {
        let message = refusal(&["--kill", "--budget", "8PiB"], &[]);
        assert!(message.starts_with("the form without a limit would fill "), "{message}");
    }
}
