//! For how long charges stand still: as long as time goes by while one of them waits, or is delayed.

use std::time::Duration;

use memcg::simulated_time as clock;

use super::Life;
use super::tasks::Task;

/// Of a group: the time in which some charge stood still, and that in which no other went on.
type Totals = Vec<Option<(Duration, Duration)>>;

impl Life {
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
            let stands = within.clone().any(|task| !task.is_thread());
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
