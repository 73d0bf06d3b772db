//! Checks after each step, whatever the reclaimers are like.

use memcg::{Event, OverLimitError, PageCounter};

use super::lock;
use super::run::Run;

const EVENTS: [Event; 6] = [
    Event::Low,
    Event::High,
    Event::Max,
    Event::Oom,
    Event::Overcharge,
    Event::Panic,
];

impl Run {
    pub(super) fn check(&mut self) {
        let at = &self.at;
        let faults = std::mem::take(&mut lock(&self.findings).faults);
        assert!(faults.is_empty(), "{at}: {faults:#?}");
        let online = self.books.online();
        for &index in &online {
            let group = &self.books.groups[index].group;
            let usage = group.usage();
            let forced = group.forced();
            let max = group.max();
            assert!(
                forced <= usage && usage - forced <= max,
                "{at}: {usage} used, {forced} forced, max {max}"
            );
            assert_eq!(
                group.live(),
                self.books.live(index),
                "{at}: live of {}",
                group.path()
            );
            assert_eq!(
                group.inspect().is_in_excess(),
                usage > group.inspect().soft(),
                "{at}: {}",
                group.path()
            );
            let below = online
                .iter()
                .filter(|&&below| below != index && self.books.is_within(below, index));
            let excess = below
                .filter(|&&below| self.books.groups[below].group.inspect().is_in_excess())
                .count() as u64;
            assert_eq!(
                group.inspect().descendants_in_excess(),
                excess,
                "{at}: {}",
                group.path()
            );
        }
        self.check_events();
    }

    /// They only grow, and above they are no fewer than below.
    fn check_events(&mut self) {
        self.events.resize(self.books.groups.len(), [0; 6]);
        for (index, entry) in self.books.groups.iter().enumerate() {
            let all = entry.group.events();
            let local = entry.group.events().local();
            let now = EVENTS.map(|event| all.get(event));
            let grown = now
                .iter()
                .zip(self.events[index])
                .all(|(&now, before)| now >= before);
            assert!(grown, "{}: {now:?} after {:?}", self.at, self.events[index]);
            assert!(
                EVENTS
                    .iter()
                    .all(|&event| local.get(event) <= all.get(event)),
                "{}",
                self.at
            );
            self.events[index] = now;
            if let Some(parent) = entry.parent {
                let above = self.events[parent];
                assert!(
                    above.iter().zip(now).all(|(&above, now)| above >= now),
                    "{}: {above:?}",
                    self.at
                );
            }
        }
    }

    pub(super) fn verify(&self) {
        let verdict = self.runtime.verify();
        assert!(
            verdict.is_ok() && verdict.audited(),
            "{}: {verdict}",
            self.at
        );
    }

    /// No group is refused while what is missing could be had, except what can never fit: there, or
    /// further up.
    pub(super) fn check_refusal(&self, refusal: &OverLimitError) {
        let level = self.books.index_of(refusal.group());
        let room = refusal.max();
        let mut above = refusal.group().ancestors();
        let fits_above = above.all(|above| refusal.requested() <= above.max());
        if fits_above && refusal.requested() <= room.min(PageCounter::USAGE_MAX) {
            let missing = self
                .books
                .live(level)
                .saturating_add(refusal.requested())
                .saturating_sub(room);
            self.check_left(level, missing.max(1));
        }
    }

    /// So much is still missing at a level: no group below has it that is honest and not protected.
    pub(super) fn check_left(&self, target: usize, missing: u64) {
        if missing == 0 || !self.setup.patient {
            return;
        }
        let top = &self.books.groups[target].group;
        for home in self
            .books
            .online()
            .into_iter()
            .filter(|&home| self.books.is_within(home, target))
        {
            let group = &self.books.groups[home].group;
            let protected = group
                .memory()
                .effective_min(&top.memory())
                .max(group.memory().effective_low(&top.memory()));
            let honest = self
                .books
                .cast_of(home)
                .filter(|cast| cast.actor.character().is_honest());
            let left: u64 = honest.map(|cast| cast.actor.bytes()).sum();
            assert!(
                protected > 0 || left < missing,
                "{}: {missing} are missing at {}, {left} can be had of {}",
                self.at,
                top.path(),
                group.path()
            );
        }
    }
}
