//! `GroupPool`: DataFusion's memory pool over a group.

use std::fmt;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
#[cfg(feature = "session")]
use std::time::Instant;

use datafusion_common::{DataFusionError, Result};
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use memcg::{Bytes, ChargeError, Group, OnFull, OverLimitError, Registration};

use crate::account::{Account, Accounts, Quick};
#[cfg(feature = "session")]
use crate::allocates::an_allocator_charges;
#[cfg(feature = "session")]
use crate::askers::{Asker, Queued, Refusals};
use crate::config::PoolConfig;
use crate::consumer::Kind;
use crate::ended::{EndedError, Life};
#[cfg(feature = "session")]
use crate::files::Files;
use crate::patience::Patience;
#[cfg(feature = "session")]
use crate::patience::wait_in_place;
use crate::refusal::{PoolError, Words};
use crate::replays::{Replay, Replays};
use crate::sorts::Step;
use crate::spilling::Spilling;
#[cfg(feature = "session")]
use crate::unreserved::Unreserved;

/// A DataFusion memory pool that charges a group: `try_grow` fits below the max of the group and of
/// each group above it.
///
/// A growth that fits costs a raw charge of the group, and takes no lock. With
/// [`spill_on_demand`](PoolConfig::spill_on_demand) a sort takes one while it spills. An operator
/// that was refused takes one for its next growth, and an aggregate for each until it ends. `grow`,
/// which DataFusion does not let fail, is charged by force; [`Group::forced`] shows what is above a
/// max. The pool keeps the group's object, and the group may go offline before it.
///
/// A refusal is a `DataFusionError::ResourcesExhausted`, on which operators spill. Its text is the
/// refusal of the group: which group was full, by how much the growth is short, and which groups
/// hold most. Where the group is cancelled or offline, the error is an [`EndedError`].
///
/// No call blocks, except where the pool has [patience](PoolConfig::patience).
///
/// If the process's allocator charges groups, create the group with
/// [`Limits::cover_allocations`](memcg::Limits::cover_allocations), as
/// [`for_query`](crate::InGroupSession::for_query) does. Then reservations pay for what is
/// allocated in [`run`](GroupPool::run): the group is charged for the larger of the two. A growth
/// and its return then cost some hundred nanoseconds.
///
/// ```
/// use std::sync::Arc;
///
/// use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
/// use memcg::{Limits, Runtime};
/// use memcg_datafusion::GroupPool;
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new().max(100))?;
/// let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(&query));
/// let sorter = MemoryConsumer::new("Sorter").with_can_spill(true).register(&pool);
/// sorter.try_grow(80)?;
/// let refused = sorter.try_grow(30).unwrap_err();
/// assert!(refused.to_string().contains("/q17 refused 30 B for /q17: short by 10 B"), "{refused}");
/// drop(sorter);
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GroupPool {
    quick: Quick,
    reserve: u64,
    patience: Option<Patience>,
    replays: Replays,
    spilling: Spilling,
    shared: Arc<Shared>,
    #[cfg(feature = "session")]
    asker: Asker,
}

/// What the pool of a session shares with those of the attempts of its queries.
#[derive(Debug)]
struct Shared {
    accounts: Accounts,
    reserve: u64,
    patience: Duration,
    life: Arc<Life>,
    /// Bytes that the session's plans allocate beyond the reserved ones, if the pool looks at them.
    #[cfg(feature = "session")]
    unreserved: Option<Arc<Unreserved>>,
    /// Disk managers that charge the session's spill files.
    #[cfg(feature = "session")]
    files: Option<Files>,
    /// The queue of the session's queries.
    #[cfg(feature = "session")]
    queued: Option<Queued>,
    /// Keys of the runtime that SQL of the session may set.
    #[cfg(feature = "session")]
    runtime_keys: Vec<String>,
    _cancelled: Registration,
}

