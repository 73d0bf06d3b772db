//! The speed at which a body has to come.

use std::task::Context;
use std::time::{Duration, Instant};

use crate::clock::Alarm;
use crate::frame::TooSlowError;
use crate::settings::Settings;

/// The time that a body has kept its reader waiting. The time that the reader takes itself, or
/// waits for room, does not count.
///
/// A reader that leaves says nothing: the handler drops its read in a `select!` or a timeout, and
/// works. All that is seen are polls. So the time between two polls counts only up to a
/// [step](Self::step) after the first of them. An alarm wakes a reader then, and its poll begins the
/// next step. One that has left does not poll. The steps of a reader that stays grow with the time for
/// which it has: what counts of a reader that has left is at most a quarter more than it has waited,
/// and a first step.
#[derive(Default)]
pub(crate) struct Pace {
    /// Over the whole body, before this gap.
    waited: Duration,
    /// Since the last byte.
    gap: Duration,
    /// Since the reader has come back.
    stay: Duration,
    /// Its last poll that found nothing.
    last: Option<Instant>,
    alarm: Option<Alarm>,
}

/// The part of the longest time that the first step of a reader is.
const FIRST_STEP: u32 = 128;

impl Pace {
    /// Nothing has come yet. A wake follows when it is too late. `Err`: it is.
    pub(crate) fn waits(
        &mut self,
        came: u64,
        settings: &Settings,
        context: &mut Context<'_>,
    ) -> Result<(), TooSlowError> {
        let now = Instant::now();
        self.polled(now, settings.body_timeout);
        let left = self.left(came, settings).saturating_sub(self.gap);
        if left.is_zero() {
            return Err(TooSlowError {
                came,
                waited: self.waited.saturating_add(self.gap),
                gap: self.gap,
            });
        }
        self.last = Some(now);
        let step = self.step(settings.body_timeout);
        // Without a thread there is no wake, but the next poll looks again.
        if let Some(at) = now.checked_add(left.min(step)) {
            Alarm::renew(&mut self.alarm, at, context.waker());
        }
        Ok(())
    }

    /// The reader is there until so long after its last poll, as far as is known.
    fn step(&self, time: Duration) -> Duration {
        (time / FIRST_STEP).saturating_add(self.stay / 4)
    }

    /// The reader polls again.
    fn polled(&mut self, now: Instant, time: Duration) {
        let Some(last) = self.last.take() else {
            return;
        };
        let step = self.step(time);
        let since = now.saturating_duration_since(last);
        let counts = since.min(step);
        self.gap = self.gap.saturating_add(counts);
        self.stay = if since > step.saturating_mul(2) {
            // It was not there when the alarm rang.
            Duration::ZERO
        } else {
            self.stay.saturating_add(counts)
        };
    }

    /// The longest time for which nothing may come from here on.
    fn left(&self, came: u64, settings: &Settings) -> Duration {
        let time = settings.body_timeout;
        if settings.least_rate == 0 {
            return time;
        }
        // Bytes buy time, which the waits before this one have spent.
        let bought = Duration::try_from_secs_f64(came as f64 / settings.least_rate as f64)
            .unwrap_or(Duration::MAX);
        time.min(time.saturating_add(bought).saturating_sub(self.waited))
    }

    /// A frame has come.
    #[inline]
    pub(crate) fn comes(&mut self, settings: &Settings) {
        // Most frames are there when the reader looks.
        if self.last.is_some() || !self.gap.is_zero() {
            self.ends_gap(settings);
        }
    }

    #[inline(never)]
    fn ends_gap(&mut self, settings: &Settings) {
        if self.last.is_some() {
            self.polled(Instant::now(), settings.body_timeout);
        }
        self.waited = self.waited.saturating_add(self.gap);
        self.gap = Duration::ZERO;
    }

    /// The layer holds the body back: its client cannot tell, so this is no time of the client's.
    pub(crate) fn pauses(&mut self, settings: &Settings) {
        self.polled(Instant::now(), settings.body_timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn bytes_buy_time() {
        let mut settings = Settings::new();
        settings.body_timeout = Duration::from_secs(30);
        settings.least_rate = 500;
        let mut pace = Pace::default();
        assert_eq!(pace.left(0, &settings), Duration::from_secs(30));
        assert_eq!(
            pace.left(1_000_000, &settings),
            Duration::from_secs(30),
            "but no gap is longer"
        );
        pace.waited = Duration::from_secs(31);
        assert_eq!(pace.left(0, &settings), Duration::ZERO);
        assert_eq!(pace.left(1_000, &settings), Duration::from_secs(1));
        settings.least_rate = 0;
        assert_eq!(
            pace.left(0, &settings),
            Duration::from_secs(30),
            "no rate is asked for"
        );
        settings.body_timeout = Duration::MAX;
        settings.least_rate = 1;
        assert_eq!(
            pace.left(u64::MAX, &settings),
            Duration::MAX - Duration::from_secs(31)
        );
    }

    /// What counts of a reader that is there in each of these times, and away after each.
    fn counted(time: Duration, stays: &[(Duration, Duration)]) -> Duration {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        for (stays, leaves) in stays {
            let ends = now + *stays;
            pace.polled(now, time);
            pace.last = Some(now);
            loop {
                let next = now + pace.step(time);
                if next > ends {
                    break;
                }
                now = next;
                pace.polled(now, time);
                pace.last = Some(now);
            }
            now = ends + *leaves;
        }
        pace.polled(now, time);
        pace.gap
    }

    #[test]
    fn a_reader_that_has_left_is_not_kept_waiting() {
        let ms = Duration::from_millis;
        for time in [ms(1_000), ms(30_000)] {
            for (looks, stays, leaves) in [
                (1, ms(20), ms(5_000)),
                (20, ms(20), ms(500)),
                (20, ms(500), ms(20_000)),
                (100, ms(1), ms(60_000)),
            ] {
                let counted = counted(time, &vec![(stays, leaves); looks as usize]);
                let there = stays * looks;
                let most = there + there / 4 + time / FIRST_STEP * looks;
                assert!(
                    counted <= most,
                    "{looks} looks of {stays:?}: {counted:?} of {most:?}"
                );
            }
            // And one that stays is.
            let counted = counted(time, &[(ms(10_000), ms(0))]);
            assert!(counted >= ms(9_900), "{counted:?}");
        }
    }
}
