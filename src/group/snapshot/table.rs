//! Rows of groups as a table for a terminal.

use std::fmt;

use super::SnapshotRow;
use crate::group::ledger::Ledger;
use crate::stat::Unit;
use crate::stat::item::InUnit;
use crate::units::{Bytes, Limit};

/// The width of a terminal.
const WIDTH: usize = 80;

/// A path is never cut to less than this many characters. Columns are left out first.
const PATH_LEAST: usize = 20;

/// The same for the text of the events.
const EVENTS_LEAST: usize = 16;

const GAP: &str = "  ";

/// For a limit that the group does not have.
const NONE: &str = "-";

/// Columns that are left out where the table would be too wide, the first one first.
const SPARE: [&str; 8] = [
    "importance",
    "share",
    "min",
    "soft",
    "low",
    "high",
    "max",
    "%max",
];

/// Prints the rows with the columns that every table has, with those of the limits, figures and
/// events that some row has, and with those of `stats`.
pub(in crate::group) struct Table<'a> {
    pub(in crate::group) rows: &'a [SnapshotRow],
    pub(in crate::group) stats: Vec<(&'a str, Unit)>,
}

/// A head and its cells, to the right.
struct Column {
    head: String,
    cells: Vec<String>,
    /// Of the longest, with the gap before it.
    width: usize,
}

impl Table<'_> {
    fn column(&self, head: &str, cell: impl Fn(&SnapshotRow) -> String) -> Column {
        let cells: Vec<String> = self.rows.iter().map(cell).collect();
        let lengths = cells.iter().map(|cell| length(cell)).chain([length(head)]);
        Column {
            width: GAP.len() + lengths.max().unwrap_or(0),
            head: head.to_string(),
            cells,
        }
    }

    /// The columns of figures, from left to right.
    fn figures(&self) -> Vec<Column> {
        let any = |is: fn(&SnapshotRow) -> bool| self.rows.iter().any(is);
        let mut columns = vec![
            self.column("live", |row| Bytes(row.live).to_string()),
            self.column("%max", |row| {
                row.percent_of_max.map_or(NONE.to_string(), percent)
            }),
            self.column("max", |row| limit(row.max)),
        ];
        if any(|row| row.high < u64::MAX) {
            columns.push(self.column("high", |row| limit(row.high)));
        }
        if any(|row| row.soft < u64::MAX) {
            columns.push(self.column("soft", |row| limit(row.soft)));
        }
        if any(|row| row.share > 0) {
            columns.push(self.column("share", |row| {
                some(Some(row.share).filter(|share| *share > 0))
            }));
        }
        if any(|row| row.low > 0) {
            columns.push(self.column("low", |row| protected(row.low)));
        }
        if any(|row| row.min > 0) {
            columns.push(self.column("min", |row| protected(row.min)));
        }
        if any(|row| row.importance.is_some()) {
            columns.push(self.column("importance", |row| some(row.importance)));
        }
        if any(|row| row.forced > 0) {
            columns.push(self.column("forced", |row| Bytes(row.forced).to_string()));
        }
        if any(|row| !row.ledger.is_empty()) {
            let figure = |head: &str, figure: fn(&Ledger) -> u64| {
                self.column(head, |row| Bytes(figure(&row.ledger)).to_string())
            };
            columns.extend([
                figure("reserved", Ledger::reserved),
                figure("allocated", Ledger::allocated),
            ]);
            if any(|row| row.ledger.unpaid() > 0) {
                columns.push(figure("unpaid", Ledger::unpaid));
            }
            if any(|row| row.ledger.left_behind() > 0) {
                columns.push(figure("left behind", Ledger::left_behind));
            }
        }
        if any(|row| row.waiting > 0) {
            columns.push(self.column("waiting", |row| row.waiting.to_string()));
        }
        columns
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events: Vec<String> = self.rows.iter().map(events).collect();
        let has_events = events.iter().any(|text| !text.is_empty());
        let events_longest = events
            .iter()
            .map(|text| length(text))
            .chain([length("events")])
            .max()
            .unwrap_or(0);
        let events_least = if has_events {
            GAP.len() + events_longest.min(EVENTS_LEAST)
        } else {
            0
        };
        let path_longest = self
            .rows
            .iter()
            .map(|row| length(&row.path))
            .chain([length("path")])
            .max()
            .unwrap_or(0);

        let mut columns = self.figures();
        let width = |columns: &[Column]| columns.iter().map(|column| column.width).sum::<usize>();
        for spare in SPARE {
            if width(&columns) + path_longest.min(PATH_LEAST) + events_least > WIDTH {
                columns.retain(|column| column.head != spare);
            }
        }
        let left = WIDTH.saturating_sub(width(&columns));
        let path_width = path_longest.min(left.saturating_sub(events_least).max(PATH_LEAST));
        let events_width = left.saturating_sub(path_width + GAP.len());
        // The caller has named these: they cost no other column, and make the lines as long as they
        // have to be.
        columns.extend(self.stats.iter().map(|&(name, unit)| {
            self.column(name, |row| {
                figure(row.stats.get(name).copied().unwrap_or(0), unit)
            })
        }));

        let line = |path: &str, cell: &dyn Fn(&Column) -> String, events: &str| {
            let path = shortened_front(path, path_width);
            let mut line = format!("{path:path_width$}");
            for column in &columns {
                line.push_str(&format!("{:>width$}", cell(column), width = column.width));
            }
            if has_events {
                line.push_str(GAP);
                line.push_str(&shortened_back(events, events_width));
            }
            line.truncate(line.trim_end().len());
            line
        };
        writeln!(
            f,
            "{}",
            line("path", &|column| column.head.clone(), "events")
        )?;
        for (number, (row, events)) in self.rows.iter().zip(&events).enumerate() {
            writeln!(
                f,
                "{}",
                line(&row.path, &|column| column.cells[number].clone(), events)
            )?;
        }
        Ok(())
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// The end of a path says most.
fn shortened_front(text: &str, most: usize) -> String {
    match length(text).checked_sub(most) {
        None | Some(0) => text.to_string(),
        Some(more) => std::iter::once('…')
            .chain(text.chars().skip(more + 1))
            .collect(),
    }
}

fn shortened_back(text: &str, most: usize) -> String {
    if length(text) <= most {
        text.to_string()
    } else {
        text.chars()
            .take(most.saturating_sub(1))
            .chain(['…'])
            .collect()
    }
}

fn events(row: &SnapshotRow) -> String {
    row.events()
        .map(|(event, count)| format!("{} {count}", event.name()))
        .collect::<Vec<_>>()
        .join(", ")
}

fn percent(percent: u64) -> String {
    if percent > 999 {
        ">999%".to_string()
    } else {
        format!("{percent}%")
    }
}

fn limit(bytes: u64) -> String {
    if bytes == u64::MAX {
        NONE.to_string()
    } else {
        Bytes(bytes).to_string()
    }
}

/// Of bytes that reclaim spares: none, so many, or all.
fn protected(bytes: u64) -> String {
    match bytes {
        0 => NONE.to_string(),
        u64::MAX => Limit::Unlimited.to_string(),
        bytes => Bytes(bytes).to_string(),
    }
}

fn some<T: ToString>(value: Option<T>) -> String {
    value.map_or(NONE.to_string(), |value| value.to_string())
}

fn figure(figure: i64, unit: Unit) -> String {
    let sign = if figure < 0 { "-" } else { "" };
    format!("{sign}{}", InUnit(figure.unsigned_abs(), unit))
}
