//! Groups whose charges pay for what an allocator hands out: usage is the larger of the two.
//!
//! Here two groups that cover lie below one, and one of them may end. In `covered_deep` three lie
//! one below the other, each with a max, beside a charge that waits.

// What an allocator gives back to a group is its word for it.
#![allow(unsafe_code)]

use std::thread;
use std::time::Duration;

use memcg::allocator::Owner;
use memcg::{Bytes, Charge, Group, Limits};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::{Life, covered_deep};
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What};

/// The most that one step charges or allocates.
pub(super) const MOST: u64 = 300;

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
        let lived = self.on(op, group, move |group| {
            if seed % 2 == 0 {
                live(group, steps, seed)
            } else {
                covered_deep::live(group, steps, seed)
            }
        });
        self.settle_accounts();
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

/// What an allocator has handed out.
pub(super) struct Object {
    owner: Owner,
    pub(super) bytes: u64,
    pub(super) level: usize,
}

impl Object {
    /// It is allocated in the group of this number.
    pub(super) fn allocate(groups: &[Group], level: usize, bytes: u64) -> Object {
        Object {
            owner: groups[level].run(|| Owner::charge(bytes as usize)),
            bytes,
            level,
        }
    }

    pub(super) fn free(self) {
        // SAFETY: charged for these bytes, and given back once.
        unsafe { self.owner.uncharge(self.bytes as usize) };
    }
}

/// So many milliseconds a thread may take from one step to the next.
pub(super) const MOMENTS: u32 = 500;

/// Groups by their numbers: one below the top, the top, one beside it that covers nothing, and a
/// second one below it.
const TOP: usize = 1;
const BESIDE: usize = 2;

/// Those that cover.
const COVER: [usize; 3] = [0, TOP, 3];

/// What the groups have: bytes that are reserved, and bytes that are allocated.
#[derive(Clone, Copy, Default)]
struct Sums {
    reserved: [u64; 4],
    allocated: [u64; 4],
}

impl Sums {
    /// Of the top, with what is below it.
    fn live(&self) -> u64 {
        self.all_reserved().max(self.all_allocated())
    }

    /// Of a group alone.
    fn own(&self, of: usize) -> u64 {
        self.reserved[of].max(self.allocated[of])
    }

    fn all_reserved(&self) -> u64 {
        COVER.into_iter().map(|of| self.reserved[of]).sum()
    }

    fn all_allocated(&self) -> u64 {
        COVER.into_iter().map(|of| self.allocated[of]).sum()
    }

    /// What a group that has ended holds is that of the top, too.
    fn of_top(&self, has_ended: bool) -> (u64, u64) {
        let below = if has_ended { 0..2 } else { TOP..2 };
        let sum = |of: &[u64; 4]| of[below.clone()].iter().sum();
        (sum(&self.reserved), sum(&self.allocated))
    }
}

fn live(group: &Group, steps: u8, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let before = group.live();
    let max = if rng.random() { u64::MAX } else { 1_000 };
    let limits = Limits::new().max(Bytes(max)).cover_allocations();
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
    let Ok(other) = top.create("other", Limits::new()) else {
        top.offline_tree();
        beside.offline_tree();
        return Ok(());
    };
    let levels = [below, top, beside, other];
    let mut has_ended = false;
    let mut charges: Vec<(usize, Charge)> = Vec::new();
    let mut objects: Vec<Object> = Vec::new();
    let mut sums = Sums::default();
    let mut holds = Ok(());
    for _ in 0..steps {
        let level = [0, TOP, 3][rng.random_range(0..3)];
        // Work of a group that has ended goes on in the one above.
        let level = if level == 0 && has_ended { TOP } else { level };
        let bytes = rng.random_range(1..=MOST);
        match rng.random_range(0..6) {
            5 if !has_ended && rng.random_bool(0.3) => {
                let ended = levels[0].offline();
                has_ended = true;
                holds = holds.and_then(|()| {
                    ensure!(ended.is_ok(), "nothing is below: {ended:?}");
                    Ok(())
                });
            }
            4 if !charges.is_empty() => {
                let at = rng.random_range(0..charges.len());
                let to = rng.random_range(0..levels.len());
                let to = if to == 0 && has_ended { TOP } else { to };
                let (from, charge) = &mut charges[at];
                let bytes = charge.bytes();
                let mut then = sums;
                then.reserved[*from] -= bytes;
                then.reserved[to] += bytes;
                let fits = to == *from || then.live() <= max.max(sums.live());
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
                let fits = larger.live() <= max.max(sums.live());
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
                objects.push(Object::allocate(&levels, level, bytes));
                sums.allocated[level] += bytes;
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
        holds = holds.and_then(|()| agree(group, &levels, &sums, has_ended, before));
    }
    objects.into_iter().for_each(Object::free);
    drop(charges);
    let none = Sums::default();
    holds = holds.and_then(|()| agree(group, &levels, &none, has_ended, before));
    levels[1].offline_tree();
    levels[2].offline_tree();
    holds
}

fn agree(group: &Group, levels: &[Group; 4], sums: &Sums, has_ended: bool, before: u64) -> Holds {
    let live = levels.each_ref().map(Group::live);
    let (all, beside) = (sums.live(), sums.reserved[BESIDE]);
    let known = [sums.own(0), all, beside, sums.own(3)];
    ensure_eq!(live, known, "live of groups that cover");
    ensure_eq!(
        group.live() - before,
        all + beside,
        "live above groups that cover"
    );
    let (reserved, allocated) = (sums.all_reserved(), sums.all_allocated());
    let ledger = levels[TOP].ledger();
    let found = (ledger.reserved(), ledger.allocated(), ledger.unpaid());
    let known = (reserved, allocated, allocated.saturating_sub(reserved));
    ensure_eq!(found, known, "reserved, allocated and unpaid");
    let inspect = levels[TOP].inspect();
    let local = inspect.ledger_local();
    let (reserved, allocated) = sums.of_top(has_ended);
    let found = (local.reserved(), local.allocated(), local.unpaid());
    let known = (reserved, allocated, allocated.saturating_sub(reserved));
    ensure_eq!(
        found,
        known,
        "reserved, allocated and unpaid in the top itself"
    );
    let live = inspect.live_local();
    ensure_eq!(live, reserved.max(allocated), "live of the top itself");
    let mut known = vec![(all, sums.all_reserved())];
    known.extend((!has_ended).then(|| (sums.own(0), sums.reserved[0])));
    known.push((sums.own(3), sums.reserved[3]));
    // A row is read without locks: it shows twice, or not at all, what a thread of the runtime takes
    // back meanwhile.
    let mut found = Vec::new();
    for _ in 0..MOMENTS {
        let table = levels[TOP].snapshot(1);
        let rows = table.rows().iter();
        found = rows.map(|row| (row.live, row.ledger.reserved())).collect();
        if found == known {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    ensure_eq!(found, known, "(live, reserved) in the table");
    Ok(())
}
