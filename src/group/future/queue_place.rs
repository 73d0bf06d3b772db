//! A future that stands in line for a queue of waiters.

use std::mem;
use std::ptr;
use std::task::Waker;

use super::{ChargeFuture, Stage};
use crate::group::charge::Charge;
use crate::group::error::ChargeError;
use crate::page_counter::reading::Sealed;
use crate::units::Bytes;

/// One place in line for a queue of waiters, as a channel has: a [`ChargeFuture`] waits for the bytes of the first one,
/// and then for those of the next. Each charge of the queue is of the future's group.
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
    /// Returns true if a drop of `charge` now would serve this future and no other charge. Then the holder of `charge`
    /// may use it in place of the charge that this future waits for, so that no byte goes up the tree and comes back.
    /// The future then waits for the next waiter of the queue ([`wait_for`](Self::wait_for)), or is dropped.
    ///
    /// The result is true if the future is in line for bytes of the charge's group, at most as many as the charge has,
    /// and no other charge waits at the group or above it. It is false if the group or one above it is above a limit or
    /// only [counts](crate::expert::Inspect::set_observe_only), if the group is offline, and inside a reclaimer. Then
    /// drop the charge, which serves the line.
    ///
    /// The call takes no lock, runs no foreign code, does not block, and loads a few words for each level. After true,
    /// other charges may barge past this future anew, as they may past the next charge in line.
    fn is_served_by(&self, charge: &Charge) -> bool;

    /// Changes the number of bytes that the future waits for; it keeps its place in line. Returns false if the wait has
    /// ended: the next poll returns how. The call may run wakers of charges in line on this thread.
    fn wait_for(&mut self, bytes: Bytes) -> bool;

    /// Takes the result of the wait, which a poll would return. `None`: the line has not decided yet, or a delay above
    /// a [high](crate::Limits::high) is left. The call runs no reclaimer and no hook, so a waker may make it.
    ///
    /// With `next` the future then takes a place in line anew, behind all that wait: for that many bytes, and with that
    /// waker. It takes none if reclaimers have to be asked first, or a victim has to be chosen. Then
    /// [`waits_in_line`](Self::waits_in_line) is false, and the next waiter needs a future of its own. A
    /// [timeout](ChargeFuture::timeout) goes on from the first poll.
    fn take_decided(&mut self, next: Option<(Bytes, &Waker)>) -> Option<Result<Charge, ChargeError>>;

    /// Returns true if the future is in line. The wait may have ended: the next poll returns how. A future that is
    /// pending and not in line is charged already, and only waits for the delay above a [high](crate::Limits::high).
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
