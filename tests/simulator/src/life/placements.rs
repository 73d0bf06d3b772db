//! Memory on nodes that meets: two accounts become one, and one is found elsewhere.

use std::collections::BTreeMap;

use memcg::Bytes;
use memcg::kmem::Placement;

use super::Life;
use super::values::NodeMemory;
use crate::script::Op;

impl Life {
    /// The second becomes part of the first, if both are of one group.
    pub(super) fn merge_kmem(&mut self, op: &Op, into: u8, from: u8) {
        let most = self.kmems.len();
        if most < 2 {
            return;
        }
        let (into, from) = (usize::from(into) % most, usize::from(from) % most);
        if into == from {
            return;
        }
        let NodeMemory {
            key: gone,
            item: of_other,
            kmem: other,
            places: others,
        } = self.kmems.remove(from);
        let at = if into > from { into - 1 } else { into };
        let NodeMemory {
            key,
            item,
            mut kmem,
            mut places,
        } = self.kmems.remove(at);
        let (to, of) = (self.twin.of(key), self.twin.of(gone));
        let (kmem, refused) = self.actor(op).run(move || {
            let refused = kmem.merge(other).err();
            (kmem, refused)
        });
        let is_same = to.group == of.group && item == of_other;
        assert_eq!(refused.is_none(), is_same, "merged");
        match refused {
            Some(other) => self.keep_kmem(at, gone, *other, others),
            None => {
                self.twin.release(gone);
                self.twin.set(key, to.bytes + of.bytes);
                for (spot, bytes) in others {
                    *places.entry(spot).or_default() += bytes;
                }
            }
        }
        self.keep_kmem(at, key, kmem, places);
    }

    /// At most so many bytes are on that node, and parts of so many on those behind it. The others are
    /// on none.
    pub(super) fn relocate_kmem(&mut self, op: &Op, number: u8, node: u8, bytes: u64) {
        if self.kmems.is_empty() {
            return;
        }
        let at = usize::from(number) % self.kmems.len();
        let NodeMemory {
            key,
            mut kmem,
            places,
            ..
        } = self.kmems.remove(at);
        // Several places, among them nodes that the machine does not have.
        let many = 1 + bytes as usize % 4;
        let parts = (0..many).map(|part| {
            let spot = self.spot(node.wrapping_add(part as u8));
            let node = self.some_node(spot, usize::from(op.0) + part);
            (node, spot, bytes / (part as u64 + 1))
        });
        let parts: Vec<_> = parts.collect();
        let mut wanted = Placement::new();
        for &(node, _, bytes) in &parts {
            wanted.add(node, Bytes(bytes));
        }
        let kmem = self.actor(op).run(move || {
            kmem.relocate(&wanted);
            kmem
        });
        let mut left = self.twin.of(key).bytes;
        // With one node all is there, whatever is said.
        let nowhere = self.spot(u8::MAX);
        let mut now: BTreeMap<_, _> = places.into_keys().map(|spot| (spot, 0)).collect();
        // The first nodes have theirs, as far as there is enough.
        let mut by_node = BTreeMap::new();
        for (node, spot, bytes) in parts {
            if let Some(node) = node {
                by_node.entry(node).or_insert((spot, 0)).1 += bytes;
            }
        }
        for (spot, bytes) in by_node.into_values() {
            let there = bytes.min(left);
            *now.entry(spot).or_default() += there;
            left -= there;
        }
        *now.entry(nowhere).or_default() += left;
        self.keep_kmem(at, key, kmem, now);
    }
}
