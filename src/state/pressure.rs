//! How a tree delays and cancels.

use std::time::Duration;

/// How long a tree's charges wait for memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PressureConfig {
    /// The longest delay of a charge above high.
    pub(crate) delay_max: Duration,
    /// How long a charge waits for one victim's memory.
    pub(crate) oom_time: Duration,
}

impl PressureConfig {
    /// Unless configured otherwise. The delay is MEMCG_MAX_HIGH_DELAY_JIFFIES.
    pub(crate) const DEFAULT: PressureConfig =
        PressureConfig { delay_max: Duration::from_secs(2), oom_time: Duration::from_secs(1) };
}
