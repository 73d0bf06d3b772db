//! What a response sends, and what is charged of it meanwhile.
//!
//! A connection takes a frame whole, and keeps it until its client has taken it: several at a time,
//! and also after the body has ended. So each frame above [`SMALL`] has a charge of its own, which
//! goes with it. The charges are made of what the response has, its window, and come back there.
//!
//! | step | by | what holds after it |
//! |---|---|---|
//! | the first large frame: what the response has becomes the window | body | the request holds its overhead, and the window all that the response has |
//! | a large frame takes its bytes out of the window | body | they are charged as often as they are alive |
//! | the next frame is read once the window has as many bytes as the last one had | body | no frame is alive beside a window that has no bytes for it |
//! | the window has too few bytes, and none are on their way: the rest is charged, or the frame waits for room | body | the window has as many bytes as the largest frame |
//! | the window has too few, and some are on their way: the frame waits for them | body | a waker is in the window |
//! | the writer drops a frame: its memory is freed, and its bytes go back to the window | any thread | the body looks again |
//! | the body has ended: the window is closed, and what is in it given back | body | what comes back later is given back at once |
//!
//! **The race to avoid**: bytes that come back between the look of the body and its sleep. The look
//! leaves the waker below the same lock. Wakers and charges are dropped without the lock.
//!
//! A body may be read by code that keeps all frames until the end, as a layer outside that caches.
//! Nothing comes back then. So a frame that has waited for its [turn](Turn) may have more bytes,
//! where there is room.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Frame;
use memcg::{Charge, ChargeError, ChargeFuture, Group, OnFull};

use crate::account::Account;
use crate::clock::Alarm;
use crate::frame::len;
use crate::hold::Hold;

/// Frames of at most so many bytes are what a connection buffers anyway.
pub(crate) const SMALL: u64 = 8 << 10;

/// The time until a frame that finds nothing come back looks again for room.
const LOOKS: Duration = Duration::from_millis(50);

/// All that the response holds until its body has ended.
pub(crate) struct Sends {
    pub(crate) hold: Hold,
    /// The most bytes that the response has had, of the request's or in the window.
    reserved: u64,
    /// Of a response with frames that are larger than what is reserved, or than [`SMALL`].
    large: Option<Box<Large>>,
}

#[derive(Default)]
struct Large {
    window: Option<Arc<Window>>,
    /// The length of the last large frame, which the next one is expected to have.
    expects: u64,
    waits: Option<Waits>,
}

/// A frame that waits, and for what.
struct Waits {
    /// `None`: it is not read before it has its bytes, else it would be there beside them.
    frame: Option<Frame<Bytes>>,
    lacks: Lacks,
}

enum Lacks {
    /// Room in the tenant.
    Room(ChargeFuture),
    /// Frames that are on their way.
    Return(Turn),
}

/// A frame whose body has sent others, which may come back. The writer has its turn first.
struct Turn {
    /// Nothing has come back since then.
    since: Instant,
    /// What was free in the window then.
    free: u64,
    looks: u64,
    alarm: Option<Alarm>,
}

/// The bytes of a response, but for those that frames on their way have.
struct Window {
    state: Mutex<State>,
    /// Below the charges: the group of a request ends after its bytes are given back.
    account: Arc<Account>,
}

struct State {
    free: Charge,
    /// Bytes of frames on their way.
    taken: u64,
    has_ended: bool,
    /// A frame has waited in vain for others, and none has come back since.
    are_kept: bool,
    waker: Option<Waker>,
}

/// A large frame on its way.
struct Sent {
    data: Bytes,
    /// `None` once the frame is dropped.
    charge: Option<Charge>,
    window: Arc<Window>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // The memory is freed before its bytes are.
        drop(std::mem::take(&mut self.data));
        if let Some(charge) = self.charge.take() {
            self.window.comes_back(charge);
        }
    }
}

/// Why a frame gets no bytes now.
enum Short {
    /// No others are on their way: so many bytes are missing.
    Alone(u64),
    /// Others are, and so many bytes are free.
    Others {
        missing: u64,
        free: u64,
        are_kept: bool,
    },
}

impl Window {
    /// Each change is whole before the lock is given up, so a panic elsewhere leaves nothing half
    /// done.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a frame that has come, or a look whether there are as many for the next one.
    /// Where others have to come back first, they wake `waker`.
    fn take(&self, bytes: u64, has_come: bool, waker: &Waker) -> Result<Option<Charge>, Short> {
        // A waker is foreign code, so it is cloned before the lock is taken.
        let waker = waker.clone();
        let (taken, before) = {
            let mut state = self.state();
            let free = state.free.bytes();
            // If nothing is on its way, the next frame may be read: it is charged for once its
            // length is known.
            if free >= bytes || !has_come && state.taken == 0 {
                let charge = if has_come {
                    state.taken += bytes;
                    state.free.split(memcg::Bytes(bytes)).ok()
                } else {
                    None
                };
                (Ok(charge), None)
            } else {
                let missing = bytes - free;
                let short = if state.taken == 0 {
                    Short::Alone(missing)
                } else {
                    Short::Others {
                        missing,
                        free,
                        are_kept: state.are_kept,
                    }
                };
                (Err(short), state.waker.replace(waker))
            }
        };
        drop(before);
        taken
    }

