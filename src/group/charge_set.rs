//! Charges to counters of a group: a charge for each, made as one.

use std::{array, mem};

use super::charge::{Charge, charge_and_sleep_slow, try_charge_slow};
use super::counter::CounterKey;
use super::error::ChargeError;
use super::handle::Group;
use crate::counter::object::KeptHeader;
use crate::thread::slot::Consume;
use crate::units::IntoBytes;

/// What makes one charge of a set that has missed.
type ChargeSlow = fn(KeptHeader, u64, Consume) -> Result<(), ChargeError>;

/// # Charges to counters beside memory
impl Group {
    /// Charges one counter or several, the last one first: all of them, or none. It may block if
    /// memory is among them: in async code call it on a thread for blocking work.
    ///
    /// Returns a charge for each counter, in the order of the amounts. Each is a charge of its own,
    /// which the caller may drop, grow or keep apart from the others. Each amount is in its
    /// counter's unit; the array has one type for all of them. Memory asks reclaimers and waits as
    /// [`charge`](Self::charge) does. A counter beside memory refuses at once an
    /// amount that does not fit ([`CounterKey`]). A refusal uncharges the other counters again, the
    /// last charged first.
    ///
    /// Each counter has a stock of its own. A set costs what its charges cost, and a search for
    /// each counter: a few loads.
    ///
    /// # Errors
    ///
    /// [`ChargeErrorKind::OverLimit`](crate::ChargeErrorKind::OverLimit): the refusal names the
    /// counter and the group that was full.
    /// [`ChargeErrorKind::OtherRuntime`](crate::ChargeErrorKind::OtherRuntime) for a counter that
    /// this runtime does not have.
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// let swap = builder.counter("swap", memcg::Unit::Bytes);
    /// # let runtime = builder.build()?;
    /// let root = runtime.root();
    /// root.counter(swap)?.set_max(10)?;
    /// let refused = root.charge_set(&[(memcg::CounterKey::MEMORY, 5), (swap, 11)]).unwrap_err();
    /// let line = "/ refused 11 B of swap for /: short by 1 B, max 10 B; \
    ///             neither waiting nor reclaim can help; to fit, raise max of swap of / or charge less";
    /// assert_eq!(refused.to_string(), line);
    /// assert_eq!(root.live(), 0);
    /// let [memory, swapped] = root.charge_set(&[(memcg::CounterKey::MEMORY, 5), (swap, 10)])?;
    /// drop(memory); // it is swapped out
    /// assert_eq!((root.live(), swapped.bytes()), (0, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// One counter alone:
    ///
    /// ```
    /// use memcg::{Limits, Runtime, Unit};
    /// use std::fs::File;
    ///
    /// let mut builder = Runtime::builder();
    /// let descriptors = builder.counter("descriptors", Unit::Events);
    /// let runtime = builder.build()?;
    /// // No thread takes descriptors in advance.
    /// runtime.root().counter(descriptors)?.set_batch(0);
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// acme.counter(descriptors)?.set_max(1)?;
    /// let [charge] = acme.charge_set(&[(descriptors, 1)])?;
    /// let file = (File::open(std::env::current_exe()?)?, charge);
    /// assert_eq!(acme.counter(descriptors)?.usage(), 1);
    /// assert!(acme.charge_set(&[(descriptors, 1)]).is_err());
    /// drop(file); // closes it, then gives the descriptor back
    /// assert_eq!(acme.counter(descriptors)?.usage(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge_set<const N: usize, A: IntoBytes + Copy>(
        &self,
        amounts: &[(CounterKey, A); N],
    ) -> Result<[Charge; N], ChargeError> {
        self.charge_each(amounts, charge_and_sleep_slow)
    }

    /// Charges one counter or several as [`charge_set`](Self::charge_set) does, each as
    /// [`try_charge`](Self::try_charge), and never blocks.
    ///
    /// # Errors
    ///
    /// As [`charge_set`](Self::charge_set), and [`WouldBlock`](crate::ChargeErrorKind::WouldBlock) as
    /// [`try_charge`](Self::try_charge).
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// let descriptors = builder.counter("descriptors", memcg::Unit::Events);
    /// # let runtime = builder.build()?;
    /// let root = runtime.root();
    /// root.counter(descriptors)?.set_max(1)?;
    /// let [memory, descriptor] = root.try_charge_set(&[(memcg::CounterKey::MEMORY, 4096), (descriptors, 1)])?;
    /// assert!(root.try_charge_set(&[(memcg::CounterKey::MEMORY, 4096), (descriptors, 1)]).is_err());
    /// assert_eq!((root.live(), memory.bytes(), descriptor.bytes()), (4096, 4096, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge_set<const N: usize, A: IntoBytes + Copy>(
        &self,
        amounts: &[(CounterKey, A); N],
    ) -> Result<[Charge; N], ChargeError> {
        self.charge_each(amounts, try_charge_slow)
    }

    #[inline(always)]
    fn charge_each<const N: usize, A: IntoBytes + Copy>(
        &self,
        amounts: &[(CounterKey, A); N],
        slow: ChargeSlow,
    ) -> Result<[Charge; N], ChargeError> {
        let amounts = &amounts.map(|(counter, amount)| (counter, amount.into_bytes().0));
        let mut headers = [self.header; N];
        for at in (0..N).rev() {
            let (counter, bytes) = amounts[at];
            let missed = match self.header_of(counter) {
                Some(header) => {
                    headers[at] = header;
                    header.consume_open(bytes)
                }
                None => Consume::Miss,
            };
            if missed != Consume::Hit {
                self.charge_one_of_set_slow(amounts, at, missed, slow)?;
            }
        }
        // Charges are made of numbers here, and not kept while others are made: then none of them
        // goes through memory.
        Ok(array::from_fn(|at| Charge::new(headers[at], amounts[at].1)))
    }

    /// Makes the charge at `at`, which has missed. Where it is refused, those behind it, which were
    /// made, go back.
    #[cold]
    #[inline(never)]
    fn charge_one_of_set_slow(
        &self,
        amounts: &[(CounterKey, u64)],
        at: usize,
        missed: Consume,
        slow: ChargeSlow,
    ) -> Result<(), ChargeError> {
        let (counter, bytes) = amounts[at];
        let behind = Behind {
            group: self,
            charged: &amounts[at + 1..],
        };
        let header = self
            .header_of(counter)
            .ok_or_else(|| self.unknown_counter_slow(counter))?;
        slow(header, bytes, missed)?;
        mem::forget(behind);
        Ok(())
    }
}

/// The charges of a set that were made already. The drop gives them back, the last one that was
/// made first.
struct Behind<'a> {
    group: &'a Group,
    charged: &'a [(CounterKey, u64)],
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        for &(counter, bytes) in self.charged {
            drop(
                self.group
                    .header_of(counter)
                    .map(|header| Charge::new(header, bytes)),
            );
        }
    }
}
