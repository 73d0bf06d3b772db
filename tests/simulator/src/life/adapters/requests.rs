//! Requests: their bodies come in frames, a handler reads them and answers when the script says so,
//! and a connection takes what it answers.
//!
//! A request holds an account, and a window once a large frame of its answer was sent: what is in
//! either is known after each step.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use memcg::Group;
use memcg_tower::{
    AdmissionFigures, AdmissionLayer, AdmittedRequest, BodyError, PromisedBytes, RefusalKind,
    RequestBody, ResponseBody,
};
use tower_layer::Layer;
use tower_service::Service;

use super::super::Life;
use super::{Rung, Waits, renew};
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Adapter, Op, What};
use crate::twin::Key;

const CALLS_MAX: usize = 5;

/// Frames of no more are what a connection buffers.
const SMALL: u64 = 8 << 10;

/// What a body of unknown length promises.
const UNKNOWN: u64 = 6_000;

/// Longer than any script.
const PATIENCE: Duration = Duration::from_secs(1 << 20);

/// A client, or a handler, that has failed.
#[derive(Debug)]
pub(super) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken on purpose")
    }
}

impl std::error::Error for Broken {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What has come for the body of a request.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) frames: VecDeque<Result<Bytes, Broken>>,
    pub(super) has_ended: bool,
    pub(super) waker: Option<Waker>,
}

/// The body of a request, as its connection has it.
pub(super) struct Coming {
    pub(super) inbox: Arc<Mutex<Inbox>>,
    /// What is left of its length.
    pub(super) left: Option<u64>,
}

impl Body for Coming {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut inbox = lock(&self.inbox);
        let frame = inbox.frames.pop_front();
        let has_ended = inbox.has_ended || self.left == Some(0);
        if frame.is_none() && !has_ended {
            inbox.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(inbox);
        if let (Some(Ok(frame)), Some(left)) = (&frame, &mut self.left) {
            *left -= frame.len() as u64;
        }
        Poll::Ready(frame.map(|frame| frame.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        let inbox = lock(&self.inbox);
        self.left == Some(0) || inbox.has_ended && inbox.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// The body of an answer.
pub(super) struct Frames {
    pub(super) frames: VecDeque<Bytes>,
    pub(super) says_length: bool,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Poll::Ready(self.frames.pop_front().map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.frames.iter().map(|frame| frame.len() as u64).sum();
        if self.says_length {
            SizeHint::with_exact(length)
        } else {
            SizeHint::new()
        }
    }
}

/// What the handler is told.
pub(super) enum Word {
    Answer(Response<Frames>),
    Fail,
    Panic,
}

/// The body of a request, as the handler has it.
pub(super) type OfRequest = Pin<Box<RequestBody<Coming>>>;

/// Between the script and the handler.
#[derive(Default)]
pub(super) struct Desk {
    /// The request that the handler was called with.
    pub(super) called: Option<(OfRequest, Option<AdmittedRequest>)>,
    pub(super) word: Option<Word>,
    waker: Option<Waker>,
}

#[derive(Clone)]
pub(super) struct Handler {
    pub(super) desk: Arc<Mutex<Desk>>,
    pub(super) group: Group,
}

impl Handler {
    /// The present group is that of the request, or the nearest above that is online, or the root
    /// where none is.
    fn is_inside(&self, does: &str) {
        let of = &self.group;
        let found = Group::current();
        let mut levels = std::iter::once(of.clone()).chain(of.ancestors());
        let online = levels.find(|level| !level.is_offline());
        let expected = online.or_else(|| of.ancestors().last());
        let is_right = found.as_ref() == Some(of) || found == expected;
        assert!(
            is_right,
            "the handler {does} in {found:?}, and not in {of:?}"
        );
    }
}

impl Service<Request<RequestBody<Coming>>> for Handler {
    type Response = Response<Frames>;
    type Error = Broken;
    type Future = Handles;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Coming>>) -> Handles {
        self.is_inside("is called");
        let (parts, body) = request.into_parts();
        let admitted = parts.extensions.get().cloned();
        lock(&self.desk).called = Some((Box::pin(body), admitted));
        Handles(self.clone())
    }
}

/// The future of a handler.
pub(super) struct Handles(Handler);

impl Future for Handles {
    type Output = Result<Response<Frames>, Broken>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.is_inside("runs");
        let mut desk = lock(&self.0.desk);
        let word = desk.word.take();
        if word.is_none() {
            desk.waker = Some(context.waker().clone());
        }
        drop(desk);
        match word {
            None => Poll::Pending,
            Some(Word::Answer(answer)) => Poll::Ready(Ok(answer)),
            Some(Word::Fail) => Poll::Ready(Err(Broken)),
            Some(Word::Panic) => panic!("on purpose"),
        }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.is_inside("is dropped");
        }
    }
}

type Answered = Result<Response<ResponseBody<Frames>>, Broken>;

/// Of the layer.
#[derive(Clone, Copy)]
struct Form {
    overhead: u64,
    response: u64,
    window: u64,
    /// It waits in line; else it is refused at once.
    waits: bool,
    gives_admitted: bool,
}

impl Form {
    fn of(number: u8) -> Form {
        let waits = number.is_multiple_of(2);
        Form {
            overhead: [100, 3_000][usize::from(number / 8 % 2)],
            response: [0, 2_000][usize::from(number / 4 % 2)],
            // One that promises something waits by the system's clock.
            window: if waits && number < 16 {
                4_000
            } else {
                u64::MAX
            },
            waits,
            gives_admitted: number / 2 % 2 == 1,
        }
    }
}

/// What a call waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lacks {
    /// It is in line.
    Admission,
    /// A frame of its body has no room.
    OfBody(u64),
    /// Its answer has none.
    OfAnswer(u64),
    /// A frame of its answer has none: so much, for one of so many bytes.
    OfFrame(u64, u64),
}

