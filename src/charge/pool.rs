//! The pool of counters' objects: type-stable, of the process, recycled across trees.
//!
//! An object keeps its memory, its slot index and its gate for ever; what changes is its life (`life`). So a late look
//! at a gate or a state word finds a gate or a state word, and a stale id finds another generation. Chunks come from
//! the system as they are needed and never go back. The pool is reached from one place in the process, made before
//! whoever asks for it can use it: no counter exists without it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ptr;

use super::life::Generation;
use super::page_counter::{Life, Node};
use super::service::serve_all;
use crate::sync::foreign::drop_contained;
use crate::sync::lock::{Lock, Rank};
use crate::sync::{Ordering, POOL_CHUNK, per_thread, process_wide, registry};

/// All counters' objects.
pub(crate) struct Pool(Lock<Objects>);

struct Objects {
    /// By number. The boxes never go but with the pool, which is the process's.
    chunks: Vec<Box<[Node]>>,
    /// Lowest first keeps the slots of what is alive together.
    free: BinaryHeap<Reverse<u32>>,
}

process_wide!(pool: Pool = Pool::new);

impl Pool {
    fn new() -> Self {
        Pool(Lock::new(Rank::Bookkeeping, Objects { chunks: Vec::new(), free: BinaryHeap::new() }))
    }

    /// An object that nobody else has. Clean.
    pub(crate) fn take(&self) -> &'static Node {
        loop {
            if let Some(node) = self.0.lock().take() {
                return node;
            }
            // Outside the lock: the registry has one of the same rank. Two threads that come here at once make two
            // chunks.
            let parts: Vec<_> = (0..POOL_CHUNK).map(|_| registry().take_index()).collect();
            self.0.lock().grow(parts);
        }
    }

    /// Give an object back that was never shown to anybody, or whose last user is the caller. Drops what its life held.
    pub(crate) fn give_back(&self, node: &'static Node) {
        let life = node.end();
        if node.state().end() {
            self.0.lock().free.push(Reverse(node.number));
        }
        drop(life);
    }

    /// Give a buried object back; its state word is in the next generation already.
    pub(super) fn recycle(&self, node: &'static Node) -> Option<Life> {
        let life = node.end();
        if !node.spent.load(Ordering::Relaxed) {
            self.0.lock().free.push(Reverse(node.number));
        }
        life
    }

    /// The object of an id, with a handle for the caller, if it is still in that life.
    pub(crate) fn pin(&self, number: u32, of: Generation) -> Option<&'static Node> {
        let node = self.0.lock().node(number)?;
        node.state().try_pin(of).then_some(node)
    }
}

impl Objects {
    fn take(&mut self) -> Option<&'static Node> {
        let Reverse(number) = self.free.pop()?;
        self.node(number)
    }

    #[allow(unsafe_code)]
    fn node(&self, number: u32) -> Option<&'static Node> {
        let number = number as usize;
        let node = self.chunks.get(number / POOL_CHUNK)?.get(number % POOL_CHUNK)?;
        // SAFETY: a chunk is never freed while a counter may be used: the pool is the process's, or the model's.
        Some(unsafe { &*ptr::from_ref(node) })
    }

    fn grow(&mut self, parts: Vec<(crate::sync::slots::SlotIndex, &'static crate::sync::slots::Gate)>) {
        let first = (self.chunks.len() * POOL_CHUNK) as u32;
        let chunk: Box<[Node]> =
            parts.into_iter().zip(first..).map(|((index, gate), number)| Node::new(index, gate, number)).collect();
        for node in &chunk {
            node.gate.bind(ptr::from_ref(node).cast());
            self.free.push(Reverse(node.number));
        }
        self.chunks.push(chunk);
    }
}

/// A slow path of this thread, see [`per_thread::slow_path`]; what died in it is buried when it is over, and who waits
/// for what it freed is served.
#[inline]
pub(crate) fn slow_path<R>(work: impl FnOnce(Option<&per_thread::Block>, bool) -> R) -> R {
    let result = per_thread::slow_path(|block, nested| (work(block, nested), nested));
    if !result.1 {
        bury_all();
        serve_all();
    }
    result.0
}

impl Node {
    /// Drop a handle of a group. Afterwards it may be gone.
    #[inline]
    pub(crate) fn release(&self) {
        if let Some(of) = self.unpin() {
            self.release_last(of);
        }
    }

    /// It may have been the last.
    #[cold]
    fn release_last(&self, of: Generation) {
        slow_path(|_, _| self.part(of));
    }
}

/// Bury what this thread has to bury: no lock is held here, and no slow path of this thread is under way.
#[inline]
pub(super) fn bury_all() {
    loop {
        let first = per_thread::exchange_graves(ptr::null());
        if first.is_null() {
            return;
        }
        bury_slow(first);
    }
}

#[cold]
#[allow(unsafe_code)]
fn bury_slow(first: *const ()) {
    let mut next = first.cast::<Node>();
    // SAFETY: queued by `Node::claim_slow`, whose exchange made the object this thread's; objects are never freed.
    while let Some(node) = unsafe { next.as_ref::<'static>() } {
        next = node.next_grave.load(Ordering::Relaxed);
        let gone = per_thread::slow_path(|_, _| {
            let tree = node.life().tree.clone();
            // Its parent may follow: the list starts anew with it.
            let life = tree.bury(node);
            (tree, life)
        });
        // With the last group goes its tree, and what is foreign of that: outside of any slow path.
        let _ = drop_contained(gone);
    }
}
