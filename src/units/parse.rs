//! The reader of sizes and limits. An error quotes the text and names the place and the forms that
//! would do.

use std::fmt;

use self::ParseLimitErrorKind::{
    Empty, NotANumber, NotWhole, Overflow, PercentNotWhole, PercentOutOfRange, TrailingInput,
    UnknownUnit,
};
use super::{Limit, PREFIXES, Percent};

/// Why a text does not parse as [`Bytes`](super::Bytes) or as a [`Limit`], and where it goes wrong.
///
/// ```
/// use memcg::errors::ParseLimitErrorKind;
/// use memcg::{Bytes, Limit};
///
/// let fault = "0.3KiB".parse::<Bytes>().unwrap_err();
/// assert_eq!((fault.input(), fault.position(), fault.kind()), ("0.3KiB", 1, ParseLimitErrorKind::NotWhole));
/// assert_eq!(
///     fault.to_string(),
///     "\"0.3KiB\" is no size: a part of a byte is left at byte 1; expected 4096, 64KiB, 1.5GiB or 64MB; take a smaller unit",
/// );
/// let fault = "lots".parse::<Limit>().unwrap_err();
/// assert_eq!(
///     fault.to_string(),
///     "\"lots\" is no limit: expected a digit at byte 0; expected 4096, 64KiB, 1.5GiB, 64MB, 25% or max",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ParseLimitError {
    input: Box<str>,
    wanted: ReadAs,
    position: usize,
    kind: ParseLimitErrorKind,
}

impl fmt::Display for ParseLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            input,
            kind,
            position,
            wanted,
        } = self;
        let (wanted, forms) = match wanted {
            ReadAs::Size => ("size", "4096, 64KiB, 1.5GiB or 64MB"),
            ReadAs::Limit => ("limit", "4096, 64KiB, 1.5GiB, 64MB, 25% or max"),
        };
        write!(
            f,
            "{input:?} is no {wanted}: {kind} at byte {position}; expected {forms}"
        )?;
        match (kind, self.prefix_in_other_case()) {
            (NotWhole, _) => f.write_str("; take a smaller unit"),
            (UnknownUnit, Some(prefix)) => {
                write!(
                    f,
                    "; write {prefix}B (powers of 1,000) or {prefix}iB (of 1,024)"
                )
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ParseLimitError {}

/// The type that a text was read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReadAs {
    Size,
    Limit,
}

/// The ways in which a text fails to be a limit.
///
/// ```
/// use memcg::errors::ParseLimitErrorKind;
/// use memcg::Limit;
///
/// let kind_of = |text: &str| text.parse::<Limit>().unwrap_err().kind();
/// assert_eq!(kind_of(""), ParseLimitErrorKind::Empty);
/// assert_eq!(kind_of("-1"), ParseLimitErrorKind::NotANumber);
/// assert_eq!(kind_of("64 Mb"), ParseLimitErrorKind::UnknownUnit);
/// assert_eq!(kind_of("16EiB"), ParseLimitErrorKind::Overflow);
/// assert_eq!(kind_of("1.5"), ParseLimitErrorKind::NotWhole);
/// assert_eq!(kind_of("101%"), ParseLimitErrorKind::PercentOutOfRange);
/// assert_eq!(kind_of("10.5%"), ParseLimitErrorKind::PercentNotWhole);
/// assert_eq!(kind_of("64M "), ParseLimitErrorKind::TrailingInput);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseLimitErrorKind {
    /// There is no text at all.
    Empty,
    /// A digit must stand here. After an underscore or a point this may be the end of the text.
    NotANumber,
    /// The word that starts here is not a unit. `%` is one only for a limit; `B` and `iB` are written
    /// in just these cases.
    UnknownUnit,
    /// The number exceeds 64 bits: at this digit, or by the unit that starts here.
    Overflow,
    /// The fraction that starts here leaves a part of a byte.
    NotWhole,
    /// The percentage that starts here is above 100.
    PercentOutOfRange,
    /// The fraction that starts here is one of a percentage.
    PercentNotWhole,
    /// The text goes on where it has to end, even if only with a blank.
    TrailingInput,
}

impl fmt::Display for ParseLimitErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("nothing"),
            Self::NotANumber => f.write_str("expected a digit"),
            Self::UnknownUnit => f.write_str("unknown unit"),
            Self::Overflow => f.write_str("more than 64 bits"),
            Self::NotWhole => f.write_str("a part of a byte is left"),
            Self::PercentNotWhole => {
                f.write_str("a percentage is a whole number, without the fraction")
            }
            Self::PercentOutOfRange => f.write_str("a percentage above 100"),
            Self::TrailingInput => f.write_str("text after the end"),
        }
    }
}

