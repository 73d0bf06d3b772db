//! Sizes and limits as text. A parse error has the position of the fault, and sizes print in IEC units.
//!
//! ```text
//! limit  = "max" | number "%" | size
//! size   = number [ [" "] unit ]              one space at most, so that what is printed parses
//! number = digit { ["_"] digit }              decimal, never octal or hexadecimal
//! unit   = "B" | prefix [ "iB" ]              64M is 64MiB, as in the kernel's memparse
//! prefix = K M G T P E, in either case        powers of 1,024
//! ```
//!
//! Nothing else parses. The grammar leaves out on purpose: `64MB` and `64mib` (in the international system they are
//! decimal megabytes and bits), fractions and signs, and surrounding blanks: a program that reads lines trims them.
//! Nothing here knows a counter: the owner of a limit decides what a percentage refers to.

#[cfg(feature = "serde")]
mod serde;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use self::ParseLimitErrorKind::{Empty, NotANumber, Overflow, PercentOutOfRange, TrailingInput, UnknownUnit};

/// Prefixes by rising power of 1,024, which is all that parsing and printing know about units.
const PREFIXES: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Each prefix shifts by so many bits more than the one before it.
const PREFIX_BITS: u32 = 10;

/// A number of bytes that parses from and prints as text.
///
/// `{}` is for readers. It rounds to one decimal of the largest unit that fits, so [`u64::MAX`] is `16 EiB`. `{:#}` is
/// exact and parses back to the same number.
///
/// ```
/// use memcg::Bytes;
///
/// let size: Bytes = "64MiB".parse()?;
/// assert_eq!(size, Bytes(64 << 20));
/// assert_eq!(size, "64M".parse()?);
/// assert_eq!("1_000_000".parse::<Bytes>()?.as_u64(), 1_000_000);
///
/// assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
/// assert_eq!(format!("{:#}", Bytes(3 << 29)), "1536 MiB");
/// assert_eq!(Bytes(u64::MAX).to_string(), "16 EiB");
/// # Ok::<(), memcg::ParseLimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(
    /// The number of bytes.
    pub u64,
);

/// A whole percentage from 0 to 100.
///
/// ```
/// use memcg::{Limit, Percent};
///
/// let quarter = Percent::new(25).expect("at most 100");
/// assert_eq!("25%".parse(), Ok(Limit::Percent(quarter)));
/// assert_eq!((quarter.get(), Percent::new(101)), (25, None));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(
    /// At most 100, because only `new` makes one.
    u8,
);

/// How much a group may hold: bytes, a share of the nearest limited ancestor's max, or no limit.
///
/// `0` means zero, never "no limit". What `{}` prints is exact and parses back to the same limit.
///
/// ```
/// use memcg::{Limit, ParseLimitErrorKind, Percent};
///
/// assert_eq!("512MiB".parse(), Ok(Limit::Bytes(512 << 20)));
/// assert_eq!("25%".parse(), Ok(Limit::Percent(Percent::new(25).unwrap())));
/// assert_eq!("max".parse(), Ok(Limit::Max));
/// assert_eq!("0".parse(), Ok(Limit::Bytes(0)));
///
/// assert_eq!(Limit::Bytes(512 << 20).to_string(), "512 MiB");
/// assert_eq!(Limit::Bytes(1_000_001).to_string(), "1000001 B");
///
/// let fault = "64MB".parse::<Limit>().unwrap_err();
/// assert_eq!((fault.position, fault.kind), (2, ParseLimitErrorKind::UnknownUnit));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// This many bytes, `0` included.
    Bytes(u64),
    /// This share of the nearest limited ancestor's max. The crate computes it again when that max moves.
    Percent(Percent),
    /// No limit of its own. The ancestors' limits still hold.
    Max,
}

/// Why a text is no [`Bytes`] or no [`Limit`], and where.
///
/// ```
/// use memcg::{Bytes, ParseLimitErrorKind};
///
/// let fault = "1.5GiB".parse::<Bytes>().unwrap_err();
/// assert_eq!(fault.position, 1);
/// assert_eq!(fault.kind, ParseLimitErrorKind::TrailingInput);
/// assert_eq!(fault.to_string(), "unexpected text after the number at byte 1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("{kind} at byte {position}")]
pub struct ParseLimitError {
    /// Byte offset of the fault: on a character boundary, at most the length of the text.
    pub position: usize,
    /// What is wrong there.
    pub kind: ParseLimitErrorKind,
}

