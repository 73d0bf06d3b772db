//! What goes by the system's clock, in trees of their own, as a seed says: bodies that come too
//! slowly, the bodies of requests that are refused, requests that wait to promise something, and
//! answers whose frames are on their way.
//!
//! Times are of some milliseconds. What has passed is known from both sides, as of a connection
//! that is paced: what may end is told from what must.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, EXPECT};
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use memcg::simulated_time as clock;
use memcg::{
    Charge, Group, GroupName, Limit, Limits, Reclaim, ReclaimContext, ReclaimPriority, Runtime,
};
use memcg_tower::{
    AdmissionFigures, AdmissionLayer, BodyError, Classification, PromisedBytes, Refusal,
    RefusalKind, ResponseBody,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tower_layer::Layer;
use tower_service::Service;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber, span};

use super::connections::lock;
use super::layered::says_figures;
use super::requests::{Broken, Coming, Desk, Frames, Handler, Inbox, Word};
use super::{LATEST, Rung, is_called};
use crate::script::pick;

/// A body may keep its reader waiting for so long.
const TIME: Duration = Duration::from_millis(3);

/// A reader that stays counts for so long after each poll, at least.
const STEP: Duration = Duration::from_micros(TIME.as_micros() as u64 / 128);

type Answered = Result<Response<ResponseBody<Frames>>, Broken>;
type Future = Pin<Box<dyn std::future::Future<Output = Answered> + Send>>;

/// A request, and both of its ends.
struct Call {
    inbox: Arc<Mutex<Inbox>>,
    desk: Arc<Mutex<Desk>>,
    future: Future,
    rung: Arc<Rung>,
    figures: AdmissionFigures,
}

impl Call {
    fn new<C, V>(
        layer: AdmissionLayer<C>,
        tenant: &Group,
        length: Option<u64>,
        head: impl FnOnce(&mut Request<Coming>),
    ) -> Call
    where
        C: Fn(&Request<Coming>) -> V + Send + Sync + 'static,
        V: Into<Classification> + 'static,
    {
        let (inbox, desk) = (Arc::<Mutex<Inbox>>::default(), Arc::default());
        let figures = layer.figures();
        let mut service = layer.layer(Handler {
            desk: Arc::clone(&desk),
            group: tenant.clone(),
        });
        let mut request = Request::new(Coming {
            inbox: Arc::clone(&inbox),
            left: length,
        });
        head(&mut request);
        Call {
            future: Box::pin(service.call(request)),
            rung: Arc::default(),
            inbox,
            desk,
            figures,
        }
    }

    fn poll(&mut self) -> Poll<Answered> {
        let waker = Waker::from(Arc::clone(&self.rung));
        self.rung.0.store(false, Ordering::SeqCst);
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn is_rung(&self) -> bool {
        self.rung.0.load(Ordering::SeqCst)
    }

    fn comes(&self, bytes: usize) {
        let mut inbox = lock(&self.inbox);
        inbox.frames.push_back(Ok(Bytes::from(vec![3; bytes])));
        let waker = inbox.waker.take();
        drop(inbox);
        waker.into_iter().for_each(Waker::wake);
    }

    fn tell(&mut self, word: Word) -> Poll<Answered> {
        lock(&self.desk).word = Some(word);
        self.poll()
    }
}

fn answer(frames: Vec<Bytes>, says_length: bool) -> Word {
    Word::Answer(Response::new(Frames {
        frames: VecDeque::from(frames),
        says_length,
    }))
}

fn tenant(runtime: &Runtime, max: u64) -> Group {
    let limits = Limits::new().max(Limit::Bytes(max));
    let made = runtime.root().create(GroupName::Unnamed, limits);
    made.expect("nothing is in the way")
}

/// For how long a reader that polls on and on has waited for a client.
struct Waited {
    rate: u64,
    came: u64,
    /// Before the last byte, at least.
    least: Duration,
    /// Since then, at least.
    gap: Duration,
    /// The last byte, and the first poll, have come after that.
    since: Instant,
    begun: Instant,
    /// The end of the last poll that found nothing.
    last: Option<Instant>,
}

impl Waited {
    fn new(rate: u64) -> Waited {
        let now = Instant::now();
        Waited {
            rate,
            came: 0,
            least: Duration::ZERO,
            gap: Duration::ZERO,
            since: now,
            begun: now,
            last: None,
        }
    }

    /// A poll begins.
    fn polls(&mut self, begun: Instant) {
        if let Some(last) = self.last.take() {
            self.gap += begun.saturating_duration_since(last).min(STEP);
        }
    }

    /// It has found nothing. True: it is too late for that.
    fn found_nothing(&mut self) -> bool {
        self.last = Some(Instant::now());
        let left = match self.rate {
            0 => TIME,
            rate => {
                let bought = Duration::from_secs_f64(self.came as f64 / rate as f64);
                TIME.min((TIME + bought).saturating_sub(self.least))
            }
        };
        self.gap >= left
    }

    /// It has found so much, which has come before it began.
    fn found(&mut self, bytes: u64, begun: Instant) {
        self.came += bytes;
        self.least += std::mem::take(&mut self.gap);
        self.since = begun;
    }

