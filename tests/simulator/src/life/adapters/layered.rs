//! Requests through several layers: whose they are is said later, what they weigh by themselves, their
//! bodies become longer inside, and the service below is not ready, fails or panics.
//!
//! Each request is one of a tree of its own, and is dropped at any step. What it holds is known as its
//! handler reads, and nothing is left of it, of no group and in no figure.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use memcg::{Group, Limit, Limits, PressureLevel, Runtime};
use memcg_tower::{
    AdmissionLayer, AdmittedRequest, BodyError, Classification, MeterLayer, Metered, PromisedBytes,
    Refusal, RefusalKind, RequestBody, RequestWeight,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tower_layer::Layer;
use tower_service::Service;

use super::Rung;
use super::connections::{PATIENCE, lock};
use super::requests::Broken;
use crate::script::pick;

const REQUESTS: usize = 8;

/// Polls that are enough for any request that waits for nobody.
const POLLS: usize = 12;

/// A body of more promises its length.
const SMALL: u64 = 8 << 10;

/// Each frame becomes so many times as long.
const TIMES: usize = 3;

/// Frames, of which one may be an error.
struct Frames {
    frames: VecDeque<Result<Bytes, Broken>>,
    says: Option<u64>,
}

impl Frames {
    fn new(many: usize, bytes: usize, fails: bool, says_length: bool) -> Frames {
        let frame = || Ok(Bytes::from(vec![7; bytes]));
        let mut frames: VecDeque<_> = (0..many).map(|_| frame()).collect();
        if fails {
            frames.push_back(Err(Broken));
        }
        let more = u64::from(fails) * 500;
        let says = says_length.then_some((many * bytes) as u64 + more);
        Frames { frames, says }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = self.frames.pop_front();
        if let (Some(Ok(frame)), Some(says)) = (&frame, &mut self.says) {
            *says -= frame.len() as u64;
        }
        Poll::Ready(frame.map(|frame| frame.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.says.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// A body that becomes longer.
struct Unpacks(Pin<Box<RequestBody<Frames>>>);

impl Body for Unpacks {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = self.0.as_mut().poll_frame(context);
        polled.map_ok(|frame| frame.map_data(|data| Bytes::from(data.repeat(TIMES))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// A layer that unpacks the bodies of its requests.
#[derive(Clone)]
struct Unpacking<S>(S);

impl<S: Service<Request<Unpacks>>> Service<Request<RequestBody<Frames>>> for Unpacking<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody<Frames>>) -> S::Future {
        self.0.call(request.map(|body| Unpacks(Box::pin(body))))
    }
}

/// What a handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Answers,
    Fails,
    Panics,
    PanicsAtOnce,
    Never,
}

/// Who is said to be whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Tenant,
    Weighed,
    Nobody,
    Refused,
}

/// A request.
#[derive(Clone, Copy, Debug)]
struct Plan {
    verdict: Verdict,
    /// It is said after so many polls.
    later: usize,
    /// The service below is ready after so many polls, or fails then.
    not_ready: usize,
    is_never_ready: bool,
    way: Way,
    frames: usize,
    bytes: usize,
    body_fails: bool,
    says_length: bool,
    is_packed: bool,
    answer: usize,
    /// The max of a group of its own.
    own_max: u64,
    /// So often it is polled, and then its client goes.
    polls: usize,
}

impl Plan {
    fn draw(rng: &mut Xoshiro256PlusPlus) -> Plan {
        let verdicts = [
            Verdict::Tenant,
            Verdict::Tenant,
            Verdict::Weighed,
            Verdict::Nobody,
            Verdict::Refused,
        ];
        let ways = [
            Way::Answers,
            Way::Answers,
            Way::Answers,
            Way::Fails,
            Way::Panics,
            Way::PanicsAtOnce,
            Way::Never,
        ];
        Plan {
            verdict: pick(rng, &verdicts),
            later: pick(rng, &[0, 0, 1, 2]),
            not_ready: pick(rng, &[0, 0, 1, 2]),
            is_never_ready: rng.random_bool(0.1),
            way: pick(rng, &ways),
            frames: rng.random_range(0..4),
            bytes: pick(rng, &[100, 3_000, 9_000]),
            body_fails: rng.random_bool(0.2),
            says_length: rng.random(),
            is_packed: rng.random(),
            answer: pick(rng, &[0, 100, 9_000]),
            own_max: pick(rng, &[u64::MAX, 20_000, 3_000, 1_000]),
            polls: pick(rng, &[1, 2, 3, POLLS, POLLS, POLLS]),
        }
    }
}

/// What a handler has seen.
#[derive(Default)]
struct Seen {
    called: usize,
    /// What the request held once its body was read, and what it was to hold.
    held: Option<(u64, u64)>,
}

/// The service below.
#[derive(Clone)]
struct Below {
    plan: Plan,
    own: u64,
    not_ready: usize,
    seen: Arc<Mutex<Seen>>,
}

impl Service<Request<Metered<Unpacks>>> for Below {
    type Response = Response<Frames>;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Frames>, Broken>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        match self.not_ready.checked_sub(1) {
            Some(left) => {
                self.not_ready = left;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None if self.plan.is_never_ready => Poll::Ready(Err(Broken)),
            None => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request<Metered<Unpacks>>) -> Self::Future {
        assert_eq!(self.not_ready, 0, "a service is called that is not ready");
        let (plan, own, seen) = (self.plan, self.own, Arc::clone(&self.seen));
        lock(&seen).called += 1;
        assert!(plan.way != Way::PanicsAtOnce, "on purpose");
        let admitted = request.extensions().get::<AdmittedRequest>().cloned();
        Box::pin(async move {
            let mut body = pin!(request.into_body());
            let mut came = 0;
            while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
                let frame = frame.map_err(|_| Broken)?;
                came += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            if let Some(admitted) = admitted {
                lock(&seen).held = Some((admitted.reserved(), own + came));
            }
            match plan.way {
                Way::Fails => return Err(Broken),
                Way::Panics => panic!("on purpose"),
                Way::Never => std::future::pending().await,
                _ => {}
            }
            Ok(Response::new(Frames::new(1, plan.answer, false, true)))
        })
    }
}

/// The layer of a tree, and what its tenants are.
struct Form {
    max: u64,
    waits: bool,
    sheds: bool,
    has_groups: bool,
}

fn verdict(plan: Plan, tenant: &Group) -> Classification {
    match plan.verdict {
        Verdict::Tenant => Some(tenant.clone()).into(),
        Verdict::Weighed => RequestWeight::new(tenant.clone()).overhead(1_700).into(),
        Verdict::Nobody => Classification::uncharged(),
        Verdict::Refused => {
            let refusal = Refusal::new(StatusCode::FORBIDDEN, "nobody knows it");
            let refused: Result<Group, _> = Err(refusal);
            refused.into()
        }
    }
}

/// A verdict that comes after some polls.
fn verdict_later(plan: Plan, tenant: Group) -> Classification {
    let mut left = plan.later;
    Classification::later(poll_fn(move |context| match left.checked_sub(1) {
        Some(less) => {
            left = less;
            context.waker().wake_by_ref();
            Poll::Pending
        }
        None => Poll::Ready(verdict(plan, &tenant)),
    }))
}

pub(super) fn live(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let form = Form {
        max: pick(rng, &[1 << 20, 1 << 20, 40_000, 4_000]),
        waits: rng.random(),
        sheds: rng.random_bool(0.3),
        has_groups: rng.random(),
    };
    let limits = Limits::new()
        .max(Limit::Bytes(form.max))
        .pressure_levels(50, 80);
    let tenant = runtime.root().create("tenant", limits);
    let tenant = tenant.expect("nothing is in the way");
    let held = rng
        .random_bool(0.2)
        .then(|| tenant.force_charge(memcg::Bytes(form.max / 4 * 3)));
    for _ in 0..REQUESTS {
        if rng.random_bool(0.04) {
            tenant.offline_tree();
        }
        request(&tenant, &form, Plan::draw(rng));
        let held = held.as_ref().map_or(0, memcg::Charge::bytes);
        let promised = PromisedBytes::to(&tenant);
        let left = (tenant.live(), tenant.inspect().child_count());
        assert_eq!(
            left,
            (held, 0),
            "bytes and groups of requests that are over"
        );
        let left = (promised.bytes, promised.waiting);
        assert_eq!(left, (0, 0), "promised, and in line");
    }
    drop(held);
    assert_eq!(runtime.root().live(), 0, "live at the end");
}

/// One request lives, and is over.
fn request(tenant: &Group, form: &Form, plan: Plan) {
    let overhead = if plan.verdict == Verdict::Weighed {
        1_700
    } else {
        700
    };
    let of_layer = tenant.clone();
    let mut layer = AdmissionLayer::new(move |_: &Request<Frames>| match plan.later {
        0 => verdict(plan, &of_layer),
        _ => verdict_later(plan, of_layer.clone()),
    });
    layer = layer.overhead(700).response(500).unknown_body(2_000);
    layer = layer.patience(if form.waits { PATIENCE } else { Duration::ZERO });
    if form.sheds {
        layer = layer.shed_from(PressureLevel::Elevated);
    }
    if form.has_groups {
        let limits = Limits::new();
        layer = layer.request_groups(match plan.own_max {
            u64::MAX => limits,
            max => limits.max(Limit::Bytes(max)),
        });
    }
    let figures = layer.figures();
    let seen = Arc::<Mutex<Seen>>::default();
    let below = Below {
        plan,
        own: overhead + 500,
        not_ready: plan.not_ready,
        seen: Arc::clone(&seen),
    };
    let mut service = layer.layer(Unpacking(MeterLayer::new().layer(below)));
    drop(layer);
    let rung = Arc::<Rung>::default();
    let waker = Waker::from(rung);
    let mut context = Context::from_waker(&waker);
    let mut polls = 0;
    let is_ready = loop {
        match service.poll_ready(&mut context) {
            Poll::Ready(ready) => break ready.is_ok(),
            Poll::Pending => polls += 1,
        }
        assert!(polls <= plan.not_ready, "it is ready");
    };
    if !is_ready {
        return;
    }
    let body = Frames::new(plan.frames, plan.bytes, plan.body_fails, plan.says_length);
    let mut request = Request::new(body);
    if plan.is_packed {
        let packed = "gzip".parse().expect("a name");
        request.headers_mut().insert(CONTENT_ENCODING, packed);
    }
    let called = catch_unwind(AssertUnwindSafe(|| service.call(request)));
    let mut answered = None;
    let mut panicked = called.is_err();
    if let Ok(future) = called {
        let mut future = Box::pin(future);
        for _ in 0..plan.polls {
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
            match polled {
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(answer)) => {
                    answered = Some(answer);
                    break;
                }
                Err(_) => {
                    panicked = true;
                    break;
                }
            }
        }
    }
    let seen = std::mem::take(&mut *lock(&seen));
    assert!(seen.called <= 1, "a handler is called once");
    let panics = matches!(plan.way, Way::Panics | Way::PanicsAtOnce);
    assert!(
        !panicked || panics && seen.called == 1,
        "who panics? {plan:?}"
    );
    if let Some((held, known)) = seen.held {
        assert_eq!(
            held, known,
            "held by a request whose body is read: {plan:?}"
        );
    }
    let refused: u64 = RefusalKind::ALL
        .iter()
        .map(|&kind| figures.refused(kind))
        .sum();
    assert_eq!(figures.waiting(), 0, "requests in line");
    let status = match &answered {
        Some(Ok(answer)) => Some(answer.status()),
        _ => None,
    };
    let is_refused = status.is_some_and(|status| status != StatusCode::OK);
    assert!(
        refused <= 1 && refused >= u64::from(is_refused),
        "{refused} refusals: {status:?}"
    );
    // What can never fit, or has no tenant any more, is told so at once.
    let is_tenants = matches!(plan.verdict, Verdict::Tenant | Verdict::Weighed);
    let is_whole = is_tenants && plan.polls == POLLS;
    let said = (plan.frames * plan.bytes) as u64 + u64::from(plan.body_fails) * 500;
    let total = overhead + 500 + said;
    let is_never = form.has_groups && plan.says_length && said > SMALL && total > plan.own_max;
    if is_tenants && (tenant.is_offline() || is_never) {
        assert_eq!(seen.called, 0, "it never fits: {plan:?}");
        assert!(
            is_refused || !is_whole,
            "it never fits, and waits: {plan:?}"
        );
    }
    let of_classifier = figures.refused(RefusalKind::Classifier) == 1;
    assert!(
        !of_classifier || plan.verdict == Verdict::Refused,
        "refused by nobody"
    );
    if plan.verdict == Verdict::Refused {
        assert_eq!(seen.called, 0, "a request that is refused is handled");
    }
    if let Some(Ok(answer)) = answered {
        let mut body = pin!(answer.into_body());
        let mut length = 0;
        while let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut context) {
            length += frame.data_ref().map_or(0, Bytes::len);
        }
        let whole = if is_refused { length } else { plan.answer };
        let is_full = form.max <= 40_000 || form.has_groups && plan.own_max < u64::MAX;
        assert!(length == whole || is_full, "{length} of {whole} bytes came");
    }
}
