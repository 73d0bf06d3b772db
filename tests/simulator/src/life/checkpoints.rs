//! Work that asks whether it is to go on: it is not, where usage is above a max, or its group was
//! cancelled.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;
use memcg::{Bytes, ChargeError, CheckpointFuture, Group};

use super::Life;
use crate::script::{Op, What};

/// A checkpoint is delayed as a charge of so many bytes.
const AS_BYTES: u64 = 64 * 4096;

/// More of them show nothing new.
const KEPT_MAX: usize = 8;

/// A checkpoint that is delayed while the run goes on.
pub(super) struct DelayedCheckpoint {
    pub(super) group: usize,
    checkpoint: CheckpointFuture,
    /// It lasts until then, as long as a level is above its high.
    least: Instant,
    /// By then it is over.
    most: Instant,
}

impl Life {
    pub(super) fn checkpoint(&mut self, op: &Op, group: u8) {
        // Others in line get what comes back, and a wait for a victim is judged where it is made.
        if !self.tasks.is_empty() || self.adapters_wait() {
            return;
        }
        let Some(group) = self.group(group) else {
            return;
        };
        self.keeps = true;
        let began = clock::now();
        let delay = self.delay_by(group, AS_BYTES);
        let asked = self.on(op, group, |group| group.run(Group::checkpoint));
        let took = clock::now().saturating_duration_since(began);
        let goes_on = asked.is_ok() && self.twin.groups[group].online;
        self.answers(group, asked);
        assert!(took <= self.longest(), "a checkpoint has taken {took:?}");
        // Caches that give meanwhile end it; and a delay that is no more than a look is none.
        let is_delayed = goes_on && !self.had_caches && !self.cancelled && self.shared.is_quiet();
        let is_long = delay > Duration::from_millis(11);
        assert!(
            !is_delayed || !is_long || took + delay / 100 >= delay,
            "a checkpoint is delayed for {took:?}, the twin says {delay:?}"
        );
        // As a charge of that, or as it comes.
        let bytes = [AS_BYTES, 300, 1 << 20][usize::from(op.0) % 3];
        let delay = self.delay_by(group, bytes);
        let (checkpoint, polled) = self.on(op, group, move |group| {
            group.run(|| {
                let mut checkpoint = Group::checkpoint_async();
                if bytes != AS_BYTES {
                    checkpoint = checkpoint.delayed_as(Bytes(bytes));
                }
                let polled = pin!(&mut checkpoint).poll(&mut Context::from_waker(Waker::noop()));
                (checkpoint, polled)
            })
        });
        let is_known = is_delayed && self.shared.is_quiet();
        assert!(
            !is_known || polled.is_pending() || delay <= Duration::from_millis(11),
            "a checkpoint as a charge of {bytes} is not delayed, the twin says {delay:?}"
        );
        assert!(
            !is_known || polled.is_ready() || delay > Duration::ZERO,
            "a checkpoint as a charge of {bytes} is delayed"
        );
        match polled {
            Poll::Ready(asked) => {
                self.answers(group, asked);
                self.keep_checkpoint(checkpoint);
            }
            // Others do something meanwhile.
            Poll::Pending
                if is_known && self.delayed.is_none() && self.some(op).is_multiple_of(2) =>
            {
                let now = clock::now();
                let least = delay.saturating_sub(delay / 100 + Duration::from_micros(1));
                self.delayed = Some(DelayedCheckpoint {
                    group,
                    checkpoint,
                    least: now + least,
                    most: now + Duration::from_millis(self.setup.delay),
                });
            }
            Poll::Pending if is_known => {
                clock::advance(delay + delay / 50 + Duration::from_millis(20));
                let (checkpoint, polled) = self.on(op, group, move |_| {
                    let mut checkpoint = checkpoint;
                    let waker = Waker::noop();
                    let polled = pin!(&mut checkpoint).poll(&mut Context::from_waker(waker));
                    (checkpoint, polled)
                });
                let is_over = matches!(polled, Poll::Ready(Ok(())));
                assert!(
                    is_over,
                    "a checkpoint after its delay of {delay:?}: {polled:?}"
                );
                self.keep_checkpoint(checkpoint);
            }
            // For memory that is about to come, but not for ever.
            Poll::Pending => {
                let time = self.longest();
                let ended = self.on(op, group, move |_| {
                    let mut checkpoint = checkpoint;
                    (0..8).any(|_| {
                        clock::advance(time);
                        let waker = Waker::noop();
                        let polled = pin!(&mut checkpoint).poll(&mut Context::from_waker(waker));
                        polled.is_ready()
                    })
                });
                assert!(ended, "a checkpoint that does not end");
                self.settle_accounts();
            }
        }
    }

