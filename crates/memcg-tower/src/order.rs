//! The bytes to charge for a request, and the way to call or refuse it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{CONTENT_ENCODING, UPGRADE};
use http::{Method, Request};
use http_body::Body;
use memcg::{Bytes, Charge, ChargeFuture, Group, GroupName, GroupScope, OnFull};
use tower_service::Service;

use crate::account::{Account, AdmittedRequest, Expected};
use crate::figures::Wait;
use crate::hold::{Alone, Hold};
use crate::ledger::{Ledger, Promise, Turn};
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::request_body::RequestBody;
use crate::sends::SMALL;
use crate::settings::{RequestWeight, Settings, Weight};
use crate::stages::Running;
use crate::upgrade::Upgrade;

/// The bytes to charge for a request, and the group to charge.
pub(crate) struct Order {
    tenant: Group,
    /// The request's own group, where it has one.
    scope: Option<Box<GroupScope>>,
    /// The overhead and the response, which are charged before it runs.
    own: u64,
    /// The bytes that its body is to bring.
    expects: u64,
    body: Kind,
    response: u64,
    window: u64,
    /// The code that runs for it may reach its account: its connection may go on after the answer,
    /// with another protocol, or its body becomes another one.
    has_extension: bool,
}

/// What a request lacks that is not admitted at once.
pub(crate) enum Lacks {
    /// Room beside what is promised to its tenant.
    Promise(Arc<Ledger>),
    /// The bytes that it takes itself. It has its promise, if it makes one.
    Bytes(Option<Promise>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// There is none, or it has ended.
    Ended,
    /// The head says its length.
    Known,
    Unknown,
}

impl Order {
    /// `Err`: the tenant is under pressure, or the request gets no group of its own.
    #[inline(always)]
    pub(crate) fn new<B: Body>(
        weighed: RequestWeight,
        request: &Request<B>,
        settings: &Settings,
    ) -> Result<Order, Refusal> {
        // Before a group of its own is created: a request that is shed costs no more than the look
        // at pressure.
        if let Some((group, pressure)) = weighed.sheds_for(settings.shed_from) {
            return Err(Refusal::of_pressure(&group, pressure));
        }
        let Weight {
            overhead,
            unknown,
            window,
            response,
        } = weighed.weight(settings.weight);
        let tenant = weighed.tenant;
        let body = request.body();
        let (body, expects) = if body.is_end_stream() {
            (Kind::Ended, 0)
        } else {
            // An upper bound alone, as that of a decompressed body, is no length.
            match body.size_hint().exact() {
                Some(length) => (Kind::Known, length.min(window)),
                None => (Kind::Unknown, unknown.min(window)),
            }
        };
        let scope = match settings.request_group {
            Some(limits) => match tenant.scope(GroupName::Unnamed, limits) {
                Ok(scope) => Some(Box::new(scope)),
                Err(refused) => return Err(Refusal::of_group(&refused, &tenant)),
            },
            None => None,
        };
        let own = overhead.saturating_add(response);
        let headers = request.headers();
        let has_extension = settings.admitted
            || scope.is_some()
            || headers.contains_key(UPGRADE)
            || headers.contains_key(CONTENT_ENCODING)
            || request.method() == Method::CONNECT;
        Ok(Order {
            tenant,
            scope,
            own,
            expects,
            body,
            response,
            window,
            has_extension,
        })
    }

    pub(crate) fn group(&self) -> &Group {
        self.scope.as_deref().map_or(&self.tenant, |scope| scope)
    }

    /// The ledger of its tenant, if the request promises something, or others of its tenant wait
    /// to. A small body comes in one frame, and is charged then.
    #[inline]
    fn ledger(&self) -> Option<Arc<Ledger>> {
        if self.expects > SMALL {
            Some(Ledger::of(&self.tenant))
        } else {
            Ledger::with_line(&self.tenant)
        }
    }

    /// The head says no length.
    #[inline]
    pub(crate) fn is_stream(&self) -> bool {
        self.body == Kind::Unknown
    }

