//! Reclaim that the host's pressure starts.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memcg::{Bytes, Group, Percent};

use crate::held::Held;
use crate::pressure::StallScope;
use crate::worker::{Stop, Worker};
use crate::{Host, HostError, HostTrigger, files};

/// Asks a tree to give memory back while the host is under pressure: see [`Host::reclaimer`].
#[derive(Clone, Debug)]
#[must_use = "`start` starts it"]
pub struct HostReclaimer {
    host: Host,
    group: Group,
    stall: Duration,
    window: Duration,
    anon: Percent,
    step: Percent,
    period: Duration,
}

impl Host {
    /// Prepares a thread that asks `group` and the groups below it for memory while the host is
    /// short of it. Two things tell it so: the kernel's [trigger](Self::trigger), where processes
    /// have lost time, and the memory that a control group holds, where it comes close to the
    /// group's limit.
    ///
    /// Each group on the way up that has a limit is judged by what itself holds, and the machine is
    /// the last of them. So a pod's limit counts that a neighbour in the pod comes close to. Held
    /// is what the kernel cannot give back by itself: anonymous and shared memory, and what the
    /// kernel needs for the group (sockets, page tables, slab that it cannot reclaim). The group's
    /// `memory.current` tells nothing: it counts page cache, too.
    ///
    /// ```
    /// use memcg::{Percent, Runtime};
    /// use memcg_host::Host;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let reclaiming = Host::new().reclaimer(&runtime.root()).anon(Percent::new(85).unwrap()).start()?;
    /// assert_eq!(reclaiming.state().freed, 0, "no reclaimer is registered");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reclaimer(&self, group: &Group) -> HostReclaimer {
        let percent = |percent| Percent::new(percent).unwrap_or_default();
        HostReclaimer {
            host: self.clone(),
            group: group.clone(),
            stall: Duration::from_millis(100),
            window: Duration::from_secs(2),
            anon: percent(90),
            step: percent(5),
            period: crate::PERIOD,
        }
    }
}

impl HostReclaimer {
    /// Asks for memory when processes have lost `stall` within `window` because memory is short.
    /// 100 ms in 2 s by default: a window of whole two seconds needs no capability.
    pub fn stall(mut self, stall: Duration, window: Duration) -> HostReclaimer {
        self.stall = stall;
        self.window = window;
        self
    }

    /// Asks for what a group holds above this share of its limit; 90 % by default.
    pub fn anon(mut self, share: Percent) -> HostReclaimer {
        self.anon = share;
        self
    }

    /// Asks for this share of the anonymous memory at each stall; 5 % by default.
    pub fn step(mut self, share: Percent) -> HostReclaimer {
        self.step = share;
        self
    }

    /// Looks at what is held so often, in steps of at least 1 ms; [`PERIOD`](crate::PERIOD) by
    /// default.
    pub fn period(mut self, period: Duration) -> HostReclaimer {
        self.period = period.max(Duration::from_millis(1));
        self
    }

    /// Starts the thread. Where the kernel takes no trigger the thread compares the totals of the
    /// pressure file instead; where there is no such file, it looks at what is held alone.
    /// [`HostReclaimState`] says which.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the limits cannot be read, or no thread can be started.
    pub fn start(self) -> Result<HostReclaimGuard, HostError> {
        // A host that cannot be read is an error here, and not a fault that is found in the state
        // later.
        self.host.limits()?;
        let trigger = self.host.trigger(StallScope::Some, self.stall, self.window);
        let by = match &trigger {
            Ok(_) => StallSource::Trigger,
            Err(_) if self.host.pressure().is_ok() => StallSource::Totals,
            Err(_) => StallSource::None,
        };
        let state = HostReclaimState {
            by,
            asked: 0,
            freed: 0,
            rounds: 0,
            stalls: 0,
            level: None,
            fault: None,
        };
        let state = Arc::new(Mutex::new(state));
        let shown = Arc::clone(&state);
        let worker = Worker::start("memcg-host-psi", move |stop| {
            self.work(stop, trigger.ok(), &shown)
        })?;
        Ok(HostReclaimGuard {
            state,
            _worker: worker,
        })
    }

