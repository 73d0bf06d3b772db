//! The forms of a charge, and what must be true of each of their ends.

use std::task::Poll;
use std::time::{Duration, Instant};

use memcg::{Bytes, Charge, ChargeError, OnFull};

use super::lane::Lane;
use super::tally::{End, Form};
use super::world::{Target, World};
use crate::support::poll::poll_for;
use crate::support::watchdog;

/// For a machine that is busy with other things. A charge that waits longer has been forgotten.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// One call, with its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attempt {
    Charge,
    Try,
    Undelayed,
    Timeout(Duration),
    /// The future is dropped after so long.
    Async(Duration),
    AsyncForEver,
    Overcharge,
}

impl Attempt {
    /// The time that it may wait for room.
    fn time(self) -> Duration {
        match self {
            Attempt::Timeout(time) | Attempt::Async(time) => time,
            _ => Duration::ZERO,
        }
    }

    fn queues(self) -> bool {
        !matches!(
            self,
            Attempt::Charge | Attempt::Try | Attempt::Undelayed | Attempt::Overcharge
        )
    }
}

/// `None`: the future was dropped.
type Outcome = Option<Result<Charge, ChargeError>>;

impl Lane<'_> {
    pub(crate) fn attempt(
        &mut self,
        world: &World,
        target: &Target,
        form: Form,
        attempt: Attempt,
        bytes: u64,
    ) -> Option<Charge> {
        self.tally.begin(form);
        let began = Instant::now();
        let outcome = self.call(world, target, attempt, bytes);
        let after = began.elapsed();
        let late = after.saturating_sub(attempt.time());
        assert!(
            late < LOST_AFTER,
            "{attempt:?} of {bytes} in {}: {after:?}",
            target.group.path()
        );
        let (end, charge) = match outcome {
            Some(Ok(charge)) => {
                assert_eq!(
                    (charge.bytes(), charge.group()),
                    (bytes, target.group.clone())
                );
                self.admit();
                (End::Admitted, Some(charge))
            }
            Some(Err(error)) => (end_of(&error, target, attempt, bytes, after), None),
            None => (End::Dropped, None),
        };
        self.tally.end(form, end, after);
        charge
    }

    fn call(&mut self, world: &World, target: &Target, attempt: Attempt, bytes: u64) -> Outcome {
        let group = &target.group;
        Some(match attempt {
            Attempt::Charge => group.charge(Bytes(bytes)),
            Attempt::Undelayed => group.charge_with(Bytes(bytes), OnFull::Reclaim),
            Attempt::Timeout(time) => group.charge_with(Bytes(bytes), OnFull::Wait(time)),
            Attempt::Try => group.try_charge(Bytes(bytes)),
            Attempt::Overcharge => world.force(target, || Ok(group.force_charge(Bytes(bytes)))),
            Attempt::Async(time) => match poll_for(&mut group.charge_async(Bytes(bytes)), time) {
                Poll::Ready(result) => result,
                Poll::Pending => return None,
            },
            Attempt::AsyncForEver => {
                match poll_for(&mut group.charge_async(Bytes(bytes)), LOST_AFTER) {
                    Poll::Ready(result) => result,
                    Poll::Pending => {
                        let what = format!(
                            "{bytes} bytes in {}, {} wait",
                            group.path(),
                            group.waiting_count()
                        );
                        watchdog::fail(&format!("a waiter is lost: {what}"), self.describe)
                    }
                }
            }
        })
    }
}

/// The end that an error is; that it is true.
fn end_of(
    error: &ChargeError,
    target: &Target,
    attempt: Attempt,
    bytes: u64,
    after: Duration,
) -> End {
    match error {
        error if error.is_over_limit() => {
            let refusal = error.over_limit().expect("a refusal");
            assert_eq!(
                (refusal.requested(), refusal.requester()),
                (bytes, &target.group),
                "{refusal}"
            );
            End::Refused
        }
        error if error.is_would_block() => {
            let refusal = error.over_limit().expect("a refusal");
            assert!(
                matches!(attempt, Attempt::Try | Attempt::Undelayed),
                "{attempt:?}: {error}"
            );
            assert_eq!(
                (refusal.requested(), refusal.requester()),
                (bytes, &target.group),
                "{refusal}"
            );
            End::Refused
        }
        error if error.is_timeout() => {
            let refusal = error.over_limit().expect("a refusal");
            let waited = error.waited().expect("it is the end of a wait");
            assert!(attempt.queues(), "{attempt:?}: {error}");
            assert_eq!(
                (refusal.requested(), refusal.requester()),
                (bytes, &target.group),
                "{refusal}"
            );
            assert!(
                after >= attempt.time(),
                "{attempt:?}: {error}, after {after:?}"
            );
            assert!(waited <= after, "{attempt:?}: {error}, after {after:?}");
            End::TimedOut
        }
        error if error.is_offline() => {
            assert!(target.group.is_offline(), "{attempt:?}: {error}");
            End::Offline
        }
        error if error.is_cancelled() => {
            assert_eq!(
                (error.group(), error.requested()),
                (&target.group, bytes),
                "{attempt:?}: {error}"
            );
            End::Cancelled
        }
        other => panic!("{attempt:?} in {}: {other}", target.group.path()),
    }
}
