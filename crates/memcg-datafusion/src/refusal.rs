//! Text of the refusal of a growth, for the author of a query: which level was full, by how much, who holds most, and
//! what they can do themselves. And why a pool is not made.

use std::error::Error;
use std::fmt;

use datafusion_common::DataFusionError;
use memcg::{Bytes, CreateError, OverLimitError};

/// A refusal in words for the author of a query: it names no call of a library, and no limit that others alone may
/// raise.
pub(crate) struct Words<'a>(pub(crate) &'a OverLimitError);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Words(refusal) = self;
        let (level, query) = (refusal.group().path(), refusal.requester().path());
        write!(f, "{level} refused {} for {query}: ", Bytes(refusal.requested()))?;
        match refusal.want() {
            0 => f.write_str("it waits behind others")?,
            short => write!(f, "short by {}", Bytes(short))?,
        }
        write!(f, ", usage {} of max {}", Bytes(refusal.usage()), Bytes(refusal.max()))?;
        for (number, (holder, usage)) in refusal.holders().enumerate() {
            let most = if number == 0 { "; most in" } else { "," };
            write!(f, "{most} {} {}", holder.path(), Bytes(usage))?;
        }
        f.write_str("; to fit, read fewer rows at once")?;
        if refusal.requested() <= refusal.max() {
            write!(f, " or run when less runs in {level}")?;
        }
        Ok(())
    }
}

/// Why a pool was not made.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// A group below its group cannot be made.
    Create(CreateError),
    /// What is kept for consumers that cannot spill would be all there is.
    Reserve {
        /// The path of its group.
        path: String,
        /// Bytes that it is to keep.
        reserve: u64,
        /// The least max on the way up, in bytes.
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
