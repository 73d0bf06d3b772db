//! Victims: for a group its policy and flags, for a tree its cancel hooks and the victims that
//! charges wait for.

use std::collections::BTreeMap;
use std::time::Instant;

use smallvec::SmallVec;

use crate::counter::handle::Handle;
use crate::counter::handle::WeakCounter;
use crate::counter::object::HeaderRef;
use crate::state::callback::Callback;
use crate::state::key::Key;
use crate::sync::stat_atomic::{AtomicBool, AtomicU16};
use crate::sync::{Arc, Ordering};
use crate::thread::foreign::Foreign;

/// What a group does with a charge that does not fit below its max, once reclaim has not freed
/// enough: see [`Group::set_oom_policy`](crate::Group::set_oom_policy).
///
/// ```
/// use memcg::{Limits, OomPolicy, Runtime};
/// use std::sync::{Arc, Mutex};
///
/// let runtime = Runtime::builder().max(100).build()?;
/// runtime.root().set_oom_policy(OomPolicy::Choose);
/// let [hog, query] = ["hog", "q17"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
/// let held = Arc::new(Mutex::new(vec![hog.charge(90)?]));
/// let _hook = hog.on_cancel({
///     let held = Arc::clone(&held);
///     move |why| {
///         assert_eq!((why.group().path(), why.wanted()), ("/hog".to_string(), 50));
///         held.lock().unwrap().clear(); // a service would stop the query
///     }
/// });
/// let _charge = query.charge(50)?;
/// assert_eq!((hog.live(), query.live()), (0, 50));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum OomPolicy {
    /// Does as the nearest group above that has a policy of its own; if there is none, refuses.
    #[default]
    Inherit,
    /// Refuses the charge, or lets it wait in line if its caller asked for that.
    Refuse,
    /// Cancels the group below that is furthest above its share, and has the charge wait for its
    /// memory, for at most [`oom_time`](crate::RuntimeBuilder::oom_time); then the next one. If no
    /// candidate is left, the charge is refused.
    ///
    /// Groups below inherit the policy, so one that reaches its *own* max may be the victim itself:
    /// [`Group::set_oom_policy`](crate::Group::set_oom_policy) says how to avoid that. A victim may
    /// charge again once its memory is back.
    ///
    /// No group is cancelled in vain: if free room, what reclaimers have promised and all that the
    /// candidates hold are together less than what is wanted, the charge is refused at once. In the
    /// choice the requested bytes count as the charging group's own, so a group that asks for much
    /// may be the victim itself.
    ///
    /// A group's share is what its low protects or its soft limit, whichever is more. Only groups
    /// with a [cancel hook](crate::Group::on_cancel) can be chosen; of two of which one is below
    /// the other, the one that has more of its own. [Importance](crate::Limits::importance) comes
    /// before all of that. The policy is for memory only, not for further counters.
    Choose,
}

impl OomPolicy {
    /// Cancels groups as [`Choose`](Self::Choose) does, in an order of your own: `order` returns
    /// the index of the candidate that is cancelled next, or `None` to spare all of them and refuse
    /// the charge.
    ///
    /// The candidates are the groups that may be cancelled: none is more important than the group
    /// that asks, and together they hold enough. The first is the one that this crate would choose.
    /// Each charge that finds no other victim under way calls the order, on its own thread and with
    /// no lock of this crate held; several threads may call it at once. Charges that the order
    /// makes itself are refused at once if they do not fit. No other charge waits for it.
    ///
    /// The order may fail. A panic is caught and counted as [`Event::Panic`](crate::Event::Panic)
    /// of the group with the policy. After a panic, and for an index that is out of range or names
    /// a group that can no longer be chosen, this crate's own order is used. The order of a group
    /// that went offline is dropped when the next order is set.
    ///
    /// ```
    /// use memcg::{Limits, OomPolicy, Runtime};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let runtime = Runtime::builder().max(100).build()?;
    /// // The least usage first: the youngest query loses the least work.
    /// runtime.root().set_oom_policy(OomPolicy::by(|candidates| {
    ///     (0..candidates.len()).min_by_key(|&at| candidates[at].usage())
    /// }));
    /// let [old, young] = ["old", "young"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _old = old.charge(70)?;
    /// let held = Arc::new(Mutex::new(vec![young.charge(30)?]));
    /// let _hooks = [old.on_cancel(|_| unreachable!()), young.on_cancel(move |_| held.lock().unwrap().clear())];
    /// let _charge = runtime.root().charge(20)?;
    /// assert_eq!((old.live(), young.live()), (70, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn by(
        order: impl Fn(&[OomCandidate]) -> Option<usize> + Send + Sync + 'static,
    ) -> OomOrder {
        let order: Box<AnyOrder> = Box::new(order);
        OomOrder {
            policy: OomPolicy::Choose,
            order: Some(Arc::new(Foreign::new(order))),
        }
    }
}

