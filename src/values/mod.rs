//! Values that carry their charge: one value, a vector that charges before it grows, and what a value weighs.

mod charged;
mod charged_vec;
#[cfg(feature = "bytes")]
mod fill;
mod weigh;

pub use charged::Charged;
pub use charged_vec::{ChargedVec, PushError};
pub use weigh::Weigh;
