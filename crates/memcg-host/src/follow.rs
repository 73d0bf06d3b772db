//! A max that follows what the system grants.

use std::fmt;
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memcg::{Bytes, Group, Limit, Percent, Runtime, RuntimeBuilder};

use crate::foreign::contain;
use crate::worker::{Stop, Worker};
use crate::{Host, HostError, HostLimits};

/// The time between two reads of the host's limits by a [`FollowGuard`], unless the caller says
/// otherwise.
pub const PERIOD: Duration = Duration::from_millis(250);

/// So many looks one after the other must find a lower `memory.high` before the max falls to it.
/// Operators and programs write a low one for a moment to make the kernel reclaim, and the kernel
/// kills no process for it.
const LOOKS_AT_HIGH: u32 = 4;

/// Adds to [`RuntimeBuilder`] a max that is a share of the memory that the system grants.
pub trait MaxOfHost {
    /// The max of the root is `share` of [`HostLimits::bytes`], such as `"80%"`, and follows when
    /// that changes. Call it last: what it returns builds the runtime.
    ///
    /// Leave room for what is not charged: the program itself, stacks, and what the allocator
    /// wastes.
    ///
    /// # Errors
    ///
    /// [`HostError::Share`] where the text is no whole percentage of at least 1 %.
    ///
    /// ```
    /// use memcg::Runtime;
    /// use memcg_host::{Host, MaxOfHost};
    ///
    /// let (runtime, follow) = Runtime::builder().max_of_host("80%")?.build()?;
    /// assert_eq!(runtime.root().max(), follow.state().max);
    /// assert!(runtime.root().max() <= Host::new().limits()?.machine / 10 * 9);
    /// # Ok::<(), memcg_host::HostError>(())
    /// ```
    fn max_of_host(self, share: &str) -> Result<HostBuilder, HostError>;
}

/// A max of nothing refuses each charge, which is nobody's wish.
fn is_nothing(share: Percent) -> bool {
    share.of(u64::MAX) == 0
}

impl MaxOfHost for RuntimeBuilder {
    fn max_of_host(self, share: &str) -> Result<HostBuilder, HostError> {
        match share.parse() {
            Ok(Limit::Percent(share)) if !is_nothing(share) => Ok(HostBuilder {
                builder: self,
                follower: Host::new().follower(share),
            }),
            _ => Err(HostError::Share {
                text: share.to_string(),
            }),
        }
    }
}

/// Builds a runtime whose max follows the host: see [`MaxOfHost::max_of_host`].
#[derive(Debug)]
#[must_use = "`build` builds the runtime"]
pub struct HostBuilder {
    builder: RuntimeBuilder,
    follower: HostFollower,
}

impl HostBuilder {
    /// Follows another host than [`Host::new`].
    pub fn host(mut self, host: Host) -> HostBuilder {
        self.follower.source.host = host;
        self
    }

    /// Reads the limits so often; [`PERIOD`] by default.
    pub fn period(mut self, period: Duration) -> HostBuilder {
        self.follower = self.follower.period(period);
        self
    }

    /// See [`HostFollower::strict`].
    pub fn strict(mut self) -> HostBuilder {
        self.follower = self.follower.strict();
        self
    }

    /// See [`HostFollower::less_uncharged`].
    pub fn less_uncharged(mut self) -> HostBuilder {
        self.follower = self.follower.less_uncharged();
        self
    }

    /// See [`HostFollower::allocated`].
    pub fn allocated(mut self, hook: impl Fn() -> u64 + Send + Sync + 'static) -> HostBuilder {
        self.follower = self.follower.allocated(hook);
        self
    }

    /// See [`HostFollower::on_change`].
    pub fn on_change(mut self, hook: impl Fn(&FollowState) + Send + 'static) -> HostBuilder {
        self.follower = self.follower.on_change(hook);
        self
    }

