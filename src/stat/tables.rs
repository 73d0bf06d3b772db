//! The coordinator's state behind its lock: the groups that have listed cells, their cells, and the
//! counts that were read of them.
//!
//! A group is linked below its parent as long as it, or a group below it, has listed cells. So a
//! flush finds the groups that have been written and passes by the others. Edge: E17 (add/unlist).

use super::list::{FlushList, Link, ListMember, NONE};
use super::published::{OwnedStats, PublishedStats};
use super::rows::SliceRows;
use crate::sync::{Arc, IDLE_VISITS, SLICE};
use crate::thread::cells::{CellLine, CellsVersion, ThreadStats, lines, lines_bytes};

#[derive(Default)]
pub(super) struct StatTables {
    pub(super) groups: Vec<WrittenGroup>,
    pub(super) entries: Vec<CellsEntry>,
    pub(super) free_groups: Vec<u32>,
    pub(super) free_entries: Vec<u32>,
    /// Numbers of cells that stood on top of the stack when it was taken, and are not in their
    /// lists yet.
    pub(super) taken: Vec<u32>,
    /// Number of the last flush that has begun, and how many had been asked for by then.
    pub(super) flush: u64,
    pub(super) begun: u64,
    pub(super) unlisting: u64,
    pub(super) rows: SliceRows,
}

/// The coordinator's record of a group that has been written.
pub(super) struct WrittenGroup {
    /// None while the place is free.
    pub(super) published: Option<OwnedStats>,
    pub(super) parent: u32,
    /// Among the children of its parent that have listed cells, here or below. The root is in no
    /// list.
    pub(super) link: Link,
    linked: bool,
    pub(super) children: FlushList,
    pub(super) listed: FlushList,
    pub(super) idle: FlushList,
    /// Its row, of which slice.
    pub(super) row: usize,
    pub(super) slice: u64,
}

/// The coordinator's record of one thread's cells for one group.
pub(super) struct CellsEntry {
    pub(super) cells: ThreadStats,
    _lines: Arc<[CellLine]>,
    /// The counts that have been read, and their version.
    pub(super) seen: Box<[i64]>,
    pub(super) version: CellsVersion,
    pub(super) group: u32,
    pub(super) link: Link,
    pub(super) listed: bool,
    /// The unlisting that has unmarked them; 0 for none.
    pub(super) unlisting: u64,
    pub(super) idle_visits: u32,
}

impl ListMember for WrittenGroup {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl ListMember for CellsEntry {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl StatTables {
    pub(super) fn new(items: usize) -> StatTables {
        let mut tables = StatTables::default();
        tables.rows.items = items;
        tables
    }

    /// Makes a place for a group, with its published statistics.
    pub(super) fn add_group(
        &mut self,
        parent: Option<&PublishedStats>,
        published: OwnedStats,
    ) -> &OwnedStats {
        let number = place(&mut self.groups, &mut self.free_groups, || {
            WrittenGroup::FREE
        });
        published.init(parent, number);
        let group = &mut self.groups[number as usize];
        *group = WrittenGroup {
            parent: parent.map_or(NONE, PublishedStats::number),
            ..WrittenGroup::FREE
        };
        group.published.insert(published)
    }

    /// Cells for a group: those of one that has been released, or `new` ones.
    pub(super) fn add_entry(
        &mut self,
        group: u32,
        builder: u64,
        quantum: u64,
        new: impl FnOnce() -> CellsEntry,
    ) -> ThreadStats {
        let number = place(&mut self.entries, &mut self.free_entries, new);
        // Cells that another group's thread had before begin at zero, and so does what was read of
        // them: both sides forget the old counts together.
        let entry = &mut self.entries[number as usize];
        entry.cells.init(builder, entry.seen.len(), number, quantum);
        entry.seen.fill(0);
        entry.version = entry.cells.version();
        entry.group = group;
        entry.idle_visits = 0;
        let cells = entry.cells;
        self.groups[group as usize]
            .idle
            .push_front(&mut self.entries, number);
        cells
    }

    /// Bytes of the tables, as far as threads have written to them: no thread writes to a vector
    /// beyond its length.
    pub(super) fn bytes(&self) -> u64 {
        let items = self.rows.items;
        let entry = size_of::<CellsEntry>() + lines_bytes(items) + items * size_of::<i64>();
        let numbers = self.free_groups.len() + self.free_entries.len() + self.taken.len();
        let groups = self.groups.len() * size_of::<WrittenGroup>();
        (self.entries.len() * entry + groups + numbers * size_of::<u32>()) as u64
            + self.rows.bytes()
    }

    // === The lists ===

    /// Puts cells that were taken from the stack into their lists, at most [`SLICE`]. True where
    /// none are left.
    pub(super) fn enlist_taken(&mut self) -> bool {
        let mut enlisted = 0;
        while let Some(number) = self.taken.pop() {
            // The lock is given up after so many: the thread comes back with the next slice, and
            // finds the rest of the stack where it has left it.
            if enlisted == SLICE {
                // Mutation: a-slice-of-cells-loses-the-rest
                self.taken.push(number);
                return false;
            }
            let entry = number - 1;
            let next = self.entries[entry as usize].cells.next();
            if next != 0 {
                self.taken.push(next);
            }
            self.enlist(entry);
            enlisted += 1;
        }
        true
    }

