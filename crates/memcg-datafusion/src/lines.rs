//! The lines of a queue: which of the queries that wait starts next.
//!
//! Each tenant has a line, and a query waits behind those of its own. A query of another tenant
//! passes one that waits as long as it takes nothing from it: what waits for a reader that has
//! paused gets no room sooner if others wait, too. Once only queries that run are in its way, those
//! that come later stay behind it until it has started, but for a time: those of a tenant that uses
//! less than its `low`, and those of a tenant whose queries have needed little.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memcg::{Group, GroupId};

use crate::readers::Readers;

/// A query, or a level where one is to run alone, gives back no more once the bytes that it holds
/// have not fallen for this time.
pub(crate) const SETTLED: Duration = Duration::from_millis(25);
/// The same while operators of attempts that are over are still there, as such a part of the
/// patience: each gives back what it holds once its call, or its task's turn, has come to an end.
const LEAVES_PART: u32 = 10;
/// If no attempt runs and nothing moves, others that are not in the queue hold the room: the line
/// waits for them for such a part of the patience.
const STILL_PART: u32 = 50;
/// Attempts that end well, for each that may run side by side, before the level admits one more.
const WELL: usize = 2;
/// A query that is to give way to another one holds its rows back for such a part of the patience.
pub(crate) const HOLDS_PART: u32 = 50;
/// For such a part of its patience a query is passed by those of other tenants that need little, or
/// that use less than their `low`.
const PASSED_BY_SMALL_PART: u32 = 20;
const PASSED_BY_PROTECTED_PART: u32 = 2;
/// What has needed little: such a part of what the level may hold, for all queries of the tenant
/// that run there.
const SMALL_PART: u64 = 16;
/// Ended queries by which a tenant's next one is judged, and tenants that are remembered.
const JUDGED_BY: usize = 4;
const TENANTS: usize = 1_024;

/// The number of reservations of an attempt's operators.
#[derive(Debug, Default)]
pub(crate) struct Reservations(AtomicUsize);

impl Reservations {
    pub(crate) fn begins(&self) {
        // Relaxed: a reservation that has begun holds nothing yet.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// A reservation is gone, and its bytes are back.
    pub(crate) fn ends(&self) {
        // Release: whoever finds the attempt without reservations sees the bytes that are back.
        self.0.fetch_sub(1, Ordering::Release);
    }

    fn are_gone(&self) -> bool {
        // Acquire: see `ends`.
        self.0.load(Ordering::Acquire) == 0
    }
}

/// An attempt that is over, for as long as it has reservations: a task that was aborted ends after
/// the call in which it is.
struct Leaving {
    levels: Arc<[GroupId]>,
    reservations: Arc<Reservations>,
}

/// A query as the lines know it, for as long as it waits or runs.
#[derive(Clone)]
pub(crate) struct Query {
    /// Its group.
    pub(crate) own: Group,
    pub(crate) tenant: Group,
    /// The query's group, and those above it.
    pub(crate) levels: Arc<[GroupId]>,
    /// Most queries of the tenant that run at a time.
    pub(crate) most: usize,
    pub(crate) patience: Duration,
    pub(crate) readers: Arc<Readers>,
}

impl Query {
    fn is_below(&self, level: GroupId) -> bool {
        self.levels.contains(&level)
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) next: u64,
    pub(crate) running: Vec<Running>,
    /// Queries that wait, in the order in which they came.
    pub(crate) waiting: Vec<Waiting>,
    /// Most attempts of a tenant that may run side by side below each level that was full for it.
    widths: HashMap<(GroupId, GroupId), Width>,
    /// Growths that wait in place.
    pub(crate) in_place: Vec<Growth>,
    /// Readers of attempts that hold their rows back.
    pub(crate) holding: Vec<Arc<Readers>>,
    pub(crate) has_thread: bool,
    /// Most bytes that the last queries of each tenant have held.
    sizes: HashMap<GroupId, Sizes>,
    leaving: Vec<Leaving>,
}

/// An attempt that runs.
pub(crate) struct Running {
    pub(crate) id: u64,
    pub(crate) query: Query,
    pub(crate) reservations: Arc<Reservations>,
    /// For each level, true if another attempt has run below it meanwhile.
    pub(crate) beside: Vec<bool>,
    pub(crate) alone: Option<Alone>,
    /// The attempt is the query's last one: it has sent a row, or its plan cannot run twice.
    pub(crate) is_last: bool,
}

/// An attempt that runs alone below a level.
#[derive(Clone)]
pub(crate) struct Alone {
    pub(crate) level: Group,
    /// Others have passed it, and it was refused: no more pass.
    is_passed: bool,
}

/// A growth that waits while its query keeps what it has.
pub(crate) struct Growth {
    pub(crate) id: u64,
    pub(crate) attempt: u64,
    pub(crate) level: Group,
    pub(crate) bytes: u64,
    pub(crate) since: Instant,
}

pub(crate) struct Waiting {
    pub(crate) id: u64,
    /// The query's plan cannot run twice.
    pub(crate) is_last: bool,
    pub(crate) query: Query,
    pub(crate) until: Instant,
    /// `None`: the query is new.
    pub(crate) refused: Option<Refused>,
    pub(crate) is_over: bool,
}

/// A refusal: the level that was full, and what has to change before the query runs again.
pub(crate) struct Refused {
    pub(crate) level: Group,
    /// Attempts that ran beside it below the level, and bytes that others held there.
    pub(crate) beside: usize,
    pub(crate) others: u64,
    /// It is to run alone; true: and no query passes it then.
    pub(crate) alone: Option<bool>,
    /// Those of the attempt that was refused.
    pub(crate) reservations: Arc<Reservations>,
    pub(crate) since: Instant,
    /// Least bytes that the query, or the level where it is to be alone, has held since the
    /// refusal. `moved` is the time of the last fall.
    pub(crate) least: u64,
    pub(crate) moved: Instant,
}

struct Width {
    most: usize,
    ended_well: usize,
}

/// The bytes of a tenant's last queries.
#[derive(Default)]
struct Sizes {
    last: [u64; JUDGED_BY],
    count: usize,
}

impl Sizes {
    fn add(&mut self, bytes: u64) {
        self.last[self.count % JUDGED_BY] = bytes;
        self.count += 1;
    }

