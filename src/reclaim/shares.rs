//! Shares: the soft limit of a group is its part of what its parent may hold, by the shares of the
//! siblings that are online.
//!
//! A share that comes, goes or changes moves the sum at its parent, under one lock, and no soft
//! limit. It notes that parent, and a max that moves notes its level. A look divides anew at the
//! parents that are noted, and at those below each part that has moved, from the top down. It sets
//! the soft limit of each child, which corrects its mark. Reclaim and readers look first.
//!
//! A look is steps: a parent is found, or divides, or a child is told. So it costs a step for each
//! parent at and below a level that has moved, and one for each child whose part has moved. It
//! takes [`SLICE`] steps at a time under the tree's lock, whatever the size of the tree: what one
//! look works out in a slice no other look has set meanwhile. Looks of several threads share the
//! steps. What is noted during a look waits for the next *wave* of steps: a look ends with the wave
//! that has all that was noted when it began, so others that go on moving do not hold it.

use std::time::Duration;

use smallvec::SmallVec;

use crate::counter::by_number::take_out;
use crate::counter::handle::Handle;
use crate::counter::object::tree::Tree;
use crate::counter::object::{Counter, CounterRef};
use crate::counter::slow_path::SlowPath;
use crate::counter::thresholds;
use crate::hierarchy::{group_tree, limits};
use crate::reclaim::excess;
use crate::state::limits::LimitKind;
use crate::state::shares::{GroupShare, MovedShares, ParentOfShares, Shares};
use crate::sync::Ordering;
use crate::sync::clock;
use crate::sync::stat_atomic::AtomicBool as StatBool;

/// Sets the share of a group that has a ring, above 0. The root has no siblings, and a group that
/// is offline gets none. The caller holds the tree's lock.
pub(crate) fn put(group: &Counter, share: u32) {
    // Under the lock of its shard the group does not go offline.
    let _shard = group.tree().hierarchy.lock_of(group);
    if !group.state().is_offline() {
        put_linked(group, share);
    }
}

/// Does what [`put`] does, for a group that is online. The caller holds the lock of its shard.
pub(crate) fn put_linked(group: &Counter, share: u32) {
    let Some(parent) = group.parent() else { return };
    let tree = group_tree::of(group);
    tree.any_shares.store(true, Ordering::Relaxed);
    ANY_IN_PROCESS.store(true, Ordering::Relaxed);
    limits::forget_percent(group, LimitKind::Soft);
    tree.shares.lock().set(parent, group, share);
}

/// Takes a group's share away, and the soft limit that was its part, unless another one has been
/// set. The caller holds the tree's lock.
pub(crate) fn take(group: &Counter, has_soft: bool) {
    if leave(group) > 0 && !has_soft {
        set_soft(group, u64::MAX);
    }
}

/// Takes a group's share away; returns it, 0 where there is none. The soft limit stays as it is.
/// The caller holds the lock of the group's shard, or the tree's.
pub(crate) fn leave(group: &Counter) -> u32 {
    let tree = group_tree::of(group);
    let parent = group.parent();
    let Some(parent) = parent.filter(|_| tree.any_shares.load(Ordering::Relaxed)) else {
        return 0;
    };
    // Mutation: a-share-stays-with-a-group-that-is-offline
    tree.shares.lock().set(parent, group, 0)
}

/// The share of a group; 0: none.
pub(crate) fn of(group: &Counter) -> u32 {
    let tree = group_tree::of(group);
    if !tree.any_shares.load(Ordering::Relaxed) {
        return 0;
    }
    let _path = SlowPath::enter();
    let shares = tree.shares.lock();
    shares.find(group).map_or(0, |(_, share)| share.share)
}

/// How many steps of a look one hold of the tree's lock takes. Between two slices charges that are
/// refused get the lock.
const SLICE: usize = 64;

