//! Processes to test with, as the kernel's tests have them: a process is a group with a cancel
//! hook, and a thread that holds charges; cancelled, it gives all of them back and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memcg::{Bytes, Charge, ChargeError, Group, Limits, Registration};

const MIB: u64 = 1 << 20;
/// A process that is killed ends; one that does not is a fault, not a slow machine.
const WATCHDOG: Duration = Duration::from_secs(60);

type Work = Box<dyn FnOnce(&mut Vec<Charge>) + Send>;

enum Order {
    Work(Work),
    Die,
}

pub(crate) struct Process {
    group: Group,
    orders: Sender<Order>,
    kills: Arc<AtomicU64>,
    dead: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    hook: Option<Registration>,
}

impl Process {
    /// In a group of its own.
    #[track_caller]
    pub(crate) fn below(parent: &Group, name: &str) -> Process {
        Process::in_group(
            &parent
                .create(name, Limits::new())
                .expect("a name that is free"),
        )
    }

    /// The group is the process.
    pub(crate) fn in_group(group: &Group) -> Process {
        let (orders, inbox) = channel();
        let kills = Arc::new(AtomicU64::new(0));
        let dead = Arc::new(AtomicBool::new(false));
        let thread = {
            let dead = Arc::clone(&dead);
            thread::spawn(move || {
                let mut held = Vec::new();
                for order in inbox {
                    match order {
                        Order::Work(work) => work(&mut held),
                        Order::Die => break,
                    }
                }
                drop(held);
                dead.store(true, Ordering::SeqCst);
            })
        };
        let hook = {
            let kills = Arc::clone(&kills);
            let orders = orders.clone();
            group.on_cancel(move |_| {
                kills.fetch_add(1, Ordering::SeqCst);
                // It may have ended by itself.
                let _ = orders.send(Order::Die);
            })
        };
        Process {
            group: group.clone(),
            orders,
            kills,
            dead,
            thread: Some(thread),
            hook: Some(hook),
        }
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// On its thread; waits for the answer. `None`: it died without one.
    fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Group, &mut Vec<Charge>) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, result) = channel();
        let group = self.group.clone();
        let work = move |held: &mut Vec<Charge>| {
            // The caller waits.
            let _ = answer.send(work(&group, held));
        };
        self.orders.send(Order::Work(Box::new(work))).ok()?;
        result.recv().ok()
    }

    /// It charges and keeps so much, one MiB after the other, until it has all of it or an error.
    #[track_caller]
    pub(crate) fn allocate(&self, bytes: u64) -> Result<(), ChargeError> {
        self.allocate_by(MIB, bytes)
    }

    /// The same in pieces of another size.
    #[track_caller]
    pub(crate) fn allocate_by(&self, piece: u64, bytes: u64) -> Result<(), ChargeError> {
        let work = move |group: &Group, held: &mut Vec<Charge>| {
            let mut left = bytes;
            while left > 0 {
                let piece = left.min(piece);
                held.push(group.charge(Bytes(piece))?);
                left -= piece;
            }
            Ok(())
        };
        self.run(work).expect("alive when it was asked to")
    }

    /// Its hook has been called so often.
    pub(crate) fn kills(&self) -> u64 {
        self.kills.load(Ordering::SeqCst)
    }

    /// All it held has been given back, and it has ended.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Once it is killed, it ends.
    #[track_caller]
    pub(crate) fn wait_until_dead(&self) {
        let end = Instant::now() + WATCHDOG;
        while !self.is_dead() {
            assert!(Instant::now() < end, "{} lives", self.group.path());
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// It ends by itself, if it has not yet, and leaves its group.
    pub(crate) fn exit(mut self) -> Group {
        self.end();
        self.group.clone()
    }

    fn end(&mut self) {
        drop(self.hook.take());
        let _ = self.orders.send(Order::Die);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where the answer was missing.
            let _ = thread.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
