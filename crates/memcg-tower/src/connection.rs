//! The time that a connection waits for its client to take what it is sent.
//!
//! A body cannot end a response whose client takes nothing: a server polls no body that it cannot
//! write. So its connection ends it.
//!
//! The time runs while a write is pending, and no other time. What the client takes gives time back.
//! A socket says that it can be written once a third of its buffer is free, which may be megabytes.
//! So a write of a [`TcpStream`] that is pending is tried again from time to time, past the word of
//! the socket: it goes on as soon as there is any room.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::clock::Alarm;

/// How long a client may leave what it is sent, and how slowly it may take it: what makes a
/// [`PacedConnection`] of each connection that a server accepts.
///
/// A response is charged until its client has taken it, so one that takes nothing holds the bytes of
/// its tenant. [`AdmissionLayer`](crate::AdmissionLayer) cannot end that: the server asks no body for
/// more. A paced connection fails its write, and its server drops it with all that it had to send.
///
/// Only time in which a write is pending counts. A connection that has nothing to send, as that of a
/// stream of events between two of them, lives as long as it likes, and so does one whose client
/// takes all that comes. A client that is gone without a word is found once the socket's buffer is
/// full; before that TCP's keep-alive finds it.
///
/// **HTTP/2**: the connection is what is paced. A client that takes the frames of some streams and
/// gives one of them no window stalls that stream alone, which nothing here ends: of it one frame, or
/// [`response`](crate::AdmissionLayer::response) bytes, stay charged until the stream or the
/// connection has ended. The server's number of concurrent streams bounds them.
///
/// With the feature `axum` a [listener](Self::listener) of axum's `serve` makes them; with `tonic`
/// a connection is one of tonic's.
///
/// ```no_run
/// use axum::{Router, routing::get};
/// use memcg_tower::ConnectionPace;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let app: Router = Router::new().route("/", get(|| async { "text" }));
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
/// let pace = ConnectionPace::new().write_timeout(Duration::from_secs(20));
/// axum::serve(pace.listener(listener), app).await
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionPace {
    time: Duration,
    least_rate: u64,
}

impl Default for ConnectionPace {
    fn default() -> ConnectionPace {
        ConnectionPace::new()
    }
}

impl ConnectionPace {
    /// Creates one that ends a connection whose client takes nothing for 30 seconds, or less than
    /// 500 bytes a second.
    pub fn new() -> ConnectionPace {
        ConnectionPace {
            time: Duration::from_secs(30),
            least_rate: 500,
        }
    }

    /// Sets how long a write may be pending while the client takes nothing. 30 seconds by default.
    pub fn write_timeout(self, time: Duration) -> ConnectionPace {
        ConnectionPace { time, ..self }
    }

    /// Sets the bytes a second that a client has to take while a write is pending, 500 by default. 0
    /// asks for no rate. A client has the [time](Self::write_timeout) to begin with. What it waits is
    /// taken off, and what it takes gives a second back for each so many bytes, up to that time.
    pub fn least_rate(self, bytes: usize) -> ConnectionPace {
        ConnectionPace {
            least_rate: bytes as u64,
            ..self
        }
    }

    /// Makes a connection paced: the socket itself, below TLS.
    pub fn connection<I>(&self, io: I) -> PacedConnection<I> {
        PacedConnection {
            io,
            writes: Writes {
                pace: *self,
                left: self.time,
                pending: None,
                alarm: None,
            },
        }
    }

    /// Makes each connection paced that a listener of axum's `serve` accepts.
    #[cfg(feature = "axum")]
    pub fn listener<L: axum::serve::Listener>(&self, listener: L) -> PacedListener<L> {
        PacedListener {
            listener,
            pace: *self,
        }
    }
}

/// A connection that ends where its client does not take what it is sent: see [`ConnectionPace`].
///
/// The write that is pending then fails with [`io::ErrorKind::TimedOut`], with which a server drops
/// the connection. Whoever goes on writing instead has no time left: a write that would wait fails
/// at once, and one that the client takes gives time back. It costs a comparison for each write
/// that is ready.
pub struct PacedConnection<I> {
    io: I,
    writes: Writes,
}

/// What a connection still has of its time.
struct Writes {
    pace: ConnectionPace,
    left: Duration,
    /// The last look at a write that is pending.
    pending: Option<Instant>,
    alarm: Option<Alarm>,
}

/// A client has not taken what it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client takes what it is sent too slowly")]
#[non_exhaustive]
pub struct NotTakenError;

impl Writes {
    /// Between two looks at a write that is pending.
    fn looks(&self) -> Duration {
        (self.pace.time / 8).max(Duration::from_millis(1))
    }

