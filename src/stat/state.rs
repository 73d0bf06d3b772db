//! What stands behind the coordinator's lock: which groups have listed cells, where, and what was read of them.
//!
//! A group is linked below its parent as long as it, or a group below it, has listed cells; so a flush finds those that
//! were written and passes by the others. Edge: E17 (add/unlist).

use smallvec::SmallVec;

use super::flush::Rows;
use super::list::{Link, Linked, List, NONE};
use super::part::{OwnPart, Part};
use crate::sync::{Arc, IDLE_VISITS, SLICE};
use crate::thread::cells::{Cells, Line, Version, lines, lines_bytes};

/// Behind the lock.
pub(super) struct State {
    pub(super) groups: Vec<Group>,
    pub(super) entries: Vec<Entry>,
    free_groups: Vec<u32>,
    free_entries: Vec<u32>,
    /// Numbers of cells that stood on top of the stack when it was taken over, and are not in their places yet.
    pub(super) taken: Vec<u32>,
    /// Number of the last flush that has begun, and how many had been asked for by then.
    pub(super) flush: u64,
    pub(super) begun: u64,
    /// Number of the last unlisting.
    pub(super) unlisting: u64,
    pub(super) rows: Rows,
}

/// What the coordinator keeps about a group that has been written.
pub(super) struct Group {
    /// None while the place is free.
    part: Option<OwnPart>,
    pub(super) parent: u32,
    /// Among the children of its parent that have listed cells, here or below; the root is nowhere.
    link: Link,
    linked: bool,
    pub(super) children: List,
    pub(super) listed: List,
    idle: List,
    /// The cells of threads that have none of their own.
    pub(super) shared: u32,
    /// The last flush that is done with it and everything below.
    pub(super) done: u64,
    /// Its row, of which slice.
    pub(super) row: usize,
    pub(super) slice: u64,
}

/// What the coordinator keeps about cells.
pub(super) struct Entry {
    pub(super) cells: Cells,
    _lines: Arc<[Line]>,
    /// What has been read, and of which version.
    pub(super) seen: Box<[i64]>,
    pub(super) version: Version,
    pub(super) group: u32,
    link: Link,
    listed: bool,
    /// The unlisting that has unmarked them; 0 for none.
    unlisting: u64,
    pub(super) idle_visits: u32,
    pub(super) done: u64,
}

impl Linked for Group {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn done(&mut self) -> &mut u64 {
        &mut self.done
    }
}

impl Linked for Entry {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn done(&mut self) -> &mut u64 {
        &mut self.done
    }
}

// === impl State: cells and groups that come and go ===

impl State {
    pub(super) fn new(items: usize) -> State {
        State {
            groups: Vec::new(),
            entries: Vec::new(),
            free_groups: Vec::new(),
            free_entries: Vec::new(),
            taken: Vec::new(),
            flush: 0,
            begun: 0,
            unlisting: 0,
            rows: Rows::new(items),
        }
    }

    /// A place for a group, with its part.
    pub(super) fn group(&mut self, parent: Option<&Part>, part: OwnPart) -> &OwnPart {
        let number = self.free_groups.pop().unwrap_or_else(|| {
            self.groups.push(Group::FREE);
            // As for entries.
            self.free_groups.reserve(self.groups.len());
            (self.groups.len() - 1) as u32
        });
        part.begin(parent, number);
        let group = &mut self.groups[number as usize];
        *group = Group { parent: parent.map_or(NONE, Part::number), ..Group::FREE };
        group.part.insert(part)
    }

