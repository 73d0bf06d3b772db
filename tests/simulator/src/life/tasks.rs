//! Charges that wait: tasks that are polled by hand, late or never, and dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;
use memcg::{Bytes, Charge, ChargeError, OnFull};

use super::Life;
use super::callbacks::{self, Bell};
use super::delays::Delay;
use crate::holds::Holds;
use crate::script::{Act, Kind, Op, Size, Verb, What};
use crate::threads::Begun;
use crate::twin::{Held, Key};

/// More of them make a line that is long and shows nothing new.
const TASKS_MAX: usize = 10;

/// How a wait has ended, as the twin sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Admitted,
    TooLarge,
    Offline,
    /// Only a poll tells. Where groups are cancelled, any end may be; and a charge that moves to
    /// another line is woken where there are caches, to have them asked.
    Unknown,
}

/// A charge in line, and what others have taken before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    pub(super) group: usize,
    pub(super) bytes: u64,
    /// At most so many bytes of others have passed it. None: nobody has counted them.
    pub(super) others: Option<u64>,
}

/// A charge that waits.
pub(super) struct Task {
    pub(super) key: Key,
    pub(super) group: usize,
    pub(super) bytes: u64,
    /// None: it waits.
    pub(super) end: Option<End>,
    /// It gives up by itself, so its waker does not say that it has its bytes.
    is_timed: bool,
    pub(super) passed: Passed,
    /// Where it has its bytes and a level is above its high it is pending still.
    may_be_delayed: bool,
    /// It takes all of its bytes up the tree.
    pub(super) walks: bool,
    /// It has its bytes, and is delayed.
    pub(super) delay: Option<Delay>,
    call: Call,
}

/// The future of a charge: that of the core, or of an adapter.
pub(super) type Charging = Pin<Box<dyn Future<Output = Result<Charge, ChargeError>> + Send>>;

/// The call that waits.
enum Call {
    /// A task, with its waker on the thread that polled it last.
    Future(Charging, Arc<Bell>, u8),
    /// A thread, for so long at most.
    Thread {
        actor: usize,
        begun: Begun<Result<Charge, ChargeError>>,
        until: Instant,
    },
}

impl Task {
    pub(super) fn is_thread(&self) -> bool {
        matches!(self.call, Call::Thread { .. })
    }
}

type Polled = Poll<Result<Charge, ChargeError>>;

