//! `PushError`: a value that was not charged, and why.

use std::error::Error;
use std::fmt;

use crate::group::ChargeError;
use crate::units::Bytes;

/// A value that was refused, and why: an item that was not added to a
/// [`ChargedVec`](crate::ChargedVec), or a value of [`Charged::weighed`](crate::Charged::weighed).
/// `?` makes a [`ChargeError`] of it, which drops the value.
///
/// A vector that grows is charged for its new block beside the old one. The text says so, because
/// the refusal by itself names a size that the caller never asked for.
///
/// ```
/// use memcg::{ChargedVec, Runtime};
///
/// let runtime = Runtime::builder().max(100).build()?;
/// let mut rows = ChargedVec::with_capacity(&runtime.root(), 7)?;
/// rows.extend(0..7_u64)?;
/// let refused = rows.push(7).unwrap_err();
/// assert!(refused.to_string().ends_with("; the vector's 56 B stay charged until its items are in the larger block"));
/// assert_eq!(refused.into_parts().0, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PushError<T> {
    item: T,
    refused: ChargeError,
    /// The bytes that were charged beside what was refused, and would have gone back.
    beside: u64,
}

impl<T> PushError<T> {
    pub(super) const fn new(item: T, refused: ChargeError, beside: u64) -> Self {
        PushError {
            item,
            refused,
            beside,
        }
    }

    /// Returns why it was refused.
    pub const fn refused(&self) -> &ChargeError {
        &self.refused
    }

    /// Returns the value, and why it was refused.
    pub fn into_parts(self) -> (T, ChargeError) {
        (self.item, self.refused)
    }
}

impl<T> From<PushError<T>> for ChargeError {
    fn from(PushError { refused, .. }: PushError<T>) -> ChargeError {
        refused
    }
}

impl<T> fmt::Display for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.refused, f)?;
        match self.beside {
            0 => Ok(()),
            bytes => {
                let bytes = Bytes(bytes);
                write!(
                    f,
                    "; the vector's {bytes} stay charged until its items are in the larger block"
                )
            }
        }
    }
}

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushError")
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}

impl<T> Error for PushError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.refused.source()
    }
}
