//! Groups side by side give memory back in proportion to what they have: each group's balance sees to
//! that, over many rounds.

use std::sync::{Arc, Mutex, PoisonError};

use memcg::{
    Bytes, Charge, Group, Limit, Limits, OnFull, Reclaim, ReclaimContext, ReclaimPriority,
};

use super::Life;
use crate::script::{Op, What};

/// What groups have at first, in KiB. All of a row give the same part of it.
const ROWS: [[u64; 3]; 4] = [
    [1_024, 1_024, 1_024],
    [2_048, 512, 128],
    [128, 2_048, 128],
    [256, 512, 1_024],
];

/// Bytes that a group is asked for at least, where so many are wanted.
const CLUSTER: u64 = 16 << 10;

/// A cache that gives what it is asked for.
struct Gives(Mutex<Option<Charge>>);

impl Gives {
    fn bytes(&self) -> u64 {
        let charge = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        charge.as_ref().map_or(0, Charge::bytes)
    }
}

impl Reclaim for Gives {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut charge = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        charge
            .as_mut()
            .map_or(0, |charge| charge.shrink(Bytes(want)))
    }

    fn reclaimable(&self) -> u64 {
        self.bytes()
    }
}

impl Life {
    /// Groups of their own are made below a group, give for a while, and end. The twin has none of
    /// them: they leave nothing.
    pub(super) fn share_reclaim(&mut self, op: &Op) {
        let What::ShareReclaim(group, row, want) = op.1 else {
            unreachable!("groups that give");
        };
        // What they hold meanwhile would keep others in line.
        if !self.tasks.is_empty() || self.adapters_wait() || !self.shared.is_quiet() {
            return;
        }
        let Some(group) = self.group(group) else {
            return;
        };
        // From a mark on a thread asks them as well, and what each has given is the sum of both.
        let is_marked = |level: usize| {
            let level = self.handles[level].first();
            let mark = level.and_then(|level| level.limits().reclaim_above);
            mark.is_some_and(|mark| mark != Limit::Unlimited)
        };
        if self.twin.levels(group).any(is_marked) {
            return;
        }
        self.keeps = true;
        let held = ROWS[usize::from(row) % ROWS.len()].map(|kib| kib << 10);
        let given = self.on(op, group, move |group| give(group, held, want));
        self.settle_accounts();
        let Some(given) = given else { return };
        let (all, of_all) = (given.iter().sum::<u64>(), held.iter().sum::<u64>());
        for (given, held) in given.into_iter().zip(held) {
            let share = (u128::from(all) * u128::from(held) / u128::from(of_all)) as u64;
            // A lap may be under way, in which a group has had its turn and another has not: a
            // cluster, or its part of one call, and as much that is held against it.
            let most = 2 * CLUSTER.max(want);
            assert!(
                given.abs_diff(share) <= most,
                "a group of {held} bytes has given {given}, and its part of {all} is {share}"
            );
        }
    }
}

/// What each of three groups has given, after a quarter of all has been asked for. None: there was no
/// room for them.
fn give(group: &Group, held: [u64; 3], want: u64) -> Option<[u64; 3]> {
    let top = group.create("shares", Limits::new()).ok()?;
    let caches = held.iter().enumerate().map(|(number, &bytes)| {
        let below = top.create(&format!("{number}"), Limits::new()).ok()?;
        let charge = below.charge_with(Bytes(bytes), OnFull::IfRoom).ok()?;
        let cache = Arc::new(Gives(Mutex::new(Some(charge))));
        let asked = Arc::clone(&cache) as Arc<dyn Reclaim>;
        let registration = below.register_reclaimer(asked, ReclaimPriority::NORMAL);
        Some((registration, cache))
    });
    let caches: Option<Vec<_>> = caches.collect();
    if let Some(caches) = &caches {
        let most: u64 = held.iter().sum::<u64>() / 4;
        let left = || [0, 1, 2].map(|number| caches[number].1.bytes());
        for _ in 0..most / want {
            let before: u64 = left().iter().sum();
            let report = top.reclaim(Bytes(want)).expect("no reclaim is under way");
            let gave = before - left().iter().sum::<u64>();
            // What went into open stocks shows as freed in one round alone.
            let unseen = top.memory().stocked_bound();
            assert!(
                gave >= want && report.freed <= gave && report.freed + unseen >= want,
                "{report:?}, and {gave} bytes were given, of which {unseen} may be credit"
            );
        }
        let left = left();
        let given = [0, 1, 2].map(|number| held[number] - left[number]);
        top.offline_tree();
        return Some(given);
    }
    top.offline_tree();
    None
}
