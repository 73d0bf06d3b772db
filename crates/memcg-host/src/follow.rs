//! A max that follows what the system grants.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memcg::expert::Inspect as _;
use memcg::{Bytes, Group, Limit, Percent, Runtime, RuntimeBuilder};

use crate::foreign::contain;
use crate::worker::Worker;
use crate::{Host, HostError, HostLimits};

/// The time between two reads of the host's limits by a [`Follow`], unless the caller says otherwise.
pub const PERIOD: Duration = Duration::from_millis(250);

/// So many looks one after the other must find a lower `memory.high` before the max falls to it. Operators and programs
/// write a low one for a moment to make the kernel reclaim, and the kernel kills no process for it.
const LOOKS_AT_HIGH: u32 = 4;

/// Adds to [`RuntimeBuilder`] a max that is a share of the memory that the system grants.
pub trait MaxOfHost {
    /// The max of the root is `share` of [`HostLimits::bytes`], such as `"80%"`, and follows when that changes. Call it
    /// last: what it returns builds the runtime.
    ///
    /// Leave room for what is not charged: the program itself, stacks, and what the allocator wastes.
    ///
    /// # Errors
    ///
    /// [`HostError::Share`] where the text is no whole percentage.
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

impl MaxOfHost for RuntimeBuilder {
    fn max_of_host(self, share: &str) -> Result<HostBuilder, HostError> {
        match share.parse() {
            Ok(Limit::Percent(share)) => Ok(HostBuilder { builder: self, follower: Host::new().follower(share) }),
            _ => Err(HostError::Share { text: share.to_string() }),
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
        self.follower.host = host;
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

    /// See [`HostFollower::on_change`].
    pub fn on_change(mut self, hook: impl Fn(&FollowState) + Send + 'static) -> HostBuilder {
        self.follower = self.follower.on_change(hook);
        self
    }

    /// Builds the runtime, and starts the thread that follows.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the limits cannot be read, the runtime cannot be built or no thread can be started.
    pub fn build(self) -> Result<(Runtime, Follow), HostError> {
        let HostBuilder { builder, follower } = self;
        let limits = follower.limits()?;
        let mut first = FollowState::new(&limits, follower.share);
        if follower.less_uncharged {
            // Nothing is charged yet.
            first.take_off(Some(follower.host.memory()?.anon), 1);
        }
        let runtime = builder.max(Limit::Bytes(first.max)).build()?;
        let follow = follower.start_at(&runtime.root(), limits)?;
        Ok((runtime, follow))
    }
}

type OnChange = Box<dyn Fn(&FollowState) + Send>;

/// Starts a [`Follow`]: see [`Host::follower`].
#[must_use = "`start` starts it"]
pub struct HostFollower {
    host: Host,
    share: Percent,
    period: Duration,
    strict: bool,
    less_uncharged: bool,
    on_change: Option<OnChange>,
}

impl fmt::Debug for HostFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("HostFollower");
        debug.field("host", &self.host).field("share", &self.share).field("period", &self.period);
        debug.field("strict", &self.strict).field("less_uncharged", &self.less_uncharged);
        debug.field("on_change", &self.on_change.is_some()).finish()
    }
}

impl HostFollower {
    /// Reads the limits so often, in steps of at least 1 ms; [`PERIOD`] by default.
    pub fn period(mut self, period: Duration) -> HostFollower {
        self.period = period.max(Duration::from_millis(1));
        self
    }

    /// Does not start where a file cannot be read or no mount shows the control group: the start fails with the first of
    /// [`HostLimits::unread`]. Without this call it starts with what is known, and [`FollowState::fault`] says what is not.
    pub fn strict(mut self) -> HostFollower {
        self.strict = true;
        self
    }

    /// Makes room for memory that nobody charges: the max is the share less the anonymous memory of the process that no
    /// charge of the group holds. So a leak, a library's own buffers or what the allocator keeps do not bring the process
    /// to the host's limit while there is something to give back.
    ///
    /// Each look takes a quarter of the difference between what was shown before and what it has found: with the period of
    /// 250 ms, two thirds within a second. The max stays between a quarter of the share and the share. A change of less
    /// than a hundredth of the share is not set. A max that falls asks reclaimers, as ever. Charges of memory that is not
    /// touched yet count as nothing uncharged. [`FollowState::uncharged`] has the figure; a group that is the root also has
    /// it in refusals, snapshots and metrics ([`Inspect::show_uncharged`](memcg::expert::Inspect::show_uncharged)). Without
    /// a reading of the process's memory the figure stays as it is, and [`FollowState::fault`] says why.
    ///
    /// A look costs one more small file and a [`Group::live`].
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

