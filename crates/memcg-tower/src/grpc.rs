//! A refusal as gRPC says it: trailers alone, with the details of `google.rpc`.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::refusal::Refusal;

const UNKNOWN: u8 = 2;
const INVALID_ARGUMENT: u8 = 3;
const DEADLINE_EXCEEDED: u8 = 4;
const NOT_FOUND: u8 = 5;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNAVAILABLE: u8 = 14;
const UNAUTHENTICATED: u8 = 16;

fn code(refusal: &Refusal) -> u8 {
    match refusal.status {
        // With a time to come back a group is full; without one the tenant is offline.
        _ if refusal.retry_after.is_some() => RESOURCE_EXHAUSTED,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => RESOURCE_EXHAUSTED,
        StatusCode::REQUEST_TIMEOUT => DEADLINE_EXCEEDED,
        StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
        StatusCode::BAD_REQUEST => INVALID_ARGUMENT,
        StatusCode::UNAUTHORIZED => UNAUTHENTICATED,
        StatusCode::FORBIDDEN => PERMISSION_DENIED,
        StatusCode::NOT_FOUND => NOT_FOUND,
        _ => UNKNOWN,
    }
}

/// The characters that the text of a status encodes: all but printable ASCII, and the percent sign.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

pub(crate) fn response(refusal: &Refusal, content_type: &'static str) -> Response<Bytes> {
    let code = code(refusal);
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert("grpc-status", HeaderValue::from(u16::from(code)));
    let details = STANDARD_NO_PAD.encode(status(code, refusal));
    let values = [
        (
            "grpc-message",
            utf8_percent_encode(refusal.sentence(), ENCODED).to_string(),
        ),
        ("grpc-status-details-bin", details),
    ];
    for (name, value) in values {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    response
}

/// `google.rpc.Status`:
///
/// `int32 code = 1; string message = 2; repeated google.protobuf.Any details = 3`
fn status(code: u8, refusal: &Refusal) -> Vec<u8> {
    let mut status = Vec::new();
    number(&mut status, 1, u64::from(code));
    bytes(&mut status, 2, refusal.sentence().as_bytes());
    if let Some(time) = refusal.retry_after {
        any(
            &mut status,
            "type.googleapis.com/google.rpc.RetryInfo",
            &retry_info(time),
        );
    }
    if let Some(subject) = refusal.kind.subject() {
        any(
            &mut status,
            "type.googleapis.com/google.rpc.QuotaFailure",
            &quota_failure(subject, refusal.sentence()),
        );
    }
    status
}

/// `google.protobuf.Any` in `details`: `string type_url = 1; bytes value = 2`.
fn any(status: &mut Vec<u8>, url: &str, value: &[u8]) {
    let mut any = Vec::new();
    bytes(&mut any, 1, url.as_bytes());
    bytes(&mut any, 2, value);
    bytes(status, 3, &any);
}

/// `google.protobuf.Duration retry_delay = 1`, of `int64 seconds = 1; int32 nanos = 2`.
fn retry_info(time: Duration) -> Vec<u8> {
    let mut info = Vec::new();
    let mut delay = Vec::new();
    number(&mut delay, 1, time.as_secs());
    if time.subsec_nanos() > 0 {
        number(&mut delay, 2, u64::from(time.subsec_nanos()));
    }
    bytes(&mut info, 1, &delay);
    info
}

/// `repeated Violation violations = 1`, of `string subject = 1; string description = 2`.
fn quota_failure(subject: &str, text: &str) -> Vec<u8> {
    let mut failure = Vec::new();
    let mut violation = Vec::new();
    bytes(&mut violation, 1, subject.as_bytes());
    bytes(&mut violation, 2, text.as_bytes());
    bytes(&mut failure, 1, &violation);
    failure
}

// === The wire format of protocol buffers ===

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn number(to: &mut Vec<u8>, field: u64, value: u64) {
    varint(to, field << 3);
    varint(to, value);
}

fn bytes(to: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(to, field << 3 | 2);
    varint(to, value.len() as u64);
    to.extend_from_slice(value);
}
