//! A level whose usage has fallen: what is left to do for it in a slow path.
//!
//! Edge: E15 (the last uncharge).

use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::counter::{claim, marks};

/// A level whose usage has fallen, which may have to be reported. The caller no longer keeps it.
pub(crate) struct Fallen<'a> {
    pub(super) level: &'a Counter,
    pub(super) first: &'static Counter,
    pub(super) of: Generation,
    pub(super) taken: u64,
}

impl Fallen<'_> {
    /// In a slow path. Returns what was there to subtract.
    pub(crate) fn report(self) -> u64 {
        let Fallen { level, first, of, taken } = self;
        marks::fell_if(level, first, of);
        // E15: these may have been the last units.
        // Mutation: transfer-ends-no-group
        claim::try_release_last(first, of);
        taken
    }
}
