//! Requests through several layers: whose they are is said later, what they weigh by themselves, their
//! bodies become longer inside, and the service below is not ready, fails or panics.
//!
//! Each request is one of a tree of its own, and is dropped at any step. What it holds is known as
//! its handler reads, why it may be refused, and what is said of that to whom; and nothing is left
//! of it, of no group, in no figure and of no limit below.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use memcg::{Charge, Group, Limit, Limits, PressureLevel, Runtime};
use memcg_tower::{
    AdmissionFigures, AdmissionLayer, AdmittedRequest, BodyError, Classification, MeterLayer,
    Metered, PromisedBytes, Refusal, RefusalKind, RequestBody, RequestWeight,
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

/// What a classifier says to a client.
const NOBODY: &str = "nobody knows it: 0 % of café";

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
    /// It is ready for the layer, and fails where a request that has waited asks it again.
    fails_later: bool,
    way: Way,
    frames: usize,
    bytes: usize,
    body_fails: bool,
    says_length: bool,
    is_packed: bool,
    /// Its content type, by its number.
    speaks: usize,
    answer: usize,
    answer_fails: bool,
    /// Of a refusal by the classifier.
    status: StatusCode,
    /// In which words it is said.
    words: u8,
    /// A verdict that comes later says so once more.
    asks_again: bool,
    /// Others hold bytes of the level with the limit, until it was polled so often.
    others: Option<usize>,
    /// They come once it is called, and hold all that is left.
    come_late: bool,
    /// What it weighs by itself: overhead, response, body of unknown length, and window.
    own: [Option<u64>; 4],
    /// It is shed by itself, under so much pressure.
    sheds: Option<PressureLevel>,
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
            fails_later: rng.random_bool(0.15),
            way: pick(rng, &ways),
            frames: rng.random_range(0..4),
            bytes: pick(rng, &[100, 3_000, 9_000]),
            body_fails: rng.random_bool(0.2),
            says_length: rng.random(),
            is_packed: rng.random(),
            speaks: rng.random_range(0..SPEAKS.len()),
            answer: pick(rng, &[0, 100, 9_000, 30_000]),
            answer_fails: rng.random_bool(0.2),
            status: pick(rng, &STATUSES),
            words: rng.random_range(0..3),
            asks_again: rng.random(),
            others: pick(rng, &[None, Some(1), Some(2), Some(POLLS)]),
            come_late: rng.random(),
            own: [
                [700, 1_700],
                [500, 2_500],
                [2_000, 9_500],
                [u64::MAX, 2_200],
            ]
            .map(|two| pick(rng, &[None, Some(two[0]), Some(two[1])])),
            sheds: pick(rng, &[None, None, Some(PressureLevel::Critical)]),
            own_max: pick(rng, &[u64::MAX, 20_000, 3_000, 1_000]),
            polls: pick(rng, &[1, 2, 3, POLLS, POLLS, POLLS]),
        }
    }
}

/// Content types, and that of an answer without a message.
const SPEAKS: [(&str, Option<&str>); 6] = [
    ("text/plain", None),
    ("application/grpcx", None),
    ("application/grpc", Some("application/grpc")),
    ("application/grpc;x", Some("application/grpc")),
    ("application/grpc-web", Some("application/grpc-web+proto")),
    (
        "application/grpc-web-text+proto",
        Some("application/grpc-web-text+proto"),
    ),
];

const STATUSES: [StatusCode; 6] = [
    StatusCode::FORBIDDEN,
    StatusCode::UNAUTHORIZED,
    StatusCode::NOT_FOUND,
    StatusCode::BAD_REQUEST,
    // No refusals.
    StatusCode::OK,
    StatusCode::FOUND,
];

/// What an operator is told of a refusal.
struct Told {
    refusal: Refusal,
    /// Others held bytes then.
    beside_others: bool,
}

/// What a handler has seen.
#[derive(Default)]
struct Seen {
    called: usize,
    /// The handler has answered.
    answers: bool,
    /// A level was short of memory when it came, and what is short becomes less so.
    was_short: bool,
    /// The code that runs for it may ask what it holds.
    is_told: Option<bool>,
    /// What the request held once its body was read, and what it was to hold.
    held: Option<(u64, u64)>,
}

/// The service below.
struct Below {
    plan: Plan,
    own: u64,
    window: u64,
    not_ready: usize,
    was_ready: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    /// Of a limit: one is taken by whom it is ready for, until the answer.
    permits: Arc<AtomicUsize>,
    permit: Option<Permit>,
    others: Others,
}