    /// Calls `hook` after each change of the state: of the host's bytes, of the file that decides them, of the max or of
    /// the fault. A max that falls has asked reclaimers by then. The thread that follows calls the hook and holds no
    /// lock, so the hook may do anything, also drop the [`Follow`]. No limit is read while it runs. Its panics are caught.
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
    /// [`HostError`] where the limits cannot be read, the max cannot be set or no thread can be started.
    pub fn start(self, group: &Group) -> Result<Follow, HostError> {
        let limits = self.limits()?;
        self.start_at(group, limits)
    }

    fn limits(&self) -> Result<HostLimits, HostError> {
        let limits = self.host.limits()?;
        if self.strict { limits.whole() } else { Ok(limits) }
    }

    fn start_at(self, group: &Group, limits: HostLimits) -> Result<Follow, HostError> {
        let mut state = FollowState::new(&limits, self.share);
        if self.less_uncharged {
            state.take_off(Some(self.uncharged(group)?), 1);
            show(group, state.uncharged);
        }
        if group.max() != state.max {
            group.set_max(Limit::Bytes(state.max))?;
            state.changes = 1;
        }
        let state = Arc::new(Mutex::new(state));
        let (shown, group) = (Arc::clone(&state), group.clone());
        let worker = Worker::start("memcg-host", move |stop| {
            let mut seen = Seen { limits, lower_high: 0 };
            while stop.sleep(self.period) && !group.is_offline() {
                let before = lock(&shown).clone();
                self.step(&group, &shown, &mut seen);
                let now = lock(&shown).clone();
                if now.is_news(&before)
                    && let Some(hook) = &self.on_change
                {
                    contain(|| hook(&now));
                }
            }
        })?;
        Ok(Follow { state, _worker: worker })
    }

    /// One look at the limits. No lock is held while the max is set, for that runs reclaimers.
    fn step(&self, group: &Group, shown: &Mutex<FollowState>, seen: &mut Seen) {
        let limits = match self.host.limits() {
            Ok(limits) => limits,
            Err(fault) => {
                lock(shown).fault = Some(fault.to_string());
                return;
            }
        };
        let before = lock(shown).clone();
        let (mut now, may_rise) = seen.judge(limits, self.share, &before);
        if !may_rise && now.granted > before.granted {
            (now.granted, now.max) = (before.granted, before.granted);
        }
        if self.less_uncharged {
            let found = self.uncharged(group);
            now.uncharged = before.uncharged;
            let found = found.map_err(|fault| now.fault.get_or_insert_with(|| fault.to_string()).clone());
            now.take_off(found.ok(), TAKEN);
            now.keep_if_near(&before);
            show(group, now.uncharged);
        }
        if now.max != before.max {
            // The old max is no longer shown as soon as the new one holds: reclaim may take a while after that.
            match group.memory().set_max_now(Limit::Bytes(now.max)) {
                Ok(_) => now.changes += 1,
                Err(fault) => {
                    now.fault = Some(format!("max {}: {fault}", Bytes(now.max)));
                    now.max = before.max;
                }
            }
        }
        let has_fallen = now.max < before.max;
        let max = now.max;
        *lock(shown) = now;
        if has_fallen && let Err(fault) = group.set_max(Limit::Bytes(max)) {
            lock(shown).fault = Some(fault.to_string());
        }
    }
}

/// The thread's memory from look to look.
struct Seen {
    /// The last that were whole.
    limits: HostLimits,
    /// Looks, one after the other, that have found a `memory.high` below the max.
    lower_high: u32,
}

impl Seen {
    /// Works out what the limits mean, and says whether the max may rise by them.
    fn judge(&mut self, mut limits: HostLimits, share: Percent, before: &FollowState) -> (FollowState, bool) {
        if let Some(fault) = limits.no_longer_shown(&self.limits) {
            limits.unread.push(fault);
        }
        let mut now = FollowState::new(&limits, share);
        let mut may_rise = now.fault.is_none();
        let is_high = limits.binding().is_some() && limits.binding() == limits.high.as_ref();
        self.lower_high = if is_high && now.granted < before.granted { self.lower_high + 1 } else { 0 };
        if (1..LOOKS_AT_HIGH).contains(&self.lower_high) {
            let high = limits.high.take();
            now = FollowState::new(&limits, share);
            may_rise = false;
            limits.high = high;
        }
        now.changes = before.changes;
        if limits.unread.is_empty() {
            self.limits = limits;
        }
        (now, may_rise)
    }
}

/// Keeps the max of a group at a share of what the system grants, until it is dropped: see [`Host::follow`].
#[derive(Debug)]
pub struct Follow {
    state: Arc<Mutex<FollowState>>,
    _worker: Worker,
}

/// Counts of a [`Follow`]'s work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowState {
    /// The bytes that the host grants, as read last.
    pub host: u64,
    /// The file that decides them; `None` where the machine's memory does.
    pub path: Option<PathBuf>,
    /// The share of them that the group may have, in bytes.
    pub granted: u64,
    /// Anonymous memory of the process that no charge of the group holds, smoothed; 0 unless the max is
    /// [less that](HostFollower::less_uncharged).
    pub uncharged: u64,
    /// The max that was set last, in bytes.
    pub max: u64,
    /// Number of times that the max was set since the beginning.
    pub changes: u64,
    /// Why the last reading was not whole, or the max was not set; `None` where all went well.
    pub fault: Option<String>,
}