    /// Builds the runtime, and starts the thread that follows.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the limits cannot be read, the runtime cannot be built or no thread can
    /// be started.
    pub fn build(self) -> Result<(Runtime, FollowGuard), HostError> {
        let HostBuilder { builder, follower } = self;
        let limits = follower.limits()?;
        let mut first = FollowState::new(&limits, follower.share);
        if follower.less_uncharged {
            // Nothing is charged yet.
            first.uncharged = match follower.source.by_allocator(|| 0) {
                Some(found) => found,
                None => follower
                    .source
                    .find_in_memory(0, &Mutex::default(), first.granted)?,
            };
            first.take_off();
        }
        let runtime = builder.max(Limit::Bytes(first.max)).build()?;
        let follow = follower.start_at(&runtime.root(), limits)?;
        Ok((runtime, follow))
    }
}

type OnChange = Box<dyn Fn(&FollowState) + Send>;

/// Starts a [`FollowGuard`]: see [`Host::follower`].
#[must_use = "`start` starts it"]
pub struct HostFollower {
    source: Source,
    share: Percent,
    period: Duration,
    strict: bool,
    less_uncharged: bool,
    on_change: Option<OnChange>,
}

/// Where the figures come from.
struct Source {
    host: Host,
    allocated: Option<Allocated>,
}

impl fmt::Debug for HostFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("HostFollower");
        debug
            .field("host", &self.source.host)
            .field("share", &self.share)
            .field("period", &self.period);
        debug
            .field("strict", &self.strict)
            .field("less_uncharged", &self.less_uncharged);
        debug
            .field("allocated", &self.source.allocated.is_some())
            .field("on_change", &self.on_change.is_some())
            .finish()
    }
}

impl HostFollower {
    /// Reads the limits so often, in steps of at least 1 ms; [`PERIOD`] by default.
    pub fn period(mut self, period: Duration) -> HostFollower {
        self.period = period.max(Duration::from_millis(1));
        self
    }

    /// Does not start where a file cannot be read or no mount shows the control group: the start
    /// fails with the first of [`HostLimits::unread`]. Without this call it starts with what is
    /// known, and [`FollowState::fault`] says what is not.
    pub fn strict(mut self) -> HostFollower {
        self.strict = true;
        self
    }

    /// Makes room for memory that is not charged: the max is the share less the anonymous memory of
    /// the process that no charge of the group holds. So a leak or a library's own buffers do not
    /// bring the process to the host's limit while there is something to give back.
    ///
    /// * With [`allocated`](Self::allocated), it is what is allocated beyond what is charged.
    /// * Without it, it is the anonymous memory, swapped out or not, less the most bytes that were
    ///   charged since that memory last fell: what was charged and given back is the allocator's to
    ///   hand out again. Where an allocator keeps such bytes, and a leak then takes them, the leak
    ///   is found once it has taken them all.
    ///
    /// Each look takes a half of a rise, and an eighth of a fall: with the period of 250 ms,
    /// fifteen sixteenths of a rise within a second. The max stays between a quarter of the share
    /// and the share. A change of less than a hundredth of the share is not set. A max that falls
    /// asks reclaimers, as ever. A max that the service sets itself is the most until the host's
    /// limits change. Charges of memory that is not touched yet count as nothing uncharged; charges
    /// of another runtime of the process, or outside of the group, count as uncharged.
    ///
    /// [`FollowState::uncharged`] has the figure; a group that is the root also has it in refusals,
    /// snapshots and metrics
    /// ([`GroupInspector::show_uncharged`](memcg::inspect::GroupInspector::show_uncharged)) until
    /// the thread ends. Where a reading of the process's memory fails later, the figure stays as it
    /// is, and [`FollowState::fault`] says why. A look costs one more small file and a few loads:
    /// it takes as much for credit as [`stocked_bound`](memcg::PageCounter::stocked_bound) says, so
    /// the figure may be that much too high.
    ///
    /// ```
    /// use memcg::Runtime;
    /// use memcg_host::MaxOfHost;
    ///
    /// let (runtime, follow) = Runtime::builder().max_of_host("80%")?.less_uncharged().build()?;
    /// let state = follow.state();
    /// assert!(state.uncharged > 0, "this program has a heap, and charges nothing");
    /// assert!(state.granted / 4 <= state.max && state.max <= state.granted);
    /// # Ok::<(), memcg_host::HostError>(())
    /// ```
    pub fn less_uncharged(mut self) -> HostFollower {
        self.less_uncharged = true;
        self
    }

