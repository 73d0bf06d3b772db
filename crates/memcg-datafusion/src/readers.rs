//! The readers of a query's rows: one for each partition of its plan.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;

use crate::ended::contain;

/// A reader that has taken a batch and asked for no other has paused after this time.
pub(crate) const PAUSED: Duration = Duration::from_millis(50);
/// One that was woken, and has not asked again, after this time: on a busy machine it may be late.
const STALLED: Duration = Duration::from_secs(1);

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
    /// It asks now, and may have been woken meanwhile.
    Asks {
        is_woken: bool,
    },
    /// It was given nothing, and was not woken since.
    Waits,
    /// It could go on since that time, and has not asked again.
    IsWoken(Instant),
    HasTaken(Instant),
}

impl Reader {
    fn at(&self) -> MutexGuard<'_, At> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let mut at = self.at();
        *at = match *at {
            At::Asks { .. } => At::Asks { is_woken: true },
            At::Waits => At::IsWoken(Instant::now()),
            other => other,
        };
        drop(at);
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
        self.0[partition].at()
    }

    /// The waker of a partition's reader, for what the reader waits for.
    pub(crate) fn waker_of(self: &Arc<Self>, partition: usize) -> Waker {
        Waker::from(Arc::new(OneOf {
            readers: Arc::clone(self),
            partition,
        }))
    }

    /// The reader of a partition asks for a batch, or for the end. It is woken by `waker`.
    pub(crate) fn asks(&self, partition: usize, waker: &Waker) {
        self.0[partition].waker.register(waker);
        *self.at(partition) = At::Asks { is_woken: false };
    }

    /// It was given nothing.
    pub(crate) fn waits(&self, partition: usize) {
        let mut at = self.at(partition);
        if let At::Asks { is_woken } = *at {
            *at = if is_woken {
                At::IsWoken(Instant::now())
            } else {
                At::Waits
            };
        }
    }

    /// It has taken a batch.
    pub(crate) fn takes(&self, partition: usize) {
        *self.at(partition) = At::HasTaken(Instant::now());
    }

    /// It wants no more.
    pub(crate) fn leaves(&self, partition: usize) {
        *self.at(partition) = At::Away;
    }

    /// True if the reader of another partition asks for a batch.
    pub(crate) fn others_ask(&self, partition: usize) -> bool {
        let mut others = (0..self.0.len()).filter(|at| *at != partition);
        others.any(|other| match *self.at(other) {
            At::Asks { .. } | At::Waits => true,
            At::IsWoken(since) => since.elapsed() < PAUSED,
            At::Away | At::HasTaken(_) => false,
        })
    }

    /// Wakes all but the reader of one partition. The caller holds no lock.
    pub(crate) fn wake_others(&self, partition: usize) {
        let others = self.0.iter().enumerate().filter(|(at, _)| *at != partition);
        others.for_each(|(_, reader)| reader.wake());
    }

    /// True if those that are there have taken a batch and paused, or were woken for one and have not
    /// come: a client may read several partitions in one task, and pause with all of them.
    pub(crate) fn have_paused(&self) -> bool {
        let mut any = false;
        for partition in 0..self.0.len() {
            match *self.at(partition) {
                At::Away => {}
                At::HasTaken(since) if since.elapsed() >= PAUSED => any = true,
                At::IsWoken(since) if since.elapsed() >= STALLED => any = true,
                // It is late, unless another one has paused.
                At::IsWoken(since) if since.elapsed() >= PAUSED => {}
                At::Asks { .. } | At::Waits | At::IsWoken(_) | At::HasTaken(_) => return false,
            }
        }
        any
    }
}

/// The reader of one partition.
struct OneOf {
    readers: Arc<Readers>,
    partition: usize,
}

impl Wake for OneOf {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.readers.0[self.partition].wake();
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
        assert!(readers.others_ask(0) && !readers.others_ask(1));
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

    /// A client that reads partitions in one task pauses with those that it has asked and that were
    /// woken since. One that waits, or is at work, goes on, whatever has woken it.
    #[test]
    fn a_reader_that_was_woken_and_does_not_come_has_paused() {
        let readers = Arc::new(Readers::new(2));
        let waits = || std::thread::sleep(2 * PAUSED);
        let waker = readers.waker_of(1);
        readers.takes(0);
        readers.asks(1, Waker::noop());
        readers.waits(1);
        waits();
        assert!(!readers.have_paused(), "one waits for its rows");
        waker.wake_by_ref();
        waits();
        assert!(readers.have_paused());
        readers.asks(1, Waker::noop());
        waker.wake_by_ref();
        waits();
        assert!(!readers.have_paused(), "it is at work");
        readers.waits(1);
        assert!(!readers.have_paused(), "it is about to come");
        waits();
        assert!(readers.have_paused());
        readers.leaves(0);
        assert!(!readers.have_paused(), "it may be late");
        std::thread::sleep(STALLED);
        assert!(readers.have_paused());
    }
}
