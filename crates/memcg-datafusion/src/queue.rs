//! The queue: queries that were refused for room that others hold wait in line, and run again with
//! fewer beside them.
//!
//! An attempt is one run of a query. The queue knows which attempts run below which groups. After a
//! refusal at a level, fewer attempts run side by side below it, until enough have ended well
//! there.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use memcg::{Group, GroupId};

use crate::ended::contain;

/// Time between two looks of the thread at the line: memory that comes back and patience that ends
/// wake no thread.
const LOOK: Duration = Duration::from_millis(5);
/// A query, or a level where one is to run alone, gives back no more once the bytes that it holds
/// have not fallen for this time.
const SETTLED: Duration = Duration::from_millis(25);
/// If no attempt runs and nothing moves, others that are not in the queue hold the room: the line
/// waits for them for such a part of the patience.
const STILL_PART: u32 = 50;
/// Attempts that end well, for each that may run side by side, before the level admits one more.
const WELL: usize = 2;
/// A query that is to give way to another one holds its rows back for such a part of the patience.
const HOLDS_PART: u32 = 50;

/// A line in which queries wait for memory that other queries hold, instead of failing.
///
/// A query of a session that is made with [`PoolConfig::queue`](crate::PoolConfig::queue) and that
/// is refused because of others gives all back, waits in line, and runs again: with fewer beside
/// it, and the last time alone below the group that was full. So a query that fits alone is not
/// failed. One that is refused for its own max, or with no query beside it, is not run again.
///
/// A result is never sent twice. A query runs again only before its first row has left the plan, by
/// a new physical plan of the same logical plan. From its first row on it waits in its place: it
/// keeps what it has, no other query starts below the full group before it goes on, and one that is
/// refused there gives all back at once. The same is done for what cannot be read or written twice:
/// a plan with a `StreamingTableExec`, an unbounded source, or a logical node of the service's own.
/// A `COPY` or an `INSERT` runs again until its sink gets the first row.
///
/// Two queries that wait in their places may wait for each other. So below a group that has refused
/// a query, one sends rows at a time: another keeps its first rows (16 batches, for which it is
/// charged) until that one ends, and for a fiftieth of the patience at most. A query that cannot
/// run again starts as late.
///
/// While a query waits in line, later queries of the same queue that wait for the same group wait
/// behind it. A value is a handle: clones are the same line. A service has one queue, or one for
/// each tenant.
///
/// ```
/// use std::time::Duration;
///
/// use datafusion::prelude::SessionContext;
/// use memcg::{Limits, Runtime};
/// use memcg_datafusion::{InGroupSession, PoolConfig, QueryQueue};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(64 << 20))?;
/// let queue = QueryQueue::new(3, Duration::from_secs(60));
/// let config = PoolConfig::new().spill_on_demand().queue(&queue);
/// let query = SessionContext::new().for_query(&acme, 17, Limits::new(), &config)?;
/// query.sql("SELECT 1 + 1").await?.collect().await?;
/// assert_eq!((queue.counts().restarts, queue.counts().refused), (0, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct QueryQueue {
    shared: Arc<Shared>,
}

/// Counts of a [`QueryQueue`]: queries that run and wait now, and restarts and refusals so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounts {
    /// Queries that run.
    pub running: usize,
    /// Queries that wait in line.
    pub waiting: usize,
    /// Times that a query was run again, summed over all queries.
    pub restarts: u64,
    /// Queries that ended with a refusal of memory that others hold, after their attempts or their
    /// patience.
    pub refused: u64,
    /// Queries that ended with a refusal of memory that others hold because they could not run
    /// again: their first row had left, or their plan cannot be read or written twice.
    pub refused_after_first_row: u64,
}

struct Shared {
    attempts: u32,
    patience: Duration,
    state: Mutex<State>,
    restarts: AtomicU64,
    refused: AtomicU64,
    refused_after_first_row: AtomicU64,
}

#[derive(Default)]
struct State {
    next: u64,
    running: Vec<Running>,
    /// Queries that wait, in the order of the line.
    waiting: Vec<Waiting>,
    /// Most attempts that may run side by side below each level that was full.
    widths: HashMap<GroupId, Width>,
    /// Levels for which a growth waits in place, each with the attempt that grows, and since when.
    in_place: Vec<(u64, GroupId, Instant)>,
    /// Wakers of attempts that hold their rows back.
    holding: Vec<Arc<AtomicWaker>>,
    has_thread: bool,
}

