//! The lines of the socket as types: for a client in Rust. See `serve`, with the feature
//! `endpoint`, for what each question does.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

/// The most groups of one answer: `depth` times `top`.
pub const ROWS_MAX: usize = 1_000;
/// The most incidents of one answer.
pub const INCIDENTS_MAX: usize = 1_000;

/// A client's question, in one line of JSON.
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
    /// The content of a [`GroupFile`](crate::GroupFile) of a group: a text.
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
    /// The last refusals and victims of a group and of those below it, the oldest first: a list of
    /// [`Incident`].
    Incidents {
        /// The path of the group.
        path: String,
        /// Number of the last ones; [`INCIDENTS_MAX`] at most.
        #[serde(default = "few")]
        most: usize,
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

/// Incidents of a question that does not say how many.
fn few() -> usize {
    20
}

/// The service's answer, in one line of JSON.
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
    /// The fault of the question.
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

/// One group with its figures, those of the groups below it included. A later version may add
/// fields. In a line a limit that is not set, `u64::MAX` here, is `null`.
///
/// ```
/// use memcg_observe::protocol::Row;
///
/// let row = Row { path: "/acme".into(), usage: 4_096, max: u64::MAX, ..Row::default() };
/// let line = serde_json::to_string(&row)?;
/// assert!(line.contains("\"max\":null,\"high\":0"));
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
    /// Groups directly below it that are online.
    #[serde(default)]
    pub children: usize,
    /// Live bytes and credit of threads: what limits compare.
    pub usage: u64,
    /// The most that usage has of credit, in bytes.
    pub stocked_bound: u64,
    /// The highest usage, in bytes, credit of threads included: no more was ever live.
    pub peak: u64,
    /// Bytes above max.
    pub forced: u64,
    /// The max in bytes; `u64::MAX` where there is none.
    #[serde(with = "limit")]
    pub max: u64,
    /// The high in bytes; `u64::MAX` where there is none.
    #[serde(with = "limit")]
    pub high: u64,
    /// The soft limit in bytes; `u64::MAX` where there is none.
    #[serde(with = "limit")]
    pub soft: u64,
    /// The bytes that reclaim touches last; 0 where none are protected, `u64::MAX` where all are.
    #[serde(deserialize_with = "limit::deserialize")]
    pub low: u64,
    /// The bytes that reclaim never touches; 0 where none are protected, `u64::MAX` where all are.
    #[serde(deserialize_with = "limit::deserialize")]
    pub min: u64,
    /// The group's own share; 0 where it has none.
    #[serde(default)]
    pub share: u32,
    /// The group's own importance; `None` where it has that of the group above.
    #[serde(default)]
    pub importance: Option<u8>,
    /// Charges in line.
    pub waiting: u64,
    /// Charges refused because this group was full.
    pub refused: u64,
    /// Events that have happened, by name; of the group that was asked for all.
    pub events: BTreeMap<String, u64>,
    /// Items of the statistics that are not 0, by name.
    pub stats: BTreeMap<String, i64>,
    /// Counters beside memory, by name.
    #[serde(default)]
    pub counters: BTreeMap<String, CounterRow>,
    /// For how long charges stood still for memory.
    #[serde(default)]
    pub pressure: Pressure,
    /// Of the root: bytes that its max leaves out, because no group is charged for them.
    #[serde(default)]
    pub uncharged: u64,
    /// `normal`, `elevated` or `critical`, as [`memcg::PressureLevel`]; empty where the service
    /// does not say.
    #[serde(default)]
    pub pressure_level: String,
}

/// A limit in a line: `null` for none.
mod limit {
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(super) fn serialize<S: Serializer>(limit: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&(*limit < u64::MAX).then_some(*limit), serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(u64::MAX))
    }
}

