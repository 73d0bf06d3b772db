//! Finds out if the process's allocator charges groups: then the groups of queries cover allocated
//! bytes.

use std::hint::black_box;
use std::sync::OnceLock;

use memcg::{Limits, Runtime};

/// An object that each allocator which charges groups owns.
const OBJECT: usize = 64 << 10;

/// It is asked once, with a group of a runtime of its own.
pub(crate) fn an_allocator_charges() -> bool {
    static CHARGES: OnceLock<bool> = OnceLock::new();
    *CHARGES.get_or_init(|| {
        Runtime::builder().build().is_ok_and(|runtime| {
            let root = runtime.root();
            let object = root.run(|| black_box(vec![0_u8; OBJECT]));
            let charges = root.inspect().allocated_local() > 0;
            drop(object);
            charges
        })
    })
}

/// The limits of a query whose reservations pay for what it allocates.
pub(crate) fn covering(limits: Limits) -> Limits {
    if an_allocator_charges() {
        limits.cover_allocations()
    } else {
        limits
    }
}
