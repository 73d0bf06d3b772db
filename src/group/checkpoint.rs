//! Checkpoints: where a task learns that its group is above a limit, or cancelled.

use super::current::current_header;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::allocator;
use super::error::ChargeError;
use super::handle::Group;
use crate::admission::attempt::{ChargeFailure, RefusalKind};
use crate::admission::checkpoint::{check, concerns};
use crate::admission::plain::WaitFor;
use crate::counter::credit::online_or_above;
use crate::counter::object::HeaderRef;
use crate::hierarchy::group_tree;
use crate::pressure::delayed::Delayed;
use crate::pressure::delays::Alarm;
use crate::pressure::stalls::Stall;
use crate::pressure::throttle;
use crate::pressure::victims::is_cancelled;
use crate::reclaim::round::TIME_MAX;
use crate::sync::clock;
use crate::sync::is_over;
use crate::units::{Bytes, IntoBytes};

/// Time until a task asks again whose memory is about to come from others.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// # Checkpoints
impl Group {
    /// Asks whether the work of the current group may go on. It may block, as
    /// [`charge`](Self::charge) does: in async code use
    /// [`checkpoint_async`](Self::checkpoint_async). `group.run(Group::checkpoint)` asks for
    /// another group.
    ///
    /// It is for tasks whose memory is charged by force, as by an allocator: such a task calls it
    /// in its loops.
    ///
    /// A charge that cannot be refused may take a group above its max. The next checkpoint in that
    /// group, or below it, then does the work of a charge that does not fit: it drains credit, asks
    /// reclaimers, has a victim cancelled and waits for it. If the group is still above its max,
    /// the checkpoint is refused. Above a [high](crate::Limits::high) the thread is delayed as by a
    /// charge of 256 KiB. In a group that went offline it asks for the nearest group above that is
    /// online. Without a current group, and inside an allocator, it always succeeds.
    ///
    /// As long as no group of the runtime is above a limit or being cancelled, a checkpoint costs a
    /// few loads of words that no thread writes. If one is, a checkpoint elsewhere loads a few
    /// words of each group above its own.
    ///
    /// Source: `mem_cgroup_handle_over_high` in `mm/memcontrol.c`, which a thread calls on its way
    /// back from the kernel.
    ///
    /// # Errors
    ///
    /// [`ChargeErrorKind::OverLimit`](crate::ChargeErrorKind::OverLimit), which asks for 0 bytes,
    /// says which group is above its max.
    /// [`ChargeErrorKind::Cancelled`](crate::ChargeErrorKind::Cancelled): the group was chosen to
    /// give its memory back.
    ///
    /// ```
    /// use memcg::{Charge, ChargeError, Group, Limits, Runtime};
    ///
    /// fn sort(rows: u64) -> Result<Vec<Charge>, ChargeError> {
    ///     let mut held = Vec::new();
    ///     for _ in 0..rows {
    ///         held.push(Group::current().unwrap().force_charge(40)); // as an allocator charges: never refused
    ///         Group::checkpoint()?;
    ///     }
    ///     Ok(held)
    /// }
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let [runaway, other] = ["runaway", "other"].map(|name| {
    ///     runtime.root().create(name, Limits::new().max(100)).unwrap()
    /// });
    /// assert!(other.run(|| sort(2)).is_ok());
    /// let stopped = runaway.run(|| sort(1_000)).unwrap_err();
    /// let line = "/runaway refuses a checkpoint of /runaway: usage is 20 B above max 100 B; \
    ///             neither waiting nor reclaim can help; to go on, release memory in /runaway or raise max of /runaway";
    /// assert_eq!(stopped.to_string(), line);
    /// assert_eq!((runaway.usage(), other.run(Group::checkpoint).is_ok()), (0, true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn checkpoint() -> Result<(), ChargeError> {
        allocator::catch_up_at_call(None);
        let Some(header) = current_header() else {
            return Ok(());
        };
        if is_alert(header) {
            checkpoint_slow(header)
        } else {
            Ok(())
        }
    }

    /// [`checkpoint`](Self::checkpoint) for async code: a future of the group that is current now.
    /// A poll never sleeps, but reclaimers run in it, and so do the cancel hooks of one victim. The
    /// task waits for memory that others are about to give, for at most
    /// [`oom_time`](crate::RuntimeBuilder::oom_time), and for the delay above a high.
    ///
    /// # Errors
    ///
    /// As [`checkpoint`](Self::checkpoint), and
    /// [`ChargeErrorKind::WouldBlock`](crate::ChargeErrorKind::WouldBlock) if the memory that was
    /// about to come has not come in time.
    ///
    /// ```
    /// use memcg::{Group, InGroup, Limits, Runtime};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new().max(100))?;
    /// let work = async {
    ///     let mut held = Vec::new();
    ///     loop {
    ///         held.push(Group::current().unwrap().force_charge(40));
    ///         Group::checkpoint_async().await?;
    ///     }
    /// };
    /// let stopped: Result<(), memcg::ChargeError> = work.in_group(&query).await;
    /// assert_eq!(stopped.unwrap_err().group(), &query);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn checkpoint_async() -> CheckpointFuture {
        CheckpointFuture::new(current_header())
    }
}

#[inline]
fn is_alert(header: HeaderRef) -> bool {
    header.counter().tree().alerts.any()
}

/// A handle on the group that a checkpoint of this one asks for.
fn asked(header: HeaderRef) -> Group {
    Group::pinned(online_or_above(header.counter()))
}

fn refused(failure: ChargeFailure<'_>, group: &Group) -> ChargeError {
    ChargeError::new(failure, group.first(), 0)
}

