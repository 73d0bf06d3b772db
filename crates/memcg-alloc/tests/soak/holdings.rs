//! Charges and objects of groups, and their sums.

use std::ops::AddAssign;

use memcg::kmem::{Kmem, NodeId};
use memcg::{Bytes, Charge, Group};

use crate::ALLOCATOR;
use crate::support::Object;

pub(crate) const NODES: [NodeId; 2] = [NodeId::new(0), NodeId::new(1)];

/// Something that a group is charged for. The drop gives it back.
pub(crate) enum Holding {
    Charge(Charge),
    /// One of memory, and one of the counter of files.
    File(Charge, Charge),
    Kmem(Kmem),
    Raw(Raw),
    Word(Word),
    Memory(Memory),
    Buffer(Vec<u8>),
}

/// Bytes without a guard.
pub(crate) struct Raw(pub(crate) Group, pub(crate) u64);

impl Drop for Raw {
    fn drop(&mut self) {
        self.0.raw().uncharge(Bytes(self.1));
    }
}

/// A charge as a word.
pub(crate) struct Word(*const (), u64);

// SAFETY: a charge as a word may go to any thread, as a charge may.
#[allow(unsafe_code)]
unsafe impl Send for Word {}

impl Word {
    pub(crate) fn of(charge: Charge) -> Word {
        let (word, bytes) = charge.into_raw();
        Word(word, bytes)
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // SAFETY: from `into_raw`, once.
        #[allow(unsafe_code)]
        drop(unsafe { Charge::from_raw(self.0, self.1) });
    }
}

/// An object with a pattern, which its drop looks at.
pub(crate) struct Memory(Option<Object>);

impl Memory {
    pub(crate) fn new(size: usize, align: usize, zeroed: bool) -> Memory {
        Memory(Some(Object::allocate(&ALLOCATOR, size, align, 0, zeroed)))
    }

    pub(crate) fn resize(&mut self, size: usize) {
        self.0
            .as_mut()
            .expect("until the drop")
            .resize(&ALLOCATOR, size);
    }

    fn size(&self) -> u64 {
        self.0
            .as_ref()
            .map_or(0, |object| object.layout.size() as u64)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            object.free(&ALLOCATOR);
        }
    }
}

/// Sums of one group, or of a subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) reserved: u64,
    pub(crate) allocated: u64,
    pub(crate) files: u64,
    /// On each node, and on none.
    pub(crate) nodes: [u64; 3],
}

impl AddAssign for Held {
    fn add_assign(&mut self, other: Held) {
        self.reserved += other.reserved;
        self.allocated += other.allocated;
        self.files += other.files;
        self.nodes
            .iter_mut()
            .zip(other.nodes)
            .for_each(|(sum, more)| *sum += more);
    }
}

impl Holding {
    pub(crate) fn held(&self) -> Held {
        let mut held = Held::default();
        match self {
            Holding::Charge(charge) => held.reserved = charge.bytes(),
            Holding::File(charge, file) => {
                (held.reserved, held.files) = (charge.bytes(), file.bytes())
            }
            Holding::Raw(Raw(_, bytes)) | Holding::Word(Word(_, bytes)) => held.reserved = *bytes,
            Holding::Memory(memory) => held.allocated = memory.size(),
            Holding::Buffer(buffer) => held.allocated = buffer.capacity() as u64,
            Holding::Kmem(kmem) => {
                held.reserved = kmem.bytes();
                let placement = kmem.placement();
                held.nodes = [
                    placement.on_node(NODES[0]),
                    placement.on_node(NODES[1]),
                    placement.unplaced(),
                ];
                assert_eq!(
                    placement.bytes(),
                    kmem.bytes(),
                    "each byte of an account has its place"
                );
            }
        }
        held
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let held = self.held();
        held.reserved + held.allocated
    }

    pub(crate) fn is_object(&self) -> bool {
        matches!(self, Holding::Memory(_) | Holding::Buffer(_))
    }
}