impl Life {
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(|task| task.end.is_none())
    }

    pub(super) fn step_task(&mut self, op: &Op) {
        match op.1 {
            What::Begin(group, size, act) => self.begin(op, group, size, Some(act)),
            What::BeginTimed(group, size) => self.begin(op, group, size, None),
            What::BeginUntil(group, size) => self.begin_until(op, group, size),
            What::BeginAbove(group, size) => self.begin_above(op, group, size),
            What::Wait(group, size, milliseconds) => {
                self.wait(op, group, size, Duration::from_millis(milliseconds.into()));
            }
            What::Poll(number) => {
                let at = self.pick_task(number);
                // One that is in line, and would be delayed, tells by its waker that it has its bytes.
                let waits = |at: &usize| {
                    let task = &self.tasks[*at];
                    task.may_be_delayed && task.end.is_none()
                };
                if let Some(at) = at.filter(|at| !waits(at)) {
                    self.poll_at(op, at);
                }
            }
            What::DropTask(number) => {
                // No other thread ends the call of a thread.
                if let Some(at) = self
                    .pick_task(number)
                    .filter(|&at| !self.tasks[at].is_thread())
                {
                    let task = self.tasks.remove(at);
                    self.end_task(op, task);
                }
            }
            _ => unreachable!("an operation on tasks"),
        }
    }

    pub(super) fn poll_at(&mut self, op: &Op, at: usize) {
        let mut task = self.tasks.remove(at);
        let polled = self.poll(op, &mut task);
        self.take_up(at, task, polled);
    }

    fn pick_task(&self, number: u8) -> Option<usize> {
        let most = self.tasks.len();
        (most > 0).then(|| usize::from(number) % most)
    }

    /// Drops it: nothing of it may remain.
    pub(super) fn end_task(&mut self, op: &Op, task: Task) {
        let Task { key, call, .. } = task;
        self.twin.held.remove(&key);
        self.actor(op).run(move || drop(call));
    }

    /// Time goes by until no thread waits.
    pub(super) fn end_threads(&mut self) {
        // None of a script waits for so many seconds.
        for _ in 0..100 {
            if !self.tasks.iter().any(Task::is_thread) {
                return;
            }
            clock::advance(Duration::from_secs(1));
            self.settle_accounts();
        }
    }

    /// A charge was made of so many bytes.
    pub(super) fn pass_those_in_line(&mut self, bytes: u64) {
        for task in &mut self.tasks {
            let others = &mut task.passed.others;
            *others = others.and_then(|others| others.checked_add(bytes));
        }
    }

    /// Operations that charge by other ways, or have the line move, are not counted.
    pub(super) fn lose_count(&mut self, op: &Op) {
        let is_counted = matches!(
            op.1,
            What::Charge(..)
                | What::Grow(..)
                | What::Resize(..)
                | What::RawCharge(..)
                | What::RawUncharge(..)
                | What::Drop(_)
                | What::DropAll(_)
                | What::Shrink(..)
                | What::Set(_, Kind::Max | Kind::High | Kind::Soft, _)
                | What::Unset(_, Kind::Max | Kind::High | Kind::Soft)
                | What::Begin(..)
                | What::BeginAbove(..)
                | What::Poll(_)
                | What::Look
        );
        if !is_counted || self.ranked {
            for task in &mut self.tasks {
                task.passed.others = None;
            }
        }
    }

    fn poll(&mut self, op: &Op, task: &mut Task) -> Polled {
        match &mut task.call {
            Call::Future(future, bell, thread) => {
                if *thread != op.0 {
                    (*bell, *thread) = (bell.moves_on(), op.0);
                }
                // The future goes to the thread and back.
                let mut of_task = std::mem::replace(future, Box::pin(std::future::pending()));
                let waker = Waker::from(Arc::clone(bell));
                let (of_task, polled) = self.actor(op).run(move || {
                    let polled = of_task.as_mut().poll(&mut Context::from_waker(&waker));
                    (of_task, polled)
                });
                *future = of_task;
                polled
            }
            Call::Thread {
                actor,
                begun,
                until,
            } => match self.actors[*actor].look(begun) {
                Some(result) => Poll::Ready(result),
                None => {
                    assert!(clock::now() < *until, "a thread waits longer than its time");
                    Poll::Pending
                }
            },
        }
    }

    /// A thread begins to wait, if another one is left to go on.
    fn wait(&mut self, op: &Op, group: u8, size: Size, time: Duration) {
        // No waker tells that a thread has its bytes, and sleeps for its delay.
        let is_delayed = self.setup.delay > 0;
        let free = self.actors.iter().filter(|actor| !actor.is_busy()).count();
        let room = self.tasks.len() < TASKS_MAX && free > 1 && !is_delayed;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        let handle = self.handle(group).clone();
        self.keeps = true;
        let actor = self.actor(op);
        let at = self.actors.iter().position(|it| std::ptr::eq(it, actor));
        let end = clock::now() + time;
        let begun = actor.begin(move || {
            callbacks::until(end, || handle.charge_with(Bytes(bytes), OnFull::Wait(time)))
        });
        let task = Task {
            key: self.twin.key(),
            group,
            bytes,
            end: None,
            is_timed: true,
            passed: Passed {
                group,
                bytes,
                others: Some(0),
            },
            may_be_delayed: false,
            walks: true,
            delay: None,
            call: Call::Thread {
                actor: at.expect("one of them"),
                begun,
                until: clock::now() + time,
            },
        };
        self.tasks.push(task);
        self.settle_accounts();
    }

    /// Looks at the calls of threads that wait. True: one has ended.
    pub(super) fn poll_threads(&mut self) -> bool {
        let mut any = false;
        for number in (0..self.tasks.len()).rev() {
            if self.tasks.get(number).is_some_and(Task::is_thread) {
                let mut task = self.tasks.remove(number);
                let polled = self.poll(&Op(0, What::Look), &mut task);
                any |= polled.is_ready();
                self.take_up(number, task, polled);
            }
        }
        any
    }

    pub(super) fn begin(&mut self, op: &Op, group: u8, size: Size, act: Option<Act>) {
        let room = self.tasks.len() < TASKS_MAX && !self.handles[0].is_empty();
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        let mut future = self.handle(group).charge_async(Bytes(bytes)).undelayed();
        if act.is_none() {
            future = future.timeout(Duration::ZERO);
        }
        let time = act.is_none().then_some(Duration::ZERO);
        let act = act.unwrap_or(Act::Nothing);
        self.begin_charging(op, group, bytes, act, time, Box::pin(future));
    }

    /// What it waits beside is ready, so it has no time, as one whose time is nothing.
    fn begin_until(&mut self, op: &Op, group: u8, size: Size) {
        let Some(group) = self.group(group).filter(|_| self.has_room_for_tasks()) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        // It asks for so much from its first poll on.
        let mut future = self.handle(group).charge_async(Bytes(bytes + 1));
        assert!(future.wait_for(Bytes(bytes)), "it has not begun");
        if op.0.is_multiple_of(2) {
            future = future.undelayed();
        }
        // By the end of its time another charge has gone, or none.
        let is_of_group = |(key, _): &(Key, Charge)| {
            let held = self.twin.of(*key);
            held.group == group && held.counter == 0 && held.bytes.is_multiple_of(2)
        };
        let gone = self.charges.iter().position(is_of_group);
        let gone = gone.map(|at| self.charges.swap_remove(at));
        if let Some((key, _)) = &gone {
            self.twin.release(*key);
        }
        let time_is_over = async move { drop(gone) };
        let future = future.until(time_is_over);
        let time = Some(Duration::ZERO);
        self.begin_charging(op, group, bytes, Act::Nothing, time, Box::pin(future));
    }

    /// More tasks may begin.
    pub(super) fn has_room_for_tasks(&self) -> bool {
        self.tasks.len() < TASKS_MAX && !self.handles[0].is_empty()
    }

    /// A charge that may wait begins, for so long at most.
    pub(super) fn begin_charging(
        &mut self,
        op: &Op,
        group: usize,
        bytes: u64,
        act: Act,
        time: Option<Duration>,
        future: Charging,
    ) {
        let key = self.twin.key();
        let is_timed = time.is_some();
        let bell = Bell::new(key, act, self.handle(group), &self.shared);
        let may_be_delayed = matches!(op.1, What::BeginAbove(..)) && self.setup.delay > 0;
        let mut task = Task {
            key,
            group,
            bytes,
            end: None,
            is_timed,
            passed: Passed {
                group,
                bytes,
                others: Some(0),
            },
            may_be_delayed,
            walks: may_be_delayed && self.walks(group),
            delay: None,
            call: Call::Future(future, bell, op.0),
        };
        self.keeps = true;
        let mut ask = self.ask(group, 0, Verb::WaitNot, bytes);
        // A thread of the runtime asks caches, and not this call.
        ask.asks = false;
        match self.poll(op, &mut task) {
            Poll::Ready(found) => {
                if !is_timed && let Err(error) = &found {
                    assert!(
                        error.is_offline()
                            || error.is_cancelled()
                            || self.twin.never_fits(group, bytes),
                        "{error}, and it may wait"
                    );
                }
                let was_quiet = self.shared.is_quiet();
                if let Some(charge) = self.agree(ask, found) {
                    self.keep(charge, group, 0, bytes);
                    if task.walks && was_quiet {
                        self.is_not_delayed(group, bytes);
                    }
                }
            }
            Poll::Pending => {
                assert!(time != Some(Duration::ZERO), "it has no time to wait");
                assert!(
                    !self.waits_for_itself(group),
                    "{bytes} bytes of {} wait, which was cancelled",
                    self.twin.path(group)
                );
                let before = self.twin.admits(group, 0, bytes, None);
                let waits_alone = self.waiting().next().is_none() && !self.adapters_wait();
                if task.may_be_delayed && before.is_ok() {
                    if waits_alone && self.shared.is_quiet() {
                        self.admit(&task);
                        self.begin_delay(task);
                        self.settle_accounts();
                    } else {
                        // In line behind others, or delayed: nobody can say.
                        self.end_task(op, task);
                    }
                    return;
                }
                // A task in line may be served before the call returns.
                self.tasks.push(task);
                self.settle_accounts();
                let others = self.waiting().any(|other| other.key != key) || self.adapters_wait();
                let waits = self.waiting().any(|waiting| waiting.key == key);
                assert!(
                    !waits || others || before.is_err() || !self.shared.is_quiet(),
                    "{bytes} bytes wait alone and fit"
                );
            }
        }
    }

    /// What a poll has brought.
    fn take_up(&mut self, at: usize, mut task: Task, polled: Polled) {
        if task.may_be_delayed && polled.is_pending() {
            match task.end {
                _ if task.delay.is_some() => self.take_up_delayed(at, task, true),
                // It has its bytes, and waits on.
                Some(End::Admitted) => {
                    task.walks = true;
                    self.begin_delay(task);
                }
                // In line, or delayed: nobody can say.
                Some(_) => self.end_task(&Op(0, What::Look), task),
                None => unreachable!("it is polled when it was woken"),
            }
            return;
        }
        let Task {
            key,
            group,
            bytes,
            end,
            ..
        } = task;
        match (polled, end) {
            (Poll::Pending, None | Some(End::Unknown)) => {
                task.end = None;
                self.tasks.insert(at, task);
            }
            // One that a thread of the runtime serves may be polled before it is woken.
            (Poll::Ready(Ok(charge)), None) if self.keeps => {
                self.pass_those_in_line(bytes);
                self.keep(charge, group, 0, bytes);
            }
            (Poll::Ready(Err(error)), None) if self.keeps && error.is_cancelled() => {}
            (Poll::Ready(Err(error)), None) if task.is_thread() => {
                self.refuse_thread(&task, &error)
            }
            (Poll::Ready(Ok(charge)), Some(End::Admitted | End::Unknown)) => {
                if task.delay.is_some() {
                    self.take_up_delayed(at, task, false);
                }
                self.twin.held.remove(&key);
                if end == Some(End::Unknown) {
                    // It has passed those before it, which only the poll tells.
                    self.pass_those_in_line(bytes);
                }
                self.keep(charge, group, 0, bytes);
            }
            (Poll::Ready(Err(error)), Some(end)) => {
                let is_right = match end {
                    End::Admitted => false,
                    End::TooLarge => error.is_over_limit(),
                    End::Offline => error.is_offline(),
                    End::Unknown => true,
                };
                assert!(is_right, "{error}, the twin says {end:?}");
                if let Some(refusal) = error.over_limit() {
                    let level = self.number(refusal.group());
                    let of = &mut self.twin.groups[level];
                    of.refused[0] += 1;
                    of.timed_out += u64::from(error.is_timeout());
                }
            }
            (polled, end) => panic!("{polled:?} of {bytes} bytes, the twin says {end:?}"),
        }
    }

    /// The call of a thread has ended without its bytes.
    fn refuse_thread(&mut self, task: &Task, error: &ChargeError) {
        let Call::Thread { until, .. } = task.call else {
            unreachable!("the call of a thread");
        };
        if error.is_offline() {
            let is_online = self.twin.groups[task.group].online;
            assert!(!is_online, "{error}, the twin has the group online");
            return;
        }
        assert!(error.is_timeout() || error.is_over_limit(), "{error}");
        assert!(
            !error.is_timeout() || clock::now() >= until,
            "{error}, {:?} early",
            until.saturating_duration_since(clock::now())
        );
        assert!(
            error.is_timeout() || self.twin.never_fits(task.group, task.bytes),
            "{error}, and it may wait"
        );
        let refusal = error.over_limit().expect("a level that refused");
        let level = self.number(refusal.group());
        let of = &mut self.twin.groups[level];
        of.refused[0] += 1;
        of.timed_out += u64::from(error.is_timeout());
    }

    /// Polls those of which only a poll tells how they have ended.
    pub(super) fn poll_unknown(&mut self) {
        let unknown = |task: &Task| task.end == Some(End::Unknown);
        while let Some(at) = self.tasks.iter().position(unknown) {
            let mut task = self.tasks.remove(at);
            let polled = self.poll(&Op(0, What::Look), &mut task);
            self.take_up(at, task, polled);
        }
    }

    /// The waker of a task was called: the wait has ended, and the twin says how.
    pub(super) fn rang(&mut self, key: Key) {
        let Some(at) = self.tasks.iter().position(|task| task.key == key) else {
            return;
        };
        if self.tasks[at].delay.is_some() {
            return self.rang_delayed(at);
        }
        let Task {
            group,
            bytes,
            end,
            is_timed,
            ..
        } = self.tasks[at];
        if end.is_some() {
            // By its time and by its bytes, in one step; or nobody knows whether it is.
            if is_timed || end == Some(End::Unknown) {
                return;
            }
            panic!("{bytes} bytes are woken for the second time");
        }
        let end = if is_timed || self.cancelled || !self.hooks.is_empty() || !self.caches.is_empty()
        {
            End::Unknown
        } else if !self.twin.groups[group].online {
            // Where the one before it is refused first, it may be served in the moment before its
            // own turn to be refused comes.
            if self.waiting().count() > 1 {
                End::Unknown
            } else {
                End::Offline
            }
        } else if self.twin.never_fits(group, bytes) {
            assert!(
                self.may_be_vain(group, bytes) || !self.shared.is_quiet() || self.setup.adapters,
                "{bytes} bytes in {} wait no longer, and the max may rise again",
                self.twin.path(group)
            );
            End::TooLarge
        } else {
            End::Admitted
        };
        self.tasks[at].end = Some(end);
        if end == End::Admitted {
            // Those before it in line it has passed.
            self.pass_those_in_line(bytes);
            self.twin.held.insert(
                key,
                Held {
                    group,
                    counter: 0,
                    bytes,
                },
            );
        }
    }

    /// No waiter is forgotten: of charges that wait for each other at least one does not fit. A
    /// thread of the runtime that asks reclaimers for them may have bytes in flight for a moment.
    pub(super) fn line_holds(&self) -> Holds {
        if !self.shared.is_quiet() || self.cancelled || self.adapters_wait() {
            return Ok(());
        }
        let mut waiting = self.waiting();
        if let Some(task) = waiting.find(|task| !self.twin.groups[task.group].online) {
            return Err(format!(
                "{} bytes wait for a group that is offline",
                task.bytes
            ));
        }
        let fits = |task: &Task| self.twin.admits(task.group, 0, task.bytes, None).is_ok();
        let mut left: Vec<&Task> = self.waiting().collect();
        while let Some(first) = left.pop() {
            // All that may stand in line with it, directly or by way of others.
            let mut linked = vec![first];
            let mut at = 0;
            while at < linked.len() {
                let of = linked[at].group;
                let meets = |other: &&Task| {
                    let common = self.twin.common(of, other.group);
                    self.twin
                        .levels(common)
                        .any(|level| self.twin.limit(level, 0) < memcg::PageCounter::USAGE_MAX)
                };
                let (more, rest) = left.into_iter().partition::<Vec<_>, _>(meets);
                linked.extend(more);
                left = rest;
                at += 1;
            }
            if linked.iter().all(|task| fits(task)) {
                let sizes: Vec<u64> = linked.iter().map(|task| task.bytes).collect();
                return Err(format!(
                    "each charge in line fits, and none is served: {sizes:?}"
                ));
            }
            // It is the first of each line that it may be in, where none has another rank.
            let oldest = linked.iter().min_by_key(|task| task.key);
            if let Some(oldest) = oldest.filter(|task| !self.ranked && fits(task)) {
                return Err(format!(
                    "{} bytes in {} wait longest, fit, and are not served",
                    oldest.bytes,
                    self.twin.path(oldest.group)
                ));
            }
        }
        let in_line: usize = self
            .handles
            .iter()
            .filter_map(|handles| handles.first())
            .map(memcg::Group::waiting_count)
            .sum();
        let waiting = self.waiting().count();
        let all_in_hand = self.handles.iter().all(|handles| !handles.is_empty());
        if in_line > waiting || all_in_hand && in_line < waiting {
            return Err(format!(
                "{in_line} places in line for {waiting} charges that wait"
            ));
        }
        Ok(())
    }
}