/// An attempt that runs.
struct Running {
    id: u64,
    /// The query's group, and those above it.
    levels: Arc<[GroupId]>,
    /// For each level, true if another attempt has run below it meanwhile.
    beside: Vec<bool>,
    /// The level below which no other attempt of the queue may run beside this one.
    alone: Option<GroupId>,
    /// The attempt is the query's last one: it has sent a row, or its plan cannot run twice.
    is_last: bool,
}

struct Waiting {
    id: u64,
    /// The query's plan cannot run twice.
    is_last: bool,
    levels: Arc<[GroupId]>,
    waker: Arc<AtomicWaker>,
    until: Instant,
    /// `None`: the query is new.
    refused: Option<Refused>,
    is_over: bool,
}

/// A refusal: the level that was full, and what has to change before the query runs again.
struct Refused {
    level: Group,
    own: Group,
    /// Attempts that ran beside it below the level, and bytes that others held there.
    beside: usize,
    others: u64,
    alone: bool,
    since: Instant,
    /// Least bytes that the query, or the level where it is to be alone, has held since the
    /// refusal. `moved` is the time of the last fall.
    least: u64,
    moved: Instant,
}

struct Width {
    most: usize,
    ended_well: usize,
}

impl State {
    fn below(&self, level: GroupId) -> usize {
        self.running
            .iter()
            .filter(|attempt| attempt.levels.contains(&level))
            .count()
    }

    /// The level that keeps a query from starting now. `None`: it may start.
    fn obstacle(&self, waiting: &Waiting) -> Option<GroupId> {
        let is_closed = |level: GroupId| {
            self.in_place.iter().any(|(_, place, _)| *place == level)
                || self
                    .running
                    .iter()
                    .any(|attempt| attempt.alone == Some(level))
                || self
                    .widths
                    .get(&level)
                    .is_some_and(|width| self.below(level) >= width.most)
        };
        let closed = waiting
            .levels
            .iter()
            .copied()
            .find(|level| is_closed(*level));
        closed.or_else(|| {
            let refused = waiting.refused.as_ref()?;
            let level = refused.level.id();
            let beside = self.below(level);
            let has_fewer = match refused.beside {
                0 => refused.others_hold() < refused.others,
                _ if refused.alone => beside == 0,
                before => beside < before,
            };
            (!has_fewer || !refused.has_settled()).then_some(level)
        })
    }

    /// True if another attempt that is a query's last one runs below one of these levels, and the
    /// level has refused.
    fn has_last_beside(&self, id: u64, levels: &[GroupId]) -> bool {
        let is_full = |level: &GroupId| levels.contains(level) && self.widths.contains_key(level);
        self.running
            .iter()
            .any(|other| other.is_last && other.id != id && other.levels.iter().any(is_full))
    }

    /// Has a thread look at the line. False: the system gives none.
    fn is_watched(&mut self, shared: &Arc<Shared>) -> bool {
        if !self.has_thread {
            let shared = Arc::downgrade(shared);
            let named = thread::Builder::new().name("memcg-queue".to_string());
            self.has_thread = named.spawn(move || watch(&shared)).is_ok();
        }
        self.has_thread
    }

    /// Halves the number of attempts that may run side by side below a level that has refused one.
    fn narrow(&mut self, level: GroupId) {
        let most = (self.below(level) / 2).max(1);
        let width = self.widths.entry(level).or_insert(Width {
            most,
            ended_well: 0,
        });
        width.most = width.most.min(most);
        width.ended_well = 0;
    }

    /// Forgets the widths of levels below which no query runs or waits.
    fn forget(&mut self) {
        let State {
            widths,
            running,
            waiting,
            ..
        } = self;
        let is_of = |levels: &[GroupId], level: &GroupId| levels.contains(level);
        widths.retain(|level, _| {
            running.iter().any(|attempt| is_of(&attempt.levels, level))
                || waiting.iter().any(|waiting| is_of(&waiting.levels, level))
        });
    }

