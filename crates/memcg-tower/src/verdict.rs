//! The verdict of a classifier.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use memcg::Group;

use crate::refusal::Refusal;
use crate::settings::Weighed;

/// Whose request it is, as `classify` says. A closure returns what becomes one: a [`Weighed`], an
/// `Option<Group>`, or a `Result` of a `Weighed`, a `Group` or that `Option`, whose error is the
/// answer.
///
/// `None` lets the request pass uncharged. A service whose requests all have a tenant returns
/// `Result<Group, Refusal>`: no request of it runs uncharged.
pub struct Verdict(pub(crate) Said);

pub(crate) type Answer = Result<Option<Weighed>, Refusal>;

pub(crate) enum Said {
    Now(Answer),
    Later(Later),
}

pub(crate) type Later = Pin<Box<dyn Future<Output = Verdict> + Send>>;

impl Verdict {
    /// Lets the request pass uncharged, as `None` does.
    pub fn uncharged() -> Verdict {
        Verdict(Said::Now(Ok(None)))
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
    /// use memcg_tower::{AdmissionLayer, Refusal, Verdict};
    ///
    /// # async fn tenant_of(_: Option<String>) -> Option<Group> { None }
    /// let layer = AdmissionLayer::new(|request: &Request<Body>| {
    ///     let token = request.headers().get("authorization").and_then(|token| token.to_str().ok()).map(str::to_owned);
    ///     Verdict::later(async move {
    ///         tenant_of(token).await.ok_or_else(|| Refusal::new(StatusCode::UNAUTHORIZED, "no tenant has this token"))
    ///     })
    /// });
    /// # drop(layer);
    /// ```
    pub fn later<F>(verdict: F) -> Verdict
    where
        F: Future<Output: Into<Verdict>> + Send + 'static,
    {
        Verdict(Said::Later(Box::pin(async move { verdict.await.into() })))
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Said::Now(said) => f.debug_tuple("Verdict").field(said).finish(),
            Said::Later(_) => f.debug_struct("Verdict").finish_non_exhaustive(),
        }
    }
}

impl From<Option<Group>> for Verdict {
    fn from(tenant: Option<Group>) -> Verdict {
        Verdict(Said::Now(Ok(tenant.map(Weighed::new))))
    }
}

impl From<Weighed> for Verdict {
    fn from(tenant: Weighed) -> Verdict {
        Verdict(Said::Now(Ok(Some(tenant))))
    }
}

impl From<Result<Option<Group>, Refusal>> for Verdict {
    fn from(tenant: Result<Option<Group>, Refusal>) -> Verdict {
        Verdict(Said::Now(tenant.map(|tenant| tenant.map(Weighed::new))))
    }
}

impl From<Result<Group, Refusal>> for Verdict {
    fn from(tenant: Result<Group, Refusal>) -> Verdict {
        Verdict(Said::Now(tenant.map(|tenant| Some(Weighed::new(tenant)))))
    }
}

impl From<Result<Weighed, Refusal>> for Verdict {
    fn from(tenant: Result<Weighed, Refusal>) -> Verdict {
        Verdict(Said::Now(tenant.map(Some)))
    }
}