/// The window of an answer.
#[derive(Clone, Copy)]
struct Window {
    free: u64,
    taken: u64,
}

/// A request.
pub(super) struct Call {
    group: usize,
    /// The same, while it is in line.
    in_line: Option<Group>,
    form: Form,
    /// Of its own layer.
    figures: AdmissionFigures,
    /// How often its layer has said no.
    refusals: u64,
    inbox: Arc<Mutex<Inbox>>,
    desk: Arc<Mutex<Desk>>,
    future: Option<Waits<Answered>>,
    body: Option<OfRequest>,
    admitted: Option<AdmittedRequest>,
    response: Option<Pin<Box<ResponseBody<Frames>>>>,
    /// The same after its end: it holds nothing, though its connection has it.
    over: Option<Pin<Box<ResponseBody<Frames>>>>,
    rung: Arc<Rung>,
    polls: u32,
    sent: Vec<Bytes>,
    /// The length of a frame of its body that waits.
    held: u64,
    /// The frames that its answer is still to bring, and whether it says so.
    unsent: usize,
    says_length: bool,
    lacks: Option<Lacks>,
    /// `None`: it was not admitted.
    key: Option<Key>,
    /// It had a body.
    has_body: bool,
    length: Option<u64>,
    fed: u64,
    /// Bytes of the body that were read, those that were charged, and those it was to bring.
    came: u64,
    come: u64,
    expects: u64,
    promises: bool,
    /// In line it has its promise already, and lacks bytes.
    has_promise: bool,
    /// Others have passed it in line.
    is_passed: bool,
    /// The body still reads.
    reads: bool,
    has_failed: bool,
    /// The handler has said its word.
    is_told: bool,
    /// That was an answer.
    has_answered: bool,
    /// Bytes of the account, and of those what the response has.
    account: u64,
    has: u64,
    window: Option<Window>,
    /// The length of each frame of its answer.
    frame: u64,
}

impl Call {
    /// The waker of the next poll of a body.
    fn renews_waker(&mut self) -> Arc<Rung> {
        self.polls += 1;
        renew(&mut self.rung, self.polls);
        Arc::clone(&self.rung)
    }

    /// Bodies say what is left of them, a frame that waits included.
    fn lengths_hold(&self) {
        if let Some(body) = self.body.as_ref().filter(|_| self.reads) {
            let left = self.length.map(|length| length - (self.came - self.held));
            assert_eq!(body.size_hint().exact(), left, "what is left of a body");
            let waits = self.held > 0;
            assert!(!waits || !body.is_end_stream(), "it has a frame, and ends");
        }
        if let Some(answer) = &self.response {
            let left = self.unsent as u64 * self.frame;
            let left = Some(left).filter(|_| self.says_length);
            assert_eq!(
                answer.size_hint().exact(),
                left,
                "what is left of an answer"
            );
            let ends = (answer.is_end_stream(), self.unsent == 0);
            assert_eq!(ends.0, ends.1, "it says that it ends");
        }
    }

    /// It waits for bytes.
    pub(super) fn waits(&self) -> bool {
        self.lacks.is_some()
    }

    /// Somebody has the account.
    fn is_held(&self) -> bool {
        self.future.is_some()
            || self.response.is_some()
            || self.reads
            || self.admitted.is_some()
            || self.window.is_some_and(|window| window.taken > 0)
    }

    /// It is the call of that key, and holds nothing any more.
    pub(super) fn has_given_back(&self, key: Key) -> bool {
        self.key == Some(key) && !self.is_held()
    }

    fn is_over(&self) -> bool {
        let is_there = self.body.is_some() || self.over.is_some();
        !self.is_held() && !is_there && self.sent.is_empty()
    }

    /// What it holds.
    fn bytes(&self) -> u64 {
        let account = if self.is_held() { self.account } else { 0 };
        let window = self.window.map_or(0, |window| window.free + window.taken);
        account + window
    }

    /// What it takes itself, and what its body is to bring.
    fn total(&self) -> u64 {
        self.form.overhead + self.form.response + self.expects
    }

    /// It is in line, perhaps of those that wait to promise something.
    fn is_in_line(&self) -> bool {
        self.lacks == Some(Lacks::Admission)
    }

    /// Each frame of its body is charged alone.
    fn is_alone(&self) -> bool {
        self.has_answered && self.length.is_none()
    }

    /// What its body is still to bring.
    fn promised(&self) -> u64 {
        if self.has_promise {
            self.total()
        } else if self.promises && self.reads {
            // A frame that waits keeps its part; of a stream after its answer none is promised.
            let waits = match self.lacks {
                Some(Lacks::OfBody(due)) if !self.is_alone() => due,
                _ => 0,
            };
            self.expects.saturating_sub(self.come - waits)
        } else {
            0
        }
    }