impl Shared {
    fn new(group: &Group, config: &PoolConfig) -> std::result::Result<Shared, PoolError> {
        let max = group.effective_max();
        if config.reserve > 0 && config.reserve >= max {
            return Err(PoolError::Reserve {
                path: group.path(),
                reserve: config.reserve,
                max,
            });
        }
        let accounts = Accounts::new(group, config)?;
        Ok(Shared::of_accounts(group, accounts, config))
    }

    fn of_accounts(group: &Group, accounts: Accounts, config: &PoolConfig) -> Shared {
        let life = Life::new(group.clone());
        let ends = Arc::clone(&life);
        let cancelled = life.group().on_cancel(move |_| ends.cancel());
        Shared {
            accounts,
            reserve: config.reserve,
            patience: config.patience_or_default(),
            life,
            #[cfg(feature = "session")]
            unreserved: None,
            #[cfg(feature = "session")]
            files: None,
            #[cfg(feature = "session")]
            queued: None,
            #[cfg(feature = "session")]
            runtime_keys: Vec::new(),
            _cancelled: cancelled,
        }
    }
}

impl GroupPool {
    /// A pool that charges `group` and does nothing else.
    pub fn new(group: &Group) -> GroupPool {
        let accounts = Accounts::One(Account::plain(group.clone()));
        GroupPool::over(Shared::of_accounts(group, accounts, &PoolConfig::new()))
    }