/// The ways in which a text fails to be a limit.
///
/// ```
/// use memcg::{Limit, ParseLimitErrorKind};
///
/// let kind_of = |text: &str| text.parse::<Limit>().unwrap_err().kind;
/// assert_eq!(kind_of(""), ParseLimitErrorKind::Empty);
/// assert_eq!(kind_of("-1"), ParseLimitErrorKind::NotANumber);
/// assert_eq!(kind_of("64 MB"), ParseLimitErrorKind::UnknownUnit);
/// assert_eq!(kind_of("16EiB"), ParseLimitErrorKind::Overflow);
/// assert_eq!(kind_of("101%"), ParseLimitErrorKind::PercentOutOfRange);
/// assert_eq!(kind_of("64M "), ParseLimitErrorKind::TrailingInput);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum ParseLimitErrorKind {
    /// There is no text at all.
    #[error("empty size")]
    Empty,
    /// A digit must stand here. After an underscore this may be the end of the text.
    #[error("expected a digit")]
    NotANumber,
    /// The word that starts here is no unit. `%` is none where no percentage is allowed.
    #[error("unknown unit (B, or K, M, G, T, P, E with or without iB)")]
    UnknownUnit,
    /// The number exceeds 64 bits: at this digit, or by the unit that starts here.
    #[error("size does not fit 64 bits")]
    Overflow,
    /// The percentage that starts here is above 100.
    #[error("percentage above 100")]
    PercentOutOfRange,
    /// The text goes on where it must end. A blank is such text, too.
    #[error("unexpected text after the number")]
    TrailingInput,
}

// === impl Bytes ===

impl Bytes {
    /// Returns the plain number of bytes.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Rounds to one decimal of the largest unit that fits.
    fn rounded(self) -> String {
        // ilog2 is at most 63, so the power is at most 6 and the shift stays below 64.
        let mut power = self.0.checked_ilog2().unwrap_or(0) / PREFIX_BITS;
        if power == 0 {
            return format!("{} B", self.0);
        }
        let unit = 1_u128 << (power * PREFIX_BITS);
        let mut tenths = (u128::from(self.0) * 10 + unit / 2) / unit;
        // 1,048,575 bytes are 1 MiB, not 1024 KiB. `u64::MAX` is 16 EiB, so the prefixes suffice.
        if tenths >= 10_240 {
            tenths = 10;
            power += 1;
        }
        let prefix = PREFIXES[power as usize - 1];
        match tenths % 10 {
            0 => format!("{} {prefix}iB", tenths / 10),
            decimal => format!("{}.{decimal} {prefix}iB", tenths / 10),
        }
    }

    /// Takes the largest unit that divides the number.
    fn exact(self) -> String {
        // Zero has 64 trailing zeros, and every unit divides it: it stays in bytes.
        let power = match self.0 {
            0 => 0,
            bytes => bytes.trailing_zeros() / PREFIX_BITS,
        };
        if power == 0 {
            return format!("{} B", self.0);
        }
        let number = self.0 >> (power * PREFIX_BITS);
        format!("{number} {}iB", PREFIXES[power as usize - 1])
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if f.alternate() { self.exact() } else { self.rounded() };
        f.pad(&text)
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl FromStr for Bytes {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        let number = Number::scan(text)?;
        number.size(text).map(Self)
    }
}

// === impl Percent ===

impl Percent {
    /// Makes a percentage, or returns `None` above 100.
    #[must_use]
    pub const fn new(percent: u8) -> Option<Self> {
        if percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// Returns the plain number, 0 to 100.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns this share of `whole`, rounded down. It never overflows.
    ///
    /// ```
    /// let third = memcg::Percent::new(33).expect("at most 100");
    /// assert_eq!(third.of(1_000), 330);
    /// assert_eq!(third.of(2), 0);
    /// assert_eq!(memcg::Percent::new(100).unwrap().of(u64::MAX), u64::MAX);
    /// ```
    #[must_use]
    pub const fn of(self, whole: u64) -> u64 {
        // The quotient is at most `whole`, so the cast back loses nothing.
        (whole as u128 * self.0 as u128 / 100) as u64
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", self.0))
    }
}

// === impl Limit ===

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Exact without `#`, because a limit that a program prints into a file must parse back to the same limit.
            Self::Bytes(bytes) => f.pad(&Bytes(*bytes).exact()),
            Self::Percent(percent) => percent.fmt(f),
            Self::Max => f.pad("max"),
        }
    }
}

