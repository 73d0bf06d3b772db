//! Setting high: it never refuses; what is above is reclaimed at once, as far as that goes, and the
//! rest is told.

use memcg::{Event, Limit, Limits, ReclaimCause};

use super::{
    Crowded, MIB, assert_sound, build, charge, create, left_empty, runtimes, undelayed, with_high,
};

#[test]
fn at_creation_or_later() {
    for runtime in runtimes() {
        let group = with_high(&runtime.root(), "q", 8 * MIB);
        assert_eq!(
            (group.inspect().high(), group.limits().high),
            (8 * MIB, Some(Limit::Bytes(8 * MIB)))
        );
        assert_eq!(
            group
                .set_limits(Limits::new().high(Limit::Unlimited))
                .expect("no number"),
            0
        );
        assert_eq!(group.inspect().high(), u64::MAX);
        assert_eq!(
            group.set_limits(Limits::new().high(0)).expect("a number"),
            0
        );
        assert_eq!(group.inspect().high(), 0);
        assert_eq!(
            (
                runtime.root().inspect().high(),
                create(&runtime.root(), "new").inspect().high()
            ),
            (u64::MAX, u64::MAX)
        );
        assert_eq!(
            runtime
                .root()
                .set_limits(Limits::new().high(1))
                .expect("a number"),
            0
        );
        assert_eq!(runtime.root().inspect().high(), 1);
    }
}

/// A percentage of the nearest max above, which follows it.
#[test]
fn as_a_percentage() {
    for runtime in runtimes() {
        let top = runtime
            .root()
            .create("top", Limits::new().max(Limit::Bytes(100 * MIB)))
            .expect("a free name");
        let group = top
            .create("q", Limits::new().high(Limit::percent(80)))
            .expect("a free name");
        assert_eq!(group.inspect().high(), 80 * MIB);
        top.set_max(Limit::Bytes(50 * MIB)).expect("a number");
        assert_eq!(group.inspect().high(), 40 * MIB);
        let free = create(&runtime.root(), "free");
        let refused = free
            .set_limits(Limits::new().high(Limit::percent(10)))
            .expect_err("of nothing");
        assert!(
            refused
                .to_string()
                .starts_with("cannot set high 10% for /free: no group above has a max"),
            "{refused}"
        );
        assert_eq!(free.inspect().high(), u64::MAX);
    }
}

#[test]
fn written_below_usage_it_reclaims() {
    for runtime in runtimes() {
        let crowded = Crowded::below(&runtime.root());
        let asked = crowded.lowered_to(10, |group, to| {
            group.set_limits(Limits::new().high(to)).expect("a number")
        });
        assert!(
            asked.iter().all(|asked| asked.cause != ReclaimCause::Full),
            "{asked:?}"
        );
        let Crowded { group, outside, .. } = &crowded;
        // More than there is to give.
        assert_eq!(
            group
                .set_limits(Limits::new().high(Limit::Bytes(MIB)))
                .expect("a number"),
            3 * MIB
        );
        assert_eq!(
            (group.usage(), group.forced(), group.inspect().high()),
            (4 * MIB, 0, MIB)
        );
        assert_eq!(
            outside.bytes(),
            8 * MIB,
            "a group that is not below is not asked"
        );
        assert_eq!(
            [Event::Max, Event::Oom].map(|event| group.events().get(event)),
            [0, 0]
        );
        assert_sound(&runtime);
    }
}

/// Credit is usage, and the first that is given back.
#[test]
fn written_below_usage_it_drains() {
    for runtime in runtimes() {
        let group = create(&runtime.root(), "q");
        let _held = charge(&group, 100);
        assert_eq!(
            group.set_limits(Limits::new().high(100)).expect("a number"),
            0
        );
        assert_eq!((group.usage(), group.memory().stocked()), (100, 0));
    }
}

/// One that frees nothing is asked a few times and no more.
#[test]
fn it_comes_back_in_the_end() {
    for runtime in runtimes() {
        let group = create(&runtime.root(), "q");
        let _held = charge(&group, MIB);
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let _registration = {
            let asked = std::sync::Arc::clone(&asked);
            let reclaimer = super::call(move |_, _| {
                asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                0
            });
            group.register_reclaimer(reclaimer, memcg::ReclaimPriority::NORMAL)
        };
        assert_eq!(
            group.set_limits(Limits::new().high(0)).expect("a number"),
            MIB
        );
        let asked = asked.load(std::sync::atomic::Ordering::SeqCst);
        assert!((1..=64).contains(&asked), "{asked}");
    }
}

/// A charge above max is refused, whatever high says.
#[test]
fn above_max_it_does_nothing() {
    for builder in undelayed() {
        let runtime = left_empty(build(builder));
        let limits = Limits::new()
            .high(Limit::Bytes(20 * MIB))
            .max(Limit::Bytes(10 * MIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let _held = charge(&group, 10 * MIB);
        assert!(group.charge(1).is_err());
        assert_eq!(group.events().get(Event::High), 0);
    }
}
