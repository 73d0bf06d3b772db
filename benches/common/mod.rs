//! Code that the programs under `benches/` share: threads that start together, trees of counters,
//! and the baselines.
//!
//! Every baseline stands on top of [`PageCounter`](memcg::PageCounter) with its stock off, so that
//! all of them walk the tree with the same code and differ from the library in policy only. Where a
//! baseline needs something that the library has to pay for (finding the calling thread's credit,
//! keeping a cached counter alive) and the comparison is not about that very thing, it gets it for
//! nothing: a difference in our favour is then the policy's.

#![cfg(not(loom))]
#![allow(dead_code, reason = "each program uses its own part of this module")]

pub(crate) mod alone;
pub(crate) mod claims;
pub(crate) mod clock;
pub(crate) mod host;
pub(crate) mod no_return;
pub(crate) mod resident;
pub(crate) mod rows;
pub(crate) mod slices;
pub(crate) mod slot;
pub(crate) mod slots7;
pub(crate) mod statistics;
pub(crate) mod stats;
pub(crate) mod stock_crate;
pub(crate) mod team;
pub(crate) mod tree;
pub(crate) mod turns;

use memcg::PageCounter;
use memcg::errors::CounterChargeError;

/// The kernel's MEMCG_CHARGE_BATCH, and the default of [`CounterConfig`](memcg::CounterConfig).
pub(crate) const BATCH: u64 = 64;

/// A way of charging the leaves of one tree, as one thread does it. Leaves go by their index.
pub(crate) trait Policy {
    fn charge(&mut self, leaf: usize, n: u64) -> Result<(), CounterChargeError>;
    fn uncharge(&mut self, leaf: usize, n: u64);
}

/// The library itself; also the baseline without stock, when the leaves have none.
pub(crate) struct Library<'a> {
    pub(crate) leaves: &'a [PageCounter],
}

impl Policy for Library<'_> {
    #[inline(always)]
    fn charge(&mut self, leaf: usize, n: u64) -> Result<(), CounterChargeError> {
        self.leaves[leaf].charge(n)
    }

    #[inline(always)]
    fn uncharge(&mut self, leaf: usize, n: u64) {
        self.leaves[leaf].uncharge(n);
    }
}

/// No accounting at all.
pub(crate) struct Uncounted;

impl Policy for Uncounted {
    #[inline(always)]
    fn charge(&mut self, _leaf: usize, _n: u64) -> Result<(), CounterChargeError> {
        Ok(())
    }

    #[inline(always)]
    fn uncharge(&mut self, _leaf: usize, _n: u64) {}
}
