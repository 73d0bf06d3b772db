//! What must hold after each operation, and what is looked at now and then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::{Event, Group, PressureLevel};

use super::{Life, OOM_TIME};
use crate::twin::COUNTERS;

/// For how many milliseconds a thread of the runtime may do what it does for a moment. A script that
/// is known to fail has less: it fails again and again as it shrinks.
pub(crate) static PATIENCE: AtomicU64 = AtomicU64::new(5_000);

pub(super) fn patience() -> Duration {
    Duration::from_millis(PATIENCE.load(Ordering::Relaxed))
}

/// Looks again as long as a thread of the runtime may be at work: `patient` says that there may be
/// one.
pub(super) fn eventually(patient: bool, mut holds: impl FnMut() -> bool) -> bool {
    if holds() {
        return true;
    }
    let began = Instant::now();
    while patient && began.elapsed() < patience() {
        std::thread::sleep(Duration::from_millis(1));
        if holds() {
            return true;
        }
    }
    false
}

impl Life {
    /// One line of where the twin is.
    pub(super) fn summary(&self) -> String {
        let online = self.twin.online_below(0).count();
        let waiting = self.waiting().count();
        format!(
            "{online} groups, {} live, {} used, {} charges, {waiting} wait",
            self.twin.live(0, 0),
            self.handles[0].first().map_or(0, Group::usage),
            self.charges.len()
        )
    }

    /// All that can be seen without settling anything.
    pub(super) fn glance(&mut self) {
        self.check_line();
        for (group, handles) in self.handles.iter().enumerate() {
            let Some(handle) = handles.first() else {
                continue;
            };
            let is_offline = !self.twin.groups[group].online;
            assert_eq!(handle.is_offline(), is_offline, "{handle:?}");
            for number in 0..COUNTERS {
                self.glance_at(handle, group, number);
            }
        }
        for (key, charge) in &self.charges {
            assert_eq!(charge.bytes(), self.twin.of(*key).bytes, "of {charge:?}");
        }
        if let (Some(runtime), Some(budget)) = (&self.runtime, self.setup.budget) {
            let bound = runtime.root().memory().stocked_bound();
            assert!(bound <= budget, "bound {bound}, budget {budget}");
        }
    }

    fn glance_at(&self, handle: &Group, group: usize, number: usize) {
        let twin = &self.twin.groups[group];
        let counter = handle.counter(self.counter(number)).expect("declared");
        let max = counter.max();
        let live = self.twin.live(group, number);
        assert_eq!(max, twin.max[number], "max of {handle:?}");
        let figures = || (counter.usage(), counter.forced(), counter.stocked_bound());
        let holds = || {
            let (usage, forced, bound) = figures();
            usage >= live
                && usage - live <= bound
                && forced <= usage
                && usage - forced <= max
                && counter.peak() >= usage
        };
        assert!(
            eventually(self.keeps, holds),
            "{handle:?}, counter {number}: (usage, forced, bound) {:?}, max {max}, peak {}, the twin has {live} live",
            figures(),
            counter.peak()
        );
        if self.shared.is_quiet() && !self.keeps {
            assert_eq!(
                counter.refused_count(),
                twin.refused[number],
                "refusals of {handle:?}, counter {number}"
            );
        }
    }

    /// Everything, after dying groups have been settled.
    pub(super) fn look(&mut self) {
        for (group, handles) in self.handles.iter().enumerate() {
            if let Some(handle) = handles.first() {
                self.look_at(handle, group);
            }
        }
        for (key, charge) in &self.charges {
            assert_eq!(charge.group().id(), self.ids[self.twin.of(*key).group]);
        }
        if let Some(runtime) = &self.runtime {
            runtime.settle();
            let sums = || {
                let verdict = runtime.verify();
                (verdict.is_ok() && verdict.audited() == self.setup.audit)
                    .then_some(())
                    .ok_or(verdict)
            };
            assert!(eventually(self.keeps, || sums().is_ok()), "{:?}", sums());
            let online = self.twin.online_below(0).count();
            if self.shared.is_quiet() {
                assert_eq!(runtime.group_count(), online, "groups online");
            }
            if !self.keeps {
                let dying = self.there() - online;
                assert_eq!(
                    runtime.dying_count(),
                    dying,
                    "groups that are not done with"
                );
            }
            for (group, id) in self.ids.iter().enumerate() {
                if self.twin.groups[group].online {
                    let path = self.twin.path(group);
                    assert_eq!(
                        runtime.group(&path).map(|it| it.id()),
                        Some(*id),
                        "at {path}"
                    );
                }
            }
            let table = || {
                let rows = runtime.snapshot();
                let rows = rows.rows().iter();
                let mut rows: Vec<_> = rows
                    .map(|row| (row.path.clone(), row.live, row.max))
                    .collect();
                rows.sort();
                rows
            };
            let mut expected: Vec<_> = self
                .twin
                .online_below(0)
                .map(|group| {
                    let max = self.twin.groups[group].max[0];
                    (self.twin.path(group), self.twin.live(group, 0), max)
                })
                .collect();
            expected.sort();
            let holds = eventually(self.keeps, || table() == expected);
            assert!(holds, "the table: {:?}, the twin has {expected:?}", table());
        }
        self.look_at_items();
        self.look_at_events();
        self.probe();
    }

