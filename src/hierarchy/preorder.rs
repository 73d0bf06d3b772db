//! A group and the groups below it, parents first, each with the credit of its subtree, while
//! others come and go.
//!
//! 1. Note the credit that groups left which went offline below and are not settled, under the
//!    tree's lock. Where an allocator charges groups, note also what objects of groups there are
//!    that went offline below.
//! 2. Enter a group: read the credit of its own stock. Take handles on its children
//!    (`counter::children`), in the order of their names.
//! 3. Enter them one after the other, as in 2, down to the depth that was asked for. Below it,
//!    enter only groups whose subtree has an open stock, for its credit; where an allocator charges
//!    groups, all of them.
//! 4. Leave a group when its children have been left: add the credit of its subtree to its
//!    parent's, then read its row.
//!
//! No step holds a lock over more than a few groups. A handle keeps a group from step 2 until it is
//! left, and a group keeps its ancestors. So the path, the limits and the figures of one row are
//! one group's. What one row says is read within one step. Two rows are read at different times: a
//! child may show more than its parent does. A group that is online through the whole call has one
//! row; one that comes or goes meanwhile has one or none.
//!
//! Live is usage without the credit of the subtree, as far as that is in usage: see
//! `counter/cover.md`. The thread reads the credit first, so a batch that another thread puts into
//! a stock between the two reads makes live larger, never negative. It reads the published bound on
//! credit before and after both, and takes the larger. It reads both of a group without children
//! under the tree's lock. So live of such a group is right, too, while a drain for another group
//! takes its credit.

use std::collections::HashMap;
use std::vec;

use crate::counter::cover::{self, counted_credit};
use crate::counter::handle::Handle;
use crate::counter::ledger::{self, LedgerSums};
use crate::counter::object::Counter;
use crate::counter::{children, credit};
use crate::error::CounterId;
use crate::hierarchy::names;
use crate::state::name::GroupName;

/// Source of the caller's row.
pub(crate) struct VisitedGroup<'a> {
    pub(crate) group: &'a Handle,
    /// Levels below the group where the call began.
    pub(crate) depth: usize,
    pub(crate) usage: u64,
    /// Usage without the credit of the subtree.
    pub(crate) live: u64,
    /// Live without that of the children, where the walk has entered them.
    pub(crate) own: Option<u64>,
    /// The most credit that the subtree may have had meanwhile.
    pub(crate) bound: u64,
    pub(crate) path: String,
    /// Of the subtree.
    pub(crate) ledger: LedgerSums,
}

/// A group that has been entered and not left.
struct EnteredGroup {
    group: Handle,
    /// The index of its row, unless it lies below the depth that was asked for.
    row: Option<usize>,
    /// Bytes of the path of the group above; of `top`, of its own.
    above: usize,
    /// Of the groups that have been left below it, too.
    credit: u64,
    ledger: LedgerSums,
    /// Read under the lock under which the credit was, for a group without children.
    usage: Option<u64>,
    /// Of the children that have been left; `None` where there are children that are not entered.
    live_below: Option<u64>,
    /// The published bound when the walk entered the group.
    bound: u64,
    children: vec::IntoIter<Handle>,
}

/// Returns what `read` returns for `top` and for the groups that are at most `depth` levels below.
/// The caller keeps `top`, a group's first counter, and holds no lock.
pub(crate) fn read<R>(
    top: &Counter,
    depth: usize,
    mut read: impl FnMut(VisitedGroup<'_>) -> R,
) -> Vec<R> {
    let left = left_offline(top, depth);
    let mut rows: Vec<Option<R>> = Vec::new();
    let mut entered: Vec<EnteredGroup> = Vec::new();
    let mut next = Some(Handle::pin(top));
    // Of the group that was entered last; empty for the root, since each name below brings a slash.
    let mut path = names::path(top);
    path.truncate(if path == "/" { 0 } else { path.len() });
    // A loop with a list of its own, and no recursion: groups nest as deep as a program likes, and a
    // thread's stack does not.
    loop {
        if let Some(group) = next.take() {
            // The row gets its place now and its figures when the group is left. So parents stand
            // before their children, and are read after them.
            let row = (entered.len() <= depth).then_some(rows.len());
            rows.extend(row.map(|_| None));
            let above = path.len();
            if !entered.is_empty() {
                names::add_to(&mut path, &group);
            }
            let mut frame = enter(group, row, above, entered.len() < depth);
            if entered.len() < depth {
                rows.reserve(frame.children.len());
            }
            let (credit, ledger) = left.get(&frame.group.id()).copied().unwrap_or_default();
            frame.credit += credit;
            frame.ledger += ledger;
            entered.push(frame);
        }
        let Some(current) = entered.last_mut() else {
            break;
        };
        next = current.children.next();
        if next.is_some() {
            continue;
        }
        let Some(EnteredGroup {
            group,
            row,
            above,
            credit,
            ledger,
            usage,
            live_below,
            bound,
            ..
        }) = entered.pop()
        else {
            break;
        };
        let usage = usage.unwrap_or_else(|| group.usage());
        let ledger = ledger::compare(&group, ledger);
        let counted = counted_credit(&group, credit);
        let live = usage.saturating_sub(counted);
        if let Some(parent) = entered.last_mut() {
            // A parent that covers compares all credit below with its own reserved bytes. Any other
            // was charged for no more than what is unpaid here.
            parent.credit += if parent.group.cover().is_some() {
                credit
            } else {
                counted
            };
            parent.ledger += ledger;
            parent.live_below = parent.live_below.map(|below| below.saturating_add(live));
        }
        if let Some(row) = row {
            let own = live_below.map(|below| live.saturating_sub(below));
            let bound = bound.max(group.bound());
            let depth = entered.len();
            let path = if path.is_empty() {
                "/".to_string()
            } else {
                path.clone()
            };
            rows[row] = Some(read(VisitedGroup {
                group: &group,
                depth,
                usage,
                live,
                own,
                bound,
                path,
                ledger,
            }));
        }
        path.truncate(above);
    }
    #[expect(
        clippy::filter_map_identity,
        reason = "in place; `flatten` makes a second list of rows, which are large"
    )]
    rows.into_iter().filter_map(|row| row).collect()
}

