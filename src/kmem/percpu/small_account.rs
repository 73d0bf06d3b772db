//! Accounts of per-processor memory in one scope or in few: smaller than a [`Kmem`].

use crate::group::Charge;
use crate::hierarchy::node_stats;
use crate::kmem::account::Kmem;
use crate::kmem::lines::AccountLine;
use crate::kmem::tiers::Tiers;
use crate::stat::Stat;
use crate::stat::published::StatScope;
use crate::sync::model_failed;
use crate::thread::directory::Header;

/// A charge that is accounted to its group itself, for a runtime of one node. It has a fifth of the size of a [`Kmem`].
pub(super) struct SingleAccount {
    pub(super) charge: Charge,
    /// False where the thread was inside another slow path.
    counted: bool,
}

const STAT: Stat = Stat::PERCPU;

impl SingleAccount {
    #[inline]
    pub(super) fn new(charge: Charge) -> SingleAccount {
        let counted =
            node_stats::account(charge.header(), StatScope::Group, STAT, charge.bytes().cast_signed()).is_some();
        SingleAccount { charge, counted }
    }
}

impl Drop for SingleAccount {
    #[inline]
    fn drop(&mut self) {
        if self.counted && !model_failed() {
            // The account ends before the charge: afterwards the group may be gone.
            node_stats::unaccount(self.charge.header(), StatScope::Group, 0, STAT, self.charge.bytes().cast_signed());
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) bytes: u64,
    pub(super) scope: StatScope,
}

/// Bytes by scope, in few scopes: no allocation.
#[derive(Clone, Copy)]
pub(super) struct Shares {
    list: [Share; SHARES_MAX],
    len: usize,
}

/// Two nodes, and one for metadata.
pub(super) const SHARES_MAX: usize = 3;

impl Shares {
    #[inline(always)]
    pub(super) fn new() -> Shares {
        Shares { list: [Share { bytes: 0, scope: StatScope::Group }; SHARES_MAX], len: 0 }
    }

    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds bytes. Bytes beyond the last scope would be lost: the caller knows that all scopes fit.
    #[inline(always)]
    pub(super) fn add(&mut self, scope: StatScope, bytes: u64) {
        for share in &mut self.list[..self.len] {
            if share.scope == scope {
                share.bytes += bytes;
                return;
            }
        }
        if let Some(share) = self.list.get_mut(self.len) {
            *share = Share { bytes, scope };
            self.len += 1;
        }
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = &Share> {
        self.list.iter().take(self.len)
    }
}

/// A charge that is accounted in a few scopes, all of them its group's own.
pub(super) struct SmallAccount {
    pub(super) charge: Charge,
    pub(super) shares: Shares,
}

impl SmallAccount {
    /// Accounts with the sign 1 and ends such an account with -1, if that changes only cells that the thread has, so that
    /// it may hold a lock. Returns whether to [`announce`](Self::announce) once it holds none. `None`: nothing changes.
    #[inline(always)]
    pub(super) fn add(header: &Header, shares: &Shares, sign: i64) -> Option<bool> {
        let mut due = false;
        for (number, share) in shares.iter().enumerate() {
            let Some(is_due) = node_stats::account_at_hand(header, share.scope, STAT, share.bytes.cast_signed() * sign)
            else {
                for share in shares.iter().take(number) {
                    node_stats::account_at_hand(header, share.scope, STAT, share.bytes.cast_signed() * -sign);
                }
                return None;
            };
            due |= is_due;
        }
        Some(due)
    }

    /// Announces an addition that flushes must see. The thread holds no lock.
    #[cold]
    pub(super) fn announce(header: &Header, shares: &Shares) {
        shares.iter().for_each(|share| node_stats::announce(header, share.scope));
    }

    /// Makes it an account that can be relocated.
    pub(super) fn into_kmem(mut self) -> Kmem {
        let shares = std::mem::replace(&mut self.shares, Shares::new());
        let of = |share: &Share| AccountLine { bytes: share.bytes, scope: share.scope, above: Some(0) };
        let lines = shares.iter().map(of).collect();
        Kmem { charge: self.charge.take(), stat: STAT, lines, tiers: Tiers::default() }
    }
}

impl Drop for SmallAccount {
    #[inline]
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        for share in self.shares.iter() {
            node_stats::unaccount(self.charge.header(), share.scope, 0, STAT, share.bytes.cast_signed());
        }
    }
}
