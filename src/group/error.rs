//! The errors of groups. Each prints as one line: which group refused, its usage and limit, which
//! group asked for how much.

use std::fmt;
use std::time::Duration;

use super::counter::CounterKey;
use super::handle::Group;
use super::refusal::{OverLimitError, Remedy, WAIT, amount};
use crate::admission::attempt::{ChargeFailure, RefusalKind};
use crate::counter::object;
use crate::pressure::incidents;
use crate::stat::Unit;
use crate::stat::item::InUnit;
use crate::state::incidents::IncidentKind;
use crate::state::name::{beginning, is_format};
use crate::thread::context;
use crate::units::{Bytes, Percent};

/// Why a charge was not made. Nothing of the charge remains at any level.
///
/// [`kind`](Self::kind) says what stood in the way, [`over_limit`](Self::over_limit) has the
/// figures of the group that was full, and [`remedy`](Self::remedy) says what can make the charge
/// fit later. [`Group::try_charge`] returns three kinds: `OverLimit`, `WouldBlock` and `Offline`.
/// [`Group::charge`] never returns `WouldBlock`, and may return `Cancelled`.
///
/// ```
/// use memcg::{ChargeErrorKind, Limits, Runtime};
///
/// let runtime = Runtime::builder().max(memcg::Limit::mib(1)).build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let error = query.charge(usize::MAX).unwrap_err();
/// match error.kind() {
///     ChargeErrorKind::OverLimit => assert_eq!(error.over_limit().unwrap().group(), &runtime.root()),
///     ChargeErrorKind::Cancelled | ChargeErrorKind::Offline => panic!("the work ends"),
///     _ => panic!("from calls that wait, or do not begin to"),
/// }
/// query.offline()?;
/// assert!(query.charge(1).unwrap_err().is_offline());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ChargeError {
    repr: Repr,
}

/// The kind of a [`ChargeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChargeErrorKind {
    /// The charge does not fit below a max on its path, or usage would pass 2^63.
    OverLimit,
    /// The charge does not fit now, but memory may come, and this call does not wait for it. Calls
    /// that never wait return it (see the table of [`Group::charge_with`]), and
    /// [`Group::checkpoint_async`] if the memory that it waited for has not come. Try again later,
    /// or wait with [`Group::charge_async`].
    ///
    /// From [`OnFull::Reclaim`](crate::OnFull::Reclaim): a victim, a reclaimer that has promised,
    /// or another thread's reclaim is about to give memory back. From
    /// [`OnFull::Start`](crate::OnFull::Start): work to make room was started. From
    /// [`OnFull::Now`](crate::OnFull::Now): a stock may have credit, a reclaimer can be asked or a
    /// victim chosen. From [`OnFull::IfRoom`](crate::OnFull::IfRoom): nothing was done to make
    /// room, and there are no figures; [`remedy`](ChargeError::remedy) looks at the groups as they
    /// are.
    ///
    /// ```
    /// # use memcg::{OnFull, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let refused = runtime.root().charge_with(101, OnFull::IfRoom).unwrap_err();
    /// let line = "/ has no room for 101 B at once; neither waiting nor reclaim can help";
    /// assert_eq!((refused.to_string().as_str(), refused.over_limit().is_none()), (line, true));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    WouldBlock,
    /// The charge waited in line for the whole time that the caller allowed, and did not fit. The
    /// figures are those at the end of that time.
    TimedOut,
    /// The group was chosen to give its memory back, by this charge or by another one.
    Cancelled,
    /// The group is offline and takes no charges any more. It may be so because the last handle of
    /// its [`Runtime`](crate::Runtime) is gone, which takes all groups offline.
    Offline,
    /// The charge was to be transferred to a group of another runtime, or made to a counter that
    /// belongs to another runtime.
    OtherRuntime,
}

