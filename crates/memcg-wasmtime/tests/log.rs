//! The lines of the host's log for refusals.

use std::sync::Mutex;

use log::{Level, LevelFilter, Log, Metadata, Record};
use memcg::{Limits, Runtime};
use memcg_wasmtime::GroupLimiter;
use wasmtime::ResourceLimiter;

struct Lines(Mutex<Vec<(Level, String, String)>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = (
            record.level(),
            record.target().to_string(),
            record.args().to_string(),
        );
        self.0.lock().unwrap().push(line);
    }

    fn flush(&self) {}
}

#[test]
fn a_refusal_is_a_whole_sentence_and_a_loop_few_lines() {
    log::set_logger(&LINES).unwrap();
    log::set_max_level(LevelFilter::Warn);
    let runtime = Runtime::builder().build().unwrap();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(1 << 16))
        .unwrap();
    let mut limiter = GroupLimiter::new(&acme);
    for _ in 0..1_000 {
        let asked: &mut dyn ResourceLimiter = &mut limiter;
        assert!(!asked.memory_growing(0, 1 << 17, None).unwrap());
    }
    assert_eq!(limiter.refused_count(), 1_000);
    let lines = std::mem::take(&mut *LINES.0.lock().unwrap());
    assert_eq!(lines.len(), 10); // 1, 2, 4, up to 512
    let (level, target, line) = &lines[1];
    assert_eq!((*level, &**target), (Level::Warn, "memcg_wasmtime"));
    let sentence = "a memory cannot grow (refusal 2 of its store): /acme refused 128 KiB";
    assert!(
        line.starts_with(sentence) && line.contains("raise max of /acme"),
        "{line}"
    );
}
