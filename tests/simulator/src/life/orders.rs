//! Orders of victims: the run says which group is cancelled next.

use std::sync::Arc;

use memcg::{GroupId, OomCandidate, OomPolicy};

use super::Life;
use super::callbacks::lock;
use crate::script::{Op, What};
use crate::twin::Key;

/// What an order has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The candidate of that place.
    Of(usize),
    /// None of them: all are spared.
    Spares,
    /// It has panicked, or named none that is there: the library's own order is used.
    Fails,
}

/// What an order is shown of a group.
pub(super) struct Candidate {
    id: GroupId,
    usage: u64,
    overrun: u64,
    wants: u64,
    importance: u8,
}

impl Life {
    pub(super) fn set_order(&mut self, op: &Op) {
        let What::OomBy(group, number) = op.1 else {
            unreachable!("an order of victims");
        };
        let Some(group) = self.group(group) else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        let held = Arc::new(());
        let number_of_order = self.orders_made;
        self.orders_made += 1;
        self.orders.retain(|order| order.strong_count() > 0);
        self.orders.push(Arc::downgrade(&held));
        let order = OomPolicy::by(move |candidates: &[OomCandidate]| {
            let shown = candidates.iter().map(|it| Candidate {
                id: it.group().id(),
                usage: it.usage(),
                overrun: it.overrun(),
                wants: it.wants(),
                importance: it.importance(),
            });
            let shown = shown.collect();
            let last = candidates.len().wrapping_sub(1);
            let by_usage = |&at: &usize| candidates[at].usage();
            let least = (0..candidates.len()).min_by_key(by_usage).unwrap_or(0);
            let (choice, answer) = match number % 6 {
                0 => (Choice::Of(0), Some(0)),
                1 => (Choice::Of(last), Some(last)),
                2 => (Choice::Of(least), Some(least)),
                3 => (Choice::Spares, None),
                4 => (Choice::Fails, Some(candidates.len())),
                _ => (Choice::Fails, None),
            };
            shared.note_order(number_of_order, shown, choice);
            let _kept = &held;
            if number % 6 == 5 {
                shared.note_panic(group);
                panic!("on purpose");
            }
            answer
        });
        self.twin.groups[group].chooses = Some(true);
        let over = self.twin.groups[group].order.replace(number_of_order);
        self.orders_over.extend(over);
        self.on(op, group, move |group| group.set_oom_policy(order));
    }

    /// An order was asked: all that it was shown may be cancelled.
    pub(super) fn ordered(
        &mut self,
        order: usize,
        candidates: &[Candidate],
        choice: Choice,
        takes_turns: bool,
    ) {
        assert!(!candidates.is_empty(), "an order of nothing");
        // A thread of the runtime may have asked it just before.
        assert!(
            !takes_turns || !self.orders_over.contains(&order),
            "an order is asked that is over"
        );
        self.was_ordered = true;
        self.chosen = None;
        if !self.shared.is_quiet() {
            return;
        }
        let numbers: Vec<usize> = candidates
            .iter()
            .map(|shown| {
                let found = self.ids.iter().position(|of| *of == shown.id);
                found.expect("a group of the life")
            })
            .collect();
        for (at, &group) in numbers.iter().enumerate() {
            let path = self.twin.path(group);
            assert!(!numbers[..at].contains(&group), "{path} is there twice");
            assert!(
                !self.twin.is_spared(group),
                "{path} may be cancelled, and is exempt"
            );
            let is_hooked = |of: usize| self.twin.is_within(of, group);
            assert!(
                self.hooks.iter().any(|hook| is_hooked(hook.group)),
                "{path} may be cancelled, and has no hook"
            );
        }
        self.candidates_are_right(&numbers, candidates);
        self.chosen = Some(match choice {
            Choice::Of(at) => Some(numbers[at]),
            // The first is the one that the library would choose.
            Choice::Fails => Some(numbers[0]),
            Choice::Spares => None,
        });
    }

    /// What the order was told of each: what it holds alone, how far that is above what it is
    /// granted, and what is wanted for it or for a group below.
    fn candidates_are_right(&self, numbers: &[usize], shown: &[Candidate]) {
        let asks = self.asking.map(|group| {
            let mut levels = self.twin.levels(group);
            let is_one = !self.twin.is_spared(group);
            levels.find(|level| is_one && numbers.contains(level))
        });
        let is_known = self.tasks.is_empty() && !self.adapters_wait();
        for (&group, shown) in numbers.iter().zip(shown) {
            let &Candidate {
                usage,
                overrun,
                wants,
                importance,
                ..
            } = shown;
            let path = self.twin.path(group);
            // One that goes as one with groups below matters as much as the most important of these.
            let hooked = self.hooks.iter().map(|hook| hook.group);
            let with = hooked.filter(|&of| {
                let goes_along = self.twin.groups[group].together || of == group;
                goes_along && self.twin.is_within(of, group) && !self.twin.is_spared(of)
            });
            let matters = with.chain([group]).map(|of| self.twin.importance(of)).max();
            assert_eq!(Some(importance), matters, "the importance of {path}");
            assert!(
                !is_known || asks.is_none_or(|asks| (wants > 0) == (asks == Some(group))),
                "{wants} are wanted for {path}, and {asks:?} asks"
            );
            let is_inner = |&other: &usize| other != group && self.twin.is_within(other, group);
            let is_granted = |level: usize| {
                let of = &self.twin.groups[level];
                of.low > 0 || of.min > 0
            };
            // What groups hold below that are no candidates nobody tells.
            let are_others = self.hooks.len() > numbers.len() || numbers.iter().any(is_inner);
            if are_others || self.twin.levels(group).any(is_granted) {
                continue;
            }
            let soft = Some(self.twin.soft(group)).filter(|&soft| soft < u64::MAX);
            let known = usage.saturating_sub(soft.unwrap_or(0));
            assert!(
                overrun == known,
                "{path} holds {usage}, {overrun} of it too much, and is granted {soft:?}"
            );
        }
    }

    /// Nobody is cancelled for a group whose nearest policy has an order that is not asked. A tree that is
    /// applied may have set others for that time.
    pub(super) fn order_was_asked(&self, domain: usize) {
        let chooser = self.twin.chooser(domain).map(|of| &self.twin.groups[of]);
        let is_ordered = chooser.is_some_and(|of| of.online && of.order.is_some());
        assert!(
            self.was_ordered
                || !is_ordered
                || !self.shared.is_quiet()
                || lock(&self.shared.applying).is_some(),
            "a group is cancelled for {}, and the order is not asked",
            self.twin.path(domain)
        );
    }

    /// The next that is cancelled is the one that the order has chosen.
    pub(super) fn is_as_ordered(&mut self, key: Key) {
        let Some(chosen) = self.chosen.take() else {
            return;
        };
        let hook = self.hooks.iter().find(|hook| hook.key == key);
        if !self.shared.is_quiet() || self.together {
            return;
        }
        let group = hook.map(|hook| hook.group);
        assert_eq!(group, chosen, "the victim, and the one of the order");
    }

    /// What an order has chosen was cancelled.
    pub(super) fn orders_are_followed(&mut self) {
        if let Some(Some(group)) = self.chosen.take() {
            assert!(
                !self.shared.is_quiet() || self.together,
                "{} was chosen, and is not cancelled",
                self.twin.path(group)
            );
        }
    }
}
