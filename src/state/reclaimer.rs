//! Foreign code that frees memory: what it implements, what it is called with, and how a tree keeps
//! it.

use std::time::Instant;

use crate::counter::object::Counter;
use crate::state::history::History;
use crate::sync::Arc;
use crate::sync::stat_atomic::{AtomicU32, AtomicU64};
use crate::thread::foreign::{Foreign, ForeignCalls, Panicked};

/// Code that can give memory back: a cache, a pool, a buffer that spills.
///
/// It is called by the thread whose charge does not fit, on that thread and with no lock of this
/// crate held, and by several threads at once if need be. It may use the whole crate, but reclaim
/// does not nest: charges that it makes are refused at once if they do not fit
/// ([`is_in_reclaim`](crate::ChargeError::is_in_reclaim)), and so is
/// [`Group::reclaim`](crate::Group::reclaim).
///
/// The thread may hold locks of *yours*: whatever it held when it charged. So charge before you
/// lock, as below; then the reclaimer may lock. If some thread has to charge under the lock, the
/// reclaimer must take it with `try_lock`; when that fails it frees nothing, and a charge may be
/// refused although the cache has memory to give. A reclaimer that waits for a lock which its own
/// thread holds hangs for ever. A build with debug assertions reports that within a second: an
/// [`Event::ReclaimStuck`](crate::Event::ReclaimStuck) at the reclaimer's group, and a line of the
/// crate `tracing` (feature `tracing`, target `memcg::reclaim`), or of standard error where no
/// subscriber reads it.
///
/// A panic is caught, reported as [`Event::Panic`](crate::Event::Panic) and in
/// [`ReclaimReport::panics`](crate::figures::ReclaimReport::panics), and counts as nothing freed. A
/// panic in the drop of a reclaimer, when its [`Registration`](crate::Registration) is dropped, is
/// caught and not reported.
///
/// ```
/// use memcg::{Charge, Limits, ReclaimPriority, Reclaim, ReclaimContext, Runtime};
/// use std::sync::{Arc, Mutex};
///
/// struct Cache(Mutex<Vec<Charge>>);
///
/// impl Reclaim for Cache {
///     fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
///         let mut entries = self.0.lock().unwrap(); // no thread charges while it holds this lock
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
/// let runtime = Runtime::builder().max(100).build()?;
/// let [tenant, query] = ["tenant", "query"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
/// let cache = Arc::new(Cache(Mutex::new(Vec::new())));
/// let _registration = tenant.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
/// for _ in 0..10 {
///     let charge = tenant.charge(10)?;
///     cache.0.lock().unwrap().push(charge);
/// }
/// let _held = query.charge(25)?; // three entries make room
/// assert_eq!((tenant.live(), query.live()), (70, 25));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Reclaim: Send + Sync {
    /// Frees about `want` bytes by giving charges back, and returns how many those were.
    ///
    /// To free more than was asked for costs cache hits later; to free less has other reclaimers
    /// asked as well. The figure that is returned counts only as far as it shows, in what this
    /// thread has uncharged meanwhile or in the usage of the full group.
    ///
    /// After a reclaimer has freed nothing, others are asked before it as long as its group does
    /// not grow: for 1 ms, then for 2, 4 … 64 ms if that goes on. A charge that would otherwise be
    /// refused asks it all the same, unless it has freed nothing within the last 4 ms, and within
    /// eight times as long as that call took.
    ///
    /// For memory that takes time to free, see [`ReclaimContext::promise`]. Nothing interrupts a
    /// reclaimer: the charge waits until it returns, even after
    /// [`deadline`](ReclaimContext::deadline).
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64;

    /// Begins to free about `want` bytes on a thread of its own, for a charge that never blocks
    /// ([`OnFull::Start`](crate::OnFull::Start)). It is called on the thread of that charge, before
    /// the charge is refused, and must not block: it may wait for no lock and no other thread.
    ///
    /// A reclaimer that begins takes a [`ReclaimContext::promise`] and hands it to its thread,
    /// which frees and reports. Until it has, no thread asks the reclaimer again. If promises cover
    /// what is missing, no other reclaimer is asked for this charge, and no group is cancelled. A
    /// promise counts for [`reclaim_time`](crate::RuntimeBuilder::reclaim_time) at most.
    ///
    /// The default does nothing, and a thread of the runtime calls [`reclaim`](Self::reclaim)
    /// instead. A charge calls it for at most 64 groups. A panic is caught, and reported as one of
    /// `reclaim`.
    ///
    /// ```
    /// use memcg::{Bytes, Charge, ChargeError, ReclaimPromise, Limit, OnFull, ReclaimPriority, Reclaim, ReclaimContext, Runtime};
    /// use std::sync::{Arc, Mutex, mpsc};
    /// use std::time::Duration;
    ///
    /// /// A cache with a thread that evicts.
    /// struct Cache {
    ///     held: Arc<Mutex<Charge>>,
    ///     evictor: mpsc::Sender<ReclaimPromise>,
    /// }
    ///
    /// impl Reclaim for Cache {
    ///     fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
    ///         self.held.lock().unwrap().shrink(Bytes(want))
    ///     }
    ///     fn start(&self, _want: u64, context: &ReclaimContext<'_>) {
    ///         let _ = self.evictor.send(context.promise()); // an unbounded channel does not block
    ///     }
    /// }
    ///
    /// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let root = runtime.root();
    /// let held = Arc::new(Mutex::new(root.charge(80)?));
    /// let (evictor, asked) = mpsc::channel::<ReclaimPromise>();
    /// let evicts = Arc::clone(&held);
    /// let thread = std::thread::spawn(move || {
    ///     for later in asked {
    ///         let freed = evicts.lock().unwrap().shrink(Bytes(later.want()));
    ///         later.report(freed);
    ///     }
    /// });
    /// let registration = root.register_reclaimer(Arc::new(Cache { held, evictor }), ReclaimPriority::NORMAL);
    /// let charge = loop {
    ///     match root.charge_with(30, OnFull::Start) {
    ///         Err(error) if error.is_would_block() => std::thread::sleep(Duration::from_millis(1)), // or do something else
    ///         ended => break ended?,
    ///     }
    /// };
    /// assert_eq!((charge.bytes(), root.live()), (30, 100));
    /// drop(registration); // and with it the sender
    /// thread.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn start(&self, want: u64, context: &ReclaimContext<'_>) {
        let _ = (want, context);
    }

    /// Returns the bytes that the reclaimer could free now. Groups are asked in proportion to it.
    /// It is called before [`reclaim`](Self::reclaim) and in the same way, and should be as cheap
    /// as reading a figure.
    ///
    /// With 0 the reclaimer is not asked. The default, [`u64::MAX`], stands for all that the group
    /// holds.
    fn reclaimable(&self) -> u64 {
        u64::MAX
    }
}

