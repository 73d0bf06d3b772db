//! What a request that is not admitted is answered.

use std::time::Duration;

use http::StatusCode;
use memcg::{ChargeError, CreateError, Group};

use crate::account::Failed;

/// The refusal of a request.
pub(crate) struct Refusal {
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
