//! The current group of a thread: a guard, a closure, and its name.

use super::allocator;
use super::handle::Group;
use crate::counter::credit::online_or_above;
use crate::counter::object::HeaderRef;
use crate::thread::current::{self, EnteredScope};

/// # The current group
impl Group {
    /// Makes this the current group of the thread until the guard is dropped, for a stretch of
    /// synchronous code. The current group is what [`Group::current`] returns, and what an
    /// allocator that charges groups charges. It never blocks, and never fails.
    ///
    /// A future that holds the guard over an `.await` would leave other tasks of the thread in its
    /// group. So the guard is not `Send`, and a runtime that moves tasks between threads does not
    /// accept such a future. Use [`in_group`](crate::InGroup::in_group) for a future, and
    /// [`run`](Self::run) if a closure will do.
    ///
    /// The current group is that of the newest guard that still exists, whatever the order in which
    /// guards are dropped. When a closure of [`run`](Self::run) or a poll of `in_group` ends, so
    /// does what was entered in it: a guard that is dropped later changes nothing. A guard that is
    /// forgotten (`mem::forget`) leaves the thread in the group until the closure or poll around it
    /// ends, and keeps the group's object for ever.
    ///
    /// The switch moves no credit. A thread has room for eight guards at a time; each further one
    /// takes 16 bytes of the heap. The guard keeps the group's object.
    ///
    /// ```
    /// use memcg::{Group, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let [acme, query] = ["acme", "q17"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let outer = acme.enter();
    /// let inner = query.enter();
    /// assert_eq!(Group::current(), Some(query));
    /// drop(outer); // out of order: the newest guard counts
    /// assert_eq!(Group::current().unwrap().path(), "/q17");
    /// drop(inner);
    /// assert_eq!(Group::current(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// ```compile_fail
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// let guard = runtime.root().enter();
    /// std::thread::spawn(move || drop(guard)); // a guard stays on its thread
    /// ```
    #[inline]
    pub fn enter(&self) -> EnterGuard {
        allocator::catch_up_at_call(Some(self.header));
        EnterGuard {
            _entry: EnteredScope::enter(self.header.header()),
            group: self.clone(),
        }
    }

    /// Runs `work` with this as the current group of the thread. Afterwards the current group is
    /// what it was before, even if `work` panics. To switch there and back writes two words of the
    /// thread, and no counter.
    ///
    /// A task, a thread or a job of a pool that `work` spawns starts without a group. Give it one:
    /// [`wrap`](Self::wrap) the closure that is handed on, and the future
    /// [`in_group`](crate::InGroup::in_group).
    ///
    /// ```
    /// use memcg::{Group, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// let current = query.run(|| {
    ///     let of_threads = [std::thread::spawn(Group::current), std::thread::spawn(query.wrap(Group::current))];
    ///     let of_threads = of_threads.map(|thread| thread.join().unwrap());
    ///     assert_eq!(of_threads, [None, Some(query.clone())]);
    ///     Group::current()
    /// });
    /// assert_eq!((current, Group::current()), (Some(query), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        allocator::catch_up_at_call(Some(self.header));
        current::within(Some(self.header.header()), work)
    }

    /// Returns the current group of this thread; `None` outside of [`enter`](Self::enter),
    /// [`run`](Self::run) and [`in_group`](crate::InGroup::in_group). If that group went offline,
    /// it is the nearest group above that is online, or the root if none is. It takes no lock.
    ///
    /// ```
    /// use memcg::{Group, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let query = acme.scope(17, Limits::new())?;
    /// let _guard = query.enter();
    /// assert_eq!(Group::current().as_ref(), Some(&*query));
    /// drop(query); // the query is aborted, and code of it still runs
    /// assert_eq!(Group::current(), Some(acme));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn current() -> Option<Group> {
        current_header().map(|header| Group::pinned(online_or_above(header.counter())))
    }
}

/// The header of the thread's current group. The caller leaves no scope while it uses the result.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn current_header() -> Option<HeaderRef> {
    // SAFETY: the scope keeps the group.
    current::header().map(|header| unsafe { HeaderRef::new(header) })
}

/// Keeps its thread in a group for as long as it exists: see [`Group::enter`].
#[must_use = "dropped at once it leaves the group at once, and `let _ =` drops it at once: bind it to a name, as in `let _in =`"]
pub struct EnterGuard {
    // In this order: the thread leaves the group before the handle goes.
    _entry: EnteredScope,
    group: Group,
}

impl EnterGuard {
    /// Returns the group that the guard has entered, which may be offline by now.
    pub fn group(&self) -> &Group {
        &self.group
    }
}

debug_figures!(EnterGuard, |guard| group: guard.group);
