//! Numbers that no two callers get.

use std::cell::Cell;

use crate::sync::stat_atomic::AtomicU64;
use crate::sync::{Ordering, per_thread};

/// Numbers that a thread takes at a time: otherwise all would write one word for each.
const AT_A_TIME: u64 = 64;

per_thread! {
    /// The last id that this thread gave out.
    with_last: Cell<u64> = Cell::new(0)
}

/// Returns a number above 0 that no other caller gets.
pub(crate) fn next_id() -> u64 {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    with_last(|last_id| {
        let mut last = last_id.get();
        // 0 is a multiple, too, so a thread's first call takes numbers.
        if last.is_multiple_of(AT_A_TIME) {
            last = TAKEN.fetch_add(AT_A_TIME, Ordering::Relaxed);
        }
        last_id.set(last + 1);
        last + 1
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;

    use super::*;

    #[test]
    fn no_two_threads_get_the_same() {
        const EACH: u64 = if cfg!(miri) { 1 } else { 3 } * AT_A_TIME + 1;
        let mut all = BTreeSet::new();
        thread::scope(|scope| {
            let threads =
                [(); 4].map(|()| scope.spawn(|| (0..EACH).map(|_| next_id()).collect::<Vec<_>>()));
            threads
                .into_iter()
                .for_each(|thread| all.extend(thread.join().unwrap()));
        });
        assert_eq!(all.len() as u64, 4 * EACH);
        assert!(!all.contains(&0));
    }
}
