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

/// Sends lines until the queue is full, and so again after it has been emptied.
fn fill(bytes: usize) {
    let budget = Runtime::builder().build().unwrap();
    let limits = Limits::new().max(Limit::mib(4));
    let queue = budget.root().create("lines", limits).unwrap();
    let heap = Heap::measure();
    let (sender, mut receiver) = channel::<Line>(&queue);
    for round in ["first", "second"] {
        while sender.try_send(line(bytes)).is_ok() {}
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
        fill(bytes);
    }
}