#[cold]
#[inline(never)]
fn checkpoint_slow(header: HeaderRef) -> Result<(), ChargeError> {
    if !concerns(online_or_above(header.counter())) {
        return Ok(());
    }
    // Foreign code may leave the scope that keeps the group: this handle keeps it.
    let group = asked(header);
    let delayed_as =
        check(group.first(), WaitFor::Others).map_err(|failure| refused(failure, &group))?;
    throttle::sleep_after(group.first(), delayed_as, None);
    went_on(&group)
}

/// The delay is over: perhaps because the group was cancelled meanwhile.
fn went_on(group: &Group) -> Result<(), ChargeError> {
    // The thread, or the task, has slept since the check, and may have been chosen as a victim
    // meanwhile. It would go on until its next checkpoint.
    if is_cancelled(group.first()) {
        Err(refused(ChargeFailure::Cancelled, group))
    } else {
        Ok(())
    }
}

/// The future of a checkpoint that does not block its thread: see [`Group::checkpoint_async`].
#[must_use = "futures do nothing unless they are polled"]
pub struct CheckpointFuture {
    /// Dropped before the group, which outlives the alarm and the stall.
    pause: Option<Pause>,
    /// `None`: nothing is wrong, or the future has returned its result.
    group: Option<Group>,
    /// The bytes whose delay it takes; `None`: those of any checkpoint.
    delayed_as: Option<u64>,
}

/// A task that does not go on yet.
enum Pause {
    /// The group has been asked, and is above a high.
    Delay(Delayed),
    /// It waits for what others are about to give, until then.
    Asks {
        until: Instant,
        alarm: Alarm,
        _stall: Option<Stall>,
    },
}

impl CheckpointFuture {
    #[inline]
    fn new(header: Option<HeaderRef>) -> CheckpointFuture {
        CheckpointFuture {
            pause: None,
            group: header.filter(|&header| is_alert(header)).map(asked),
            delayed_as: None,
        }
    }

    /// Takes the delay above a [high](crate::Limits::high) for so many bytes, in place of 256 KiB.
    /// It is for a task that has charged them without a delay, as with
    /// [`OnFull::Now`](crate::OnFull::Now), and makes up for many charges at once.
    ///
    /// ```
    /// use memcg::{Group, Limits, OnFull, Runtime};
    /// use std::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().build()?;
    /// let upload = runtime.root().create("upload", Limits::new().high(1_000_000))?;
    /// let read = upload.charge_with(1_200_000, OnFull::Now)?;
    /// let begun = Instant::now();
    /// upload.run(Group::checkpoint_async).delayed_as(200).await?; // 10 ms or less are left out
    /// assert!(begun.elapsed() < Duration::from_secs(1));
    /// # drop(read);
    /// # Ok(())
    /// # }
    /// ```
    pub fn delayed_as(mut self, bytes: impl IntoBytes) -> CheckpointFuture {
        let Bytes(bytes) = bytes.into_bytes();
        self.delayed_as = Some(bytes);
        self
    }

    /// Asks, and says for how long the task has to pause; `until` is when to give up what others
    /// are about to give.
    fn ask(
        group: &Group,
        delayed_as: Option<u64>,
        until: Instant,
        waker: &Waker,
    ) -> Result<Option<Pause>, ChargeError> {
        let counter = group.first();
        let failure = match check(counter, WaitFor::Nothing) {
            Ok(0) => return Ok(None),
            Ok(bytes) => {
                let bytes = delayed_as.unwrap_or(bytes);
                return Ok(Delayed::begin(counter, bytes, None, waker).map(Pause::Delay));
            }
            Err(failure) => failure,
        };
        // If others are about to give memory, the task asks again, as long as it has time. Every
        // other refusal is the answer.
        let level = match &failure {
            ChargeFailure::Refused {
                refusal,
                kind: RefusalKind::Full(Some(_)),
                ..
            } if !is_over(until) => refusal.level,
            _ => return Err(refused(failure, group)),
        };
        // If the system has no thread to wake the task, it does not wait.
        let again = Alarm::set(None, clock::now() + ASK_AGAIN, waker);
        let Some(alarm) = again else {
            return Err(refused(failure, group));
        };
        Ok(Some(Pause::Asks {
            until,
            alarm,
            _stall: Stall::begin(counter, level, clock::now()),
        }))
    }

    fn poll_asked(
        pause: &mut Option<Pause>,
        group: &Group,
        delayed_as: Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<(), ChargeError>> {
        let until = match pause {
            None => {
                clock::now()
                    + group_tree::of(group.first())
                        .settings
                        .oom_time
                        .min(TIME_MAX)
            }
            Some(Pause::Delay(delayed)) if !delayed.lasts(waker) => {
                // Mutation: a-cancel-during-a-delay-is-not-told
                return Poll::Ready(went_on(group));
            }
            Some(Pause::Asks { until, alarm, .. }) if !alarm.renew(waker) => *until,
            Some(_) => return Poll::Pending,
        };
        match CheckpointFuture::ask(group, delayed_as, until, waker) {
            Ok(Some(next)) => {
                *pause = Some(next);
                Poll::Pending
            }
            asked => Poll::Ready(asked.map(drop)),
        }
    }
}

impl Future for CheckpointFuture {
    type Output = Result<(), ChargeError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let CheckpointFuture {
            pause,
            group: Some(group),
            delayed_as,
        } = &mut *self
        else {
            return Poll::Ready(Ok(()));
        };
        let polled = CheckpointFuture::poll_asked(pause, group, *delayed_as, context.waker());
        // Whoever keeps the future after its end, as a `join` does, keeps no group by it.
        if polled.is_ready() {
            self.pause = None;
            // Mutation: a-checkpoint-that-has-ended-keeps-its-group
            self.group = None;
        }
        polled
    }
}

debug_figures!(CheckpointFuture, |checkpoint| group: checkpoint.group);