    fn start(&mut self, id: u64, levels: &Arc<[GroupId]>, alone: Option<GroupId>, is_last: bool) {
        let beside = levels.iter().map(|level| self.below(*level) > 0).collect();
        for other in &mut self.running {
            for (level, beside) in other.levels.iter().zip(&mut other.beside) {
                *beside |= levels.contains(level);
            }
        }
        self.running.push(Running {
            id,
            levels: Arc::clone(levels),
            beside,
            alone,
            is_last,
        });
    }

    /// Starts each query whose turn it is, and ends the waits that are in vain. Returns the wakers
    /// of these queries, and of those that hold rows back: they look again.
    fn advance(&mut self, patience: Duration) -> Vec<Arc<AtomicWaker>> {
        let now = Instant::now();
        let mut wakes = std::mem::take(&mut self.holding);
        let mut behind = Vec::<GroupId>::new();
        let mut at = 0;
        while at < self.waiting.len() {
            if self.waiting[at].is_over {
                at += 1;
                continue;
            }
            if let Some(refused) = &mut self.waiting[at].refused {
                refused.look(now);
            }
            let waiting = &self.waiting[at];
            let is_behind = waiting.levels.iter().any(|level| behind.contains(level));
            let obstacle = self.obstacle(waiting);
            let is_in_vain = |refused: &Refused| {
                refused.beside == 0
                    && refused.since.elapsed() > patience / STILL_PART
                    && self.below(refused.level.id()) == 0
            };
            let is_late = now >= waiting.until || waiting.refused.as_ref().is_some_and(is_in_vain);
            // It would send rows beside another, and so starts as late as rows are held back.
            let is_new =
                waiting.until.saturating_duration_since(now) > patience - patience / HOLDS_PART;
            let is_second =
                waiting.is_last && is_new && self.has_last_beside(waiting.id, &waiting.levels);
            let starts = obstacle.is_none() && !is_behind && !is_second;
            match (starts || (is_late && waiting.refused.is_none()), is_late) {
                (true, _) => {
                    let waiting = self.waiting.remove(at);
                    let alone = waiting.refused.as_ref().filter(|refused| refused.alone);
                    let alone = alone.map(|refused| refused.level.id());
                    self.start(waiting.id, &waiting.levels, alone, waiting.is_last);
                    wakes.push(waiting.waker);
                }
                (false, true) => {
                    self.waiting[at].is_over = true;
                    wakes.push(Arc::clone(&self.waiting[at].waker));
                    at += 1;
                }
                (false, false) => {
                    behind.extend(
                        waiting
                            .refused
                            .as_ref()
                            .map(|refused| refused.level.id())
                            .or(obstacle),
                    );
                    at += 1;
                }
            }
        }
        wakes
    }
}

impl Refused {
    fn others_hold(&self) -> u64 {
        self.level.live().saturating_sub(self.own.live())
    }

    fn held(&self) -> u64 {
        if self.alone {
            self.level.live()
        } else {
            self.own.live()
        }
    }

    fn look(&mut self, now: Instant) {
        let held = self.held();
        if held < self.least {
            self.least = held;
            self.moved = now;
        }
    }

    fn has_settled(&self) -> bool {
        self.least == 0 || self.moved.elapsed() >= SETTLED
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self) {
        let wakes = self.lock().advance(self.patience);
        wake(wakes);
    }

    /// Puts a query into the line, and starts it at once if nothing is in its way. False: the query
    /// waits, and the system gives no thread to look at the line.
    fn line_up(self: &Arc<Self>, waiting: Waiting) -> bool {
        let id = waiting.id;
        let mut state = self.lock();
        state.waiting.push(waiting);
        let wakes = state.advance(self.patience);
        let waits = state.waiting.iter().any(|waiting| waiting.id == id);
        let is_looked_at = !waits || state.is_watched(self);
        drop(state);
        wake(wakes);
        is_looked_at
    }
}

/// Wakes queries. The caller does not hold the lock: a waker is foreign code.
fn wake(wakers: Vec<Arc<AtomicWaker>>) {
    wakers
        .into_iter()
        .for_each(|waker| contain(move || waker.wake()));
}

