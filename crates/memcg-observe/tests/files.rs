//! The figures and limits of a group as files.

use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Limits, Runtime, StatKey};
use memcg_observe::{FileError, GroupFile, json, read, write};

const KIB: u64 = 1 << 10;

fn runtime() -> Runtime {
    Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting")
}

#[test]
fn each_file_has_its_figure() {
    let runtime = runtime();
    let root = runtime.root();
    let limits = Limits::new()
        .max(64 << 10)
        .high(60 << 10)
        .soft(50 << 10)
        .low(8 << 10)
        .min(4 << 10);
    let acme = root.create("acme", limits).expect("a free name");
    let query = acme.create("q17", Limits::new()).expect("a free name");
    let held = [
        query.force_charge(Bytes(10 * KIB)),
        acme.force_charge(Bytes(KIB)),
    ];
    assert!(query.charge(Bytes(64 * KIB)).is_err());
    query.stat_add(StatKey::ANON, 4_096);
    let expected = [
        (GroupFile::Current, "11264\n"),
        (GroupFile::Peak, "11264\n"),
        (GroupFile::Min, "4096\n"),
        (GroupFile::Low, "8192\n"),
        (GroupFile::High, "61440\n"),
        (GroupFile::Max, "65536\n"),
        (GroupFile::Soft, "51200\n"),
        (GroupFile::Live, "11264\n"),
        (GroupFile::Own, "1024\n"),
        (GroupFile::StockedBound, "0\n"),
        (GroupFile::Waiting, "0\n"),
        (GroupFile::Refused, "1\n"),
        (
            GroupFile::Pressure,
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        ),
    ];
    for (file, text) in expected {
        assert_eq!(file.read(&acme), text, "{}", file.name());
        assert_eq!(read(&runtime, "/acme", file.name()).expect("a file"), text);
    }
    let lines =
        |file: GroupFile| -> Vec<String> { file.read(&acme).lines().map(str::to_string).collect() };
    assert_eq!(
        lines(GroupFile::Events)[..6],
        [
            "low 0",
            "high 0",
            "max 1",
            "oom 1",
            "oom_kill 0",
            "oom_group_kill 0"
        ]
    );
    assert_eq!(
        lines(GroupFile::Events),
        lines(GroupFile::EventsLocal),
        "all of it happened here"
    );
    assert_eq!(lines(GroupFile::Events).len(), Event::ALL.len());
    assert!(
        GroupFile::EventsLocal
            .read(&root)
            .lines()
            .all(|line| line.ends_with(" 0"))
    );
    assert_eq!(lines(GroupFile::Stat)[0], "anon 4096");
    assert_eq!(
        lines(GroupFile::Stat).len(),
        runtime.items().count(),
        "items that are 0, too"
    );
    assert_eq!(
        lines(GroupFile::NumaStat),
        GroupFile::NumaStat.read(&acme).lines().collect::<Vec<_>>()
    );
    assert!(
        lines(GroupFile::NumaStat)
            .iter()
            .any(|line| line.starts_with("anon N0=")),
        "{:?}",
        lines(GroupFile::NumaStat)
    );
    assert_eq!(
        (
            GroupFile::Max.read(&root),
            GroupFile::High.read(&root),
            GroupFile::Min.read(&root)
        ),
        ("max\n".into(), "max\n".into(), "0\n".into())
    );
    drop(held);
}

/// Of a charger that stands in line: `some avg10=N.NN avg60=N.NN avg300=N.NN total=MICROSECONDS`,
/// and `full` likewise.
#[test]
fn pressure_has_the_form_of_the_kernel() {
    let runtime = runtime();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(100))
        .expect("a free name");
    let held = acme.charge(Bytes(100)).expect("room");
    let mut waits = pin!(acme.charge_async(Bytes(1)));
    assert!(
        waits
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    // The averages are of periods of 2 seconds that are over.
    let begun = Instant::now();
    while acme.pressure().full.avg300 == 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{}",
            acme.pressure()
        );
        thread::sleep(Duration::from_millis(50));
    }
    let [before, text, after] = [
        acme.pressure().to_string(),
        GroupFile::Pressure.read(&acme),
        acme.pressure().to_string(),
    ]
    .map(|text| shares(&text));
    for (at, name) in ["some", "full"].into_iter().enumerate() {
        let (said, averages, total) = &text[at];
        let least = before[at].2;
        let most = after[at].2;
        assert_eq!(said, name);
        assert!(
            averages
                .iter()
                .all(|&average| 0.0 < average && average <= 100.0),
            "{averages:?}"
        );
        assert!(
            (least..=most).contains(total) && least >= 1_000,
            "{least}, {total}, {most}"
        );
    }
    let root = shares(&GroupFile::Pressure.read(&runtime.root()));
    assert!(root[0].2 >= 1_000, "{root:?}");
    assert_eq!(
        root[1],
        ("full".to_string(), vec![0.0; 3], 0),
        "no limit of the root"
    );
    drop(held);
}

