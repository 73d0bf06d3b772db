//! The one clock: all instants that the crate compares are [`now`]'s, but for a spin of a millisecond
//! ([`Patience`](super::Patience)), and all sleeps end by it.
//!
//! It is the system's clock, read where it is called. With the feature `_simulated-time`, and with
//! debug assertions, which a release build has none of, a test may stop it and move it by hand: what
//! takes two seconds then takes none, and a run is over at the instant that the test says. Under
//! shuttle time stands still without the feature; with it, the run moves the clock there, too. The
//! feature is for the crate's own tests and may change at any time.

#[cfg(all(feature = "_simulated-time", debug_assertions, not(loom)))]
pub(crate) use by_hand::{now, park, sleep};
#[cfg(not(all(feature = "_simulated-time", debug_assertions, not(loom))))]
pub(crate) use system::now;
#[cfg(not(any(loom, shuttle, all(feature = "_simulated-time", debug_assertions))))]
pub(crate) use system::{park, sleep};

#[cfg(any(
    loom,
    not(shuttle),
    not(all(feature = "_simulated-time", debug_assertions))
))]
mod system {
    /// The present instant.
    #[inline(always)]
    #[cfg(not(all(feature = "_simulated-time", debug_assertions, not(loom))))]
    pub(crate) fn now() -> std::time::Instant {
        std::time::Instant::now()
    }

    #[cfg(not(any(loom, shuttle)))]
    pub(crate) use std::thread::sleep;

    /// Sleeps until another thread unparks this one, for so long at most. May return early.
    #[cfg(not(any(loom, shuttle)))]
    #[inline]
    pub(crate) fn park(most: Option<std::time::Duration>) {
        match most {
            Some(most) => std::thread::park_timeout(most),
            None => std::thread::park(),
        }
    }
}

/// What a test has of the clock.
#[cfg(all(feature = "_simulated-time", debug_assertions))]
pub(crate) mod in_hand {
    #[cfg(shuttle)]
    pub use super::by_hand::threads;
    #[cfg(not(loom))]
    pub use super::by_hand::{Wait, advance, next_end, now, stop, wait_of, wait_of_named};
}

#[cfg(all(feature = "_simulated-time", debug_assertions, not(loom)))]
pub(crate) mod by_hand {
    use std::collections::HashMap;
    #[cfg(not(shuttle))]
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
    #[cfg(not(shuttle))]
    use std::thread::{Thread, ThreadId, current as this_thread};
    use std::time::{Duration, Instant};

    #[cfg(shuttle)]
    use super::super::checker::{self as system, Thread, ThreadId, current as this_thread};
    #[cfg(not(shuttle))]
    use super::system;

    /// Nanoseconds that the clock was moved by; [`RUNS`] where it is the system's.
    static MOVED: AtomicU64 = AtomicU64::new(RUNS);
    const RUNS: u64 = u64::MAX;

    /// Threads that the crate has started in this run, and that have not ended.
    #[cfg(shuttle)]
    pub(crate) static THREADS: AtomicU64 = AtomicU64::new(0);

    /// Threads that the crate has started in this run, and that have not ended.
    #[cfg(shuttle)]
    pub fn threads() -> u64 {
        // No edge: shuttle runs one thread at a time.
        THREADS.load(Ordering::SeqCst)
    }

    /// The instant at which the clock was first stopped.
    static STOPPED: OnceLock<Instant> = OnceLock::new();

    /// A thread that waits by the stopped clock.
    #[derive(Clone, Copy, Debug)]
    pub struct Wait {
        /// When it ends by itself.
        pub until: Option<Instant>,
        /// So often the thread has begun to wait, this time included.
        pub number: u64,
    }

    struct Waiting {
        thread: Thread,
        number: u64,
        until: Option<Option<Instant>>,
    }

    static WAITING: Mutex<Option<HashMap<ThreadId, Waiting>>> = Mutex::new(None);
    #[cfg(not(shuttle))]
    static MOVES: Condvar = Condvar::new();

    fn waiting() -> MutexGuard<'static, Option<HashMap<ThreadId, Waiting>>> {
        WAITING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present instant.
    pub fn now() -> Instant {
        // No edge: no protocol depends on what the clock says.
        match MOVED.load(Ordering::SeqCst) {
            RUNS => Instant::now(),
            moved => stopped_at() + Duration::from_nanos(moved),
        }
    }

