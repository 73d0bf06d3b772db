//! Objects that come with their first use, on a thread that gets no pages: the use is counted
//! above.

use memcg::{Event, Freshness, Group, Limits, Runtime, StatKey};

use crate::alone;
use crate::support::denials::deny;
use crate::support::workers::Other;

/// More than a chunk holds of either.
const GROUPS: u64 = 5_000;

const BYTES: i64 = 4_096;

/// One event, and one addition to the statistics.
fn use_it(group: &Group) {
    assert!(group.charge(11).is_err());
    group.stat_add(StatKey::ANON, BYTES);
}

#[test]
fn what_there_is_no_memory_for_is_counted_above() {
    alone(
        "first_use::what_there_is_no_memory_for_is_counted_above",
        || {
            let runtime = Runtime::builder().build().expect("defaults hold");
            let root = runtime.root();
            root.stat_add(StatKey::FILE, 1);
            let create = |number: u64| root.create(&number.to_string(), Limits::new().max(10));
            let groups: Vec<Group> = (0..GROUPS)
                .map(|number| create(number).expect("a name"))
                .collect();

            let denied = Other::spawn();
            if !denied.run(|| deny(libc::SYS_mmap, libc::ENOMEM)) {
                println!("no seccomp filter here: nothing is refused");
                return;
            }
            let groups = denied.run(move || {
                groups.iter().for_each(use_it);
                groups
            });

            let events = |group: &Group| group.events().local().get(Event::Max);
            let written = |group: &Group| group.read(Freshness::Exact).local(StatKey::ANON);
            let [with_events, with_stats] = [
                groups.iter().map(events).sum::<u64>(),
                groups.iter().map(written).sum::<i64>() as u64 / BYTES as u64,
            ];
            println!(
                "of {GROUPS} groups {with_events} count their events, {with_stats} their statistics: the rest was refused"
            );
            assert!((1..GROUPS).contains(&with_events) && (1..GROUPS).contains(&with_stats));
            // Above nothing is missing.
            assert_eq!(root.events().get(Event::Max), GROUPS);
            let all = root.read(Freshness::Exact);
            assert_eq!(all.get(StatKey::ANON), GROUPS as i64 * BYTES);
            assert_eq!(
                all.local(StatKey::ANON),
                (GROUPS - with_stats) as i64 * BYTES
            );

            // Once there is memory it is made.
            let last = groups.last().expect("there are many");
            assert_eq!((events(last), written(last)), (0, 0));
            use_it(last);
            assert_eq!((events(last), written(last)), (1, BYTES));
            assert!(runtime.verify().is_ok());
            drop(groups);
            drop(runtime);
            assert!(root.is_offline());
        },
    );
}
