//! A limit that is being set for long.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use memcg::{Bytes, Limits, Reclaim, ReclaimContext, ReclaimPriority};
use serde_json::{Value, json};

use crate::Service;

/// Says that it has begun, and returns when it is told to.
struct Blocks {
    begun: Sender<()>,
    go: Mutex<Receiver<()>>,
}

impl Reclaim for Blocks {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        let _ = self.begun.send(());
        // An end of the test lets it go, too.
        let _ = self
            .go
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        0
    }
}

/// A `set` that blocks holds up no question, and a bounded number of others wait for it.
#[test]
fn a_limit_that_takes_long() {
    const WAIT: usize = 16;
    let service = Service::new(true);
    let group = |name: &str| {
        service
            .runtime
            .root()
            .create(name, Limits::new())
            .expect("a free name")
    };
    let full = group("full");
    let other = group("other");
    let held = full.force_charge(Bytes(1_000));
    let (begun, begins) = mpsc::channel();
    let (goes, go) = mpsc::channel();
    let _registration = full.register_reclaimer(
        Arc::new(Blocks {
            begun,
            go: Mutex::new(go),
        }),
        ReclaimPriority::NORMAL,
    );
    // Dropped before the registration, which waits for the reclaimer.
    let goes = goes;

    let set = |path: &str, to: &str| json!({"set": {"path": path, "file": "memory.max", "to": to}});
    let ask = |question: &Value| {
        let mut client = service.client();
        client.say(format!("{question}\n").as_bytes());
        client
    };
    let mut blocked = ask(&set("/full", "500"));
    begins.recv().expect("the reclaimer runs");
    let get = json!({"get": {"path": "/other", "file": "memory.max"}});
    let mut reader = service.client();
    assert_eq!(
        reader.ask(&get),
        json!({"ok": "max\n"}),
        "while a limit is being set"
    );

    let mut waiting: Vec<_> = (0..WAIT)
        .map(|_| {
            let client = ask(&set("/other", "4096"));
            // The service's answer shows that it has read the question before.
            (0..2).for_each(|_| drop(reader.ask(&get)));
            client
        })
        .collect();
    assert_eq!(
        service.client().refused(&set("/other", "1")),
        "too many limits are being set: try again"
    );
    assert_eq!(
        reader.ask(&get),
        json!({"ok": "max\n"}),
        "none is set before its turn"
    );

    drop(goes);
    assert_eq!(blocked.line(), Some(json!({"ok": null})));
    for client in &mut waiting {
        assert_eq!(client.line(), Some(json!({"ok": null})));
    }
    assert_eq!((full.max(), other.max()), (500, 4_096));
    drop(held);
}