    /// Code outside of the layer keeps them.
    fn are_kept(&self) {
        self.state().are_kept = true;
    }

    fn add(&self, charge: Charge) {
        // Both are charges of one group, so nothing is left; it would be given back without the
        // lock.
        let unmerged = self.state().free.merge(charge);
        drop(unmerged);
    }

    fn comes_back(&self, charge: Charge) {
        let (given_back, unmerged, waker) = {
            let mut state = self.state();
            state.taken -= charge.bytes();
            state.are_kept = false;
            if state.has_ended {
                (Some(charge), Ok(()), None)
            } else {
                (None, state.free.merge(charge), state.waker.take())
            }
        };
        drop(unmerged);
        if let Some(given_back) = given_back {
            drop(given_back);
            self.account.look();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn ends(&self) {
        let (free, waker) = {
            let mut state = self.state();
            state.has_ended = true;
            let all = state.free.bytes();
            (state.free.split(memcg::Bytes(all)), state.waker.take())
        };
        drop((free, waker));
        self.account.look();
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        if let Some(window) = &self.window {
            window.ends();
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
            large: None,
        }
    }

    #[inline]
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    #[inline]
    pub(crate) fn has_large(&self) -> bool {
        self.large.is_some()
    }

    /// The frame that waits.
    pub(crate) fn waiting(&self) -> Option<&Frame<Bytes>> {
        self.large.as_ref()?.waits.as_ref()?.frame.as_ref()
    }

    /// The frame that waits, once it has its bytes. `None`: the next one may be read, which has at
    /// most so many.
    #[cold]
    pub(crate) fn poll_waiting(
        sends: &mut Option<Sends>,
        most: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, ChargeError>> {
        let large = sends.as_mut().and_then(|sends| sends.large.as_mut());
        let Some(waiting) = large.map(|large| &mut large.waits) else {
            return Poll::Ready(Ok(None));
        };
        let charged = match waiting {
            Some(Waits {
                lacks: Lacks::Room(charge),
                ..
            }) => Some(ready!(Pin::new(charge).poll(context))?),
            _ => None,
        };
        let (frame, lacks) = match waiting.take() {
            Some(Waits { frame, lacks }) => (frame, Some(lacks)),
            None => (None, None),
        };
        if let (Some(charge), Some(sends)) = (charged, sends.as_mut()) {
            sends.add(charge);
        }
        let turn = match lacks {
            Some(Lacks::Return(turn)) => Some(turn),
            Some(Lacks::Room(_)) | None => None,
        };
        Sends::hand_on(sends, frame, most, turn, context)
    }

    /// Hands a frame on that is larger than what is reserved, or than [`SMALL`], or keeps it until
    /// it has its bytes.
    #[cold]
    pub(crate) fn hand_on_large(
        sends: &mut Option<Sends>,
        frame: Frame<Bytes>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, ChargeError>> {
        if len(&frame) > SMALL {
            Sends::opens_window(sends);
        }
        Sends::hand_on(sends, Some(frame), u64::MAX, None, context)
    }

    /// Hands the frame on once it has its bytes, or says so of the next one.
    fn hand_on(
        sends: &mut Option<Sends>,
        mut frame: Option<Frame<Bytes>>,
        most: u64,
        mut turn: Option<Turn>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, ChargeError>> {
        let Some(sent) = sends.as_mut() else {
            return Poll::Ready(Ok(frame));
        };
        let lacks = loop {
            let short = match sent.take(&mut frame, most, context.waker()) {
                Ok(()) => return Poll::Ready(Ok(frame)),
                Err(short) => short,
            };
            let group = sent.hold.group();
            match short {
                Short::Alone(missing) => {
                    match group.charge_with(memcg::Bytes(missing), OnFull::IfRoom) {
                        Ok(charge) => sent.add(charge),
                        Err(_) => {
                            let charge = group.charge_async(memcg::Bytes(missing));
                            break Lacks::Room(charge.timeout(sent.hold.patience()));
                        }
                    }
                }
                Short::Others {
                    missing,
                    free,
                    are_kept,
                } => {
                    let mut begun = turn.take().unwrap_or_else(|| Turn::begins(free));
                    match begun.look(missing, free, are_kept, &sent.hold, context) {
                        Poll::Ready(Ok(charge)) => sent.add_in_vain(charge),
                        // The body may have ended.
                        Poll::Ready(Err(_)) if frame.is_none() => return Poll::Ready(Ok(None)),
                        Poll::Ready(Err(refused)) => return Poll::Ready(Err(refused)),
                        Poll::Pending => break Lacks::Return(begun),
                    }
                }
            }
        };
        let is_room = matches!(lacks, Lacks::Room(_));
        sent.large.get_or_insert_default().waits = Some(Waits { frame, lacks });
        if is_room {
            // The first poll of the charge tells it whom to wake.
            Sends::poll_waiting(sends, most, context)
        } else {
            Poll::Pending
        }
    }

    /// Gives the frame its bytes, or looks whether there are as many as the next one is expected to
    /// have.
    fn take(
        &mut self,
        frame: &mut Option<Frame<Bytes>>,
        most: u64,
        waker: &Waker,
    ) -> Result<(), Short> {
        let bytes = frame.as_ref().map(len);
        let window = match self.large.as_deref_mut() {
            Some(Large {
                window: Some(window),
                expects,
                ..
            }) if bytes.is_none_or(|bytes| bytes > SMALL) => {
                *expects = bytes.unwrap_or(*expects);
                // What is left of the body bounds the next frame, and not one that is here.
                // Mutation: a-last-frame-that-has-waited-is-not-charged
                let takes = bytes.unwrap_or_else(|| (*expects).min(most));
                let charge = window.take(takes, bytes.is_some(), waker)?;
                charge.map(|charge| (charge, Arc::clone(window)))
            }
            _ => {
                let missing = bytes.unwrap_or(0).saturating_sub(self.reserved);
                return if missing > 0 {
                    Err(Short::Alone(missing))
                } else {
                    Ok(())
                };
            }
        };
        if let Some((charge, window)) = window {
            *frame = frame.take().map(|frame| {
                frame.map_data(|data| {
                    Bytes::from_owner(Sent {
                        data,
                        charge: Some(charge),
                        window,
                    })
                })
            });
        }
        Ok(())
    }

    /// What the response has becomes a window, of which its large frames have parts.
    fn opens_window(sends: &mut Option<Sends>) {
        let has_one = |sends: &mut Sends| {
            let large = sends.large.as_ref();
            large.is_some_and(|large| large.window.is_some())
        };
        let Some(Sends {
            hold,
            reserved,
            large,
        }) = sends.take_if(|sends| !has_one(sends))
        else {
            return;
        };
        let (hold, account) = hold.share();
        let window = account.takes_for_response(reserved).map(|free| {
            Arc::new(Window {
                state: Mutex::new(State {
                    free,
                    taken: 0,
                    has_ended: false,
                    are_kept: false,
                    waker: None,
                }),
                account,
            })
        });
        let mut large = large.unwrap_or_default();
        large.window = window;
        *sends = Some(Sends {
            hold,
            reserved,
            large: Some(large),
        });
    }

    /// The response has more, because what it has sent does not come back.
    fn add_in_vain(&mut self, charge: Charge) {
        self.add(charge);
        if let Some(window) = self.large.as_ref().and_then(|large| large.window.as_ref()) {
            window.are_kept();
        }
    }

    /// The response has more.
    fn add(&mut self, charge: Charge) {
        self.reserved = self.reserved.saturating_add(charge.bytes());
        match self.large.as_ref().and_then(|large| large.window.as_ref()) {
            Some(window) => window.add(charge),
            None => self.hold.add(charge),
        }
    }
}

impl Turn {
    fn begins(free: u64) -> Turn {
        Turn {
            since: Instant::now(),
            free,
            looks: 0,
            alarm: None,
        }
    }

    /// Too few bytes have come back. `Ready`: what is missing was charged, or refused for the last
    /// time.
    fn look(
        &mut self,
        missing: u64,
        free: u64,
        are_kept: bool,
        hold: &Hold,
        context: &mut Context<'_>,
    ) -> Poll<Result<Charge, ChargeError>> {
        self.looks += 1;
        if self.looks == 1 {
            // The writer has its turn before the next look: it sends what it has.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Mutation: frames-that-come-back-begin-no-new-wait
        if self.free != free {
            self.free = free;
            self.since = Instant::now();
        }
        let waited = self.since.elapsed();
        let settings = hold.settings();
        let group = hold.group();
        let missing = memcg::Bytes(missing);
        let is_due = are_kept || waited >= settings.patience;
        if (is_due || has_ample_room(group))
            && let Some(charge) = group.charge_with(missing, OnFull::IfRoom).ok()
        {
            return Poll::Ready(Ok(charge));
        }
        // Above a high: it has waited already.
        if is_due
            && !group.inspect().high_delay(missing).is_zero()
            && let Some(charge) = group.charge_with(missing, OnFull::Now).ok()
        {
            return Poll::Ready(Ok(charge));
        }
        if waited >= settings.body_timeout {
            return Poll::Ready(group.try_charge(missing));
        }
        let next = LOOKS.max(settings.patience.saturating_sub(waited));
        // Without a thread there is no wake by time, but a frame that comes back wakes.
        if let Some(at) = Instant::now().checked_add(next.min(settings.body_timeout - waited)) {
            Alarm::renew(&mut self.alarm, at, context.waker());
        }
        Poll::Pending
    }
}

/// Less than half of what the group may have is in use.
fn has_ample_room(group: &Group) -> bool {
    group.usage() < group.effective_max() / 2
}
