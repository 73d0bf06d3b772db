//! An event of the crate `tracing` for each event of a group.

use memcg::{Event, Group, Happened, Registration};

/// Reports events of groups to the crate `tracing` until it is dropped: see [`trace`].
#[derive(Debug)]
#[must_use = "dropped, it reports nothing"]
pub struct Trace {
    _registrations: Vec<Registration>,
}

/// Reports what happens to the limits of `group` and of the groups below it to the crate `tracing`, until the result is
/// dropped. The target is `memcg`, the fields are `event` (its name in `memory.events`), `group` (the path of `group`),
/// `count` (by now) and `times` (since the last report).
///
/// The thread that made the event happen reports it, at the end of that operation, and holds no lock of `memcg` then. An
/// allocator reports nothing itself: the next other call of `memcg` does, on any thread. A refusal, a cancelled group and a
/// panic of foreign code are warnings. What happens often, such as a charge above high, is a debug message.
///
/// ```
/// let runtime = memcg::Runtime::builder().max(100).build()?;
/// let _trace = memcg_observe::trace(&runtime.root());
/// assert!(runtime.root().try_charge(101).is_err()); // WARN memcg: event="oom" group="/" count=1 times=1
/// # Ok::<(), memcg::BuildError>(())
/// ```
pub fn trace(group: &Group) -> Trace {
    let register = |event| group.on_event(event, report);
    Trace { _registrations: Event::ALL.into_iter().map(register).collect() }
}

fn report(happened: &Happened) {
    let (event, count, times) = (happened.event().name(), happened.count(), happened.times());
    let group = happened.group().path();
    match happened.event() {
        Event::Oom | Event::OomKill | Event::OomGroupKill | Event::Panic => {
            tracing::warn!(target: "memcg", event, group, count, times);
        }
        Event::Low | Event::TimedOut | Event::Overcharge => tracing::info!(target: "memcg", event, group, count, times),
        _ => tracing::debug!(target: "memcg", event, group, count, times),
    }
}
