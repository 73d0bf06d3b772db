//! What a request is charged, and how it is called or refused.

use std::sync::Arc;

use http::Request;
use http_body::Body;
use memcg::{Charge, ChargeError, Group, GroupName, GroupScope};
use tower_service::Service;

use crate::account::{Account, Admitted};
use crate::body::RequestBody;
use crate::hold::{Alone, Hold};
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::stages::{Refusing, Running};

/// What a request is charged, and to which group.
pub(crate) struct Order {
    pub(crate) tenant: Group,
    /// The request's own group, where it has one.
    scope: Option<Box<GroupScope>>,
    pub(crate) request: u64,
    /// The request has no body, or one that has ended.
    has_ended: bool,
    pub(crate) bytes: u64,
}

impl Order {
    /// `Err`: the request gets no group of its own.
    pub(crate) fn new<B: Body>(tenant: Group, body: &B, settings: &Settings) -> Result<Order, Refusal> {
        let has_ended = body.is_end_stream();
        // The length that the head says. An upper bound alone, as that of a decompressed body, is no length.
        let length = || body.size_hint().exact().unwrap_or(settings.unknown).min(settings.window);
        let request = if has_ended { 0 } else { length() };
        let bytes = settings.overhead.saturating_add(settings.response).saturating_add(request);
        let scope = match settings.request_group {
            Some(limits) => match tenant.scope(GroupName::Unnamed, limits) {
                Ok(scope) => Some(Box::new(scope)),
                Err(refused) => return Err(Refusal::of_group(&refused, &tenant)),
            },
            None => None,
        };
        Ok(Order { tenant, scope, request, has_ended, bytes })
    }

    pub(crate) fn group(&self) -> &Group {
        self.scope.as_deref().map_or(&self.tenant, |scope| scope)
    }

    /// The answer to a request that never runs, and its body where that is drained first.
    pub(crate) fn refuse<B: Body, R>(
        self,
        refused: &ChargeError,
        request: Request<B>,
        settings: &Settings,
    ) -> Refusing<B, R> {
        let refusal = Refusal::of_charge(refused, &self.tenant, self.bytes, settings.patience);
        Refusing::new(refusal, request, settings)
    }

    /// The request is admitted. Returns what it holds, and what its body takes part in.
    #[inline]
    pub(crate) fn admit<B>(
        self,
        charge: Charge,
        request: &mut Request<B>,
        settings: &Settings,
    ) -> (Hold, Option<Arc<Account>>) {
        if self.has_ended && self.scope.is_none() {
            let (response, patience, window) = (settings.response, settings.patience_ns(), settings.window);
            return (Hold::Alone(Alone { charge, response, patience, window, group: self.tenant }), None);
        }
        // Only the failure of a body becomes an answer from here on.
        let protocol = if self.has_ended { Protocol::Http } else { Protocol::of(request.headers()) };
        let has_group = self.scope.is_some();
        let account = Account::new(self.tenant, self.scope, charge, self.request, protocol, settings);
        if has_group {
            request.extensions_mut().insert(Admitted(Arc::clone(&account)));
        }
        let of_body = (!self.has_ended).then(|| Arc::clone(&account));
        (Hold::Shared(account), of_body)
    }

    /// Calls the inner service for a request that is admitted, in its group.
    pub(crate) fn call<S, B, R>(
        self,
        inner: &mut S,
        mut request: Request<B>,
        charge: Charge,
        settings: &Settings,
    ) -> Running<S::Future, R>
    where
        S: Service<Request<RequestBody<B>>>,
    {
        let reserved = self.request;
        let (hold, of_body) = self.admit(charge, &mut request, settings);
        let request = request.map(|body| RequestBody::new(body, of_body, reserved, settings.window));
        let future = hold.group().run(|| inner.call(request));
        Running::new(future, hold)
    }
}