    /// It has found that the client is too slow.
    fn may_end(&self) -> bool {
        let since = if self.rate == 0 {
            self.since
        } else {
            self.begun
        };
        since.elapsed() >= TIME
    }
}

/// A body comes in pieces, at times: its reader polls on and on.
fn slow_body(rng: &mut Xoshiro256PlusPlus, runtime: &Runtime) {
    let tenant = tenant(runtime, 1 << 20);
    let of_layer = tenant.clone();
    let rate = pick(rng, &[0, 0, 1_000_000]);
    let layer = AdmissionLayer::new(move |_: &Request<Coming>| Some(of_layer.clone()))
        .body_timeout(TIME)
        .least_rate(rate as usize);
    let is_stream = rng.random();
    let length = if is_stream { None } else { Some(1 << 16) };
    let is_grpc = rng.random();
    let mut call = Call::new(layer, &tenant, length, |request| {
        if is_grpc {
            let speaks = "application/grpc".parse().expect("a content type");
            request.headers_mut().insert(CONTENT_TYPE, speaks);
        }
    });
    assert!(call.poll().is_pending(), "the handler has said nothing");
    let called = lock(&call.desk).called.take();
    let (mut body, _) = called.expect("it has room");
    // The peer of a stream that has its answer sends as it likes.
    let answers_first = rng.random_bool(0.3);
    let mut answered = None;
    if answers_first {
        answered = Some(call.tell(answer(Vec::new(), true)));
    }
    let drips = rng.random_range(0..4);
    let mut waited = Waited::new(rate);
    let rung = Arc::<Rung>::default();
    let waker = Waker::from(Arc::clone(&rung));
    let mut context = Context::from_waker(&waker);
    // Some readers are polled where they were woken alone, and nothing comes but the end.
    let sleeps = drips == 0 && !answers_first && rng.random();
    let is_over = loop {
        let begun = Instant::now();
        waited.polls(begun);
        match body.as_mut().poll_frame(&mut context) {
            Poll::Pending => {
                let is_late = waited.found_nothing();
                if is_stream && answers_first {
                    if waited.begun.elapsed() > TIME * 3 {
                        break false;
                    }
                } else {
                    assert!(!is_late, "a body comes too slowly, and may");
                }
                let has_waited = waited.since.elapsed();
                if drips > 0 && has_waited > TIME / 2 && waited.came < 200 {
                    call.comes(drips);
                }
                assert!(!sleeps || is_called(&rung), "it waits, and is not woken");
            }
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                waited.found(bytes as u64, begun);
            }
            Poll::Ready(Some(Err(BodyError::TooSlow(error)))) => {
                assert!(waited.may_end(), "too early: {error}");
                assert_eq!(error.came, waited.came, "bytes that have come");
                break true;
            }
            Poll::Ready(other) => panic!("the client has sent no more: {other:?}"),
        }
        assert!(waited.begun.elapsed() < LATEST, "no end");
        // By its rate it is too slow in the end, and by its gaps once nothing comes.
    };
    let known = u64::from(is_over);
    assert_eq!(
        call.figures.refused(RefusalKind::TooSlow),
        known,
        "too slow"
    );
    if is_over {
        assert!(!(is_stream && answers_first), "it sends as it likes");
        let after = body.as_mut().poll_frame(&mut context);
        assert!(matches!(after, Poll::Ready(None)), "after its end");
    }
    if is_over && answered.is_none() {
        let word = if rng.random() {
            Word::Fail
        } else {
            answer(Vec::new(), true)
        };
        let Poll::Ready(Ok(answer)) = call.tell(word) else {
            panic!("its answer is that of the layer");
        };
        let code = answer.headers().get("grpc-status");
        let found = (answer.status(), code.and_then(|code| code.to_str().ok()));
        let known = match is_grpc {
            true => (StatusCode::OK, Some("4")),
            false => (StatusCode::REQUEST_TIMEOUT, None),
        };
        assert_eq!(found, known, "of a body that is too slow");
    }
}

/// The lines of the log: kinds, and how many were left out before each.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Line>>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    kind: String,
    left_out: u64,
}

impl Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        assert_eq!(field.name(), "left_out");
        self.left_out = value;
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        assert_eq!(field.name(), "kind");
        self.kind = value.into();
    }

    fn record_debug(&mut self, field: &Field, _: &dyn std::fmt::Debug) {
        assert_eq!(field.name(), "message");
    }
}

