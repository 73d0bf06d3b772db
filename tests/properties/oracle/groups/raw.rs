//! The part of the interpreter that charges without a guard.

use memcg::Bytes;
use memcg::Charge;

use super::Held;
use super::charges::{CHARGES_MAX, is_odd};
use super::ops::{Action, FORCED_MAX, Op, Size};
use super::run::Run;

impl Run {
    fn hold_raw(&mut self, held: Held, word: Option<usize>) {
        self.twin.raw.push(held);
        self.words.push(word);
    }

    fn is_full(&self) -> bool {
        self.words.len() >= CHARGES_MAX
    }

    pub(super) fn try_charge_raw(&mut self, op: &Op, group: usize, size: Size) {
        if self.is_full() {
            return;
        }
        let bytes = self.bytes(group, 0, size);
        let at_once = is_odd(op);
        let found = self.on(op, group, move |group| match at_once {
            true => group.raw().try_charge(Bytes(bytes)),
            false => group.raw().charge(Bytes(bytes)),
        });
        let expected = self.twin.admit(group, 0, bytes, None);
        if self.agree(found, expected, (group, 0, bytes)).is_some() && bytes > 0 {
            self.hold_raw(
                Held {
                    group,
                    counter: 0,
                    bytes,
                },
                None,
            );
        }
    }

    pub(super) fn charge_raw(&mut self, op: &Op, group: usize, bytes: u64) {
        if !self.is_full() && bytes <= FORCED_MAX && self.twin.live(0, 0) <= FORCED_MAX {
            let charged = self.on(op, group, move |group| {
                group.raw().force_charge(Bytes(bytes))
            });
            assert_eq!(charged, bytes, "{}", self.at);
            if bytes > 0 {
                self.hold_raw(
                    Held {
                        group,
                        counter: 0,
                        bytes,
                    },
                    None,
                );
            }
        }
    }

    pub(super) fn step_raw(&mut self, op: &Op) {
        let pick = |amounts: usize| (amounts > 0).then(|| usize::from(op.subject) % amounts);
        match op.action {
            Action::IntoRaw if self.is_full() => {}
            Action::IntoRaw => {
                let Some(at) = pick(self.charges.len()) else {
                    return;
                };
                let charge = self.charges.swap_remove(at);
                let held = self.twin.held.swap_remove(at);
                let (word, bytes) = self.worker(op).run(move || {
                    let (word, bytes) = charge.into_raw();
                    (word as usize, bytes)
                });
                assert_eq!(bytes, held.bytes, "{}", self.at);
                self.hold_raw(held, Some(word));
            }
            Action::FromRaw if self.charges.len() >= CHARGES_MAX => {}
            Action::FromRaw => {
                let Some(at) = pick(self.words.len()) else {
                    return;
                };
                let Some(word) = self.words[at] else { return };
                let Held {
                    group,
                    counter,
                    bytes,
                } = self.twin.raw.swap_remove(at);
                self.words.swap_remove(at);
                let charge = self.worker(op).run(move || guard(word, bytes));
                self.hold(charge, group, counter, bytes);
            }
            Action::Uncharge(bytes) => {
                let Some(at) = pick(self.words.len()) else {
                    return;
                };
                self.uncharge(op, at, bytes);
            }
            _ => unreachable!("an operation on a group, a guard or on all"),
        }
    }

    /// Gives back memory through a handle, where the run has one.
    fn uncharge(&mut self, op: &Op, at: usize, bytes: u64) {
        let Held {
            group,
            counter,
            bytes: held,
        } = self.twin.raw[at];
        // An amount of 0 bytes was a charge and keeps a handle, which only a charge gives up.
        if counter > 0 || held == 0 || self.handles[group].is_empty() {
            return;
        }
        let bytes = bytes.min(held);
        self.on(op, group, move |group| group.raw().uncharge(Bytes(bytes)));
        self.twin.raw[at].bytes -= bytes;
        if bytes == held {
            self.twin.raw.swap_remove(at);
            self.words.swap_remove(at);
        }
    }

    pub(super) fn is_last_way_to_amounts(&self, group: usize) -> bool {
        self.runtime.is_none()
            && self.handles[group].len() == 1
            && self.twin.raw.iter().any(|held| held.group == group)
    }

    /// Without a runtime no call finds a group that only an amount keeps.
    pub(super) fn keep_groups_of_amounts(&mut self) {
        let Some(runtime) = &self.runtime else { return };
        let lost = self
            .twin
            .raw
            .iter()
            .map(|held| held.group)
            .filter(|&group| self.handles[group].is_empty());
        let found: Vec<_> = lost
            .map(|group| (group, runtime.find(self.ids[group]).expect("bytes keep it")))
            .collect();
        found
            .into_iter()
            .for_each(|(group, handle)| self.keep(group, handle));
    }

    pub(super) fn uncharge_all(&mut self) {
        self.keep_groups_of_amounts();
        let amounts: Vec<_> = self.twin.raw.drain(..).zip(self.words.drain(..)).collect();
        for (Held { group, bytes, .. }, word) in amounts {
            match word {
                Some(word) => self.workers[2].run(move || drop(guard(word, bytes))),
                None => {
                    let group = self.handle(group).clone();
                    self.workers[2].run(move || group.raw().uncharge(Bytes(bytes)));
                }
            }
        }
    }
}

#[allow(unsafe_code)]
fn guard(word: usize, bytes: u64) -> Charge {
    // SAFETY: the word of a charge that has become an amount, and what is left of that amount: the
    // run forgets both.
    unsafe { Charge::from_raw(word as *const (), bytes) }
}
