//! Limits as they are set: a number, a percentage of the nearest limited ancestor's max, or none.
//!
//! A percentage is resolved when it is set, and again, parents first, whenever a max above it
//! moves. The thread that does this holds the tree's lock. For limits that an offline group loses
//! it also holds the lock of the group's shard.

use std::collections::HashSet;
use std::ptr;

use crate::counter::object::Counter;
use crate::counter::object::tree::{Stocks, Tree};
use crate::counter::protection::Protection;
use crate::counter::slow_path::{LazySlowPath, SlowPath};
use crate::counter::{at_limit, links, look, thresholds};
use crate::error::CounterId;
use crate::hierarchy::{group_object, group_tree};
use crate::state::applied::Settings;
use crate::state::limits::{LimitKind, Percents};
use crate::sync::Ordering;
use crate::units::{Limit, Percent};

/// The limit is this percentage, and no ancestor has a max.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoLimitedAncestor(pub(crate) Percent);

fn percents(of: &Counter) -> &Percents {
    &group_object::state(of).percents
}

pub(crate) fn set_to(counter: &Counter, kind: LimitKind) -> Limit {
    match (percents(counter).get(kind), value(counter, kind)) {
        (Some(percent), _) => Limit::Percent(percent),
        (None, u64::MAX) => Limit::Unlimited,
        (None, bytes) => Limit::Bytes(bytes),
    }
}

/// A limit in bytes.
pub(crate) fn value(counter: &Counter, kind: LimitKind) -> u64 {
    match kind {
        LimitKind::Max => counter.max(),
        LimitKind::Min => thresholds::protection(counter, Protection::Min),
        LimitKind::Low => thresholds::protection(counter, Protection::Low),
        LimitKind::Soft => thresholds::soft(counter),
        LimitKind::High => thresholds::high(counter),
        LimitKind::ReclaimAbove => thresholds::reclaim_above(counter),
    }
}

pub(crate) fn any_percent(tree: &Tree) -> bool {
    let path = SlowPath::enter();
    tree.lock(&path).percents
}

/// `own`: the max that the counter has, or is about to have.
fn resolve(
    counter: &Counter,
    kind: LimitKind,
    limit: Limit,
    own: u64,
) -> Result<u64, NoLimitedAncestor> {
    match limit {
        Limit::Bytes(bytes) => Ok(bytes),
        Limit::Unlimited => Ok(u64::MAX),
        Limit::Percent(percent) => {
            // Reclaim in the background begins at a part of the max that the group itself has. All
            // other percentages share out what a group above has.
            let own = (kind == LimitKind::ReclaimAbove).then_some(own);
            let mut maxima = own
                .into_iter()
                .chain(counter.path_to_root().skip(1).map(|level| level.max()));
            let limited = maxima.find(|&max| max != u64::MAX);
            limited
                .map(|max| percent.of(max))
                .ok_or(NoLimitedAncestor(percent))
        }
    }
}

fn note_percent(counter: &Counter, kind: LimitKind, limit: Limit) {
    let percent = if let Limit::Percent(percent) = limit {
        Some(percent)
    } else {
        None
    };
    percents(counter).set(kind, percent);
}

/// The limit is no percentage any more. The caller holds the tree's lock.
pub(crate) fn forget_percent(counter: &Counter, kind: LimitKind) {
    percents(counter).set(kind, None);
}

/// Sets a limit of a counter that is not linked yet: no thread charges it.
pub(crate) fn set_unlinked(
    counter: &Counter,
    kind: LimitKind,
    limit: Limit,
) -> Result<(), NoLimitedAncestor> {
    let bytes = resolve(counter, kind, limit, counter.max())?;
    note_percent(counter, kind, limit);
    set_word(counter, kind, bytes);
    Ok(())
}

fn set_word(counter: &Counter, kind: LimitKind, bytes: u64) {
    match kind {
        LimitKind::Max => counter.begin_max(bytes),
        LimitKind::Min => thresholds::set_protection(counter, Protection::Min, bytes),
        LimitKind::Low => thresholds::set_protection(counter, Protection::Low, bytes),
        LimitKind::Soft => thresholds::set_soft(counter, bytes),
        LimitKind::High => thresholds::set_high(counter, bytes),
        LimitKind::ReclaimAbove => thresholds::set_reclaim_above(counter, bytes),
    }
}

