//! The part of the interpreter that charges, and turns charges into others.

use memcg::{Bytes, Charge, ChargeError};

use super::ops::{Action, FORCED_MAX, Op, Size};
use super::run::Run;
use super::{Held, No};

/// The margin of an unlimited tree is no useful size for a charge.
const MARGIN_MAX: u64 = 1 << 32;

/// More of them make an operation slow and show nothing new.
pub(super) const CHARGES_MAX: usize = 40;

/// Half of the operations are made by the verb that never blocks.
pub(super) fn is_odd(op: &Op) -> bool {
    (op.subject ^ op.thread) % 2 == 1
}

impl Run {
    pub(super) fn bytes(&self, group: usize, counter: usize, size: Size) -> u64 {
        let margin = self.twin.margin(group, counter, None).min(MARGIN_MAX);
        match size {
            Size::Units(bytes) => bytes,
            Size::Margin => margin,
            Size::Beyond => margin + 1,
        }
    }

    pub(super) fn hold(&mut self, charge: Charge, group: usize, counter: usize, bytes: u64) {
        assert_eq!(charge.bytes(), bytes, "{}", self.at);
        self.charges.push(charge);
        self.twin.held.push(Held {
            group,
            counter,
            bytes,
        });
    }

    /// Both say yes, or both say no for the same reason.
    pub(super) fn agree<T>(
        &self,
        found: Result<T, ChargeError>,
        expected: Result<(), No>,
        (group, counter, bytes): (usize, usize, u64),
    ) -> Option<T> {
        let at = &self.at;
        match (found, expected) {
            (Ok(charge), Ok(())) => Some(charge),
            (Err(error), Err(No::Offline)) if error.is_offline() => {
                assert_eq!(
                    (error.group().id(), error.requested()),
                    (self.ids[group], bytes),
                    "{at}"
                );
                None
            }
            (Err(error), Err(No::Full(level))) if error.is_over_limit() => {
                let refusal = error.over_limit().expect("a refusal");
                assert_eq!(
                    refusal.group().id(),
                    self.ids[level],
                    "{at}: refused by another group: {refusal}"
                );
                assert_eq!(
                    (refusal.requester().id(), refusal.requested()),
                    (self.ids[group], bytes),
                    "{at}: {refusal}"
                );
                let usage = refusal.usage();
                let live = self.twin.live(level, counter);
                assert!(
                    (live..=live + refusal.stocked_bound()).contains(&usage),
                    "{at}: {live} live: {refusal}"
                );
                // A charge above max fits beside no credit.
                assert!(
                    usage == live || bytes > refusal.max(),
                    "{at}: credit stood behind: {refusal}"
                );
                assert_eq!(
                    refusal.max(),
                    self.twin.groups[level].max[counter],
                    "{at}: {refusal}"
                );
                assert_eq!(
                    refusal.counter(),
                    [None, Some("further")][counter],
                    "{at}: {refusal}"
                );
                None
            }
            (Ok(_), Err(no)) => panic!("{at}: charged {bytes}, the twin says {no:?}"),
            (Err(error), expected) => panic!("{at}: {error}, the twin says {expected:?}"),
        }
    }

    pub(super) fn try_charge(&mut self, op: &Op, group: usize, size: Size) {
        if self.charges.len() >= CHARGES_MAX {
            return;
        }
        let bytes = self.bytes(group, 0, size);
        // Without reclaimers both verbs make and refuse the same charges.
        let at_once = is_odd(op);
        let found = self.on(op, group, move |group| match at_once {
            true => group.try_charge(Bytes(bytes)),
            false => group.charge(Bytes(bytes)),
        });
        let expected = self.twin.admit(group, 0, bytes, None);
        if let Some(charge) = self.agree(found, expected, (group, 0, bytes)) {
            self.hold(charge, group, 0, bytes);
        }
    }

    pub(super) fn charge(&mut self, op: &Op, group: usize, bytes: u64) {
        if self.charges.len() < CHARGES_MAX
            && bytes <= FORCED_MAX
            && self.twin.live(0, 0) <= FORCED_MAX
        {
            let charge = self.on(op, group, move |group| group.force_charge(Bytes(bytes)));
            self.hold(charge, group, 0, bytes);
        }
    }

    /// The last of a set is charged first, and goes back if the first is refused.
    pub(super) fn charge_both(&mut self, op: &Op, group: usize, bytes: [u64; 2]) {
        if self.charges.len() >= CHARGES_MAX {
            return;
        }
        let amounts = [0, 1].map(|counter| (self.counter(counter), Bytes(bytes[counter])));
        let at_once = is_odd(op);
        let found = self.on(op, group, move |group| match at_once {
            true => group.try_charge_set(&amounts),
            false => group.charge_set(&amounts),
        });
        // Which counter a set begins with, it decides by where charges were refused lately.
        let is_memory = |error: &ChargeError| match error.over_limit() {
            Some(refusal) => refusal.counter().is_none(),
            None => error.requested() == bytes[0],
        };
        let order = if found.as_ref().is_err_and(is_memory) {
            [0, 1]
        } else {
            [1, 0]
        };
        let mut refused = None;
        for counter in order {
            if let Err(no) = self.twin.admit(group, counter, bytes[counter], None) {
                refused = Some((no, counter));
                break;
            }
        }
        let (expected, counter) = refused.map_or((Ok(()), 0), |(no, counter)| (Err(no), counter));
        if let Some(set) = self.agree(found, expected, (group, counter, bytes[counter])) {
            for (number, charge) in set.into_iter().enumerate() {
                self.hold(charge, group, number, bytes[number]);
            }
        }
    }