impl Host {
    /// Prepares a thread that keeps the max of a group at `share` of [`HostLimits::bytes`]: it reads the limits every
    /// [`PERIOD`] and sets the max again when they change.
    ///
    /// The thread calls [`Group::set_max`], so a limit that is lowered asks reclaimers on that thread. It sets nothing
    /// while the limits stay, so a max that the service sets itself holds until they change. Where a file cannot be read,
    /// or a group above is not shown any more, the max may fall and does not rise: [`FollowState::fault`] says why. A
    /// `memory.high` that falls counts when four looks have found it, for it may be there for a moment alone. The thread
    /// ends with the value that [`start`](HostFollower::start) returns, or when the group goes offline.
    pub fn follower(&self, share: Percent) -> HostFollower {
        HostFollower {
            host: self.clone(),
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
    /// [`HostError`] where the limits cannot be read, the max cannot be set or no thread can be started.
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
    pub fn follow(&self, group: &Group, share: Percent, period: Duration) -> Result<Follow, HostError> {
        self.follower(share).period(period).start(group)
    }
}

impl Follow {
    /// Returns what the thread has read and set last.
    pub fn state(&self) -> FollowState {
        lock(&self.state).clone()
    }
}

fn lock(state: &Mutex<FollowState>) -> MutexGuard<'_, FollowState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
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

// === What nobody charges ===

/// A look takes this part of a change of what is uncharged.
const TAKEN: u64 = 4;

/// The max is at least this part of the share.
const LEAST: u64 = 4;

/// A max that would change by less than this part of the share stays.
const NEAR: u64 = 100;

impl HostFollower {
    fn uncharged(&self, group: &Group) -> Result<u64, HostError> {
        let memory = self.host.memory()?;
        Ok(memory.anon.saturating_sub(group.live()))
    }
}

/// Has the group's runtime show the figure, where the group is the root: its max is the one that leaves it out.
fn show(group: &Group, uncharged: u64) {
    if group.parent().is_none() {
        group.show_uncharged(Bytes(uncharged));
    }
}

impl FollowState {
    /// Takes what nobody charges off the max: this part of what a look has found otherwise. `None`: it has found nothing,
    /// and the figure stays.
    fn take_off(&mut self, found: Option<u64>, part: u64) {
        if let Some(found) = found {
            let step = found.abs_diff(self.uncharged).div_ceil(part);
            self.uncharged = if found > self.uncharged { self.uncharged + step } else { self.uncharged - step };
        }
        self.max = self.granted.saturating_sub(self.uncharged).max(self.granted / LEAST);
    }

    /// The max that holds stays, where it is near enough and as much is granted.
    fn keep_if_near(&mut self, before: &FollowState) {
        if self.granted == before.granted && self.max.abs_diff(before.max) < self.granted / NEAR {
            self.max = before.max;
        }
    }

    /// More has changed than what is uncharged, of which the max tells what matters.
    fn is_news(&self, before: &FollowState) -> bool {
        FollowState { uncharged: before.uncharged, ..self.clone() } != *before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> FollowState {
        FollowState { host: 2_000, path: None, granted: 1_000, uncharged: 0, max: 1_000, changes: 0, fault: None }
    }

    #[test]
    fn what_is_uncharged_is_smoothed_and_bounded() {
        let mut state = state();
        let mut seen = Vec::new();
        for (look, found) in [200, 600, 600, 600, 0, 0, 90_000, 90_000].into_iter().enumerate() {
            state.take_off(Some(found), if look == 0 { 1 } else { TAKEN });
            seen.push((state.uncharged, state.max));
        }
        let up = [(200, 800), (300, 700), (375, 625), (432, 568)];
        assert_eq!(seen[..4], up);
        assert_eq!(seen[4..6], [(324, 676), (243, 757)]);
        assert_eq!((seen[6].1, seen[7].1), (250, 250), "a quarter stays");
        state.take_off(None, TAKEN);
        assert_eq!(state.max, 250, "as before");
        (0..200).for_each(|_| state.take_off(Some(0), TAKEN));
        assert_eq!((state.uncharged, state.max), (0, 1_000), "it ends");
    }

    #[test]
    fn a_small_change_is_not_set() {
        let (before, mut now) = (state(), state());
        (now.uncharged, now.max) = (9, 991);
        now.keep_if_near(&before);
        assert_eq!(now.max, 1_000);
        assert!(!now.is_news(&before));
        now.max = 990;
        now.keep_if_near(&before);
        assert!(now.max == 990 && now.is_news(&before));
        (now.granted, now.max) = (999, 999);
        now.keep_if_near(&before);
        assert_eq!(now.max, 999, "what is granted has moved");
    }
}