/// Runs the thread `memcg-queue`, which looks at the line and ends when no query waits or holds
/// rows back.
fn watch(shared: &Weak<Shared>) {
    loop {
        thread::sleep(LOOK);
        let Some(shared) = shared.upgrade() else {
            return;
        };
        {
            let mut state = shared.lock();
            if state.waiting.is_empty() && state.holding.is_empty() {
                state.has_thread = false;
                return;
            }
        }
        shared.advance();
    }
}

impl QueryQueue {
    /// A line for queries that run at most `attempts` times, at least twice, and wait for at most
    /// `patience` in all. Then a query gets its last refusal. A new query waits behind others for
    /// at most `patience`, too, and then starts.
    ///
    /// While queries wait, a thread looks at the line every 5 ms.
    pub fn new(attempts: u32, patience: Duration) -> QueryQueue {
        let shared = Shared {
            attempts: attempts.max(2),
            patience,
            state: Mutex::default(),
            restarts: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            refused_after_first_row: AtomicU64::new(0),
        };
        QueryQueue {
            shared: Arc::new(shared),
        }
    }

    /// Returns the counts of the queue. The call takes the queue's lock.
    pub fn counts(&self) -> QueueCounts {
        let (running, waiting) = {
            let state = self.shared.lock();
            (state.running.len(), state.waiting.len())
        };
        // Relaxed: figures.
        let [restarts, refused, refused_after_first_row] = [
            &self.shared.restarts,
            &self.shared.refused,
            &self.shared.refused_after_first_row,
        ]
        .map(|count| count.load(Ordering::Relaxed));
        QueueCounts {
            running,
            waiting,
            restarts,
            refused,
            refused_after_first_row,
        }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.shared.patience
    }

    /// Puts a new query of a group into the line: it runs at once, or waits behind others. Its turn
    /// wakes `waker`. `is_last`: its plan cannot run twice.
    pub(crate) fn arrive(&self, own: &Group, waker: &Arc<AtomicWaker>, is_last: bool) -> Place {
        let levels: Arc<[GroupId]> = std::iter::once(own.id())
            .chain(own.ancestors().map(|group| group.id()))
            .collect();
        let id = {
            let mut state = self.shared.lock();
            state.next += 1;
            state.next
        };
        let place = Place {
            shared: Arc::clone(&self.shared),
            id,
            attempts: 1,
            until: None,
        };
        let until = Instant::now() + self.shared.patience;
        let waker = Arc::clone(waker);
        let waiting = Waiting {
            id,
            is_last,
            levels: Arc::clone(&levels),
            waker,
            until,
            refused: None,
            is_over: false,
        };
        if !self.shared.line_up(waiting) {
            let mut state = self.shared.lock();
            state.waiting.retain(|waiting| waiting.id != id);
            state.start(id, &levels, None, is_last);
        }
        place
    }

    /// A growth of an attempt waits in its place for room of a level. `None`: nothing of the queue
    /// runs beside it there.
    pub(crate) fn wait_in_place(&self, attempt: u64, level: &Group) -> Option<InPlace> {
        let mut state = self.shared.lock();
        if state.below(level.id()) < 2 {
            return None;
        }
        state.in_place.push((attempt, level.id(), Instant::now()));
        Some(InPlace {
            shared: Arc::clone(&self.shared),
            id: attempt,
            level: level.id(),
        })
    }

    /// True if a growth has waited in its place for room of a level for a while: what can run again
    /// gives way.
    pub(crate) fn has_in_place(&self, level: &Group) -> bool {
        let state = self.shared.lock();
        state
            .in_place
            .iter()
            .any(|(_, place, since)| *place == level.id() && since.elapsed() >= SETTLED)
    }

    /// True if another attempt of the queue has run below `level` beside this one.
    pub(crate) fn has_run_beside(&self, attempt: u64, level: &Group) -> bool {
        let state = self.shared.lock();
        let running = state.running.iter().find(|running| running.id == attempt);
        running.is_some_and(|running| {
            // A group of the pool below the query's own is the query's own, which is the first.
            let at = running
                .levels
                .iter()
                .position(|id| *id == level.id())
                .unwrap_or(0);
            running.beside.get(at) == Some(&true)
        })
    }

