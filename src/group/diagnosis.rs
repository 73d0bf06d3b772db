//! Where a group's memory is: its largest children, and a table of all groups below.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::handle::Group;
use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::counter::{credit, marks};
use crate::hierarchy::{events, group_object, names};
use crate::pressure::line;
use crate::state::events::Event;
use crate::thread::slow_path;
use crate::units::{Bytes, Limit};

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
    if !level.is_memory() || !(1..=LOOKED_AT_MAX).contains(&level.links().children()) || slow_path::is_running() {
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
    /// Returns the `n` children that hold most with the usage of each in bytes, the largest first. No child is created
    /// or goes offline while the call lists them.
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
        let with_usage = |child: Group| {
            let usage = child.usage();
            (child, usage)
        };
        let mut all: Vec<(Group, u64)> = self.children().into_iter().map(with_usage).collect();
        all.sort_by_key(|&(_, usage)| std::cmp::Reverse(usage));
        all.truncate(n);
        all
    }

    /// Returns what an operator wants to know of a group at its limit: the groups below it that hold anything, their
    /// limits, how many charges wait, what happened. It prints as a table. The call takes the tree's lock and looks at
    /// all groups below.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(90)?;
    /// assert!(root.try_charge(20).is_err());
    /// println!("{}", root.diagnose());
    /// # assert!(root.diagnose().to_string().starts_with("/: 90 B of max 100 B"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn diagnose(&self) -> Diagnosis {
        let group = self.first();
        let mut rows = credit::figures(group.tree(), group, Row::of);
        let own = rows.remove(0);
        rows.sort_by_key(|row| std::cmp::Reverse(row.usage));
        Diagnosis { own, rows }
    }

    /// [`diagnose`](Self::diagnose), at most once in `every` for this group, on whatever thread: for a log.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// let hour = std::time::Duration::from_secs(3_600);
    /// assert!(root.diagnose_ratelimited(hour).is_some());
    /// assert!(root.diagnose_ratelimited(hour).is_none());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn diagnose_ratelimited(&self, every: Duration) -> Option<Diagnosis> {
        static BEGUN: OnceLock<Instant> = OnceLock::new();
        let now = u64::try_from(BEGUN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX);
        let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        group_object::of(self.first()).dumped.is_due(now, every).then(|| self.diagnose())
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
    own: Row,
    /// Groups below, the largest first.
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    path: String,
    usage: u64,
    max: u64,
    high: u64,
    waiting: usize,
    first: u64,
    events: [u64; 3],
}

/// The events that a row shows, of the group itself.
const SHOWN: [Event; 3] = [Event::Max, Event::Oom, Event::OomKill];

impl Row {
    fn of(group: &Counter, _credit: u64) -> Row {
        let waiting = line::length(group);
        Row {
            path: names::path(group),
            usage: group.usage(),
            max: group.max(),
            high: marks::high(group),
            waiting,
            first: if waiting > 0 { line::ahead(group) } else { 0 },
            events: SHOWN.map(|event| events::read(group, event, true)),
        }
    }

    fn cells(&self) -> Vec<String> {
        let limits = [self.max, self.high].map(limit);
        let events = self.events.iter().map(u64::to_string);
        let head = [self.path.clone(), Bytes(self.usage).to_string()].into_iter();
        head.chain(limits).chain([self.waiting.to_string()]).chain(events).collect()
    }
}

pub(crate) fn limit(bytes: u64) -> String {
    if bytes == u64::MAX { Limit::Unlimited.to_string() } else { Bytes(bytes).to_string() }
}

/// `max 1 MiB`, and `max` where there is none.
pub(super) fn max_of(bytes: u64) -> String {
    if bytes == u64::MAX { limit(bytes) } else { format!("max {}", limit(bytes)) }
}

/// Writes a table: paths to the left, figures to the right.
pub(crate) fn write_columns(f: &mut fmt::Formatter<'_>, lines: &[Vec<String>]) -> fmt::Result {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    for line in lines {
        write!(f, "{:width$}", line[0], width = widths[0])?;
        for (figure, width) in line.iter().zip(&widths).skip(1) {
            write!(f, "  {figure:>width$}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { path, usage, max, waiting, first, .. } = &self.own;
        write!(f, "{path}: {} of {}, {waiting} waiting", Bytes(*usage), max_of(*max))?;
        if *waiting > 0 {
            write!(f, ", the first for {}", Bytes(*first))?;
        }
        writeln!(f)?;
        let shown: Vec<&Row> =
            std::iter::once(&self.own).chain(self.rows.iter().filter(|row| row.usage > 0)).take(LINES_MAX).collect();
        let head = ["path", "usage", "max", "high", "waiting"].into_iter().chain(SHOWN.map(Event::name));
        let lines: Vec<Vec<String>> =
            std::iter::once(head.map(str::to_string).collect()).chain(shown.iter().map(|row| row.cells())).collect();
        write_columns(f, &lines)?;
        match (self.rows.len() + 1).saturating_sub(shown.len()) {
            0 => Ok(()),
            more => writeln!(f, "and {more} groups that hold less or nothing"),
        }
    }
}
