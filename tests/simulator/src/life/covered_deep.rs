//! Groups that cover, as in `covered`, but three of them one below the other, each with a max, and
//! a charge that waits for room.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use memcg::allocator::catch_up;
use memcg::{Bytes, Charge, ChargeError, ChargeFuture, Group, Limits};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::covered::{MOMENTS, MOST, Object};
use super::told::Rung;
use crate::configuration::limit;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::pick;

/// Within that time a charge that fits is served.
const SOON: Duration = Duration::from_secs(20);

/// Levels by number: those that cover, from the lowest to the highest; the one above them, which
/// does not; and one beside them, which does not either.
const COVER: usize = 3;
const ABOVE: usize = COVER;
const BESIDE: usize = COVER + 1;

/// What the levels themselves have: bytes that are reserved, and bytes that are allocated.
#[derive(Clone, Copy, Default)]
struct Sums {
    reserved: [u64; COVER + 2],
    allocated: [u64; COVER],
}

impl Sums {
    /// Of a level that covers, and of those below it.
    fn all_reserved(&self, level: usize) -> u64 {
        self.reserved[..=level].iter().sum()
    }

    fn all_allocated(&self, level: usize) -> u64 {
        self.allocated[..=level].iter().sum()
    }

    fn unpaid(&self, level: usize) -> u64 {
        let allocated = self.all_allocated(level);
        allocated.saturating_sub(self.all_reserved(level))
    }

    fn live(&self, level: usize) -> u64 {
        match level {
            BESIDE => self.reserved[BESIDE],
            ABOVE => self.live(COVER - 1) + self.reserved[ABOVE] + self.reserved[BESIDE],
            _ => self.all_reserved(level).max(self.all_allocated(level)),
        }
    }

    /// These come after `before`, by a charge at a level: none is above its max that has risen.
    fn fit(&self, before: &Sums, max: &[u64; COVER + 2]) -> bool {
        (0..max.len()).all(|level| self.live(level) <= max[level].max(before.live(level)))
    }
}

/// A charge that waits for its bytes.
struct Waits {
    future: Pin<Box<ChargeFuture>>,
    rung: Arc<Rung>,
    level: usize,
    bytes: u64,
}

