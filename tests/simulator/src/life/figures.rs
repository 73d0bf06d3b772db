//! What must hold after each operation, and what is looked at now and then.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memcg::figures::{Incident, IncidentKind, Snapshot, SnapshotRow};
use memcg::simulated_time as clock;
use memcg::{
    Bytes, ChargeError, ChargeErrorKind, Event, Freshness, Group, GroupId, PageCounter, Percent,
    PressureLevel, Runtime,
};

use super::Life;
use crate::configuration::OOM_TIME;
use crate::holds::{Holds, PATIENCE, ensure, ensure_eq};
use crate::script::Op;
use crate::threads::rest;
use crate::twin::COUNTERS;

impl Life {
    /// Holds now; or soon, where a thread of the runtime may be at work. What that thread does for
    /// charges that wait, the twin follows meanwhile.
    ///
    /// # Panics
    /// When it does not hold.
    pub(super) fn hold(&mut self, holds: impl Fn(&Life) -> Holds) {
        let patience = Duration::from_millis(PATIENCE.load(Ordering::Relaxed));
        let until = Instant::now() + patience;
        // Mostly it takes no longer than another thread's turn.
        let mut pause = Duration::from_micros(50);
        loop {
            rest();
            let Err(fault) = holds(self) else { return };
            assert!(self.keeps && Instant::now() < until, "{fault}");
            // Those of adapters go by the system's clock.
            if self.setup.adapters {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(1));
            }
            clock::advance(Duration::from_millis(20));
            self.settle_accounts();
        }
    }

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
        self.hold(Life::line_holds);
        self.hold(Life::waits_are_not_vain);
        self.hold(Life::glance_holds);
        self.follow_peaks();
        self.hold(Life::incidents_hold);
        self.hold(Life::awaited_hold);
        self.poll_awaited();
        self.hold(Life::peaks_hold);
        #[cfg(feature = "adapters")]
        self.hold(Life::adapters_glance);
    }

    fn glance_holds(&self) -> Holds {
        for (group, handle) in self.in_hand() {
            let is_offline = !self.twin.groups[group].online;
            ensure_eq!(handle.is_offline(), is_offline, "{handle:?} is offline");
            for number in 0..COUNTERS {
                self.counter_holds(handle, group, number)?;
            }
        }
        for (key, charge) in &self.charges {
            ensure_eq!(charge.bytes(), self.twin.of(*key).bytes, "{charge:?}");
        }
        if let (Some(runtime), Some(budget)) = (&self.runtime, self.setup.budget) {
            let bound = runtime.root().memory().stocked_bound();
            ensure!(bound <= budget, "bound {bound}, budget {budget}");
        }
        Ok(())
    }

    pub(super) fn keep_incidents(&mut self, most: usize) {
        if let Some(runtime) = &self.runtime {
            let before = runtime.root().inspect().incidents();
            runtime.keep_incidents(most);
            self.incidents = most;
            let now = runtime.root().inspect().incidents();
            let last = before.len().saturating_sub(most);
            assert!(
                self.keeps || now == before[last..],
                "of {before:?} the last {most} are kept: {now:?}"
            );
        }
    }

    /// A refusal is the last incident, of the group that has asked and of the one that refuses, and
    /// is shown there and above.
    pub(super) fn is_kept_as_incident(&self, error: &ChargeError, group: usize, level: usize) {
        let is_alone = self.tasks.is_empty() && self.shared.is_quiet() && !self.adapters_wait();
        let Some(root) = self.handles[0].first().filter(|_| is_alone) else {
            return;
        };
        let Some(refusal) = error.over_limit().filter(|_| self.incidents > 0) else {
            return;
        };
        let kind = match error.kind() {
            ChargeErrorKind::TimedOut => IncidentKind::TimedOut,
            ChargeErrorKind::WouldBlock => IncidentKind::WouldBlock,
            _ => IncidentKind::Refused,
        };
        let paths = [group, level].map(|group| self.twin.path(group));
        let is_it = |it: &Incident| {
            it.kind == kind
                && [&it.group, &it.limited] == [&paths[0], &paths[1]]
                && it.counter.as_deref() == refusal.counter()
                && it.requested == refusal.requested()
                && (it.usage, it.max) == (refusal.usage(), refusal.max())
        };
        let all = root.inspect().incidents();
        // Victims may have been chosen for it, too.
        let Some(it) = all.iter().rev().find(|it| it.kind != IncidentKind::Victim) else {
            panic!("{error}, and no incident is kept");
        };
        assert!(is_it(it), "{error} is kept as {it:?}");
        for (at, handle) in self.in_hand() {
            let top = self.twin.path(at);
            let is_below = |path: &String| {
                let rest = path.strip_prefix(&top);
                at == 0 || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let shown = handle.inspect().incidents();
            let is_shown = shown.iter().any(|other| other.number == it.number);
            assert_eq!(is_shown, paths.iter().any(is_below), "{it:?} at {handle:?}");
        }
    }

    /// The last incidents are kept: as many as are wanted, in their order.
    fn incidents_hold(&self) -> Holds {
        let Some(root) = self.handles[0].first() else {
            return Ok(());
        };
        let numbers: Vec<u64> = root
            .inspect()
            .incidents()
            .iter()
            .map(|it| it.number)
            .collect();
        let many = numbers.len();
        ensure!(
            many <= self.incidents && numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "incidents {numbers:?}, and {} are kept",
            self.incidents
        );
        Ok(())
    }

    /// Whatever is read first after a share has moved tells of it.
    pub(super) fn first_look_at_shares(&mut self, op: &Op, moved: usize) {
        let parent = self.twin.groups[moved].parent;
        let sibling = self
            .twin
            .children(parent.unwrap_or(0))
            .find(|&it| it != moved && self.twin.groups[it].online && !self.handles[it].is_empty());
        let group = sibling.unwrap_or(moved);
        let handle = self.handle(group);
        let soft = self.twin.soft(group);
        let path = self.twin.path(group);
        let found = match self.some(op) % 4 {
            0 => handle.inspect().soft(),
            1 => {
                let limits = handle.limits();
                let is_told = limits.soft == Some(crate::configuration::limit(soft));
                let is_part = self.twin.groups[group].is_part(crate::script::Kind::Soft);
                assert!(is_told || is_part, "soft {soft} of {path}: {limits:?}");
                soft
            }
            2 => {
                let is_above = handle.inspect().is_in_excess();
                assert!(
                    is_above == (handle.usage() > soft) || !self.shared.is_quiet() || self.drains,
                    "{path} is in excess of {soft}: {is_above}"
                );
                soft
            }
            _ => handle.snapshot(0).rows()[0].soft,
        };
        assert_eq!(found, soft, "the soft limit of {path}");
    }

    /// The groups with a handle, and that.
    fn in_hand(&self) -> impl Iterator<Item = (usize, &Group)> {
        let handles = self.handles.iter().enumerate();
        handles.filter_map(|(group, handles)| Some((group, handles.first()?)))
    }

    fn counter_holds(&self, handle: &Group, group: usize, number: usize) -> Holds {
        let twin = &self.twin.groups[group];
        let counter = handle.counter(self.counter(number)).expect("declared");
        let (max, live) = (counter.max(), self.twin.live(group, number));
        ensure_eq!(max, twin.max[number], "max of {handle:?}");
        let (usage, forced) = (counter.usage(), counter.forced());
        let (bound, peak) = (counter.stocked_bound(), counter.peak());
        ensure!(
            usage >= live
                && usage - live <= bound
                && forced <= usage
                && usage - forced <= max
                && peak >= usage,
            "{handle:?}, counter {number}: {usage} used, {forced} forced, credit of {bound} at \
             most, max {max}, peak {peak}; the twin has {live} live"
        );
        if self.shared.is_quiet() && !self.keeps {
            let refused = counter.refused_count();
            let known = twin.refused[number];
            ensure_eq!(refused, known, "refusals of {handle:?}, counter {number}");
        }
        Ok(())
    }

    /// Everything, after dying groups have been settled.
    pub(super) fn look(&mut self) {
        self.hold(Life::look_holds);
        self.hold(Life::items_hold);
        self.hold(Life::events_hold);
        self.hold(Life::listeners_hold);
        self.follow_pressure();
        self.hold(Life::pools_hold);
        self.hold(Life::ids_hold);
        #[cfg(feature = "adapters")]
        self.hold(Life::adapters_hold);
        self.probe();
    }

    fn look_holds(&self) -> Holds {
        for (group, handle) in self.in_hand() {
            self.group_holds(handle, group)?;
        }
        for (key, charge) in &self.charges {
            let id = self.ids[self.twin.of(*key).group];
            ensure_eq!(charge.group().id(), id, "the group of {charge:?}");
        }
        let Some(runtime) = &self.runtime else {
            return Ok(());
        };
        // What groups that have gone have left is credit still.
        let depth = self.ids.len() % 3;
        let upper = runtime.root().snapshot(depth);
        for row in upper.rows() {
            let of_row = |&group: &usize| self.twin.path(group) == row.path;
            let group = self.twin.online_below(0).find(of_row);
            let known = group.map(|group| self.twin.live(group, 0));
            ensure_eq!(
                Some(row.live),
                known,
                "live at {} of {depth} levels",
                row.path
            );
        }
        runtime.settle();
        let verdict = runtime.verify();
        ensure!(verdict.is_ok(), "{verdict}");
        ensure_eq!(verdict.audited(), self.setup.audit, "audited");
        let online: Vec<usize> = self.twin.online_below(0).collect();
        let counters = 1 + runtime.root().counters().count();
        let (least, checked) = (online.len() * counters, verdict.counter_count());
        ensure!(
            checked >= least,
            "{checked} counters are verified of {least}"
        );
        if self.shared.is_quiet() {
            ensure_eq!(runtime.group_count(), online.len(), "groups online");
        }
        if !self.keeps {
            let dying = self.there() - online.len();
            ensure_eq!(
                runtime.dying_count(),
                dying,
                "groups that are not done with"
            );
        }
        let table = runtime.snapshot();
        let rows = table.rows().iter();
        let mut rows: Vec<_> = rows
            .map(|row| (row.path.clone(), row.live, row.max))
            .collect();
        let of_twin = |&group: &usize| {
            let max = self.twin.groups[group].max[0];
            (self.twin.path(group), self.twin.live(group, 0), max)
        };
        let mut expected: Vec<_> = online.iter().map(of_twin).collect();
        rows.sort();
        expected.sort();
        ensure_eq!(rows, expected, "the table");
        self.table_holds(runtime, &table)?;
        for &group in &online {
            let path = self.twin.path(group);
            let found = runtime.group(&path).map(|found| found.id());
            ensure_eq!(found, Some(self.ids[group]), "at {path}");
        }
        Ok(())
    }

    /// The table has each group after the one above, siblings by their names, and of each what the
    /// group itself says. With fewer levels it says the same of those.
    fn table_holds(&self, runtime: &Runtime, table: &Snapshot) -> Holds {
        let mut ordered = Vec::new();
        self.in_order(0, &mut ordered);
        let paths: Vec<&str> = table.rows().iter().map(|row| row.path.as_str()).collect();
        let known: Vec<String> = ordered.iter().map(|&group| self.twin.path(group)).collect();
        ensure_eq!(paths, known, "the order of the table");
        for (row, &group) in table.rows().iter().zip(&ordered) {
            ensure_eq!(
                row.depth,
                self.twin.levels(group).count() - 1,
                "depth of {}",
                row.path
            );
            if let Some(handle) = self.handles[group]
                .first()
                .filter(|_| self.is_turn_of(group))
            {
                row_holds(row, handle)?;
                let stats = handle.read(Freshness::Exact);
                for item in runtime.items() {
                    let found = row.stats.get(item.name).copied().unwrap_or(0);
                    let known = stats.get(item.stat);
                    ensure_eq!(found, known, "{} of {handle:?} in the table", item.name);
                }
            }
        }
        is_printed(table)?;
        let depth = ordered.len() % 3;
        let upper = runtime.root().snapshot(depth);
        // Where the children have no rows their bytes may not be known.
        for row in table.rows().iter().chain(upper.rows()) {
            let group = ordered
                .iter()
                .find(|&&group| self.twin.path(group) == row.path);
            let Some(&group) = group else { continue };
            let below = self.twin.children(group);
            let below = below.filter(|&child| self.twin.groups[child].online);
            let below: u64 = below.map(|child| self.twin.live(child, 0)).sum();
            let own = self.twin.live(group, 0).saturating_sub(below);
            ensure!(
                row.own.is_none_or(|found| found == own),
                "{:?} of its own at {}, the twin has {own}",
                row.own,
                row.path
            );
        }
        let live = |row: &SnapshotRow| (row.path.clone(), row.live);
        let of_upper: Vec<_> = upper.rows().iter().map(live).collect();
        let rows = table.rows().iter().filter(|row| row.depth <= depth);
        let known: Vec<_> = rows.map(live).collect();
        ensure_eq!(of_upper, known, "live in the rows of {depth} levels");
        let own = |row: &SnapshotRow| row.own.unwrap_or(row.live);
        let top: Vec<u64> = table.top(3).into_iter().map(own).collect();
        let mut most: Vec<u64> = table
            .rows()
            .iter()
            .map(own)
            .filter(|&own| own > 0)
            .collect();
        most.sort_unstable_by_key(|&own| std::cmp::Reverse(own));
        most.truncate(3);
        ensure_eq!(top, most, "what the top rows hold");
        Ok(())
    }

    /// A group that is online, and those below it: numbers first, then texts.
    fn in_order(&self, group: usize, ordered: &mut Vec<usize>) {
        ordered.push(group);
        let online = |&child: &usize| self.twin.groups[child].online;
        let mut children: Vec<usize> = self.twin.children(group).filter(online).collect();
        children.sort_by_key(|&child| {
            let name = &self.twin.groups[child].name;
            // A number has one form: `010` is a text.
            let number = name.parse::<u64>().ok();
            let number = number.filter(|number| number.to_string() == *name);
            (number.ok_or(name), child)
        });
        children
            .into_iter()
            .for_each(|child| self.in_order(child, ordered));
    }

    fn group_holds(&self, handle: &Group, group: usize) -> Holds {
        let twin = &self.twin.groups[group];
        let padded = [
            format!("{handle:>40}|"),
            format!("{:>40}|", self.twin.path(group)),
        ];
        ensure_eq!(padded[0], padded[1], "a path beside others");
        let of = (handle.id(), handle.name().to_string(), handle.path());
        let known = (self.ids[group], twin.name.clone(), self.twin.path(group));
        ensure_eq!(of, known, "{handle:?}");
        let parent = handle.parent().map(|parent| parent.id());
        let known = twin.parent.map(|parent| self.ids[parent]);
        ensure_eq!(parent, known, "the parent of {handle:?}");
        for number in 0..COUNTERS {
            let counter = handle.counter(self.counter(number)).expect("declared");
            let live = self.twin.live(group, number);
            // In this order: a read of what is stocked settles dying groups.
            let stocked = counter.stocked();
            // A thread of the crate may take credit home between the two: the next look tells.
            let used = counter.usage().checked_sub(stocked);
            let figures = (counter.live(), used);
            ensure_eq!(figures, (live, Some(live)), "{handle:?}, counter {number}");
        }
        if !self.shared.is_quiet() {
            return Ok(());
        }
        let mut children: Vec<_> = handle.children().iter().map(|it| it.path()).collect();
        let online = |&child: &usize| self.twin.groups[child].online;
        let known = self.twin.children(group).filter(online);
        let mut known: Vec<_> = known.map(|child| self.twin.path(child)).collect();
        children.sort();
        known.sort();
        ensure_eq!(children, known, "children of {handle:?}");
        if !twin.online {
            // Of its own thresholds none is met any more.
            let level = handle.pressure_level();
            ensure!(
                level == PressureLevel::Normal || twin.thresholds == (0, 0),
                "{level:?} at {handle:?}, which is offline"
            );
            return Ok(());
        }
        let inspect = handle.inspect();
        if self.is_turn_of(group) {
            self.those_below_hold(handle, group)?;
        }
        let limits = (inspect.min(), inspect.low(), inspect.high(), inspect.soft());
        let soft = self.twin.soft(group);
        let known = (twin.min, twin.low, twin.high, soft);
        ensure_eq!(limits, known, "(min, low, high, soft) of {handle:?}");
        self.protection_holds(handle, group)?;
        self.delay_holds(handle, group)?;
        let found = (
            handle.is_observe_only(),
            handle.oom_group(),
            handle.oom_exempt(),
        );
        let known = (self.twin.is_observed(group), twin.together, twin.exempt);
        ensure_eq!(
            found,
            known,
            "(observes, goes as one, exempt) of {handle:?}"
        );
        let rooms = self.twin.levels(group).map(|level| {
            let used = self.handles[level].first()?.usage();
            Some(self.twin.limit(level, 0).saturating_sub(used))
        });
        if let Some(rooms) = rooms.collect::<Option<Vec<u64>>>() {
            let room = rooms.into_iter().min().unwrap_or(0);
            let found = handle.headroom().min(PageCounter::USAGE_MAX);
            ensure_eq!(found, room, "what fits into {handle:?}");
        }
        let maxes = self
            .twin
            .levels(group)
            .filter(|&it| !self.twin.is_observed(it));
        let least = maxes.map(|level| self.twin.groups[level].max[0]).min();
        let known = least.unwrap_or(u64::MAX);
        ensure_eq!(handle.effective_max(), known, "the least max of {handle:?}");
        self.children_hold(handle, group)?;
        let own = (
            handle.oom_group(),
            handle.oom_exempt(),
            handle.is_observe_only(),
        );
        let known = (twin.together, twin.exempt, self.twin.is_observed(group));
        ensure_eq!(own, known, "(as one, exempt, observes) of {handle:?}");
        ensure_eq!(handle.memory().batch(), twin.batch, "batch of {handle:?}");
        let limits = handle.limits();
        let of = (limits.setting_name(), limits.importance);
        let shares = [limits.elevated, limits.critical].map(|it| it.map_or(0, Percent::get));
        let known: [u8; 2] = twin.thresholds.into();
        ensure_eq!(shares, known, "thresholds of {handle:?}");
        let known = (twin.setting, twin.importance);
        // A max that follows the host's is named by the host.
        let of = if self.setup.adapters { known } else { of };
        ensure_eq!(of, known, "(setting, importance) of {handle:?}");
        let as_set = [limits.soft, limits.high, limits.low, limits.min, limits.max];
        let known = self.twin.as_set(group).map(Some);
        ensure_eq!(
            as_set,
            known,
            "[soft, high, low, min, max] as set, of {handle:?}"
        );
        let gone = self.twin.children(group).filter(|child| !online(child));
        let left: u64 = gone.map(|child| self.twin.live(child, 0)).sum();
        let own = self.twin.own(group) + left;
        ensure_eq!(inspect.live_local(), own, "live of {handle:?} itself");
        let is_above = handle.usage() > soft;
        ensure_eq!(inspect.is_in_excess(), is_above, "excess of {handle:?}");
        let below = self
            .twin
            .online_below(group)
            .filter(|&below| below != group);
        let below: Vec<_> = below.map(|below| self.handles[below].first()).collect();
        if let Some(below) = below.into_iter().collect::<Option<Vec<_>>>() {
            let in_excess = |it: &&&Group| it.inspect().is_in_excess();
            let count = below.iter().filter(in_excess).count() as u64;
            ensure_eq!(inspect.descendants_in_excess(), count, "below {handle:?}");
            let protected = |it: &&Group| {
                (it.parent().as_ref() == Some(handle)).then(|| it.usage().min(it.inspect().min()))
            };
            let sum: u64 = below.iter().filter_map(protected).sum();
            ensure_eq!(
                handle.memory().children_min_usage(),
                sum,
                "below {handle:?}"
            );
        }
        self.pressure_holds(handle, group)
    }

    /// Some are dear to look at: each look sees a part of them, and another one each time.
    fn is_turn_of(&self, group: usize) -> bool {
        (group + self.twin.held.len()).is_multiple_of(4)
    }

    /// All that are below a group.
    fn those_below_hold(&self, handle: &Group, group: usize) -> Holds {
        let inspect = handle.inspect();
        let mut below: Vec<GroupId> = inspect.descendants().map(|it| it.id()).collect();
        let known = self.twin.online_below(group).filter(|&it| it != group);
        let mut known: Vec<GroupId> = known.map(|it| self.ids[it]).collect();
        below.sort_unstable();
        known.sort_unstable();
        ensure_eq!(below, known, "all below {handle:?}");
        Ok(())
    }

    /// The largest children are those of the largest usage, and there are as many as are wanted.
    fn children_hold(&self, handle: &Group, group: usize) -> Holds {
        let inspect = handle.inspect();
        let online = |&child: &usize| self.twin.groups[child].online;
        let children: Vec<usize> = self.twin.children(group).filter(online).collect();
        ensure_eq!(
            inspect.child_count(),
            children.len(),
            "children of {handle:?}"
        );
        let used = |&child: &usize| self.handles[child].first().map(Group::usage);
        let Some(mut used) = children.iter().map(used).collect::<Option<Vec<u64>>>() else {
            return Ok(());
        };
        used.sort_unstable_by_key(|&used| std::cmp::Reverse(used));
        for many in [1, 2, children.len()] {
            let top = inspect.top(many);
            let known = &used[..many.min(used.len())];
            let found: Vec<u64> = top.iter().map(|&(_, used)| used).collect();
            ensure_eq!(found, known, "the largest {many} of {handle:?}");
        }
        Ok(())
    }

    /// The level is up where live bytes alone say so, and down a sixteenth below that.
    fn pressure_holds(&self, handle: &Group, group: usize) -> Holds {
        let found = handle.pressure_level();
        let decides = self
            .twin
            .levels(group)
            .find(|&level| self.twin.groups[level].thresholds != (0, 0));
        let Some(level) = decides else {
            ensure_eq!(
                found,
                PressureLevel::Normal,
                "no thresholds above {handle:?}"
            );
            return Ok(());
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
            // Charges that stand still raise it, too.
            if may_be_up(critical) || self.setup.stalls {
                PressureLevel::Critical
            } else if may_be_up(elevated) {
                PressureLevel::Elevated
            } else {
                PressureLevel::Normal
            },
        );
        ensure!(
            (least..=most).contains(&found),
            "{found:?} at {handle:?}: {live} live of {max}, from {elevated} and {critical}"
        );
        Ok(())
    }

    /// A level that is not what it was has changed as often as that is counted, at least once.
    fn follow_pressure(&mut self) {
        for group in 0..self.handles.len() {
            let Some(handle) = self.handles[group].first() else {
                continue;
            };
            let changes = || handle.events().local().get(Event::PressureLevel);
            let before = changes();
            let level = handle.pressure_level();
            let now = changes();
            let twin = &mut self.twin.groups[group];
            let is_own = twin.thresholds != (0, 0) && twin.online;
            let is_known = Some((level, now)).filter(|_| is_own && before == now);
            if let Some((earlier, count)) = twin.pressure {
                // Without thresholds it is the level of a group above.
                let is_up = earlier > PressureLevel::Normal;
                assert!(
                    now > count || if is_own { level == earlier } else { !is_up },
                    "{handle:?} was at {earlier:?}, is at {level:?}, and no change is counted"
                );
            }
            twin.pressure = is_known;
        }
    }

    /// Above there are no fewer events than below, and those of the group alone are among all.
    fn events_hold(&self) -> Holds {
        for (group, handle) in self.in_hand() {
            let children = self.twin.children(group);
            let children: Vec<&Group> = children
                .filter_map(|child| self.handles[child].first())
                .collect();
            for event in Event::ALL {
                let below: u64 = children.iter().map(|it| it.events().get(event)).sum();
                let all = handle.events();
                let (all, local) = (all.get(event), all.local().get(event));
                let known = match event {
                    Event::OomKill => Some(self.twin.groups[group].killed),
                    Event::Panic if self.shared.is_quiet() && !self.setup.adapters => {
                        Some(self.twin.groups[group].panics)
                    }
                    // Requests and senders of adapters have times of their own.
                    Event::TimedOut if self.shared.is_quiet() && !self.setup.adapters => {
                        Some(self.twin.groups[group].timed_out)
                    }
                    _ => None,
                };
                if let Some(known) = known {
                    ensure_eq!(local, known, "{event:?} of {handle:?} itself");
                }
                ensure!(
                    all >= local + below,
                    "{event:?} of {handle:?}: {all}, {local} itself, and {below} below"
                );
            }
            self.events_of_counter_hold(handle, group)?;
        }
        Ok(())
    }

    /// A further counter has events of its own: each refusal there is one, and nothing else.
    fn events_of_counter_hold(&self, handle: &Group, group: usize) -> Holds {
        let counter = handle.counter(self.further).expect("declared");
        let events = counter.events();
        let (all, local) = (events.get(Event::Max), events.local().get(Event::Max));
        let refused = self.twin.groups[group].refused[1];
        let is_only = local == 0 || refused > 0 || events.local().get(Event::Observed) > 0;
        ensure!(
            local >= refused && all >= local && is_only,
            "{local} times of {all} the further counter of {handle:?} was full, and refused {refused}"
        );
        let of_memory = [Event::TimedOut, Event::OomKill];
        let others = of_memory.map(|event| events.get(event));
        ensure_eq!(others, [0; 2], "{of_memory:?} of a counter beside memory");
        Ok(())
    }

    /// Each group takes what fits, and no mark of what is over stands in the way.
    fn probe(&mut self) {
        if self.waiting().next().is_some() || self.adapters_wait() {
            return;
        }
        if self.cancelled {
            // A victim is one until then.
            clock::advance(OOM_TIME * 4);
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

/// What a table prints below a head is what its rows have.
fn is_printed(table: &Snapshot) -> Holds {
    type Cell = fn(&SnapshotRow) -> String;
    fn unlimited(limit: u64) -> String {
        match limit {
            u64::MAX => String::from("-"),
            limit => Bytes(limit).to_string(),
        }
    }
    fn protected(limit: u64) -> String {
        match limit {
            0 => String::from("-"),
            u64::MAX => String::from("max"),
            limit => Bytes(limit).to_string(),
        }
    }
    let columns: [(&str, Cell); 11] = [
        ("live", |row| Bytes(row.live).to_string()),
        ("max", |row| unlimited(row.max)),
        ("high", |row| unlimited(row.high)),
        ("soft", |row| unlimited(row.soft)),
        ("low", |row| protected(row.low)),
        ("min", |row| protected(row.min)),
        ("%max", |row| match row.percent_of_max {
            None => String::from("-"),
            Some(1_000..) => String::from(">999%"),
            Some(percent) => format!("{percent}%"),
        }),
        ("importance", |row| {
            row.importance
                .map_or(String::from("-"), |it| it.to_string())
        }),
        ("share", |row| match row.share {
            0 => String::from("-"),
            share => share.to_string(),
        }),
        ("forced", |row| Bytes(row.forced).to_string()),
        ("waiting", |row| row.waiting.to_string()),
    ];
    let text = table.to_string();
    let mut lines = text.lines().map(|line| line.chars().collect::<Vec<char>>());
    let heads: String = lines.next().unwrap_or_default().into_iter().collect();
    // Paths that are short take no more room than they need, and so does what is below a head.
    let widest = |cell: &dyn Fn(&SnapshotRow) -> String, head: &str| {
        let cells = table.rows().iter().map(|row| cell(row).chars().count());
        cells.chain([head.len()]).max().unwrap_or(0)
    };
    let path = widest(&|row| row.path.clone(), "path");
    let end = path + 2 + widest(&columns[0].1, "live");
    let ends = heads.find(" live").map(|at| at + " live".len());
    ensure!(
        path > 20 || ends == Some(end),
        "live of {path} columns of paths ends at {ends:?}, not {end}: {heads:?}"
    );
    for (line, row) in lines.zip(table.rows()) {
        for (head, cell) in columns {
            // They end where their head does. One for which there is no room is left out.
            let Some(at) = heads.find(&format!(" {head}")) else {
                continue;
            };
            let end = (at + 1 + head.len()).min(line.len());
            let printed: String = line[..end].iter().collect();
            let known = format!("  {}", cell(row));
            ensure!(
                printed.ends_with(&known),
                "{head} of {} is {known:?}, and is printed so: {printed:?}",
                row.path
            );
        }
    }
    Ok(())
}

/// A row says what its group says.
fn row_holds(row: &SnapshotRow, handle: &Group) -> Holds {
    let (inspect, limits) = (handle.inspect(), handle.limits());
    let memory = handle.memory();
    let found = (row.usage, row.stocked_bound, row.peak, row.forced);
    let known = (
        handle.usage(),
        memory.stocked_bound().min(handle.usage()),
        handle.peak(),
        handle.forced(),
    );
    ensure_eq!(
        found,
        known,
        "(used, credit at most, peak, forced) of {handle:?}"
    );
    let found = [row.max, row.high, row.soft, row.low, row.min];
    let known = [
        handle.max(),
        inspect.high(),
        inspect.soft(),
        inspect.low(),
        inspect.min(),
    ];
    ensure_eq!(found, known, "[max, high, soft, low, min] of {handle:?}");
    let found = (row.share, row.importance, row.waiting, row.refused);
    let known = (
        limits.share.unwrap_or(0),
        limits.importance,
        handle.waiting_count(),
        handle.refused_count(),
    );
    ensure_eq!(
        found,
        known,
        "(share, importance, waiting, refused) of {handle:?}"
    );
    let percent = (handle.max() < u64::MAX && handle.max() > 0)
        .then(|| (u128::from(row.live) * 100 / u128::from(handle.max())) as u64);
    ensure_eq!(row.percent_of_max, percent, "percent of max of {handle:?}");
    let found: Vec<_> = row.events().collect();
    let known: Vec<_> = handle
        .events()
        .iter()
        .filter(|&(_, count)| count > 0)
        .collect();
    ensure_eq!(found, known, "events of {handle:?}");
    ensure_eq!(
        row.pressure_level,
        handle.pressure_level(),
        "pressure of {handle:?}"
    );
    ensure_eq!(
        row.own,
        Some(inspect.live_local()),
        "live of {handle:?} itself"
    );
    let pressure = handle.pressure();
    let found = (
        row.pressure.some.total,
        row.pressure.full.total,
        row.uncharged,
    );
    let known = (
        pressure.some.total,
        pressure.full.total,
        inspect.uncharged(),
    );
    ensure_eq!(found, known, "(some, full, uncharged) of {handle:?}");
    let counters = handle.counters().map(|it| {
        let figures = (it.usage(), it.peak(), it.max(), it.refused_count());
        (it.name().to_string(), figures)
    });
    let mut known: Vec<_> = counters.collect();
    let found = row.counters.iter().map(|(name, it)| {
        let figures = (it.usage, it.peak, it.max, it.refused);
        (name.clone(), figures)
    });
    known.sort();
    let found: Vec<_> = found.collect();
    ensure_eq!(found, known, "counters of {handle:?}");
    Ok(())
}
