//! The service: whose request it is, what it weighs, and whether it runs at once.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use memcg::{Charge, ChargeError, CreateError, Group, GroupName, GroupScope, InGroup};
use tower_service::Service;

use crate::account::{Account, Admitted};
use crate::body::{RequestBody, ResponseBody};
use crate::future::{Refusing, ResponseFuture, Running, Waiting};
use crate::layer::Settings;
use crate::refusal::{Refusal, is_grpc};

/// The service that [`AdmissionLayer`](crate::AdmissionLayer) makes.
///
/// `poll_ready` is that of the inner service and takes nothing: it knows no request and so no tenant. A request waits for
/// its tenant in the future of `call`. So nothing is left where the service is dropped or cloned after `poll_ready`, or a
/// timer ends the request: the drop of the future leaves the line, or gives the bytes back.
#[derive(Clone)]
pub struct Admission<S, C> {
    inner: S,
    classify: C,
    settings: Arc<Settings>,
}

impl<S, C> Admission<S, C> {
    pub(crate) fn new(inner: S, classify: C, settings: Arc<Settings>) -> Self {
        Admission { inner, classify, settings }
    }
}

/// What a request is charged, and to which group.
pub(crate) struct Order {
    pub(crate) tenant: Group,
    /// The request's own group, where it has one.
    scope: Option<GroupScope>,
    request: u64,
    pub(crate) bytes: u64,
    settings: Arc<Settings>,
}

impl Order {
    fn new<B: Body>(tenant: Group, body: &B, settings: &Arc<Settings>) -> Result<Order, CreateError> {
        // The length that the head says. An upper bound alone, as that of a decompressed body, is no length.
        let request = body.size_hint().exact().unwrap_or(settings.unknown).min(settings.window);
        let bytes = settings.overhead.saturating_add(settings.response).saturating_add(request);
        let scope = match settings.request_group {
            Some(limits) => Some(tenant.scope(GroupName::Unnamed, limits)?),
            None => None,
        };
        Ok(Order { tenant, scope, request, bytes, settings: Arc::clone(settings) })
    }

    pub(crate) fn group(&self) -> &Group {
        self.scope.as_deref().unwrap_or(&self.tenant)
    }

    /// The answer to a request that never runs, and its body where that is drained first.
    pub(crate) fn refuse<B: Body, R>(self, refused: &ChargeError, request: Request<B>) -> Refusing<B, R> {
        let refusal = Refusal::of_charge(refused, &self.tenant, self.bytes, self.settings.patience);
        Refusing::new(refusal, request, &self.settings)
    }

    /// Calls the inner service, in the group.
    pub(crate) fn call<S, B>(self, inner: &mut S, request: Request<B>, charge: Charge) -> Running<S::Future>
    where
        S: Service<Request<RequestBody<B>>>,
    {
        let (is_grpc, patience, window) = (is_grpc(request.headers()), self.settings.patience, self.settings.window);
        let response = self.settings.response;
        let account = match self.scope {
            Some(scope) => Account::of_request(scope, charge, self.request, response),
            None => Account::new(self.tenant, charge, self.request, response),
        };
        let mut request = request.map(|body| RequestBody::new(body, Some(Arc::clone(&account)), window));
        if self.settings.request_group.is_some() {
            request.extensions_mut().insert(Admitted(Arc::clone(&account)));
        }
        let future = account.group().run(|| inner.call(request)).in_group(account.group());
        Running { future, account: Some(account), patience, is_grpc }
    }
}

impl<S, C, B, R> Service<Request<B>> for Admission<S, C>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    C: Fn(&Request<B>) -> Option<Group>,
    B: Body,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Some(tenant) = (self.classify)(&request) else {
            let request = request.map(|body| RequestBody::new(body, None, u64::MAX));
            // Without a wrapper, the current group would be that of the caller, as it is without this layer.
            return ResponseFuture::passed(self.inner.call(request));
        };
        let order = match Order::new(tenant.clone(), request.body(), &self.settings) {
            Ok(order) => order,
            Err(refused) => {
                let refusal = Refusal::of_group(&refused, &tenant);
                return ResponseFuture::refused(Refusing::new(refusal, request, &self.settings));
            }
        };
        if let Some(charge) = order.group().charge_if_room(memcg::Bytes(order.bytes)) {
            return ResponseFuture::running(order.call(&mut self.inner, request, charge));
        }
        if self.settings.patience.is_zero() {
            // The future of a charge would first look for a thread that ends its wait.
            return match order.group().try_charge_undelayed(memcg::Bytes(order.bytes)) {
                Ok((charge, _)) => ResponseFuture::running(order.call(&mut self.inner, request, charge)),
                Err(refused) => ResponseFuture::refused(order.refuse(&refused, request)),
            };
        }
        // The one that is ready waits with the request; its place takes a clone, which is asked before it is called.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        let charge = order.group().charge_async(memcg::Bytes(order.bytes)).timeout(self.settings.patience);
        ResponseFuture::waiting(Waiting { charge, inner, request, order })
    }
}

impl<S: fmt::Debug, C> fmt::Debug for Admission<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Admission { inner, settings, .. } = self;
        f.debug_struct("Admission").field("inner", inner).field("settings", settings).finish_non_exhaustive()
    }
}
