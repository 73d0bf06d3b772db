//! Reclaim that the host's pressure starts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memcg::{Bytes, Group, Percent};

use crate::pressure::Stalled;
use crate::worker::{Stop, Worker};
use crate::{Host, HostError, HostTrigger};

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
    /// Prepares a thread that asks `group` and the groups below it for memory while the host is short of it. Two things
    /// tell it so: the kernel's [trigger](Self::trigger), where processes have lost time, and the anonymous memory of the
    /// control group, where it comes close to the limit. The group's `memory.current` tells nothing: it counts page cache,
    /// which the kernel gives back by itself.
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
    /// Asks for memory when processes have lost `stall` within `window` because memory is short. 100 ms in 2 s by
    /// default: a window of whole two seconds needs no capability.
    pub fn stall(mut self, stall: Duration, window: Duration) -> HostReclaimer {
        (self.stall, self.window) = (stall, window);
        self
    }

    /// Asks for what anonymous memory is above this share of the host's limit; 90 % by default.
    pub fn anon(mut self, share: Percent) -> HostReclaimer {
        self.anon = share;
        self
    }

    /// Asks for this share of the anonymous memory at each stall; 5 % by default.
    pub fn step(mut self, share: Percent) -> HostReclaimer {
        self.step = share;
        self
    }

    /// Looks at the anonymous memory so often; [`PERIOD`](crate::PERIOD) by default.
    pub fn period(mut self, period: Duration) -> HostReclaimer {
        self.period = period;
        self
    }

    /// Starts the thread. Where the kernel takes no trigger the thread compares the totals of the pressure file instead;
    /// where there is no such file, it looks at anonymous memory alone. [`HostReclaimState`] says which.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the limits or the memory cannot be read, or no thread can be started.
    pub fn start(self) -> Result<HostReclaim, HostError> {
        self.host.limits()?;
        self.host.memory()?;
        let trigger = self.host.trigger(Stalled::Some, self.stall, self.window);
        let by = match &trigger {
            Ok(_) => StallSource::Trigger,
            Err(_) if self.host.pressure().is_ok() => StallSource::Totals,
            Err(_) => StallSource::None,
        };
        let state =
            Arc::new(Mutex::new(HostReclaimState { by, asked: 0, freed: 0, rounds: 0, stalls: 0, fault: None }));
        let shown = Arc::clone(&state);
        let worker = Worker::start("memcg-host-psi", move |stop| self.work(stop, trigger.ok(), &shown))?;
        Ok(HostReclaim { state, _worker: worker })
    }

    fn work(self, stop: &Stop, mut trigger: Option<HostTrigger>, shown: &Mutex<HostReclaimState>) {
        let mut total = self.lost();
        while !self.group.is_offline() {
            let stalled = match &trigger {
                Some(waits) => match waits.wait(self.period) {
                    Ok(stalled) => stalled,
                    Err(fault) => {
                        trigger = None;
                        total = self.lost();
                        let mut state = lock(shown);
                        (state.by, state.fault) = (StallSource::Totals, Some(fault.to_string()));
                        continue;
                    }
                },
                None if !stop.sleep(self.period) => return,
                None => {
                    let now = self.lost();
                    let lost = now.saturating_sub(std::mem::replace(&mut total, now));
                    lost >= share_of(self.stall, self.period, self.window)
                }
            };
            if !stop.goes_on() {
                return;
            }
            self.round(stalled, shown);
        }
    }

    /// The time lost so far; 0 where the kernel does not say.
    fn lost(&self) -> Duration {
        self.host.pressure().map_or(Duration::ZERO, |pressure| pressure.some.total)
    }

    /// One look, and one request. No lock is held while reclaimers run.
    fn round(&self, stalled: bool, shown: &Mutex<HostReclaimState>) {
        let want = self.host.limits().and_then(|limits| {
            let memory = self.host.memory()?;
            let anon = memory.group_anon.unwrap_or(memory.anon);
            Ok(want(anon, limits.share(self.anon), stalled, self.step))
        });
        let want = match want {
            Ok(want) => want.min(self.group.usage()),
            Err(fault) => {
                lock(shown).fault = Some(fault.to_string());
                return;
            }
        };
        let freed = match want {
            0 => Some(0),
            want => self.group.reclaim(Bytes(want)).ok().map(|report| report.freed),
        };
        let mut state = lock(shown);
        state.stalls += u64::from(stalled);
        state.fault = None;
        if let Some(freed) = freed.filter(|_| want > 0) {
            state.rounds += 1;
            state.asked = state.asked.saturating_add(want);
            state.freed = state.freed.saturating_add(freed);
        }
    }
}

/// What to ask for: what is above the mark, and at a stall at least a step.
fn want(anon: u64, mark: u64, stalled: bool, step: Percent) -> u64 {
    let step = if stalled { u128::from(anon) * u128::from(step.get()) / 100 } else { 0 };
    anon.saturating_sub(mark).max(u64::try_from(step).unwrap_or(u64::MAX))
}

/// The stall that a period may have at most, where `window` may have `stall`.
fn share_of(stall: Duration, period: Duration, window: Duration) -> Duration {
    let window = window.max(Duration::from_nanos(1));
    stall.mul_f64((period.as_secs_f64() / window.as_secs_f64()).min(1.0)).max(Duration::from_micros(1))
}

/// Reclaims while the host is under pressure, until it is dropped. The drop waits for a round that runs, and at most one
/// period more.
#[derive(Debug)]
pub struct HostReclaim {
    state: Arc<Mutex<HostReclaimState>>,
    _worker: Worker,
}

/// What a [`HostReclaim`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostReclaimState {
    /// How the thread learns of stalls.
    pub by: StallSource,
    /// Bytes asked for, in all rounds together.
    pub asked: u64,
    /// Bytes that reclaimers freed.
    pub freed: u64,
    /// How often the groups were asked.
    pub rounds: u64,
    /// How often processes had lost so much time.
    pub stalls: u64,
    /// Why the last look at the host failed; `None` where it did not.
    pub fault: Option<String>,
}

/// How a [`HostReclaim`] learns that processes lose time.
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

impl HostReclaim {
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
    fn what_is_asked_for() {
        let step = Percent::new(5).unwrap_or_default();
        assert_eq!(want(900, 1_000, false, step), 0, "below the mark");
        assert_eq!(want(1_100, 1_000, false, step), 100, "what is above");
        assert_eq!(want(900, 1_000, true, step), 45, "a step of the anonymous memory");
        assert_eq!((want(1_100, 1_000, true, step), want(u64::MAX, 0, true, step)), (100, u64::MAX));
    }

    #[test]
    fn the_share_of_a_stall() {
        let ms = Duration::from_millis;
        assert_eq!(share_of(ms(100), ms(250), ms(1_000)), ms(25));
        assert_eq!(share_of(ms(100), ms(5_000), ms(1_000)), ms(100), "no more than the whole");
        assert_eq!(share_of(ms(0), ms(1), ms(0)), Duration::from_micros(1), "a stall of nothing is none");
    }
}
