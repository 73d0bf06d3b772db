//! `ChargedVec`: a vector that charges before it grows.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::ops::{Deref, DerefMut};

use super::charged::Charged;
use super::push_error::PushError;
use crate::group::{Charge, ChargeError, Group, GrowBy, OnFull};
use crate::units::Bytes;

/// The least items that a vector grows to, as the standard library's.
const ITEMS_MIN: usize = 4;

/// A vector whose memory is charged to a group before it is allocated.
///
/// While the vector grows, the old block and the new one may exist side by side, so both are
/// charged, and then the bytes of the old one are given back. So a vector that takes more than half
/// of its group's max cannot grow. A call that is refused leaves the vector and its items as they
/// were, and returns what was to be added. The vector dereferences to a slice.
///
/// The charge is that of the capacity: `size_of::<T>()` bytes for each item that fits. Memory that
/// items hold on the heap is not part of it; use [`Charged`] items for that. The vector grows by
/// doubling its capacity, if there is room without asking anyone. If not, it grows by half, for
/// which reclaimers are asked, and otherwise by what there is room for. An allocation that the
/// system refuses aborts, as with [`Vec`].
///
/// ```
/// use memcg::{ChargedVec, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new().max(1 << 20))?;
/// let mut rows = ChargedVec::new(&query);
/// rows.push([1_u64, 2, 3])?;
/// rows.extend((4..1_000).map(|row| [row; 3]))?;
/// assert_eq!((rows.len(), query.live()), (997, rows.capacity() as u64 * 24));
///
/// let refused = (0..).find_map(|row| rows.push([row; 3]).err()).expect("the max");
/// assert_eq!(refused.into_parts().0[0], rows.len() as u64 - 997, "the row comes back");
/// assert!(query.peak() <= query.max());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ChargedVec<T>(Charged<Vec<T>>);

impl<T> ChargedVec<T> {
    /// Makes an empty vector, which takes no memory and charges nothing until its first item. It
    /// never fails and never blocks: for a group that is offline the first item is refused. The
    /// vector keeps the group's object.
    pub fn new(group: &Group) -> Self {
        ChargedVec(Charged::new(Vec::new(), group.force_charge(0)))
    }

    /// Makes a vector with room for so many items, charged before they are allocated. It may block,
    /// as [`Group::charge`].
    ///
    /// # Errors
    ///
    /// [`ChargeError`], if there is no room for so many.
    pub fn with_capacity(group: &Group, items: usize) -> Result<Self, ChargeError> {
        let mut vec = ChargedVec::new(group);
        vec.reserve(items)?;
        Ok(vec)
    }

    /// Returns how many items the vector has room for, which are charged whether they are there or
    /// not.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the charge, which is for the capacity.
    pub const fn charge(&self) -> &Charge {
        Charged::charge(&self.0)
    }

    /// Turns it into a plain vector with its charge, which does not follow the vector from here on.
    pub fn into_charged(self) -> Charged<Vec<T>> {
        self.0
    }