    /// The answer has ended: what it has not sent is given back.
    fn ends(&mut self) {
        self.response = None;
        if let Some(window) = &mut self.window {
            window.free = 0;
        }
    }
}

impl Life {
    /// The twin has what the call holds now.
    fn note_call(&mut self, at: usize) {
        let call = &self.adapters.requests[at];
        if let Some(key) = call.key {
            let bytes = call.bytes();
            self.twin.set(key, bytes);
        }
    }

    pub(super) fn step_requests(&mut self, op: &Op, adapter: &Adapter) {
        if let Adapter::Request(group, form, length) = *adapter {
            self.request(op, group, form, length);
            return self.settle_accounts();
        }
        let (Adapter::Comes(number, _)
        | Adapter::ComesNoMore(number, _)
        | Adapter::Read(number)
        | Adapter::DropBody(number)
        | Adapter::LetGo(number)
        | Adapter::Answer(number, ..)
        | Adapter::FailHandler(number, _)
        | Adapter::Take(number)
        | Adapter::Sent(number)
        | Adapter::Leave(number)) = *adapter
        else {
            unreachable!("an operation on requests");
        };
        let most = self.adapters.requests.len();
        if most == 0 {
            return;
        }
        let at = usize::from(number) % most;
        match *adapter {
            Adapter::Comes(_, bytes) => self.comes(op, at, bytes.into()),
            Adapter::ComesNoMore(_, is_well) => {
                let call = &self.adapters.requests[at];
                let is_whole = call.length.is_none_or(|length| length == call.fed);
                let mut inbox = lock(&call.inbox);
                if !inbox.has_ended {
                    if !(is_well && is_whole) {
                        inbox.frames.push_back(Err(Broken));
                    }
                    inbox.has_ended = true;
                }
                let waker = inbox.waker.take();
                drop(inbox);
                self.ring(op, waker);
            }
            Adapter::Read(_) => self.read(op, at),
            Adapter::DropBody(_) => self.drop_body(op, at),
            Adapter::LetGo(_) => {
                let admitted = self.adapters.requests[at].admitted.take();
                self.note_call(at);
                self.actor(op).run(move || drop(admitted));
            }
            Adapter::Answer(_, frames, bytes, says_length) => {
                let frame = Bytes::from(vec![7; bytes as usize]);
                let frames = VecDeque::from(vec![frame; frames.into()]);
                let answer = Response::new(Frames {
                    frames,
                    says_length,
                });
                self.tell_handler(op, at, Word::Answer(answer));
            }
            Adapter::FailHandler(_, panics) => {
                let word = if panics { Word::Panic } else { Word::Fail };
                self.tell_handler(op, at, word);
            }
            Adapter::Take(_) => self.take_frame(op, at),
            Adapter::Sent(_) => self.frames_are_sent(op, at),
            _ => self.leave(op, at),
        }
        self.settle_accounts();
        self.forget_calls();
    }

    fn forget_calls(&mut self) {
        let mut at = 0;
        while at < self.adapters.requests.len() {
            if self.adapters.requests[at].is_over() {
                let call = self.adapters.requests.remove(at);
                if let Some(key) = call.key {
                    let held = self.twin.release(key);
                    assert_eq!(held.bytes, 0, "a request that is over holds bytes");
                }
            } else {
                at += 1;
            }
        }
    }

    fn ring(&self, op: &Op, waker: Option<Waker>) {
        self.actor(op).run(move || {
            if let Some(waker) = waker {
                waker.wake();
            }
        });
    }

