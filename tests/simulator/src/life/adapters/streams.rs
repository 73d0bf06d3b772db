//! Connections of HTTP/2: several requests at once over one socket, which fails on purpose.
//!
//! Each stream goes its own way: its client sends all of its body, stops, or fails in the middle; its
//! handler reads all, one frame or none, fails, or never answers; its client takes the answer, or goes
//! away before its end. What a stream holds goes with it, while the others and the connection live on.
//! All of it lives within one operation: the twin has none of it.

use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2 as client;
use hyper::rt::Executor;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use memcg::{Group, Limits};
use memcg_tower::{
    AdmissionFigures, AdmissionLayer, ConnectionPace, PromisedBytes, RefusalKind, RequestBody,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tower_layer::Layer;
use tower_service::Service;

use super::super::Life;
use super::Rung;
use super::connections::{Break, OfHyper, PATIENCE, Pieces, UNKNOWN, answers, lock};
use super::requests::Broken;
use crate::script::{Adapter, Op, pick};

/// What a socket keeps in one direction.
const ROOM: usize = 16 << 10;

/// Each stream has ended by then, or its client goes away.
const TURNS: u32 = 12;

/// The header with the number of a stream.
const NUMBER: &str = "x-stream";

/// One direction of a socket.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    has_ended: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn end(&mut self) {
        self.has_ended = true;
        let wakers = [self.reader.take(), self.writer.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn read(&mut self, context: &Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() && !self.has_ended {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let most = self.bytes.len().min(into.remaining());
        let taken: Vec<u8> = self.bytes.drain(..most).collect();
        into.put_slice(&taken);
        self.writer.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }

    fn write(
        &mut self,
        context: &Context<'_>,
        data: &[u8],
        most: usize,
    ) -> Poll<io::Result<usize>> {
        if self.has_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let most = most.min(data.len()).min(ROOM - self.bytes.len());
        if most == 0 && !data.is_empty() {
            self.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.bytes.extend(&data[..most]);
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(most))
    }
}

/// A socket with two ends.
struct Link {
    to_server: Pipe,
    to_client: Pipe,
    breaks: Break,
    /// Calls of the server until it breaks.
    left: u32,
    is_broken: bool,
}

impl Link {
    /// Counts a call of the server. True: the socket breaks with it, or has done so.
    fn breaks(&mut self, at: &[Break]) -> bool {
        if !at.contains(&self.breaks) {
            return false;
        }
        if !self.is_broken {
            self.is_broken = self.left == 0;
            self.left = self.left.saturating_sub(1);
        }
        self.is_broken
    }

    fn end(&mut self) {
        self.to_server.end();
        self.to_client.end();
    }

    fn fail<T>(&mut self, kind: io::ErrorKind) -> Poll<io::Result<T>> {
        self.end();
        Poll::Ready(Err(kind.into()))
    }
}

/// An end of a socket.
struct End {
    link: Arc<Mutex<Link>>,
    is_server: bool,
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let link = &mut *lock(&self.link);
        if !self.is_server {
            return link.to_client.read(context, into);
        }
        if link.breaks(&[Break::Read]) {
            return link.fail(io::ErrorKind::ConnectionReset);
        }
        link.to_server.read(context, into)
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let link = &mut *lock(&self.link);
        if !self.is_server {
            return link.to_server.write(context, data, data.len());
        }
        let was_broken = link.is_broken;
        let mut most = data.len();
        if link.breaks(&[
            Break::Write,
            Break::Half,
            Break::Nothing,
            Break::Full,
            Break::Slow,
        ]) {
            match link.breaks {
                Break::Half if !was_broken && data.len() > 1 => most /= 2,
                Break::Nothing => return Poll::Ready(Ok(0)),
                Break::Full | Break::Slow => return Poll::Pending,
                _ => return link.fail(io::ErrorKind::BrokenPipe),
            }
        }
        link.to_client.write(context, data, most)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let link = &mut *lock(&self.link);
        if self.is_server && link.breaks(&[Break::Write]) {
            return link.fail(io::ErrorKind::BrokenPipe);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let link = &mut *lock(&self.link);
        match self.is_server {
            true => link.to_client.end(),
            false => link.to_server.end(),
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.link).end();
    }
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What hyper runs beside a connection, for both ends.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<Vec<Task>>>);

impl<F> Executor<F> for Tasks
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        let task = Box::pin(async move { drop(future.await) });
        lock(&self.0).push(task);
    }
}

