//! Charges above high: reclaim first, then a delay.

use std::time::Duration;

use super::error::{ChargeError, LimitError};
use super::{Charge, Group};
use crate::admission::plain::{self, Patience};
use crate::hierarchy::limits::LimitKind;
use crate::pressure::{high, throttle};
use crate::thread::slot::Consume;
use crate::units::Limit;

impl Group {
    /// Set the usage above which charges slow down. May block: in async code call it on a thread for blocking work.
    /// [`Limit::Max`], as it is at first: never.
    ///
    /// Never refused for usage, and nothing on a group that is offline: what is above it is drained and reclaimed at
    /// once, as far as reclaimers give it. Returns the bytes that are still above.
    ///
    /// A charge that walks the tree and leaves this group, or finds it, above high has the excess reclaimed and is
    /// delayed: by the kernel's formula, which grows with the square of the part by which usage is above, for at most
    /// [`delay_max`](crate::RuntimeBuilder::delay_max): so much for each charge, where a single one is as large as
    /// high. It is never refused for that. Not delayed: a charge from the stock, one that cannot be refused, one made
    /// inside reclaim, a transfer.
    ///
    /// Source: `memory_high_write` and `mem_cgroup_handle_over_high` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// use memcg::{Event, Limit, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(1 << 20)?;
    /// assert!(root.set_high(Limit::Bytes(1_000_000))? > 0, "no reclaimer gives anything");
    /// let _more = root.try_charge(1 << 20)?; // delayed
    /// assert!(root.events().get(Event::High) > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_high(&self, limit: Limit) -> Result<u64, LimitError> {
        self.memory().set(LimitKind::High, limit)?;
        throttle::shrink_to_high(self.node());
        Ok(high::above(self.node()))
    }

    /// The high in bytes, `u64::MAX` where there is none. One load.
    ///
    /// ```
    /// assert_eq!(memcg::Runtime::builder().build()?.root().high(), u64::MAX);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn high(&self) -> u64 {
        self.node().high_mark()
    }

    /// What a charge of `bytes` that walks the tree would be delayed as things stand: the greatest delay among this
    /// group and those above. Charges do not sleep for 10 ms or less. Where credit may be all that is above a high it is
    /// drained first, which takes a barrier; else a few loads a level.
    ///
    /// Source: `calculate_high_delay` in `mm/memcontrol.c`.
    ///
    /// ```
    /// use memcg::{Limit, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// root.set_high(Limit::Bytes(100 << 20))?;
    /// let _held = root.charge(102 << 20);
    /// assert_eq!(root.high_delay(64 * 4096).as_millis(), 25);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn high_delay(&self, bytes: u64) -> Duration {
        throttle::delay_now(self.node(), bytes)
    }

    /// [`try_charge`](Self::try_charge) that neither sleeps nor waits for others, for async code and for timers of one's
    /// own: it returns the delay above a high in the place of sleeping it; zero where there is none.
    ///
    /// Reclaimers run on this thread, and where the [policy](crate::OomPolicy) chooses so do the cancel hooks of one
    /// victim. What they give at once is this charge's. Memory that comes later is not waited for: that of the victim,
    /// what a reclaimer has promised ([`ReclaimContext::later`](crate::ReclaimContext::later)), what another thread's
    /// reclaim is about to free. The locks that it takes are held for bounded work of this crate.
    ///
    /// # Errors
    ///
    /// As [`try_charge`](Self::try_charge), and [`ChargeError::WouldBlock`] where memory is about to come: try again
    /// later, or wait with [`charge_async`](Self::charge_async).
    ///
    /// ```
    /// use memcg::{Limit, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// root.set_high(Limit::Bytes(1 << 20))?;
    /// let _held = root.charge(2 << 20);
    /// let (_charge, delay) = root.try_charge_undelayed(1 << 20)?;
    /// assert!(!delay.is_zero()); // to be awaited
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge_undelayed(&self, bytes: u64) -> Result<(Charge, Duration), ChargeError> {
        let delay = match self.header.consume_open(bytes) {
            Consume::Hit => Duration::ZERO,
            missed => {
                let charged = plain::charge(self.node(), bytes, missed, Patience::None);
                charged.map_err(|failure| ChargeError::new(failure, self.node(), bytes))?;
                throttle::delay_after(self.node(), false)
            }
        };
        Ok((Charge::new(self.header, bytes), delay))
    }
}
