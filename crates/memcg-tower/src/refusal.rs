//! What a request that is not admitted is answered.

use std::time::Duration;

use http::StatusCode;
use memcg::{ChargeError, CreateError, Group};

use crate::account::Failed;

/// The answer to a request that does not run: what `classify` returns for one that has no tenant, or may not have it.
///
/// A client of gRPC gets the code of the status: `INVALID_ARGUMENT` for 400, `UNAUTHENTICATED` for 401,
/// `PERMISSION_DENIED` for 403, `NOT_FOUND` for 404, `RESOURCE_EXHAUSTED` for 413 and 429, `UNAVAILABLE` for 503, and
/// `UNKNOWN` for all others.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
    /// The group that is full.
    pub(crate) group: Option<String>,
    /// `None` where a later try is as vain.
    pub(crate) retry_after: Option<Duration>,
}

/// At least a second, which is the unit of the header.
fn retry_after(waited: Duration, delay: Duration) -> Duration {
    let time = waited.saturating_add(delay).max(Duration::from_secs(1));
    Duration::from_secs(time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)))
}

impl Refusal {
    /// Creates a refusal with this status and this text. A status below 400, which is no refusal, becomes 500.
    ///
    /// ```
    /// use http::StatusCode;
    /// use memcg_tower::Refusal;
    ///
    /// let refusal = Refusal::new(StatusCode::UNAUTHORIZED, "no tenant has this token");
    /// # drop(refusal);
    /// ```
    pub fn new(status: StatusCode, text: impl Into<String>) -> Refusal {
        let is_error = status.as_u16() >= 400;
        let status = if is_error { status } else { StatusCode::INTERNAL_SERVER_ERROR };
        Refusal { status, text: text.into(), group: None, retry_after: None }
    }

    /// A charge of `bytes` to `tenant`, or to a group below it, was refused.
    pub(crate) fn of_charge(refused: &ChargeError, tenant: &Group, bytes: u64, patience: Duration) -> Refusal {
        let text = refused.to_string();
        let Some(limit) = refused.over_limit() else {
            // Offline or cancelled. Another server may have the tenant.
            let group = Some(refused.group().path());
            return Refusal { status: StatusCode::SERVICE_UNAVAILABLE, text, group, retry_after: None };
        };
        let group = Some(limit.group().path());
        if bytes > limit.max() {
            return Refusal { status: StatusCode::PAYLOAD_TOO_LARGE, text, group, retry_after: None };
        }
        let is_above = tenant.ancestors().any(|ancestor| &ancestor == limit.group());
        let status = if is_above { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
        let waited = match refused {
            ChargeError::TimedOut { waited, .. } => *waited,
            _ => patience,
        };
        let delay = tenant.high_delay(memcg::Bytes(bytes));
        Refusal { status, text, group, retry_after: Some(retry_after(waited, delay)) }
    }

    /// The body of a request of `tenant` has failed.
    pub(crate) fn of_body(failed: &Failed, tenant: &Group, patience: Duration) -> Refusal {
        match failed {
            Failed::Outgrown(refused) => {
                let group = refused.over_limit().map(|limit| limit.group().path());
                let text = format!("the body is larger than what was reserved for it: {refused}");
                Refusal { status: StatusCode::PAYLOAD_TOO_LARGE, text, group, retry_after: None }
            }
            // Of 0 bytes, which are never too large.
            Failed::Refused(refused) => Refusal::of_charge(refused, tenant, 0, patience),
        }
    }

    /// The request got no group of its own.
    pub(crate) fn of_group(refused: &CreateError, tenant: &Group) -> Refusal {
        let retry_after = match refused {
            CreateError::Full { .. } | CreateError::Memory { .. } => Some(Duration::from_secs(1)),
            _ => None,
        };
        let (text, group) = (refused.to_string(), Some(tenant.path()));
        Refusal { status: StatusCode::SERVICE_UNAVAILABLE, text, group, retry_after }
    }
}

/// Whose request it is, as `classify` says. A closure returns what becomes one: `Option<Group>`, or a `Result` of it or of
/// a `Group`, whose error is the answer.
///
/// `None` lets the request pass uncharged. A service whose requests all have a tenant returns `Result<Group, Refusal>`: no
/// request of it runs uncharged.
#[derive(Debug)]
pub struct Verdict(pub(crate) Result<Option<Group>, Refusal>);

impl From<Option<Group>> for Verdict {
    fn from(tenant: Option<Group>) -> Verdict {
        Verdict(Ok(tenant))
    }
}

impl From<Result<Option<Group>, Refusal>> for Verdict {
    fn from(tenant: Result<Option<Group>, Refusal>) -> Verdict {
        Verdict(tenant)
    }
}

impl From<Result<Group, Refusal>> for Verdict {
    fn from(tenant: Result<Group, Refusal>) -> Verdict {
        Verdict(tenant.map(Some))
    }
}
