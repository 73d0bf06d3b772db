//! Other threads start without a group, and a thread may end in one.

use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;

use memcg::allocator::catch_up;
use memcg::{EnterGuard, Group};

use super::{groups, here, runtime};
use crate::cover::Object;

/// A thread begins without a group, also one that is started inside of a scope. A job of a pool is
/// given its own.
#[test]
fn a_thread_begins_without_a_group() {
    let runtime = runtime();
    let [a] = groups(&runtime, ["a"]);
    let seen = a.run(|| {
        let job = a.clone();
        thread::spawn(move || (here(), job.run(here), here()))
            .join()
            .unwrap()
    });
    assert_eq!(seen, (String::new(), "/a".into(), String::new()));
}

/// Says at the end of its thread where that is.
struct Last(Sender<String>);

impl Drop for Last {
    fn drop(&mut self) {
        let _ = self.0.send(here());
        // A scope begins and ends here as elsewhere.
        if let Some(group) = Group::current() {
            let _ = self.0.send(group.run(here));
        }
    }
}

thread_local! {
    static FIRST: RefCell<Option<Last>> = const { RefCell::new(None) };
    static GUARD: RefCell<Option<EnterGuard>> = const { RefCell::new(None) };
    static SECOND: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// A guard in a thread-local ends with it, and the thread's other destructors may still ask and
/// switch.
#[test]
fn destructors_of_a_thread() {
    let runtime = runtime();
    let [a] = groups(&runtime, ["a"]);
    let (sender, seen) = channel();
    for last_first in [true, false] {
        let a = a.clone();
        let sender = sender.clone();
        thread::spawn(move || {
            let last = || Some(Last(sender.clone()));
            if last_first {
                SECOND.set(last());
                GUARD.set(Some(a.enter()));
            } else {
                GUARD.set(Some(a.enter()));
                FIRST.set(last());
            }
        })
        .join()
        .unwrap();
    }
    drop(sender);
    let seen: Vec<String> = seen.into_iter().collect();
    assert!(
        seen.iter().all(|path| path.is_empty() || path == "/a"),
        "{seen:?}"
    );
    assert!(seen.len() >= 2, "{seen:?}");
    a.offline().unwrap();
    assert_eq!(runtime.root().children().len(), 0);
}

/// Objects that come, grow and go, when its thread ends, beside another thread that does the same.
struct AllocatesAtEnd(Group, Arc<Barrier>);

impl Drop for AllocatesAtEnd {
    fn drop(&mut self) {
        let AllocatesAtEnd(group, step) = self;
        step.wait();
        // The other thread takes the block that this one has given up.
        step.wait();
        allocate(group, 100_000);
    }
}

thread_local! {
    static AT_END: RefCell<Option<AllocatesAtEnd>> = const { RefCell::new(None) };
}

fn allocate(group: &Group, times: usize) {
    group.run(|| {
        for _ in 0..times {
            let mut object = Object::new(8);
            object.grow(8);
        }
    });
}

/// A thread keeps where its slot lies, for objects. Its destructors run on after another thread has
/// got the slot.
#[test]
fn a_destructor_allocates_beside_the_next_thread() {
    let runtime = runtime();
    let [a] = groups(&runtime, ["a"]);
    let step = Arc::new(Barrier::new(2));
    let ends = {
        let a = a.clone();
        let step = step.clone();
        thread::spawn(move || {
            // Before the first object, so that the destructor runs after the one that gives the
            // block up.
            AT_END.set(Some(AllocatesAtEnd(a.clone(), step)));
            // The second time the stock is open.
            allocate(&a, 1);
            allocate(&a, 10);
            assert!(a.memory().stocked() > 0, "no slot to keep");
        })
    };
    let next = {
        let a = a.clone();
        thread::spawn(move || {
            step.wait();
            allocate(&a, 1);
            step.wait();
            allocate(&a, 100_000);
        })
    };
    ends.join().unwrap();
    next.join().unwrap();
    catch_up();
    a.memory().drain();
    assert_eq!(
        (
            a.usage(),
            a.inspect().allocated_local(),
            runtime.counts().underflows
        ),
        (0, 0, 0)
    );
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
}

/// A thread of the C library with a key destructor, which runs after those of Rust's thread-locals.
#[cfg(target_os = "linux")]
#[test]
#[allow(unsafe_code, reason = "such threads have no safe form")]
fn a_thread_of_the_c_library() {
    use std::ffi::c_void;
    use std::ptr;
    use std::sync::Mutex;

    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static KEY: Mutex<Option<libc::pthread_key_t>> = Mutex::new(None);

    extern "C" fn at_end(group: *mut c_void) {
        // SAFETY: `body` has leaked it.
        let group = unsafe { Box::from_raw(group.cast::<Group>()) };
        let seen = (here(), group.run(here), here());
        SEEN.lock().unwrap().extend([seen.0, seen.1, seen.2]);
    }

    extern "C" fn body(group: *mut c_void) -> *mut c_void {
        // SAFETY: the test has leaked it.
        let group = unsafe { Box::from_raw(group.cast::<Group>()) };
        SEEN.lock().unwrap().push(here());
        SEEN.lock().unwrap().push(group.run(here));
        // The thread ends in the group, and the group stays for ever.
        std::mem::forget(group.enter());
        let key = KEY.lock().unwrap().expect("made by the test");
        // SAFETY: the key is valid, and its destructor takes the box back.
        unsafe { libc::pthread_setspecific(key, Box::into_raw(group).cast()) };
        ptr::null_mut()
    }

    let runtime = runtime();
    let [a] = groups(&runtime, ["a"]);
    // SAFETY: the calls of the C library with arguments that outlive the thread, which is joined.
    unsafe {
        let mut key = 0;
        assert_eq!(libc::pthread_key_create(&mut key, Some(at_end)), 0);
        *KEY.lock().unwrap() = Some(key);
        let mut thread = std::mem::zeroed();
        let given = Box::into_raw(Box::new(a.clone())).cast();
        assert_eq!(
            libc::pthread_create(&mut thread, ptr::null(), body, given),
            0
        );
        assert_eq!(libc::pthread_join(thread, ptr::null_mut()), 0);
        assert_eq!(libc::pthread_key_delete(key), 0);
    }
    assert_eq!(*SEEN.lock().unwrap(), ["", "/a", "/a", "/a", "/a"]);
}
