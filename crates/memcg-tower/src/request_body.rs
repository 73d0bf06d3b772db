//! The body of a request.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::EXPECT;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use memcg::{Charge, ChargeError, Charged, CheckpointFuture};
use pin_project_lite::pin_project;

use crate::account::{Account, Came, Waiting};
use crate::body::with_frame;
use crate::frame::{BodyError, TooSlowError, len};
use crate::pace::Pace;
use crate::refusal::Refusal;
use crate::settings::Settings;

/// A body pays the delay above a high once for so many bytes, or at its end.
const GATHERED: u64 = 256 << 10;

/// Waits while the group is above a high, before a body is read.
#[derive(Default)]
struct HoldBack(Option<Box<CheckpointFuture>>);

impl HoldBack {
    /// Takes the delay of so many bytes. The error is on the heap: the answer of each frame would be
    /// as large.
    #[inline]
    fn poll(
        &mut self,
        bytes: u64,
        account: &Account,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Box<ChargeError>>> {
        if self.0.is_some() {
            return self.poll_on(context);
        }
        let check = account.group().run(memcg::Group::checkpoint_async);
        let mut check = check.delayed_as(memcg::Bytes(bytes));
        match Pin::new(&mut check).poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(refused)) => Poll::Ready(Err(Box::new(refused))),
            Poll::Pending => {
                self.0 = Some(Box::new(check));
                Poll::Pending
            }
        }
    }

    #[cold]
    fn poll_on(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Box<ChargeError>>> {
        let Some(check) = &mut self.0 else {
            return Poll::Ready(Ok(()));
        };
        let passed = ready!(Pin::new(&mut **check).poll(context));
        self.0 = None;
        Poll::Ready(passed.map_err(Box::new))
    }
}

pin_project! {
    /// The body of a request, as the inner service gets it. Its bytes are charged as they come.
    /// Reading is held back while the tenant is above its high, and where a group above the tenant
    /// has no room. It ends where the client is too slow.
    pub struct RequestBody<B>
    where
        B: Body,
    {
        #[pin]
        inner: B,
        reads: Option<Reads<B::Data>>,
        // An error was returned: nothing is read any more.
        failed: bool,
    }
}

/// The work that is left to do for a body. The drop ends its promise.
struct Reads<D> {
    account: Arc<Account>,
    came: u64,
    /// The head says no length: after the answer it is a stream.
    is_stream: bool,
    held_back: HoldBack,
    /// Most bodies do not have it: they never wait.
    waits: Option<Box<Waits<D>>>,
}

struct Waits<D> {
    pace: Pace,
    frame: Option<Waiting<D>>,
    /// Bytes that came above a high, whose delay is not taken yet.
    owes: u64,
    /// The inner body has ended. What it owes is left.
    has_ended: bool,
}

impl<D> Default for Waits<D> {
    fn default() -> Self {
        Waits {
            pace: Pace::default(),
            frame: None,
            owes: 0,
            has_ended: false,
        }
    }
}

impl<D> Reads<D> {
    /// The delay above a high, where what came there is at least so much. It is within the poll of
    /// each frame, whose answer is too large to be handed on cheaply.
    #[inline(always)]
    fn held_back(&mut self, least: u64, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let owes = self.waits.as_ref().map_or(0, |waits| waits.owes);
        if owes >= least {
            return self.pays(owes, context);
        }
        match self.held_back.poll(0, &self.account, context) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(refused)) => Poll::Ready(Err(self.ends(*refused))),
            Poll::Pending => self.pauses(),
        }
    }

    /// Takes the delay of all that is owed.
    #[cold]
    fn pays(&mut self, owes: u64, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        match self.held_back.poll(owes, &self.account, context) {
            Poll::Ready(Ok(())) => {
                if let Some(waits) = &mut self.waits {
                    waits.owes = 0;
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(refused)) => Poll::Ready(Err(self.ends(*refused))),
            Poll::Pending => self.pauses(),
        }
    }

    #[cold]
    fn pauses<T>(&mut self) -> Poll<T> {
        if let Some(waits) = &mut self.waits {
            waits.pace.pauses(self.account.settings());
        }
        Poll::Pending
    }

    #[cold]
    fn ends(&self, refused: ChargeError) -> BodyError {
        // Of 0 bytes, which are never too large.
        let account = &self.account;
        account.fail(Refusal::of_charge(
            &refused,
            &account.tenant(),
            0,
            account.patience(),
        ));
        BodyError::Refused(refused)
    }

    /// Nothing has come yet. `Err`: the client is too slow.
    fn wait(&mut self, context: &mut Context<'_>) -> Result<(), TooSlowError> {
        let waits = self.waits.get_or_insert_default();
        match waits
            .pace
            .waits(self.came, self.account.settings(), context)
        {
            // The peer of a stream sends as it likes.
            Err(_) if self.is_stream && self.account.has_answered_already() => Ok(()),
            Err(slow) => {
                self.account.fail(Refusal::of_slow(&slow));
                Err(slow)
            }
            Ok(()) => Ok(()),
        }
    }
}