impl Subscriber for Log {
    /// It is asked each time: where nobody listens, nothing is a line.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.target() == "memcg_tower::refused" && !of.is_span()
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        lock(&self.0).push(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Of a kind, over all of the process: the span in which its last line was written, and how many it has
/// left out since.
type Logged = (Option<(Instant, Instant)>, u64);

/// Refusals are in the log, of each kind once within a second.
fn refused_in_log(rng: &mut Xoshiro256PlusPlus, runtime: &Runtime) {
    static LOGGED: Mutex<BTreeMap<&str, Logged>> = Mutex::new(BTreeMap::new());
    const SECOND: Duration = Duration::from_secs(1);
    let tenant = tenant(runtime, 1_000);
    let log = Log::default();
    let mut all = lock(&LOGGED);
    for _ in 0..rng.random_range(1..6) {
        let kind = pick(
            rng,
            &[
                RefusalKind::Classifier,
                RefusalKind::TooLarge,
                RefusalKind::TenantFull,
            ],
        );
        let of_layer = tenant.clone();
        let layer = AdmissionLayer::new(move |_: &Request<Coming>| match kind {
            RefusalKind::Classifier => Err(Refusal::new(StatusCode::FORBIDDEN, "nobody")),
            _ => Ok(of_layer.clone()),
        });
        let overhead = if kind == RefusalKind::TooLarge {
            2_000
        } else {
            600
        };
        let layer = layer
            .overhead(overhead)
            .response(0)
            .patience(Duration::ZERO);
        let others = tenant.force_charge(memcg::Bytes(500));
        let begun = Instant::now();
        let call = tracing::subscriber::with_default(log.clone(), || {
            Call::new(layer, &tenant, Some(0), |_| {})
        });
        let ended = Instant::now();
        drop(others);
        assert_eq!(call.figures.refused(kind), 1, "{kind:?}");
        let (last, left_out) = all.entry(kind.name()).or_default();
        let lines = std::mem::take(&mut *lock(&log.0));
        let is_due = last.is_none_or(|(begun, _)| ended - begun >= SECOND);
        let must_be = last.is_none_or(|(_, ended)| begun - ended >= SECOND);
        let known = Line {
            kind: kind.name().into(),
            left_out: *left_out,
        };
        match lines.as_slice() {
            [] => {
                assert!(!must_be, "no line of {known:?}");
                *left_out += 1;
            }
            [line] => {
                assert!(is_due && *line == known, "{line:?}, not {known:?}");
                (*last, *left_out) = (Some((begun, ended)), 0);
            }
            many => panic!("one refusal, and {many:?}"),
        }
    }
}

/// A reader that looks now and then, and works meanwhile, is not kept waiting: whatever nobody sends.
fn reader_leaves(rng: &mut Xoshiro256PlusPlus, runtime: &Runtime) {
    let tenant = tenant(runtime, 1 << 20);
    let of_layer = tenant.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Coming>| Some(of_layer.clone()));
    let layer = layer.body_timeout(TIME).least_rate(0);
    let mut call = Call::new(layer, &tenant, None, |_| {});
    assert!(call.poll().is_pending(), "the handler has said nothing");
    let called = lock(&call.desk).called.take();
    let (mut body, _) = called.expect("it has room");
    let mut context = Context::from_waker(Waker::noop());
    // Of each time that it is away no more counts than a step, which is the first one.
    for look in 0..rng.random_range(1..40) {
        let polled = body.as_mut().poll_frame(&mut context);
        assert!(polled.is_pending(), "at look {look}: {polled:?}");
        std::thread::sleep(STEP * 8);
    }
}

/// A task that is woken, and panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

/// Some are woken in time, and panic: the thread that has done so wakes others.
fn panics_when_woken(runtime: &Runtime) {
    let tenant = tenant(runtime, 1 << 20);
    let of_layer = tenant.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Coming>| Some(of_layer.clone()));
    let mut call = Call::new(layer.body_timeout(TIME), &tenant, None, |_| {});
    assert!(call.poll().is_pending(), "the handler has said nothing");
    let called = lock(&call.desk).called.take();
    let (mut body, _) = called.expect("it has room");
    let waker = Waker::from(Arc::new(Panics));
    let polled = body.as_mut().poll_frame(&mut Context::from_waker(&waker));
    assert!(polled.is_pending(), "nothing has come");
    std::thread::sleep(TIME / 4);
}

/// What has come above a high has its bytes, and is paid for by the next read, once it is much, or
/// by the end. Nobody makes room, and the crate's clock stands still.
fn held_back(rng: &mut Xoshiro256PlusPlus) {
    let delays = Duration::from_secs(2);
    let runtime = Runtime::builder().batch(0).delay_max(delays).build();
    let runtime = runtime.expect("a configuration that holds");
    let limits = Limits::new().high(Limit::Bytes(50_000));
    let tenant = runtime.root().create("tenant", limits);
    let tenant = tenant.expect("nothing is in the way");
    let of_layer = tenant.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Coming>| Some(of_layer.clone()));
    let layer = layer.overhead(100).response(0).body_timeout(LATEST);
    let is_stream = rng.random();
    let promised = if is_stream { 65_536 } else { 900_000 };
    let length = if is_stream { None } else { Some(promised) };
    let mut call = Call::new(layer, &tenant, length, |_| {});
    assert!(call.poll().is_pending(), "the handler has said nothing");
    let others = tenant.force_charge(memcg::Bytes(5_000_000));
    let called = lock(&call.desk).called.take();
    let (mut body, _) = called.expect("it has room");
    // Of a stream that goes on each frame is charged alone, for as long as it lives.
    let answers_first = is_stream && rng.random();
    let answered = answers_first.then(|| call.tell(answer(Vec::new(), true)));
    let mut context = Context::from_waker(Waker::noop());
    // What has come, of that what is to be paid for, and what is kept.
    let (mut came, mut owed, mut kept) = (0, 0, Vec::new());
    let many = rng.random_range(1..12);
    for number in 0..=many {
        let is_end = number == many;
        if is_end {
            lock(&call.inbox).has_ended = true;
        } else {
            call.comes(70_000);
        }
        let mut polled = body.as_mut().poll_frame(&mut context);
        let is_much = owed >= 256 << 10;
        if is_much || is_end {
            assert!(
                polled.is_pending(),
                "{came} bytes are not paid for: {polled:?}"
            );
            // What has not come is no promise any more once the end is seen.
            let left = match (is_much, answers_first) {
                (false, _) => 0,
                (true, false) => promised.saturating_sub(came),
                (true, true) => promised,
            };
            let found = PromisedBytes::to(&tenant).bytes;
            assert_eq!(found, left, "promised by a body of {came} bytes");
            if is_end {
                break;
            }
            // It is paid for once, and reading goes on.
            clock::advance(delays * 2);
            owed = 0;
            polled = body.as_mut().poll_frame(&mut context);
        }
        let Poll::Ready(Some(Ok(frame))) = polled else {
            panic!("a frame above a high has its bytes: {polled:?}");
        };
        kept.push(frame);
        came += 70_000;
        owed += 70_000;
        let known = others.bytes() + 100 + came;
        assert_eq!(tenant.live(), known, "live above a high");
    }
    drop((answered, call, body));
    let known = if answers_first { came } else { 0 };
    assert_eq!(
        tenant.live(),
        others.bytes() + known,
        "live of frames that are kept"
    );
    drop(kept);
    assert_eq!(tenant.live(), others.bytes(), "live at the end");
}

