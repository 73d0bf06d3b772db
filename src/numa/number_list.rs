//! Lists of numbers as sysfs writes them.
//!
//! ```text
//! list   = [ range { "," range } ] ["\n"]    nothing: an empty list
//! range  = number ["-" number]               both included
//! ```
//!
//! The kernel prints numbers in rising order, each once, all below 65,536. What does not rise or fit is no list.

use std::fmt;
use std::ops::RangeInclusive;

/// Numbers in rising order.
pub(super) struct NumberList(Vec<RangeInclusive<u16>>);

impl NumberList {
    /// The list, or the byte where the text stops being one.
    pub(super) fn parse(text: &[u8]) -> Result<NumberList, usize> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
        let mut at = 0;
        while !text.is_empty() {
            let (first, next) = number(text, at)?;
            if ranges.last().is_some_and(|before| *before.end() >= first) {
                return Err(at);
            }
            let (last, end) = match text.get(next) {
                Some(b'-') => number(text, next + 1)?,
                _ => (first, next),
            };
            if last < first {
                return Err(next + 1);
            }
            ranges.push(first..=last);
            match text.get(end) {
                None => break,
                Some(b',') => at = end + 1,
                Some(_) => return Err(end),
            }
        }
        Ok(NumberList(ranges))
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.0.iter().cloned().flatten().map(usize::from)
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.0.iter().any(|range| u16::try_from(number).is_ok_and(|number| range.contains(&number)))
    }

    /// Every number is below this one.
    pub(super) fn end(&self) -> usize {
        self.0.last().map_or(0, |range| usize::from(*range.end()) + 1)
    }
}

/// The number that starts at a byte of the text and where it ends; or the byte that is no digit or does not fit.
fn number(text: &[u8], begin: usize) -> Result<(u16, usize), usize> {
    let mut value = 0_u16;
    let mut at = begin;
    while let Some(digit @ b'0'..=b'9') = text.get(at) {
        value = value.checked_mul(10).and_then(|tens| tens.checked_add(u16::from(digit - b'0'))).ok_or(at)?;
        at += 1;
    }
    if at == begin { Err(at) } else { Ok((value, at)) }
}

/// Rising numbers as a list.
pub(super) fn as_list(numbers: impl Iterator<Item = usize>) -> impl fmt::Debug {
    let mut text = String::new();
    let mut numbers = numbers.peekable();
    while let Some(first) = numbers.next() {
        let mut last = first;
        while let Some(next) = numbers.next_if_eq(&(last + 1)) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        text += &if first == last { format!("{comma}{first}") } else { format!("{comma}{first}-{last}") };
    }
    text
}