    /// A pool of `group` that does what `config` says.
    ///
    /// # Errors
    ///
    /// [`PoolError`]: the configuration asks for groups below this one that cannot be created, or its reserve is as
    /// large as the least max on the way up, or larger.
    ///
    /// ```
    /// use memcg::{Limits, Runtime};
    /// use memcg_datafusion::{GroupPool, PoolConfig};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// let pool = GroupPool::with_config(&query, &PoolConfig::new().spill_on_demand())?;
    /// assert_eq!(query.children().len(), 2, "one for what can spill, and one for the rest");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_config(
        group: &Group,
        config: &PoolConfig,
    ) -> std::result::Result<GroupPool, PoolError> {
        Ok(GroupPool::over(Shared::new(group, config)?))
    }

    fn over(shared: impl Into<Arc<Shared>>) -> GroupPool {
        let shared = shared.into();
        GroupPool {
            quick: shared.accounts.quick(),
            reserve: shared.reserve,
            patience: Patience::new(shared.patience),
            replays: Replays::default(),
            spilling: Spilling::default(),
            shared,
            #[cfg(feature = "session")]
            asker: Asker::default(),
        }
    }

    /// Returns the group.
    pub fn group(&self) -> &Group {
        self.shared.life.group()
    }

    /// Runs `work` in the group. If the group [covers](memcg::Limits::cover_allocations), the
    /// pool's reservations pay for what `work` allocates. A session of
    /// [`InGroupSession`](crate::InGroupSession) runs its plans so, and with a
    /// [`GroupTracer`](crate::GroupTracer) the tasks that they spawn. An engine that polls plans
    /// itself calls this for each poll.
    ///
    /// ```
    /// use memcg::{Group, Runtime};
    /// use memcg_datafusion::GroupPool;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let pool = GroupPool::new(&runtime.root());
    /// assert_eq!(pool.run(Group::current), Some(runtime.root()));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        self.group().run(work)
    }

    #[cfg(feature = "session")]
    pub(crate) fn life(&self) -> &Arc<Life> {
        &self.shared.life
    }

    /// Makes the pool of a session. If an allocator charges groups, or the configuration has a
    /// `max_unreserved`, the pool looks at the bytes that its plans allocate.
    #[cfg(feature = "session")]
    pub(crate) fn of_session(group: &Group, config: &PoolConfig) -> Result<Arc<GroupPool>> {
        GroupPool::asked_by(Asker::Nobody, group, config)
    }

    /// Makes the pool of a session for one query.
    #[cfg(feature = "session")]
    pub(crate) fn of_query(group: &Group, config: &PoolConfig) -> Result<Arc<GroupPool>> {
        GroupPool::asked_by(Asker::Query(Arc::default()), group, config)
    }

    #[cfg(feature = "session")]
    fn asked_by(asker: Asker, group: &Group, config: &PoolConfig) -> Result<Arc<GroupPool>> {
        let mut shared = Shared::new(group, config)?;
        if an_allocator_charges() || config.max_unreserved.is_some() {
            shared.unreserved = Some(Unreserved::watch(&shared.life, config.max_unreserved)?);
        }
        shared.files = config
            .spill_counter
            .map(|counter| Files::new(group, counter))
            .transpose()?;
        shared.queued = config.queue.clone().map(|queue| Queued {
            queue,
            repeatable: config.repeatable.clone(),
            refusals: Refusals::default(),
        });
        shared.runtime_keys.clone_from(&config.runtime_keys);
        let pool = GroupPool::over(shared);
        Ok(Arc::new(GroupPool { asker, ..pool }))
    }

    /// Returns a pool that charges the same, for other growths.
    #[cfg(feature = "session")]
    pub(crate) fn of(&self, asker: Asker) -> GroupPool {
        let pool = GroupPool::over(Arc::clone(&self.shared));
        GroupPool { asker, ..pool }
    }

    /// Returns such a pool for what runs above the queue in the plan of a query. `None`: this one is
    /// of that query already, or there is no queue.
    #[cfg(feature = "session")]
    pub(crate) fn above_queue(&self) -> Option<GroupPool> {
        let is_of_all = self.queued().is_some() && matches!(self.asker, Asker::Nobody);
        is_of_all.then(|| self.of(Asker::Query(Arc::default())))
    }

    #[cfg(feature = "session")]
    pub(crate) fn asker(&self) -> &Asker {
        &self.asker
    }

    /// Number of the attempt that asks.
    #[cfg(feature = "session")]
    fn attempt_number(&self) -> Option<u64> {
        self.asker.number()
    }

    #[cfg(not(feature = "session"))]
    #[allow(clippy::unused_self)]
    fn attempt_number(&self) -> Option<u64> {
        None
    }

    #[cfg(feature = "session")]
    pub(crate) fn runtime_keys(&self) -> &[String] {
        &self.shared.runtime_keys
    }

    #[cfg(feature = "session")]
    pub(crate) fn queued(&self) -> Option<&Queued> {
        self.shared.queued.as_ref()
    }

    #[cfg(feature = "session")]
    pub(crate) fn files(&self) -> Option<&Files> {
        self.shared.files.as_ref()
    }

    #[cfg(feature = "session")]
    pub(crate) fn unreserved(&self) -> Option<Arc<Unreserved>> {
        self.shared.unreserved.clone()
    }

    /// Charges the growth of a reservation to the account of its consumer. `has_no_room`: it did
    /// not fit a moment ago.
    #[inline(never)]
    fn try_grow_by_kind(
        &self,
        reservation: &MemoryReservation,
        bytes: u64,
        has_no_room: bool,
    ) -> Result<()> {
        let consumer = reservation.consumer();
        let kind = Kind::of(consumer);
        let account = self.shared.accounts.of(consumer, kind);
        let way_out = self.way_out(account, reservation, kind, bytes);
        let leaves_reserve = || leaves(&account.group, bytes, self.kept(way_out));
        let is_plain = !has_no_room && account.is_plain(kind) && leaves_reserve();
        if is_plain && account.charge_if_room(bytes) {
            return Ok(());
        }
        let grown = self.try_grow_slow(account, reservation, kind, bytes, way_out);
        if grown.is_err() {
            self.shared.life.refusals.fetch_add(1, Ordering::Relaxed);
            self.replays.refused(reservation, kind);
            if way_out == WayOut::MakesRoom {
                self.spilling.begins(reservation, kind, bytes);
            }
        }
        grown
    }

    /// Returns bytes of a reservation to the account of its consumer.
    #[inline(never)]
    fn shrink_by_kind(&self, reservation: &MemoryReservation, bytes: u64) {
        let consumer = reservation.consumer();
        let kind = Kind::of(consumer);
        self.replays.shrunk(reservation, kind);
        let account = self.shared.accounts.of(consumer, kind);
        if account.is_plain(kind) {
            account.uncharge(bytes)
        } else {
            shrink_slow(account, consumer, kind, bytes)
        }
    }

    /// Charges a growth that does not fit at once, or whose consumer may have to spill.
    #[inline(never)]
    fn try_grow_slow(
        &self,
        account: &Account,
        reservation: &MemoryReservation,
        kind: Kind,
        additional: u64,
        way_out: WayOut,
    ) -> Result<()> {
        if let Some(charged) = self.try_charge_sort(account, reservation, kind, additional) {
            return charged;
        }
        self.charge(account, reservation, additional, way_out)
    }

    /// Charges the growth of a reservation.
    fn charge(
        &self,
        account: &Account,
        reservation: &MemoryReservation,
        bytes: u64,
        way_out: WayOut,
    ) -> Result<()> {
        if way_out == WayOut::MakesRoom {
            self.refuse_on_demand(account, reservation)?;
        }
        let kept = self.kept(way_out);
        if !leaves(&account.group, bytes, kept) && !leaves_drained(&account.group, bytes, kept) {
            return self.refuse_for_reserve(account, reservation, bytes, way_out);
        }
        self.charge_or_wait(account, reservation, bytes, way_out)
    }

    fn charge_or_wait(
        &self,
        account: &Account,
        reservation: &MemoryReservation,
        bytes: u64,
        way_out: WayOut,
    ) -> Result<()> {
        let charged = match way_out {
            WayOut::None => account.try_charge_or_start(bytes),
            WayOut::MakesRoom | WayOut::TakesLess(_) => account.try_charge_now(bytes),
        };
        charged.or_else(|error| self.refused(account, reservation, bytes, way_out, error))
    }

    /// Charges the growth of a sort's part, but for what the sort has kept. `None`: it is of no
    /// sort.
    fn try_charge_sort(
        &self,
        account: &Account,
        reservation: &MemoryReservation,
        kind: Kind,
        additional: u64,
    ) -> Option<Result<()>> {
        let consumer = reservation.consumer();
        let (sorts, part) = account.sorts(kind)?;
        let step = sorts.grow(part, consumer.id(), additional);
        give_back(account, step);
        let way_out = if step.is_spilling && step.may_write {
            WayOut::MakesRoom
        } else if step.is_spilling {
            WayOut::None
        } else if step.takes_less {
            WayOut::TakesLess(0)
        } else if self.makes_room(reservation, kind) {
            WayOut::MakesRoom
        } else {
            WayOut::None
        };
        let charged = match step.charge {
            0 => Ok(()),
            bytes if step.is_spilling => self.charge_or_wait(account, reservation, bytes, way_out),
            bytes => self.charge(account, reservation, bytes, way_out),
        };
        if charged.is_err() {
            sorts.undo(
                part,
                consumer.id(),
                additional,
                step.charge,
                way_out == WayOut::MakesRoom,
            );
        }
        Some(charged)
    }

    /// Refuses where the consumer, which makes the room, is to spill for others.
    fn refuse_on_demand(&self, account: &Account, reservation: &MemoryReservation) -> Result<()> {
        let consumer = reservation.consumer();
        let open = account.demand.as_ref().filter(|demand| demand.is_open());
        let wanted =
            open.and_then(|demand| demand.refuses(consumer.id(), reservation.size() as u64));
        wanted.map_or(Ok(()), |wanted| {
            let path = account.group.path();
            let wanted = Bytes(wanted);
            let told = exhausted(
                consumer.name(),
                format_args!("{path} is asked for {wanted}; to go on, spill"),
            );
            self.noted(told, None)
        })
    }

    /// Refuses a growth that does not leave the reserve. Where others hold much more, they begin to
    /// give it.
    #[cold]
    fn refuse_for_reserve(
        &self,
        account: &Account,
        reservation: &MemoryReservation,
        bytes: u64,
        way_out: WayOut,
    ) -> Result<()> {
        let group = &account.group;
        let name = reservation.consumer().name();
        let reserve = at_most_half(group, self.kept(way_out));
        let all = bytes.saturating_add(reserve);
        let is_of_poor = |error: &ChargeError| {
            way_out == WayOut::MakesRoom
                && error
                    .over_limit()
                    .is_some_and(|refusal| is_poor(group, refusal))
        };
        let charged = account.try_charge_now(all).or_else(|error| {
            if is_of_poor(&error) {
                account.try_charge_or_start(all)
            } else {
                Err(error)
            }
        });
        let Err(error) = charged else {
            // It has come back meanwhile.
            account.uncharge(reserve);
            return Ok(());
        };
        let Some(refusal) = error.over_limit() else {
            return failed(name, &error, self.group());
        };
        let path = group.path();
        let [headroom, reserve, bytes] = [group.headroom(), reserve, bytes].map(Bytes);
        let told = exhausted(
            name,
            format_args!(
                "{path} has {headroom} of headroom for {bytes}, and keeps {reserve} for what cannot spill; to go on, \
                 spill"
            ),
        );
        self.noted(told, Some(refusal))
    }

    /// Bytes that a growth is to leave for consumers that cannot spill.
    #[inline]
    fn kept(&self, way_out: WayOut) -> u64 {
        match way_out {
            WayOut::None => 0,
            WayOut::MakesRoom => self.reserve,
            WayOut::TakesLess(room) => self.reserve.max(room),
        }
    }

    /// Handles a growth that its group has refused, before DataFusion is told.
    #[cold]
    fn refused(
        &self,
        account: &Account,
        reservation: &MemoryReservation,
        additional: u64,
        way_out: WayOut,
        refused: ChargeError,
    ) -> Result<()> {
        let consumer = reservation.consumer();
        let group = &account.group;
        let Some(error) = drain_and_retry(account, additional, refused) else {
            return Ok(());
        };
        let Some(refusal) = error.over_limit() else {
            return failed(consumer.name(), &error, self.group());
        };
        let told = |error: ChargeError| {
            self.noted(
                failed(consumer.name(), &error, self.group()),
                error.over_limit(),
            )
        };
        match way_out {
            // Others hold much more: they begin to give, for the growths that follow.
            WayOut::MakesRoom if is_poor(group, refusal) => {
                return account.try_charge_or_start(additional).or_else(told);
            }
            // No other query could take what a sort keeps from it. And what one operator spills may
            // need more to be merged than it would have held.
            WayOut::MakesRoom if self.is_alone(refusal.group()) => {
                return match self.take_kept(account, additional, error, false) {
                    Some(error) => told(error),
                    None => Ok(()),
                };
            }
            WayOut::MakesRoom | WayOut::TakesLess(_) => return told(error),
            WayOut::None => {}
        }
        let Some(error) = self.take_kept(account, additional, error, true) else {
            return Ok(());
        };
        let Some(refusal) = error.over_limit() else {
            return failed(consumer.name(), &error, self.group());
        };
        let waited = self.wait(account, additional, refusal.group());
        waited.unwrap_or(Err(error)).or_else(told)
    }

    /// True if no other group holds anything at the level, and no other attempt runs in this one.
    fn is_alone(&self, level: &Group) -> bool {
        // Read first: what it takes meanwhile counts as that of others.
        let own = self.group().live();
        level.live() <= own && !self.has_beside()
    }

    #[cfg(feature = "session")]
    fn has_beside(&self) -> bool {
        let attempt = self.asker.attempt();
        attempt.is_some_and(|attempt| attempt.has_beside(self.group()))
    }

    #[cfg(not(feature = "session"))]
    #[allow(clippy::unused_self)]
    fn has_beside(&self) -> bool {
        false
    }

    /// Charges a growth out of the bytes that sorts of the attempt keep for their merges. They are
    /// kept from other queries: the operator is what reads the sort, or stands beside it in one plan.
    /// Without them the query alone has as much as with any other pool. `is_needed`: else the
    /// operator would fail. `None`: it is charged.
    fn take_kept(
        &self,
        account: &Account,
        bytes: u64,
        refused: ChargeError,
        is_needed: bool,
    ) -> Option<ChargeError> {
        let mut refused = refused;
        loop {
            let short = refused
                .over_limit()
                .filter(|refusal| refusal.group() != &account.group)
                .map_or(0, OverLimitError::want);
            if short == 0
                || !self
                    .shared
                    .accounts
                    .take_kept(short, is_needed, self.attempt_number())
            {
                return Some(refused);
            }
            refused = account.try_charge_now(bytes).err()?;
        }
    }

    /// Waits for memory that `level` has refused. `None`: the pool may not wait, or the memory has
    /// not come.
    fn wait(
        &self,
        account: &Account,
        bytes: u64,
        level: &Group,
    ) -> Option<std::result::Result<(), ChargeError>> {
        let waits = &self.shared.life.waits;
        let patience = |of_queue, gives_up: &dyn Fn() -> bool| {
            self.patience
                .as_ref()?
                .wait((account, bytes), level, waits, of_queue, gives_up)
        };
        #[cfg(feature = "session")]
        if let Some(attempt) = self.asker.attempt() {
            let in_place =
                |place| wait_in_place(account, bytes, level, attempt.patience(), &place, waits);
            if let Some(place) = attempt.wait_in_place(level, bytes) {
                return in_place(place);
            }
            let begun = Instant::now();
            let longest = || attempt.longest_wait(level);
            let waited = if longest().is_zero() {
                None
            } else {
                let gives_up = || attempt.gives_back(level) || begun.elapsed() > longest();
                patience(attempt.patience_of_last(level), &gives_up)
            };
            if longest() < Duration::MAX {
                attempt.has_waited(begun.elapsed());
            }
            if waited.is_some() || attempt.refuses() {
                return waited;
            }
            // The first row has left meanwhile.
            return attempt.wait_in_place(level, bytes).and_then(in_place);
        }
        #[cfg(feature = "session")]
        if let Some(Queued { queue, .. }) = self.queued() {
            return patience(None, &|| queue.has_in_place(level));
        }
        patience(None, &|| false)
    }

    /// Keeps a refusal, and returns it for the operator. `refusal` is the group's; `None`: the pool
    /// has refused before it asked the group.
    #[cfg_attr(not(feature = "session"), allow(clippy::unused_self))]
    fn noted(&self, told: Result<()>, refusal: Option<&OverLimitError>) -> Result<()> {
        #[cfg(feature = "session")]
        if let Some(queued) = self.queued() {
            let level = refusal
                .map(|refusal| refusal.group().clone())
                .or_else(|| self.group().parent())
                .unwrap_or_else(|| self.group().clone());
            match self.asker.attempt() {
                Some(attempt) => attempt.refusals.note(&told, level),
                None => queued.refusals.note(&told, level),
            }
        }
        #[cfg(not(feature = "session"))]
        let _ = refusal;
        told
    }

    /// Way out of a consumer that is refused this growth. The call counts the growth.
    #[inline]
    fn way_out(
        &self,
        account: &Account,
        reservation: &MemoryReservation,
        kind: Kind,
        bytes: u64,
    ) -> WayOut {
        match self
            .replays
            .grows(reservation, kind, bytes, account.demand.is_some())
        {
            Some(Replay::TakesLess(room)) => WayOut::TakesLess(room),
            Some(Replay::Needs) => WayOut::None,
            None if self.makes_room(reservation, kind)
                && !self.spilling.needs(reservation, kind, bytes) =>
            {
                WayOut::MakesRoom
            }
            None => WayOut::None,
        }
    }

    /// True if a consumer that is refused makes the room itself: it spills or passes on what it
    /// has. The size is that of before the growth, in DataFusion 55; it decides about no byte.
    #[inline]
    fn makes_room(&self, reservation: &MemoryReservation, kind: Kind) -> bool {
        kind == Kind::Exchange
            || (kind.gives_back(reservation.consumer()) && reservation.size() > 0)
    }
}

