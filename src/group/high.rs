//! Charges above high: reclaim first, then a delay.

use std::time::Duration;

use super::error::LimitError;
use super::handle::Group;
use crate::counter::marks;
use crate::pressure::{high, throttle};
use crate::state::limits::LimitKind;
use crate::units::Bytes;
use crate::units::Limit;

/// # High: charges that slow down
impl Group {
    /// Sets the usage in bytes above which charges slow down. It may block: in async code call it on a thread for
    /// blocking work. The default is [`Limit::Unlimited`]: no charge slows down.
    ///
    /// The call is never refused for usage, and does nothing on a group that is offline. It drains and reclaims at once
    /// what is above the limit, as far as reclaimers give it. Returns the bytes that are still above.
    ///
    /// A charge that walks the tree and leaves this group above high, or finds it there, reclaims the excess and is
    /// delayed. The kernel's formula gives the delay. It grows with the square of the part by which usage is above, to
    /// at most [`delay_max`](crate::RuntimeBuilder::delay_max). That is the delay of each charge, where a single charge
    /// is as large as high. A high never refuses a charge. Not delayed are a charge from the stock, one that cannot be
    /// refused, one made inside reclaim, and a transfer.
    ///
    /// Source: `memory_high_write` and `mem_cgroup_handle_over_high` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// # use memcg::{Event, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(1 << 20)?;
    /// assert!(root.set_high(1_000_000)? > 0, "no reclaimer gives anything");
    /// assert_eq!(root.high(), 1_000_000);
    /// let _more = root.try_charge(1 << 20)?; // delayed
    /// assert!(root.events().get(Event::High) > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_high(&self, limit: impl Into<Limit>) -> Result<u64, LimitError> {
        self.set_limit(self.first(), LimitKind::High, limit.into())?;
        throttle::shrink_to_high(self.first());
        Ok(high::above(self.first()))
    }

    /// Returns the high in bytes, `u64::MAX` where there is none. One load.
    pub fn high(&self) -> u64 {
        marks::high(self.first())
    }

    /// Returns how long a charge of `bytes` that walks the tree would be delayed now: the greatest delay among this
    /// group and its ancestors. Charges do not sleep for 10 ms or less. It costs a few loads a level. Where only credit
    /// may be above a high, the call drains it first, which takes a barrier.
    ///
    /// Source: `calculate_high_delay` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # use memcg::Runtime;
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// root.set_high(100 << 20)?;
    /// let _held = root.force_charge(102 << 20);
    /// assert_eq!(root.high_delay(64 * 4096).as_millis(), 25);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn high_delay(&self, bytes: impl Into<Bytes>) -> Duration {
        let Bytes(bytes) = bytes.into();
        throttle::delay_now(self.first(), bytes)
    }
}
