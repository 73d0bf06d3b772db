//! Objects of a pool, as a thread takes and puts them: from the stash of its number, with an event
//! for each that it takes (`reports`).

use super::local;
#[cfg(feature = "tracing")]
use super::reports::note_object;
use crate::pool::NoMemory;
use crate::pool::cache::{Cache, PoolObject};

/// Takes an object that no other thread has, as its last user has left it.
#[inline]
pub(crate) fn take(cache: &Cache) -> Result<PoolObject, NoMemory> {
    let object = cache.take(local::number())?;
    #[cfg(feature = "tracing")]
    note_object(&cache.shape, object.recycled);
    Ok(object)
}

/// Gives an object back, of which the caller is the last user.
#[inline]
pub(crate) fn put(cache: &Cache, number: u32) {
    cache.put(local::number(), number);
}