/// What others hold of the level with the limit, where there are some.
#[derive(Clone)]
struct Others {
    of: Group,
    max: u64,
    held: Arc<Mutex<Option<Charge>>>,
    are_there: Arc<AtomicBool>,
}

impl Others {
    fn come(&self, bytes: u64) {
        let held = self.of.force_charge(memcg::Bytes(bytes));
        *lock(&self.held) = Some(held);
        self.are_there.store(true, Ordering::SeqCst);
    }

    fn go(&self) {
        let held = lock(&self.held).take();
        drop(held);
        self.are_there.store(false, Ordering::SeqCst);
    }

    /// What all hold but these.
    fn live_beside(&self) -> u64 {
        let held = lock(&self.held).as_ref().map_or(0, Charge::bytes);
        self.of.live() - held
    }
}

struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn new(of: &Arc<AtomicUsize>) -> Permit {
        of.fetch_add(1, Ordering::SeqCst);
        Permit(Arc::clone(of))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Clone for Below {
    fn clone(&self) -> Below {
        Below {
            was_ready: Arc::clone(&self.was_ready),
            seen: Arc::clone(&self.seen),
            permits: Arc::clone(&self.permits),
            permit: None,
            others: self.others.clone(),
            ..*self
        }
    }
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
            None if self.plan.fails_later && self.was_ready.load(Ordering::SeqCst) => {
                Poll::Ready(Err(Broken))
            }
            None => {
                self.permit = Some(Permit::new(&self.permits));
                self.was_ready.store(true, Ordering::SeqCst);
                Poll::Ready(Ok(()))
            }
        }
    }

    fn call(&mut self, request: Request<Metered<Unpacks>>) -> Self::Future {
        let permit = self.permit.take();
        assert!(permit.is_some(), "a service is called that is not ready");
        let (plan, own, window) = (self.plan, self.own, self.window);
        let seen = Arc::clone(&self.seen);
        lock(&seen).called += 1;
        assert!(plan.way != Way::PanicsAtOnce, "on purpose");
        let admitted = request.extensions().get::<AdmittedRequest>().cloned();
        lock(&seen).is_told = Some(admitted.is_some());
        if plan.come_late && plan.others.is_some() {
            let left = self.others.max.saturating_sub(self.others.of.live());
            // Some leave room for a frame, and not for what it becomes.
            let leave = if plan.words == 0 {
                plan.bytes as u64
            } else {
                0
            };
            self.others.come(left.saturating_sub(leave));
        }
        Box::pin(async move {
            let _permit = permit;
            let (mut head, body) = request.into_parts();
            // As an argument, also of two handlers one after the other.
            for _ in 0..2 {
                let taken = AdmittedRequest::from_request_parts(&mut head, &()).await;
                let is_there = match taken {
                    Ok(_) => true,
                    Err(missing) => {
                        let status = missing.into_response().status();
                        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
                        false
                    }
                };
                let Ok(perhaps) =
                    Option::<AdmittedRequest>::from_request_parts(&mut head, &()).await;
                let found = (is_there, perhaps.is_some());
                assert_eq!(found, (admitted.is_some(), admitted.is_some()));
            }
            drop(head);
            let mut body = pin!(body);
            let mut came = 0;
            // It says that it ends, while a frame of it waits.
            let mut has_ended = false;
            let mut next = |context: &mut Context<'_>| {
                let polled = body.as_mut().poll_frame(context);
                has_ended |= polled.is_pending() && body.is_end_stream();
                let is_frame = matches!(polled, Poll::Ready(Some(Ok(_))));
                assert!(!is_frame || !has_ended, "a frame comes after the end");
                polled
            };
            while let Some(frame) = poll_fn(&mut next).await {
                let Ok(frame) = frame else {
                    let after = poll_fn(&mut next).await;
                    assert!(after.is_none(), "behind an error: {after:?}");
                    return Err(Broken);
                };
                came += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            if let Some(admitted) = admitted {
                let known = own + window.min(came);
                lock(&seen).held = Some((admitted.reserved(), known));
            }
            match plan.way {
                Way::Fails => return Err(Broken),
                Way::Panics => panic!("on purpose"),
                Way::Never => std::future::pending().await,
                _ => {}
            }
            lock(&seen).answers = true;
            let answer = Frames::new(1, plan.answer, plan.answer_fails, true);
            Ok(Response::new(answer))
        })
    }
}

