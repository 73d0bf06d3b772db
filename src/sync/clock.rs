//! The one clock: all instants that the crate compares are [`now`]'s, but for a spin of a millisecond
//! ([`Patience`](super::Patience)), and all sleeps end by it.
//!
//! It is the system's clock, read where it is called. With the feature `_simulated-time`, and with
//! debug assertions, which a release build has none of, a test may stop it and move it by hand: what
//! takes two seconds then takes none, and a run is over at the instant that the test says. Under
//! shuttle time stands still without the feature; with it, the run moves the clock there, too. It
//! also knows of the threads that the crate has started whether each waits, so that a test may look at
//! what they have done. The feature is for the crate's own tests and may change at any time.

#[cfg(all(feature = "_simulated-time", debug_assertions, not(any(loom, shuttle))))]
pub(crate) use by_hand::spawn;
#[cfg(all(feature = "_simulated-time", debug_assertions, not(loom)))]
pub(crate) use by_hand::{Thread, now, park, sleep, start_thread, this_thread};
#[cfg(not(all(feature = "_simulated-time", debug_assertions, not(loom))))]
pub(crate) use system::now;
#[cfg(not(any(loom, shuttle, all(feature = "_simulated-time", debug_assertions))))]
pub(crate) use system::{Thread, park, sleep, spawn, start_thread, this_thread};

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
    #[cfg(not(any(loom, shuttle, all(feature = "_simulated-time", debug_assertions))))]
    pub(crate) use std::thread::{Thread, current as this_thread};

    /// Sleeps until another thread unparks this one, for so long at most. May return early.
    #[cfg(not(any(loom, shuttle)))]
    #[inline]
    pub(crate) fn park(most: Option<std::time::Duration>) {
        match most {
            Some(most) => std::thread::park_timeout(most),
            None => std::thread::park(),
        }
    }

    /// Starts a thread of the crate.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn spawn(
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<std::thread::JoinHandle<()>> {
        std::thread::Builder::new().name(name.into()).spawn(body)
    }

    /// Starts a thread that no other thread joins.
    #[cfg(not(any(loom, shuttle, all(feature = "_simulated-time", debug_assertions))))]
    pub(crate) fn start_thread(
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Thread> {
        Ok(spawn(name, body)?.thread().clone())
    }
}

/// What a test has of the clock.
#[cfg(all(feature = "_simulated-time", debug_assertions))]
pub(crate) mod in_hand {
    #[cfg(not(any(loom, shuttle)))]
    pub use super::by_hand::rest;
    #[cfg(shuttle)]
    pub use super::by_hand::threads;
    #[cfg(not(loom))]
    pub use super::by_hand::{Wait, advance, next_end, now, stop, wait_of};
}

#[cfg(all(feature = "_simulated-time", debug_assertions, not(loom)))]
pub(crate) mod by_hand {
    use std::collections::HashMap;
    use std::io;
    #[cfg(not(shuttle))]
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
    #[cfg(not(shuttle))]
    use std::thread::{JoinHandle, Thread as SystemThread, ThreadId, current};
    use std::time::{Duration, Instant};

    #[cfg(shuttle)]
    use super::super::checker::{
        self as system, Thread as SystemThread, ThreadId, current, spawn as system_spawn,
    };
    #[cfg(not(shuttle))]
    use super::system;

    /// Nanoseconds that the clock was moved by; [`RUNS`] where it is the system's.
    static MOVED: AtomicU64 = AtomicU64::new(RUNS);
    const RUNS: u64 = u64::MAX;

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

    /// What the clock knows of the threads.
    struct Threads {
        known: Option<HashMap<ThreadId, KnownThread>>,
        /// Those that the crate has started and that have not ended.
        own: u64,
        /// So many of these do not wait by the clock. Who starts or wakes one counts it: it may not
        /// have begun yet.
        at_work: u64,
        /// Stopped the clock, and moves it.
        #[cfg(not(shuttle))]
        mover: Option<ThreadId>,
    }

    /// A thread that has waited by the stopped clock, or that the crate has started.
    struct KnownThread {
        thread: SystemThread,
        number: u64,
        until: Option<Option<Instant>>,
        /// It waits in [`sleep`], which no unpark ends.
        sleeps: bool,
        is_own: bool,
        /// Woken while it was not parked: its next park ends at once.
        is_woken: bool,
    }