/// A group of the process has, or had, a share. A look at a group of any other process ends with
/// this word, and fetches no line of the group for its tree. It is never cleared, and only spares
/// the look at `any_shares`, so no protocol rests on it.
static ANY_IN_PROCESS: StatBool = StatBool::new(false);

/// Divides anew where a share or a max has moved in the tree of a group. Returns the time that it
/// took: a step for each parent at and below what has moved and for each group whose part has moved,
/// else two locks, or a load where no group has a share. The caller holds no lock and is not in
/// transit.
#[inline(always)]
pub(crate) fn look(group: &Counter) -> Duration {
    // Relaxed, as `any_shares`: it is set with that word, so whoever has heard of the share, and is
    // to see it divided, has heard of both.
    if ANY_IN_PROCESS.load(Ordering::Relaxed) {
        look_slow(group.tree())
    } else {
        Duration::ZERO
    }
}

#[cold]
#[inline(never)]
fn look_slow(tree: &Tree) -> Duration {
    let groups = group_tree::shared(tree);
    if !groups.any_shares.load(Ordering::Relaxed) {
        return Duration::ZERO;
    }
    let begun = clock::now();
    let mut until = None;
    while look_at_slice(tree, &mut until) {}
    clock::now().saturating_duration_since(begun)
}

/// Takes the steps of one slice, and sets the soft limits that have moved by them. False: the wave
/// of the number `until` is over, with all that was noted when the look began.
fn look_at_slice(tree: &Tree, until: &mut Option<u64>) -> bool {
    let path = SlowPath::enter();
    let mut due: SmallVec<[(Handle, u64); SLICE]> = SmallVec::new();
    // Mutation: two-looks-at-shares-at-once
    let stocks = tree.lock(&path);
    // The table's lock is for the steps alone. The limits are set without it, each under the lock
    // of the group's shard; the tree's lock keeps other looks away until they are.
    let goes_on = {
        let mut shares = group_tree::shared(tree).shares.lock();
        let until = *until.get_or_insert_with(|| shares.last_wave());
        let mut left = SLICE;
        while left > 0 && shares.goes_on(until) {
            due.extend(shares.step());
            left -= 1;
        }
        shares.goes_on(until)
    };
    for (group, bytes) in &due {
        set_soft(group, *bytes);
    }
    drop(stocks);
    goes_on
}

/// Sets the soft limit of a group that is online, and corrects its mark.
fn set_soft(group: &Counter, bytes: u64) {
    let _shard = group.tree().hierarchy.lock_of(group);
    // Mutation: a-part-is-set-in-a-group-that-is-offline
    if !group.state().is_offline() {
        thresholds::set_soft(group, bytes);
        excess::cross(group);
    }
}

/// A group that has a share, or its parent, as the table of shares has it.
#[allow(unsafe_code)]
fn online(group: &Counter) -> CounterRef {
    // SAFETY: a group leaves the table before the thread that takes it offline gives its handle up,
    // and it keeps its parent.
    unsafe { CounterRef::new(group) }
}

impl Shares {
    fn find(&self, group: &Counter) -> Option<(&ParentOfShares, GroupShare)> {
        let siblings = self.parents.get(&group.parent()?.key())?;
        Some((siblings, *siblings.children.get(&group.key())?))
    }