    /// Counts a query that ends with its refusal.
    pub(crate) fn has_refused(&self, is_after_first_row: bool) {
        let count = if is_after_first_row {
            &self.shared.refused_after_first_row
        } else {
            &self.shared.refused
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for QueryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared {
            attempts, patience, ..
        } = &*self.shared;
        f.debug_struct("QueryQueue")
            .field("attempts", attempts)
            .field("patience", patience)
            .field("counts", &self.counts())
            .finish()
    }
}

/// A query's place, in line or among the attempts that run. Its drop gives the place up.
pub(crate) struct Place {
    shared: Arc<Shared>,
    id: u64,
    attempts: u32,
    /// End of the patience of a query that was refused; `None` before its first refusal.
    until: Option<Instant>,
}

/// State of a place.
pub(crate) enum Turn {
    Waits,
    Runs,
    /// The wait was in vain.
    Over,
}

/// A refusal of a running attempt, for memory that others hold.
pub(crate) struct OfOthers {
    level: Group,
    own: Group,
    beside: usize,
    others: u64,
    /// The attempt ran alone below a level that is further down.
    was_alone: bool,
}

impl Place {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn queue(&self) -> QueryQueue {
        QueryQueue {
            shared: Arc::clone(&self.shared),
        }
    }

    pub(crate) fn is_last_try(&self) -> bool {
        self.attempts >= self.shared.attempts
    }

