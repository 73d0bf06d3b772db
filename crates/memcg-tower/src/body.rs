//! The bodies in both directions.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::header::EXPECT;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use memcg::{Charge, ChargeError, ChargeFuture, Checkpoint};
use pin_project_lite::pin_project;

use crate::account::{Account, Failed};

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The body of a request has outgrown what was reserved for it, and there is no room for more. The layer answers 413,
    /// whatever the handler answers.
    #[error("the body is larger than what was reserved for it: {0}")]
    Outgrown(#[source] ChargeError),
    /// There was no room for a frame of the response within the patience. Or the group of a request is above its max by
    /// force, or was cancelled: the layer then answers 429 or 503, whatever the handler answers.
    #[error("there is no room for the body: {0}")]
    Refused(#[source] ChargeError),
    /// The inner body has failed.
    #[error("{0}")]
    Inner(#[source] Box<dyn Error + Send + Sync>),
}

/// Waits while the group is above a high, before a body is read.
#[derive(Default)]
struct HoldBack(Option<Box<Checkpoint>>);

impl HoldBack {
    fn poll(&mut self, account: &Account, context: &mut Context<'_>) -> Poll<Result<(), ChargeError>> {
        let passed = match &mut self.0 {
            Some(check) => ready!(Pin::new(&mut **check).poll(context)),
            None => {
                let mut check = account.group().check_async();
                match Pin::new(&mut check).poll(context) {
                    Poll::Ready(passed) => passed,
                    Poll::Pending => {
                        self.0 = Some(Box::new(check));
                        return Poll::Pending;
                    }
                }
            }
        };
        self.0 = None;
        Poll::Ready(passed)
    }
}

pin_project! {
    /// The body of a request, as the inner service gets it. Its bytes were charged before it runs. Reading is held back
    /// while the tenant is above its high.
    pub struct RequestBody<B> {
        #[pin]
        inner: B,
        reads: Option<Reads>,
        // An error was returned: nothing is read any more.
        failed: bool,
    }
}

/// What is left to do for a body. The drop gives back what has not come.
struct Reads {
    account: Arc<Account>,
    read: u64,
    /// What the account has for the body, until the handler answers.
    reserved: u64,
    /// A handler that does not buffer holds no more than this.
    window: u64,
    held_back: HoldBack,
}

impl Reads {
    fn came(&mut self, bytes: u64) -> Result<(), ChargeError> {
        self.read = self.read.saturating_add(bytes).min(self.window);
        if self.read > self.reserved {
            self.account.has_read(self.read)?;
            self.reserved = self.read;
        }
        Ok(())
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        if self.read < self.reserved {
            self.account.has_read_all(self.read);
        }
    }
}

impl<B> RequestBody<B> {
    /// The body of a request whose account has so many bytes for it.
    #[inline(always)]
    pub(crate) fn new(inner: B, account: Arc<Account>, reserved: u64, window: u64) -> Self {
        let reads = Reads { account, read: 0, reserved, window, held_back: HoldBack::default() };
        RequestBody { inner, reads: Some(reads), failed: false }
    }

    pub(crate) fn uncharged(inner: B) -> Self {
        RequestBody { inner, reads: None, failed: false }
    }
}

impl<B: Body> Body for RequestBody<B>
where
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = B::Data;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, BodyError>>> {
        let body = self.project();
        if *body.failed {
            return Poll::Ready(None);
        }
        let mut fail = |error, reads: &mut Option<Reads>| {
            *reads = None;
            *body.failed = true;
            Poll::Ready(Some(Err(error)))
        };
        if let Some(reads) = body.reads.as_mut()
            && let Err(refusal) = ready!(reads.held_back.poll(&reads.account, context))
        {
            reads.account.fail(Failed::Refused(refusal.clone()));
            return fail(BodyError::Refused(refusal), body.reads);
        }
        match ready!(body.inner.poll_frame(context)) {
            Some(Ok(frame)) => {
                let came = frame.data_ref().map_or(0, |data| data.remaining() as u64);
                match body.reads.as_mut().map_or(Ok(()), |reads| reads.came(came)) {
                    Ok(()) => Poll::Ready(Some(Ok(frame))),
                    Err(refusal) => fail(BodyError::Outgrown(refusal), body.reads),
                }
            }
            Some(Err(error)) => fail(BodyError::Inner(error.into()), body.reads),
            None => {
                *body.reads = None;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.failed || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = self.reads.as_ref().map(|reads| reads.read);
        f.debug_struct("RequestBody").field("read", &read).finish_non_exhaustive()
    }
}

pin_project! {
    /// The body of a response: the inner service's, or the text of a refusal.
    pub struct ResponseBody<B> {
        #[pin]
        inner: Option<B>,
        // Of a refusal.
        text: Bytes,
        sends: Option<Sends>,
    }
}

pin_project! {
    // The body of a refused request, and how much of it may still come.
    pub(crate) struct Refused<B> {
        #[pin]
        body: B,
        left: u64,
    }
}

impl<B: Body> Refused<B> {
    fn new(body: B, most: u64) -> Self {
        Refused { body, left: most }
    }

    /// Whether the client of a refused request is sending, and would find its connection closed before it reads the
    /// answer. HTTP/2 ends the stream alone. A client that expects 100 sends nothing before it is asked to.
    pub(crate) fn of(request: Request<B>, most: u64) -> Option<Self> {
        let is_sending = matches!(request.version(), Version::HTTP_10 | Version::HTTP_11)
            && !request.headers().contains_key(EXPECT)
            && !request.body().is_end_stream();
        let fits = request.body().size_hint().lower() <= most;
        (is_sending && fits).then(|| Refused::new(request.into_body(), most))
    }

    /// Ready at the end, after an error, and where too much has come.
    pub(crate) fn poll_drained(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let refused = self.as_mut().project();
            let Some(Ok(frame)) = ready!(refused.body.poll_frame(context)) else { return Poll::Ready(()) };
            let came = frame.data_ref().map_or(0, |data| data.remaining() as u64);
            match refused.left.checked_sub(came) {
                Some(left) => *refused.left = left,
                None => return Poll::Ready(()),
            }
        }
    }
}

/// What the response holds until its body has ended.
struct Sends {
    account: Arc<Account>,
    /// What the account has for the response.
    reserved: u64,
    patience: Duration,
    /// A frame that is larger than what is reserved, and the charge that it waits for.
    waits: Option<Box<(ChargeFuture, Frame<Bytes>)>>,
}

/// Frames of at most so many bytes are what a connection buffers anyway.
const SMALL: usize = 8 << 10;

/// A larger frame on its way. The connection takes it whole, and the body may end before it is sent.
struct Sent {
    data: Bytes,
    /// Below the data, whose memory is freed first.
    _account: Arc<Account>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl<B> ResponseBody<B> {
    /// The body of a response whose account has so many bytes for it.
    pub(crate) fn new(inner: B, account: Arc<Account>, reserved: u64, patience: Duration) -> Self {
        let sends = Sends { account, reserved, patience, waits: None };
        ResponseBody { inner: Some(inner), text: Bytes::new(), sends: Some(sends) }
    }

    pub(crate) fn uncharged(inner: B) -> Self {
        ResponseBody { inner: Some(inner), text: Bytes::new(), sends: None }
    }

    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        ResponseBody { inner: None, text: text.into(), sends: None }
    }
}

impl Sends {
    /// Charges what the frame lacks, or keeps the frame until that is charged.
    fn hand_on(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let lacks = frame.data_ref().map_or(0, |data| (data.len() as u64).saturating_sub(self.reserved));
        if lacks > 0 {
            let group = self.account.group();
            match group.charge_if_room(memcg::Bytes(lacks)) {
                Some(charge) => self.add(charge),
                None => {
                    let charge = group.charge_async(memcg::Bytes(lacks)).timeout(self.patience);
                    self.waits = Some(Box::new((charge, frame)));
                    return None;
                }
            }
        }
        Some(self.keep(frame))
    }

    /// The frame keeps what the request holds until the connection has sent it.
    fn keep(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        if frame.data_ref().is_none_or(|data| data.len() <= SMALL) {
            return frame;
        }
        frame.map_data(|data| Bytes::from_owner(Sent { data, _account: Arc::clone(&self.account) }))
    }

    /// The frame that waits, once it is charged. `Ok(None)`: none does.
    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, ChargeError>> {
        let Some((charge, _)) = self.waits.as_deref_mut() else { return Poll::Ready(Ok(None)) };
        let charged = ready!(Pin::new(charge).poll(context));
        let frame = self.waits.take().map(|waits| waits.1);
        Poll::Ready(charged.map(|charge| {
            self.add(charge);
            frame.map(|frame| self.keep(frame))
        }))
    }

    fn add(&mut self, charge: Charge) {
        self.reserved += charge.bytes();
        self.account.add_for_response(charge);
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B>
where
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut body = self.project();
        let Some(mut inner) = body.inner.as_mut().as_pin_mut() else {
            let text = std::mem::take(body.text);
            return Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))));
        };
        loop {
            if let Some(sends) = body.sends.as_mut() {
                match ready!(sends.poll_waiting(context)) {
                    Ok(None) => {}
                    Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                    Err(refusal) => {
                        *body.sends = None;
                        body.inner.set(None);
                        return Poll::Ready(Some(Err(BodyError::Refused(refusal))));
                    }
                }
            }
            let frame = match ready!(inner.as_mut().poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => {
                    *body.sends = None;
                    return Poll::Ready(ended.map(|ended| ended.map_err(|error| BodyError::Inner(error.into()))));
                }
            };
            match body.sends.as_mut() {
                None => return Poll::Ready(Some(Ok(frame))),
                Some(sends) => {
                    if let Some(frame) = sends.hand_on(frame) {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let waits = self.sends.as_ref().is_some_and(|sends| sends.waits.is_some());
        !waits && self.inner.as_ref().map_or(self.text.is_empty(), Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.inner, self.sends.as_ref().and_then(|sends| sends.waits.as_deref())) {
            (None, _) => SizeHint::with_exact(self.text.len() as u64),
            (Some(inner), None) => inner.size_hint(),
            (Some(inner), Some((_, frame))) => {
                let (held, rest) = (frame.data_ref().map_or(0, |data| data.len() as u64), inner.size_hint());
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower().saturating_add(held));
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper.saturating_add(held));
                }
                hint
            }
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = self.sends.as_ref().is_some_and(|sends| sends.waits.is_some());
        f.debug_struct("ResponseBody").field("waits", &waits).finish_non_exhaustive()
    }
}
