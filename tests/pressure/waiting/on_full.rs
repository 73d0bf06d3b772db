//! The caller's answer to a lack of room: as a value or as text out of a configuration.

use std::time::{Duration, Instant};

use memcg::errors::ParseOnFullError;
use memcg::{Bytes, ChargeError, Event, OnFull};

use super::{Cache, KIB, Log, WATCHDOG, blocked, build, charge, create, join, left_empty, limited, runtimes, until};

const FORMS: [(&str, OnFull); 14] = [
    ("refuse", OnFull::Refuse),
    ("force", OnFull::Force),
    ("reclaim", OnFull::Reclaim),
    ("start", OnFull::Start),
    ("now", OnFull::Now),
    ("if_room", OnFull::IfRoom),
    ("wait(10s)", OnFull::Wait(Duration::from_secs(10))),
    ("wait(250ms)", OnFull::Wait(Duration::from_millis(250))),
    ("wait(100us)", OnFull::Wait(Duration::from_micros(100))),
    ("wait(7ns)", OnFull::Wait(Duration::from_nanos(7))),
    ("wait(5m)", OnFull::Wait(Duration::from_secs(5 * 60))),
    ("wait(2h)", OnFull::Wait(Duration::from_secs(2 * 3_600))),
    ("wait(0s)", OnFull::Wait(Duration::ZERO)),
    ("wait(1500ms)", OnFull::Wait(Duration::from_millis(1_500))),
];

#[test]
fn read_and_printed() {
    for (text, value) in FORMS {
        assert_eq!(text.parse(), Ok(value), "{text}");
        assert_eq!(value.to_string(), text);
    }
}

#[test]
fn whatever_is_printed_is_read() {
    let durations = [
        Duration::from_nanos(1),
        Duration::from_nanos(1_000_000_001),
        Duration::from_millis(61_000),
        Duration::from_secs(90),
        Duration::from_secs(86_400),
        Duration::new(u64::MAX / 1_000_000_000 - 1, 999_999_999),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ];
    for value in durations.map(OnFull::Wait) {
        let text = value.to_string();
        assert_eq!(text.parse(), Ok(value), "{text}");
    }
}

#[test]
fn anything_else_is_refused() {
    let texts = [
        "",
        "wait",
        "wait()",
        "wait(",
        "wait(10)",
        "wait(s)",
        "wait(ms)",
        "wait(-1s)",
        "wait(1.5s)",
        "wait(1e3s)",
        "wait(10s",
        "wait(10s))",
        "wait(10d)",
        "wait(10 parsecs)",
        "wait 10s",
        "wait10s",
        "wait(1m30s)",
        "wait(99999999999999999999999s)",
        "wait(18446744073709551615h)",
        "refuse()",
        "refused",
        "force(1s)",
        "block",
        "10s",
        "wait(１０s)",
    ];
    for text in texts {
        let error: ParseOnFullError = text.parse::<OnFull>().expect_err(text);
        let said = error.to_string();
        assert!(!said.is_empty() && !said.contains('\n'), "{text:?}: {said:?}");
        // Clear: it gives the text back, or says what would have been right.
        let clear = !text.is_empty() && said.contains(text) || said.contains("wait") || said.contains("unit");
        assert!(clear, "{text:?}: {said:?}");
    }
}

#[cfg(feature = "serde")]
#[test]
fn in_a_configuration_it_is_text() {
    for (text, value) in FORMS {
        let json = serde_json::to_string(&value).expect("a text");
        assert_eq!(json, format!("{text:?}"));
        assert_eq!(serde_json::from_str::<OnFull>(&json).expect("what was written"), value);
    }
    for json in ["10", "\"wait\"", "null", "{\"wait\":10}"] {
        let error = serde_json::from_str::<OnFull>(json).expect_err(json);
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn refuse_is_as_ever() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let _held = group.try_charge_with(Bytes(10 * KIB), OnFull::Refuse).expect("room");
        let error = group.try_charge_with(1, OnFull::Refuse).expect_err("no room");
        assert!(matches!(&error, ChargeError::Limit(refusal) if refusal.group() == &group), "{error}");
        assert_eq!((group.waiting_count(), group.forced()), (0, 0));
    }
}

