//! The parts of the screen. Foreign texts go through [`text::clean`].

mod help;
mod page;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as TextLine, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, Widget};

use memcg_observe::protocol::Row;

use crate::app::{App, Link, Prompt};
use crate::model::{Kind, Line, Model, Seen, Sort};
use crate::sample::parent_and_name;
use crate::text;

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    pub(crate) colours: bool,
}

impl Theme {
    fn fg(self, colour: Color) -> Style {
        if self.colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }
}

const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

pub(crate) fn draw(frame: &mut Frame<'_>, app: &mut App, theme: Theme) {
    let [head, body, status, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(head_line(app, usize::from(head.width), theme), head);
    match app.page().map(str::to_string) {
        _ if app.help => frame.render_widget(help::help(), body),
        Some(path) => page::page(frame, app, &path, body, theme),
        None => {
            // The table's first line has the names of the columns.
            app.fit(usize::from(body.height.saturating_sub(1)));
            let lines = app.model.lines();
            let selected = app.selected_at();
            let shown: Vec<&Line<'_>> = lines
                .iter()
                .skip(app.offset)
                .take(usize::from(body.height))
                .collect();
            let mark = selected.checked_sub(app.offset);
            table(&app.model, &shown, mark, body.width, theme).render(body, frame.buffer_mut());
        }
    }
    frame.render_widget(status_line(app, usize::from(status.width)), status);
    let help = match (&app.prompt, app.page()) {
        _ if app.help => "any key goes back",
        (Some(Prompt::Confirm { .. }), _) => "y sets it  Esc does not",
        (Some(_), _) => "Enter goes on  Esc leaves it",
        (None, Some(_)) => "Esc tree  p pause  M max H high L low  ? help  q quit",
        (None, None) => {
            "arrows move, fold  Enter page  s sort r turn  / filter  MHL set  ? help  q quit"
        }
    };
    frame.render_widget(Paragraph::new(help).style(REVERSED), keys);
}

/// Columns of the service's name that stay where the state has much to say.
const NAME_LEAST: usize = 12;

/// What the program is doing, at the end. It is seen at every width: where there is no room the name
/// gives way, then the time, then the program's own name.
fn head_line(app: &App, width: usize, theme: Theme) -> Paragraph<'static> {
    let (word, why, style) = match &app.link {
        _ if app.paused => ("PAUSED", "", theme.fg(Color::Yellow)),
        Link::Opening => ("opening", "", Style::new()),
        Link::Live => ("live", "", Style::new()),
        Link::Lost(why) => ("LOST", why.as_str(), theme.fg(Color::Red)),
        Link::Ended(why) => ("END", why.as_str(), theme.fg(Color::Yellow)),
    };
    let state = if why.is_empty() {
        word.to_string()
    } else {
        format!("{word}: {}", text::clean(why))
    };
    let seconds = app.model.at.saturating_sub(app.model.began) / 1_000;
    let time = format!("{}:{:02}", seconds / 60, seconds % 60);
    let title = Span::styled("memcg-top ", BOLD);
    // Two blanks stand behind the name and behind the time.
    let fixed = title.width() + 2 + time.len() + 2;
    let for_name = width.saturating_sub(fixed + word.len()).min(
        width
            .saturating_sub(fixed + text::columns(&state))
            .max(NAME_LEAST),
    );
    let mut spans = vec![Span::styled(state, style)];
    if for_name > 0 {
        let name = text::ending(&text::clean(&app.name), for_name);
        spans.insert(0, Span::raw(format!("{name}  {time}  ")));
    }
    if title.width() + word.len() <= width {
        spans.insert(0, title);
    }
    Paragraph::new(TextLine::from(spans))
}

fn status_line(app: &App, width: usize) -> Paragraph<'static> {
    // A path may be longer than the line, and what is typed must be seen.
    let change = |file: &str, path: &str, to: String| {
        let path = text::ending(
            path,
            width.saturating_sub(text::columns(&format!("Set {file} of  {to}"))),
        );
        format!("Set {file} of {path} {to}")
    };
    let said = match &app.prompt {
        Some(Prompt::Filter) => format!("groups with: {}_", app.model.filter),
        Some(Prompt::Limit { path, file, text }) => {
            change(file, path, format!("to (512M, 1G, max): {text}_"))
        }
        Some(Prompt::Confirm { path, file, to }) => {
            let now = app
                .model
                .seen(path)
                .and_then(|seen| limit_of(&seen.row, file));
            let from = now.map_or(String::new(), |now| format!("from {} ", text::limit(now)));
            change(file, path, format!("{from}to {to}?"))
        }
        None if !app.status.is_empty() => app.status.clone(),
        None => {
            let turned = if app.model.turned { ", turned" } else { "" };
            let filter = if app.model.filter.is_empty() {
                ""
            } else {
                ", with "
            };
            format!(
                "by {}{turned}{filter}{}",
                app.model.sort.name(),
                app.model.filter
            )
        }
    };
    Paragraph::new(text::clean(&said))
}