impl<D: Buf + 'static> Reads<D> {
    #[inline]
    fn comes(
        &mut self,
        frame: Frame<D>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Frame<D>, BodyError>> {
        if let Some(waits) = &mut self.waits {
            waits.pace.comes(self.account.settings());
        }
        let bytes = len(&frame);
        // Trailers, or a frame without data: nothing is charged, and no lock taken.
        if bytes == 0 {
            return Poll::Ready(Ok(frame));
        }
        self.came = self.came.saturating_add(bytes);
        match self.account.comes(frame, self.came, self.is_stream) {
            // Here, and not with the others: a frame is large, and each call moves it.
            Ok(Came::Charged(frame)) => Poll::Ready(Ok(frame)),
            Ok(came) => self.has_come(came, context),
            Err(failed) => Poll::Ready(Err(failed)),
        }
    }

    #[cold]
    fn has_come(
        &mut self,
        came: Came<D>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Frame<D>, BodyError>> {
        match came {
            Came::Charged(frame) => Poll::Ready(Ok(frame)),
            Came::Alone(frame, charge) => Poll::Ready(Ok(keep(frame, charge))),
            Came::AboveHigh(frame, alone, bytes) => {
                let waits = self.waits.get_or_insert_default();
                waits.owes = waits.owes.saturating_add(bytes);
                Poll::Ready(Ok(match alone {
                    Some(charge) => keep(frame, charge),
                    None => frame,
                }))
            }
            Came::Waits(waiting) => {
                let waits = self.waits.get_or_insert_default();
                waits.frame = Some(waiting);
                self.poll_frame(context)
            }
        }
    }

    fn waits_with_a_frame(&self) -> bool {
        self.waits
            .as_ref()
            .is_some_and(|waits| waits.frame.is_some())
    }

    /// It reads nothing: it waits with a frame, or has read all.
    #[inline]
    fn is_held(&self) -> bool {
        self.waits
            .as_ref()
            .is_some_and(|waits| waits.frame.is_some() || waits.has_ended)
    }

    /// The frame that waits, once it is charged.
    #[cold]
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Result<Frame<D>, BodyError>> {
        let Some(waits) = self.waits.as_mut() else {
            return Poll::Pending;
        };
        match ready!(Waiting::poll(&mut waits.frame, &self.account, context)) {
            Ok(came) => self.has_come(came, context),
            Err(failed) => Poll::Ready(Err(failed)),
        }
    }
}

impl<D> Drop for Reads<D> {
    #[inline]
    fn drop(&mut self) {
        self.account.has_read_all();
    }
}

/// The frame, which keeps its charge. Only `Bytes` can: other data is given back at once.
fn keep<D: 'static>(frame: Frame<D>, charge: Charge) -> Frame<D> {
    frame.map_data(|data| {
        let mut data = Some(data);
        let any: &mut dyn Any = &mut data;
        if let Some(bytes) = any.downcast_mut::<Option<Bytes>>() {
            *bytes = bytes
                .take()
                .map(|data| Bytes::from_owner(Charged::new(data, charge)));
        }
        // It was put back, whatever it is.
        data.unwrap_or_else(|| unreachable!("the data was put back"))
    })
}

impl<B: Body> RequestBody<B> {
    /// The body of a request. Without an account it is not charged.
    #[inline(always)]
    pub(crate) fn new(inner: B, account: Option<Arc<Account>>, is_stream: bool) -> Self {
        let held_back = HoldBack::default();
        let reads = account.map(|account| Reads {
            account,
            came: 0,
            is_stream,
            held_back,
            waits: None,
        });
        RequestBody {
            inner,
            reads,
            failed: false,
        }
    }

