//! The figures and limits of a group as the text of files, under the names that the kernel gives
//! them.

use std::fmt::Write;

use memcg::errors::{LimitError, ParseLimitError};
use memcg::figures::Events;
use memcg::kmem::NumaTable;
use memcg::{Group, Limit, Limits, Runtime};

/// Why a file of a group was not read or written.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let error = memcg_observe::read(&runtime, "/acme", "memory.max").unwrap_err();
/// assert_eq!(error.to_string(), "no group /acme");
/// let error = memcg_observe::read(&runtime, "/", "memory.limit").unwrap_err();
/// assert_eq!(error.to_string(), "/ has no file \"memory.limit\"");
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// No group of that path is online.
    #[error("no group {path}")]
    #[non_exhaustive]
    NoGroup {
        /// The path.
        path: String,
    },
    /// A group has no such file.
    #[error("{path} has no file {name:?}")]
    #[non_exhaustive]
    NoFile {
        /// The path of the group.
        path: String,
        /// The name.
        name: String,
    },
    /// The file can be read and not written.
    #[error("{name} of {path} cannot be written")]
    #[non_exhaustive]
    ReadOnly {
        /// The path of the group.
        path: String,
        /// The name of the file.
        name: &'static str,
    },
    /// The text is no limit.
    #[error("{name} of {path}: {source}")]
    #[non_exhaustive]
    Text {
        /// The path of the group.
        path: String,
        /// The name of the file.
        name: &'static str,
        /// The fault in it.
        source: ParseLimitError,
    },
    /// The limit was not set.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// A file of a group: see [`GroupFile::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupFile {
    /// `memory.current`: usage, credit of threads included.
    Current,
    /// `memory.peak`: the highest usage, credit of threads included.
    Peak,
    /// `memory.min`, which can be written.
    Min,
    /// `memory.low`, which can be written.
    Low,
    /// `memory.high`, which can be written.
    High,
    /// `memory.max`, which can be written.
    Max,
    /// `memory.soft`: the soft limit, which can be written. Version 1 has
    /// `memory.soft_limit_in_bytes` in its place.
    Soft,
    /// `memory.stat`: the items of the statistics.
    Stat,
    /// `memory.numa_stat`: those that are counted by node.
    NumaStat,
    /// `memory.events`: what happened to the limits, here and below.
    Events,
    /// `memory.events.local`: what happened to the limits of this group.
    EventsLocal,
    /// `memory.pressure`: for how long charges stood still for memory.
    Pressure,
    /// `memcg.live`: usage without credit. The kernel has none.
    Live,
    /// `memcg.own`: what no child accounts for, without credit. The kernel has none.
    Own,
    /// `memcg.stocked_bound`: the most that usage has of credit. The kernel has none.
    StockedBound,
    /// `memcg.waiting`: charges in line. The kernel has none.
    Waiting,
    /// `memcg.refused`: charges that were refused because this group was full. The kernel has none.
    Refused,
}

impl GroupFile {
    /// All files.
    pub const ALL: [GroupFile; 17] = [
        GroupFile::Current,
        GroupFile::Peak,
        GroupFile::Min,
        GroupFile::Low,
        GroupFile::High,
        GroupFile::Max,
        GroupFile::Soft,
        GroupFile::Stat,
        GroupFile::NumaStat,
        GroupFile::Events,
        GroupFile::EventsLocal,
        GroupFile::Pressure,
        GroupFile::Live,
        GroupFile::Own,
        GroupFile::StockedBound,
        GroupFile::Waiting,
        GroupFile::Refused,
    ];

