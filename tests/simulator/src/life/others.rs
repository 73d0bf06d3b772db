//! What of another runtime is refused, and left as it was; groups that end with a value; names that
//! are found or made.

use memcg::errors::CreateError;
use memcg::{Bytes, Charge, Group, Limits, OnFull, Runtime};

use super::{GROUPS_MADE_MAX, Life};
use crate::script::Op;

impl Life {
    /// A charge moves to no group of another runtime, and merges with none.
    pub(super) fn meet_another_runtime(&mut self, op: &Op, number: u8) {
        let Some(at) = self.pick(number) else { return };
        let key = self.charges[at].0;
        let bytes = self.twin.of(key).bytes;
        let (runtime, further) = (self.runtime.clone(), self.further);
        let left = self.with(op, at, move |charge| {
            let other = Runtime::builder()
                .build()
                .expect("a configuration that holds");
            let root = other.root();
            let of_life = charge.group().id();
            assert!(
                other.find(of_life).is_none(),
                "{of_life} in another runtime"
            );
            if let Some(runtime) = runtime {
                assert!(
                    runtime.find(root.id()).is_none(),
                    "a root of another runtime"
                );
            }
            let unknown = root.charge_set(&[(further, Bytes(0))]).map(drop);
            let is_unknown = |error: &memcg::ChargeError| error.is_other_runtime();
            assert!(
                unknown.as_ref().is_err_and(is_unknown) && root.counter(further).is_err(),
                "a counter of another runtime: {unknown:?}"
            );
            let moved = charge.transfer(&root);
            let refused = matches!(&moved, Err(error) if error.is_other_runtime());
            assert!(refused, "to another runtime: {moved:?}");
            let theirs: Charge = root.charge(Bytes(7)).expect("no limit");
            let merged = charge.merge(theirs);
            assert!(merged.is_err(), "with a charge of another runtime");
            drop(merged);
            root.memory().drain();
            (root.usage(), charge.bytes())
        });
        assert_eq!(left, (0, bytes), "(used there, held here)");
        if let Some(memory) = self.kmems.pop() {
            let super::values::NodeMemory {
                key,
                mut kmem,
                places,
                ..
            } = memory;
            let kmem = self.actor(op).run(move || {
                let other = Runtime::builder()
                    .build()
                    .expect("a configuration that holds");
                let moved = kmem.transfer(&other.root());
                let refused = matches!(&moved, Err(error) if error.is_other_runtime());
                assert!(refused, "to another runtime: {moved:?}");
                kmem
            });
            let at = self.kmems.len();
            self.keep_kmem(at, key, kmem, places);
        }
    }

    /// The group of that name, or a new one.
    pub(super) fn get_or_create(&mut self, op: &Op, parent: u8, name: u8) {
        if self.ids.len() >= GROUPS_MADE_MAX {
            return;
        }
        let Some(parent) = self.group(parent) else {
            return;
        };
        let name = format!("g{name}");
        let is_it = |&child: &usize| {
            let child = &self.twin.groups[child];
            child.online && child.name == name
        };
        let existing = self.twin.children(parent).find(is_it);
        let got = self.on(op, parent, {
            let name = name.clone();
            move |parent| parent.get_or_create(&name, Limits::new())
        });
        match (got, existing) {
            (Ok(group), Some(existing)) => {
                assert_eq!(group.id(), self.ids[existing], "{name}, which is there");
                self.handles[existing].push(group);
            }
            (Ok(group), None) => {
                let made = self.twin.create(parent, &name, Limits::new());
                assert_eq!(made, Ok(self.ids.len()), "{group:?}");
                self.ids.push(group.id());
                self.handles.push(vec![group]);
            }
            (Err(CreateError::Offline { .. }), None) => {
                assert!(!self.twin.groups[parent].online, "the parent is online");
            }
            (Err(CreateError::Full { .. }), None) => {}
            (got, existing) => panic!("{got:?}, the twin has {existing:?}"),
        }
    }

    /// A group goes offline with its value, and what is below it, whoever holds bytes there.
    pub(super) fn end_with_scope(&mut self, op: &Op, group: u8) {
        if !self.tasks.is_empty() || self.adapters_wait() || !self.shared.is_quiet() {
            return;
        }
        let Some(group) = self.group(group) else {
            return;
        };
        if self.twin.margin(group, 0, None) < 64 {
            return;
        }
        self.keeps = true;
        let live = self.twin.live(group, 0);
        let left = self.on(op, group, move |group| {
            let Ok(scope) = group.scope("a scope", Limits::new()) else {
                return None;
            };
            let is_kept = live.is_multiple_of(2);
            let below = scope.create("below", Limits::new());
            let below = below.ok().filter(|_| !is_kept);
            // No cache is asked for it.
            let held = below
                .as_ref()
                .map(|below| below.charge_with(Bytes(64), OnFull::IfRoom));
            let held = held.and_then(Result::ok);
            let inside: Group = Group::clone(&scope);
            if below.is_none() {
                // One that is kept ends by a call, as any other.
                let kept = scope.keep();
                assert!(!kept.is_offline(), "a scope that is kept");
                kept.offline_tree();
            } else {
                drop(scope);
            }
            let is_there = group.child("a scope").is_some();
            let is_online = !inside.is_offline() || below.is_some_and(|it| !it.is_offline());
            let live = group.live();
            let held = held.as_ref().map_or(0, Charge::bytes);
            Some((is_there, is_online, live - held))
        });
        self.settle_accounts();
        if let Some(left) = left {
            assert_eq!(
                left,
                (false, false, live),
                "(found, online, live beside it)"
            );
        }
    }
}
