//! The chapters of the book that have code: each is compiled and run as documentation.

#[doc = include_str!("src/concepts.md")]
pub mod concepts {}

#[doc = include_str!("src/budgets.md")]
pub mod budgets {}

#[doc = include_str!("src/limits.md")]
pub mod limits {}

#[doc = include_str!("src/reclaim.md")]
pub mod reclaim {}

#[doc = include_str!("src/waiting.md")]
pub mod waiting {}

#[doc = include_str!("src/allocation.md")]
pub mod allocation {}

#[doc = include_str!("src/statistics.md")]
pub mod statistics {}

#[doc = include_str!("src/nodes.md")]
pub mod nodes {}

#[doc = include_str!("src/recipes.md")]
pub mod recipes {}
