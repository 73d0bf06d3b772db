//! Pressure of a group: for how long its chargers stood still for memory, and a trigger on it.

use std::fmt;
use std::time::Duration;

use super::handle::Group;
use crate::pressure::stalls::{self, StallFigures};
use crate::pressure::triggers::{self, NotSet};
use crate::state::stalls::TriggerSetting;

/// For how long chargers of a group, or of groups below it, stood still for memory: see [`Group::pressure`].
///
/// A charger is a thread or a future that charges. It stands still while it waits for a
/// [reclaimer](crate::Reclaim), for a victim or in line, and while it is delayed above a [high](Group::set_high). A
/// future stands still until it is polled again and goes on, or is dropped; one that is forgotten stands still for ever.
/// These are no stalls: a charge that is refused at once, a drain of credit, delays that the caller makes itself
/// ([`Group::high_delay`]), reclaim for a limit that is lowered, and reclaim by [`Group::reclaim`].
///
/// It prints in the form of the kernel's `memory.pressure`, with a total in microseconds.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let expected = "\
/// some avg10=0.00 avg60=0.00 avg300=0.00 total=0
/// full avg10=0.00 avg60=0.00 avg300=0.00 total=0
/// ";
/// assert_eq!(runtime.root().pressure().to_string(), expected);
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GroupPressure {
    /// The time in which at least one charger stood still.
    pub some: PressureShare,
    /// The part of it in which a limit of this group, or of a group above, held a charger up. Each charger of this group
    /// meets that limit, too: none gets more memory than the limit leaves. Whether others run meanwhile on what they
    /// have, the crate does not know. While chargers below stand still for limits of groups below alone, this group has
    /// some and not full.
    pub full: PressureShare,
}

/// A part of the time: in total, and on average over the last 10, 60 and 300 seconds. See [`GroupPressure`].
///
/// The averages are in hundredths of a per cent: 10,000 is all of the time. They move at the end of each period of 2
/// seconds, as the kernel's do, and forget exponentially.
///
/// Source: `calc_avgs` in `kernel/sched/psi.c`.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let some = runtime.root().pressure().some;
/// assert_eq!((some.avg10, some.avg60, some.avg300, some.total.as_micros()), (0, 0, 0, 0));
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PressureShare {
    /// Over 10 seconds, in hundredths of a per cent.
    pub avg10: u32,
    /// Over 60 seconds, in hundredths of a per cent.
    pub avg60: u32,
    /// Over 300 seconds, in hundredths of a per cent.
    pub avg300: u32,
    /// Since the group was created.
    #[cfg_attr(feature = "serde", serde(rename = "total_us", serialize_with = "in_microseconds"))]
    pub total: Duration,
}

/// When a group counts [`Event::Pressure`](crate::Event::Pressure): see [`Group::set_pressure_trigger`].
///
/// ```
/// use std::time::Duration;
///
/// use memcg::{Event, Limits, PressureTrigger, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(100))?;
/// let trigger = PressureTrigger::some(Duration::from_millis(5), Duration::from_secs(1));
/// acme.set_pressure_trigger(Some(trigger))?;
/// let (events, minute) = (acme.events(), Duration::from_secs(60));
/// let held = acme.try_charge(100)?;
/// let waits = std::thread::spawn({
///     let acme = acme.clone();
///     move || acme.charge_timeout(1, minute).is_ok()
/// });
/// assert!(events.wait(Event::Pressure, minute));
/// assert!(acme.pressure().some.total >= Duration::from_millis(5));
/// drop(held);
/// assert!(waits.join().unwrap());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureTrigger {
    full: bool,
    threshold: Duration,
    window: Duration,
}

impl PressureTrigger {
    const WINDOW_MIN: Duration = Duration::from_millis(10);
    const WINDOW_MAX: Duration = Duration::from_secs(3_600);