/// Reaction of an operator to a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WayOut {
    /// It fails.
    None,
    /// It spills, or passes on what it has.
    MakesRoom,
    /// It reads fewer files at once. It is to leave so much.
    TakesLess(u64),
}

/// True if a growth leaves what is kept for consumers that cannot spill.
#[inline]
fn leaves(group: &Group, additional: u64, kept: u64) -> bool {
    kept == 0
        || group.headroom() >= kept.saturating_add(additional)
        || group.headroom() >= at_most_half(group, kept).saturating_add(additional)
}

/// The same once the credit that threads have at the highest level without room is drained:
/// headroom counts it as used.
#[cold]
fn leaves_drained(group: &Group, additional: u64, kept: u64) -> bool {
    let needed = at_most_half(group, kept).saturating_add(additional);
    let is_short = |level: &Group| level.max().saturating_sub(level.usage()) < needed;
    let highest = iter::once(group.clone())
        .chain(group.ancestors())
        .filter(is_short)
        .last();
    highest.is_some_and(|level| level.memory().drain() > 0) && group.headroom() >= needed
}

/// Bytes that are kept for consumers that cannot spill: at most half of all there is.
#[cold]
fn at_most_half(group: &Group, kept: u64) -> u64 {
    kept.min(group.effective_max() / 2)
}

