//! Connections: hyper serves a request over a socket that fails on purpose, at any read or write.
//!
//! A request comes in pieces through the layer to a handler, and the client takes the answer in
//! pieces. At its turn the socket fails, takes half, or takes nothing; or the client goes away. What a
//! connection holds has gone with it, at whatever step it has ended, and what the client has taken is
//! the beginning of the answer, each byte once. The twin has none of it: the connection lives within
//! one operation.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use memcg::{Group, Limits};
use memcg_tower::{AdmissionLayer, ConnectionPace, KeptConnection, PacedConnection, RequestBody};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tower_layer::Layer;
use tower_service::Service;

use super::super::Life;
use super::Rung;
use super::requests::Broken;
use crate::script::{Adapter, Op};

/// Frames of no more are what a connection buffers.
const SMALL: u64 = 8 << 10;

/// What a body of unknown length promises.
pub(super) const UNKNOWN: usize = 6_000;

/// Longer than any script.
pub(super) const PATIENCE: Duration = Duration::from_secs(1 << 20);

/// What a client sends, and takes, in one turn.
const PIECE: usize = 6_000;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of answers: each is one of these from the first on.
pub(super) fn answers() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| (0..1 << 16).map(|place| (place % 251) as u8).collect())
}

/// How a connection ends before its end, at the call of that number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    Never,
    /// A write fails, or a flush, or the end.
    Write,
    /// A write takes half of its bytes, and the next one fails.
    Half,
    /// A write takes none of its bytes, and says so.
    Nothing,
    /// The client takes no more, and its server gives up.
    Full,
    /// The same, and the pace of the connection ends it.
    Slow,
    /// A read fails.
    Read,
    /// The client has sent its last byte.
    Ends,
    /// The server drops the connection.
    Drops,
}

impl Break {
    pub(super) fn of(way: u8) -> Break {
        let all = [
            Break::Never,
            Break::Write,
            Break::Half,
            Break::Nothing,
            Break::Full,
            Break::Slow,
            Break::Read,
            Break::Ends,
            Break::Drops,
        ];
        all[usize::from(way) % all.len()]
    }
}

/// What both ends of a socket share.
struct Wire {
    breaks: Break,
    /// Calls until it breaks.
    left: u32,
    is_broken: bool,
    has_ended: bool,
    /// The server has sent its last byte.
    is_shut: bool,
    to_server: Vec<u8>,
    /// So many of these have been read.
    read: usize,
    /// So much the client takes now.
    room: usize,
    taken: Vec<u8>,
    waker: Option<Waker>,
}

impl Wire {
    /// Counts a call. True: the socket breaks with it, or has done so.
    fn breaks(&mut self, at: &[Break]) -> bool {
        if !self.is_broken && at.contains(&self.breaks) {
            self.is_broken = self.left == 0;
            self.left = self.left.saturating_sub(1);
        }
        self.is_broken && at.contains(&self.breaks)
    }

    fn wake(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    fn write(&mut self, data: &[u8], context: &Context<'_>) -> Poll<io::Result<usize>> {
        let was_broken = self.is_broken;
        let mut most = self.room.min(data.len());
        if self.breaks(&[
            Break::Write,
            Break::Half,
            Break::Nothing,
            Break::Full,
            Break::Slow,
        ]) {
            match self.breaks {
                Break::Half if !was_broken && data.len() > 1 => most = data.len() / 2,
                Break::Nothing => return Poll::Ready(Ok(0)),
                Break::Full | Break::Slow => return Poll::Pending,
                _ => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        if most == 0 && !data.is_empty() {
            self.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.room = self.room.saturating_sub(most);
        self.taken.extend_from_slice(&data[..most]);
        Poll::Ready(Ok(most))
    }

    fn flush(&mut self) -> Poll<io::Result<()>> {
        if self.breaks(&[Break::Write]) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Poll::Ready(Ok(()))
    }
}

/// The server's end of a socket.
struct Socket {
    wire: Arc<Mutex<Wire>>,
    takes_slices: bool,
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = &mut *lock(&self.wire);
        if wire.breaks(&[Break::Read]) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let left = &wire.to_server[wire.read..];
        if left.is_empty() && !wire.has_ended {
            wire.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let most = left.len().min(into.remaining());
        into.put_slice(&left[..most]);
        wire.read += most;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        lock(&self.wire).write(data, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let data: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        lock(&self.wire).write(&data, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.takes_slices
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.wire).flush()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wire = lock(&self.wire);
        wire.is_shut = true;
        wire.flush()
    }
}

/// A connection as hyper has it.
pub(super) struct OfHyper<S>(pub(super) S);

impl<S: AsyncRead + Unpin> Read for OfHyper<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; PIECE];
        let most = into.remaining().min(PIECE);
        let mut read = ReadBuf::new(&mut bytes[..most]);
        let polled = Pin::new(&mut self.0).poll_read(context, &mut read);
        into.put_slice(read.filled());
        polled
    }
}

impl<S: AsyncWrite + Unpin> Write for OfHyper<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }
}

