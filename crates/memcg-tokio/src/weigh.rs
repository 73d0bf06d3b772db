//! `Weigh`: how many bytes a message holds.

/// The bytes that a value holds on the heap. A [`channel`](crate::channel) charges them, and the value's own size.
///
/// A weight is read when the value is sent, and is not read again. What two values share, as an `Arc` does, each would
/// count: such a type has no weight here, and a wrapper of yours says what it means.
///
/// ```
/// use memcg_tokio::Weigh;
///
/// struct Row { key: String, cells: Vec<Vec<u8>> }
///
/// impl Weigh for Row {
///     fn weigh(&self) -> usize {
///         self.key.weigh() + self.cells.weigh()
///     }
/// }
///
/// let row = Row { key: String::with_capacity(100), cells: Vec::new() };
/// assert_eq!(row.weigh(), 100);
/// ```
pub trait Weigh {
    /// Returns the bytes that the value holds, without its own size: the capacity of a vector, not its length. A sender
    /// calls it once for each message.
    fn weigh(&self) -> usize;

    /// Returns the weight of all values together. Types that hold nothing return 0 without a look at each.
    fn weigh_all(values: &[Self]) -> usize
    where
        Self: Sized,
    {
        values.iter().fold(0, |sum, value| sum.saturating_add(value.weigh()))
    }
}

macro_rules! hold_nothing {
    ($($type:ty)*) => {$(
        impl Weigh for $type {
            fn weigh(&self) -> usize {
                0
            }

            fn weigh_all(_: &[Self]) -> usize {
                0
            }
        }
    )*};
}

hold_nothing!(() bool char f32 f64 i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize);
hold_nothing!(std::time::Duration std::time::Instant std::time::SystemTime std::net::SocketAddr);

/// What lives as long as the program belongs to no message.
impl<T: ?Sized> Weigh for &'static T {
    fn weigh(&self) -> usize {
        0
    }
}

impl<T, const N: usize> Weigh for [T; N]
where
    T: Weigh,
{
    fn weigh(&self) -> usize {
        T::weigh_all(self)
    }
}

impl<T: Weigh> Weigh for Vec<T> {
    fn weigh(&self) -> usize {
        (self.capacity() * size_of::<T>()).saturating_add(T::weigh_all(self))
    }
}

impl<T: Weigh> Weigh for std::collections::VecDeque<T> {
    fn weigh(&self) -> usize {
        let (front, back) = self.as_slices();
        (self.capacity() * size_of::<T>()).saturating_add(T::weigh_all(front)).saturating_add(T::weigh_all(back))
    }
}

impl<T: Weigh> Weigh for Box<T> {
    fn weigh(&self) -> usize {
        size_of::<T>().saturating_add(T::weigh(self))
    }
}

impl<T: Weigh> Weigh for Box<[T]> {
    fn weigh(&self) -> usize {
        size_of_val::<[T]>(self).saturating_add(T::weigh_all(self))
    }
}

impl Weigh for Box<str> {
    fn weigh(&self) -> usize {
        self.len()
    }
}

impl Weigh for String {
    fn weigh(&self) -> usize {
        self.capacity()
    }
}

impl<T: Weigh> Weigh for Option<T> {
    fn weigh(&self) -> usize {
        self.as_ref().map_or(0, Weigh::weigh)
    }
}

impl<T: Weigh, E: Weigh> Weigh for Result<T, E> {
    fn weigh(&self) -> usize {
        match self {
            Ok(value) => value.weigh(),
            Err(error) => error.weigh(),
        }
    }
}

macro_rules! tuples {
    ($(($($name:ident)+))*) => {$(
        impl<$($name: Weigh),+> Weigh for ($($name,)+) {
            fn weigh(&self) -> usize {
                #[allow(non_snake_case, reason = "each value is named as its type")]
                let ($($name,)+) = self;
                let sum = 0_usize;
                $(let sum = sum.saturating_add($name.weigh());)+
                sum
            }
        }
    )*};
}

tuples!((A)(A B)(A B C)(A B C D));

/// The bytes that the value shows. A short slice of a long buffer keeps all of the buffer: copy it before it is sent.
#[cfg(feature = "bytes")]
impl Weigh for bytes::Bytes {
    fn weigh(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "bytes")]
impl Weigh for bytes::BytesMut {
    fn weigh(&self) -> usize {
        self.capacity()
    }
}