/// Returns bytes to an account that is asked to spill, or in which a sort spills.
#[cold]
#[inline(never)]
fn shrink_slow(account: &Account, consumer: &MemoryConsumer, kind: Kind, bytes: u64) {
    let step = match account.sorts(kind) {
        None => Step {
            uncharge: bytes,
            sorter: Some(consumer.id()),
            ..Step::default()
        },
        Some((sorts, part)) => sorts.shrink(part, consumer.id(), bytes),
    };
    give_back(account, step);
}

/// Charges again where threads have credit below the level that refused, which costs a barrier.
/// `None`: it fits.
fn drain_and_retry(
    account: &Account,
    additional: u64,
    refused: ChargeError,
) -> Option<ChargeError> {
    let has_credit = |refusal: &OverLimitError| {
        refusal.stocked_bound() > 0 && refusal.group().memory().drain() > 0
    };
    if refused.over_limit().is_some_and(has_credit) {
        return account.try_charge_now(additional).err();
    }
    Some(refused)
}

/// True if a group, with all that is beside it up to the level that refused, holds less than a
/// quarter of what the largest there holds. Then others are to give, and else each for itself:
/// where the level's groups hold about as much, each that would ask the others would have all of
/// them spill.
fn is_poor(group: &Group, refusal: &OverLimitError) -> bool {
    let mut branch = group.clone();
    while let Some(parent) = branch.parent() {
        if &parent == refusal.group() {
            let most = refusal.holders().map(|(_, usage)| usage).max().unwrap_or(0);
            return branch.usage() < most / 4;
        }
        branch = parent;
    }
    false
}

