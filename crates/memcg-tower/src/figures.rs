//! The number of requests that a layer has refused, and the time that requests have waited.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Why a request was refused, or its answer cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// 413: the request could never fit below a max.
    TooLarge,
    /// 413: its body has outgrown what it had promised, and there was no room.
    Outgrown,
    /// 413: its response, of known length, could never fit below a max.
    ResponseTooLarge,
    /// 429: its tenant is full.
    TenantFull,
    /// 503: a group above its tenant is full.
    AboveFull,
    /// 503: its tenant is offline or cancelled.
    Offline,
    /// 503: there is no group for the request below its tenant.
    NoGroup,
    /// 408: its body came too slowly.
    TooSlow,
    /// The classifier has refused it.
    Classifier,
    /// 503: its tenant is under pressure.
    Shed,
    /// The head was sent, and there was no room for a frame of a response of unknown length.
    CutOff,
}

impl RefusalKind {
    /// All kinds.
    pub const ALL: [RefusalKind; 11] = [
        RefusalKind::TooLarge,
        RefusalKind::Outgrown,
        RefusalKind::ResponseTooLarge,
        RefusalKind::TenantFull,
        RefusalKind::AboveFull,
        RefusalKind::Offline,
        RefusalKind::NoGroup,
        RefusalKind::TooSlow,
        RefusalKind::Classifier,
        RefusalKind::Shed,
        RefusalKind::CutOff,
    ];

    /// Returns its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            RefusalKind::TooLarge => "too_large",
            RefusalKind::Outgrown => "outgrown",
            RefusalKind::ResponseTooLarge => "response_too_large",
            RefusalKind::TenantFull => "tenant_full",
            RefusalKind::AboveFull => "above_full",
            RefusalKind::Offline => "offline",
            RefusalKind::NoGroup => "no_group",
            RefusalKind::TooSlow => "too_slow",
            RefusalKind::Classifier => "classifier",
            RefusalKind::Shed => "shed",
            RefusalKind::CutOff => "cut_off",
        }
    }
}

impl RefusalKind {
    /// Returns the sentence that a client reads. It names no group, and no bytes of one.
    pub const fn sentence(self) -> &'static str {
        match self {
            RefusalKind::TooLarge => "the request is larger than what it may have at any time",
            RefusalKind::Outgrown => {
                "the body of the request is larger than what was announced, and there is no room for more"
            }
            RefusalKind::ResponseTooLarge => {
                "the response is larger than what it may have at any time"
            }
            RefusalKind::TenantFull => "too much is under way for this tenant: try again later",
            RefusalKind::AboveFull | RefusalKind::NoGroup => {
                "the service has no room for the request: try again later"
            }
            RefusalKind::Offline => "the service does not take requests of this tenant now",
            RefusalKind::TooSlow => "the body of the request comes too slowly",
            RefusalKind::Classifier => "the request is not admitted",
            RefusalKind::Shed => "the service is short of memory: try again later",
            RefusalKind::CutOff => "there was no room for the rest of the response",
        }
    }

    /// Who is short of what, as gRPC's `QuotaFailure` says it to a stranger; `None`: no quota is.
    pub(crate) const fn subject(self) -> Option<&'static str> {
        match self {
            RefusalKind::TooLarge | RefusalKind::Outgrown | RefusalKind::TenantFull => {
                Some("tenant")
            }
            RefusalKind::ResponseTooLarge => Some("tenant"),
            RefusalKind::AboveFull | RefusalKind::NoGroup | RefusalKind::Shed => Some("service"),
            RefusalKind::Offline
            | RefusalKind::TooSlow
            | RefusalKind::Classifier
            | RefusalKind::CutOff => None,
        }
    }
}

/// The bounds of the buckets, in milliseconds. The last bucket has none.
const BOUNDS: [u64; 12] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000];

#[derive(Debug, Default)]
pub(crate) struct Counts {
    refused: [AtomicU64; RefusalKind::ALL.len()],
    /// Waits that have ended, by their length.
    waited: [AtomicU64; BOUNDS.len() + 1],
    waited_ns: AtomicU64,
    waiting: AtomicU64,
    left: AtomicU64,
}

