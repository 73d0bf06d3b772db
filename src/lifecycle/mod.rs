//! Groups are created, go offline and are released.

pub(crate) mod create;
pub(crate) mod offline;
pub(crate) mod own_bytes;
pub(crate) mod policies;
pub(crate) mod unowned;
