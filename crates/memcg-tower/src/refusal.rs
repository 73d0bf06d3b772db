//! The answer to a request that the layer does not admit.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use memcg::errors::CreateError;
use memcg::{ChargeError, Group, PressureLevel};

use crate::figures::RefusalKind;
use crate::frame::TooSlowError;
use crate::protocol::Protocol;

/// The answer to a request that does not run: what `classify` returns for one that has no tenant,
/// or may not have it.
///
/// A client of gRPC gets the code of the status: `INVALID_ARGUMENT` for 400, `UNAUTHENTICATED` for
/// 401, `PERMISSION_DENIED` for 403, `NOT_FOUND` for 404, `DEADLINE_EXCEEDED` for 408,
/// `RESOURCE_EXHAUSTED` for 413 and 429, `UNAVAILABLE` for 503, and `UNKNOWN` for all others.
///
/// A client is a stranger: it reads the [sentence](RefusalKind::sentence) of its kind, which names
/// no group and no bytes of one. The text that a classifier gives is its own, and the client reads
/// that. The [`Display`](fmt::Display) of a refusal is for operators: it names the group that was
/// full, by how much, and what would help. Where each goes is what
/// [`AdmissionLayer::answer`](crate::AdmissionLayer::answer) may change.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) kind: RefusalKind,
    pub(crate) status: StatusCode,
    text: String,
    /// The group that is full.
    group: Option<String>,
    /// `None` where a later try is as vain.
    pub(crate) retry_after: Option<Duration>,
    /// That of the request, once it is known.
    pub(crate) protocol: Protocol,
}

/// The text for operators.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// When to come back: at least after the time that a charge has waited and would be delayed, in
/// whole seconds. Clients that are refused together come back spread over twice that time, and a
/// second, more.
fn retry_after(waited: Duration, delay: Duration) -> Duration {
    // The golden ratio, as a part of 2^32: however many there are, its multiples lie evenly.
    const STEP: u64 = 2_654_435_769;
    static REFUSALS: AtomicU64 = AtomicU64::new(0);
    let part = REFUSALS.fetch_add(1, Ordering::Relaxed).wrapping_mul(STEP) as u32;
    spread(waited.saturating_add(delay), part)
}

/// The least time and a part, of 2^32, of what it is spread over.
fn spread(least: Duration, part: u32) -> Duration {
    let seconds = least
        .as_secs()
        .saturating_add(u64::from(least.subsec_nanos() > 0))
        .clamp(1, 1 << 31);
    let over = Duration::from_secs(2 * seconds + 1);
    Duration::from_secs(seconds) + over.mul_f64(f64::from(part) / f64::from(u32::MAX))
}

