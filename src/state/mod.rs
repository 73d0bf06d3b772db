//! What each policy embeds in a group: one leaf file a policy.

pub(crate) mod events;
