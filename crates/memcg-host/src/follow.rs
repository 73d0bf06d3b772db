//! A max that follows what the system grants.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memcg::{Bytes, Group, Limit, Percent, Runtime, RuntimeBuilder};

use crate::worker::Worker;
use crate::{Host, HostError, HostLimits};

/// How often a [`Follow`] reads the host's limits, where the caller says nothing else.
pub const PERIOD: Duration = Duration::from_millis(250);

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
            Ok(Limit::Percent(share)) => Ok(HostBuilder { builder: self, share, host: Host::new(), period: PERIOD }),
            _ => Err(HostError::Share { text: share.to_string() }),
        }
    }
}

/// Builds a runtime whose max follows the host: see [`MaxOfHost::max_of_host`].
#[derive(Debug)]
#[must_use = "`build` builds the runtime"]
pub struct HostBuilder {
    builder: RuntimeBuilder,
    share: Percent,
    host: Host,
    period: Duration,
}

impl HostBuilder {
    /// Follows another host than [`Host::new`].
    pub fn host(mut self, host: Host) -> HostBuilder {
        self.host = host;
        self
    }

    /// Reads the limits so often; [`PERIOD`] by default.
    pub fn period(mut self, period: Duration) -> HostBuilder {
        self.period = period;
        self
    }

    /// Builds the runtime, and starts the thread that follows.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the limits cannot be read, the runtime cannot be built or no thread can be started.
    pub fn build(self) -> Result<(Runtime, Follow), HostError> {
        let HostBuilder { builder, share, host, period } = self;
        let max = host.limits()?.share(share);
        let runtime = builder.max(Limit::Bytes(max)).build()?;
        let follow = host.follow(&runtime.root(), share, period)?;
        Ok((runtime, follow))
    }
}

/// Keeps the max of a group at a share of what the system grants, until it is dropped: see [`Host::follow`].
#[derive(Debug)]
pub struct Follow {
    state: Arc<Mutex<FollowState>>,
    _worker: Worker,
}

/// What a [`Follow`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowState {
    /// The bytes that the host grants, as read last.
    pub host: u64,
    /// The file that decides them; `None` where the machine's memory does.
    pub path: Option<PathBuf>,
    /// The max that was set last, in bytes.
    pub max: u64,
    /// How often the max was set since the beginning.
    pub changes: u64,
    /// Why the last reading was not whole, or the max was not set; `None` where all went well.
    pub fault: Option<String>,
}

impl Host {
    /// Sets the max of `group` to `share` of [`HostLimits::bytes`], and starts a thread that reads the limits every
    /// `period` and sets the max again when they change.
    ///
    /// The thread calls [`Group::set_max`], so a limit that is lowered asks reclaimers on that thread. It sets nothing
    /// while the limits stay, so a max that the service sets itself holds until they change. Where a file cannot be read,
    /// the max may fall and does not rise: [`FollowState::fault`] says which. The thread ends with the value, or when the
    /// group goes offline.
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
        let limits = self.limits()?;
        let mut state = FollowState::new(&limits, share);
        if group.max() != state.max {
            group.set_max(Limit::Bytes(state.max))?;
            state.changes = 1;
        }
        let state = Arc::new(Mutex::new(state));
        let (shown, host, group) = (Arc::clone(&state), self.clone(), group.clone());
        let worker = Worker::start("memcg-host", move |stop| {
            while stop.sleep(period) && !group.is_offline() {
                step(&host, &group, share, &shown);
            }
        })?;
        Ok(Follow { state, _worker: worker })
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
            max: limits.share(share),
            changes: 0,
            fault: (!limits.unread.is_empty()).then(|| limits.to_string()),
        }
    }
}

/// One look at the limits. No lock is held while the max is set, for that runs reclaimers.
fn step(host: &Host, group: &Group, share: Percent, shown: &Mutex<FollowState>) {
    let limits = match host.limits() {
        Ok(limits) => limits,
        Err(fault) => {
            lock(shown).fault = Some(fault.to_string());
            return;
        }
    };
    let before = lock(shown).clone();
    let mut now = FollowState { changes: before.changes, ..FollowState::new(&limits, share) };
    if now.fault.is_some() && now.max > before.max {
        now.max = before.max;
    }
    if now.max != before.max {
        // The old max is no longer shown as soon as the new one holds: reclaim may take a while after that.
        match group.set_max_now(Limit::Bytes(now.max)) {
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
