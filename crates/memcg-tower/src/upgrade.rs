//! A connection that goes on with another protocol keeps what its request holds.
//!
//! Its user gets the connection from the future that hyper puts into the request. No one else can
//! make such a future, nor put anything into one. So hyper makes it: it serves a connection of ours
//! that asks for an upgrade. What comes out of that one is [`KeptConnection`], which has the real
//! connection inside, and what the request holds.
//!
//! | step | by | what holds after it |
//! |---|---|---|
//! | the real future is taken out of the request, and one of ours put in | the layer, before the handler runs | hyper has read the head of ours, and waits for an answer |
//! | the answer is an upgrade: ours waits for the real one, with the request's account | the layer | the wake of the real future goes to [`Upgrade::wake`] |
//! | the answer is none | the layer | ours ends, and its user's future fails |
//! | the real connection is there | the connection's task, in the wake | it is in [`Opened`]; then hyper answers ours, and hands it on |
//! | the real connection fails | the same | as where the answer is no upgrade |
//!
//! No lock is held while hyper's code runs, or a waker.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};

use crate::account::{Account, AdmittedRequest};

/// Request of a connection of ours to hyper.
const HEAD: &[u8] = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: kept\r\n\r\n";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request whose connection may go on with another protocol.
pub(crate) struct Upgrade {
    is_connect: bool,
    state: Mutex<State>,
}

struct State {
    /// `None` while a thread polls it, and at the end.
    waits: Option<Waits>,
    /// It was woken while a thread polled it.
    is_woken: bool,
}

struct Waits {
    real: OnUpgrade,
    /// Hyper, which serves the connection of ours.
    ours: Pin<Box<dyn Future<Output = ()> + Send>>,
    opened: Arc<Opened>,
    account: Option<Arc<Account>>,
}

/// The real connection, on its way into that of ours.
#[derive(Default)]
struct Opened(Mutex<Option<(Upgraded, Arc<Account>)>>);

/// The waker with which hyper serves a connection of ours. By its address the connection tells
/// hyper from its user.
impl Wake for Opened {
    fn wake(self: Arc<Self>) {}
}

impl Upgrade {
    /// `None`: the request has no connection that can go on.
    pub(crate) fn of<B>(request: &mut Request<B>) -> Option<Arc<Upgrade>> {
        let is_connect = request.method() == Method::CONNECT;
        let extensions = request.extensions_mut();
        let real = extensions.remove::<OnUpgrade>()?;
        let opened = Arc::<Opened>::default();
        let given = Arc::<Mutex<Option<OnUpgrade>>>::default();
        let mut ours = serve(&opened, &given);
        opened.polls(&mut ours);
        let given = lock(&given).take();
        let Some(given) = given else {
            // Hyper has not read the head as it reads others: the connection goes on without a
            // charge.
            extensions.insert(real);
            return None;
        };
        extensions.insert(given);
        let waits = Some(Waits {
            real,
            ours,
            opened,
            account: None,
        });
        Some(Arc::new(Upgrade {
            is_connect,
            state: Mutex::new(State {
                waits,
                is_woken: false,
            }),
        }))
    }

    /// True if the connection goes on after this answer.
    pub(crate) fn is_by(&self, status: StatusCode) -> bool {
        status == StatusCode::SWITCHING_PROTOCOLS || self.is_connect && status.is_success()
    }

    /// The connection goes on, and keeps what the request holds.
    pub(crate) fn keeps(self: &Arc<Upgrade>, account: Arc<Account>) {
        if let Some(waits) = &mut lock(&self.state).waits {
            waits.account = Some(account);
        }
        self.poll();
    }

    fn poll(self: &Arc<Upgrade>) {
        let waker = Waker::from(Arc::clone(self));
        loop {
            let mut waits = {
                let mut state = lock(&self.state);
                state.is_woken = true;
                // It has ended, or another call polls it, perhaps the one that has led to this
                // wake: that one looks at `is_woken` afterwards.
                let Some(waits) = state.waits.take() else {
                    return;
                };
                state.is_woken = false;
                waits
            };
            match Pin::new(&mut waits.real).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(Ok(connection)) => return waits.open(connection),
                // The drop of ours fails the future of its user.
                // Mutation: an-upgrade-that-fails-keeps-its-account
                Poll::Ready(Err(_)) => return,
                Poll::Pending => {
                    let mut state = lock(&self.state);
                    state.waits = Some(waits);
                    // A wake that came during the poll has found nothing to poll, so this call
                    // polls once more.
                    if !state.is_woken {
                        return;
                    }
                }
            }
        }
    }
}

impl Wake for Upgrade {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}

impl Waits {
    fn open(mut self, connection: Upgraded) {
        let Some(account) = self.account else { return };
        *lock(&self.opened.0) = Some((connection, account));
        self.opened.polls(&mut self.ours);
    }
}

