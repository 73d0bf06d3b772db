//! `Charged`: a value and its charge.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::push_error::PushError;
use super::weigh::Weigh;
use crate::group::{Charge, ChargeError, Group};
use crate::units::IntoBytes;

/// A value together with the charge that pays for its memory. Its drop frees the value first, and
/// then gives the bytes back.
///
/// A struct that keeps a value and a [`Charge`] must declare the charge below the value, or the
/// bytes are given back before the memory is free. This type keeps that order wherever it is: in a
/// struct, a tuple, a channel, a cache.
///
/// It dereferences to the value, so its own functions take no `self`: `Charged::charge(&page)`. The
/// charge does not follow a value that grows or shrinks: call [`resize_to`](Self::resize_to) or
/// [`reweigh`](Self::reweigh).
///
/// Charge all memory that the value keeps from others, not only its contents: its own size, its
/// blocks on the heap with their spare capacity, and its place in what keeps it (a slot of a table,
/// an [`Arc`](std::sync::Arc)'s two counts). [`weighed`](Self::weighed) adds up the first two.
///
/// ```
/// use memcg::{Charged, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new().max(64 * 1024))?;
/// let page = Charged::make(&query, 64 * 1024, || vec![0_u8; 64 * 1024])?; // charged, then allocated
/// assert_eq!((page.len(), query.live()), (65_536, 65_536));
/// assert!(Charged::make(&query, 1, || 0_u8).is_err(), "refused, and nothing was made");
/// drop(page);
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once it gives the bytes back at once, and `let _ =` drops it at once: bind it to a name, as in `let _value =`"]
pub struct Charged<T> {
    // The order of the drops.
    value: T,
    charge: Charge,
    /// The most bytes of hash tables that a weighing has found: see [`Weigh::table_bytes`].
    tables: usize,
}

impl<T> Charged<T> {
    /// Puts a value and the charge that pays for it together. It charges nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// use memcg::Charged;
    ///
    /// let charge = runtime.root().charge_async(100).await?;
    /// let body = Charged::new(vec![0_u8; 100], charge);
    /// assert_eq!(Charged::charge(&body).bytes(), 100);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn new(value: T, charge: Charge) -> Self {
        Charged {
            value,
            charge,
            tables: 0,
        }
    }

    /// Charges `bytes` as [`Group::charge`] does, and then calls `make` for the value. If `make`
    /// panics, the bytes are given back. It may block: in async code charge with
    /// [`charge_async`](Group::charge_async), and use [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// [`ChargeError`]; `make` was not called.
    pub fn make(
        group: &Group,
        bytes: impl IntoBytes,
        make: impl FnOnce() -> T,
    ) -> Result<Self, ChargeError> {
        let charge = group.charge(bytes)?;
        Ok(Charged::new(make(), charge))
    }

    /// Charges `bytes` as [`Group::try_charge`] does, and then calls `make` for the value. Apart
    /// from what `make` does, it never blocks.
    ///
    /// # Errors
    ///
    /// [`ChargeError`]; `make` was not called.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// use memcg::Charged;
    ///
    /// let body = Charged::try_make(&runtime.root(), 80, || vec![0_u8; 80])?;
    /// assert!(Charged::try_make(&runtime.root(), 21, || vec![0_u8; 21]).is_err());
    /// # drop(body);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_make(
        group: &Group,
        bytes: impl IntoBytes,
        make: impl FnOnce() -> T,
    ) -> Result<Self, ChargeError> {
        let charge = group.try_charge(bytes)?;
        Ok(Charged::new(make(), charge))
    }

    /// Returns the charge.
    pub const fn charge(this: &Self) -> &Charge {
        &this.charge
    }

    /// Turns the value into another one, which keeps the charge. If `make` panics, the bytes are
    /// given back.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// use memcg::Charged;
    ///
    /// let text = Charged::make(&runtime.root(), 3, || String::from("abc"))?;
    /// let bytes = Charged::map(text, String::into_bytes); // the same memory
    /// assert_eq!((bytes.as_slice(), runtime.root().live()), (&b"abc"[..], 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn map<U>(this: Self, make: impl FnOnce(T) -> U) -> Charged<U> {
        let Charged { value, charge, .. } = this;
        Charged::new(make(value), charge)
    }

    /// Takes the value and the charge apart. From here on it is up to the caller to drop the value
    /// before the charge. Two variables are dropped in the reverse order of their `let`, so keep
    /// the two in one tuple, or drop the value by hand.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// use memcg::Charged;
    ///
    /// let page = Charged::make(&runtime.root(), 4096, || vec![0_u8; 4096])?;
    /// let (bytes, charge) = Charged::into_parts(page);
    /// drop(bytes);
    /// assert_eq!(charge.bytes(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_parts(this: Self) -> (T, Charge) {
        (this.value, this.charge)
    }

    /// Changes the charge to exactly `bytes`, as [`Charge::resize`] does. Call it before the value
    /// grows, and after it has become smaller. It may block if the charge has to grow.
    ///
    /// # Errors
    ///
    /// [`ChargeError`] if it has to grow and cannot; the charge is as it was.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// use memcg::Charged;
    ///
    /// let mut page = Charged::make(&runtime.root(), 4096, || vec![0_u8; 4096])?;
    /// page.truncate(100);
    /// page.shrink_to_fit();
    /// let bytes = page.capacity();
    /// Charged::resize_to(&mut page, bytes)?;
    /// assert_eq!(runtime.root().live(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resize_to(this: &mut Self, bytes: impl IntoBytes) -> Result<(), ChargeError> {
        this.charge.resize(bytes)
    }

    /// The value and the charge, for what keeps the two in step.
    pub(super) fn parts_mut(this: &mut Self) -> (&mut T, &mut Charge) {
        (&mut this.value, &mut this.charge)
    }
}

