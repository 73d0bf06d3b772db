//! What each policy embeds in a group: one leaf file for each policy.

pub(crate) mod events;
pub(crate) mod name;
pub(crate) mod service;
