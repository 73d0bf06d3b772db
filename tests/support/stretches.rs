//! Threads that work in stretches. Between two stretches all rest, and the caller looks at what
//! they have done.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct Stretches {
    start: Barrier,
    stop: Barrier,
    /// A thread panicked; it has been printed.
    failed: AtomicBool,
    /// The workers end at the next start.
    over: AtomicBool,
}

impl Stretches {
    fn work(&self, stretch: impl Fn()) {
        loop {
            self.start.wait();
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            if catch_unwind(AssertUnwindSafe(&stretch)).is_err() {
                self.failed.store(true, Ordering::SeqCst);
            }
            self.stop.wait();
        }
    }
}

/// Each of so many threads runs `work`, with its number, in each of `points` stretches. After a
/// stretch this thread runs `rest`, while the others wait.
pub(crate) fn stretches(
    threads: usize,
    points: u64,
    seed: u64,
    work: impl Fn(usize) + Sync,
    mut rest: impl FnMut(),
) {
    let all = Stretches {
        start: Barrier::new(threads + 1),
        stop: Barrier::new(threads + 1),
        failed: AtomicBool::new(false),
        over: AtomicBool::new(false),
    };
    let all = &all;
    let work = &work;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || all.work(|| work(thread))))
            .collect();
        let done = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..points {
                all.start.wait();
                all.stop.wait();
                assert!(
                    !all.failed.load(Ordering::SeqCst),
                    "seed {seed}: a worker panicked, see above"
                );
                rest();
            }
        }));
        // The workers are waiting: let them go, whatever happened.
        all.over.store(true, Ordering::SeqCst);
        all.start.wait();
        // A scope ends when the closures of its threads have returned. What the crate does when a
        // thread ends comes after that, and gives back the thread's credit and its groups: only a
        // join waits for it.
        for worker in workers {
            worker.join().expect("its panics are caught");
        }
        if let Err(panic) = done {
            resume_unwind(panic);
        }
    });
}

/// Runs `work` while another thread looks again and again. Returns how often a look was conclusive.
pub(crate) fn watched(look: impl Fn() -> u64 + Sync, work: impl FnOnce()) -> u64 {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut samples = 0;
            while !done.load(Ordering::SeqCst) {
                samples += look();
                // Leaves the processors to the threads that are being watched.
                std::thread::sleep(Duration::from_micros(50));
            }
            samples
        });
        let work = catch_unwind(AssertUnwindSafe(work));
        done.store(true, Ordering::SeqCst);
        let samples = watcher.join();
        if let Err(panic) = work {
            resume_unwind(panic);
        }
        samples.unwrap_or_else(|panic| resume_unwind(panic))
    })
}