    fn most(&self) -> u64 {
        self.last.iter().copied().max().unwrap_or(0)
    }
}

/// A level that is closed for queries that come, by an attempt or a query that waits.
struct Closed {
    /// Number of the attempt or of the query.
    by: u64,
    tenant: GroupId,
    level: Group,
    /// Since when the query waits; `None`: an attempt runs alone.
    since: Option<Instant>,
    /// Times for which queries pass that need little, and those that are protected.
    small: Duration,
    protected: Duration,
    /// It is a query that waits for its next attempt.
    is_in_line: bool,
}

impl State {
    pub(crate) fn below(&self, level: GroupId) -> usize {
        self.running
            .iter()
            .filter(|attempt| attempt.query.is_below(level))
            .count()
    }

    fn of_tenant_below(&self, tenant: GroupId, level: GroupId) -> usize {
        let is_one = |attempt: &&Running| {
            attempt.query.tenant.id() == tenant && attempt.query.is_below(level)
        };
        self.running.iter().filter(is_one).count()
    }

    pub(crate) fn attempt(&self, id: u64) -> Option<&Running> {
        self.running.iter().find(|attempt| attempt.id == id)
    }

    /// Attempts below a level whose readers have paused, and bytes that the others hold, but for
    /// the one with this number.
    pub(crate) fn paused_below(&self, level: GroupId, but: u64) -> (usize, u64) {
        let is_other = |attempt: &&Running| attempt.id != but && attempt.query.is_below(level);
        let others = self.running.iter().filter(is_other);
        let (paused, moving): (Vec<_>, Vec<_>) =
            others.partition(|attempt| attempt.query.readers.have_paused());
        // Queries of one session share their group.
        let mut groups: Vec<&Group> = Vec::new();
        for attempt in moving {
            if !groups.contains(&&attempt.query.own) {
                groups.push(&attempt.query.own);
            }
        }
        let held = |sum: u64, group: &&Group| sum.saturating_add(group.live());
        (paused.len(), groups.iter().fold(0, held))
    }

    /// True if the refused query could start were it not for attempts whose readers go on.
    fn waits_for_moving(&self, refused: &Refused, own: &Group) -> bool {
        let (paused, moving) = self.paused_below(refused.level.id(), u64::MAX);
        match refused.beside {
            0 => refused.others_hold(own).saturating_sub(moving) < refused.others,
            _ if refused.alone.is_some() => paused == 0,
            before => paused < before,
        }
    }

    /// True if the growth would fit were it not for attempts whose readers go on.
    fn grows_without_moving(&self, growth: &Growth) -> bool {
        let (_, moving) = self.paused_below(growth.level.id(), growth.attempt);
        let held = growth.level.usage().saturating_sub(moving);
        held.saturating_add(growth.bytes) <= growth.level.max()
    }

