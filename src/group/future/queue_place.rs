//! A future that stands in line for a queue of waiters.

use std::mem;
use std::ptr;
use std::task::Waker;

use super::{ChargeFuture, Stage};
use crate::group::charge::Charge;
use crate::group::error::ChargeError;
use crate::page_counter::reading::Sealed;
use crate::units::Bytes;

/// One place in line for a queue of waiters, as a channel has: a future for the first of them, which then stands for the
/// next. Each charge of the queue is of the future's group.
///
/// ```
/// use std::future::Future;
/// use std::pin::Pin;
/// use std::task::{Context, Waker};
///
/// use memcg::expert::QueuePlace as _;
/// use memcg::{Bytes, Runtime};
///
/// let runtime = Runtime::builder().max(100).build()?;
/// let root = runtime.root();
/// let held = root.try_charge(80)?;
/// let mut place = root.charge_async(80);
/// assert!(Pin::new(&mut place).poll(&mut Context::from_waker(Waker::noop())).is_pending());
/// assert!(place.waits_in_line() && place.is_served_by(&held)); // so `held` is the charge of the first of the queue
/// assert!(place.wait_for(Bytes(30))); // and the place is for the next one
/// drop(held);
/// let second = place.take_decided(Some((Bytes(50), Waker::noop()))); // and for the one behind that
/// assert_eq!(second.expect("50 of 100 bytes are free")?.bytes(), 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait QueuePlace: Sealed {
    /// True where the bytes of `charge`, were it dropped now, would be this future's, and no other's. Then its holder may
    /// use the charge in the place of the one that the future waits for: no byte goes up the tree and comes back. The
    /// future waits on, for the next of the queue, or is dropped.
    ///
    /// That is so where the future is in line for bytes of the charge's group, at most as many as the charge has, and no
    /// other charge waits at the group or above. It is not where one of these is above a limit or only
    /// [counts](crate::expert::Inspect::set_observe_only), where the group is offline, and inside a reclaimer. Then drop
    /// the charge, which serves the line.
    ///
    /// The call takes no lock, runs no foreign code, and loads a few words for each level. Once it has said yes, other
    /// charges may barge past this one anew, as past the next in line.
    fn is_served_by(&self, charge: &Charge) -> bool;

    /// Waits for another number of bytes, at the place in line that it has. Returns false where the wait has ended, and
    /// the next poll says how. Wakers of charges in line may run on this thread.
    fn wait_for(&mut self, bytes: Bytes) -> bool;

    /// Returns how the wait has ended, where the line has decided it and no delay above a [high](crate::Limits::high)
    /// is left: what a poll would return. It runs no reclaimer and no hook, so a waker may call it.
    ///
    /// With `next` the future then stands for the next of the queue: it takes a place anew, behind all that wait, for so
    /// many bytes, and wakes that waker. It does not where reclaimers have to be asked first, or a victim chosen: then
    /// [`waits_in_line`](Self::waits_in_line) is false, and the next one has to charge by a future of its own. A
    /// [timeout](ChargeFuture::timeout) goes on from the first poll.
    fn take_decided(&mut self, next: Option<(Bytes, &Waker)>) -> Option<Result<Charge, ChargeError>>;

    /// True where it is in line: the wait may have ended, and the next poll says how. Where it is not, and pending, it is
    /// charged already, and delayed above a [high](crate::Limits::high).
    fn waits_in_line(&self) -> bool;
}

impl Sealed for ChargeFuture {}

impl QueuePlace for ChargeFuture {
    fn is_served_by(&self, charge: &Charge) -> bool {
        let Stage::InLine(in_line, _) = &self.state else { return false };
        ptr::eq(charge.header, self.group.header) && in_line.is_served_by(charge.bytes)
    }

    fn wait_for(&mut self, Bytes(bytes): Bytes) -> bool {
        let waits = match &mut self.state {
            Stage::New => true,
            Stage::InLine(in_line, _) => in_line.resize(bytes),
            Stage::Delayed { .. } | Stage::Done => false,
        };
        if waits {
            self.bytes = bytes;
        }
        waits
    }

    fn take_decided(&mut self, next: Option<(Bytes, &Waker)>) -> Option<Result<Charge, ChargeError>> {
        let Stage::InLine(in_line, _) = &mut self.state else { return None };
        let (ended, level) = in_line.take_decided()?;
        let bytes = self.bytes;
        // Before any foreign code: a clone that panics gives these bytes back.
        let ended = match ended {
            Ok(_) => Ok(Charge::new(self.group.header, bytes)),
            Err(failure) => Err(ChargeError::new(failure, self.group.first(), bytes)),
        };
        match next {
            Some((Bytes(next), waker)) if in_line.wait_again(level, next, waker) => self.bytes = next,
            _ => drop(mem::replace(&mut self.state, Stage::Done)),
        }
        Some(ended)
    }

    fn waits_in_line(&self) -> bool {
        matches!(self.state, Stage::InLine(..))
    }
}