impl<T: Weigh> Charged<T> {
    /// Charges `group` for a value that exists already: for its own size, `size_of::<T>()`, and for
    /// [the heap behind it](Weigh). It may block, as [`Group::charge`].
    ///
    /// A hash table of the standard library that removals have thinned out weighs less than it
    /// occupies, which cannot be seen from outside: [shrink](Weigh::shrink_heap) such a table
    /// before it is charged. Afterwards the charge keeps the largest table that it has seen: see
    /// [`reweigh`](Self::reweigh).
    ///
    /// # Errors
    ///
    /// [`PushError`] gives the value back. `?` makes a [`ChargeError`] of it, which drops the
    /// value.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// use memcg::Charged;
    ///
    /// let name = Charged::weighed(&runtime.root(), String::from("acme"))?;
    /// assert_eq!(runtime.root().live(), 24 + 4, "three words, and the text");
    /// let point = Charged::weighed(&runtime.root(), (1.0_f64, 2.0_f64))?;
    /// assert_eq!(runtime.root().live(), 28 + 16);
    /// let (kept, refused) = Charged::weighed(&runtime.root(), vec![0_u8; 97]).unwrap_err().into_parts();
    /// assert_eq!((kept.len(), refused.group()), (97, &runtime.root()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(
        clippy::result_large_err,
        reason = "the item comes back in place: no memory is allocated for it"
    )]
    pub fn weighed(group: &Group, value: T) -> Result<Self, PushError<T>> {
        let (bytes, tables) = weight(&value, 0);
        match group.charge(bytes) {
            Ok(charge) => Ok(Charged {
                value,
                charge,
                tables,
            }),
            Err(refused) => Err(PushError::new(value, refused, 0)),
        }
    }

    /// Charges `group` for a value that exists already, as [`weighed`](Self::weighed) does, but
    /// never blocks: it charges as [`Group::try_charge`].
    ///
    /// # Errors
    ///
    /// [`PushError`] has the value.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// use memcg::Charged;
    ///
    /// let name = Charged::try_weighed(&runtime.root(), String::from("acme"))?;
    /// let refused = Charged::try_weighed(&runtime.root(), vec![0_u8; 200]).unwrap_err();
    /// assert_eq!(refused.into_parts().0.len(), 200);
    /// # drop(name);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(
        clippy::result_large_err,
        reason = "the item comes back in place: no memory is allocated for it"
    )]
    pub fn try_weighed(group: &Group, value: T) -> Result<Self, PushError<T>> {
        let (bytes, tables) = weight(&value, 0);
        match group.try_charge(bytes) {
            Ok(charge) => Ok(Charged {
                value,
                charge,
                tables,
            }),
            Err(refused) => Err(PushError::new(value, refused, 0)),
        }
    }

    /// Weighs the value anew, and changes the charge to what it weighs now. If that is more, it is
    /// charged whatever the limits say, because the memory exists already, and [`Group::forced`]
    /// counts what is above max. It never blocks, and costs a look at each item that may hold
    /// something.
    ///
    /// Hash tables of the standard library keep their memory when entries are removed, and do not
    /// show it. So for the tables of the value the charge stays at the most that a weighing has
    /// found, until [`shrink_to_fit`](Self::shrink_to_fit). Weigh a table when it is large, before
    /// entries are removed, or the charge never learns of it.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// use memcg::Charged;
    /// use std::collections::HashMap;
    ///
    /// let mut rows = Charged::weighed(&runtime.root(), HashMap::<u64, Vec<u8>>::new())?;
    /// rows.extend((0..100).map(|row| (row, vec![0; 1_000])));
    /// Charged::reweigh(&mut rows);
    /// let full = runtime.root().live();
    /// rows.retain(|&row, _| row == 7);
    /// Charged::reweigh(&mut rows);
    /// assert_eq!(full - runtime.root().live(), 99_000, "the values have gone, and the table is there");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reweigh(this: &mut Self) {
        // Mutation: a-table-that-looks-smaller-is-uncharged
        let (bytes, tables) = weight(&this.value, this.tables);
        this.tables = tables;
        this.charge.force_resize(bytes);
    }

    /// Frees what the value has allocated and does not need ([`Weigh::shrink_heap`]), and changes
    /// the charge to what is left. It is the only way to lower the charge for a hash table that was
    /// thinned out: the charge does not notice the table's own `shrink_to_fit`.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// use memcg::Charged;
    /// use std::collections::HashSet;
    ///
    /// let mut seen = Charged::weighed(&runtime.root(), (0..100_000_u64).collect::<HashSet<_>>())?;
    /// seen.retain(|&key| key == 7);
    /// Charged::shrink_to_fit(&mut seen);
    /// assert!(runtime.root().live() < 200);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink_to_fit(this: &mut Self) {
        this.value.shrink_heap();
        this.tables = 0;
        Charged::reweigh(this);
    }
}

