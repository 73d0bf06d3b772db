//! A slice of a flush, under the coordinator's lock: gathered from the cells upwards, published
//! from the root downwards. And cells that leave the lists: idle ones, and those of a group that is
//! released.
//!
//! A flush has a number, and the lists keep with each member the number of the last flush that is
//! done with it. Members flushed last are behind (`list`). The next thread that gets the lock runs
//! the next slice, which goes on with the first member that does not have the number.
//!
//! Edge: E17 (add/unlist).

use smallvec::SmallVec;

use super::list::NONE;
use super::published::OwnedStats;
use super::rows::NO_ROW;
use super::tables::StatTables;
use super::visits::UnlistPolicy;
use crate::sync::SLICE;

/// Levels of a group that a slice keeps on its own stack.
const LEVELS_COMMON: usize = 16;

impl StatTables {
    /// Goes on with a flush in the subtree of `target`, for at most [`SLICE`] cells and groups.
    /// True when nothing is left of it.
    pub(super) fn flush_slice(&mut self, target: u32, flush: u64, unlist: UnlistPolicy) -> bool {
        self.rows.reset();
        // What was pushed before the flush began has to be in the lists before they are walked.
        if !self.enlist_taken() {
            return false;
        }
        let mut at = target;
        let mut finished = 0;
        let done = loop {
            // Another thread's flush of a level above may have finished this one meanwhile.
            if self.groups[target as usize].link.done >= flush {
                break true;
            }
            let child = self.groups[at as usize].children.first();
            if let Some(child) =
                child.filter(|&child| self.groups[child as usize].link.done < flush)
            {
                // Down first: what the children gather goes into the parents' rows of this slice,
                // so a group is published with all that is below it.
                at = child;
                continue;
            }
            // A slice counts groups as well as cells: a subtree of many groups and few cells would
            // hold the lock as long.
            if self.rows.visits.all + finished >= SLICE {
                break false;
            }
            let group = &self.groups[at as usize];
            let entry = group
                .listed
                .first()
                .filter(|&entry| self.entries[entry as usize].link.done < flush);
            if let Some(entry) = entry {
                if !self.gather(entry) && unlist != UnlistPolicy::Never {
                    self.note_idle(entry);
                }
                // Cells that are read now count for every flush that has begun.
                let now = self.flush;
                self.groups[at as usize]
                    .listed
                    .done(&mut self.entries, entry, now);
                continue;
            }
            // All its children and cells have the flush's number, or a later one.
            self.finish(at);
            finished += 1;
            if at != target {
                at = self.groups[at as usize].parent;
            }
        };
        self.publish();
        done
    }

    /// Reads cells into their group's row. False where nothing was written since they were read
    /// last.
    pub(super) fn gather(&mut self, number: u32) -> bool {
        self.rows.visits.all += 1;
        let entry = &mut self.entries[number as usize];
        let version = entry.cells.version();
        // Two words tell that nothing was written since, so most cells cost two loads, however many
        // items there are.
        if version == entry.version {
            return false;
        }
        // Mutation: stats-counted-twice
        let before = std::mem::replace(&mut entry.version, version);
        entry.idle_visits = 0;
        let row = self.row(self.entries[number as usize].group);
        let entry = &mut self.entries[number as usize];
        let changes = self.rows.local(row);
        let mut touched = 0;
        for item in entry.cells.touched() {
            let count = entry.cells.count(item);
            let change = count.wrapping_sub(std::mem::replace(&mut entry.seen[item], count));
            // Mutation: what-is-taken-off-is-not-gathered
            if change != 0 {
                changes[item] = changes[item].wrapping_add(change);
                touched |= 1 << item;
            }
        }
        let row = &mut self.rows.rows[row];
        row.touched |= touched;
        row.written = row
            .written
            .wrapping_add(version.written.wrapping_sub(before.written));
        row.announced = row
            .announced
            .wrapping_add(version.announced.wrapping_sub(before.announced));
        true
    }

    fn note_idle(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        entry.idle_visits = entry.idle_visits.saturating_add(1);
        self.rows.visits.unchanged += 1;
        if entry.is_idle() {
            self.rows.visits.wasted += u64::from(entry.idle_visits);
            self.rows.idle.push(number);
        }
    }

