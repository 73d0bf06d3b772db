//! Idle credit: what threads charged in advance and do not use.

use super::Runtime;
use crate::counter::idle;
use crate::units::Bytes;

impl Runtime {
    /// Takes back the credit that no thread uses, and returns how many bytes of memory that were. The call may block: in
    /// async code call it on a thread for blocking work. Further counters give back theirs, too; the figure leaves them
    /// out.
    ///
    /// Credit is idle where the last two calls found the same, and at once where its thread has ended. So with one call
    /// in each period, credit is uncharged after two to three periods. [`start_flusher`](Self::start_flusher) calls this in
    /// each of its own. Usage then comes down to [`live`](crate::Group::live) in each group whose threads sleep.
    ///
    /// No guarantee depends on it: a charge that needs the credit of a sleeping thread gets it without this. What it
    /// changes is [`usage`](crate::Group::usage), and how often a limit has to drain. The stocks of threads stay open,
    /// and a thread that wakes up refills its own with its next charge. A [central stock](crate::expert::CentralStock)
    /// that has not changed closes, and its part of the budget is free. A thread that charges and uncharges the same
    /// amount, over and over, may look idle; it then refills once, in every third call at most.
    ///
    /// The call looks at every slot of every thread. It runs one barrier for each 4,096 slots with idle credit, and
    /// none where no credit is idle. It holds the tree's lock for those 4,096 at most, or for as many central stocks.
    /// The call remembers 16 bytes for each slot with credit. Another call waits meanwhile, and the flusher leaves its
    /// own out. Inside an allocator that charges the call does nothing and returns 0.
    ///
    /// ```
    /// use memcg::{Bytes, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// let held = [root.try_charge(100)?, root.try_charge(100)?];
    /// let more = root.try_charge(100)?; // takes credit for the charges to come
    /// assert!(root.usage() > 300);
    /// runtime.release_idle_credit();
    /// runtime.release_idle_credit();
    /// assert!(runtime.release_idle_credit() > Bytes(0), "the third call finds what the first one saw");
    /// assert_eq!((root.usage(), root.live()), (300, 300));
    /// # drop((held, more));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release_idle_credit(&self) -> Bytes {
        Bytes(idle::release(&self.owned.tree))
    }

    /// Gives the calling thread's own credit back, and returns how many bytes of memory that were. For a thread that is
    /// about to sleep: a hook such as tokio's `on_thread_park`.
    ///
    /// It runs no barrier, takes no lock of the tree and waits for no other thread. It looks at each slot of the thread,
    /// 252 for each 252 groups or part of them that the thread has ever charged, and uncharges each that has credit. The
    /// next charge of each such group refills. So it pays where threads park for long. Where they park for microseconds,
    /// [`release_idle_credit`](Self::release_idle_credit) costs them nothing.
    ///
    /// ```
    /// use memcg::{Bytes, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let hook = {
    ///     let runtime = runtime.clone();
    ///     move || runtime.release_thread_credit() // tokio: `.on_thread_park(move || { hook(); })`
    /// };
    /// let root = runtime.root();
    /// let held = [root.try_charge(100)?, root.try_charge(100)?];
    /// let more = root.try_charge(100)?; // takes credit for the charges to come
    /// assert!(hook() > Bytes(0));
    /// assert_eq!((root.usage(), root.live()), (300, 300));
    /// # drop((held, more));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release_thread_credit(&self) -> Bytes {
        Bytes(idle::release_own(&self.owned.tree))
    }
}
