//! How a flush goes: gathered from the cells upwards, published from the root downwards, in slices.
//!
//! A flush has a number, and whatever it has done bears it. Lists keep those flushed last behind (`list`), so the next
//! slice, by whoever gets the lock, goes on with the first that does not bear it. Readers that asked before a flush
//! began help with it, each with the subtree that it needs, and nobody waits for more than a slice of anybody else.

use smallvec::SmallVec;

use super::coordinator::Coordinator;
use super::list::NONE;
use super::part::Part;
use super::state::State;
use crate::sync::barrier::Barrier;
use crate::sync::{Ordering, SLICE, rest};
use crate::thread::cells::Bits;

/// Levels of a group that a slice keeps on its own stack.
const LEVELS_COMMON: usize = 16;

/// Scratch that is kept from slice to slice.
const CHANGES_KEPT: usize = 1 << 14;

/// What a slice has gathered: a row for each group that changes, parents before their children.
pub(super) struct Rows {
    pub(super) items: usize,
    /// Number of the slice, so that a group can tell whether it has a row.
    slice: u64,
    rows: Vec<Row>,
    /// For each row what changes in the group alone, then in its subtree.
    changes: Vec<i64>,
    /// Cells that were found as they had been, several times in a row.
    idle: Vec<u32>,
    visits: Visits,
}

/// What a flush, or a slice of it, has visited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Visits {
    pub(crate) all: usize,
    /// Of cells that were as the visit before had left them.
    pub(crate) unchanged: usize,
    /// Visits in a row, this one included, to cells that are idle by now.
    wasted: u64,
}

impl Visits {
    pub(crate) fn add(&mut self, more: Visits) {
        self.all += more.all;
        self.unchanged += more.unchanged;
        self.wasted += more.wasted;
    }
}

/// No row.
const NOWHERE: usize = usize::MAX;

/// What changes in a group, and in its subtree.
#[derive(Clone, Copy)]
pub(super) struct Row {
    group: u32,
    /// Row of the parent.
    above: usize,
    /// Items, a bit each.
    pub(super) touched: u64,
    /// Grains of it, and how many of them had been announced.
    pub(super) written: u64,
    pub(super) announced: u64,
}

/// Whether a flush unlists what it has found idle, which takes a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlist {
    /// Nor does it count as a visit that has found cells idle.
    Never,
    /// Where the visits to it have come to cost as much.
    Many,
    Always,
}

impl Rows {
    pub(super) fn new(items: usize) -> Rows {
        Rows { items, slice: 0, rows: Vec::new(), changes: Vec::new(), idle: Vec::new(), visits: Visits::default() }
    }

    /// Bytes of scratch.
    pub(super) fn bytes(&self) -> u64 {
        let Rows { rows, changes, idle, .. } = self;
        let all = rows.capacity() * size_of::<Row>() + changes.capacity() * size_of::<i64>();
        (all + idle.capacity() * size_of::<u32>()) as u64
    }

    pub(super) fn begin(&mut self) {
        self.slice += 1;
        self.visits = Visits::default();
        self.rows.clear();
        self.changes.clear();
        self.idle.clear();
        // A very deep tree needs much of it, once.
        self.changes.shrink_to(CHANGES_KEPT);
    }

    fn local(&mut self, row: usize) -> &mut [i64] {
        let first = row * 2 * self.items;
        &mut self.changes[first..first + self.items]
    }
}

impl Coordinator {
    /// Publish what was written in the group and below it before the call. No barrier, but where cells are unlisted.
    /// Costs one visit to each listed pair of thread and group.
    pub(crate) fn flush(&self, part: &Part, barrier: &Barrier, unlist: Unlist) -> Visits {
        let root = part.number() == 0;
        if root {
            self.note_root_flush();
        }
        let asked = self.ask();
        let (mut visits, mut idle) = (Visits::default(), Vec::new());
        let mut flush = None;
        loop {
            let mut state = self.state.lock();
            let number = *flush.get_or_insert_with(|| self.begin(&mut state, asked));
            let done = state.slice(part.number(), number, unlist);
            visits.add(state.rows.visits);
            idle.append(&mut state.rows.idle);
            drop(state);
            if done {
                break;
            }
            // Whoever is preempted with the lock holds up all others: better between two slices than within one.
            rest();
        }
        self.counts.visits.fetch_add(visits.all as u64, Ordering::Relaxed);
        let unlists = match unlist {
            Unlist::Never => false,
            Unlist::Many => Coordinator::pays(visits.wasted),
            Unlist::Always => !idle.is_empty(),
        };
        if unlists {
            self.unlist(&idle, barrier);
        }
        visits
    }
}