impl OomPolicy {
    /// As a file has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            OomPolicy::Inherit => "inherit",
            OomPolicy::Refuse => "refuse",
            OomPolicy::Choose => "choose",
        }
    }
}

type AnyOrder = dyn Fn(&[OomCandidate]) -> Option<usize> + Send + Sync;

pub(crate) type VictimOrder = Foreign<Box<AnyOrder>>;

/// The argument of [`Group::set_oom_policy`](crate::Group::set_oom_policy): an [`OomPolicy`], or an
/// order of your own by [`OomPolicy::by`], which has an example.
#[derive(Clone)]
pub struct OomOrder {
    pub(crate) policy: OomPolicy,
    pub(crate) order: Option<Arc<VictimOrder>>,
}

impl From<OomPolicy> for OomOrder {
    fn from(policy: OomPolicy) -> OomOrder {
        OomOrder {
            policy,
            order: None,
        }
    }
}

debug_figures!(OomOrder, |order| policy: order.policy, is_by: order.order.is_some());

/// A group that may be cancelled, as an [order of your own](OomPolicy::by) sees it. All figures
/// were read when the candidates were listed.
///
/// ```
/// use memcg::OomCandidate;
///
/// // Queries of tenants that are furthest above their share, and of these the one that asks for most.
/// fn order(candidates: &[OomCandidate]) -> Option<usize> {
///     (0..candidates.len()).max_by_key(|&at| (candidates[at].overrun(), candidates[at].wants()))
/// }
/// # let runtime = memcg::Runtime::builder().build()?;
/// runtime.root().set_oom_policy(memcg::OomPolicy::by(order));
/// # Ok::<(), memcg::BuildError>(())
/// ```
pub struct OomCandidate {
    pub(crate) group: Handle,
    pub(crate) importance: u8,
    pub(crate) overrun: u64,
    pub(crate) wants: u64,
    pub(crate) usage: u64,
}

impl OomCandidate {
    /// Returns the [importance](crate::Limits::importance): the highest of the groups that would be
    /// cancelled with this one and have a hook.
    pub fn importance(&self) -> u8 {
        self.importance
    }

    /// Returns the bytes by which the group is above its share, without those of candidates below
    /// it.
    pub fn overrun(&self) -> u64 {
        self.overrun
    }

    /// Returns the bytes that the charge asks for if it is a charge of this group, otherwise 0.
    pub fn wants(&self) -> u64 {
        self.wants
    }

    /// Returns the bytes that the group uses, without those of candidates below it.
    pub fn usage(&self) -> u64 {
        self.usage
    }
}

debug_figures!(OomCandidate, |candidate| importance: candidate.importance, overrun: candidate.overrun);

/// Why a group is cancelled: what its hook is told.
///
/// See [`Group::on_cancel`](crate::Group::on_cancel).
///
/// ```
/// use memcg::{ChargeError, Limits, OomPolicy, Runtime};
///
/// let runtime = Runtime::builder().max(100).build()?;
/// runtime.root().set_oom_policy(OomPolicy::Choose);
/// let hog = runtime.root().create("hog", Limits::new().soft(30))?;
/// let _hook = hog.on_cancel(|why| {
///     assert_eq!((why.group().path(), why.domain().path()), ("/hog".to_string(), "/".to_string()));
///     assert_eq!((why.wanted(), why.overrun()), (20, 60));
/// });
/// let _held = hog.charge(90)?;
/// assert!(matches!(hog.charge(20), Err(error) if error.is_cancelled()), "it is the one that goes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CancelInfo {
    pub(crate) group: HeaderRef,
    pub(crate) domain: HeaderRef,
    pub(crate) wanted: u64,
    pub(crate) overrun: u64,
}