/// The order in which the reclaimers of one group are asked: those of low priority first, because
/// what they give up is worth least.
///
/// Between groups the limits and the [importance](crate::Limits::importance) decide.
///
/// ```
/// use memcg::ReclaimPriority;
///
/// assert!(ReclaimPriority::LOW < ReclaimPriority::NORMAL && ReclaimPriority::NORMAL < ReclaimPriority::HIGH);
/// assert!(ReclaimPriority::new(100) < ReclaimPriority::NORMAL);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReclaimPriority(u8);

impl ReclaimPriority {
    /// Asked first: for what is cheap to make again.
    pub const LOW: ReclaimPriority = ReclaimPriority(64);
    /// For most reclaimers.
    pub const NORMAL: ReclaimPriority = ReclaimPriority(128);
    /// Asked last.
    pub const HIGH: ReclaimPriority = ReclaimPriority(192);

    /// Makes any other priority, from 0, which is asked before all others, to 255.
    pub const fn new(priority: u8) -> ReclaimPriority {
        ReclaimPriority(priority)
    }
}

/// A registered reclaimer.
pub(crate) struct Reclaimer {
    code: Foreign<Arc<dyn Reclaim>>,
    pub(crate) priority: ReclaimPriority,
    /// The list that it is in: the number of a ring. Written under the lock of the lists.
    pub(crate) ring: AtomicU32,
    /// Its number among all of its tree. Written once, under the same lock.
    pub(crate) number: AtomicU64,
    pub(crate) calls: ForeignCalls,
    pub(crate) history: Arc<History>,
}

