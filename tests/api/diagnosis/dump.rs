//! All that there is to say of a subtree, for a log.

use memcg::{Bytes, OnFull};
use std::time::Duration;

use super::{MIB, assert_empty, build, charge, create, in_line, kinds, limited};

#[test]
fn holders_waiters_and_events() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "acme", 100 * MIB);
        let (hog, small) = (create(&group, "hog"), create(&group, "small"));
        let below = create(&hog, "below");
        let held = [charge(&below, 80 * MIB), charge(&small, 15 * MIB)];
        assert!(small.try_charge(Bytes(10 * MIB)).is_err());
        let waiters = [in_line(&small, 7 * MIB), in_line(&hog, 8 * MIB)];
        let text = group.diagnose().to_string();
        for part in ["/acme", "95 MiB", "100 MiB", "/acme/hog", "80 MiB", "/acme/hog/below", "/acme/small", "15 MiB"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        for part in ["2 waiting", "7 MiB", "max", "oom"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        // One group a line, in a table.
        assert_eq!(text.lines().filter(|line| line.contains("/acme/small")).count(), 1, "\n{text}");
        assert!(!group.diagnose().to_string().contains("/other"));
        drop((waiters, held, below, hog, small, group));
        assert_empty(&runtime);
    }
}

/// Only the subtree; and of any size, in as many lines as one can read.
#[test]
fn of_a_large_subtree() {
    for builder in kinds() {
        let runtime = build(builder);
        let (group, other) = (create(&runtime.root(), "q"), create(&runtime.root(), "other"));
        let children: Vec<_> = (0..1_000).map(|number| create(&group, &format!("child{number}"))).collect();
        // The last holds most, credit included.
        let bytes = |number: usize| if number == 999 { 1 << 20 } else { number as u64 };
        let held: Vec<_> = children.iter().enumerate().map(|(number, of)| charge(of, bytes(number))).collect();
        let text = group.diagnose().to_string();
        assert!(text.contains("/q/child999") && !text.contains("/other"), "\n{text}");
        assert!((4..100).contains(&text.lines().count()), "{}", text.lines().count());
        assert!(runtime.root().diagnose().to_string().contains("/q/child999"));
        drop((held, children, group, other));
        assert_empty(&runtime);
    }
}

/// A group that holds nothing, and one that has gone.
#[test]
fn of_nothing() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let text = group.diagnose().to_string();
        assert!(text.starts_with("/q: 0 B, no max\n") && !text.contains("waiting"), "\n{text}");
        group.offline().expect("no children");
        assert!(group.diagnose().to_string().contains("/q"));
        drop(group);
        assert_empty(&runtime);
    }
}

/// While everything moves it is as good as any other reading, and stands in no group's way.
#[test]
fn while_others_charge() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", MIB);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|number| {
                    let child = create(&group, &number.to_string());
                    scope.spawn(move || {
                        for _ in 0..2_000 {
                            drop(child.try_charge_with(600_000, OnFull::Wait(Duration::from_millis(1))));
                        }
                    })
                })
                .collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                let text = group.diagnose().to_string();
                assert!(text.starts_with("/q"), "\n{text}");
            }
        });
        drop(group);
        assert_empty(&runtime);
    }
}
