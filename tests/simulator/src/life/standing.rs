//! For how long charges stand still: as long as time goes by while one of them waits, or is delayed.

use std::time::Duration;

use memcg::PressureLevel;
use memcg::simulated_time as clock;

use super::Life;
use super::tasks::Task;
use crate::holds::ensure;

/// Of a group: the time in which some charge stood still, and that in which no other went on.
type Totals = Vec<Option<(Duration, Duration)>>;

/// A level is up from that average of ten seconds on, in hundredths of a percent.
const UP_FROM: u32 = 1_000;

/// Periods of averages end so often.
const PERIOD: Duration = Duration::from_secs(2);

impl Life {
    /// A group whose charges stand still for long is under pressure, whichever was first: that they
    /// stand still, or that it has thresholds. Those above are, too. What does not stand still any
    /// more counts less with each period.
    pub(super) fn stand_for_long(&mut self) {
        let stands = |life: &Life, group: usize| {
            let within = |task: &&Task| life.twin.is_within(task.group, group);
            let mut tasks = life.tasks.iter().filter(within);
            tasks.any(|task| !task.is_thread() && task.end.is_none())
        };
        let is_known = |life: &Life| {
            let tasks = life.tasks.iter();
            let all_in_line = tasks
                .clone()
                .all(|task| !task.is_thread() && task.end.is_none());
            let is_quiet = life.shared.is_quiet() && life.delayed.is_none();
            life.setup.stalls && !life.setup.adapters && is_quiet && all_in_line
        };
        if !is_known(self) {
            return;
        }
        let groups = 0..self.handles.len();
        let average = |life: &Life, group: usize| {
            let pressure = life.handles[group].first()?.pressure();
            Some(pressure.some.avg10)
        };
        let before: Vec<_> = groups
            .map(|group| (stands(self, group), average(self, group)))
            .collect();
        // In one step, or in several, after each of which somebody reads.
        let steps = if self.twin.held.len().is_multiple_of(2) {
            4
        } else {
            1
        };
        for _ in 0..steps {
            self.time_goes_by(PERIOD * 4 / steps + Duration::from_millis(10));
            self.settle_accounts();
        }
        if !is_known(self) {
            return;
        }
        for (group, (stood, before)) in before.into_iter().enumerate() {
            let (Some(now), Some(before)) = (average(self, group), before) else {
                continue;
            };
            let path = self.twin.path(group);
            // Three periods have gone by from their beginning to their end.
            let kept = (-0.6_f64).exp();
            let before = f64::from(before) / 10_000.0;
            let bound = if stood && stands(self, group) {
                // They may have begun near the end of a period.
                1.0 - (1.0 - before * (-0.2_f64).exp()) * kept
            } else if stood {
                continue;
            } else {
                // That which has begun before may have stood still for all of its time.
                (1.0 - (1.0 - before) * (-0.2_f64).exp()) * kept
            };
            let bound = (bound * 10_000.0).round() as u32;
            assert!(
                if stood {
                    now + 2 >= bound
                } else {
                    now <= bound + 2
                },
                "avg10 of {path} is {now} after four periods, and was {before}; it stood still: {stood}"
            );
            let (elevated, critical) = self.twin.groups[group].thresholds;
            let is_own = elevated > 0 && critical > 0 && self.twin.groups[group].online;
            if is_own && stood && bound > 2 * UP_FROM {
                // A thread of the crate looks.
                self.hold(|life| {
                    let level = life.handles[group][0].pressure_level();
                    ensure!(
                        level > PressureLevel::Normal || !is_known(life),
                        "charges in {path} have stood still for long, avg10 {now}, and it is at {level:?}"
                    );
                    Ok(())
                });
            }
        }
    }

    fn totals(&self) -> Totals {
        let total = |handles: &Vec<memcg::Group>| {
            let pressure = handles.first()?.pressure();
            Some((pressure.some.total, pressure.full.total))
        };
        self.handles.iter().map(total).collect()
    }

    /// Time goes by, and no call is made meanwhile but those of threads that wait.
    pub(super) fn time_goes_by(&mut self, time: Duration) {
        if !self.setup.stalls || self.setup.adapters || !self.shared.is_quiet() {
            return clock::advance(time);
        }
        let before = self.totals();
        clock::advance(time);
        for (group, (before, now)) in before.into_iter().zip(self.totals()).enumerate() {
            let (Some(before), Some(now)) = (before, now) else {
                continue;
            };
            let (some, full) = (now.0 - before.0, now.1 - before.1);
            let mut within = self
                .tasks
                .iter()
                .filter(|task| self.twin.is_within(task.group, group));
            let work = self.delayed.as_ref();
            let is_delayed = work.is_some_and(|work| self.twin.is_within(work.group, group));
            let stands = is_delayed || within.clone().any(|task| !task.is_thread());
            let may_stand = stands || within.any(Task::is_thread);
            // A thread that waits may go on in between.
            let (least, most) = (
                if stands { time } else { Duration::ZERO },
                if may_stand { time } else { Duration::ZERO },
            );
            assert!(
                least <= some && some <= most && full <= some,
                "{time:?} went by, and charges in {} stood still for {some:?}, all of them for {full:?}",
                self.twin.path(group)
            );
        }
    }
}