#[test]
fn wait_waits() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = group.try_charge_with(Bytes(10 * KIB), OnFull::Wait(WATCHDOG)).expect("room");
        let started = Instant::now();
        let time = Duration::from_millis(20);
        let error = group.try_charge_with(1, OnFull::Wait(time)).expect_err("no room");
        assert!(matches!(&error, ChargeError::TimedOut { waited, .. } if *waited >= time), "{error}");
        assert!(started.elapsed() >= time);
        // Behind another. It may barge, so its thread lets go by itself what the other may wait for.
        let before = blocked(&group, 10 * KIB, &group);
        let waits = {
            let group = group.clone();
            std::thread::spawn(move || group.try_charge_with(Bytes(KIB), OnFull::Wait(WATCHDOG)).map(drop))
        };
        until("two in line", || group.waiting_count() == 2);
        drop(held);
        drop(join(before).expect("its turn"));
        join(waits).expect("room");
    }
}

/// Never refused; but others give first what they have.
#[test]
fn force_asks_before_it_exceeds() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let group = create(&top, "q");
        let (cache, _registration) = Cache::of(&top, 60 * KIB, &Log::default());
        let _held = charge(&group, 40 * KIB);
        let first = group.try_charge_with(Bytes(50 * KIB), OnFull::Force).expect("the cache gives");
        assert_eq!((first.bytes(), top.forced(), top.events().get(Event::Overcharge)), (50 * KIB, 0, 0));
        assert!(cache.bytes() <= 10 * KIB, "{}", cache.bytes());
        let second = group.try_charge_with(Bytes(50 * KIB), OnFull::Force).expect("by force");
        assert_eq!((second.bytes(), top.live()), (50 * KIB, 140 * KIB + cache.bytes()));
        assert_eq!((top.forced(), top.events().local().get(Event::Overcharge)), (40 * KIB + cache.bytes(), 1));
        // Not even what can never fit.
        let third = group.try_charge_with(Bytes(500 * KIB), OnFull::Force).expect("by force");
        assert_eq!((third.bytes(), group.waiting_count()), (500 * KIB, 0));
    }
}

const ALL: [OnFull; 7] = [
    OnFull::Refuse,
    OnFull::Wait(Duration::from_millis(1)),
    OnFull::Force,
    OnFull::Reclaim,
    OnFull::Start,
    OnFull::Now,
    OnFull::IfRoom,
];

/// Each form makes and refuses the same charges with a guard and without.
#[test]
fn without_a_guard_as_with_one() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        for full in ALL {
            group.raw().try_charge_with(Bytes(10 * KIB), full).expect("room");
            let (guard, raw) = (group.try_charge_with(1, full), group.raw().try_charge_with(1, full));
            assert_eq!((guard.is_ok(), raw.is_ok()), (full == OnFull::Force, full == OnFull::Force), "{full}");
            assert_eq!(group.live(), 10 * KIB + 2 * u64::from(raw.is_ok()), "{full}");
            if full == OnFull::IfRoom {
                assert!(matches!(&raw, Err(ChargeError::NoRoom { requested: 1, .. })), "{raw:?}");
            }
            group.raw().uncharge(Bytes(10 * KIB + u64::from(raw.is_ok())));
            drop((guard, raw));
            assert_eq!(group.live(), 0, "{full}");
            group.raw().try_charge_with(0, full).expect("nothing");
        }
        group.offline().expect("no children");
        for full in ALL {
            let error = group.raw().try_charge_with(1, full).expect_err("offline");
            assert_eq!(matches!(error, ChargeError::Offline { .. }), full != OnFull::IfRoom, "{full}: {error}");
        }
        drop(group);
        // A thread that was started for a charge keeps the group until it is through.
        until("no group is dying", || runtime.dying_count() == 0);
    }
}

/// A guard holds fewer bytes than were asked for; an amount alone cannot say so, and is refused.
#[test]
fn beyond_what_a_level_counts() {
    let runtime = left_empty(build(super::bare()));
    let group = limited(&runtime.root(), "q", 10 * KIB);
    let held = group.try_charge_with(Bytes(u64::MAX), OnFull::Force).expect("by force");
    assert_eq!(held.bytes(), (1 << 63) - 1);
    let error = group.raw().try_charge_with(1, OnFull::Force).expect_err("usage would pass 2^63");
    assert!(matches!(error, ChargeError::NoRoom { requested: 1, .. }), "{error}");
    assert_eq!(group.live(), held.bytes());
}