/// The ledger of a group with those of groups that went offline below it and not below its
/// children.
pub(crate) fn ledger_local(group: &Counter) -> LedgerSums {
    let mut sums = ledger::own(group);
    if let Some(&(_, left)) = left_offline(group, 1).get(&group.id()) {
        sums += left;
    }
    sums
}

/// `has_rows`: the children have rows. Else they are entered for their credit.
fn enter(group: Handle, row: Option<usize>, above: usize, has_rows: bool) -> EnteredGroup {
    let bound = group.bound();
    let (credit, usage) = credit::own(&group);
    let has_objects = ledger::any();
    let ledger = if has_objects {
        ledger::own(&group)
    } else {
        LedgerSums::default()
    };
    let has_figures = has_rows || has_objects || group.may_have_credit_below();
    let children = if has_figures {
        children::pin(&group)
    } else {
        Vec::new()
    };
    let live_below = (has_figures || group.child_count().get() == 0).then_some(0);
    let usage = children.is_empty().then_some(usage);
    EnteredGroup {
        group,
        row,
        above,
        credit,
        ledger,
        usage,
        live_below,
        bound,
        children: sorted(children, has_rows),
    }
}

/// The credit that offline groups left, and the ledgers of those that still have objects, by the
/// group that the walk adds it to.
fn left_offline(top: &Counter, depth: usize) -> HashMap<CounterId, (u64, LedgerSums)> {
    let mut left: HashMap<CounterId, (u64, LedgerSums)> = HashMap::new();
    let has_objects = ledger::any();
    let row_of = |group: &Counter| {
        // The walk enters each group, and one that covers in between compares the sums.
        if has_objects {
            return group.id();
        }
        let path: Vec<CounterId> = group.path_to_root().map(Counter::id).collect();
        let below_top = path.iter().position(|&id| id == top.id()).unwrap_or(0);
        path[below_top.saturating_sub(depth)]
    };
    credit::each_left(top, |above, units| {
        left.entry(row_of(above)).or_default().0 += units
    });
    if has_objects {
        // For tops of groups that cover and that went offline too: the row, the sums, and the bytes
        // that are reserved in them.
        let mut covering: HashMap<CounterId, (CounterId, LedgerSums, u64)> = HashMap::new();
        children::each_dying(top, |dying| {
            // If no level up to `top` is online, `top` is offline, too.
            let mut above = dying
                .path_to_root()
                .skip(1)
                .take_while(|level| !std::ptr::eq(*level, top));
            let row = row_of(
                above
                    .find(|level| !level.state().is_offline())
                    .unwrap_or(top),
            );
            let sums = ledger::own(dying);
            let mut gone = dying
                .path_to_root()
                .take_while(|level| !std::ptr::eq(*level, top));
            let offline = cover::top(dying)
                .filter(|of| of.state().is_offline() && gone.any(|level| std::ptr::eq(level, *of)));
            match offline.and_then(|of| Some((of.id(), of.cover()?.reserved()))) {
                None => left.entry(row).or_default().1 += sums,
                Some((of, reserved)) => {
                    covering
                        .entry(of)
                        .or_insert((row, LedgerSums::default(), reserved))
                        .1 += sums;
                }
            }
        });
        for (row, sums, reserved) in covering.into_values() {
            left.entry(row).or_default().1 += sums.compared_with(reserved);
        }
    }
    left
}

/// Handles on the children, by name if asked for. Each child lies on a page of its own, so its place
/// in the order is read once: a sort that compares children reads each some twenty times, and took a
/// third of a snapshot of a million groups.
fn sorted(children: Vec<Handle>, by_name: bool) -> vec::IntoIter<Handle> {
    if !by_name {
        return children.into_iter();
    }
    let mut places: Vec<_> = children
        .iter()
        .enumerate()
        .map(|(at, child)| (place(child), at))
        .collect();
    places.sort_unstable();
    let order: Vec<usize> = places.into_iter().map(|(_, at)| at).collect();
    let mut children: Vec<_> = children.into_iter().map(Some).collect();
    let in_order = order.into_iter().filter_map(|at| children[at].take());
    in_order.collect::<Vec<_>>().into_iter()
}

/// Numbers first, in their order; then texts; then groups without a name, in the order of their
/// objects.
fn place(child: &Counter) -> (u8, u64, &str) {
    match names::of(child) {
        GroupName::Number(number) => (0, number, ""),
        GroupName::Text(text) => (1, 0, text),
        GroupName::Unnamed => (2, child.number.into(), ""),
    }
}
