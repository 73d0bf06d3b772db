//! The queue: queries that were refused for room that others hold wait in line, and run again with
//! fewer beside them.
//!
//! An attempt is one run of a query. The queue knows which attempts run below which groups. After a
//! refusal at a level, fewer attempts of the tenant run side by side below it, until enough have
//! ended well there. `lines.rs` says which query starts next.

use std::fmt;
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake;
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Group, GroupId};

use crate::lines::{
    Growth, HOLDS_PART, Query, Refused, Reservations, Running, SETTLED, State, Waiting,
};
use crate::readers::Readers;

/// Time between two looks of the thread at the line: memory that comes back and patience that ends
/// wake no thread.
const LOOK: Duration = Duration::from_millis(5);
/// Longest patience: a time that no process sees the end of, and that can be added to now.
const PATIENCE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Lines in which queries wait for memory that other queries hold, instead of failing.
///
/// A query of a session that is made with [`PoolConfig::queue`](crate::PoolConfig::queue) and that
/// is refused because of others gives all back, waits in line, and runs again: with fewer beside
/// it, and the last time alone below the group that was full. So a query that fits alone is not
/// failed. One that is refused for its own max, or with no query beside it, is not run again.
///
/// A result is never sent twice, and never another one than the query has without a limit. A query
/// runs again only before its first row has left the plan, in whatever partition, by a new physical
/// plan of the same logical plan, and only if each part of the plan is known to give the same rows
/// again: DataFusion's own tables in memory, files, views and series, and what the service
/// [declares](crate::PoolConfig::repeatable). From its first row on, and with any other part from
/// its start, it waits in its place: it keeps what it has, no other query starts below the full
/// group before it goes on, and one that is refused there gives all back at once. A `COPY` or an
/// `INSERT` runs again until its sink gets the first row.
///
/// # Partitions
///
/// The plan of a query in the queue has the partitions that it has without one.
/// `execute_stream_partitioned` gives their streams, to be read in parallel: they wait in line, are
/// refused and run again together, as one query. The first row of any of them is the first row of
/// the query, and so is the end of one, whose rows another run may have put elsewhere. From then on a
/// refusal of any is an error of all. A stream that is dropped leaves the others alone; the last one
/// gives all back.
///
/// `EXPLAIN ANALYZE` waits and runs again as its query does, after its first row as well, for its rows
/// go nowhere. It shows the run that has ended; the metrics of a plan that is kept are those of the run
/// whose rows have come. `QueuedExec` shows how often a query was run again
/// (`restarts`), and the time that it has waited in line (`time_in_line`).
///
/// Two queries that wait in their places may wait for each other. So below a group that has refused
/// a query, one sends rows at a time: another keeps its first rows (16 batches of each partition,
/// for which it is charged) until that one ends or its reader pauses, and for a fiftieth of the
/// patience at most. A query that cannot run again starts as late.
///
/// # Tenants
///
/// A service has one queue. Each child of the root, or of [`tenants_of`](Self::tenants_of), has a
/// line: a query that waits keeps later ones of its tenant behind it, and one that was refused all
/// that are new. The lines are served in this order: tenants that use less than their `low` or
/// `min`, then by
/// [importance](memcg::Limits::importance), then those that hold less.
///
/// Queries of other tenants pass one that waits, where that takes nothing from it: while what is in
/// its way is held by others than queries that go on, such as one whose reader has taken a batch
/// and pauses. Else they stay behind it, but for those of a tenant whose last four queries have
/// held little (all that run, and one more, at most a sixteenth of what the level may hold), for a
/// twentieth of the patience, and those of a tenant that uses less than its `low`, for half of it.
/// So no query starves: its turn comes once those that run have ended.
///
/// A value is a handle: clones are the same queue. [`at_once`](Self::at_once) and
/// [`patience`](Self::patience) return handles with the settings of a tenant.
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
    /// The tenants are the children of this group; `None`: those of the root.
    tenants: Option<GroupId>,
    /// Most queries of the tenant that run at a time.
    most: usize,
    patience: Duration,
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
    state: Mutex<State>,
    restarts: AtomicU64,
    refused: AtomicU64,
    refused_after_first_row: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self) {
        let wakes = self.lock().advance();
        wake(wakes);
    }

    /// Has a thread look at the lines. False: the system gives none.
    fn is_watched(self: &Arc<Self>, state: &mut State) -> bool {
        if !state.has_thread {
            let shared = Arc::downgrade(self);
            let named = thread::Builder::new().name("memcg-queue".to_string());
            state.has_thread = named.spawn(move || watch(&shared)).is_ok();
        }
        state.has_thread
    }

    /// Puts a query into the line, and starts it at once if nothing is in its way. False: the query
    /// waits, and the system gives no thread to look at the line.
    fn line_up(self: &Arc<Self>, waiting: Waiting) -> bool {
        let id = waiting.id;
        let mut state = self.lock();
        state.waiting.push(waiting);
        let wakes = state.advance();
        let waits = state.waiting.iter().any(|waiting| waiting.id == id);
        let is_looked_at = !waits || self.is_watched(&mut state);
        drop(state);
        wake(wakes);
        is_looked_at
    }
}

