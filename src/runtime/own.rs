//! What a runtime takes itself.

use super::Runtime;
use crate::group::{ChargeError, Group};
use crate::lifecycle::own_bytes::OwnBytes;

impl Runtime {
    /// The memory that the accounting itself takes: objects of groups, slots of threads, statistics, tables. Within a few
    /// per cent of what it makes resident memory grow by; what belongs to the process is in the figure of each of its
    /// runtimes.
    ///
    /// Takes the tree's lock and that of the statistics, one after the other, and visits each thread.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let before = runtime.own_bytes();
    /// let root = runtime.root();
    /// let groups: Vec<_> = (0..1_000).map(|number| root.create(&number.to_string(), memcg::Limits::new())).collect();
    /// assert!(runtime.own_bytes().total() > before.total());
    /// # assert!(groups.iter().all(Result::is_ok));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn own_bytes(&self) -> OwnBytes {
        self.tree.own_bytes()
    }

    /// Charge [`own_bytes`](Self::own_bytes) to a group of this runtime from now on, and no longer to the one before.
    ///
    /// By force, for the memory is there: see [`Group::charge`]. The charge follows the figure in steps of 64 KiB, as
    /// groups come and go, in [`settle`](Self::settle) and with the [flusher](Self::start_flusher). Where the group goes
    /// offline the nearest above that has not gets it; with the runtime it is given back.
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
        let node = group.node();
        if !std::ptr::eq(node.tree(), &*self.tree) {
            return Err(ChargeError::OtherRuntime { from: self.root(), to: group.clone() });
        }
        if group.is_offline() {
            return Err(ChargeError::Offline { group: group.clone(), requested: self.own_bytes().total() });
        }
        self.tree.charge_own(Some(node));
        Ok(())
    }
}
