//! What a runtime takes itself: one figure, and the group that it is charged to.
//!
//! * `figure`: what it counts, against what the system says; what is used again;
//! * `charged`: which group has it while groups and threads come and go.

mod charged;
#[cfg(target_os = "linux")]
mod figure;

use memcg::{Group, Limits};

pub(crate) fn create(parent: &Group, name: &str) -> Group {
    parent.create(name, Limits::new()).expect("a name that is free")
}
