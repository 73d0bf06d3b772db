//! Charges that are divided, merged, and moved to another group.

use std::fmt;
use std::mem::{self, ManuallyDrop};

use super::charge::{Charge, pin_group, unpin_group};
use super::error::{ChargeError, Repr, SplitError};
use super::handle::Group;
use crate::admission::transfer::{move_by_force, move_charge};
use crate::counter::object::HeaderRef;
use crate::hierarchy::group_tree;
use crate::units::{Bytes, IntoBytes};

/// # Parts of a charge
impl Charge {
    /// Takes `bytes` out of this charge and returns them as a charge of their own. Nothing is
    /// charged or uncharged, so usage does not move: the call never blocks, and costs a
    /// subtraction.
    ///
    /// # Errors
    ///
    /// [`SplitError`] for more bytes than the charge holds; the charge is as it was.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut batch = runtime.root().charge(10)?;
    /// let row = batch.split(4)?;
    /// assert_eq!((batch.bytes(), row.bytes()), (6, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&mut self, bytes: impl IntoBytes) -> Result<Charge, SplitError> {
        let Bytes(bytes) = bytes.into_bytes();
        let Some(left) = self.bytes().checked_sub(bytes) else {
            let unit = group_tree::unit(self.counter());
            return Err(SplitError {
                requested: bytes,
                bytes: self.bytes(),
                unit,
            });
        };
        // One charge becomes two. Where one of them has no bytes, that one needs a handle more.
        if bytes == 0 || left == 0 {
            pin_group(self.counter());
        }
        self.bytes = left;
        Ok(Charge {
            header: self.header,
            bytes,
        })
    }

    /// Takes all bytes as a charge of their own, and leaves an empty charge of the same group here.
    /// It never blocks, and usage does not move.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut buffer = runtime.root().charge(10)?;
    /// let full = buffer.take();
    /// assert_eq!((full.bytes(), buffer.bytes()), (10, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take(&mut self) -> Charge {
        // The charge that stays has no bytes, so it needs a handle, also where the charge taken has
        // none.
        pin_group(self.counter());
        Charge {
            header: self.header,
            bytes: mem::take(&mut self.bytes),
        }
    }

    /// Moves all bytes of `other` into this charge. It never blocks, and usage does not move. What
    /// would pass 2^63 - 1 bytes goes back, as with [`force_grow`](Self::force_grow).
    ///
    /// # Errors
    ///
    /// [`MergeError`] if `other` is a charge of another group, or of another counter of this group.
    /// [`into_charge`](MergeError::into_charge) gives `other` back.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut batch = runtime.root().charge(10)?;
    /// batch.merge(runtime.root().charge(5)?)?;
    /// assert_eq!(batch.bytes(), 15);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge(&mut self, other: Charge) -> Result<(), MergeError> {
        // Mutation: charges-of-two-counters-are-merged
        if self.header != other.header {
            // Mutation: a-merge-that-fails-keeps-a-handle
            pin_group(self.counter());
            return Err(MergeError {
                charge: other,
                into: Charge::new(self.header, 0),
            });
        }
        // Bytes move without an uncharge: they are charged, and only their guard is another one. A
        // charge of no bytes has a handle instead, which its drop gives back.
        if other.bytes() > 0 {
            self.grown(ManuallyDrop::new(other).bytes());
        }
        Ok(())
    }

    /// Moves the charge from its group to `to`, as one step. It may block as [`Group::charge`]
    /// does, but is not delayed above a [`high`](crate::Limits::high): in async code call it on a
    /// thread for blocking work.
    ///
    /// The transfer charges `to`, and uncharges the present group, at the levels below their
    /// nearest common ancestor. That ancestor and those above it are not touched, so a full parent
    /// does not refuse a transfer between its own children. If one of the two groups
    /// [covers](crate::Limits::cover_allocations), what is allocated in it stays there, and the
    /// ancestor may have to hold more.
    ///
    /// It costs a walk on either side, and is as exact as [`Group::charge`].
    ///
    /// # Errors
    ///
    /// [`ChargeError`]; the charge is as it was.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let mut charge = a.charge(100)?; // the root is full
    /// charge.transfer(&b)?;
    /// assert_eq!((a.live(), b.live(), runtime.root().live()), (0, 100, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn transfer(&mut self, to: &Group) -> Result<(), ChargeError> {
        let header = self.header;
        let bytes = self.bytes();
        let from = header.counter();
        let new = to.nth(from.number_in_group());
        let common = new.and_then(|new| new.path_to_root().find(|level| from.is_within(level)));
        let Some((new, common)) = new.zip(common) else {
            return Err(Repr::OtherRuntime {
                from: self.group(),
                to: to.clone(),
            }
            .into());
        };
        if std::ptr::eq(from, new) {
            return Ok(());
        }
        move_charge((from, new, common), bytes)
            .map_err(|failure| ChargeError::new(failure, new, bytes))?;
        // Without bytes it is a handle that keeps the group, and it moves as they would.
        if bytes == 0 {
            pin_group(new);
            unpin_group(from);
        }
        // SAFETY: the bytes, or the handle, keep it from here on.
        self.header = unsafe { HeaderRef::new(new.header) };
        Ok(())
    }

    /// Moves to the same counter of another group of the tree, where it was a moment ago, whatever
    /// the limits are by now.
    #[cold]
    pub(crate) fn move_back(&mut self, to: HeaderRef) {
        let (from, new, bytes) = (self.header.counter(), to.counter(), self.bytes());
        let common = new.path_to_root().find(|level| from.is_within(level));
        if let Some(common) = common.filter(|_| !std::ptr::eq(from, new)) {
            move_by_force((from, new, common), bytes);
            if bytes == 0 {
                pin_group(new);
                unpin_group(from);
            }
            self.header = to;
        }
    }
}

