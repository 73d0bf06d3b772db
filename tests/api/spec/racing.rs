//! Charges, limits and other specs while one is applied.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use memcg::errors::SpecError;
use memcg::{
    Bytes, Charge, Group, GroupSpec, Limit, Limits, Reclaim, ReclaimContext, ReclaimPriority,
    Runtime,
};

use super::{acme, apply, group, runtime};
use crate::support::reclaimers::lock;

/// Charges of all groups go on while the tree goes up and down, and each fits its limits.
#[test]
fn charges_meanwhile() {
    let runtime = Runtime::builder().audit(true).build().expect("a runtime");
    let names = ["a", "b", "c"];
    let spec = |max: u64| {
        let tenant = |percent| GroupSpec::new().limits(Limits::new().max(Limit::percent(percent)));
        names.into_iter().fold(
            GroupSpec::new().limits(Limits::new().max(Limit::Bytes(max))),
            |spec, name| spec.group(name, tenant(40).group("q", tenant(50))),
        )
    };
    const LOW: u64 = 1 << 20;
    apply(&spec(4 * LOW), &runtime);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for name in names {
            let (runtime, stop) = (&runtime, &stop);
            scope.spawn(move || {
                let group = group(runtime, &format!("/{name}/q"));
                let mut held = Vec::new();
                while !stop.load(Relaxed) {
                    match group.charge(8 << 10) {
                        // Always less than the lowest of its maxes: no spec fails.
                        Ok(charge) if held.len() < 10 => held.push(charge),
                        _ => held.clear(),
                    }
                }
            });
        }
        for round in 0..200_u64 {
            let max = LOW + round % 7 * LOW / 2;
            apply(&spec(max), &runtime);
            assert_eq!(runtime.root().max(), max);
            assert_eq!(group(&runtime, "/b/q").max(), max * 40 / 100 * 50 / 100);
        }
        stop.store(true, Relaxed);
    });
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
}

/// A charge that fits the old limits and the new ones is never refused in between, where a
/// percentage rises while its max falls, and the other way round.
#[test]
fn a_charge_that_fits_before_and_after() {
    let part = |percent| GroupSpec::new().limits(Limits::new().max(Limit::percent(percent)));
    let bytes = |bytes| GroupSpec::new().limits(Limits::new().max(Limit::Bytes(bytes)));
    let spec = |max: u64, tenant: GroupSpec, query: GroupSpec| {
        GroupSpec::new()
            .limits(Limits::new().max(Limit::Bytes(max)))
            .group("acme", tenant.group("q", query))
    };
    let specs = [
        spec(200, part(50), part(100)),
        spec(1_000, part(10), part(100)),
        spec(1_000, bytes(100), part(95)),
        spec(200, part(100), part(50)),
        spec(2_000, bytes(1_000), part(10)),
        GroupSpec::new().group("acme", bytes(110).group("q", part(90))),
        spec(1_000, GroupSpec::new(), part(10)),
    ];
    let runtime = runtime();
    apply(&specs[0], &runtime);
    let query = group(&runtime, "/acme/q");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let charger = scope.spawn(|| {
            while !stop.load(Relaxed) {
                drop(query.charge(95).unwrap_or_else(|error| panic!("{error}")));
            }
        });
        for round in 0..400_usize {
            let spec = &specs[(round * 5 + round / 7) % specs.len()];
            apply(spec, &runtime);
            if charger.is_finished() {
                break;
            }
        }
        stop.store(true, Relaxed);
        charger.join().expect("no charge is refused");
    });
}

/// Does something while a spec is applied, and gives nothing.
struct Meanwhile<F>(F);

impl<F: Fn() + Send + Sync> Reclaim for Meanwhile<F> {
    fn reclaim(&self, _want: u64, _context: &ReclaimContext<'_>) -> u64 {
        (self.0)();
        0
    }
}