/// A frame of an answer, as long as anybody has it. The sum is of those that are charged for as long.
struct Piece {
    data: Vec<u8>,
    there: Arc<AtomicU64>,
}

impl Piece {
    fn new(data: Vec<u8>, there: &Arc<AtomicU64>) -> Piece {
        let piece = Piece {
            data,
            there: Arc::clone(there),
        };
        there.fetch_add(piece.counts(), Ordering::SeqCst);
        piece
    }

    fn counts(&self) -> u64 {
        Some(self.data.len() as u64)
            .filter(|&bytes| bytes > SMALL)
            .unwrap_or(0)
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.there.fetch_sub(self.counts(), Ordering::SeqCst);
    }
}

/// The body of an answer, which makes each frame as it is asked for.
pub(super) struct Pieces {
    pub(super) at: usize,
    pub(super) length: usize,
    pub(super) frame: usize,
    pub(super) says_length: bool,
    pub(super) there: Arc<AtomicU64>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let end = self.length.min(self.at + self.frame);
        if self.at == end {
            return Poll::Ready(None);
        }
        let data = answers()[self.at..end].to_vec();
        self.at = end;
        let frame = Bytes::from_owner(Piece::new(data, &self.there));
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.length
    }

    fn size_hint(&self) -> SizeHint {
        let left = (self.length - self.at) as u64;
        if self.says_length {
            SizeHint::with_exact(left)
        } else {
            SizeHint::new()
        }
    }
}

/// A connection, its request, and its answer.
#[derive(Clone, Copy)]
struct Form {
    overhead: u64,
    response: u64,
    /// It waits in line; else it is refused at once.
    waits: bool,
    /// The request says no length.
    is_stream: bool,
    says_length: bool,
    takes_slices: bool,
    /// The connection goes on with another protocol.
    goes_on: bool,
    /// It was asked for that by its method.
    connects: bool,
    /// The request has a group of its own.
    has_group: bool,
    body: usize,
    answer: usize,
    frame: usize,
    breaks: Break,
    at: u32,
}

impl Form {
    fn of(form: u8, body: u32, answer: u32, way: u8, at: u8) -> Form {
        let has = |bit: u8| form >> bit & 1 == 1;
        let goes_on = has(5) && has(0);
        Form {
            overhead: 700,
            response: if has(1) { 2_000 } else { 0 },
            waits: has(0),
            is_stream: has(2),
            says_length: has(3),
            takes_slices: has(4),
            goes_on,
            connects: goes_on && has(3),
            has_group: has(6),
            body: if goes_on { 0 } else { body as usize },
            answer: if goes_on { 0 } else { answer as usize },
            frame: if has(7) { 20_000 } else { 5_000 },
            breaks: Break::of(way),
            at: at.into(),
        }
    }

    /// The bytes that the client sends.
    fn request(&self) -> Vec<u8> {
        let mut head = String::from("POST / HTTP/1.1\r\nhost: one\r\n");
        if self.connects {
            return b"CONNECT one:80 HTTP/1.1\r\nhost: one\r\n\r\n".to_vec();
        }
        if self.goes_on {
            head.push_str("connection: upgrade\r\nupgrade: another\r\n");
        }
        let body = vec![7; self.body];
        let mut all;
        if self.is_stream && !self.goes_on {
            head.push_str("transfer-encoding: chunked\r\n\r\n");
            all = head.into_bytes();
            for chunk in body.chunks(2_500) {
                all.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                all.extend(chunk);
                all.extend(b"\r\n");
            }
            all.extend(b"0\r\n\r\n");
        } else {
            head.push_str(&format!("content-length: {}\r\n\r\n", self.body));
            all = head.into_bytes();
            all.extend(body);
        }
        all
    }

