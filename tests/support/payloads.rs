//! A payload that foreign code may panic with: it panics when it is dropped, with another one that
//! does the same.

use std::panic::panic_any;

/// Panics when it is dropped, so many times in a row.
struct Payload(u64);

impl Drop for Payload {
    fn drop(&mut self) {
        if self.0 > 0 {
            panic_any(Payload(self.0 - 1));
        }
    }
}

/// As a payload that is dropped without another panic, as one that panics a few times, and as one
/// that never ends.
pub(crate) const DEPTHS: [u64; 5] = [0, 1, 2, 3, u64::MAX];

/// Panics with a payload whose drop panics so many times in a row.
pub(crate) fn panic_with(depth: u64) -> ! {
    panic_any(Payload(depth))
}