    fn request(&mut self, op: &Op, group: u8, form: u8, length: Option<u32>) {
        let room = self.adapters.requests.len() < CALLS_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let form = Form::of(form);
        let handle = self.handle(group).clone();
        let of_group = handle.clone();
        let inbox: Arc<Mutex<Inbox>> = Arc::default();
        let desk: Arc<Mutex<Desk>> = Arc::default();
        let left = length.map(u64::from);
        let handler = Handler {
            desk: Arc::clone(&desk),
            group: handle.clone(),
        };
        let mut layer = AdmissionLayer::new(move |_: &Request<Coming>| Some(handle.clone()))
            .overhead(form.overhead as usize)
            .response(form.response as usize)
            .unknown_body(UNKNOWN as usize)
            .body_window(usize::try_from(form.window).unwrap_or(usize::MAX))
            .patience(if form.waits { PATIENCE } else { Duration::ZERO });
        if form.gives_admitted {
            layer = layer.admitted();
        }
        let figures = layer.figures();
        let mut request = Request::new(Coming {
            inbox: Arc::clone(&inbox),
            left,
        });
        // A client of HTTP/1 has its body read before it is refused.
        *request.version_mut() = if form.waits {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        };
        let has_body = left != Some(0);
        let expects = match left {
            Some(length) => length.min(form.window),
            None => UNKNOWN.min(form.window),
        };
        let own = form.overhead + form.response;
        let promised = self.promised_to(group);
        let fits = self.fits_beside(group, promised, own + expects);
        let promises = expects > SMALL;
        let waited = self.adapters_wait() || self.waiting().next().is_some();
        let is_above_max = own + expects > self.effective_max(group);
        let tokio = self.tokio();
        let (future, polled) = self.actor(op).run(move || {
            let mut service = layer.layer(handler);
            let mut waits = Waits::new(service.call(request));
            let polled = waits.poll(&tokio);
            (waits, polled)
        });
        let found = PromisedBytes::to(&of_group).bytes;
        let called = lock(&desk).called.take();
        let mut call = Call {
            group,
            in_line: None,
            form,
            figures,
            refusals: 0,
            inbox,
            desk,
            future: Some(future),
            body: None,
            admitted: None,
            response: None,
            over: None,
            rung: Arc::default(),
            polls: 0,
            sent: Vec::new(),
            held: 0,
            unsent: 0,
            says_length: false,
            lacks: None,
            key: None,
            has_body,
            length: left,
            fed: 0,
            came: 0,
            come: 0,
            expects: if has_body { expects } else { 0 },
            promises,
            has_promise: false,
            is_passed: false,
            reads: false,
            has_failed: false,
            is_told: false,
            has_answered: false,
            account: own,
            has: form.response,
            window: None,
            frame: 0,
        };
        match (polled, called) {
            (Poll::Pending, Some((body, admitted))) => {
                // Caches may have made room for it.
                if promises && !fits {
                    self.settle_accounts();
                }
                assert!(
                    !promises
                        || fits
                        || !self.shared.is_quiet()
                        || self.fits_beside(group, promised, own + expects),
                    "it promises too much"
                );
                self.agree_on_refusal(group, own, true);
                call.key = Some(self.twin.hold(group, 0, own));
                call.promises = found > promised;
                assert!(call.promises || !promises, "its body promises nothing");
                self.passes_line(group);
                call.reads = has_body;
                call.body = Some(body);
                call.admitted = admitted;
            }
            (Poll::Pending, None) if form.waits => {
                call.lacks = Some(Lacks::Admission);
                call.has_promise = found == promised + call.total();
                call.in_line = Some(of_group);
            }
            // Its body is read before the answer.
            (Poll::Pending, None) => {
                call.refusals = 1;
                self.agree_on_turned_away(group, own, promises && !fits || is_above_max || waited);
            }
            (Poll::Ready(answered), None) => {
                let status = answered
                    .map(|answer| answer.status())
                    .expect("of the layer");
                assert!(!status.is_success(), "no handler was called");
                call.future = None;
                call.refusals = 1;
                self.agree_on_turned_away(group, own, promises && !fits || is_above_max || waited);
            }
            (Poll::Ready(_), Some(_)) => panic!("the handler has said nothing yet"),
        }
        self.adapters.requests.push(call);
        self.settle_accounts();
        self.forget_calls();
    }

    /// A request of the group was admitted: those in line it has passed.
    fn passes_line(&mut self, group: usize) {
        let of_group = self.adapters.requests.iter_mut();
        for call in of_group.filter(|call| call.group == group) {
            call.is_passed |= call.is_in_line();
        }
    }

    pub(super) fn effective_max(&self, group: usize) -> u64 {
        let max = |level: usize| match self.twin.limit(level, 0) {
            memcg::PageCounter::USAGE_MAX.. => u64::MAX,
            max => max,
        };
        self.twin.levels(group).map(max).min().unwrap_or(u64::MAX)
    }

    /// What bodies are to bring to a group.
    pub(super) fn promised_to(&self, group: usize) -> u64 {
        let of_group = self
            .adapters
            .requests
            .iter()
            .filter(|call| call.group == group);
        of_group.map(Call::promised).sum()
    }

    fn fits_beside(&self, group: usize, promised: u64, bytes: u64) -> bool {
        let max = self.effective_max(group);
        max == u64::MAX || self.twin.live(group, 0) + promised + bytes <= max
    }

    /// It was refused: it has no room, or another reason.
    fn agree_on_turned_away(&mut self, group: usize, own: u64, has_reason: bool) {
        if has_reason || !self.shared.is_quiet() {
            self.settle_accounts();
        } else {
            self.agree_on_refusal(group, own, false);
        }
    }

    // === The body of a request ===

    fn comes(&mut self, op: &Op, at: usize, bytes: u64) {
        let call = &mut self.adapters.requests[at];
        let left = call.length.map_or(u64::MAX, |length| length - call.fed);
        let bytes = bytes.min(left);
        let mut inbox = lock(&call.inbox);
        if bytes == 0 || inbox.has_ended {
            return;
        }
        call.fed += bytes;
        inbox
            .frames
            .push_back(Ok(Bytes::from(vec![3; bytes as usize])));
        let waker = inbox.waker.take();
        drop(inbox);
        self.ring(op, waker);
    }

    fn read(&mut self, op: &Op, at: usize) {
        let call = &mut self.adapters.requests[at];
        if call.lacks.is_some() {
            // What waits is polled where it is woken.
            return;
        }
        let Some(body) = call.body.take() else {
            return;
        };
        self.poll_body(op, at, body);
    }

