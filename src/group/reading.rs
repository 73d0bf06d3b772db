//! Figures and limits of a group. A figure is that of the group and the groups below it.

use super::error::LimitError;
use super::handle::Group;
use super::limits::Limits;
use crate::admission::lowered;
use crate::counter::{credit, pressure_mark};
use crate::hierarchy::setting_names::{self, SettingName};
use crate::hierarchy::{group_object, importance, limits};
use crate::page_counter::PeakLive;
use crate::page_counter::peak_live::peak_live;
use crate::pressure::{high, observe, pressure_levels, stalls, throttle};
use crate::reclaim::{rings, shares};
use crate::state::applied::Settings;
use crate::state::limits::LimitKind;
use crate::units::{IntoLimit, Limit, Percent};

// === impl Group: limits ===

/// # Limits
impl Group {
    /// Sets the limits that `limits` names: all of them, or none if one is refused. Returns the
    /// bytes that usage is still above the max or the high that it has set, whichever are more; 0
    /// if usage fits. It may block: in async code call it on a thread for blocking work.
    ///
    /// A limit that is not named stays as it is. [`Limits`] says what each limit does. The limits
    /// are stored whatever usage is, and once the call has returned no charge is admitted above the
    /// new max. Percentages in the groups below follow; one that no longer has a limited ancestor
    /// keeps the bytes it had. On a group that is offline only the max has an effect.
    ///
    /// For a max, the call then drains the credit below and asks reclaimers for the bytes above it
    /// ([`Reclaim`](crate::Reclaim): foreign code runs, for at most
    /// [`reclaim_time`](crate::RuntimeBuilder::reclaim_time)). If the group
    /// [chooses](crate::OomPolicy) victims, it cancels groups, one after another, and waits for
    /// each. Charges that wait in line and now fit are made. Charges below that can no longer fit
    /// are refused before anyone is asked, in whatever line they wait, and their error names this
    /// group. Bytes that stay above the max count as [`forced`](Self::forced), and charges are
    /// refused until enough is given back. For a high, the call drains and reclaims in the same
    /// way, and cancels no group. [`GroupCounter::set_max_now`](crate::PageCounter::set_max_now)
    /// asks no reclaimer and cancels no group.
    ///
    /// The call takes the tree's lock. A lower max costs a heavy barrier, and another one if credit
    /// is drained.
    ///
    /// Source: `memory_max_write` and `memory_high_write` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`LimitError::NoLimitedAncestor`] for a percentage if no ancestor has a max;
    /// [`LimitError::CoversNot`] for [`cover_allocations`](Limits::cover_allocations) if the group
    /// was created without it; [`LimitError::Setting`] for a name that is not allowed. The old
    /// limits then stay in force. A low above max is not an error: [`Limits::check`] finds it.
    ///
    /// ```
    /// # use memcg::{Limit, Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let _held = acme.charge(60)?;
    /// assert_eq!(acme.set_limits(Limits::new().max(50).low(20))?, 10, "no reclaimer gives anything");
    /// assert!(acme.set_limits(Limits::new().max(70).low(Limit::percent(25))).is_err(), "25% of nothing");
    /// assert_eq!(acme.limits().max, Some(Limit::Bytes(50)), "nothing was set");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_limits(&self, limits: Limits) -> Result<u64, LimitError> {
        let group = self.first();
        if limits.cover_allocations && group.cover().is_none() {
            return Err(LimitError::CoversNot {
                group: self.clone(),
            });
        }
        let setting = self.setting_of(limits, None)?;
        let named = limits.settings();
        self.store_limits(
            &limits,
            setting,
            || named,
            |_| {
                let applied = &group_object::of(group).applied;
                applied.remove(named);
                if named.has(Settings::SOFT_OR_SHARE) {
                    applied.remove(Settings::SOFT_OR_SHARE);
                }
            },
        )?;
        let above_max = if limits.max.is_some() {
            lowered::shrink_to_max(group)
        } else {
            0
        };
        if limits.high.is_none() {
            return Ok(above_max);
        }
        throttle::shrink_to_high(group, u8::MAX);
        Ok(above_max.max(high::above(group)))
    }

    /// Stores limits: all that are due, or none. Nothing is reclaimed, and no foreign code runs.
    /// `due` and `also` run under the tree's lock, see [`limits::set`].
    pub(super) fn store_limits(
        &self,
        limits: &Limits,
        setting: Option<SettingName>,
        due: impl FnOnce() -> Settings,
        also: impl FnOnce(Settings),
    ) -> Result<(), LimitError> {
        let group = self.first();
        if limits.share.is_some_and(|share| share > 0) {
            // Before the tree's lock is taken: a ring may have to be allocated, and its share is
            // put there under the lock.
            rings::make_in_any_case(group);
        }
        let mut is_set = Settings::NONE;
        self.set_kinds(group, &limits.kinds(), due, |due| {
            is_set = due;
            let has_soft = limits.soft.is_some() && due.has(Settings::limit(LimitKind::Soft));
            match limits.share.filter(|_| due.has(Settings::SHARE)) {
                Some(share @ 1..) => shares::put(group, share),
                Some(0) => shares::take(group, has_soft),
                None if has_soft => shares::take(group, true),
                None => {}
            }
            also(due);
        })?;
        // What follows is stored outside of that step, and only for what the step has set.
        let limits = limits.only(is_set);
        limits.set_apart(
            group,
            setting.filter(|_| is_set.has(Settings::SETTING_NAME)),
        );
        if let Some(thresholds) = limits.thresholds() {
            pressure_levels::set(group, thresholds);
            stalls::look_if_stalled(group);
        }
        Ok(())
    }

    /// Sets the most bytes that charges may bring usage to, as [`set_limits`](Self::set_limits)
    /// does for a max alone. Returns the bytes that are still above that max, 0 if usage fits. It
    /// may block: in async code use [`GroupCounter::set_max_now`](crate::PageCounter::set_max_now).
    ///
    /// # Errors
    ///
    /// As [`set_limits`](Self::set_limits).
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let held = acme.charge(60)?;
    /// assert_eq!(acme.set_max(50)?, 10);
    /// assert_eq!((acme.max(), acme.usage(), acme.forced()), (50, 60, 10));
    /// assert!(acme.charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max(&self, limit: impl IntoLimit) -> Result<u64, LimitError> {
        self.set_limits(Limits::new().max(limit))
    }

    /// Makes the limits here and below only observe, or act again: to try limits out before they
    /// refuse anything. It may block: in async code call it on a thread for blocking work.
    ///
    /// A charge that a max there would have refused, or a high delayed, is let through. For a max,
    /// its group counts [`Event::Max`](crate::Event::Max) and
    /// [`Event::Observed`](crate::Event::Observed). No group is asked to give anything back for
    /// such charges. The limits of the groups above still hold.
    ///
    /// The setting also holds for further counters. Charges that wait here when it begins are made
    /// at once. When the limits act again, bytes above a max count as [forced](Group::forced), and
    /// reclaimers are asked for them. A group that is offline makes no charge any more, and keeps to
    /// what held when it went. The call takes the tree's lock and visits all groups below.
    ///
    /// ```
    /// # use memcg::{Event, Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(100))?;
    /// acme.set_observe_only(true);
    /// assert!(acme.is_observe_only() && acme.create("q17", Limits::new())?.is_observe_only());
    /// let _held = acme.charge(130)?;
    /// assert_eq!((acme.usage(), acme.events().get(Event::Observed)), (130, 1));
    /// acme.set_observe_only(false);
    /// assert!(acme.charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_observe_only(&self, observe: bool) {
        observe::set(self.first(), observe);
        if !observe && !self.first().is_observed() {
            lowered::shrink_all(self.first());
        }
    }

    /// Returns true if the limits of this group are only observed, by its own setting or that of a
    /// group above; of a group that is offline, if they were when it went. One load.
    pub fn is_observe_only(&self) -> bool {
        self.first().is_observed()
    }

    /// Returns the limits as they were set: percentages as percentages, and `None` for an
    /// importance, a share or a threshold that the group does not have. `cover_allocations` is true
    /// if the group covers, because it or a group above was [created
    /// so](Limits::cover_allocations). A few loads, and two locks if a group of the runtime has a
    /// [share](Limits::share).
    ///
    /// ```
    /// # use memcg::{Limit, Limits, Runtime};
    /// let runtime = Runtime::builder().max(1_000).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(Limit::percent(25)))?;
    /// assert_eq!(acme.limits().max, Some("25%".parse()?));
    /// assert_eq!(acme.limits().low, Some(Limit::Bytes(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(&self) -> Limits {
        shares::look(self.first());
        let set = |kind| limits::set_to(self.first(), kind);
        let limits = Limits::new()
            .max(set(LimitKind::Max))
            .min(set(LimitKind::Min))
            .low(set(LimitKind::Low));
        let limits = limits.soft(set(LimitKind::Soft)).high(set(LimitKind::High));
        let [elevated, critical] = pressure_mark::thresholds(self.first())
            .map(|percent| Percent::new(percent).filter(|percent| percent.get() > 0));
        Limits {
            share: Some(shares::of(self.first())).filter(|&share| share > 0),
            reclaim_above: Some(set(LimitKind::ReclaimAbove))
                .filter(|&threshold| threshold != Limit::Unlimited),
            elevated,
            critical,
            cover_allocations: self.first().cover().is_some(),
            importance: importance::own(self.first()),
            setting: setting_names::of(self.first()).map(Ok),
            ..limits
        }
    }

    /// Returns the group's own max in bytes, `u64::MAX` if it has none. One load.
    /// [`effective_max`](Self::effective_max) takes in the groups above, and
    /// [`inspect`](Self::inspect) has the other limits in bytes.
    pub fn max(&self) -> u64 {
        self.first().max()
    }

    /// Returns the least max of this group and its ancestors, in bytes; `u64::MAX` if none has one.
    /// A max that is [only observed](Self::set_observe_only) does not count. A few loads for each
    /// level, each of them exact.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(60))?;
    /// let query = acme.create("q17", Limits::new().max(80))?;
    /// assert_eq!((query.max(), query.effective_max()), (80, 60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn effective_max(&self) -> u64 {
        self.first().effective_max()
    }

    /// Returns the bytes that a charge to this group could ask for now: the least room, max minus
    /// usage, of this group and its ancestors. If no level has a max, it is what usage can still
    /// grow by up to 2^63.
    ///
    /// A few loads for each level. The levels are read one after the other, so the figure is an
    /// estimate while other threads charge. Credit counts as used: a charge that drains it may find
    /// more room, by at most [`stocked`](crate::PageCounter::stocked) of the level.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new().max(80)).unwrap());
    /// let _held = a.charge(70)?;
    /// assert_eq!((a.headroom(), b.headroom()), (10, 30), "a is nearly full, b has what the root has left");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn headroom(&self) -> u64 {
        self.first().headroom()
    }
}

