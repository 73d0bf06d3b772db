//! Owners of real memory: what is charged, and to which nodes it is accounted.

#![cfg(not(loom))]

mod percpu;
