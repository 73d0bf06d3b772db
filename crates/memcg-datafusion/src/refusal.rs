//! Texts of refusals for the author of a query: the level that was full, the missing bytes, the
//! largest holders, and what the author can do. Also the errors of a pool that is not made.

use std::error::Error;
use std::fmt;
#[cfg(feature = "session")]
use std::io;

use datafusion_common::DataFusionError;
use memcg::errors::CreateError;
use memcg::{Bytes, Group, OverLimitError};

/// A refusal in words for the author of a query: it names no call of a library, no limit that others
/// alone may raise, and no group of others. The operator finds these in the event `memcg::refused`.
pub(crate) struct Words<'a> {
    refusal: &'a OverLimitError,
    /// The group that asked: the query's own, or one below it.
    query: &'a Group,
    own: &'a Group,
    bytes: u64,
}

impl<'a> Words<'a> {
    /// `own` is the query's group.
    pub(crate) fn of(refusal: &'a OverLimitError, own: &'a Group) -> Words<'a> {
        Words {
            refusal,
            query: refusal.requester(),
            own,
            bytes: refusal.requested(),
        }
    }

    /// The words for a level that has no room for one more byte of a query.
    #[cfg(feature = "session")]
    pub(crate) fn of_a_byte(refusal: &'a OverLimitError, query: &'a Group) -> Words<'a> {
        Words {
            refusal,
            query,
            own: query,
            bytes: 1,
        }
    }

    /// True if the group is the query's own, one above or one below it.
    fn is_own(&self, group: &Group) -> bool {
        let is_below = |group: &Group, above: &Group| group.ancestors().any(|one| &one == above);
        group == self.own || is_below(self.own, group) || is_below(group, self.own)
    }
}

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Words {
            refusal,
            query,
            bytes,
            ..
        } = self;
        let level = refusal.group().path();
        write!(f, "{level} refused {}", Bytes(*bytes))?;
        if let Some(counter) = refusal.counter() {
            write!(f, " of {counter}")?;
        }
        write!(f, " for {}: ", query.path())?;
        match refusal.want() {
            0 => f.write_str("it waits behind others")?,
            short => write!(f, "short by {}", Bytes(short))?,
        }
        write!(
            f,
            ", usage {} of max {}",
            Bytes(refusal.usage()),
            Bytes(refusal.max())
        )?;
        let mut before = "; most in";
        let mut others = 0_u64;
        for (holder, usage) in refusal.holders() {
            if self.is_own(holder) {
                write!(f, "{before} {} {}", holder.path(), Bytes(usage))?;
                before = ",";
            } else {
                others = others.saturating_add(usage);
            }
        }
        if others > 0 {
            write!(f, "; others hold {}", Bytes(others))?;
        }
        f.write_str("; to fit, read fewer rows at once")?;
        if *bytes <= refusal.max() {
            write!(f, " or run when less runs in {level}")?;
        }
        match refusal.group().limits().setting_name() {
            Some(setting) => write!(f, " or raise {setting}"),
            None => Ok(()),
        }
    }
}

/// Text of the refusal of a write to a spill file. The `io::Error` of the write holds it.
#[cfg(feature = "session")]
#[derive(Debug)]
pub(crate) struct WriteRefused(pub(crate) String);

#[cfg(feature = "session")]
impl fmt::Display for WriteRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(feature = "session")]
impl Error for WriteRefused {}

/// Prefix of the settings that DataFusion advises to raise: a tenant's SQL cannot raise its group's
/// limits by them.
#[cfg(feature = "session")]
const RUNTIME: &str = "datafusion.runtime.";

/// Returns the error that the reader of a plan is told: a refusal without DataFusion's advice to
/// raise a limit of the runtime, any other error as it is.
#[cfg(feature = "session")]
pub(crate) fn told(error: DataFusionError) -> DataFusionError {
    let refused = match error.find_root() {
        DataFusionError::ResourcesExhausted(text) if error.to_string().contains(RUNTIME) => {
            Some(text.clone())
        }
        _ => write_refused(&error),
    };
    refused.map_or(error, DataFusionError::ResourcesExhausted)
}

/// Returns the text of a refused write, which DataFusion and Arrow have passed on as an I/O error.
#[cfg(feature = "session")]
fn write_refused(error: &DataFusionError) -> Option<String> {
    let mut next = Some(error as &(dyn Error + 'static));
    while let Some(error) = next {
        let of_system = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if let Some(WriteRefused(text)) = of_system.and_then(|error| error.downcast_ref()) {
            return Some(text.clone());
        }
        next = error.source();
    }
    None
}

/// Reason for which a pool was not made.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// A group that the configuration asks for, below the pool's own, cannot be created.
    Create(CreateError),
    /// The reserve for consumers that cannot spill is as large as the least max on the way up, or
    /// larger.
    Reserve {
        /// Path of the pool's group.
        path: String,
        /// Reserve that the configuration asks for, in bytes.
        reserve: u64,
        /// Least max of the group and its ancestors, in bytes.
        max: u64,
    },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Create(error) => error.fmt(f),
            PoolError::Reserve { path, reserve, max } => {
                let [reserve, max] = [*reserve, *max].map(Bytes);
                write!(
                    f,
                    "{path} has a max of {max}, and its pool is to keep {reserve} for what cannot spill: keep less"
                )
            }
        }
    }
}

impl Error for PoolError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            PoolError::Create(error) => Some(error),
            PoolError::Reserve { .. } => None,
        }
    }
}

impl From<CreateError> for PoolError {
    fn from(error: CreateError) -> PoolError {
        PoolError::Create(error)
    }
}

impl From<PoolError> for DataFusionError {
    fn from(error: PoolError) -> DataFusionError {
        match error {
            PoolError::Create(error) => DataFusionError::External(error.into()),
            reserve => DataFusionError::Configuration(reserve.to_string()),
        }
    }
}

#[cfg(all(test, feature = "session"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_told() {
        let refused = DataFusionError::ResourcesExhausted("/acme refused 1 B".to_string());
        let advised = refused.context(
            "Consider increasing the memory limit config: 'datafusion.runtime.memory_limit'",
        );
        assert_eq!(
            told(advised).strip_backtrace(),
            "Resources exhausted: /acme refused 1 B"
        );
        let refused = io::Error::other(WriteRefused("/acme refused 1 B of spill".to_string()));
        let refused = DataFusionError::from(refused).context("Sorting");
        assert!(
            matches!(told(refused), DataFusionError::ResourcesExhausted(text) if text.contains("of spill"))
        );
        let other = DataFusionError::from(io::Error::other("disk"));
        assert!(matches!(told(other), DataFusionError::IoError(_)));
    }
}