    /// A frame that finds no room, or the next one.
    fn poll_body(&mut self, op: &Op, at: usize, mut body: OfRequest) {
        let call = &self.adapters.requests[at];
        let group = call.group;
        let next = match (call.lacks, lock(&call.inbox).frames.front()) {
            (Some(Lacks::OfBody(due)), _) => Some((due, due)),
            (_, Some(Ok(frame))) => {
                let came = (call.came + frame.len() as u64).min(call.form.window);
                Some((frame.len() as u64, came.saturating_sub(call.come)))
            }
            _ => None,
        };
        let waited = matches!(call.lacks, Some(Lacks::OfBody(_)));
        let rung = self.adapters.requests[at].renews_waker();
        let tokio = self.tokio();
        let (body, polled) = self.actor(op).run(move || {
            let _inside = tokio.enter();
            let waker = Waker::from(rung);
            let polled = body.as_mut().poll_frame(&mut Context::from_waker(&waker));
            (body, polled)
        });
        let is_alone = {
            let call = &mut self.adapters.requests[at];
            call.body = Some(body);
            call.has_answered && call.length.is_none()
        };
        match polled {
            Poll::Pending => {
                let call = &mut self.adapters.requests[at];
                if let Some((length, due)) = next {
                    assert!(due > 0 || is_alone, "it waits for nothing");
                    if !waited {
                        call.came += length;
                        if !is_alone {
                            call.come += due;
                        }
                    }
                    let due = if is_alone { length } else { due };
                    call.lacks = Some(Lacks::OfBody(due));
                    if !waited {
                        call.held = length;
                    }
                }
            }
            Poll::Ready(Some(Ok(frame))) => {
                let (length, due) = next.expect("a frame has come");
                let call = &mut self.adapters.requests[at];
                call.lacks = None;
                call.held = 0;
                if !waited {
                    let found = frame.data_ref().map_or(0, |data| data.len() as u64);
                    assert_eq!(found, length, "of a frame");
                    call.came += length;
                }
                if is_alone {
                    self.is_charged_alone(group, length);
                    // Its charge goes with it, at once.
                    self.actor(op).run(move || drop(frame));
                } else {
                    if !waited {
                        let charged = due;
                        if charged > 0 {
                            self.agree_on_refusal(group, charged, true);
                        }
                        self.adapters.requests[at].come += due;
                    }
                    let call = &mut self.adapters.requests[at];
                    call.account += due;
                }
            }
            Poll::Ready(ended) => {
                let call = &mut self.adapters.requests[at];
                let was_broken = next.is_none() && !waited;
                if let Some(Err(error)) = &ended {
                    let is_full = self
                        .twin
                        .levels(group)
                        .any(|level| self.twin.live(level, 0) > self.twin.limit(level, 0));
                    let offline = !self.twin.groups[group].online;
                    let is_right = match error {
                        BodyError::Inner(_) => was_broken,
                        // By what it would have charged.
                        BodyError::Outgrown(_) => next.is_some(),
                        BodyError::Refused(error) => {
                            // What a hook has noted may come later.
                            let is_cancelled = error.is_cancelled() && !self.hooks.is_empty();
                            is_full
                                || is_cancelled
                                || offline
                                || self.cancelled
                                || waited
                                || next.is_some()
                        }
                        _ => false,
                    };
                    assert!(is_right, "{error:?}");
                    let is_refused = !matches!(error, BodyError::Inner(_));
                    call.has_failed |= is_refused;
                    call.refusals += u64::from(is_refused);
                } else {
                    // Of one that has failed nothing is read any more.
                    assert!(
                        next.is_none() || !call.reads,
                        "the body ends before its frames"
                    );
                }
                call.reads = false;
                call.lacks = None;
                call.held = 0;
            }
        }
        self.note_call(at);
        self.adapters.requests[at].lengths_hold();
    }

    /// A frame is charged beside all that the twin knows, as long as it lives.
    fn is_charged_alone(&self, group: usize, bytes: u64) {
        if !self.shared.is_quiet() || self.had_caches || self.handles[group].is_empty() {
            return;
        }
        let (found, known) = (self.handle(group).live(), self.twin.live(group, 0) + bytes);
        assert_eq!(found, known, "live beside a frame of a stream that goes on");
    }

    fn drop_body(&mut self, op: &Op, at: usize) {
        let call = &mut self.adapters.requests[at];
        let body = call.body.take();
        if body.is_some() {
            call.reads = false;
            call.held = 0;
            if matches!(call.lacks, Some(Lacks::OfBody(_))) {
                call.lacks = None;
            }
        }
        self.note_call(at);
        let tokio = self.tokio();
        self.actor(op).run(move || {
            let _inside = tokio.enter();
            drop(body);
        });
    }

    // === The answer ===

