//! The page that explains keys, marks, columns and colours.

use ratatui::text::Line as TextLine;
use ratatui::widgets::Paragraph;

use super::BOLD;

/// As many lines as a terminal of 24 has between the first and the last two.
const LINES: [&str; 21] = [
    "KEYS",
    "up, down, Page, Home, End   move; k and j, too",
    "right, left                 unfold and fold; l and h, too",
    "Enter, Esc                  the page of a group, and back",
    "s, r                        order by the next figure; turn the order",
    "/                           only groups whose path has a text; Esc shows all",
    "M, H, L                     set memory.max, .high, .low, after a question",
    "p, ?, q                     pause, this page, the end",
    "BAR",
    "A whole bar is the max, or the high of a group without max. A shaded one stands",
    "against a limit of a group above. l, s and h are where low, soft and high are.",
    "COLUMNS",
    "USAGE, MAX   bytes charged with the credit of threads, and the limit",
    "RATE/s       bytes that usage grows by in a second",
    "WAIT, REF/s  charges that wait now, and refusals in a second",
    "FORCED       bytes above max, which forced charges may take",
    "SOME%        part of the last 10 s in which some charge stood still",
    "PEAK         the highest usage, with credit of threads: no more was live",
    "COLOURS",
    "red          at max, refused, forced, pressure critical, or 10 % stood still",
    "yellow       above high, charges wait, pressure elevated, or 1 % stood still",
];

pub(super) fn help() -> Paragraph<'static> {
    let is_title = |line: &str| line.chars().all(char::is_uppercase);
    let line = |line| {
        if is_title(line) {
            TextLine::styled(line, BOLD)
        } else {
            TextLine::raw(line)
        }
    };
    Paragraph::new(LINES.map(line).to_vec())
}