#[derive(Clone, Debug)]
pub(crate) enum Repr {
    Limit(OverLimitError),
    InReclaim(OverLimitError),
    WouldBlock(OverLimitError),
    /// It does not fit at once, and the call did nothing to make room.
    NoRoom {
        group: Group,
        requested: u64,
    },
    TimedOut {
        refusal: Box<OverLimitError>,
        waited: Duration,
    },
    Cancelled {
        group: Group,
        counter: CounterKey,
        requested: u64,
    },
    Offline {
        group: Group,
        counter: CounterKey,
        requested: u64,
    },
    OtherRuntime {
        from: Group,
        to: Group,
    },
    UnknownCounter {
        group: Group,
        counter: usize,
    },
}

impl From<Repr> for ChargeError {
    fn from(repr: Repr) -> ChargeError {
        ChargeError { repr }
    }
}

impl fmt::Debug for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.repr, f)
    }
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.repr {
            Repr::Limit(inner) => inner.write(f, "", inner.helps, None),
            Repr::InReclaim(inner) => {
                inner.write(f, "inside reclaim, which does not nest", inner.helps, None)
            }
            Repr::WouldBlock(inner) => inner.write(
                f,
                "memory may come, and this charge does not wait for it",
                self.remedy(),
                Some(WAIT),
            ),
            Repr::NoRoom { group, requested } => {
                let path = group.shown_path();
                let bytes = Bytes(*requested);
                let helps = self.remedy();
                write!(f, "{path} has no room for {bytes} at once; {helps}")?;
                match helps {
                    Remedy::Reclaim => f.write_str(" (charge)"),
                    Remedy::Waiting => f.write_str(" (charge_async)"),
                    Remedy::Nothing => Ok(()),
                }
            }
            Repr::TimedOut { refusal, waited } => {
                let longer = (refusal.helps != Remedy::Nothing).then_some("wait longer");
                refusal.write(
                    f,
                    &format!("after {waited:.1?} in line"),
                    refusal.helps,
                    longer,
                )
            }
            Repr::Cancelled {
                counter,
                group,
                requested,
            } => {
                // A charge of 0 bytes is never refused there.
                let asked = if *requested == 0 {
                    "a checkpoint"
                } else {
                    &amount(group.nth(counter.number), *requested)
                };
                let path = group.shown_path();
                write!(
                    f,
                    "{path} is cancelled to make room: {asked} refused; release what it holds"
                )
            }
            Repr::Offline {
                counter,
                group,
                requested,
            } => {
                let path = group.shown_path();
                let amount = amount(group.nth(counter.number), *requested);
                if runtime_is_gone(group) {
                    write!(f, "the runtime of {path} is gone: {amount} refused; ")?;
                    f.write_str("keep a handle of the Runtime as long as its groups charge")
                } else {
                    write!(
                        f,
                        "{path} is offline: {amount} refused; charge a group that is online"
                    )
                }
            }
            Repr::OtherRuntime { from, to } => {
                write!(
                    f,
                    "{} and {} belong to two runtimes",
                    from.shown_path(),
                    to.shown_path()
                )
            }
            Repr::UnknownCounter { counter, group } => {
                write!(
                    f,
                    "{} has no counter number {counter}: it is one of another runtime",
                    group.shown_path()
                )
            }
        }
    }
}

impl std::error::Error for ChargeError {
    /// The refusal with its figures, where a limit was in the way: an [`OverLimitError`]. Its text is
    /// the figures alone, so a report that prints all sources says nothing twice.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let refusal: &(dyn std::error::Error + 'static) = self.over_limit()?;
        Some(refusal)
    }
}

impl ChargeError {
    /// Returns what stood in the way.
    pub fn kind(&self) -> ChargeErrorKind {
        match self.repr {
            Repr::Limit(_) | Repr::InReclaim(_) => ChargeErrorKind::OverLimit,
            Repr::WouldBlock(_) | Repr::NoRoom { .. } => ChargeErrorKind::WouldBlock,
            Repr::TimedOut { .. } => ChargeErrorKind::TimedOut,
            Repr::Cancelled { .. } => ChargeErrorKind::Cancelled,
            Repr::Offline { .. } => ChargeErrorKind::Offline,
            Repr::OtherRuntime { .. } | Repr::UnknownCounter { .. } => {
                ChargeErrorKind::OtherRuntime
            }
        }
    }

