//! What an allocator charges and gives back where the thread has kept the way to its slot: see `thread::near`.

use crate::counter::allocator::{charge_current_slow, charge_owned, consume_and_count, uncharge_slow};
use crate::thread::directory::Header;
use crate::thread::local::with_local;
use crate::thread::slot::{Consume, Put};

/// [`charge_current`](super::allocator::charge_current) where the thread has kept what it found for the group that `current`
/// points to. `None`: it has not, or the charge misses.
#[inline(always)]
pub(crate) fn charge(current: *const Header, n: u64) -> Option<u32> {
    let (header, word, consumed) = with_local(|local| {
        let near = local.near.group(current)?;
        let may_hit = !local.is_in_slow_path() && near.header.may_hit(n);
        may_hit.then(|| (near.header, local.near.word(), consume_and_count(near.slot, near.counted, n)))
    })?;
    match consumed {
        Consume::Hit => Some(word),
        Consume::Miss => None,
        Consume::Undone => Some(charge_current_slow(header, n, consumed)),
    }
}

/// [`grow`](super::allocator::grow) where the thread has kept what it found for the owner. False: it has not, or the charge
/// misses.
#[inline(always)]
pub(crate) fn grow(word: u32, n: u64) -> bool {
    let found = with_local(|local| {
        let near = local.near.owner(word)?;
        near.header.may_hit(n).then(|| (near.header, consume_and_count(near.slot, near.counted, n)))
    });
    match found {
        Some((_, Consume::Hit)) => true,
        Some((header, Consume::Undone)) => {
            charge_owned(header.counter(), n, Consume::Undone);
            true
        }
        None | Some((_, Consume::Miss)) => false,
    }
}

/// [`uncharge`](super::allocator::uncharge) where the thread has kept what it found for the owner. False: it has not.
#[inline(always)]
pub(crate) fn uncharge(word: u32, n: u64) -> bool {
    let put = with_local(|local| {
        let near = local.near.owner(word)?;
        near.counted.freed(n);
        Some((near.header, near.slot.put(n, &near.header.capacity, false)))
    });
    match put {
        Some((_, Put::Kept)) => true,
        Some((header, missed)) => {
            uncharge_slow(header, n, missed);
            true
        }
        None => false,
    }
}