impl Waits {
    fn poll(&mut self) -> Poll<Result<Charge, ChargeError>> {
        let waker = Waker::from(Arc::clone(&self.rung));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// Groups that cover, one below the other.
struct Covers {
    rng: Xoshiro256PlusPlus,
    levels: Vec<Group>,
    max: [u64; COVER + 2],
    sums: Sums,
    charges: Vec<(usize, Charge)>,
    objects: Vec<Object>,
    waits: Option<Waits>,
}

pub(super) fn live(group: &Group, steps: u8, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let before = group.live();
    let maxes = [u64::MAX, u64::MAX, 600, 1_000];
    let max: [u64; COVER + 2] = std::array::from_fn(|_| pick(&mut rng, &maxes));
    let limits = |level: usize| Limits::new().max(limit(max[level]));
    // The group is offline, or there are as many as may be.
    let Ok(above) = group.create("above", limits(ABOVE)) else {
        return Ok(());
    };
    let mut covers = vec![above.create("covers", limits(COVER - 1).cover_allocations())];
    for level in (0..COVER - 1).rev() {
        let Some(Ok(higher)) = covers.last() else {
            break;
        };
        covers.push(higher.create("below", limits(level)));
    }
    let beside = above.create("beside", limits(BESIDE));
    let lived = match covers.into_iter().rev().collect::<Result<Vec<_>, _>>() {
        Ok(mut levels) if beside.is_ok() => {
            levels.push(above.clone());
            levels.extend(beside);
            let covers = Covers {
                rng,
                levels,
                max,
                sums: Sums::default(),
                charges: Vec::new(),
                objects: Vec::new(),
                waits: None,
            };
            covers.live(steps)
        }
        _ => Ok(()),
    };
    above.offline_tree();
    lived?;
    ensure_eq!(group.live(), before, "live after groups that cover");
    Ok(())
}

impl Covers {
    fn live(mut self, steps: u8) -> Holds {
        for _ in 0..steps {
            self.step()?;
            // An allocator leaves to others what its calls have to do beside.
            catch_up();
            self.agree_in_the_end()?;
        }
        self.waits = None;
        // What tasks have left is left behind, and those that are live own the rest.
        self.levels[0].offline_tree();
        let left = self.levels[1].ledger().left_behind();
        ensure_eq!(left, self.sums.allocated[0], "left behind");
        let found = self.levels[1].inspect().allocated_local();
        ensure_eq!(found, self.sums.allocated[1], "allocated itself");
        std::mem::take(&mut self.objects)
            .into_iter()
            .for_each(Object::free);
        self.charges.clear();
        self.sums = Sums::default();
        self.agree()
    }

    fn step(&mut self) -> Holds {
        let level = self.rng.random_range(0..COVER);
        let bytes = self.rng.random_range(1..=MOST);
        match self.rng.random_range(0..7) {
            // All that is left in usage is live.
            6 => {
                let level = self.rng.random_range(0..self.levels.len());
                self.levels[level].memory().drain();
                if self.waits.is_none() {
                    let usage = self.levels[level].usage();
                    let known = self.sums.live(level);
                    ensure_eq!(usage, known, "used at level {level}, some of which cover");
                }
            }
            5 if self.waits.is_none() && self.rng.random() => {
                let future = self.levels[level].charge_async(Bytes(bytes)).undelayed();
                self.waits = Some(Waits {
                    future: Box::pin(future),
                    rung: Arc::default(),
                    level,
                    bytes,
                });
                self.poll()?;
            }
            5 => self.waits = None,
            4 if !self.charges.is_empty() => self.transfer()?,
            0 => {
                let level = if self.rng.random_bool(0.2) {
                    BESIDE
                } else {
                    level
                };
                let mut then = self.sums;
                then.reserved[level] += bytes;
                let fits = then.fit(&self.sums, &self.max);
                match self.levels[level].try_charge(Bytes(bytes)) {
                    Ok(charge) => {
                        ensure!(fits, "{bytes} more are charged, of {:?}", self.max);
                        self.sums = then;
                        self.charges.push((level, charge));
                    }
                    Err(refused) => {
                        ensure!(!fits || self.waits.is_some(), "{refused}, and it fits");
                    }
                }
            }
            1 => {
                let object = Object::allocate(&self.levels, level, bytes);
                self.sums.allocated[level] += bytes;
                self.objects.push(object);
            }
            2 if !self.charges.is_empty() => {
                let at = self.rng.random_range(0..self.charges.len());
                let (level, charge) = &mut self.charges[at];
                self.sums.reserved[*level] -= charge.shrink(Bytes(bytes));
            }
            _ if !self.objects.is_empty() => {
                let at = self.rng.random_range(0..self.objects.len());
                let object = self.objects.swap_remove(at);
                self.sums.allocated[object.level] -= object.bytes;
                object.free();
            }
            _ => {}
        }
        Ok(())
    }

    fn transfer(&mut self) -> Holds {
        let at = self.rng.random_range(0..self.charges.len());
        let to = self.rng.random_range(0..self.levels.len());
        let (from, charge) = &mut self.charges[at];
        let bytes = charge.bytes();
        let mut then = self.sums;
        then.reserved[*from] -= bytes;
        then.reserved[to] += bytes;
        let fits = to == *from || then.fit(&self.sums, &self.max);
        let moved = charge.transfer(&self.levels[to]);
        ensure!(
            moved.is_ok() == fits || moved.is_err() && self.waits.is_some(),
            "{bytes} from {from} to {to}: {moved:?}"
        );
        if moved.is_ok() {
            (*from, self.sums) = (to, then);
        }
        Ok(())
    }

    // === A charge that waits beside what is allocated ===

    /// It is served as soon as it fits, and not before.
    fn serve(&mut self) -> Holds {
        let Some(waits) = &self.waits else {
            return Ok(());
        };
        let mut then = self.sums;
        then.reserved[waits.level] += waits.bytes;
        // Another thread may have the line to serve.
        let end = Instant::now() + SOON;
        let fits = then.fit(&self.sums, &self.max);
        while fits && !waits.rung.is_rung() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        let is_rung = waits.rung.is_rung();
        ensure!(
            is_rung || !fits,
            "{} bytes fit at level {}, and their charge waits",
            waits.bytes,
            waits.level
        );
        if is_rung { self.poll() } else { Ok(()) }
    }

    fn poll(&mut self) -> Holds {
        let Some(mut waits) = self.waits.take() else {
            return Ok(());
        };
        let mut then = self.sums;
        then.reserved[waits.level] += waits.bytes;
        let fits = then.fit(&self.sums, &self.max);
        match waits.poll() {
            Poll::Ready(Ok(charge)) => {
                ensure!(fits, "{} bytes are charged, of {:?}", waits.bytes, self.max);
                self.sums = then;
                self.charges.push((waits.level, charge));
            }
            Poll::Ready(Err(error)) => return Err(format!("{error}, and it may wait")),
            Poll::Pending => {
                ensure!(!fits, "{} bytes wait and fit", waits.bytes);
                self.waits = Some(waits);
            }
        }
        Ok(())
    }

    /// Another thread may serve what waits at any time, and wakes it when it is charged.
    fn agree_in_the_end(&mut self) -> Holds {
        for _ in 0..MOMENTS {
            self.serve()?;
            let agreed = self.agree();
            if agreed.is_ok() || self.waits.is_none() {
                return agreed;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.agree()
    }

    fn agree(&self) -> Holds {
        for (level, group) in self.levels.iter().enumerate() {
            let known = self.sums.live(level);
            ensure_eq!(
                group.live(),
                known,
                "live of level {level}, some of which cover"
            );
            let ledger = group.ledger();
            let found = (ledger.reserved(), ledger.allocated(), ledger.unpaid());
            let sums = &self.sums;
            let known = match level {
                BESIDE => (sums.reserved[BESIDE], 0, 0),
                ABOVE => (
                    sums.reserved.iter().sum(),
                    sums.all_allocated(COVER - 1),
                    sums.unpaid(COVER - 1),
                ),
                _ => (
                    sums.all_reserved(level),
                    sums.all_allocated(level),
                    sums.unpaid(level),
                ),
            };
            ensure_eq!(
                found,
                known,
                "reserved, allocated and unpaid of level {level}"
            );
        }
        Ok(())
    }
}
