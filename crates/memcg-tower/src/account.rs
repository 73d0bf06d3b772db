//! What a request holds, from its admission to the last of its future, its body and the body of its response.
//!
//! The account and what points to it are made of whole words. The bytes of a smaller field, which is written alone and
//! then moved with others, cost more than an atomic instruction.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memcg::{Bytes, Charge, ChargeError, Group, GroupScope};

use crate::protocol::Protocol;
use crate::settings::Settings;

/// The reservation of a request. Its last owner gives the bytes back.
pub(crate) struct Account {
    state: Mutex<State>,
    /// Below the charge: the group goes offline after its bytes are given back.
    scope: Option<Box<GroupScope>>,
    group: Group,
    /// How long a frame of the response may wait for room, in nanoseconds.
    patience: u64,
    /// The most bytes to reserve for a body.
    pub(crate) window: u64,
    pub(crate) protocol: Protocol,
}

struct State {
    charge: Charge,
    /// Of the charge: for the body of the request, whether it has come or not. [`ANSWERED`] once the handler has
    /// answered.
    request: u64,
    /// Of the charge: for the response.
    response: u64,
    /// Why the body of the request has failed, which is the answer whatever the handler says. On the heap: it is large,
    /// and most bodies do not fail.
    failed: Option<Box<Failed>>,
}

/// What still comes of the body is a stream, which the overhead covers, whatever its length.
const ANSWERED: u64 = u64::MAX;

/// Why a body was not read to its end.
pub(crate) enum Failed {
    /// It has outgrown what was reserved for it.
    Outgrown(ChargeError),
    /// Its group is above max by force, or cancelled.
    Refused(ChargeError),
}

impl State {
    /// Takes off what is given back. The caller drops it without the lock: wakers may run then.
    fn split(&mut self, surplus: u64) -> Option<Charge> {
        // A charge of no bytes would take a handle, and give it up.
        if surplus == 0 { None } else { self.charge.split(Bytes(surplus)).ok() }
    }
}

impl Account {
    /// What a request has that was charged to its tenant or to its own group. So many bytes are for its body.
    #[inline]
    pub(crate) fn new(
        tenant: Group,
        scope: Option<Box<GroupScope>>,
        charge: Charge,
        request: u64,
        protocol: Protocol,
        settings: &Settings,
    ) -> Arc<Account> {
        let group = scope.as_deref().map_or(tenant, |scope| Group::clone(scope));
        let state = State { charge, request, response: settings.response, failed: None };
        let patience = settings.patience_ns();
        Arc::new(Account { state: Mutex::new(state), scope, group, patience, window: settings.window, protocol })
    }

    /// What a response has alone, to share it with a large frame.
    pub(crate) fn of_response(charge: Charge, response: u64, patience: u64, window: u64, group: Group) -> Arc<Account> {
        let state = State { charge, request: ANSWERED, response, failed: None };
        Arc::new(Account { state: Mutex::new(state), scope: None, group, patience, window, protocol: Protocol::Http })
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience)
    }

    /// What is charged now.
    pub(crate) fn bytes(&self) -> u64 {
        self.state().charge.bytes()
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Whose request it is: the parent of the request's own group, where it has one.
    pub(crate) fn tenant(&self) -> Group {
        self.scope.as_deref().and_then(|scope| scope.parent()).unwrap_or_else(|| self.group.clone())
    }

    /// Each change is whole before the lock is given up, so a panic elsewhere leaves nothing half done.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many bytes of the request's body have come. What is reserved covers them, or they are charged at once.
    pub(crate) fn has_read(&self, read: u64) -> Result<(), ChargeError> {
        let missing = {
            let state = self.state();
            read.saturating_sub(state.request)
        };
        if missing == 0 {
            return Ok(());
        }
        match self.group().try_charge_now(Bytes(missing)) {
            Ok(charge) => {
                self.merge(charge, |state| state.request = state.request.saturating_add(missing));
                Ok(())
            }
            Err(refusal) => {
                self.fail(Failed::Outgrown(refusal.clone()));
                Err(refusal)
            }
        }
    }

    /// No more of the body will come: what was reserved for more is given back.
    pub(crate) fn has_read_all(&self, read: u64) {
        let given_back = {
            let mut state = self.state();
            if state.request == ANSWERED {
                return;
            }
            let surplus = state.request.saturating_sub(read);
            state.request -= surplus;
            state.split(surplus)
        };
        drop(given_back);
    }

    /// The handler has answered: of what its request's body took, so much is for the response from here on. Returns what
    /// the response has. `Err`: the body of the request has failed, which is the answer.
    pub(crate) fn has_answered(&self, response: u64) -> Result<u64, Box<Failed>> {
        let (has, given_back) = {
            let mut state = self.state();
            if let Some(failed) = state.failed.take() {
                return Err(failed);
            }
            let moved = state.request.min(response);
            let surplus = state.request - moved;
            state.request = ANSWERED;
            (state.response + moved, state.split(surplus))
        };
        drop(given_back);
        Ok(has)
    }

    /// Bytes for a larger frame of the response.
    pub(crate) fn add_for_response(&self, charge: Charge) {
        self.merge(charge, |_| {});
    }

    fn merge(&self, charge: Charge, note: impl FnOnce(&mut State)) {
        let unmerged = {
            let mut state = self.state();
            let merged = state.charge.merge(charge);
            if merged.is_ok() {
                note(&mut state);
            }
            merged
        };
        // Both are charges of one group, so nothing is left; it would be given back without the lock.
        drop(unmerged);
    }

    pub(crate) fn fail(&self, failed: Failed) {
        // The old value, a handle on a group, is dropped without the lock.
        let before = self.state().failed.replace(Box::new(failed));
        drop(before);
    }

    pub(crate) fn failed(&self) -> Option<Box<Failed>> {
        self.state().failed.take()
    }
}

/// The admitted request, as an extension of it: which group it is charged to. Each clone keeps what the request holds.
///
/// With axum, `Extension<Admitted>` extracts it. It is there where
/// [`request_groups`](crate::AdmissionLayer::request_groups) is set.
///
/// ```
/// use axum::Extension;
/// use memcg_tower::Admitted;
///
/// async fn handler(Extension(admitted): Extension<Admitted>) -> String {
///     format!("charged to {}", admitted.group().path())
/// }
/// ```
#[derive(Clone)]
pub struct Admitted(pub(crate) Arc<Account>);

impl Admitted {
    /// Returns the request's group, to charge what the handler takes.
    pub fn group(&self) -> &Group {
        self.0.group()
    }

    /// Returns the bytes that the layer holds for the request now.
    pub fn reserved(&self) -> u64 {
        self.0.bytes()
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").field("group", self.group()).field("reserved", &self.reserved()).finish()
    }
}
