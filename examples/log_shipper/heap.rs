//! The channel of the program, and the heap that it really takes.

#[path = "../tests/counting.rs"]
mod counting;

use counting::{Heap, assert_close};

use super::*;

fn line(bytes: usize) -> Line {
    Line {
        level: Level::Info,
        service: "service".to_owned(),
        text: "x".repeat(bytes),
    }
}

/// Sends lines until `send` finds the queue full, and so again after it has been emptied.
fn fill(bytes: usize, send: impl Fn(&Sender<Line>, Line) -> bool) {
    let budget = Runtime::builder().build().unwrap();
    let limits = Limits::new().max(Limit::mib(4));
    let queue = budget.root().create("lines", limits).unwrap();
    let heap = Heap::measure();
    let (sender, mut receiver) = channel::<Line>(&queue);
    for round in ["first", "second"] {
        while send(&sender, line(bytes)) {}
        assert!(queue.live() > queue.max() - 2 * (bytes as u64 + 500));
        assert_close(
            &format!("{bytes} bytes, {round}"),
            heap.live(),
            queue.live(),
        );
        while receiver.try_recv().is_ok() {}
    }
    assert_close(&format!("{bytes} bytes, peak"), heap.peak(), queue.peak());
}

#[test]
fn heap_is_what_the_queue_is_charged() {
    for bytes in [16, 100, 1_000, 16_000] {
        fill(bytes, |sender, line| sender.try_send(line).is_ok());
        // Each that has found room to the end, and one in the place of the oldest.
        fill(bytes, |sender, line| {
            matches!(sender.lossy(DropPolicy::Oldest).send(line), Ok(0))
        });
    }
}
