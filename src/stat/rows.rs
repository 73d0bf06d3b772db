//! The result of a slice of a flush: a row for each group that changes, parents before their
//! children.

use super::visits::FlushVisits;
use crate::thread::cells::SetBits;

/// Memory that stays from slice to slice.
const CHANGES_KEPT: usize = 1 << 14;

/// The rows of one slice, and what the slice has visited.
#[derive(Default)]
pub(super) struct SliceRows {
    pub(super) items: usize,
    /// Number of the slice, so that a group can tell whether it has a row.
    pub(super) slice: u64,
    pub(super) rows: Vec<ChangedGroup>,
    /// For each row what changes in the group alone, then in its subtree.
    changes: Vec<i64>,
    /// Cells that were found as they had been, several times in a row.
    pub(super) idle: Vec<u32>,
    pub(super) visits: FlushVisits,
}

#[derive(Clone, Copy)]
pub(super) struct ChangedGroup {
    pub(super) group: u32,
    /// Row of the parent; [`NO_ROW`] for the root.
    above: usize,
    /// Items, a bit each.
    pub(super) touched: u64,
    /// Grains of it, and how many of them had been announced.
    pub(super) written: u64,
    pub(super) announced: u64,
}

pub(super) const NO_ROW: usize = usize::MAX;

impl SliceRows {
    pub(super) fn bytes(&self) -> u64 {
        let SliceRows {
            rows,
            changes,
            idle,
            ..
        } = self;
        let all =
            rows.capacity() * size_of::<ChangedGroup>() + changes.capacity() * size_of::<i64>();
        (all + idle.capacity() * size_of::<u32>()) as u64
    }

    pub(super) fn reset(&mut self) {
        self.slice += 1;
        self.visits = FlushVisits::default();
        self.rows.clear();
        self.changes.clear();
        self.idle.clear();
        // A very deep tree needs much memory once: the slice does not keep that.
        self.changes.shrink_to(CHANGES_KEPT);
    }

    /// Adds a row behind all others. Returns its number. The caller calls
    /// [`make_room`](Self::make_room) before it writes the row.
    pub(super) fn push(&mut self, group: u32, above: usize) -> usize {
        self.rows.push(ChangedGroup {
            group,
            above,
            touched: 0,
            written: 0,
            announced: 0,
        });
        self.rows.len() - 1
    }

    pub(super) fn make_room(&mut self) {
        self.changes.resize(self.rows.len() * 2 * self.items, 0);
    }

    /// Returns the changes of a row's group alone, by item.
    pub(super) fn local(&mut self, row: usize) -> &mut [i64] {
        let first = row * 2 * self.items;
        &mut self.changes[first..first + self.items]
    }

    /// Adds what changes in each group to its parent's subtree, from the last row to the first.
    pub(super) fn add_up(&mut self) {
        let SliceRows {
            items,
            rows,
            changes,
            ..
        } = self;
        let items = *items;
        for number in (0..rows.len()).rev() {
            let ChangedGroup {
                above,
                touched,
                written,
                announced,
                ..
            } = rows[number];
            // A parent's row is before its child's, so one pass from behind finds each row complete,
            // whatever the depth.
            let (before, row) = changes.split_at_mut(number * 2 * items);
            let (local, subtree) = row.split_at_mut(items);
            for item in SetBits(touched) {
                subtree[item] = subtree[item].wrapping_add(local[item]);
                if above != NO_ROW {
                    let parent = &mut before[above * 2 * items + items + item];
                    *parent = parent.wrapping_add(subtree[item]);
                }
            }
            if above != NO_ROW {
                rows[above].touched |= touched;
                rows[above].written = rows[above].written.wrapping_add(written);
                rows[above].announced = rows[above].announced.wrapping_add(announced);
            }
        }
    }

    /// Each row with what changes in its group alone and in its subtree, parents before their
    /// children.
    pub(super) fn changes(
        &self,
    ) -> impl DoubleEndedIterator<Item = (&ChangedGroup, &[i64], &[i64])> {
        let with_changes = self.rows.iter().zip(self.changes.chunks(2 * self.items));
        with_changes.map(|(row, changes)| {
            let (local, subtree) = changes.split_at(self.items);
            (row, local, subtree)
        })
    }
}
