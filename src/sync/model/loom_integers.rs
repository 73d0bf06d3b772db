//! Loom's integers, whose loads count as exchanges where a model is to try every order of them.
//!
//! Loom remembers one access for each word that a store may conflict with: the last. Two loads do
//! not conflict, so a thread's own load takes the place of another thread's. Every compare-exchange
//! loop loads a word before it exchanges it. So loom never tries the order in which such an
//! exchange comes before the other thread's load, whatever the bound of preemptions. (`last_access`
//! in `rt/atomic.rs` and `Execution::schedule` in loom 0.7.2.)
//!
//! A compare-exchange that fails conflicts with every access. With `LOOM_LOADS=exchanges` each load
//! is one, and loom tries all orders. Each load reads the latest value then: what rests on a load
//! of an older value shows only without the setting.

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The setting of the environment.
pub(crate) fn loads_are_exchanges() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| std::env::var("LOOM_LOADS").is_ok_and(|loads| loads == "exchanges"))
}

macro_rules! integer {
    ($name:ident: $value:ty) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        impl $name {
            #[allow(
                dead_code,
                reason = "the crate needs not each of these for every integer"
            )]
            pub(crate) fn new(value: $value) -> Self {
                $name(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                // Hardly a value that is there; where it is, it is stored again.
                const RARE: $value = <$value>::MAX / 5;
                if !loads_are_exchanges() {
                    return self.0.load(order);
                }
                self.0
                    .compare_exchange(RARE, RARE, order, order)
                    .unwrap_or_else(|now| now)
            }

            /// As loom has it, with the first load from here.
            #[allow(
                dead_code,
                reason = "the crate needs not each of these for every integer"
            )]
            #[track_caller]
            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut now = self.load(fetch);
                while let Some(next) = change(now) {
                    match self.0.compare_exchange(now, next, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(other) => now = other,
                    }
                }
                Err(now)
            }
        }

        impl Deref for $name {
            type Target = loom::sync::atomic::$name;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }
    };
}

integer!(AtomicI64: i64);
integer!(AtomicU32: u32);
integer!(AtomicU64: u64);
