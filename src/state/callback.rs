//! A function of the user's that a group has registered.

use crate::counter::handle::Handle;
use crate::thread::foreign::{Calls, Foreign};

/// The function, and its calls. Keeps the group: a call may outlive its guard.
pub(crate) struct Callback<A> {
    pub(crate) group: Handle,
    pub(crate) calls: Calls,
    pub(crate) function: Foreign<Function<A>>,
}

pub(crate) type Function<A> = Box<dyn Fn(&A) + Send + Sync>;