impl CancelInfo {
    /// Returns the bytes of the charge that does not fit, or the bytes above a max that was
    /// lowered.
    pub fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Returns the bytes by which the victim was above its share when it was chosen; for a subtree
    /// that goes as one, those of the whole subtree. 0 for a group that was chosen because of what
    /// it asks for.
    pub fn overrun(&self) -> u64 {
        self.overrun
    }
}

debug_figures!(CancelInfo, |cancel| wanted: cancel.wanted, overrun: cancel.overrun);

/// The group stands for its whole subtree: all of it is cancelled at once.
pub(crate) const TOGETHER: u16 = 1;
/// The group and all below it are spared.
pub(crate) const EXEMPT: u16 = 1 << 1;
/// The group and all below it are only observed.
pub(crate) const OBSERVES: u16 = 1 << 2;
const REFUSES: u16 = 1 << 3;
const CHOOSES: u16 = 1 << 4;
/// The service gives the order of choice itself.
pub(crate) const ORDERS: u16 = 1 << 5;
/// From this bit on: the importance that the group was given, plus 1; 0 where it has that of the
/// group above.
const IMPORTANCE_SHIFT: u32 = 7;

/// A group's OOM policy, the flags beside it, and its importance. Relaxed, all of them: settings,
/// of which no order is relied on.
#[derive(Default)]
pub(crate) struct OomFlags(AtomicU16);

impl OomFlags {
    pub(crate) fn is_clean(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    pub(crate) fn policy(&self) -> OomPolicy {
        match self.0.load(Ordering::Relaxed) & (REFUSES | CHOOSES) {
            0 => OomPolicy::Inherit,
            REFUSES => OomPolicy::Refuse,
            _ => OomPolicy::Choose,
        }
    }

    pub(crate) fn set_policy(&self, policy: OomPolicy) {
        let bits = match policy {
            OomPolicy::Inherit => 0,
            OomPolicy::Refuse => REFUSES,
            OomPolicy::Choose => CHOOSES,
        };
        // In one exchange: a thread that looks between two would find no policy, and take that of
        // the group above.
        let set = |old: u16| Some(old & !(REFUSES | CHOOSES) | bits);
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    pub(crate) fn importance(&self) -> Option<u8> {
        let set = (self.0.load(Ordering::Relaxed) >> IMPORTANCE_SHIFT).checked_sub(1);
        set.and_then(|importance| u8::try_from(importance).ok())
    }

    pub(crate) fn set_importance(&self, importance: u8) {
        let importance = (u16::from(importance) + 1) << IMPORTANCE_SHIFT;
        let set = |old: u16| Some(old & ((1 << IMPORTANCE_SHIFT) - 1) | importance);
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    /// The group has the importance of the group above again.
    pub(crate) fn clear_importance(&self) {
        self.0
            .fetch_and((1 << IMPORTANCE_SHIFT) - 1, Ordering::Relaxed);
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.0.load(Ordering::Relaxed) & flag != 0
    }

    pub(crate) fn set(&self, flag: u16, set: bool) {
        if set {
            self.0.fetch_or(flag, Ordering::Relaxed)
        } else {
            self.0.fetch_and(!flag, Ordering::Relaxed)
        };
    }
}

#[derive(Default)]
pub(crate) struct Oom {
    /// In the order in which they came, each with a number.
    pub(crate) hooks: BTreeMap<Key, Arc<Callback<CancelInfo>>>,
    /// Hooks that there were.
    pub(crate) numbers: u64,
    pub(crate) victims: Vec<Arc<Victim>>,
    /// Orders that services give themselves, each with the group that has it. It may be gone by
    /// now.
    pub(crate) orders: Vec<(WeakCounter, Arc<VictimOrder>)>,
}

/// A group whose memory is being waited for.
pub(crate) struct Victim {
    /// Itself and all above it.
    pub(crate) levels: SmallVec<[WeakCounter; 8]>,
    pub(crate) until: Instant,
    /// Its usage once it has no more to give.
    pub(crate) share: u64,
    /// Groups below it that have hooks of their own, and answer for themselves.
    pub(crate) inner: SmallVec<[WeakCounter; 4]>,
    /// The thread that chose it has spared it, and called no hook of it. Read and written under the
    /// lock.
    pub(crate) spared: AtomicBool,
    /// It is cancelled: from here on its tasks are told at their checkpoints. Read and written
    /// under the lock.
    pub(crate) cancelled: AtomicBool,
}