impl Reclaimer {
    pub(crate) fn new(code: Arc<dyn Reclaim>, priority: ReclaimPriority) -> Arc<Reclaimer> {
        Arc::new(Reclaimer {
            code: Foreign::new(code),
            priority,
            ring: AtomicU32::new(u32::MAX),
            number: AtomicU64::new(0),
            calls: ForeignCalls::default(),
            history: Arc::new(History::new()),
        })
    }

    pub(crate) fn end(mut self) -> Result<(), Panicked> {
        self.code.end()
    }

    /// Returns the bytes that it says it could free. `Err`: it panicked. 0 for one that is gone.
    pub(crate) fn reclaimable(&self) -> Result<u64, Panicked> {
        let Some(_call) = self.calls.begin() else {
            return Ok(0);
        };
        self.code.call(|code| code.reclaimable())
    }

    /// Has it begin. Nothing for one that is gone.
    pub(crate) fn start(&self, want: u64, context: &ReclaimContext<'_>) -> Result<(), Panicked> {
        let Some(_call) = self.calls.begin() else {
            return Ok(());
        };
        self.code.call(|code| code.start(want, context))
    }

    pub(crate) fn call(&self, want: u64, context: &ReclaimContext<'_>) -> Result<u64, Panicked> {
        let Some(_call) = self.calls.begin_noted() else {
            return Ok(0);
        };
        self.code.call(|code| code.reclaim(want, context))
    }

    /// Another thread was in it during the caller's one call since
    /// [`begun`](ForeignCalls::begun) returned `before`.
    pub(crate) fn was_contended(&self, before: (u64, u32)) -> bool {
        before.0 > 0 || self.calls.begun().1.wrapping_sub(before.1) > 1
    }
}

/// Why memory is wanted.
///
/// ```
/// use memcg::ReclaimCause;
///
/// assert_ne!(ReclaimCause::Full, ReclaimCause::Asked);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReclaimCause {
    /// A charge does not fit below the target's max.
    Full,
    /// The target's max was set below its usage.
    Lowered,
    /// A charge has left the target above its high, or high was set below usage.
    High,
    /// [`Group::reclaim`](crate::Group::reclaim) was called.
    Asked,
    /// Usage has passed [`Limits::reclaim_above`](crate::Limits::reclaim_above): no charge waits
    /// for it.
    Background,
}

/// Which groups have their turn.
///
/// ```
/// use memcg::ReclaimPass;
///
/// assert_ne!(ReclaimPass::Soft, ReclaimPass::Unprotected);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReclaimPass {
    /// Groups above their soft limit, and those below such a group.
    Soft,
    /// All that are not protected.
    Unprotected,
    /// Those protected by low: nothing else is left.
    Low,
}

/// What a reclaimer is told beside the bytes that are wanted: why and for which
/// [`target`](Self::target) it is asked, and until when.
///
/// ```
/// use memcg::{Limits, ReclaimPriority, Reclaim, ReclaimCause, ReclaimContext, ReclaimPass, Runtime};
/// use std::sync::Arc;
///
/// struct Empty;
/// impl Reclaim for Empty {
///     fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
///         assert_eq!((context.group().path(), context.target().path()), ("/cache".into(), "/".into()));
///         assert_eq!((context.cause(), context.pass()), (ReclaimCause::Asked, ReclaimPass::Unprotected));
///         assert!(want > 0 && context.deadline() > std::time::Instant::now());
///         0
///     }
/// }
///
/// let runtime = Runtime::builder().build()?;
/// let cache = runtime.root().create("cache", Limits::new())?;
/// let _registration = cache.register_reclaimer(Arc::new(Empty), ReclaimPriority::NORMAL);
/// let _held = cache.charge(10)?;
/// assert_eq!(runtime.root().reclaim(10)?.freed, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReclaimContext<'a> {
    pub(crate) group: &'a Counter,
    pub(crate) target: &'a Counter,
    pub(crate) cause: ReclaimCause,
    pub(crate) pass: ReclaimPass,
    pub(crate) deadline: Instant,
    pub(crate) want: u64,
    /// Of the group, when it was asked.
    pub(crate) usage: u64,
    pub(crate) history: &'a Arc<History>,
}