    pub(crate) fn uncharged(inner: B) -> Self {
        RequestBody {
            inner,
            reads: None,
            failed: false,
        }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data: 'static, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    type Data = B::Data;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BodyError>>> {
        let body = self.project();
        if *body.failed {
            return Poll::Ready(None);
        }
        let mut fail = |error, reads: &mut Option<Reads<B::Data>>| {
            *reads = None;
            *body.failed = true;
            Poll::Ready(Some(Err(error)))
        };
        let Some(reads) = body.reads.as_mut() else {
            return body
                .inner
                .poll_frame(context)
                .map_err(|error| BodyError::Inner(error.into()));
        };
        if reads.is_held() {
            if !reads.waits_with_a_frame() {
                let paid = ready!(reads.held_back(1, context));
                *body.reads = None;
                return match paid {
                    Ok(()) => Poll::Ready(None),
                    Err(refused) => fail(refused, body.reads),
                };
            }
            return match ready!(reads.poll_frame(context)) {
                Ok(frame) => Poll::Ready(Some(Ok(frame))),
                Err(error) => fail(error, body.reads),
            };
        }
        if let Err(refused) = ready!(reads.held_back(GATHERED, context)) {
            return fail(refused, body.reads);
        }
        match body.inner.poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => match ready!(reads.comes(frame, context)) {
                Ok(frame) => Poll::Ready(Some(Ok(frame))),
                Err(error) => fail(error, body.reads),
            },
            Poll::Ready(Some(Err(error))) => fail(BodyError::Inner(error.into()), body.reads),
            Poll::Ready(None) => {
                if let Some(waits) = &mut reads.waits
                    && waits.owes > 0
                {
                    // What is left of the promise ends before that.
                    waits.has_ended = true;
                    reads.account.has_read_all();
                    if let Err(refused) = ready!(reads.held_back(1, context)) {
                        return fail(refused, body.reads);
                    }
                }
                *body.reads = None;
                Poll::Ready(None)
            }
            Poll::Pending => match reads.wait(context) {
                Ok(()) => Poll::Pending,
                Err(slow) => fail(BodyError::TooSlow(slow), body.reads),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        let waits = self.reads.as_ref().is_some_and(Reads::waits_with_a_frame);
        self.failed || !waits && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let waits = self
            .reads
            .as_ref()
            .and_then(|reads| reads.waits.as_ref()?.frame.as_ref());
        match waits {
            Some(waits) => with_frame(self.inner.size_hint(), &waits.frame),
            None => self.inner.size_hint(),
        }
    }
}

impl<B: Body> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let came = self.reads.as_ref().map(|reads| reads.came);
        f.debug_struct("RequestBody")
            .field("came", &came)
            .finish_non_exhaustive()
    }
}

pin_project! {
    // The body of a refused request, and how much of it may still come.
    pub(crate) struct Refused<B> {
        #[pin]
        body: B,
        left: u64,
        came: u64,
        pace: Pace,
    }
}

impl<B: Body> Refused<B> {
    fn new(body: B, most: u64) -> Self {
        Refused {
            body,
            left: most,
            came: 0,
            pace: Pace::default(),
        }
    }

    /// `Some` only if the client of a refused request is sending, and would find its connection
    /// closed before it reads the answer. HTTP/2 ends the stream alone. A client that expects 100
    /// sends nothing before it is asked to.
    pub(crate) fn of(request: Request<B>, most: u64) -> Option<Self> {
        let is_sending = matches!(request.version(), Version::HTTP_10 | Version::HTTP_11)
            && !request.headers().contains_key(EXPECT)
            && !request.body().is_end_stream();
        let fits = request.body().size_hint().lower() <= most;
        (is_sending && fits).then(|| Refused::new(request.into_body(), most))
    }

    /// Ready at the end, after an error, where too much has come, and where the client is too slow.
    pub(crate) fn poll_drained(
        mut self: Pin<&mut Self>,
        settings: &Settings,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            let refused = self.as_mut().project();
            let frame = match refused.body.poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    let is_slow = refused
                        .pace
                        .waits(*refused.came, settings, context)
                        .is_err();
                    return if is_slow {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    };
                }
            };
            refused.pace.comes(settings);
            let came = len(&frame);
            *refused.came += came;
            match refused.left.checked_sub(came) {
                Some(left) => *refused.left = left,
                None => return Poll::Ready(()),
            }
        }
    }
}
