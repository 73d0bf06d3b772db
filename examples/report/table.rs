//! Tables that fit the terminal: where it is narrow, columns are left out, in an order that is
//! always the same.

use console::{Alignment, measure_text_width, pad_str};

use crate::terminal::State;

/// A column: its head, and when it goes.
#[derive(Clone, Debug)]
pub struct Column {
    name: String,
    right: bool,
    /// Columns with the highest number go first; 0 stays.
    leaves: u8,
}

impl Column {
    /// Words, at the left. It stays however narrow the terminal is.
    pub fn words(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            right: false,
            leaves: 0,
        }
    }

    /// Figures, at the right. It stays however narrow the terminal is.
    pub fn figures(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            right: true,
            leaves: 0,
        }
    }

    /// Goes where the terminal is too narrow, before all columns with a smaller number.
    #[must_use]
    pub fn leaves(mut self, order: u8) -> Self {
        self.leaves = order;
        self
    }
}

/// A text in a table, in lines, with its state.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    state: State,
}

impl Cell {
    /// A cell with a state.
    pub fn new(text: impl Into<String>, state: State) -> Self {
        Self {
            text: text.into(),
            state,
        }
    }
}

impl<Text: Into<String>> From<Text> for Cell {
    fn from(text: Text) -> Self {
        Self::new(text, State::Plain)
    }
}

/// Rows of cells under the heads of their columns.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    /// A line stands before the row of this number: sums follow.
    line_before: Option<usize>,
}

/// Between two columns.
const GAP: &str = "  ";

impl Table {
    /// A table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self {
            columns: columns.into_iter().collect(),
            rows: Vec::new(),
            line_before: None,
        }
    }

    /// One more row. A row with fewer cells than columns ends in empty ones.
    pub fn add<Text: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = Text>) {
        let mut row: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns.len(), Cell::default());
        self.rows.push(row);
    }

    /// A line before the rows that follow.
    pub fn line(&mut self) {
        self.line_before = Some(self.rows.len());
    }

    /// The table in at most so many columns, if those that stay leave it a choice.
    pub fn text(&self, columns: usize) -> String {
        let shown = self.shown(columns);
        let wide: Vec<usize> = shown.iter().map(|&at| self.wide(at)).collect();
        let heads: Vec<Cell> = shown
            .iter()
            .map(|&at| Cell::new(&*self.columns[at].name, State::Name))
            .collect();
        let rule = wide
            .iter()
            .map(|&wide| "-".repeat(wide))
            .collect::<Vec<_>>()
            .join(GAP);
        let mut lines = vec![self.row(&shown, &wide, &heads), rule.clone()];
        for (number, row) in self.rows.iter().enumerate() {
            if self.line_before == Some(number) {
                lines.push(rule.clone());
            }
            let cells: Vec<Cell> = shown.iter().map(|&at| row[at].clone()).collect();
            lines.push(self.row(&shown, &wide, &cells));
        }
        lines.join("\n")
    }

    /// The columns that fit.
    fn shown(&self, columns: usize) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        loop {
            let wide: usize = shown.iter().map(|&at| self.wide(at)).sum();
            if wide + GAP.len() * shown.len().saturating_sub(1) <= columns {
                return shown;
            }
            let last = (0..shown.len()).max_by_key(|&place| self.columns[shown[place]].leaves);
            match last.filter(|&place| self.columns[shown[place]].leaves > 0) {
                Some(place) => drop(shown.remove(place)),
                None => return shown,
            }
        }
    }

    fn wide(&self, at: usize) -> usize {
        let cells = self.rows.iter().flat_map(|row| row[at].text.lines());
        cells
            .chain([self.columns[at].name.as_str()])
            .map(measure_text_width)
            .max()
            .unwrap_or(0)
    }

    /// One row, in as many lines as its highest cell has.
    fn row(&self, shown: &[usize], wide: &[usize], cells: &[Cell]) -> String {
        let high = cells
            .iter()
            .map(|cell| cell.text.lines().count())
            .max()
            .unwrap_or(0)
            .max(1);
        let line = |number: usize| {
            let places = cells
                .iter()
                .zip(shown)
                .zip(wide)
                .map(|((cell, &at), &wide)| {
                    let side = if self.columns[at].right {
                        Alignment::Right
                    } else {
                        Alignment::Left
                    };
                    cell.state.paint(&pad_str(
                        cell.text.lines().nth(number).unwrap_or(""),
                        wide,
                        side,
                        None,
                    ))
                });
            places.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
        };
        (0..high).map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::{Cell, Column, State, Table};

    fn table() -> Table {
        let columns = [
            Column::words("tenant"),
            Column::figures("hits").leaves(1),
            Column::figures("evicted").leaves(2),
            Column::figures("state"),
        ];
        let mut table = Table::new(columns);
        table.add(["a", "1,000", "7", "ok"]);
        table.line();
        table.add([
            Cell::from("b\nc"),
            Cell::from("2"),
            Cell::from("3"),
            Cell::new("refused", State::Bad),
        ]);
        table
    }

    #[test]
    fn columns_leave_in_their_order() {
        let heads = |columns| {
            let text = table().text(columns);
            assert!(
                columns < 15 || text.lines().all(|line| line.chars().count() <= columns),
                "{text}"
            );
            text.lines()
                .next()
                .unwrap()
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(heads(80), "tenant hits evicted state");
        assert_eq!(heads(30), "tenant hits state");
        assert_eq!(heads(18), "tenant state");
        assert_eq!(
            heads(3),
            "tenant state",
            "what stays is wider than the terminal"
        );
    }

    #[test]
    fn cells_have_lines() {
        let text = table().text(80);
        assert_eq!(
            text.lines().nth(2).unwrap(),
            "a       1,000        7       ok"
        );
        assert_eq!(text.lines().skip(3).collect::<Vec<_>>().len(), 3, "{text}");
        assert_eq!(text.lines().last().unwrap(), "c");
    }
}
