//! A vector whose memory is charged to a group before it grows.
//!
//! ```text
//! cargo run --example vector
//! ```

use std::error::Error;

use memcg::{Bytes, Charge, ChargeError, Group, Limit, Limits, Runtime};

/// Why a value was not pushed, and the value.
struct PushError<T> {
    value: T,
    reason: ChargeError,
}

struct ChargedVec<T> {
    items: Vec<T>,
    charge: Charge, // below `items`, so that the memory is freed first
}

impl<T> ChargedVec<T> {
    /// Makes an empty vector, which takes no memory.
    fn new_in(group: &Group) -> Self {
        Self { items: Vec::new(), charge: group.force_charge(0) }
    }

    fn push(&mut self, value: T) -> Result<(), PushError<T>> {
        if self.items.len() == self.items.capacity()
            && let Err(reason) = self.double()
        {
            return Err(PushError { value, reason });
        }
        self.items.push(value);
        Ok(())
    }

    /// Doubles the capacity; where that does not fit, takes what is left, and at least one item.
    fn double(&mut self) -> Result<(), ChargeError> {
        let double = self.items.capacity().max(4);
        self.reserve_exact(double).or_else(|_| {
            let room = usize::try_from(self.charge.group().headroom()).unwrap_or(usize::MAX);
            self.reserve_exact((room / size_of::<T>()).clamp(1, double))
        })
    }

    fn reserve_exact(&mut self, more: usize) -> Result<(), ChargeError> {
        self.charge.try_grow(more.saturating_mul(size_of::<T>()))?;
        self.items.reserve_exact(more);
        self.settle();
        Ok(())
    }

    fn shrink_to_fit(&mut self) {
        self.items.shrink_to_fit();
        self.settle();
    }

    /// Brings the charge to the capacity: an allocator may give more than the vector asked for.
    fn settle(&mut self) {
        let Bytes(has) = Bytes::from(self.items.capacity() * size_of::<T>());
        let charged = self.charge.bytes();
        self.charge.force_grow(Bytes(has.saturating_sub(charged)));
        self.charge.shrink(Bytes(charged.saturating_sub(has)));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().max(Limit::mib(64)).audit(true).build()?;
    let query = runtime.root().create("q17", Limits::new().max(Limit::mib(1)))?;
    let mut rows = ChargedVec::new_in(&query);
    let refused = (0_u64..).find_map(|number| rows.push([number; 3]).err()).ok_or("the rows never met the max")?;
    println!("{} rows, {} of {}", rows.items.len(), Bytes(query.live()), Bytes(query.max()));
    println!("row {:?} came back: {}", refused.value, refused.reason);

    rows.items.truncate(1_000);
    rows.shrink_to_fit();
    println!("{} rows, {} bytes", rows.items.len(), query.live());
    drop(rows);
    assert_eq!((query.live(), query.forced()), (0, 0));
    println!("{}", runtime.verify());
    Ok(())
}
