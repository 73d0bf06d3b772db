//! An account on each node: lines, which the guard that holds the bytes keeps.

use smallvec::SmallVec;

use super::placement::Placement;
use crate::counter::object::HeaderRef;
use crate::hierarchy::group_tree;
use crate::hierarchy::node_stats::{self, AccountPlace};
use crate::numa::{NodeId, Topology};
use crate::stat::StatKey;
use crate::stat::published::StatScope;
use crate::sync::model_failed;
use crate::units::Bytes;

/// The bytes of one guard on each node, as one item, on the counter that has this header. The drop
/// takes them off, so it comes before the charge ends, which keeps the counter.
pub(super) struct Accounts {
    pub(super) header: HeaderRef,
    pub(super) stat: StatKey,
    /// Two nodes, and one for metadata, need no allocation.
    pub(super) lines: SmallVec<[AccountLine; 3]>,
}

/// Bytes accounted in one scope. Two words, because owners move many of these about.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccountLine {
    pub(super) bytes: u64,
    pub(super) scope: StatScope,
    /// `None`: nowhere, because the thread was inside another slow path.
    pub(super) above: Option<AccountPlace>,
}

impl AccountLine {
    #[inline]
    pub(super) fn take_off(&self, header: HeaderRef, stat: StatKey, bytes: u64) {
        if let Some(above) = self.above {
            node_stats::unaccount(header, self.scope, above, stat, bytes.cast_signed());
        }
    }
}

impl Accounts {
    #[inline]
    pub(super) fn new(header: HeaderRef, stat: StatKey) -> Accounts {
        Accounts {
            header,
            stat,
            lines: SmallVec::new(),
        }
    }

    /// The nodes of the tree. `None` for a tree of bare counters, which accounts nothing.
    #[inline]
    fn topology(&self) -> Option<&Topology> {
        group_tree::if_groups(self.header.counter().tree()).map(|groups| &groups.numa.topology)
    }

    /// The scope of a node. What is on no node, or on one that the topology does not have, is the
    /// counter's own.
    #[inline]
    pub(super) fn scope(&self, node: Option<NodeId>) -> StatScope {
        self.topology()
            .map_or(StatScope::Group, |topology| scope_of(node, topology))
    }

    #[inline]
    pub(super) fn add(&mut self, line: AccountLine) {
        match self
            .lines
            .iter_mut()
            // Bytes of one node lie in two lines if not all were counted at the same group, or some
            // were not counted at all: each is taken off where it was put on.
            .find(|of| of.scope == line.scope && of.above == line.above)
        {
            Some(of) => of.bytes += line.bytes,
            None => self.lines.push(line),
        }
    }

    #[inline]
    pub(super) fn account(&mut self, scope: StatScope, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let above = node_stats::account(self.header, scope, self.stat, bytes.cast_signed());
        self.add(AccountLine {
            scope,
            above,
            bytes,
        });
    }

    /// Accounts at most so many bytes of a placement.
    #[inline]
    pub(super) fn account_all(&mut self, placement: &Placement, most: u64) {
        if self.topology().is_none() {
            return;
        }
        let mut left = most;
        // The guard may hold less than the placement says. Then only the first nodes are accounted,
        // up to what it holds: figures must not show memory that no charge holds.
        for (node, bytes) in placement.nodes() {
            let bytes = bytes.min(left);
            left -= bytes;
            self.account(self.scope(Some(node)), bytes);
        }
        self.account(StatScope::Group, placement.unplaced().min(left));
    }

    /// Takes at most so many bytes off a scope. Returns how many.
    #[inline]
    pub(super) fn unaccount(&mut self, scope: StatScope, bytes: u64) -> u64 {
        let mut left = bytes;
        for account in self.lines.iter_mut().filter(|of| of.scope == scope) {
            let gone = left.min(account.bytes);
            if gone > 0 {
                account.take_off(self.header, self.stat, gone);
                account.bytes -= gone;
                // Mutation: two-parts-of-one-node-free-twice
                left -= gone;
            }
        }
        self.lines.retain(|account| account.bytes > 0);
        bytes - left
    }

    /// Moves at most so many bytes from one node to another. Returns how many.
    pub(super) fn migrated(&mut self, from: Option<NodeId>, to: Option<NodeId>, bytes: u64) -> u64 {
        let of = self.scope(from);
        let into = self.scope(to);
        // Both are one scope for this runtime, as all nodes are that it does not know. Nothing
        // moves in the figures, and the caller is told that it has moved.
        if of == into {
            return self.on(of).min(bytes);
        }
        let moved = self.unaccount(of, bytes);
        // Mutation: moved-bytes-are-nowhere
        self.account(into, moved);
        moved
    }

    pub(super) fn on(&self, scope: StatScope) -> u64 {
        self.lines
            .iter()
            .filter(|account| account.scope == scope)
            .map(|account| account.bytes)
            .sum()
    }

    pub(super) fn placement(&self) -> Placement {
        let mut placement = Placement::new();
        for account in &self.lines {
            let node = self
                .topology()
                .and_then(|topology| node_of(account.scope, topology));
            placement.add(node, Bytes(account.bytes));
        }
        placement
    }

    #[inline]
    pub(super) fn take_off(&mut self) {
        // Mutation: of-an-account-the-first-line-ends
        for account in std::mem::take(&mut self.lines) {
            account.take_off(self.header, self.stat, account.bytes);
        }
    }
}

impl Drop for Accounts {
    #[inline]
    fn drop(&mut self) {
        if !model_failed() {
            self.take_off();
        }
    }
}

/// The scope of a node of a topology, as [`Accounts::scope`] says.
#[inline]
pub(super) fn scope_of(node: Option<NodeId>, topology: &Topology) -> StatScope {
    let index = node
        .filter(|_| !topology.is_one_node())
        .and_then(|node| topology.index_of(node));
    index.map_or(StatScope::Group, |index| StatScope::On(index as u16))
}

/// The node of a scope. With one node the counter's own scope is that node.
pub(super) fn node_of(scope: StatScope, topology: &Topology) -> Option<NodeId> {
    match scope {
        StatScope::On(index) => Some(topology.node_at(index.into())),
        StatScope::Group => topology.is_one_node().then(|| topology.node_at(0)),
    }
}
