//! Owners of real memory: vector, slab, store. What they hold is charged to the byte, accounted where it lies, and all of
//! it goes back.

mod nodes;
mod percpu;
mod slab;
mod slab_moves;
mod store;
mod store_model;
mod store_moves;
mod together;
mod vec;