    fn look_at(&self, handle: &Group, group: usize) {
        let twin = &self.twin.groups[group];
        assert_eq!(
            (handle.id(), &*handle.name(), handle.path()),
            (self.ids[group], twin.name.as_str(), self.twin.path(group))
        );
        assert_eq!(
            handle.parent().map(|parent| parent.id()),
            twin.parent.map(|parent| self.ids[parent])
        );
        let inspect = handle.inspect();
        if twin.online {
            assert_eq!(
                (inspect.min(), inspect.low(), inspect.high(), inspect.soft()),
                (twin.min, twin.low, twin.high, twin.soft),
                "limits of {handle:?}"
            );
        }
        for number in 0..COUNTERS {
            let counter = handle.counter(self.counter(number)).expect("declared");
            let live = self.twin.live(group, number);
            let figures = || {
                // In this order: a read of what is stocked settles dying groups.
                let stocked = counter.stocked();
                (counter.live(), counter.usage() - stocked)
            };
            assert!(
                eventually(self.keeps, || figures() == (live, live)),
                "{handle:?}, counter {number}: {:?}, the twin has {live} live",
                figures()
            );
        }
        if self.shared.is_quiet() && twin.online {
            let own = self.twin.own(group);
            let below: u64 = self
                .twin
                .children(group)
                .filter(|&child| !self.twin.groups[child].online)
                .map(|child| self.twin.live(child, 0))
                .sum();
            let local = inspect.live_local();
            assert_eq!(local, own + below, "live of {handle:?} itself");
            let is_in_excess = inspect.is_in_excess();
            assert_eq!(
                is_in_excess,
                handle.usage() > twin.soft,
                "excess of {handle:?}"
            );
            let excess = self
                .twin
                .online_below(group)
                .filter(|&below| below != group)
                .filter_map(|below| self.handles[below].first())
                .filter(|below| below.inspect().is_in_excess())
                .count() as u64;
            let all_in_hand = self.handles.iter().all(|handles| !handles.is_empty());
            if all_in_hand {
                assert_eq!(inspect.descendants_in_excess(), excess, "below {handle:?}");
            }
            self.look_at_pressure(handle, group);
        }
        if self.shared.is_quiet() {
            let mut children: Vec<_> = handle.children().iter().map(Group::id).collect();
            let mut expected: Vec<_> = self
                .twin
                .children(group)
                .filter(|&child| self.twin.groups[child].online)
                .map(|child| self.ids[child])
                .collect();
            children.sort_by_key(|id| self.ids.iter().position(|known| known == id));
            expected.sort_by_key(|id| self.ids.iter().position(|known| known == id));
            assert_eq!(children, expected, "children of {handle:?}");
        }
    }

    /// The level is up where live bytes alone say so, and down a sixteenth below that.
    fn look_at_pressure(&self, handle: &Group, group: usize) {
        let found = handle.pressure_level();
        let decides = self
            .twin
            .levels(group)
            .find(|&level| self.twin.groups[level].thresholds != (0, 0));
        let Some(level) = decides else {
            assert_eq!(
                found,
                PressureLevel::Normal,
                "no thresholds above {handle:?}"
            );
            return;
        };
        let twin = &self.twin.groups[level];
        let (elevated, critical) = twin.thresholds;
        let live = u128::from(self.twin.live(level, 0));
        let max = u128::from(twin.max[0]);
        let is_unlimited = twin.max[0] == u64::MAX;
        let from = |share: u8| max * u128::from(share.min(100)) / 100;
        let is_up = |share: u8| share > 0 && !is_unlimited && live > from(share) && max > 0;
        let may_be_up = |share: u8| {
            let from = from(share);
            share > 0 && live + 1 >= from - from / 16
        };
        let (least, most) = (
            if is_up(critical) {
                PressureLevel::Critical
            } else if is_up(elevated) {
                PressureLevel::Elevated
            } else {
                PressureLevel::Normal
            },
            if may_be_up(critical) {
                PressureLevel::Critical
            } else if may_be_up(elevated) {
                PressureLevel::Elevated
            } else {
                PressureLevel::Normal
            },
        );
        assert!(
            (least..=most).contains(&found),
            "{found:?} at {handle:?}: {live} live of {max}, from {elevated} and {critical}"
        );
    }

    /// Above there are no fewer events than below, and those of the group alone are among all.
    fn look_at_events(&self) {
        for (group, handles) in self.handles.iter().enumerate() {
            let Some(handle) = handles.first() else {
                continue;
            };
            let children: Vec<&Group> = self
                .twin
                .children(group)
                .filter_map(|child| self.handles[child].first())
                .collect();
            for event in Event::ALL {
                let figures = || {
                    let below: u64 = children.iter().map(|child| child.events().get(event)).sum();
                    let all = handle.events();
                    (all.get(event), all.local().get(event), below)
                };
                let holds = || {
                    let (all, local, below) = figures();
                    all >= local + below
                };
                assert!(
                    eventually(self.keeps, holds),
                    "{event:?} of {handle:?}: (all, itself, below) {:?}",
                    figures()
                );
            }
        }
    }

    /// Each group takes what fits, and no mark of what is over stands in the way.
    fn probe(&mut self) {
        if self.waiting().next().is_some() {
            return;
        }
        if self.cancelled {
            // A victim is one until then.
            std::thread::sleep(OOM_TIME * 4);
            self.cancelled = false;
        }
        for group in 0..self.handles.len() {
            let Some(handle) = self.handles[group].first() else {
                continue;
            };
            let found = handle.try_charge(1).map(drop);
            let mut ask = self.ask(group, 0, crate::script::Verb::Try, 1);
            ask.beside_credit = false;
            self.agree(ask, found);
        }
    }
}