    fn work(self, stop: &Stop, mut trigger: Option<HostTrigger>, shown: &Mutex<HostReclaimState>) {
        let mut total = (self.lost(), Instant::now());
        while !self.group.is_offline() {
            let stalled = match &trigger {
                Some(waits) => match waits.wait(self.period) {
                    Ok(stalled) => stalled,
                    Err(fault) => {
                        // The control group of the trigger may be gone. Whichever pressure file
                        // there is by now has totals.
                        trigger = None;
                        total = (self.lost(), Instant::now());
                        let mut state = lock(shown);
                        state.by = StallSource::Totals;
                        state.fault = Some(fault.to_string());
                        continue;
                    }
                },
                None if !stop.sleep(self.period) => return,
                None => {
                    // A round of reclaim may have taken many periods.
                    let now = (self.lost(), Instant::now());
                    let (before, since) = std::mem::replace(&mut total, now);
                    let passed = now.1.saturating_duration_since(since);
                    now.0.saturating_sub(before) >= share_of(self.stall, passed, self.window)
                }
            };
            // Nothing ends the wait for a trigger early: the drop may have asked meanwhile, and
            // waits for this thread.
            if !stop.goes_on() {
                return;
            }
            self.round(stalled, shown);
        }
    }

    /// The time lost so far; 0 where the kernel does not say.
    fn lost(&self) -> Duration {
        self.host
            .pressure()
            .map_or(Duration::ZERO, |pressure| pressure.some.total)
    }

    /// One look, and one request. No lock is held while reclaimers run.
    fn round(&self, stalled: bool, shown: &Mutex<HostReclaimState>) {
        let look = match self.look() {
            Ok(look) => look,
            Err(fault) => {
                lock(shown).fault = Some(fault.to_string());
                return;
            }
        };
        let want = look
            .above
            .max(if stalled { self.step.of(look.anon) } else { 0 })
            // The memory above may be anybody's: of the tree's own, no more can come than it has.
            .min(self.group.usage());
        let freed = match want {
            0 => Some(0),
            want => self
                .group
                .reclaim(Bytes(want))
                .ok()
                .map(|report| report.freed),
        };
        let mut state = lock(shown);
        state.stalls += u64::from(stalled);
        state.level = look.level;
        // Mutation: a-fault-that-is-over-is-still-shown
        state.fault = look.fault;
        if let Some(freed) = freed.filter(|_| want > 0) {
            state.rounds += 1;
            state.asked = state.asked.saturating_add(want);
            state.freed = state.freed.saturating_add(freed);
        }
    }

    /// Judges each level that has a limit by what itself holds. Where the kernel does not say that,
    /// it is at least what the process holds.
    fn look(&self) -> Result<Look, HostError> {
        let limits = self.host.limits()?;
        let meminfo = files::read(&files::meminfo(self.host.root()))?;
        let memory = self.host.memory();
        let anon = memory
            .as_ref()
            .map_or(0, |memory| memory.group_anon.unwrap_or(memory.anon));
        let of_process = Held {
            memory: memory.as_ref().map_or(0, |memory| memory.anon),
            swapped: 0,
        };
        let mut faults: Vec<String> = memory.err().iter().map(ToString::to_string).collect();
        let mut levels = Vec::new();
        for level in limits
            .levels
            .iter()
            .filter(|level| level.limits().next().is_some())
        {
            let held = Held::read(level, limits.version, &meminfo).unwrap_or_else(|fault| {
                faults.push(fault.to_string());
                None
            });
            let held = held.unwrap_or(of_process);
            levels.extend(level.limits().map(|(limit, with_swap)| {
                HostLevel {
                    path: Some(limit.path.clone()),
                    limit: limit.bytes,
                    held: held
                        .memory
                        .saturating_add(if with_swap { held.swapped } else { 0 }),
                }
            }));
        }
        let machine = Held::of_machine(&meminfo).unwrap_or(of_process);
        levels.push(HostLevel {
            path: None,
            limit: limits.machine,
            held: machine.memory,
        });
        if !limits.unread.is_empty() {
            faults.insert(0, limits.to_string());
        }
        let above = levels
            .iter()
            .map(|level| level.above(self.anon))
            .max()
            .unwrap_or(0);
        let level = levels.into_iter().reduce(HostLevel::fuller);
        Ok(Look {
            above,
            anon,
            level,
            fault: (!faults.is_empty()).then(|| faults.join("; ")),
        })
    }
}

