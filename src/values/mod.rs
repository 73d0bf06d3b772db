//! Values that carry their charge: one value, a vector that charges before it grows, and what a
//! value weighs.

mod charged;
mod charged_vec;
#[cfg(feature = "bytes")]
mod fill;
mod push_error;
mod weigh;

pub use charged::Charged;
pub use charged_vec::ChargedVec;
pub use push_error::PushError;
pub use weigh::Weigh;