/// A tree whose tenant holds more than it is to have.
fn tight(meanwhile: impl Fn(&Group) + Send + Sync + 'static) -> (Runtime, Group, Charge) {
    let runtime = runtime();
    apply(&acme(Limits::new().max(500).high(450)), &runtime);
    let tenant = group(&runtime, "/acme");
    let held = tenant.charge(100).expect("it fits");
    let of = tenant.clone();
    let registration = tenant.register_reclaimer(
        Arc::new(Meanwhile(move || meanwhile(&of))),
        ReclaimPriority::NORMAL,
    );
    // It stays as long as the runtime.
    std::mem::forget(registration);
    (runtime, tenant, held)
}

/// What the program sets while a spec is applied stays, also where the spec fails.
#[test]
fn a_limit_of_the_program_meanwhile() {
    let (runtime, tenant, _held) = tight(|tenant| {
        tenant
            .set_limits(Limits::new().high(333).importance(8))
            .expect("bytes");
    });
    let wanted = Limits::new().max(50).high(40).low(10).importance(2);
    let error = acme(wanted)
        .apply(&runtime.root())
        .expect_err("100 bytes are held");
    assert!(matches!(error, SpecError::AboveMax { .. }), "{error}");
    let limits = tenant.limits();
    assert_eq!(
        (limits.max, limits.low),
        (Some(Limit::Bytes(500)), Some(Limit::Bytes(0)))
    );
    assert_eq!(
        (limits.high, limits.importance),
        (Some(Limit::Bytes(333)), Some(8))
    );
    // It is the program's from then on.
    apply(&acme(Limits::new()), &runtime);
    let limits = tenant.limits();
    assert_eq!(
        (limits.max, limits.high),
        (Some(Limit::Unlimited), Some(Limit::Bytes(333)))
    );
}

/// One at a time; a reclaimer that applies one gets an error, and no dead lock.
#[test]
fn another_spec_meanwhile() {
    let errors = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&errors);
    let (runtime, tenant, _held) = tight(move |tenant| {
        let other = GroupSpec::new().group("q", GroupSpec::new());
        // One that is refused ends the turn of no other.
        for _ in 0..2 {
            lock(&seen).push(other.apply(tenant).map(|changes| changes.to_string()));
        }
    });
    acme(Limits::new().max(50))
        .apply(&runtime.root())
        .expect_err("100 bytes are held");
    let errors = lock(&errors);
    assert!(!errors.is_empty());
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, Err(SpecError::Busy))),
        "{errors:?}"
    );
    assert!(tenant.child("q").is_none());
    // The next one is alone again.
    apply(&acme(Limits::new().max(200)), &runtime);
}

/// A tenant that goes offline while its new limits are set: nothing of the spec stays.
#[test]
fn a_group_that_goes_offline_meanwhile() {
    let (runtime, tenant, _held) = tight(|tenant| _ = tenant.offline());
    let spec = acme(Limits::new().max(50)).limits(Limits::new().max(700));
    let error = spec.apply(&runtime.root()).expect_err("it is gone");
    assert!(
        matches!(
            error,
            SpecError::Offline { .. } | SpecError::AboveMax { .. }
        ),
        "{error}"
    );
    assert_eq!(runtime.root().max(), 1_000);
    assert!(tenant.is_offline());
    assert_eq!(
        spec.apply(&runtime.root())
            .expect("a new one")
            .created
            .len(),
        1
    );
}

/// Many threads create what a spec creates, too.
#[test]
fn groups_that_others_create_meanwhile() {
    for _ in 0..50 {
        let runtime = runtime();
        let names: Vec<String> = (0..8).map(|number| format!("t{number}")).collect();
        let spec = names.iter().fold(GroupSpec::new(), |spec, name| {
            spec.group(name, GroupSpec::new().limits(Limits::new().max(77)))
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                for name in names.iter().rev() {
                    let _ = runtime
                        .root()
                        .get_or_create(name, Limits::new().max(Bytes(66)));
                }
            });
            apply(&spec, &runtime);
        });
        for name in &names {
            assert_eq!(
                runtime.root().child(name).map(|group| group.max()),
                Some(77)
            );
        }
    }
}