    /// Returns the share before.
    fn set(&mut self, parent: &Counter, group: &Counter, share: u32) -> u32 {
        let of = online(parent);
        let linked = online(group);
        let key = parent.key();
        // The first child with a share: the table gets its parent, and each level above learns that
        // there is one below it.
        if share > 0 && !self.parents.contains_key(&key) {
            let mut depth = 0;
            let mut new = SmallVec::<[(u64, u64); 16]>::new();
            for level in parent.path_to_root() {
                depth += 1;
                new.push((level.key(), key));
            }
            self.below.extend(new);
            let siblings = ParentOfShares {
                parent: of,
                depth,
                children: Default::default(),
                sum: 0,
                divided: None,
            };
            self.parents.insert(key, siblings);
        }
        let Some(siblings) = self.parents.get_mut(&key) else {
            return 0;
        };
        let before = if share > 0 {
            siblings.children.insert(
                group.key(),
                GroupShare {
                    group: linked,
                    share,
                },
            )
        } else {
            siblings.children.remove(&group.key())
        };
        let before = before.map_or(0, |before| before.share);
        // Groups further down that have shares divide another part from now on.
        if (before > 0) != (share > 0) && group.child_count().get() > 0 {
            self.noted.levels.insert(group.key(), 0);
        }
        siblings.sum = siblings.sum - u64::from(before) + u64::from(share);
        // The group may have got a soft limit since, so its part is set also where its share is as
        // it was.
        if share > 0 || before > 0 {
            siblings.divided = None;
            // Mutation: a-share-that-changes-moves-no-part
            self.noted.parents.insert((siblings.depth, key));
        }
        // The last child with a share has gone, and the parent goes from the table. It was noted a
        // moment ago; a step that finds it gone does nothing.
        if siblings.children.is_empty() {
            take_out(&mut self.parents, key);
            // Mutation: a-parent-without-shares-stays-known-above
            for level in parent.path_to_root() {
                self.below.remove(&(level.key(), key));
            }
        }
        before
    }

    /// The bytes that the children of a group divide: the least of the maxes and of the parts on
    /// its way up.
    fn to_divide(&self, parent: &Counter) -> u64 {
        let path: SmallVec<[&Counter; 16]> = parent.path_to_root().collect();
        // From the root down: what a level hands on is what comes from above, or its part of that
        // where it has a share, and never more than its own max. The max of a level that is only
        // observed limits nothing.
        path.into_iter().rev().fold(u64::MAX, |above, level| {
            let part = self
                .find(level)
                .map_or(above, |(siblings, share)| share.of(above, siblings.sum));
            // Mutation: a-max-that-only-counts-bounds-the-parts
            if level.is_observed() {
                part
            } else {
                part.min(level.max())
            }
        })
    }

