//! Who is above its high, and for how long that delays a charge.

use std::time::Duration;

use crate::counter::object::Counter;
use crate::counter::watch::HIGH;
use crate::pressure::delay::delay;
use crate::sync::Ordering;

impl Counter {
    pub(crate) fn high(&self) -> u64 {
        self.high.load(Ordering::Relaxed)
    }

    /// Usage above high.
    pub(crate) fn above_high(&self) -> u64 {
        if self.is_watched_for(HIGH) { self.usage().saturating_sub(self.high()) } else { 0 }
    }

    /// Levels above their high, this one first.
    pub(crate) fn over_high(&'static self) -> impl Iterator<Item = &'static Counter> {
        self.path_to_root().filter(|level| level.above_high() > 0)
    }

    /// The delay of a charge of `bytes`: that of the level which is furthest above its high.
    pub(crate) fn delay(&'static self, bytes: u64) -> Duration {
        let over = self.over_high().filter(|level| !level.is_observed());
        let delays = over.map(|level| delay(level.usage(), level.high(), bytes));
        delays.max().unwrap_or_default().min(self.tree().reclaim.delay_max)
    }
}
