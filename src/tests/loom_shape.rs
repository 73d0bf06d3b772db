//! Groups that come and go at the same time, each under the lock of its shard alone.

use super::common::{end, group};
use super::loom_lifecycle::{assert_released_once, bare, stocked};
use super::{beside, model, model_without_pair, race, with_group};
use crate::counter::children;
use crate::{Bytes, Group, Limits, Runtime};

/// E35. A stock opens while its group goes offline: one of the two closes it, and its credit comes
/// back.
#[test]
fn loom_offline_vs_opening() {
    model_without_pair(|| {
        // Opens by margin, with the second charge that walks.
        let (runtime, gone) =
            with_group(Runtime::builder().batch(Bytes(2)).budget(Bytes(64)), "gone");
        drop(gone.charge(1).unwrap());
        let charger = beside(gone.clone(), |gone| drop(gone.charge(1)));
        gone.offline().unwrap();
        gone.charge(1).expect_err("the group is offline");
        charger.join().unwrap();
        drop(gone);
        runtime.settle();
        assert_released_once(&runtime);
        assert_eq!(runtime.root().memory().stocked_bound(), 0);
    });
}

/// E36. A barrier closes the stocks of dying groups while the last handle goes: once the closer has
/// uncounted a stock, it does not touch it again.
#[test]
fn loom_settle_vs_release() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        drop(gone.charge(1).unwrap());
        // A second thread has charged here: the stock waits for a barrier.
        beside(gone.clone(), |gone| drop(gone.charge(1).unwrap()))
            .join()
            .unwrap();
        gone.offline().unwrap();
        race(gone, drop, || runtime.settle());
        assert_released_once(&runtime);
        assert_eq!(runtime.root().memory().stocked_bound(), 0);
    });
}

/// E37. A parent that goes offline has no children, whichever thread is first, and in whichever
/// shard.
#[test]
fn loom_offline_vs_create_child() {
    for name in ["child", "kid", "son", "nearest_live_ancestor"] {
        model_without_pair(move || {
            let (runtime, parent) = with_group(bare(), "parent");
            let (created, gone) = race(
                parent.clone(),
                move |parent| parent.create(name, Limits::new()).is_ok(),
                || parent.offline().is_ok(),
            );
            assert_ne!(gone, created);
            parent.offline_tree();
            drop(parent);
            assert_released_once(&runtime);
        });
    }
}

/// Two threads want one name: one gets it.
#[test]
fn loom_create_vs_create() {
    model(|| {
        let runtime = bare().build().unwrap();
        let (theirs, mine) = race(
            runtime.root(),
            |root| root.create("name", Limits::new()).ok(),
            || runtime.root().create("name", Limits::new()).ok(),
        );
        assert_ne!(mine.is_some(), theirs.is_some());
        assert_eq!(runtime.root().children().len(), 1);
    });
}

/// A thread looks a path up while the group goes and another group comes in its object: it finds
/// the first group or none.
#[test]
fn loom_path_vs_release() {
    model(|| {
        let runtime = std::sync::Arc::new(bare().build().unwrap());
        let old = group(&runtime.root(), "old");
        let id = old.id();
        let finder = beside(runtime.clone(), move |runtime| {
            if let Some(found) = runtime.group("/old") {
                assert_eq!((found.id(), &*found.name()), (id, "old"));
            }
        });
        end(old);
        let next = group(&runtime.root(), "next");
        finder.join().unwrap();
        assert_eq!(runtime.group("/next"), Some(next));
        assert_eq!(runtime.group("/old"), None);
    });
}

/// A walk sees each group as it was when the walk reached it, and no group twice.
#[test]
fn loom_walk_vs_going() {
    model(|| {
        let (runtime, stays) = with_group(bare(), "stays");
        let goes = group(&runtime.root(), "goes");
        let walker = beside(runtime.root(), |root| {
            let names: Vec<String> = root
                .inspect()
                .descendants()
                .map(|group| group.name().to_string())
                .collect();
            assert_eq!(names.iter().filter(|name| *name == "stays").count(), 1);
            assert!(names.len() <= 2, "{names:?}");
        });
        end(goes);
        walker.join().unwrap();
        drop(stays);
        assert_released_once(&runtime);
    });
}

/// A listing of children goes on where the child that it names next goes offline. Each lock is held
/// over one child.
#[test]
fn loom_listing_vs_offline() {
    for going in [0, 1, 2] {
        model_without_pair(move || {
            let runtime = bare().build().unwrap();
            let root = runtime.root();
            let mut all: Vec<Group> = ["a", "b", "c"].map(|name| group(&root, name)).into();
            let goes = all.remove(going);
            let id = |group: &Group| group.first().id();
            let staying = all.iter().map(id).collect::<Vec<_>>();
            let gone = id(&goes);
            let lister = beside(root, move |root| {
                let listed: Vec<_> = children::pin(root.first())
                    .iter()
                    .map(|child| child.id())
                    .collect();
                let count = |id| listed.iter().filter(|&&other| other == id).count();
                assert!(staying.iter().all(|&id| count(id) == 1), "{listed:?}");
                assert!(count(gone) <= 1, "{listed:?}");
            });
            end(goes);
            lister.join().unwrap();
            drop(all);
            assert_released_once(&runtime);
        });
    }
}
