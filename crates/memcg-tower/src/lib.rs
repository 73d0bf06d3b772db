#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

/// The chapter of the book, so that its code is tested.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/requests.md")]
struct Chapter;

mod account;
mod answer;
mod body;
mod future;
mod grpc;
mod hold;
mod layer;
mod order;
mod protocol;
mod refusal;
mod service;
mod settings;
mod stages;

pub use account::Admitted;
pub use body::{BodyError, RequestBody, ResponseBody};
pub use future::ResponseFuture;
pub use layer::AdmissionLayer;
pub use refusal::{Refusal, Verdict};
pub use service::Admission;