/// A client of HTTP/1 has its body read before it is told that it is refused, up to a bound, and
/// unless it asks first.
fn drained(rng: &mut Xoshiro256PlusPlus, runtime: &Runtime) {
    let tenant = tenant(runtime, 1 << 20);
    let bound = 1_000;
    let layer = AdmissionLayer::new(|_: &Request<Coming>| -> Result<Group, Refusal> {
        Err(Refusal::new(StatusCode::FORBIDDEN, "nobody knows it"))
    });
    let layer = layer.body_timeout(TIME).least_rate(0).drain(bound);
    let length = pick(rng, &[None, None, Some(0), Some(900), Some(2_000)]);
    let (asks, is_new) = (rng.random_bool(0.2), rng.random_bool(0.2));
    let mut call = Call::new(layer, &tenant, length, |request| {
        if asks {
            let expects = "100-continue".parse().expect("a word");
            request.headers_mut().insert(EXPECT, expects);
        }
        if is_new {
            *request.version_mut() = Version::HTTP_2;
        }
    });
    let at_once = asks || is_new || length.is_some_and(|length| length == 0 || length > 1_000);
    let stalls = rng.random_bool(0.2);
    let mut left = length.unwrap_or(u64::MAX);
    let mut came = 0;
    let mut waited = Waited::new(0);
    let mut ends = false;
    let answer = loop {
        let begun = Instant::now();
        waited.polls(begun);
        let polled = call.poll();
        let is_over = at_once || ends || came > bound as u64 || left == 0;
        if let Poll::Ready(answer) = polled {
            assert!(is_over || waited.may_end(), "{came} bytes were read");
            break answer;
        }
        assert!(!is_over, "{came} bytes were read, and the answer waits");
        assert!(!waited.found_nothing(), "it comes too slowly");
        if stalls {
            continue;
        }
        match rng.random_range(0..3) {
            0 => {
                let bytes = left.min(pick(rng, &[1, 400]));
                call.comes(bytes as usize);
                came += bytes;
                left -= bytes;
                waited.found(bytes, begun);
            }
            1 if rng.random_bool(0.2) && length.is_none() => {
                ends = true;
                lock(&call.inbox).has_ended = true;
            }
            _ => {}
        }
    };
    let status = answer.map(|answer| answer.status()).ok();
    assert_eq!(status, Some(StatusCode::FORBIDDEN));
    assert_eq!(call.figures.refused(RefusalKind::Classifier), 1);
    let kept = Arc::strong_count(&call.inbox);
    assert_eq!(kept, 1, "the body of a request that is over is kept");
}

/// It gives nothing, and counts how often it is asked.
#[derive(Default)]
struct Asked(AtomicUsize);

impl Reclaim for Asked {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst);
        0
    }
}

/// A request in line: for room to promise its body, by the system's clock, and then for its own bytes,
/// by the crate's clock, which the life moves. Its patience is one for both.
struct InLine {
    /// What it promises.
    bytes: u64,
    patience: Duration,
    /// Before its first poll, and after that.
    since: [Instant; 2],
    /// Once it has its promise, and lacks its bytes: for how long it had waited, at least and at most,
    /// and the crate's clock.
    promised: Option<([Duration; 2], Instant)>,
    call: Call,
}

impl InLine {
    /// For how long it has waited, at least and at most, by both clocks.
    fn waited(&self) -> [Duration; 2] {
        match self.promised {
            None => {
                let [before, after] = self.since;
                let now = Instant::now();
                [now.saturating_duration_since(after), now - before]
            }
            Some((waited, at)) => waited.map(|waited| waited + (clock::now() - at)),
        }
    }