    /// Asks `hook` for the bytes that the allocator has handed out, such as jemalloc's
    /// `stats.allocated`: for [`less_uncharged`](Self::less_uncharged), which this implies. A hook
    /// that panics counts as none for that look. The thread that asks reclaimers calls it after each
    /// look, for the next one: so one that takes its time delays no limit.
    ///
    /// ```
    /// use memcg::Runtime;
    /// use memcg_host::MaxOfHost;
    ///
    /// let builder = Runtime::builder().max_of_host("80%")?.allocated(|| 64 << 20);
    /// let (_runtime, follow) = builder.build()?;
    /// assert_eq!(follow.state().uncharged, 64 << 20, "nothing is charged");
    /// # Ok::<(), memcg_host::HostError>(())
    /// ```
    pub fn allocated(mut self, hook: impl Fn() -> u64 + Send + Sync + 'static) -> HostFollower {
        self.less_uncharged = true;
        self.source.allocated = Some(Box::new(hook));
        self
    }

    /// Calls `hook` after each change of the state: of the host's bytes, of the file that decides
    /// them, of the max or of the fault. A max that falls has asked reclaimers by then. The thread
    /// that asks them calls the hook and holds no lock, so the hook may do anything, also drop the
    /// [`FollowGuard`]. Limits are read and set while it runs: several changes in that time are one
    /// call, with the last state. Its panics are caught.
    ///
    /// ```
    /// use memcg::{Percent, Runtime};
    /// use memcg_host::Host;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let follower = Host::new().follower(Percent::new(80).unwrap());
    /// let follow = follower.on_change(|now| println!("max {}", now.max)).start(&runtime.root())?;
    /// # drop(follow);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_change(mut self, hook: impl Fn(&FollowState) + Send + 'static) -> HostFollower {
        self.on_change = Some(Box::new(hook));
        self
    }

    /// Sets the max of `group`, and starts the thread.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the limits cannot be read, the max cannot be set or no thread can be
    /// started; [`HostError::Share`] where the share is 0 %.
    pub fn start(self, group: &Group) -> Result<FollowGuard, HostError> {
        let limits = self.limits()?;
        self.start_at(group, limits)
    }

    fn limits(&self) -> Result<HostLimits, HostError> {
        if is_nothing(self.share) {
            let text = self.share.to_string();
            return Err(HostError::Share { text });
        }
        let limits = self.source.host.limits()?;
        if self.strict {
            limits.whole()
        } else {
            Ok(limits)
        }
    }

    fn start_at(self, group: &Group, limits: HostLimits) -> Result<FollowGuard, HostError> {
        let HostFollower {
            source,
            share,
            period,
            less_uncharged,
            on_change,
            ..
        } = self;
        let mut state = FollowState::new(&limits, share);
        let uncharged = Mutex::default();
        let mut by_allocator = None;
        if less_uncharged {
            by_allocator = source.by_allocator(|| charged(group));
            state.uncharged = match by_allocator {
                Some(found) => found,
                None => source.find_in_memory(charged(group), &uncharged, state.granted)?,
            };
            state.take_off();
            show(group, state.uncharged);
        }
        if group.max() != state.max {
            group.set_max(Limit::Bytes(state.max))?;
            state.changes = 1;
        }
        let told = state.clone();
        let following = Arc::new(Following {
            group: group.clone(),
            source,
            share,
            less_uncharged,
            uncharged,
            by_allocator: Mutex::new(by_allocator),
            shown: Mutex::new(Shown {
                state,
                has_fallen: false,
            }),
        });
        let asking = Arc::clone(&following);
        let asks = Worker::start("memcg-host-asks", move |stop| {
            asking.ask_when_rung(stop, told, on_change)
        })?;
        let looking = Arc::clone(&following);
        let bell = asks.bell();
        let looks = Worker::start("memcg-host", move |stop| {
            let mut seen = Seen {
                limits,
                lower_high: 0,
                by_hand: None,
            };
            while stop.sleep(period) && !looking.group.is_offline() {
                // Code of the service is the other thread's: reclaimers and hooks.
                if looking.look(&mut seen) || looking.source.allocated.is_some() {
                    bell.ring();
                }
            }
            if less_uncharged {
                show(&looking.group, 0);
            }
            // No look comes that would end a wait for more than the max that stays.
            looking.group.inspect().keep_max();
            bell.stop();
        })?;
        Ok(FollowGuard {
            following,
            _looks: looks,
            _asks: asks,
        })
    }
}

