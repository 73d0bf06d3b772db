//! Who waits for no bytes: for an event, or for usage to come below a high.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use memcg::figures::Events;
use memcg::simulated_time as clock;
use memcg::{Event, EventFuture, Group, Limit, Limits};

use super::Life;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::Op;

/// More of them show nothing new.
const MOST: usize = 6;

/// A task that waits for an event.
pub(super) struct Awaited {
    future: Pin<Box<EventFuture>>,
    group: usize,
    event: Event,
    seen: u64,
    /// Those below do not count.
    local: bool,
    rung: Arc<Rung>,
}

/// It was woken.
#[derive(Default)]
pub(super) struct Rung(AtomicBool);

impl Rung {
    pub(super) fn is_rung(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// What comes from here on is another call.
    pub(super) fn begin_again(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Wake for Rung {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn events_of(group: &Group, local: bool) -> Events {
    let events = group.events();
    if local { events.local() } else { events }
}

impl Awaited {
    fn poll(&mut self) -> Poll<u64> {
        self.rung.begin_again();
        let waker = Waker::from(Arc::clone(&self.rung));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

impl Life {
    /// A task begins to wait for an event, or the oldest one goes.
    pub(super) fn await_event(&mut self, op: &Op, group: u8, event: u8) {
        if self.awaited.len() >= MOST {
            let gone = self.awaited.remove(0);
            return self.actor(op).run(move || drop(gone));
        }
        let Some(group) = self.group(group) else {
            return;
        };
        self.keeps = true;
        let event = Event::ALL[usize::from(event) % Event::ALL.len()];
        self.wait_since_reading(op, event);
        self.read_events = Some((group, self.handle(group).events()));
        let local = self.some(op).is_multiple_of(2);
        let (future, seen) = self.on(op, group, move |group| {
            let events = events_of(group, local);
            (events.changed(event), events.get(event))
        });
        let mut awaited = Awaited {
            future: Box::pin(future),
            group,
            event,
            seen,
            local,
            rung: Arc::default(),
        };
        let (awaited, polled) = self.actor(op).run(move || {
            let polled = awaited.poll();
            (awaited, polled)
        });
        // What a thread of the runtime counts meanwhile it is told at once.
        if polled.is_pending() {
            self.awaited.push(awaited);
        }
    }

    /// What has happened since the counts were read ends a wait at once.
    fn wait_since_reading(&mut self, op: &Op, event: Event) {
        let Some((group, events)) = self.read_events.take() else {
            return;
        };
        let Some(handle) = self.handles[group].first().cloned() else {
            return;
        };
        let now = || handle.events().get(event) != events.get(event);
        let (before, events) = (now(), events.clone());
        let (blocks, awaits) = self.actor(op).run(move || {
            let blocks = events.wait(event, Duration::ZERO);
            let changed = pin!(events.changed(event));
            let polled = changed.poll(&mut Context::from_waker(Waker::noop()));
            (blocks, polled.is_ready())
        });
        // A thread of the runtime may count it meanwhile.
        let is_right = |found: bool| found == before || now() != before;
        assert!(
            is_right(blocks) && is_right(awaits),
            "{event:?} of {handle:?} since a reading: {before}, and a wait says {blocks}, {awaits}"
        );
    }

    /// Each task that waits for an event was woken if that has happened, and has its count then.
    pub(super) fn awaited_hold(&self) -> Holds {
        for Awaited {
            group,
            event,
            seen,
            local,
            rung,
            ..
        } in &self.awaited
        {
            let Some(handle) = self.handles[*group].first() else {
                continue;
            };
            let now = events_of(handle, *local).get(*event);
            let is_rung = rung.0.load(Ordering::SeqCst);
            ensure!(
                now == *seen || is_rung,
                "{event:?} of {handle:?} has happened, {seen} times before and {now} by now, and a \
                 task that waits for it sleeps"
            );
        }
        Ok(())
    }

    pub(super) fn poll_awaited(&mut self) {
        for at in (0..self.awaited.len()).rev() {
            if !self.awaited[at].rung.0.load(Ordering::SeqCst) {
                continue;
            }
            if let Poll::Ready(count) = self.awaited[at].poll() {
                let Awaited {
                    group, event, seen, ..
                } = self.awaited.swap_remove(at);
                let path = self.twin.path(group);
                assert!(count != seen, "{event:?} of {path}: {count} as before");
            }
        }
    }

    /// Usage is below all highs, or it is not.
    pub(super) fn below_high(&mut self, op: &Op, group: u8) {
        let Some(group) = self.group(group) else {
            return;
        };
        self.keeps = true;
        let is_above = self.is_above_high(group);
        let is_online = self.twin.groups[group].online;
        let found = self.on(op, group, |group| {
            let below = pin!(group.below_high());
            let polled = below.poll(&mut Context::from_waker(Waker::noop()));
            (polled.is_ready(), group.below_high().wait(Duration::ZERO))
        });
        if self.shared.is_quiet() && !self.cancelled && !self.adapters_wait() {
            let known = (!is_online || !is_above, is_online && !is_above);
            let path = self.twin.path(group);
            assert_eq!(
                found, known,
                "{path} is below its high, online: {is_online}"
            );
            // Where caches would give, highs are not moved.
            if is_online && is_above && !self.had_caches && self.tasks.is_empty() {
                self.wait_below_high(op, group);
            }
        }
    }

    /// A thread waits until usage is below all highs: what is so at the end of its time counts.
    fn wait_below_high(&mut self, op: &Op, group: usize) {
        let above = self.handle(group).ancestors();
        let above = above.chain([self.handle(group).clone()]);
        let highs: Vec<_> = above.map(|level| (level.limits().high, level)).collect();
        // A part of a max may be one of nothing by now.
        if highs
            .iter()
            .any(|(high, _)| matches!(high, Some(Limit::Percent(_))))
        {
            return;
        }
        let time = Duration::from_millis([3, 25, 40][self.some(op) % 3]);
        let actor = self.actor(op);
        let handle = self.handle(group).clone();
        let waits = actor.begin(move || handle.below_high().wait(time));
        assert!(
            actor.look(&waits).is_none(),
            "it is above, and waits no time"
        );
        let set = |level: &Group, high| {
            let mut limits = Limits::new();
            limits.high = high;
            level.set_limits(limits).expect("a high that was set");
        };
        let ends = !self.some(op).is_multiple_of(4);
        if ends {
            highs
                .iter()
                .for_each(|(_, level)| set(level, Some(Limit::Unlimited)));
        }
        clock::advance(time);
        let until = Instant::now() + Duration::from_secs(20);
        let found = loop {
            match actor.look(&waits) {
                Some(found) => break found,
                None => assert!(Instant::now() < until, "the wait does not end"),
            }
        };
        highs.iter().for_each(|(high, level)| set(level, *high));
        assert_eq!(
            found,
            ends,
            "usage of {} is below its highs at the end of {time:?}",
            self.twin.path(group)
        );
    }

    /// The delay of a charge of so many bytes, as the twin has it.
    pub(super) fn delay_holds(&self, handle: &Group, group: usize) -> Holds {
        for bytes in [300, 4_096, 100_000] {
            let (found, known) = (
                handle.inspect().high_delay(memcg::Bytes(bytes)),
                self.delay_by(group, bytes),
            );
            // A short one is none, and need not be right.
            let is_long = found.max(known) > Duration::from_millis(11);
            let is_near = found.abs_diff(known) <= known / 100 + Duration::from_micros(10);
            ensure!(
                !is_long || is_near,
                "{bytes} bytes in {handle:?} are delayed for {found:?}, the twin says {known:?}"
            );
        }
        let children = handle.memory().children_low_usage();
        let online = |&child: &usize| self.twin.groups[child].online;
        let claims = self.twin.children(group).filter(online).map(|child| {
            let used = self.handles[child].first().map(Group::usage)?;
            Some(used.min(self.twin.groups[child].low))
        });
        if let Some(claims) = claims.collect::<Option<Vec<u64>>>() {
            let known: u64 = claims.iter().sum();
            ensure_eq!(children, known, "low of the children of {handle:?}");
        }
        Ok(())
    }
}