    /// Returns true for [`ChargeErrorKind::OverLimit`].
    pub fn is_over_limit(&self) -> bool {
        self.kind() == ChargeErrorKind::OverLimit
    }

    /// Returns true for [`ChargeErrorKind::WouldBlock`].
    pub fn is_would_block(&self) -> bool {
        self.kind() == ChargeErrorKind::WouldBlock
    }

    /// Returns true for [`ChargeErrorKind::TimedOut`].
    pub fn is_timeout(&self) -> bool {
        self.kind() == ChargeErrorKind::TimedOut
    }

    /// Returns true for [`ChargeErrorKind::Cancelled`].
    pub fn is_cancelled(&self) -> bool {
        self.kind() == ChargeErrorKind::Cancelled
    }

    /// Returns true for [`ChargeErrorKind::Offline`].
    pub fn is_offline(&self) -> bool {
        self.kind() == ChargeErrorKind::Offline
    }

    /// Returns true for [`ChargeErrorKind::OtherRuntime`].
    pub fn is_other_runtime(&self) -> bool {
        self.kind() == ChargeErrorKind::OtherRuntime
    }

    /// Returns true if the charge was made inside a reclaimer and is over a limit. No other
    /// reclaimer was asked there, because reclaim does not nest.
    pub fn is_in_reclaim(&self) -> bool {
        matches!(self.repr, Repr::InReclaim(_))
    }

