//! The speed at which a body has to come.

use std::task::Context;
use std::time::{Duration, Instant};

use memcg::Bytes;

use crate::clock::Alarm;
use crate::settings::Settings;

/// A body came too slowly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} came in {waited:.1?} of waiting for the client, the last {gap:.1?} ago", Bytes(*.came))]
pub struct TooSlowError {
    /// The bytes that have come.
    pub came: u64,
    /// For how long the reader has waited for the client, over the whole body.
    pub waited: Duration,
    /// For how long nothing has come.
    pub gap: Duration,
}

/// The time that a body has kept its reader waiting. The time that the reader takes itself, or
/// waits for room, does not count.
#[derive(Default)]
pub(crate) struct Pace {
    waited: Duration,
    /// The reader waits for the client since then.
    since: Option<Instant>,
    alarm: Option<Alarm>,
}

impl Pace {
    /// Nothing has come yet. A wake follows when it is too late. `Err`: it is.
    pub(crate) fn waits(
        &mut self,
        came: u64,
        settings: &Settings,
        context: &mut Context<'_>,
    ) -> Result<(), TooSlowError> {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        let Some(at) = since.checked_add(self.left(came, settings)) else {
            return Ok(());
        };
        // Without a thread there is no wake, but the next poll looks again.
        if now < at {
            Alarm::renew(&mut self.alarm, at, context.waker());
            return Ok(());
        }
        let gap = now - since;
        Err(TooSlowError {
            came,
            waited: self.waited.saturating_add(gap),
            gap,
        })
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
    pub(crate) fn comes(&mut self) {
        if let Some(since) = self.since.take() {
            self.waited = self.waited.saturating_add(since.elapsed());
        }
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
}
