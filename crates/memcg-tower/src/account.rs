//! All that a request holds, from its admission to the last of its future, its body and the body of
//! its response.
//!
//! The account and what points to it are made of whole words. The bytes of a smaller field, which
//! is written alone and then moved with others, cost more than an atomic instruction.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use http_body::Frame;
use memcg::{Bytes, Charge, ChargeError, ChargeFuture, Group, GroupScope, OnFull};

use crate::frame::{BodyError, OutgrownError, len};
use crate::ledger::{Ledger, Promise};
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::settings::Settings;

/// All that a request holds. Its last owner gives the bytes back.
pub(crate) struct Account {
    state: Mutex<State>,
    /// Below the charge: the line looks again after its bytes are given back.
    line: Option<Line>,
    /// Below the charge: the group goes offline after its bytes are given back.
    scope: Option<Box<GroupScope>>,
    group: Group,
    settings: Arc<Settings>,
    /// The most bytes to charge for a body.
    pub(crate) window: u64,
    pub(crate) protocol: Protocol,
}

struct State {
    charge: Charge,
    /// The part of the promised body that is still to come.
    promise: Option<Promise>,
    /// The most bytes that a reader of the body has seen, up to the window: what has come, or what
    /// that was decoded to.
    come: u64,
    /// Of that: a frame that finds no room waits. What is beyond it has outgrown its promise.
    expects: u64,
    /// Of the charge: for the body of the request, as it has come.
    request: u64,
    /// Of the charge: for the response.
    response: u64,
    has_answered: bool,
    /// Why the body of the request has failed, which is the answer whatever the handler says. On
    /// the heap: it is large, and most bodies do not fail.
    failed: Option<Box<Refusal>>,
}

/// The line of the tenant, which has a look when the request has ended.
struct Line(Arc<Ledger>);

impl Drop for Line {
    fn drop(&mut self) {
        self.0.look();
    }
}

/// The bytes that the bodies are to bring.
pub(crate) struct Expected {
    /// That of the request.
    pub(crate) request: u64,
    /// The promise of that body, if it is large enough to make one.
    pub(crate) promise: Option<Promise>,
    /// The bytes that the charge already has for the response.
    pub(crate) response: u64,
    /// The most bytes to charge for a body.
    pub(crate) window: u64,
}

/// The outcome of a frame that has come.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives for one poll, on the stack"
)]
pub(crate) enum Came<D> {
    Charged(Frame<D>),
    /// It is charged for as long as it lives.
    Alone(Frame<D>, Charge),
    /// The same, or charged with the others, of so many bytes: above a high, whose delay was not
    /// taken.
    AboveHigh(Frame<D>, Option<Charge>, u64),
    /// There is no room yet.
    Waits(Waiting<D>),
}

/// A frame that has come, and the charge that it waits for.
pub(crate) struct Waiting<D> {
    pub(crate) frame: Frame<D>,
    due: Due,
}

impl<D: Buf> Waiting<D> {
    /// The frame, once it is charged. It leaves its place then, and is no more to be polled.
    pub(crate) fn poll(
        waiting: &mut Option<Waiting<D>>,
        account: &Account,
        context: &mut Context<'_>,
    ) -> Poll<Result<Came<D>, BodyError>> {
        let Some(Waiting { due, .. }) = waiting else {
            return Poll::Pending;
        };
        let charged = ready!(Pin::new(&mut due.charge).poll(context));
        let Some(Waiting { frame, due }) = waiting.take() else {
            return Poll::Pending;
        };
        Poll::Ready(match charged {
            Ok(charge) => Ok(match account.has_waited(charge, due) {
                Some(alone) => Came::Alone(frame, alone),
                None => Came::Charged(frame),
            }),
            Err(refused) => {
                // Mutation: a-body-that-is-refused-is-no-answer
                account.fail_refused(&refused);
                Err(BodyError::Refused(refused))
            }
        })
    }
}

/// The charge that a frame waits for.
struct Due {
    charge: ChargeFuture,
    /// `None`: it is charged for as long as it lives.
    of_request: Option<u64>,
    /// Below the charge, which is made before this ends.
    promise: Option<Promise>,
}

