//! The place of text: its width, its breaks, and the labels that do not cover another.

use svg::node::{Text, element::Element};
use svg::{Node, node::Value};

/// The height of plain text, and of small text.
pub(super) const PLAIN: f64 = 13.0;
pub(super) const SMALL: f64 = 12.0;
pub(super) const TITLE: f64 = 16.0;

/// An element with attributes.
pub(super) fn element<const N: usize>(name: &str, attributes: [(&str, Value); N]) -> Element {
    let mut element = Element::new(name);
    attributes.into_iter().for_each(|(name, value)| element.assign(name, value));
    element
}

/// An element that holds a text.
pub(super) fn text(x: f64, y: f64, class: &str, content: &str) -> Element {
    let mut element = element("text", [("x", place(x)), ("y", place(y)), ("class", class.into())]);
    element.append(Text::new(content));
    element
}

/// The text that a browser shows under the pointer, and a reader of screens reads.
pub(super) fn title(content: &str) -> Element {
    let mut element = Element::new("title");
    element.append(Text::new(content));
    element
}

/// A coordinate, with one decimal.
pub(super) fn place(at: f64) -> Value {
    number(at).into()
}

pub(super) fn number(at: f64) -> String {
    let text = format!("{at:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// The width of a text at most: a font is not known here, and the widest usual one counts.
pub(super) fn width(text: &str, height: f64) -> f64 {
    let part = |letter: char| match letter {
        'i' | 'j' | 'l' | 't' | 'f' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | '(' | ')' | ' ' => 0.38,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.95,
        _ => 0.63,
    };
    text.chars().map(part).sum::<f64>() * height
}

/// A text in lines that fit.
pub(super) fn wrap(text: &str, most: f64, height: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line, height) + width(word, height) + width(" ", height) <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Labels that cover no other.
#[derive(Default)]
pub(super) struct Labels {
    taken: Vec<[f64; 4]>,
}

impl Labels {
    /// Nothing is written here.
    pub(super) fn keep_free(&mut self, x: f64, y: f64, width: f64, height: f64) {
        self.taken.push([x, y, x + width, y + height]);
    }

    /// The place for a label beside a point: right, left, above or below, within `bounds`; `None` where all are taken.
    pub(super) fn beside(&mut self, label: &str, [x, y]: [f64; 2], bounds: [f64; 4]) -> Option<Element> {
        let (wide, high) = (width(label, SMALL), SMALL);
        let at = [[x + 9.0, y - 6.0], [x - 9.0 - wide, y - 6.0], [x - wide / 2.0, y - 21.0], [x - wide / 2.0, y + 9.0]];
        let boxes = at.map(|[left, top]| [left, top, left + wide, top + high]);
        let inside = |label: &[f64; 4]| {
            label[0] >= bounds[0] && label[1] >= bounds[1] && label[2] <= bounds[2] && label[3] <= bounds[3]
        };
        let free = |label: &[f64; 4]| {
            let covers = |other: &[f64; 4]| {
                label[0] < other[2] && other[0] < label[2] && label[1] < other[3] && other[1] < label[3]
            };
            !self.taken.iter().any(covers)
        };
        let chosen = boxes.into_iter().find(|label| inside(label) && free(label))?;
        self.taken.push(chosen);
        Some(text(chosen[0], chosen[1] + high - 2.0, "small halo", label))
    }
}
