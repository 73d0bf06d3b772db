//! Events of groups as events of the crate `tracing`.
#![cfg(feature = "tracing")]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{Bytes, Group, Limits, OomPolicy, Runtime};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line(format!(
            "{} {}",
            event.metadata().level(),
            event.metadata().target()
        ));
        event.record(&mut line);
        self.0.lock().expect("no panic").push(line.0);
    }
}

#[test]
fn what_happens_is_reported() {
    let lines = Lines::default();
    let said = || std::mem::take(&mut *lines.0.lock().expect("no panic"));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.clone()), || {
        let runtime = Runtime::builder()
            .batch(Bytes(0))
            .build()
            .expect("no odd setting");
        let acme = runtime
            .root()
            .create("acme", Limits::new().max(100))
            .expect("a free name");
        let other = runtime
            .root()
            .create("other", Limits::new().max(100))
            .expect("a free name");
        let trace = memcg_observe::trace(&acme);
        assert!(acme.charge(101).is_err());
        let mut lines = said();
        lines.sort();
        let expected = [
            "DEBUG memcg event=\"max\" group=\"/acme\" count=1 times=1",
            "WARN memcg event=\"oom\" group=\"/acme\" count=1 times=1",
        ];
        assert_eq!(lines, expected);
        drop(acme.force_charge(120));
        assert!(said().contains(
            &"INFO memcg event=\"overcharge\" group=\"/acme\" count=1 times=1".to_string()
        ));
        assert!(other.charge(101).is_err());
        assert_eq!(said(), [""; 0], "another group's");
        drop(trace);
        assert!(acme.charge(101).is_err());
        assert_eq!(said(), [""; 0], "after its end");
    });
}

/// The lines of what `body` does to a runtime whose root may have 100 bytes, in order of their
/// text.
fn lines_of(body: impl FnOnce(&Group)) -> Vec<String> {
    let lines = Lines::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.clone()), || {
        let builder = Runtime::builder()
            .batch(Bytes(0))
            .max(100)
            .delay_max(Duration::from_millis(20));
        let runtime = builder.build().expect("no odd setting");
        let _trace = memcg_observe::trace(&runtime.root());
        body(&runtime.root());
    });
    let mut lines = std::mem::take(&mut *lines.0.lock().expect("no panic"));
    lines.sort();
    lines
}

#[test]
fn a_victim_is_reported() {
    let lines = lines_of(|root| {
        root.set_oom_policy(OomPolicy::Choose);
        let [hog, query] =
            ["hog", "q17"].map(|name| root.create(name, Limits::new()).expect("a free name"));
        let held = Arc::new(Mutex::new(vec![
            hog.charge(Bytes(90)).expect("there is room"),
        ]));
        let gives = Arc::clone(&held);
        let _hook = hog.on_cancel(move |_| gives.lock().expect("no panic").clear());
        drop(query.charge(Bytes(50)).expect("the hog's memory"));
        assert!(held.lock().expect("no panic").is_empty());
    });
    let expected = [
        "DEBUG memcg event=\"max\" group=\"/\" count=1 times=1",
        "WARN memcg event=\"oom\" group=\"/\" count=1 times=1",
        "WARN memcg event=\"oom_kill\" group=\"/\" count=1 times=1",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_delay_is_reported() {
    let lines = lines_of(|root| {
        let acme = root
            .create("acme", Limits::new().high(10))
            .expect("a free name");
        let held = acme.charge(Bytes(80)).expect("below max");
        assert!(
            acme.pressure().some.total >= Duration::from_millis(10),
            "it was delayed"
        );
        drop(held);
    });
    assert_eq!(
        lines,
        ["DEBUG memcg event=\"high\" group=\"/\" count=1 times=1"]
    );
}

/// A hundred thousand refusals are some lines, and the lines together say how many there were.
#[test]
fn many_refusals_are_few_lines() {
    const REFUSALS: u64 = 100_000;
    let begun = std::time::Instant::now();
    let lines = lines_of(|root| {
        let acme = root.create("acme", Limits::new()).expect("a free name");
        for _ in 0..REFUSALS {
            assert!(acme.charge(Bytes(101)).is_err());
        }
    });
    // Two events, at most 10 lines within each second, and the last of the drop.
    let seconds = begun.elapsed().as_secs() as usize + 1;
    assert!(
        lines.len() <= 2 * (10 * (seconds + 1) + 1),
        "{} lines within {seconds} s",
        lines.len()
    );
    let oom: Vec<&String> = lines
        .iter()
        .filter(|line| line.contains("event=\"oom\""))
        .collect();
    let field = |line: &str, name: &str| {
        let value = line
            .split(&format!("{name}="))
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        value
            .and_then(|value| value.parse::<u64>().ok())
            .expect("a number")
    };
    assert_eq!(
        oom.iter().map(|line| field(line, "times")).sum::<u64>(),
        REFUSALS
    );
    assert_eq!(
        oom.iter().map(|line| field(line, "count")).max(),
        Some(REFUSALS),
        "the last one has the count"
    );
}
