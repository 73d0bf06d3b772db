//! Tasks that have their bytes, and are delayed above a high: what may end a delay, and what must.
//!
//! A thread of the crate looks at the delays, by the clock that the run moves. After each step the
//! run lets it look, and so knows whether it has woken all that it has to wake by then.

use std::time::{Duration, Instant};

use memcg::Bytes;
use memcg::simulated_time as clock;

use super::Life;
use super::tasks::{End, Task};
use crate::script::{Act, Op, Size, What};
use crate::twin::{Held, Key};

/// A shorter delay is none.
const DELAY_MIN: Duration = Duration::from_millis(10);

/// What the crate's thread of delays does at an instant it does so much later at most: many delays share a look.
const REST: Duration = Duration::from_millis(1);

/// A delay is looked at so soon, then whenever it has become a quarter older.
const LOOK: Duration = Duration::from_millis(10);

/// A charge that is delayed.
pub(super) struct Delay {
    begun: Instant,
    /// It lasts until then, as long as a level is above its high.
    least: Instant,
    /// By then it is over.
    most: Instant,
    /// Its group was cancelled.
    cancelled: bool,
    /// Its waker was called; true if the twin knew of a reason then.
    rang: Option<bool>,
    /// No level is above its high any more, and by then the thread has looked.
    due: Option<Instant>,
}

/// The delay of a charge that walked with so many bytes, at a level with that usage and that high.
/// In floating point, where the library has whole numbers: the kernel's `calculate_high_delay`.
fn formula(usage: u64, high: u64, bytes: u64) -> Duration {
    let overage = usage.saturating_sub(high) as f64 / high.max(1) as f64;
    let milliseconds = overage * overage * 64.0 * 1_000.0 * bytes as f64 / (64.0 * 4_096.0);
    Duration::try_from_secs_f64(milliseconds / 1_000.0).unwrap_or(Duration::MAX)
}

impl Life {
    /// The levels of a group whose limits act.
    fn acting(&self, group: usize) -> impl Iterator<Item = usize> {
        let levels = self.twin.levels(group);
        levels.filter(|&level| !self.twin.is_observed(level))
    }

    /// Live bytes are above a high.
    pub(super) fn is_above_high(&self, group: usize) -> bool {
        let mut levels = self.acting(group);
        levels.any(|level| self.twin.live(level, 0) > self.twin.groups[level].high)
    }

    /// The longest delay of a charge that walked with so many bytes.
    pub(super) fn delay_by(&self, group: usize, bytes: u64) -> Duration {
        let most = Duration::from_millis(self.setup.delay);
        let delays = self.acting(group).map(|level| {
            let high = self.twin.groups[level].high;
            formula(self.twin.live(level, 0), high, bytes)
        });
        delays.max().unwrap_or_default().min(most)
    }

    /// No stock has credit for a charge there, so it takes all of its bytes up the tree; or more, for
    /// the next charges.
    pub(super) fn walks(&self, group: usize) -> bool {
        self.handle(group).memory().stocked() == 0
    }

    pub(super) fn begin_above(&mut self, op: &Op, group: u8, size: Size) {
        let Some(group) = self.group(group).filter(|_| self.has_room_for_tasks()) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        let future = self.handle(group).charge_async(Bytes(bytes));
        self.begin_charging(op, group, bytes, Act::Nothing, None, Box::pin(future));
    }

    /// A charge has its bytes and is pending: it is delayed from now on. The twin has its bytes.
    pub(super) fn begin_delay(&mut self, mut task: Task) {
        let walked = if task.walks { task.bytes } else { 1 };
        let begun = clock::now();
        let least = self.delay_by(task.group, walked);
        assert!(
            !self.shared.is_quiet() || self.is_above_high(task.group),
            "{} bytes are delayed in {}, and no level is above its high",
            task.bytes,
            self.twin.path(task.group)
        );
        task.end = Some(End::Admitted);
        // Whole numbers round down.
        let least = least.saturating_sub(least / 100 + Duration::from_micros(1));
        task.delay = Some(Delay {
            begun,
            least: begun + least,
            most: begun + Duration::from_millis(self.setup.delay),
            cancelled: false,
            rang: None,
            due: None,
        });
        self.tasks.push(task);
    }

    /// A charge was made at once, with so many bytes that it took up the tree at least.
    pub(super) fn is_not_delayed(&self, group: usize, bytes: u64) {
        let delay = self.delay_by(group, bytes);
        // Not to the microsecond: the twin's is in floating point.
        let is_short = delay <= DELAY_MIN + DELAY_MIN / 100;
        assert!(
            is_short || !self.shared.is_quiet() || self.cancelled,
            "{bytes} bytes in {} are not delayed for {delay:?}",
            self.twin.path(group)
        );
    }

    /// A hook was called: the delays of its group have ended.
    pub(super) fn cancel_delays(&mut self, hook: Key) {
        let Some(hook) = self.hooks.iter().find(|other| other.key == hook) else {
            return;
        };
        let group = hook.group;
        for task in self.tasks.iter_mut().filter(|task| task.group == group) {
            if let Some(delay) = &mut task.delay {
                delay.cancelled = true;
            }
        }
    }

