//! Values that carry their charge: one value, a vector that charges before it grows, a gauge of
//! memory that is reported, and what a value weighs.

mod charged;
mod charged_vec;
#[cfg(feature = "bytes")]
mod fill;
mod gauge;
mod push_error;
mod weigh;

pub use charged::Charged;
pub use charged_vec::ChargedVec;
pub use gauge::Gauge;
pub use push_error::PushError;
pub use weigh::Weigh;
