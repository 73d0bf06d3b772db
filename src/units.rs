//! Sizes and limits, and the text that they print. The grammar stands on [`Limit`]; `parse` reads
//! it.
//!
//! Nothing here knows a counter: the owner of a limit decides what a percentage refers to.

mod parse;
#[cfg(feature = "serde")]
mod serde;

use std::fmt;
use std::str::FromStr;

use self::parse::ReadAs;
pub use self::parse::{ParseLimitError, ParseLimitErrorKind};

/// Prefixes by rising power of 1,024 or of 1,000, which is all that parsing and printing know about
/// units.
const PREFIXES: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Each prefix shifts by so many bits more than the one before it.
const PREFIX_BITS: u32 = 10;

/// A number of bytes, which parses from text and prints as text.
///
/// A method that takes an amount takes `impl IntoBytes`: a `usize`, as `len()` gives it, or
/// `Bytes(n)` for a `u64`.
///
/// `{}` is for readers. It rounds to one decimal of the largest unit that fits, so [`u64::MAX`] is
/// `16 EiB`. `{:#}` is exact and parses back to the same number.
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
/// # Ok::<(), memcg::errors::ParseLimitError>(())
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

/// The most that a group may hold: bytes, a share of the nearest limited ancestor's max, or no
/// limit.
///
/// A method that takes a limit takes `impl IntoLimit`: a `usize` is bytes, and so is [`Bytes`]. `0`
/// means zero, never "no limit".
///
/// As text, a limit follows this grammar:
///
/// ```text
/// limit  = "max" | number "%" | size          max: no limit, as in a control group's memory.max
/// size   = number ["." digits] [[" "] unit]   one space at most; the whole comes to whole bytes
/// number = digit { ["_"] digit }              decimal, never octal or hexadecimal
/// unit   = "B" | prefix ["iB"]                powers of 1,024: 64M is 64MiB, as in the kernel's memparse
///        | prefix "B"                         powers of 1,000: 64MB is 64,000,000
/// prefix = K M G T P E                        in either case
/// ```
///
/// Nothing else parses. The grammar leaves out `64mb` and `64mib` (a lower-case b is a bit), signs
/// and surrounding blanks: a program that reads lines trims them. What `{}` prints is exact and
/// parses back to the same limit.
///
/// ```
/// use memcg::errors::ParseLimitErrorKind;
/// use memcg::{Limit, Limits};
///
/// const BUDGET: Limit = Limit::gib(2);
/// let limits = Limits::new().max(512 << 20).high(Limit::mib(500)).low(Limit::percent(25)).soft(BUDGET);
/// assert_eq!(limits.max, Some("512MiB".parse::<Limit>()?));
///
/// assert_eq!("1.5 GiB".parse(), Ok(Limit::mib(1536)));
/// assert_eq!("64MB".parse(), Ok(Limit::bytes(64_000_000)));
/// assert_eq!("25%".parse(), Ok(Limit::percent(25)));
/// assert_eq!(("max".parse(), "0".parse()), (Ok(Limit::Unlimited), Ok(Limit::bytes(0))));
/// assert_eq!([Limit::mib(512), Limit::Bytes(1_000_001)].map(|limit| limit.to_string()), ["512 MiB", "1000001 B"]);
///
/// let fault = "64 mb".parse::<Limit>().unwrap_err();
/// assert_eq!((fault.position(), fault.kind()), (3, ParseLimitErrorKind::UnknownUnit));
/// # Ok::<(), memcg::errors::ParseLimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// This many bytes, `0` included.
    Bytes(u64),
    /// This share of the nearest limited ancestor's max. The crate computes it again when that max
    /// moves.
    Percent(Percent),
    /// No limit of its own: `max` as text. The ancestors' limits still hold.
    Unlimited,
}

// === impl Bytes ===

impl Bytes {
    /// Returns so many KiB, of 1,024 bytes each; [`u64::MAX`] bytes if that is more.
    pub const fn kib(kib: u64) -> Self {
        Bytes(kib.saturating_mul(1 << 10))
    }

    /// Returns so many MiB; [`u64::MAX`] bytes if that is more.
    ///
    /// ```
    /// use memcg::{Bytes, Limit};
    ///
    /// assert_eq!([Bytes::kib(2), Bytes::mib(3), Bytes::gib(1)], [2 << 10, 3 << 20, 1 << 30].map(Bytes));
    /// assert_eq!(Limit::from(Bytes::mib(3)), Limit::mib(3));
    /// ```
    pub const fn mib(mib: u64) -> Self {
        Bytes(mib.saturating_mul(1 << 20))
    }

    /// Returns so many GiB; [`u64::MAX`] bytes if that is more.
    pub const fn gib(gib: u64) -> Self {
        Bytes(gib.saturating_mul(1 << 30))
    }

    /// Returns the plain number of bytes.
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
        let text = if f.alternate() {
            self.exact()
        } else {
            self.rounded()
        };
        f.pad(&text)
    }
}

/// Takes the results of `len()` and `size_of`. No other integer converts, so that a literal needs
/// no suffix.
impl From<usize> for Bytes {
    fn from(bytes: usize) -> Self {
        Self(bytes as u64)
    }
}

