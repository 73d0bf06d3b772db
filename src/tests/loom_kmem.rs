//! Memory on nodes. A read counts what is accounted once, while other threads flush, end accounts or
//! release the group. A moved thread ends in the group that it was moved to last.

use super::common::{end, group};
use super::loom_stat::bare;
use super::{beside, build, model, model_without_pair, race};
use crate::counter::slow_path::SlowPath;
use crate::group::Group;
use crate::kmem::{Kmem, KmemMember, NodeId, Placement};
use crate::{Bytes, Freshness, StatKey};

const FAR: NodeId = NodeId::new(1);

fn account(group: &Group, bytes: u64) -> Kmem {
    group
        .precharge(Bytes(bytes))
        .unwrap()
        .account(&Placement::on(FAR, Bytes(bytes)))
}

fn on(group: &Group, node: NodeId) -> i64 {
    group.numa_stat(StatKey::KERNEL, Freshness::Exact).get(node)
}

/// One thread accounts, another takes off, with a flush between.
#[test]
fn loom_account_moves_vs_flush() {
    model(|| {
        let (_runtime, root) = build(bare().nodes(2));
        let kmem = account(&root, 4_096);
        let other = beside(root.clone(), move |root| {
            let stays = account(&root, 8_192);
            drop(kmem);
            stays
        });
        let read = on(&root, FAR);
        assert!([4_096, 12_288, 8_192].contains(&read), "{read}");
        let stays = other.join().unwrap();
        assert_eq!(
            [
                on(&root, FAR),
                root.read(Freshness::Exact).get(StatKey::KERNEL)
            ],
            [8_192, 8_192]
        );
        drop(stays);
        assert_eq!(on(&root, FAR), 0);
    });
}

/// Two threads end the last two accounts of a group that is gone otherwise. If one of them has
/// released the group, the next group is in the same object.
#[test]
fn loom_account_vs_release() {
    model(|| {
        let (_runtime, root) = build(bare().nodes(2));
        let query = group(&root, "q");
        let [here, there] = [4_096; 2].map(|bytes| account(&query, bytes));
        end(query);
        let other = beside(there, drop);
        drop(here);
        let next = group(&root, "next");
        let more = account(&next, 8_192);
        other.join().unwrap();
        assert_eq!([on(&next, FAR), on(&root, FAR)], [8_192, 8_192]);
        drop(more);
        assert_eq!(on(&root, FAR), 0);
    });
}

/// E29. A second move during the refresh after the first. Once both moves are over, the member is
/// in the group of the last one.
#[test]
fn loom_move_vs_refresh() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let [first, second] = ["first", "second"].map(|name| group(&root, name));
        let mut member = KmemMember::of(&root);
        let mover = member.mover();
        mover.move_to(&first).unwrap();
        let to = second.clone();
        race(
            mover,
            move |mover| mover.move_to(&to).unwrap(),
            || drop(member.group().charge(1)),
        );
        assert_eq!(*member.group(), second);
    });
}

/// A thread accounts inside another slow path, where it has no cells. It publishes at once, the
/// parent before the child, beside a flush.
#[test]
fn loom_nested_account_vs_flush() {
    model_without_pair(|| {
        let (runtime, root) = build(bare().nodes(2));
        let query = group(&root, "q");
        let first = account(&query, 4_096);
        let other = beside(query.clone(), |query| {
            let _path = SlowPath::enter();
            account(&query, 8_192)
        });
        let below = query.numa_stat(StatKey::KERNEL, Freshness::Stale).get(FAR);
        let above = root.numa_stat(StatKey::KERNEL, Freshness::Stale).get(FAR);
        assert!(below <= above, "{below} {above}");
        let read = on(&query, FAR);
        assert!(read == 4_096 || read == 12_288, "{read}");
        let second = other.join().unwrap();
        assert_eq!([on(&query, FAR), on(&root, FAR)], [12_288, 12_288]);
        assert_eq!(runtime.counts().nested_stats, 0);
        drop((first, second));
        assert_eq!([on(&query, FAR), on(&root, FAR)], [0, 0]);
    });
}