impl Tasks {
    /// Polls all of them, those that come meanwhile included.
    fn poll(&self, context: &mut Context<'_>) {
        let mut kept = Vec::new();
        loop {
            let mut tasks = std::mem::take(&mut *lock(&self.0));
            if tasks.is_empty() {
                break;
            }
            tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
            kept.append(&mut tasks);
        }
        lock(&self.0).append(&mut kept);
    }
}

/// How the body of a request ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Well,
    Fails,
    Stalls,
}

/// A client that may go away, and the body of its request that waits for that: as long as a part of a
/// stream is there, hyper does not reset it.
#[derive(Default)]
struct Client {
    has_gone: bool,
    waker: Option<Waker>,
}

/// The body of a request.
struct Upload {
    client: Arc<Mutex<Client>>,
    left: usize,
    piece: usize,
    ending: Ending,
    /// The length that its head says, less what has come.
    says: Option<u64>,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut client = lock(&self.client);
        if client.has_gone {
            return Poll::Ready(Some(Err(Broken)));
        }
        client.waker = Some(context.waker().clone());
        drop(client);
        let most = self.left.min(self.piece);
        if most == 0 {
            return match self.ending {
                Ending::Well => Poll::Ready(None),
                Ending::Fails => Poll::Ready(Some(Err(Broken))),
                Ending::Stalls => Poll::Pending,
            };
        }
        self.left -= most;
        self.says = self.says.map(|says| says - most as u64);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![3; most])))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && self.ending == Ending::Well
    }

    fn size_hint(&self) -> SizeHint {
        self.says.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// What a handler does with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ReadsAll,
    ReadsOne,
    ReadsNone,
    Fails,
    NeverAnswers,
}

/// A stream.
#[derive(Clone, Copy)]
struct Plan {
    body: usize,
    piece: usize,
    ending: Ending,
    says_length: bool,
    way: Way,
    answer: usize,
    frame: usize,
    answer_says_length: bool,
    /// At that turn its client goes away.
    leaves: u32,
}

impl Plan {
    fn draw(rng: &mut Xoshiro256PlusPlus) -> Plan {
        let endings = [Ending::Well, Ending::Well, Ending::Well, Ending::Fails];
        let ways = [
            Way::ReadsAll,
            Way::ReadsAll,
            Way::ReadsAll,
            Way::ReadsOne,
            Way::ReadsNone,
            Way::Fails,
            Way::NeverAnswers,
        ];
        let ending = match rng.random_range(0..5) {
            4 => Ending::Stalls,
            other => endings[other],
        };
        Plan {
            body: pick(rng, &[0, 100, 5_000, 20_000, 45_000]),
            piece: pick(rng, &[900, 6_000, 30_000]),
            ending,
            says_length: rng.random(),
            way: pick(rng, &ways),
            answer: pick(rng, &[0, 100, 5_000, 20_000, 45_000]),
            frame: pick(rng, &[5_000, 9_000, 20_000]),
            answer_says_length: rng.random(),
            leaves: pick(rng, &[1, 2, 3, TURNS, TURNS, TURNS]),
        }
    }

    /// Nothing stands in the way of its end.
    fn is_well(&self) -> bool {
        self.ending == Ending::Well && self.way == Way::ReadsAll && self.leaves == TURNS
    }