/// An amount of bytes: a `usize`, a literal, or [`Bytes`] for a `u64`. Methods take it as an
/// argument.
///
/// A literal needs no suffix, because `usize` is the one integer here.
///
/// ```
/// use memcg::{Bytes, Charge, ChargeError, Group, IntoBytes};
///
/// fn pay(group: &Group, bytes: impl IntoBytes) -> Result<Charge, ChargeError> {
///     group.charge(bytes)
/// }
///
/// let runtime = memcg::Runtime::builder().build()?; // without this handle all charges are refused
/// let length: u64 = 100;
/// let charges = (pay(&runtime.root(), 64 * 1024)?, pay(&runtime.root(), Bytes(length))?);
/// assert_eq!((charges.0.bytes(), charges.1.bytes()), (65_536, 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no amount of bytes",
    label = "a `usize`, a literal or `Bytes`",
    note = "write `Bytes(n)` for a `u64`, `n as usize` for a smaller integer, `Bytes::mib(n)` for a size in MiB",
    note = "a `Limit` is no amount: it may be a share of another group's max, or no limit; a text parses: `text.parse::<Bytes>()?`"
)]
pub trait IntoBytes {
    /// Returns the amount.
    fn into_bytes(self) -> Bytes;
}

impl IntoBytes for Bytes {
    fn into_bytes(self) -> Bytes {
        self
    }
}

impl IntoBytes for usize {
    fn into_bytes(self) -> Bytes {
        self.into()
    }
}

impl FromStr for Bytes {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        parse::size(text)
            .map(Self)
            .map_err(|fault| fault.of(text, ReadAs::Size))
    }
}

// === impl Percent ===

impl Percent {
    /// Makes a percentage, or returns `None` above 100.
    pub const fn new(percent: u8) -> Option<Self> {
        if percent <= 100 {
            Some(Self(percent))
        } else {
            None
        }
    }

    /// More than 100 is 100.
    pub(crate) const fn at_most_whole(percent: u8) -> Self {
        Self(if percent < 100 { percent } else { 100 })
    }

    /// Returns the plain number, 0 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns this percentage of `whole`, rounded down. It never overflows.
    ///
    /// ```
    /// let third = memcg::Percent::new(33).expect("at most 100");
    /// assert_eq!(third.of(1_000), 330);
    /// assert_eq!(third.of(2), 0);
    /// assert_eq!(memcg::Percent::new(100).unwrap().of(u64::MAX), u64::MAX);
    /// ```
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

impl Limit {
    /// Returns a limit of so many bytes.
    pub const fn bytes(bytes: u64) -> Self {
        Limit::Bytes(bytes)
    }

    /// Returns a limit of so many KiB, of 1,024 bytes each; [`u64::MAX`] bytes if that is more.
    pub const fn kib(kib: u64) -> Self {
        Limit::Bytes(Bytes::kib(kib).0)
    }

    /// Returns a limit of so many MiB; [`u64::MAX`] bytes if that is more.
    pub const fn mib(mib: u64) -> Self {
        Limit::Bytes(Bytes::mib(mib).0)
    }

    /// Returns a limit of so many GiB; [`u64::MAX`] bytes if that is more.
    pub const fn gib(gib: u64) -> Self {
        Limit::Bytes(Bytes::gib(gib).0)
    }

    /// Returns a share of the nearest limited ancestor's max. More than 100 is 100: no group can
    /// hold more than its ancestor.
    pub const fn percent(percent: u8) -> Self {
        Limit::Percent(Percent::at_most_whole(percent))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Exact without `#`, because a limit that a program prints into a file must parse back
            // to the same limit.
            Self::Bytes(bytes) => f.pad(&Bytes(*bytes).exact()),
            Self::Percent(percent) => percent.fmt(f),
            Self::Unlimited => f.pad("max"),
        }
    }
}

impl From<Bytes> for Limit {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes.0)
    }
}

impl From<Percent> for Limit {
    fn from(percent: Percent) -> Self {
        Self::Percent(percent)
    }
}

/// Bytes. No other integer converts, so that a literal needs no suffix; see [`Limit::bytes`].
impl From<usize> for Limit {
    fn from(bytes: usize) -> Self {
        Bytes::from(bytes).into()
    }
}

/// A limit: a `usize` or a literal, which are bytes, [`Bytes`], [`Percent`] or [`Limit`]. Methods
/// take it as an argument.
///
/// ```
/// use memcg::{Bytes, Limit, Limits, Percent};
///
/// let bytes: u64 = 512 << 20;
/// assert_eq!(Limits::new().max(512 << 20), Limits::new().max(Limit::bytes(bytes)));
/// assert_eq!(Limits::new().max(Bytes(bytes)).low(Limit::percent(25)).low, Percent::new(25).map(Limit::Percent));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no limit",
    label = "a `usize`, a literal, `Bytes`, `Percent` or `Limit`",
    note = "write `Limit::bytes(n)` for a `u64`, `n as usize` for a smaller integer, `Limit::mib(n)` for a size in MiB",
    note = "a text parses: `\"25%\".parse::<Limit>()?`, as `\"512MiB\"` and `\"max\"` do"
)]
pub trait IntoLimit {
    /// Returns the limit.
    fn into_limit(self) -> Limit;
}

impl IntoLimit for Limit {
    fn into_limit(self) -> Limit {
        self
    }
}

macro_rules! limits_from {
    ($($from:ty)*) => {$(
        impl IntoLimit for $from {
            fn into_limit(self) -> Limit {
                self.into()
            }
        }
    )*};
}

limits_from!(Bytes Percent usize);

impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        parse::limit(text).map_err(|fault| fault.of(text, ReadAs::Limit))
    }
}
