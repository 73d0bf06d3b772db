//! The readers of a query's rows: one for each partition of its plan.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;

use crate::ended::contain;

/// A reader that has taken a batch and asked for no other has paused after this time.
pub(crate) const PAUSED: Duration = Duration::from_millis(50);

/// All readers of a query. To wake them is to have each look at its query again.
#[derive(Debug)]
pub(crate) struct Readers(Box<[Reader]>);

#[derive(Debug, Default)]
struct Reader {
    waker: AtomicWaker,
    at: Mutex<At>,
}

/// What a reader does.
#[derive(Clone, Copy, Debug, Default)]
enum At {
    /// It is not there: it has asked for nothing yet, or has left.
    #[default]
    Away,
    Asks,
    HasTaken(Instant),
}

impl Reader {
    fn wake(&self) {
        contain(|| self.waker.wake());
    }
}

impl Readers {
    pub(crate) fn new(partitions: usize) -> Readers {
        Readers((0..partitions).map(|_| Reader::default()).collect())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    fn at(&self, partition: usize) -> MutexGuard<'_, At> {
        let at = self.0[partition].at.lock();
        at.unwrap_or_else(PoisonError::into_inner)
    }

    /// The reader of a partition asks for a batch, or for the end. It is woken by `waker`.
    pub(crate) fn asks(&self, partition: usize, waker: &Waker) {
        self.0[partition].waker.register(waker);
        *self.at(partition) = At::Asks;
    }

    /// It has taken a batch.
    pub(crate) fn takes(&self, partition: usize) {
        *self.at(partition) = At::HasTaken(Instant::now());
    }

    /// It wants no more.
    pub(crate) fn leaves(&self, partition: usize) {
        *self.at(partition) = At::Away;
    }

    /// Wakes all but the reader of one partition. The caller holds no lock.
    pub(crate) fn wake_others(&self, partition: usize) {
        let others = self.0.iter().enumerate().filter(|(at, _)| *at != partition);
        others.for_each(|(_, reader)| reader.wake());
    }

    /// True if those that are there have all taken a batch and paused.
    pub(crate) fn have_paused(&self) -> bool {
        let mut any = false;
        for partition in 0..self.0.len() {
            match *self.at(partition) {
                At::Away => {}
                At::HasTaken(since) if since.elapsed() >= PAUSED => any = true,
                At::Asks | At::HasTaken(_) => return false,
            }
        }
        any
    }
}

/// One reader.
impl Default for Readers {
    fn default() -> Readers {
        Readers::new(1)
    }
}

/// The caller holds no lock: a waker is foreign code. One that panics keeps no other asleep.
impl Wake for Readers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.iter().for_each(Reader::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query has paused once each of its readers has, but for those that are not there.
    #[test]
    fn a_query_pauses_with_its_last_reader() {
        let readers = Readers::new(3);
        let waits = || std::thread::sleep(2 * PAUSED);
        assert!(!readers.have_paused(), "nobody has read");
        readers.takes(0);
        readers.asks(1, Waker::noop());
        waits();
        assert!(!readers.have_paused(), "one asks");
        readers.takes(1);
        waits();
        assert!(readers.have_paused());
        readers.asks(0, Waker::noop());
        assert!(!readers.have_paused());
        readers.leaves(0);
        assert!(readers.have_paused());
        readers.leaves(1);
        assert!(!readers.have_paused(), "nobody is there");
    }
}