    /// Returns the name of the file.
    pub const fn name(self) -> &'static str {
        match self {
            GroupFile::Current => "memory.current",
            GroupFile::Peak => "memory.peak",
            GroupFile::Min => "memory.min",
            GroupFile::Low => "memory.low",
            GroupFile::High => "memory.high",
            GroupFile::Max => "memory.max",
            GroupFile::Soft => "memory.soft",
            GroupFile::Stat => "memory.stat",
            GroupFile::NumaStat => "memory.numa_stat",
            GroupFile::Events => "memory.events",
            GroupFile::EventsLocal => "memory.events.local",
            GroupFile::Pressure => "memory.pressure",
            GroupFile::Live => "memcg.live",
            GroupFile::Own => "memcg.own",
            GroupFile::StockedBound => "memcg.stocked_bound",
            GroupFile::Waiting => "memcg.waiting",
            GroupFile::Refused => "memcg.refused",
        }
    }

    /// Returns the file of that name.
    pub fn named(name: &str) -> Option<GroupFile> {
        GroupFile::ALL.into_iter().find(|file| file.name() == name)
    }

    /// Returns what the file of `group` has now, with a line feed at its end.
    ///
    /// `memory.stat` and `memory.numa_stat` read exactly, so they flush the statistics of the
    /// subtree. `memcg.live` and `memcg.own` look at the stocks below. `memory.pressure` takes a
    /// lock that only stalls take. All others are a few loads, and two locks where a group of the
    /// runtime has a [share](memcg::Limits::share).
    ///
    /// ```
    /// use memcg::{Event, Limits, Runtime};
    /// use memcg_observe::GroupFile;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(100))?;
    /// assert!(acme.charge(101).is_err());
    /// assert_eq!((GroupFile::Max.read(&acme), GroupFile::High.read(&acme)), ("100\n".into(), "max\n".into()));
    /// assert!(GroupFile::Events.read(&acme).starts_with("low 0\nhigh 0\nmax 1\noom 1\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(self, group: &Group) -> String {
        match self {
            GroupFile::Current => number(group.usage()),
            GroupFile::Peak => number(group.peak()),
            GroupFile::Min => number(group.inspect().min()),
            GroupFile::Low => number(group.inspect().low()),
            GroupFile::High => number(group.inspect().high()),
            GroupFile::Max => number(group.max()),
            GroupFile::Soft => number(group.inspect().soft()),
            GroupFile::Stat => stat(group),
            GroupFile::NumaStat => NumaTable::of(group).to_string(),
            GroupFile::Events => events(&group.events()),
            GroupFile::EventsLocal => events(&group.events().local()),
            GroupFile::Pressure => group.pressure().to_string(),
            GroupFile::Live => number(group.live()),
            GroupFile::Own => number(group.inspect().live_local()),
            GroupFile::StockedBound => number(group.memory().stocked_bound()),
            GroupFile::Waiting => number(group.waiting_count() as u64),
            GroupFile::Refused => number(group.refused_count()),
        }
    }

    /// Sets a limit: `max`, a size or a percentage, as [`Limit`] understands them. Blanks and line
    /// feeds around it are left out. The limit is set as [`Group::set_limits`] sets it, so the call
    /// may reclaim, and block. A max that comes from here is named so in refusals: they say to raise
    /// `memory.max`, which their reader can write.
    ///
    /// # Errors
    ///
    /// [`FileError::ReadOnly`], [`FileError::Text`], [`FileError::Limit`]. The old limit holds.
    ///
    /// ```
    /// use memcg_observe::GroupFile;
    ///
    /// let runtime = memcg::Runtime::builder().build()?;
    /// GroupFile::Max.write(&runtime.root(), "1G\n")?;
    /// assert_eq!(runtime.root().max(), 1 << 30);
    /// let refused = runtime.root().charge(2 << 30).unwrap_err().to_string();
    /// assert!(refused.ends_with("to fit, raise memory.max or charge less"), "{refused}");
    /// assert!(GroupFile::Current.write(&runtime.root(), "0").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(self, group: &Group, text: &str) -> Result<(), FileError> {
        let limit = || {
            text.trim()
                .parse::<Limit>()
                .map_err(|source| self.fault(group, source))
        };
        let limits = match self {
            GroupFile::Min => Limits::new().min(limit()?),
            GroupFile::Low => Limits::new().low(limit()?),
            GroupFile::High => Limits::new().high(limit()?),
            // A refusal says where this max can be raised.
            GroupFile::Max => Limits::new().max(limit()?).setting(self.name()),
            GroupFile::Soft => Limits::new().soft(limit()?),
            _ => {
                return Err(FileError::ReadOnly {
                    path: group.path(),
                    name: self.name(),
                });
            }
        };
        group.set_limits(limits)?;
        Ok(())
    }

    fn fault(self, group: &Group, source: ParseLimitError) -> FileError {
        FileError::Text {
            path: group.path(),
            name: self.name(),
            source,
        }
    }
}

fn number(number: u64) -> String {
    if number == u64::MAX {
        "max\n".to_string()
    } else {
        format!("{number}\n")
    }
}

fn events(events: &Events) -> String {
    events
        .iter()
        .fold(String::new(), |mut text, (event, count)| {
            let _ = writeln!(text, "{} {count}", event.name());
            text
        })
}

fn stat(group: &Group) -> String {
    // A snapshot of the group alone has all items with their names, and flushes before.
    let snapshot = group.snapshot(0);
    let row = snapshot.rows().first();
    snapshot.items().fold(String::new(), |mut text, (name, _)| {
        let figure = row
            .and_then(|row| row.stats.get(name))
            .copied()
            .unwrap_or(0);
        let _ = writeln!(text, "{name} {figure}");
        text
    })
}

/// Reads a file of the group of that path.
///
/// # Errors
///
/// [`FileError::NoGroup`], [`FileError::NoFile`].
///
/// ```
/// let runtime = memcg::Runtime::builder().max(1 << 20).build()?;
/// assert_eq!(memcg_observe::read(&runtime, "/", "memory.max")?, "1048576\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(runtime: &Runtime, path: &str, name: &str) -> Result<String, FileError> {
    let (group, file) = find(runtime, path, name)?;
    Ok(file.read(&group))
}

/// Writes a file of the group of that path: see [`GroupFile::write`].
///
/// # Errors
///
/// [`FileError`]. The old limit holds.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// memcg_observe::write(&runtime, "/", "memory.high", "64M")?;
/// assert_eq!(runtime.root().inspect().high(), 64 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(runtime: &Runtime, path: &str, name: &str, text: &str) -> Result<(), FileError> {
    let (group, file) = find(runtime, path, name)?;
    file.write(&group, text)
}

fn find(runtime: &Runtime, path: &str, name: &str) -> Result<(Group, GroupFile), FileError> {
    let group = runtime.group(path).ok_or_else(|| FileError::NoGroup {
        path: path.to_string(),
    })?;
    let file = GroupFile::named(name);
    let file = file.ok_or_else(|| FileError::NoFile {
        path: path.to_string(),
        name: name.to_string(),
    })?;
    Ok((group, file))
}
