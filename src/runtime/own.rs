//! The memory that a runtime takes itself.

use super::Runtime;
use crate::group::{ChargeError, Group};
use crate::lifecycle::own_bytes::{self, OwnBytes};

impl Runtime {
    /// Returns the bytes that the accounting itself takes: for objects of groups, slots of threads, statistics, tables.
    /// What belongs to the process is in the figure of each of its runtimes.
    ///
    /// The call takes the tree's lock and that of the statistics, one after the other, and visits each thread. The
    /// figure is within a few per cent of what the runtime makes resident memory grow by.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// let before = runtime.own_bytes();
    /// let root = runtime.root();
    /// let groups: Vec<_> = (0..1_000).map(|number| root.create(&number.to_string(), memcg::Limits::new())).collect();
    /// assert!(runtime.own_bytes().total() > before.total());
    /// # assert!(groups.iter().all(Result::is_ok));
    /// ```
    pub fn own_bytes(&self) -> OwnBytes {
        own_bytes::figure(&self.tree)
    }

    /// Charges [`own_bytes`](Self::own_bytes) to a group of this runtime from now on, and no longer to the group
    /// before.
    ///
    /// The charge is made by force, because the memory exists already: see [`Group::charge`]. It follows the figure in
    /// steps of 64 KiB: when a group is created or goes offline, in [`settle`](Self::settle) and with the
    /// [flusher](Self::start_flusher). Where the group goes offline, the charge moves to its nearest ancestor that is
    /// online. The drop of the runtime gives it back.
    ///
    /// # Errors
    ///
    /// [`ChargeError::Offline`], [`ChargeError::OtherRuntime`]; nothing changes then.
    ///
    /// ```
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let books = runtime.root().create("memcg", Limits::new())?;
    /// runtime.charge_own(&books)?;
    /// assert_eq!(books.live(), runtime.root().live());
    /// assert!(books.live().abs_diff(runtime.own_bytes().total()) < 128 << 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge_own(&self, group: &Group) -> Result<(), ChargeError> {
        let counter = group.first();
        if !std::ptr::eq(counter.tree(), &*self.tree) {
            return Err(ChargeError::OtherRuntime { from: self.root(), to: group.clone() });
        }
        if group.is_offline() {
            return Err(ChargeError::Offline { group: group.clone(), requested: self.own_bytes().total() });
        }
        own_bytes::charge_to(&self.tree, Some(counter));
        Ok(())
    }
}