    fn stopped_at() -> Instant {
        *STOPPED.get_or_init(Instant::now)
    }

    /// Stops the clock of the process, for good: from now on [`advance`] alone moves it.
    pub fn stop() {
        stopped_at();
        // A run of shuttle that fails leaves threads behind, whose names the next one uses again.
        #[cfg(shuttle)]
        {
            waiting().take();
            // No edge: shuttle runs one thread at a time.
            THREADS.store(0, Ordering::SeqCst);
        }
        // No edge: no protocol depends on what the clock says.
        let _ = MOVED.compare_exchange(RUNS, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Moves the stopped clock, and wakes all threads that wait by it: each looks whether its time is
    /// over.
    ///
    /// # Panics
    /// When the clock was not stopped.
    pub fn advance(by: Duration) {
        // No edge: no protocol depends on what the clock says.
        let before = MOVED.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
        assert_ne!(before, RUNS, "the clock runs");
        let threads: Vec<Thread> = waiting()
            .iter()
            .flat_map(HashMap::values)
            .filter(|waiting| waiting.until.is_some())
            .map(|waiting| waiting.thread.clone())
            .collect();
        #[cfg(not(shuttle))]
        MOVES.notify_all();
        threads.iter().for_each(Thread::unpark);
    }

    /// The next instant at which a wait of any thread ends by itself.
    pub fn next_end() -> Option<Instant> {
        let waiting = waiting();
        let all = waiting.iter().flat_map(HashMap::values);
        all.filter_map(|waiting| waiting.until.flatten()).min()
    }

    /// The wait by the stopped clock that this thread is in.
    pub fn wait_of(thread: ThreadId) -> Option<Wait> {
        let waiting = waiting();
        let waiting = waiting.as_ref()?.get(&thread)?;
        let number = waiting.number;
        waiting.until.map(|until| Wait { until, number })
    }

    /// The wait by the stopped clock that a thread of that name is in.
    pub fn wait_of_named(name: &str) -> Option<Wait> {
        let waiting = waiting();
        let mut all = waiting.iter().flat_map(HashMap::values);
        // A thread that has ended has left its entry, which waits for nothing.
        all.find_map(|waiting| {
            let number = waiting.number;
            let until = waiting.until?;
            (waiting.thread.name() == Some(name)).then_some(Wait { until, number })
        })
    }

    /// Marks this thread as one that waits, and counts that.
    fn begin(waiting: &mut Option<HashMap<ThreadId, Waiting>>, until: Option<Instant>) -> ThreadId {
        let thread = this_thread();
        let id = thread.id();
        let new = || Waiting {
            thread,
            number: 0,
            until: None,
        };
        let waits = waiting
            .get_or_insert_default()
            .entry(id)
            .or_insert_with(new);
        waits.number += 1;
        waits.until = Some(until);
        id
    }

    fn end(waiting: &mut Option<HashMap<ThreadId, Waiting>>, thread: ThreadId) {
        if let Some(waits) = waiting
            .as_mut()
            .and_then(|waiting| waiting.get_mut(&thread))
        {
            waits.until = None;
        }
    }

    pub(crate) fn park(most: Option<Duration>) {
        // No edge: no protocol depends on what the clock says.
        if MOVED.load(Ordering::SeqCst) == RUNS {
            return system::park(most);
        }
        let until = most.map(|most| now() + most);
        let thread = begin(&mut waiting(), until);
        // Marked, then a look: who moves the clock after this unparks the thread.
        if until.is_none_or(|until| now() < until) {
            system::park(None);
        }
        end(&mut waiting(), thread);
    }

    pub(crate) fn sleep(time: Duration) {
        // No edge: no protocol depends on what the clock says.
        if MOVED.load(Ordering::SeqCst) == RUNS {
            return system::sleep(time);
        }
        let until = now() + time;
        #[cfg(not(shuttle))]
        let mut waiting = waiting();
        while now() < until {
            #[cfg(not(shuttle))]
            {
                let thread = begin(&mut waiting, Some(until));
                waiting = MOVES.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                end(&mut waiting, thread);
            }
            // A lock of the system would stop all threads of the run.
            #[cfg(shuttle)]
            {
                let thread = begin(&mut waiting(), Some(until));
                system::sleep(time);
                end(&mut waiting(), thread);
            }
        }
    }
}
