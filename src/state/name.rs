//! The name of a group among its siblings. A short name is in the group's own object.

use std::ops::Deref;

use crate::pool::NoMemory;

/// The most bytes of a name that needs no memory of its own. With a length and a tag the whole has 24.
const INLINE: usize = 22;

/// A name, which never changes.
pub(crate) enum Name {
    Inline { len: u8, bytes: [u8; INLINE] },
    Boxed(Box<str>),
}

impl Name {
    /// No name: the root's.
    pub(crate) const NONE: Name = Name::Inline { len: 0, bytes: [0; INLINE] };

    /// Copies `name`. It allocates for a name of more than `INLINE` bytes.
    pub(crate) fn new(name: &str) -> Result<Name, NoMemory> {
        let mut bytes = [0; INLINE];
        if let Some(here) = bytes.get_mut(..name.len()) {
            here.copy_from_slice(name.as_bytes());
            return Ok(Name::Inline { len: name.len() as u8, bytes });
        }
        let mut copy = String::new();
        copy.try_reserve_exact(name.len()).map_err(|_| NoMemory { bytes: name.len() })?;
        copy.push_str(name);
        // `try_reserve_exact` leaves no room over that `into_boxed_str` would have to give back.
        Ok(Name::Boxed(copy.into_boxed_str()))
    }

    /// Bytes of the name that lie outside of this object.
    pub(crate) fn bytes_outside(&self) -> u64 {
        match self {
            Name::Inline { .. } => 0,
            Name::Boxed(name) => name.len() as u64,
        }
    }
}

impl Deref for Name {
    type Target = str;

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &str {
        match self {
            // SAFETY: `new` has copied so many bytes of a string, and all of them.
            Name::Inline { len, bytes } => unsafe { str::from_utf8_unchecked(&bytes[..usize::from(*len)]) },
            Name::Boxed(name) => name,
        }
    }
}

const _: () = assert!(size_of::<Name>() <= 24);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_are_what_they_were_made_of() {
        for len in 0..=255 {
            // Two bytes each, and one of one byte where the length is odd.
            let text = "ä".repeat(len / 2) + &"x".repeat(len % 2);
            let name = Name::new(&text).unwrap();
            assert_eq!(*name, *text);
            assert_eq!(matches!(name, Name::Inline { .. }), len <= INLINE, "{len} bytes");
        }
        assert_eq!(*Name::NONE, *"");
    }
}
