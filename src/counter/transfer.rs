//! Moving a charge: between two counters, below what they have in common.

use crate::counter::make::slow_path;
use crate::counter::object::Counter;
use crate::counter::refusal::Refusal;
use crate::counter::walk::Amount;

impl Counter {
    /// Charge `n` to this counter and its ancestors below `top`, which it holds already: exactly, or not at all.
    #[cold]
    pub(crate) fn charge_below_slow(&self, n: u64, top: &Counter) -> Result<(), Refusal<'_>> {
        slow_path(|block, nested| {
            let alone = block.filter(|_| !nested);
            if let Some(block) = alone {
                self.enter(block);
            }
            let walked = self.walk_below(n, Amount::Needed, Some(top));
            if let Some(block) = alone {
                block.transit.end();
            }
            let walked = match walked {
                Err(refusal) if !nested => self.tree().charge_at_limit(self, n, Some(top), refusal),
                walked => walked,
            };
            walked.map(|_| self.count_charged(alone, n))
        })
    }

    /// Uncharge `n` from this counter and its ancestors below `top`, which keeps it. Afterwards the counter may be
    /// gone.
    #[cold]
    pub(crate) fn uncharge_below_slow(&self, n: u64, top: &Counter) {
        slow_path(|block, nested| {
            let alone = block.filter(|_| !nested);
            self.count_uncharged(alone, n);
            // In transit: a max that is lowered meanwhile waits for it before it tells what is above.
            if let Some(block) = alone {
                self.enter(block);
            }
            self.uncharge_below(n, top);
            if let Some(block) = alone {
                block.transit.end();
            }
        });
    }
}