impl std::error::Error for ParseLimitErrorKind {}

// === impl ParseLimitError ===

impl ParseLimitError {
    /// Returns the text that was read. Of one longer than 64 bytes, it returns the whole characters
    /// within the first 64.
    pub fn input(&self) -> &str {
        &self.input
    }

    /// Returns the byte offset of the fault. It is on a character boundary, and at most the length
    /// of the text.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The prefix of a unit that is one but for the case of its letters.
    fn prefix_in_other_case(&self) -> Option<char> {
        let unit = self.input.get(self.position..)?.to_ascii_uppercase();
        let prefix = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B'))?;
        PREFIXES
            .into_iter()
            .find(|known| prefix.chars().eq([*known]))
    }

    /// Returns the fault there.
    pub fn kind(&self) -> ParseLimitErrorKind {
        self.kind
    }
}

// === The grammar ===

/// An error shows no more of a text than this.
const SHOWN: usize = 64;

/// A fault, and its place.
pub(super) struct ParseFault {
    kind: ParseLimitErrorKind,
    position: usize,
}

impl ParseFault {
    pub(super) fn of(self, text: &str, wanted: ReadAs) -> ParseLimitError {
        let ends = text
            .char_indices()
            .map(|(at, character)| at + character.len_utf8());
        let input = text[..ends.take_while(|&end| end <= SHOWN).last().unwrap_or(0)].into();
        ParseLimitError {
            input,
            wanted,
            position: self.position,
            kind: self.kind,
        }
    }
}

impl ParseLimitErrorKind {
    fn at(self, position: usize) -> ParseFault {
        ParseFault {
            position,
            kind: self,
        }
    }
}

pub(super) fn limit(text: &str) -> Result<Limit, ParseFault> {
    if let Some(rest) = text.strip_prefix("max") {
        let position = text.len() - rest.len();
        return if rest.is_empty() {
            Ok(Limit::Unlimited)
        } else {
            Err(TrailingInput.at(position))
        };
    }
    let number = LeadingDigits::scan(text)?;
    match text[number.end..].strip_prefix('%') {
        Some("") => number.percent().map(Limit::Percent),
        Some(_) => Err(TrailingInput.at(number.end + 1)),
        None => match text[number.end..]
            .strip_prefix('.')
            .map(|fraction| (fraction, digits(fraction)))
        {
            // In `10.5%` the fault is the fraction. Read as a size, it would be the `%` behind it.
            Some((fraction, part))
                if !part.is_empty() && fraction[part.len()..].starts_with('%') =>
            {
                Err(PercentNotWhole.at(number.end))
            }
            _ => number.size(text).map(Limit::Bytes),
        },
    }
}

pub(super) fn size(text: &str) -> Result<u64, ParseFault> {
    LeadingDigits::scan(text)?.size(text)
}

/// The digits at the front of a text.
struct LeadingDigits {
    /// Their value; `None` where it exceeds 64 bits. The scan does not return that fault: a
    /// percentage so long is out of range, not too long.
    value: Option<u64>,
    end: usize,
    /// The digit that exceeds 64 bits, if there is one.
    overflow: usize,
}

impl LeadingDigits {
    /// Reads the digits and underscores that `text` starts with.
    fn scan(text: &str) -> Result<Self, ParseFault> {
        if text.is_empty() {
            return Err(Empty.at(0));
        }
        let mut number = Self {
            value: Some(0),
            end: 0,
            overflow: 0,
        };
        loop {
            let Some(next) = digit(text, number.end) else {
                return Err(NotANumber.at(number.end));
            };
            if let Some(value) = number.value {
                number.value = value
                    .checked_mul(10)
                    .and_then(|tens| tens.checked_add(next));
                number.overflow = number.end;
            }
            number.end += 1;
            // A digit has to follow, which the next turn asks for.
            if text.as_bytes().get(number.end) == Some(&b'_') {
                number.end += 1;
            } else if digit(text, number.end).is_none() {
                return Ok(number);
            }
        }
    }

    fn percent(self) -> Result<Percent, ParseFault> {
        self.value
            .and_then(|value| u8::try_from(value).ok())
            .and_then(Percent::new)
            .ok_or(PercentOutOfRange.at(0))
    }

