//! Why an owner of memory did not get memory.

use std::fmt;
use std::io;

use memcg::Bytes;
use memcg::ChargeError;

/// Why an owner of memory did not get memory. Nothing has changed.
///
/// ```
/// use memcg::Runtime;
/// use memcg_kmem::{KmemError, KmemVec};
///
/// let runtime = Runtime::builder().max(100).build()?;
/// let refused = KmemVec::<u8>::with_capacity_in(1 << 20, &runtime.root()).unwrap_err();
/// assert!(matches!(refused, KmemError::Charge(_)));
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum KmemError {
    /// The charge fails, most often because a limit refuses it.
    Charge(ChargeError),
    /// The group admits the charge, and the system has no such memory.
    System {
        /// Bytes asked for.
        bytes: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// The request exceeds what the owner can ever hold.
    Capacity {
        /// Bytes asked for; `u64::MAX` where a `u64` cannot hold them.
        bytes: u64,
        /// The most.
        max: u64,
    },
}

impl fmt::Display for KmemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Charge(inner) => fmt::Display::fmt(inner, f),
            Self::System { bytes, source } => {
                write!(f, "the system gives no {}: {source}", Bytes(*bytes as u64))
            }
            Self::Capacity { bytes, max } => write!(
                f,
                "{bytes} B are more than the {max} B that can be kept there"
            ),
        }
    }
}

impl std::error::Error for KmemError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Charge(inner) => inner.source(),
            Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<ChargeError> for KmemError {
    fn from(inner: ChargeError) -> KmemError {
        KmemError::Charge(inner)
    }
}

/// A value that an owner of memory could not store, with the reason.
///
/// ```
/// use memcg::Runtime;
/// use memcg_kmem::KmemVec;
///
/// let runtime = Runtime::builder().max(100).build()?;
/// let mut names = KmemVec::new_in(&runtime.root());
/// let refused = names.push("a name".to_owned()).unwrap_err();
/// assert!(refused.error().to_string().starts_with("/ refused 4 KiB"));
/// assert_eq!(refused.into_value(), "a name");
/// # Ok::<(), memcg::BuildError>(())
/// ```
pub struct NotStoredError<T> {
    value: T,
    error: Box<KmemError>,
}

impl<T> NotStoredError<T> {
    pub(super) fn new(value: T, error: KmemError) -> Self {
        NotStoredError {
            value,
            error: Box::new(error),
        }
    }

    /// The reason.
    pub fn error(&self) -> &KmemError {
        &self.error
    }

    /// The value.
    pub fn into_value(self) -> T {
        self.value
    }

    /// The value and the reason.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(1).build().unwrap();
    /// let (value, error) = memcg_kmem::KmemVec::new_in(&runtime.root()).push(7_u64).unwrap_err().into_parts();
    /// assert_eq!(value, 7);
    /// # drop(error);
    /// ```
    pub fn into_parts(self) -> (T, KmemError) {
        (self.value, *self.error)
    }
}

// For a value of any type: it is left out.
impl<T> fmt::Debug for NotStoredError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotStoredError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Display for NotStoredError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for NotStoredError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