    /// Some chargers stood still for `threshold` in any `window`.
    pub const fn some(threshold: Duration, window: Duration) -> PressureTrigger {
        PressureTrigger { full: false, threshold, window }
    }

    /// A limit of the group itself, or of a group above, held a charger up for `threshold` in any `window`: see
    /// [`full`](GroupPressure::full).
    ///
    /// ```
    /// # use memcg::PressureTrigger;
    /// # use std::time::Duration;
    /// let trigger = PressureTrigger::full(Duration::from_millis(50), Duration::from_secs(1));
    /// assert!(trigger.is_full() && trigger.threshold() < trigger.window());
    /// ```
    pub const fn full(threshold: Duration, window: Duration) -> PressureTrigger {
        PressureTrigger { full: true, threshold, window }
    }

    /// Returns whether it is about [`full`](GroupPressure::full), and not about `some`.
    pub const fn is_full(&self) -> bool {
        self.full
    }

    /// Returns the time after which the event follows.
    pub const fn threshold(&self) -> Duration {
        self.threshold
    }

    /// Returns the time in which the threshold is looked for.
    pub const fn window(&self) -> Duration {
        self.window
    }

    fn setting(self) -> Result<TriggerSetting, PressureTriggerError> {
        let PressureTrigger { full, threshold, window } = self;
        let is_known = (Self::WINDOW_MIN..=Self::WINDOW_MAX).contains(&window);
        if !is_known || threshold.is_zero() || threshold > window {
            return Err(PressureTriggerError::Time { threshold, window });
        }
        // An hour has less than 2^64 nanoseconds.
        Ok(TriggerSetting { full, threshold: threshold.as_nanos() as u64, window: window.as_nanos() as u64 })
    }
}

/// Why a [trigger](Group::set_pressure_trigger) was not set.
///
/// ```
/// # use memcg::{PressureTrigger, Runtime};
/// # use std::time::Duration;
/// let root = Runtime::builder().build()?.root();
/// let trigger = PressureTrigger::some(Duration::from_secs(2), Duration::from_secs(1));
/// let refused = root.set_pressure_trigger(Some(trigger)).unwrap_err();
/// let line = "2s in 1s: a threshold is above zero and at most its window, a window from 10ms to 3600s";
/// assert_eq!(refused.to_string(), line);
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PressureTriggerError {
    /// The times are none that a trigger can have.
    #[error(
        "{threshold:?} in {window:?}: a threshold is above zero and at most its window, a window from {:?} to {:?}",
        PressureTrigger::WINDOW_MIN,
        PressureTrigger::WINDOW_MAX
    )]
    Time {
        /// The threshold that was asked for.
        threshold: Duration,
        /// The window that was asked for.
        window: Duration,
    },
    /// The runtime counts no stalls.
    #[error("the runtime counts no stalls: it was built with count_stalls(false)")]
    Uncounted,
    /// The group is offline.
    #[error("{} is offline", .group.path())]
    Offline {
        /// The group.
        group: Group,
    },
    /// The system has no memory for the group's counts of events.
    #[error("no memory for the events of {}", .group.path())]
    NoMemory {
        /// The group.
        group: Group,
    },
}

impl PressureShare {
    fn new(figures: StallFigures) -> PressureShare {
        let [avg10, avg60, avg300] = figures.averages;
        PressureShare { avg10, avg60, avg300, total: Duration::from_nanos(figures.total) }
    }
}

impl GroupPressure {
    pub(super) fn new([some, full]: [StallFigures; 2]) -> GroupPressure {
        GroupPressure { some: PressureShare::new(some), full: PressureShare::new(full) }
    }
}

impl fmt::Display for PressureShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let averages = [("avg10", self.avg10), ("avg60", self.avg60), ("avg300", self.avg300)];
        for (name, average) in averages {
            write!(f, "{name}={}.{:02} ", average / 100, average % 100)?;
        }
        write!(f, "total={}", self.total.as_micros())
    }
}

