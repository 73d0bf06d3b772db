//! Breaches of rules: each finding with the place and the reason.

use std::sync::OnceLock;

use crate::names::Crate;
use crate::reader::{fail_if_any, sources, sources_and_pages};
use crate::{graph, parts, types, words};

/// A rule that is broken, once or several times.
#[derive(Debug)]
pub(crate) struct Finding {
    /// Which rule.
    pub(crate) kind: &'static str,
    /// The place.
    pub(crate) key: String,
    /// The number of times.
    pub(crate) count: usize,
    /// For the reader: what leads to it, and what to do.
    pub(crate) why: String,
}

fn findings() -> &'static [Finding] {
    static FOUND: OnceLock<Vec<Finding>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let sources = sources();
        let of = Crate::read(&sources);
        assert!(of.written.len() > 1000, "hardly one path was found");
        let mut findings = graph::findings(&of);
        findings.extend(parts::findings(&of));
        findings.extend(types::findings(&of));
        findings.extend(types::twins(&of));
        findings.extend(words::findings(&sources_and_pages()));
        findings
    })
}

/// Fails where a rule of that kind is broken.
pub(crate) fn hold(kind: &str, rule: &str) {
    let broken = findings().iter().filter(|finding| finding.kind == kind);
    let faults: Vec<String> = broken
        .map(
            |Finding {
                 key, count, why, ..
             }| format!("{key} ({count}): {why}"),
        )
        .collect();
    fail_if_any(rule, &faults);
}
