//! `wait/async/groups100`: one thread polls the futures that have been woken.

#![cfg(not(loom))]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use memcg::{Bytes, Charge, ChargeFuture, Group, Limit, Limits, Runtime};
use parking_lot::Mutex;

use crate::common::rows::Rows;
use crate::common::team::Team;

/// Bytes of a charge, and of the room in each group.
const SIZE: u64 = 64 << 10;

const GROUPS: usize = 100;
/// That are in line, or hold what there is, in each group.
const TASKS: usize = 4;

const TOUCHES: u64 = 1_000;

pub(crate) fn rows(rows: &mut Rows) {
    rows.wall(&format!("wait/async/groups{GROUPS}"), team);
}

/// Indices of tasks that were woken.
type Woken = Arc<Mutex<Vec<usize>>>;

struct Bell {
    task: usize,
    woken: Woken,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.woken.lock().push(self.task);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.lock().push(self.task);
    }
}

struct Task {
    group: Group,
    waker: Waker,
    future: Option<ChargeFuture>,
    charge: Option<Charge>,
}

impl Task {
    /// True if it has been admitted.
    fn poll(&mut self) -> bool {
        let future = self
            .future
            .get_or_insert_with(|| self.group.charge_async(Bytes(SIZE)));
        match Pin::new(future).poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(charge) => {
                self.charge = Some(charge.expect("it fits"));
                self.future = None;
                true
            }
            Poll::Pending => false,
        }
    }
}

/// All tasks, in a circle by groups: one of each group holds its room, the others wait for it.
struct Circle {
    tasks: Vec<Task>,
    woken: Woken,
    /// Tasks that hold their group's room, the one first that has had it longest.
    holders: std::collections::VecDeque<usize>,
}

impl Circle {
    fn new(runtime: &Runtime) -> Self {
        let woken = Woken::default();
        let groups: Vec<Group> = (0..GROUPS)
            .map(|number| {
                let limits = Limits::new().max(Limit::Bytes(SIZE));
                runtime
                    .root()
                    .create(&format!("tenant{number}"), limits)
                    .expect("a free name in a group that is")
            })
            .collect();
        let tasks = (0..TASKS * GROUPS).map(|task| Task {
            group: groups[task % GROUPS].clone(),
            waker: Waker::from(Arc::new(Bell {
                task,
                woken: Arc::clone(&woken),
            })),
            future: None,
            charge: None,
        });
        let mut circle = Circle {
            tasks: tasks.collect(),
            woken,
            holders: (0..GROUPS).collect(),
        };
        for (number, task) in circle.tasks.iter_mut().enumerate() {
            assert_eq!(task.poll(), number < GROUPS, "room for the first alone");
        }
        circle
    }

    /// The future that has held longest gives back and gets in line again. The one that this wakes
    /// holds then.
    fn admissions(&mut self, times: u64) {
        for _ in 0..times {
            let holder = self.holders.pop_front().expect("one of each group");
            drop(self.tasks[holder].charge.take());
            while let Some(woken) = { self.woken.lock().pop() } {
                if self.tasks[woken].poll() {
                    self.holders.push_back(woken);
                }
            }
            if self.tasks[holder].poll() {
                self.holders.push_back(holder);
            }
        }
    }
}

fn team() -> Team {
    Team::new(1, |station| {
        let runtime = Runtime::builder()
            .build()
            .expect("nothing is asked for that cannot be had");
        let mut circle = Circle::new(&runtime);
        circle.admissions(TOUCHES);
        station.serve(|iters| circle.admissions(iters));
        assert_eq!(
            circle.holders.len(),
            GROUPS,
            "a future that waited was not woken"
        );
    })
}
