//! Orders of victims: the run says which group is cancelled next.

use std::sync::Arc;

use memcg::{GroupId, OomCandidate, OomPolicy};

use super::Life;
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

impl Life {
    pub(super) fn set_order(&mut self, op: &Op) {
        let What::OomBy(group, number) = op.1 else {
            unreachable!("an order of victims");
        };
        let Some(group) = self.group(group) else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        let order = OomPolicy::by(move |candidates: &[OomCandidate]| {
            let ids = candidates.iter().map(|it| it.group().id()).collect();
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
            shared.note_order(ids, choice);
            if number % 6 == 5 {
                shared.note_panic(group);
                panic!("on purpose");
            }
            answer
        });
        self.twin.groups[group].chooses = Some(true);
        self.on(op, group, move |group| group.set_oom_policy(order));
    }

    /// An order was asked: all that it was shown may be cancelled.
    pub(super) fn ordered(&mut self, candidates: &[GroupId], choice: Choice) {
        assert!(!candidates.is_empty(), "an order of nothing");
        self.chosen = None;
        if !self.shared.is_quiet() {
            return;
        }
        let numbers: Vec<usize> = candidates
            .iter()
            .map(|id| {
                let found = self.ids.iter().position(|of| of == id);
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
        self.chosen = Some(match choice {
            Choice::Of(at) => Some(numbers[at]),
            // The first is the one that the library would choose.
            Choice::Fails => Some(numbers[0]),
            Choice::Spares => None,
        });
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