    /// Takes the charge to the thread and back.
    fn with_charge<R: Send + 'static>(
        &mut self,
        op: &Op,
        at: usize,
        job: impl FnOnce(&mut Charge) -> R + Send + 'static,
    ) -> R {
        let mut charge = self.charges.swap_remove(at);
        let last = self.charges.len();
        let (charge, result) = self.worker(op).run(move || {
            let result = job(&mut charge);
            (charge, result)
        });
        self.charges.push(charge);
        self.charges.swap(at, last);
        result
    }

    pub(super) fn step_charge(&mut self, op: &Op) {
        if self.charges.is_empty() {
            return;
        }
        let at = usize::from(op.subject) % self.charges.len();
        let Held {
            group,
            counter,
            bytes: held,
        } = self.twin.held[at];
        match op.action {
            Action::Grow(bytes) => {
                if bytes <= FORCED_MAX && self.twin.live(0, counter) <= FORCED_MAX {
                    self.with_charge(op, at, move |charge| charge.force_grow(Bytes(bytes)));
                    self.twin.held[at].bytes += bytes;
                }
            }
            Action::TryGrow(size) => {
                let bytes = self.bytes(group, counter, size);
                let at_once = is_odd(op);
                self.try_grow(op, at, bytes, move |charge| match at_once {
                    true => charge.try_grow(Bytes(bytes)),
                    false => charge.grow(Bytes(bytes)),
                });
            }
            Action::Resize(bytes) if bytes > held => {
                let at_once = is_odd(op);
                self.try_grow(op, at, bytes - held, move |charge| match at_once {
                    true => charge.try_resize(Bytes(bytes)),
                    false => charge.resize(Bytes(bytes)),
                });
            }
            Action::Resize(bytes) => {
                let found = self.with_charge(op, at, move |charge| charge.resize(Bytes(bytes)));
                assert!(found.is_ok(), "{}: {found:?}", self.at);
                self.twin.held[at].bytes = bytes;
            }
            Action::Shrink(bytes) => {
                let found = self.with_charge(op, at, move |charge| charge.shrink(Bytes(bytes)));
                assert_eq!(found, bytes.min(held), "{}", self.at);
                self.twin.held[at].bytes -= found;
            }
            Action::Split(_) | Action::Take if self.charges.len() >= CHARGES_MAX => {}
            Action::Split(bytes) => {
                match self.with_charge(op, at, move |charge| charge.split(Bytes(bytes))) {
                    Ok(part) => {
                        self.twin.held[at].bytes = held.checked_sub(bytes).expect("it had as many");
                        self.hold(part, group, counter, bytes);
                    }
                    Err(refused) => assert!(
                        refused.bytes == held && bytes > held,
                        "{}: {refused}",
                        self.at
                    ),
                }
            }
            Action::Take => {
                let all = self.with_charge(op, at, Charge::take);
                self.twin.held[at].bytes = 0;
                self.hold(all, group, counter, held);
            }
            Action::Merge(other) => self.merge(op, at, usize::from(other) % self.charges.len()),
            Action::Transfer(to) => self.transfer(op, at, to),
            Action::DropCharge => {
                let charge = self.charges.swap_remove(at);
                self.twin.held.swap_remove(at);
                self.worker(op).run(move || drop(charge));
            }
            _ => unreachable!("an operation on a group or on all"),
        }
    }

    fn try_grow(
        &mut self,
        op: &Op,
        at: usize,
        bytes: u64,
        job: impl FnOnce(&mut Charge) -> Result<(), ChargeError> + Send + 'static,
    ) {
        let Held { group, counter, .. } = self.twin.held[at];
        let found = self.with_charge(op, at, job);
        // By nothing a charge may grow even where its group is offline.
        let expected = if bytes == 0 {
            Ok(())
        } else {
            self.twin.admit(group, counter, bytes, None)
        };
        if self
            .agree(found, expected, (group, counter, bytes))
            .is_some()
        {
            self.twin.held[at].bytes += bytes;
        }
    }

    fn merge(&mut self, op: &Op, at: usize, other: usize) {
        if at == other {
            return;
        }
        let into = self.twin.held[at];
        let from = self.twin.held[other];
        let part = self.charges.swap_remove(other);
        self.twin.held.swap_remove(other);
        // The charge that stood last stands in its place.
        let at = if at == self.charges.len() { other } else { at };
        let found = self.with_charge(op, at, move |charge| {
            charge
                .merge(part)
                .map_err(memcg::errors::MergeError::into_charge)
        });
        let same = (into.group, into.counter) == (from.group, from.counter);
        match found {
            Ok(()) if same => self.twin.held[at].bytes += from.bytes,
            Err(part) if !same => self.hold(part, from.group, from.counter, from.bytes),
            found => panic!("{}: {found:?}, one group: {same}", self.at),
        }
    }

    fn transfer(&mut self, op: &Op, at: usize, to: u8) {
        let Some(to) = self.group(to) else { return };
        let Held {
            group,
            counter,
            bytes,
        } = self.twin.held[at];
        let target = self.handle(to).clone();
        let found = self.with_charge(op, at, move |charge| charge.transfer(&target));
        let top = self.twin.common(group, to);
        let expected = if to == group {
            Ok(())
        } else {
            self.twin.admit(to, counter, bytes, Some(top))
        };
        if self.agree(found, expected, (to, counter, bytes)).is_some() {
            self.twin.held[at].group = to;
        }
    }
}
