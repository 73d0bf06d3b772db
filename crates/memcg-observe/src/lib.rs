#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

#[cfg(any(
    feature = "openmetrics",
    feature = "metrics",
    feature = "opentelemetry",
    feature = "tracing"
))]
mod clock;
#[cfg(all(feature = "endpoint", unix))]
mod endpoint;
#[cfg(any(
    feature = "openmetrics",
    feature = "metrics",
    feature = "opentelemetry"
))]
mod exposition;
#[cfg(feature = "metrics")]
mod facade;
mod files;
#[cfg(feature = "axum")]
mod http;
mod json;
#[cfg(any(
    feature = "openmetrics",
    feature = "metrics",
    feature = "opentelemetry"
))]
mod names;
#[cfg(feature = "openmetrics")]
mod openmetrics;
#[cfg(feature = "openmetrics")]
mod page;
pub mod protocol;
#[cfg(feature = "opentelemetry")]
mod telemetry;
#[cfg(feature = "tracing")]
mod trace;

#[cfg(all(feature = "endpoint", unix))]
pub use endpoint::{Endpoint, EndpointGuard, serve};
#[cfg(any(
    feature = "openmetrics",
    feature = "metrics",
    feature = "opentelemetry"
))]
pub use exposition::Exposition;
pub use files::{FileError, GroupFile, read, write};
pub use json::json;
#[cfg(feature = "opentelemetry")]
pub use telemetry::ObserveGuard;
#[cfg(feature = "tracing")]
pub use trace::{TRACED_A_SECOND, TraceGuard, trace};

/// The content type of [`Exposition::openmetrics`].
#[cfg(feature = "openmetrics")]
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The content type of [`Exposition::text`].
#[cfg(feature = "openmetrics")]
pub const TEXT_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