    /// Takes one step of the present wave. Returns a group whose soft limit has to be set, and to
    /// which bytes. Levels come first, for they only find parents; then the parents, those further
    /// up before the others; then the children. What was noted may be gone by now: then the step
    /// does nothing.
    fn step(&mut self) -> Option<(Handle, u64)> {
        self.steps += 1;
        let MovedShares {
            levels,
            parents,
            children,
        } = &mut self.wave;
        if let Some((level, from)) = levels.pop_first() {
            let &(_, found) = self.below.range((level, from)..=(level, u64::MAX)).next()?;
            parents.insert((self.parents.get(&found)?.depth, found));
            levels.extend(found.checked_add(1).map(|next| (level, next)));
        } else if let Some((_, key)) = parents.pop_first() {
            let parent = self.parents.get(&key)?.parent;
            let bytes = self.to_divide(&parent);
            // Where the parent divides what it did before, nothing below it has moved, and the step
            // ends here.
            if self.parents.get_mut(&key)?.divided.replace(bytes) != Some(bytes) {
                self.wave.children.insert(key, 0);
                // Mutation: a-part-that-moves-moves-none-below
                self.wave.levels.insert(key, 0);
            }
        } else if let Some((key, from)) = children.pop_first() {
            let siblings = self.parents.get(&key)?;
            let (&found, share) = siblings.children.range(from..).next()?;
            children.extend(found.checked_add(1).map(|next| (key, next)));
            // Where a share has changed since, the next wave tells all of them.
            let bytes = siblings.divided?;
            return Some((Handle::pin(&share.group), share.of(bytes, siblings.sum)));
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{Group, Limit, Limits, Runtime};

    fn tenant(above: &Group, name: &str, share: u32) -> Group {
        above.create(name, Limits::new().share(share)).unwrap()
    }

    fn softs<const N: usize>(groups: [&Group; N]) -> [u64; N] {
        groups.map(|group| group.inspect().soft())
    }

    /// Alone a group has everything; each that comes, goes or changes moves the parts of its
    /// siblings.
    #[test]
    fn parts_follow_siblings() {
        let runtime = Runtime::builder().max(1_200).build().unwrap();
        let root = runtime.root();
        let gold = tenant(&root, "gold", 300);
        assert_eq!(gold.inspect().soft(), 1_200);
        let silver = tenant(&root, "silver", 100);
        let other = root.create("other", Limits::new().soft(7)).unwrap();
        assert_eq!(
            softs([&gold, &silver, &other]),
            [900, 300, 7],
            "a group without a share has its own"
        );
        silver.set_limits(Limits::new().share(300)).unwrap();
        assert_eq!(softs([&gold, &silver]), [600, 600]);
        assert_eq!(
            (silver.limits().share, other.limits().share),
            (Some(300), None)
        );
        root.set_max(600).unwrap();
        assert_eq!(softs([&gold, &silver]), [300, 300], "a max above has moved");
        gold.offline().unwrap();
        assert_eq!(
            softs([&gold, &silver]),
            [u64::MAX, 600],
            "one that is offline has none"
        );
        silver.set_limits(Limits::new().share(0)).unwrap();
        assert_eq!(
            (silver.inspect().soft(), silver.limits().share),
            (u64::MAX, None)
        );
        other.set_limits(Limits::new().share(0)).unwrap();
        assert_eq!(other.inspect().soft(), 7, "it had no share");
        let again = tenant(&root, "gold", 1);
        root.set_max(Limit::Unlimited).unwrap();
        assert_eq!(again.inspect().soft(), u64::MAX, "no limit has no parts");
    }

    /// The one that is set last holds, and nothing is set where a limit is refused.
    #[test]
    fn a_share_and_a_soft_limit_take_each_others_place() {
        let runtime = Runtime::builder().build().unwrap();
        let parent = runtime
            .root()
            .create("parent", Limits::new().max(1_000))
            .unwrap();
        let [a, b] = ["a", "b"].map(|name| tenant(&parent, name, 1));
        assert_eq!(softs([&a, &b]), [500, 500]);
        a.set_limits(Limits::new().soft(70)).unwrap();
        assert_eq!((a.limits().share, softs([&a, &b])), (None, [70, 1_000]));
        a.set_limits(Limits::new().soft(70).share(1)).unwrap();
        assert_eq!(softs([&a, &b]), [500, 500]);
        a.set_limits(a.limits()).unwrap();
        assert_eq!((a.limits().share, softs([&a, &b])), (Some(1), [500, 500]));
        parent.set_max(Limit::Unlimited).unwrap();
        a.set_limits(Limits::new().soft(Limit::percent(10)))
            .expect_err("10% of nothing");
        parent.set_max(600).unwrap();
        assert_eq!((a.limits().share, softs([&a, &b])), (Some(1), [300, 300]));
        a.set_limits(Limits::new().soft(70).share(0)).unwrap();
        assert_eq!(softs([&a, &b]), [70, 600]);
    }

    /// Of what the parent may hold: its max, or its own part.
    #[test]
    fn parts_of_parts() {
        let runtime = Runtime::builder().max(1_000).build().unwrap();
        let [a, b] = ["a", "b"].map(|name| tenant(&runtime.root(), name, 1));
        let [slow, fast] = [("slow", 1), ("fast", 4)].map(|(name, share)| tenant(&a, name, share));
        assert_eq!(softs([&slow, &fast, &b]), [100, 400, 500]);
        a.set_max(250).unwrap();
        assert_eq!(softs([&slow, &fast, &b]), [50, 200, 500]);
        b.offline().unwrap();
        a.set_max(Limit::Unlimited).unwrap();
        assert_eq!(softs([&a, &slow, &fast]), [1_000, 200, 800]);
        // A group without a share hands on the part of the one above.
        let queries = fast.create("queries", Limits::new()).unwrap();
        let [q1, q2] = ["q1", "q2"].map(|name| tenant(&queries, name, 1));
        assert_eq!(softs([&q1, &q2]), [400, 400]);
        slow.offline().unwrap();
        assert_eq!(softs([&fast, &q1, &q2]), [1_000, 500, 500]);
        queries.set_max(300).unwrap();
        assert_eq!(softs([&q1, &q2]), [150, 150]);
        queries.set_max(Limit::Unlimited).unwrap();
        let _other = tenant(&a, "other", 4);
        assert_eq!(softs([&fast, &q1, &q2]), [500, 250, 250]);
        fast.set_limits(Limits::new().share(0)).unwrap();
        assert_eq!(
            softs([&fast, &q1, &q2]),
            [u64::MAX, 500, 500],
            "the part of a"
        );
        fast.set_limits(Limits::new().share(1)).unwrap();
        assert_eq!(softs([&fast, &q1, &q2]), [200, 100, 100]);
    }

    /// A group with a share that has no reclaimer crosses its part by a charge, by a look, and
    /// back.
    #[test]
    fn a_group_without_a_reclaimer_crosses_its_part() {
        let runtime = Runtime::builder()
            .max(1_000)
            .batch(0)
            .audit(true)
            .build()
            .unwrap();
        let root = runtime.root();
        let a = tenant(&root, "a", 1);
        let held = a.charge(600).unwrap();
        let b = tenant(&root, "b", 1);
        assert_eq!(
            (
                a.inspect().is_in_excess(),
                root.inspect().descendants_in_excess()
            ),
            (true, 1),
            "by a look"
        );
        drop(held);
        assert!(!a.inspect().is_in_excess());
        let held = b.charge(501).unwrap();
        assert!(b.inspect().is_in_excess(), "by a charge");
        drop(held);
        assert_eq!(
            (
                b.inspect().is_in_excess(),
                root.inspect().descendants_in_excess()
            ),
            (false, 0)
        );
    }

    /// A percentage that a soft limit was before does not follow a max any more.
    #[test]
    fn a_share_is_no_percentage() {
        let runtime = Runtime::builder().max(1_000).build().unwrap();
        let parent = runtime
            .root()
            .create("parent", Limits::new().max(5_000))
            .unwrap();
        let a = parent
            .create("a", Limits::new().soft(Limit::percent(10)))
            .unwrap();
        a.set_limits(Limits::new().share(1)).unwrap();
        assert_eq!(a.inspect().soft(), 1_000);
        parent.set_max(6_000).unwrap();
        assert_eq!(
            (a.inspect().soft(), a.limits().soft),
            (1_000, Some(Limit::Bytes(1_000)))
        );
    }

    /// A victim is chosen by its part, although no thread has read it since siblings came.
    #[test]
    fn a_victim_is_chosen_by_its_part() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

        use crate::{CancelInfo, OomPolicy};

        let runtime = Runtime::builder().max(1_000).batch(0).build().unwrap();
        let root = runtime.root();
        root.set_oom_policy(OomPolicy::Choose);
        let victims = Arc::new(AtomicU64::new(0));
        let held: Vec<_> = [("a", 9, 500), ("b", 1, 400)]
            .into_iter()
            .map(|(name, share, bytes)| {
                let group = tenant(&root, name, share);
                let victims = Arc::clone(&victims);
                let held = Arc::new(std::sync::Mutex::new(Some(group.charge(bytes).unwrap())));
                let hook = group.on_cancel({
                    let held = Arc::clone(&held);
                    move |_: &CancelInfo| {
                        victims.fetch_add(u64::from(share), Relaxed);
                        drop(held.lock().unwrap().take());
                    }
                });
                (group, held, hook)
            })
            .collect();
        drop(root.charge(200).unwrap());
        assert_eq!(
            victims.load(Relaxed),
            1,
            "b is 300 above its part, and a below its own"
        );
        drop(held);
    }

    /// A look takes a step for each parent of shares at and below what has moved, and for each part
    /// that has moved: not for each pair of them, nor for those elsewhere.
    #[test]
    fn a_look_is_linear_in_what_has_moved() {
        use crate::hierarchy::group_tree;

        let tenants = if cfg!(miri) { 8_u64 } else { 300 };
        let runtime = Runtime::builder().max(Limit::mib(1_000)).build().unwrap();
        let root = runtime.root();
        let groups: Vec<_> = (0..tenants)
            .map(|number| {
                let tenant = root.create(number, Limits::new().share(100)).unwrap();
                let queries =
                    [0_u64, 1].map(|query| tenant.create(query, Limits::new().share(100)).unwrap());
                (tenant, queries)
            })
            .collect();
        let [query, _] = &groups[0].1;
        let steps = || {
            let of_tree = group_tree::of(root.first());
            let before = of_tree.shares.lock().steps;
            let soft = query.inspect().soft();
            (of_tree.shares.lock().steps - before, soft)
        };
        let (first, soft) = steps();
        assert!((5 * tenants..=12 * tenants).contains(&first), "{first}");
        assert_eq!((steps(), soft), ((0, soft), (1_000 << 20) / tenants / 2));
        root.set_max(Limit::mib(500)).unwrap();
        let (moved, half) = steps();
        assert!(
            moved <= 12 * tenants && half == (500 << 20) / tenants / 2,
            "{moved}"
        );
        groups[7].0.set_max(Limit::kib(8)).unwrap();
        assert!(steps().0 <= 12, "one tenant");
        assert_eq!(groups[7].1[1].inspect().soft(), 4 << 10);
        let _new = groups[0].0.create("new", Limits::new().share(200)).unwrap();
        assert!(steps().0 <= 12, "one tenant");
        assert_eq!(query.inspect().soft(), (500 << 20) / tenants / 4);
    }

    /// Usage that nothing charges is in excess of a part that has become smaller, and reclaim looks
    /// before it chooses.
    #[test]
    #[cfg_attr(miri, ignore = "Miri: the time that reclaim may take is over")]
    fn a_sibling_that_comes_is_found_by_reclaim() {
        use std::sync::{Arc, Mutex};

        use crate::{Bytes, Charge, Reclaim, ReclaimContext, ReclaimPriority};

        struct Cache(Mutex<Charge>);
        impl Reclaim for Cache {
            fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
                let mut held = self.0.lock().unwrap();
                let freed = want.min(held.bytes());
                held.shrink(Bytes(freed));
                freed
            }
        }

        const MIB: u64 = 1 << 20;
        let runtime = Runtime::builder()
            .max(Bytes(1_000 * MIB))
            .batch(0)
            .build()
            .unwrap();
        let root = runtime.root();
        let [greedy, modest] = ["greedy", "modest"].map(|name| tenant(&root, name, 1));
        let caches = [(&greedy, 450), (&modest, 200)].map(|(group, mib)| {
            let cache = Arc::new(Cache(Mutex::new(group.charge(Bytes(mib * MIB)).unwrap())));
            (
                group.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL),
                cache,
            )
        });
        assert!(!greedy.inspect().is_in_excess(), "its part is 500 MiB");
        let _held = tenant(&root, "new", 2).charge(Bytes(400 * MIB)).unwrap();
        let held = caches
            .iter()
            .map(|(_, cache)| cache.0.lock().unwrap().bytes() / MIB)
            .collect::<Vec<_>>();
        assert!(
            held[0] <= 400 && held[1] == 200,
            "the parts are 250, 250 and 500 MiB: {held:?}"
        );
        assert!(greedy.inspect().is_in_excess() && !modest.inspect().is_in_excess());
    }
}