/// For how long charges of a group, the groups below it included, stood still for memory:
/// [`memcg::figures::GroupPressure`].
///
/// ```
/// use memcg_observe::protocol::Pressure;
///
/// let line = r#"{"some":{"avg10":1250,"avg60":0,"avg300":0,"total_us":7},"full":{}}"#;
/// let pressure: Pressure = serde_json::from_str(line)?;
/// assert_eq!((pressure.some.avg10, pressure.full.total_us), (1_250, 0));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one charge stood still.
    pub some: PressureShare,
    /// It stood still for a limit of the group itself or of a group above.
    pub full: PressureShare,
}

/// A part of the time: see [`Pressure`]. What a line leaves out is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PressureShare {
    /// Of the last 10 seconds, in hundredths of a per cent.
    pub avg10: u32,
    /// Of the last 60 seconds, in hundredths of a per cent.
    pub avg60: u32,
    /// Of the last 300 seconds, in hundredths of a per cent.
    pub avg300: u32,
    /// Since the group was created, in microseconds.
    pub total_us: u64,
}

impl From<memcg::figures::GroupPressure> for Pressure {
    fn from(pressure: memcg::figures::GroupPressure) -> Pressure {
        let share = |share: memcg::figures::PressureShare| {
            let total_us = u64::try_from(share.total.as_micros()).unwrap_or(u64::MAX);
            PressureShare {
                avg10: share.avg10,
                avg60: share.avg60,
                avg300: share.avg300,
                total_us,
            }
        };
        Pressure {
            some: share(pressure.some),
            full: share(pressure.full),
        }
    }
}

/// A counter beside memory of one group, the groups below it included. Amounts are in the counter's
/// unit.
///
/// ```
/// use memcg_observe::protocol::CounterRow;
///
/// let counter = CounterRow { unit: "events".into(), usage: 3, max: 100, ..CounterRow::default() };
/// let line = serde_json::to_string(&counter)?;
/// assert_eq!(serde_json::from_str::<CounterRow>(&line)?, counter);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterRow {
    /// `bytes`, `events` (things) or `nanoseconds`.
    pub unit: String,
    /// Live units and credit of threads.
    pub usage: u64,
    /// The most that usage has of credit.
    pub stocked_bound: u64,
    /// The highest usage, credit of threads included: no more was ever live.
    pub peak: u64,
    /// The max; `u64::MAX` where there is none.
    #[serde(with = "limit")]
    pub max: u64,
    /// Charges refused because this counter was full.
    pub refused: u64,
}

/// A charge that was refused, or a group that was cancelled, as [`memcg::figures::Incident`] says.
///
/// ```
/// use memcg_observe::protocol::Incident;
///
/// let line = r#"{"number":1,"at":1700000000000,"kind":"refused","group":"/acme/q17","limited":"/acme",
///     "counter":null,"requested":130,"usage":90,"max":100}"#;
/// let incident: Incident = serde_json::from_str(line)?;
/// assert_eq!((incident.requested, incident.usage, incident.max), (130, 90, 100));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// Counts the incidents of the runtime, from 1.
    pub number: u64,
    /// When it happened, in milliseconds of the Unix epoch.
    pub at: u64,
    /// `refused`, `would_block`, `timed_out` or `victim`.
    pub kind: String,
    /// The path of the group that asked; of a victim, the path of the victim.
    pub group: String,
    /// The path of the group whose max was met.
    pub limited: String,
    /// The counter whose max was met; `None` for memory.
    pub counter: Option<String>,
    /// The amount that the charge asked for, in the counter's unit; of a victim, the amount that
    /// was wanted of it.
    pub requested: u64,
    /// Usage of the group whose max was met.
    pub usage: u64,
    /// The max that was met.
    pub max: u64,
}

impl From<memcg::figures::Incident> for Incident {
    fn from(incident: memcg::figures::Incident) -> Incident {
        let memcg::figures::Incident {
            number,
            at,
            kind,
            group,
            limited,
            counter,
            requested,
            usage,
            max,
            ..
        } = incident;
        let at = at.duration_since(UNIX_EPOCH).map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        });
        let kind = kind.name().to_string();
        Incident {
            number,
            at,
            kind,
            group,
            limited,
            counter,
            requested,
            usage,
            max,
        }
    }
}