    /// What the request, its body and its answer may be charged for, each byte once.
    fn most(&self) -> u64 {
        let promised = if self.is_stream { UNKNOWN as u64 } else { 0 };
        self.overhead + self.response + promised.max(self.body as u64) + self.answer as u64
    }
}

/// What the handler leaves.
#[derive(Default)]
struct Desk {
    /// What the group was charged beside that as the handler was called.
    at_call: Option<u64>,
    read: usize,
    upgrade: Option<OnUpgrade>,
}

#[derive(Clone)]
struct Serves {
    form: Form,
    group: Group,
    desk: Arc<Mutex<Desk>>,
    there: Arc<AtomicU64>,
}

impl Service<Request<RequestBody<Incoming>>> for Serves {
    type Response = Response<Pieces>;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Pieces>, Broken>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<RequestBody<Incoming>>) -> Self::Future {
        let Serves {
            form,
            group,
            desk,
            there,
        } = self.clone();
        lock(&desk).at_call = Some(group.live());
        let upgrade = form.goes_on.then(|| hyper::upgrade::on(&mut request));
        Box::pin(async move {
            let mut body = pin!(request.into_body());
            while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
                let frame = frame.map_err(|_| Broken)?;
                lock(&desk).read += frame.data_ref().map_or(0, Bytes::len);
            }
            let mut answer = Response::new(Pieces {
                at: 0,
                length: form.answer,
                frame: form.frame,
                says_length: form.says_length,
                there,
            });
            if upgrade.is_some() && !form.connects {
                *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            }
            lock(&desk).upgrade = upgrade;
            Ok(answer)
        })
    }
}

/// What was seen of a connection.
#[derive(Default)]
struct Seen {
    /// The connection has ended by itself, well or not.
    has_ended: bool,
    /// Its socket is broken.
    is_broken: bool,
    /// The most that the group was charged.
    most: u64,
    /// What was charged was less than the frames that were there.
    unpaid: Option<(u64, u64)>,
    taken: Vec<u8>,
    at_call: Option<u64>,
    read: usize,
    /// What the group was charged once the connection had gone on.
    gone_on: Option<u64>,
}