/// Uncharges what a consumer gave back or a sort has let go of.
fn give_back(account: &Account, step: Step) {
    if step.uncharge > 0 {
        account.uncharge(step.uncharge);
        if let (Some(demand), Some(sorter)) = (
            account.demand.as_ref().filter(|demand| demand.is_open()),
            step.sorter,
        ) {
            demand.came_back(sorter, step.uncharge);
        }
    }
}

/// Error that DataFusion gets for a charge that was not made.
fn failed(consumer: &str, error: &ChargeError, own: &Group) -> Result<()> {
    match (EndedError::from_charge(error), error.over_limit()) {
        (Some(ended), _) => Err(ended.into_error()),
        (None, Some(refusal)) => exhausted(consumer, format_args!("{}", Words::of(refusal, own))),
        (None, None) => exhausted(consumer, format_args!("{error}")),
    }
}

/// The error on which operators spill.
fn exhausted(consumer: &str, sentence: fmt::Arguments<'_>) -> Result<()> {
    Err(DataFusionError::ResourcesExhausted(format!(
        "{consumer}: {sentence}"
    )))
}

impl MemoryPool for GroupPool {
    fn name(&self) -> &str {
        "group"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        #[cfg(feature = "session")]
        if let Some(reservations) = self.asker.reservations() {
            reservations.begins();
        }
        let kind = Kind::of(consumer);
        if kind.part().is_some()
            && let Some((sorts, part)) = self.shared.accounts.of(consumer, kind).sorts(kind)
        {
            sorts.register(part, consumer.id(), self.attempt_number());
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.replays.end(consumer);
        self.spilling.end(consumer);
        let kind = Kind::of(consumer);
        let account = self.shared.accounts.of(consumer, kind);
        if let Some((sorts, part)) = account.sorts(kind) {
            account.uncharge(sorts.end(part, consumer.id()));
        }
        if let Some(demand) = account.demand.as_ref().filter(|demand| demand.is_open()) {
            demand.gone(consumer.id());
        }
        // Last: all that it held is back.
        #[cfg(feature = "session")]
        if let Some(reservations) = self.asker.reservations() {
            reservations.ends();
        }
    }

    #[inline]
    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        let consumer = reservation.consumer();
        let kind = Kind::of(consumer);
        let account = self.shared.accounts.of(consumer, kind);
        let bytes = match account.sorts(kind) {
            None => additional as u64,
            Some((sorts, part)) => {
                let step = sorts.grow(part, consumer.id(), additional as u64);
                give_back(account, step);
                step.charge
            }
        };
        account.charge(bytes);
    }

