//! An event of the crate `tracing` for each event of a group.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memcg::{Event, EventInfo, Group, Registration};

use crate::clock;

/// Lines that a [`TraceGuard`] writes within a second for each of the events: those that are left out
/// are counted in the next.
pub const TRACED_A_SECOND: u32 = 10;

const SECOND: Duration = Duration::from_secs(1);

/// Reports events of groups to the crate `tracing` until it is dropped: see [`trace`].
#[derive(Debug)]
#[must_use = "dropped, it reports nothing"]
pub struct TraceGuard {
    // First: no report comes after the last one.
    registrations: Vec<Registration>,
    of: Group,
    rates: Arc<[(Event, Mutex<Rate>)]>,
}

/// Reports what happens to the limits of `group` and of the groups below it to the crate `tracing`,
/// until the result is dropped. The target is `memcg`, the fields are `event` (its name in
/// `memory.events`), `group` (the path of `group`), `count` (by now) and `times` (since the last
/// report).
///
/// Of each event there are at most [`TRACED_A_SECOND`] reports within a second. What is left out is
/// not lost: the next report has it in its `times`, and the drop of the result reports what is left
/// then. So a service that refuses a hundred thousand charges writes some lines.
/// [`Group::on_event`] has each.
///
/// The thread that made the event happen reports it, at the end of that operation, and holds no
/// lock of `memcg` then. An allocator reports nothing itself: the next other call of `memcg` does,
/// on any thread. A refusal, a cancelled group, a panic of foreign code and more given back than was
/// charged are warnings. What
/// happens often, such as a charge above high, is a debug message.
///
/// ```
/// let runtime = memcg::Runtime::builder().max(100).build()?;
/// let _trace = memcg_observe::trace(&runtime.root());
/// assert!(runtime.root().charge(101).is_err()); // WARN memcg: event="oom" group="/" count=1 times=1
/// # Ok::<(), memcg::BuildError>(())
/// ```
pub fn trace(group: &Group) -> TraceGuard {
    let rates: Arc<[_]> = Event::ALL
        .into_iter()
        .map(|event| (event, Mutex::default()))
        .collect();
    let register = |at: usize| {
        let rates = Arc::clone(&rates);
        let (event, _) = rates[at];
        group.on_event(event, move |happened| {
            report_at_rate(&rates[at].1, happened)
        })
    };
    let registrations = (0..rates.len()).map(register).collect();
    TraceGuard {
        registrations,
        of: group.clone(),
        rates,
    }
}

impl Drop for TraceGuard {
    fn drop(&mut self) {
        self.registrations.clear();
        for (event, rate) in self.rates.iter() {
            let left = std::mem::take(&mut *rate.lock().unwrap_or_else(PoisonError::into_inner));
            if left.times > 0 {
                report(*event, &self.of.path(), left.count, left.times);
            }
        }
    }
}

/// Reports of one event within a second.
#[derive(Debug, Default)]
struct Rate {
    begun: Option<Instant>,
    lines: u32,
    /// Times that no line has reported yet, and the count by then.
    times: u64,
    count: u64,
}

impl Rate {
    /// Returns the count and the times of the line that is to be written now, if one is.
    fn add(&mut self, count: u64, times: u64, now: Instant) -> Option<(u64, u64)> {
        // Threads may come in another order than the counts.
        self.times = self.times.saturating_add(times);
        self.count = self.count.max(count);
        if self
            .begun
            .is_none_or(|begun| now.saturating_duration_since(begun) >= SECOND)
        {
            self.begun = Some(now);
            self.lines = 0;
        }
        if self.lines >= TRACED_A_SECOND {
            return None;
        }
        self.lines += 1;
        Some((self.count, std::mem::take(&mut self.times)))
    }
}

/// No lock is held while the subscriber runs.
fn report_at_rate(rate: &Mutex<Rate>, happened: &EventInfo) {
    let mut locked = rate.lock().unwrap_or_else(PoisonError::into_inner);
    let line = locked.add(happened.count(), happened.times(), clock::now());
    drop(locked);
    if let Some((count, times)) = line {
        report(happened.event(), &happened.group().path(), count, times);
    }
}

fn report(event: Event, group: &str, count: u64, times: u64) {
    let name = event.name();
    match event {
        Event::Oom
        | Event::OomKill
        | Event::OomGroupKill
        | Event::Panic
        | Event::ReclaimStuck
        | Event::Underflow => {
            tracing::warn!(target: "memcg", event = name, group, count, times);
        }
        Event::Low | Event::TimedOut | Event::Overcharge => {
            tracing::info!(target: "memcg", event = name, group, count, times);
        }
        _ => tracing::debug!(target: "memcg", event = name, group, count, times),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_a_second_and_nothing_lost() {
        let mut rate = Rate::default();
        let begun = Instant::now();
        let mut lines = Vec::new();
        // A thousand within a second, then one an hour later.
        lines.extend(
            (1..=1_000)
                .filter_map(|count| rate.add(count, 1, begun + Duration::from_micros(count))),
        );
        assert_eq!(lines.len(), TRACED_A_SECOND as usize);
        lines.extend(rate.add(1_001, 1, begun + Duration::from_secs(3_600)));
        assert_eq!(lines.last(), Some(&(1_001, 991)));
        assert_eq!(lines.iter().map(|(_, times)| times).sum::<u64>(), 1_001);
    }
}