    fn tell_handler(&mut self, op: &Op, at: usize, word: Word) {
        let call = &mut self.adapters.requests[at];
        // One that waits for its frame is in the middle of its read.
        if call.key.is_none() || call.is_told || call.future.is_none() || call.lacks.is_some() {
            return;
        }
        let length = match &word {
            Word::Answer(answer) => answer.body().size_hint().exact(),
            _ => None,
        };
        if let Word::Answer(answer) = &word {
            call.unsent = answer.body().frames.len();
            call.says_length = length.is_some();
            call.frame = answer
                .body()
                .frames
                .front()
                .map_or(0, |frame| frame.len() as u64);
        }
        let fails = !matches!(word, Word::Answer(_));
        let panics = matches!(word, Word::Panic);
        lock(&call.desk).word = Some(word);
        let call = &mut self.adapters.requests[at];
        if !call.has_failed && !fails {
            call.has_answered = true;
            // The response takes over what the body of the request has brought.
            let length = length.unwrap_or(0);
            let of_body = call
                .come
                .min(call.account - call.form.overhead - call.form.response);
            let moved = of_body.min(length);
            call.account = call.form.overhead + call.form.response + moved;
            call.has = call.form.response + moved;
            let needs = length.min(call.form.window);
            if needs > call.has.max(SMALL) {
                call.lacks = Some(Lacks::OfAnswer(needs - call.has));
            }
        }
        let call = &mut self.adapters.requests[at];
        call.is_told = true;
        if panics {
            let future = call.future.take();
            self.note_call(at);
            let panicked = self.actor(op).run(move || {
                let mut future = future.expect("it runs");
                let waker = Waker::from(Arc::clone(&future.rung));
                let mut context = Context::from_waker(&waker);
                let poll = || future.future.as_mut().poll(&mut context).is_pending();
                catch_unwind(AssertUnwindSafe(poll)).is_err()
            });
            assert!(panicked, "the handler panics");
            return;
        }
        self.poll_answer(op, at);
    }

    /// Polls the future of a request whose handler has answered.
    fn poll_answer(&mut self, op: &Op, at: usize) {
        let call = &mut self.adapters.requests[at];
        let group = call.group;
        let has_failed = call.has_failed;
        let lacks = match call.lacks {
            Some(Lacks::OfAnswer(lacks)) => lacks,
            _ => 0,
        };
        let Some(mut future) = call.future.take() else {
            return;
        };
        let before = self.twin.admits(group, 0, lacks, None).is_ok();
        let tokio = self.tokio();
        let (future, polled) = self.actor(op).run(move || {
            let polled = future.poll(&tokio);
            (future, polled)
        });
        let call = &mut self.adapters.requests[at];
        match polled {
            Poll::Pending => {
                assert!(lacks > 0, "the handler has answered");
                call.future = Some(future);
            }
            Poll::Ready(answered) => {
                call.lacks = None;
                let status = answered.as_ref().map(Response::status).ok();
                match (status, answered) {
                    (Some(StatusCode::OK), Ok(answer)) => {
                        assert!(
                            !has_failed,
                            "its body has failed, and it says nothing of that"
                        );
                        call.account += lacks;
                        call.has += lacks;
                        call.response = Some(Box::pin(answer.into_body()));
                    }
                    (Some(status), answer) => {
                        assert!(
                            has_failed || lacks > 0,
                            "{status}, and the handler has answered; room: {before}"
                        );
                        call.refusals += u64::from(!has_failed);
                        drop(answer);
                    }
                    // A body that has failed is the answer, also where the handler fails.
                    (None, _) => assert!(!has_failed, "the handler's error is the answer"),
                }
            }
        }
        self.note_call(at);
    }

    fn frames_are_sent(&mut self, op: &Op, at: usize) {
        let call = &mut self.adapters.requests[at];
        let sent = std::mem::take(&mut call.sent);
        if let Some(window) = &mut call.window {
            let back = std::mem::take(&mut window.taken);
            // After the end they are given back at once.
            if call.response.is_some() {
                window.free += back;
            }
        }
        self.note_call(at);
        self.actor(op).run(move || drop(sent));
    }

    fn take_frame(&mut self, op: &Op, at: usize) {
        if self.adapters.requests[at].lacks.is_some() {
            return;
        }
        // Else it would wait by the system's clock for those that are on their way. Only the end
        // waits for none.
        let is_over = self.adapters.requests[at].unsent == 0;
        if !is_over || op.0.is_multiple_of(2) {
            self.frames_are_sent(op, at);
            self.settle_accounts();
        }
        self.poll_response(op, at);
    }

    fn poll_response(&mut self, op: &Op, at: usize) {
        let call = &mut self.adapters.requests[at];
        let group = call.group;
        let Some(mut response) = call.response.take() else {
            let over = call.over.take();
            self.actor(op).run(move || drop(over));
            return;
        };
        let waited = call.lacks;
        let rung = call.renews_waker();
        let tokio = self.tokio();
        let (response, polled) = self.actor(op).run(move || {
            let _inside = tokio.enter();
            let waker = Waker::from(rung);
            let polled = response
                .as_mut()
                .poll_frame(&mut Context::from_waker(&waker));
            (response, polled)
        });
        let call = &mut self.adapters.requests[at];
        call.response = Some(response);
        match polled {
            Poll::Pending => {
                // Frames of one answer are as long as each other.
                let length = call.frame;
                let missing = missing(call, length);
                assert!(missing > 0, "a frame waits, and has its bytes");
                opens_window(call, length);
                call.lacks = Some(Lacks::OfFrame(missing, length));
            }
            Poll::Ready(Some(Ok(frame))) => {
                let frame = frame.into_data().expect("data");
                let length = frame.len() as u64;
                let missing = missing(call, length);
                if waited.is_none() && missing > 0 {
                    self.agree_on_refusal(group, missing, true);
                }
                let call = &mut self.adapters.requests[at];
                call.lacks = None;
                call.unsent -= 1;
                hands_on(call, length, missing);
                call.sent.push(frame);
            }
            Poll::Ready(None) => {
                assert!(waited.is_none(), "its frame is lost");
                let call = &mut self.adapters.requests[at];
                call.over = call.response.take();
                call.ends();
            }
            Poll::Ready(Some(Err(error))) => {
                assert!(matches!(error, BodyError::Refused(_)), "{error}");
                let call = &mut self.adapters.requests[at];
                call.lacks = None;
                call.refusals += 1;
                call.over = call.response.take();
                opens_window(call, call.frame);
                call.ends();
            }
        }
        self.note_call(at);
        self.adapters.requests[at].lengths_hold();
    }