impl Counts {
    pub(crate) fn refuses(&self, kind: RefusalKind) {
        self.refused[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A request in line. The drop counts its wait.
pub(crate) struct Wait {
    counts: Arc<Counts>,
    pub(crate) since: Instant,
    ended: bool,
}

impl Wait {
    pub(crate) fn begins(counts: &Arc<Counts>) -> Wait {
        counts.waiting.fetch_add(1, Ordering::Relaxed);
        Wait {
            counts: Arc::clone(counts),
            since: Instant::now(),
            ended: false,
        }
    }

    /// It was admitted or refused. Else its client has gone, or a timeout has ended it.
    pub(crate) fn ends(&mut self) {
        self.ended = true;
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let waited = self.since.elapsed();
        let counts = &*self.counts;
        let bucket = BOUNDS
            .iter()
            .position(|bound| waited <= Duration::from_millis(*bound))
            .unwrap_or(BOUNDS.len());
        counts.waited[bucket].fetch_add(1, Ordering::Relaxed);
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        counts.waited_ns.fetch_add(waited, Ordering::Relaxed);
        // Mutation: a-request-that-leaves-is-counted-in-line
        counts.waiting.fetch_sub(1, Ordering::Relaxed);
        if !self.ended {
            counts.left.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The figures of a layer and its clones. Each is exact, and one load. They cost nothing where a
/// request fits.
///
/// As text they are families in the format of OpenMetrics: a counter for each kind of refusal, and the
/// histogram of waits. `Exposition::layer` of `memcg-observe` puts them on the page of the tree, as in
/// `Exposition::new(&runtime).layer("api", layer.figures())`, with a label for each layer. Behind a page
/// that has ended no parser would read them.
///
/// ```
/// use axum::body::Body;
/// use http::Request;
/// use memcg::Runtime;
/// use memcg_tower::{AdmissionLayer, RefusalKind};
///
/// let root = Runtime::builder().max(1 << 30).build()?.root();
/// let layer = AdmissionLayer::new(move |_: &Request<Body>| Some(root.clone()));
/// let figures = layer.figures();
/// assert_eq!((figures.refused(RefusalKind::TenantFull), figures.waiting(), figures.waits().count), (0, 0, 0));
/// assert!(figures.to_string().contains("memcg_requests_refused_total{kind=\"too_slow\"} 0\n"));
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct AdmissionFigures(pub(crate) Arc<Counts>);

/// The times that requests have waited before they ran, were refused, or left. One that fits at
/// once does not wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitTimes {
    /// The number of waits that have ended.
    pub count: u64,
    /// Their sum.
    pub sum: Duration,
    /// The most that a wait of a bucket took, and how many ended in it. The last bucket has no
    /// most.
    pub buckets: Vec<(Option<Duration>, u64)>,
}

impl AdmissionFigures {
    /// Returns how many requests were refused for this reason.
    pub fn refused(&self, kind: RefusalKind) -> u64 {
        self.0.refused[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns how many requests are in line now.
    pub fn waiting(&self) -> u64 {
        self.0.waiting.load(Ordering::Relaxed)
    }

    /// Returns how many requests have left the line: their client has gone, or a timeout has ended
    /// them.
    pub fn left(&self) -> u64 {
        self.0.left.load(Ordering::Relaxed)
    }

    /// Returns the histogram of the waits that have ended.
    pub fn waits(&self) -> WaitTimes {
        let bounds = BOUNDS
            .iter()
            .map(|bound| Some(Duration::from_millis(*bound)))
            .chain([None]);
        let counts = self
            .0
            .waited
            .iter()
            .map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<_> = bounds.zip(counts).collect();
        // The sum of the buckets that were read, and not a counter of its own: OpenMetrics wants
        // the last bucket to be the count, also while waits end.
        let count = buckets.iter().map(|(_, count)| count).sum();
        WaitTimes {
            count,
            sum: Duration::from_nanos(self.0.waited_ns.load(Ordering::Relaxed)),
            buckets,
        }
    }
}

impl fmt::Display for AdmissionFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# TYPE memcg_requests_refused counter\n")?;
        for kind in RefusalKind::ALL {
            writeln!(
                f,
                "memcg_requests_refused_total{{kind=\"{}\"}} {}",
                kind.name(),
                self.refused(kind)
            )?;
        }
        f.write_str("# TYPE memcg_requests_left counter\n")?;
        writeln!(f, "memcg_requests_left_total {}", self.left())?;
        f.write_str("# TYPE memcg_requests_waiting gauge\n")?;
        writeln!(f, "memcg_requests_waiting {}", self.waiting())?;
        f.write_str("# TYPE memcg_requests_wait_seconds histogram\n# UNIT memcg_requests_wait_seconds seconds\n")?;
        let waits = self.waits();
        let mut below = 0;
        for (bound, count) in &waits.buckets {
            // In the format a bucket counts all waits up to its bound, so those of the smaller
            // ones, too.
            below += count;
            let bound = bound.map_or("+Inf".to_owned(), |bound| {
                format!("{:?}", bound.as_secs_f64())
            });
            writeln!(
                f,
                "memcg_requests_wait_seconds_bucket{{le=\"{bound}\"}} {below}"
            )?;
        }
        writeln!(f, "memcg_requests_wait_seconds_count {}", waits.count)?;
        writeln!(
            f,
            "memcg_requests_wait_seconds_sum {}",
            waits.sum.as_secs_f64()
        )
    }
}
