//! Limits that are set, as bytes or as a part of a max above, or that move by themselves; and which
//! groups may be cancelled.

use std::time::{Duration, Instant};

use memcg::simulated_time as clock;
use memcg::{Bytes, Event, Limit, Limits, OomPolicy, Percent};

use super::Life;
use crate::configuration::{TIER, limit};
use crate::holds::{Holds, ensure};
use crate::script::{Kind, Op, Size, What};
use crate::twin::Twin;

/// For so long a max that has moved by itself ends no wait.
pub(super) const STANDS: Duration = Duration::from_secs(1);

impl Life {
    pub(super) fn set(&mut self, op: &Op, group: u8, kind: Kind, size: Option<Size>) {
        let Some(group) = self.group(group) else {
            return;
        };
        let counter = usize::from(kind == Kind::FurtherMax);
        let bytes = match (size, kind) {
            (Some(size), _) => self.bytes(group, counter, size),
            (None, Kind::Low | Kind::Min) => 0,
            (None, _) => u64::MAX,
        };
        if kind == Kind::TierMax {
            return self.set_tier(op, group, bytes);
        }
        let to = limit(bytes);
        let of = self.counter(counter);
        let ooms = |life: &Life| life.handle(group).events().local().get(Event::Oom);
        let oom = ooms(self);
        let above = self.on(op, group, move |group| match kind {
            Kind::Max => group.set_max(to),
            Kind::MaxNow => group.memory().set_max_now(to),
            Kind::FurtherMax => group.counter(of).expect("declared").set_max(to),
            Kind::High => group.set_limits(Limits::new().high(to)),
            Kind::Soft => group.set_limits(Limits::new().soft(to)),
            Kind::Low => group.set_limits(Limits::new().low(to)),
            Kind::Min => group.set_limits(Limits::new().min(to)),
            Kind::Mark => group.set_limits(Limits::new().reclaim_above(to)),
            Kind::TierMax => unreachable!("of another counter"),
        });
        let above = above.expect("no percentage");
        let is_online = self.twin.groups[group].online;
        match kind {
            Kind::Max | Kind::MaxNow => {
                self.set_by_program(group, |twin| twin.set_max(group, counter, bytes));
            }
            Kind::FurtherMax => self.twin.set_max(group, counter, bytes),
            Kind::High => {
                self.twin.set_limit(group, kind, bytes, None);
                self.may_drain(true);
            }
            Kind::Soft | Kind::Low | Kind::Min if is_online => {
                self.twin.set_limit(group, kind, bytes, None);
            }
            Kind::Soft | Kind::Low | Kind::Min => {}
            Kind::Mark => self.may_drain(true),
            Kind::TierMax => unreachable!("of another counter"),
        }
        if matches!(kind, Kind::Max | Kind::MaxNow | Kind::FurtherMax) {
            // Before what is given back for it, after it, or in between.
            let before = self.twin.live(group, counter).saturating_sub(bytes);
            // What caches gave within the call, before those that wait hear of it.
            let given = self.given_below(group, counter).saturating_sub(bytes);
            let mut found = vec![before, given];
            self.settle_accounts_with(|life| {
                found.push(life.twin.live(group, counter).saturating_sub(bytes));
            });
            // A max that only counts drains no credit, which is above it, too. And what callbacks
            // do of themselves, or an adapter that is woken, may come after the call has looked.
            let others_act = !self.shared.is_quiet() || self.setup.adapters;
            let is_right = found.last() == Some(&above) || others_act && found.contains(&above);
            assert!(is_right, "{above} above {bytes}, the twin says {found:?}");
            if kind == Kind::Max && above > 0 && !self.twin.is_observed(group) {
                self.nothing_left_below(group, above);
                assert!(
                    !self.twin.chooses(group) || !is_online || ooms(self) > oom,
                    "{above} above {bytes}, where groups may be cancelled, and no event"
                );
            }
        }
        match kind {
            Kind::Max => self.parts_have_shrunk(group),
            Kind::High => {
                self.settle_accounts();
                self.has_shrunk_to_high(group);
            }
            _ => {}
        }
    }

    /// A thread of the runtime reclaims, for charges that do not block or for nobody.
    pub(super) fn may_drain(&mut self, does: bool) {
        self.keeps |= does;
        self.drains |= does;
    }

