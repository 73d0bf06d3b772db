//! Tables by a number: a key of a level, a ticket, the number of a job.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Values by a number that the library chose: see [`NumberHasher`]. For what nobody reads in order:
/// each kind of value that a `BTreeMap` has costs a user of the crate some seven thousand lines of
/// LLVM's code to compile, and a hash table a small part of that.
pub(crate) type ByNumber<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// The hash of a number that no user chooses (Fibonacci hashing): a wait looks some thirty times
/// into these tables, under a lock.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|&byte| self.write_u64(self.0 << 8 | u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        // The table takes its place from the low bits, which the product has of the low bits alone.
        self.0 ^ self.0 >> 32
    }
}

/// Takes a value out. A table that a burst of waits has left nearly empty gives memory back.
pub(crate) fn take_out<V>(table: &mut ByNumber<V>, number: u64) -> Option<V> {
    let value = table.remove(&number);
    if table.len() < table.capacity() / 8 {
        table.shrink_to(2 * table.len());
    }
    value
}