    /// Adds an item. It may block, as [`Group::charge`] does, but only if the vector has to grow.
    ///
    /// # Errors
    ///
    /// [`PushError`] has the item.
    #[inline]
    #[allow(
        clippy::result_large_err,
        reason = "the item comes back in place: no memory is allocated for it"
    )]
    pub fn push(&mut self, item: T) -> Result<(), PushError<T>> {
        if self.spare() == 0
            && let Err(refused) = self.reserve(1)
        {
            return Err(PushError::new(item, refused, self.charge().bytes()));
        }
        self.vec().push(item);
        Ok(())
    }

    /// Adds an item, and never blocks: if the vector has to grow, it does as by
    /// [`try_reserve`](Self::try_reserve).
    ///
    /// # Errors
    ///
    /// [`PushError`] has the item.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut rows = memcg::ChargedVec::new(&runtime.root());
    /// let refused = (0_u64..).find_map(|row| rows.try_push(row).err()).expect("the max");
    /// assert_eq!(refused.into_parts().0, rows.len() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[allow(
        clippy::result_large_err,
        reason = "the item comes back in place: no memory is allocated for it"
    )]
    pub fn try_push(&mut self, item: T) -> Result<(), PushError<T>> {
        if self.spare() == 0
            && let Err(refused) = self.try_reserve(1)
        {
            return Err(PushError::new(item, refused, self.charge().bytes()));
        }
        self.vec().push(item);
        Ok(())
    }

    /// Adds items until one is refused. It may block, as [`push`](Self::push). The error gives that
    /// item back; those before it are in the vector, and those after it are still in the iterator
    /// if that was lent with [`by_ref`](Iterator::by_ref).
    ///
    /// # Errors
    ///
    /// [`PushError`] has the item that was refused.
    #[allow(
        clippy::result_large_err,
        reason = "the item comes back in place: no memory is allocated for it"
    )]
    pub fn extend(&mut self, items: impl IntoIterator<Item = T>) -> Result<(), PushError<T>> {
        let items = items.into_iter();
        // A hint may be too high: then the items are pushed one by one, as far as they fit.
        let _ = self.grow_if_room(items.size_hint().0);
        for item in items {
            self.push(item)?;
        }
        Ok(())
    }

    /// Makes room for `more` items, so that as many pushes cannot fail. It may block, as
    /// [`Group::charge`].
    ///
    /// # Errors
    ///
    /// [`ChargeError`]; the vector is as it was. The block that the vector has stays charged, so
    /// the request had to fit beside it.
    pub fn reserve(&mut self, more: usize) -> Result<(), ChargeError> {
        self.reserve_by(more, GrowBy::Charge)
    }

    /// Makes room for `more` items, as [`Group::try_charge`] charges, and never blocks. Memory that
    /// the system refuses aborts, as with [`reserve`](Self::reserve).
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut rows = memcg::ChargedVec::<u64>::new(&runtime.root());
    /// rows.try_reserve(5)?;
    /// assert!(rows.try_reserve(20).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_reserve(&mut self, more: usize) -> Result<(), ChargeError> {
        self.reserve_by(more, GrowBy::TryCharge)
    }

    /// Makes room for `more` items, and does what `full` says if there is none, as
    /// [`Group::charge_with`]; whether it may block depends on that. On a worker of a thread pool,
    /// use [`OnFull::Reclaim`], which does not wait for memory of others.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    ///
    /// ```
    /// use memcg::{ChargedVec, OnFull, Runtime};
    ///
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let mut rows = ChargedVec::<u64>::new(&runtime.root());
    /// assert!(rows.reserve_with(20, OnFull::Reclaim).is_err());
    /// rows.reserve_with(10, OnFull::Reclaim)?;
    /// rows.push(7)?; // in the room that it has
    /// assert_eq!((rows.len(), runtime.root().live()), (1, rows.capacity() as u64 * 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve_with(&mut self, more: usize, full: OnFull) -> Result<(), ChargeError> {
        self.reserve_by(more, GrowBy::With(full))
    }

    fn reserve_by(&mut self, more: usize, grow: GrowBy) -> Result<(), ChargeError> {
        if self.grow_if_room(more) {
            return Ok(());
        }
        let (needed, half_more) = (self.needed(more), self.half_more(more));
        let group = self.charge().group();
        // Its refusal is not the caller's, and counts as none.
        // Mutation: a-vector-counts-the-refusal-of-what-is-spare
        if half_more > needed
            && let Some(new) = group.charge_spare(Bytes(bytes_of::<T>(half_more)), grow)
        {
            self.grow_with(half_more, new);
            return Ok(());
        }
        let room = usize::try_from(group.headroom()).unwrap_or(usize::MAX) / size_of::<T>().max(1);
        let items = room.clamp(needed, half_more);
        let new = group.charge_by(Bytes(bytes_of::<T>(items)), grow)?;
        self.grow_with(items, new);
        Ok(())
    }

    /// Makes room for `more` items, and waits for it as a task, as [`Group::charge_async`] does.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], if it can never fit beside what the vector holds, or if the group is
    /// offline or cancelled. The vector is as it was.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use memcg::{ChargedVec, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let held = runtime.root().charge(90)?;
    /// let mut rows = ChargedVec::new(&runtime.root());
    /// let room = tokio::spawn(async move { rows.reserve_async(1).await.map(|()| rows) });
    /// tokio::task::yield_now().await;
    /// drop(held);
    /// let mut rows = room.await??;
    /// rows.push(7_u64)?;
    /// assert_eq!(*rows, [7]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve_async(&mut self, more: usize) -> Result<(), ChargeError> {
        if self.grow_if_room(more) {
            return Ok(());
        }
        let group = self.charge().group();
        // A wait for what can come only once this vector is gone would not end.
        let room = group.effective_max().saturating_sub(self.charge().bytes());
        let can_fit = |items: usize| bytes_of::<T>(items) <= room;
        let needed = self.needed(more);
        let half_more = self.half_more(more);
        let items = if can_fit(half_more) {
            half_more
        } else {
            needed
        };
        if !can_fit(items) {
            // For the error; or the max was raised since.
            let new = group.try_charge(Bytes(bytes_of::<T>(items)))?;
            self.grow_with(items, new);
            return Ok(());
        }
        let charge = group.charge_async(Bytes(bytes_of::<T>(items))).await?;
        self.grow_with(items, charge);
        Ok(())
    }

    /// Removes the last item and returns it. The capacity stays, and so does the charge. It never
    /// blocks.
    pub fn pop(&mut self) -> Option<T> {
        self.vec().pop()
    }

    /// Drops all items after the first `items`. The capacity and the charge stay, as with
    /// [`pop`](Self::pop).
    pub fn truncate(&mut self, items: usize) {
        self.vec().truncate(items);
    }

    /// Drops all items. The capacity and the charge stay: [`shrink_to_fit`](Self::shrink_to_fit)
    /// gives them back.
    pub fn clear(&mut self) {
        self.vec().clear();
    }

    /// Frees the capacity that no item uses, and gives its bytes back, as the drop of a
    /// [`Charge`] does. The items may be copied to a smaller block; the allocator
    /// decides how much capacity stays. It never blocks.
    pub fn shrink_to_fit(&mut self) {
        // Mutation: a-vector-shrinks-uncharged
        self.edit(Vec::shrink_to_fit);
    }

    /// Calls `edit` with the vector, for everything that has no method here. Afterwards, and also
    /// if `edit` panics, the charge is brought to the new capacity: more is charged whatever the
    /// limits say, and what is less is given back.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// use memcg::ChargedVec;
    ///
    /// let mut rows = ChargedVec::with_capacity(&runtime.root(), 10)?;
    /// rows.extend(0..10_u64)?;
    /// rows.edit(|rows| rows.retain(|row| row % 2 == 0));
    /// assert_eq!(*rows, [0, 2, 4, 6, 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn edit<R>(&mut self, edit: impl FnOnce(&mut Vec<T>) -> R) -> R {
        struct FitCharge<'a, T>(&'a mut ChargedVec<T>);
        impl<T> Drop for FitCharge<'_, T> {
            fn drop(&mut self) {
                self.0.fit_charge();
            }
        }
        // By a drop: a panic of `edit` may leave a vector that has grown.
        edit(FitCharge(self).0.vec())
    }

    pub(super) fn vec(&mut self) -> &mut Vec<T> {
        Charged::parts_mut(&mut self.0).0
    }

    pub(super) fn spare(&self) -> usize {
        self.0.capacity() - self.0.len()
    }

    /// The capacity for `more` items.
    fn needed(&self, more: usize) -> usize {
        self.0.len().saturating_add(more)
    }

    fn half_more(&self, more: usize) -> usize {
        self.needed(more)
            .max(self.capacity().saturating_add(self.capacity() / 2))
    }

    /// Makes room for `more` items, and for twice as many as there are, if that takes nothing of
    /// others.
    fn grow_if_room(&mut self, more: usize) -> bool {
        if self.spare() >= more {
            return true;
        }
        let twice = self
            .needed(more)
            .max(self.capacity().saturating_mul(2))
            .max(ITEMS_MIN);
        let Ok(charge) = self
            .charge()
            .group()
            .charge_with(Bytes(bytes_of::<T>(twice)), OnFull::IfRoom)
        else {
            return false;
        };
        // A size hint may be a lie, and a group without a max charges for it: the system has no
        // such memory.
        let (vec, _) = Charged::parts_mut(&mut self.0);
        if vec.try_reserve_exact(twice - vec.len()).is_err() {
            return false;
        }
        self.grow_with(twice, charge);
        true
    }

    /// Grows to a capacity of so many items, which are charged. Both blocks are, until the old one
    /// is free.
    fn grow_with(&mut self, items: usize, new: Charge) {
        let (vec, charge) = Charged::parts_mut(&mut self.0);
        vec.reserve_exact(items.saturating_sub(vec.len()));
        // Both are charges of memory of one group.
        let _ = charge.merge(new);
        self.fit_charge();
    }

    /// Brings the charge to the capacity: an allocator may give more than the vector asks for.
    fn fit_charge(&mut self) {
        let bytes = bytes_of::<T>(self.capacity());
        Charged::parts_mut(&mut self.0).1.force_resize(Bytes(bytes));
    }
}