    /// True if an attempt below a level goes on without a growth that waits in place, or waits so at a
    /// level below which one does.
    pub(crate) fn goes_on_below(&self, level: GroupId) -> bool {
        let mut levels = vec![level];
        let mut next = 0;
        while let Some(level) = levels.get(next).copied() {
            next += 1;
            let below = |attempt: &&Running| attempt.query.is_below(level);
            for attempt in self.running.iter().filter(below) {
                let of_attempt = |growth: &&Growth| growth.attempt == attempt.id;
                let mut waits = self.in_place.iter().filter(of_attempt).peekable();
                if waits.peek().is_none() {
                    return true;
                }
                for growth in waits {
                    if !levels.contains(&growth.level.id()) {
                        levels.push(growth.level.id());
                    }
                }
            }
        }
        false
    }

    /// The levels that are closed now.
    fn closed(&self) -> Vec<Closed> {
        let alone = self.running.iter().filter_map(|attempt| {
            let alone = attempt.alone.as_ref()?;
            (!attempt.query.readers.have_paused()).then(|| {
                let passes = if alone.is_passed {
                    Duration::ZERO
                } else {
                    Duration::MAX
                };
                Closed {
                    by: attempt.id,
                    tenant: attempt.query.tenant.id(),
                    level: alone.level.clone(),
                    since: None,
                    small: passes,
                    protected: passes,
                    is_in_line: false,
                }
            })
        });
        let in_place = self.in_place.iter().filter_map(|growth| {
            let query = &self.attempt(growth.attempt)?.query;
            self.grows_without_moving(growth)
                .then(|| Closed::by(growth.attempt, query, &growth.level, growth.since, false))
        });
        let in_line = self.waiting.iter().filter_map(|waiting| {
            let refused = waiting.refused.as_ref().filter(|_| !waiting.is_over)?;
            self.waits_for_moving(refused, &waiting.query.own).then(|| {
                let Refused { level, since, .. } = refused;
                Closed::by(waiting.id, &waiting.query, level, *since, true)
            })
        });
        alone.chain(in_place).chain(in_line).collect()
    }

    /// True if the queries of a tenant have needed little beside what may be held below a level, or
    /// if it is its first one.
    fn needs_little(&self, query: &Query, level: &Group) -> bool {
        let tenant = query.tenant.id();
        let others = self.of_tenant_below(tenant, level.id());
        match self.sizes.get(&tenant) {
            None => others == 0,
            Some(sizes) => {
                let all = sizes.most().saturating_mul(others as u64 + 1);
                all <= level.effective_max() / SMALL_PART
            }
        }
    }

    /// True if the query is to wait for what has closed a level.
    fn waits_for(&self, waiting: &Waiting, closed: &Closed) -> bool {
        let query = &waiting.query;
        if closed.by == waiting.id || !query.is_below(closed.level.id()) {
            return false;
        }
        if closed.is_in_line {
            // Those of its own tenant stand behind it in their line. Of two that were refused the
            // older one goes first, else each would wait for the other.
            let is_older = |refused: &Refused| Some(refused.since) <= closed.since;
            if closed.tenant == query.tenant.id() || waiting.refused.as_ref().is_some_and(is_older)
            {
                return false;
            }
        }
        if closed.tenant == query.tenant.id() {
            return true;
        }
        let waited = closed.since.map_or(Duration::ZERO, |since| since.elapsed());
        let passes = (waited < closed.protected && is_protected(&query.tenant))
            || (waited < closed.small && self.needs_little(query, &closed.level));
        !passes
    }

    /// The level that keeps a query from starting now. `None`: it may start.
    fn obstacle(&self, waiting: &Waiting, closed: &[Closed]) -> Option<GroupId> {
        let query = &waiting.query;
        let tenant = query.tenant.id();
        if self.of_tenant_below(tenant, tenant) >= query.most {
            return Some(tenant);
        }
        let is_full = |level: &GroupId| {
            let width = self.widths.get(&(tenant, *level));
            width.is_some_and(|width| self.of_tenant_below(tenant, *level) >= width.most)
        };
        let full = query.levels.iter().copied().find(is_full);
        let closed = || {
            let first = closed
                .iter()
                .find(|closed| self.waits_for(waiting, closed))?;
            Some(first.level.id())
        };
        full.or_else(closed).or_else(|| {
            let refused = waiting.refused.as_ref()?;
            let level = refused.level.id();
            let beside = self.below(level);
            let has_fewer = match refused.beside {
                0 => refused.others_hold(&query.own) < refused.others,
                _ if refused.alone.is_some() => beside == 0,
                before => beside < before,
            };
            (!has_fewer || !self.has_settled(refused, query)).then_some(level)
        })
    }

    /// True if what has refused the query holds what it will go on to hold.
    fn has_settled(&self, refused: &Refused, query: &Query) -> bool {
        let still = refused.moved.elapsed();
        refused.least == 0
            || (still >= SETTLED
                && (still >= query.patience / LEAVES_PART || !self.is_left(refused)))
    }