/// The bytes that a value is charged for, where tables of so many bytes were seen before, and the
/// most bytes of tables by now.
fn weight<T: Weigh>(value: &T, seen: usize) -> (usize, usize) {
    let (heap, tables) = (value.heap_bytes(), value.table_bytes());
    let most = tables.max(seen);
    let bytes = size_of::<T>()
        .saturating_add(heap.saturating_sub(tables))
        .saturating_add(most);
    (bytes, most)
}

impl<T> Deref for Charged<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Charged<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// With this a charged buffer can own a `bytes::Bytes`, which then stays charged until its last
/// clone is gone.
impl<T: AsRef<U>, U: ?Sized> AsRef<U> for Charged<T> {
    fn as_ref(&self) -> &U {
        self.value.as_ref()
    }
}

impl<T: fmt::Debug> fmt::Debug for Charged<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charged")
            .field("value", &self.value)
            .field("charge", &self.charge)
            .finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::sync::many;
    use crate::{Limits, Runtime};

    /// Asserts in its drop that its bytes are still charged.
    struct Pays(Group, u64);

    impl Drop for Pays {
        fn drop(&mut self) {
            assert_eq!(self.0.live(), self.1);
        }
    }

    fn ten(runtime: &Runtime) -> (Group, Charged<Pays>) {
        let group = runtime.root().create("q", Limits::new().max(10)).unwrap();
        let value = Charged::make(&group, 10, || Pays(group.clone(), 10)).unwrap();
        (group, value)
    }

    #[test]
    fn the_value_goes_before_its_charge() {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let (group, value) = ten(&runtime);
        drop(Charged::map(value, |value| (1, value)));
        assert_eq!(group.live(), 0);
        let value = Charged::make(&group, 10, || Pays(group.clone(), 10)).unwrap();
        drop(Charged::into_parts(value)); // a tuple has the same order
        assert_eq!(group.live(), 0);
        assert!(runtime.verify().is_ok());
    }

    #[test]
    fn a_panic_while_it_is_mapped_gives_back() {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let (group, value) = ten(&runtime);
        let mapped = catch_unwind(AssertUnwindSafe(|| {
            Charged::map(value, |_value| -> u8 { panic!("in the map") })
        }));
        assert_eq!((mapped.is_err(), group.live()), (true, 0));
    }

    #[test]
    fn a_refusal_makes_nothing_and_changes_nothing() {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let (group, mut value) = ten(&runtime);
        assert!(Charged::<u8>::make(&group, 1, || unreachable!("refused")).is_err());
        assert!(Charged::resize_to(&mut value, 11).is_err());
        assert_eq!(Charged::charge(&value).bytes(), 10);
    }

    #[test]
    fn a_value_is_weighed_anew() {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let own = size_of::<String>() as u64;
        let group = runtime
            .root()
            .create("text", Limits::new().max(34))
            .unwrap();
        let mut text = Charged::weighed(&group, String::with_capacity(10)).unwrap();
        text.push_str("more than ten bytes");
        Charged::reweigh(&mut text);
        let heap = text.capacity() as u64;
        assert_eq!(
            (group.live(), group.forced()),
            (own + heap, own + heap - 34)
        );
        text.clear();
        text.shrink_to_fit();
        Charged::reweigh(&mut text);
        assert_eq!(group.live(), own);
    }

    /// A value costs its own size also where nothing is behind it.
    #[test]
    fn plain_values_are_bounded() {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let group = runtime.root().create("q", Limits::new().max(1024)).unwrap();
        let point = || Charged::weighed(&group, (1.0_f64, 2.0_f64)).ok();
        let points: Vec<_> = std::iter::from_fn(point).collect();
        assert_eq!(points.len(), 1024 / 16);
    }

    #[test]
    fn the_largest_table_stays_charged_until_it_is_shrunk() {
        use std::collections::HashMap;
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let group = runtime.root();
        // As many as fill a table.
        let keys = many(28_672);
        let map: HashMap<u64, u64> = (0..keys).map(|key| (key, key)).collect();
        let mut map = Charged::weighed(&group, map).unwrap();
        let full = group.live();
        for key in 0..keys {
            map.remove(&key);
        }
        Charged::reweigh(&mut map);
        assert_eq!(group.live(), full);
        map.insert(1, 1);
        map.shrink_to_fit(); // of the table, which the charge does not see
        Charged::reweigh(&mut map);
        assert_eq!(group.live(), full);
        Charged::shrink_to_fit(&mut map);
        let own = size_of::<HashMap<u64, u64>>() + map.heap_bytes();
        assert_eq!(group.live(), own as u64);
        assert!(group.live() < 200);
        Charged::reweigh(&mut map);
        assert_eq!(group.live(), own as u64);
    }
}