/// Present value of a file of limits.
fn limit_of(row: &Row, file: &str) -> Option<u64> {
    Some(match file {
        "memory.max" => row.max,
        "memory.high" => row.high,
        "memory.low" => row.low,
        _ => return None,
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Column {
    Group,
    Bar,
    Usage,
    Max,
    Rate,
    Waiting,
    Refused,
    Forced,
    Pressure,
    Peak,
}

impl Column {
    /// As they stand from the left.
    const ALL: [Column; 10] = [
        Column::Group,
        Column::Bar,
        Column::Usage,
        Column::Max,
        Column::Rate,
        Column::Waiting,
        Column::Refused,
        Column::Forced,
        Column::Pressure,
        Column::Peak,
    ];
    /// As a terminal that grows gets them.
    const BY_WORTH: [Column; 10] = [
        Column::Group,
        Column::Usage,
        Column::Bar,
        Column::Waiting,
        Column::Refused,
        Column::Rate,
        Column::Forced,
        Column::Max,
        Column::Pressure,
        Column::Peak,
    ];

    fn title(self) -> &'static str {
        [
            "GROUP",
            "low soft high",
            "USAGE",
            "MAX",
            "RATE/s",
            "WAIT",
            "REF/s",
            "FORCED",
            "SOME%",
            "PEAK",
        ][self as usize]
    }

    fn width(self) -> u16 {
        [18, 14, 7, 7, 8, 6, 6, 7, 7, 7][self as usize]
    }

    /// Those that fit, and the widths of the group and of the bar: these two share what is left.
    /// What orders the groups is shown before others.
    fn fitting(width: u16, sort: Sort) -> (Vec<Column>, Vec<u16>) {
        // A narrow terminal has figures, too: the names leave room for the usage.
        let usage = Column::Usage.width() + 1;
        let group = Column::Group
            .width()
            .min(width.saturating_sub(usage).max(1));
        let least = |column: Column| match column {
            Column::Group => group,
            other => other.width(),
        };
        let mut left = width;
        let mut fit = Vec::new();
        let mut by_worth = Column::BY_WORTH;
        let wanted = if sort == Sort::Pressure {
            Column::Pressure
        } else {
            Column::Group
        };
        by_worth[2..].sort_by_key(|&column| column != wanted);
        for column in by_worth {
            // A blank stands between two columns.
            let needed = least(column) + u16::from(!fit.is_empty());
            if needed > left && !fit.is_empty() {
                break;
            }
            left = left.saturating_sub(needed);
            fit.push(column);
        }
        let columns: Vec<Column> = Column::ALL
            .into_iter()
            .filter(|column| fit.contains(column))
            .collect();
        let to_bar = if columns.contains(&Column::Bar) {
            left / 2
        } else {
            0
        };
        let grown = |column: &Column| match column {
            Column::Group => group + left - to_bar,
            Column::Bar => column.width() + to_bar,
            _ => column.width(),
        };
        let widths = columns.iter().map(grown).collect();
        (columns, widths)
    }
}

fn table(
    model: &Model,
    lines: &[&Line<'_>],
    mark: Option<usize>,
    width: u16,
    theme: Theme,
) -> Table<'static> {
    let (columns, widths) = Column::fitting(width, model.sort);
    let title = |(&column, &width): (&Column, &u16)| match column {
        Column::Group => Cell::new(column.title()),
        // The letters of the marks, explained where they are used.
        Column::Bar => Cell::new(
            column
                .title()
                .chars()
                .take(usize::from(width))
                .collect::<String>(),
        ),
        _ => Cell::new(Text::from(column.title()).alignment(Alignment::Right)),
    };
    let rows = lines.iter().enumerate().map(|(at, line)| {
        let cells = columns
            .iter()
            .zip(&widths)
            .map(|(&column, &width)| cell(line, column, width, theme));
        let style = if mark == Some(at) && matches!(line.kind, Kind::Group { .. }) {
            REVERSED
        } else {
            Style::new()
        };
        TableRow::new(cells).style(style)
    });
    let empty = if model.filter.is_empty() {
        ""
    } else {
        "no group that is unfolded has this in its path"
    };
    let rows: Vec<TableRow<'_>> = if lines.is_empty() {
        vec![TableRow::new([empty])]
    } else {
        rows.collect()
    };
    Table::new(rows, widths.iter().map(|&width| Constraint::Length(width)))
        .header(TableRow::new(columns.iter().zip(&widths).map(title)).style(BOLD))
        .column_spacing(1)
}

fn cell(line: &Line<'_>, column: Column, width: u16, theme: Theme) -> Cell<'static> {
    // Deep below, a name has to be seen.
    let indent = " ".repeat((2 * line.level).min(usize::from(width) / 2));
    let Kind::Group {
        seen,
        is_open,
        has_children,
    } = line.kind
    else {
        let Kind::Rest(bytes) = line.kind else {
            return Cell::new("");
        };
        return match column {
            Column::Group => Cell::new(format!("{indent}  own and others")),
            Column::Usage => right(text::bytes(bytes), Style::new()),
            _ => Cell::new(""),
        };
    };
    let row = &seen.row;
    let alarming = |figure: bool| {
        if figure {
            theme.fg(Color::Red)
        } else {
            Style::new()
        }
    };
    let tense = |figure: bool| {
        if figure {
            theme.fg(Color::Yellow)
        } else {
            Style::new()
        }
    };
    match column {
        Column::Group => {
            let sign = match (has_children, is_open) {
                (false, _) => ' ',
                (true, false) => '+',
                (true, true) => '-',
            };
            let name = parent_and_name(&row.path).map_or("/", |(_, name)| name);
            let style = match row.pressure_level.as_str() {
                "critical" => alarming(true),
                level => tense(level == "elevated"),
            };
            Cell::new(format!("{indent}{sign} {}", text::clean(name))).style(style)
        }
        Column::Bar => Cell::new(bar(seen, line.scale, line.scale_is_own, width, theme)),
        Column::Usage => right(text::bytes(row.usage), Style::new()),
        Column::Max => right(
            if row.max == u64::MAX {
                String::new()
            } else {
                text::bytes(row.max)
            },
            Style::new(),
        ),
        Column::Rate => right(text::rate(seen.usage_rate()), Style::new()),
        Column::Waiting => right(text::count(row.waiting as f64), tense(row.waiting > 0)),
        Column::Refused => {
            let rate = seen.refused_rate();
            right(
                rate.map_or(String::new(), text::count),
                alarming(rate.is_some_and(|rate| rate > 0.0)),
            )
        }
        Column::Forced => right(text::bytes(row.forced), alarming(row.forced > 0)),
        Column::Pressure => {
            let some = row.pressure.some.avg10;
            let style = if some >= MUCH {
                alarming(true)
            } else {
                tense(some >= SOME)
            };
            right(text::percent(some), style)
        }
        Column::Peak => right(text::bytes(row.peak), Style::new()),
    }
}

fn right(figure: String, style: Style) -> Cell<'static> {
    Cell::new(Text::from(figure).alignment(Alignment::Right)).style(style)
}

/// Pressure that asks for a look, and for more, in hundredths of a per cent: less is what a busy
/// service has.
const SOME: u32 = 100;
const MUCH: u32 = 1_000;

/// A bar against the group's own max or high, with `l`, `s` and `h` where low, soft and high are. A
/// shaded one stands against a limit of a group above. A mark in the filled part is reversed, so
/// that a full bar is full.
fn bar(seen: &Seen, scale: u64, is_own: bool, width: u16, theme: Theme) -> TextLine<'static> {
    let row = &seen.row;
    let width = usize::from(width);
    let cells = |bytes: u64| bytes as f64 / scale.max(1) as f64 * width as f64;
    let filled = (cells(row.usage).round() as usize).clamp(usize::from(row.usage > 0), width);
    let colour = match row.usage {
        usage if usage >= row.max => theme.fg(Color::Red),
        usage if usage > row.high => theme.fg(Color::Yellow),
        _ => Style::new(),
    };
    let full = if is_own { '█' } else { '▒' };
    let fill = |at: usize| (if at < filled { full } else { '·' }, colour);
    let mut bar: Vec<(char, Style)> = (0..width).map(fill).collect();
    for (limit, mark) in [(row.low, 'l'), (row.soft, 's'), (row.high, 'h')] {
        let at = cells(limit) as usize;
        if limit > 0 && limit < scale && at < width {
            let style = if at < filled {
                colour.add_modifier(Modifier::REVERSED)
            } else {
                colour
            };
            bar[at] = (mark, style);
        }
    }
    let runs = bar.chunk_by(|a, b| a.1 == b.1);
    let span = |run: &[(char, Style)]| {
        Span::styled(run.iter().map(|cell| cell.0).collect::<String>(), run[0].1)
    };
    TextLine::from(runs.map(span).collect::<Vec<_>>())
}

