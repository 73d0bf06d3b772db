//! Any bytes as lines of the protocol, which a client or a service parses: what is understood is
//! written as it is read.
//!
//! Under `cargo fuzz` this is a libFuzzer target; built without it, see `fuzz/replay.rs` of the
//! crate.
#![cfg_attr(fuzzing, no_main)]

use std::fmt::Debug;

use memcg_observe::protocol::{Answer, Incident, Question, Rows};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));

fn run(data: &[u8]) {
    check::<Question>(data);
    check::<Answer<Rows>>(data);
    check::<Answer<Vec<Incident>>>(data);
    check::<Answer<String>>(data);
}

fn check<T: Debug + PartialEq + Serialize + DeserializeOwned>(data: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(data) {
        let line = serde_json::to_vec(&value).expect("texts and numbers");
        assert!(!line.contains(&b'\n'), "one line");
        assert_eq!(
            serde_json::from_slice::<T>(&line).expect("what was written"),
            value
        );
    }
}

#[cfg(not(fuzzing))]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    replay::replay(run)
}