/// Serves one connection, until it ends or nothing happens any more.
fn serve(group: &Group, form: Form, tokio: &Handle) -> Seen {
    let _inside = tokio.enter();
    let before = group.live();
    let desk: Arc<Mutex<Desk>> = Arc::default();
    let there = Arc::<AtomicU64>::default();
    let wire = Arc::new(Mutex::new(Wire {
        breaks: form.breaks,
        left: form.at,
        is_broken: false,
        has_ended: false,
        is_shut: false,
        to_server: Vec::new(),
        read: 0,
        room: 0,
        taken: Vec::new(),
        waker: None,
    }));
    let of_request = group.clone();
    let mut layer = AdmissionLayer::new(move |_: &Request<Incoming>| Some(of_request.clone()))
        .overhead(form.overhead as usize)
        .response(form.response as usize)
        .unknown_body(UNKNOWN)
        .patience(if form.waits { PATIENCE } else { Duration::ZERO });
    if form.has_group {
        layer = layer.request_groups(Limits::new());
    }
    let admission = layer.layer(Serves {
        form,
        group: group.clone(),
        desk: Arc::clone(&desk),
        there: Arc::clone(&there),
    });
    let service = service_fn(move |request| admission.clone().call(request));
    let pace = ConnectionPace::new().write_timeout(match form.breaks {
        Break::Slow => Duration::ZERO,
        _ => PATIENCE,
    });
    let socket = Socket {
        wire: Arc::clone(&wire),
        takes_slices: form.takes_slices,
    };
    let mut server = http1::Builder::new();
    server.header_read_timeout(None).keep_alive(false);
    let connection = OfHyper(pace.connection(socket));
    let served = server.serve_connection(connection, service).with_upgrades();
    let mut served = Some(Box::pin(served));
    let rung = Arc::<Rung>::default();
    let waker = Waker::from(Arc::clone(&rung));
    let mut context = Context::from_waker(&waker);
    let request = form.request();
    let mut sent = 0;
    let mut seen = Seen::default();
    let mut turns = 0;
    let look = |seen: &mut Seen| {
        let (live, large) = (group.live(), there.load(Ordering::SeqCst));
        seen.most = seen.most.max(live.saturating_sub(before));
        if live < before + large {
            seen.unpaid
                .get_or_insert((live.saturating_sub(before), large));
        }
    };
    while let Some(connection) = &mut served {
        rung.0.store(false, Ordering::SeqCst);
        let polled = connection.as_mut().poll(&mut context);
        look(&mut seen);
        if polled.is_ready() {
            seen.has_ended = true;
            served = None;
            look(&mut seen);
            break;
        }
        if rung.0.load(Ordering::SeqCst) {
            continue;
        }
        // The server waits for its client.
        turns += 1;
        let is_turn = turns > form.at;
        let mut of_wire = lock(&wire);
        if form.breaks == Break::Ends && is_turn {
            of_wire.has_ended = true;
        } else {
            let end = request.len().min(sent + PIECE);
            of_wire.to_server.extend_from_slice(&request[sent..end]);
            sent = end;
            of_wire.room += PIECE;
        }
        let waker = of_wire.wake();
        drop(of_wire);
        // Nothing comes any more, and nothing is taken.
        let Some(waker) = waker.filter(|_| turns < 200) else {
            break;
        };
        if form.breaks == Break::Drops && is_turn {
            break;
        }
        waker.wake();
    }
    let upgrade = lock(&desk).upgrade.take();
    drop(served);
    seen.is_broken = lock(&wire).is_broken;
    if let Some(upgrade) = upgrade {
        let mut upgrade = Box::pin(upgrade);
        if let Poll::Ready(Ok(upgraded)) = upgrade.as_mut().poll(&mut context) {
            let gone_on = group.live().saturating_sub(before);
            seen.gone_on = Some(gone_on);
            if form.takes_slices {
                go_on(upgraded, &wire, &mut context);
            } else {
                in_parts(upgraded, gone_on);
            }
        }
    }
    let of_desk = lock(&desk);
    seen.at_call = of_desk.at_call.map(|live| live.saturating_sub(before));
    seen.read = of_desk.read;
    seen.taken = std::mem::take(&mut lock(&wire).taken);
    seen
}

/// The connection is used by who has it: a few writes, then it goes.
fn go_on(mut upgraded: Upgraded, wire: &Arc<Mutex<Wire>>, context: &mut Context<'_>) {
    for number in 0..4 {
        let mut of_wire = lock(wire);
        of_wire.room += PIECE;
        of_wire.to_server.push(number);
        assert!(!of_wire.is_shut, "nobody has ended it");
        drop(of_wire);
        let mut bytes = [0];
        let mut into = hyper::rt::ReadBuf::new(&mut bytes);
        let read = Pin::new(&mut upgraded).poll_read(context, into.unfilled());
        let is_read = matches!(read, Poll::Ready(Ok(())));
        assert!(!is_read || into.filled() == [number], "what it reads");
        let slices = [IoSlice::new(&[9; 60]), IoSlice::new(&[9; 40])];
        let written = match number % 2 {
            0 => Pin::new(&mut upgraded).poll_write(context, &[9; 100]),
            _ => Pin::new(&mut upgraded).poll_write_vectored(context, &slices),
        };
        if let Poll::Ready(Ok(bytes)) = written {
            let is_there = lock(wire).taken.ends_with(&[9; 100][..bytes]);
            assert!(is_there, "what it has written");
        }
        let flushed = Pin::new(&mut upgraded).poll_flush(context);
        let is_well = matches!(written, Poll::Ready(Ok(1..)));
        if !is_read || !is_well || !matches!(flushed, Poll::Ready(Ok(()))) {
            return;
        }
    }
    let _ = Pin::new(&mut upgraded).poll_shutdown(context);
    assert!(lock(wire).is_shut, "its user has ended it");
}

