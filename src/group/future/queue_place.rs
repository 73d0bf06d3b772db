//! A future that waits in line for a queue of waiters.

use std::mem;
use std::task::Waker;

use super::{ChargeFuture, Stage};
use crate::group::charge::Charge;
use crate::group::error::ChargeError;
use crate::pressure::line;
use crate::state::waiting::PlaceHolder;
use crate::units::Bytes;

/// # One place in line for a queue of waiters
///
/// A channel has a queue of senders. One future of its own waits for the bytes of the first sender,
/// and then for those of the next. Each charge of the queue is of the future's group.
///
/// ```
/// use std::future::Future;
/// use std::pin::Pin;
/// use std::task::{Context, Waker};
///
/// use memcg::{Bytes, Runtime};
///
/// let runtime = Runtime::builder().max(100).build()?;
/// let root = runtime.root();
/// let held = root.charge(80)?;
/// let mut place = root.charge_async(80);
/// assert!(Pin::new(&mut place).poll(&mut Context::from_waker(Waker::noop())).is_pending());
/// assert!(place.waits_in_line() && place.is_served_by(&held)); // so `held` is the charge of the first of the queue
/// assert!(place.wait_for(Bytes(30))); // and the place is for the next one
/// drop(held);
/// let second = place.take_decided(Some((Bytes(50), Waker::noop()))); // and for the one behind that
/// assert_eq!(second.expect("50 of 100 bytes are free")?.bytes(), 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl ChargeFuture {
    /// Makes the future the place of a queue: while it is in line it is also woken when a max of its
    /// group or above was lowered. The queue then ends the waits that
    /// [can never be served](Self::is_servable) any more: those behind the first one are known to
    /// it alone.
    ///
    /// ```
    /// # use std::future::Future;
    /// # use std::pin::Pin;
    /// # use std::task::{Context, Waker};
    /// use memcg::{Bytes, Runtime};
    ///
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let _held = root.charge(80)?;
    /// let mut place = root.charge_async(30).for_queue();
    /// assert!(Pin::new(&mut place).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    /// assert!(place.is_servable(Bytes(90)), "once there is room");
    /// root.set_max(85)?; // wakes the future
    /// assert!(place.waits_in_line() && !place.is_servable(Bytes(90)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_queue(mut self) -> Self {
        self.holder = PlaceHolder::Queue;
        self
    }

    /// Returns false if the group, or one above it, has a max below `bytes`: a charge of so many is
    /// refused at once, and does not wait. A max that moves by itself, as a share of another does,
    /// counts once it has stood for a second. The call loads a word for each level; only where a
    /// max is below `bytes` it takes the lock of the tree for a moment, and may run wakers of
    /// charges in line on this thread.
    pub fn is_servable(&self, Bytes(bytes): Bytes) -> bool {
        line::in_the_way(self.group.first(), bytes).is_none()
    }

    /// Returns true if a drop of `charge` now would serve this future and no other charge. Then the
    /// holder of `charge` may use it in place of the charge that this future waits for, so that no
    /// byte goes up the tree and comes back. The future then waits for the next waiter of the queue
    /// ([`wait_for`](Self::wait_for)), or is dropped.
    ///
    /// The result is true if the future is in line for bytes of the charge's group, at most as many
    /// as the charge has, and no other charge waits at the group or above it. It is false if the
    /// group or one above it is above a limit or only
    /// [counts](crate::Group::set_observe_only), if the group is offline, and inside a
    /// reclaimer. Then drop the charge, which serves the line.
    ///
    /// The call takes no lock, runs no foreign code, does not block, and loads a few words for each
    /// level. After true, other charges may barge past this future anew, as they may past the next
    /// charge in line.
    pub fn is_served_by(&self, charge: &Charge) -> bool {
        let Stage::InLine(in_line) = &self.state else {
            return false;
        };
        charge.header == self.group.header && in_line.ticket.is_served_by(charge.bytes)
    }

    /// Changes the number of bytes that the future waits for; it keeps its place in line. Returns
    /// false if the wait has ended: the next poll returns how. The call may run wakers of charges
    /// in line on this thread.
    pub fn wait_for(&mut self, Bytes(bytes): Bytes) -> bool {
        let waits = match &mut self.state {
            Stage::New => true,
            Stage::InLine(in_line) => in_line.ticket.resize(bytes),
            Stage::Delayed(..) | Stage::Done => false,
        };
        if waits {
            self.bytes = bytes;
        }
        waits
    }

    /// Takes the result of the wait, which a poll would return. `None`: the line has not decided
    /// yet, or a delay above a [high](crate::Limits::high) is left. The call runs no reclaimer and
    /// no hook, so a waker may make it.
    ///
    /// With `next` the future then takes a place in line anew, behind all that wait: for that many
    /// bytes, and with that waker. It takes none if reclaimers have to be asked first, or a victim
    /// has to be chosen. Then [`waits_in_line`](Self::waits_in_line) is false, the next waiter
    /// needs a future of its own, and a poll panics. A [timeout](ChargeFuture::timeout) goes on
    /// from the first poll.
    pub fn take_decided(
        &mut self,
        next: Option<(Bytes, &Waker)>,
    ) -> Option<Result<Charge, ChargeError>> {
        let Stage::InLine(in_line) = &mut self.state else {
            return None;
        };
        let (ended, level) = in_line.take_decided(self.group.first())?;
        let bytes = self.bytes;
        // Before any foreign code: a clone that panics gives these bytes back.
        let ended = match ended {
            Ok(_) => Ok(Charge::new(self.group.header, bytes)),
            Err(failure) => Err(ChargeError::new(failure, self.group.first(), bytes)),
        };
        match next {
            Some((Bytes(next), waker)) if in_line.wait_again(&level, next, waker) => {
                self.bytes = next
            }
            _ => drop(mem::replace(&mut self.state, Stage::Done)),
        }
        Some(ended)
    }

    /// Returns true if the future is in line. The wait may have ended: the next poll returns how. A
    /// future that is pending and not in line is charged already, and only waits for the delay
    /// above a [high](crate::Limits::high).
    pub fn waits_in_line(&self) -> bool {
        matches!(self.state, Stage::InLine(..))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::future::Future;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, RawWaker, RawWakerVTable};

    use super::*;
    use crate::{Group, Limits, Reclaim, ReclaimContext, ReclaimPriority, Runtime};

    const KIB: u64 = 1024;

    /// A group of 10 KiB, where threads have credit and where they have none.
    fn groups() -> [(Runtime, Group); 2] {
        [Runtime::builder().batch(64), Runtime::builder().batch(0)].map(|builder| {
            let runtime = builder.audit(true).build().unwrap();
            let group = runtime
                .root()
                .create("q", Limits::new().max(10 << 10))
                .unwrap();
            (runtime, group)
        })
    }

    fn charge(group: &Group, bytes: u64) -> Charge {
        group.charge(Bytes(bytes)).expect("no level refuses it")
    }

    fn poll(place: &mut ChargeFuture) -> Poll<Result<Charge, ChargeError>> {
        Pin::new(place).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A place of a queue, in line.
    #[track_caller]
    fn place(group: &Group, bytes: u64) -> ChargeFuture {
        let mut place = group.charge_async(Bytes(bytes));
        assert!(!place.waits_in_line());
        assert!(poll(&mut place).is_pending() && place.waits_in_line());
        place
    }

    /// Only a drop that would serve the place, and no other charge, says so.
    #[test]
    fn a_charge_serves_the_place_alone() {
        for (_runtime, top) in groups() {
            let group = top.create("q", Limits::new()).unwrap();
            let held = charge(&group, 8 * KIB);
            let below = charge(&group.create("below", Limits::new()).unwrap(), KIB);
            let mut queue = place(&group, 8 * KIB);
            assert!(queue.is_served_by(&held));
            assert!(!queue.is_served_by(&below), "the group of another");
            assert!(queue.wait_for(Bytes(9 * KIB)));
            assert!(!queue.is_served_by(&held), "too few bytes");
            assert!(queue.wait_for(Bytes(8 * KIB)));
            let other = place(&top, 5 * KIB);
            assert!(!queue.is_served_by(&held), "another one waits above");
            drop(other);
            assert!(queue.is_served_by(&held));
            let more = top.force_charge(Bytes(2 * KIB));
            assert!(!queue.is_served_by(&held), "above a limit");
            drop(more);
            top.set_observe_only(true);
            assert!(!queue.is_served_by(&held), "a limit that counts alone");
            drop((queue, held, below));
        }
    }

    /// After a queue has handed a charge to one waiter, other charges may pass the next waiter
    /// anew.
    #[test]
    fn others_pass_the_next_as_they_passed_the_first() {
        for (_runtime, group) in groups() {
            let held = charge(&group, 8 * KIB);
            let queue = place(&group, 8 * KIB);
            for _next in 0..if cfg!(miri) { 2 } else { 3 } {
                (0..8).for_each(|_| drop(charge(&group, KIB)));
                assert!(
                    group.charge(Bytes(KIB)).is_err(),
                    "as many bytes have passed as it waits for"
                );
                assert!(queue.is_served_by(&held));
            }
            drop((queue, held));
        }
    }

    /// The place stays where it is in line, whatever it is for: fewer bytes that fit are charged at
    /// once.
    #[test]
    fn the_place_is_for_other_bytes() {
        for (_runtime, group) in groups() {
            let held = charge(&group, 10 * KIB);
            let mut queue = place(&group, 10 * KIB);
            let behind = place(&group, KIB);
            assert!(queue.wait_for(Bytes(2 * KIB)));
            drop(held);
            assert_eq!(
                (group.waiting_count(), group.live()),
                (0, 3 * KIB),
                "the one behind has its bytes as well"
            );
            assert!(!queue.wait_for(Bytes(KIB)), "it has its bytes");
            let Poll::Ready(Ok(charge)) = poll(&mut queue) else {
                panic!("2 KiB fit")
            };
            assert_eq!(charge.bytes(), 2 * KIB);
            assert!(!queue.wait_for(Bytes(KIB)), "it is over");
            drop((behind, charge));
        }
    }

    /// Once it is decided the place goes behind all that wait, for the next one. Each charge is
    /// returned once.
    #[test]
    fn the_place_goes_behind() {
        for (_runtime, group) in groups() {
            let held = charge(&group, 10 * KIB);
            let mut queue = place(&group, 10 * KIB);
            let other = place(&group, 10 * KIB);
            let next = Some((Bytes(5 * KIB), Waker::noop()));
            assert!(queue.take_decided(next).is_none(), "it waits");
            drop(held);
            let first = queue
                .take_decided(next)
                .expect("it is first")
                .expect("10 KiB are free");
            assert!(queue.waits_in_line() && queue.take_decided(next).is_none());
            drop(first);
            assert_eq!(
                (group.waiting_count(), group.live()),
                (1, 10 * KIB),
                "the other one has its bytes"
            );
            drop(other);
            let second = queue
                .take_decided(None)
                .expect("it is first")
                .expect("10 KiB are free");
            assert_eq!(
                (second.bytes(), group.live(), group.waiting_count()),
                (5 * KIB, 5 * KIB, 0)
            );
            assert!(!queue.waits_in_line() && queue.take_decided(next).is_none());
            assert!(
                catch_unwind(AssertUnwindSafe(|| poll(&mut queue))).is_err(),
                "the result was taken"
            );
        }
    }

    /// Gives nothing.
    struct Empty;

    impl Reclaim for Empty {
        fn reclaim(&self, _want: u64, _context: &ReclaimContext<'_>) -> u64 {
            0
        }
    }

    /// A charge that asks reclaimers before it waits has no place before it has asked them.
    #[test]
    fn reclaimers_are_asked_before_a_place_anew() {
        for (_runtime, group) in groups() {
            let held = charge(&group, 10 * KIB);
            let _registration = group.register_reclaimer(Arc::new(Empty), ReclaimPriority::NORMAL);
            let mut queue = place(&group, 10 * KIB);
            drop(held);
            let first = queue
                .take_decided(Some((Bytes(KIB), Waker::noop())))
                .expect("it is first");
            assert_eq!(
                (
                    first.expect("10 KiB are free").bytes(),
                    queue.waits_in_line()
                ),
                (10 * KIB, false)
            );
        }
    }

    /// A refusal is taken as a charge is.
    #[test]
    fn a_refusal_is_taken() {
        for (_runtime, group) in groups() {
            let held = charge(&group, 10 * KIB);
            let mut queue = place(&group, 10 * KIB);
            group
                .set_max(Bytes(5 * KIB))
                .expect("a max below what is held");
            let refused = queue
                .take_decided(None)
                .expect("10 KiB never fit")
                .expect_err("the same");
            assert!(refused.is_over_limit(), "{refused}");
            drop(held);
        }
    }

    /// A waker whose clones panic.
    #[allow(unsafe_code)]
    fn uncloned() -> Waker {
        static VTABLE: RawWakerVTable =
            RawWakerVTable::new(|_| panic!("a clone"), |_| (), |_| (), |_| ());
        // SAFETY: these functions do nothing with the pointer, on any thread.
        unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &VTABLE)) }
    }

    /// The waker of the next one panics when it is cloned: what the line has charged goes back.
    #[test]
    fn a_clone_that_panics_loses_no_byte() {
        for (_runtime, group) in groups() {
            let held = charge(&group, 10 * KIB);
            let mut queue = place(&group, 10 * KIB);
            drop(held);
            let waker = uncloned();
            let taken = catch_unwind(AssertUnwindSafe(|| {
                queue.take_decided(Some((Bytes(KIB), &waker)))
            }));
            assert!(taken.is_err());
            assert_eq!((group.live(), group.waiting_count()), (0, 0));
            assert!(poll(&mut queue).is_pending(), "it is over");
            drop(queue);
            assert_eq!(group.live(), 0);
        }
    }

    /// A charge above a high is the poll's, with its delay.
    #[test]
    fn a_delay_is_left_to_the_poll() {
        for (_runtime, group) in groups() {
            group
                .set_limits(Limits::new().high(Bytes(KIB)))
                .expect("a high below the max");
            let held = group.force_charge(Bytes(10 * KIB));
            let mut queue = place(&group, 10 * KIB);
            drop(held);
            assert!(queue.take_decided(None).is_none() && queue.waits_in_line());
            drop(poll(&mut queue));
            assert!(!queue.waits_in_line());
        }
    }
}
