//! Draws a terminal's screen as SVG: from the standard input, as `tmux capture-pane -e -p` prints
//! it, to the standard output.
//!
//! ```text
//! watched_service S 40 20 &
//! tmux new-session -d -x 100 -y 26 'memcg-top --depth 2 S'
//! sleep 45
//! tmux capture-pane -e -p | cargo run --manifest-path crates/Cargo.toml -p memcg-top --example picture > FILE
//! ```

use std::fmt::Write;
use std::io::Read;

/// Of one character, in pixels.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
const MARGIN: f64 = 12.0;

const FONTS: &str = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const GROUND: &str = "#16181d";
const INK: &str = "#d7dae0";

#[derive(Clone, Copy, PartialEq)]
struct Style {
    colour: &'static str,
    bold: bool,
    reversed: bool,
}

const PLAIN: Style = Style {
    colour: INK,
    bold: false,
    reversed: false,
};

impl Style {
    /// One number of a sequence that sets colours and the like.
    fn set(self, number: u16) -> Option<Style> {
        let colour = |colour| Style { colour, ..self };
        Some(match number {
            0 => PLAIN,
            1 => Style { bold: true, ..self },
            22 => Style {
                bold: false,
                ..self
            },
            7 => Style {
                reversed: true,
                ..self
            },
            27 => Style {
                reversed: false,
                ..self
            },
            31 => colour("#e06c75"),
            32 => colour("#8cc265"),
            33 => colour("#e5c07b"),
            39 => colour(INK),
            49 => self,
            _ => return None,
        })
    }
}

/// The characters of a line with their styles. The last style goes on in the next line.
fn styled(line: &str, style: &mut Style) -> Result<Vec<(char, Style)>, String> {
    let mut cells = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            '\u{1b}' => {
                let sequence = rest.strip_prefix('[').and_then(|rest| rest.split_once('m'));
                let (numbers, after) =
                    sequence.ok_or_else(|| format!("no sequence of colours: {rest:?}"))?;
                // Colours of the palette are those of the terminal, as far as the program uses
                // them.
                let of_terminal = numbers
                    .strip_prefix("38;5;")
                    .map(|colour| format!("3{colour}"));
                for number in of_terminal.as_deref().unwrap_or(numbers).split(';') {
                    let number = if number.is_empty() {
                        Some(0)
                    } else {
                        number.parse().ok()
                    };
                    let set = number.and_then(|number| style.set(number));
                    *style = set.ok_or_else(|| format!("an unknown colour: {numbers:?}"))?;
                }
                rest = after;
            }
            // Characters that shift to the other set of characters and back.
            '\u{e}' | '\u{f}' => {}
            _ => cells.push((first, *style)),
        }
    }
    Ok(cells)
}

/// Bars and their marks leave so much free above and below.
const INSET: f64 = 2.0;

fn rectangle(
    svg: &mut String,
    (x, y): (f64, f64),
    width: f64,
    colour: &str,
    opacity: f64,
    inset: f64,
) {
    let _ = writeln!(
        svg,
        r#"<rect x="{x:.1}" y="{:.1}" width="{width:.1}" height="{:.1}" fill="{colour}" fill-opacity="{opacity}"/>"#,
        y + inset,
        HEIGHT - 2.0 * inset
    );
}

/// Draws a run of characters of one style, none of them after a character of another kind.
fn draw(svg: &mut String, at: (f64, f64), run: &str, style: Style) {
    let width = run.chars().count() as f64 * WIDTH;
    let (ground, ink) = if style.reversed {
        (style.colour, GROUND)
    } else {
        (GROUND, style.colour)
    };
    if style.reversed {
        let is_mark = matches!(run, "l" | "s" | "h");
        rectangle(
            svg,
            at,
            width,
            ground,
            1.0,
            if is_mark { INSET } else { 0.0 },
        );
    }
    match run.chars().next() {
        Some('█') => return rectangle(svg, at, width, ink, 1.0, INSET),
        Some('▒') => return rectangle(svg, at, width, ink, 0.5, INSET),
        _ => {}
    }
    if run.trim().is_empty() {
        return;
    }
    let weight = if style.bold {
        r#" font-weight="bold""#
    } else {
        ""
    };
    let text = run
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(
        svg,
        r#"<text x="{:.1}" y="{:.1}" fill="{ink}"{weight} textLength="{width:.1}" xml:space="preserve">{text}</text>"#,
        at.0,
        at.1 + HEIGHT * 0.75
    );
}

/// The kind of a character, which begins a run of its own: bars and blanks are drawn apart from
/// words.
fn kind(of: (char, Style)) -> (Style, char) {
    let (character, style) = of;
    let kind = if matches!(character, '█' | '▒' | '·') {
        character
    } else {
        'a'
    };
    (style, kind)
}

fn main() -> Result<(), String> {
    let mut screen = String::new();
    std::io::stdin()
        .read_to_string(&mut screen)
        .map_err(|error| format!("the standard input: {error}"))?;
    let mut style = PLAIN;
    let lines = screen
        .lines()
        .map(|line| styled(line, &mut style))
        .collect::<Result<Vec<_>, _>>()?;
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let width = columns * WIDTH + 2.0 * MARGIN;
    let height = lines.len() as f64 * HEIGHT + 2.0 * MARGIN;
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" font-family="{FONTS}" font-size="14">
<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>
"#
    );
    for (row, line) in lines.iter().enumerate() {
        let mut from = 0;
        for run in line.chunk_by(|&a, &b| kind(a) == kind(b)) {
            let text: String = run.iter().map(|&(character, _)| character).collect();
            draw(
                &mut svg,
                (MARGIN + from as f64 * WIDTH, MARGIN + row as f64 * HEIGHT),
                &text,
                run[0].1,
            );
            from += run.len();
        }
    }
    println!("{svg}</svg>");
    Ok(())
}
