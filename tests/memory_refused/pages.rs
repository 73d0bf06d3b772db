//! The system gives no pages: to one thread, or to the whole process.

use std::io::Write;

use memcg::footprint::PoolAlign;
use memcg::{BuildError, Group, Limits, Runtime};

use crate::support::denials::deny;
use crate::support::workers::Other;
use crate::{State, alone, assert_says};

/// More than any chunk holds: the pool asks the system before that.
const MOST: usize = 100_000;

/// A name without an allocation.
fn named<R>(number: usize, then: impl FnOnce(&str) -> R) -> R {
    let mut buffer = [0; 16];
    let room = buffer.len();
    let mut rest = buffer.as_mut_slice();
    write!(rest, "group-{number:08}").expect("14 bytes");
    let written = room - rest.len();
    then(std::str::from_utf8(&buffer[..written]).expect("ASCII"))
}

/// Groups until one is refused.
fn fill(runtime: &Runtime, root: &Group, groups: &mut Vec<Group>) {
    let one_more = |number| named(number, |name| root.create(name, Limits::new()));
    let refused = loop {
        match one_more(groups.len()) {
            Ok(group) if groups.len() < groups.capacity() => groups.push(group),
            Ok(_) => panic!("{MOST} groups and nothing was refused"),
            Err(refused) => break refused,
        }
    };
    println!("{} groups, then refused: {refused}", groups.len());
    assert_says(&refused, root);
    // And again, as often as one likes: nothing of it stays.
    let before = State::of(runtime, root);
    for _ in 0..100 {
        let refused = one_more(groups.len()).expect_err("nothing has been given back");
        assert_says(&refused, root);
    }
    assert_eq!(State::of(runtime, root), before);
}

/// All that were made are there, and nothing else.
fn assert_whole(runtime: &Runtime, groups: &[Group]) {
    assert_eq!(
        (runtime.group_count(), runtime.dying_count()),
        (groups.len() + 1, 0)
    );
    for (number, group) in groups.iter().enumerate() {
        named(number, |name| assert_eq!(group.name(), name));
        assert_eq!(runtime.find(group.id()).as_ref(), Some(group));
    }
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
}

#[test]
fn a_thread_that_gets_no_pages_is_refused_and_others_go_on() {
    alone(
        "pages::a_thread_that_gets_no_pages_is_refused_and_others_go_on",
        || {
            for align in [PoolAlign::CacheLine, PoolAlign::Packed] {
                // Objects that no other thread has.
                let mut builder = Runtime::builder().pool_align(align);
                let _further = [
                    builder.counter("one", memcg::Unit::Bytes),
                    builder.counter("two", memcg::Unit::Bytes),
                    builder.counter("three", memcg::Unit::Bytes),
                ];
                let other_shape = {
                    let mut other = builder.clone();
                    let _fourth = other.counter("four", memcg::Unit::Bytes);
                    other
                };
                let runtime = builder.build().expect("a configuration that holds");
                let denied = Other::spawn();
                if !denied.run(|| deny(libc::SYS_mmap, libc::ENOMEM)) {
                    println!("no seccomp filter here: nothing is refused");
                    return;
                }
                // Not even a root of a shape that has no pool yet.
                let built = denied.run(move || other_shape.build().map(drop));
                assert!(matches!(built, Err(BuildError::Memory(_))), "{built:?}");
                let root = runtime.root();
                let (runtime, mut groups) = denied.run(move || {
                    let root = runtime.root();
                    let mut groups = Vec::with_capacity(MOST);
                    fill(&runtime, &root, &mut groups);
                    (runtime, groups)
                });
                assert_whole(&runtime, &groups);
                // The memory that one group leaves is enough for another.
                let number = groups.len();
                groups.pop().expect("some").offline().expect("no children");
                let again = denied.with(&root, |root| root.create("again", Limits::new()));
                again
                    .expect("the object of another")
                    .offline()
                    .expect("no children");
                groups.push(
                    named(number - 1, |name| root.create(name, Limits::new()))
                        .expect("the same object"),
                );
                // A thread that is given pages takes a chunk, of which there is enough for the
                // other.
                groups.push(
                    named(number, |name| root.create(name, Limits::new())).expect("another chunk"),
                );
                let theirs = denied.with(&root, move |root| {
                    named(number + 1, |name| root.create(name, Limits::new()))
                });
                groups.push(theirs.expect("of the same chunk"));
                assert_whole(&runtime, &groups);
                root.children()
                    .iter()
                    .for_each(|group| group.offline().expect("no children"));
                drop(groups);
                assert_whole(&runtime, &[]);
            }
        },
    );
}

/// Soft limit of the address space of this process.
fn set_address_space(bytes: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is ours.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    let old = std::mem::replace(&mut limit.rlim_cur, bytes.min(limit.rlim_max));
    // SAFETY: as above; what the process has already stays.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!((got, set), (0, 0), "{}", std::io::Error::last_os_error());
    old
}

fn address_space() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: u64 = statm
        .split(' ')
        .next()
        .and_then(|field| field.parse().ok())
        .expect("its first field");
    // SAFETY: asks for a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages * u64::try_from(page).expect("a page has a size")
}

#[test]
fn a_process_without_address_space_is_refused_and_goes_on_with_what_it_has() {
    alone(
        "pages::a_process_without_address_space_is_refused_and_goes_on_with_what_it_has",
        || {
            let runtime = Runtime::builder()
                .build()
                .expect("a configuration that holds");
            let root = runtime.root();
            let mut groups: Vec<Group> = Vec::with_capacity(MOST);
            groups.push(
                named(0, |name| root.create(name, Limits::new())).expect("a name that is free"),
            );
            let old = set_address_space(address_space() + (16 << 20));
            fill(&runtime, &root, &mut groups);
            let full = groups.len();
            assert_whole(&runtime, &groups);
            // The memory that others leave is enough for as many.
            for group in groups.drain(full / 2..) {
                drop(group.charge(10).expect("no limit"));
                group.offline().expect("no children");
            }
            for number in full / 2..full {
                groups.push(
                    named(number, |name| root.create(name, Limits::new()))
                        .expect("the object of another"),
                );
            }
            assert_whole(&runtime, &groups);
            fill(&runtime, &root, &mut groups);
            // With memory there is no end to it.
            set_address_space(old);
            for number in groups.len()..2 * full {
                groups
                    .push(named(number, |name| root.create(name, Limits::new())).expect("memory"));
            }
            assert_whole(&runtime, &groups);
            root.children()
                .iter()
                .for_each(|group| group.offline().expect("no children"));
            drop(groups);
            assert_whole(&runtime, &[]);
        },
    );
}
