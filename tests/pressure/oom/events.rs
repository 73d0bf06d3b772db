//! Which level counts what when a group is stopped.

use memcg::{Bytes, Event, Group};

use super::{HASTY, KIB, Victims, all, assert_empty, build, charge, create, kinds, limited, local};

const OOM: [Event; 3] = [Event::Oom, Event::OomKill, Event::OomGroupKill];

fn locals(group: &Group) -> [u64; 3] {
    OOM.map(|event| local(group, event))
}

fn alls(group: &Group) -> [u64; 3] {
    OOM.map(|event| all(group, event))
}

/// The domain has the *oom*, the victim the *oom_kill*, all above both.
#[test]
fn at_the_domain_and_at_the_victim() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let domain = limited(&root, "domain", 100 * KIB);
        let inner = limited(&domain, "inner", 200 * KIB);
        let (victim, charger) = (create(&inner, "victim"), create(&domain, "charger"));
        let victims = Victims::default();
        let hook = victims.obedient(&victim, 100 * KIB);
        drop(charge(&charger, 10 * KIB));
        let levels = [&root, &domain, &inner, &victim, &charger];
        assert_eq!(levels.map(locals), [[0; 3], [1, 0, 0], [0; 3], [0, 1, 0], [0; 3]]);
        assert_eq!(levels.map(alls), [[1, 1, 0], [1, 1, 0], [0, 1, 0], [0, 1, 0], [0; 3]]);
        assert!(local(&domain, Event::Max) >= 1);
        assert_eq!(domain.refused_count(), 0, "it was admitted");
        drop((hook, victim, charger, inner, domain));
        assert_empty(&runtime);
    }
}

/// However many it takes, it is one *oom*.
#[test]
fn one_oom_for_several_victims() {
    for builder in kinds() {
        let runtime = build(builder.oom_time(HASTY));
        let domain = limited(&runtime.root(), "domain", 100 * KIB);
        let groups = ["a", "b", "c", "d"].map(|name| create(&domain, name));
        let held = groups.each_ref().map(|group| charge(group, 25 * KIB));
        let victims = Victims::default();
        let hooks = groups.each_ref().map(|group| victims.stubborn(group));
        for round in 1..=3 {
            assert!(domain.try_charge(Bytes(KIB)).is_err());
            assert_eq!((alls(&domain), domain.refused_count()), ([round, 4 * round, 0], round));
            assert_eq!(groups.each_ref().map(locals), [[0, round, 0]; 4]);
        }
        drop((hooks, held, groups, domain));
        assert_empty(&runtime);
    }
}

/// A subtree that goes as a whole counts that once, and each of its hooks.
#[test]
fn a_subtree_counts_once() {
    for builder in kinds() {
        let runtime = build(builder.oom_time(HASTY));
        let domain = limited(&runtime.root(), "domain", 100 * KIB);
        let team = create(&domain, "team");
        team.set_oom_group(true);
        let members = ["a", "b", "c"].map(|name| create(&team, name));
        let held = charge(&members[0], 100 * KIB);
        let victims = Victims::default();
        let hooks = members.each_ref().map(|group| victims.stubborn(group));
        assert!(domain.try_charge(Bytes(KIB)).is_err());
        assert_eq!((locals(&domain), alls(&domain)), ([1, 0, 0], [1, 3, 1]));
        assert_eq!((locals(&team), alls(&team)), ([0, 0, 1], [0, 3, 1]));
        assert_eq!(members.each_ref().map(locals), [[0, 1, 0]; 3]);
        assert_eq!(victims.paths().len(), 3);
        drop((hooks, held, members, team, domain));
        assert_empty(&runtime);
    }
}

/// Listeners are notified, at the victim and above.
#[test]
fn listeners_are_notified() {
    for builder in kinds() {
        let runtime = build(builder);
        let domain = limited(&runtime.root(), "domain", 100 * KIB);
        let victim = create(&domain, "victim");
        let victims = Victims::default();
        let hook = victims.obedient(&victim, 100 * KIB);
        let before = OOM.map(|_| domain.events());
        let notified = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let subscription = {
            let notified = std::sync::Arc::clone(&notified);
            runtime.root().on_event(Event::OomKill, move |happened| {
                notified.fetch_add(happened.times(), std::sync::atomic::Ordering::SeqCst);
            })
        };
        drop(charge(&domain, 10 * KIB));
        let moved = OOM.iter().zip(before).map(|(&event, before)| before.wait(event, std::time::Duration::ZERO));
        assert_eq!(moved.collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(notified.load(std::sync::atomic::Ordering::SeqCst), 1);
        drop((subscription, hook, victim, domain));
        assert_empty(&runtime);
    }
}
