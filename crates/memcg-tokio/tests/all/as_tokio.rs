//! The channel beside tokio's bounded channel, step by step: the same script runs on both, and each
//! step must show the same. Each message has the same weight, so that a number of messages is a
//! number of bytes. One test runs every short script, the other one long scripts at random. A task
//! is cancelled at an await alone, so a script that drops tasks between polls drops them wherever
//! they can be dropped.

use std::future::Future;
use std::pin::Pin;

use memcg::{Group, Limits, Runtime};
use memcg_tokio::{Receiver, SendError, Sender, channel, message_overhead};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio_test::task::{Spawn, spawn};

type Task<T> = Spawn<Pin<Box<dyn Future<Output = T>>>>;

/// Result of a step.
#[derive(Debug, PartialEq)]
enum Seen {
    Sent(u32),
    Returned(u32, &'static str),
    Received(Option<u32>),
    Nothing(&'static str),
    Closed,
}

/// A channel of `u64`s: those up to `u32::MAX` are messages.
trait Channel: Sized {
    type Sender: Clone + 'static;
    type Receiver: 'static;
    fn send(sender: Self::Sender, message: u32) -> Pin<Box<dyn Future<Output = Seen>>>;
    fn try_send(sender: &Self::Sender, message: u32) -> Seen;
    fn is_closed(sender: &Self::Sender) -> bool;
    fn closed(sender: Self::Sender) -> Pin<Box<dyn Future<Output = Seen>>>;
    fn recv(receiver: &mut Self::Receiver) -> Seen;
    fn try_recv(receiver: &mut Self::Receiver) -> Seen;
    fn close(receiver: &mut Self::Receiver);
    fn state(receiver: &Self::Receiver) -> (bool, bool, usize);
}

/// Calls of the same name in both channels.
macro_rules! calls_of_the_same_name {
    () => {
        fn is_closed(sender: &Self::Sender) -> bool {
            sender.is_closed()
        }

        fn closed(sender: Self::Sender) -> Pin<Box<dyn Future<Output = Seen>>> {
            Box::pin(async move {
                sender.closed().await;
                Seen::Closed
            })
        }

        fn recv(receiver: &mut Self::Receiver) -> Seen {
            match spawn(receiver.recv()).poll() {
                std::task::Poll::Ready(received) => Seen::Received(received),
                std::task::Poll::Pending => Seen::Nothing("pending"),
            }
        }

        fn try_recv(receiver: &mut Self::Receiver) -> Seen {
            tried(receiver.try_recv())
        }

        fn close(receiver: &mut Self::Receiver) {
            receiver.close();
        }

        fn state(receiver: &Self::Receiver) -> (bool, bool, usize) {
            (receiver.is_closed(), receiver.is_empty(), receiver.len())
        }
    };
}

struct Tokio;

impl Channel for Tokio {
    type Sender = mpsc::Sender<u32>;
    type Receiver = mpsc::Receiver<u32>;

    fn send(sender: Self::Sender, message: u32) -> Pin<Box<dyn Future<Output = Seen>>> {
        Box::pin(async move {
            match sender.send(message).await {
                Ok(()) => Seen::Sent(message),
                Err(unsent) => Seen::Returned(unsent.0, "closed"),
            }
        })
    }

    fn try_send(sender: &Self::Sender, message: u32) -> Seen {
        match sender.try_send(message) {
            Ok(()) => Seen::Sent(message),
            Err(TrySendError::Full(message)) => Seen::Returned(message, "full"),
            Err(TrySendError::Closed(message)) => Seen::Returned(message, "closed"),
        }
    }

    calls_of_the_same_name!();
}

fn tried(received: Result<u32, TryRecvError>) -> Seen {
    match received {
        Ok(message) => Seen::Received(Some(message)),
        Err(TryRecvError::Empty) => Seen::Nothing("empty"),
        Err(TryRecvError::Disconnected) => Seen::Nothing("disconnected"),
    }
}

struct Ours;

impl Channel for Ours {
    type Sender = Sender<u32>;
    type Receiver = Receiver<u32>;

    fn send(sender: Self::Sender, message: u32) -> Pin<Box<dyn Future<Output = Seen>>> {
        Box::pin(async move {
            match sender.send(message).await {
                Ok(()) => Seen::Sent(message),
                Err(SendError::Closed(message)) => Seen::Returned(message, "closed"),
                Err(refused) => panic!("{refused}"),
            }
        })
    }

    fn try_send(sender: &Self::Sender, message: u32) -> Seen {
        match sender.try_send(message) {
            Ok(()) => Seen::Sent(message),
            Err(SendError::Closed(message)) => Seen::Returned(message, "closed"),
            Err(refused) => Seen::Returned(refused.into_message(), "full"),
        }
    }

    calls_of_the_same_name!();
}

/// A channel, and the tasks that use it.
struct Scene<C: Channel> {
    senders: Vec<C::Sender>,
    receiver: Option<C::Receiver>,
    /// In the order in which they began. An ended one leaves its place.
    tasks: Vec<Option<Task<Seen>>>,
}

impl<C: Channel> Scene<C> {
    fn new((sender, receiver): (C::Sender, C::Receiver)) -> Self {
        Scene {
            senders: vec![sender],
            receiver: Some(receiver),
            tasks: Vec::new(),
        }
    }

    fn begin(&mut self, future: Pin<Box<dyn Future<Output = Seen>>>) -> Vec<Seen> {
        let mut task = spawn(future);
        match task.poll() {
            std::task::Poll::Ready(seen) => vec![seen],
            std::task::Poll::Pending => {
                self.tasks.push(Some(task));
                Vec::new()
            }
        }
    }

    /// Polls the tasks that were woken, as an executor would, until none is.
    fn settle(&mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        while let Some(at) = self
            .tasks
            .iter()
            .position(|task| task.as_ref().is_some_and(Spawn::is_woken))
        {
            let task = self.tasks[at].as_mut().unwrap();
            if let std::task::Poll::Ready(ended) = task.poll() {
                seen.push(ended);
                self.tasks[at] = None;
            }
        }
        seen
    }

    /// One step. `pick` chooses among what is there.
    fn step(&mut self, step: u32, pick: usize, message: u32) -> Vec<Seen> {
        let sender = (!self.senders.is_empty())
            .then(|| self.senders[pick % self.senders.len().max(1)].clone());
        let mut seen = match (step, sender, self.receiver.as_mut()) {
            (0..30, Some(sender), _) => self.begin(C::send(sender, message)),
            (30..40, Some(sender), _) => vec![C::try_send(&sender, message)],
            (40..65, _, Some(receiver)) => vec![C::recv(receiver)],
            (65..75, _, Some(receiver)) => vec![C::try_recv(receiver)],
            (75..85, _, _) => {
                // Cancelled, wherever it waits.
                let waiting = self.tasks.iter().filter(|task| task.is_some()).count();
                if waiting > 0 {
                    *self
                        .tasks
                        .iter_mut()
                        .filter(|task| task.is_some())
                        .nth(pick % waiting)
                        .unwrap() = None;
                }
                Vec::new()
            }
            (85..88, Some(sender), _) => self.begin(C::closed(sender)),
            (88..92, Some(sender), _) => {
                self.senders.push(sender);
                Vec::new()
            }
            (92..97, Some(_), _) => {
                self.senders.remove(pick % self.senders.len());
                Vec::new()
            }
            (97, _, Some(receiver)) => {
                C::close(receiver);
                Vec::new()
            }
            (98, _, Some(_)) if pick.is_multiple_of(3) => {
                self.receiver = None;
                Vec::new()
            }
            _ => Vec::new(),
        };
        seen.extend(self.settle());
        seen
    }

    fn state(&self) -> (Option<(bool, bool, usize)>, Vec<bool>, usize) {
        let closed = self.senders.iter().map(C::is_closed).collect();
        (
            self.receiver.as_ref().map(C::state),
            closed,
            self.tasks.iter().filter(|task| task.is_some()).count(),
        )
    }
}

const MESSAGE: usize = message_overhead::<u32>();

fn group_for(runtime: &Runtime, fit: usize) -> Group {
    runtime
        .root()
        .create("queue", Limits::new().max(fit * MESSAGE))
        .unwrap()
}

#[test]
fn a_random_script_shows_the_same_on_both() {
    let mut steps = 0;
    let mut waited = 0;
    let mut returned = 0;
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let fit = random.random_range(1..=4);
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let group = group_for(&runtime, fit);
        let mut theirs = Scene::<Tokio>::new(mpsc::channel(fit));
        let mut ours = Scene::<Ours>::new(channel(&group));
        for message in 0..120 {
            let step = random.random_range(0..99);
            let pick = random.random_range(0..1000);
            let expected = theirs.step(step, pick, message);
            let seen = ours.step(step, pick, message);
            assert_eq!(seen, expected, "seed {seed}, step {message}: {step}");
            assert_eq!(
                ours.state(),
                theirs.state(),
                "seed {seed}, step {message}: {step}"
            );
            steps += 1;
            waited += usize::from(group.waiting_count() > 0);
            returned += seen
                .iter()
                .filter(|seen| matches!(seen, Seen::Returned(..)))
                .count();
            if let Some(receiver) = &ours.receiver {
                assert_eq!(
                    group.live(),
                    (receiver.len() * MESSAGE) as u64,
                    "charged as long as it is there"
                );
            }
        }
        drop(ours);
        assert_eq!(group.live(), 0, "seed {seed}");
        assert!(
            runtime.verify().to_string().ends_with("all add up"),
            "{}",
            runtime.verify()
        );
    }
    // The scripts reach what they are for.
    assert!(
        steps == 48_000 && waited > 3_000 && returned > 3_000,
        "{steps} {waited} {returned}"
    );
}

/// Steps of the exhaustive scripts. `Poll` polls the tasks that were woken, so a task is cancelled
/// also between the moment that serves it and its next poll. `Close` and `DropReceiver` poll them
/// first: a task of tokio that was served before still sends after them, and one of ours does not,
/// as `Sender::reserve` says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Command {
    Send,
    TrySend,
    Receive,
    TryReceive,
    /// The task of this place among those that are there.
    Cancel(usize),
    /// All tasks that were woken.
    Poll,
    Watch,
    DropSender,
    Close,
    DropReceiver,
}

