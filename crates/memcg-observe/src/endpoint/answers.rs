//! Lines of answers, each within its bounds.

use memcg::Runtime;
use serde::Serialize;

use super::ANSWER_MAX;
use crate::exposition::Exposition;
use crate::protocol::{Answer, INCIDENTS_MAX, Incident, ROWS_MAX};

/// A line, unless it is longer than [`ANSWER_MAX`].
pub(super) fn line<T: Serialize>(answer: &Answer<T>) -> Vec<u8> {
    // Texts and numbers: nothing of it fails.
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    if line.len() > ANSWER_MAX {
        return error("the answer would be longer than 4 MiB: ask for fewer groups");
    }
    line
}

pub(super) fn error(what: impl ToString) -> Vec<u8> {
    line::<()>(&Answer::Error(what.to_string()))
}

pub(super) fn answer<T: Serialize>(result: Result<T, impl ToString>) -> Vec<u8> {
    match result {
        Ok(value) => line(&Answer::Ok(value)),
        Err(fault) => error(fault),
    }
}

pub(super) fn incidents(runtime: &Runtime, path: &str, most: usize) -> Vec<u8> {
    if most > INCIDENTS_MAX {
        return error(format!("most is {INCIDENTS_MAX} at most"));
    }
    let Some(group) = runtime.group(path) else {
        return error(format!("no group {path}"));
    };
    let mut incidents = group.inspect().incidents();
    // Mutation: more-incidents-than-were-asked-for
    let last = incidents.split_off(incidents.len().saturating_sub(most));
    line(&Answer::Ok(
        last.into_iter().map(Incident::from).collect::<Vec<_>>(),
    ))
}

pub(super) fn rows(runtime: &Runtime, path: &str, depth: usize, top: usize) -> Vec<u8> {
    if depth.checked_mul(top).is_none_or(|rows| rows > ROWS_MAX) {
        return error(format!("depth times top is {ROWS_MAX} at most"));
    }
    let Some(group) = runtime.group(path) else {
        return error(format!("no group {path}"));
    };
    line(&Answer::Ok(
        Exposition::new(runtime).depth(depth).top(top).rows(group),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_bounded() {
        let line = |length: usize| answer(Ok::<_, String>("x".repeat(length)));
        let around = line(0).len();
        let longest = line(ANSWER_MAX - around);
        assert_eq!((longest.len(), longest.last()), (ANSWER_MAX, Some(&b'\n')));
        let longer = line(ANSWER_MAX - around + 1);
        let said = b"{\"error\":\"the answer would be longer than 4 MiB: ask for fewer groups\"}\n";
        assert!(longer == said, "{} bytes", longer.len());
    }
}