    fn upload(&self, client: &Arc<Mutex<Client>>) -> Upload {
        // Where it does not end well there is more to come.
        let more = u64::from(self.ending != Ending::Well) * 500;
        Upload {
            client: Arc::clone(client),
            left: self.body,
            piece: self.piece,
            ending: self.ending,
            says: self.says_length.then_some(self.body as u64 + more),
        }
    }
}

/// A connection.
#[derive(Clone)]
struct Form {
    overhead: u64,
    response: u64,
    /// Requests wait in line; else they are refused at once.
    waits: bool,
    /// Each request has a group of its own.
    has_group: bool,
    breaks: Break,
    at: u32,
    plans: Vec<Plan>,
}

impl Form {
    fn of(form: u8, way: u8, at: u8, seed: u64) -> Form {
        let has = |bit: u8| form >> bit & 1 == 1;
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let plans = (0..rng.random_range(1..6)).map(|_| Plan::draw(rng));
        Form {
            overhead: 700,
            response: if has(1) { 2_000 } else { 0 },
            waits: has(0),
            has_group: has(2),
            breaks: Break::of(way),
            at: at.into(),
            plans: plans.collect(),
        }
    }

    /// What all streams may be charged for, each byte once, and what they promise.
    fn most(&self) -> u64 {
        let of = |plan: &Plan| {
            let body = (plan.body as u64 + 500).max(UNKNOWN as u64);
            self.overhead + self.response + body + plan.answer as u64
        };
        self.plans.iter().map(of).sum()
    }
}

#[derive(Clone)]
struct Serves {
    plans: Arc<[Plan]>,
    there: Arc<AtomicU64>,
}

impl Service<Request<RequestBody<Incoming>>> for Serves {
    type Response = Response<Pieces>;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Pieces>, Broken>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Incoming>>) -> Self::Future {
        let number = request.headers()[NUMBER].to_str().expect("digits");
        let plan = self.plans[number.parse::<usize>().expect("a number")];
        let there = Arc::clone(&self.there);
        Box::pin(async move {
            let mut body = pin!(request.into_body());
            let most = match plan.way {
                Way::ReadsNone => 0,
                Way::ReadsOne => 1,
                _ => usize::MAX,
            };
            for _ in 0..most {
                match poll_fn(|context| body.as_mut().poll_frame(context)).await {
                    Some(frame) => _ = frame.map_err(|_| Broken)?,
                    None => break,
                }
            }
            match plan.way {
                Way::Fails => return Err(Broken),
                Way::NeverAnswers => return pending().await,
                _ => {}
            }
            Ok(Response::new(Pieces {
                at: 0,
                length: plan.answer,
                frame: plan.frame,
                says_length: plan.answer_says_length,
                there,
            }))
        })
    }
}

type Asks = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

/// Where a client is with a stream.
enum Stage {
    Asks(Asks),
    Reads(u16, Incoming, Vec<u8>),
    /// The status, and the whole answer; `None`: it has come to nothing.
    Over(Option<(u16, Vec<u8>)>),
}

impl Stage {
    fn poll(&mut self, context: &mut Context<'_>) {
        loop {
            *self = match self {
                Stage::Asks(asks) => match asks.as_mut().poll(context) {
                    Poll::Pending => return,
                    Poll::Ready(Err(_)) => Stage::Over(None),
                    Poll::Ready(Ok(answer)) => {
                        let status = answer.status().as_u16();
                        Stage::Reads(status, answer.into_body(), Vec::new())
                    }
                },
                Stage::Reads(status, body, taken) => match Pin::new(body).poll_frame(context) {
                    Poll::Pending => return,
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Some(data) = frame.data_ref() {
                            taken.extend_from_slice(data);
                        }
                        continue;
                    }
                    Poll::Ready(Some(Err(_))) => Stage::Over(None),
                    Poll::Ready(None) => Stage::Over(Some((*status, std::mem::take(taken)))),
                },
                Stage::Over(_) => return,
            };
        }
    }

    fn is_over(&self) -> bool {
        matches!(self, Stage::Over(_))
    }
}

