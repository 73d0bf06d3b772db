//! What a request is charged, and how it is called or refused.

use std::sync::Arc;

use http::Request;
use http_body::Body;
use memcg::{Charge, ChargeError, Group, GroupName, GroupScope};
use tower_service::Service;

use crate::account::{Account, Admitted};
use crate::body::RequestBody;
use crate::refusal::{Refusal, is_grpc};
use crate::settings::Settings;
use crate::stages::{Refusing, Running};

/// What a request is charged, and to which group.
pub(crate) struct Order {
    pub(crate) tenant: Group,
    /// The request's own group, where it has one.
    scope: Option<GroupScope>,
    request: u64,
    pub(crate) bytes: u64,
}

impl Order {
    /// `Err`: the request gets no group of its own.
    pub(crate) fn new<B: Body>(tenant: Group, body: &B, settings: &Settings) -> Result<Order, Refusal> {
        // The length that the head says. An upper bound alone, as that of a decompressed body, is no length.
        let request = body.size_hint().exact().unwrap_or(settings.unknown).min(settings.window);
        let bytes = settings.overhead.saturating_add(settings.response).saturating_add(request);
        let scope = match settings.request_group {
            Some(limits) => match tenant.scope(GroupName::Unnamed, limits) {
                Ok(scope) => Some(scope),
                Err(refused) => return Err(Refusal::of_group(&refused, &tenant)),
            },
            None => None,
        };
        Ok(Order { tenant, scope, request, bytes })
    }

    pub(crate) fn group(&self) -> &Group {
        self.scope.as_deref().unwrap_or(&self.tenant)
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

    /// Calls the inner service, in the group. Inlined, so that its future is made where it stays, and is not moved.
    #[inline(always)]
    pub(crate) fn call<S, B>(
        self,
        inner: &mut S,
        request: Request<B>,
        charge: Charge,
        settings: &Settings,
    ) -> Running<S::Future>
    where
        S: Service<Request<RequestBody<B>>>,
    {
        let is_grpc = is_grpc(request.headers());
        let account = match self.scope {
            Some(scope) => Account::of_request(scope, charge, self.request, settings.response),
            None => Account::new(self.tenant, charge, self.request, settings.response),
        };
        let of_body = Arc::clone(&account);
        let mut request = request.map(|body| RequestBody::new(body, of_body, self.request, settings.window));
        if settings.request_group.is_some() {
            request.extensions_mut().insert(Admitted(Arc::clone(&account)));
        }
        let future = account.group().run(|| inner.call(request));
        Running::new(future, account, settings.patience, is_grpc)
    }
}