    /// Polls it, and notes whether it has its promise since so much was promised.
    fn poll(&mut self, tenant: &Group, promised: u64) -> Poll<Answered> {
        let [least, _] = self.waited();
        let polled = self.call.poll();
        let comes = PromisedBytes::to(tenant).bytes >= promised + self.bytes;
        if polled.is_pending() && comes && lock(&self.call.desk).called.is_none() {
            let most = self.since[0].elapsed();
            self.promised = Some(([least, most], clock::now()));
        }
        polled
    }
}

/// Requests wait to promise their bodies, for a time. Of those that may, some lack bytes that others
/// have above their tenant.
fn in_line(rng: &mut Xoshiro256PlusPlus, runtime: &Runtime) {
    const MAX: u64 = 30_000;
    const OWN: u64 = 100;
    let above = tenant(runtime, MAX * 2);
    let limits = Limits::new().max(Limit::Bytes(MAX));
    let made = above.create(GroupName::Unnamed, limits);
    let tenant = made.expect("nothing is in the way");
    let asked = Arc::<Asked>::default();
    let reclaimer = Arc::clone(&asked) as Arc<dyn Reclaim>;
    let registration = tenant.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    // So often it is asked by one that finds too little.
    let others = tenant.force_charge(memcg::Bytes(pick(rng, &[0, 4_000])));
    _ = tenant.reclaim(memcg::Bytes(1));
    let at_once = asked.0.swap(0, Ordering::SeqCst);
    let begin = |length: u64, patience: Duration| {
        let of_layer = tenant.clone();
        let layer = AdmissionLayer::new(move |_: &Request<Coming>| Some(of_layer.clone()));
        let layer = layer.overhead(OWN as usize).response(0).patience(patience);
        // An operator is told what is missing, beside what is promised.
        let of_answer = tenant.clone();
        let layer = layer.answer(move |refusal| {
            let promised = PromisedBytes::to(&of_answer).bytes;
            let wants = of_answer.usage() + promised + length + OWN;
            let missing = memcg::Bytes(wants.saturating_sub(MAX));
            let said = format!(
                "short by {missing}, usage {}",
                memcg::Bytes(of_answer.usage())
            );
            let is_here = refusal.kind() == RefusalKind::TenantFull;
            assert!(
                !is_here || refusal.to_string().contains(&said),
                "not {said}: {refusal}"
            );
            refusal.to_response()
        });
        let before = Instant::now();
        let promised = PromisedBytes::to(&tenant).bytes;
        let call = Call::new(layer, &tenant, Some(length), |request| {
            *request.version_mut() = Version::HTTP_2;
        });
        let mut one = InLine {
            bytes: length + OWN,
            patience,
            // It has not begun to wait.
            since: [before, before + LATEST],
            promised: None,
            call,
        };
        assert!(
            one.poll(&tenant, promised).is_pending(),
            "its handler has said nothing"
        );
        one.since[1] = Instant::now();
        one
    };
    let mut first = Some(begin(20_000, PATIENT));
    // Above the tenant is room, or others take all of it, at once or as the first leaves.
    let fills = pick(rng, &[None, None, Some(false), Some(true), Some(true)]);
    let fill = || above.force_charge(memcg::Bytes(MAX * 2));
    let mut full = (fills == Some(false)).then(fill);
    let goes = rng.random_bool(0.3).then(|| rng.random_range(1..10));
    let mut waiting = Vec::new();
    let many = rng.random_range(1..5);
    for _ in 0..many {
        let patience = pick(rng, &[PATIENT, PATIENT * 3, PATIENT * 10]);
        waiting.push(begin(pick(rng, &[9_000, 15_000, 20_000]), patience));
    }
    let leaves = rng.random_bool(0.4).then(|| PATIENT / 3);
    let begun = Instant::now();
    let (mut ran, mut moves) = (Vec::new(), 0);
    while !waiting.is_empty() {
        if first.is_some() && leaves.is_some_and(|after| begun.elapsed() > after) {
            if fills == Some(true) {
                full = Some(fill());
            }
            first = None;
        }
        let mut at = 0;
        while at < waiting.len() {
            // Whose time is over first is woken first, also behind others.
            let ends = |one: &InLine| one.since[0] + one.patience;
            let end = ends(&waiting[at]);
            let sooner = waiting
                .iter()
                .find(|one| one.promised.is_none() && ends(one) < end && !one.call.is_rung());
            if let Some(InLine {
                bytes, patience, ..
            }) = sooner.filter(|_| Instant::now() >= end)
            {
                let late = begun.elapsed() > LATEST;
                assert!(!late, "{bytes} bytes wait for {patience:?}, behind others");
                at += 1;
                continue;
            }
            let one = &mut waiting[at];
            let (bytes, patience) = (one.bytes, one.patience);
            if lock(&one.call.desk).called.is_some() {
                ran.push(waiting.remove(at));
                continue;
            }
            // By the crate's clock nothing else happens meanwhile.
            let is_over = one.promised.is_some() && one.waited()[0] >= patience;
            let is_woken = if is_over {
                is_called(&one.call.rung)
            } else {
                one.call.is_rung()
            };
            if !is_woken {
                let late = is_over || one.since[0].elapsed() > LATEST;
                assert!(
                    !late,
                    "{bytes} bytes wait for {patience:?}, and are not woken"
                );
                at += 1;
                continue;
            }
            let was_promised = one.promised.is_some();
            let promised = PromisedBytes::to(&tenant).bytes;
            let Poll::Ready(answer) = one.poll(&tenant, promised) else {
                let waits = lock(&one.call.desk).called.is_none();
                assert!(
                    !(is_over && waits),
                    "{bytes} bytes wait for longer than {patience:?}"
                );
                at += 1;
                continue;
            };
            let [least, most] = one.waited();
            assert!(most >= patience, "refused after {most:?}, of {patience:?}");
            let status = answer.map(|answer| answer.status()).ok();
            // Where its time is over as it gets its promise, it waits for no bytes.
            let of_bytes =
                was_promised || full.is_some() && status != Some(StatusCode::TOO_MANY_REQUESTS);
            let known = match of_bytes {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::TOO_MANY_REQUESTS,
            };
            assert_eq!(status, Some(known), "after {least:?}");
            let figures = &one.call.figures;
            says_figures(figures);
            let waits = figures.waits();
            let counts = (waits.count, figures.waiting(), figures.left());
            assert_eq!(
                counts,
                (1, 0, 0),
                "waits, those in line, and those that left"
            );
            // They go by the system's clock alone.
            let least = one.promised.map_or(patience, |(waited, _)| waited[0]);
            let waited = one.since[0].elapsed();
            let is_within = least <= waits.sum && waits.sum <= waited;
            assert!(is_within, "{:?} of {waited:?}", waits.sum);
            let is_here = |(bound, many): &&(Option<Duration>, u64)| {
                *many == 1 && bound.is_none_or(|bound| waits.sum <= bound)
            };
            assert_eq!(waits.buckets.iter().filter(is_here).count(), 1, "{waits:?}");
            waiting.remove(at);
        }
        // Of those that have their promise the time goes on, often until that of one is just over.
        let left = |one: &InLine| one.patience.saturating_sub(one.waited()[0]);
        let promised = waiting.iter().filter(|one| one.promised.is_some());
        if let Some(left) = promised.map(left).min() {
            clock::advance(match rng.random() {
                true => left,
                false => left / 2,
            });
            moves += 1;
            if goes.is_some_and(|after| moves > after) {
                full = None;
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    // Together they have promised no more than there is.
    let promised: u64 = ran.iter().map(|one| one.bytes - OWN).sum();
    let of_first = if first.is_some() { 20_000 } else { 0 };
    let found = PromisedBytes::to(&tenant).bytes;
    assert_eq!(found, promised + of_first, "promised");
    drop((first, ran, full));
    assert_eq!(PromisedBytes::to(&tenant).bytes, 0, "promised at the end");
    // Where it is full above, each that waits there asks as well.
    let found = asked.0.load(Ordering::SeqCst);
    let most = at_once * many;
    assert!(
        fills.is_some() || found <= most,
        "asked {found} times by {many} requests"
    );
    drop((registration, others));
}

/// The line of requests that wait to promise their bodies, in the order in which they came: each with
/// its number and its bytes.
#[derive(Default)]
struct Order {
    line: Vec<(u64, u64)>,
    run: Vec<(u64, u64)>,
    /// The first, and how much may still pass it.
    passed: Option<(u64, u64)>,
}

impl Order {
    fn fits(&self, bytes: u64) -> bool {
        let promised: u64 = self.run.iter().map(|of| of.1).sum();
        promised + bytes <= ROOM
    }

    /// As much may pass the first as it asks for itself.
    fn may_pass(&mut self) -> Option<u64> {
        let &(first, bytes) = self.line.first()?;
        let is_known = self.passed.filter(|of| of.0 == first);
        let (_, passes) = *self.passed.insert(is_known.unwrap_or((first, bytes)));
        Some(passes)
    }

    fn comes(&mut self, number: u64, bytes: u64) {
        let passes = self.may_pass();
        if self.fits(bytes) && passes.is_none_or(|passes| bytes <= passes) {
            self.runs((number, bytes), passes.is_some());
        } else {
            self.line.push((number, bytes));
        }
    }

    fn runs(&mut self, one: (u64, u64), passes: bool) {
        if let Some((_, left)) = self.passed.as_mut().filter(|_| passes) {
            *left -= one.1;
        }
        self.line.retain(|of| *of != one);
        self.run.push(one);
    }

    /// The first goes where it fits, else the smallest of the others where it may pass.
    fn settle(&mut self) {
        while let Some(passes) = self.may_pass() {
            let smallest = self.line[1..].iter().min_by_key(|of| (of.1, of.0));
            let smallest = smallest.copied().filter(|of| of.1 <= passes);
            match (self.line[0], smallest) {
                (first, _) if self.fits(first.1) => self.runs(first, false),
                (_, Some(other)) if self.fits(other.1) => self.runs(other, true),
                _ => return,
            }
        }
    }
}

/// Requests come, go, and leave the line, and each that may run runs.
fn in_order(rng: &mut Xoshiro256PlusPlus, runtime: &Runtime) {
    let tenant = tenant(runtime, ROOM);
    let mut order = Order::default();
    let mut calls: Vec<(u64, u64, Call)> = Vec::new();
    for number in 0..ORDER_STEPS {
        if calls.is_empty() || rng.random_bool(0.6) {
            let length = pick(rng, &[9_000, 9_000, 12_000, 20_000, 30_000, 50_000]);
            let of_layer = tenant.clone();
            let layer = AdmissionLayer::new(move |_: &Request<Coming>| Some(of_layer.clone()));
            let layer = layer.overhead(100).response(0).patience(LATEST * 100);
            let mut call = Call::new(layer, &tenant, Some(length), |request| {
                *request.version_mut() = Version::HTTP_2;
            });
            order.comes(number, length + 100);
            assert!(call.poll().is_pending(), "its handler has said nothing");
            calls.push((number, length + 100, call));
        } else {
            // Some of those that leave have waited.
            let (number, ..) = calls.remove(rng.random_range(0..calls.len()));
            order.run.retain(|of| of.0 != number);
            order.line.retain(|of| of.0 != number);
        }
        order.settle();
        while calls.iter().any(|(.., call)| call.is_rung()) {
            for (.., call) in calls.iter_mut().filter(|(.., call)| call.is_rung()) {
                assert!(call.poll().is_pending(), "its handler has said nothing");
            }
        }
        let is_called = |(.., call): &&(u64, u64, Call)| lock(&call.desk).called.is_some();
        let found = calls.iter().filter(is_called).map(|of| (of.0, of.1));
        let mut known = order.run.clone();
        known.sort_unstable();
        assert!(
            found.clone().eq(known.iter().copied()),
            "not {known:?} run, of {:?}: {:?}",
            order.line,
            found.collect::<Vec<_>>()
        );
    }
    drop(calls);
    let left = PromisedBytes::to(&tenant);
    assert_eq!((left.bytes, left.waiting), (0, 0), "promised at the end");
}

/// The window of an answer, while frames are on their way.
#[derive(Clone, PartialEq, Eq)]
struct Window {
    free: u64,
    taken: u64,
    /// The last large frame was so long.
    expects: u64,
    /// A frame that was read, and waits.
    held: Option<u64>,
    /// What was on its way was kept for too long, the last time.
    are_kept: bool,
    /// What was free at the last look of a wait, and the span in which that began.
    turn: Option<(u64, Instant, Instant)>,
    left: VecDeque<u64>,
    others: u64,
    max: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Comes {
    Frame(u64),
    End,
    Nothing,
    CutOff,
}

const OVERHEAD: u64 = 100;
const RESPONSE: u64 = 2_000;
/// What requests in line share.
const ROOM: u64 = 60_000;
const ORDER_STEPS: u64 = 30;

/// Lives by the clock, of one seed.
const SCENES: usize = 3;
const PATIENT: Duration = Duration::from_millis(2);
const KEPT: Duration = Duration::from_millis(8);

impl Window {
    fn live(&self) -> u64 {
        self.others + OVERHEAD + self.free + self.taken
    }

    /// What a poll brings that begins and ends then; `sure`: no more time than is sure has passed.
    fn poll(&mut self, sure: bool, begun: Instant, ended: Instant) -> Comes {
        loop {
            let needs = match (self.held, self.left.is_empty()) {
                (Some(bytes), _) => bytes,
                (None, true) => 0,
                (None, false) => self.expects,
            };
            if self.free >= needs || self.held.is_none() && self.taken == 0 {
                self.turn = None;
                match self.held.take() {
                    Some(bytes) => {
                        self.free -= bytes;
                        self.taken += bytes;
                        return Comes::Frame(bytes);
                    }
                    None => match self.left.pop_front() {
                        Some(bytes) => {
                            self.held = Some(bytes);
                            self.expects = bytes;
                        }
                        None => return Comes::End,
                    },
                }
                continue;
            }
            let missing = needs - self.free;
            let has_room = self.live() + missing <= self.max;
            if self.taken == 0 {
                assert!(has_room, "a frame that is alone has room");
                self.free += missing;
                continue;
            }
            let Some((free, earliest, latest)) = &mut self.turn else {
                // The writer has its turn first.
                self.turn = Some((self.free, begun, ended));
                return Comes::Nothing;
            };
            if *free != self.free {
                (*free, *earliest, *latest) = (self.free, begun, ended);
            }
            let waited = match sure {
                true => begun.saturating_duration_since(*latest),
                false => ended.saturating_duration_since(*earliest),
            };
            let is_due = self.are_kept || waited >= PATIENT || self.live() < self.max / 2;
            if is_due && has_room {
                self.free += missing;
                self.are_kept = true;
                self.turn = None;
            } else if waited >= KEPT {
                self.turn = None;
                match self.held {
                    Some(_) => return Comes::CutOff,
                    // The body may have ended.
                    None => match self.left.pop_front() {
                        Some(bytes) => {
                            self.held = Some(bytes);
                            self.expects = bytes;
                        }
                        None => return Comes::End,
                    },
                }
            } else {
                return Comes::Nothing;
            }
        }
    }
}

/// A writer keeps frames for some time: the next ones wait for their bytes, and not for ever.
fn on_their_way(rng: &mut Xoshiro256PlusPlus, runtime: &Runtime) {
    let max = 150_000;
    let tenant = tenant(runtime, max);
    let others: Charge = tenant.force_charge(memcg::Bytes(pick(rng, &[10_000, 80_000, 115_000])));
    let of_layer = tenant.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Coming>| Some(of_layer.clone()))
        .overhead(OVERHEAD as usize)
        .response(RESPONSE as usize)
        .body_timeout(KEPT)
        .patience(PATIENT);
    let mut call = Call::new(layer, &tenant, Some(0), |_| {});
    assert!(call.poll().is_pending(), "the handler has said nothing");
    let lengths: Vec<u64> = (0..rng.random_range(2..7))
        .map(|_| pick(rng, &[9_000, 9_000, 15_000, 30_000]))
        .collect();
    let frames = lengths
        .iter()
        .map(|&length| Bytes::from(vec![7; length as usize]));
    let Poll::Ready(Ok(answer)) = call.tell(answer(frames.collect(), false)) else {
        panic!("the handler has answered");
    };
    let mut body = Box::pin(answer.into_body());
    // Where the clock does not tell which of two has happened, both are possible from there on.
    let mut twins = vec![Window {
        free: RESPONSE,
        taken: 0,
        expects: 0,
        held: None,
        are_kept: false,
        turn: None,
        left: lengths.into(),
        others: others.bytes(),
        max,
    }];
    let waker = Waker::from(Arc::clone(&call.rung));
    let mut context = Context::from_waker(&waker);
    let mut kept: Vec<Bytes> = Vec::new();
    // Some clients take nothing until the end, and some a frame each so often: each that comes back
    // begins the wait for the others anew.
    let keeps = rng.random_bool(0.3);
    let pace = pick(rng, &[None, Some(PATIENT / 2), Some(PATIENT * 3 / 4)]);
    let mut back = Instant::now();
    // Some writers are polled where they were woken alone.
    let sleeps = rng.random_bool(0.3);
    let mut waits = false;
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < LATEST, "no end");
        let comes_back = match pace {
            None => rng.random_bool(0.2),
            Some(pace) => back.elapsed() >= pace,
        };
        if !keeps && !kept.is_empty() && comes_back {
            back = Instant::now();
            let frame = kept.remove(rng.random_range(0..kept.len()));
            let bytes = frame.len() as u64;
            drop(frame);
            assert!(
                !waits || call.is_rung(),
                "a frame comes back, and wakes nobody"
            );
            for twin in &mut twins {
                (twin.taken, twin.are_kept) = (twin.taken - bytes, false);
                twin.free += bytes;
            }
        }
        if rng.random_bool(0.2) {
            std::thread::sleep(PATIENT / 4);
        }
        call.rung.0.store(false, Ordering::SeqCst);
        let before = Instant::now();
        let polled = body.as_mut().poll_frame(&mut context);
        let after = Instant::now();
        let found = match polled {
            Poll::Pending => Comes::Nothing,
            Poll::Ready(None) => Comes::End,
            Poll::Ready(Some(Err(_))) => Comes::CutOff,
            Poll::Ready(Some(Ok(frame))) => {
                let frame = frame.into_data().expect("data");
                kept.push(frame);
                Comes::Frame(kept.last().map_or(0, |frame| frame.len() as u64))
            }
        };
        let (mut known, mut next) = (Vec::new(), Vec::<Window>::new());
        for (twin, sure) in twins.iter().flat_map(|twin| [(twin, true), (twin, false)]) {
            let mut twin = twin.clone();
            let comes = twin.poll(sure, before, after);
            if comes == found && !next.contains(&twin) {
                next.push(twin);
            }
            known.push(comes);
        }
        assert!(
            !next.is_empty(),
            "{found:?} of an answer, and {known:?} is known"
        );
        twins = next;
        if matches!(found, Comes::End | Comes::CutOff) {
            break;
        }
        waits = found == Comes::Nothing;
        if waits && sleeps {
            assert!(is_called(&call.rung), "it waits, and is not woken");
            waits = false;
        }
        let (found, all) = (tenant.live(), twins.clone());
        twins.retain(|twin| twin.live() == found);
        assert!(
            !twins.is_empty(),
            "live beside frames on their way is {found}, of {:?}",
            all.iter().map(Window::live).collect::<Vec<_>>()
        );
    }
    drop((call, body));
    // What the request takes itself goes with the last of them.
    let there: usize = kept.iter().map(Bytes::len).sum();
    let own = if there > 0 { OVERHEAD } else { 0 };
    let known = others.bytes() + own + there as u64;
    assert_eq!(tenant.live(), known, "live of frames that are kept");
    // Behind the end each gives its own bytes back.
    while let Some(frame) = kept.pop() {
        drop(frame);
        let there: usize = kept.iter().map(Bytes::len).sum();
        let own = if there > 0 { OVERHEAD } else { 0 };
        let known = others.bytes() + own + there as u64;
        assert_eq!(tenant.live(), known, "live of frames that are left");
    }
}

pub(super) fn live(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    in_order(rng, &runtime);
    for _ in 0..SCENES {
        match rng.random_range(0..10) {
            7 => refused_in_log(rng, &runtime),
            5 if rng.random() => panics_when_woken(&runtime),
            4 | 5 => held_back(rng),
            0 => slow_body(rng, &runtime),
            1 => drained(rng, &runtime),
            2 => in_line(rng, &runtime),
            6 => reader_leaves(rng, &runtime),
            _ => on_their_way(rng, &runtime),
        }
        assert_eq!(runtime.root().live(), 0, "live at the end");
    }
}
