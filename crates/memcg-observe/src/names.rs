//! The names of groups that a monitoring system has been given.
//!
//! It keeps a series for each name long after the group has gone. Groups that come and go, as
//! queries do, would make series without end, though few are shown at a time. So a name takes a
//! place for an hour after it was shown last, and a level has so many places: a group without one
//! stands under `other` until a place is free.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A name keeps its place for so long after it was shown last.
const KEPT: Duration = Duration::from_secs(3_600);

/// Names by level, and when each was shown last. There are at most as many as places.
#[derive(Debug, Default)]
pub(crate) struct Names(HashMap<usize, HashMap<String, Instant>>);

impl Names {
    /// The names that have places of the level.
    pub(crate) fn names(&self, depth: usize) -> Vec<String> {
        let level = self.0.get(&depth).into_iter();
        level.flat_map(|names| names.keys().cloned()).collect()
    }

    /// True if the level has a place for the name, which it then takes or keeps.
    pub(crate) fn admit(&mut self, depth: usize, places: usize, name: &str, now: Instant) -> bool {
        let level = self.0.entry(depth).or_default();
        if let Some(last) = level.get_mut(name) {
            *last = now;
            return true;
        }
        if level.len() >= places {
            level.retain(|_, last| now.saturating_duration_since(*last) < KEPT);
        }
        let has_place = level.len() < places;
        if has_place {
            level.insert(name.to_string(), now);
        }
        has_place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_place_for_an_hour() {
        let mut names = Names::default();
        let begun = Instant::now();
        let mut admit = |name: &str, minutes: u64| {
            names.admit(1, 2, name, begun + Duration::from_secs(60 * minutes))
        };
        assert!(admit("/a", 0) && admit("/b", 0) && admit("/a", 1));
        assert!(!admit("/c", 30), "both places are taken");
        assert!(admit("/a", 30));
        assert!(admit("/c", 60), "/b was shown an hour ago");
        assert!(!admit("/b", 61) && admit("/a", 61), "/a was shown since");
        assert!(
            !names.admit(2, 0, "/a", begun) && names.admit(2, 1, "/a", begun),
            "each level has its own"
        );
    }
}
