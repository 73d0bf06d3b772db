//! Things that are kept, and the calls on them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use memcg::errors::CreateError;
use memcg::figures::{Events, PeakWindow};
use memcg::kmem::{Kmem, KmemMember, KmemMover, NodeId, PackedKmem, Placement, Precharge};
use memcg::{
    Bytes, Charge, ChargeError, ChargeFuture, Freshness, Group, Limits, Registration, Runtime,
    StatKey,
};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::Heap;
use super::scene::{Cache, Hears, Scene};

/// Number of waits and calls that came to something.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Reclaimers that were asked and gave.
    pub(crate) gave: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) told: AtomicU64,
    pub(crate) admitted: AtomicU64,
    /// Futures whose group went, or was cancelled.
    pub(crate) given_up: AtomicU64,
}

impl Tally {
    pub(crate) fn all(&self) -> [u64; 5] {
        [
            &self.gave,
            &self.cancelled,
            &self.told,
            &self.admitted,
            &self.given_up,
        ]
        .map(|times| times.load(Ordering::Relaxed))
    }
}

/// Counts what is foreign.
#[derive(Clone, Default)]
pub(crate) struct Token(Arc<()>);

impl Token {
    pub(crate) fn others(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// A waker of no thread.
struct Wakes(#[expect(dead_code, reason = "it is counted")] Token);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {}
}

pub(crate) enum Thing {
    Charge(Charge),
    Group(Group),
    Runtime(Arc<Runtime>),
    Window(PeakWindow),
    Waits(ChargeFuture),
    Hears(Hears),
    Events(Events),
    Listener(#[expect(dead_code, reason = "it is kept")] Registration),
    Hook(#[expect(dead_code, reason = "it is kept")] Registration),
    Reclaimer(#[expect(dead_code, reason = "both are kept")] (Registration, Arc<Cache>)),
    Member(KmemMember),
    Mover(KmemMover),
    Precharge(Precharge),
    Kmem(Kmem),
    Packed(PackedKmem),
    Refused(Box<ChargeError>),
}

impl Thing {
    /// Does something with it. What is left of it.
    pub(crate) fn used(self, scene: &Scene, heap: &Heap, rng: &mut SmallRng) -> Option<Thing> {
        Some(match self {
            Thing::Charge(charge) => Thing::Charge(turn(charge, heap, rng)?),
            Thing::Group(group) => {
                use_group(&group, scene, heap, rng);
                Thing::Group(group)
            }
            Thing::Runtime(runtime) => {
                assert!(runtime.root().path() == "/" && runtime.snapshot().rows()[0].path == "/");
                runtime.settle();
                Thing::Runtime(runtime)
            }
            Thing::Window(window) => {
                window.reset();
                std::hint::black_box(window.peak());
                Thing::Window(window)
            }
            Thing::Waits(mut future) => {
                let waker = Waker::from(Arc::new(Wakes(scene.token())));
                match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => Thing::Waits(future),
                    Poll::Ready(Ok(charge)) => {
                        scene.tally.admitted.fetch_add(1, Ordering::Relaxed);
                        Thing::Charge(charge)
                    }
                    Poll::Ready(Err(refused)) => {
                        scene.tally.given_up.fetch_add(1, Ordering::Relaxed);
                        Thing::Refused(Box::new(refused))
                    }
                }
            }
            Thing::Hears(mut future) => {
                let waker = Waker::from(Arc::new(Wakes(scene.token())));
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => Thing::Hears(future),
                    Poll::Ready(_) => return None,
                }
            }
            Thing::Events(events) => {
                let before: u64 = events.iter().map(|(_, times)| times).sum();
                let after: u64 = events.iter().map(|(_, times)| times).sum();
                assert!(
                    before <= after,
                    "events are not taken back: {before}, {after}"
                );
                Thing::Events(events)
            }
            Thing::Member(mut member) => {
                let group = scene.runtime().root();
                // Of another runtime, or offline by now.
                let _ = member.mover().move_to(&group);
                heap.put(Thing::Charge(member.group().force_charge(3)));
                Thing::Member(member)
            }
            Thing::Mover(mover) => {
                let _ = mover.move_to(&scene.runtime().root());
                Thing::Mover(mover)
            }
            Thing::Precharge(precharge) => {
                assert!(precharge.group().path().starts_with('/'));
                Thing::Kmem(precharge.account(&Placement::new()))
            }
            Thing::Kmem(mut kmem) => {
                kmem.shrink(&Placement::new());
                let _ = kmem.transfer(&scene.runtime().root());
                Thing::Kmem(kmem)
            }
            Thing::Packed(packed) => {
                let mut kmem = packed.unpack();
                kmem.follow(None, Some(NodeId::new(0)));
                kmem.pack()
                    .map_or_else(|kmem| Thing::Kmem(*kmem), Thing::Packed)
            }
            Thing::Refused(refused) => {
                assert!(!refused.to_string().contains('\n'));
                Thing::Refused(refused)
            }
            kept @ (Thing::Listener(_) | Thing::Hook(_) | Thing::Reclaimer(_)) => kept,
        })
    }
}

/// A charge becomes another.
fn turn(mut charge: Charge, heap: &Heap, rng: &mut SmallRng) -> Option<Charge> {
    let bytes = rng.random_range(0..200);
    let had = charge.bytes();
    let group = charge.group();
    assert!(group.path().starts_with('/'));
    match rng.random_range(0..9) {
        0 => charge.force_grow(Bytes(bytes)),
        1 => drop(charge.grow(Bytes(bytes))),
        2 => assert_eq!(charge.shrink(Bytes(bytes)), bytes.min(had)),
        3 => heap.put(Thing::Charge(
            charge
                .split(Bytes(bytes.min(had)))
                .expect("as much is there"),
        )),
        4 => {
            let taken = charge.take();
            assert_eq!((taken.bytes(), charge.bytes()), (had, 0));
            heap.put(Thing::Charge(taken));
        }
        5 => heap.put(Thing::Group(group)),
        6 => charge.stat_add(StatKey::ANON, 1),
        _ => match heap.take(rng) {
            Some(Thing::Charge(other)) => {
                let both = had + other.bytes();
                match charge.merge(other) {
                    Ok(()) => assert_eq!(charge.bytes(), both),
                    Err(refused) => heap.put(Thing::Charge(refused.into_charge())),
                }
            }
            Some(Thing::Group(to)) => {
                // Refused, offline, or another runtime's: then it is where it was.
                let moved = charge.transfer(&to);
                assert_eq!(
                    (charge.bytes(), charge.group() == to),
                    (had, moved.is_ok() || group == to)
                );
                heap.put(Thing::Group(to));
            }
            Some(other) => heap.put(other),
            None => {}
        },
    }
    Some(charge)
}

fn use_group(group: &Group, scene: &Scene, heap: &Heap, rng: &mut SmallRng) {
    let bytes = rng.random_range(0..100);
    match rng.random_range(0..12) {
        0 => heap.put(Thing::Group(group.clone())),
        1 | 2 => match group.charge(bytes) {
            Ok(charge) => heap.put(Thing::Charge(charge)),
            Err(error) if error.is_offline() => assert!(group.is_offline()),
            Err(refused) => heap.put(Thing::Refused(Box::new(refused))),
        },
        3 => heap.put(Thing::Charge(group.force_charge(bytes))),
        4 => match group.create("below", Limits::new()) {
            Ok(below) => heap.put(Thing::Group(below)),
            Err(CreateError::Offline { parent, .. }) => {
                assert!(parent == *group && group.is_offline())
            }
            Err(_) => {}
        },
        5 => {
            if group.parent().is_some() && group.offline().is_ok() {
                assert!(group.is_offline() && group.children().is_empty());
            }
        }
        6 => {
            if group.parent().is_some() {
                group.offline_tree();
                assert!(group.is_offline());
            }
        }
        7 => {
            group.stat_add(StatKey::FILE, 1);
            assert!(group.read(Freshness::Exact).get(StatKey::FILE) > 0);
        }
        8 => {
            let below: Vec<Group> = group.inspect().descendants().collect();
            assert!(
                below
                    .iter()
                    .all(|below| below.ancestors().any(|above| above == *group))
            );
        }
        9 => {
            let id = scene.any_id(rng);
            if let Some((id, found)) = id.and_then(|id| Some((id, scene.runtime().find(id)?))) {
                assert_eq!(found.id(), id);
                heap.put(Thing::Group(found));
            }
        }
        10 => {
            // Its own runtime's root, or none that this one knows.
            let found = scene.runtime().find(group.id());
            assert!(found.is_none_or(|found| found == *group));
        }
        _ => drop(std::hint::black_box((
            group.live(),
            group.inspect().live_local(),
            group.peak(),
            group.snapshot(usize::MAX),
        ))),
    }
}