/// The layer of a tree, and what its tenants are.
#[derive(Clone, Copy)]
struct Form {
    max: u64,
    /// Of the levels of the tenant, from itself on, the one that has the max.
    limited: usize,
    waits: bool,
    sheds: Option<PressureLevel>,
    has_groups: bool,
    /// There are as many groups as there may be.
    is_full: bool,
    tells: bool,
}

fn verdict(plan: Plan, tenant: &Group) -> Classification {
    match plan.verdict {
        Verdict::Tenant => match plan.words {
            0 => Some(tenant.clone()).into(),
            1 => Ok::<_, Refusal>(tenant.clone()).into(),
            _ => Ok::<_, Refusal>(Some(tenant.clone())).into(),
        },
        Verdict::Weighed => {
            let mut weight = RequestWeight::new(tenant.clone());
            let [overhead, response, unknown, window] = plan.own;
            if let Some(bytes) = overhead {
                weight = weight.overhead(bytes as usize);
            }
            if let Some(bytes) = response {
                weight = weight.response(bytes as usize);
            }
            if let Some(bytes) = unknown {
                weight = weight.unknown_body(bytes as usize);
            }
            if let Some(bytes) = window {
                weight = weight.body_window(bytes as usize);
            }
            if let Some(level) = plan.sheds {
                weight = weight.shed_from(level);
            }
            match plan.words {
                0 => weight.into(),
                _ => Ok::<_, Refusal>(weight).into(),
            }
        }
        Verdict::Nobody => match plan.words {
            0 => Classification::uncharged(),
            1 => None.into(),
            _ => Ok::<_, Refusal>(None).into(),
        },
        Verdict::Refused => {
            let refusal = Refusal::new(plan.status, NOBODY);
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
        None if plan.asks_again => {
            let said = verdict(plan, &tenant);
            Poll::Ready(Classification::later(std::future::ready(said)))
        }
        None => Poll::Ready(verdict(plan, &tenant)),
    }))
}

pub(super) fn live(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let form = Form {
        max: pick(rng, &[1 << 20, 1 << 20, 40_000, 4_000]),
        limited: rng.random_range(0..3),
        waits: rng.random(),
        sheds: Some(PressureLevel::Elevated).filter(|_| rng.random_bool(0.3)),
        has_groups: rng.random(),
        is_full: rng.random_bool(0.1),
        tells: rng.random(),
    };
    // The root and the levels of the tenant are there.
    let groups = if form.is_full { 4 } else { 64 };
    // What threads keep is room for all of them.
    let batch = pick(rng, &[0, 3_000]);
    let runtime = Runtime::builder().batch(batch).groups_max(groups).build();
    let runtime = runtime.expect("a configuration that holds");
    let limits = Limits::new()
        .max(Limit::Bytes(form.max))
        .pressure_levels(50, 80);
    let own_levels: [bool; 3] = rng.random();
    let make = |above: &Group, level: usize| {
        let is_limited = level == form.limited;
        // A level that has thresholds of its own is short by these alone.
        let others = if own_levels[level] {
            Limits::new().max(1 << 30).pressure_levels(50, 80)
        } else {
            Limits::new()
        };
        let limits = if is_limited { limits } else { others };
        let made = above.create(["tenant", "above", "top"][level], limits);
        made.expect("nothing is in the way")
    };
    let top = make(&runtime.root(), 2);
    let above = make(&top, 1);
    let tenant = make(&above, 0);
    for _ in 0..REQUESTS {
        if rng.random_bool(0.04) {
            tenant.offline_tree();
        }
        let (levels, plan) = ([&tenant, &above, &top], Plan::draw(rng));
        // What it asks for at once is all that there is.
        let exactly = Some(plan.asks()).filter(|_| rng.random_bool(0.15));
        let max = exactly.unwrap_or(form.max);
        let set_max = |max| levels[form.limited].set_max(Limit::Bytes(max));
        set_max(max).expect("a number");
        request(levels, &Form { max, ..form }, plan);
        set_max(form.max).expect("a number");
        let promised = PromisedBytes::to(&tenant);
        let left = (top.live(), tenant.inspect().child_count());
        assert_eq!(left, (0, 0), "bytes and groups of requests that are over");
        let left = (promised.bytes, promised.waiting);
        assert_eq!(left, (0, 0), "promised, and in line");
    }
}

