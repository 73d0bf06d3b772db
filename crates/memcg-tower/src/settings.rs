//! The settings given to the layer.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use memcg::{Group, Limits, PressureLevel};

use crate::figures::{Counts, RefusalKind};
use crate::log;
use crate::refusal::Refusal;

/// What a service says itself in the place of the layer.
pub(crate) type Answers = dyn Fn(&Refusal) -> Response<Bytes> + Send + Sync;

/// The bytes to charge for each request, the time that it may wait, and the speed at which its body
/// has to come.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) weight: Weight,
    pub(crate) patience: Duration,
    pub(crate) drain: u64,
    /// The longest time for which a body may bring nothing.
    pub(crate) body_timeout: Duration,
    /// The bytes a second that a body has to bring beyond that time. 0: any.
    pub(crate) least_rate: u64,
    /// Each request has the extension.
    pub(crate) admitted: bool,
    /// The limits of a request's own group, where each request has one.
    pub(crate) request_group: Option<Limits>,
    /// The pressure level of its tenant from which a request is refused.
    pub(crate) shed_from: Option<PressureLevel>,
    /// Of all layers that were made of one.
    pub(crate) counts: Arc<Counts>,
    /// The classifier, which may have the last handle on the runtime: it lives as long as a request
    /// runs, also where its router is dropped before that.
    pub(crate) classifier: Option<Arc<dyn Any + Send + Sync>>,
    /// What the service says in the place of the layer.
    pub(crate) answers: Option<Arc<Answers>>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("weight", &self.weight)
            .field("patience", &self.patience)
            .field("drain", &self.drain)
            .field("body_timeout", &self.body_timeout)
            .field("least_rate", &self.least_rate)
            .field("admitted", &self.admitted)
            .field("request_group", &self.request_group)
            .field("shed_from", &self.shed_from)
            .finish_non_exhaustive()
    }
}

/// The bytes that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) overhead: u64,
    pub(crate) unknown: u64,
    /// The most bytes to charge for a body in either direction.
    pub(crate) window: u64,
    pub(crate) response: u64,
}

impl Settings {
    pub(crate) fn new() -> Settings {
        Settings {
            weight: Weight {
                overhead: 16 << 10,
                unknown: 64 << 10,
                window: u64::MAX,
                response: 64 << 10,
            },
            patience: Duration::from_secs(1),
            drain: 16 << 20,
            body_timeout: Duration::from_secs(30),
            least_rate: 500,
            admitted: false,
            request_group: None,
            shed_from: None,
            counts: Arc::default(),
            classifier: None,
            answers: None,
        }
    }

    /// A request was refused, or its response cut off: it is counted, and its text goes to the log.
    pub(crate) fn refuses(&self, kind: RefusalKind, text: &dyn fmt::Display) {
        self.counts.refuses(kind);
        log::refused(kind, text);
    }
}