/// What two threads share: one looks at the limits and sets the max, the other runs code of the
/// service. So however long a reclaimer or a hook takes, a limit that falls is the max within a period.
struct Following {
    group: Group,
    source: Source,
    share: Percent,
    less_uncharged: bool,
    uncharged: Mutex<Uncharged>,
    /// What is uncharged by the allocator's word, when it was asked last.
    by_allocator: Mutex<Option<u64>>,
    shown: Mutex<Shown>,
}

struct Shown {
    state: FollowState,
    /// The max has fallen, and reclaimers have not been asked since.
    has_fallen: bool,
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following")
            .field("group", &self.group)
            .field("state", &self.shown().state)
            .finish_non_exhaustive()
    }
}

impl Following {
    fn shown(&self) -> MutexGuard<'_, Shown> {
        lock(&self.shown)
    }

    /// One look at the limits. True: there is news for the other thread.
    fn look(&self, seen: &mut Seen) -> bool {
        let limits = match self.source.host.limits() {
            Ok(limits) => limits,
            Err(fault) => {
                let mut shown = self.shown();
                let before = shown.state.clone();
                shown.state.fault = Some(fault.to_string());
                return shown.state.is_news(&before);
            }
        };
        let group = &self.group;
        let was = self.shown().state.clone();
        let mut before = was.clone();
        let (mut now, may_rise) = seen.judge(limits, self.share, &before);
        // What was not read may be what limits most.
        if !may_rise && now.granted > before.granted {
            now.granted = before.granted;
            now.max = before.granted;
        }
        if self.less_uncharged {
            let holds = group.max();
            seen.note_max(holds, &now, &before);
            before.max = holds;
            let by_allocator = *lock(&self.by_allocator);
            let found = by_allocator.map_or_else(
                || {
                    let charged = charged(group);
                    self.source
                        .find_in_memory(charged, &self.uncharged, now.granted)
                },
                Ok,
            );
            now.uncharged = match found {
                Ok(found) => smoothed(before.uncharged, found),
                Err(fault) => {
                    now.fault.get_or_insert_with(|| fault.to_string());
                    before.uncharged
                }
            };
            now.take_off();
            now.max = now.max.min(seen.by_hand.unwrap_or(u64::MAX));
            now.keep_if_near(&before);
            show(group, now.uncharged);
        }
        if now.max != before.max {
            // The old max is no longer shown as soon as the new one holds: reclaim takes a while after
            // that.
            group.inspect().move_max(Bytes(now.max));
            now.changes += 1;
        }
        group.inspect().end_vain_waits();
        let has_fallen = now.max < before.max;
        let is_news = has_fallen || now.is_news(&was);
        let mut shown = self.shown();
        shown.state = now;
        // Mutation: a-fall-that-nobody-has-heard-of-is-forgotten
        shown.has_fallen |= has_fallen;
        is_news
    }

    /// Asks reclaimers and tells the hook, whenever there is news. No lock is held meanwhile.
    fn ask_when_rung(&self, stop: &Stop, mut told: FollowState, on_change: Option<OnChange>) {
        while stop.wait_for_bell() {
            let (now, has_fallen) = {
                let mut shown = self.shown();
                let has_fallen = mem::take(&mut shown.has_fallen);
                (shown.state.clone(), has_fallen)
            };
            // Mutation: a-fall-is-noted-as-of-before-its-reclaim
            if has_fallen {
                self.group.inspect().shrink_to_max();
            }
            if has_fallen && self.less_uncharged {
                // Memory that reclaim gave to the system is not the allocator's. By the next look a
                // leak may have taken as much.
                // Mutation: a-fall-is-noted-as-of-before-its-reclaim
                let charged = charged(&self.group);
                self.source.note_fall(charged, &self.uncharged, now.granted);
            }
            let by_allocator = self.source.by_allocator(|| charged(&self.group));
            *lock(&self.by_allocator) = by_allocator;
            if now.is_news(&told)
                && let Some(hook) = &on_change
            {
                contain(|| hook(&now));
            }
            told = now;
        }
    }
}

