//! Between threads nothing is lost: a thread that counts tells, or is told of by whichever other
//! thread does.

use std::sync::Barrier;
use std::thread;

use memcg::Event;

use super::{Recorder, create, full, oom, runtimes};

/// The told events add up to the counted ones, over all threads and levels.
#[test]
fn all_of_it_is_told() {
    for runtime in runtimes() {
        let top = create(&runtime.root(), "top");
        let groups = ["a", "b", "c"].map(|name| full(&top, name));
        let recorder = Recorder::default();
        let _subscription = recorder.listen(&top, Event::Oom);
        let start = Barrier::new(groups.len());
        thread::scope(|scope| {
            for group in &groups {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..2_000 {
                        oom(group);
                    }
                });
            }
        });
        assert_eq!(
            (top.events().get(Event::Oom), recorder.times()),
            (6_000, 6_000)
        );
        let notified = recorder.take();
        assert!(
            notified
                .iter()
                .all(|notified| notified.times >= 1 && notified.count <= 6_000)
        );
    }
}
