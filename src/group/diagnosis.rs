//! Where a group's memory is: its largest children, and a table of the groups below that hold most.

use std::fmt;

use super::handle::Group;
use super::snapshot::SnapshotRow;
use super::snapshot::table::Table;
use crate::counter::children;
use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::pressure::line;
use crate::thread::slow_path;
use crate::units::Bytes;

/// The most children that a refusal names.
pub(crate) const HOLDERS: usize = 3;

/// A refusal looks at this many children at most, because no group is created or goes offline meanwhile.
const LOOKED_AT_MAX: u32 = 256;

/// The most rows of a diagnosis. Its last line counts the groups that hold less.
const LINES_MAX: usize = 32;

/// Children of one group and what they hold, the largest first.
pub(crate) type Holders = [Option<(Group, u64)>; HOLDERS];

/// Finds the children of `level` that hold most. It allocates nothing, because the caller may be an allocator. Inside
/// another slow path it names none.
pub(crate) fn holders(level: &'static Counter) -> Holders {
    let mut most: [Option<(&'static Counter, u64)>; HOLDERS] = [None; HOLDERS];
    if !level.is_memory() || !(1..=LOOKED_AT_MAX).contains(&level.child_count().get()) || slow_path::is_running() {
        return [const { None }; HOLDERS];
    }
    let _path = SlowPath::enter();
    // A thread that is refused does not queue for the lock.
    let Some(shape) = level.tree().hierarchy.try_snapshot() else { return [const { None }; HOLDERS] };
    for child in shape.children(level) {
        let mut next = Some((child, child.usage())).filter(|&(_, usage)| usage > 0);
        for held in &mut most {
            if next.is_some_and(|(_, usage)| held.is_none_or(|(_, most)| usage > most)) {
                std::mem::swap(held, &mut next);
            }
        }
    }
    // The lock keeps the children until this takes handles on them.
    most.map(|held| held.map(|(child, usage)| (Group::pinned(child), usage)))
}

/// # Where the memory is
impl Group {
    /// Returns the `n` children that hold most with the usage of each in bytes, the largest first. The call reads them one
    /// after the other, under no lock that covers more than a few: a child that is created or goes offline meanwhile may be
    /// missing. It keeps few of them at a time: of a million it takes some ten handles for each of the `n`.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _held = [a.try_charge(1)?, b.try_charge(2)?];
    /// assert_eq!(runtime.root().top(1), [(b, 2)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn top(&self, n: usize) -> Vec<(Group, u64)> {
        let largest = children::largest(self.first(), n).into_iter();
        largest.map(|(child, usage)| (Group::from_handle(child), usage)).collect()
    }

    /// Returns what an operator wants to know of a group at its limit: the groups below it that hold anything, their
    /// limits, how many charges wait, what happened. It prints as a table. The call takes a
    /// [snapshot](Self::snapshot) of all groups below.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(90)?;
    /// assert!(root.try_charge(20).is_err());
    /// println!("{}", root.diagnose());
    /// # assert!(root.diagnose().to_string().starts_with("/: 90 B of max 100 B\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn diagnose(&self) -> Diagnosis {
        let first = line::ahead(self.first());
        let mut rows = self.snapshot(usize::MAX).into_rows();
        rows[1..].sort_by_key(|row| std::cmp::Reverse(row.usage));
        Diagnosis { first, rows }
    }
}

/// The usage, limits, waiters and events of a group and the groups below: see [`Group::diagnose`].
///
/// ```
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().max(100).build()?;
/// let _held = runtime.root().create("acme", Limits::new())?.try_charge(90)?;
/// let diagnosis = runtime.root().diagnose();
/// assert!(diagnosis.to_string().lines().any(|line| line.contains("/acme")), "{diagnosis}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Bytes that the first charge in line asks for.
    first: u64,
    /// The group itself, then the groups below, the largest first.
    rows: Vec<SnapshotRow>,
}

impl Diagnosis {
    /// Returns the group itself, then the groups below, by usage: the largest first.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _held = [a.try_charge(1)?, b.try_charge(2)?];
    /// let diagnosis = runtime.root().diagnose();
    /// assert_eq!(diagnosis.rows().iter().map(|row| &*row.path).collect::<Vec<_>>(), ["/", "/b", "/a"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rows(&self) -> &[SnapshotRow] {
        &self.rows
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = &self.rows[0];
        write!(f, "{}: {}", own.path, Bytes(own.usage))?;
        match own.max {
            u64::MAX => f.write_str(", no max")?,
            max => write!(f, " of max {}", Bytes(max))?,
        }
        if own.waiting > 0 {
            write!(f, ", {} waiting, the first for {}", own.waiting, Bytes(self.first))?;
        }
        writeln!(f)?;
        let holding = self.rows[1..].iter().filter(|row| row.usage > 0);
        let shown: Vec<&SnapshotRow> = std::iter::once(own).chain(holding).take(LINES_MAX).collect();
        let more = self.rows.len() - shown.len();
        Table { rows: shown, stats: Vec::new() }.fmt(f)?;
        match more {
            0 => Ok(()),
            more => writeln!(f, "and {more} groups that hold less or nothing"),
        }
    }
}