/// What was seen of a connection.
#[derive(Default)]
struct Seen {
    most: u64,
    /// What was charged was less than the frames that were there.
    unpaid: Option<(u64, u64)>,
    /// What was left once all streams had ended, and the connection lived on.
    left: Option<u64>,
    promised: Option<u64>,
    /// Answers, as far as they have come to their end.
    answers: Vec<Option<(u16, Vec<u8>)>>,
    figures: Option<AdmissionFigures>,
}

/// Serves one connection until all of its streams are over, and some time longer.
fn serve(group: &Group, form: &Form, tokio: &Handle) -> Seen {
    let _inside = tokio.enter();
    let before = group.live();
    let promised = || PromisedBytes::to(group).bytes;
    let promised_before = promised();
    let there = Arc::<AtomicU64>::default();
    let link = Arc::new(Mutex::new(Link {
        to_server: Pipe::default(),
        to_client: Pipe::default(),
        breaks: form.breaks,
        left: form.at,
        is_broken: false,
    }));
    let end = |is_server| End {
        link: Arc::clone(&link),
        is_server,
    };
    let of_request = group.clone();
    let mut layer = AdmissionLayer::new(move |_: &Request<Incoming>| Some(of_request.clone()))
        .overhead(form.overhead as usize)
        .response(form.response as usize)
        .unknown_body(UNKNOWN)
        .patience(if form.waits { PATIENCE } else { Duration::ZERO });
    if form.has_group {
        layer = layer.request_groups(Limits::new());
    }
    let figures = layer.figures();
    let admission = layer.layer(Serves {
        plans: form.plans.as_slice().into(),
        there: Arc::clone(&there),
    });
    drop(layer);
    let service = service_fn(move |request| admission.clone().call(request));
    let pace = ConnectionPace::new().write_timeout(match form.breaks {
        Break::Slow => Duration::ZERO,
        _ => PATIENCE,
    });
    let tasks = Tasks::default();
    let connection = OfHyper(pace.connection(end(true)));
    let served = server::Builder::new(tasks.clone()).serve_connection(connection, service);
    let mut served = Some(Box::pin(served));
    let rung = Arc::<Rung>::default();
    let waker = Waker::from(Arc::clone(&rung));
    let mut context = Context::from_waker(&waker);
    let shaken = pin!(client::handshake(tasks.clone(), OfHyper(end(false)))).poll(&mut context);
    let Poll::Ready(Ok((mut requests, of_client))) = shaken else {
        panic!("a client waits for nothing before its first request");
    };
    let mut of_client = Some(Box::pin(of_client));
    let clients: Vec<Arc<Mutex<Client>>> = form.plans.iter().map(|_| Arc::default()).collect();
    let ask = |(number, plan): (usize, &Plan)| {
        let request = Request::post("http://one/").header(NUMBER, number);
        let request = request.body(plan.upload(&clients[number]));
        let request = request.expect("a request");
        Stage::Asks(Box::pin(requests.send_request(request)))
    };
    let mut stages: Vec<Stage> = form.plans.iter().enumerate().map(ask).collect();
    let mut seen = Seen::default();
    let mut turns = 0;
    loop {
        rung.0.store(false, Ordering::SeqCst);
        if let Some(connection) = &mut served
            && connection.as_mut().poll(&mut context).is_ready()
        {
            served = None;
        }
        if let Some(connection) = &mut of_client
            && connection.as_mut().poll(&mut context).is_ready()
        {
            of_client = None;
        }
        tasks.poll(&mut context);
        stages.iter_mut().for_each(|stage| stage.poll(&mut context));
        let (live, large) = (
            group.live().saturating_sub(before),
            there.load(Ordering::SeqCst),
        );
        seen.most = seen.most.max(live);
        if live < large {
            seen.unpaid.get_or_insert((live, large));
        }
        if rung.0.load(Ordering::SeqCst) {
            continue;
        }
        // Both wait.
        if turns > TURNS {
            break;
        }
        turns += 1;
        for ((stage, plan), client) in stages.iter_mut().zip(&form.plans).zip(&clients) {
            if turns < plan.leaves {
                continue;
            }
            if !stage.is_over() {
                *stage = Stage::Over(None);
            }
            let client = &mut *lock(client);
            client.has_gone = true;
            client.waker.take().into_iter().for_each(Waker::wake);
        }
        let is_turn = turns > form.at;
        match form.breaks {
            Break::Ends if is_turn => of_client = None,
            Break::Drops if is_turn => served = None,
            _ => {}
        }
    }
    if served.is_some() && form.breaks != Break::Full {
        seen.left = Some(group.live().saturating_sub(before));
        seen.promised = Some(promised().saturating_sub(promised_before));
    }
    seen.answers = stages
        .into_iter()
        .map(|stage| match stage {
            Stage::Over(answer) => answer,
            _ => None,
        })
        .collect();
    drop((requests, of_client, served));
    let left = std::mem::take(&mut *lock(&tasks.0));
    drop(left);
    seen.figures = Some(figures);
    seen
}