/// The result of one look at the host.
struct Look {
    /// The most that a level holds above its threshold.
    above: u64,
    /// Anonymous memory of the control group.
    anon: u64,
    level: Option<HostLevel>,
    fault: Option<String>,
}

/// A control group that has a limit, or the machine, with what it holds and the kernel cannot give
/// back by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostLevel {
    /// The file that has the limit; `None` for the machine's memory.
    pub path: Option<PathBuf>,
    /// In bytes.
    pub limit: u64,
    /// In bytes, at least: what the kernel does not tell apart is taken for memory that it can give
    /// back.
    pub held: u64,
}

impl HostLevel {
    fn above(&self, threshold: Percent) -> u64 {
        self.held.saturating_sub(threshold.of(self.limit))
    }

    /// The one that holds the larger part of its limit.
    fn fuller(self, other: HostLevel) -> HostLevel {
        let is_fuller = u128::from(other.held) * u128::from(self.limit)
            > u128::from(self.held) * u128::from(other.limit);
        if is_fuller { other } else { self }
    }
}

/// The stall that a period may have at most, where `window` may have `stall`.
fn share_of(stall: Duration, period: Duration, window: Duration) -> Duration {
    let window = window.max(Duration::from_nanos(1));
    stall
        .mul_f64((period.as_secs_f64() / window.as_secs_f64()).min(1.0))
        .max(Duration::from_micros(1))
}

/// Reclaims while the host is under pressure, until it is dropped. The drop waits for a round that
/// runs, and at most one period more.
#[derive(Debug)]
pub struct HostReclaimGuard {
    state: Arc<Mutex<HostReclaimState>>,
    _worker: Worker,
}

/// Counts of a [`HostReclaimGuard`]'s work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostReclaimState {
    /// The source from which the thread learns of stalls.
    pub by: StallSource,
    /// Bytes asked for, in all rounds together.
    pub asked: u64,
    /// Bytes that reclaimers freed.
    pub freed: u64,
    /// Number of rounds in which the groups were asked.
    pub rounds: u64,
    /// Number of times that processes had lost so much time.
    pub stalls: u64,
    /// The level that held the largest part of its limit at the last look; `None` before the first.
    pub level: Option<HostLevel>,
    /// Why the last look at the host failed or did not see all; `None` where it did.
    pub fault: Option<String>,
}

/// The source from which a [`HostReclaimGuard`] learns that processes lose time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallSource {
    /// The kernel tells, by a trigger.
    Trigger,
    /// The thread compares the totals of the pressure file.
    Totals,
    /// Not at all: the kernel has no pressure stall information, or does not show it.
    None,
}

impl HostReclaimGuard {
    /// Returns what the thread has done so far.
    pub fn state(&self) -> HostReclaimState {
        lock(&self.state).clone()
    }
}

fn lock(state: &Mutex<HostReclaimState>) -> MutexGuard<'_, HostReclaimState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_beside_their_limits() {
        let level = |limit, held| HostLevel {
            path: None,
            limit,
            held,
        };
        let threshold = Percent::new(90).unwrap_or_default();
        assert_eq!(
            (
                level(1_000, 900).above(threshold),
                level(1_000, 1_100).above(threshold)
            ),
            (0, 200)
        );
        assert_eq!(level(100, 50).fuller(level(1_000, 600)), level(1_000, 600));
        assert_eq!(
            level(u64::MAX, u64::MAX).fuller(level(7, 6)),
            level(u64::MAX, u64::MAX)
        );
    }

    #[test]
    fn the_share_of_a_stall() {
        let ms = Duration::from_millis;
        assert_eq!(share_of(ms(100), ms(250), ms(1_000)), ms(25));
        assert_eq!(
            share_of(ms(100), ms(5_000), ms(1_000)),
            ms(100),
            "no more than the whole"
        );
        assert_eq!(
            share_of(ms(0), ms(1), ms(0)),
            Duration::from_micros(1),
            "a stall of nothing is none"
        );
    }
}