/// The tree as text, for `--once`.
pub(crate) fn plain(model: &Model, width: u16) -> String {
    let lines = model.lines();
    let shown: Vec<&Line<'_>> = lines.iter().collect();
    let height = u16::try_from(shown.len() + 1).unwrap_or(u16::MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    table(model, &shown, None, width, Theme { colours: false }).render(buffer.area, &mut buffer);
    screen(&buffer)
}

/// The characters of a buffer, without blanks at the ends of its lines.
fn screen(buffer: &Buffer) -> String {
    let line = |cells: &[ratatui::buffer::Cell]| {
        let mut line = String::new();
        let mut at = 0;
        while let Some(cell) = cells.get(at) {
            line.push_str(cell.symbol());
            // The cell behind a wide character is a part of it.
            at += text::columns(cell.symbol()).max(1);
        }
        format!("{}\n", line.trim_end())
    };
    buffer
        .content
        .chunks(usize::from(buffer.area.width).max(1))
        .map(line)
        .collect()
}

#[cfg(test)]
mod tests {
    use memcg_observe::protocol::{Incident, Row};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::app::tests::{app, sample};
    use crate::sample::Sample;
    use crate::sample::tests::row;
    use crate::source::Update;

    pub(super) const MIB: u64 = 1 << 20;

    pub(super) fn drawn(app: &mut App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw(frame, app, Theme { colours: true }))
            .unwrap();
        screen(terminal.backend().buffer())
    }

    pub(super) fn rows(usage: u64, refused: u64) -> Vec<Row> {
        let events = [("max".to_string(), refused), ("low".to_string(), 0)].into();
        let mut acme = Row {
            max: 64 * MIB,
            high: 48 * MIB,
            low: 16 * MIB,
            refused,
            waiting: 2,
            events,
            ..row("/acme", usage)
        };
        acme.soft = 40 * MIB;
        acme.children = 1;
        acme.pressure.some.avg10 = 1_205;
        vec![acme, row("/idle", 3 * MIB)]
    }

    pub(super) fn two_seconds() -> App {
        let mut app = app(rows(20 * MIB, 5));
        app.update(Update::Sample(sample(3_000, rows(32 * MIB, 9))));
        app
    }

    #[test]
    fn a_tree_on_80_columns() {
        let mut app = two_seconds();
        let screen = drawn(&mut app, 80, 24);
        let lines: Vec<&str> = screen.lines().collect();
        assert_eq!(lines.len(), 24);
        assert_eq!(lines[0], "memcg-top test.sock  0:02  live");
        assert_eq!(
            lines[1],
            "GROUP              low soft high    USAGE     MAX   RATE/s   WAIT  REF/s  FORCED"
        );
        assert_eq!(
            lines[2],
            "- /                ▒▒▒▒▒▒▒▒▒▒▒▒▒▒    1.0M                0      0      0      0B"
        );
        assert_eq!(
            lines[3],
            "  + acme           ███l███·s·h···   32.0M   64.0M    +6.0M      2      2      0B"
        );
        assert_eq!(
            lines[4],
            "    idle           ▒▒▒▒▒▒▒▒▒▒▒▒▒▒    3.0M                0      0      0      0B"
        );
        assert_eq!(lines[5], "    own and others                     5B");
        assert_eq!(lines[22], "by usage");
        assert!(lines[23].starts_with("arrows move, fold") && lines[23].ends_with("q quit"));
    }

    #[test]
    fn a_wider_terminal_has_more_columns() {
        let mut app = two_seconds();
        let screen = drawn(&mut app, 120, 40);
        let lines: Vec<&str> = screen.lines().collect();
        assert_eq!(lines.len(), 40);
        let figures: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(figures[..2], ["+", "acme"]);
        assert_eq!(
            figures[3..],
            ["32.0M", "64.0M", "+6.0M", "2", "2", "0B", "12.05%", "0B"]
        );
        assert!(lines[1].ends_with("FORCED   SOME%    PEAK"));
        assert!(screen.lines().all(|line| line.chars().count() <= 120));
    }

    /// Also on 80 columns, where the column has no room otherwise.
    #[test]
    fn what_orders_the_groups_is_shown() {
        let mut app = two_seconds();
        assert!(!drawn(&mut app, 80, 24).contains("12.05%"));
        app.model.set_sort(Sort::Pressure, false);
        let screen = drawn(&mut app, 80, 24);
        let lines: Vec<&str> = screen.lines().collect();
        assert!(
            lines[1].contains("SOME%") && lines[3].contains("acme") && lines[3].contains("12.05%"),
            "{screen}"
        );
        assert_eq!(lines[22], "by pressure");
        assert!(screen.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn colours_say_what_the_limits_say() {
        let colour_at = |usage: u64, colours: bool| {
            let mut app = app(rows(usage, 0));
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            terminal
                .draw(|frame| draw(frame, &mut app, Theme { colours }))
                .unwrap();
            terminal.backend().buffer()[(20, 3)].fg
        };
        let colours = [32, 50, 64].map(|usage| colour_at(usage * MIB, true));
        assert_eq!(colours, [Color::Reset, Color::Yellow, Color::Red]);
        assert_eq!(colour_at(64 * MIB, false), Color::Reset);
    }

    /// A group that is well has none, and pressure has one where it matters.
    #[test]
    fn colours_ask_for_action_alone() {
        let of = |change: fn(&mut Row)| {
            let mut quiet = Row {
                max: 64 * MIB,
                high: 48 * MIB,
                low: MIB,
                soft: MIB,
                ..row("/quiet", 32 * MIB)
            };
            change(&mut quiet);
            let mut app = app(vec![quiet.clone()]);
            quiet.refused *= 2;
            app.update(Update::Sample(sample(3_000, vec![quiet])));
            let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
            terminal
                .draw(|frame| draw(frame, &mut app, Theme { colours: true }))
                .unwrap();
            let colours: Vec<Color> = terminal
                .backend()
                .buffer()
                .content
                .iter()
                .map(|cell| cell.fg)
                .collect();
            [Color::Yellow, Color::Red, Color::Green].map(|colour| colours.contains(&colour))
        };
        assert_eq!(of(|_| {}), [false; 3]);
        assert_eq!(of(|row| row.pressure.some.avg10 = 1), [false; 3]);
        assert_eq!(
            of(|row| row.pressure.some.avg10 = 100),
            [true, false, false]
        );
        assert_eq!(
            of(|row| row.pressure.some.avg10 = 1_000),
            [false, true, false]
        );
        assert_eq!(of(|row| row.waiting = 1), [true, false, false]);
        assert_eq!(of(|row| row.forced = 1), [false, true, false]);
        assert_eq!(of(|row| row.refused = 1), [false, true, false]);
    }

    #[test]
    fn a_full_bar_is_full() {
        let mut full = Row {
            max: 64 * MIB,
            high: 48 * MIB,
            low: 16 * MIB,
            ..row("/full", 64 * MIB - 1)
        };
        full.soft = 32 * MIB;
        let mut app = app(vec![full]);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal
            .draw(|frame| draw(frame, &mut app, Theme { colours: true }))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let cells = (19..33).map(|x| &buffer[(x, 3)]);
        // A mark is a letter on the colour of the bar.
        let is_full = |cell: &ratatui::buffer::Cell| {
            cell.symbol() == "█"
                || "lsh".contains(cell.symbol()) && cell.modifier.contains(Modifier::REVERSED)
        };
        assert!(cells.clone().all(is_full), "{}", screen(buffer));
        assert_eq!(cells.filter(|cell| cell.symbol() != "█").count(), 3);
    }

    #[test]
    fn the_help_fits_a_screen() {
        let mut app = two_seconds();
        app.key(KeyEvent::from(KeyCode::Char('?')));
        let shown = drawn(&mut app, 80, 24);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            (lines[1], lines[21].starts_with("yellow"), lines[23]),
            ("KEYS", true, "any key goes back")
        );
        for word in ["M, H, L", "l, s and h", "REF/s", "red "] {
            assert!(shown.contains(word), "{word}: {shown}");
        }
        // No line is cut: the last one ends with a word of its own.
        let wide = drawn(&mut app, 200, 24);
        assert_eq!(
            wide.lines().skip(1).take(21).collect::<Vec<_>>(),
            lines[1..22]
        );
    }

    #[test]
    fn a_terminal_of_any_size_and_hostile_names_do_no_harm() {
        let long = format!("/{}", "名\u{1b}[31m\u{202e}".repeat(300));
        let most = Row {
            max: 0,
            high: 0,
            low: u64::MAX,
            peak: u64::MAX,
            forced: u64::MAX,
            refused: u64::MAX,
            ..row(&long, u64::MAX)
        };
        let mut app = app(vec![most.clone(), row("/b", 0)]);
        let hostile = |text: &str| Incident {
            kind: text.into(),
            group: text.into(),
            counter: Some(text.into()),
            at: u64::MAX,
            requested: u64::MAX,
            ..Incident::default()
        };
        let incidents = vec![hostile(&long), hostile("\u{1b}[2J")];
        app.update(Update::Sample(Sample {
            incidents,
            ..sample(u64::MAX, vec![row(&long, 0), most])
        }));
        app.update(Update::Lost("\u{1b}]0;title\u{7}".into()));
        for key in [
            KeyCode::Down,
            KeyCode::Enter,
            KeyCode::Esc,
            KeyCode::Char('M'),
            KeyCode::Char('1'),
        ] {
            app.key(KeyEvent::from(key));
            for (width, height) in (0..9).flat_map(|w| (0..6).map(move |h| (w * 17, h * 8))) {
                if width == 0 || height == 0 {
                    continue;
                }
                let screen = drawn(&mut app, width, height);
                assert!(
                    !screen
                        .chars()
                        .any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')),
                    "{width} x {height}"
                );
            }
            for size in [
                (1, 1),
                (2, 1),
                (1, 2),
                (3, 3),
                (19, 5),
                (80, 2),
                (5, 80),
                (600, 3),
            ] {
                drawn(&mut app, size.0, size.1);
            }
        }
    }

    #[test]
    fn what_is_typed_and_said_is_shown() {
        let mut app = two_seconds();
        app.update(Update::Said("memory.max of /acme is now 1G".into()));
        assert!(drawn(&mut app, 80, 24).contains("\nmemory.max of /acme is now 1G\n"));
        for (keys, line) in [("/ac", "groups with: ac_"), ("q", "groups with: acq_")] {
            keys.chars()
                .for_each(|c| drop(app.key(KeyEvent::from(KeyCode::Char(c)))));
            assert!(drawn(&mut app, 80, 24).contains(line), "{line}");
        }
        assert!(drawn(&mut app, 80, 24).contains("no group that is"));
        app.key(KeyEvent::from(KeyCode::Esc));
        "M1".chars()
            .for_each(|c| drop(app.key(KeyEvent::from(KeyCode::Char(c)))));
        assert!(drawn(&mut app, 80, 24).contains("\nSet memory.max of / to (512M, 1G, max): 1_\n"));
        app.key(KeyEvent::from(KeyCode::Enter));
        assert!(drawn(&mut app, 80, 24).contains("\nSet memory.max of / from max to 1?\n"));
    }

    /// Of a path that is longer than the line the end is shown, for what is typed stands behind it.
    #[test]
    fn a_change_of_a_long_path_is_seen() {
        let long = format!("/{}/query", "x".repeat(200));
        let mut app = app(vec![Row {
            max: 64 * MIB,
            ..row(&long, MIB)
        }]);
        app.selected.clone_from(&long);
        "M96M"
            .chars()
            .for_each(|c| drop(app.key(KeyEvent::from(KeyCode::Char(c)))));
        let line = drawn(&mut app, 80, 24).lines().nth(22).unwrap().to_string();
        assert!(
            line.starts_with("Set memory.max of …x")
                && line.ends_with("x/query to (512M, 1G, max): 96M_"),
            "{line}"
        );
        app.key(KeyEvent::from(KeyCode::Enter));
        let line = drawn(&mut app, 80, 24).lines().nth(22).unwrap().to_string();
        assert!(
            line.starts_with("Set memory.max of …x")
                && line.ends_with("x/query from 64.0M to 96M?"),
            "{line}"
        );
        assert_eq!(line.chars().count(), 80);
    }

    /// The name of a group that is short of memory has the colour of its pressure level.
    #[test]
    fn names_have_the_colour_of_pressure() {
        let rows = ["normal", "elevated", "critical"].map(|level| Row {
            pressure_level: level.into(),
            ..row(&format!("/{level}"), MIB)
        });
        let mut app = app(rows.to_vec());
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal
            .draw(|frame| draw(frame, &mut app, Theme { colours: true }))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let colour = |name: &str| {
            let at = (0..24).find(|&line| {
                (0..79)
                    .map(|x| buffer[(x, line)].symbol())
                    .collect::<String>()
                    .contains(name)
            });
            buffer[(5, at.expect("a line of the group"))].fg
        };
        assert_eq!(
            ["normal", "elevated", "critical"].map(colour),
            [Color::Reset, Color::Yellow, Color::Red]
        );
    }

    /// However long the name of the service is, and however narrow the terminal.
    #[test]
    fn the_state_is_seen_at_every_width() {
        for name in ["s", &"/run/名前/".repeat(12)] {
            let mut app = two_seconds();
            app.name = name.into();
            for width in (6..22).chain([30, 80, 120]) {
                let head = |app: &mut App| drawn(app, width, 5).lines().next().unwrap().to_string();
                assert!(
                    head(&mut app).contains("live"),
                    "{width}: {}",
                    head(&mut app)
                );
                app.update(Update::Lost(format!("{name}: Connection refused")));
                assert!(
                    head(&mut app).contains("LOST"),
                    "{width}: {}",
                    head(&mut app)
                );
                app.key(KeyEvent::from(KeyCode::Char('p')));
                assert!(
                    head(&mut app).contains("PAUSED"),
                    "{width}: {}",
                    head(&mut app)
                );
                app.key(KeyEvent::from(KeyCode::Char('p')));
                app.update(Update::Sample(sample(3_000, rows(32 * MIB, 9))));
            }
        }
        let mut app = two_seconds();
        app.name = format!("/run/{}/memcg.sock", "x".repeat(80));
        let screen = drawn(&mut app, 80, 24);
        let head = screen.lines().next().unwrap();
        assert!(head.starts_with("memcg-top …x") && head.ends_with("x/memcg.sock  0:02  live"));
        app.update(Update::Lost("Connection refused (os error 111)".into()));
        let screen = drawn(&mut app, 80, 24);
        let head = screen.lines().next().unwrap();
        assert!(
            head.ends_with(".sock  0:02  LOST: Connection refused (os error 111)"),
            "{head}"
        );
    }

    /// A name and its usage, as far down as a terminal can have both.
    #[test]
    fn a_narrow_terminal_has_figures() {
        for width in 10..40 {
            let mut app = two_seconds();
            let screen = drawn(&mut app, width, 24);
            let line = screen.lines().nth(3).unwrap();
            assert!(line.contains("32.0M"), "{width}: {screen}");
            assert!(width < 14 || line.contains("+ a"), "{width}: {screen}");
        }
        assert_eq!(
            drawn(&mut two_seconds(), 20, 24).lines().nth(3),
            Some("  + acme       32.0M")
        );
    }

    /// A character that takes two columns moves nothing that stands behind it.
    #[test]
    fn wide_names_in_plain_text() {
        let app = app(vec![row("/名前", 3 * MIB), row("/plain", 2 * MIB)]);
        let text = plain(&app.model, 80);
        let column = |unit: &str| {
            let line = text.lines().find(|line| line.contains(unit)).unwrap();
            text::columns(line.split(unit).next().unwrap())
        };
        assert_eq!(column("3.0M"), column("2.0M"), "{text}");
        assert!(text.contains("    名前  "), "{text}");
    }

    #[test]
    fn plain_text_has_every_line() {
        let app = two_seconds();
        let text = plain(&app.model, 80);
        assert_eq!(text.lines().count(), 5);
        assert!(text.contains("  + acme           ███l███·s·h···   32.0M   64.0M"));
    }
}
