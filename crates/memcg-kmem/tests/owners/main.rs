#![cfg(not(any(loom, shuttle)))]
//! Memory of containers is charged to the byte, accounted where it lies, and all of it goes back.
//!
//! * `vec`, `slab`, `store`, `percpu`: each container alone; `slab_moves`, `store_moves`: pages and
//!   objects that move; `store_model`: any operations on a store, against a naive twin;
//! * `together`: groups that go offline in the middle; `outlive`: groups, runtimes and threads that
//!   end first;
//! * `node_table`: the table of nodes against a naive one;
//! * `texts`: what debug forms and errors say; `selftests`: a scenario of the kernel's.

mod node_table;
mod nodes;
mod outlive;
mod percpu;
mod selftests;
mod slab;
mod slab_moves;
mod store;
mod store_model;
mod store_moves;
mod texts;
mod together;
mod vec;
