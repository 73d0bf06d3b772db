//! An event for each object that is taken from a pool.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use memcg::{Limits, Runtime, Stat};

type Fields = BTreeMap<&'static str, String>;

/// Records events. On each event it may create a group of its own, and it may panic.
#[derive(Default)]
struct Listens {
    reported: Mutex<Vec<Fields>>,
    runtime: Option<Runtime>,
    panics: bool,
}

impl Subscriber for Listens {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "memcg::pool"
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
            runtime.root().create("its own", Limits::new()).unwrap().offline().unwrap();
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
    runtime.root().create("q17", Limits::new()).unwrap().offline().unwrap();
}

#[test]
fn each_object_that_is_taken_is_an_event() {
    let runtime = Runtime::builder().nodes(2).build().unwrap();
    // No subscriber listens.
    create(&runtime);
    let events = reported(Listens::default(), || {
        create(&runtime);
        let group = runtime.root().create("q18", Limits::new()).unwrap();
        group.stat_add(Stat::ANON, 4_096);
    });
    let rows = runtime.pools();
    let sizes = |name: &str| {
        let row = rows.rows().iter().find(|row| row.name == name).unwrap();
        (row.asked.to_string(), row.given.to_string())
    };
    let pools: Vec<_> = events.iter().map(|fields| fields["pool"].as_str()).collect();
    assert_eq!(pools, ["\"group\"", "\"group\"", "\"stats\"", "\"stats\""], "those of the root and of q18");
    for (fields, name) in events.iter().zip(["group", "group", "stats", "stats"]) {
        assert_eq!((fields["asked"].clone(), fields["given"].clone()), sizes(name));
        assert!(!fields.contains_key("node"), "anywhere");
    }
    assert_eq!(events[0]["recycled"], "true", "the first is released");
}

#[test]
fn a_subscriber_may_make_groups_and_panic() {
    let of_the_subscriber = Runtime::builder().build().unwrap();
    let runtime = Runtime::builder().build().unwrap();
    let listens = Listens { runtime: Some(of_the_subscriber), panics: true, ..Listens::default() };
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
    let events = reported(Listens::default(), || group.stat_add(Stat::ANON, 4_096));
    let (last, first) = events.split_last().unwrap();
    let unreported: usize = last["unreported"].parse().unwrap();
    assert_eq!(first.len() + unreported, 41);
}
