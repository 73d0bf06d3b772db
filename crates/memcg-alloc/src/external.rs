//! Memory that no allocator of the program hands out.

use memcg::allocator::Owner;

/// Charges memory that the allocator does not see to the thread's current group: a mapping, or what
/// a C library allocates. The charge is forced, as those of the allocator are. Dropping the value
/// gives it back to the same group, on any thread.
///
/// If the thread has no current group, the bytes count as [unowned](crate::unowned_bytes).
///
/// ```
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let mut mapped = query.run(|| memcg_alloc::charge_external(1 << 20));
/// assert_eq!(query.live(), 1 << 20);
/// mapped.resize(1 << 16);
/// assert_eq!(query.live(), 1 << 16);
/// drop(mapped);
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn charge_external(bytes: usize) -> ExternalCharge {
    let owner = if bytes > 0 {
        Owner::charge(bytes)
    } else {
        Owner::NONE
    };
    ExternalCharge { owner, bytes }
}

/// The charge for memory that no allocator of the program hands out: see [`charge_external`].
#[derive(Debug)]
#[must_use = "dropped at once it pays for nothing, and `let _ =` drops it at once: bind it to a name, as in `let _paid =`"]
pub struct ExternalCharge {
    owner: Owner,
    bytes: usize,
}

impl ExternalCharge {
    /// Returns the bytes that are charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges or gives back the difference to another size, to the same group. A charge of 0 bytes
    /// keeps no group: it grows as a charge of the thread's current group.
    #[allow(unsafe_code)]
    pub fn resize(&mut self, bytes: usize) {
        // Mutation: a-charge-of-nothing-has-a-group
        if self.bytes == 0 || bytes == 0 {
            *self = charge_external(bytes);
            return;
        }
        // SAFETY: `self.bytes` bytes are charged, and `bytes` are afterwards.
        unsafe {
            if bytes > self.bytes {
                self.owner.grow(bytes - self.bytes);
            } else {
                self.owner.uncharge(self.bytes - bytes);
            }
        }
        self.bytes = bytes;
    }
}

impl Drop for ExternalCharge {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: so many bytes are charged to the owner, and the value ends.
        unsafe { self.owner.uncharge(self.bytes) };
    }
}
