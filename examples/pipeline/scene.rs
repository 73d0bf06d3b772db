//! The load: tasks in groups that pass buffers on to tasks of other groups.
//!
//! Each lane is a task that decodes, one that transforms and one that takes the results, in three
//! groups. So most memory is freed in another group than it was allocated in. Beside them, groups
//! come and go with tasks that are aborted, and threads that know no Rust end with destructors that
//! allocate.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use memcg::{Charge, ChargeError, Group, GroupName, InGroup, Limits};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{JoinHandle, JoinSet};

use crate::allocator::numbered;
use crate::foreign;

const LANES: usize = 60;
const QUEUED: usize = 4;
const CHURN_PAUSE: Duration = Duration::from_millis(120); // of 20 tasks: 10,000 groups a minute

#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) stop: AtomicBool,
    pub(crate) messages: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// The message that goes from stage to stage. The memory is freed before the charge that pays for
/// it.
struct Message {
    buffer: Vec<u8>,
    words: Vec<String>,
    _charge: Option<Charge>,
}

/// A future whose allocations the program counts for itself, too.
struct CountedTask<F>(u32, Option<Pin<Box<F>>>);

impl<F: Future> Future for CountedTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let CountedTask(number, future) = &mut *self;
        let future = future.as_mut().expect("it is there until the drop");
        numbered(*number, || future.as_mut().poll(context))
    }
}

impl<F> Drop for CountedTask<F> {
    fn drop(&mut self) {
        let CountedTask(number, future) = self;
        numbered(*number, || drop(future.take()));
    }
}

/// Spawns a task of a group. Its memory is allocated, and freed, in the group.
fn spawn<F>(number: usize, group: &Group, task: F) -> JoinHandle<()>
where
    F: Future<Output = Result<(), ChargeError>> + Send + 'static,
{
    let number = number as u32 + 1;
    let task = CountedTask(
        number,
        Some(group.run(|| numbered(number, || Box::pin(task)))),
    );
    tokio::spawn(async move { drop(task.await) }.in_group(group))
}

async fn decode(
    group: Group,
    out: Sender<Message>,
    progress: Arc<Progress>,
    strings: bool,
    seed: u64,
) -> Result<(), ChargeError> {
    let mut random = SmallRng::seed_from_u64(seed);
    while !progress.stop.load(Ordering::Relaxed) {
        let size = 4_096_usize << random.random_range(0..=8);
        let charge = group
            .charge_async(if strings { size + size / 8 } else { size })
            .await?;
        let (buffer, words) = group.run(|| {
            let mut buffer = vec![0_u8; size];
            buffer
                .iter_mut()
                .step_by(4_096)
                .for_each(|byte| *byte = size as u8);
            let words = if strings {
                (0..size / 1_024)
                    .map(|word| format!("{word:032}"))
                    .collect()
            } else {
                Vec::new()
            };
            (buffer, words)
        });
        let message = Message {
            buffer,
            words,
            _charge: Some(charge),
        };
        tokio::select! {
            sent = out.send(message) => if sent.is_err() { break },
            // The next stage takes none for so long: the message is dropped, and its charge with
            // it.
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        Group::checkpoint()?;
    }
    Ok(())
}

async fn transform(mut from: Receiver<Message>, out: Sender<Message>) -> Result<(), ChargeError> {
    let mut turn = 0_u32;
    while let Some(message) = from.recv().await {
        turn += 1;
        let halve = move || {
            message
                .buffer
                .iter()
                .step_by(2)
                .copied()
                .collect::<Vec<u8>>()
        };
        // On another thread now and then, where the work is in no group.
        let buffer = if turn.is_multiple_of(16) {
            tokio::task::spawn_blocking(halve).await.unwrap_or_default()
        } else {
            halve()
        };
        let filled = Message {
            buffer,
            words: message.words,
            _charge: None,
        };
        if out.send(filled).await.is_err() {
            break;
        }
        Group::checkpoint()?;
    }
    Ok(())
}

async fn sink(mut from: Receiver<Message>, progress: Arc<Progress>) -> Result<(), ChargeError> {
    while let Some(message) = from.recv().await {
        let words: usize = message.words.iter().map(String::len).sum();
        progress
            .bytes
            .fetch_add((message.buffer.len() + words) as u64, Ordering::Relaxed);
        progress.messages.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Makes groups with a task each, and aborts the task.
async fn churn(parent: Group, progress: Arc<Progress>, seed: u64) -> Result<(), ChargeError> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut tasks = JoinSet::new();
    while !progress.stop.load(Ordering::Relaxed) {
        if let Ok(query) = parent.scope(GroupName::Unnamed, Limits::new().max(1 << 20)) {
            let pages = random.random_range(1..64);
            let task = async move {
                let mut held = Vec::new();
                loop {
                    held.push(vec![1_u8; pages * 4_096]);
                    Group::checkpoint()?;
                    tokio::task::yield_now().await;
                }
                #[allow(unreachable_code, reason = "it says what the loop returns")]
                Ok::<(), ChargeError>(())
            };
            // In no group of the program's own count: its object is gone before the count is
            // compared.
            let counted = Arc::clone(&progress);
            let task = CountedTask(0, Some(Box::pin(task.in_group(&query))));
            let handle = tasks.spawn(async move {
                if task.await.is_err() {
                    counted.refused.fetch_add(1, Ordering::Relaxed);
                }
            });
            tokio::time::sleep(CHURN_PAUSE).await;
            handle.abort();
            progress.groups.fetch_add(1, Ordering::Relaxed);
        }
        while tasks.try_join_next().is_some() {}
    }
    tasks.shutdown().await;
    Ok(())
}

/// Starts all tasks. They end once the progress says stop.
pub(crate) fn start(
    groups: &[Group],
    progress: &Arc<Progress>,
    strings: bool,
) -> Vec<JoinHandle<()>> {
    let of = |lane: usize, stage: usize| (lane + stage) % groups.len();
    let mut tasks = Vec::new();
    for lane in 0..LANES {
        let (decoded, to_transform) = channel(QUEUED);
        let (transformed, to_sink) = channel(QUEUED);
        let [first, second, third] = [0, 1, 2].map(|stage| of(lane, stage));
        let decoding = decode(
            groups[first].clone(),
            decoded,
            Arc::clone(progress),
            strings,
            lane as u64,
        );
        tasks.push(spawn(first, &groups[first], decoding));
        tasks.push(spawn(
            second,
            &groups[second],
            transform(to_transform, transformed),
        ));
        tasks.push(spawn(
            third,
            &groups[third],
            sink(to_sink, Arc::clone(progress)),
        ));
    }
    for (number, group) in groups.iter().enumerate() {
        tasks.push(spawn(
            number,
            group,
            churn(group.clone(), Arc::clone(progress), number as u64),
        ));
    }
    let group = groups[0].clone();
    let progress = Arc::clone(progress);
    tasks.push(tokio::task::spawn_blocking(move || {
        while !progress.stop.load(Ordering::Relaxed) {
            foreign::thread(&group);
            std::thread::sleep(Duration::from_millis(50));
        }
    }));
    tasks
}