/// The thread's memory from look to look.
struct Seen {
    /// The last that were whole.
    limits: HostLimits,
    /// Looks, one after the other, that have found a `memory.high` below the max.
    lower_high: u32,
    /// The max that the service has set itself since the host's limits last changed.
    by_hand: Option<u64>,
}

impl Seen {
    /// The group has this max now.
    fn note_max(&mut self, holds: u64, now: &FollowState, before: &FollowState) {
        if now.granted != before.granted {
            // Mutation: a-max-by-hand-outlives-what-was-granted
            self.by_hand = None;
        } else if holds != before.max {
            self.by_hand = Some(holds);
        }
    }

    /// Works out what the limits mean, and says whether the max may rise by them.
    fn judge(
        &mut self,
        mut limits: HostLimits,
        share: Percent,
        before: &FollowState,
    ) -> (FollowState, bool) {
        // Mutation: a-limit-that-is-gone-raises-the-max
        if let Some(fault) = limits.no_longer_shown(&self.limits) {
            limits.unread.push(fault);
        }
        let mut now = FollowState::new(&limits, share);
        // Mutation: a-fault-raises-the-max
        let mut may_rise = now.fault.is_none();
        let is_high = limits.binding().is_some() && limits.binding() == limits.high.as_ref();
        self.lower_high = if is_high && now.granted < before.granted {
            self.lower_high + 1
        } else {
            0
        };
        if (1..LOOKS_AT_HIGH).contains(&self.lower_high) {
            let high = limits.high.take();
            now = FollowState::new(&limits, share);
            may_rise = false;
            limits.high = high;
        }
        now.changes = before.changes;
        // Mutation: a-limit-that-is-half-read-is-remembered
        if limits.unread.is_empty() {
            self.limits = limits;
        }
        (now, may_rise)
    }
}

/// Keeps the max of a group at a share of what the system grants, until it is dropped: see
/// [`Host::follow`]. The drop waits for a reclaimer or a hook that runs. The max then stays as it is,
/// and counts as one that the program has set: a charge that waits for more is refused at once.
#[derive(Debug)]
pub struct FollowGuard {
    following: Arc<Following>,
    // In this order: no look comes that would ring for the other.
    _looks: Worker,
    _asks: Worker,
}

/// Counts of a [`FollowGuard`]'s work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowState {
    /// The bytes that the host grants, as read last.
    pub host: u64,
    /// The file that decides them; `None` where the machine's memory does.
    pub path: Option<PathBuf>,
    /// The share of them that the group may have, in bytes.
    pub granted: u64,
    /// Anonymous memory of the process that no charge of the group holds, smoothed; 0 unless the
    /// max is [less that](HostFollower::less_uncharged).
    pub uncharged: u64,
    /// The max that was set last, in bytes.
    pub max: u64,
    /// Number of times that the max was set since the beginning.
    pub changes: u64,
    /// Why the last reading was not whole, or the max was not set; `None` where all went well.
    pub fault: Option<String>,
}

impl Host {
    /// Prepares a thread that keeps the max of a group at `share` of [`HostLimits::bytes`]: it
    /// reads the limits every [`PERIOD`] and sets the max again when they change.
    ///
    /// A limit that is lowered asks reclaimers, on a second thread: however long they take, the limits
    /// that follow are set in time. A dip loses no request: a charge that waits for more than the max
    /// has fallen to stays in line for one second, and is refused with the first look after that. The
    /// thread sets nothing while the limits stay, so a max that the service sets itself holds until
    /// they change. Where a file cannot be read, or the own group or one above is not shown any more,
    /// the max may fall and does not rise: [`FollowState::fault`] says why. A `memory.high` that falls
    /// counts when four looks have found it, for it may be there for a moment alone. The threads end
    /// with the value that [`start`](HostFollower::start) returns, or when the group goes offline.
    pub fn follower(&self, share: Percent) -> HostFollower {
        HostFollower {
            source: Source {
                host: self.clone(),
                allocated: None,
            },
            share,
            period: PERIOD,
            strict: false,
            less_uncharged: false,
            on_change: None,
        }
    }