const COMMANDS: [Command; 11] = [
    Command::Send,
    Command::TrySend,
    Command::Receive,
    Command::TryReceive,
    Command::Cancel(0),
    Command::Cancel(1),
    Command::Poll,
    Command::Watch,
    Command::DropSender,
    Command::Close,
    Command::DropReceiver,
];

impl<C: Channel> Scene<C> {
    fn command(&mut self, command: Command, message: u32) -> Vec<Seen> {
        let sender = self.senders.first().cloned();
        match (command, sender, self.receiver.as_mut()) {
            (Command::Send, Some(sender), _) => self.begin_in_line(C::send(sender, message)),
            (Command::Watch, Some(sender), _) => self.begin_in_line(C::closed(sender)),
            (Command::TrySend, Some(sender), _) => vec![C::try_send(&sender, message)],
            (Command::Receive, _, Some(receiver)) => vec![C::recv(receiver)],
            (Command::TryReceive, _, Some(receiver)) => vec![C::try_recv(receiver)],
            (Command::Cancel(at), _, _) => {
                if let Some(task) = self.tasks.iter_mut().filter(|task| task.is_some()).nth(at) {
                    *task = None;
                }
                Vec::new()
            }
            (Command::Poll, _, _) => self.settle(),
            (Command::DropSender, Some(_), _) => {
                self.senders.remove(0);
                Vec::new()
            }
            (Command::Close, _, Some(_)) => {
                let seen = self.settle();
                C::close(self.receiver.as_mut().unwrap());
                seen
            }
            (Command::DropReceiver, _, _) => {
                let seen = self.settle();
                self.receiver = None;
                seen
            }
            _ => Vec::new(),
        }
    }

