//! Lazy state of the process: the group whose task needs it first does not pay for it. The first panic
//! with a backtrace, a static, a thread-local, a thread of a pool; and what a group has left of tasks
//! that have ended.

mod support;

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::env;
use std::panic::catch_unwind;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread;

use memcg::{Group, Limits, Runtime};
use memcg_alloc::{MemcgAlloc, unowned, unowned_bytes, unowned_panic_hook};
use support::bytes;

#[global_allocator]
static ALLOCATOR: MemcgAlloc<std::alloc::System> = MemcgAlloc::new(std::alloc::System);

const ROLE: &str = "MEMCG_ALLOC_ROLE";
const LARGE: usize = 300_000;

/// One thread, so that no other allocates between two figures.
fn main() {
    match env::var(ROLE).as_deref() {
        Ok("bare") => panics(|_| {}),
        Ok("hook") => panics(|_| {
            std::panic::set_hook(unowned_panic_hook(std::panic::take_hook()));
        }),
        Ok("warm") => panics(|_| unowned(|| drop(Backtrace::force_capture().to_string()))),
        _ => {
            the_first_panic();
            statics();
            thread_locals();
            threads_of_a_pool();
            a_panic_restores_the_group();
            tasks_that_have_ended();
            println!("lazy state is no group's: ok");
        }
    }
}

/// Prints what a tenant holds after its first panic, in a program that has prepared for it.
fn panics(prepare: impl Fn(&Group)) {
    let runtime = Runtime::builder().build().unwrap();
    let tenant = runtime.root().create("acme", Limits::new()).unwrap();
    prepare(&tenant);
    let failed = catch_unwind(|| tenant.run(|| panic!("a bug of one job")));
    assert!(failed.is_err());
    drop(failed);
    println!("{} {}", tenant.live(), Group::current().is_none());
}

/// With backtraces, of which std keeps the program's symbols.
fn the_first_panic() {
    let held = |role: &str| {
        let output = Command::new(env::current_exe().unwrap())
            .env(ROLE, role)
            .env("RUST_BACKTRACE", "1")
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{role}: {said}");
        assert!(
            role == "warm" || said.contains("stack backtrace:"),
            "{said}"
        );
        let printed = String::from_utf8(output.stdout).unwrap();
        let (bytes, is_out) = printed.trim().split_once(' ').unwrap();
        assert_eq!(is_out, "true", "{role}");
        bytes.parse::<u64>().unwrap()
    };
    let bare = held("bare");
    assert!(
        bare > 100_000,
        "a first panic with a backtrace holds {bare}"
    );
    assert_eq!(held("hook"), 0, "with the hook");
    assert!(held("warm") < bare / 10, "read before");
}

fn tenant(name: &'static str) -> (Runtime, Group) {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create(name, Limits::new()).unwrap();
    (runtime, group)
}

fn statics() {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    static BARE: OnceLock<Vec<u8>> = OnceLock::new();
    let (_runtime, group) = tenant("statics");
    let before = unowned_bytes();
    let table = || TABLE.get_or_init(|| unowned(|| bytes(1, LARGE))).len();
    assert_eq!(group.run(table), LARGE);
    assert_eq!((group.live(), unowned_bytes() - before), (0, LARGE as u64));
    group.run(|| BARE.get_or_init(|| bytes(1, LARGE)).len());
    assert_eq!(group.live(), LARGE as u64, "without it the first pays");
}

fn thread_locals() {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    let (_runtime, group) = tenant("thread_locals");
    // It grows later, where a task needs more: in place it stays no group's.
    unowned(|| SCRATCH.with_borrow_mut(|scratch| scratch.reserve_exact(1_000)));
    group.run(|| SCRATCH.with_borrow_mut(|scratch| scratch.reserve_exact(LARGE)));
    assert_eq!(group.live(), 0);
    SCRATCH.take();
}

/// A thread that a task starts and that outlives it, as tokio's threads for blocking work do.
fn threads_of_a_pool() {
    let (_runtime, group) = tenant("pool");
    let (jobs, to_do) = channel::<Box<dyn FnOnce() + Send>>();
    let (said, done) = channel();
    let start = move || {
        thread::Builder::new()
            .name("blocking".into())
            .spawn(move || to_do.iter().for_each(|job| job()))
            .unwrap()
    };
    let thread = group.run(|| unowned(start));
    assert_eq!(group.live(), 0, "the thread is nobody's");
    let kept = group.run(|| {
        let work = group.wrap(move || said.send(bytes(1, LARGE)).unwrap());
        jobs.send(Box::new(work)).unwrap();
        done.recv().unwrap()
    });
    assert!(group.live() >= LARGE as u64, "the work is the group's");
    drop((kept, done));
    drop(jobs);
    thread.join().unwrap();
}

fn a_panic_restores_the_group() {
    let (_runtime, group) = tenant("restored");
    group.run(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let failed = catch_unwind(|| unowned(|| -> () { panic!("in lazy state") }));
        std::panic::set_hook(hook);
        assert!(failed.is_err() && Group::current().as_ref() == Some(&group));
        unowned(|| {
            assert_eq!(Group::current(), None);
            group.run(|| assert_eq!(Group::current().as_ref(), Some(&group)));
            assert_eq!(Group::current(), None);
        });
    });
}

/// The ledger of a tenant has what its tasks have left.
fn tasks_that_have_ended() {
    let (runtime, acme) = tenant("acme");
    let left = || {
        (
            acme.ledger().left_behind(),
            runtime.root().ledger().left_behind(),
        )
    };
    let task = acme.scope(1, Limits::new()).unwrap();
    let [cache, own] = task.run(|| [1_000, 50].map(|size| bytes(1, size)));
    assert_eq!(left(), (0, 0), "the task is alive");
    let offline = Group::clone(&task);
    drop(task);
    assert_eq!(left(), (1_050, 1_050));
    assert_eq!(offline.ledger().left_behind(), 1_050);
    drop(own);
    let alive = acme.scope(2, Limits::new()).unwrap();
    let working = alive.run(|| bytes(1, 700));
    assert_eq!((left(), acme.ledger().allocated()), ((1_000, 1_000), 1_700));
    assert!(runtime.snapshot().to_string().contains("left behind"));
    drop(cache);
    assert_eq!(left(), (0, 0));
    drop((working, alive));
}
