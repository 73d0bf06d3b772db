//! `wait/bare_handover/…`: the least that it costs to wake a thread that sleeps, and to sleep until
//! it does the same. On Linux that is a futex wake and a context switch. Each iteration of each
//! thread waits for its turn and gives it away, as in `wait/handover/…`.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};

use crate::common::rows::Rows;
use crate::common::team::Team;

pub(crate) fn rows(rows: &mut Rows) {
    rows.wall("wait/bare_handover/threads2", handover);
}

#[derive(Default)]
struct Turn {
    /// The thread whose turn it is.
    index: AtomicUsize,
    threads: [OnceLock<Thread>; 2],
}

fn handover() -> Team {
    let turn: Arc<Turn> = Arc::default();
    Team::new(2, move |station| {
        let turn = Arc::clone(&turn);
        let mine = station.index;
        let other = 1 - station.index;
        turn.threads[mine]
            .set(thread::current())
            .expect("each thread of the team has its own index");
        station.serve(|iters| {
            let other_thread = turn.threads[other]
                .get()
                .expect("the laps begin when both are there");
            for _ in 0..iters {
                while turn.index.load(Ordering::Acquire) != mine {
                    thread::park();
                }
                turn.index.store(other, Ordering::Release);
                other_thread.unpark();
            }
        });
    })
}
