//! Groups whose charges pay for what an allocator hands out: usage is the larger of the two.

// What an allocator gives back to a group is its word for it.
#![allow(unsafe_code)]

use memcg::allocator::Owner;
use memcg::{Bytes, Charge, Group, Limits};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What};

/// The most that one step charges or allocates.
const MOST: u64 = 300;

impl Life {
    /// Groups of their own are made below a group, and end. The twin has none of them: they leave
    /// nothing.
    pub(super) fn cover(&mut self, op: &Op) {
        let What::Cover(group, steps, seed) = op.1 else {
            unreachable!("groups that cover");
        };
        // What others charge meanwhile would be in the sums above.
        if !self.tasks.is_empty() || self.adapters_wait() || !self.shared.is_quiet() {
            return;
        }
        let Some(group) = self.group(group) else {
            return;
        };
        // Where limits only count nothing is refused.
        if self.twin.is_observed(group) {
            return;
        }
        // What an allocator hands out is charged by force.
        if self.twin.margin(group, 0, None) < u64::from(steps) * MOST {
            return;
        }
        self.keeps = true;
        let acts = !self.twin.is_observed(group);
        let lived = self.on(op, group, move |group| live(group, acts, steps, seed));
        self.settle_accounts();
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

/// What an allocator has handed out.
struct Object {
    owner: Owner,
    bytes: u64,
    level: usize,
}

impl Object {
    fn free(self) {
        // SAFETY: charged for these bytes, and given back once.
        unsafe { self.owner.uncharge(self.bytes as usize) };
    }
}

/// What two levels have: bytes that are reserved, and bytes that are allocated. The third lies beside
/// them, and covers nothing.
#[derive(Clone, Copy, Default)]
struct Sums {
    reserved: [u64; 3],
    allocated: [u64; 2],
}

impl Sums {
    /// Of the lower level alone, and of both.
    fn live(&self) -> [u64; 2] {
        [
            self.reserved[0].max(self.allocated[0]),
            self.all_reserved().max(self.allocated.iter().sum()),
        ]
    }

    fn all_reserved(&self) -> u64 {
        self.reserved[0] + self.reserved[1]
    }

    fn unpaid(&self) -> u64 {
        let allocated: u64 = self.allocated.iter().sum();
        allocated.saturating_sub(self.all_reserved())
    }
}

fn live(group: &Group, acts: bool, steps: u8, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let before = group.live();
    let max = if rng.random() { u64::MAX } else { 1_000 };
    let limits = Limits::new().max(Bytes(max)).cover_allocations();
    // Where limits only count, nothing is refused.
    let max = if acts { max } else { u64::MAX };
    // The group is offline, or there are as many as may be.
    let Ok(top) = group.create("covers", limits) else {
        return Ok(());
    };
    let Ok(below) = top.create("below", Limits::new()) else {
        top.offline_tree();
        return Ok(());
    };
    let Ok(beside) = group.create("beside", Limits::new()) else {
        top.offline_tree();
        return Ok(());
    };
    let levels = [below, top, beside];
    let mut charges: Vec<(usize, Charge)> = Vec::new();
    let mut objects: Vec<Object> = Vec::new();
    let mut sums = Sums::default();
    let mut holds = Ok(());
    for _ in 0..steps {
        let (level, bytes) = (rng.random_range(0..2), rng.random_range(1..=MOST));
        match rng.random_range(0..5) {
            4 if !charges.is_empty() => {
                let at = rng.random_range(0..charges.len());
                let to = rng.random_range(0..levels.len());
                let (from, charge) = &mut charges[at];
                let bytes = charge.bytes();
                let mut then = sums;
                then.reserved[*from] -= bytes;
                then.reserved[to] += bytes;
                let fits = to == *from || then.live()[1] <= max.max(sums.live()[1]);
                let moved = charge.transfer(&levels[to]);
                holds = holds.and_then(|()| {
                    ensure!(
                        moved.is_ok() == fits,
                        "{bytes} from {from} to {to}: {moved:?}"
                    );
                    Ok(())
                });
                if moved.is_ok() {
                    (*from, sums) = (to, then);
                }
            }
            0 => {
                let then = |sums: &mut Sums| sums.reserved[level] += bytes;
                let mut larger = sums;
                then(&mut larger);
                let fits = larger.live()[1] <= max.max(sums.live()[1]);
                match levels[level].try_charge(Bytes(bytes)) {
                    Ok(charge) => {
                        then(&mut sums);
                        charges.push((level, charge));
                        holds = holds.and_then(|()| {
                            ensure!(fits, "{bytes} more are charged, of {max}");
                            Ok(())
                        });
                    }
                    Err(refused) => {
                        holds = holds.and_then(|()| {
                            ensure!(!fits, "{refused}, and it fits");
                            Ok(())
                        })
                    }
                }
            }
            1 => {
                let owner = levels[level].run(|| Owner::charge(bytes as usize));
                sums.allocated[level] += bytes;
                objects.push(Object {
                    owner,
                    bytes,
                    level,
                });
            }
            2 if !charges.is_empty() => {
                let at = rng.random_range(0..charges.len());
                let (level, mut charge) = charges.swap_remove(at);
                let gone = charge.shrink(Bytes(bytes));
                sums.reserved[level] -= gone;
                charges.push((level, charge));
            }
            _ if !objects.is_empty() => {
                let object = objects.swap_remove(rng.random_range(0..objects.len()));
                sums.allocated[object.level] -= object.bytes;
                object.free();
            }
            _ => {}
        }
        holds = holds.and_then(|()| agree(group, &levels, &sums, before));
    }
    objects.into_iter().for_each(Object::free);
    drop(charges);
    let none = Sums::default();
    holds = holds.and_then(|()| agree(group, &levels, &none, before));
    levels[1].offline_tree();
    levels[2].offline_tree();
    holds
}

fn agree(group: &Group, levels: &[Group; 3], sums: &Sums, before: u64) -> Holds {
    let live = levels.each_ref().map(Group::live);
    let [below, all] = sums.live();
    let beside = sums.reserved[2];
    ensure_eq!(live, [below, all, beside], "live of groups that cover");
    ensure_eq!(
        group.live() - before,
        all + beside,
        "live above groups that cover"
    );
    let ledger = levels[1].ledger();
    let found = (ledger.reserved(), ledger.allocated(), ledger.unpaid());
    let known = (
        sums.all_reserved(),
        sums.allocated.iter().sum(),
        sums.unpaid(),
    );
    ensure_eq!(found, known, "reserved, allocated and unpaid");
    Ok(())
}