    /// So many bytes were taken.
    #[inline]
    fn taken(&mut self, bytes: usize) {
        // After a flush that is done none is pending, and what was waited is still off.
        if self.pending.is_some() || self.left < self.pace.time {
            self.taken_late(bytes);
        }
    }

    #[cold]
    fn taken_late(&mut self, bytes: usize) {
        self.waited();
        // Mutation: a-flush-that-is-done-stays-pending
        self.pending = None;
        let time = self.pace.time;
        // A flush that is done does not say how much the client has taken.
        if bytes == 0 {
            return;
        }
        self.left = match self.pace.least_rate {
            0 => time,
            rate => {
                let bought = Duration::try_from_secs_f64(bytes as f64 / rate as f64);
                time.min(self.left.saturating_add(bought.unwrap_or(time)))
            }
        };
    }

    /// Takes off what was waited since the last look. A task that is late itself has its own time.
    fn waited(&mut self) {
        if let Some(pending) = self.pending {
            let waited = pending.elapsed().min(2 * self.looks());
            self.left = self.left.saturating_sub(waited);
        }
    }

    /// The client takes nothing now. A wake follows. `Err`: it has had its time.
    #[cold]
    fn waits(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.waited();
        // Mutation: a-connection-without-time-writes-on
        if self.left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, NotTakenError));
        }
        let now = Instant::now();
        self.pending = Some(now);
        // Without a thread there is no wake, but the next poll looks again.
        if let Some(at) = now.checked_add(self.looks().min(self.left)) {
            Alarm::renew(&mut self.alarm, at, context.waker());
        }
        Ok(())
    }

    fn answers<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        match polled {
            Poll::Ready(Ok(done)) => {
                self.taken(bytes(&done));
                Poll::Ready(Ok(done))
            }
            Poll::Ready(Err(failed)) => Poll::Ready(Err(failed)),
            Poll::Pending => match self.waits(context) {
                Ok(()) => Poll::Pending,
                Err(late) => Poll::Ready(Err(late)),
            },
        }
    }
}

impl<I: 'static> PacedConnection<I> {
    /// A write that was pending before, tried past the word of the socket.
    fn tries_again(&self, data: &[u8], polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if polled.is_pending() && self.writes.pending.is_some() && !data.is_empty() {
            send_now(&self.io, data).map_or(Poll::Pending, |sent| Poll::Ready(Ok(sent)))
        } else {
            polled
        }
    }
}

/// What a socket takes at once. `None`: nothing, or it is no socket that is known. An error is found
/// by the next write.
#[cold]
fn send_now(io: &dyn Any, data: &[u8]) -> Option<usize> {
    let stream = io.downcast_ref::<TcpStream>()?;
    send_to(stream, data).filter(|sent| *sent > 0)
}

#[cfg(unix)]
fn send_to(stream: &TcpStream, data: &[u8]) -> Option<usize> {
    use rustix::net::{SendFlags, send};
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    send(stream, data, flags).ok()
}

#[cfg(not(unix))]
fn send_to(_: &TcpStream, _: &[u8]) -> Option<usize> {
    None
}

impl<I> PacedConnection<I> {
    /// Returns the connection inside.
    pub fn get_ref(&self) -> &I {
        &self.io
    }

    /// Returns the connection inside.
    pub fn get_mut(&mut self) -> &mut I {
        &mut self.io
    }

    /// Takes the connection out.
    pub fn into_inner(self) -> I {
        self.io
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for PacedConnection<I> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl<I: AsyncWrite + Unpin + 'static> AsyncWrite for PacedConnection<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, data);
        let polled = self.tries_again(data, polled);
        self.writes.answers(polled, |bytes| *bytes, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        let first = slices.iter().find(|slice| !slice.is_empty());
        let polled = self.tries_again(first.map_or(&[], |slice| slice), polled);
        self.writes.answers(polled, |bytes| *bytes, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(context);
        self.writes.answers(polled, |()| 0, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_shutdown(context);
        self.writes.answers(polled, |()| 0, context)
    }
}

impl<I> fmt::Debug for PacedConnection<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacedConnection")
            .field("pace", &self.writes.pace)
            .field("left", &self.writes.left)
            .finish_non_exhaustive()
    }
}

/// A listener of axum's `serve` whose connections are paced: what [`ConnectionPace::listener`]
/// makes.
#[cfg(feature = "axum")]
#[derive(Debug)]
pub struct PacedListener<L> {
    listener: L,
    pace: ConnectionPace,
}

#[cfg(feature = "axum")]
impl<L: axum::serve::Listener> axum::serve::Listener for PacedListener<L> {
    type Io = PacedConnection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (io, address) = self.listener.accept().await;
        (self.pace.connection(io), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

#[cfg(feature = "tonic")]
impl<I: tonic::transport::server::Connected> tonic::transport::server::Connected
    for PacedConnection<I>
{
    type ConnectInfo = I::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}
