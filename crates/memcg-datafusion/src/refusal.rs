//! Text of the refusal of a growth, for the author of a query: which level was full, by how much, who holds most, and
//! what they can do themselves.

use std::fmt;

use memcg::{Bytes, OverLimitError};

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