    /// Returns the row of a group, and makes it behind those of its ancestors.
    fn row(&mut self, group: u32) -> usize {
        let mut without: SmallVec<[u32; LEVELS_COMMON]> = SmallVec::new();
        let mut at = group;
        let mut above = NO_ROW;
        while at != NONE {
            let group = &self.groups[at as usize];
            // From here up the path has rows already, as another group's cells have been gathered
            // in this slice.
            if group.slice == self.rows.slice {
                above = group.row;
                break;
            }
            without.push(at);
            at = group.parent;
        }
        // From the top down, so that each row finds the row of its parent made: changes are added
        // up along these numbers, and published parents first.
        for number in without.into_iter().rev() {
            let group = &mut self.groups[number as usize];
            group.row = self.rows.push(number, above);
            group.slice = self.rows.slice;
            above = group.row;
        }
        self.rows.make_room();
        above
    }

    /// Publishes what the slice has gathered, no child before its parent.
    pub(super) fn publish(&mut self) {
        self.rows.add_up();
        // Mutation: e22-children-first
        for (row, local, subtree) in self.rows.changes() {
            self.groups[row.group as usize]
                .published()
                .publish(row, local, subtree);
        }
    }
}

// === Cells that leave the lists ===

impl StatTables {
    /// Unmarks cells that are still idle; false where they are not.
    pub(super) fn unmark(&mut self, number: u32, unlisting: u64) -> bool {
        let entry = &mut self.entries[number as usize];
        let idle = entry.listed && entry.unlisting == 0 && entry.is_idle();
        if idle {
            entry.unlisting = unlisting;
            entry.cells.unmark();
        }
        idle
    }

    /// Unlists cells after the barrier. Returns how many: cells that their owners have marked
    /// again, or that a release has freed, do not count.
    pub(super) fn unlist(&mut self, unmarked: &[u32], unlisting: u64) -> u64 {
        self.rows.reset();
        let mut gone: SmallVec<[u32; SLICE]> = SmallVec::new();
        for &number in unmarked {
            if self.entries[number as usize].unlisting == unlisting {
                // Mutation: e17-read-before-unmarking
                self.gather(number);
                gone.push(number);
            }
        }
        // Mutation: e21-writer-off-the-bound-before-published
        self.publish();
        for &number in &gone {
            let entry = &mut self.entries[number as usize];
            entry.listed = false;
            entry.unlisting = 0;
            let group = entry.group;
            self.groups[group as usize]
                .listed
                .remove(&mut self.entries, number);
            self.groups[group as usize]
                .idle
                .push_front(&mut self.entries, number);
            self.remove_writers(group, 1);
            self.prune(group);
        }
        gone.len() as u64
    }

    /// Takes an unlisting back for which there was no barrier. The unmarked cells stay listed, and
    /// a flush must find them idle once more before the next try.
    pub(super) fn keep_listed(&mut self, unmarked: &[u32], unlisting: u64) {
        for &number in unmarked {
            let entry = &mut self.entries[number as usize];
            // If the owner has marked the cells first, it has pushed them. The flush that takes the
            // stack ends the unlisting.
            if entry.unlisting == unlisting && entry.cells.mark_listed() {
                entry.unlisting = 0;
                entry.idle_visits = 0;
            }
        }
    }

    /// Frees the cells of a group that no thread uses any more, at most [`SLICE`] of them, and at
    /// last its place. Then it returns the group's published statistics.
    pub(super) fn free_cells(&mut self, number: u32) -> Option<OwnedStats> {
        self.rows.reset();
        if !self.enlist_taken() {
            return None;
        }
        let mut gone = 0;
        let mut freed: SmallVec<[u32; SLICE]> = SmallVec::new();
        while freed.len() < SLICE
            && let Some((entry, listed)) = self.first_of(number)
        {
            // Mutation: stats-of-a-released-group-are-lost
            self.gather(entry);
            let group = &mut self.groups[number as usize];
            let list = if listed {
                &mut group.listed
            } else {
                &mut group.idle
            };
            list.remove(&mut self.entries, entry);
            let released = &mut self.entries[entry as usize];
            released.listed = false;
            released.group = NONE;
            // Mutation: stats-unlisted-after-release
            released.unlisting = 0;
            gone += u64::from(listed);
            freed.push(entry);
        }
        self.publish();
        self.remove_writers(number, gone);
        // Mutation: cells-are-not-used-again
        self.free_entries.extend(freed);
        if self.first_of(number).is_some() {
            return None;
        }
        self.prune(number);
        self.free_groups.push(number);
        self.groups[number as usize].published.take()
    }
}