/// What the client of a refusal reads: by its protocol, a code, a sentence, and when to come back.
fn reads_refusal(plan: Plan, told: &Refusal, answer: &Response<impl Body<Data = Bytes>>) {
    let header = |name: &str| answer.headers().get(name).map(|value| value.to_str().ok());
    let returns = told.retry_after().map(|time| time.as_secs().to_string());
    // A request without a body is no call of gRPC.
    let Some(speaks) = SPEAKS[plan.speaks].1.filter(|_| !plan.has_no_body()) else {
        if plan.has_no_body() {
            return;
        }
        assert_eq!(answer.status(), told.status(), "of {told:?}");
        let found = header("retry-after").flatten();
        assert_eq!(found, returns.as_deref(), "when to come back");
        return;
    };
    assert_eq!(answer.status(), StatusCode::OK, "of gRPC");
    assert_eq!(header("content-type").flatten(), Some(speaks));
    let code = match told.kind() {
        RefusalKind::TooLarge
        | RefusalKind::Outgrown
        | RefusalKind::ResponseTooLarge
        | RefusalKind::TenantFull
        | RefusalKind::AboveFull
        | RefusalKind::Shed => 8,
        RefusalKind::TooSlow => 4,
        RefusalKind::Classifier => match told.status().as_u16() {
            400 => 3,
            401 => 16,
            403 => 7,
            404 => 5,
            _ => 2,
        },
        // A group that is full may have room later; one that is offline has not.
        _ if returns.is_some() => 8,
        _ => 14,
    };
    let found = header("grpc-status").flatten();
    assert_eq!(found, Some(code.to_string().as_str()), "of {told:?}");
    let message = header("grpc-message").flatten();
    assert_eq!(message, Some(&*encoded(told.sentence())));
    let details = header("grpc-status-details-bin").flatten();
    let details = decoded(details.expect("of a refusal"));
    let has = |text: &str| details.windows(text.len()).any(|it| it == text.as_bytes());
    let found = (has("RetryInfo"), has("QuotaFailure"), has(told.sentence()));
    let is_short = code == 8 || told.kind() == RefusalKind::NoGroup;
    assert_eq!(found, (returns.is_some(), is_short, true), "{told:?}");
    let of_tenant = matches!(
        told.kind(),
        RefusalKind::TooLarge
            | RefusalKind::Outgrown
            | RefusalKind::ResponseTooLarge
            | RefusalKind::TenantFull
    );
    let subject = if of_tenant { "tenant" } else { "service" };
    assert!(!is_short || has(subject), "who is short: {told:?}");
}

/// All but what is printed in ASCII, and the percent sign, as the message of gRPC has it.
fn encoded(text: &str) -> String {
    let of = |byte: u8| match byte {
        b'%' | 0..b' ' | 0x7f.. => format!("%{byte:02X}"),
        byte => char::from(byte).to_string(),
    };
    text.bytes().map(of).collect()
}

/// Base64 without padding.
fn decoded(text: &str) -> Vec<u8> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let bits = text.bytes().map(|letter| u32::from(digit(letter)));
    let (mut word, mut many, mut all) = (0, 0, Vec::new());
    for bits in bits {
        word = word << 6 | bits;
        many += 6;
        if many >= 8 {
            many -= 8;
            all.push((word >> many) as u8);
        }
    }
    all
}

impl Plan {
    fn has_no_body(&self) -> bool {
        self.frames == 0 && !self.body_fails
    }

    /// Overhead, response, and window: its own, or those of the layer.
    fn weighs(&self) -> (u64, u64, u64) {
        let [overhead, response, _, window] = match self.verdict {
            Verdict::Weighed => self.own,
            _ => [None; 4],
        };
        let window = window.unwrap_or(u64::MAX);
        (overhead.unwrap_or(700), response.unwrap_or(500), window)
    }

    /// What it may hold at once.
    fn most(&self) -> u64 {
        let (overhead, response, window) = self.weighs();
        let unknown = self.own[2].unwrap_or_default().max(2_000);
        let body = (self.said() * TIMES as u64).max(unknown).min(window);
        // One that fails says that it is longer.
        overhead + response + body + self.answer as u64 + 500
    }

