//! Which group is a thread's current one, of several that it has entered and that end in any order; and
//! which one pays for what no group owns.

use memcg::allocator::{
    catch_up, charge_unowned, charge_unowned_to, uncharge_unowned, unowned_bytes,
};
use std::task::{Context, Waker};

use memcg::{EnterGuard, Group, GroupId, InGroup};

use super::Life;
use crate::script::Op;

/// Guards of a thread that is within them, from the outermost to the innermost.
type Entered = Vec<(GroupId, EnterGuard)>;

/// The innermost that has not ended, or the group of the call around all of them.
fn check(around: Option<GroupId>, entered: &Entered) {
    let expected = entered.last().map(|entered| entered.0).or(around);
    let found = Group::current().map(|group| group.id());
    assert_eq!(found, expected, "current, within {}", entered.len());
}

fn enter_and_leave(around: Option<GroupId>, groups: Vec<(GroupId, Group)>, mut order: u16) {
    let mut entered = Entered::new();
    check(around, &entered);
    for (id, group) in groups {
        entered.push((id, group.enter()));
        check(around, &entered);
    }
    while !entered.is_empty() {
        let (_, guard) = entered.remove(usize::from(order) % entered.len());
        drop(guard);
        check(around, &entered);
        order = order.rotate_left(5).wrapping_add(7);
    }
}

/// It looks where it is dropped.
struct Probe(GroupId);

impl Drop for Probe {
    fn drop(&mut self) {
        let found = Group::current().map(|group| group.id());
        assert_eq!(
            found,
            Some(self.0),
            "current, where a value of a group ends"
        );
    }
}

/// Closures and futures run in their group, and end there, whether they have run or not.
fn within_values(id: GroupId, group: &Group) {
    let current = move || Group::current().map(|group| group.id());
    let probe = Probe(id);
    let called = group.wrap(move || {
        let _probe = probe;
        current()
    });
    assert_eq!(called(), Some(id), "current, in a closure of a group");
    let probe = Probe(id);
    drop(group.wrap(move || drop(probe)));
    let probe = Probe(id);
    let mut future = Box::pin(
        async move {
            let _probe = probe;
            std::future::pending::<()>().await;
        }
        .in_group(group),
    );
    let mut waits = || {
        future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    };
    assert!(waits().is_pending(), "a future that never ends");
    drop(future);
    let probe = Probe(id);
    let never_polled = async move { drop(probe) }.in_group(group);
    assert_eq!(never_polled.group(), group, "the group of a future");
    drop(never_polled);
    assert!(current().is_none(), "all of them have ended");
}

impl Life {
    pub(super) fn scopes(&mut self, op: &Op, first: u8, many: u8, order: u16) {
        let groups = (0..=many).filter_map(|number| {
            let group = self.group(first.wrapping_add(number.wrapping_mul(7)))?;
            // Of a group that is offline the nearest above takes its place.
            let is_online = |&level: &usize| self.twin.groups[level].online;
            let current = self.twin.levels(group).find(is_online).unwrap_or(0);
            Some((self.ids[current], self.handle(group).clone()))
        });
        let mut groups: Vec<_> = groups.collect();
        let around = groups.pop().filter(|_| order.is_multiple_of(2));
        let wrapped = groups.first().cloned();
        self.actor(op).run(move || {
            if let Some((id, group)) = wrapped {
                within_values(id, &group);
            }
        });
        self.actor(op).run(move || match around {
            None => enter_and_leave(None, groups, order),
            Some((id, group)) => {
                // Two that were entered before the call, of which some end within it.
                let mut outside: Entered = Entered::new();
                for (id, group) in groups.iter().take(2) {
                    outside.push((*id, group.enter()));
                }
                let ends = usize::from(order / 2) % (outside.len() + 1);
                let is_inner = order.is_multiple_of(4);
                group.run(|| {
                    for _ in 0..ends {
                        let at = if is_inner { outside.len() - 1 } else { 0 };
                        drop(outside.remove(at));
                    }
                    enter_and_leave(Some(id), groups, order);
                });
                check(None, &outside);
                while let Some(inner) = outside.pop() {
                    drop(inner);
                    check(None, &outside);
                }
                assert!(Group::current().is_none(), "the call has ended");
            }
        });
    }

    /// Whoever pays for what no group owns pays for all of it from the call on, and nobody else does.
    pub(super) fn pay_for_unowned(&mut self, op: &Op, one: u8, other: u8, bytes: u16) {
        // What a group holds for a moment keeps others in line, or has memory of them given back.
        let meets = !self.tasks.is_empty() || self.adapters_wait() || self.had_caches;
        // Nor are the reads of one moment, while another thread takes credit home.
        if meets || self.drains || !self.hooks.is_empty() || !self.shared.is_quiet() {
            return;
        }
        // What a group holds that is offline is that of the one above, too.
        let online = |&group: &usize| self.twin.groups[group].online;
        let groups = [one, other].map(|number| self.group(number).filter(online));
        let [Some(one), Some(other)] = groups else {
            return;
        };
        let pair = [one, other].map(|group| self.handle(group).clone());
        let is_same = one == other;
        self.actor(op).run(move || {
            charge_unowned(bytes.into());
            catch_up();
            let own = |group: &Group| group.inspect().live_local();
            let before = pair.each_ref().map(own);
            let paid = || {
                let now = pair.each_ref().map(own);
                [0, 1].map(|number| now[number] - before[number])
            };
            let all = unowned_bytes();
            let of_other = if is_same { all } else { 0 };
            charge_unowned_to(Some(&pair[0]));
            assert_eq!(paid(), [all, of_other], "the first pays");
            charge_unowned_to(Some(&pair[1]));
            assert_eq!(paid(), [of_other, all], "the second pays");
            charge_unowned_to(None);
            assert_eq!(paid(), [0, 0], "nobody pays");
            uncharge_unowned(bytes.into());
        });
    }
}
