//! How it works, what is exact, and what it does not do: pages without code.
//!
//! * [`protocol`]: states, steps and races of a charge.
//! * [`lifecycle`]: how a group comes and goes.
//! * [`statistics`]: how events are counted and read.
//! * [`orderings`]: every ordering edge, its two ends and its model.
//! * [`exactness`]: what each figure means and how far it may be off.
//! * [`limitations`]: what not to do with it.
//! * [`kernel_map`]: where the names come from, and where they mean something else here.

pub mod exactness;
pub mod kernel_map;
pub mod limitations;
pub mod orderings;

#[doc = include_str!("../counter/README.md")]
pub mod protocol {}

#[doc = include_str!("../lifecycle/README.md")]
pub mod lifecycle {}

#[doc = include_str!("../stat/README.md")]
pub mod statistics {}