/// Wakes queries. The caller does not hold the lock: a waker is foreign code.
fn wake(queries: Vec<Arc<Readers>>) {
    queries.into_iter().for_each(Wake::wake);
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
    /// A queue for queries that run at most `attempts` times, at least twice, and wait for at most
    /// `patience` in all. Then a query gets its last refusal. A new query waits behind others for
    /// at most `patience`, too, and then starts. One that was to run alone, and was refused for
    /// others that have passed it, runs once more.
    ///
    /// While queries wait, a thread looks at the line every 5 ms.
    pub fn new(attempts: u32, patience: Duration) -> QueryQueue {
        let shared = Shared {
            attempts: attempts.max(2),
            state: Mutex::default(),
            restarts: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            refused_after_first_row: AtomicU64::new(0),
        };
        QueryQueue {
            shared: Arc::new(shared),
            tenants: None,
            most: usize::MAX,
            patience: patience.min(PATIENCE_MAX),
        }
    }

    /// Returns a handle of the same queue whose tenants are the children of `group`. The default is
    /// the root: its children are the tenants.
    ///
    /// A query of a group that is not below `group` has the tenant that it has by default.
    pub fn tenants_of(&self, group: &Group) -> QueryQueue {
        QueryQueue {
            tenants: Some(group.id()),
            ..self.clone()
        }
    }

    /// Returns a handle of the same queue for a tenant whose queries run at most `most` at a time,
    /// at least one. The others wait in the tenant's line, for their patience at most.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use memcg_datafusion::{PoolConfig, QueryQueue};
    ///
    /// let queue = QueryQueue::new(3, Duration::from_secs(60));
    /// let gold = PoolConfig::new().spill_on_demand().queue(&queue);
    /// let free = PoolConfig::new().spill_on_demand().queue(&queue.at_once(2).patience(Duration::from_secs(10)));
    /// # let _ = (gold, free);
    /// ```
    pub fn at_once(&self, most: usize) -> QueryQueue {
        QueryQueue {
            most: most.max(1),
            ..self.clone()
        }
    }

    /// Returns a handle of the same queue for a tenant whose queries wait for at most `time`.
    pub fn patience(&self, time: Duration) -> QueryQueue {
        QueryQueue {
            patience: time.min(PATIENCE_MAX),
            ..self.clone()
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

    /// The longest wait of a query of this handle's tenant.
    pub(crate) fn longest(&self) -> Duration {
        self.patience
    }

    /// Puts a new query of a group into the line: it runs at once, or waits behind others. Its turn
    /// wakes its readers. `is_last`: its plan cannot run twice.
    pub(crate) fn arrive(&self, own: &Group, readers: &Arc<Readers>, is_last: bool) -> Place {
        let query = self.query(own, readers);
        let id = {
            let mut state = self.shared.lock();
            state.next += 1;
            state.next
        };
        let place = Place {
            queue: self.clone(),
            id,
            attempts: 1,
            until: None,
        };
        let waiting = Waiting {
            id,
            is_last,
            query: query.clone(),
            until: Instant::now() + self.patience,
            refused: None,
            is_over: false,
        };
        if !self.shared.line_up(waiting) {
            let mut state = self.shared.lock();
            let at = state.waiting.iter().position(|waiting| waiting.id == id);
            let gone = at.map(|at| state.waiting.remove(at));
            state.start(id, query, None, is_last);
            drop(state);
            // Without the lock: its waker is foreign.
            drop(gone);
        }
        place
    }

    fn query(&self, own: &Group, readers: &Arc<Readers>) -> Query {
        let groups: Vec<Group> = iter::once(own.clone()).chain(own.ancestors()).collect();
        // Groups are listed from below, and the last one is the root.
        let of = |parent: usize| groups.get(parent.checked_sub(1)?);
        let named = self
            .tenants
            .and_then(|tenants| groups.iter().position(|group| group.id() == tenants));
        let tenant = named.and_then(of).or_else(|| of(groups.len() - 1));
        Query {
            own: own.clone(),
            tenant: tenant.unwrap_or(own).clone(),
            levels: groups.iter().map(Group::id).collect(),
            most: self.most,
            patience: self.patience,
            readers: Arc::clone(readers),
        }
    }

    /// A growth of an attempt waits in its place for room of a level. `None`: nothing of the queue
    /// runs beside it there.
    pub(crate) fn wait_in_place(&self, attempt: u64, level: &Group, bytes: u64) -> Option<InPlace> {
        let mut state = self.shared.lock();
        if state.below(level.id()) < 2 {
            return None;
        }
        state.next += 1;
        let id = state.next;
        state.in_place.push(Growth {
            id,
            attempt,
            level: level.clone(),
            bytes,
            since: Instant::now(),
        });
        Some(InPlace {
            shared: Arc::clone(&self.shared),
            id,
            attempt,
            level: level.id(),
        })
    }

    /// True if a growth has waited in its place for room of a level for a while: what can run again
    /// gives way.
    pub(crate) fn has_in_place(&self, level: &Group) -> bool {
        let state = self.shared.lock();
        let waits = |growth: &Growth| &growth.level == level && growth.since.elapsed() >= SETTLED;
        state.in_place.iter().any(waits)
    }

    pub(crate) fn running_below(&self, group: &Group) -> usize {
        self.shared.lock().below(group.id())
    }

    /// True if another attempt of the queue has run below `level` beside this one.
    pub(crate) fn has_run_beside(&self, attempt: u64, level: &Group) -> bool {
        let state = self.shared.lock();
        state.attempt(attempt).is_some_and(|running| {
            // A group of the pool below the query's own is the query's own, which is the first.
            let at = running
                .query
                .levels
                .iter()
                .position(|id| *id == level.id())
                .unwrap_or(0);
            running.beside.get(at) == Some(&true)
        })
    }

    #[cfg(test)]
    pub(crate) fn paused_below(&self, level: &Group, but: u64) -> (usize, u64) {
        self.shared.lock().paused_below(level.id(), but)
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
        f.debug_struct("QueryQueue")
            .field("attempts", &self.shared.attempts)
            .field("patience", &self.patience)
            .field("counts", &self.counts())
            .finish()
    }
}

/// A query's place, in line or among the attempts that run. Its drop gives the place up.
pub(crate) struct Place {
    queue: QueryQueue,
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
    /// It ran alone, and queries of other tenants have passed it.
    is_passed: bool,
}

impl Place {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.queue.shared
    }

    /// Number of reservations of the attempt's operators.
    pub(crate) fn reservations(&self) -> Arc<Reservations> {
        let state = self.shared().lock();
        let running = state.attempt(self.id);
        running.map_or_else(Arc::default, |running| Arc::clone(&running.reservations))
    }

    pub(crate) fn is_last_try(&self) -> bool {
        self.attempts >= self.shared().attempts
    }

    /// Counts one more run of the query.
    pub(crate) fn restarts(&self) {
        // Relaxed: a figure.
        self.shared().restarts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn turn(&self) -> Turn {
        let state = self.shared().lock();
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
            // The query is giving back what it held. Read before the level, its own bytes are too many
            // rather than too few, and those of others too few: what still comes back of the query
            // must not look later as if others had given it.
            let held = own.live();
            level.live().saturating_sub(held)
        } else {
            0
        };
        let state = self.shared().lock();
        let attempt = state.attempt(self.id)?;
        let levels = &attempt.query.levels;
        let at = levels.iter().position(|id| *id == level.id())?;
        let alone = attempt
            .alone
            .as_ref()
            .map(|alone| levels.iter().position(|level| *level == alone.level.id()));
        // Levels are listed from below.
        let is_alone = alone.is_some_and(|alone| alone >= Some(at));
        let has_beside = attempt.beside[at];
        if (is_alone || others == 0) && !has_beside {
            return None;
        }
        let beside = if has_beside {
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
            was_alone: alone.is_some() && !is_alone,
            is_passed: is_alone,
        })
    }

    /// True if the query has an attempt left, or has run alone only below a level further down, or
    /// others have passed it there.
    pub(crate) fn may_run_again(&self, refusal: &OfOthers) -> bool {
        !self.is_last_try() || refusal.was_alone || refusal.is_passed
    }

    /// Ends the attempt and puts its query back into the line. The query has given all its memory
    /// back, or is about to.
    pub(crate) fn line_up(&self, refusal: OfOthers) -> Place {
        let OfOthers {
            level,
            own,
            beside,
            others,
            is_passed,
            ..
        } = refusal;
        let now = Instant::now();
        let until = self.until.unwrap_or(now + self.queue.patience);
        let attempts = self.attempts + 1;
        let is_alone = attempts >= self.shared().attempts;
        let least = if is_alone { level.live() } else { own.live() };
        let place = |id| Place {
            queue: self.queue.clone(),
            id,
            attempts,
            until: Some(until),
        };
        let (ended, id) = {
            let mut state = self.shared().lock();
            state.next += 1;
            let id = state.next;
            let Some(Running { query, .. }) = state.attempt(self.id) else {
                // It does not run, so it has no place to give up.
                return place(id);
            };
            let tenant = query.tenant.id();
            state.narrow(tenant, level.id());
            (state.end(self.id), id)
        };
        let Some(Running {
            query,
            reservations,
            ..
        }) = ended
        else {
            return place(id);
        };
        let waiting = Waiting {
            id,
            is_last: false,
            query,
            until,
            refused: Some(Refused {
                level,
                beside,
                others,
                alone: is_alone.then_some(is_passed),
                reservations,
                since: now,
                least,
                moved: now,
            }),
            is_over: now >= until,
        };
        if !self.shared().line_up(waiting) {
            let mut state = self.shared().lock();
            state
                .waiting
                .iter_mut()
                .filter(|waiting| waiting.id == id)
                .for_each(|waiting| waiting.is_over = true);
        }
        place(id)
    }

    /// Makes the attempt the query's last one, so that a row may leave. False: another query's last
    /// attempt runs below a level that has refused, and the caller does not `insist`.
    pub(crate) fn makes_last(&self, insists: bool) -> bool {
        let mut state = self.shared().lock();
        let Some(at) = state
            .running
            .iter()
            .position(|attempt| attempt.id == self.id)
        else {
            return true;
        };
        let may = insists
            || state.running[at].is_last
            || !state.has_last_beside(self.id, &state.running[at].query.levels);
        state.running[at].is_last |= may;
        may
    }

    /// Has `readers` woken for another look at [`makes_last`](Self::makes_last). False: the rows
    /// have been held back `since` long ago, or the system gives no thread to look.
    pub(crate) fn holds(&self, since: Instant, readers: &Arc<Readers>) -> bool {
        if since.elapsed() >= self.queue.patience / HOLDS_PART {
            return false;
        }
        let mut state = self.shared().lock();
        // Each partition that holds rows back comes by.
        if !state.holding.iter().any(|held| Arc::ptr_eq(held, readers)) {
            state.holding.push(Arc::clone(readers));
        }
        self.shared().is_watched(&mut state)
    }

    /// Describes the refusal of another attempt for which this one is to give way: its growth waits
    /// in its place.
    pub(crate) fn gives_way(&self, own: &Group) -> Option<OfOthers> {
        // Queries of one session are all of one group: that may be the level, too.
        let level = iter::once(own.clone())
            .chain(own.ancestors())
            .find(|level| self.queue.has_in_place(level))?;
        self.of_others(&level, own)
            .filter(|refusal| self.may_run_again(refusal))
    }

    /// Counts an attempt that has given all its rows. After enough of them, one more may run beside
    /// the others.
    pub(crate) fn ended_well(&self) {
        self.shared().lock().ended_well(self.id);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let gone: (Option<Running>, Option<Waiting>) = {
            let mut state = self.shared().lock();
            let ran = state.end(self.id);
            let at = state.waiting.iter().position(|one| one.id == self.id);
            let waited = at.map(|at| state.waiting.remove(at));
            state.forget();
            (ran, waited)
        };
        // Without the lock: a waker is foreign, and the last handle of a group may call listeners.
        drop(gone);
        self.shared().advance();
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
    attempt: u64,
    level: GroupId,
}

impl InPlace {
    /// True once the attempt has ended and its stream is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.lock().attempt(self.attempt).is_none()
    }

    /// True if an attempt below the level runs without such a wait, or waits for one that does.
    pub(crate) fn others_go_on(&self) -> bool {
        self.shared.lock().goes_on_below(self.level)
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        let gone = {
            let mut state = self.shared.lock();
            let at = state.in_place.iter().position(|one| one.id == self.id);
            at.map(|at| state.in_place.swap_remove(at))
        };
        // Without the lock: the last handle of a group may call listeners.
        drop(gone);
        self.shared.advance();
    }
}
