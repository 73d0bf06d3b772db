//! Limits as they are set: a number, a percentage of the nearest limited ancestor's max, or none.
//!
//! A percentage is resolved when it is set, and again, parents first, whenever a max above it moves. All of it under
//! the tree's lock; limits that a group loses when it goes offline also under that of its shard.

use crate::counter::object::Node;
use crate::counter::protection::Protection;
use crate::counter::stocks::Stocks;
use crate::counter::tree::Tree;
use crate::counter::watch::TOLD;
use crate::sync::Ordering;
use crate::units::{Limit, Percent};

/// A limit that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knob {
    Max,
    Min,
    Low,
    Soft,
    High,
}

/// How many there are.
pub(crate) const KNOBS: usize = 5;

/// A percentage, and no ancestor has a max.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoLimitedAncestor(pub(crate) Percent);

impl Node {
    /// A limit as it was set.
    pub(crate) fn set_to(&self, knob: Knob) -> Limit {
        // 0: a number; else the percentage plus 1.
        if let Some(percent) =
            self.percents[knob as usize].load(Ordering::Relaxed).checked_sub(1).and_then(Percent::new)
        {
            return Limit::Percent(percent);
        }
        match self.knob(knob) {
            u64::MAX => Limit::Max,
            bytes => Limit::Bytes(bytes),
        }
    }

    pub(crate) fn knob(&self, knob: Knob) -> u64 {
        match knob {
            Knob::Max => self.max(),
            Knob::Min => self.setting(Protection::Min),
            Knob::Low => self.setting(Protection::Low),
            Knob::Soft => self.limits.soft.load(Ordering::Relaxed),
            Knob::High => self.high(),
        }
    }

    /// The bytes that `limit` stands for here and now.
    fn resolve(&self, limit: Limit) -> Result<u64, NoLimitedAncestor> {
        match limit {
            Limit::Bytes(bytes) => Ok(bytes),
            Limit::Max => Ok(u64::MAX),
            Limit::Percent(percent) => {
                let limited = self.levels().skip(1).map(Node::max).find(|&max| max != u64::MAX);
                limited.map(|max| percent.of(max)).ok_or(NoLimitedAncestor(percent))
            }
        }
    }

    fn note_percent(&self, knob: Knob, limit: Limit) {
        let percent = match limit {
            Limit::Percent(percent) => percent.get() + 1,
            Limit::Bytes(_) | Limit::Max => 0,
        };
        self.percents[knob as usize].store(percent, Ordering::Relaxed);
    }

    /// Set a limit of a counter that is not linked yet: nobody has charged it.
    pub(crate) fn set_unlinked(&self, knob: Knob, limit: Limit) -> Result<(), NoLimitedAncestor> {
        let bytes = self.resolve(limit)?;
        self.note_percent(knob, limit);
        match knob {
            Knob::Max => self.begin_max(bytes),
            Knob::Min => self.limits.min.store(bytes, Ordering::Relaxed),
            Knob::Low => self.limits.low.store(bytes, Ordering::Relaxed),
            Knob::Soft => self.limits.soft.store(bytes, Ordering::Relaxed),
            Knob::High => self.set_high(bytes),
        }
        let told = match knob {
            Knob::Max | Knob::High => false,
            Knob::Min | Knob::Low => bytes > 0,
            Knob::Soft => bytes < u64::MAX,
        };
        if told {
            self.watch(TOLD);
        }
        Ok(())
    }
}

impl Tree {
    /// Set a limit, and every percentage below that follows it. Returns what usage is above a max then, 0 for others.
    pub(crate) fn set(&self, node: &'static Node, knob: Knob, limit: Limit) -> Result<u64, NoLimitedAncestor> {
        let mut stocks = self.stocks.lock();
        let bytes = node.resolve(limit)?;
        node.note_percent(knob, limit);
        if matches!(limit, Limit::Percent(_)) {
            stocks.percents = true;
        }
        let excess = self.apply(&mut stocks, node, knob, bytes);
        if knob == Knob::Max && stocks.percents {
            self.follow(&mut stocks, node);
        }
        Ok(excess)
    }

    fn apply(&self, stocks: &mut Stocks, node: &'static Node, knob: Knob, bytes: u64) -> u64 {
        if knob == Knob::Max {
            return self.impose_max(stocks, node, bytes);
        }
        // It does not go offline meanwhile.
        let _shard = self.shape.lock_of(node);
        // What is offline protects nobody any more, and is nobody's excess.
        match knob {
            _ if node.state().is_offline() => {}
            Knob::Min => node.set_protection(Protection::Min, bytes),
            Knob::Low => node.set_protection(Protection::Low, bytes),
            Knob::Soft => {
                self.before_soft(node, bytes).unwrap_or_else(|refused| refused.abort());
                node.set_soft(bytes);
            }
            Knob::High => node.set_high(bytes),
            Knob::Max => {}
        }
        0
    }

    /// The percentages below a max that has moved. One without a limited ancestor any more keeps what it was.
    fn follow(&self, stocks: &mut Stocks, top: &'static Node) {
        for node in self.shape.pinned_below(top).iter().skip(1) {
            for knob in [Knob::Max, Knob::Min, Knob::Low, Knob::Soft, Knob::High] {
                if let Limit::Percent(_) = node.set_to(knob)
                    && let Ok(bytes) = node.resolve(node.set_to(knob))
                    && bytes != node.knob(knob)
                {
                    self.apply(stocks, node, knob, bytes);
                }
            }
        }
    }
}
