//! The body of a response.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use memcg::{Charge, ChargeError, ChargeFuture, OnFull};
use pin_project_lite::pin_project;

use crate::account::Account;
use crate::figures::RefusalKind;
use crate::frame::{BodyError, len};
use crate::hold::Hold;

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

/// All that the response holds until its body has ended.
pub(crate) struct Sends {
    hold: Hold,
    /// Of that: for the response.
    reserved: u64,
    /// A frame that is larger than what is reserved, and the charge that it waits for.
    waits: Option<Box<(ChargeFuture, Frame<Bytes>)>>,
}

/// Frames of at most so many bytes are what a connection buffers anyway.
pub(crate) const SMALL: u64 = 8 << 10;

/// A larger frame on its way. The connection takes it whole, and the body may end before it is
/// sent.
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
        ResponseBody {
            inner: Some(inner),
            text: Bytes::new(),
            sends,
        }
    }

    pub(crate) fn uncharged(inner: B) -> Self {
        ResponseBody::new(inner, None)
    }

    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        ResponseBody {
            inner: None,
            text: text.into(),
            sends: None,
        }
    }
}

impl Sends {
    /// Of a response that has so many bytes of what the request holds.
    #[inline]
    pub(crate) fn new(hold: Hold, reserved: u64) -> Sends {
        Sends {
            hold,
            reserved,
            waits: None,
        }
    }

    /// The frame that waits, once it is charged. `Ok(None)`: none does.
    fn poll_waiting(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, ChargeError>> {
        let Some((charge, _)) = self.waits.as_deref_mut() else {
            return Poll::Ready(Ok(None));
        };
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

/// Charges what the frame lacks, or keeps the frame until that is charged.
#[inline]
fn hand_on(sends: &mut Option<Sends>, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
    match sends {
        Some(sent) if len(&frame) > SMALL.min(sent.reserved) => hand_on_large(sends, frame),
        _ => Some(frame),
    }
}

#[cold]
fn hand_on_large(sends: &mut Option<Sends>, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
    let Some(sent) = sends.as_mut() else {
        return Some(frame);
    };
    let lacks = len(&frame).saturating_sub(sent.reserved);
    if lacks > 0 {
        let group = sent.hold.group();
        match group.charge_with(memcg::Bytes(lacks), OnFull::IfRoom).ok() {
            Some(charge) => sent.add(charge),
            None => {
                let charge = group
                    .charge_async(memcg::Bytes(lacks))
                    .timeout(sent.hold.patience());
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
    let Some(sent) = sends.take() else {
        return frame;
    };
    let (hold, account) = sent.hold.share();
    *sends = Some(Sends { hold, ..sent });
    frame.map_data(|data| {
        Bytes::from_owner(Sent {
            data,
            _account: account,
        })
    })
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B>
where
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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
                        if let Some(sends) = body.sends.take() {
                            sends.hold.settings().counts.refuses(RefusalKind::CutOff);
                        }
                        body.inner.set(None);
                        return Poll::Ready(Some(Err(BodyError::Refused(refusal))));
                    }
                }
            }
            let frame = match ready!(inner.as_mut().poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => {
                    *body.sends = None;
                    return Poll::Ready(
                        ended.map(|ended| ended.map_err(|error| BodyError::Inner(error.into()))),
                    );
                }
            };
            if let Some(frame) = hand_on(body.sends, frame) {
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let waits = self
            .sends
            .as_ref()
            .is_some_and(|sends| sends.waits.is_some());
        !waits
            && self
                .inner
                .as_ref()
                .map_or(self.text.is_empty(), Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match (
            &self.inner,
            self.sends.as_ref().and_then(|sends| sends.waits.as_deref()),
        ) {
            (None, _) => SizeHint::with_exact(self.text.len() as u64),
            (Some(inner), None) => inner.size_hint(),
            (Some(inner), Some((_, frame))) => with_frame(inner.size_hint(), frame),
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = self
            .sends
            .as_ref()
            .is_some_and(|sends| sends.waits.is_some());
        f.debug_struct("ResponseBody")
            .field("waits", &waits)
            .finish_non_exhaustive()
    }
}

/// The size hint of the rest of a body, with a frame that waits.
pub(crate) fn with_frame<D: Buf>(rest: SizeHint, frame: &Frame<D>) -> SizeHint {
    let held = len(frame);
    let mut hint = SizeHint::new();
    hint.set_lower(rest.lower().saturating_add(held));
    if let Some(upper) = rest.upper() {
        hint.set_upper(upper.saturating_add(held));
    }
    hint
}