    /// The first arm is the whole way of most returns.
    #[inline]
    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        match self.quick.of(reservation.consumer()) {
            Some(group) if reservation.size() > 0 => group.raw().uncharge(shrink),
            _ => self.shrink_by_kind(reservation, shrink as u64),
        }
    }

    /// The same of a growth that fits at once.
    #[inline]
    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        let bytes = additional as u64;
        match self.quick.of(consumer) {
            Some(group)
                if !consumer.can_spill()
                    || (self.replays.are_none() && leaves(group, bytes, self.reserve)) =>
            {
                if group.raw().charge_with(additional, OnFull::IfRoom).is_ok() {
                    Ok(())
                } else {
                    self.try_grow_by_kind(reservation, bytes, true)
                }
            }
            _ => self.try_grow_by_kind(reservation, bytes, false),
        }
    }

    /// Bytes that the group holds, those below it included. The call costs what [`Group::live`]
    /// costs.
    fn reserved(&self) -> usize {
        usize::try_from(self.group().live()).unwrap_or(usize::MAX)
    }

    /// The least max of the group and of those above it.
    fn memory_limit(&self) -> MemoryLimit {
        match self.group().effective_max() {
            u64::MAX => MemoryLimit::Infinite,
            max => MemoryLimit::Finite(usize::try_from(max).unwrap_or(usize::MAX)),
        }
    }
}

impl fmt::Display for GroupPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group({})", self.group().path())
    }
}
