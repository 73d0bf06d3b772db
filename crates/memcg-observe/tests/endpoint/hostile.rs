//! Lines that are no questions.

use serde_json::json;

use crate::Service;

#[test]
fn what_is_no_question() {
    let service = Service::new(true);
    let mut client = service.client();
    for text in [
        "",
        "{}",
        "null",
        "[]",
        "{\"get\":{}}",
        "{\"get\":{\"path\":\"/\"}}",
        "{\"metrics\":{\"x\":1}}",
        "get / memory.max",
        "{\"drop\":{}}",
        "\u{0}",
        "{\"get\":{\"path\":1,\"file\":2}}",
    ] {
        client.say(format!("{text}\n").as_bytes());
        let answer = client.line().expect("an answer");
        assert!(
            answer["error"]
                .as_str()
                .is_some_and(|error| error.starts_with("no question: ")),
            "{text:?}: {answer}"
        );
    }
    client.say(b"\xff\xfe{\n");
    assert!(
        client
            .line()
            .is_some_and(|answer| answer["error"].is_string())
    );
    // A line that never ends: an error, and the end.
    let mut client = service.client();
    client.say(&[b'x'; 4 << 10]);
    assert_eq!(
        client.line(),
        Some(json!({"error": "the question is longer than 4 KiB"}))
    );
    assert_eq!(client.line(), None);
    assert_eq!(
        service
            .client()
            .ask(&json!({"get": {"path": "/", "file": "memory.max"}})),
        json!({"ok": "max\n"})
    );
}

/// Random bytes and broken questions: each line is answered, and the service lives.
#[test]
fn any_bytes() {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    let service = Service::new(true);
    let mut random = StdRng::seed_from_u64(11);
    let whole = json!({"rows": {"path": "/acme", "depth": 1, "top": 3}}).to_string();
    let mut client = service.client();
    for _ in 0..3_000 {
        let mut line = whole.clone().into_bytes();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..=line.len());
            match random.random_range(0..3) {
                0 if at < line.len() => line[at] = random.random(),
                1 => line.insert(at, b"{}[]\",:\\0e-9"[random.random_range(0..12)]),
                _ => line.truncate(at),
            }
        }
        line.retain(|&byte| byte != b'\n');
        line.push(b'\n');
        client.say(&line);
        let answer = client.line().expect("an answer");
        assert!(
            answer.get("ok").is_some() != answer.get("error").is_some(),
            "{answer}"
        );
    }
}
