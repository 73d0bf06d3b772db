//! Victims: for a group its policy and marks, for a tree its cancel hooks and the victims that charges wait for.

use std::time::Instant;

use smallvec::SmallVec;

use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::state::callback::Callback;
use crate::sync::stat_atomic::{AtomicBool, AtomicU8};
use crate::sync::{Arc, Ordering};
use crate::thread::directory::Header;

/// A group's answer to a charge below it that its max refuses, once reclaim has freed nothing.
///
/// ```
/// use memcg::{Limits, OomPolicy, Runtime};
/// use std::sync::{Arc, Mutex};
///
/// let runtime = Runtime::builder().max(100).build()?;
/// runtime.root().set_oom_policy(OomPolicy::Choose);
/// let [hog, query] = ["hog", "q17"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
/// let held = Arc::new(Mutex::new(vec![hog.try_charge(90)?]));
/// let _hook = hog.on_cancel({
///     let held = Arc::clone(&held);
///     move |why| {
///         assert_eq!((why.group().path(), why.wanted()), ("/hog".to_string(), 50));
///         held.lock().unwrap().clear(); // a service would stop the query
///     }
/// });
/// let _charge = query.try_charge(50)?;
/// assert_eq!((hog.live(), query.live()), (0, 50));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum OomPolicy {
    /// The policy of the nearest group above; for the root: refuse.
    #[default]
    Inherit,
    /// The charge is refused, or waits.
    Refuse,
    /// The group below that is furthest above its share is cancelled, and the charge waits for its memory; then the
    /// next one; where no candidate is left it is refused.
    ///
    /// No group is cancelled in vain: where free room, what reclaimers have promised and all that the candidates hold
    /// together are less than what is wanted, the charge is refused at once. What a charge asks for counts as its own
    /// group's in the choice, so a group that asks for much may be the victim itself.
    ///
    /// The share is what low protects or the soft limit, whichever is more. Only groups with a
    /// [cancel hook](crate::Group::on_cancel) can be chosen; of one and another below it, the one that has more of its own.
    /// For memory only.
    Choose,
}

/// Why a group is cancelled.
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
/// let _held = hog.try_charge(90)?;
/// assert!(matches!(hog.try_charge(20), Err(ChargeError::Cancelled { .. })), "it is the one that goes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cancel {
    pub(crate) group: &'static Header,
    pub(crate) domain: &'static Header,
    pub(crate) wanted: u64,
    pub(crate) overrun: u64,
}

impl Cancel {
    /// Bytes of the charge that does not fit, or that are above a max which was lowered.
    pub fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Bytes by which the victim was above its share when it was chosen: this group, or the one that stands for its
    /// whole subtree. 0 for a group that was chosen for what it asks.
    pub fn overrun(&self) -> u64 {
        self.overrun
    }
}

debug_figures!(Cancel, |cancel| wanted: cancel.wanted, overrun: cancel.overrun);

/// The group stands for its whole subtree: all of it is cancelled at once.
pub(crate) const TOGETHER: u8 = 1;
/// The group and all below it are spared.
pub(crate) const EXEMPT: u8 = 1 << 1;
/// The group and all below it are only observed.
pub(crate) const OBSERVES: u8 = 1 << 2;
const REFUSES: u8 = 1 << 3;
const CHOOSES: u8 = 1 << 4;

/// A group's OOM policy, and the marks beside it. Relaxed, all of them: settings, of which no order is relied on.
#[derive(Default)]
pub(crate) struct OomMarks(AtomicU8);

impl OomMarks {
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
        let set = |old: u8| Some(old & !(REFUSES | CHOOSES) | bits);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    pub(crate) fn has(&self, mark: u8) -> bool {
        self.0.load(Ordering::Relaxed) & mark != 0
    }

    pub(crate) fn set(&self, mark: u8, set: bool) {
        if set {
            self.0.fetch_or(mark, Ordering::Relaxed)
        } else {
            self.0.fetch_and(!mark, Ordering::Relaxed)
        };
    }
}

#[derive(Default)]
pub(crate) struct Oom {
    pub(crate) hooks: Vec<Arc<Callback<Cancel>>>,
    pub(crate) victims: Vec<Arc<Victim>>,
}

/// A group whose memory is being waited for. It may be gone: nothing but its generation and its usage is read.
pub(crate) struct Victim {
    pub(crate) group: &'static Counter,
    /// Itself and all above it.
    pub(crate) levels: SmallVec<[VictimName; 8]>,
    pub(crate) until: Instant,
    /// Its usage once it has no more to give.
    pub(crate) share: u64,
    /// Groups below it that have hooks of their own, and answer for themselves.
    pub(crate) inner: SmallVec<[VictimName; 4]>,
    /// The thread that chose it has spared it, and called no hook of it. Read and written under the lock.
    pub(crate) spared: AtomicBool,
    /// It is cancelled: from here on its tasks are told at their checkpoints. Read and written under the lock.
    pub(crate) cancelled: AtomicBool,
}

/// Names a group for as long as the process runs.
pub(crate) type VictimName = (u32, Generation);
