//! By path and by id, among as many groups as there are, while others come and go.

use std::sync::Mutex;

use memcg::{Bytes, GroupId, Runtime};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Look, Looks, TENANTS, World, alone, create, groups};

const LOOK_UPS: usize = if cfg!(debug_assertions) {
    10_000
} else {
    500_000
};

/// Whatever one thread looks up. Returns how many of those that come and go it found by id.
fn look_up(world: &World, seed: u64, passed: &Mutex<Vec<GroupId>>, _one: Look<'_>) -> usize {
    let mut rng = SmallRng::seed_from_u64(seed);
    let runtime = &world.runtime;
    let below = world.stays[0].len();
    let mut found = 0;
    for _ in 0..LOOK_UPS {
        let tenant = rng.random_range(0..TENANTS);
        let query = rng.random_range(0..below);
        let stays = &world.stays[tenant][query];
        let path = format!("/tenant{tenant}/q{query}");
        match rng.random_range(0..6) {
            0 | 1 => assert_eq!(runtime.group(&path).as_ref(), Some(stays), "{path} by path"),
            2 | 3 => assert_eq!(
                runtime.find(stays.id()).as_ref(),
                Some(stays),
                "{path} by id"
            ),
            4 => {
                for nowhere in [
                    format!("/tenant{tenant}/q{below}"),
                    format!("/q{query}"),
                    format!("{path}/below"),
                ] {
                    assert_eq!(runtime.group(&nowhere), None, "{nowhere}");
                }
            }
            _ => {
                // A group that comes and goes is there or not; a found group is the one that was
                // asked for.
                let path = format!("/tenant{tenant}/passing{}/below", query % 2);
                if let Some(group) = runtime.group(&path) {
                    assert_eq!(group.path(), path);
                    assert_eq!(
                        group.ancestors().nth(1).as_ref(),
                        Some(&world.tenants[tenant])
                    );
                }
                let passed = passed.lock().expect("no thread panics with it");
                let Some(&id) = passed.get(query % 4) else {
                    continue;
                };
                drop(passed);
                if let Some(group) = runtime.find(id) {
                    assert!(
                        group.id() == id && group.path().contains("/passing"),
                        "{}",
                        group.path()
                    );
                    found += 1;
                }
            }
        }
    }
    found
}

#[test]
fn by_path_and_by_id_while_two_threads_create_and_destroy() {
    let _alone = alone();
    let world = World::of(Runtime::builder(), groups());
    let looks = Looks::of(2);
    let passed = Mutex::default();
    std::thread::scope(|scope| {
        let world = &world;
        let looks = &looks;
        let passed = &passed;
        let come: Vec<_> = (0..2)
            .map(|thread| scope.spawn(move || world.come_and_go(thread, looks, passed)))
            .collect();
        let found: Vec<_> = (0..2)
            .map(|seed| scope.spawn(move || look_up(world, seed, passed, looks.one())))
            .collect();
        let found: usize = found
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum();
        println!("{found} of those that come and go found by id");
        for come in come {
            assert!(
                come.join().expect("no panic") > 100,
                "nothing came and went meanwhile"
            );
        }
    });
    let ids = passed.into_inner().expect("no thread panics with it");
    assert!(!ids.is_empty());
    world.runtime.settle();
    assert!(
        ids.iter().all(|&id| world.runtime.find(id).is_none()),
        "they are gone"
    );
    world.end();
}

/// As many siblings: each is found by its name and by its id, also after others have taken the
/// objects of every third.
#[test]
fn among_siblings_whose_objects_were_used_again() {
    let _alone = alone();
    let groups = groups();
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("a configuration that holds");
    let root = runtime.root();
    let mut siblings: Vec<_> = (0..groups)
        .map(|number| create(&root, &format!("group-{number:010}")))
        .collect();
    let mut gone = Vec::new();
    for number in (0..groups).step_by(3) {
        let next = create(&root, &format!("next-{number}"));
        let old = std::mem::replace(&mut siblings[number], next);
        old.offline().expect("no children");
        gone.push((number, old.id()));
    }
    assert_eq!(
        (runtime.group_count(), runtime.dying_count()),
        (groups + 1, 0)
    );
    for group in &siblings {
        assert_eq!(
            runtime.group(&format!("/{}", group.name())).as_ref(),
            Some(group)
        );
        assert_eq!(runtime.find(group.id()).as_ref(), Some(group));
    }
    for (number, id) in gone {
        let path = format!("/group-{number:010}");
        assert_eq!(
            (runtime.group(&path), runtime.find(id)),
            (None, None),
            "{path}"
        );
    }
    assert_eq!(root.children().len(), groups);
    root.children()
        .iter()
        .for_each(|group| group.offline().expect("no children"));
    drop(siblings);
    assert_eq!(
        (
            runtime.group_count(),
            runtime.dying_count(),
            root.children().len()
        ),
        (1, 0, 0)
    );
}