/// The parts of each line of a pressure file: the name, the averages, the total.
fn shares(text: &str) -> Vec<(String, Vec<f64>, u64)> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let value = |at: usize, key: &str| {
            let value = words
                .get(at)
                .and_then(|word| word.strip_prefix(key)?.strip_prefix('='));
            value.unwrap_or_else(|| panic!("no {key} at {at} in {line:?}"))
        };
        let average = |(at, key): (usize, &&str)| {
            let value = value(at + 1, key);
            let (whole, hundredths) = value.split_once('.').expect("a point");
            assert!(
                hundredths.len() == 2 && (1..=3).contains(&whole.len()),
                "{line:?}"
            );
            value.parse().unwrap_or_else(|_| panic!("{line:?}"))
        };
        let averages = ["avg10", "avg60", "avg300"]
            .iter()
            .enumerate()
            .map(average)
            .collect();
        assert_eq!(words.len(), 5, "{line:?}");
        (
            words[0].to_string(),
            averages,
            value(4, "total").parse().expect("microseconds"),
        )
    };
    assert!(
        text.ends_with('\n') && text.lines().count() == 2,
        "{text:?}"
    );
    text.lines().map(line).collect()
}

#[test]
fn names_of_files() {
    for file in GroupFile::ALL {
        assert_eq!(GroupFile::named(file.name()), Some(file));
    }
    for name in [
        "",
        "memory",
        "memory.current ",
        "memory.swap.max",
        "MEMORY.MAX",
    ] {
        assert_eq!(GroupFile::named(name), None, "{name:?}");
    }
}

#[test]
fn limits_are_written() {
    let runtime = runtime();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(1 << 20))
        .expect("a free name");
    let query = acme.create("q17", Limits::new()).expect("a free name");
    for (name, text, file) in [
        ("memory.max", "512K\n", GroupFile::Max),
        ("memory.high", " 256 KiB ", GroupFile::High),
        ("memory.soft", "max", GroupFile::Soft),
        ("memory.low", "25%", GroupFile::Low),
        ("memory.min", "0", GroupFile::Min),
    ] {
        write(&runtime, "/acme/q17", name, text).expect(name);
        assert_eq!(GroupFile::named(name), Some(file));
    }
    let limits = [
        query.max(),
        query.inspect().high(),
        query.inspect().soft(),
        query.inspect().low(),
        query.inspect().min(),
    ];
    assert_eq!(
        limits,
        [512 * KIB, 256 * KIB, u64::MAX, 256 * KIB, 0],
        "25 % of the max of /acme"
    );
}

/// Nothing is changed by what is refused.
#[test]
fn bad_input() {
    let runtime = runtime();
    let root = runtime.root();
    let refused =
        |path: &str, name: &str, text: &str| write(&runtime, path, name, text).expect_err(text);
    assert_eq!(
        refused("/nobody", "memory.max", "1").to_string(),
        "no group /nobody"
    );
    assert_eq!(
        refused("acme", "memory.max", "1").to_string(),
        "no group acme"
    );
    assert_eq!(
        refused("/", "memory.swap.max", "1").to_string(),
        "/ has no file \"memory.swap.max\""
    );
    assert_eq!(
        refused("/", "memory.current", "1").to_string(),
        "memory.current of / cannot be written"
    );
    let text = refused("/", "memory.max", "64 mb");
    assert!(
        matches!(text, FileError::Text { .. }) && text.to_string().starts_with("memory.max of /: "),
        "{text}"
    );
    for text in ["", "-1", "1e9", "12 34", "\0", "99999999999999999999", "💥"] {
        assert!(
            matches!(refused("/", "memory.max", text), FileError::Text { .. }),
            "{text:?}"
        );
    }
    assert!(
        matches!(refused("/", "memory.max", "10%"), FileError::Limit(_)),
        "the root has no limited ancestor"
    );
    assert_eq!(root.max(), u64::MAX);
}

#[test]
fn a_snapshot_as_json() {
    let mut builder = Runtime::builder().batch(Bytes(0));
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let runtime = builder.build().expect("no odd setting");
    let acme = runtime
        .root()
        .create("a\"b", Limits::new().max(100))
        .expect("a free name");
    let held = (
        acme.force_charge(Bytes(130)),
        acme.charge_set(&[(spill, 7)]).expect("no limit"),
    );
    let json: serde_json::Value = serde_json::from_str(&json(&runtime.snapshot())).expect("JSON");
    assert_eq!(json["format"], 1);
    assert!(["membarrier", "fence"].contains(&json["barrier"].as_str().expect("a text")));
    let row = &json["rows"][1];
    assert_eq!(
        (row["path"].as_str(), row["own"].as_u64()),
        (Some("/a\"b"), Some(130))
    );
    assert_eq!(
        (
            row["forced"].as_u64(),
            row["counters"]["spill"]["usage"].as_u64()
        ),
        (Some(30), Some(7))
    );
    assert_eq!(
        (row["events"]["overcharge"].as_u64(), row["max"].as_u64()),
        (Some(1), Some(100))
    );
    assert!(
        row["high"].is_null() && row["counters"]["spill"]["max"].is_null(),
        "no limit: {row}"
    );
    drop(held);
}