    /// Cells for a group: those of one that is gone, or `new` ones.
    pub(super) fn entry(&mut self, group: u32, builder: u64, quantum: u64, new: impl FnOnce() -> Entry) -> u32 {
        let number = self.free_entries.pop().unwrap_or_else(|| {
            self.entries.push(new());
            // A burial allocates nothing.
            self.free_entries.reserve(self.entries.len());
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[number as usize];
        entry.cells.begin(builder, entry.seen.len(), number, quantum);
        entry.seen.fill(0);
        (entry.version, entry.group, entry.idle_visits) = (entry.cells.version(), group, 0);
        self.groups[group as usize].idle.push_front(&mut self.entries, number);
        number
    }

    /// Bytes of all this, as far as it has been written to: vectors are not, beyond their length.
    pub(super) fn bytes(&self) -> u64 {
        let items = self.rows.items;
        let entry = size_of::<Entry>() + lines_bytes(items) + items * size_of::<i64>();
        let numbers = self.free_groups.len() + self.free_entries.len() + self.taken.len();
        let all = self.entries.len() * entry + self.groups.len() * size_of::<Group>() + numbers * size_of::<u32>();
        all as u64 + self.rows.bytes()
    }

    /// Groups that have a place, and so a part.
    pub(super) fn parts(&self) -> u64 {
        (self.groups.len() - self.free_groups.len()) as u64
    }

    pub(super) fn has_free_entry(&self) -> bool {
        !self.free_entries.is_empty()
    }

    /// Put cells that were taken over where they belong, at most [`SLICE`]. True where none are left.
    pub(super) fn enlist_taken(&mut self) -> bool {
        let mut enlisted = 0;
        while let Some(number) = self.taken.pop() {
            if enlisted == SLICE {
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

    /// Cells that their owner has marked and pushed.
    pub(super) fn enlist(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        entry.idle_visits = 0;
        let group = entry.group;
        if entry.listed {
            // Unmarked, and its owner has come back before they were unlisted: they stay, and were counted twice.
            entry.unlisting = 0;
            self.remove_writers(group, 1);
            return;
        }
        (entry.listed, entry.done) = (true, 0);
        self.groups[group as usize].idle.remove(&mut self.entries, number);
        self.groups[group as usize].listed.push_front(&mut self.entries, number);
        let mut at = group;
        while !self.groups[at as usize].linked && self.groups[at as usize].parent != NONE {
            let parent = self.groups[at as usize].parent;
            let mut siblings = self.groups[parent as usize].children;
            (self.groups[at as usize].linked, self.groups[at as usize].done) = (true, 0);
            siblings.push_front(&mut self.groups, at);
            self.groups[parent as usize].children = siblings;
            at = parent;
        }
    }

    fn remove_writers(&self, group: u32, gone: u64) {
        self.groups[group as usize].part().levels().for_each(|level| level.remove_writers(gone));
    }

    /// Groups without listed cells, here and below, leave their parents' lists.
    fn prune(&mut self, mut at: u32) {
        while let Group { linked: true, parent, children, listed, .. } = self.groups[at as usize]
            && children.first().is_none()
            && listed.first().is_none()
        {
            let mut siblings = self.groups[parent as usize].children;
            siblings.remove(&mut self.groups, at);
            self.groups[parent as usize].children = siblings;
            self.groups[at as usize].linked = false;
            at = parent;
        }
    }

    /// A flush is done with the group and everything below. It bears the lowest number that a member of it bears: those
    /// are in front.
    pub(super) fn finish(&mut self, group: u32) {
        let Group { linked, parent, children, listed, .. } = self.groups[group as usize];
        let below = children.first().map(|child| self.groups[child as usize].done);
        let own = listed.first().map(|entry| self.entries[entry as usize].done);
        let done = below.into_iter().chain(own).min().unwrap_or(self.flush);
        if linked {
            let mut siblings = self.groups[parent as usize].children;
            siblings.done(&mut self.groups, group, done);
            self.groups[parent as usize].children = siblings;
        } else {
            self.groups[group as usize].done = done;
        }
    }

    /// Unmark cells that are still idle; false where they are not.
    pub(super) fn unmark(&mut self, number: u32, unlisting: u64) -> bool {
        let entry = &mut self.entries[number as usize];
        let idle = entry.listed && entry.unlisting == 0 && entry.is_idle();
        if idle {
            entry.unlisting = unlisting;
            entry.cells.unmark();
        }
        idle
    }

    /// Behind the barrier. Returns how many were unlisted: not those whose owners are back already, or that a burial
    /// has freed.
    pub(super) fn unlist(&mut self, unmarked: &[u32], unlisting: u64) -> u64 {
        self.rows.begin();
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

    /// There was no barrier: whatever was unmarked stays listed, and is found idle once more before the next try.
    pub(super) fn keep(&mut self, unmarked: &[u32], unlisting: u64) {
        for &number in unmarked {
            let entry = &mut self.entries[number as usize];
            // Where the owner was first it has pushed them: whoever takes them over ends the unlisting.
            if entry.unlisting == unlisting && entry.cells.mark_listed() {
                (entry.unlisting, entry.idle_visits) = (0, 0);
            }
        }
    }

    /// Free the cells of a group that is done with, at most [`SLICE`] of them, and at last its place. Returns its part
    /// then.
    pub(super) fn bury(&mut self, number: u32) -> Option<OwnPart> {
        self.rows.begin();
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
            let Entry { listed: in_sight, unlisting, group: of, .. } = &mut self.entries[entry as usize];
            (*in_sight, *unlisting, *of) = (false, 0, NONE);
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
        self.groups[number as usize].part.take()
    }

    fn first_of(&self, group: u32) -> Option<(u32, bool)> {
        let Group { listed, idle, .. } = self.groups[group as usize];
        listed.first().map(|entry| (entry, true)).or_else(|| idle.first().map(|entry| (entry, false)))
    }
}

impl Group {
    const FREE: Group = Group {
        part: None,
        parent: NONE,
        link: Link::ALONE,
        linked: false,
        children: List::EMPTY,
        listed: List::EMPTY,
        idle: List::EMPTY,
        shared: NONE,
        done: 0,
        row: 0,
        slice: 0,
    };

    /// Of a place that is not free.
    pub(super) fn part(&self) -> &Part {
        self.part.as_ref().expect("a group has its part until it is buried")
    }
}

impl Entry {
    pub(super) fn is_idle(&self) -> bool {
        self.idle_visits >= IDLE_VISITS
    }

    pub(super) fn new(items: usize) -> Entry {
        let lines = lines(items);
        Entry {
            cells: Cells::new(&lines),
            _lines: lines,
            seen: vec![0; items].into(),
            version: Version::default(),
            group: NONE,
            link: Link::ALONE,
            listed: false,
            unlisting: 0,
            idle_visits: 0,
            done: 0,
        }
    }
}