    /// [`follower`](Self::follower) with this period, started.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the limits cannot be read, the max cannot be set or no thread can be
    /// started.
    ///
    /// ```
    /// use std::time::Duration;
    /// use memcg::{Percent, Runtime};
    /// use memcg_host::Host;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let share = Percent::new(80).unwrap();
    /// let follow = Host::new().follow(&runtime.root(), share, Duration::from_millis(250))?;
    /// assert_eq!(runtime.root().max(), follow.state().max);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn follow(
        &self,
        group: &Group,
        share: Percent,
        period: Duration,
    ) -> Result<FollowGuard, HostError> {
        self.follower(share).period(period).start(group)
    }
}

impl FollowGuard {
    /// Returns what the thread has read and set last.
    pub fn state(&self) -> FollowState {
        self.following.shown().state.clone()
    }
}

impl FollowState {
    fn new(limits: &HostLimits, share: Percent) -> FollowState {
        FollowState {
            host: limits.bytes(),
            path: limits.binding().map(|limit| limit.path.clone()),
            granted: limits.share(share),
            uncharged: 0,
            max: limits.share(share),
            changes: 0,
            fault: (!limits.unread.is_empty()).then(|| limits.to_string()),
        }
    }
}

// === Memory that is not charged ===

type Allocated = Box<dyn Fn() -> u64 + Send + Sync>;

/// A look takes these parts of a rise and of a fall of what is uncharged.
const RISE_TAKEN: u64 = 2;
const FALL_TAKEN: u64 = 8;

/// The max is at least this part of the share.
const LEAST: u64 = 4;

/// A max that would change by less than this part of the share stays. A fall of the process's
/// memory by less is none.
const NEAR: u64 = 100;

/// Memory of the process from look to look.
#[derive(Debug, Default)]
struct Uncharged {
    /// The most memory since it last fell.
    anon: u64,
    /// The part of it that charges have, or had: the allocator hands that out again.
    held: u64,
}

impl Uncharged {
    /// Memory that charges neither have nor had.
    fn find(&mut self, charged: u64, anon: u64, near: u64) -> u64 {
        // The system has got pages back. The allocator cannot hand these out again, so they are no
        // longer among what charges have had.
        if anon.saturating_add(near) < self.anon {
            self.held = self.held.saturating_sub(self.anon - anon);
            self.anon = anon;
        }
        self.anon = self.anon.max(anon);
        self.held = self.held.max(charged);
        anon.saturating_sub(self.held)
    }
}

