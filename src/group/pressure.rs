//! What happens before a group says no: reclaim, a charge again, and the events that tell of it.

use std::fmt;
use std::time::{Duration, Instant};

use super::error::{ChargeError, ReclaimError, Refusal};
use super::{Group, refused};
use crate::charge::page_counter::{Node, USAGE_MAX};
use crate::charge::pool::slow_path;
use crate::charge::protection::Protection;
use crate::charge::reclaim::{Promises, Request};
use crate::charge::refusal::Refusal as NodeRefusal;
use crate::charge::tree::Tree;
use crate::reclaim::entry::Entry;
use crate::reclaim::{Event, Events, Priority, Reclaim, ReclaimCause, ReclaimContext, ReclaimReport};
use crate::sync::{Arc, Ordering, is_over, model_failed, pause, per_thread};

/// Rounds of reclaim for one charge, or one max: the kernel's MAX_RECLAIM_RETRIES.
const ROUNDS_MAX: usize = 16;

/// Rounds that free this part of what is wanted count this part: what came may have gone to others.
const MUCH: usize = 16;

/// What one charge reclaims at least, where so much is wanted soon anyway: this share of the max, as a shift.
const WANT_SHIFT: u32 = 8;

/// More than anybody waits for: points in time have an end.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// A reclaimer's place in its group; dropped, it is gone.
///
/// When the drop has returned, no call is under way and none will begin. It waits for those that are, so do not hold a
/// lock that the reclaimer waits for; inside a reclaimer it does not wait.
///
/// ```
/// use memcg::{Priority, Reclaim, ReclaimContext, Runtime};
/// use std::sync::Arc;
///
/// struct Nothing;
/// impl Reclaim for Nothing {
///     fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
///         0
///     }
/// }
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let _held = root.try_charge(10)?;
/// let registration = root.register_reclaimer(Arc::new(Nothing), Priority::NORMAL);
/// assert!(root.reclaim(10)?.visited > 0);
/// drop(registration);
/// assert_eq!(root.reclaim(10)?.visited, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped, the reclaimer is gone"]
pub struct Registration {
    tree: Arc<Tree>,
    entry: Arc<Entry>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        self.entry.retire();
        let gone = slow_path(|_, _| self.tree.unregister(&self.entry));
        // Nobody waits inside a reclaimer: two that drop each other's registration would wait for each other.
        if !per_thread::in_reclaim() {
            self.entry.wait();
        }
        // Foreign code may be dropped with it: no lock is held here.
        drop(gone);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("priority", &self.entry.priority).finish_non_exhaustive()
    }
}

impl ReclaimContext<'_> {
    /// The group whose turn it is: the reclaimer's own, or the one that inherited it.
    pub fn group(&self) -> Group {
        Group::pinned(self.group.node())
    }

    /// The group that is under pressure: this one or one above.
    pub fn target(&self) -> Group {
        Group::pinned(self.target.node())
    }
}

impl Group {
    /// Ask `reclaimer` to give memory back when this group or one above is under pressure.
    ///
    /// A group that goes offline leaves its reclaimers to its parent, as it does its charges. Makes room for this group
    /// and those above it in the rings of reclaim; takes two locks.
    ///
    /// See [`Reclaim`] for an example.
    pub fn register_reclaimer(&self, reclaimer: Arc<dyn Reclaim>, priority: Priority) -> Registration {
        let entry = Entry::new(reclaimer, priority);
        let tree = Arc::clone(&self.node().life().tree);
        slow_path(|_, _| tree.register(self.node(), &entry));
        Registration { tree, entry }
    }

