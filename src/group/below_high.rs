//! A wait until usage is below high.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::handle::Group;
use crate::pressure::delays::Alarm;
use crate::pressure::victims::has_ended;
use crate::pressure::{delayed, high};
use crate::sync::clock;
use crate::sync::{is_over, sleep};

/// The future looks at usage once more after this time, at the latest. Within it the thread of
/// delays looks more often than that at first, and then less and less.
const AGAIN: Duration = Duration::from_millis(50);

/// The future of a wait until usage is not above a high: see [`Group::below_high`].
#[must_use = "futures do nothing unless they are polled"]
pub struct BelowHighFuture {
    // The alarm names the group's object, so it goes first.
    alarm: Option<Alarm>,
    group: Group,
}

/// # A wait for usage below high
impl Group {
    /// Waits until this group, and each group above it, is no longer above its
    /// [`high`](crate::Limits::high). It is for a service that spills or sheds work above high, and
    /// takes it up again below. The wait charges nothing, asks no reclaimer and holds up no charge.
    ///
    /// As a future it needs no async runtime; [`BelowHighFuture::wait`] blocks. It ends within 30
    /// ms after usage has fallen, if a processor is free, and at once if the group is offline or
    /// cancelled: then usage may still be above, and [`wait`](BelowHighFuture::wait) returns false.
    /// Other charges may have come by then, so it promises no room. A limit that is [only
    /// observed](crate::Group::set_observe_only) does not count. A thread of this crate, one for
    /// the process, looks at usage meanwhile; if the system cannot start it, the future is ready at
    /// once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let sort = runtime.root().create("sort", Limits::new().high(1_000_000))?;
    /// let rows = sort.force_charge(2_000_000);
    /// let spills = tokio::spawn(async move { drop(rows) });
    /// sort.below_high().await;
    /// assert!(spills.is_finished() && sort.usage() <= 1_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn below_high(&self) -> BelowHighFuture {
        BelowHighFuture {
            alarm: None,
            group: self.clone(),
        }
    }
}

impl BelowHighFuture {
    /// Blocks until usage is not above a high, for at most `time`, and then returns true. Returns
    /// false if that time is over or the group is cancelled while usage is above, and if the group
    /// is offline.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// # use std::time::Duration;
    /// let runtime = Runtime::builder().build()?;
    /// let sort = runtime.root().create("sort", Limits::new().high(1_000_000))?;
    /// let rows = sort.force_charge(2_000_000);
    /// assert!(!sort.below_high().wait(Duration::from_millis(1)));
    /// std::thread::spawn(move || drop(rows));
    /// assert!(sort.below_high().wait(Duration::from_secs(10)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(self, time: Duration) -> bool {
        let until = clock::now().checked_add(time);
        while self.is_above() {
            if until.is_some_and(is_over) || has_ended(self.group.first()) {
                return false;
            }
            let left = until.map_or(high::LOOK, |until| {
                until.saturating_duration_since(clock::now())
            });
            sleep(left.min(high::LOOK));
        }
        // A high of a group that is offline delays nothing more, whatever usage is.
        !self.group.is_offline()
    }

    /// Usage is above a high of the path. Credit that may be all that is above goes back first.
    fn is_above(&self) -> bool {
        let group = self.group.first();
        high::drain_credit(group);
        high::is_delayed(group)
    }
}

impl Future for BelowHighFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        while self.is_above() {
            if self
                .alarm
                .as_ref()
                .is_some_and(|alarm| alarm.renew(context.waker()))
            {
                return Poll::Pending;
            }
            // And then one look more: usage may have fallen before the alarm was set.
            self.alarm = delayed::alarm(self.group.first(), clock::now() + AGAIN, context.waker());
            if self.alarm.is_none() {
                break;
            }
        }
        self.alarm = None;
        Poll::Ready(())
    }
}

debug_figures!(BelowHighFuture, |wait| group: wait.group);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use std::time::Instant;

    use super::*;
    use crate::{Bytes, Limits, OomPolicy, Runtime};

    fn is_ready(group: &Group) -> bool {
        pin!(group.below_high())
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    /// A wait for a group that is to give its memory back, or is gone, is over.
    #[test]
    fn a_wait_ends_with_its_group() {
        let runtime = Runtime::builder()
            .audit(true)
            .max(100)
            .oom_time(Duration::from_secs(600))
            .build()
            .unwrap();
        runtime.root().set_oom_policy(OomPolicy::Choose);
        let [group, other] =
            ["q", "other"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        group.set_limits(Limits::new().high(10)).unwrap();
        let _hook = group.on_cancel(|_| ());
        let held = group.force_charge(Bytes(90));
        assert!(!is_ready(&group) && !group.below_high().wait(Duration::ZERO));
        let mut charge = pin!(other.charge_async(50));
        assert!(
            charge
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending(),
            "the group is told to stop"
        );
        // By the thread of the tree that chooses for the task.
        let end = Instant::now() + Duration::from_secs(60);
        while !is_ready(&group) && Instant::now() < end {
            std::thread::yield_now();
        }
        assert!(is_ready(&group));
        assert!(!group.below_high().wait(Duration::MAX), "it would not end");
        group.offline().unwrap();
        assert!(
            is_ready(&group) && !group.below_high().wait(Duration::MAX),
            "it holds 90 of 10 bytes still"
        );
        drop(held);
    }
}
