//! The last refusals and victims, as a runtime keeps them.

use std::thread;
use std::time::{Duration, SystemTime};

use memcg::figures::{Incident, IncidentKind};
use memcg::{Bytes, Group, Limits, OnFull, OomPolicy, Runtime, Unit};

const MOST: usize = 64;

fn runtime(max: usize) -> Runtime {
    let runtime = Runtime::builder().max(max).batch(Bytes(0)).build().unwrap();
    runtime.keep_incidents(MOST);
    runtime
}

fn create(parent: &Group, name: &str) -> Group {
    parent.create(name, Limits::new()).unwrap()
}

/// Its kind, its group, its limit, and its amount.
fn of(incident: &Incident) -> (IncidentKind, &str, &str, u64) {
    (
        incident.kind,
        &incident.group,
        &incident.limited,
        incident.requested,
    )
}

#[test]
fn each_refusal_says_what_was_refused() {
    let before = SystemTime::now();
    let runtime = runtime(100);
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(50))
        .unwrap();
    let query = create(&acme, "q17");
    let _held = query.charge(20).unwrap();
    assert!(query.charge(40).is_err());
    assert!(
        matches!(query.charge_with(31, OnFull::Wait(Duration::ZERO)), Err(error) if error.is_timeout())
    );
    assert!(runtime.root().charge(90).is_err());
    let _fits = query.charge(30).unwrap();
    let kept = runtime.root().inspect().incidents();
    let expected = [
        (IncidentKind::Refused, "/acme/q17", "/acme", 40),
        (IncidentKind::TimedOut, "/acme/q17", "/acme", 31),
        (IncidentKind::Refused, "/", "/", 90),
    ];
    assert_eq!(kept.iter().map(of).collect::<Vec<_>>(), expected);
    assert_eq!(
        (kept[0].usage, kept[0].max, kept[2].usage, kept[2].max),
        (20, 50, 20, 100)
    );
    assert_eq!(
        kept.iter().map(|kept| kept.number).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(
        kept.iter()
            .all(|kept| kept.counter.is_none() && kept.at >= before),
        "{kept:?}"
    );
}

#[test]
fn a_group_has_its_own_and_those_below() {
    let runtime = runtime(1_000);
    let [a, ab] =
        ["a", "ab"].map(|name| runtime.root().create(name, Limits::new().max(10)).unwrap());
    let below = create(&a, "x");
    for group in [&a, &ab, &below] {
        assert!(group.charge(11).is_err());
    }
    assert!(ab.charge(12).is_err());
    let groups = |of: &Group| {
        of.inspect()
            .incidents()
            .iter()
            .map(|kept| kept.group.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(groups(&a), ["/a", "/a/x"]);
    assert_eq!(
        (groups(&below), groups(&ab)),
        (vec!["/a/x".to_string()], vec!["/ab".to_string(); 2])
    );
    below.offline().unwrap();
    drop(below);
    assert_eq!(
        groups(&runtime.root()),
        ["/a", "/ab", "/a/x", "/ab"],
        "also of a group that is gone"
    );
}

#[test]
fn a_victim_says_for_whom() {
    let runtime = runtime(100);
    runtime.root().set_oom_policy(OomPolicy::Choose);
    let [hog, query] = ["hog", "q17"].map(|name| create(&runtime.root(), name));
    let held = std::sync::Mutex::new(vec![hog.charge(90).unwrap()]);
    let held = std::sync::Arc::new(held);
    let _hook = hog.on_cancel({
        let held = std::sync::Arc::clone(&held);
        move |_| held.lock().unwrap().clear()
    });
    let _charge = query.charge(50).unwrap();
    let kept = runtime.root().inspect().incidents();
    assert_eq!(
        kept.iter().map(of).collect::<Vec<_>>(),
        [(IncidentKind::Victim, "/hog", "/", 50)]
    );
    assert_eq!((kept[0].usage, kept[0].max), (90, 100));
    assert_eq!(
        (
            hog.inspect().incidents().len(),
            query.inspect().incidents().len()
        ),
        (1, 0)
    );
}

#[test]
fn a_counter_beside_memory_is_named() {
    let mut builder = Runtime::builder();
    let files = builder.counter("files", Unit::Events);
    let runtime = builder.build().unwrap();
    runtime.keep_incidents(MOST);
    let acme = create(&runtime.root(), "acme");
    acme.counter(files).unwrap().set_max(3).unwrap();
    assert!(acme.charge_set(&[(files, 4)]).is_err());
    let kept = acme.inspect().incidents();
    assert_eq!(
        kept.iter().map(of).collect::<Vec<_>>(),
        [(IncidentKind::Refused, "/acme", "/acme", 4)]
    );
    assert_eq!(
        (kept[0].counter.as_deref(), kept[0].max),
        (Some("files"), 3)
    );
    let names: Vec<String> = acme
        .counters()
        .map(|counter| counter.name().to_string())
        .collect();
    assert_eq!(names, ["files"]);
}

#[test]
fn what_is_kept_is_bounded() {
    let runtime = Runtime::builder().max(100).build().unwrap();
    let root = runtime.root();
    let refused = |bytes: usize| assert!(root.charge(bytes).is_err());
    refused(101);
    assert_eq!(
        root.inspect().incidents(),
        [],
        "nothing is kept unless asked for"
    );
    runtime.keep_incidents(3);
    (200..210).for_each(refused);
    let requested = || {
        root.inspect()
            .incidents()
            .iter()
            .map(|kept| kept.requested)
            .collect::<Vec<_>>()
    };
    assert_eq!(requested(), [207, 208, 209]);
    runtime.keep_incidents(1);
    assert_eq!(requested(), [209]);
    runtime.keep_incidents(0);
    refused(300);
    assert!(requested().is_empty());
    runtime.keep_incidents(usize::MAX);
    (0..70_000).for_each(|_| refused(400));
    assert_eq!(requested().len(), 65_536);
}

#[test]
fn threads_that_are_refused_at_once() {
    let runtime = runtime(10);
    let groups =
        [0_u64, 1, 2, 3].map(|number| runtime.root().create(number, Limits::new()).unwrap());
    thread::scope(|scope| {
        for group in &groups {
            scope.spawn(move || (0..100).for_each(|_| assert!(group.charge(11).is_err())));
        }
        for _ in 0..100 {
            let kept = runtime.root().inspect().incidents();
            assert!(
                kept.len() <= MOST
                    && kept
                        .windows(2)
                        .all(|two| two[1].number == two[0].number + 1),
                "{kept:?}"
            );
        }
    });
    let kept = runtime.root().inspect().incidents();
    assert_eq!((kept.len(), kept[MOST - 1].number), (MOST, 400));
}

#[test]
fn each_kind_has_its_name() {
    use IncidentKind::{Refused, TimedOut, Victim, WouldBlock};
    let names = [Refused, WouldBlock, TimedOut, Victim].map(IncidentKind::name);
    assert_eq!(names, ["refused", "would_block", "timed_out", "victim"]);
}
