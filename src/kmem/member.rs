//! A thread that charges a group until another thread moves it to another one.
//!
//! ```text
//! mover:  the group, under the lock ──> moves + 1
//! member: moves ──> differs from what it has seen ──> note moves ──> the group, under the lock
//! ```
//!
//! Each side keeps this order. So a second move during a refresh is in the count that the next look
//! compares, even where the refresh has missed its group (E29).
//!
//! Source: `current_objcg_update` in `mm/memcontrol.c`, where a tag on the pointer does what this
//! count does; and "memcg: convert task->objcg to a per-node objcgs array" (Butt, 2026).

use crate::group::{ChargeError, CounterKey, Group, Repr};
use crate::sync::lock::{Lock, Rank};
use crate::sync::{Arc, AtomicU64, Ordering};

struct Membership {
    moves: AtomicU64,
    group: Lock<Group>,
}

/// A thread's place in the tree: the group that it charges, until another thread moves it.
///
/// One load tells whether the member has been moved. The thread has its statistics on each node in
/// a row of its own for that group. After a move it takes up the row of the other group; what it
/// has charged stays where it was.
///
/// ```
/// use memcg::kmem::KmemMember;
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let one = runtime.root().create("one", Limits::new())?;
/// let other = runtime.root().create("other", Limits::new())?;
/// let mut member = KmemMember::of(&one);
/// let mover = member.mover();
/// std::thread::scope(|scope| {
///     scope.spawn(|| mover.move_to(&other)).join().unwrap() // the scheduler's thread
/// })?;
/// let _held = member.group().charge(10)?;
/// assert_eq!((one.live(), other.live()), (0, 10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KmemMember {
    shared: Arc<Membership>,
    /// The count of moves when this thread last read `group`.
    seen: u64,
    group: Group,
}

/// Moves a [`KmemMember`] to other groups, from any thread.
///
/// ```
/// use memcg::kmem::KmemMember;
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let [idle, busy] = ["idle", "busy"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
/// let mut worker = KmemMember::of(&idle);
/// let scheduler = worker.mover();
/// scheduler.move_to(&busy)?;
/// assert_eq!(worker.group(), &busy);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct KmemMover(Arc<Membership>);

impl KmemMember {
    /// Makes a member of `group`, for a thread that other threads move from group to group. It
    /// allocates.
    pub fn of(group: &Group) -> KmemMember {
        let shared = Membership {
            moves: AtomicU64::new(0),
            group: Lock::new(Rank::Bookkeeping, group.clone()),
        };
        KmemMember {
            shared: Arc::new(shared),
            seen: 0,
            group: group.clone(),
        }
    }

    /// Returns the group that the member was last moved to. It costs one load if it has not moved
    /// since the last call.
    #[inline]
    pub fn group(&mut self) -> &Group {
        // Acquire (E29): a thread that knows of a move sees it counted; pairs with
        // `KmemMover::move_to`.
        if self.shared.moves.load(Ordering::Acquire) != self.seen {
            self.refresh();
        }
        &self.group
    }

    #[cold]
    fn refresh(&mut self) {
        // Acquire (E29): the thread notes the count before it reads the group. A move in between is
        // counted beyond this one. Pairs with the count of a move.
        // Mutation: e29-move-noted-after-the-group
        self.seen = self.shared.moves.load(Ordering::Acquire);
        let now = self.shared.group.lock().clone();
        // The old group may go with this handle, which is therefore dropped without the lock.
        self.group = now;
    }

    /// Returns a handle that moves this member.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// let mover = memcg::kmem::KmemMember::of(&runtime.root()).mover();
    /// assert!(mover.move_to(&runtime.root()).is_ok(), "the member is gone");
    /// ```
    pub fn mover(&self) -> KmemMover {
        KmemMover(Arc::clone(&self.shared))
    }
}

impl KmemMover {
    /// Has the member charge `group` from here on. Its thread notices at its next call of
    /// [`group`](KmemMember::group).
    ///
    /// # Errors
    ///
    /// [`ChargeErrorKind::OtherRuntime`](crate::ChargeErrorKind::OtherRuntime) for a group of
    /// another runtime, [`ChargeErrorKind::Offline`](crate::ChargeErrorKind::Offline) for one that
    /// is offline.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let elsewhere = memcg::Runtime::builder().build()?;
    /// assert!(memcg::kmem::KmemMember::of(&runtime.root()).mover().move_to(&elsewhere.root()).is_err());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn move_to(&self, group: &Group) -> Result<(), ChargeError> {
        let from = self.0.group.lock().clone();
        if !std::ptr::eq(from.first().tree(), group.first().tree()) {
            return Err(Repr::OtherRuntime {
                from,
                to: group.clone(),
            }
            .into());
        }
        if group.is_offline() {
            return Err(Repr::Offline {
                group: group.clone(),
                counter: CounterKey::MEMORY,
                requested: 0,
            }
            .into());
        }
        let mut to = group.clone();
        // Mutation: e29-move-counted-before-the-group
        std::mem::swap(&mut *self.0.group.lock(), &mut to);
        // Release (E29): after the group; pairs with `KmemMember::group`.
        self.0.moves.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

debug_figures!(KmemMember, |member| group: member.group);
debug_figures!(KmemMover, |mover| group: mover.0.group.lock().clone());