/// Two charges were not merged, because they are of different groups, or of different counters of
/// one group. Both are as they were.
///
/// ```
/// # let runtime = memcg::Runtime::builder().build()?;
/// # let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, memcg::Limits::new()).unwrap());
/// let mut ours = a.charge(10)?;
/// let theirs = b.charge(5)?;
/// let refused = ours.merge(theirs).unwrap_err();
/// assert_eq!(refused.to_string(), "a charge of /b does not merge into one of /a");
/// assert_eq!(refused.into_charge().bytes(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MergeError {
    charge: Charge,
    /// Of 0 bytes, for its counter.
    into: Charge,
}

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [charge, into] = [&self.charge, &self.into].map(|charge| {
            let path = charge.group().shown_path();
            group_tree::further_name(charge.header.counter())
                .map_or(path.clone(), |name| format!("{name} of {path}"))
        });
        write!(f, "a charge of {charge} does not merge into one of {into}")
    }
}

impl std::error::Error for MergeError {}

impl MergeError {
    /// Returns the charge that was to be merged, with all its bytes.
    pub fn into_charge(self) -> Charge {
        self.charge
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{Runtime, Unit};

    #[test]
    fn the_errors_name_the_counter_and_its_unit() {
        let mut builder = Runtime::builder();
        let files = builder.counter("files", Unit::Events);
        let spill = builder.counter("spill", Unit::Bytes);
        let runtime = builder.build().unwrap();
        let [mut files, mut spill] = runtime
            .root()
            .charge_set(&[(files, 3), (spill, 1 << 20)])
            .unwrap();
        assert_eq!(
            files.split(4).unwrap_err().to_string(),
            "cannot split off 4: the charge holds 3"
        );
        let refused = spill.split((1 << 20) + 1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "cannot split off 1048577 B: the charge holds 1 MiB"
        );
        let refused = files.merge(spill).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a charge of spill of / does not merge into one of files of /"
        );
    }
}
