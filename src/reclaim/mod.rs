//! Pipeline C: who gives memory back, and in which order.
//!
//! ```text
//! a charge refused at L, or L.set_max below usage, or L.reclaim(n)
//!   round ─> soft pass: groups in excess below L ─┐
//!         ─> everyone who is not protected        ├─ ring by ring, lap by lap: weigh, ask, count what came back
//!         ─> where nothing came: those below low ─┘
//!   charge again, at most 16 rounds ─> refuse
//! ```
//!
//! Here is what foreign code sees and what is pure: the trait, its context, one registration (`entry`), effective
//! protection, events, the report. Which groups are asked is the tree's business: the rings in `charge::ring`, excess
//! in `charge::excess`, the passes in `charge::reclaim`. The protocol and its races are in `README.md`.

pub(crate) mod context;
pub(crate) mod entry;
pub(crate) mod excess;
pub(crate) mod protection;
pub(crate) mod registrations;
mod report;
pub(crate) mod rings;
pub(crate) mod round;

pub use context::{Later, ReclaimCause, ReclaimContext, ReclaimPass};
pub use report::ReclaimReport;

/// Somebody who can give memory back: a cache, a pool, a buffer that spills.
///
/// Called by the thread whose charge does not fit, on that thread, with no lock of this crate held; by several threads
/// at once if need be. It may use the whole crate; only its charges are refused at once where they do not fit, with
/// [`ChargeError::InReclaim`](crate::ChargeError::InReclaim), and [`Group::reclaim`](crate::Group::reclaim) is refused:
/// reclaim does not nest.
///
/// The thread may hold locks of *yours*: whatever it held when it charged. So lock with `try_lock`, or charge before
/// you lock, as you would for an allocator.
///
/// A panic is caught, reported as [`Event::Panic`](crate::Event::Panic) and in [`ReclaimReport::panics`], and counts as nothing freed. Where
/// the reclaimer is dropped with its [`Registration`](crate::Registration), a panic is caught and nothing else.
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
    /// it shows: in what this thread uncharged meanwhile, or in the usage of the group under pressure. Whoever frees
    /// nothing is not asked the next time, and the next 3, 7 … 63 times if that goes on.
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

/// Which reclaimers of one group are asked first: those of low priority, for what they give up is worth least.
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