impl fmt::Display for GroupPressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "some {}\nfull {}", self.some, self.full)
    }
}

/// # Pressure
impl Group {
    /// Returns for how long chargers of this group, or of groups below, stood still for memory.
    ///
    /// The totals are exact: the time up to this call, to the nanosecond of the system's clock. The averages are those
    /// of the last period of 2 seconds that is over. The call takes one lock of the tree, which chargers take when they
    /// stop and when they go on. All is zero where the runtime [counts no
    /// stalls](crate::RuntimeBuilder::count_stalls).
    ///
    /// Source: `memory.pressure`, and `Documentation/accounting/psi.rst`.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// # use std::task::{Context, Waker};
    /// # use std::{future::Future, pin::pin};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(100))?;
    /// let query = acme.create("q17", Limits::new())?;
    /// let _held = query.try_charge(100)?;
    /// let waits = pin!(query.charge_async(1));
    /// assert!(waits.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    /// assert!(!query.pressure().full.total.is_zero(), "acme's max is met by each charger of the query");
    /// let root = runtime.root().pressure();
    /// assert!(!root.some.total.is_zero() && root.full.total.is_zero(), "groups beside acme go on");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pressure(&self) -> GroupPressure {
        GroupPressure::new(stalls::read(self.first()))
    }

    /// Has this group count [`Event::Pressure`](crate::Event::Pressure) when chargers have stood still for the trigger's
    /// threshold in any of its windows: at least 50 ms in any 1 s, say. `None` ends that. Listeners, threads and futures
    /// learn of it as of each event, also those of the groups above.
    ///
    /// A window is measured in 64 steps. So a threshold that is reached within a window never stays unseen, and one that is
    /// reached within a window and a step counts, too. A trigger counts what follows its setting, and one event in each
    /// window at most. While chargers stand still a thread of this crate looks when the time is full, within 1 ms where
    /// the processor is free; listeners run on the tree's thread then. Where the system gives no thread, the event follows
    /// when a charger stops or goes on.
    ///
    /// A group has one trigger; going offline ends it. The call takes one lock, and allocates. A trigger costs no charge
    /// anything that does not stand still.
    ///
    /// # Errors
    ///
    /// [`PressureTriggerError::Time`] where the threshold is zero or above the window, or the window is below 10 ms or
    /// above an hour. [`PressureTriggerError::Offline`] for a group that is offline.
    /// [`PressureTriggerError::NoMemory`] where the system has no memory for the group's counts.
    /// [`PressureTriggerError::Uncounted`] where the runtime [counts no stalls](crate::RuntimeBuilder::count_stalls).
    ///
    /// Source: `psi_trigger_create` in `kernel/sched/psi.c`.
    ///
    /// See [`PressureTrigger`] for an example.
    pub fn set_pressure_trigger(&self, trigger: Option<PressureTrigger>) -> Result<(), PressureTriggerError> {
        let setting = trigger.map(PressureTrigger::setting).transpose()?;
        triggers::set(self.first(), setting).map_err(|not_set| match not_set {
            NotSet::Uncounted => PressureTriggerError::Uncounted,
            NotSet::Offline => PressureTriggerError::Offline { group: self.clone() },
            NotSet::NoMemory => PressureTriggerError::NoMemory { group: self.clone() },
        })
    }

    /// Returns the trigger of [`set_pressure_trigger`](Self::set_pressure_trigger); `None` where there is none. It takes
    /// one lock.
    pub fn pressure_trigger(&self) -> Option<PressureTrigger> {
        let TriggerSetting { full, threshold, window } = triggers::setting(self.first())?;
        let [threshold, window] = [threshold, window].map(Duration::from_nanos);
        Some(PressureTrigger { full, threshold, window })
    }
}

#[cfg(feature = "serde")]
fn in_microseconds<S: serde::Serializer>(total: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(total.as_micros()).unwrap_or(u64::MAX))
}
