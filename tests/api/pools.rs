//! An event for each object that is taken from a pool, and for each drain.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use memcg::{Limits, Runtime, StatKey};

type Fields = BTreeMap<&'static str, String>;

/// Records events. On each event it may create a group of its own, and it may panic.
#[derive(Default)]
struct Listens {
    reported: Mutex<Vec<Fields>>,
    runtime: Option<Runtime>,
    panics: bool,
    /// Of drains, not of pools.
    of_drains: bool,
}

impl Subscriber for Listens {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target()
            == if self.of_drains {
                "memcg::drain"
            } else {
                "memcg::pool"
            }
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
        self.reported.lock().unwrap().push(reads.0);
        if let Some(runtime) = &self.runtime {
            let group = runtime.root().create("its own", Limits::new()).unwrap();
            drop(group.charge(10).unwrap());
            group.memory().drain();
            group.offline().unwrap();
        }
        assert!(!self.panics, "on purpose");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn reported(subscriber: Listens, work: impl FnOnce()) -> Vec<Fields> {
    let subscriber = Arc::new(subscriber);
    tracing::subscriber::with_default(Arc::clone(&subscriber), work);
    subscriber.reported.lock().unwrap().clone()
}

fn create(runtime: &Runtime) {
    runtime
        .root()
        .create("q17", Limits::new())
        .unwrap()
        .offline()
        .unwrap();
}

#[test]
fn each_object_that_is_taken_is_an_event() {
    let runtime = Runtime::builder().nodes(2).build().unwrap();
    // No subscriber listens.
    create(&runtime);
    let events = reported(Listens::default(), || {
        create(&runtime);
        let group = runtime.root().create("q18", Limits::new()).unwrap();
        group.stat_add(StatKey::ANON, 4_096);
    });
    let rows = runtime.pools();
    let sizes = |name: &str| {
        let row = rows.rows().iter().find(|row| row.name == name).unwrap();
        (row.asked.to_string(), row.given.to_string())
    };
    let pools: Vec<_> = events
        .iter()
        .map(|fields| fields["pool"].as_str())
        .collect();
    assert_eq!(
        pools,
        ["\"group\"", "\"group\"", "\"stats\"", "\"stats\""],
        "those of the root and of q18"
    );
    for (fields, name) in events.iter().zip(["group", "group", "stats", "stats"]) {
        assert_eq!(
            (fields["asked"].clone(), fields["given"].clone()),
            sizes(name)
        );
        assert!(!fields.contains_key("node"), "anywhere");
    }
    assert_eq!(events[0]["recycled"], "true", "the first is released");
}

#[test]
fn a_subscriber_may_make_groups_and_panic() {
    let of_the_subscriber = Runtime::builder().build().unwrap();
    let runtime = Runtime::builder().build().unwrap();
    let listens = Listens {
        runtime: Some(of_the_subscriber),
        panics: true,
        ..Listens::default()
    };
    let events = reported(listens, || {
        create(&runtime);
        create(&runtime);
    });
    assert_eq!(events.len(), 2, "what it takes itself is not reported");
    assert_eq!(runtime.group_count(), 1);
}

#[test]
fn what_there_is_no_place_for_is_counted() {
    let runtime = Runtime::builder().build().unwrap();
    let mut group = runtime.root();
    for depth in 0..40 {
        group = group.create(&depth.to_string(), Limits::new()).unwrap();
    }
    let events = reported(Listens::default(), || group.stat_add(StatKey::ANON, 4_096));
    let (last, first) = events.split_last().unwrap();
    let unreported: usize = last["unreported"].parse().unwrap();
    assert_eq!(first.len() + unreported, 41);
}

/// A drain leaves the stocks open; one for a new batch closes them, and takes nothing where the
/// first has taken all.
#[test]
fn each_drain_is_an_event() {
    let runtime = Runtime::builder()
        .batch(memcg::Bytes(1_000))
        .adaptive(false)
        .build()
        .unwrap();
    let root = runtime.root();
    drop(root.charge(10).unwrap());
    let mut drained = 0;
    let events = reported(
        Listens {
            of_drains: true,
            ..Listens::default()
        },
        || {
            drained = root.memory().drain();
            root.memory().set_batch(500);
        },
    );
    assert!(drained >= 10, "{drained}");
    let field = |event: usize, name: &str| events[event][name].clone();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(
        [0, 1].map(|event| field(event, "units")),
        [drained.to_string(), "0".to_string()]
    );
    assert_eq!(
        [0, 1].map(|event| field(event, "closing")),
        ["false", "true"]
    );
    for event in [0, 1] {
        assert_eq!(
            (field(event, "stocks"), field(event, "complete")),
            ("1".to_string(), "true".to_string())
        );
    }
    assert_eq!(runtime.counts().drained, drained);
}

#[test]
fn a_subscriber_may_drain_and_panic() {
    let of_the_subscriber = Runtime::builder().build().unwrap();
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    let listens = Listens {
        runtime: Some(of_the_subscriber),
        panics: true,
        of_drains: true,
        ..Listens::default()
    };
    let events = reported(listens, || {
        for _ in 0..2 {
            drop(root.charge(10).unwrap());
            root.memory().drain();
        }
    });
    assert_eq!(
        events.len(),
        2,
        "what it drains itself is not reported: {events:?}"
    );
}
