//! An account on each node: lines, which the guard that holds the bytes keeps.

use smallvec::SmallVec;

use super::placement::Placement;
use crate::hierarchy::node_stats::{self, Above};
use crate::numa::{NodeId, Topology};
use crate::stat::Stat;
use crate::stat::published::StatScope;
use crate::thread::directory::Header;
use crate::units::Bytes;

/// Two nodes, and one for metadata, need no allocation.
pub(super) type AccountLines = SmallVec<[AccountLine; 3]>;

/// Bytes accounted in one scope. Two words, because owners move many of these about.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccountLine {
    pub(super) bytes: u64,
    pub(super) scope: StatScope,
    /// `None`: nowhere, because the thread was inside another slow path.
    pub(super) above: Option<Above>,
}

impl AccountLine {
    #[inline]
    pub(super) fn take_off(&self, header: &Header, stat: Stat, bytes: u64) {
        if let Some(above) = self.above {
            node_stats::unaccount(header, self.scope, above, stat, bytes.cast_signed());
        }
    }
}

#[inline]
pub(super) fn add(lines: &mut AccountLines, line: AccountLine) {
    match lines.iter_mut().find(|of| of.scope == line.scope && of.above == line.above) {
        Some(of) => of.bytes += line.bytes,
        None => lines.push(line),
    }
}

/// Accounts bytes in a scope, on the counter that has this header.
#[inline]
pub(super) fn account(lines: &mut AccountLines, header: &Header, stat: Stat, (scope, bytes): (StatScope, u64)) {
    if bytes == 0 {
        return;
    }
    let above = node_stats::account(header, scope, stat, bytes.cast_signed());
    add(lines, AccountLine { scope, above, bytes });
}

/// Takes at most so many bytes off a scope. Returns how many.
#[inline]
pub(super) fn unaccount(
    lines: &mut AccountLines,
    header: &Header,
    stat: Stat,
    (scope, bytes): (StatScope, u64),
) -> u64 {
    let mut left = bytes;
    for account in lines.iter_mut().filter(|of| of.scope == scope) {
        let gone = left.min(account.bytes);
        if gone > 0 {
            account.take_off(header, stat, gone);
            account.bytes -= gone;
            left -= gone;
        }
    }
    lines.retain(|account| account.bytes > 0);
    bytes - left
}

pub(super) fn on(lines: &AccountLines, scope: StatScope) -> u64 {
    lines.iter().filter(|account| account.scope == scope).map(|account| account.bytes).sum()
}

pub(super) fn placement(lines: &AccountLines, topology: &Topology) -> Placement {
    let mut placement = Placement::new();
    for account in lines {
        placement.add(node_of(account.scope, topology), Bytes(account.bytes));
    }
    placement
}

/// The scope of a node. What is on no node, or on one that the topology does not have, is the counter's own.
pub(super) fn scope(node: Option<NodeId>, topology: &Topology) -> StatScope {
    match node.and_then(|node| topology.index_of(node)) {
        Some(index) if !topology.is_one_node() => StatScope::On(index as u16),
        _ => StatScope::Group,
    }
}

/// The node of a scope. With one node the counter's own scope is that node.
pub(super) fn node_of(scope: StatScope, topology: &Topology) -> Option<NodeId> {
    match scope {
        StatScope::On(index) => Some(topology.node_at(index.into())),
        StatScope::Group => topology.is_one_node().then(|| topology.node_at(0)),
    }
}