/// Who has the connection takes it apart: into the real one, and what keeps the charge of its
/// request.
fn in_parts(upgraded: Upgraded, held: u64) {
    let kept = upgraded.downcast::<KeptConnection>();
    let parts = kept.ok().and_then(|kept| kept.io.into_parts());
    let (real, admitted) = parts.expect("a connection that goes on is kept");
    let is_real = real.downcast::<OfHyper<PacedConnection<Socket>>>().is_ok();
    assert!(is_real, "the connection of the server");
    assert_eq!(admitted.reserved(), held, "held by what keeps its charge");
}

/// The status and the body of an answer, as far as they have come.
fn read_answer(taken: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = taken.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&taken[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let mut rest = &taken[end + 4..];
    if !head.contains("transfer-encoding: chunked") {
        return Some((status, rest.to_vec()));
    }
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = std::str::from_utf8(&rest[..line]).expect("a length");
        let length = usize::from_str_radix(length, 16).expect("a length");
        rest = &rest[line + 2..];
        body.extend_from_slice(&rest[..length.min(rest.len())]);
        rest = rest.get(length + 2..).unwrap_or_default();
    }
    Some((status, body))
}

impl Life {
    pub(super) fn serve_connection(&mut self, op: &Op, adapter: &Adapter) {
        let Adapter::Serve(group, form, body, answer, way, at) = *adapter else {
            unreachable!("a connection");
        };
        // What they wait for, or charge, would be a part of what is seen of the connection.
        if !self.tasks.is_empty() || self.adapters_wait() || !self.shared.is_quiet() {
            return;
        }
        let Some(group) = self.group(group) else {
            return;
        };
        let form = Form::of(form, body, answer, way, at);
        let is_online = self.twin.groups[group].online;
        let margin = self.twin.margin(group, 0, None);
        // Promises count as what is held does.
        let promised = self.promised_to(group);
        let fits = margin >= form.most() + promised;
        let children = self.handle(group).inspect().child_count();
        let tokio = self.tokio();
        let seen = self.on(op, group, move |group| serve(group, form, &tokio));
        self.settle_accounts();
        let handle = self.handle(group);
        assert_eq!(
            handle.inspect().child_count(),
            children,
            "groups of a request"
        );
        // A cache may have given meanwhile.
        let is_alone = self.shared.is_quiet() && !self.had_caches && self.hooks.is_empty();
        let answered = read_answer(&seen.taken);
        if let Some((status, body)) = &answered
            && (*status == 200)
            && !form.goes_on
        {
            let is_right = answers()[..form.answer].starts_with(body);
            assert!(
                is_right,
                "{} bytes that are not those of an answer of {}",
                body.len(),
                form.answer
            );
        }
        let is_told = !matches!(form.breaks, Break::Full | Break::Drops | Break::Ends);
        assert!(
            seen.has_ended || !(seen.is_broken && is_told),
            "the socket has failed, and the connection lives"
        );
        if !is_alone || !is_online {
            return;
        }
        let most = form.most();
        assert!(
            seen.most <= most,
            "a connection holds {} bytes, and all of it is {most}",
            seen.most
        );
        if let Some(at_call) = seen.at_call {
            let own = form.overhead + form.response;
            assert!(
                at_call >= own,
                "the handler runs, and holds {at_call} of {own} bytes"
            );
        }
        if let Some(gone_on) = seen.gone_on {
            assert_eq!(gone_on, form.overhead, "of a connection that has gone on");
        }
        let goes_on = form.goes_on && !form.connects;
        let status = if goes_on { 101 } else { 200 };
        let is_told = answered.as_ref().is_some_and(|it| it.0 == status);
        if is_told && !seen.is_broken && !matches!(form.breaks, Break::Drops | Break::Ends) {
            assert_eq!(seen.gone_on.is_some(), form.goes_on, "it goes on");
        }
        if !fits || self.setup.groups_max < 64 {
            return;
        }
        if let Some((live, there)) = seen.unpaid {
            panic!("{live} bytes are charged, and frames of {there} are there");
        }
        if form.breaks == Break::Never {
            let found = answered.map(|(status, body)| (status, body.len(), seen.read));
            let whole = (status, form.answer, form.body);
            // What was written after the head is no part of the answer.
            let found = found.map(|(status, body, read)| match form.goes_on {
                true => (status, 0, read),
                false => (status, body, read),
            });
            assert_eq!(found, Some(whole), "status, answer and body");
        }
    }
}
