//! With feature `tracing`, an event for refused charges: bounded in number, and where foreign code
//! may run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memcg::{Limits, OnFull, Runtime};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

type Fields = BTreeMap<&'static str, String>;

/// Keeps refusals.
#[derive(Default)]
struct Refusals(Mutex<Vec<Fields>>);

impl Refusals {
    fn of(&self, group: &str) -> Vec<Fields> {
        let all = self.0.lock().unwrap();
        let group = format!("{group:?}");
        all.iter()
            .filter(|fields| fields.get("group") == Some(&group))
            .cloned()
            .collect()
    }
}

impl Subscriber for Refusals {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "memcg::refused" && *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Reads(Fields);
        impl Visit for Reads {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0.insert(field.name(), format!("{value:?}"));
            }
        }
        let mut reads = Reads(Fields::new());
        event.record(&mut reads);
        self.0.lock().unwrap().push(reads.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Other tests of the process are refused as well and may take the turn: it comes again.
fn until_reported(reported: &Refusals, group: &str, refuse: impl Fn()) -> Vec<Fields> {
    let end = Instant::now() + Duration::from_secs(60);
    while reported.of(group).is_empty() {
        assert!(Instant::now() < end, "no event");
        refuse();
    }
    reported.of(group)
}

#[test]
fn a_refusal_is_an_event_once_a_second() {
    let runtime = Runtime::builder().build().unwrap();
    let acme = runtime
        .root()
        .create("acme-is-refused", Limits::new().max(100))
        .unwrap();
    let query = acme.create("q17", Limits::new()).unwrap();
    let _held = query.charge(80).unwrap();
    let reported = Arc::new(Refusals::default());
    tracing::subscriber::with_default(Arc::clone(&reported), || {
        let begun = Instant::now();
        let refuse = || assert!(query.charge(30).is_err());
        let first = until_reported(&reported, "/acme-is-refused/q17", refuse).remove(0);
        for (field, value) in [
            ("kind", "\"refused\""),
            ("limited", "\"/acme-is-refused\""),
            ("requested", "30"),
            ("usage", "80"),
            ("max", "100"),
        ] {
            assert_eq!(first[field], value, "{field}");
        }
        assert!(!first.contains_key("counter") && first.contains_key("left_out"));
        (0..10_000).for_each(|_| refuse());
        let events = reported.of("/acme-is-refused/q17").len();
        // The seconds are those of the process.
        assert!(events as u64 <= begun.elapsed().as_secs() + 2, "{events}");
        std::thread::sleep(Duration::from_millis(1_000));
        let next = || {
            refuse();
            if reported.of("/acme-is-refused/q17").len() == events {
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let end = Instant::now() + Duration::from_secs(60);
        while reported.of("/acme-is-refused/q17").len() == events && Instant::now() < end {
            next();
        }
        let events = reported.of("/acme-is-refused/q17");
        let left_out = events
            .iter()
            .map(|fields| fields["left_out"].parse::<u64>().unwrap());
        assert!(left_out.sum::<u64>() >= 9_000, "they were counted");
    });
}

/// A call that runs no foreign code leaves the event to the thread's next slow path.
#[test]
fn a_charge_that_never_blocks_calls_no_subscriber() {
    let runtime = Runtime::builder().build().unwrap();
    let full = runtime
        .root()
        .create("full-and-silent", Limits::new().max(100))
        .unwrap();
    let reported = Arc::new(Refusals::default());
    tracing::subscriber::with_default(Arc::clone(&reported), || {
        until_reported(&reported, "/full-and-silent", || {
            assert!(full.charge_with(200, OnFull::Now).is_err());
            assert!(full.try_charge(200).is_err());
            assert!(reported.of("/full-and-silent").is_empty());
            drop(
                runtime
                    .root()
                    .create("a slow path", Limits::new())
                    .unwrap()
                    .offline(),
            );
        });
    });
}