    /// True if operators of attempts that are over are still there: any below the level where the
    /// query is to run alone, else its own.
    fn is_left(&self, refused: &Refused) -> bool {
        if refused.alone.is_none() {
            return !refused.reservations.are_gone();
        }
        let level = refused.level.id();
        let mut leaving = self.leaving.iter();
        leaving.any(|leaving| leaving.levels.contains(&level) && !leaving.reservations.are_gone())
    }

    /// Takes the attempt with this number out of those that run.
    pub(crate) fn end(&mut self, id: u64) -> Option<Running> {
        let at = self.running.iter().position(|attempt| attempt.id == id)?;
        let ended = self.running.swap_remove(at);
        self.leaving
            .retain(|leaving| !leaving.reservations.are_gone());
        if !ended.reservations.are_gone() {
            self.leaving.push(Leaving {
                levels: Arc::clone(&ended.query.levels),
                reservations: Arc::clone(&ended.reservations),
            });
        }
        Some(ended)
    }

    /// True if another attempt that is a query's last one, and whose reader goes on, runs below one
    /// of these levels, and the level has refused.
    pub(crate) fn has_last_beside(&self, id: u64, levels: &[GroupId]) -> bool {
        let is_full = |level: &GroupId| {
            levels.contains(level) && self.widths.keys().any(|(_, full)| full == level)
        };
        self.running.iter().any(|other| {
            other.is_last
                && other.id != id
                && !other.query.readers.have_paused()
                && other.query.levels.iter().any(is_full)
        })
    }

    /// Halves the number of attempts of the tenant that may run side by side below a level that has
    /// refused one of them.
    pub(crate) fn narrow(&mut self, tenant: GroupId, level: GroupId) {
        let most = (self.of_tenant_below(tenant, level) / 2).max(1);
        let width = self.widths.entry((tenant, level)).or_insert(Width {
            most,
            ended_well: 0,
        });
        width.most = width.most.min(most);
        width.ended_well = 0;
    }

    /// Counts an attempt that has given all its rows.
    pub(crate) fn ended_well(&mut self, id: u64) {
        let Some(query) = self.attempt(id).map(|attempt| attempt.query.clone()) else {
            return;
        };
        let tenant = query.tenant.id();
        let widths = self.widths.iter_mut();
        for (_, width) in widths.filter(|((of, level), _)| *of == tenant && query.is_below(*level))
        {
            width.ended_well += 1;
            if width.ended_well >= WELL * width.most {
                width.most += 1;
                width.ended_well = 0;
            }
        }
        self.sizes
            .entry(tenant)
            .or_default()
            .add(query.own.peak_live().max());
    }

    /// Forgets the widths of tenants that have no query below a level. The value that goes is
    /// returned: its group's last handle may call listeners.
    pub(crate) fn forget(&mut self) {
        let State {
            widths,
            sizes,
            running,
            waiting,
            ..
        } = self;
        let queries = || {
            let running = running.iter().map(|attempt| &attempt.query);
            running.chain(waiting.iter().map(|waiting| &waiting.query))
        };
        widths.retain(|(tenant, level), _| {
            queries().any(|query| query.tenant.id() == *tenant && query.is_below(*level))
        });
        if sizes.len() > TENANTS {
            sizes.retain(|tenant, _| queries().any(|query| query.tenant.id() == *tenant));
        }
    }

    pub(crate) fn start(&mut self, id: u64, query: Query, alone: Option<Alone>, is_last: bool) {
        let levels = Arc::clone(&query.levels);
        let beside = levels.iter().map(|level| self.below(*level) > 0).collect();
        for other in &mut self.running {
            for (level, beside) in other.query.levels.iter().zip(&mut other.beside) {
                *beside |= levels.contains(level);
            }
        }
        self.running.push(Running {
            id,
            query,
            reservations: Arc::default(),
            beside,
            alone,
            is_last,
        });
    }

    /// The numbers of the queries that wait, in the order in which they are looked at: line by
    /// line. The tenants that use less than their `low` come first, then the more important, then
    /// those that hold less. In a line those that were refused come first, for they came before any
    /// that is new. Behind a new one, such a query could wait for ever: a new one waits for the
    /// refused of other tenants, and these for the older of the refused.
    fn in_order(&self) -> Vec<u64> {
        let mut tenants: Vec<&Group> = Vec::new();
        for waiting in &self.waiting {
            if !tenants.contains(&&waiting.query.tenant) {
                tenants.push(&waiting.query.tenant);
            }
        }
        tenants.sort_by_cached_key(|tenant| {
            (
                !is_protected(tenant),
                u8::MAX - importance(tenant),
                tenant.usage(),
            )
        });
        let of = |tenant: &&Group| {
            let tenant = (*tenant).clone();
            let waiting = self.waiting.iter();
            let line = waiting.filter(move |waiting| waiting.query.tenant == tenant);
            let refused = line.clone().filter(|waiting| waiting.refused.is_some());
            let new = line.filter(|waiting| waiting.refused.is_none());
            refused.chain(new).map(|waiting| waiting.id)
        };
        tenants.iter().flat_map(of).collect()
    }

