//! A refusal as a client of gRPC gets it.

use axum::body::Body;
use http::Request;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Empty};
use memcg_tower::RefusalKind;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{InBody, KIB, Scene, ok, request, sized};

/// A field of a message in the wire format of protocol buffers.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>, u64)> {
    fn varint(from: &mut &[u8]) -> u64 {
        let mut value = 0;
        let mut shift = 0;
        loop {
            let byte = from[0];
            *from = &from[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let number = varint(&mut message);
        let bytes = match key & 7 {
            0 => Vec::new(),
            2 => {
                let (bytes, rest) = message.split_at(number as usize);
                message = rest;
                bytes.to_vec()
            }
            kind => panic!("a field of kind {kind}"),
        };
        fields.push((key >> 3, bytes, number));
    }
    fields
}

#[tokio::test]
async fn grpc_gets_a_status_with_details() {
    use base64::Engine;
    let scene = Scene::new();
    let service = scene
        .layer()
        .layer(service_fn(|_: Request<InBody>| async { ok("") }));
    let held = scene.acme.force_charge(100 * KIB);
    let mut call = sized("acme", 10);
    call.headers_mut()
        .insert(CONTENT_TYPE, "application/grpc+proto".parse().unwrap());
    let response = service.clone().oneshot(call).await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()[CONTENT_TYPE].to_str().unwrap()
        ),
        (200, "application/grpc")
    );
    assert_eq!(response.headers()["grpc-status"], "8");
    let message = response.headers()["grpc-message"]
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(message, RefusalKind::TenantFull.sentence());
    let details = response.headers()["grpc-status-details-bin"].clone();
    let status = base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(details)
        .unwrap();
    let status = fields(&status);
    assert_eq!((status[0].0, status[0].2), (1, 8));
    assert_eq!(
        (status[1].0, String::from_utf8(status[1].1.clone()).unwrap()),
        (2, message.clone())
    );
    let details: Vec<_> = status[2..].iter().map(|(_, any, _)| fields(any)).collect();
    assert_eq!(details[0][0].1, b"type.googleapis.com/google.rpc.RetryInfo");
    let delay = fields(&fields(&details[0][1].1)[0].1);
    assert!(
        delay[0].0 == 1 && (1..=4).contains(&delay[0].2),
        "a second, and spread: {delay:?}"
    );
    assert_eq!(
        details[1][0].1,
        b"type.googleapis.com/google.rpc.QuotaFailure"
    );
    let violation = fields(&fields(&details[1][1].1)[0].1);
    assert_eq!(
        (violation[0].1.as_slice(), violation[1].1.as_slice()),
        (&b"tenant"[..], message.as_bytes())
    );
    assert!(
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .is_empty()
    );
    drop(held);
    let mut call = request("acme", Body::new(Empty::new()));
    call.headers_mut()
        .insert(CONTENT_TYPE, "application/grpc".parse().unwrap());
    assert!(
        service
            .oneshot(call)
            .await
            .unwrap()
            .headers()
            .get("grpc-status")
            .is_none(),
        "admitted"
    );
    scene.assert_given_back();
}

/// Without a time to come back: another server may have the tenant.
#[tokio::test]
async fn a_tenant_that_is_offline_is_unavailable() {
    use base64::Engine;
    let scene = Scene::new();
    let service = scene
        .layer()
        .layer(service_fn(|_: Request<InBody>| async { ok("") }));
    scene.acme.offline().unwrap();
    let mut call = sized("acme", 10);
    call.headers_mut()
        .insert(CONTENT_TYPE, "application/grpc".parse().unwrap());
    let response = service.oneshot(call).await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()["grpc-status"].to_str().unwrap()
        ),
        (200, "14")
    );
    let message = response.headers()["grpc-message"].to_str().unwrap();
    assert_eq!(message, RefusalKind::Offline.sentence());
    let details = response.headers()["grpc-status-details-bin"].clone();
    let status = fields(
        &base64::engine::general_purpose::STANDARD_NO_PAD
            .decode(details)
            .unwrap(),
    );
    assert_eq!(
        (status[0].0, status[0].2, status[1].1.as_slice()),
        (1, 14, message.as_bytes())
    );
    assert_eq!(status.len(), 2, "no quota is exceeded");
    scene.assert_given_back();
}