    /// Polls what was woken of requests. True: something has changed.
    pub(super) fn poll_requests(&mut self) -> bool {
        let op = Op(0, What::Look);
        let mut has_ended = false;
        for at in 0..self.adapters.requests.len() {
            let call = &mut self.adapters.requests[at];
            let is_rung = call.rung.0.load(std::sync::atomic::Ordering::SeqCst);
            let future_rung = call.future.as_ref().is_some_and(Waits::is_rung);
            match call.lacks {
                Some(Lacks::OfBody(_)) if is_rung => {
                    if let Some(body) = call.body.take() {
                        self.poll_body(&op, at, body);
                        has_ended = true;
                    }
                }
                Some(Lacks::OfFrame(..)) if is_rung => {
                    self.poll_response(&op, at);
                    has_ended = true;
                }
                Some(Lacks::OfAnswer(_)) if future_rung => {
                    self.poll_answer(&op, at);
                    has_ended = true;
                }
                // In line, or refused and read to its end.
                Some(Lacks::Admission) | None if future_rung && call.key.is_none() => {
                    self.poll_admission(&op, at);
                    has_ended = true;
                }
                _ => {}
            }
        }
        has_ended
    }

    fn poll_admission(&mut self, op: &Op, at: usize) {
        let call = &mut self.adapters.requests[at];
        let (group, own) = (call.group, call.form.overhead + call.form.response);
        let Some(mut future) = call.future.take() else {
            return;
        };
        call.has_promise = false;
        let (total, promised) = (call.total(), self.promised_to(group));
        let tokio = self.tokio();
        let (future, polled) = self.actor(op).run(move || {
            let polled = future.poll(&tokio);
            (future, polled)
        });
        let call = &self.adapters.requests[at];
        let found = call.in_line.as_ref().map(|of| PromisedBytes::to(of).bytes);
        let found = found.unwrap_or(promised);
        let called = lock(&self.adapters.requests[at].desk).called.take();
        match (polled, called) {
            (Poll::Pending, Some((body, admitted))) => {
                let key = self.twin.hold(group, 0, own);
                self.adapters.requests[at].lacks = None;
                self.passes_line(group);
                let call = &mut self.adapters.requests[at];
                call.key = Some(key);
                call.in_line = None;
                call.promises = found > promised;
                assert!(
                    call.promises || call.expects <= SMALL,
                    "its body promises nothing, and {} bytes come",
                    call.expects
                );
                call.reads = call.has_body;
                call.body = Some(body);
                call.admitted = admitted;
                call.future = Some(future);
            }
            (Poll::Pending, None) => {
                let call = &mut self.adapters.requests[at];
                call.future = Some(future);
                call.has_promise = call.is_in_line() && found == promised + total;
            }
            (Poll::Ready(answered), None) => {
                let status = answered
                    .map(|answer| answer.status())
                    .expect("of the layer");
                assert!(!status.is_success(), "no handler was called");
                let call = &mut self.adapters.requests[at];
                // One whose body is read before the answer was counted then.
                call.refusals = 1;
                call.in_line = None;
                call.lacks = None;
            }
            (Poll::Ready(_), Some(_)) => panic!("the handler has said nothing yet"),
        }
    }

    /// The client goes away, and all that runs for it.
    fn leave(&mut self, op: &Op, at: usize) {
        let call = &mut self.adapters.requests[at];
        let future = call.future.take();
        let body = call.body.take();
        let response = (call.response.take(), call.over.take());
        let sent = std::mem::take(&mut call.sent);
        let waited = call.is_in_line();
        let figures = call.figures.clone();
        call.reads = false;
        call.lacks = None;
        call.has_promise = false;
        call.in_line = None;
        call.window = None;
        self.note_call(at);
        let call = &mut self.adapters.requests[at];
        let rungs = [
            future.as_ref().map(|future| Arc::clone(&future.rung)),
            Some(std::mem::take(&mut call.rung)),
        ];
        // What the script wakes a handler and the reader of a body by.
        lock(&call.inbox).waker = None;
        lock(&call.desk).waker = None;
        let tokio = self.tokio();
        self.actor(op).run(move || {
            let _inside = tokio.enter();
            drop(future);
            drop(body);
            drop(response);
            drop(sent);
        });
        for rung in rungs.into_iter().flatten() {
            assert!(
                self.lets_go(&rung),
                "a waker of a request that is gone is kept"
            );
        }
        let found = (figures.waiting(), figures.left());
        assert_eq!(found, (0, waited.into()), "waiting, and gone, of a layer");
    }

