//! The verdict of a classifier.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use memcg::Group;

use crate::refusal::Refusal;
use crate::settings::RequestWeight;

/// Whose request it is, as `classify` says. A closure returns what becomes one: a
/// [`RequestWeight`], an `Option<Group>`, or a `Result` of a `RequestWeight`, a `Group` or that
/// `Option`, whose error is the answer.
///
/// `None` lets the request pass uncharged. A service whose requests all have a tenant returns
/// `Result<Group, Refusal>`: no request of it runs uncharged.
pub struct Classification(pub(crate) Said);

pub(crate) type Answer = Result<Option<RequestWeight>, Refusal>;

pub(crate) enum Said {
    Now(Answer),
    Later(Later),
}

pub(crate) type Later = Pin<Box<dyn Future<Output = Classification> + Send>>;

impl Classification {
    /// Lets the request pass uncharged, as `None` does.
    pub fn uncharged() -> Classification {
        Classification(Said::Now(Ok(None)))
    }

    /// Says it later: for a classifier that asks another service, or a database. The closure takes
    /// from the request's head what the future needs. The request holds nothing before the future
    /// is ready, neither bytes nor a permit of a limit below the layer. Where its client goes, or a
    /// timeout ends it, the future is dropped. It costs an allocation.
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::{Request, StatusCode};
    /// use memcg::{Group, Runtime};
    /// use memcg_tower::{AdmissionLayer, Refusal, Classification};
    ///
    /// # async fn tenant_of(_: Option<String>) -> Option<Group> { None }
    /// let layer = AdmissionLayer::new(|request: &Request<Body>| {
    ///     let token = request.headers().get("authorization").and_then(|token| token.to_str().ok()).map(str::to_owned);
    ///     Classification::later(async move {
    ///         tenant_of(token).await.ok_or_else(|| Refusal::new(StatusCode::UNAUTHORIZED, "no tenant has this token"))
    ///     })
    /// });
    /// # drop(layer);
    /// ```
    pub fn later<F>(verdict: F) -> Classification
    where
        F: Future<Output: Into<Classification>> + Send + 'static,
    {
        Classification(Said::Later(Box::pin(async move { verdict.await.into() })))
    }
}

impl fmt::Debug for Classification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Said::Now(said) => f.debug_tuple("Classification").field(said).finish(),
            Said::Later(_) => f.debug_struct("Classification").finish_non_exhaustive(),
        }
    }
}

impl From<Option<Group>> for Classification {
    fn from(tenant: Option<Group>) -> Classification {
        Classification(Said::Now(Ok(tenant.map(RequestWeight::new))))
    }
}

impl From<RequestWeight> for Classification {
    fn from(tenant: RequestWeight) -> Classification {
        Classification(Said::Now(Ok(Some(tenant))))
    }
}

impl From<Result<Option<Group>, Refusal>> for Classification {
    fn from(tenant: Result<Option<Group>, Refusal>) -> Classification {
        Classification(Said::Now(
            tenant.map(|tenant| tenant.map(RequestWeight::new)),
        ))
    }
}

impl From<Result<Group, Refusal>> for Classification {
    fn from(tenant: Result<Group, Refusal>) -> Classification {
        Classification(Said::Now(
            tenant.map(|tenant| Some(RequestWeight::new(tenant))),
        ))
    }
}

impl From<Result<RequestWeight, Refusal>> for Classification {
    fn from(tenant: Result<RequestWeight, Refusal>) -> Classification {
        Classification(Said::Now(tenant.map(Some)))
    }
}