    /// What it asks for before it is handled.
    fn asks(&self) -> u64 {
        let (overhead, response, window) = self.weighs();
        let own = match self.verdict {
            Verdict::Weighed => self.own[2],
            _ => None,
        };
        let body = match (self.has_no_body(), self.says_length) {
            (true, _) => 0,
            (false, true) => self.said(),
            (false, false) => own.unwrap_or(2_000),
        };
        overhead + response + body.min(window)
    }

    /// The bytes of the body that its head says.
    fn said(&self) -> u64 {
        (self.frames * self.bytes) as u64 + u64::from(self.body_fails) * 500
    }
}

/// Why it was refused, as an operator is told: by the kind and the group that is named.
fn tells_why(levels: [&Group; 3], form: &Form, plan: Plan, seen: &Seen, told: &Told) {
    let Told {
        refusal,
        beside_others,
    } = told;
    let known = match refusal.kind() {
        RefusalKind::TooLarge | RefusalKind::Outgrown | RefusalKind::ResponseTooLarge => 413,
        RefusalKind::TenantFull => 429,
        RefusalKind::Classifier if plan.status.as_u16() < 400 => 500,
        RefusalKind::Classifier => plan.status.as_u16(),
        _ => 503,
    };
    assert_eq!(refusal.status().as_u16(), known, "of {refusal:?}");
    let comes_back = match refusal.kind() {
        RefusalKind::TenantFull | RefusalKind::AboveFull | RefusalKind::Shed => Some(true),
        RefusalKind::NoGroup => None,
        _ => Some(false),
    };
    let found = refusal.retry_after().is_some();
    assert!(comes_back.is_none_or(|it| it == found), "{refusal:?}");
    let path = |level: usize| levels[level].path();
    let has_own = form.has_groups && plan.own_max < u64::MAX;
    // The least max above it.
    let most = plan.most();
    let max = form.max.min(if has_own { plan.own_max } else { u64::MAX });
    match refusal.kind() {
        RefusalKind::TooLarge | RefusalKind::ResponseTooLarge => {
            assert!(most > max, "{refusal} at {max}: it takes {most} at most");
            assert!(
                seen.called > 0 || plan.asks() > max,
                "{refusal} at {max}: it asks for {}",
                plan.asks()
            );
            let of_answer = refusal.kind() == RefusalKind::ResponseTooLarge;
            assert_eq!(of_answer, seen.answers, "what is too large: {refusal}");
            // Of an answer no more than the window has to be there at once.
            let (answer, (.., window)) = (plan.answer as u64, plan.weighs());
            let at_once = most - answer + answer.min(window);
            assert!(
                !of_answer || at_once > max,
                "{refusal} at {max}: it takes {at_once} at once"
            );
        }
        RefusalKind::Outgrown => assert!(!seen.answers, "its body was read"),
        RefusalKind::TenantFull | RefusalKind::AboveFull => {
            assert!(beside_others, "nobody else is there, {plan:?}: {refusal}");
            // Of what is promised only the tenant is told.
            let of_promise = plan.said() > SMALL && plan.says_length;
            let of_tenant = form.limited == 0 || has_own || of_promise;
            let is_above = refusal.kind() == RefusalKind::AboveFull;
            let is_right = if is_above {
                form.limited > 0
            } else {
                of_tenant
            };
            assert!(is_right, "level {} is full: {refusal:?}", form.limited);
            if is_above {
                assert_eq!(refusal.group(), Some(&*path(form.limited)), "{refusal}");
            }
        }
        RefusalKind::Shed => assert!(seen.was_short, "nobody is short: {refusal:?}"),
        RefusalKind::NoGroup if form.is_full && !levels[0].is_offline() => {
            assert!(found, "groups go, and there is room later: {refusal:?}");
        }
        RefusalKind::Offline | RefusalKind::NoGroup => {
            let is_right = levels[0].is_offline();
            assert!(is_right, "the tenant is online: {refusal}");
        }
        RefusalKind::Classifier => {
            assert_eq!(plan.verdict, Verdict::Refused, "{refusal}");
            assert_eq!(refusal.sentence(), NOBODY);
        }
        _ => panic!("no request is refused so: {refusal:?}"),
    }
}

