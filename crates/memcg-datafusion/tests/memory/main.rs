//! The memory pool under real reservations, real queries and real tenants.

mod alone;
mod arrow;
mod data;
mod demand;
mod ends;
mod figures;
mod files;
mod frames;
mod lines;
mod partitions;
mod pool;
mod queries;
mod queue;
mod repeats;
mod sessions;
mod settings;
mod sorts;
mod sql;
mod tenants;
mod tpch;
mod tracer;
mod upstream;
mod waiting;
