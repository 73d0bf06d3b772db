//! A function of the user's that a group has registered.

use crate::counter::handle::Handle;
use crate::thread::foreign::{Foreign, ForeignCalls};

/// The function, and its calls. Keeps the group: a call may outlive its guard.
pub(crate) struct Callback<A> {
    pub(crate) group: Handle,
    pub(crate) calls: ForeignCalls,
    pub(crate) function: Foreign<CallbackFunction<A>>,
}

pub(crate) type CallbackFunction<A> = Box<dyn Fn(&A) + Send + Sync>;
