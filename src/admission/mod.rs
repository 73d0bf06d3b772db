//! The attempt to charge: try, drain, reclaim, wait, victim.

pub(crate) mod attempt;