    /// Ask for `bytes` back before they are needed: of groups in excess of their soft limits first, then of all that
    /// are not protected, at last of those that low protects. Its own protection does not hold against it, that of the
    /// groups below does. Stocks below are drained.
    ///
    /// Goes on while somebody frees something, and may free more or less than was asked for; what was freed later, or
    /// by other threads, is not in the report. No event is counted but [`Event::Low`].
    ///
    /// Source: `memory_reclaim` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`ReclaimError::InReclaim`] inside a reclaimer: reclaim does not nest.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let report = runtime.root().reclaim(64 << 20)?;
    /// assert!(report.freed < report.requested, "nobody is registered");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reclaim(&self, bytes: u64) -> Result<ReclaimReport, ReclaimError> {
        let node = self.node();
        let mut total = ReclaimReport { requested: bytes, ..ReclaimReport::default() };
        if !is_free() {
            return Err(ReclaimError::InReclaim { group: self.clone() });
        }
        // From here on what is freed below goes up the tree at once.
        slow_path(|_, _| node.tree().press(node));
        let mut request = Request::new(ReclaimCause::Asked, deadline(node));
        for _ in 0..ROUNDS_MAX {
            let left = bytes.saturating_sub(total.freed).saturating_sub(total.pending);
            let Some(round) = node.reclaim(left, &mut request) else { break };
            total.add(&round.report);
            if round.report.freed == 0 && round.report.pending == 0 && !round.others {
                break;
            }
        }
        Ok(total)
    }

    /// Keep `bytes` below max for charges that are made inside reclaim: a cache that must allocate to evict, a spill
    /// that needs a buffer. Others are refused that much earlier. 0 at first; nothing where there is no max. While it
    /// is set [`max`](Self::max) may read low for a moment. Takes the tree's lock.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(memcg::Limit::Bytes(100)).build()?;
    /// let root = runtime.root();
    /// root.set_reserve(10);
    /// let _held = root.try_charge(90)?;
    /// assert!(root.try_charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_reserve(&self, bytes: u64) {
        slow_path(|_, _| {
            let _shape = self.node().tree().places.lock();
            self.node().set_reserve(bytes);
        });
    }

    /// See [`set_reserve`](Self::set_reserve).
    ///
    /// ```
    /// assert_eq!(memcg::Runtime::builder().build()?.root().reserve(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn reserve(&self) -> u64 {
        self.node().reserve_wanted()
    }

    /// Usage is above the soft limit: pressure from here or above asks this group, and all below it, first. Exact; one
    /// load.
    ///
    /// ```
    /// # use memcg::{Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(Limit::Bytes(0)))?;
    /// assert!(!acme.is_in_excess());
    /// let _held = acme.try_charge(1)?;
    /// assert!(acme.is_in_excess());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_in_excess(&self) -> bool {
        self.node().is_in_excess()
    }

    /// Groups below, at any depth, that are above their soft limits. Exact; takes the lock of the rings.
    ///
    /// Source: `children_in_excess`, soft limit rework (Hocko, 2013).
    ///
    /// ```
    /// # use memcg::{Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(Limit::Bytes(10)))?;
    /// let _held = acme.try_charge(11)?;
    /// assert_eq!((runtime.root().children_in_excess(), acme.children_in_excess()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn children_in_excess(&self) -> u64 {
        slow_path(|_, _| self.node().children_in_excess())
    }

    /// Whether pressure on `root` asks this group in its first pass: it is above its soft limit, or one between it and
    /// `root` is, `root` included. What is above `root` does not count.
    ///
    /// Source: `mem_cgroup_soft_reclaim_eligible`, soft limit rework (Hocko, 2013).
    ///
    /// ```
    /// # use memcg::{Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(Limit::Bytes(0)))?;
    /// let query = acme.create("q17", Limits::new())?;
    /// let _held = query.try_charge(1)?;
    /// assert!(query.is_soft_eligible(&runtime.root()), "with acme");
    /// assert!(!query.is_soft_eligible(&query));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_soft_eligible(&self, root: &Group) -> bool {
        self.node().is_soft_eligible(root.node())
    }

    /// Bytes of usage that min protects against pressure on `root`: of what the groups between have, its share. 0 for
    /// `root` itself. Worked out from the counters as they are; a few loads a level.
    ///
    /// Source: `effective_protection` in `mm/page_counter.c`.
    ///
    /// ```
    /// # use memcg::{Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().min(Limit::Bytes(50)))?;
    /// let [a, b] = ["a", "b"].map(|name| acme.create(name, Limits::new().min(Limit::Bytes(100))).unwrap());
    /// let _held = [a.try_charge(100)?, b.try_charge(100)?];
    /// assert_eq!(a.effective_min(&runtime.root()), 25, "acme has 50 for both");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn effective_min(&self, root: &Group) -> u64 {
        self.node().effective(Protection::Min, root.node())
    }

    /// Bytes of usage that low protects against pressure on `root`. As [`effective_min`](Self::effective_min).
    ///
    /// ```
    /// # use memcg::{Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().low(Limit::Bytes(50)))?;
    /// let _held = acme.try_charge(100)?;
    /// assert_eq!((acme.effective_low(&runtime.root()), acme.effective_low(&acme)), (50, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn effective_low(&self, root: &Group) -> u64 {
        self.node().effective(Protection::Low, root.node())
    }

    /// What happened to the limits of this group and of all below it. A few loads.
    ///
    /// Source: `memory.events`.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert!(runtime.root().events().iter().all(|(_, count)| count == 0));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn events(&self) -> Events {
        self.node().events.read()
    }

    /// What happened to the limits of this group alone.
    ///
    /// Source: `memory.events.local`.
    ///
    /// ```
    /// # use memcg::{Event, Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(Limit::Bytes(10)))?;
    /// let _held = acme.charge(11);
    /// assert_eq!(acme.events_local().get(Event::Overcharge), 1);
    /// assert_eq!(runtime.root().events_local().get(Event::Overcharge), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn events_local(&self) -> Events {
        self.node().events_local.read()
    }

    /// A max has moved: whoever is above his gives back at once. Returns what this group is above its own then.
    pub(super) fn shrink_to_max(&self) -> u64 {
        let node = self.node();
        let mut request = Request::new(ReclaimCause::Lowered, deadline(node));
        let percents = slow_path(|_, _| node.tree().places.lock().percents);
        if percents {
            for group in self.descendants() {
                shrink(group.node(), &mut request);
            }
        }
        shrink(node, &mut request)
    }
}

