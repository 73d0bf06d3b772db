//! Limits as they are set: a number, a percentage of the nearest limited ancestor's max, or none.
//!
//! A percentage is resolved when it is set, and again, parents first, whenever a max above it moves. All of it under
//! the tree's lock; limits that a group loses when it goes offline also under that of its shard.

use crate::counter::object::Counter;
use crate::counter::protection::Protection;
use crate::counter::stocks::Stocks;
use crate::counter::tree::Tree;
use crate::counter::watch::TOLD;
use crate::reclaim::excess;
use crate::sync::Ordering;
use crate::units::{Limit, Percent};

/// A limit that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitKind {
    Max,
    Min,
    Low,
    Soft,
    High,
}

/// How many there are.
pub(crate) const LIMIT_KINDS: usize = 5;

/// A percentage, and no ancestor has a max.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoLimitedAncestor(pub(crate) Percent);

impl Counter {
    /// A limit as it was set.
    pub(crate) fn set_to(&self, kind: LimitKind) -> Limit {
        // 0: a number; else the percentage plus 1.
        if let Some(percent) =
            self.percents[kind as usize].load(Ordering::Relaxed).checked_sub(1).and_then(Percent::new)
        {
            return Limit::Percent(percent);
        }
        match self.kind(kind) {
            u64::MAX => Limit::Max,
            bytes => Limit::Bytes(bytes),
        }
    }

    pub(crate) fn kind(&self, kind: LimitKind) -> u64 {
        match kind {
            LimitKind::Max => self.max(),
            LimitKind::Min => self.setting(Protection::Min),
            LimitKind::Low => self.setting(Protection::Low),
            LimitKind::Soft => self.limits.soft.load(Ordering::Relaxed),
            LimitKind::High => self.high(),
        }
    }

    /// The bytes that `limit` stands for here and now.
    fn resolve(&self, limit: Limit) -> Result<u64, NoLimitedAncestor> {
        match limit {
            Limit::Bytes(bytes) => Ok(bytes),
            Limit::Max => Ok(u64::MAX),
            Limit::Percent(percent) => {
                let limited = self.path_to_root().skip(1).map(Counter::max).find(|&max| max != u64::MAX);
                limited.map(|max| percent.of(max)).ok_or(NoLimitedAncestor(percent))
            }
        }
    }

    fn note_percent(&self, kind: LimitKind, limit: Limit) {
        let percent = match limit {
            Limit::Percent(percent) => percent.get() + 1,
            Limit::Bytes(_) | Limit::Max => 0,
        };
        self.percents[kind as usize].store(percent, Ordering::Relaxed);
    }

    /// Set a limit of a counter that is not linked yet: nobody has charged it.
    pub(crate) fn set_unlinked(&self, kind: LimitKind, limit: Limit) -> Result<(), NoLimitedAncestor> {
        let bytes = self.resolve(limit)?;
        self.note_percent(kind, limit);
        match kind {
            LimitKind::Max => self.begin_max(bytes),
            LimitKind::Min => self.limits.min.store(bytes, Ordering::Relaxed),
            LimitKind::Low => self.limits.low.store(bytes, Ordering::Relaxed),
            LimitKind::Soft => self.limits.soft.store(bytes, Ordering::Relaxed),
            LimitKind::High => self.set_high(bytes),
        }
        let told = match kind {
            LimitKind::Max | LimitKind::High => false,
            LimitKind::Min | LimitKind::Low => bytes > 0,
            LimitKind::Soft => bytes < u64::MAX,
        };
        if told {
            self.watch(TOLD);
        }
        Ok(())
    }
}

impl Tree {
    /// Set a limit, and every percentage below that follows it. Returns what usage is above a max then, 0 for others.
    pub(crate) fn set(&self, node: &'static Counter, kind: LimitKind, limit: Limit) -> Result<u64, NoLimitedAncestor> {
        let mut stocks = self.stocks.lock();
        let bytes = node.resolve(limit)?;
        node.note_percent(kind, limit);
        if matches!(limit, Limit::Percent(_)) {
            stocks.percents = true;
        }
        let excess = self.apply(&mut stocks, node, kind, bytes);
        if kind == LimitKind::Max && stocks.percents {
            self.follow(&mut stocks, node);
        }
        Ok(excess)
    }

    fn apply(&self, stocks: &mut Stocks, node: &'static Counter, kind: LimitKind, bytes: u64) -> u64 {
        if kind == LimitKind::Max {
            return self.impose_max(stocks, node, bytes);
        }
        // It does not go offline meanwhile.
        let _shard = self.hierarchy.lock_of(node);
        // What is offline protects nobody any more, and is nobody's excess.
        match kind {
            _ if node.state().is_offline() => {}
            LimitKind::Min => node.set_protection(Protection::Min, bytes),
            LimitKind::Low => node.set_protection(Protection::Low, bytes),
            LimitKind::Soft => {
                excess::prepare(node, bytes).unwrap_or_else(|refused| refused.abort());
                excess::set_soft(node, bytes);
            }
            LimitKind::High => node.set_high(bytes),
            LimitKind::Max => {}
        }
        0
    }

    /// The percentages below a max that has moved. One without a limited ancestor any more keeps what it was.
    fn follow(&self, stocks: &mut Stocks, top: &'static Counter) {
        for node in self.hierarchy.pinned_below(top).iter().skip(1) {
            for kind in [LimitKind::Max, LimitKind::Min, LimitKind::Low, LimitKind::Soft, LimitKind::High] {
                if let Limit::Percent(_) = node.set_to(kind)
                    && let Ok(bytes) = node.resolve(node.set_to(kind))
                    && bytes != node.kind(kind)
                {
                    self.apply(stocks, node, kind, bytes);
                }
            }
        }
    }
}