/// Sets limits in one step, and every percentage below that follows them: all, or none where one of
/// them is refused. Returns the usage above a max that is among them, else 0. `due` and `also` are
/// parts of that step, under the tree's lock: `due` returns the settings that are to be set by now,
/// and `also` gets them.
pub(crate) fn set(
    counter: &Counter,
    wanted: &[(LimitKind, Option<Limit>)],
    due: impl FnOnce() -> Settings,
    also: impl FnOnce(Settings),
) -> Result<u64, (LimitKind, NoLimitedAncestor)> {
    let path = SlowPath::enter();
    let mut stocks = counter.tree().lock(&path);
    let due = due();
    let named = || {
        wanted
            .iter()
            .filter(|&&(kind, _)| due.has(Settings::limit(kind)))
            .filter_map(|&(kind, limit)| Some((kind, limit?)))
    };
    // All are resolved before one is set, so that a refusal leaves nothing half done.
    let mut bytes = [0; LimitKind::ALL.len()];
    // The max is the first of all kinds: what follows is resolved by the one that is about to be.
    let mut max = counter.max();
    for (kind, limit) in named() {
        // Mutation: a-percentage-that-is-refused-is-remembered
        bytes[kind as usize] = resolve(counter, kind, limit, max).map_err(|none| (kind, none))?;
        if kind == LimitKind::Max {
            max = bytes[kind as usize];
        }
    }
    let mut excess = 0;
    for (kind, limit) in named() {
        note_percent(counter, kind, limit);
        // Never taken back. It spares a tree that has no percentages the walk of `follow`.
        stocks.percents |= matches!(limit, Limit::Percent(_));
        excess += apply(
            &mut stocks,
            counter,
            kind,
            bytes[kind as usize],
            MaxMove::ByProgram,
        );
        if kind == LimitKind::Max && stocks.percents {
            follow(&mut stocks, counter, MaxMove::ByProgram);
        }
    }
    // Mutation: a-share-is-taken-in-a-step-of-its-own
    also(due);
    Ok(excess)
}

/// Moves the max of `group`, which follows something outside of the program, and every percentage
/// below with it. Returns the usage above it.
pub(crate) fn move_max(group: &Counter, bytes: u64) -> u64 {
    let path = SlowPath::enter();
    let mut stocks = group.tree().lock(&path);
    note_percent(group, LimitKind::Max, Limit::Bytes(bytes));
    let excess = apply(&mut stocks, group, LimitKind::Max, bytes, MaxMove::ByItself);
    if stocks.percents {
        follow(&mut stocks, group, MaxMove::ByItself);
    }
    excess
}

/// Why a max moves.
#[derive(Clone, Copy)]
enum MaxMove {
    ByProgram,
    ByItself,
}

/// The max of memory moves, under the tree's lock.
fn note_move(counter: &Counter, bytes: u64, moves: MaxMove) {
    if !counter.is_memory() {
        return;
    }
    let groups = group_tree::of(counter);
    if groups.any_shares.load(Ordering::Relaxed) {
        groups.shares.lock().max_moved(counter);
    }
    let mut waiting = groups.waiting.lock();
    match moves {
        // Mutation: a-fall-stays-where-the-program-moves-the-max
        MaxMove::ByProgram => waiting.falls.forget(counter),
        MaxMove::ByItself if bytes < counter.admits() => waiting.falls.note(counter),
        MaxMove::ByItself => {}
    }
}

fn apply(
    stocks: &mut Stocks,
    counter: &Counter,
    kind: LimitKind,
    bytes: u64,
    moves: MaxMove,
) -> u64 {
    let tree = counter.tree();
    if kind == LimitKind::Max {
        note_move(counter, bytes, moves);
        return at_limit::impose_max(stocks, counter, bytes);
    }
    // Under the lock of its shard the group does not go offline.
    let _shard = tree.hierarchy.lock_of(counter);
    // A group that is offline protects no usage any more, and its usage is no excess.
    if !counter.state().is_offline() {
        set_word(counter, kind, bytes);
        // Mutation: e43-high-moves-without-a-look
        if let LimitKind::Soft | LimitKind::High | LimitKind::ReclaimAbove = kind {
            look::look(counter, false, &LazySlowPath::inside());
        }
    }
    0
}

/// Resolves the percentages below a max that has moved. One without a limited ancestor keeps its
/// bytes.
fn follow(stocks: &mut Stocks, top: &Counter, moves: MaxMove) {
    // Groups whose max the program sets with this one. A part of such a max is set, too, where it
    // stays as it is: it no longer moves by itself. A part of another max does as that does.
    let mut set = HashSet::from([top.id()]);
    let is_of_set = |counter: &Counter, set: &HashSet<CounterId>| {
        let mut above = counter.path_to_root().skip(1);
        let of = above.find(|level| level.max() != u64::MAX);
        of.is_some_and(|of| set.contains(&of.id()))
    };
    for counter in &links::pin_below(top) {
        // Of its own max a group has one percentage.
        // Mutation: a-part-of-its-own-max-stays-as-that-moves
        let follows =
            |kind: &LimitKind| !ptr::eq(&**counter, top) || *kind == LimitKind::ReclaimAbove;
        for kind in LimitKind::ALL.into_iter().filter(follows) {
            let as_set = set_to(counter, kind);
            if let Limit::Percent(_) = as_set
                && let Ok(bytes) = resolve(counter, kind, as_set, counter.max())
                && (bytes != value(counter, kind)
                    || kind == LimitKind::Max
                        && matches!(moves, MaxMove::ByProgram)
                        && is_of_set(counter, &set))
            {
                apply(stocks, counter, kind, bytes, moves);
                if kind == LimitKind::Max {
                    set.insert(counter.id());
                }
            }
        }
    }
}
