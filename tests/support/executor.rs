//! Enough of an executor to wait with: tasks on a queue with threads that take from it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

// === impl Executor ===

/// The state that its threads share. Tasks live until they have finished.
#[derive(Default)]
pub(crate) struct Executor {
    queue: Mutex<Queue>,
    /// There is a task, or there will be none.
    ready: Condvar,
    spawned: AtomicUsize,
    finished: AtomicUsize,
    /// Calls of any task's waker.
    wakes: AtomicU64,
    /// Those that a task made itself, in [`Executor::pass_on`].
    own_wakes: AtomicU64,
    polls: AtomicU64,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Arc<Task>>,
    /// Threads that are in a poll.
    busy: usize,
    over: bool,
}

struct Task {
    executor: Arc<Executor>,
    /// `None` once it has finished.
    future: Mutex<Option<Boxed>>,
    /// It is on the queue, or will be put there after the poll that is under way.
    queued: AtomicBool,
}

impl Executor {
    pub(crate) fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        self.spawned.fetch_add(1, Ordering::SeqCst);
        let future: Mutex<Option<Boxed>> = Mutex::new(Some(Box::pin(future)));
        let task = Arc::new(Task {
            executor: Arc::clone(self),
            future,
            queued: AtomicBool::new(true),
        });
        self.push(task);
    }

    fn push(&self, task: Arc<Task>) {
        lock(&self.queue).tasks.push_back(task);
        self.ready.notify_one();
    }

    /// Runs tasks on this thread until [`Executor::end`].
    pub(crate) fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                queue.busy += 1;
                drop(queue);
                self.polls.fetch_add(1, Ordering::Relaxed);
                task.run();
                queue = lock(&self.queue);
                queue.busy -= 1;
            } else if queue.over {
                return;
            } else {
                queue = self
                    .ready
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Nothing is on the queue and no thread polls: a task that has not finished waits to be woken.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.tasks.is_empty() && queue.busy == 0
    }

    /// Its threads return when the queue is empty.
    pub(crate) fn end(&self) {
        lock(&self.queue).over = true;
        self.ready.notify_all();
    }

    pub(crate) fn spawned(&self) -> usize {
        self.spawned.load(Ordering::SeqCst)
    }

    pub(crate) fn finished(&self) -> usize {
        self.finished.load(Ordering::SeqCst)
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::SeqCst)
    }

    /// The wakes of a task by any thread but itself, whether it was on the queue already or not.
    pub(crate) fn wakes(&self) -> u64 {
        let own = self.own_wakes.load(Ordering::SeqCst);
        self.wakes.load(Ordering::SeqCst) - own
    }

    /// A task lets all others on the queue go first.
    pub(crate) fn pass_on(&self) -> impl Future<Output = ()> {
        let mut passed = false;
        std::future::poll_fn(move |context| {
            if std::mem::replace(&mut passed, true) {
                return Poll::Ready(());
            }
            self.own_wakes.fetch_add(1, Ordering::SeqCst);
            context.waker().wake_by_ref();
            Poll::Pending
        })
    }
}

impl Task {
    fn run(self: Arc<Self>) {
        // A thread that wakes it from here on puts it on the queue again; a second thread waits at
        // the lock.
        self.queued.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self));
        let mut future = lock(&self.future);
        // Woken once more while it finished.
        let Some(running) = future.as_mut() else {
            return;
        };
        if running
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
        {
            drop(future.take());
            drop(future);
            self.executor.finished.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.executor.wakes.fetch_add(1, Ordering::SeqCst);
        if !self.queued.swap(true, Ordering::SeqCst) {
            let executor = Arc::clone(&self.executor);
            executor.push(self);
        }
    }
}