impl State {
    /// Takes off what is given back. The caller drops it without the lock: wakers may run then.
    fn split(&mut self, surplus: u64) -> Option<Charge> {
        // A charge of no bytes would take a handle, and give it up.
        if surplus == 0 {
            None
        } else {
            self.charge.split(Bytes(surplus)).ok()
        }
    }
}

impl Account {
    /// The account of a request that was charged to its tenant or to its own group.
    #[inline]
    pub(crate) fn new(
        tenant: Group,
        scope: Option<Box<GroupScope>>,
        charge: Charge,
        expected: Expected,
        protocol: Protocol,
        settings: Arc<Settings>,
    ) -> Arc<Account> {
        let group = scope.as_deref().map_or(tenant, |scope| Group::clone(scope));
        let Expected {
            request: expects,
            promise,
            response,
            window,
        } = expected;
        let line = promise
            .as_ref()
            .map(|promise| Line(Arc::clone(promise.ledger())));
        let has_answered = false;
        let come = 0;
        let request = 0;
        let failed = None;
        let state = State {
            charge,
            promise,
            come,
            expects,
            request,
            response,
            has_answered,
            failed,
        };
        Arc::new(Account {
            state: Mutex::new(state),
            line,
            scope,
            group,
            settings,
            window,
            protocol,
        })
    }

    /// The account that a response has alone, to share it with a large frame.
    pub(crate) fn of_response(
        charge: Charge,
        response: u64,
        window: u64,
        settings: Arc<Settings>,
        group: Group,
    ) -> Arc<Account> {
        let expected = Expected {
            request: 0,
            promise: None,
            response,
            window,
        };
        Account::new(group, None, charge, expected, Protocol::Http, settings)
    }

    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(crate) fn patience(&self) -> Duration {
        self.settings.patience
    }