/// The figures of a layer as text: each that it has, and buckets that count all waits up to a
/// bound.
pub(super) fn says_figures(figures: &AdmissionFigures) {
    let text = figures.to_string();
    let value = |name: &str| -> f64 {
        let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        let found = lines.find(|(before, _)| *before == name);
        let (_, value) = found.unwrap_or_else(|| panic!("{name} in {text}"));
        value.parse().expect("a number")
    };
    for kind in RefusalKind::ALL {
        let found = value(&format!(
            "memcg_requests_refused_total{{kind=\"{}\"}}",
            kind.name()
        ));
        assert_eq!(found, figures.refused(kind) as f64, "{kind:?}");
    }
    let waits = figures.waits();
    let found = [
        "left_total",
        "waiting",
        "wait_seconds_count",
        "wait_seconds_sum",
    ]
    .map(|name| value(&format!("memcg_requests_{name}")));
    let known = [
        figures.left() as f64,
        figures.waiting() as f64,
        waits.count as f64,
        waits.sum.as_secs_f64(),
    ];
    assert_eq!(found, known, "left, waiting, waits and their sum");
    let buckets = text.lines().filter(|line| line.contains("_bucket{"));
    let found = buckets.map(|line| line.rsplit_once(' ').map(|(_, many)| many.to_string()));
    let mut below = 0;
    let known = waits.buckets.iter().map(|(_, many)| {
        below += many;
        Some(below.to_string())
    });
    assert!(found.eq(known), "buckets: {text}");
}

