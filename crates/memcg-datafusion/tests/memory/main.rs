//! The memory pool under real reservations, real queries and real tenants.

mod arrow;
mod data;
mod demand;
mod ends;
mod files;
mod frames;
mod pool;
mod queries;
mod queue;
mod sessions;
mod sorts;
mod sql;
mod tenants;
mod tpch;
mod tracer;
mod waiting;
