//! Foreign code that frees memory: what it implements, and one registration of it.
//!
//! Where a registration is dropped, a call under way is waited for, and none begins: see `thread::foreign`.

use crate::state::reclaim_context::{History, ReclaimContext};
use crate::sync::Arc;
use crate::sync::stat_atomic::AtomicU32;
use crate::thread::foreign::{Calls, Foreign, Panicked};

/// What can give memory back: a cache, a pool, a buffer that spills.
///
/// Called by the thread whose charge does not fit, on that thread, with no lock of this crate held; by several threads
/// at once if need be. It may use the whole crate; only its charges are refused at once where they do not fit, with
/// [`ChargeError::InReclaim`](crate::ChargeError::InReclaim), and [`Group::reclaim`](crate::Group::reclaim) is refused:
/// reclaim does not nest.
///
/// The thread may hold locks of *yours*: whatever it held when it charged. So lock with `try_lock`, or charge before
/// you lock, as you would for an allocator.
///
/// A panic is caught, reported as [`Event::Panic`](crate::Event::Panic) and in
/// [`ReclaimReport::panics`](crate::ReclaimReport::panics), and counts as nothing freed. Where the reclaimer is dropped
/// with its [`Registration`](crate::Registration), a panic is caught and nothing else.
///
/// ```
/// use memcg::{Charge, Limit, Limits, Priority, Reclaim, ReclaimContext, Runtime};
/// use std::sync::{Arc, Mutex};
///
/// struct Cache(Mutex<Vec<Charge>>);
///
/// impl Reclaim for Cache {
///     fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
///         let Ok(mut entries) = self.0.try_lock() else { return 0 };
///         let mut freed = 0;
///         while freed < want
///             && let Some(entry) = entries.pop()
///         {
///             freed += entry.bytes();
///         }
///         freed
///     }
/// }
///
/// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
/// let [tenant, query] = ["tenant", "query"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
/// let cache = Arc::new(Cache(Mutex::new(Vec::new())));
/// let _registration = tenant.register_reclaimer(cache.clone(), Priority::NORMAL);
/// for _ in 0..10 {
///     cache.0.lock().unwrap().push(tenant.try_charge(10)?);
/// }
/// let _held = query.try_charge(25)?; // three entries make room
/// assert_eq!((tenant.live(), query.live()), (70, 25));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Reclaim: Send + Sync {
    /// Free about `want` bytes by giving charges up; returns how many those were.
    ///
    /// More than was asked for costs hits later, less makes others give as well. What is returned is believed as far as
    /// it shows: in what this thread uncharged meanwhile, or in the usage of the group under pressure. A reclaimer that
    /// frees nothing is not asked the next time, and the next 3, 7 … 63 times if that goes on.
    ///
    /// Memory that takes time to free: see [`ReclaimContext::later`].
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64;

    /// Bytes that it could free now. Groups give in proportion to it. Called before [`reclaim`](Self::reclaim), and as
    /// that is; so it should be as cheap as reading a figure.
    ///
    /// 0: it is not asked. [`u64::MAX`], unless implemented: all that the group holds.
    fn reclaimable(&self) -> u64 {
        u64::MAX
    }
}

/// Which reclaimers of one group are asked first: those of low priority, because what they give up is worth least.
///
/// Between groups the limits decide.
///
/// ```
/// use memcg::Priority;
///
/// assert!(Priority::LOW < Priority::NORMAL && Priority::NORMAL < Priority::HIGH);
/// assert!(Priority::new(100) < Priority::NORMAL);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// Asked first: what is cheap to make again.
    pub const LOW: Priority = Priority(64);
    /// For most.
    pub const NORMAL: Priority = Priority(128);
    /// Asked last.
    pub const HIGH: Priority = Priority(192);

    /// Any other, from 0, asked before all, to 255.
    ///
    /// ```
    /// assert!(memcg::Priority::new(255) > memcg::Priority::HIGH);
    /// ```
    pub const fn new(priority: u8) -> Priority {
        Priority(priority)
    }
}

/// A registered reclaimer: whether it may be called, and whether it is worth it.
pub(crate) struct Reclaimer {
    code: Foreign<Arc<dyn Reclaim>>,
    pub(crate) priority: Priority,
    /// The list that it is in: the number of a ring. Written under the lock of the lists.
    pub(crate) home: AtomicU32,
    pub(crate) calls: Calls,
    pub(crate) history: Arc<History>,
}

impl Reclaimer {
    pub(crate) fn new(code: Arc<dyn Reclaim>, priority: Priority) -> Arc<Reclaimer> {
        Arc::new(Reclaimer {
            code: Foreign::new(code),
            priority,
            home: AtomicU32::new(u32::MAX),
            calls: Calls::new(),
            history: Arc::new(History::new()),
        })
    }

    /// Drops the foreign code. `Err`: it panicked.
    pub(crate) fn end(mut self) -> Result<(), Panicked> {
        self.code.end()
    }

    /// What it says it could free. `Err`: it panicked. 0 for one that is gone.
    pub(crate) fn reclaimable(&self) -> Result<u64, Panicked> {
        let Some(_call) = self.calls.begin() else { return Ok(0) };
        self.code.call(|code| code.reclaimable())
    }

    /// Calls it. Returns what it says it has freed.
    pub(crate) fn call(&self, want: u64, context: &ReclaimContext<'_>) -> Result<u64, Panicked> {
        let Some(_call) = self.calls.begin_noted() else { return Ok(0) };
        self.code.call(|code| code.reclaim(want, context))
    }

    /// Another thread was in it during the caller's one call since [`begun`](Calls::begun) returned `before`.
    pub(crate) fn was_contended(&self, before: (u64, u32)) -> bool {
        before.0 > 0 || self.calls.begun().1.wrapping_sub(before.1) > 1
    }
}