    /// Returns the group that was to be charged. For a transfer to another runtime it is the group
    /// that still has the charge.
    ///
    /// ```
    /// # use memcg::Runtime;
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let error = runtime.root().charge(101).unwrap_err();
    /// assert_eq!((error.group(), error.requested()), (&runtime.root(), 101));
    /// assert_eq!(error.over_limit().map(|refusal| (refusal.want(), refusal.max())), Some((1, 100)));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn group(&self) -> &Group {
        match &self.repr {
            Repr::Limit(refusal) | Repr::InReclaim(refusal) | Repr::WouldBlock(refusal) => {
                refusal.requester()
            }
            Repr::TimedOut { refusal, .. } => refusal.requester(),
            Repr::NoRoom { group, .. }
            | Repr::Cancelled { group, .. }
            | Repr::Offline { group, .. }
            | Repr::OtherRuntime { from: group, .. }
            | Repr::UnknownCounter { group, .. } => group,
        }
    }

    /// Returns the amount that was asked for, in the unit of its counter. It is 0 at a
    /// [checkpoint](Group::checkpoint), and for [`ChargeErrorKind::OtherRuntime`].
    pub fn requested(&self) -> u64 {
        match &self.repr {
            Repr::NoRoom { requested, .. }
            | Repr::Cancelled { requested, .. }
            | Repr::Offline { requested, .. } => *requested,
            _ => self.over_limit().map_or(0, OverLimitError::requested),
        }
    }

    /// Returns the group whose max was in the way, with its figures at that moment. `None` if no
    /// limit was, and for [`OnFull::IfRoom`](crate::OnFull::IfRoom), whose refusals have no
    /// figures. It is also the error's [`source`](std::error::Error::source).
    pub fn over_limit(&self) -> Option<&OverLimitError> {
        match &self.repr {
            Repr::Limit(refusal) | Repr::InReclaim(refusal) | Repr::WouldBlock(refusal) => {
                Some(refusal)
            }
            Repr::TimedOut { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Returns how long the charge has waited in line, at least its time limit, for
    /// [`ChargeErrorKind::TimedOut`]; `None` for all other kinds.
    pub fn waited(&self) -> Option<Duration> {
        match self.repr {
            Repr::TimedOut { waited, .. } => Some(waited),
            _ => None,
        }
    }

    /// Sets the time that [`waited`](Self::waited) returns and the error prints; it does nothing to
    /// other kinds than [`ChargeErrorKind::TimedOut`]. It is for a queue whose waiters have waited
    /// before one of them came into line.
    #[must_use]
    pub fn with_waited(mut self, time: Duration) -> Self {
        if let Repr::TimedOut { waited, .. } = &mut self.repr {
            *waited = time;
        }
        self
    }

    /// Returns what can make the same charge fit later, by the figures of the refusal: see
    /// [`Remedy`]. A refusal of [`OnFull::IfRoom`](crate::OnFull::IfRoom) has no figures, so this
    /// call looks at the groups as they are now, which takes a few loads and a lock for each level.
    pub fn remedy(&self) -> Remedy {
        match &self.repr {
            Repr::NoRoom { group, requested } => Remedy::now(group, *requested),
            Repr::WouldBlock(refusal) if refusal.helps == Remedy::Nothing => Remedy::Waiting,
            _ => self
                .over_limit()
                .map_or(Remedy::Nothing, |refusal| refusal.helps),
        }
    }

    /// Makes the error that a charge to `counter` returns.
    #[cold]
    pub(super) fn new(
        failure: ChargeFailure<'_>,
        counter: &object::Counter,
        requested: u64,
    ) -> ChargeError {
        let group = || Group::pinned(counter.first());
        let named = || CounterKey::of_counter(counter);
        let (refusal, kind) = match failure {
            ChargeFailure::Refused { refusal, kind, .. } => (refusal, kind),
            ChargeFailure::Offline => {
                return Repr::Offline {
                    group: group(),
                    counter: named(),
                    requested,
                }
                .into();
            }
            ChargeFailure::Cancelled => {
                return Repr::Cancelled {
                    group: group(),
                    counter: named(),
                    requested,
                }
                .into();
            }
        };
        let error = OverLimitError::new(counter, requested, &refusal);
        let (kind, error) = match kind {
            // Inside reclaim neither waiting nor reclaim is possible, whatever would help
            // elsewhere.
            RefusalKind::Full(_) if context::in_reclaim() => {
                (IncidentKind::Refused, Repr::InReclaim(error))
            }
            RefusalKind::Full(Some(_)) => (IncidentKind::WouldBlock, Repr::WouldBlock(error)),
            RefusalKind::Full(None) => (IncidentKind::Refused, Repr::Limit(error)),
            RefusalKind::TimedOut(waited) => (
                IncidentKind::TimedOut,
                Repr::TimedOut {
                    refusal: Box::new(error),
                    waited,
                },
            ),
        };
        incidents::note(kind, counter, requested, &refusal);
        error.into()
    }
}

/// A group, or a child of it that was to be created.
fn place(group: &Group, name: Option<&str>) -> String {
    let path = group.shown_path();
    name.map_or(path.clone(), |name| {
        format!("{:?} in {path}", beginning(name))
    })
}

/// The root goes offline with its runtime alone.
fn runtime_is_gone(group: &Group) -> bool {
    group
        .first()
        .path_to_root()
        .last()
        .is_some_and(|root| root.state().is_offline())
}

/// Nothing was reclaimed, because this thread is in a reclaimer already, or in an allocator that
/// this crate has called. Reclaim does not nest.
///
/// ```
/// use memcg::errors::ReclaimError;
/// use memcg::{Bytes, ReclaimPriority, Reclaim, ReclaimContext, Runtime};
/// use std::sync::Arc;
///
/// struct Nests;
/// impl Reclaim for Nests {
///     fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
///         assert!(matches!(context.target().reclaim(Bytes(want)), Err(ReclaimError { .. })));
///         0
///     }
/// }
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let _registration = root.register_reclaimer(Arc::new(Nests), ReclaimPriority::NORMAL);
/// let _held = root.charge(10)?;
/// assert_eq!(root.reclaim(10)?.panics, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReclaimError {
    /// The group whose memory was asked for.
    pub group: Group,
}

impl fmt::Display for ReclaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.group.shown_path();
        write!(
            f,
            "nothing reclaimed of {path}: this thread is in a reclaimer already, and reclaim does not nest"
        )
    }
}