/// One request lives, and is over.
fn request(levels: [&Group; 3], form: &Form, plan: Plan) {
    let tenant = levels[0];
    let (overhead, response, window) = plan.weighs();
    let is_shared = !tenant.is_offline();
    let limited = levels[form.limited];
    let had_others = plan.others.is_some() && is_shared;
    let others = Others {
        of: limited.clone(),
        max: form.max,
        held: Arc::default(),
        are_there: Arc::default(),
    };
    if had_others && !plan.come_late {
        others.come(form.max / 4 * 3);
    }
    let of_layer = tenant.clone();
    let mut layer = AdmissionLayer::new(move |_: &Request<Frames>| match plan.later {
        0 => verdict(plan, &of_layer),
        _ => verdict_later(plan, of_layer.clone()),
    });
    layer = layer.overhead(700).response(500).unknown_body(2_000);
    layer = layer.patience(if form.waits { PATIENCE } else { Duration::ZERO });
    if let Some(level) = form.sheds {
        layer = layer.shed_from(level);
    }
    if form.tells {
        layer = layer.admitted();
    }
    if form.has_groups {
        let limits = Limits::new();
        layer = layer.request_groups(match plan.own_max {
            u64::MAX => limits,
            max => limits.max(Limit::Bytes(max)),
        });
    }
    let told = Arc::<Mutex<Vec<Told>>>::default();
    let (tells, beside) = (Arc::clone(&told), Arc::clone(&others.are_there));
    layer = layer.answer(move |refusal| {
        lock(&tells).push(Told {
            refusal: refusal.clone(),
            beside_others: beside.load(Ordering::SeqCst),
        });
        refusal.to_response()
    });
    let figures = layer.figures();
    let seen = Arc::<Mutex<Seen>>::default();
    let permits = Arc::<AtomicUsize>::default();
    let below = Below {
        plan,
        own: overhead + response,
        window,
        not_ready: plan.not_ready,
        was_ready: Arc::default(),
        seen: Arc::clone(&seen),
        permits: Arc::clone(&permits),
        permit: None,
        others: others.clone(),
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
    let headers = request.headers_mut();
    if plan.is_packed {
        let packed = "gzip".parse().expect("a name");
        headers.insert(CONTENT_ENCODING, packed);
    }
    let speaks = SPEAKS[plan.speaks].0.parse().expect("a content type");
    headers.insert(CONTENT_TYPE, speaks);
    // The nearest level that is short of memory, for a request that is looked at now.
    let sheds = match plan.verdict {
        Verdict::Weighed => plan.sheds.or(form.sheds),
        Verdict::Tenant => form.sheds,
        _ => None,
    };
    let short = |sheds: PressureLevel| {
        let mut levels = levels.into_iter();
        levels.find(|level| level.pressure_level() >= sheds)
    };
    let mut short = sheds.and_then(short).map(Group::path);
    lock(&seen).was_short = short.is_some();
    let called = catch_unwind(AssertUnwindSafe(|| service.call(request)));
    if lock(&seen).called == 0 {
        let taken = permits.load(Ordering::SeqCst);
        assert_eq!(
            taken, 0,
            "of a limit below, by one that does not run: {plan:?}"
        );
    }
    let mut answered = None;
    let mut panicked = called.is_err();
    if let Ok(future) = called {
        let mut future = Box::pin(future);
        for polls in 0..plan.polls {
            if plan.others == Some(polls) {
                others.go();
                // It is asked later, perhaps.
                short = short.filter(|_| plan.later < polls);
            }
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
    let told = std::mem::take(&mut *lock(&told));
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
    let is_tenants = matches!(plan.verdict, Verdict::Tenant | Verdict::Weighed);
    if let Some(is_told) = seen.is_told {
        let known = is_tenants && (form.tells || form.has_groups || plan.is_packed);
        assert_eq!(is_told, known, "who knows what it holds: {plan:?}");
    }
    let refused: u64 = RefusalKind::ALL
        .iter()
        .map(|&kind| figures.refused(kind))
        .sum();
    assert_eq!(figures.waiting(), 0, "requests in line");
    says_figures(&figures);
    let is_refused = matches!((&answered, told.len()), (Some(Ok(_)), 1));
    assert!(refused <= 1 && told.len() <= 1, "{refused} refusals");
    assert!(refused >= told.len() as u64, "a refusal is not counted");
    // The body may fail beside a handler that does not answer.
    let is_over = answered.is_some() && !panicked;
    assert!(
        !is_over || refused == told.len() as u64,
        "a refusal that nobody is told of: {plan:?}"
    );
    for told in &told {
        assert_eq!(
            figures.refused(told.refusal.kind()),
            1,
            "counted as another"
        );
        tells_why(levels, form, plan, &seen, told);
        if let Some(Ok(answer)) = &answered {
            reads_refusal(plan, &told.refusal, answer);
        }
    }
    if short.is_some() && !told.is_empty() && !tenant.is_offline() {
        let refusal = &told[0].refusal;
        assert_eq!(refusal.kind(), RefusalKind::Shed, "it is shed: {refusal}");
        assert_eq!(refusal.group(), short.as_deref(), "who is short: {refusal}");
    }
    assert!(short.is_none() || seen.called == 0, "it is shed: {plan:?}");
    // What can never fit, or has no tenant any more, is told so at once.
    let is_whole = is_tenants && plan.polls == POLLS;
    let said = plan.said().min(window);
    let total = overhead + response + said;
    let is_never = form.has_groups && plan.says_length && said > SMALL && total > plan.own_max;
    if is_tenants && (tenant.is_offline() || is_never) {
        assert_eq!(seen.called, 0, "it never fits: {plan:?}");
        assert!(
            is_refused || !is_whole,
            "it never fits, and waits: {plan:?}"
        );
    }
    // And what fits, and is not shed, is called, whatever nobody holds any more.
    let fits = plan.asks() <= form.max && plan.asks() <= plan.own_max;
    let is_well = !plan.is_never_ready && !plan.fails_later && sheds.is_none();
    if is_whole && !tenant.is_offline() && fits && is_well && !had_others && !form.is_full {
        assert_eq!(seen.called, 1, "it is not called: {plan:?}");
    }
    if plan.verdict == Verdict::Refused {
        assert_eq!(seen.called, 0, "a request that is refused is handled");
    }
    if let Some(Ok(answer)) = answered {
        let mut body = pin!(answer.into_body());
        let mut length = 0;
        let ended = loop {
            match body.as_mut().poll_frame(&mut context) {
                Poll::Ready(Some(Ok(frame))) => {
                    length += frame.data_ref().map_or(0, Bytes::len);
                    let live = others.live_beside();
                    let most = plan.most();
                    assert!(live <= most, "{live} of {most} bytes are held: {plan:?}");
                }
                ended => break ended,
            }
        };
        if ended.is_ready() {
            let live = others.live_beside();
            assert_eq!(live, 0, "held by an answer that is over: {plan:?}");
        }
        let is_inner = matches!(ended, Poll::Ready(Some(Err(BodyError::Inner(_)))));
        assert!(!is_inner || plan.answer_fails, "the handler's body is well");
        let whole = if is_refused { length } else { plan.answer };
        let is_full = form.max <= 40_000
            || form.has_groups && plan.own_max < u64::MAX
            || had_others && plan.come_late;
        assert!(length == whole || is_full, "{length} of {whole} bytes came");
    }
    drop(service);
    others.go();
    assert_eq!(
        limited.live(),
        0,
        "held by a request that is over: {plan:?}"
    );
    let taken = permits.load(Ordering::SeqCst);
    assert_eq!(taken, 0, "of a limit below, by one that is over: {plan:?}");
}