impl State {
    /// Go on with a flush, as far as it concerns the subtree of `target`, for at most [`SLICE`] cells and groups. True
    /// when nothing is left of it.
    pub(super) fn slice(&mut self, target: u32, flush: u64, unlist: Unlist) -> bool {
        self.rows.begin();
        if !self.enlist_taken() {
            return false;
        }
        let mut at = target;
        let mut finished = 0;
        let done = loop {
            if self.groups[target as usize].done >= flush {
                break true;
            }
            let child = self.groups[at as usize].children.first();
            if let Some(child) = child.filter(|&child| self.groups[child as usize].done < flush) {
                at = child;
                continue;
            }
            if self.rows.visits.all + finished >= SLICE {
                break false;
            }
            let group = &self.groups[at as usize];
            let entry = group.listed.first().filter(|&entry| self.entries[entry as usize].done < flush);
            if let Some(entry) = entry {
                if !self.gather(entry) && unlist != Unlist::Never {
                    self.note_idle(entry);
                }
                // Read now: good for every flush that has begun.
                let now = self.flush;
                self.groups[at as usize].listed.done(&mut self.entries, entry, now);
                continue;
            }
            // All its children and cells bear the flush's number, or a later one.
            self.finish(at);
            finished += 1;
            if at != target {
                at = self.groups[at as usize].parent;
            }
        };
        self.publish();
        done
    }

    /// Read cells into their group's row. False where nothing was written since they were read last.
    pub(super) fn gather(&mut self, number: u32) -> bool {
        self.rows.visits.all += 1;
        let entry = &mut self.entries[number as usize];
        let version = entry.cells.version();
        if version == entry.version {
            return false;
        }
        let before = std::mem::replace(&mut entry.version, version);
        entry.idle_visits = 0;
        let row = self.row(self.entries[number as usize].group);
        let entry = &mut self.entries[number as usize];
        let changes = self.rows.local(row);
        let mut touched = 0;
        for item in entry.cells.touched() {
            let count = entry.cells.count(item);
            let change = count.wrapping_sub(std::mem::replace(&mut entry.seen[item], count));
            if change != 0 {
                changes[item] = changes[item].wrapping_add(change);
                touched |= 1 << item;
            }
        }
        let row = &mut self.rows.rows[row];
        row.touched |= touched;
        row.written = row.written.wrapping_add(version.written.wrapping_sub(before.written));
        row.announced = row.announced.wrapping_add(version.announced.wrapping_sub(before.announced));
        true
    }

    /// A flush has found cells as they were.
    fn note_idle(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        entry.idle_visits = entry.idle_visits.saturating_add(1);
        self.rows.visits.unchanged += 1;
        if entry.is_idle() {
            self.rows.visits.wasted += u64::from(entry.idle_visits);
            self.rows.idle.push(number);
        }
    }

    /// The row of a group, made behind those of its ancestors.
    fn row(&mut self, group: u32) -> usize {
        let mut without: SmallVec<[u32; LEVELS_COMMON]> = SmallVec::new();
        let mut at = group;
        let mut above = NOWHERE;
        while at != NONE {
            let group = &self.groups[at as usize];
            if group.slice == self.rows.slice {
                above = group.row;
                break;
            }
            without.push(at);
            at = group.parent;
        }
        for number in without.into_iter().rev() {
            let group = &mut self.groups[number as usize];
            (group.row, group.slice) = (self.rows.rows.len(), self.rows.slice);
            self.rows.rows.push(Row { group: number, above, touched: 0, written: 0, announced: 0 });
            above = group.row;
        }
        self.rows.changes.resize(self.rows.rows.len() * 2 * self.rows.items, 0);
        above
    }

    /// Add up from the last row to the first, publish from the first to the last: no child before its parent.
    pub(super) fn publish(&mut self) {
        let Rows { items, rows, changes, .. } = &mut self.rows;
        let items = *items;
        for number in (0..rows.len()).rev() {
            let Row { above, touched, written, announced, .. } = rows[number];
            let (before, row) = changes.split_at_mut(number * 2 * items);
            let (local, subtree) = row.split_at_mut(items);
            for item in Bits(touched) {
                subtree[item] = subtree[item].wrapping_add(local[item]);
                if above != NOWHERE {
                    let parent = &mut before[above * 2 * items + items + item];
                    *parent = parent.wrapping_add(subtree[item]);
                }
            }
            if above != NOWHERE {
                rows[above].touched |= touched;
                rows[above].written = rows[above].written.wrapping_add(written);
                rows[above].announced = rows[above].announced.wrapping_add(announced);
            }
        }
        for (row, changes) in rows.iter().zip(changes.chunks(2 * items)) {
            let (local, subtree) = changes.split_at(items);
            self.groups[row.group as usize].part().publish(row, local, subtree);
        }
    }
}
