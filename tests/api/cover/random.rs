//! Random charges and objects in groups below each other, against a count by hand.

use std::thread;

use memcg::{Charge, Group, Limits};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Object, assert_verified, covering};
use crate::support::trees::LeftEmpty;

/// A tenant, a query below it that covers, and two operators below that.
struct Scene {
    runtime: LeftEmpty,
    tenant: Group,
    groups: [Group; 3],
}

/// The group of each charge and object, by its number in the scene.
#[derive(Default)]
struct Held {
    charges: Vec<(usize, Charge)>,
    objects: Vec<(usize, u64, Object)>,
}

impl Scene {
    fn new() -> Scene {
        let runtime = super::runtime();
        let tenant = runtime
            .root()
            .create("t", Limits::new().max(4 << 20))
            .unwrap();
        let query = covering(&tenant, "q");
        let [one, two] =
            ["one", "two"].map(|name| query.create(name, Limits::new().max(3 << 20)).unwrap());
        Scene {
            runtime,
            tenant,
            groups: [query, one, two],
        }
    }

    fn step(&self, held: &mut Held, random: &mut SmallRng) {
        let at = random.random_range(0..3);
        let bytes = random.random_range(1..300_000);
        let last = |count: usize, random: &mut SmallRng| random.random_range(0..count.max(1));
        match random.random_range(0..10) {
            0 | 1 => {
                let charge = self.groups[at].charge(bytes);
                held.charges.extend(charge.ok().map(|charge| (at, charge)));
            }
            2 => held
                .charges
                .push((at, self.groups[at].force_charge(bytes / 4))),
            3 | 4 => held.objects.push((
                at,
                bytes as u64 / 2,
                Object::of(&self.groups[at], bytes / 2),
            )),
            5 if !held.charges.is_empty() => {
                drop(held.charges.swap_remove(last(held.charges.len(), random)))
            }
            6 | 7 if !held.objects.is_empty() => {
                drop(held.objects.swap_remove(last(held.objects.len(), random)))
            }
            8 => {
                if let Some((of, charge)) = held.charges.last_mut()
                    && charge.transfer(&self.groups[at]).is_ok()
                {
                    *of = at;
                }
            }
            9 => {
                if let Some((_, charge)) = held.charges.first_mut() {
                    charge.shrink(bytes / 8);
                }
            }
            _ => {}
        }
    }

    #[track_caller]
    fn assert_counts(&self, held: &[Held]) {
        let of = |below: &dyn Fn(usize) -> bool| {
            let charges = held
                .iter()
                .flat_map(|held| &held.charges)
                .filter(|(at, _)| below(*at));
            let objects = held
                .iter()
                .flat_map(|held| &held.objects)
                .filter(|(at, ..)| below(*at));
            let reserved = charges.map(|(_, charge)| charge.bytes()).sum::<u64>();
            (reserved, objects.map(|(_, bytes, _)| bytes).sum::<u64>())
        };
        for (number, group) in self.groups.iter().enumerate() {
            let (reserved, allocated) = of(&|at| number == 0 || at == number);
            let ledger = group.ledger();
            assert_eq!(
                (ledger.reserved(), ledger.allocated()),
                (reserved, allocated),
                "{}",
                group.path()
            );
            assert_eq!(
                (ledger.unpaid(), ledger.max_error()),
                (allocated.saturating_sub(reserved), 0)
            );
            assert_eq!(group.live(), reserved.max(allocated), "{}", group.path());
        }
        assert_eq!(self.tenant.live(), self.groups[0].live());
        assert_verified(&self.runtime);
    }
}

#[test]
fn random_steps_add_up() {
    for seed in 0..4 {
        let scene = Scene::new();
        let mut held = Held::default();
        let mut random = SmallRng::seed_from_u64(seed);
        for step in 0..1_500 {
            scene.step(&mut held, &mut random);
            if step % 50 == 0 {
                scene.assert_counts(std::slice::from_ref(&held));
            }
        }
        drop(held);
        scene.assert_counts(&[]);
    }
}

#[test]
fn random_steps_of_threads_add_up() {
    for seed in 0..3 {
        let scene = Scene::new();
        let held: Vec<Held> = thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let scene = &scene;
                    scope.spawn(move || {
                        let mut held = Held::default();
                        let mut random = SmallRng::seed_from_u64(seed * 100 + thread);
                        (0..3_000).for_each(|_| scene.step(&mut held, &mut random));
                        held
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        memcg::allocator::catch_up();
        scene.assert_counts(&held);
        drop(held);
        scene.assert_counts(&[]);
    }
}
