//! The program, run as a user runs it.

use std::process::Command;

/// The sample of this item on the page of metrics.
fn item(printed: &str, name: &str) -> u64 {
    let line = printed
        .lines()
        .find(|line| line.starts_with("memcg_stat_events{") && line.contains(name));
    let number = line.and_then(|line| line.rsplit(' ').next());
    number.map_or(0, |number| number.parse().expect("a sample is a number"))
}

#[test]
fn each_line_is_shipped_or_counted_as_lost() {
    let output = Command::new(env!("CARGO_BIN_EXE_log_shipper"))
        .output()
        .unwrap();
    let [printed, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{printed}{errors}");
    let names = ["lines_shipped", "lines_shed", "lines_dropped", "lines_late"];
    let counts = names.map(|name| item(&printed, name));
    assert_eq!(counts.iter().sum::<u64>(), 8_000, "{printed}");
    assert!(counts[0] > 0 && counts[1] > 0, "{printed}");
    assert!(
        printed.contains("memcg_peak_bytes{group=\"/lines\""),
        "{printed}"
    );
    assert!(printed.contains("\n8000 lines, "), "{printed}");
    assert!(printed.ends_with(": all add up\n"), "{printed}");
}
