//! The name of a group among its siblings. A short name is in the group's own object.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use crate::pool::NoMemory;

/// The name of a new group among its siblings: a text, a number, or nothing.
///
/// A number is not formatted until a caller asks for a path or a name. A text that is the decimal
/// form of a number names the same group as that number. An unnamed group is found by its
/// [id](crate::GroupId) alone; a path shows the id, as in `/acme/#5.1`.
///
/// ```
/// use memcg::{GroupName, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let query = root.create(17, Limits::new())?;
/// assert_eq!((query.path().as_str(), runtime.group("/17")), ("/17", Some(query)));
/// assert!(root.create("17", Limits::new()).is_err(), "it is taken");
/// let [first, second] = [(); 2].map(|()| root.create(GroupName::Unnamed, Limits::new()));
/// assert_ne!(first?.path(), second?.path());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupName<'a> {
    /// At most [`Group::NAME_MAX`](crate::Group::NAME_MAX) bytes, without `/` and characters that
    /// control, format or separate lines, that do not begin with `#`; neither `.` nor `..`.
    Text(&'a str),
    /// A number, unique among its siblings.
    Number(u64),
    /// No name: it is never taken.
    Unnamed,
}

impl<'a> GroupName<'a> {
    /// A text that is the decimal form of a number is that number.
    pub(crate) fn canonical(self) -> GroupName<'a> {
        match self {
            GroupName::Text(text) => number(text).map_or(self, GroupName::Number),
            name => name,
        }
    }
}

/// The number whose decimal form a text is.
fn number(text: &str) -> Option<u64> {
    // `parse` takes leading zeros and a plus, which no number is printed with: these are texts.
    let is_decimal = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| is_decimal)
}

/// Characters that have no form of their own and change that of others: category Cf of Unicode 16,
/// Zl and Zp.
const FORMATS: [RangeInclusive<char>; 22] = [
    '\u{AD}'..='\u{AD}',
    '\u{600}'..='\u{605}',
    '\u{61C}'..='\u{61C}',
    '\u{6DD}'..='\u{6DD}',
    '\u{70F}'..='\u{70F}',
    '\u{890}'..='\u{891}',
    '\u{8E2}'..='\u{8E2}',
    '\u{180E}'..='\u{180E}',
    '\u{200B}'..='\u{200F}',
    '\u{2028}'..='\u{2029}',
    '\u{202A}'..='\u{202E}',
    '\u{2060}'..='\u{2064}',
    '\u{2066}'..='\u{206F}',
    '\u{FEFF}'..='\u{FEFF}',
    '\u{FFF9}'..='\u{FFFB}',
    '\u{110BD}'..='\u{110BD}',
    '\u{110CD}'..='\u{110CD}',
    '\u{13430}'..='\u{1343F}',
    '\u{1BCA0}'..='\u{1BCA3}',
    '\u{1D173}'..='\u{1D17A}',
    '\u{E0001}'..='\u{E0001}',
    '\u{E0020}'..='\u{E007F}',
];

/// True for a character that formats others, or separates lines or paragraphs.
pub(crate) fn is_format(char: char) -> bool {
    !char.is_ascii() && FORMATS.iter().any(|range| range.contains(&char))
}

/// Characters of a name that an error quotes.
pub(crate) const QUOTED_MAX: usize = 64;

/// The beginning of a name, and `…` where there is more of it.
pub(crate) fn beginning(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => Cow::Owned(format!("{}…", &name[..end])),
        None => Cow::Borrowed(name),
    }
}

/// The name of a group: a text, a `u64` or a literal, or [`GroupName`]. Methods take it as an
/// argument.
///
/// A literal needs no suffix, because `u64` is the one integer here.
///
/// ```
/// # let runtime = memcg::Runtime::builder().build()?;
/// use memcg::Limits;
///
/// let number = 17_usize;
/// let text = String::from("acme");
/// let acme = runtime.root().create(&text, Limits::new())?;
/// let query = acme.create(number as u64, Limits::new())?;
/// assert_eq!(acme.child(17), Some(query));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no name of a group",
    label = "a text, a `u64`, a literal or `GroupName`",
    note = "write `n as u64` for another integer that is not negative"
)]
pub trait IntoName<'a> {
    /// Returns the name.
    fn into_name(self) -> GroupName<'a>;
}

impl<'a> IntoName<'a> for GroupName<'a> {
    fn into_name(self) -> GroupName<'a> {
        self
    }
}

impl<'a, T: AsRef<str> + ?Sized> IntoName<'a> for &'a T {
    fn into_name(self) -> GroupName<'a> {
        GroupName::Text(self.as_ref())
    }
}

impl IntoName<'_> for u64 {
    fn into_name(self) -> GroupName<'static> {
        GroupName::Number(self)
    }
}

