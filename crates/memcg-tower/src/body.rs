//! The bodies in both directions.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::EXPECT;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use memcg::{Charge, ChargeError, ChargeFuture, Checkpoint};
use pin_project_lite::pin_project;

use crate::account::{Account, Failed};
use crate::hold::Hold;

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
    /// The error is on the heap: the answer of each frame would be as large.
    #[inline]
    fn poll(&mut self, account: &Account, context: &mut Context<'_>) -> Poll<Result<(), Box<ChargeError>>> {
        if self.0.is_some() {
            return self.poll_on(context);
        }
        let mut check = account.group().check_async();
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
        let Some(check) = &mut self.0 else { return Poll::Ready(Ok(())) };
        let passed = ready!(Pin::new(&mut **check).poll(context));
        self.0 = None;
        Poll::Ready(passed.map_err(Box::new))
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
    #[inline]
    fn came(&mut self, bytes: u64) -> Result<(), Box<ChargeError>> {
        self.read = self.read.saturating_add(bytes).min(self.window);
        if self.read > self.reserved { self.outgrown() } else { Ok(()) }
    }

    #[cold]
    fn outgrown(&mut self) -> Result<(), Box<ChargeError>> {
        self.account.has_read(self.read)?;
        self.reserved = self.read;
        Ok(())
    }
}

impl Drop for Reads {
    #[inline]
    fn drop(&mut self) {
        if self.read < self.reserved {
            self.account.has_read_all(self.read);
        }
    }
}

impl<B> RequestBody<B> {
    /// The body of a request whose account has so many bytes for it. Without an account it is not charged.
    #[inline(always)]
    pub(crate) fn new(inner: B, account: Option<Arc<Account>>, reserved: u64, window: u64) -> Self {
        let reads = account.map(|account| Reads { account, read: 0, reserved, window, held_back: HoldBack::default() });
        RequestBody { inner, reads, failed: false }
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
            reads.account.fail(Failed::Refused(ChargeError::clone(&refusal)));
            return fail(BodyError::Refused(*refusal), body.reads);
        }
        match ready!(body.inner.poll_frame(context)) {
            Some(Ok(frame)) => {
                let came = frame.data_ref().map_or(0, |data| data.remaining() as u64);
                match body.reads.as_mut().map_or(Ok(()), |reads| reads.came(came)) {
                    Ok(()) => Poll::Ready(Some(Ok(frame))),
                    Err(refusal) => fail(BodyError::Outgrown(*refusal), body.reads),
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
pub(crate) struct Sends {
    hold: Hold,
    /// Of that: for the response.
    reserved: u64,
    /// A frame that is larger than what is reserved, and the charge that it waits for.
    waits: Option<Box<(ChargeFuture, Frame<Bytes>)>>,
}

/// Frames of at most so many bytes are what a connection buffers anyway.
pub(crate) const SMALL: usize = 8 << 10;

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
    #[inline]
    pub(crate) fn new(inner: B, sends: Option<Sends>) -> Self {
        ResponseBody { inner: Some(inner), text: Bytes::new(), sends }
    }

    pub(crate) fn uncharged(inner: B) -> Self {
        ResponseBody::new(inner, None)
    }

    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        ResponseBody { inner: None, text: text.into(), sends: None }
    }
}

impl Sends {
    /// Of a response that has so many bytes of what the request holds.
    #[inline]
    pub(crate) fn new(hold: Hold, reserved: u64) -> Sends {
        Sends { hold, reserved, waits: None }
    }

    /// The frame that waits, once it is charged. `Ok(None)`: none does.
    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, ChargeError>> {
        let Some((charge, _)) = self.waits.as_deref_mut() else { return Poll::Ready(Ok(None)) };
        let charged = ready!(Pin::new(charge).poll(context));
        let frame = self.waits.take().map(|waits| waits.1);
        Poll::Ready(charged.map(|charge| {
            self.add(charge);
            frame
        }))
    }

    fn add(&mut self, charge: Charge) {
        self.reserved += charge.bytes();
        self.hold.add(charge);
    }
}

fn len(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
}

/// Charges what the frame lacks, or keeps the frame until that is charged.
#[inline]
fn hand_on(sends: &mut Option<Sends>, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
    match sends {
        Some(sent) if len(&frame) > SMALL.min(usize::try_from(sent.reserved).unwrap_or(SMALL)) => {
            hand_on_large(sends, frame)
        }
        _ => Some(frame),
    }
}

#[cold]
fn hand_on_large(sends: &mut Option<Sends>, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
    let Some(sent) = sends.as_mut() else { return Some(frame) };
    let lacks = (len(&frame) as u64).saturating_sub(sent.reserved);
    if lacks > 0 {
        let group = sent.hold.group();
        match group.charge_if_room(memcg::Bytes(lacks)) {
            Some(charge) => sent.add(charge),
            None => {
                let charge = group.charge_async(memcg::Bytes(lacks)).timeout(sent.hold.patience());
                sent.waits = Some(Box::new((charge, frame)));
                return None;
            }
        }
    }
    Some(keep(sends, frame))
}

/// A large frame keeps what the request holds until the connection has sent it.
fn keep(sends: &mut Option<Sends>, frame: Frame<Bytes>) -> Frame<Bytes> {
    if len(&frame) <= SMALL {
        return frame;
    }
    let Some(sent) = sends.take() else { return frame };
    let (hold, account) = sent.hold.share();
    *sends = Some(Sends { hold, ..sent });
    frame.map_data(|data| Bytes::from_owner(Sent { data, _account: account }))
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
            // Only then: the answer is large, and each frame would move it.
            if let Some(sends) = body.sends.as_mut().filter(|sends| sends.waits.is_some()) {
                match ready!(sends.poll_waiting(context)) {
                    Ok(None) => {}
                    Ok(Some(frame)) => return Poll::Ready(Some(Ok(keep(body.sends, frame)))),
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
            if let Some(frame) = hand_on(body.sends, frame) {
                return Poll::Ready(Some(Ok(frame)));
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