debug_figures!(ReclaimContext<'_>, |it| want: it.want, cause: it.cause, pass: it.pass, deadline: it.deadline);

impl ReclaimContext<'_> {
    /// Returns why memory is wanted.
    pub fn cause(&self) -> ReclaimCause {
        self.cause
    }

    /// Returns which groups have their turn.
    pub fn pass(&self) -> ReclaimPass {
        self.pass
    }

    /// Returns when the caller stops asking. A reclaimer at work is not interrupted then, but no
    /// further one is asked.
    ///
    /// Compare it with [`Instant::now`].
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Promises what is wanted, to be freed afterwards on any thread. The reclaimer then returns
    /// what it has freed at once, if anything, and [reports](ReclaimPromise::report) the rest
    /// later.
    ///
    /// Until the report the reclaimer is not asked again, and a charge that may wait does so, for
    /// at most [`reclaim_time`](crate::RuntimeBuilder::reclaim_time). If the group is above its
    /// soft limit, groups that are not are spared for as long.
    ///
    /// ```
    /// # use memcg::{Charge, ReclaimPromise, Limits, ReclaimPriority, Reclaim, ReclaimContext, Runtime};
    /// # use std::sync::{Arc, mpsc};
    /// struct WritesBack(mpsc::Sender<ReclaimPromise>);
    /// impl Reclaim for WritesBack {
    ///     fn reclaim(&self, _want: u64, context: &ReclaimContext<'_>) -> u64 {
    ///         let _ = self.0.send(context.promise());
    ///         0
    ///     }
    /// }
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let dirty = runtime.root().create("dirty", Limits::new())?;
    /// let (asked, to_write) = mpsc::channel();
    /// let _registration = dirty.register_reclaimer(Arc::new(WritesBack(asked)), ReclaimPriority::NORMAL);
    /// let page = dirty.charge(4_096)?;
    /// assert_eq!(runtime.root().reclaim(4_096)?.pending, 4_096);
    /// let later = to_write.recv()?; // another thread's work
    /// drop(page);
    /// later.report(4_096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn promise(&self) -> ReclaimPromise {
        self.history.promise(self.want, self.usage);
        ReclaimPromise {
            history: Arc::clone(self.history),
            want: self.want,
            freed: 0,
        }
    }
}

/// A reclaimer's promise to free memory and to report it. If it is dropped without a report, the
/// reclaimer has freed nothing.
///
/// ```
/// use std::sync::{Arc, mpsc};
///
/// use memcg::{Bytes, Charge, ReclaimPromise, ReclaimPriority, Reclaim, ReclaimContext, Runtime};
///
/// /// A cache whose own thread evicts: the charging thread only tells it.
/// struct Cache(mpsc::Sender<(u64, ReclaimPromise)>);
/// impl Reclaim for Cache {
///     fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
///         let _ = self.0.send((want, context.promise()));
///         0
///     }
/// }
///
/// let runtime = Runtime::builder().max(100).build()?;
/// let mut held: Charge = runtime.root().charge(90)?;
/// let (cache, asked) = mpsc::channel();
/// let registration = runtime.root().register_reclaimer(Arc::new(Cache(cache)), ReclaimPriority::NORMAL);
/// let evicts = std::thread::spawn(move || {
///     for (want, later) in asked {
///         later.report(held.shrink(Bytes(want)));
///     }
/// });
/// let fits = runtime.root().charge(30)?;
/// drop((registration, fits));
/// evicts.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped, it has freed nothing"]
pub struct ReclaimPromise {
    history: Arc<History>,
    want: u64,
    freed: u64,
}

impl ReclaimPromise {
    /// Returns the bytes that were wanted.
    pub fn want(&self) -> u64 {
        self.want
    }

    /// Reports that so many bytes have been freed since. With 0 it is as if [`Reclaim::reclaim`]
    /// had freed nothing. It does not block.
    pub fn report(mut self, freed: u64) {
        self.freed = freed;
    }
}

impl Drop for ReclaimPromise {
    fn drop(&mut self) {
        // Mutation: a-promise-of-nothing-stays-open
        self.history.report(self.want, self.freed);
    }
}

debug_figures!(ReclaimPromise, |later| want: later.want);