    fn total(&self) -> u64 {
        self.own.saturating_add(self.expects)
    }

    /// Charges it where there is room and it may pass those that wait. `Err`: what it lacks.
    #[inline(always)]
    pub(crate) fn charge_if_room(&self) -> Result<(Charge, Option<Promise>), Lacks> {
        match self.ledger() {
            None => match self
                .group()
                .charge_with(Bytes(self.own), OnFull::IfRoom)
                .ok()
            {
                Some(charge) => Ok((charge, None)),
                None => Err(Lacks::Bytes(None)),
            },
            Some(ledger) => self.promise_and_charge(ledger),
        }
    }

    #[inline(never)]
    fn promise_and_charge(&self, ledger: Arc<Ledger>) -> Result<(Charge, Option<Promise>), Lacks> {
        // The ledger knows the room of the tenant and not that of the request's own group. A
        // promise that could never be kept would hold others up: it goes on to `never_fits`.
        let is_never = self.scope.is_some() && self.total() > self.group().effective_max();
        let promise = if is_never {
            None
        } else {
            ledger.promise(self.total())
        };
        let Some(mut promise) = promise else {
            return Err(Lacks::Promise(ledger));
        };
        match self
            .group()
            .charge_with(Bytes(self.own), OnFull::IfRoom)
            .ok()
        {
            Some(charge) => {
                promise.is_charged(self.own);
                Ok((charge, Some(promise)))
            }
            None => Err(Lacks::Bytes(Some(promise))),
        }
    }

    /// Why it can never be charged: a max is too low, or the tenant is offline.
    fn never_fits(&self) -> Option<Refusal> {
        let total = self.total();
        if total <= self.group().effective_max() && !self.tenant.is_offline() {
            return None;
        }
        // Charged in earnest, for the error that says which group lacks how much, which the
        // client's answer is made of.
        match self.group().charge_with(Bytes(total), OnFull::Reclaim) {
            // The max was raised.
            Ok(_) => None,
            Err(refused) => Some(Refusal::of_charge(
                &refused,
                &self.tenant,
                total,
                Duration::ZERO,
            )),
        }
    }

    /// Charges it at once, with reclaim.
    pub(crate) fn charge_now(&self, lacks: Lacks) -> Result<(Charge, Option<Promise>), Refusal> {
        if let Some(refusal) = self.never_fits() {
            return Err(refusal);
        }
        let mut promise = match lacks {
            Lacks::Bytes(promise) => promise,
            Lacks::Promise(ledger) => match ledger.join(self.total()).now() {
                Some(promise) => Some(promise),
                None => return Err(self.no_room_beside(&ledger, Duration::ZERO)),
            },
        };
        match self.group().charge_with(Bytes(self.own), OnFull::Reclaim) {
            Ok(charge) => {
                if let Some(promise) = &mut promise {
                    promise.is_charged(self.own);
                }
                Ok((charge, promise))
            }
            Err(refused) => Err(Refusal::of_charge(
                &refused,
                &self.tenant,
                self.own,
                Duration::ZERO,
            )),
        }
    }

    fn no_room_beside(&self, ledger: &Ledger, waited: Duration) -> Refusal {
        let total = self.total();
        Refusal::of_promises(
            ledger.refuses(self.group(), total),
            &self.tenant,
            total,
            waited,
        )
    }