impl std::error::Error for ReclaimError {}

/// Why a group was not created. Nothing of it remains.
///
/// ```
/// use memcg::errors::CreateError;
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let _acme = root.create("acme", Limits::new())?;
/// assert!(matches!(root.create("acme", Limits::new()), Err(CreateError::Taken { .. })));
/// assert_eq!(root.create("a/b", Limits::new()).unwrap_err().to_string(), "cannot create \"a/b\" in /: a name has no `/`");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CreateError {
    /// The name is not allowed.
    Name {
        /// The group that was to be its parent.
        parent: Group,
        /// The name; of one that is too long the beginning.
        name: String,
        /// The fault of the name.
        fault: NameError,
    },
    /// The parent has a child of that name: [`Group::get_or_create`] returns it.
    Taken {
        /// The child that has the name.
        group: Group,
    },
    /// The parent is offline.
    Offline {
        /// The group that was to be its parent.
        parent: Group,
        /// The name.
        name: String,
    },
    /// As many groups exist as [`groups_max`](crate::RuntimeBuilder::groups_max) allows, dying ones
    /// included.
    Full {
        /// The group that was to be its parent.
        parent: Group,
        /// The name.
        name: String,
        /// The number that is allowed.
        most: u32,
    },
    /// The system gives no memory for it, and no object of another group is free. Nothing is lost:
    /// once memory is given back, the same call succeeds.
    Memory {
        /// The group that was to be its parent.
        parent: Group,
        /// Bytes asked for. The error has no copy of the name, which takes memory.
        bytes: usize,
    },
    /// One of its limits cannot be set.
    Limit(LimitError),
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A group without a name has none to tell, nor has one that could not even be made.
        let nameless = |parent: &Group| format!("a group in {}", parent.shown_path());
        let named = |parent: &Group, name: &str| {
            if name.is_empty() {
                nameless(parent)
            } else {
                place(parent, Some(name))
            }
        };
        let (what, why) = match self {
            Self::Name {
                parent,
                name,
                fault,
            } => (place(parent, Some(name)), fault.to_string()),
            Self::Taken { group } => {
                let what = group
                    .parent()
                    .map_or_else(String::new, |parent| named(&parent, &group.name()));
                (
                    what,
                    "the name is taken; get_or_create returns that group".to_string(),
                )
            }
            Self::Offline { parent, name } => {
                let path = parent.shown_path();
                let gone = if runtime_is_gone(parent) {
                    "its runtime is gone, and "
                } else {
                    ""
                };
                (named(parent, name), format!("{gone}{path} is offline"))
            }
            Self::Full { parent, name, most } => (
                named(parent, name),
                format!("there are {most} groups, as many as groups_max allows"),
            ),
            Self::Memory { parent, bytes } => {
                let bytes = Bytes(*bytes as u64);
                (
                    nameless(parent),
                    format!("the system has no {bytes} of memory for it"),
                )
            }
            Self::Limit(inner) => return fmt::Display::fmt(inner, f),
        };
        write!(f, "cannot create {what}: {why}")
    }
}

impl std::error::Error for CreateError {}

