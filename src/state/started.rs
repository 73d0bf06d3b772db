//! The work of a tree's threads for charges: jobs at levels, service of levels, calls of listeners.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::time::{Duration, Instant};

use crate::counter::by_number::NumberHasher;
use crate::counter::handle::Handle;
use crate::counter::handle::WeakCounter;
use crate::state::key::Key;
use crate::thread::foreign::DueWakers;
use crate::thread::helper::Helper;

/// What the threads of a tree have to do, in the place of charges that may not do it themselves.
#[derive(Default)]
pub(crate) struct StartedWork {
    pub(crate) jobs: Turns<Job>,
    /// Levels that have a turn at some time: their usage has passed a threshold, or charges wait
    /// there.
    pub(crate) background: BackgroundLevels,
    /// The last turn was one of those.
    pub(crate) was_background: bool,
    /// Services of levels that charges which call no foreign code have scheduled.
    pub(crate) services: Vec<LeftService>,
    /// Levels whose listeners are to be called.
    pub(crate) listened: Turns<ListeningLevel>,
    /// By [`ThreadDuty`].
    pub(crate) threads: [DutyThread; 2],
    /// The runtime is gone: no thread begins a further job.
    pub(crate) over: bool,
}

/// The duty of a thread of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadDuty {
    Jobs,
    Listeners,
}

#[derive(Default)]
pub(crate) struct DutyThread {
    pub(crate) helper: Helper,
    /// Foreign code may hold the thread up.
    pub(crate) is_busy: bool,
}

pub(crate) struct Job {
    pub(crate) level: Handle,
    /// Of the charges that the job is for.
    pub(crate) importance: u8,
    /// The largest of them that the level has refused; 0 where it has refused none.
    pub(crate) bytes: u64,
    /// Charges of tasks wait in the line of the level, and ask no reclaimers themselves.
    pub(crate) in_line: bool,
    /// Reclaimers have promised what that charge lacks.
    pub(crate) promised: bool,
    /// A charge has left the level above its high.
    pub(crate) above_high: bool,
    /// One of those charges has not counted [`Event::High`](crate::Event::High) itself.
    pub(crate) counts_high: bool,
    /// Tasks that are delayed above that high, and look again once the level is reclaimed.
    pub(crate) wakers: DueWakers,
}

/// Why a level has a turn that no charge leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TurnReason {
    /// Its usage is above the threshold.
    Threshold,
    /// Charges wait in its line: reclaimers that had nothing may have something by now.
    Line,
}

/// A level that a thread reclaims in the background. It may be gone: nothing but its generation is
/// read without a handle.
#[derive(Clone, Copy)]
pub(crate) struct BackgroundLevel {
    pub(crate) level: WeakCounter,
    pub(crate) reason: TurnReason,
    /// When it has its turn.
    pub(crate) at: Instant,
    /// The last pause because nothing was freed.
    pub(crate) pause: Duration,
    /// Rounds since usage has last fallen: what reclaimers say they have freed may be a lie.
    pub(crate) unseen: usize,
}

/// The levels that are reclaimed in the background, each once for a reason. What is done for one of
/// them costs a look-up, however many there are.
#[derive(Default)]
pub(crate) struct BackgroundLevels {
    by_key: BTreeMap<(Key, TurnReason), BackgroundLevel>,
    /// The keys, by when each has its turn.
    turns: BTreeSet<(Instant, (Key, TurnReason))>,
}

impl BackgroundLevels {
    /// Lists a level. One that is listed already has the earlier turn of the two.
    pub(crate) fn add(&mut self, job: BackgroundLevel) {
        let key = (Key(job.level.object.key()), job.reason);
        if let Some(listed) = self.by_key.get(&key) {
            if listed.level == job.level && listed.at <= job.at {
                return;
            }
            // Its turn comes sooner; or that group is gone, and its object is another one's.
            self.turns.remove(&(listed.at, key));
        }
        self.turns.insert((job.at, key));
        self.by_key.insert(key, job);
    }

    /// When the first one has its turn.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.turns.first().map(|&(at, _)| at)
    }

    /// Takes the first one, if its turn has come.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<BackgroundLevel> {
        let first = self.first().filter(|&at| at <= now);
        let (_, key) = first.and_then(|_| self.turns.pop_first())?;
        self.by_key.remove(&key)
    }

    pub(crate) fn clear(&mut self) {
        *self = BackgroundLevels::default();
    }

    #[cfg(test)]
    #[allow(dead_code, reason = "some models ask")]
    pub(crate) fn len(&self) -> usize {
        debug_assert_eq!(self.by_key.len(), self.turns.len());
        self.by_key.len()
    }
}

/// Serves levels, and wakes the charges that wait there.
pub(crate) type LeftService = Box<dyn FnOnce() + Send>;

/// A level whose listeners are to be called.
pub(crate) struct ListeningLevel {
    pub(crate) level: Handle,
    /// Calls the level's listeners.
    pub(crate) call: fn(Handle),
}

/// One entry at most for each key. The one that came first is taken first.
pub(crate) struct Turns<T> {
    entries: HashMap<(u64, u8), T, BuildHasherDefault<NumberHasher>>,
    order: VecDeque<(u64, u8)>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Turns {
            entries: HashMap::default(),
            order: VecDeque::new(),
        }
    }
}

impl<T> Turns<T> {
    /// Adds an entry behind all others, or keeps the turn that the key has. `note` gets the entry.
    /// Returns what was not needed, for a caller that drops it without the lock.
    pub(crate) fn add(&mut self, key: (u64, u8), entry: T, note: impl FnOnce(&mut T)) -> Option<T> {
        match self.entries.entry(key) {
            Entry::Vacant(vacant) => {
                // Behind all others. One that is listed already keeps its turn, so a level that is
                // refused all the time takes no other's.
                self.order.push_back(key);
                note(vacant.insert(entry));
                None
            }
            Entry::Occupied(mut listed) => {
                note(listed.get_mut());
                Some(entry)
            }
        }
    }

    pub(crate) fn next(&mut self) -> Option<T> {
        self.entries.remove(&self.order.pop_front()?)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
