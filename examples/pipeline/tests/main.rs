//! The programs, run as a user runs them.

#[path = "../../tests/beside.rs"]
mod beside;

use std::process::{Command, Output};

fn run(example: &str, arguments: &[&str]) -> Output {
    let mut program = Command::new(beside::program(example));
    program.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

#[track_caller]
fn printed(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_runaway_task_is_stopped_and_its_neighbours_are_not() {
    let printed = printed(&run("runaway", &[]));
    let lines: Vec<&str> = printed.lines().collect();
    let [report, runaway, search] = lines[..] else { panic!("{printed}") };
    assert!(report.starts_with("/report: 2000 rows"), "{printed}");
    assert!(runaway.starts_with("/runaway: stopped. /runaway refuses a checkpoint of /runaway"), "{printed}");
    assert!(search.starts_with("/search: 3000 rows"), "{printed}");
}

#[test]
fn a_service_answers_for_each_request() {
    let printed = printed(&run("service", &[]));
    assert!(printed.contains("1000 rows: 4096000 bytes"), "{printed}");
    assert!(printed.contains("100000 rows: 503 /acme refuses a checkpoint of /acme/1"), "{printed}");
}

/// The number behind a word of the first line.
#[track_caller]
fn figure(printed: &str, name: &str) -> u64 {
    let mut words = printed.split_whitespace().skip_while(|&word| word != name);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name}: {printed}"))
}

#[test]
fn nothing_is_left_of_the_pipeline() {
    for allocator in ["bare", "large", "every", "exact", "process", "cap", "thresher", "tracking", "naive"] {
        let mut program = Command::new(beside::program("pipeline"));
        program.args(["--seconds", "1", "--strings"]);
        program.env("PIPELINE_ALLOCATOR", allocator).current_dir(env!("CARGO_MANIFEST_DIR"));
        let printed = printed(&program.output().unwrap());
        assert!(printed.starts_with(&format!("{allocator}: messages/s")), "{printed}");
        assert_eq!([figure(&printed, "residual"), figure(&printed, "beyond")], [0, 0], "{printed}");
        match allocator {
            "exact" => assert!(figure(&printed, "samples") > 10, "{printed}"),
            // Of memory that no group has any more, this count says that groups have it.
            "naive" => assert!(figure(&printed, "drift") > 100_000, "{printed}"),
            _ => {}
        }
    }
}