    /// Lists cells that their owner has marked and pushed.
    fn enlist(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        entry.idle_visits = 0;
        let group = entry.group;
        if entry.listed {
            // Unmarked, and their owner has marked them again before they were unlisted: they stay,
            // and count as two writers until now.
            // Mutation: e17-unlisted-after-its-owner-came-back
            entry.unlisting = 0;
            self.remove_writers(group, 1);
            return;
        }
        entry.listed = true;
        entry.link.done = 0;
        self.groups[group as usize]
            .idle
            .remove(&mut self.entries, number);
        self.groups[group as usize]
            .listed
            .push_front(&mut self.entries, number);
        let mut at = group;
        // Up to the first level that is linked: from there on the path is known to each flush.
        while !self.groups[at as usize].linked && self.groups[at as usize].parent != NONE {
            let parent = self.groups[at as usize].parent;
            self.groups[at as usize].linked = true;
            self.groups[at as usize].link.done = 0;
            self.change_children(parent, |children, groups| children.push_front(groups, at));
            at = parent;
        }
    }

    fn change_children(
        &mut self,
        parent: u32,
        change: impl FnOnce(&mut FlushList, &mut [WrittenGroup]),
    ) {
        // A copy, for the list's members lie in the same vector as its head.
        let mut children = self.groups[parent as usize].children;
        change(&mut children, &mut self.groups);
        self.groups[parent as usize].children = children;
    }

    pub(super) fn remove_writers(&self, group: u32, gone: u64) {
        self.groups[group as usize]
            .published()
            .path_to_root()
            .for_each(|level| level.remove_writers(gone));
    }

    /// Takes groups without listed cells, here and below, off their parents' lists.
    pub(super) fn prune(&mut self, mut at: u32) {
        while let WrittenGroup {
            linked: true,
            parent,
            children,
            listed,
            ..
        } = self.groups[at as usize]
            && children.first().is_none()
            && listed.first().is_none()
        {
            // Nothing below is written any more, so a flush passes by; the level above may have
            // been linked for this one alone.
            self.change_children(parent, |children, groups| children.remove(groups, at));
            self.groups[at as usize].linked = false;
            at = parent;
        }
    }

    /// Notes that a flush is done with the group and everything below. The group takes the lowest
    /// number that a member of its lists has: those members are in front.
    pub(super) fn finish(&mut self, group: u32) {
        let WrittenGroup {
            linked,
            parent,
            children,
            listed,
            ..
        } = self.groups[group as usize];
        let below = children
            .first()
            .map(|child| self.groups[child as usize].link.done);
        let own = listed
            .first()
            .map(|entry| self.entries[entry as usize].link.done);
        // Cells that came while the flush was at it are in front and have an older number: the
        // group is done only as far as they are.
        let done = below.into_iter().chain(own).min().unwrap_or(self.flush);
        if linked {
            self.change_children(parent, |children, groups| {
                children.done(groups, group, done)
            });
        } else {
            self.groups[group as usize].link.done = done;
        }
    }

    /// Any cells of a group, and whether they are listed.
    pub(super) fn first_of(&self, group: u32) -> Option<(u32, bool)> {
        let WrittenGroup { listed, idle, .. } = self.groups[group as usize];
        listed
            .first()
            .map(|entry| (entry, true))
            .or_else(|| idle.first().map(|entry| (entry, false)))
    }
}

/// A free place of a table, or a new one at its end.
fn place<T>(all: &mut Vec<T>, free: &mut Vec<u32>, new: impl FnOnce() -> T) -> u32 {
    free.pop().unwrap_or_else(|| {
        all.push(new());
        // A release allocates nothing.
        free.reserve(all.len());
        (all.len() - 1) as u32
    })
}

impl WrittenGroup {
    const FREE: WrittenGroup = WrittenGroup {
        published: None,
        parent: NONE,
        link: Link::ALONE,
        linked: false,
        children: FlushList::EMPTY,
        listed: FlushList::EMPTY,
        idle: FlushList::EMPTY,
        row: 0,
        slice: 0,
    };

    /// Of a place that is not free.
    pub(super) fn published(&self) -> &PublishedStats {
        self.published
            .as_ref()
            .expect("a group has its published statistics until it is released")
    }
}

impl CellsEntry {
    pub(super) fn is_idle(&self) -> bool {
        self.idle_visits >= IDLE_VISITS
    }

    pub(super) fn new(items: usize) -> CellsEntry {
        let lines = lines(items);
        CellsEntry {
            cells: ThreadStats::new(&lines),
            _lines: lines,
            seen: vec![0; items].into(),
            version: CellsVersion::default(),
            group: NONE,
            link: Link::ALONE,
            listed: false,
            unlisting: 0,
            idle_visits: 0,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_list_of_numbers_counts() {
        let mut tables = StatTables::new(3);
        let empty = tables.bytes();
        tables.free_groups = vec![0; 10];
        tables.free_entries = vec![0; 20];
        tables.taken = vec![0; 30];
        assert_eq!(tables.bytes() - empty, 4 * 60);
    }
}