/// The bytes of so many items; of no size the capacity has no end.
fn bytes_of<T>(items: usize) -> u64 {
    if size_of::<T>() == 0 {
        0
    } else {
        (items as u64).saturating_mul(size_of::<T>() as u64)
    }
}

impl<T: Clone> ChargedVec<T> {
    /// Adds copies of all items of a slice, or of none. It may block, as [`Group::charge`].
    ///
    /// # Errors
    ///
    /// [`ChargeError`]; the vector is as it was.
    pub fn extend_from_slice(&mut self, items: &[T]) -> Result<(), ChargeError> {
        self.reserve(items.len())?;
        self.vec().extend_from_slice(items);
        Ok(())
    }
}

/// Adds bytes. A refusal is an error of [`ErrorKind::OutOfMemory`] with the [`ChargeError`] inside,
/// and adds none of them. To write may block, as [`Group::charge`].
impl Write for ChargedVec<u8> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let added = self.extend_from_slice(bytes);
        added
            .map(|()| bytes.len())
            .map_err(|refused| io::Error::new(ErrorKind::OutOfMemory, refused))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<T> Deref for ChargedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for ChargedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.vec()
    }
}

/// With this, `bytes::Bytes::from_owner` makes a buffer of the vector that stays charged until its
/// last clone is gone.
impl<T> AsRef<[T]> for ChargedVec<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<'a, T> IntoIterator for &'a ChargedVec<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for ChargedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::future::Future;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Waker};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::sync::many;
    use crate::{Limits, Reclaim, ReclaimContext, ReclaimPriority, Runtime};

    /// A group without credit, so that its peak is what charges held.
    fn group(max: usize) -> (Runtime, Group) {
        let runtime = Runtime::builder().batch(0).audit(true).build().unwrap();
        let group = runtime.root().create("q", Limits::new().max(max)).unwrap();
        (runtime, group)
    }

    #[track_caller]
    fn assert_paid<T>(vec: &ChargedVec<T>, group: &Group) {
        let bytes = (vec.capacity() * size_of::<T>()) as u64;
        assert_eq!(
            (vec.charge().bytes(), group.live(), group.forced()),
            (bytes, bytes, 0)
        );
    }

    #[test]
    fn both_blocks_are_charged_while_it_grows() {
        let (_runtime, group) = group(1 << 20);
        let mut vec = ChargedVec::with_capacity(&group, 100).unwrap();
        assert_eq!(group.peak(), 800);
        vec.extend(0..101_u64).unwrap();
        assert_eq!((vec.capacity(), group.peak()), (200, 800 + 1_600));
        assert_paid(&vec, &group);
    }

    #[test]
    fn it_grows_by_what_is_left_and_then_keeps_its_items() {
        let (_runtime, group) = group(1_000);
        let mut vec = ChargedVec::new(&group);
        let refused = (0..).find_map(|item: u64| vec.push(item).err()).unwrap();
        // 4, 8, 16, 32, 64 items, which take 512 of 1,000 bytes: there is no room for a second
        // block.
        assert_eq!(
            (refused.into_parts().0, vec.len(), vec.capacity()),
            (64, 64, 64)
        );
        assert_eq!(*vec, (0..64).collect::<Vec<_>>());
        assert!(vec.reserve(1).is_err() && vec.extend_from_slice(&[1, 2]).is_err());
        assert!(vec.reserve(usize::MAX).is_err() && vec.reserve(usize::MAX / 8).is_err());
        assert_eq!((vec.len(), group.peak()), (64, 256 + 512));
        assert_paid(&vec, &group);
        vec.truncate(3);
        vec.shrink_to_fit();
        assert_eq!((&*vec, group.live()), (&[0, 1, 2][..], 24));

        // Beside 40 items 456 bytes are left: neither 80 items fit nor 60, but 57.
        let _other = group.charge(200).unwrap();
        let mut vec = ChargedVec::with_capacity(&group, 40).unwrap();
        vec.extend(0..41_u64).unwrap();
        assert_eq!(vec.capacity(), 57);
    }

    /// A vector asks for more than it needs, and then for less: its caller sees one answer.
    #[test]
    fn a_refusal_is_counted_as_often_as_it_is_returned() {
        type Reserve = fn(&mut ChargedVec<u64>, usize) -> Result<(), ChargeError>;
        let verbs: [Reserve; 5] = [
            |vec, more| vec.reserve(more),
            |vec, more| vec.try_reserve(more),
            |vec, more| vec.reserve_with(more, OnFull::Reclaim),
            |vec, more| vec.reserve_with(more, OnFull::Start),
            |vec, more| vec.reserve_with(more, OnFull::Now),
        ];
        for reserve in verbs {
            let (_runtime, group) = group(1_000);
            let mut vec = ChargedVec::with_capacity(&group, 40).unwrap();
            vec.extend(0..40_u64).unwrap();
            let other = group.charge(224).unwrap();
            // Neither 80 items fit beside the 40 nor 60, but 57.
            reserve(&mut vec, 1).unwrap();
            assert_eq!((vec.capacity(), group.refused_count()), (57, 0));
            reserve(&mut vec, 18).unwrap_err();
            assert_eq!((vec.capacity(), group.refused_count()), (57, 1));
            drop(other);
            assert_paid(&vec, &group);
        }
    }

    #[test]
    fn an_extension_goes_as_far_as_there_is_room() {
        let (_runtime, group) = group(1_000);
        let mut vec = ChargedVec::new(&group);
        let mut items = 0..1_000_u64;
        let refused = vec.extend(items.by_ref()).unwrap_err();
        assert_eq!(refused.refused().group(), &group);
        let (item, _) = refused.into_parts();
        assert_eq!((item as usize, items.next()), (vec.len(), Some(item + 1)));
        assert_paid(&vec, &group);
    }

    #[test]
    fn items_of_no_size_cost_nothing() {
        let (_runtime, group) = group(0);
        let mut vec = ChargedVec::new(&group);
        vec.extend([(); 1_000]).unwrap();
        vec.reserve(usize::MAX - 1_000).unwrap();
        assert_eq!((vec.len(), group.live()), (1_000, 0));
    }

    /// A cache that has all the rest, and gives what is asked for.
    struct Rest(Mutex<Charge>);

    impl Reclaim for Rest {
        fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
            self.0.lock().unwrap().shrink(Bytes(want))
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri: it asks for more memory than there is")]
    fn a_size_hint_that_lies_adds_what_there_is() {
        struct Lies(std::vec::IntoIter<u64>);
        impl Iterator for Lies {
            type Item = u64;

            fn next(&mut self) -> Option<u64> {
                self.0.next()
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                (1 << 58, None)
            }
        }
        let (_runtime, group) = group(usize::MAX);
        let mut vec = ChargedVec::new(&group);
        vec.extend(Lies(vec![1, 2, 3].into_iter())).unwrap();
        assert_eq!(
            (&*vec, group.live()),
            (&[1, 2, 3][..], vec.capacity() as u64 * 8)
        );
    }

    /// The growth by reclaim is geometric: else each push would copy the vector.
    #[test]
    fn reclaim_makes_room_for_many_items_at_once() {
        let (_runtime, group) = group(1 << 20);
        let rest = Arc::new(Rest(Mutex::new(group.force_charge(1 << 20))));
        let _registration = group.register_reclaimer(rest, ReclaimPriority::NORMAL);
        let mut vec = ChargedVec::new(&group);
        let mut grown = 0;
        let mut capacity = 0;
        for item in 0..many(10_000) {
            vec.push(item).unwrap();
            grown += usize::from(vec.capacity() != capacity);
            capacity = vec.capacity();
        }
        assert!(grown < 40, "{grown}");
    }

    /// A wait does not ask for half more first, which would take its whole time.
    #[test]
    fn room_is_made_as_the_caller_says() {
        let (_runtime, group) = group(1_000);
        let mut vec: ChargedVec<u64> = ChargedVec::with_capacity(&group, 40).unwrap();
        let held = group.charge(600).unwrap();
        for full in [
            OnFull::IfRoom,
            OnFull::Now,
            OnFull::Reclaim,
            OnFull::Wait(Duration::from_millis(1)),
        ] {
            assert!(vec.reserve_with(50, full).is_err(), "{full:?}");
            assert_eq!(
                (vec.capacity(), vec.charge().bytes(), group.live()),
                (40, 320, 920),
                "{full:?}"
            );
        }
        let begun = Instant::now();
        let mut charge = held;
        let wait = Duration::from_secs(600);
        std::thread::scope(|scope| {
            let reserve = scope.spawn(|| vec.reserve_with(50, OnFull::Wait(wait)));
            while group.waiting_count() == 0 && !reserve.is_finished() {
                std::thread::yield_now();
            }
            charge.shrink(400);
            reserve.join().unwrap().unwrap();
        });
        assert!(vec.capacity() >= 50 && begun.elapsed() < wait);
    }

    #[test]
    fn a_wait_is_for_what_others_hold() {
        let (_runtime, group) = group(1_000);
        let mut context = Context::from_waker(Waker::noop());
        let held = group.charge(600).unwrap();
        let mut vec = ChargedVec::with_capacity(&group, 40).unwrap();
        {
            let mut reserve = pin!(vec.reserve_async(70));
            assert!(reserve.as_mut().poll(&mut context).is_pending());
            assert_eq!(group.waiting_count(), 1);
            drop(held);
            assert!(matches!(reserve.poll(&mut context), Poll::Ready(Ok(()))));
        }
        assert_paid(&vec, &group);
        let capacity = vec.capacity();
        vec.extend(vec![0_u64; capacity]).unwrap();
        // It holds more than half: it would wait for itself.
        assert!(
            matches!(
                pin!(vec.reserve_async(1)).poll(&mut context),
                Poll::Ready(Err(_))
            ),
            "it never fits"
        );
    }

    #[test]
    fn what_an_edit_does_is_charged_also_when_it_panics() {
        let (_runtime, group) = group(100);
        let mut vec = ChargedVec::new(&group);
        vec.edit(|vec| vec.reserve_exact(200));
        assert_eq!((group.live(), group.forced()), (200, 100));
        let edited = catch_unwind(AssertUnwindSafe(|| {
            vec.edit(|vec: &mut Vec<u8>| {
                vec.shrink_to(50);
                panic!("in the edit");
            })
        }));
        assert!(edited.is_err());
        assert_eq!((group.live(), group.forced()), (50, 0));
    }

    #[test]
    fn a_refused_write_adds_nothing() {
        let (_runtime, group) = group(100);
        let mut vec = ChargedVec::new(&group);
        write!(vec, "{:030}", 7).unwrap();
        let error = vec.write_all(&[0; 100]).unwrap_err();
        assert_eq!((error.kind(), vec.len()), (ErrorKind::OutOfMemory, 30));
        let refused = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<ChargeError>());
        assert_eq!(refused.map(ChargeError::group), Some(&group));
        assert_paid(&vec, &group);
    }
}
