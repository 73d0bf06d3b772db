//! Dedicated caches: memory for objects of one type, of the process, straight from the system.
//!
//! ```text
//! take ──> stash of this thread ── empty ──> depot: the lowest that are back, else new ones ── none ──> a new chunk
//! put  ──> stash of this thread ── full ───> depot: half of them                               refused ──> other stashes
//! ```
//!
//! After the kernel's `kmem_cache`, and "use kmem_cache for memcg alloc" (H. Yang, linux-mm, 2025): sizes are computed
//! once, from what a runtime is configured for; objects lie at their own size or at whole cache lines, not at that of a
//! size class. A cache belongs to the process: it is found or made by its [`Shape`](shape::Shape) when a runtime is
//! built, before anything can ask it for an object, and shared by all runtimes of that shape. Its memory never goes
//! back and stays what it is, so a late look at an object finds an object of the same type (`charge::life`).
//!
//! ```text
//! shape      what is asked, what is given, how much is a chunk: arithmetic
//! directory  the object of a number, without a lock
//! stash      a few free objects in front of a depot, for the threads of one number
//! depot      chunks, and what of them lies in no stash
//! lowest     a set of numbers that gives out the lowest
//! pages      an array that grows, straight from the system
//! cache      the two together
//! table      what there is, for whoever wants to know
//! ```
//!
//! An object is taken and put in constant time: a lock that other threads rarely take, a few words. Nothing here goes
//! through the process's allocator, so that one which charges is not entered, and what the system refuses is an error:
//! [`NoMemory`]. So an object may be taken anywhere, under any lock and inside a charge.
//!
//! Edges: E12 (put/taken elsewhere), E30 (a chunk is published/an object is looked up).

pub(crate) mod cache;
mod depot;
mod directory;
mod lowest;
pub(crate) mod pages;
pub(crate) mod shape;
mod stash;
mod table;

pub use shape::PoolAlign;
pub use table::{PoolRow, PoolTable};

pub(crate) use cache::{Cache, cache};
pub(crate) use directory::directory;
pub(crate) use pages::NoMemory;