    /// The bytes that the charge holds now.
    pub(crate) fn bytes(&self) -> u64 {
        self.state().charge.bytes()
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Whose request it is: the parent of the request's own group, where it has one.
    pub(crate) fn tenant(&self) -> Group {
        self.scope
            .as_deref()
            .and_then(|scope| scope.parent())
            .unwrap_or_else(|| self.group.clone())
    }

    /// Each change is whole before the lock is given up, so a panic elsewhere leaves nothing half
    /// done.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A frame has come, and with it so many bytes of the body. It is charged, or waits. Of a
    /// stream that goes on after the answer each frame is charged alone. `Err`: it has outgrown
    /// what was promised.
    #[inline]
    pub(crate) fn comes<D: Buf>(
        &self,
        frame: Frame<D>,
        total: u64,
        is_stream: bool,
    ) -> Result<Came<D>, BodyError> {
        let (due, beyond, mut promise) = {
            let mut state = self.state();
            // Mutation: a-stream-is-charged-with-its-request
            if is_stream && state.has_answered {
                drop(state);
                return Ok(self.comes_alone(frame));
            }
            // Of a body that is read in parts no more than the window is in memory at a time.
            // Decoded bytes count from where they exceed those that came.
            let due = total.min(self.window).saturating_sub(state.come);
            if due == 0 {
                return Ok(Came::Charged(frame));
            }
            let beyond = due.saturating_sub(state.expects.saturating_sub(state.come));
            // Before it is charged, and so for good: where that fails, the request does.
            state.come += due;
            (
                due,
                beyond,
                state.promise.as_mut().map(|promise| promise.split(due)),
            )
        };
        if beyond > 0 {
            return match self.charge_beyond(due, promise.as_ref()) {
                Ok((charge, is_below_high)) => {
                    self.add_promised(charge, due, promise.as_mut());
                    Ok(if is_below_high {
                        Came::Charged(frame)
                    } else {
                        Came::AboveHigh(frame, None, due)
                    })
                }
                Err(text) => {
                    self.fail(Refusal::of_outgrown(&text, &self.group));
                    Err(BodyError::Outgrown(OutgrownError(text)))
                }
            };
        }
        if let Ok(charge) = self.group.charge_with(Bytes(due), OnFull::IfRoom) {
            self.add_promised(charge, due, promise.as_mut());
            return Ok(Came::Charged(frame));
        }
        Ok(self.comes_without_room(frame, due, promise))
    }

    /// A frame of a promise that has no room below each high.
    #[cold]
    fn comes_without_room<D>(
        &self,
        frame: Frame<D>,
        due: u64,
        mut promise: Option<Promise>,
    ) -> Came<D> {
        if let Some(charge) = self.charge_above_high(due) {
            self.add_promised(charge, due, promise.as_mut());
            return Came::AboveHigh(frame, None, due);
        }
        let due = Due {
            charge: self.waits_for(due),
            of_request: Some(due),
            promise,
        };
        Came::Waits(Waiting { frame, due })
    }

    /// What was promised is charged.
    #[inline]
    fn add_promised(&self, charge: Charge, due: u64, promise: Option<&mut Promise>) {
        self.add_for_request(charge, due);
        if let Some(promise) = promise {
            promise.is_charged(due);
        }
    }

    /// Charges what has come, of which only `promise` was promised. It never waits. False: it may be
    /// above a high, whose delay was not taken.
    #[cold]
    fn charge_beyond(&self, due: u64, promise: Option<&Promise>) -> Result<(Charge, bool), String> {
        let ledger = promise.map_or_else(
            || Ledger::of(&self.tenant()),
            |promise| Arc::clone(promise.ledger()),
        );
        let unpromised = due - promise.map_or(0, Promise::bytes);
        // What others of the tenant were promised is not to be taken by one that has promised less
        // than it brings.
        let Some(mut beyond) = ledger.promise_beyond(unpromised) else {
            return Err(ledger.refuses(&self.group, due));
        };
        if let Ok(charge) = self.group.charge_with(Bytes(due), OnFull::IfRoom) {
            beyond.is_charged(unpromised);
            return Ok((charge, true));
        }
        // In a poll: reclaimers run on this thread only where nothing else makes room.
        let charge = match self.group.try_charge(Bytes(due)) {
            Err(error) if error.is_would_block() => {
                self.group.charge_with(Bytes(due), OnFull::Reclaim)
            }
            charged => charged,
        };
        let charge = charge.map_err(|refused| refused.to_string())?;
        beyond.is_charged(unpromised);
        Ok((charge, false))
    }

    #[cold]
    fn comes_alone<D: Buf>(&self, frame: Frame<D>) -> Came<D> {
        let bytes = len(&frame);
        match self.group.charge_with(Bytes(bytes), OnFull::IfRoom).ok() {
            Some(charge) => Came::Alone(frame, charge),
            None => {
                if let Some(charge) = self.charge_above_high(bytes) {
                    return Came::AboveHigh(frame, Some(charge), bytes);
                }
                let due = Due {
                    charge: self.waits_for(bytes),
                    of_request: None,
                    promise: None,
                };
                Came::Waits(Waiting { frame, due })
            }
        }
    }

    /// Charges what has come and is above a high, where there is room below each max. Its delay is
    /// left to the body, which takes that of many frames at once.
    #[cold]
    fn charge_above_high(&self, bytes: u64) -> Option<Charge> {
        self.group.charge_with(Bytes(bytes), OnFull::Now).ok()
    }

    fn waits_for(&self, bytes: u64) -> ChargeFuture {
        self.group
            .charge_async(Bytes(bytes))
            .timeout(self.patience())
    }

    /// Takes the charge that the frame has waited for. Returns it where it is charged alone.
    fn has_waited(&self, charge: Charge, mut due: Due) -> Option<Charge> {
        let Some(bytes) = due.of_request else {
            return Some(charge);
        };
        self.add_promised(charge, bytes, due.promise.as_mut());
        None
    }

    fn add_for_request(&self, charge: Charge, bytes: u64) {
        self.merge(charge, |state| {
            state.request = state.request.saturating_add(bytes)
        });
    }

    /// No more of the body will come: what was promised beyond is no promise any more.
    pub(crate) fn has_read_all(&self) {
        // The line is that of a promise.
        if self.line.is_none() {
            return;
        }
        let promise = self.state().promise.take();
        // Mutation: a-body-that-has-ended-promises-on
        drop(promise);
    }

    pub(crate) fn has_answered_already(&self) -> bool {
        self.state().has_answered
    }

    /// The handler has answered: of what its request's body took, so much is for the response from
    /// here on. Returns what the response has. `Err`: the body of the request has failed, which is
    /// the answer. A connection that goes on with another protocol keeps the rest: its response is
    /// a head.
    pub(crate) fn has_answered(&self, goes_on: bool, response: u64) -> Result<u64, Box<Refusal>> {
        let (has, given_back) = {
            let mut state = self.state();
            if let Some(failed) = state.failed.take() {
                return Err(failed);
            }
            state.has_answered = true;
            let request = std::mem::take(&mut state.request);
            let (has, surplus) = if goes_on {
                (0, request + std::mem::take(&mut state.response))
            } else {
                let moved = request.min(response);
                (state.response + moved, request - moved)
            };
            (has, state.split(surplus))
        };
        if let Some(given_back) = given_back {
            // Mutation: an-answer-keeps-what-its-request-brought
            drop(given_back);
            self.look();
        }
        Ok(has)
    }

    /// Takes out what the response has.
    pub(crate) fn takes_for_response(&self, bytes: u64) -> Option<Charge> {
        let mut state = self.state();
        state.response = 0;
        let bytes = state.charge.bytes().min(bytes);
        state.charge.split(Bytes(bytes)).ok()
    }

    /// Something was given back.
    pub(crate) fn look(&self) {
        if let Some(Line(ledger)) = &self.line {
            ledger.look();
        }
    }

    /// Bytes for a larger frame of the response.
    pub(crate) fn add_for_response(&self, charge: Charge) {
        self.merge(charge, |_| {});
    }

    fn merge(&self, charge: Charge, note: impl FnOnce(&mut State)) {
        let unmerged = {
            let mut state = self.state();
            match state.charge.merge(charge) {
                Ok(()) => return note(&mut state),
                Err(unmerged) => unmerged,
            }
        };
        // Both are charges of one group, so nothing is left; it would be given back without the
        // lock.
        drop(unmerged);
    }

    /// The body has failed. It is counted here: after the answer no other place sees it.
    pub(crate) fn fail(&self, refusal: Refusal) {
        self.settings.refuses(refusal.kind, &refusal);
        // The old value is dropped without the lock.
        let before = self.state().failed.replace(Box::new(refusal));
        drop(before);
    }

    /// A frame that has waited in vain.
    fn fail_refused(&self, refused: &ChargeError) {
        // Of a frame that is larger than the window no more than that was asked for.
        let due = refused.requested();
        // Mutation: a-body-too-large-waits-for-nobody
        let total = self.bytes().saturating_add(due);
        self.fail(Refusal::of_charge(
            refused,
            &self.tenant(),
            total,
            self.patience(),
        ));
    }

    pub(crate) fn failed(&self) -> Option<Box<Refusal>> {
        self.state().failed.take()
    }
}

/// The admitted request, as an extension of it: which group it is charged to. Each clone keeps what
/// the request holds.
///
/// It is there where [`admitted`](crate::AdmissionLayer::admitted) or
/// [`request_groups`](crate::AdmissionLayer::request_groups) is set, and for a request that asks
/// for an upgrade or has a packed body. With the feature `axum` it is an extractor, whose error
/// says what is missing. An upgraded connection keeps the overhead of its request by
/// [itself](crate::KeptConnection). Its task needs this for the group that its messages are charged
/// to.
///
/// ```
/// use axum::{Router, routing::get};
/// use memcg_tower::{AdmissionLayer, AdmittedRequest};
/// # use memcg::Runtime;
///
/// async fn handler(admitted: AdmittedRequest) -> String {
///     format!("{} bytes are reserved", admitted.reserved())
/// }
///
/// # let root = Runtime::builder().max(1 << 30).build()?.root();
/// let layer = AdmissionLayer::new(move |_: &http::Request<_>| Some(root.clone()));
/// let app: Router = Router::new().route("/", get(handler)).layer(layer.admitted());
/// # drop(app);
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone)]
pub struct AdmittedRequest(pub(crate) Arc<Account>);

impl AdmittedRequest {
    /// Returns the request's group, to charge what the handler takes.
    pub fn group(&self) -> &Group {
        self.0.group()
    }

    /// Returns the bytes that the layer holds for the request now.
    pub fn reserved(&self) -> u64 {
        self.0.bytes()
    }
}

impl fmt::Debug for AdmittedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmittedRequest")
            .field("group", self.group())
            .field("reserved", &self.reserved())
            .finish()
    }
}