    /// What lies on the first node is a counter beside memory, of which the twin knows bounds alone.
    fn set_tier(&mut self, op: &Op, group: usize, bytes: u64) {
        // What containers have there is known to their adapter.
        if self.setup.nodes < 2 || self.setup.adapters {
            return;
        }
        let to = limit(bytes);
        let above = self.on(op, group, move |group| {
            let tier = group.counter_key(TIER).expect("declared");
            group.counter(tier).expect("declared").set_max(to)
        });
        let above = above.expect("no percentage");
        self.twin.groups[group].tier_max = bytes;
        let (least, most) = self.tier_bounds(group);
        let bounds = least.saturating_sub(bytes)..=most.saturating_sub(bytes);
        assert!(
            bounds.contains(&above) || self.twin.is_observed(group),
            "{above} above {bytes} in a tier, the twin says {bounds:?}"
        );
    }

    /// A limit that is a part of a max is set where a level above has one, and else nothing is.
    pub(super) fn set_part(&mut self, op: &Op, group: u8, kind: Kind, percent: u8) {
        let Some(group) = self.group(group) else {
            return;
        };
        if !self.twin.groups[group].online {
            return;
        }
        let part = Percent::new(percent).expect("a percentage");
        let set = self.on(op, group, move |group| {
            let (limits, to) = (Limits::new(), Limit::Percent(part));
            group.set_limits(match kind {
                Kind::High => limits.high(to),
                Kind::Low => limits.low(to),
                Kind::Min => limits.min(to),
                Kind::Max => limits.max(to),
                _ => limits.soft(to),
            })
        });
        self.may_drain(kind == Kind::High);
        let above = self.twin.groups[group].parent;
        let max = above.and_then(|above| self.twin.max_above(above));
        assert_eq!(set.is_ok(), max.is_some(), "{set:?}, the twin has {max:?}");
        let Some(max) = max else { return };
        let set = |twin: &mut Twin| twin.set_limit(group, kind, part.of(max), Some(part));
        if kind == Kind::Max {
            self.set_by_program(group, set);
        } else {
            set(&mut self.twin);
        }
        if kind == Kind::Max {
            self.settle_accounts();
            self.has_shrunk_to_max(group);
            self.parts_have_shrunk(group);
        }
        if kind == Kind::High {
            self.settle_accounts();
            self.has_shrunk_to_high(group);
        }
    }

    /// What is above a max that was set no cache below has to give.
    fn has_shrunk_to_max(&mut self, group: usize) {
        let above = self.twin.live(group, 0);
        let above = above.saturating_sub(self.twin.groups[group].max[0]);
        if !self.twin.is_observed(group) && self.had_time() {
            self.hold(|life| life.left_below(group, above));
        }
    }

    /// The same of a high.
    fn has_shrunk_to_high(&mut self, group: usize) {
        let of = &self.twin.groups[group];
        let above = self.twin.live(group, 0).saturating_sub(of.high);
        if of.online && !self.twin.is_observed(group) && self.had_time() {
            self.hold(|life| life.left_below(group, above));
        }
    }

    /// What is a part of a max has followed it, and is above what is live no more than that.
    fn parts_have_shrunk(&mut self, moved: usize) {
        if !self.twin.groups[moved].online {
            return;
        }
        let below = self.twin.online_below(moved).filter(|&it| it != moved);
        for group in below.collect::<Vec<_>>() {
            if self.twin.groups[group].is_part(Kind::Max) {
                self.has_shrunk_to_max(group);
            }
            if self.twin.groups[group].is_part(Kind::High) {
                self.has_shrunk_to_high(group);
            }
        }
    }

    // === A max that moves by itself ===

    /// The groups below one whose max is a part of one above, with what that is.
    fn parts_below(&self, moved: usize) -> Vec<(usize, u64)> {
        let below = self.twin.online_below(moved).filter(|&of| of != moved);
        let parts = below.filter(|&of| self.twin.groups[of].is_part(Kind::Max));
        parts.map(|of| (of, self.twin.groups[of].max[0])).collect()
    }

    /// The program sets the max of a group: it moves by itself no more, nor does what is a part of it,
    /// also where that stays as it is.
    pub(super) fn set_by_program(&mut self, group: usize, set: impl FnOnce(&mut Twin)) {
        let before = self.parts_below(group);
        set(&mut self.twin);
        let mut all = vec![group];
        // A group comes after those above it.
        for (part, max) in before {
            let mut above = self.twin.levels(part).skip(1);
            let of = above.find(|&level| self.twin.groups[level].max[0] < u64::MAX);
            let has_moved = self.twin.groups[part].max[0] != max;
            if has_moved || of.is_some_and(|of| all.contains(&of)) {
                all.push(part);
            }
        }
        self.moved.retain(|of, _| !all.contains(of));
    }