impl From<Bytes> for Limit {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes.0)
    }
}

impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        if let Some(rest) = text.strip_prefix("max") {
            let position = text.len() - rest.len();
            return if rest.is_empty() { Ok(Self::Max) } else { Err(TrailingInput.at(position)) };
        }
        let number = Number::scan(text)?;
        match text[number.end..].strip_prefix('%') {
            Some("") => number.percent().map(Self::Percent),
            Some(_) => Err(TrailingInput.at(number.end + 1)),
            None => number.size(text).map(Self::Bytes),
        }
    }
}

// === impl ParseLimitErrorKind ===

impl ParseLimitErrorKind {
    fn at(self, position: usize) -> ParseLimitError {
        ParseLimitError { position, kind: self }
    }
}

// === impl Number ===

/// The digits at the front of a text.
struct Number {
    /// Their value, or the fault at the digit that exceeds 64 bits. The scan does not return that fault: a percentage
    /// so long is out of range, not too long.
    value: Result<u64, ParseLimitError>,
    end: usize,
}

impl Number {
    /// Reads the digits and underscores that `text` starts with.
    fn scan(text: &str) -> Result<Self, ParseLimitError> {
        if text.is_empty() {
            return Err(Empty.at(0));
        }
        let bytes = text.as_bytes();
        let mut number = Self { value: Ok(0), end: 0 };
        loop {
            let digit = match bytes.get(number.end) {
                Some(byte @ b'0'..=b'9') => byte - b'0',
                _ => return Err(NotANumber.at(number.end)),
            };
            number.push(digit);
            number.end += 1;
            match bytes.get(number.end) {
                Some(b'0'..=b'9') => {}
                Some(b'_') => number.end += 1,
                _ => return Ok(number),
            }
        }
    }

    fn push(&mut self, digit: u8) {
        if let Ok(value) = self.value {
            self.value =
                value.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit))).ok_or(Overflow.at(self.end));
        }
    }

    fn percent(self) -> Result<Percent, ParseLimitError> {
        self.value.ok().and_then(|value| u8::try_from(value).ok()).and_then(Percent::new).ok_or(PercentOutOfRange.at(0))
    }

    /// The number times the unit behind it.
    fn size(self, text: &str) -> Result<u64, ParseLimitError> {
        let rest = &text[self.end..];
        if rest.is_empty() {
            return self.value;
        }
        // A blank is part of the size only between the number and a unit.
        let word = rest.strip_prefix(' ').unwrap_or(rest);
        let position = text.len() - word.len();
        let length = word.find(|c: char| !c.is_alphabetic()).unwrap_or(word.len());
        let (unit, trailing) = word.split_at(length);
        if unit.is_empty() {
            let kind = if rest.starts_with('%') { UnknownUnit } else { TrailingInput };
            return Err(kind.at(self.end));
        }
        let bits = unit_bits(unit).ok_or(UnknownUnit.at(position))?;
        if !trailing.is_empty() {
            return Err(TrailingInput.at(position + length));
        }
        let size = self.value?;
        // The shift back detects bits that the shift has lost.
        let scaled = size << bits;
        if scaled >> bits == size { Ok(scaled) } else { Err(Overflow.at(position)) }
    }
}

/// How far a unit shifts the number before it, or `None` where it is no unit.
fn unit_bits(unit: &str) -> Option<u32> {
    if unit == "B" {
        return Some(0);
    }
    let prefix = unit.strip_suffix("iB").unwrap_or(unit);
    let mut letters = prefix.chars();
    let letter = letters.next()?.to_ascii_uppercase();
    if letters.next().is_some() {
        return None;
    }
    let power = PREFIXES.iter().position(|&known| known == letter)?;
    Some((power as u32 + 1) * PREFIX_BITS)
}
