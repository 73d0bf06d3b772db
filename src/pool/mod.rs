//! Dedicated caches: memory for objects of one type, shared by the process, straight from the
//! system.
//!
//! ```text
//! take ──> the thread's stash ── empty ──> depot: the lowest returned, else fresh ones ── none ──> a new chunk
//! put  ──> the thread's stash ── full ───> depot: half of the stash                     refused ──> other stashes
//! ```
//!
//! After the kernel's `kmem_cache`, and "use kmem_cache for memcg alloc" (H. Yang, linux-mm, 2025).
//! A cache computes its sizes once, from the configuration of a runtime. Objects lie at their own
//! size or at whole cache lines, not at that of a size class.
//!
//! A cache belongs to the process. A runtime that is built finds or makes it by its
//! [`Shape`](shape::Shape), and all runtimes of that shape share it. Its memory never goes back and
//! keeps its type. So a late look at an object finds an object of the same type
//! (`counter::incarnation`).
//!
//! To take or put an object takes a lock that other threads rarely take, and a few words; where the
//! depot has only high objects, it looks through the bits of the lower ones, a word for 64 objects.
//! This code never calls the process's allocator, so it never enters one that charges. If the
//! system has no memory, that is an error: [`NoMemory`]. So a thread may take an object anywhere,
//! under any lock and inside a charge.
//!
//! Edges: E12 (put/taken elsewhere), E30 (a chunk is published/an object is looked up).

pub(crate) mod cache;
mod depot;
mod directory;
mod lowest;
pub(crate) mod pages;
pub(crate) mod shape;
mod table;

pub use shape::PoolAlign;
pub use table::{PoolRow, PoolTable};

pub(crate) use crate::numa::mapping::NoMemory;
pub(crate) use cache::{Cache, cache};
pub(crate) use directory::directory;
pub(crate) use pages::PageVec;