    /// A delay may be over.
    pub(super) fn may_end(&self, task: &Task) -> bool {
        let delay = task.delay.as_ref().expect("a charge that is delayed");
        !self.shared.is_quiet()
            || self.cancelled
            || delay.cancelled
            || clock::now() >= delay.least
            || !self.twin.groups[task.group].online
            || !self.is_above_high(task.group)
    }

    /// The waker of a charge that is delayed was called. The message where it was before.
    pub(super) fn rang_delayed(&mut self, at: usize) {
        let may_end = self.may_end(&self.tasks[at]);
        let task = &mut self.tasks[at];
        let delay = task.delay.as_mut().expect("a charge that is delayed");
        assert!(
            delay.rang.is_none() || self.had_caches,
            "{} bytes are woken for the second time",
            task.bytes
        );
        // By a thread that has asked caches, after its time.
        delay.rang = Some(may_end || delay.rang == Some(true));
    }

    /// A thread of the runtime that has asked caches for a charge that is delayed wakes it, which
    /// looks whether that was enough: those go on waiting, if not.
    fn poll_woken(&mut self) {
        if !self.had_caches {
            return;
        }
        let too_early = |life: &Life, task: &Task| {
            let rang = task.delay.as_ref().and_then(|delay| delay.rang);
            rang == Some(false) && !life.may_end(task)
        };
        for number in (0..self.tasks.len()).rev() {
            if too_early(self, &self.tasks[number]) {
                self.poll_at(&Op(0, What::Look), number);
            }
        }
    }

    /// What ends a delay has ended it, and nothing else has.
    pub(super) fn check_delays(&mut self) {
        self.poll_woken();
        for number in 0..self.tasks.len() {
            let task = &self.tasks[number];
            let Some(delay) = &task.delay else { continue };
            let told = format!(
                "{} bytes in {}, delayed for {:?} to {:?}, after {:?}",
                task.bytes,
                self.twin.path(task.group),
                delay.least - delay.begun,
                delay.most - delay.begun,
                clock::now() - delay.begun
            );
            if let Some(may_end) = delay.rang {
                // What an operation has done the twin may know since the waker was called.
                assert!(may_end || self.may_end(task), "too early: {told}");
                continue;
            }
            let is_online = self.twin.groups[task.group].online;
            assert!(is_online, "the group is offline: {told}");
            assert!(!delay.cancelled, "the group was cancelled: {told}");
            assert!(clock::now() < delay.most + REST, "too late: {told}");
            if self.is_above_high(task.group) {
                self.delay_mut(number).due = None;
                continue;
            }
            let now = clock::now();
            let rest = ((now - delay.begun) / 4).max(LOOK) + REST;
            let due = *self.delay_mut(number).due.get_or_insert(now + rest);
            if now >= due {
                self.ends_below_high(number, &told);
            }
        }
    }

    fn delay_mut(&mut self, number: usize) -> &mut Delay {
        let delay = self.tasks[number].delay.as_mut();
        delay.expect("a charge that is delayed")
    }

    /// The thread has looked since no level is above its high by live bytes. Where credit was above
    /// it, that has gone home, and the next look finds so.
    fn ends_below_high(&mut self, number: usize, told: &str) {
        let key = self.tasks[number].key;
        for _ in 0..2 {
            let task = self.tasks.iter().find(|task| task.key == key);
            let is_open = |task: &Task| task.delay.as_ref().is_some_and(|it| it.rang.is_none());
            if !task.is_some_and(is_open) {
                return;
            }
            clock::advance(LOOK + REST);
            self.settle_accounts();
        }
        let task = self.tasks.iter().find(|task| task.key == key);
        let rang = task.and_then(|task| task.delay.as_ref()?.rang);
        assert!(rang.is_some(), "no level is above its high: {told}");
    }

    /// A charge that waits, as the twin has it from now on: it has its bytes.
    pub(super) fn admit(&mut self, task: &Task) {
        let held = Held {
            group: task.group,
            counter: 0,
            bytes: task.bytes,
        };
        self.twin.held.insert(task.key, held);
    }

    /// A poll of a charge that is delayed. It is pending, or has its bytes.
    pub(super) fn take_up_delayed(&mut self, at: usize, mut task: Task, is_pending: bool) {
        let may_end = self.may_end(&task);
        let delay = task.delay.as_mut().expect("a charge that is delayed");
        if !is_pending {
            assert!(
                may_end || delay.rang == Some(true),
                "{} bytes are delayed no longer, too early",
                task.bytes
            );
            return;
        }
        let rang = delay.rang.take().is_some() && !self.had_caches;
        let is_over = !self.twin.groups[task.group].online || clock::now() >= delay.most;
        assert!(
            !rang && !is_over && !delay.cancelled,
            "{} bytes are delayed for ever",
            task.bytes
        );
        self.tasks.insert(at, task);
    }
}
