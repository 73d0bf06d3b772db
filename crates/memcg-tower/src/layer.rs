//! The layer and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use memcg::{Limits, PressureLevel};
use tower_layer::Layer;

use crate::figures::AdmissionFigures;
use crate::refusal::Refusal;
use crate::service::Admission;
use crate::settings::Settings;
use crate::verdict::Classification;

/// A layer that charges each request to the group of its tenant. Where the bytes do not fit the
/// request waits for a while, and is then answered with 413, 429 or 503.
///
/// A request is charged its overhead and a part of its response before the inner service runs. Its
/// body promises its length to the tenant, and is charged as it comes: what is promised and what
/// the tenant uses are within its least max. So a request that runs never waits for bytes that
/// another one of its tenant holds. A promise is no memory: it weighs on no other tenant, and ends
/// with the body.
///
/// | answer | when |
/// |---|---|
/// | 408 Request Timeout | its body makes no progress |
/// | 413 Content Too Large | the request, or its response of known length, could never fit below a max; or its body has outgrown what was promised, and there is no room |
/// | 429 Too Many Requests | its tenant is full, with `Retry-After` |
/// | 503 Service Unavailable | a group above the tenant is full, or the tenant or such a group is [under pressure](Self::shed_from), with `Retry-After`; the tenant is offline or cancelled |
///
/// Each has a [sentence](crate::RefusalKind::sentence) as its text, which tells a client nothing
/// of any group. The text for operators goes to the log and to [`answer`](Self::answer). A request
/// of gRPC, or gRPC-web, gets `RESOURCE_EXHAUSTED` with the same sentence, and with the details
/// `RetryInfo` and `QuotaFailure`; `UNAVAILABLE` for a tenant that is offline, and
/// `DEADLINE_EXCEEDED` for 408.
///
/// `Retry-After` is at least the time that the request has waited in vain and the delay above a
/// high, and a second. It is spread over twice that time and a second more.
///
/// ```
/// use std::time::Duration;
///
/// use axum::{Router, body::Body, http::Request, routing::post};
/// use memcg::{Limit, Limits, Runtime};
/// use memcg_tower::AdmissionLayer;
///
/// let budget = Runtime::builder().max(Limit::gib(2)).build()?;
/// let root = budget.root();
/// root.create("acme", Limits::new().max(Limit::mib(512)))?;
/// let layer = AdmissionLayer::new(move |request: &Request<Body>| {
///     root.child(request.headers().get("x-tenant")?.to_str().ok()?)
/// });
/// let layer = layer.overhead(16 << 10).unknown_body(64 << 10).patience(Duration::from_millis(250));
/// let app = Router::new().route("/", post(|body: String| async move { body })).layer(layer);
/// let app: Router = app.with_state(budget); // the groups are online as long as the router is there
/// # drop(app);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AdmissionLayer<C> {
    classify: Arc<C>,
    settings: Arc<Settings>,
}

