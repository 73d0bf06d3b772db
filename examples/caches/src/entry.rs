//! The entry of each cache.

use std::sync::Arc;

use memcg::{ChargeError, Charged, Group};

/// The bytes that a cache takes for an entry beside its content: the key, its place in tables and lists.
pub const OVERHEAD: usize = 128;

// ANCHOR: entry
/// The bytes of an entry, with the charge that pays for them.
#[derive(Debug)]
pub struct Entry(Charged<Vec<u8>>);

impl Entry {
    /// Charges an entry to `group` and then loads it. The caller holds no lock that its reclaimer takes.
    ///
    /// # Errors
    ///
    /// As `Group::try_charge`, which may block: in async code charge with `charge_async`.
    pub fn load(group: &Group, len: usize, load: impl FnOnce() -> Vec<u8>) -> Result<Arc<Entry>, ChargeError> {
        let mut charge = group.try_charge(OVERHEAD + len)?;
        let bytes = load();
        // The capacity may be larger than the length that was known.
        charge.try_grow((OVERHEAD + bytes.capacity()).saturating_sub(OVERHEAD + len))?;
        Ok(Arc::new(Entry(Charged::new(bytes, charge))))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns its weight in a cache: what it is charged.
    pub fn weight(&self) -> u64 {
        Charged::charge(&self.0).bytes()
    }
}
// ANCHOR_END: entry

// ANCHOR: spare
/// No entry up to this weight is spared: each costs less than a look at all.
pub(crate) const LIGHT: u64 = 64 << 10;

/// Evicts `want` bytes, and no entry that is far heavier than that while lighter ones are enough. `evict` is told how many
/// bytes, and which weight it spares what is above; it says how many bytes went. `weight` is that of the whole cache.
pub(crate) fn evict(want: u64, weight: u64, mut evict: impl FnMut(u64, u64) -> u64) -> u64 {
    let (mut freed, mut spared) = (0, want.saturating_mul(4).max(LIGHT));
    loop {
        freed += evict(want - freed, spared);
        if freed >= want || spared >= weight {
            return freed;
        }
        spared = spared.saturating_mul(16);
    }
}
// ANCHOR_END: spare