impl Life {
    pub(super) fn serve_streams(&mut self, op: &Op, adapter: &Adapter) {
        let Adapter::Streams(group, form, way, at, seed) = *adapter else {
            unreachable!("streams of a connection");
        };
        // What they wait for, or charge, would be a part of what is seen of the connection.
        if !self.tasks.is_empty() || self.adapters_wait() || !self.shared.is_quiet() {
            return;
        }
        let Some(group) = self.group(group) else {
            return;
        };
        let form = Form::of(form, way, at, seed);
        let is_online = self.twin.groups[group].online;
        let promised = self.promised_to(group);
        let fits = self.twin.margin(group, 0, None) >= form.most() + promised;
        let children = self.handle(group).inspect().child_count();
        let tokio = self.tokio();
        let of_call = form.clone();
        let seen = self.on(op, group, move |group| serve(group, &of_call, &tokio));
        self.settle_accounts();
        let handle = self.handle(group);
        let found = handle.inspect().child_count();
        assert_eq!(found, children, "groups of requests");
        let figures = seen.figures.expect("of the layer");
        assert_eq!(figures.waiting(), 0, "requests in line of a layer");
        for (plan, answer) in form.plans.iter().zip(&seen.answers) {
            if let Some((200, body)) = answer {
                let whole = &answers()[..plan.answer];
                assert!(body == whole, "{} bytes of {}", body.len(), plan.answer);
            }
        }
        // A cache may have given meanwhile.
        let is_alone = self.shared.is_quiet() && !self.had_caches && self.hooks.is_empty();
        if !is_alone || !is_online {
            return;
        }
        let most = form.most();
        assert!(
            seen.most <= most,
            "streams hold {} bytes, and all of it is {most}",
            seen.most
        );
        if let Some(left) = seen.left {
            let left = (left, seen.promised.unwrap_or(0));
            assert_eq!(left, (0, 0), "left of streams that are over, and promised");
        }
        if !fits || self.setup.groups_max < 64 {
            return;
        }
        if let Some((live, there)) = seen.unpaid {
            panic!("{live} bytes are charged, and frames of {there} are there");
        }
        let refused: u64 = RefusalKind::ALL
            .iter()
            .map(|&kind| figures.refused(kind))
            .sum();
        assert_eq!(refused, 0, "refusals of requests that have room");
        if form.breaks == Break::Never {
            for (plan, answer) in form.plans.iter().zip(&seen.answers) {
                let status = answer.as_ref().map(|(status, _)| *status);
                assert!(
                    status == Some(200) || !plan.is_well(),
                    "{status:?} of a request that has room"
                );
            }
        }
    }
}