    /// Starts each query whose turn it is, and ends the waits that are in vain. Returns the readers
    /// of these queries, and of those that hold rows back: they look again.
    pub(crate) fn advance(&mut self) -> Vec<Arc<Readers>> {
        let now = Instant::now();
        let mut wakes = std::mem::take(&mut self.holding);
        if self.waiting.is_empty() {
            return wakes;
        }
        for waiting in &mut self.waiting {
            if let Some(refused) = &mut waiting.refused {
                refused.look(&waiting.query.own, now);
            }
        }
        let mut closed = self.closed();
        // The levels for which a query of a tenant waits: its later ones wait behind it.
        let mut behind = Vec::<(GroupId, GroupId)>::new();
        for id in self.in_order() {
            let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) else {
                continue;
            };
            let waiting = &self.waiting[at];
            if waiting.is_over {
                continue;
            }
            let Query {
                tenant,
                levels,
                patience,
                ..
            } = &waiting.query;
            let tenant = tenant.id();
            let patience = *patience;
            let is_behind = behind
                .iter()
                .any(|(of, level)| *of == tenant && levels.contains(level));
            let obstacle = self.obstacle(waiting, &closed);
            let is_in_vain = |refused: &Refused| {
                refused.beside == 0
                    && refused.since.elapsed() > patience / STILL_PART
                    && self.below(refused.level.id()) == 0
            };
            let is_late = now >= waiting.until || waiting.refused.as_ref().is_some_and(is_in_vain);
            // It would send rows beside another, and so starts as late as rows are held back.
            let is_new =
                waiting.until.saturating_duration_since(now) > patience - patience / HOLDS_PART;
            let is_second = waiting.is_last && is_new && self.has_last_beside(waiting.id, levels);
            let starts = obstacle.is_none() && !is_behind && !is_second;
            match (starts || (is_late && waiting.refused.is_none()), is_late) {
                (true, _) => {
                    let waiting = self.waiting.remove(at);
                    let alone = waiting.refused.and_then(|refused| {
                        Some(Alone {
                            is_passed: refused.alone?,
                            level: refused.level,
                        })
                    });
                    let is_alone = alone.is_some();
                    wakes.push(Arc::clone(&waiting.query.readers));
                    self.start(waiting.id, waiting.query, alone, waiting.is_last);
                    // What it has closed while it waited is open; alone, it closes more.
                    closed.retain(|closed| closed.by != id);
                    if is_alone {
                        closed = self.closed();
                    }
                }
                (false, true) => {
                    self.waiting[at].is_over = true;
                    wakes.push(Arc::clone(&self.waiting[at].query.readers));
                    closed.retain(|closed| closed.by != id);
                }
                (false, false) => {
                    // One that waits for a reader that has paused keeps no other waiting.
                    let moving =
                        |refused: &Refused| self.waits_for_moving(refused, &waiting.query.own);
                    let level = match &waiting.refused {
                        Some(refused) => moving(refused).then(|| refused.level.id()),
                        None => obstacle,
                    };
                    behind.extend(level.map(|level| (tenant, level)));
                }
            }
        }
        wakes
    }
}

impl Closed {
    fn by(id: u64, query: &Query, level: &Group, since: Instant, is_in_line: bool) -> Closed {
        Closed {
            by: id,
            tenant: query.tenant.id(),
            level: level.clone(),
            since: Some(since),
            small: query.patience / PASSED_BY_SMALL_PART,
            protected: query.patience / PASSED_BY_PROTECTED_PART,
            is_in_line,
        }
    }
}

/// Importance of a group: its own, or that of the next group above that has one.
fn importance(group: &Group) -> u8 {
    let mut levels = std::iter::once(group.clone()).chain(group.ancestors());
    levels
        .find_map(|level| level.limits().importance)
        .unwrap_or(0)
}

/// True if the tenant uses less than what is protected of its memory.
fn is_protected(tenant: &Group) -> bool {
    let inspector = tenant.inspect();
    tenant.usage() < inspector.low().max(inspector.min())
}

impl Refused {
    /// Too many rather than too few, as long as the query gives back: the level is read first.
    fn others_hold(&self, own: &Group) -> u64 {
        self.level.live().saturating_sub(own.live())
    }

