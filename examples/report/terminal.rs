//! The terminal that a report is printed on: how wide it is, whether it has colours.

use console::{Style, Term};

/// The number of columns: as the variable `COLUMNS` says, as the terminal says, or 80.
pub fn width() -> usize {
    let variable = || {
        std::env::var("COLUMNS")
            .ok()?
            .parse()
            .ok()
            .filter(|&columns: &u16| columns > 0)
    };
    let terminal = || Term::stdout().size_checked().map(|(_, columns)| columns);
    variable().or_else(terminal).map_or(80, usize::from)
}

/// True if standard output is a terminal.
pub fn is_terminal() -> bool {
    Term::stdout().is_term()
}

/// The verdict of a figure or a line on its subject. On a terminal it has a colour, unless
/// `NO_COLOR` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// As any other: no colour.
    #[default]
    Plain,
    /// As it must be: green.
    Good,
    /// At a limit, slowed down: yellow.
    Tense,
    /// Refused, wrong: red.
    Bad,
    /// A name: bold.
    Name,
}

impl State {
    /// The text in the colour of the state, where standard output shows colours.
    pub fn paint(self, text: &str) -> String {
        let style = match self {
            Self::Plain => return text.to_owned(),
            Self::Good => Style::new().green(),
            Self::Tense => Style::new().yellow(),
            Self::Bad => Style::new().red().bold(),
            Self::Name => Style::new().bold(),
        };
        style.apply_to(text).to_string()
    }
}

/// Words in lines of at most so many columns. A word that is longer has a line of its own.
pub fn wrap(text: &str, columns: usize) -> String {
    text.lines()
        .map(|line| wrap_line(line, columns))
        .collect::<Vec<_>>()
        .join("\n")
}

fn wrap_line(line: &str, columns: usize) -> String {
    let mut wrapped = String::new();
    let mut used = 0;
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let wide = console::measure_text_width(word);
        if used > 0 && used + 1 + wide > columns {
            wrapped.push('\n');
            used = 0;
        } else if used > 0 {
            wrapped.push(' ');
            used += 1;
        }
        wrapped.push_str(word);
        used += wide;
    }
    wrapped
}

/// Lines that are drawn over those drawn before, on a terminal; elsewhere one after the other.
#[derive(Debug, Default)]
pub struct InPlace {
    lines: usize,
}

impl InPlace {
    /// Draws the text in the place of the last one. A text with more lines than the terminal loses
    /// its last ones.
    pub fn draw(&mut self, text: &str) -> std::io::Result<()> {
        let term = Term::stdout();
        if !term.is_term() {
            return term.write_line(text);
        }
        self.clear()?;
        let rows = term
            .size_checked()
            .map_or(24, |(rows, _)| usize::from(rows));
        let shown: Vec<&str> = text.lines().take(rows.saturating_sub(2)).collect();
        self.lines = shown.len();
        term.write_line(&shown.join("\n"))
    }

    /// Takes away what was drawn last.
    pub fn clear(&mut self) -> std::io::Result<()> {
        let lines = std::mem::take(&mut self.lines);
        if lines == 0 {
            Ok(())
        } else {
            Term::stdout().clear_last_lines(lines)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{State, wrap};

    #[test]
    fn words_go_on_the_next_line() {
        assert_eq!(wrap("one two  three", 7), "one two\nthree");
        assert_eq!(wrap("one\nextraordinary b", 4), "one\nextraordinary\nb");
        assert_eq!(wrap("", 4), "");
    }

    #[test]
    fn a_pipe_has_no_colours() {
        // Standard output of a test is none, or the test is run on a terminal and the colour is
        // there.
        let red = State::Bad.paint("no");
        assert_eq!(red.contains('\u{1b}'), console::colors_enabled());
        assert_eq!(State::Plain.paint("yes"), "yes");
    }
}