/// The fault of the name of a group or of a [setting](crate::Limits::setting).
///
/// ```
/// use memcg::errors::{CreateError, NameError};
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let Err(CreateError::Name { fault, .. }) = runtime.root().create("", Limits::new()) else { panic!() };
/// assert_eq!(fault, NameError::Empty);
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    Empty,
    /// It has more than [`Group::NAME_MAX`] bytes.
    TooLong,
    /// It has a slash, which separates names in a path.
    Slash,
    /// It has a control character, which would break the line of an error.
    Control,
    /// It has a character that changes how others are shown, as U+202E does, or one that separates
    /// lines: what a reader sees would not be the name.
    Format,
    /// It begins with `#`, as does the id that stands for an unnamed group in a path.
    Sharp,
    /// It is `.` or `..`, which in a path looks like another group.
    Dots,
    /// It is the name of a [setting](crate::Limits::setting), and the process already keeps the 255
    /// different names that it can.
    TooMany,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a name is not empty"),
            Self::TooLong => write!(f, "a name has at most {} bytes", Group::NAME_MAX),
            Self::Slash => f.write_str("a name has no `/`"),
            Self::Control => f.write_str("a name has no control characters"),
            Self::Format => {
                f.write_str("a name has no format characters and no separators of lines")
            }
            Self::Sharp => f.write_str("a name does not begin with `#`"),
            Self::Dots => f.write_str("a name is neither `.` nor `..`"),
            Self::TooMany => f.write_str("a process keeps 255 names of settings"),
        }
    }
}

impl std::error::Error for NameError {}

impl NameError {
    /// The fault of the name of a group.
    pub(super) fn of_group(name: &str) -> Option<NameError> {
        match NameError::of_printed(name) {
            Some(fault @ (NameError::Empty | NameError::TooLong)) => Some(fault),
            _ if name.contains('/') => Some(NameError::Slash),
            None if name.starts_with('#') => Some(NameError::Sharp),
            None => matches!(name, "." | "..").then_some(NameError::Dots),
            fault => fault,
        }
    }

    /// The fault of a name that a line prints, and that stands in no path.
    pub(super) fn of_printed(name: &str) -> Option<NameError> {
        if name.is_empty() {
            Some(NameError::Empty)
        } else if name.len() > Group::NAME_MAX {
            Some(NameError::TooLong)
        } else if name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            // One pass over the bytes, for most names: all of it prints.
            None
        } else if name.contains(char::is_control) {
            Some(NameError::Control)
        } else {
            name.contains(is_format).then_some(NameError::Format)
        }
    }
}

/// Why limits were not set. The old ones stay in force.
///
/// ```
/// use memcg::{Limit, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let refused = root.set_limits(Limits::new().max(100).low(Limit::percent(10))).unwrap_err();
/// assert_eq!(refused.to_string(), "cannot set low 10% for /: no group above has a max; set one, or bytes here");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// The limit is a percentage, and no ancestor has a max that it could be a part of.
    NoLimitedAncestor {
        /// The group whose limit was to be set. If that group was to be created, its parent.
        group: Group,
        /// The name of the group that was to be created.
        name: Option<String>,
        /// Which limit.
        limit: &'static str,
        /// The percentage.
        percent: Percent,
    },
    /// The name of the service's [setting](crate::Limits::setting) is not allowed.
    Setting {
        /// The group whose limits were to be set. If that group was to be created, its parent.
        group: Group,
        /// The name of the group that was to be created.
        name: Option<String>,
        /// The fault of the setting's name.
        fault: NameError,
    },
    /// The group was created without [`cover_allocations`](crate::Limits::cover_allocations), which
    /// cannot be set later.
    CoversNot {
        /// The group.
        group: Group,
    },
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLimitedAncestor {
                group,
                name,
                limit,
                percent,
            } => {
                let of = place(group, name.as_deref());
                write!(
                    f,
                    "cannot set {limit} {percent} for {of}: no group above has a max; set one, or bytes here"
                )
            }
            Self::Setting { group, name, fault } => {
                write!(
                    f,
                    "cannot name a setting for {}: {fault}",
                    place(group, name.as_deref())
                )
            }
            Self::CoversNot { group } => {
                write!(
                    f,
                    "{} does not cover allocations: a group asks for that when it is created",
                    group.shown_path()
                )
            }
        }
    }
}

