//! Pressure of a group: for how long its chargers stood still for memory.

use std::fmt;
use std::time::{Duration, Instant};

use super::handle::Group;
use crate::counter::object::Counter;
use crate::pressure::{pressure_levels, stalls};
use crate::state::pressure_level::PressureLevel;
use crate::sync::clock;

/// How long chargers of a group, or of groups below it, stood still for memory: see
/// [`Group::pressure`].
///
/// A charger is a thread or a future that charges. It stands still while it waits for a
/// [reclaimer](crate::Reclaim), for a victim or in line, and while it is delayed above a
/// [high](crate::Limits::high). A future stands still until it is polled again and goes on, or is
/// dropped; one that is forgotten stands still for ever. The following do not count: a charge that
/// is refused at once, a drain of credit, delays that the caller makes itself
/// ([`high_delay`](crate::inspect::GroupInspector::high_delay)), reclaim for a limit that is
/// lowered, and reclaim by [`Group::reclaim`].
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
    /// The part of that time in which a limit of this group, or of a group above, held a charger
    /// up. Every charger of this group meets that limit, so none gets more memory than it leaves;
    /// whether others go on meanwhile with what they have, the crate does not know. Chargers below
    /// that stand still only for limits of groups below add to `some`, and not to `full`.
    pub full: PressureShare,
}

/// A part of the time: in total, and on average over the last 10, 60 and 300 seconds. See
/// [`GroupPressure`].
///
/// The averages are in hundredths of a per cent: 10,000 is all of the time. They are brought up to
/// date at the end of each period of 2 seconds, as the kernel's are, and decay exponentially.
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
    /// The average over 10 seconds, in hundredths of a per cent.
    pub avg10: u32,
    /// The average over 60 seconds, in hundredths of a per cent.
    pub avg60: u32,
    /// The average over 300 seconds, in hundredths of a per cent.
    pub avg300: u32,
    /// The whole time since the group was created.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "total_us", serialize_with = "in_microseconds")
    )]
    pub total: Duration,
}

impl GroupPressure {
    pub(super) fn read_at(group: &Counter, instant: Instant) -> GroupPressure {
        let [some, full] = stalls::read_at(group, instant).map(|share| {
            let [avg10, avg60, avg300] = share.averages();
            PressureShare {
                avg10,
                avg60,
                avg300,
                total: Duration::from_nanos(share.total()),
            }
        });
        GroupPressure { some, full }
    }
}

impl fmt::Display for PressureShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let averages = [
            ("avg10", self.avg10),
            ("avg60", self.avg60),
            ("avg300", self.avg300),
        ];
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
    /// Returns how long chargers of this group, or of groups below, stood still for memory.
    ///
    /// The totals are exact up to this call, to the nanosecond of the system's clock. The averages
    /// are those of the last whole period of 2 seconds. The call takes one lock of the tree for a
    /// moment, which chargers take when they stop and when they go on. All figures are zero if the
    /// runtime [does not count stalls](crate::RuntimeBuilder::count_stalls).
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
    /// let _held = query.charge(100)?;
    /// let waits = pin!(query.charge_async(1));
    /// assert!(waits.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    /// assert!(!query.pressure().full.total.is_zero(), "acme's max is met by each charger of the query");
    /// let root = runtime.root().pressure();
    /// assert!(!root.some.total.is_zero() && root.full.total.is_zero(), "groups beside acme go on");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pressure(&self) -> GroupPressure {
        GroupPressure::read_at(self.first(), clock::now())
    }
}

/// # Pressure level
impl Group {
    /// Returns how short of memory this group is, for a service that sheds work before memory runs
    /// out. A group without [thresholds](crate::Limits::pressure_levels) has the pressure level of
    /// the nearest group above that has some, and if none has, [`Normal`](PressureLevel::Normal).
    ///
    /// It takes one load while usage is below the thresholds, and a few more while live bytes alone
    /// are above them. In between, credit may be what keeps usage up. The call then takes the
    /// tree's lock, for which it may wait as long as a drain takes, and reads one slot for each
    /// thread and open stock below. If usage is above a threshold by credit alone, it drains that
    /// credit, which costs a barrier. It runs no foreign code: listeners of a change are called on
    /// another thread.
    ///
    /// The pressure level is the higher of two:
    ///
    /// * By usage, beside the shares of the group's own max. It rises with usage, from the return
    ///   of a charge or a new max: with credit, so early by at most
    ///   [`stocked_bound`](crate::PageCounter::stocked_bound). It falls with live bytes: once
    ///   enough bytes have been given back, a call finds it down, even if they have become credit.
    ///   If the credit lies in more than 64 slots, that may be late by 100 ns for each. What an
    ///   allocator charges counts from the next slow path of any thread on.
    /// * By stalls of chargers here and below, on average over 10 seconds. It is elevated from 10%
    ///   of [some](GroupPressure::some) and critical from 40% of [full](GroupPressure::full), and
    ///   falls below half of that. A thread of the crate looks every 2 seconds, from the first
    ///   stall until the pressure of stalls is gone, so this part falls even if nothing charges any
    ///   more. It is always normal if the runtime [does not count
    ///   stalls](crate::RuntimeBuilder::count_stalls), or the system cannot start the thread.
    ///
    /// Each change counts one [`Event::PressureLevel`](crate::Event::PressureLevel) at the group
    /// whose thresholds decide, for listeners and waits there and above. Nothing is notified of
    /// bytes that become credit, so the event of a fall comes with the next call of this function,
    /// the next wait for it, the next walk below the group, or the next visit of a
    /// [flusher](crate::Runtime::start_flusher), whichever is first. A group that is offline has no
    /// pressure of its own. A charge counts while it is being tried, even if a group above refuses
    /// it in the end: it may raise the pressure level, which then stays until usage is a sixteenth
    /// below the threshold.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use memcg::{Event, Limits, PressureLevel};
    ///
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(1_000).pressure_levels(80, 95))?;
    /// let query = acme.create("q17", Limits::new())?;
    /// let held = query.charge(950)?;
    /// assert_eq!(query.pressure_level(), PressureLevel::Critical, "that of acme");
    /// let seen = acme.events().local(); // before the look: no change is missed
    /// if acme.pressure_level() > PressureLevel::Normal {
    ///     tokio::spawn(async move { drop(held) });
    ///     seen.changed(Event::PressureLevel).await;
    /// }
    /// assert_eq!(acme.pressure_level(), PressureLevel::Normal);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn pressure_level(&self) -> PressureLevel {
        PressureLevel::of(pressure_levels::shown(self.first()))
    }
}

#[cfg(feature = "serde")]
fn in_microseconds<S: serde::Serializer>(
    total: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(total.as_micros()).unwrap_or(u64::MAX))
}
