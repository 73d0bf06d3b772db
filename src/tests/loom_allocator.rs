//! Charges of an allocator: the word that pins its group, and the work that is left to slow paths.

use std::task::{Context, Poll};

use super::common::{end, group, waiting, waker};
use super::loom_lifecycle::{assert_released_once, bare, stocked};
use super::{beside, build, model, model_without_pair, race, with_group};
use crate::allocator::{Owner, catch_up};
use crate::counter::thresholds;
use crate::{Bytes, Group, Limits};

fn allocate(group: &Group, bytes: usize) -> Owner {
    let owner = Owner::charge_to(group, bytes);
    assert_ne!(owner, Owner::NONE);
    owner
}

#[allow(unsafe_code)]
fn free(owner: Owner, bytes: usize) {
    // SAFETY: the model frees what it has allocated, once.
    unsafe { owner.uncharge(bytes) };
}

/// E2, E3, E5. A charge is refused beside credit that an allocator spends and refills: the credit
/// comes back in time, and the allocator waits for nothing.
#[test]
fn loom_allocated_vs_drain() {
    model(|| {
        let (runtime, root) = build(stocked().budget(Bytes(4)).max(Bytes(4)));
        let [one, two] = ["one", "two"].map(|name| group(&root, name));
        // A batch of credit is in this thread's slot.
        free(allocate(&one, 1), 1);
        let charge = race(two, |two| two.charge(3), || free(allocate(&one, 1), 1)).0;
        // The allocator holds a unit at most, and the three fit beside it.
        assert!(charge.is_ok(), "the credit is stranded");
        drop(charge);
        root.memory().drain();
        assert_eq!(
            (root.usage(), root.forced(), runtime.counts().underflows),
            (0, 0, 0)
        );
    });
}

/// E5. A stock closes while an allocator refills it: no credit stays behind.
#[test]
fn loom_allocator_refills_vs_close() {
    model(|| {
        let (_runtime, group) = with_group(stocked(), "g");
        let memory = group.memory();
        let owner = race(
            group.clone(),
            |group| allocate(&group, 1),
            || memory.set_batch(0),
        )
        .0;
        assert_eq!(group.usage(), 1, "credit in a closed stock");
        free(owner, 1);
        assert_eq!(group.usage(), 0);
    });
}

/// E3. A group goes offline while an allocator charges it: whatever was charged keeps its owner,
/// and what comes afterwards is the parent's.
#[test]
fn loom_allocated_vs_offline() {
    model(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        let root = runtime.root();
        let root_of = runtime.root();
        let allocates = move |gone: Group| {
            let first = allocate(&gone, 1);
            let was_offline = gone.is_offline();
            let second = allocate(&gone, 1);
            // SAFETY: the bytes are charged.
            #[allow(unsafe_code)]
            let of_second = unsafe { second.group() }.unwrap();
            assert!(
                !was_offline || of_second == root_of,
                "an offline group is charged"
            );
            drop((of_second, root_of, gone));
            free(first, 1);
            free(second, 1);
        };
        race(gone.clone(), allocates, || end(gone));
        runtime.settle();
        catch_up();
        root.memory().drain();
        assert_eq!((root.usage(), runtime.counts().underflows), (0, 0));
        assert_released_once(&runtime);
    });
}

/// E15, E46. An allocator frees the last byte of a group that has one handle left: the group is
/// released once, by a slow path, and never by the allocator.
#[test]
fn loom_last_free_vs_handle_drop() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let owner = allocate(&gone, 1);
        gone.offline().unwrap();
        race(owner, |owner| free(owner, 1), || drop(gone));
        catch_up();
        assert_released_once(&runtime);
    });
}

/// E46. Two allocators free the last bytes of two groups while a third thread takes what they have
/// left.
#[test]
fn loom_left_vs_taken() {
    model_without_pair(|| {
        let (runtime, root) = build(bare());
        let owners = ["one", "two"].map(|name| {
            let group = group(&root, name);
            let owner = allocate(&group, 1);
            end(group);
            owner
        });
        let threads = owners.map(|owner| beside(owner, |owner| free(owner, 1)));
        catch_up();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        catch_up();
        assert_released_once(&runtime);
    });
}

/// E45. An allocator gives back in two steps what a waiter waits for, while another thread looks at
/// the first: the second is not missed.
#[test]
fn loom_freed_vs_look() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let full = root.create("full", Limits::new().max(2)).unwrap();
        let owner = allocate(&full, 2);
        let waker = waker();
        let mut waits = waiting(&full, 2, &waker);
        race(
            (),
            |()| catch_up(),
            || {
                free(owner, 1);
                free(owner, 1);
            },
        );
        catch_up();
        assert_eq!(full.usage(), 2, "the waiter is charged");
        let Poll::Ready(Ok(charge)) = waits.as_mut().poll(&mut Context::from_waker(&waker)) else {
            panic!("the waiter is not woken")
        };
        drop(charge);
    });
}

/// E45. An allocator crosses a soft limit twice, while another thread looks at the first crossing:
/// the mark of excess is right in the end.
#[test]
fn loom_crossed_twice_vs_look() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let group = root.create("g", Limits::new().soft(1)).unwrap();
        race(
            (),
            |()| catch_up(),
            || {
                let owner = allocate(&group, 2);
                free(owner, 2);
            },
        );
        catch_up();
        assert!(
            !thresholds::is_in_excess(group.first()),
            "nothing is charged"
        );
    });
}

/// E15. The runtime goes while an allocator frees the last of its objects.
#[test]
#[cfg_attr(miri, ignore = "Miri: it counts or leaves groups of the process")]
fn loom_runtime_drop_vs_last_free() {
    model_without_pair(|| {
        let (runtime, query) = with_group(bare(), "query");
        let owner = allocate(&query, 1);
        drop(query);
        race(owner, |owner| free(owner, 1), || drop(runtime));
        catch_up();
        let next = bare().build().unwrap();
        let query = group(&next.root(), "query");
        assert_eq!(
            next.pools().rows()[0].live,
            2,
            "no group of the first runtime is left"
        );
        drop(query);
    });
}

/// E8. Two threads register at once where an ended thread has left a block with credit: each has a
/// block of its own, and one of them the credit.
#[test]
fn loom_allocators_register() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(stocked(), "g");
        let allocates = |group: Group| {
            let owner = allocate(&group, 1);
            free(owner, 1);
        };
        beside(group.clone(), allocates).join().unwrap();
        let threads = [(); 2].map(|()| beside(group.clone(), allocates));
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        group.memory().drain();
        assert_eq!(group.usage(), 0);
    });
}

/// E12. A thread keeps where its slot lies. Where the object's next counter is audited, the thread
/// forgets it, and each charge is counted twice.
#[test]
fn loom_slot_cache_vs_next_counter() {
    model_without_pair(|| {
        let charge = |group: &Group| group.run(|| Owner::charge(1));
        let (runtime, old) = with_group(stocked(), "old");
        // The first misses, and the second hits: the thread keeps what it has found.
        let kept = [charge(&old), charge(&old)];
        kept.into_iter().for_each(|owner| free(owner, 1));
        end(old);
        drop(runtime);
        let (runtime, next) = with_group(stocked().audit(true), "next");
        let groups = [runtime.root(), next];
        let owners = groups
            .each_ref()
            .map(|group| [(); 3].map(|()| charge(group)));
        assert!(
            owners.iter().any(|owners| owners[0] == kept[0]),
            "the object is not used again"
        );
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{verdict}");
        owners
            .into_iter()
            .flatten()
            .for_each(|owner| free(owner, 1));
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{verdict}");
    });
}