/// A tenant, and what this request of it takes where that differs from the settings of the layer.
///
/// ```
/// use axum::body::Body;
/// use http::Request;
/// use memcg::Runtime;
/// use memcg_tower::{AdmissionLayer, RequestWeight};
///
/// let acme = Runtime::builder().max(1 << 30).build()?.root();
/// let layer = AdmissionLayer::new(move |request: &Request<Body>| {
///     let weighed = RequestWeight::new(acme.clone());
///     match request.uri().path() {
///         "/report" => weighed.overhead(8 << 20).response(1 << 20),
///         "/proxy" => weighed.body_window(256 << 10),
///         _ => weighed,
///     }
/// });
/// # drop(layer);
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestWeight {
    pub(crate) tenant: Group,
    /// On the heap: most requests have none, and what a classifier returns is small then.
    own: Option<Box<Own>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Own {
    overhead: Option<u64>,
    unknown: Option<u64>,
    window: Option<u64>,
    response: Option<u64>,
    shed_from: Option<PressureLevel>,
}

impl RequestWeight {
    /// Creates one that takes what the layer says.
    pub fn new(tenant: Group) -> RequestWeight {
        RequestWeight { tenant, own: None }
    }

    fn with(mut self, set: impl FnOnce(&mut Own)) -> RequestWeight {
        set(self.own.get_or_insert_default());
        self
    }

    /// Sets what it takes beside its bodies, as
    /// [`AdmissionLayer::overhead`](crate::AdmissionLayer::overhead).
    pub fn overhead(self, bytes: usize) -> RequestWeight {
        self.with(|own| own.overhead = Some(bytes as u64))
    }

    /// Sets what a body of unknown length promises, as
    /// [`AdmissionLayer::unknown_body`](crate::AdmissionLayer::unknown_body).
    pub fn unknown_body(self, bytes: usize) -> RequestWeight {
        self.with(|own| own.unknown = Some(bytes as u64))
    }

    /// Sets the most that is charged for a body, as
    /// [`AdmissionLayer::body_window`](crate::AdmissionLayer::body_window).
    pub fn body_window(self, bytes: usize) -> RequestWeight {
        self.with(|own| own.window = Some(bytes as u64))
    }

    /// Sets what is charged for its response, as
    /// [`AdmissionLayer::response`](crate::AdmissionLayer::response).
    pub fn response(self, bytes: usize) -> RequestWeight {
        self.with(|own| own.response = Some(bytes as u64))
    }

    /// Sets the pressure level of its tenant from which it is refused, as
    /// [`AdmissionLayer::shed_from`](crate::AdmissionLayer::shed_from): work that can wait goes
    /// first. So may the requests of tenants of a lower [importance](memcg::Limits::importance):
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::Request;
    /// use memcg::{Limits, PressureLevel, Runtime};
    /// use memcg_tower::{AdmissionLayer, RequestWeight};
    ///
    /// let runtime = Runtime::builder().max(1 << 30).build()?;
    /// runtime.root().set_limits(Limits::new().pressure_levels(80, 95))?;
    /// let tenants = [("gold", 1), ("free", 0)].map(|(name, importance)| {
    ///     let tenant = runtime.root().create(name, Limits::new().importance(importance)).unwrap();
    ///     let from = if importance > 0 { PressureLevel::Critical } else { PressureLevel::Elevated };
    ///     RequestWeight::new(tenant).shed_from(from)
    /// });
    /// let layer = AdmissionLayer::new(move |request: &Request<Body>| {
    ///     tenants[usize::from(!request.headers().contains_key("x-gold"))].clone()
    /// });
    /// # drop(layer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shed_from(self, pressure: PressureLevel) -> Self {
        self.with(|own| own.shed_from = Some(pressure))
    }

    /// The tenant, or the nearest group above it, that is under pressure, if the request is refused
    /// for that.
    #[inline]
    pub(crate) fn sheds_for(
        &self,
        of_layer: Option<PressureLevel>,
    ) -> Option<(Group, PressureLevel)> {
        let from = self
            .own
            .as_ref()
            .and_then(|own| own.shed_from)
            .or(of_layer)?;
        let is_short = |group: Group| {
            let pressure = group.pressure_level();
            (pressure >= from).then_some((group, pressure))
        };
        std::iter::once(self.tenant.clone())
            .chain(self.tenant.ancestors())
            .find_map(is_short)
    }

    #[inline]
    pub(crate) fn weight(&self, of_layer: Weight) -> Weight {
        let Some(own) = &self.own else {
            return of_layer;
        };
        Weight {
            overhead: own.overhead.unwrap_or(of_layer.overhead),
            unknown: own.unknown.unwrap_or(of_layer.unknown),
            window: own.window.unwrap_or(of_layer.window),
            response: own.response.unwrap_or(of_layer.response),
        }
    }
}

impl From<Group> for RequestWeight {
    fn from(tenant: Group) -> RequestWeight {
        RequestWeight::new(tenant)
    }
}
