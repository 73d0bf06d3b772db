#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

/// The chapter of the book, so that its code is tested.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/requests.md")]
struct Chapter;

mod account;
mod answer;
mod body;
mod clock;
#[cfg(feature = "tokio")]
mod connection;
#[cfg(feature = "axum")]
mod extract;
mod figures;
mod frame;
mod future;
mod grpc;
mod hold;
mod layer;
mod ledger;
mod log;
mod meter;
mod order;
mod pace;
mod protocol;
mod refusal;
mod request_body;
mod sends;
mod service;
mod settings;
mod stages;
mod upgrade;
mod verdict;

pub use account::AdmittedRequest;
pub use body::ResponseBody;
#[cfg(feature = "axum")]
pub use connection::PacedListener;
#[cfg(feature = "tokio")]
pub use connection::{ConnectionPace, NotTakenError, PacedConnection};
#[cfg(feature = "axum")]
pub use extract::NotAdmittedError;
pub use figures::{AdmissionFigures, RefusalKind, WaitTimes};
pub use frame::{BodyError, OutgrownError, TooSlowError};
pub use future::ResponseFuture;
pub use layer::AdmissionLayer;
pub use ledger::PromisedBytes;
pub use meter::{Meter, MeterLayer, Metered};
pub use refusal::Refusal;
pub use request_body::RequestBody;
pub use service::Admission;
pub use settings::RequestWeight;
pub use upgrade::KeptConnection;
pub use verdict::Classification;
