//! The body of a response.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use memcg::ChargeError;
use pin_project_lite::pin_project;

use crate::figures::RefusalKind;
use crate::frame::{BodyError, len};
use crate::sends::{SMALL, Sends};

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
        // Out of line: the answer is large, and each frame would move it.
        if body.sends.as_ref().is_some_and(Sends::has_large) {
            // Nothing has to come back before the end is read.
            let most = if inner.is_end_stream() {
                0
            } else {
                inner.size_hint().upper().unwrap_or(u64::MAX)
            };
            match ready!(Sends::poll_waiting(body.sends, most, context)) {
                Ok(None) => {}
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Err(refused) => {
                    return Poll::Ready(Some(Err(cut_off(body.sends, body.inner, refused))));
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
        match body.sends {
            // What a connection buffers anyway is not charged apart, as long as the response has as
            // much.
            Some(sends) if len(&frame) > SMALL.min(sends.reserved()) => {}
            _ => return Poll::Ready(Some(Ok(frame))),
        }
        match ready!(Sends::hand_on_large(body.sends, frame, context)) {
            Ok(frame) => Poll::Ready(frame.map(Ok)),
            Err(refused) => Poll::Ready(Some(Err(cut_off(body.sends, body.inner, refused)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        let waits = self.sends.as_ref().and_then(Sends::waiting).is_some();
        !waits
            && self
                .inner
                .as_ref()
                .map_or(self.text.is_empty(), Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.inner, self.sends.as_ref().and_then(Sends::waiting)) {
            (None, _) => SizeHint::with_exact(self.text.len() as u64),
            (Some(inner), None) => inner.size_hint(),
            (Some(inner), Some(frame)) => with_frame(inner.size_hint(), frame),
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = self.sends.as_ref().and_then(Sends::waiting).is_some();
        f.debug_struct("ResponseBody")
            .field("waits", &waits)
            .finish_non_exhaustive()
    }
}

/// There is no room for a frame, and the head was sent.
#[cold]
fn cut_off<B>(
    sends: &mut Option<Sends>,
    mut inner: Pin<&mut Option<B>>,
    refused: ChargeError,
) -> BodyError {
    // Mutation: a-body-that-is-cut-off-keeps-its-bytes
    if let Some(sends) = sends.take() {
        let settings = sends.hold.settings();
        settings.refuses(RefusalKind::CutOff, &refused);
    }
    inner.set(None);
    BodyError::Refused(refused)
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