impl Opened {
    fn polls(self: &Arc<Opened>, ours: &mut Pin<Box<dyn Future<Output = ()> + Send>>) {
        let waker = Waker::from(Arc::clone(self));
        let _ = ours.as_mut().poll(&mut Context::from_waker(&waker));
    }

    fn is_open(&self) -> bool {
        lock(&self.0).is_some()
    }
}

/// Serves a connection of ours. Its answer waits for the real connection.
fn serve(
    opened: &Arc<Opened>,
    given: &Arc<Mutex<Option<OnUpgrade>>>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let connection = KeptConnection {
        kept: None,
        opened: Arc::clone(opened),
        head: HEAD,
    };
    let opened = Arc::clone(opened);
    let given = Arc::clone(given);
    let service = service_fn(move |request: Request<Incoming>| {
        let before = lock(&given).replace(hyper::upgrade::on(request));
        drop(before);
        let opened = Arc::clone(&opened);
        poll_fn(move |_| {
            if !opened.is_open() {
                return Poll::Pending;
            }
            let mut answer = Response::new(String::new());
            *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            Poll::Ready(Ok::<_, Infallible>(answer))
        })
    });
    let mut server = http1::Builder::new();
    // The head is there at once, so no timer is needed for it, and the smallest buffer that hyper
    // takes is large enough.
    server.header_read_timeout(None).max_buf_size(8 << 10);
    let served = server.serve_connection(connection, service).with_upgrades();
    Box::pin(async move { drop(served.await) })
}

/// A connection that goes on with another protocol: what is inside of the
/// [`Upgraded`](hyper::upgrade::Upgraded) of hyper that the handler of an admitted request gets. It
/// keeps what the request holds, without its body and its response, until it is dropped.
///
/// A program that looks for the type of its own connections inside, finds them so:
///
/// ```
/// use hyper::upgrade::{Parts, Upgraded};
/// use hyper_util::rt::TokioIo;
/// use memcg_tower::{AdmittedRequest, KeptConnection};
/// use tokio::net::TcpStream;
///
/// fn tcp(upgraded: Upgraded) -> Option<(Parts<TokioIo<TcpStream>>, Option<AdmittedRequest>)> {
///     let (upgraded, admitted) = match upgraded.downcast::<KeptConnection>() {
///         Ok(kept) => kept.io.into_parts()?,
///         Err(upgraded) => return Some((upgraded.downcast().ok()?, None)), // of a request that passed uncharged
///     };
///     Some((upgraded.downcast().ok()?, Some(admitted)))
/// }
/// ```
pub struct KeptConnection {
    /// The connection is first: it goes before what its request holds. `None` until its user has
    /// it.
    kept: Option<(Upgraded, Arc<Account>)>,
    opened: Arc<Opened>,
    /// The rest of the head, which hyper has not read yet.
    head: &'static [u8],
}

impl KeptConnection {
    fn kept(&mut self) -> Option<&mut (Upgraded, Arc<Account>)> {
        if self.kept.is_none() {
            self.kept = lock(&self.opened.0).take();
        }
        self.kept.as_mut()
    }

    /// Returns the connection, and what keeps the charge of its request. `None` does not come from
    /// a connection that a handler has.
    pub fn into_parts(mut self) -> Option<(Upgraded, AdmittedRequest)> {
        self.kept()?;
        self.kept
            .map(|(connection, account)| (connection, AdmittedRequest(account)))
    }

    /// `None`: hyper serves it, and has not handed it on yet.
    fn connection(&mut self, context: &Context<'_>) -> Option<Pin<&mut Upgraded>> {
        if context.waker().data() == Arc::as_ptr(&self.opened).cast() {
            return None;
        }
        self.kept().map(|(connection, _)| Pin::new(connection))
    }
}

impl Read for KeptConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let ours = self.get_mut();
        if let Some(connection) = ours.connection(context) {
            return connection.poll_read(context, into);
        }
        if ours.head.is_empty() {
            return Poll::Pending;
        }
        let (read, left) = ours.head.split_at(ours.head.len().min(into.remaining()));
        into.put_slice(read);
        ours.head = left;
        Poll::Ready(Ok(()))
    }
}

/// The answer that hyper writes goes to no one: the real connection has its own.
impl Write for KeptConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut().connection(context) {
            Some(connection) => connection.poll_write(context, bytes),
            None => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().connection(context) {
            Some(connection) => connection.poll_flush(context),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().connection(context) {
            Some(connection) => connection.poll_shutdown(context),
            None => Poll::Ready(Ok(())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.kept
            .as_ref()
            .is_some_and(|(connection, _)| connection.is_write_vectored())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut().connection(context) {
            Some(connection) => connection.poll_write_vectored(context, slices),
            None => Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum())),
        }
    }
}

impl fmt::Debug for KeptConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptConnection").finish_non_exhaustive()
    }
}