impl fmt::Display for GroupName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupName::Text(text) => f.write_str(text),
            GroupName::Number(number) => write!(f, "{number}"),
            GroupName::Unnamed => Ok(()),
        }
    }
}

/// The most bytes of a name that needs no memory of its own. With a length and a tag the whole has
/// 24.
const INLINE: usize = 22;

/// A name, which never changes.
pub(crate) enum Name {
    Inline { len: u8, bytes: [u8; INLINE] },
    Boxed(Box<str>),
    Number(u64),
}

impl Name {
    /// No name: that of the root, and of unnamed groups.
    pub(crate) const NONE: Name = Name::Inline {
        len: 0,
        bytes: [0; INLINE],
    };

    /// Copies `name`. It allocates for a text of more than `INLINE` bytes.
    pub(crate) fn new(name: GroupName<'_>) -> Result<Name, NoMemory> {
        match name {
            GroupName::Text(text) => Name::text(text),
            GroupName::Number(number) => Ok(Name::Number(number)),
            GroupName::Unnamed => Ok(Name::NONE),
        }
    }

    fn text(name: &str) -> Result<Name, NoMemory> {
        let mut bytes = [0; INLINE];
        if let Some(here) = bytes.get_mut(..name.len()) {
            here.copy_from_slice(name.as_bytes());
            return Ok(Name::Inline {
                len: name.len() as u8,
                bytes,
            });
        }
        let mut copy = String::new();
        copy.try_reserve_exact(name.len())
            .map_err(|_| NoMemory { bytes: name.len() })?;
        copy.push_str(name);
        // `try_reserve_exact` leaves no room over that `into_boxed_str` would have to give back.
        Ok(Name::Boxed(copy.into_boxed_str()))
    }

    /// Bytes of the name that lie outside of this object.
    pub(crate) fn bytes_outside(&self) -> u64 {
        match self {
            Name::Inline { .. } | Name::Number(_) => 0,
            Name::Boxed(name) => name.len() as u64,
        }
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> GroupName<'_> {
        match self {
            Name::Inline { len: 0, .. } => GroupName::Unnamed,
            Name::Inline { len, bytes } => {
                // SAFETY: `text` has copied so many bytes of a string, and all of them.
                GroupName::Text(unsafe { str::from_utf8_unchecked(&bytes[..usize::from(*len)]) })
            }
            Name::Boxed(name) => GroupName::Text(name),
            Name::Number(number) => GroupName::Number(*number),
        }
    }
}

const _: () = assert!(size_of::<Name>() <= 24);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_are_what_they_were_made_of() {
        // Miri takes its time for each byte: those around the longest inline.
        let most = if cfg!(miri) { INLINE + 2 } else { 255 };
        for len in 0..=most {
            // Two bytes each, and one of one byte where the length is odd.
            let text = "ä".repeat(len / 2) + &"x".repeat(len % 2);
            let name = Name::new(GroupName::Text(&text)).unwrap();
            let expected = if len == 0 {
                GroupName::Unnamed
            } else {
                GroupName::Text(&text)
            };
            assert_eq!(name.get(), expected);
            assert_eq!(
                matches!(name, Name::Inline { .. }),
                len <= INLINE,
                "{len} bytes"
            );
        }
        assert_eq!(Name::NONE.get(), GroupName::Unnamed);
    }

    #[test]
    fn a_number_has_one_form() {
        for (text, number) in [("0", 0), ("7", 7), ("18446744073709551615", u64::MAX)] {
            assert_eq!(GroupName::Text(text).canonical(), GroupName::Number(number));
            assert_eq!(GroupName::Number(number).to_string(), text);
        }
        for text in [
            "",
            "00",
            "07",
            "+7",
            "-7",
            "7 ",
            "7a",
            "18446744073709551616",
            "\u{0661}",
        ] {
            assert_eq!(GroupName::Text(text).canonical(), GroupName::Text(text));
        }
    }

    /// The standard library prints no character of these as it is.
    #[test]
    fn characters_that_format_are_escaped() {
        let all: Vec<char> = FORMATS.into_iter().flatten().collect();
        assert_eq!(
            all.len(),
            170 + 2,
            "those of category Cf in Unicode 16, and the two separators"
        );
        assert!(
            all.is_sorted()
                && all
                    .iter()
                    .all(|char| char.escape_debug().len() > 2 && is_format(*char))
        );
        assert!(!"aé漢🙂 -_.\u{301}".contains(is_format));
    }

    #[test]
    fn the_beginning_of_a_name() {
        for (name, shown) in [
            ("é".repeat(64), "é".repeat(64)),
            ("é".repeat(65), "é".repeat(64) + "…"),
        ] {
            assert_eq!(beginning(&name), shown);
        }
    }
}