    /// One that is delayed goes on once that is over, and is told where its group was cancelled
    /// meanwhile, which ends it.
    pub(super) fn check_delayed(&mut self, op: &Op) {
        let Some(delayed) = self.delayed.take() else {
            return;
        };
        let DelayedCheckpoint {
            group, least, most, ..
        } = delayed;
        let (delayed, polled) = self.actor(op).run(move || {
            let mut delayed = delayed;
            let waker = Waker::noop();
            let polled = pin!(&mut delayed.checkpoint).poll(&mut Context::from_waker(waker));
            (delayed, polled)
        });
        let path = self.twin.path(group);
        let is_victim = self.is_told_to_go(group);
        match polled {
            Poll::Pending => {
                assert!(!is_victim, "work of {path} is delayed, and was cancelled");
                assert!(clock::now() < most, "work of {path} is delayed for ever");
                self.delayed = Some(delayed);
                return;
            }
            Poll::Ready(Ok(())) => {
                assert!(!is_victim, "work of {path} was cancelled, and goes on");
                // Other operations may have taken usage below the high for a moment.
                let may_end = !matches!(op.1, What::Time(_))
                    || !self.shared.is_quiet()
                    || self.had_caches
                    || self.cancelled
                    || clock::now() >= least
                    || !self.twin.groups[group].online
                    || !self.is_above_high(group);
                assert!(may_end, "work of {path} is delayed no longer, too early");
            }
            Poll::Ready(Err(error)) => {
                let is_right = error.is_cancelled() && self.cancelled;
                assert!(is_right, "{error}, after a delay of work of {path}");
            }
        }
        self.keep_checkpoint(delayed.checkpoint);
    }

    /// One that has ended keeps nothing, whoever keeps it.
    fn keep_checkpoint(&mut self, ended: CheckpointFuture) {
        if self.checkpoints.len() < KEPT_MAX {
            self.checkpoints.push(ended);
        }
    }

    fn answers(&mut self, group: usize, asked: Result<(), ChargeError>) {
        self.settle_accounts();
        let is_above = |life: &Life, level: usize| {
            let of = &life.twin.groups[level];
            of.online && !life.twin.is_observed(level) && life.twin.live(level, 0) > of.max[0]
        };
        let path = self.twin.path(group);
        match asked {
            Ok(()) => {
                // Of a group that is offline the nearest above answers.
                let online = |&level: &usize| self.twin.groups[level].online;
                let mut levels = self.twin.levels(group).filter(online);
                assert!(
                    !self.shared.is_quiet() || !levels.any(|level| is_above(self, level)),
                    "work of {path} goes on, and a level is above its max"
                );
            }
            Err(error) if error.is_cancelled() => {
                assert!(self.cancelled, "{error}, and no group was cancelled");
            }
            Err(error) => {
                if let Some(refusal) = error.over_limit() {
                    let level = self.number(refusal.group());
                    self.twin.groups[level].refused[0] += 1;
                    assert!(
                        !self.shared.is_quiet() || is_above(self, level),
                        "{error}, and it has room"
                    );
                } else {
                    assert!(error.is_would_block(), "{error}");
                }
            }
        }
    }
}