/// Reclaim what is above a max, while anything comes. Returns what remains.
fn shrink(node: &'static Node, request: &mut Request) -> u64 {
    let excess = || node.usage().saturating_sub(node.max());
    for _ in 0..ROUNDS_MAX {
        if excess() == 0 || !is_free() {
            break;
        }
        match node.reclaim(excess(), request) {
            Some(round) if round.report.freed > 0 || round.others => {}
            _ => break,
        }
    }
    excess()
}

/// This thread may call foreign code: it neither is in reclaim nor has an allocator of ours on its stack.
fn is_free() -> bool {
    !per_thread::in_reclaim() && !per_thread::in_slow_path()
}

fn deadline(node: &Node) -> Instant {
    Instant::now() + node.tree().reclaim.time.min(TIME_MAX)
}

/// A charge of `requested` to `node` that was refused, after a drain: reclaim below the level that refused, and once
/// more, as long as somebody frees something. Foreign code runs, on this thread, which holds no lock of ours.
#[cold]
pub(super) fn press<T>(
    node: &'static Node,
    requested: u64,
    mut refusal: NodeRefusal<'static>,
    charge: impl Fn() -> Result<T, NodeRefusal<'static>>,
) -> Result<T, ChargeError> {
    let mut request: Option<Request> = None;
    let (mut rounds, mut want) = (0, 0);
    while rounds < ROUNDS_MAX * MUCH {
        let level = refusal.level.gate.node();
        level.count_event(Event::Max);
        if !may_ask(level, requested, &refusal) || request.as_ref().is_some_and(Request::is_over) {
            break;
        }
        let request = request.get_or_insert_with(|| Request::new(ReclaimCause::Full, deadline(level)));
        // What came once and went to others has to come again, for this charge as a whole.
        let short = wanted(level, requested, &refusal);
        want = if want == 0 { short } else { short.max(requested) };
        match round(request, level, requested, want, &refusal) {
            Came::Enough => rounds += 1,
            Came::Little => rounds += MUCH,
            Came::Nothing => break,
        }
        if node.state().is_offline() {
            // Went offline meanwhile, perhaps by a reclaimer.
            return Err(ChargeError::Offline { group: Group::pinned(node.first()), requested });
        }
        refusal = match charge() {
            Ok(charged) => return Ok(charged),
            Err(again) => again,
        };
    }
    refusal.level.failcnt.fetch_add(1, Ordering::Relaxed);
    refusal.level.count_event(Event::Oom);
    let refusal: Refusal = refused(node, requested, &refusal);
    Err(if per_thread::in_reclaim() { ChargeError::InReclaim(refusal) } else { refusal.into() })
}

/// Further counters have nobody to ask, and nobody gives anything for what can never fit.
fn may_ask(level: &Node, requested: u64, refusal: &NodeRefusal<'_>) -> bool {
    let fits = requested <= refusal.max.min(USAGE_MAX).saturating_sub(refusal.reserve);
    fits && is_free() && level.is_memory() && level.can_reclaim()
}

/// What a round for a charge came to.
enum Came {
    /// A good part of what is wanted, a promise that was waited for, or something for other threads, which was waited
    /// for: charge again.
    Enough,
    /// Little. Charge again, but not as often.
    Little,
    /// No use to charge again.
    Nothing,
}

/// One round for a charge.
fn round(request: &mut Request, level: &'static Node, requested: u64, want: u64, refusal: &NodeRefusal<'_>) -> Came {
    let Some(round) = level.reclaim(want, request) else { return Came::Nothing };
    if round.others || round.report.freed > want / MUCH as u64 {
        return Came::Enough;
    }
    if round.report.freed > 0 {
        return Came::Little;
    }
    if request.promises == Promises::Lapse || round.owing.is_empty() {
        return Came::Nothing;
    }
    // It is on its way; others do not pay for it, unless it takes too long. No spinning: who has promised needs the
    // processor.
    let fits = || level.room(refusal.max.saturating_sub(refusal.reserve)) >= requested;
    while round.owing.is_open() && !fits() && !is_over(request.deadline) {
        pause();
    }
    if is_over(request.deadline) {
        (request.deadline, request.promises) = (deadline(level), Promises::Lapse);
    }
    Came::Enough
}

/// What is missing, or somewhat more, so that the next charges need no reclaim.
fn wanted(level: &Node, requested: u64, refusal: &NodeRefusal<'_>) -> u64 {
    let most = refusal.max.saturating_sub(refusal.reserve);
    let spare = (level.batch() / 2).min(refusal.max >> WANT_SHIFT);
    refusal.usage.saturating_add(requested).saturating_sub(most).max(spare)
}
