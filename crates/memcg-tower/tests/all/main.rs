//! All but what needs an allocator of its own: one program, for to link a server with its clients takes longer than most
//! tests run.

mod answers;
mod beside;
mod connections;
#[cfg(feature = "axum")]
mod extract;
mod figures;
mod frames;
mod grpc;
mod high;
mod ledger;
mod pace;
#[cfg(all(feature = "axum", unix))]
mod pacing;
mod promises;
mod refusals;
mod rest;
mod strangers;
mod support;
mod upgrades;
