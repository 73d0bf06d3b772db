//! Any bytes as questions to a socket of `memcg-observe`: each line gets one answer, and the
//! service lives.
//!
//! Under `cargo fuzz` this is a libFuzzer target; built without it, see `fuzz/replay.rs` of the
//! crate.
#![cfg_attr(fuzzing, no_main)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use memcg::{Group, Limits, Runtime};
use memcg_observe::protocol::Answer;
use memcg_observe::{Endpoint, EndpointGuard};
use serde_json::Value;

/// A longer line is answered once, and its client is dropped.
const LINE_MAX: usize = 4 << 10;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));

struct Service {
    client: Mutex<BufReader<UnixStream>>,
    _groups: Vec<Group>,
    _serving: EndpointGuard,
}

impl Service {
    fn new() -> Service {
        let runtime = Runtime::builder().build().expect("no odd setting");
        let acme = runtime
            .root()
            .create("acme", Limits::new().max(1 << 20))
            .expect("a free name");
        let query = acme.create("q17", Limits::new()).expect("a free name");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let serving = Endpoint::new(&runtime)
            .allow_set(true)
            .serve(folder.path().join("s"))
            .expect("a new socket");
        let _ = query.charge(2 << 20).expect_err("more than its max");
        let stream = UnixStream::connect(serving.path()).expect("the service listens");
        // Far more than any answer takes: without it a missing answer would be no finding.
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a time");
        let client = Mutex::new(BufReader::new(stream));
        // The folder goes: the client is connected, and a fuzzer's run drops nothing at its end.
        Service {
            client,
            _groups: vec![acme, query],
            _serving: serving,
        }
    }
}

fn run(data: &[u8]) {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    let mut said = data.to_vec();
    said.push(b'\n');
    if said
        .split(|&byte| byte == b'\n')
        .any(|line| line.len() + 1 >= LINE_MAX)
    {
        return;
    }
    let mut client = SERVICE
        .get_or_init(Service::new)
        .client
        .lock()
        .expect("no panic before");
    client
        .get_mut()
        .write_all(&said)
        .expect("the service reads");
    for _ in said.iter().filter(|&&byte| byte == b'\n') {
        let mut line = String::new();
        client.read_line(&mut line).expect("an answer");
        if let Err(fault) = serde_json::from_str::<Answer<Value>>(&line) {
            panic!("{fault}: {line:?}");
        }
    }
}

#[cfg(not(fuzzing))]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    replay::replay(run)
}
