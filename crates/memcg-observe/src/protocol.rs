//! The lines of the socket as types: for a client in Rust. See `serve`, with the feature `endpoint`, for what each
//! question does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The most groups of one answer: `depth` times `top`.
pub const ROWS_MAX: usize = 1_000;

/// What a client asks, in one line of JSON.
///
/// ```
/// use memcg_observe::protocol::Question;
///
/// let question = Question::Get { path: "/acme".into(), file: "memory.max".into() };
/// let line = serde_json::to_string(&question)?;
/// assert_eq!(line, r#"{"get":{"path":"/acme","file":"memory.max"}}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum Question {
    /// What a [`File`](crate::File) of a group has: a text.
    Get {
        /// The path of the group.
        path: String,
        /// The name of the file.
        file: String,
    },
    /// A group, and the largest groups below it: [`Rows`].
    Rows {
        /// The path of the group.
        path: String,
        /// Levels below it.
        #[serde(default)]
        depth: usize,
        /// Groups of each level.
        #[serde(default)]
        top: usize,
    },
    /// OpenMetrics: a text.
    Metrics {},
    /// A limit is set. The answer has no value.
    Set {
        /// The path of the group.
        path: String,
        /// The name of the file.
        file: String,
        /// The limit, as [`Limit`](memcg::Limit) parses it.
        to: String,
    },
}

/// What the service answers, in one line of JSON.
///
/// ```
/// use memcg_observe::protocol::Answer;
///
/// let answer: Answer<String> = serde_json::from_str(r#"{"error":"no group /acme"}"#)?;
/// assert_eq!(answer, Answer::Error("no group /acme".into()));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer<T> {
    /// The value.
    Ok(T),
    /// What is wrong with the question.
    Error(String),
}

/// A group and the largest groups below it. The order of rows is by depth, then by usage.
///
/// ```
/// use memcg_observe::protocol::Rows;
///
/// let rows: Rows = serde_json::from_str(r#"{"rows":[],"others":[[1,4096]]}"#)?;
/// assert_eq!(rows.others, [(1, 4_096)]);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// The group, then those below it.
    pub rows: Vec<Row>,
    /// Depth, and the bytes that no group shown there uses.
    pub others: Vec<(usize, u64)>,
}

/// One group with its figures, those of the groups below it included. A later version may add fields.
///
/// ```
/// use memcg_observe::protocol::Row;
///
/// let row = Row { path: "/acme".into(), usage: 4_096, max: u64::MAX, ..Row::default() };
/// let line = serde_json::to_string(&row)?;
/// assert_eq!(serde_json::from_str::<Row>(&line)?, row);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The path of the group.
    pub path: String,
    /// Levels below the group that was asked for.
    #[serde(default)]
    pub depth: usize,
    /// Live bytes and credit of threads: what limits compare.
    pub usage: u64,
    /// The most that usage has of credit, in bytes.
    pub stocked_bound: u64,
    /// The highest usage, in bytes.
    pub peak: u64,
    /// Bytes above max.
    pub forced: u64,
    /// The max in bytes; `u64::MAX` where there is none.
    pub max: u64,
    /// The high in bytes; `u64::MAX` where there is none.
    pub high: u64,
    /// The soft limit in bytes; `u64::MAX` where there is none.
    pub soft: u64,
    /// The bytes that reclaim touches last.
    pub low: u64,
    /// The bytes that reclaim never touches.
    pub min: u64,
    /// Charges in line.
    pub waiting: u64,
    /// Charges refused because this group was full.
    pub refused: u64,
    /// Events that have happened, by name; of the group that was asked for all.
    pub events: BTreeMap<String, u64>,
    /// Items of the statistics that are not 0, by name.
    pub stats: BTreeMap<String, i64>,
}