impl<C> AdmissionLayer<C> {
    /// Creates a layer. `classify` says whose request it is, from its head; `None` lets the request
    /// pass uncharged, as for a health check. It may refuse the request: `Result<Group, Refusal>`
    /// lets no request run uncharged. It may say it [later](Classification::later), and give the
    /// request [weights of its own](crate::RequestWeight). It runs in `call`, once for each
    /// request.
    ///
    /// A group is no handle on its `Runtime`. When the last of those goes, as at the end of a
    /// function that returns a router, all groups go offline, and each request gets 503. So keep one
    /// in the router's state, as above, or in the classifier: each request that runs keeps it.
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::{Request, StatusCode};
    /// use memcg::{Limits, Runtime};
    /// use memcg_tower::{AdmissionLayer, Refusal};
    ///
    /// let budget = Runtime::builder().max(1 << 30).build()?;
    /// let root = budget.root();
    /// root.create("acme", Limits::new())?;
    /// let layer = AdmissionLayer::new(move |request: &Request<Body>| {
    ///     let name = request.headers().get("x-tenant").and_then(|name| name.to_str().ok());
    ///     let tenant = name.and_then(|name| root.child(name));
    ///     tenant.ok_or_else(|| Refusal::new(StatusCode::FORBIDDEN, "no such tenant"))
    /// });
    /// # drop(layer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new<B, V>(classify: C) -> Self
    where
        C: Fn(&Request<B>) -> V + Send + Sync + 'static,
        V: Into<Classification>,
    {
        let classify = Arc::new(classify);
        let mut settings = Settings::new();
        settings.classifier = Some(Arc::clone(&classify) as _);
        AdmissionLayer {
            classify,
            settings: Arc::new(settings),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    /// Sets the bytes that each request takes beside its bodies: its head, and what the handler
    /// holds. 16 KiB by default.
    pub fn overhead(self, bytes: usize) -> Self {
        self.with(|settings| settings.weight.overhead = bytes as u64)
    }

    /// Sets what the body of a request promises that does not say its length. 64 KiB by default.
    /// What comes beyond is charged where there is room, never waits, and is else answered with
    /// 413. A body that has ended, as that of a GET, promises nothing, nor does one of at most 8
    /// KiB.
    pub fn unknown_body(self, bytes: usize) -> Self {
        self.with(|settings| settings.weight.unknown = bytes as u64)
    }

    /// Sets the most bytes to promise and to charge for a body, of a request or of a response,
    /// whatever its length: for handlers that do not buffer bodies, but pass on or drop what they
    /// have read. Without it a body that is larger than a max gets 413, and a long stream is
    /// charged to its sum until the handler answers.
    pub fn body_window(self, bytes: usize) -> Self {
        self.with(|settings| settings.weight.window = bytes as u64)
    }

    /// Sets the bytes to reserve for a response: what is handed to the connection and may not be
    /// sent yet. 64 KiB by default. They come on top of the request's body, whose bytes a response
    /// of known length takes over. Where that is longer, its length is charged before its head is
    /// sent. It waits for at most the patience, and is then answered with 413, 429 or 503 in place
    /// of the handler's answer. In a response of unknown length a larger frame is charged when it
    /// comes, and waits as long. Where there is no room the body fails: the client has the head and
    /// sees its connection or stream end early.
    ///
    /// Each frame above 8 KiB has its part of these bytes until the connection drops it, and what
    /// the request holds is charged as long. A connection takes several frames before its client
    /// takes one. So the next frame is read once there are bytes for it: frames come back, or the
    /// response is charged more. It is charged more at once while less than half of the tenant is
    /// in use, and else after it has waited for the patience; a client that takes nothing may have
    /// so much on its way as its connection buffers, 400 KiB with hyper and HTTP/1. Where there is
    /// no room the next frame waits for those before it, as long as a
    /// [body](Self::body_timeout) may bring nothing, and then ends the response.
    pub fn response(self, bytes: usize) -> Self {
        self.with(|settings| settings.weight.response = bytes as u64)
    }

    /// Sets how long a request may wait for room. 1 second by default. Zero sheds at once: before
    /// that reclaimers are asked, on the thread of the request, since no later time can.
    pub fn patience(self, time: Duration) -> Self {
        self.with(|settings| settings.patience = time)
    }

    /// Sets how many bytes of a refused request's body are read before the answer, and dropped as
    /// they come. 16 MiB by default. A client of HTTP/1 that is still sending would else find its
    /// connection closed, and no answer. A body that is longer is not read at all. A client that
    /// stops in the middle of its body gets the answer after the [time](Self::body_timeout) that a
    /// body has, and holds no bytes meanwhile.
    pub fn drain(self, bytes: usize) -> Self {
        self.with(|settings| settings.drain = bytes as u64)
    }

    /// Sets how long the body of a request may bring nothing while its reader waits for it. 30
    /// seconds by default. It then fails, and the client gets 408, whatever the handler answers.
    /// The time that the handler takes, also where it has dropped its read in a `select!` or a
    /// timeout, does not count, nor that for which the layer holds the body back. A
    /// body of unknown length is a stream once the handler has answered, and has all the time. A
    /// refused request whose body is [drained](Self::drain) gets its answer after this time.
    ///
    /// [`Duration::MAX`] gives all the time to each body, also where it brings less than the [least
    /// rate](Self::least_rate).
    pub fn body_timeout(self, time: Duration) -> Self {
        self.with(|settings| settings.body_timeout = time)
    }

    /// Sets the bytes a second that the body of a request has to bring, 500 by default. 0 asks for
    /// no rate. A body may keep its reader waiting for the [time](Self::body_timeout) that a body
    /// has, and for a second more for each so many bytes that have come. It then fails, and the
    /// client gets 408.
    pub fn least_rate(self, bytes: usize) -> Self {
        self.with(|settings| settings.least_rate = bytes as u64)
    }

    /// Refuses each request at once if its tenant, or a group above it, is at this [pressure
    /// level](memcg::Group::pressure_level) or above: with 503 and `Retry-After`, before it is
    /// charged. One of these groups has to have thresholds ([`Limits::pressure_levels`]). Without
    /// this call no request is refused for pressure. A classifier may set another pressure level
    /// for a [request of its own](crate::RequestWeight::shed_from). It costs a load and a clone of
    /// a handle for each of these groups.
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::Request;
    /// use memcg::{Limits, PressureLevel, Runtime};
    /// use memcg_tower::{AdmissionLayer, RequestWeight};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(1 << 30).pressure_levels(80, 95))?;
    /// let layer = AdmissionLayer::new(move |request: &Request<Body>| {
    ///     let weighed = RequestWeight::new(acme.clone());
    ///     if request.uri().path() == "/report" { weighed.shed_from(PressureLevel::Elevated) } else { weighed }
    /// });
    /// let layer = layer.shed_from(PressureLevel::Critical);
    /// # drop(layer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shed_from(self, pressure: PressureLevel) -> Self {
        self.with(|settings| settings.shed_from = Some(pressure))
    }

    /// Gives each request [`AdmittedRequest`](crate::AdmittedRequest) as an extension: for handlers
    /// that keep what the request holds beyond its end, or charge to its group. It costs up to four
    /// allocations for a request. One that asks for an upgrade, or whose body is packed, has it
    /// without this.
    pub fn admitted(self) -> Self {
        self.with(|settings| settings.admitted = true)
    }

    /// Returns the figures of this layer and its clones: refusals by their reason, and how long
    /// requests wait.
    pub fn figures(&self) -> AdmissionFigures {
        AdmissionFigures(Arc::clone(&self.settings.counts))
    }

    /// Sets what a refused request is answered with. Without this call it is
    /// [`Refusal::to_response`]. The [text](Refusal) of a refusal names groups, also those of other
    /// tenants, with their bytes: it is for operators, and for clients who may know that. `answer`
    /// runs once for each refusal whose head is not sent yet, in a poll of the request.
    ///
    /// With the feature `tracing` the text is an event, too: WARN of the target
    /// `memcg_tower::refused`, with `kind` and `left_out`. Each kind has one a second at most, and
    /// `left_out` counts the others.
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::Request;
    /// use http::header::{CONTENT_TYPE, HeaderValue};
    /// use memcg::Runtime;
    /// use memcg_tower::AdmissionLayer;
    ///
    /// let root = Runtime::builder().max(1 << 30).build()?.root();
    /// let layer = AdmissionLayer::new(move |_: &Request<Body>| Some(root.clone()));
    /// let layer = layer.answer(|refusal| {
    ///     eprintln!("{refusal}"); // for the operator alone
    ///     let problem = format!("{{\"title\":\"{}\"}}", refusal.kind().name());
    ///     let mut response = refusal.to_response().map(|_| problem.into());
    ///     let json = HeaderValue::from_static("application/problem+json");
    ///     response.headers_mut().insert(CONTENT_TYPE, json);
    ///     response
    /// });
    /// # drop(layer);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn answer<F>(self, answer: F) -> Self
    where
        F: Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static,
    {
        self.with(|settings| settings.answers = Some(Arc::new(answer)))
    }

    /// Gives each request a group of its own below its tenant's, without a name and with these
    /// limits. It ends with the last of the response's future, the body of the request and that of
    /// the response. [`AdmittedRequest`](crate::AdmittedRequest) reaches it.
    ///
    /// It costs one life of a group for each request.
    pub fn request_groups(self, limits: Limits) -> Self {
        self.with(|settings| settings.request_group = Some(limits))
    }
}

impl<C> Clone for AdmissionLayer<C> {
    fn clone(&self) -> Self {
        AdmissionLayer {
            classify: Arc::clone(&self.classify),
            settings: Arc::clone(&self.settings),
        }
    }
}

impl<S, C> Layer<S> for AdmissionLayer<C> {
    type Service = Admission<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        Admission::new(
            inner,
            Arc::clone(&self.classify),
            Arc::clone(&self.settings),
        )
    }
}

impl<C> fmt::Debug for AdmissionLayer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionLayer")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