    pub(super) fn move_max(&mut self, op: &Op, group: u8, size: Size, shrinks: bool) {
        let Some(group) = self.group(group) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        let live = self.twin.live(group, 0);
        let above = self.on(op, group, move |group| {
            let above = group.inspect().move_max(Bytes(bytes));
            if shrinks {
                group.inspect().shrink_to_max();
            }
            above
        });
        assert!(
            above == live.saturating_sub(bytes)
                || self.twin.is_observed(group)
                || !self.shared.is_quiet()
                || self.setup.adapters,
            "{above} above {bytes}, {live} were live"
        );
        self.max_has_moved(group, bytes);
        self.settle_accounts();
        if shrinks {
            self.has_shrunk_to_max(group);
            self.parts_have_shrunk(group);
        }
    }

    /// A max that moves by itself is so much now, and its parts below are that of it.
    pub(super) fn max_has_moved(&mut self, group: usize, bytes: u64) {
        let parts = self.parts_below(group).into_iter().map(|(of, _)| of);
        let from = parts.chain([group]).map(|of| (of, self.twin.limit(of, 0)));
        let from: Vec<_> = from.collect();
        self.twin.set_max(group, 0, bytes);
        for (moved, from) in from {
            if self.twin.groups[moved].max[0] < from {
                let falls = self.moved.entry(moved).or_default();
                falls.push((clock::now(), from));
            }
        }
    }

    pub(super) fn end_vain_waits(&mut self, op: &Op, group: u8, keeps: bool) {
        let Some(group) = self.group(group) else {
            return;
        };
        self.on(op, group, move |group| {
            group.inspect().end_vain_waits();
            if keeps {
                group.inspect().keep_max();
            }
        });
        let twin = &self.twin;
        let moves = |&moved: &usize, falls: &mut Vec<(Instant, u64)>| {
            falls.retain(|&(at, _)| clock::now() < at + STANDS);
            let is_over = falls.is_empty() || keeps && twin.is_within(moved, group);
            !is_over
        };
        self.moved.retain(moves);
        self.settle_accounts();
    }

    /// The level whose max is too small for so many bytes, and does not move by itself.
    pub(super) fn is_vain(&self, group: usize, bytes: u64) -> Option<usize> {
        self.twin
            .levels(group)
            .find(|level| bytes > self.twin.limit(*level, 0) && !self.moved.contains_key(level))
    }

    /// A level on its way has not had room for so many bytes for a while, or will not have.
    pub(super) fn may_be_vain(&self, group: usize, bytes: u64) -> bool {
        let most = |level: usize| {
            let falls = self.moved.get(&level).into_iter().flatten();
            let lasting = falls.filter(|&&(at, _)| clock::now() < at + STANDS);
            let most = lasting.map(|&(_, from)| from).max().unwrap_or(0);
            most.max(self.twin.limit(level, 0))
        };
        self.twin.levels(group).any(|level| bytes > most(level))
    }

    /// No charge waits for more than a max that the program has set, or that has stood for a while.
    pub(super) fn waits_are_not_vain(&self) -> Holds {
        if !self.shared.is_quiet() || self.setup.adapters {
            return Ok(());
        }
        for task in self.waiting() {
            let vain = self.is_vain(task.group, task.bytes);
            ensure!(
                vain.is_none(),
                "{} bytes in {} wait, and {:?} never has room for them",
                task.bytes,
                self.twin.path(task.group),
                vain.map(|level| self.twin.path(level))
            );
        }
        Ok(())
    }

    // === Victims ===

    pub(super) fn set_oom(&mut self, op: &Op) {
        let (What::Oom(group, whether)
        | What::OomGroup(group, whether)
        | What::OomExempt(group, whether)) = op.1
        else {
            unreachable!("an operation on the policy");
        };
        let Some(group) = self.group(group) else {
            return;
        };
        let what = op.1.clone();
        self.together |= matches!(what, What::OomGroup(..));
        match what {
            What::OomExempt(..) => self.twin.groups[group].exempt = whether,
            What::OomGroup(..) => self.twin.groups[group].together = whether,
            _ => {
                self.twin.groups[group].chooses = Some(whether);
                let over = self.twin.groups[group].order.take();
                self.orders_over.extend(over);
            }
        }
        self.on(op, group, move |group| match what {
            What::Oom(..) if whether => group.set_oom_policy(OomPolicy::Choose),
            What::Oom(..) => group.set_oom_policy(OomPolicy::Refuse),
            What::OomGroup(..) => group.set_oom_group(whether),
            _ => group.set_oom_exempt(whether),
        });
    }
}