    /// What is promised, and what admitted requests say that they hold; and none is forgotten that
    /// waits alone.
    pub(super) fn requests_hold(&self) -> Holds {
        for (group, handles) in self.handles.iter().enumerate() {
            if let Some(handle) = handles.first() {
                let found = PromisedBytes::to(handle).bytes;
                ensure_eq!(found, self.promised_to(group), "promised to {handle:?}");
            }
        }
        for call in &self.adapters.requests {
            if let Some(admitted) = &call.admitted {
                ensure_eq!(admitted.reserved(), call.account, "of a request's account");
            }
            let of = &call.figures;
            let refused: u64 = RefusalKind::ALL.iter().map(|&kind| of.refused(kind)).sum();
            let found = (of.waiting(), of.waits().count, refused);
            // A wait has ended once.
            let has_waited = found.1.min(1);
            let known = (u64::from(call.is_in_line()), has_waited, call.refusals);
            ensure_eq!(found, known, "waiting, waits and refusals of a layer");
            ensure_eq!(of.left(), 0, "requests that have left a line");
        }
        let others = self.waiting().next().is_some()
            || self
                .adapters
                .channels
                .iter()
                .any(|channel| !channel.sends.is_empty());
        if others || !self.shared.is_quiet() || self.cancelled {
            return Ok(());
        }
        self.line_of_promises_holds()?;
        let mut waiting = self.adapters.requests.iter().filter(|call| call.waits());
        let (Some(call), None) = (waiting.next(), waiting.next()) else {
            return Ok(());
        };
        let bytes = match call.lacks {
            Some(Lacks::Admission) => {
                let promised = self.promised_to(call.group);
                if !call.has_promise && !self.fits_beside(call.group, promised, call.total()) {
                    return Ok(());
                }
                call.form.overhead + call.form.response
            }
            Some(Lacks::OfBody(bytes) | Lacks::OfAnswer(bytes) | Lacks::OfFrame(bytes, _)) => bytes,
            None => return Ok(()),
        };
        match self.twin.admits(call.group, 0, bytes, None) {
            Err(crate::twin::No::Full(_)) => Ok(()),
            answer => Err(format!(
                "{bytes} bytes of a request wait at {}, and the twin says {answer:?}",
                self.twin.path(call.group)
            )),
        }
    }

    /// Of requests that wait to promise something, the smallest passes the first, once, where it fits
    /// and that one does not.
    fn line_of_promises_holds(&self) -> Holds {
        let all = &self.adapters.requests;
        let Some(group) = all.iter().find(|call| call.waits()).map(|call| call.group) else {
            return Ok(());
        };
        // Else they may wait for their own bytes, behind others.
        let are_in_line = |call: &&Call| {
            call.group == group && call.is_in_line() && call.expects > SMALL && !call.has_promise
        };
        let line: Vec<&Call> = all.iter().filter(are_in_line).collect();
        if line.len() < all.iter().filter(|call| call.waits()).count() {
            return Ok(());
        }
        let [first, others @ ..] = line.as_slice() else {
            return Ok(());
        };
        let Some(smallest) = others.iter().map(|call| call.total()).min() else {
            return Ok(());
        };
        let promised = self.promised_to(group);
        let may_pass = smallest <= first.total() && !first.is_passed;
        let goes = may_pass && self.fits_beside(group, promised, smallest)
            || self.fits_beside(group, promised, first.total());
        ensure!(
            !goes || !self.twin.groups[group].online,
            "{} bytes of a request wait in line, {smallest} behind it, and one of them fits",
            first.total()
        );
        Ok(())
    }

    pub(super) fn end_requests(&mut self, op: &Op) {
        for at in 0..self.adapters.requests.len() {
            self.leave(op, at);
            self.settle_accounts();
            let admitted = self.adapters.requests[at].admitted.take();
            self.note_call(at);
            self.actor(op).run(move || drop(admitted));
            self.settle_accounts();
        }
        self.forget_calls();
        let left = self.adapters.requests.len();
        assert_eq!(left, 0, "requests that nobody has");
    }
}

/// What is missing for a frame of so many bytes, where none is on its way.
fn missing(call: &Call, length: u64) -> u64 {
    if length <= SMALL.min(call.has) {
        0
    } else if length <= SMALL {
        length - call.has
    } else {
        let free = match call.window {
            Some(window) => window.free,
            None => call.has.min(call.account),
        };
        length.saturating_sub(free)
    }
}

/// With the first large frame, what the response has becomes its window.
fn opens_window(call: &mut Call, length: u64) {
    if length > SMALL && call.window.is_none() {
        let free = call.has.min(call.account);
        call.account -= free;
        call.window = Some(Window { free, taken: 0 });
    }
}

/// A frame has its bytes, of which so many were missing.
fn hands_on(call: &mut Call, length: u64, missing: u64) {
    opens_window(call, length);
    call.has += missing;
    match &mut call.window {
        Some(window) => {
            window.free += missing;
            if length > SMALL {
                window.free -= length;
                window.taken += length;
            }
        }
        None => call.account += missing,
    }
}