impl std::error::Error for LimitError {}

/// Why a group was not taken offline: it has children online, or it is the root.
///
/// ```
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new())?;
/// let _query = acme.create("q17", Limits::new())?;
/// assert_eq!(acme.offline().unwrap_err().to_string(), "/acme has 1 child online: take it offline first, or all with offline_tree");
/// let root = "/ is the root: it goes offline when the last handle of its Runtime is dropped";
/// assert_eq!(runtime.root().offline().unwrap_err().to_string(), root);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OfflineError {
    /// The group that is still online.
    pub group: Group,
    /// Its children that are online.
    pub children: usize,
}

impl fmt::Display for OfflineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.group.shown_path();
        let children = self.children;
        if self.group.parent().is_none() {
            return write!(
                f,
                "{path} is the root: it goes offline when the last handle of its Runtime is dropped"
            );
        }
        let (noun, them) = if children == 1 {
            ("child", "it")
        } else {
            ("children", "them")
        };
        write!(
            f,
            "{path} has {children} {noun} online: take {them} offline first, or all with offline_tree"
        )
    }
}

impl std::error::Error for OfflineError {}

/// More was to be split off than the charge holds. Nothing has changed. Both amounts print exactly,
/// without rounding.
///
/// ```
/// # let runtime = memcg::Runtime::builder().build()?;
/// let mut charge = runtime.root().charge(10)?;
/// assert_eq!(charge.split(11).unwrap_err().to_string(), "cannot split off 11 B: the charge holds 10 B");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SplitError {
    /// The amount asked for.
    pub requested: u64,
    /// The amount that the charge holds.
    pub bytes: u64,
    /// The unit of both: that of the charge's counter.
    pub unit: Unit,
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [requested, held] = [self.requested, self.bytes].map(|amount| match self.unit {
            Unit::Bytes => format!("{:#}", Bytes(amount)),
            unit => InUnit(amount, unit).to_string(),
        });
        write!(f, "cannot split off {requested}: the charge holds {held}")
    }
}

impl std::error::Error for SplitError {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::{Limits, OnFull, Runtime};

    /// The kinds that calls return, and what each has.
    #[test]
    fn a_kind_and_its_figures() {
        let runtime = Runtime::builder().batch(0).max(100).build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let _held = group.charge(90).unwrap();
        let full = group.charge(20).unwrap_err();
        let late = group
            .charge_with(20, OnFull::Wait(Duration::from_millis(1)))
            .unwrap_err();
        let at_once = group.charge_with(20, OnFull::IfRoom).unwrap_err();
        let elsewhere = Runtime::builder().build().unwrap();
        let moved = group.charge(1).unwrap().transfer(&elsewhere.root());
        let moved = moved.unwrap_err();
        group.offline().unwrap();
        let gone = group.charge(20).unwrap_err();
        for (error, kind, has_figures, requested) in [
            (&full, ChargeErrorKind::OverLimit, true, 20),
            (&late, ChargeErrorKind::TimedOut, true, 20),
            (&at_once, ChargeErrorKind::WouldBlock, false, 20),
            (&moved, ChargeErrorKind::OtherRuntime, false, 0),
            (&gone, ChargeErrorKind::Offline, false, 20),
        ] {
            assert_eq!((error.kind(), error.requested()), (kind, requested));
            assert_eq!(error.group(), &group, "{error}");
            let source = error.source().and_then(<dyn Error>::downcast_ref);
            let figures: Option<&OverLimitError> = source;
            assert_eq!(figures.is_some(), has_figures, "{error}");
            assert_eq!(figures.map_or(10, OverLimitError::want), 10);
            assert_eq!(error.waited().is_some(), error.is_timeout());
        }
        let later = late.clone().with_waited(Duration::from_secs(7));
        assert!(later.to_string().contains("after 7.0s in line"), "{later}");
        assert_eq!(full.clone().with_waited(Duration::ZERO).waited(), None);
    }
}