    /// Counts one more run of the query.
    pub(crate) fn restarts(&self) {
        // Relaxed: a figure.
        self.shared.restarts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn turn(&self) -> Turn {
        let state = self.shared.lock();
        match state.waiting.iter().find(|waiting| waiting.id == self.id) {
            Some(waiting) if waiting.is_over => Turn::Over,
            Some(_) => Turn::Waits,
            None => Turn::Runs,
        }
    }

    /// Describes a refusal of the attempt at `level`. `None`: others hold nothing there, or the
    /// attempt ran alone there.
    pub(crate) fn of_others(&self, level: &Group, own: &Group) -> Option<OfOthers> {
        // A group of the pool below the query's own is the query's own.
        let is_above = own.ancestors().any(|group| &group == level);
        let level = if is_above { level } else { own };
        let others = if is_above {
            level.live().saturating_sub(own.live())
        } else {
            0
        };
        let state = self.shared.lock();
        let attempt = state.running.iter().find(|attempt| attempt.id == self.id)?;
        let at = attempt.levels.iter().position(|id| *id == level.id())?;
        let alone = attempt
            .alone
            .map(|id| attempt.levels.iter().position(|level| *level == id));
        // Levels are listed from below.
        if alone.is_some_and(|alone| alone >= Some(at)) || (!attempt.beside[at] && others == 0) {
            return None;
        }
        let beside = if attempt.beside[at] {
            state.below(level.id()).saturating_sub(1).max(1)
        } else {
            0
        };
        let level = level.clone();
        let own = own.clone();
        Some(OfOthers {
            level,
            own,
            beside,
            others,
            was_alone: alone.is_some(),
        })
    }

    /// True if the query has an attempt left, or has run alone only below a level further down.
    pub(crate) fn may_run_again(&self, refusal: &OfOthers) -> bool {
        !self.is_last_try() || refusal.was_alone
    }

    /// Ends the attempt and puts its query back into the line. The query has given all its memory
    /// back, or is about to.
    pub(crate) fn line_up(&self, refusal: OfOthers, waker: &Arc<AtomicWaker>) -> Place {
        let OfOthers {
            level,
            own,
            beside,
            others,
            ..
        } = refusal;
        let now = Instant::now();
        let until = self.until.unwrap_or(now + self.shared.patience);
        let attempts = self.attempts + 1;
        let alone = attempts >= self.shared.attempts;
        let least = if alone { level.live() } else { own.live() };
        let (levels, id) = {
            let mut state = self.shared.lock();
            state.narrow(level.id());
            let at = state
                .running
                .iter()
                .position(|attempt| attempt.id == self.id);
            let levels = at.map_or_else(Arc::default, |at| state.running.swap_remove(at).levels);
            state.next += 1;
            (levels, state.next)
        };
        let refused = Refused {
            level,
            own,
            beside,
            others,
            alone,
            since: now,
            least,
            moved: now,
        };
        let waker = Arc::clone(waker);
        let is_over = now >= until;
        let waiting = Waiting {
            id,
            is_last: false,
            levels,
            waker,
            until,
            refused: Some(refused),
            is_over,
        };
        if !self.shared.line_up(waiting) {
            let mut state = self.shared.lock();
            state
                .waiting
                .iter_mut()
                .filter(|waiting| waiting.id == id)
                .for_each(|waiting| waiting.is_over = true);
        }
        Place {
            shared: Arc::clone(&self.shared),
            id,
            attempts,
            until: Some(until),
        }
    }

    /// Makes the attempt the query's last one, so that a row may leave. False: another query's last
    /// attempt runs below a level that has refused, and the caller does not `insist`.
    pub(crate) fn makes_last(&self, insists: bool) -> bool {
        let mut state = self.shared.lock();
        let Some(at) = state
            .running
            .iter()
            .position(|attempt| attempt.id == self.id)
        else {
            return true;
        };
        let may = insists
            || state.running[at].is_last
            || !state.has_last_beside(self.id, &state.running[at].levels);
        state.running[at].is_last |= may;
        may
    }

    /// Has `waker` woken for another look at [`makes_last`](Self::makes_last). False: the rows have
    /// been held back `since` long ago, or the system gives no thread to look.
    pub(crate) fn holds(&self, since: Instant, waker: &Arc<AtomicWaker>) -> bool {
        if since.elapsed() >= self.shared.patience / HOLDS_PART {
            return false;
        }
        let mut state = self.shared.lock();
        state.holding.push(Arc::clone(waker));
        state.is_watched(&self.shared)
    }

    /// Describes the refusal of another attempt for which this one is to give way: its growth waits
    /// in its place.
    pub(crate) fn gives_way(&self, own: &Group) -> Option<OfOthers> {
        let level = own
            .ancestors()
            .find(|level| self.queue().has_in_place(level))?;
        self.of_others(&level, own)
            .filter(|refusal| self.may_run_again(refusal))
    }

    /// Counts an attempt that has given all its rows. After enough of them, one more may run beside
    /// the others.
    pub(crate) fn ended_well(&self) {
        let mut state = self.shared.lock();
        let Some(attempt) = state.running.iter().find(|attempt| attempt.id == self.id) else {
            return;
        };
        let levels = Arc::clone(&attempt.levels);
        for (_, width) in state
            .widths
            .iter_mut()
            .filter(|(level, _)| levels.contains(level))
        {
            width.ended_well += 1;
            if width.ended_well >= WELL * width.most {
                width.most += 1;
                width.ended_well = 0;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let gone = {
            let mut state = self.shared.lock();
            state.running.retain(|attempt| attempt.id != self.id);
            let at = state
                .waiting
                .iter()
                .position(|waiting| waiting.id == self.id);
            let gone = at.map(|at| state.waiting.remove(at));
            state.forget();
            gone
        };
        // Without the lock: its waker is foreign.
        drop(gone);
        self.shared.advance();
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A growth that waits while its query keeps what it has. Its drop ends the wait.
pub(crate) struct InPlace {
    shared: Arc<Shared>,
    id: u64,
    level: GroupId,
}

impl InPlace {
    /// True once the attempt has ended and its stream is gone.
    pub(crate) fn is_over(&self) -> bool {
        !self
            .shared
            .lock()
            .running
            .iter()
            .any(|attempt| attempt.id == self.id)
    }

    /// True if an attempt below the level runs without such a wait.
    pub(crate) fn others_go_on(&self) -> bool {
        let state = self.shared.lock();
        let waits = |attempt: &Running| {
            state
                .in_place
                .iter()
                .any(|(id, level, _)| *id == attempt.id && *level == self.level)
        };
        state
            .running
            .iter()
            .any(|attempt| attempt.levels.contains(&self.level) && !waits(attempt))
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            let is_own =
                |(id, level, _): &(u64, GroupId, Instant)| *id == self.id && *level == self.level;
            if let Some(at) = state.in_place.iter().position(is_own) {
                state.in_place.swap_remove(at);
            }
        }
        self.shared.advance();
    }
}