/// Bytes that charges of the group hold at least.
fn charged(group: &Group) -> u64 {
    let memory = group.memory();
    memory.usage().saturating_sub(memory.stocked_bound())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source {
    /// What is allocated beyond what is charged, which is read right behind it. `None` where no
    /// allocator says it.
    fn by_allocator(&self, charged: impl FnOnce() -> u64) -> Option<u64> {
        let allocated = self.allocated.as_ref().and_then(contain)?;
        Some(allocated.saturating_sub(charged()))
    }

    fn find_in_memory(
        &self,
        charged: u64,
        uncharged: &Mutex<Uncharged>,
        granted: u64,
    ) -> Result<u64, HostError> {
        let memory = self.host.memory()?;
        let anon = memory.anon.saturating_add(memory.swapped);
        Ok(lock(uncharged).find(charged, anon, granted / NEAR))
    }

    /// Takes note of memory that the system has got back. A reading that fails is one of the next look,
    /// too; and an allocator that says itself what it has handed out needs none.
    fn note_fall(&self, charged: u64, uncharged: &Mutex<Uncharged>, granted: u64) {
        if self.allocated.is_none() {
            let _ = self.find_in_memory(charged, uncharged, granted);
        }
    }
}

/// Has the group's runtime show the figure, where the group is the root: its max is the one that
/// leaves it out.
fn show(group: &Group, uncharged: u64) {
    if group.parent().is_none() {
        group.inspect().show_uncharged(Bytes(uncharged));
    }
}

/// A part of the way from the figure that was shown to the one that was found.
fn smoothed(shown: u64, found: u64) -> u64 {
    if found > shown {
        shown + (found - shown).div_ceil(RISE_TAKEN)
    } else {
        shown - (shown - found).div_ceil(FALL_TAKEN)
    }
}

impl FollowState {
    /// Takes what is uncharged off the max.
    fn take_off(&mut self) {
        self.max = self
            .granted
            .saturating_sub(self.uncharged)
            .max(self.granted / LEAST);
    }

    /// The max that holds stays, where it is near enough and as much is granted.
    fn keep_if_near(&mut self, before: &FollowState) {
        if self.granted == before.granted && self.max.abs_diff(before.max) < self.granted / NEAR {
            self.max = before.max;
        }
    }

    /// More has changed than what is uncharged, of which the max tells what matters.
    fn is_news(&self, before: &FollowState) -> bool {
        FollowState {
            uncharged: before.uncharged,
            ..self.clone()
        } != *before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> FollowState {
        FollowState {
            host: 2_000,
            path: None,
            granted: 1_000,
            uncharged: 0,
            max: 1_000,
            changes: 0,
            fault: None,
        }
    }

    #[test]
    fn it_is_smoothed_and_the_max_is_bounded() {
        let mut state = state();
        let mut seen = Vec::new();
        for found in [200, 200, 600, 600, 0, 0, 90_000] {
            state.uncharged = smoothed(state.uncharged, found);
            state.take_off();
            seen.push((state.uncharged, state.max));
        }
        let expected = [
            (100, 900),
            (150, 850),
            (375, 625),
            (488, 512),
            (427, 573),
            (373, 627),
            (45_187, 250),
        ];
        assert_eq!(seen, expected, "a quarter stays");
        (0..200).for_each(|_| state.uncharged = smoothed(state.uncharged, 0));
        state.take_off();
        assert_eq!((state.uncharged, state.max), (0, 1_000), "it ends");
    }

    /// Memory that was charged and given back is the allocator's to hand out again, until the
    /// system has it back.
    #[test]
    fn what_the_allocator_keeps_is_not_uncharged() {
        let mut uncharged = Uncharged::default();
        let mut find = |charged, anon| uncharged.find(charged, anon, 10);
        assert_eq!(find(700, 780), 80);
        assert_eq!(find(100, 780), 80, "idle, and the heap keeps all");
        assert_eq!(find(700, 785), 85, "the load comes back");
        assert_eq!(find(700, 985), 285, "a leak");
        assert_eq!(
            find(500, 985),
            285,
            "the cache gives back, and the heap keeps it: no more is asked for"
        );
        assert_eq!(find(500, 979), 279, "a small fall is none");
        assert_eq!(find(500, 785), 285, "the system has it back");
        assert_eq!(find(300, 585), 285);
        assert_eq!(find(300, 310), 10, "the leak is mended");
    }

    #[test]
    fn a_small_change_is_not_set() {
        let before = state();
        let mut now = state();
        now.uncharged = 9;
        now.max = 991;
        now.keep_if_near(&before);
        assert_eq!(now.max, 1_000);
        assert!(!now.is_news(&before));
        now.max = 990;
        now.keep_if_near(&before);
        assert!(now.max == 990 && now.is_news(&before));
        now.granted = 999;
        now.max = 999;
        now.keep_if_near(&before);
        assert_eq!(now.max, 999, "what is granted has moved");
    }

    /// A max that the service sets is the most until the host's limits change, and the figure ends
    /// with the thread.
    #[test]
    fn a_max_by_hand_is_the_most() {
        let (runtime, follow) = Runtime::builder()
            .max_of_host("50%")
            .unwrap()
            .allocated(|| 64 << 20)
            .period(Duration::from_millis(1))
            .build()
            .unwrap();
        let root = runtime.root();
        let looks = || std::thread::sleep(Duration::from_millis(100));
        let state = follow.state();
        assert_eq!(
            (root.max(), root.inspect().uncharged()),
            (state.granted - (64 << 20), 64 << 20)
        );
        for by_hand in [state.max / 2, state.max / 2 * 3] {
            root.set_max(Bytes(by_hand)).unwrap();
            looks();
            assert_eq!(
                (root.max(), follow.state().max),
                (by_hand.min(state.max), by_hand.min(state.max))
            );
        }
        drop(follow);
        assert_eq!(root.inspect().uncharged(), 0);
    }
}