// === impl Group: figures ===

/// # Figures
impl Group {
    /// Returns what limits are compared with, in bytes: what charges of the subtree hold, and the
    /// credit of its threads. One load, which is exact at that moment.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let root = runtime.root();
    /// let _held = root.charge(10)?;
    /// assert_eq!((root.usage(), root.live()), (262_144, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn usage(&self) -> u64 {
        self.first().usage()
    }

    /// Returns what charges of the subtree hold, in bytes: [`usage`](Self::usage) without credit.
    ///
    /// The call takes the tree's lock, for which it may wait as long as a drain takes, and reads
    /// one slot for each thread and group. It is exact as long as no thread charges meanwhile,
    /// otherwise an estimate, and never negative.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let _held = acme.charge(100)?;
    /// assert_eq!((acme.live(), runtime.root().live()), (100, 100));
    /// assert!(acme.usage() >= 100, "with the credit of this thread");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn live(&self) -> u64 {
        credit::live(self.first())
    }

    /// Returns the bytes that usage is above max, because of forced charges or because max was set
    /// below usage; 0 if it is not. So it falls as bytes are given back. Two loads.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut charge = runtime.root().force_charge(130);
    /// charge.shrink(20);
    /// assert_eq!(runtime.root().forced(), 10);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn forced(&self) -> u64 {
        self.first().forced()
    }

    /// Returns the highest usage that charges have brought the group to since it was created, in
    /// bytes, credit included. A refused charge does not raise it. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// drop(runtime.root().charge(10)?);
    /// assert_eq!(runtime.root().peak(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peak(&self) -> u64 {
        self.first().peaks().ever()
    }

    /// Returns the highest number of bytes that charges held at one moment, without the credit of
    /// threads: exactly, or by two bounds.
    ///
    /// It is exact while one thread charges the group, it has no children that are charged, or one
    /// child and no charges of its own, and no [`CentralStock`](crate::CentralStock) has opened.
    /// Otherwise its bounds are as far apart as the credit that was there at the moment of
    /// [`peak`](Self::peak), and by a sixteenth more if threads free while another one grows: see
    /// [`PageCounter::peak_live`](crate::PageCounter::peak_live), which also has the cost.
    /// [`memory`](Self::memory) opens a
    /// [window](crate::PageCounter::peak_live_window).
    ///
    /// ```
    /// # use memcg::Runtime;
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// for _ in 0..100 {
    ///     drop((root.charge(1_000)?, root.charge(2_000)?));
    /// }
    /// assert_eq!(root.peak_live().exact(), Some(3_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peak_live(&self) -> PeakLive {
        peak_live(self.first())
    }

    /// Returns how many charges were refused because this group was full, its own and those of
    /// groups below. A charge that drains and reclaims before it is refused counts once. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert!(acme.charge(101).is_err());
    /// assert_eq!((acme.refused_count(), runtime.root().refused_count()), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refused_count(&self) -> u64 {
        self.first().refusals()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::sync::many;
    use crate::{Bytes, Group, Limits, Runtime};

    fn exact(group: &Group) -> u64 {
        group.peak_live().exact().expect("one thread charges")
    }

    /// Holds amounts that go up and down, and compares the peaks with what was held.
    fn hold(runtime: &Runtime, group: &Group) {
        let mut held = Vec::new();
        let mut most = 0;
        let mut seed = 7_u64;
        for _ in 0..many(5_000) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match seed >> 61 {
                0..=2 => drop(held.pop()),
                size => held.push(group.charge(Bytes(size * 700)).unwrap()),
            }
            most = most.max(held.iter().map(crate::Charge::bytes).sum());
            assert_eq!(group.peak_live().exact(), Some(most));
            assert!(most <= group.peak() && group.usage() <= group.peak());
        }
        assert_eq!(runtime.root().peak_live().exact(), Some(most));
    }

    #[test]
    fn the_peak_of_live_bytes_of_one_thread_is_exact() {
        for builder in [Runtime::builder(), Runtime::builder().batch(0)] {
            let runtime = builder.build().unwrap();
            let group = runtime.root().create("q", Limits::new()).unwrap();
            hold(&runtime, &group);
        }
    }

    /// Charges from credit walk no tree, so no walk sees them.
    #[test]
    fn the_peak_is_what_was_live() {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let held: Vec<_> = (0..many(20_000))
            .map(|_| group.charge(1_000).unwrap())
            .collect();
        let live = held.len() as u64 * 1_000;
        assert_eq!(
            (group.live(), exact(&group), exact(&runtime.root())),
            (live, live, live)
        );
        drop(held);
        assert_eq!((group.live(), exact(&group)), (0, live), "it is kept");
        let mut charge = runtime.root().charge(2_000).unwrap();
        charge.transfer(&group).unwrap();
        let _forced = group.force_charge(Bytes(live));
        assert_eq!(
            (exact(&group), group.live()),
            (live + 2_000, live + 2_000),
            "moved and forced"
        );
    }

    #[test]
    fn both_peaks_are_the_same_without_credit() {
        let runtime = Runtime::builder().batch(0).build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        drop((group.charge(100).unwrap(), group.charge(50).unwrap()));
        assert_eq!(
            (exact(&group), group.peak(), exact(&runtime.root())),
            (150, 150, 150)
        );
        group.offline().unwrap();
        drop(group);
        runtime.settle();
        let next = runtime.root().create("next", Limits::new()).unwrap();
        assert_eq!(exact(&next), 0, "an object that is used again");
    }
}
