//! Cells that leave the lists, under the coordinator's lock: idle ones, and those of a group that is released.
//!
//! Edge: E17 (add/unlist).

use smallvec::SmallVec;

use super::list::NONE;
use super::published::OwnedStats;
use super::tables::{CellsEntry, StatTables};
use crate::sync::SLICE;

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

    /// Unlists cells after the barrier. Returns how many: cells that their owners have marked again, or that a release
    /// has freed, do not count.
    pub(super) fn unlist(&mut self, unmarked: &[u32], unlisting: u64) -> u64 {
        self.rows.reset();
        let mut gone: SmallVec<[u32; SLICE]> = SmallVec::new();
        for &number in unmarked {
            if self.entries[number as usize].unlisting == unlisting {
                self.gather(number);
                gone.push(number);
            }
        }
        self.publish();
        for &number in &gone {
            let entry = &mut self.entries[number as usize];
            (entry.listed, entry.unlisting) = (false, 0);
            let group = entry.group;
            self.groups[group as usize].listed.remove(&mut self.entries, number);
            self.groups[group as usize].idle.push_front(&mut self.entries, number);
            self.remove_writers(group, 1);
            self.prune(group);
        }
        gone.len() as u64
    }

    /// Takes an unlisting back for which there was no barrier. The unmarked cells stay listed, and a flush must find
    /// them idle once more before the next try.
    pub(super) fn keep_listed(&mut self, unmarked: &[u32], unlisting: u64) {
        for &number in unmarked {
            let entry = &mut self.entries[number as usize];
            // Where the owner has marked the cells first it has pushed them. The flush that takes the stack ends the
            // unlisting.
            if entry.unlisting == unlisting && entry.cells.mark_listed() {
                (entry.unlisting, entry.idle_visits) = (0, 0);
            }
        }
    }

    /// Frees the cells of a group that no thread uses any more, at most [`SLICE`] of them, and at last its place. Then
    /// it returns the group's published statistics.
    pub(super) fn release(&mut self, number: u32) -> Option<OwnedStats> {
        self.rows.reset();
        if !self.enlist_taken() {
            return None;
        }
        let mut gone = 0;
        let mut freed: SmallVec<[u32; SLICE]> = SmallVec::new();
        while freed.len() < SLICE
            && let Some((entry, listed)) = self.first_of(number)
        {
            self.gather(entry);
            let group = &mut self.groups[number as usize];
            let list = if listed { &mut group.listed } else { &mut group.idle };
            list.remove(&mut self.entries, entry);
            let CellsEntry { listed: is_listed, unlisting, group: of, .. } = &mut self.entries[entry as usize];
            (*is_listed, *unlisting, *of) = (false, 0, NONE);
            gone += u64::from(listed);
            freed.push(entry);
        }
        self.publish();
        self.remove_writers(number, gone);
        self.free_entries.extend(freed);
        if self.first_of(number).is_some() {
            return None;
        }
        self.prune(number);
        self.free_groups.push(number);
        self.groups[number as usize].published.take()
    }
}