    /// Polls a new task until it waits for others: a send of ours lets other tasks run twice before
    /// that.
    fn begin_in_line(&mut self, future: Pin<Box<dyn Future<Output = Seen>>>) -> Vec<Seen> {
        let mut seen = self.begin(future);
        if seen.is_empty() {
            let task = self.tasks.last_mut().unwrap();
            while task.as_ref().is_some_and(Spawn::is_woken) {
                if let std::task::Poll::Ready(ended) = task.as_mut().unwrap().poll() {
                    seen.push(ended);
                    *task = None;
                }
            }
        }
        seen
    }
}

/// Every script of so many commands, after sends of which one has found room and two wait.
const COMMANDS_OF_A_SCRIPT: u32 = 4;

#[test]
fn every_short_script_shows_the_same_on_both() {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = group_for(&runtime, 1);
    let scripts = COMMANDS.len().pow(COMMANDS_OF_A_SCRIPT);
    let mut served_and_cancelled = 0;
    for script in 0..scripts {
        let mut theirs = Scene::<Tokio>::new(mpsc::channel(1));
        let mut ours = Scene::<Ours>::new(channel(&group));
        let commands = (0..COMMANDS_OF_A_SCRIPT)
            .map(|at| COMMANDS[script / COMMANDS.len().pow(at) % COMMANDS.len()]);
        let commands: Vec<_> = [Command::Send; 3]
            .into_iter()
            .chain(commands)
            .chain([Command::Poll])
            .collect();
        for (message, &command) in (0..).zip(&commands) {
            let woken = ours
                .tasks
                .iter()
                .flatten()
                .next()
                .is_some_and(Spawn::is_woken);
            served_and_cancelled += usize::from(woken && command == Command::Cancel(0));
            let expected = theirs.command(command, message);
            let seen = ours.command(command, message);
            assert_eq!(seen, expected, "{message} of {commands:?}");
            assert_eq!(ours.state(), theirs.state(), "{message} of {commands:?}");
        }
        drop(ours);
        assert_eq!(
            (group.live(), group.waiting_count()),
            (0, 0),
            "{commands:?}"
        );
    }
    assert!(served_and_cancelled > 500, "{served_and_cancelled}");
    assert!(
        runtime.verify().to_string().ends_with("all add up"),
        "{}",
        runtime.verify()
    );
}