impl Refusal {
    /// Creates a refusal with this status and this text. A status below 400, which is no refusal,
    /// becomes 500.
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
        let status = if is_error {
            status
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        };
        Refusal {
            kind: RefusalKind::Classifier,
            status,
            text: text.into(),
            group: None,
            retry_after: None,
            protocol: Protocol::Http,
        }
    }

    /// Returns why it was refused.
    pub fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// Returns the status of its answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the time after which the client may come back; `None` where a later try is as vain.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the path of the group that was full, offline or under pressure. It may be another
    /// one than the tenant's: it is for operators.
    pub fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// Returns what the client reads: the text of the classifier, or the
    /// [sentence](RefusalKind::sentence) of its kind, which tells nothing of any group.
    pub fn sentence(&self) -> &str {
        match self.kind {
            // A stranger reads of its own request alone.
            RefusalKind::Classifier | RefusalKind::TooSlow => &self.text,
            kind => kind.sentence(),
        }
    }

    /// A charge of `bytes` to `tenant`, or to a group below it, was refused.
    pub(crate) fn of_charge(
        refused: &ChargeError,
        tenant: &Group,
        bytes: u64,
        patience: Duration,
    ) -> Refusal {
        let text = refused.to_string();
        let Some(limit) = refused.over_limit() else {
            // Offline or cancelled. Another server may have the tenant.
            let group = Some(refused.group().path());
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Refusal {
                kind: RefusalKind::Offline,
                status,
                text,
                group,
                retry_after: None,
                protocol: Protocol::Http,
            };
        };
        let group = Some(limit.group().path());
        // No counter has more bytes than a max that is none.
        if bytes > limit.max() || bytes == u64::MAX {
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Refusal {
                kind: RefusalKind::TooLarge,
                status,
                text,
                group,
                retry_after: None,
                protocol: Protocol::Http,
            };
        }
        let is_above = tenant
            .ancestors()
            .any(|ancestor| &ancestor == limit.group());
        let (kind, status) = if is_above {
            (RefusalKind::AboveFull, StatusCode::SERVICE_UNAVAILABLE)
        } else {
            (RefusalKind::TenantFull, StatusCode::TOO_MANY_REQUESTS)
        };
        let waited = refused.waited().unwrap_or(patience);
        let delay = tenant.inspect().high_delay(memcg::Bytes(bytes));
        Refusal {
            kind,
            status,
            text,
            group,
            retry_after: Some(retry_after(waited, delay)),
            protocol: Protocol::Http,
        }
    }

    /// The promises of the tenant leave no room for the body, which has waited so long.
    pub(crate) fn of_promises(
        text: String,
        tenant: &Group,
        bytes: u64,
        waited: Duration,
    ) -> Refusal {
        let delay = tenant.inspect().high_delay(memcg::Bytes(bytes));
        let retry_after = Some(retry_after(waited, delay));
        let kind = RefusalKind::TenantFull;
        let status = StatusCode::TOO_MANY_REQUESTS;
        Refusal {
            kind,
            status,
            text,
            group: Some(tenant.path()),
            retry_after,
            protocol: Protocol::Http,
        }
    }

    /// The tenant, or a group above it, is under pressure.
    #[cold]
    pub(crate) fn of_pressure(group: &Group, pressure: PressureLevel) -> Refusal {
        let path = group.path();
        let text = format!(
            "{path} is short of memory: its pressure level is {}",
            pressure.name()
        );
        let retry_after = Some(retry_after(Duration::ZERO, Duration::ZERO));
        let kind = RefusalKind::Shed;
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Refusal {
            kind,
            status,
            text,
            group: Some(path),
            retry_after,
            protocol: Protocol::Http,
        }
    }

    /// A body has outgrown what it had promised.
    pub(crate) fn of_outgrown(refused: &str, group: &Group) -> Refusal {
        let text = format!("the body is larger than what was promised for it: {refused}");
        let kind = RefusalKind::Outgrown;
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Refusal {
            kind,
            status,
            text,
            group: Some(group.path()),
            retry_after: None,
            protocol: Protocol::Http,
        }
    }

    /// A body has come too slowly.
    pub(crate) fn of_slow(slow: &TooSlowError) -> Refusal {
        let text = format!("the body comes too slowly: {slow}");
        Refusal {
            kind: RefusalKind::TooSlow,
            status: StatusCode::REQUEST_TIMEOUT,
            text,
            group: None,
            retry_after: None,
            protocol: Protocol::Http,
        }
    }

    /// A response of known length was refused.
    pub(crate) fn of_response(self) -> Refusal {
        let kind = if self.kind == RefusalKind::TooLarge {
            RefusalKind::ResponseTooLarge
        } else {
            self.kind
        };
        Refusal { kind, ..self }
    }

    /// The request got no group of its own.
    pub(crate) fn of_group(refused: &CreateError, tenant: &Group) -> Refusal {
        let retry_after = match refused {
            CreateError::Full { .. } | CreateError::Memory { .. } => {
                Some(retry_after(Duration::ZERO, Duration::ZERO))
            }
            _ => None,
        };
        let text = refused.to_string();
        let group = Some(tenant.path());
        Refusal {
            kind: RefusalKind::NoGroup,
            status: StatusCode::SERVICE_UNAVAILABLE,
            text,
            group,
            retry_after,
            protocol: Protocol::Http,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_come_back_spread() {
        assert_eq!(spread(Duration::ZERO, 0), Duration::from_secs(1));
        assert_eq!(
            spread(Duration::from_secs(1), u32::MAX),
            Duration::from_secs(4)
        );
        assert_eq!(
            spread(Duration::from_millis(2500), 1 << 31).as_millis(),
            6500
        );
        assert!(spread(Duration::MAX, u32::MAX) > Duration::from_secs(1 << 31));
        // Of 1,000 that are refused together, no tenth of the time has more than a few above a
        // tenth.
        let mut tenths = [0; 10];
        for _ in 0..1000 {
            let time = retry_after(Duration::from_secs(9), Duration::from_secs(1))
                - Duration::from_secs(10);
            tenths[(time.as_millis() / 2100) as usize] += 1;
        }
        assert!(
            tenths.iter().all(|tenth| (80..120).contains(tenth)),
            "{tenths:?}"
        );
    }
}
