//! The work of one thread: charges in every form, objects, and what becomes of both.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memcg::CentralStock;
use memcg::kmem::{NodeId, Placement, PrechargeBound};
use memcg::{
    Bytes, Charge, ChargeError, ChargeFuture, CounterKey, Group, InGroup, OnFull, StatKey,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::holdings::{Holding, Memory, NODES, Raw, Word};
use crate::known_group::KnownGroup;
use crate::poll;
use crate::support::bytes;
use crate::tally::{Tally, What};
use crate::world::{TENANT_MAX, World};

/// Futures that a thread keeps over other calls.
const KEPT_MAX: usize = 3;

/// Polls a future until it is ready, for so long at most. Returns whether its first poll was
/// pending, too.
fn poll_for<T>(future: impl Future<Output = T>, patience: Duration) -> (bool, Option<T>) {
    let mut future = pin!(future);
    if let Poll::Ready(output) = poll::poll_for(&mut future, Duration::ZERO) {
        return (false, Some(output));
    }
    match poll::poll_for(&mut future, patience) {
        Poll::Ready(output) => (true, Some(output)),
        Poll::Pending => (true, None),
    }
}

pub(crate) struct Worker<'a> {
    world: &'a World,
    tally: &'a Tally,
    rng: SmallRng,
    kept: Vec<(Arc<KnownGroup>, ChargeFuture)>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(world: &'a World, seed: u64) -> Worker<'a> {
        Worker {
            world,
            tally: &world.shared.tally,
            rng: SmallRng::seed_from_u64(seed),
            kept: Vec::new(),
        }
    }

    /// The thread comes to rest: it holds nothing.
    pub(crate) fn rest(&mut self) {
        self.tally.add(What::Dropped, self.kept.len() as u64);
        self.kept.clear();
    }

    fn bytes(&mut self) -> u64 {
        match self.rng.random_range(0..100) {
            0 => 0,
            // Fits only where the max has been raised.
            1 => TENANT_MAX + 1,
            2..5 => self.rng.random_range(0..TENANT_MAX),
            5..20 => 64 << 10,
            _ => self.rng.random_range(1..32 << 10),
        }
    }

    /// Most are short.
    fn time(&mut self) -> Duration {
        let most = [0, 100, 500, 2_000, 10_000][self.rng.random_range(0..5)];
        Duration::from_micros(self.rng.random_range(0..=most))
    }

    /// Tells how a charge has ended.
    fn ended<T>(&self, known: &KnownGroup, ended: Result<T, ChargeError>) -> Option<T> {
        let what = match &ended {
            Ok(_) => What::Admitted,
            Err(error) if error.is_over_limit() || error.is_would_block() => What::Refusals,
            Err(error) if error.is_timeout() => What::TimedOut,
            Err(error) if error.is_cancelled() => What::Cancelled,
            Err(error) if error.is_offline() => What::Offline,
            Err(other) => panic!("{:?}: {other}", known.group()),
        };
        self.tally.one(what);
        ended.ok()
    }

    /// Keeps a charge in one form or another.
    fn keep(&mut self, known: &Arc<KnownGroup>, charge: Charge) {
        let holding = match self.rng.random_range(0..8) {
            0 => Holding::Word(Word::of(charge)),
            _ => Holding::Charge(charge),
        };
        self.put(known, holding);
    }

    fn put(&mut self, known: &Arc<KnownGroup>, holding: Holding) {
        known.put(holding, self.rng.random_range(0..1 << 16));
    }

    pub(crate) fn step(&mut self) {
        self.tally.one(What::Operations);
        let known = self.world.any(&mut self.rng);
        let Some(group) = known.group() else { return };
        match self.rng.random_range(0..1_000) {
            0..250 => self.burst(&group),
            250..350 => self.charge(&known, &group),
            350..400 => self.wait_async(&known, &group),
            400..420 => self.keep_future(&known, &group),
            420..470 => self.change(&known),
            470..620 => self.allocate(&known, &group),
            620..650 => self.resize(&known, &group),
            650..680 => self.account(&known, &group),
            680..690 => self.move_account(&known),
            690..720 => self.add_rows(&known, &group),
            720..740 => self.charge_set(&known, &group),
            740..760 => self.charge_raw(&known, &group),
            760..780 => self.use_central_stock(&known, &group),
            780..800 if !known.strict => self.checkpoint(&group),
            800..805 => self.scope(),
            805..815 => self.world.replace_job(&mut self.rng),
            815..830 => self.world.move_limits(&mut self.rng),
            830..838 => self.short_thread(&known, &group),
            838..842 => drop(self.world.runtime.release_thread_credit()),
            842..846 => drop(
                self.world.tenants()[0]
                    .group()
                    .map(|group| group.reclaim(64 << 10)),
            ),
            _ => self.free(&known),
        }
    }

    /// Gives something back, in some other group.
    fn free(&mut self, known: &Arc<KnownGroup>) {
        let from = if self.rng.random_bool(0.3) {
            self.world.any_gone(&mut self.rng)
        } else {
            None
        };
        let from = from.unwrap_or_else(|| self.world.any(&mut self.rng));
        let Some(holding) = from.take(self.rng.random_range(0..1 << 16)) else {
            return;
        };
        if holding.is_object() && !Arc::ptr_eq(&from, known) {
            self.tally.one(What::Elsewhere);
        }
        match known.group() {
            Some(group) if !known.strict && self.rng.random_bool(0.5) => {
                group.run(|| drop(holding))
            }
            _ => drop(holding),
        }
    }

    /// Charges and returns, as often as credit lasts.
    fn burst(&mut self, group: &Group) {
        let times = self.rng.random_range(1..200);
        self.tally.add(What::Operations, times);
        for _ in 0..times {
            match group.charge_with(self.rng.random_range(1..3_000), OnFull::IfRoom) {
                Ok(charge) => drop(charge),
                Err(_) => return self.tally.one(What::Refusals),
            }
        }
    }

    fn charge(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        let bytes = Bytes(self.bytes());
        let began = Instant::now();
        let ended = match self.rng.random_range(0..16) {
            0..4 => {
                let ended = group.charge_with(bytes, OnFull::Wait(self.time()));
                if began.elapsed() > Duration::from_micros(50) {
                    self.tally.one(What::Waits);
                }
                ended
            }
            4 => group.charge_with(bytes, OnFull::Reclaim),
            5 => group.charge_with(bytes, OnFull::Start),
            6 => group.charge_with(bytes, OnFull::Now),
            7 => group.charge_with(bytes, OnFull::IfRoom),
            8 | 9 if !known.strict => {
                self.tally.one(What::Forced);
                if self.rng.random_bool(0.3) {
                    Ok(group.force_charge(bytes))
                } else {
                    group
                        .charge(bytes)
                        .or_else(|_| Ok(group.force_charge(bytes)))
                }
            }
            10..13 => group.try_charge(bytes),
            _ => group.charge(bytes),
        };
        if let Some(charge) = self.ended(known, ended) {
            assert_eq!((charge.bytes(), charge.group()), (bytes.0, group.clone()));
            self.keep(known, charge);
        } else {
            // One that does not fit makes the thread more modest.
            for _ in 0..3 {
                self.free(known);
            }
        }
    }

    fn wait_async(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        let bytes = Bytes(self.bytes());
        let patience = self.time();
        let mut future = group.charge_async(bytes);
        if self.rng.random_bool(0.3) {
            future = future.undelayed();
        }
        if self.rng.random_bool(0.5) {
            future = future.timeout(patience / 2);
        }
        let (waited, ended) = if !known.strict && self.rng.random_bool(0.3) {
            poll_for(future.in_group(group), patience)
        } else {
            poll_for(future, patience)
        };
        self.tally.add(What::Waits, u64::from(waited));
        match ended {
            None => self.tally.one(What::Dropped),
            Some(ended) => {
                if let Some(charge) = self.ended(known, ended) {
                    self.keep(known, charge);
                }
            }
        }
    }

    /// Futures stay in line while the thread does other holdings.
    fn keep_future(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        if self.kept.len() < KEPT_MAX {
            let bytes = Bytes(self.bytes());
            self.kept
                .push((Arc::clone(known), group.charge_async(bytes)));
        }
        let at = self.rng.random_range(0..self.kept.len());
        let (known, mut future) = self.kept.swap_remove(at);
        match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending if self.rng.random_bool(0.8) => {
                self.tally.one(What::Kept);
                self.kept.push((known, future));
            }
            Poll::Pending => self.tally.one(What::Dropped),
            Poll::Ready(ended) => {
                if let Some(charge) = self.ended(&known, ended) {
                    self.keep(&known, charge);
                }
            }
        }
    }

    /// Changes a charge that is there.
    fn change(&mut self, known: &Arc<KnownGroup>) {
        let Some(holding) = known.take(self.rng.random_range(0..1 << 16)) else {
            return;
        };
        let Holding::Charge(mut charge) = holding else {
            return self.put(known, holding);
        };
        let held = charge.bytes();
        let bytes = self.bytes() / 4;
        match self.rng.random_range(0..8) {
            0 => drop(charge.grow(Bytes(bytes))),
            1 => drop(charge.shrink(Bytes(bytes))),
            2 => drop(charge.resize(Bytes(bytes))),
            3 => {
                let part = charge.split(Bytes(held / 3)).expect("a part");
                self.keep(known, part);
            }
            4 => {
                let all = charge.take();
                charge.merge(all).expect("of the same group");
            }
            5 => {
                let patience = self.time();
                drop(poll_for(charge.grow_async(Bytes(bytes)), patience));
            }
            6 if !known.strict => charge.force_grow(Bytes(bytes)),
            _ => {
                let to = self.world.any(&mut self.rng);
                if let Some(group) = to.group() {
                    let moved = charge.transfer(&group);
                    self.tally.one(What::Transfers);
                    if self.ended(&to, moved).is_some() {
                        assert_eq!((charge.bytes(), charge.group()), (held, group));
                        return self.keep(&to, charge);
                    }
                }
            }
        }
        self.keep(known, charge);
    }

    // === Objects ===

    fn size(&mut self) -> usize {
        let most = [16, 200, 5_000, 50_000][self.rng.random_range(0..4)];
        self.rng.random_range(1..=most)
    }

    fn allocate(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        if known.strict {
            return self.charge(known, group);
        }
        for _ in 0..self.rng.random_range(1..8) {
            let size = self.size();
            let align = 1 << self.rng.random_range(0..7);
            let is_buffer = self.rng.random();
            let zeroed = self.rng.random();
            let make = || {
                if is_buffer {
                    Holding::Buffer(bytes(1, size))
                } else {
                    Holding::Memory(Memory::new(size, align, zeroed))
                }
            };
            let holding = group.run(make);
            self.tally.add(What::Operations, 1);
            self.tally.one(What::Objects);
            // Offline by now, the group above may have it.
            if group.is_offline() && !known.is_even() {
                drop(holding);
            } else {
                self.put(known, holding);
            }
        }
    }

    /// An object keeps its owner, whatever group resizes it.
    fn resize(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        let from = self.world.any(&mut self.rng);
        let (Some(mut holding), size) = (from.take(self.rng.random_range(0..1 << 16)), self.size())
        else {
            return;
        };
        let _entered = (!known.strict).then(|| group.enter());
        match &mut holding {
            Holding::Memory(memory) => memory.resize(size),
            Holding::Buffer(buffer) => {
                buffer.truncate(size);
                buffer.shrink_to(size / 2);
                buffer.reserve_exact(size);
            }
            _ => {}
        }
        drop(_entered);
        self.put(&from, holding);
    }

    fn checkpoint(&mut self, group: &Group) {
        let ended = if self.rng.random() {
            group.run(Group::checkpoint)
        } else {
            let patience = self.time();
            let checkpoint = async { Group::checkpoint_async().await };
            poll_for(checkpoint.in_group(group), patience)
                .1
                .unwrap_or(Ok(()))
        };
        match ended {
            Ok(()) => {}
            Err(error) if !error.is_timeout() && !error.is_offline() => {
                self.tally.one(What::Checkpoints);
            }
            Err(other) => panic!("a checkpoint in {}: {other}", group.path()),
        }
    }

    // === Nodes, statistics, further counters ===

    fn placement(&mut self, bytes: u64) -> Placement {
        let near = self.rng.random_range(0..=bytes);
        let mut placement = Placement::on(NODES[0], Bytes(near));
        placement.add(Some(NODES[1]), Bytes((bytes - near) / 2));
        placement.add(None, Bytes(bytes - near - (bytes - near) / 2));
        placement
    }

    fn account(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        let bytes = self.bytes() / 4;
        let less = self.rng.random_range(0..=bytes);
        let ended = group.precharge(PrechargeBound::from(Bytes(bytes)));
        if let Some(precharge) = self.ended(known, ended) {
            let placement = self.placement(less);
            self.put(known, Holding::Kmem(precharge.account(&placement)));
            self.tally.one(What::Kmem);
        }
    }

    fn node(&mut self) -> Option<NodeId> {
        [None, Some(NODES[0]), Some(NODES[1])][self.rng.random_range(0..3)]
    }

    fn move_account(&mut self, known: &Arc<KnownGroup>) {
        let Some(holding) = known.take(self.rng.random_range(0..1 << 16)) else {
            return;
        };
        let Holding::Kmem(mut kmem) = holding else {
            return self.put(known, holding);
        };
        let from = self.node();
        let to = self.node();
        let bytes = Bytes(self.bytes());
        let moved = match self.rng.random_range(0..5) {
            0 => kmem.migrated(from, to, bytes),
            1 => kmem.migrate(from, to, bytes).unwrap_or(0),
            2 => {
                let placement = self.placement(kmem.bytes());
                kmem.relocate(&placement);
                0
            }
            3 => kmem.shrink(&Placement::on(NODES[1], bytes)),
            _ => {
                let other = self.world.any(&mut self.rng);
                if let Some(group) = other.group() {
                    let moved = kmem.transfer(&group);
                    if self.ended(&other, moved).is_some() {
                        return self.put(&other, Holding::Kmem(kmem));
                    }
                }
                0
            }
        };
        self.tally.add(What::Moved, moved);
        self.put(known, Holding::Kmem(kmem));
    }

    fn add_rows(&mut self, known: &KnownGroup, group: &Group) {
        for _ in 0..self.rng.random_range(1..32) {
            let rows = self.rng.random_range(-3..1_000);
            group.stat_add(self.world.rows, rows);
            known.add_rows(rows);
            self.tally.one(What::Rows);
        }
        group.stat_add(StatKey::WORKINGSET_REFAULT, 1);
    }

    fn charge_set(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        let amounts = [
            (CounterKey::MEMORY, Bytes(self.bytes() / 8)),
            (self.world.files, Bytes(self.rng.random_range(0..4))),
        ];
        let ended = group.charge_set(&amounts);
        self.tally.one(What::Sets);
        if let Some([memory, file]) = self.ended(known, ended) {
            self.put(known, Holding::File(memory, file));
        }
    }

    fn charge_raw(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        let bytes = Bytes(self.bytes() / 8);
        let raw = group.raw();
        let ended = match self.rng.random_range(0..4) {
            0 => raw.charge(bytes),
            1 => raw.try_charge(bytes),
            2 => raw.charge_with(bytes, OnFull::Now),
            _ => raw.charge_with(bytes, OnFull::Wait(Duration::from_micros(100))),
        };
        self.tally.one(What::Raw);
        if self.ended(known, ended).is_some() {
            self.put(known, Holding::Raw(Raw(group.clone(), bytes.0)));
        }
    }

    fn use_central_stock(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        let stock = CentralStock::of(group);
        for _ in 0..self.rng.random_range(1..40) {
            let bytes = Bytes(self.rng.random_range(1..4_000));
            let Some(charge) = stock.charge_if_room(bytes) else {
                self.tally.one(What::Refusals);
                break;
            };
            self.tally.one(What::Central);
            if self.rng.random_bool(0.05) {
                self.keep(known, charge);
            } else {
                stock.give_back(charge);
            }
        }
        if self.rng.random_bool(0.2) {
            stock.release_credit();
        }
    }

    // === Groups and threads that come and go ===

    fn scope(&mut self) {
        let Some(known) = self.world.scope(&mut self.rng) else {
            return;
        };
        if let Some(group) = known.group() {
            for _ in 0..self.rng.random_range(1..20) {
                match self.rng.random_range(0..4) {
                    0 => self.allocate(&known, &group),
                    1 => self.account(&known, &group),
                    2 => self.add_rows(&known, &group),
                    _ => self.charge(&known, &group),
                }
            }
        }
        self.world.end_scope(&known);
        if self.rng.random_bool(0.5) {
            known.free(u64::MAX);
        } else {
            self.tally.one(What::Outlived);
        }
    }

    /// A thread that ends has left credit behind.
    fn short_thread(&mut self, known: &Arc<KnownGroup>, group: &Group) {
        let world = self.world;
        let seed = self.rng.random();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut worker = Worker::new(world, seed);
                worker.charge(known, group);
                worker.allocate(known, group);
                worker.burst(group);
            });
        });
        self.tally.one(What::Threads);
    }
}
