//! Charges that go through a word of a foreign program, and come back.

// A word is made a charge again.
#![allow(unsafe_code)]

use memcg::Charge;

use super::{CHARGES_MAX, Life};
use crate::script::Op;

impl Life {
    /// A charge of memory becomes bytes without a guard. One of no bytes keeps a handle, which a
    /// charge alone gives up.
    pub(super) fn make_word(&mut self, op: &Op, number: u8) {
        if self.charges.is_empty() || self.raws.len() >= CHARGES_MAX {
            return;
        }
        let at = usize::from(number) % self.charges.len();
        let held = self.twin.of(self.charges[at].0);
        if held.counter > 0 || held.bytes == 0 || self.handles[held.group].is_empty() {
            return;
        }
        let (key, charge) = self.charges.swap_remove(at);
        let (word, bytes) = self.actor(op).run(move || {
            let (word, bytes) = charge.into_raw();
            (word.expose_provenance(), bytes)
        });
        assert_eq!(bytes, held.bytes, "in the word");
        self.raws.push(key);
        self.words.insert(key, word);
    }

    /// What is left of such bytes is a charge again.
    pub(super) fn make_charge_of_word(&mut self, op: &Op, number: u8) {
        if self.raws.is_empty() || self.charges.len() >= CHARGES_MAX {
            return;
        }
        let at = usize::from(number) % self.raws.len();
        let key = self.raws[at];
        let Some(&word) = self.words.get(&key) else {
            return;
        };
        let bytes = self.twin.of(key).bytes;
        self.raws.swap_remove(at);
        let charge = self.actor(op).run(move || {
            let word = std::ptr::with_exposed_provenance(word);
            // SAFETY: the word of a charge that has become an amount, and what is left of that
            // amount: the run forgets both.
            unsafe { Charge::from_raw(word, bytes) }
        });
        assert_eq!(charge.bytes(), bytes, "of the word");
        self.charges.push((key, charge));
    }
}
