//! Events of groups as events of the crate `tracing`.
#![cfg(feature = "tracing")]

use std::fmt;
use std::sync::{Arc, Mutex};

use memcg::{Bytes, Limits, Runtime};
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
        let mut line = Line(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        self.0.lock().expect("no panic").push(line.0);
    }
}

#[test]
fn what_happens_is_reported() {
    let lines = Lines::default();
    let said = || std::mem::take(&mut *lines.0.lock().expect("no panic"));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.clone()), || {
        let runtime = Runtime::builder().batch(Bytes(0)).build().expect("no odd setting");
        let acme = runtime.root().create("acme", Limits::new().max(100)).expect("a free name");
        let other = runtime.root().create("other", Limits::new().max(100)).expect("a free name");
        let trace = memcg_observe::trace(&acme);
        assert!(acme.try_charge(101).is_err());
        let mut lines = said();
        lines.sort();
        let expected = [
            "DEBUG memcg event=\"max\" group=\"/acme\" count=1 times=1",
            "WARN memcg event=\"oom\" group=\"/acme\" count=1 times=1",
        ];
        assert_eq!(lines, expected);
        drop(acme.charge(120));
        assert!(said().contains(&"INFO memcg event=\"overcharge\" group=\"/acme\" count=1 times=1".to_string()));
        assert!(other.try_charge(101).is_err());
        assert_eq!(said(), [""; 0], "another group's");
        drop(trace);
        assert!(acme.try_charge(101).is_err());
        assert_eq!(said(), [""; 0], "after its end");
    });
}