    /// The request is admitted. Returns what it holds, and what its body takes part in.
    #[inline(always)]
    pub(crate) fn admit<B>(
        self,
        (charge, promise): (Charge, Option<Promise>),
        request: &mut Request<B>,
        settings: &Arc<Settings>,
    ) -> (Hold, Option<Arc<Account>>) {
        let response = self.response;
        let window = self.window;
        let settings = Arc::clone(settings);
        let has_ended = self.body == Kind::Ended;
        let has_extension = self.has_extension;
        // Nothing but the future of the answer needs the charge. It keeps that itself, and nothing
        // is allocated for the request.
        if has_ended && !has_extension {
            return (
                Hold::Alone(Alone {
                    charge,
                    response,
                    window,
                    settings,
                    group: self.tenant,
                }),
                None,
            );
        }
        // Only the failure of a body becomes an answer from here on.
        let protocol = if has_ended {
            Protocol::Http
        } else {
            Protocol::of(request.headers())
        };
        let upgrade = if has_extension {
            Upgrade::of(request)
        } else {
            None
        };
        let expected = Expected {
            request: self.expects,
            promise,
            response,
            window,
        };
        let account = Account::new(
            self.tenant,
            self.scope,
            charge,
            expected,
            protocol,
            settings,
        );
        if has_extension {
            request
                .extensions_mut()
                .insert(AdmittedRequest(Arc::clone(&account)));
        }
        let of_body = (!has_ended).then(|| Arc::clone(&account));
        (Hold::Shared(account, upgrade), of_body)
    }

    /// Calls the inner service for a request that is admitted, in its group.
    pub(crate) fn call<S, B, R>(
        self,
        inner: &mut S,
        mut request: Request<B>,
        charged: (Charge, Option<Promise>),
        settings: &Arc<Settings>,
    ) -> Running<S::Future, R>
    where
        S: Service<Request<RequestBody<B>>>,
        B: Body,
    {
        let is_stream = self.is_stream();
        let (hold, of_body) = self.admit(charged, &mut request, settings);
        let request = request.map(|body| RequestBody::new(body, of_body, is_stream));
        let future = hold.group().run(|| inner.call(request));
        Running::new(future, hold)
    }
}

/// A request in line: first for room beside what is promised to its tenant, then for the bytes that
/// it takes itself.
pub(crate) struct Line {
    /// First: its drop leaves the line of the group before all else goes.
    charge: Option<ChargeFuture>,
    turn: Option<Turn>,
    promise: Option<Promise>,
    /// It was looked at whether it can be charged at all.
    may_fit: bool,
    wait: Wait,
}

impl Line {
    pub(crate) fn new(order: &Order, lacks: Lacks, settings: &Settings) -> Line {
        let (turn, promise) = match lacks {
            Lacks::Promise(ledger) => (Some(ledger.join(order.total())), None),
            Lacks::Bytes(promise) => (None, promise),
        };
        Line {
            charge: None,
            turn,
            promise,
            may_fit: false,
            wait: Wait::begins(&settings.counts),
        }
    }

    pub(crate) fn poll(
        &mut self,
        order: &Order,
        settings: &Settings,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Charge, Option<Promise>), Refusal>> {
        let ended = ready!(self.poll_on(order, settings, context));
        self.wait.ends();
        Poll::Ready(ended)
    }

    fn poll_on(
        &mut self,
        order: &Order,
        settings: &Settings,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Charge, Option<Promise>), Refusal>> {
        // Once, and before it takes a place: one that can never be charged would stand in line for
        // all its patience.
        if !self.may_fit {
            if let Some(refusal) = order.never_fits() {
                return Poll::Ready(Err(refusal));
            }
            self.may_fit = true;
        }
        if let Some(turn) = &mut self.turn {
            let until = self.wait.since.checked_add(settings.patience);
            let Some(promise) = ready!(turn.poll(until, context)) else {
                return Poll::Ready(Err(
                    order.no_room_beside(turn.ledger(), self.wait.since.elapsed())
                ));
            };
            self.promise = Some(promise);
            self.turn = None;
        }
        let charge = self.charge.get_or_insert_with(|| {
            // One patience for both lines.
            // Mutation: each-line-has-a-patience-of-its-own
            let left = settings.patience.saturating_sub(self.wait.since.elapsed());
            order.group().charge_async(Bytes(order.own)).timeout(left)
        });
        let charged = ready!(Pin::new(charge).poll(context));
        Poll::Ready(match charged {
            Ok(charge) => {
                if let Some(promise) = &mut self.promise {
                    promise.is_charged(order.own);
                }
                Ok((charge, self.promise.take()))
            }
            Err(refused) => Err(Refusal::of_charge(
                &refused,
                &order.tenant,
                order.own,
                settings.patience,
            )),
        })
    }
}