    /// The number and the fraction behind it, times the unit behind that.
    fn size(self, text: &str) -> Result<u64, ParseFault> {
        let fraction = text[self.end..].strip_prefix('.').map_or("", digits);
        let point = usize::from(text[self.end..].starts_with('.'));
        if point > 0 && fraction.is_empty() {
            return Err(NotANumber.at(self.end + 1));
        }
        let end = self.end + point + fraction.len();
        let (unit, position) = read_unit(text, end)?;
        let value = self.value.ok_or(Overflow.at(self.overflow))?;
        let part = part_of(unit, fraction).ok_or(NotWhole.at(self.end))?;
        value
            .checked_mul(unit)
            .and_then(|whole| whole.checked_add(part))
            .ok_or(Overflow.at(position))
    }
}

fn digit(text: &str, at: usize) -> Option<u64> {
    text.as_bytes()
        .get(at)
        .filter(|byte| byte.is_ascii_digit())
        .map(|byte| u64::from(byte - b'0'))
}

/// The digits that the text starts with.
fn digits(text: &str) -> &str {
    &text[..text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len())]
}

/// The unit that stands at the end of a number, and where. No text is a byte.
fn read_unit(text: &str, end: usize) -> Result<(u64, usize), ParseFault> {
    let rest = &text[end..];
    if rest.is_empty() {
        return Ok((1, end));
    }
    // A blank is part of the size only between the number and a unit.
    let word = rest.strip_prefix(' ').unwrap_or(rest);
    let position = text.len() - word.len();
    let length = word
        .find(|c: char| !c.is_alphabetic())
        .unwrap_or(word.len());
    let (unit, trailing) = word.split_at(length);
    if unit.is_empty() {
        let kind = if rest.starts_with('%') {
            UnknownUnit
        } else {
            TrailingInput
        };
        return Err(kind.at(end));
    }
    let unit = bytes_of(unit).ok_or(UnknownUnit.at(position))?;
    if trailing.is_empty() {
        Ok((unit, position))
    } else {
        Err(TrailingInput.at(position + length))
    }
}

/// Returns the bytes of a unit.
fn bytes_of(unit: &str) -> Option<u64> {
    if unit == "B" {
        return Some(1);
    }
    let mut letters = unit.chars();
    let prefix = letters.next()?.to_ascii_uppercase();
    let base: u64 = match letters.as_str() {
        "" | "iB" => 1_024,
        "B" => 1_000,
        _ => return None,
    };
    let power = PREFIXES.iter().position(|&known| known == prefix)?;
    Some(base.pow(power as u32 + 1))
}

/// So many bytes is the fraction of a unit; `None` where that is no whole number.
///
/// It divides by ten from the last digit on. Where the whole sum is an integer, so is each sum on
/// the way.
fn part_of(unit: u64, fraction: &str) -> Option<u64> {
    fraction
        .trim_end_matches('0')
        .bytes()
        .rev()
        .try_fold(0_u64, |part, digit| {
            // At most 9 units and one more: below 10 * 2^60.
            let tenfold = u128::from(part) + u128::from(digit - b'0') * u128::from(unit);
            (tenfold % 10 == 0).then_some((tenfold / 10) as u64)
        })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{Bytes, Limit};

    /// A reader who knows no grammar sees what to write.
    #[test]
    fn a_fault_says_what_to_write() {
        let of = |text: &str| text.parse::<Limit>().unwrap_err().to_string();
        for (text, said, hint) in [
            (
                "0.1GiB",
                "a part of a byte is left at byte 1",
                "; take a smaller unit",
            ),
            (
                "10.5%",
                "a percentage is a whole number, without the fraction at byte 2",
                "",
            ),
            (
                "1gb",
                "unknown unit at byte 1",
                "; write GB (powers of 1,000) or GiB (of 1,024)",
            ),
            (
                "1 mib",
                "unknown unit at byte 2",
                "; write MB (powers of 1,000) or MiB (of 1,024)",
            ),
            ("64 lots", "unknown unit at byte 3", ""),
            ("64b", "unknown unit at byte 2", ""),
        ] {
            let expected = format!(
                "{text:?} is no limit: {said}; expected 4096, 64KiB, 1.5GiB, 64MB, 25% or max{hint}"
            );
            assert_eq!(of(text), expected);
        }
        let fault = "10.5%".parse::<Bytes>().unwrap_err().to_string();
        assert!(fault.contains("unknown unit at byte 4;"), "{fault}");
    }
}