    fn held(&self, own: &Group) -> u64 {
        if self.alone.is_some() {
            self.level.live()
        } else {
            own.live()
        }
    }

    fn look(&mut self, own: &Group, now: Instant) {
        let held = self.held(own);
        if held < self.least {
            self.least = held;
            self.moved = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use memcg::{Bytes, Limit, Limits, Runtime};

    use super::*;
    use crate::queue::{Place, QueryQueue, Turn};
    use crate::readers::PAUSED;

    const LONG: Duration = Duration::from_secs(3_600);

    fn group(parent: &Group, name: &str, limits: Limits) -> Group {
        parent.create(name, limits).unwrap()
    }

    /// Puts a query of a new group below `tenant` into the line.
    fn arrives(queue: &QueryQueue, tenant: &Group, name: &str) -> (Place, Group, Arc<Readers>) {
        let own = group(tenant, name, Limits::new());
        let readers = Arc::default();
        let place = queue.arrive(&own, &readers, false);
        (place, own, readers)
    }

    fn runs(place: &Place) -> bool {
        matches!(place.turn(), Turn::Runs)
    }

    #[track_caller]
    fn until_it_runs(place: &Place) {
        let end = Instant::now() + Duration::from_secs(60);
        while !runs(place) {
            assert!(Instant::now() < end, "it never runs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Refuses an attempt for what others hold at `level`.
    fn refused(place: &Place, own: &Group, level: &Group) -> Option<Place> {
        let of_others = place.of_others(level, own)?;
        assert!(place.may_run_again(&of_others));
        Some(place.line_up(of_others))
    }

    /// The tenants that use less than their low come first, then the important ones, then those
    /// that hold less. The queries of one tenant stay in their order.
    #[test]
    fn tenants_are_served_in_order() {
        let runtime = Runtime::builder().build().unwrap();
        let root = runtime.root();
        let of = |name: &str, limits: Limits, bytes: u64| {
            let tenant = group(&root, name, limits);
            let held = tenant.charge(Bytes(bytes)).unwrap();
            (tenant, held)
        };
        let tenants = [
            of("holds", Limits::new(), 9 << 20),
            of("holds_less", Limits::new(), 5 << 20),
            of("important", Limits::new().importance(3), 9 << 20),
            of("protected", Limits::new().low(20 << 20), 9 << 20),
            of("above_its_low", Limits::new().low(1 << 20), 8 << 20),
        ];
        let mut state = State::default();
        for round in 0..2 {
            for (tenant, _) in &tenants {
                state.next += 1;
                state.waiting.push(Waiting {
                    id: state.next,
                    is_last: false,
                    query: Query {
                        own: tenant.clone(),
                        tenant: tenant.clone(),
                        levels: Arc::from([tenant.id(), root.id()]),
                        most: usize::MAX,
                        patience: LONG,
                        readers: Arc::default(),
                    },
                    until: Instant::now() + LONG,
                    refused: None,
                    is_over: round > 5,
                });
            }
        }
        assert_eq!(state.in_order(), [4, 9, 3, 8, 2, 7, 5, 10, 1, 6]);
    }

    /// A query that is to run alone is passed by those of another tenant that need little. If it
    /// was refused for them, it runs once more, and nothing passes it.
    #[test]
    fn what_runs_alone_is_passed_once() {
        let runtime = Runtime::builder().max(Limit::Bytes(100)).build().unwrap();
        let root = runtime.root();
        let [a, b] = ["a", "b"].map(|name| group(&root, name, Limits::new()));
        let queue = QueryQueue::new(2, LONG);
        let (first, own, _) = arrives(&queue, &a, "1");
        let (beside, ..) = arrives(&queue, &b, "1");
        assert!(runs(&first) && runs(&beside));
        let alone = refused(&first, &own, &root).unwrap();
        drop(first);
        let (late, ..) = arrives(&queue, &b, "2");
        assert!(!runs(&alone) && !runs(&late), "it would come before it");
        drop(beside);
        until_it_runs(&alone);
        until_it_runs(&late);
        let again = refused(&alone, &own, &root).expect("others have passed it");
        drop(alone);
        assert!(!runs(&again));
        drop(late);
        until_it_runs(&again);
        let (later, ..) = arrives(&queue, &b, "3");
        let (own_later, ..) = arrives(&queue, &a, "2");
        std::thread::sleep(2 * SETTLED);
        assert!(!runs(&later) && !runs(&own_later));
        assert!(
            refused(&again, &own, &root).is_none(),
            "nothing was beside it"
        );
        drop(again);
        until_it_runs(&later);
        until_it_runs(&own_later);
        drop((later, own_later));
        assert_eq!((queue.counts().running, queue.counts().waiting), (0, 0));
    }

    /// A query that is to run alone waits for the operators of attempts that are over, however long
    /// the calls take in which they are: they still hold memory, and refused for it the query would
    /// fail. It does not wait for those of other levels.
    #[test]
    fn what_runs_alone_waits_for_operators_of_attempts_that_are_over() {
        let runtime = Runtime::builder().build().unwrap();
        let [a, b] = ["a", "b"].map(|name| group(&runtime.root(), name, Limits::new()));
        let queue = QueryQueue::new(2, LONG);
        let begins = |tenant: &Group, name: &str| {
            let (place, own, _) = arrives(&queue, tenant, name);
            let reservations = place.reservations();
            reservations.begins();
            let held = own.charge(Bytes(9 << 20)).unwrap();
            (place, own, reservations, held)
        };
        let (first, own, of_first, held_by_first) = begins(&a, "1");
        let (second, _, of_second, held_by_second) = begins(&a, "2");
        let elsewhere = begins(&b, "1");
        let alone = refused(&first, &own, &a).unwrap();
        drop((first, second, elsewhere.0));
        for (reservations, held) in [(of_second, held_by_second), (of_first, held_by_first)] {
            std::thread::sleep(3 * SETTLED);
            assert!(!runs(&alone));
            drop(held);
            reservations.ends();
        }
        until_it_runs(&alone);
    }

    /// A refused query does not wait behind a new one of its tenant that waits for the refused query
    /// of another tenant, which waits for the first: that would be for ever.
    #[test]
    fn a_refused_query_waits_behind_no_new_one() {
        let runtime = Runtime::builder().max(Bytes(1 << 20)).build().unwrap();
        let root = runtime.root();
        let [a, b] = ["a", "b"].map(|name| group(&root, name, Limits::new()));
        let queue = QueryQueue::new(3, LONG);
        // A query of a tenant whose queries need much passes no other.
        let (much, own, _) = arrives(&queue, &b, "0");
        drop(own.charge(Bytes(1 << 19)).unwrap());
        much.ended_well();
        drop(much);
        let [(a1, own_a1, _), (a2, own_a2, _), (b1, own_b1, _)] =
            [(&a, "1"), (&a, "2"), (&b, "1")].map(|(tenant, name)| arrives(&queue, tenant, name));
        let a1_again = refused(&a1, &own_a1, &root).unwrap();
        let (b2, ..) = arrives(&queue, &b, "2");
        assert!(!runs(&b2), "a level is closed");
        let b1_again = refused(&b1, &own_b1, &root).unwrap();
        let a2_again = refused(&a2, &own_a2, &root).unwrap();
        drop((a1, a2, b1));
        for place in [a1_again, b1_again, a2_again, b2] {
            until_it_runs(&place);
        }
    }

    /// What waits for an attempt whose reader has paused closes no level, neither to others nor to
    /// its own tenant. Once the reader goes on, it does.
    #[test]
    fn a_reader_that_has_paused_closes_nothing() {
        let runtime = Runtime::builder().max(Limit::Bytes(100)).build().unwrap();
        let root = runtime.root();
        let [slow, a, b] = ["slow", "a", "b"].map(|name| group(&root, name, Limits::new()));
        let queue = QueryQueue::new(3, LONG);
        let (holder, _, readers) = arrives(&queue, &slow, "1");
        let (first, own, _) = arrives(&queue, &a, "1");
        readers.takes(0);
        std::thread::sleep(2 * PAUSED);
        let waits = refused(&first, &own, &root).unwrap();
        drop(first);
        // Two at a time, so that the second is not the tenant's first one.
        let passed = ["1", "2", "3"].map(|name| arrives(&queue, &b, name));
        let (of_its_own, ..) = arrives(&queue, &a, "2");
        assert!(passed.iter().all(|(place, ..)| runs(place)) && !runs(&waits));
        assert!(runs(&of_its_own));
        drop(of_its_own);
        readers.asks(0, Waker::noop());
        let (late, ..) = arrives(&queue, &b, "4");
        assert!(!runs(&late));
        drop((holder, passed));
        until_it_runs(&waits);
        until_it_runs(&late);
    }

    /// A tenant that uses less than its low passes what waits for queries that run, and so is not slowed
    /// by a flood of others. From its low on it does not.
    #[test]
    fn what_is_protected_passes_what_waits() {
        let runtime = Runtime::builder().max(Bytes(1 << 20)).build().unwrap();
        let root = runtime.root();
        let [flood, plain] = ["flood", "plain"].map(|name| group(&root, name, Limits::new()));
        let protected = group(&root, "protected", Limits::new().low(1 << 18));
        let queue = QueryQueue::new(3, LONG);
        // Queries that need much, so that they pass for no other reason.
        for tenant in [&plain, &protected] {
            let (much, own, _) = arrives(&queue, tenant, "0");
            drop(own.charge(Bytes(1 << 19)).unwrap());
            much.ended_well();
        }
        let [(first, own, _), (beside, ..)] = ["1", "2"].map(|name| arrives(&queue, &flood, name));
        let waits = refused(&first, &own, &root).unwrap();
        drop(first);
        let (late, ..) = arrives(&queue, &plain, "1");
        let (passes, own, _) = arrives(&queue, &protected, "1");
        assert!(!runs(&waits) && !runs(&late) && runs(&passes));
        let held = own.charge(Bytes(1 << 18)).unwrap();
        let (of_rich, ..) = arrives(&queue, &protected, "2");
        assert!(!runs(&of_rich), "it uses its low");
        drop((held, beside, passes));
        for place in [of_rich, waits, late] {
            until_it_runs(&place);
        }
    }

    /// Queries of one group, each with a growth that waits in its place or may do so.
    #[test]
    fn a_growth_waits_for_what_goes_on() {
        let runtime = Runtime::builder().build().unwrap();
        let root = runtime.root();
        let [a, b] = ["a", "b"].map(|name| group(&root, name, Limits::new()));
        let queue = QueryQueue::new(3, LONG);
        let waits = |place: &Place, level: &Group| {
            let growth = queue.wait_in_place(place.id(), level, 1);
            growth.expect("another one runs below the level")
        };
        let [first, second] = ["1", "2"].map(|_| queue.arrive(&a, &Arc::default(), false));
        let (third, ..) = arrives(&queue, &b, "1");
        let of_first = waits(&first, &a);
        assert!(of_first.others_go_on());
        // The second waits where the third goes on, and then where nobody does.
        let of_second = waits(&second, &root);
        assert!(of_first.others_go_on() && of_second.others_go_on());
        let of_third = waits(&third, &root);
        let all = [&of_first, &of_second, &of_third];
        assert!(all.iter().all(|growth| !growth.others_go_on()));
        // Of two growths of one attempt each ends by itself.
        let other = waits(&third, &root);
        drop(of_third);
        assert!(!of_first.others_go_on());
        drop(other);
        assert!(of_first.others_go_on() && of_second.others_go_on());
    }

    /// A query gives way to one whose growth waits in its place, also where that is in its own group.
    #[test]
    fn a_query_gives_way_in_its_own_group() {
        let runtime = Runtime::builder().build().unwrap();
        let a = group(&runtime.root(), "a", Limits::new());
        let queue = QueryQueue::new(3, LONG);
        let [sends, keeps] = ["1", "2"].map(|_| queue.arrive(&a, &Arc::default(), false));
        assert!(keeps.gives_way(&a).is_none());
        let _growth = queue.wait_in_place(sends.id(), &a, 1).unwrap();
        std::thread::sleep(2 * SETTLED);
        assert!(keeps.gives_way(&a).is_some());
    }

    /// What queries of one group hold is counted once.
    #[test]
    fn a_group_of_several_queries_is_counted_once() {
        let runtime = Runtime::builder().build().unwrap();
        let a = group(&runtime.root(), "a", Limits::new());
        let _held = a.charge(Bytes(7 << 20)).unwrap();
        let queue = QueryQueue::new(3, LONG);
        let places = ["1", "2", "3"].map(|_| queue.arrive(&a, &Arc::default(), false));
        assert_eq!(queue.paused_below(&a, places[0].id()), (0, 7 << 20));
    }

    /// A tenant has a bound of its own on the queries that run, and on the wait.
    #[test]
    fn tenants_have_settings() {
        let runtime = Runtime::builder().build().unwrap();
        let services = group(&runtime.root(), "queries", Limits::new());
        let [a, b] = ["a", "b"].map(|name| group(&services, name, Limits::new()));
        let queue = QueryQueue::new(3, Duration::MAX).tenants_of(&services);
        let of_a = queue.at_once(2).patience(Duration::from_millis(50));
        let places = ["1", "2", "3", "4"].map(|name| arrives(&of_a, &a, name).0);
        assert!(runs(&places[0]) && runs(&places[1]));
        assert!(!runs(&places[2]) && !runs(&places[3]));
        assert!(
            ["1", "2", "3"]
                .map(|name| arrives(&queue, &b, name).0)
                .iter()
                .all(runs)
        );
        let [first, _second, third, _fourth] = places;
        drop(first);
        until_it_runs(&third);
        assert_eq!(queue.counts(), of_a.counts());
    }
}