    static THREADS: Mutex<Threads> = Mutex::new(NOTHING);
    const NOTHING: Threads = Threads {
        known: None,
        own: 0,
        at_work: 0,
        #[cfg(not(shuttle))]
        mover: None,
    };

    /// The stopped clock has moved.
    #[cfg(not(shuttle))]
    static MOVES: Condvar = Condvar::new();

    /// No thread of the crate is at work.
    #[cfg(not(shuttle))]
    static RESTS: Condvar = Condvar::new();

    fn threads_known() -> MutexGuard<'static, Threads> {
        THREADS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runs() -> bool {
        // No edge: no protocol depends on what the clock says.
        MOVED.load(Ordering::SeqCst) == RUNS
    }

    /// The present instant.
    pub fn now() -> Instant {
        // No edge: as above.
        match MOVED.load(Ordering::SeqCst) {
            RUNS => Instant::now(),
            moved => stopped_at() + Duration::from_nanos(moved),
        }
    }

    fn stopped_at() -> Instant {
        *STOPPED.get_or_init(Instant::now)
    }

    /// Stops the clock of the process, for good: from now on [`advance`] alone moves it, and sleeps of
    /// the thread that calls this.
    pub fn stop() {
        stopped_at();
        #[cfg(not(shuttle))]
        {
            threads_known().mover = Some(current().id());
        }
        // A run of shuttle that fails leaves threads behind, whose names the next one uses again.
        #[cfg(shuttle)]
        {
            *threads_known() = NOTHING;
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
        let woken = threads_known().wake_all();
        #[cfg(not(shuttle))]
        MOVES.notify_all();
        woken.iter().for_each(SystemThread::unpark);
    }

    /// The next instant at which a wait of any thread ends by itself.
    pub fn next_end() -> Option<Instant> {
        let threads = threads_known();
        let all = threads.known.iter().flat_map(HashMap::values);
        all.filter_map(|thread| thread.until.flatten()).min()
    }

    /// The wait by the stopped clock that this thread is in.
    pub fn wait_of(thread: ThreadId) -> Option<Wait> {
        let threads = threads_known();
        let thread = threads.known.as_ref()?.get(&thread)?;
        let number = thread.number;
        thread.until.map(|until| Wait { until, number })
    }

    /// Threads that the crate has started in this run, and that have not ended.
    #[cfg(shuttle)]
    pub fn threads() -> u64 {
        threads_known().own
    }

    /// Waits until all threads that the crate has started wait by the stopped clock, woken by nobody,
    /// or have ended. False: one is still at work after so long by the system's clock.
    #[cfg(not(shuttle))]
    pub fn rest(most: Duration) -> bool {
        let threads = threads_known();
        let is_at_work = |threads: &mut Threads| threads.at_work > 0;
        let rested = RESTS.wait_timeout_while(threads, most, is_at_work);
        !rested.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    impl Threads {
        /// The entry of this thread.
        fn this(&mut self) -> &mut KnownThread {
            let thread = current();
            let id = thread.id();
            let new = || KnownThread {
                thread,
                number: 0,
                until: None,
                sleeps: false,
                is_own: false,
                is_woken: false,
            };
            let known = self.known.get_or_insert_default();
            known.entry(id).or_insert_with(new)
        }

        /// Marks this thread as one that waits, and counts that.
        fn begin_wait(&mut self, until: Option<Instant>, sleeps: bool) {
            let this = self.this();
            this.number += 1;
            this.until = Some(until);
            this.sleeps = sleeps;
            if this.is_own {
                self.leave_work();
            }
        }

        /// The wait of this thread is over, if the one that woke it has not said so.
        fn end_wait(&mut self) {
            let this = self.this();
            if this.until.take().is_some() && this.is_own {
                self.at_work += 1;
            }
        }

        /// An unpark.
        fn wake(&mut self, id: ThreadId) {
            let known = self.known.as_mut().and_then(|known| known.get_mut(&id));
            let Some(thread) = known else {
                return;
            };
            if thread.until.is_none() || thread.sleeps {
                thread.is_woken = true;
            } else {
                thread.until = None;
                self.at_work += u64::from(thread.is_own);
            }
        }

        /// Ends all waits, and returns whose they were.
        fn wake_all(&mut self) -> Vec<SystemThread> {
            let all = self.known.iter_mut().flat_map(HashMap::values_mut);
            all.filter_map(|thread| {
                thread.until.take()?;
                self.at_work += u64::from(thread.is_own);
                Some(thread.thread.clone())
            })
            .collect()
        }

        fn leave_work(&mut self) {
            self.at_work = self.at_work.saturating_sub(1);
            #[cfg(not(shuttle))]
            if self.at_work == 0 {
                RESTS.notify_all();
            }
        }
    }

    /// A thread, to end its park.
    #[derive(Clone, Debug)]
    pub(crate) struct Thread(SystemThread);

    impl Thread {
        pub(crate) fn unpark(&self) {
            if !runs() {
                threads_known().wake(self.0.id());
            }
            self.0.unpark();
        }

        #[cfg(all(test, not(shuttle)))]
        pub(crate) fn name(&self) -> Option<&str> {
            self.0.name()
        }
    }

    pub(crate) fn this_thread() -> Thread {
        Thread(current())
    }

    /// A thread of the crate: counted from the call that starts it to its end.
    struct OwnThread(Option<ThreadId>);

    impl OwnThread {
        fn new() -> Self {
            let mut threads = threads_known();
            threads.own += 1;
            threads.at_work += 1;
            OwnThread(None)
        }

        /// On the thread.
        fn begin(&mut self) {
            threads_known().this().is_own = true;
            self.0 = Some(current().id());
        }
    }

    impl Drop for OwnThread {
        fn drop(&mut self) {
            let mut threads = threads_known();
            // What a failed run of shuttle leaves behind is counted no more.
            threads.own = threads.own.saturating_sub(1);
            threads.leave_work();
            if let (Some(id), Some(known)) = (&self.0, threads.known.as_mut()) {
                known.remove(id);
            }
        }
    }

    /// What a thread of the crate runs.
    fn counted(body: impl FnOnce() + Send + 'static) -> impl FnOnce() + Send + 'static {
        // Where the system gives no thread this goes with the body.
        let mut own = OwnThread::new();
        move || {
            own.begin();
            body();
        }
    }

    #[cfg(not(shuttle))]
    pub(crate) fn spawn(
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        system::spawn(name, counted(body))
    }

    #[cfg(not(shuttle))]
    pub(crate) fn start_thread(
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Thread> {
        Ok(Thread(spawn(name, body)?.thread().clone()))
    }

    /// A thread of the run.
    #[cfg(shuttle)]
    pub(crate) fn start_thread(
        _: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Thread> {
        Ok(Thread(system_spawn(counted(body)).thread().clone()))
    }

    pub(crate) fn park(most: Option<Duration>) {
        if runs() {
            return system::park(most);
        }
        let until = most.map(|most| now() + most);
        {
            let mut threads = threads_known();
            // Of the system's token nothing is known: foreign code may have slept, and taken it.
            if std::mem::take(&mut threads.this().is_woken) {
                return;
            }
            threads.begin_wait(until, false);
        }
        // Marked, then a look: who moves the clock after this unparks the thread.
        if until.is_none_or(|until| now() < until) {
            system::park(None);
        }
        threads_known().end_wait();
    }

    pub(crate) fn sleep(time: Duration) {
        if runs() {
            return system::sleep(time);
        }
        // Nobody else would move it. What it sleeps for others do first, or for as long.
        #[cfg(not(shuttle))]
        if threads_known().mover == Some(current().id()) {
            rest(time);
            return advance(time);
        }
        let until = now() + time;
        #[cfg(not(shuttle))]
        let mut threads = threads_known();
        while now() < until {
            #[cfg(not(shuttle))]
            {
                threads.begin_wait(Some(until), true);
                threads = MOVES.wait(threads).unwrap_or_else(PoisonError::into_inner);
                threads.end_wait();
            }
            // A lock of the system would stop all threads of the run.
            #[cfg(shuttle)]
            {
                threads_known().begin_wait(Some(until), true);
                system::sleep(time);
                threads_known().end_wait();
            }
        }
    }
}
