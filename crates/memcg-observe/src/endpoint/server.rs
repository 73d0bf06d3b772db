//! The two threads of an endpoint: one serves all clients, and one sets limits.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memcg::Runtime;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};

use super::answers::{answer, error, incidents, rows};
use super::client::{Client, State, keep};
use super::turns::{Costs, Kind, ROUND};
use super::{CLIENTS_MAX, Endpoint, IDLE, SLOW};
use crate::files;
use crate::protocol::Question;

/// A byte that is not taken yet wakes as well as two.
pub(super) fn wake(mut socket: &UnixStream) {
    let _ = socket.write(&[0]);
}

// === The thread that sets limits ===

/// Clients by their numbers, with the answers that they get.
pub(super) type Results = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

pub(super) struct Set {
    client: u64,
    path: String,
    file: String,
    to: String,
}

pub(super) struct Setter {
    pub(super) runtime: Runtime,
    pub(super) sets: Receiver<Set>,
    pub(super) results: Results,
    pub(super) wake: Arc<UnixStream>,
}

impl Setter {
    /// Ends with the thread that serves.
    pub(super) fn run(self) {
        while let Ok(Set {
            client,
            path,
            file,
            to,
        }) = self.sets.recv()
        {
            let line = answer(files::write(&self.runtime, &path, &file, &to));
            self.results
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((client, line));
            wake(&self.wake);
        }
    }
}

pub(super) struct Server {
    pub(super) endpoint: Endpoint,
    pub(super) listener: UnixListener,
    pub(super) woken: UnixStream,
    pub(super) sets: SyncSender<Set>,
    pub(super) results: Results,
    pub(super) stop: Arc<Mutex<bool>>,
    pub(super) clients: Vec<Client>,
    pub(super) numbers: u64,
    /// False: the system has not given the last client that came. It is asked again after a moment.
    pub(super) listens: bool,
    pub(super) costs: Costs,
    /// The last figures for a monitoring system, and when their reading began: one reading is the
    /// answer to all that asked before it.
    pub(super) metrics: Option<(Instant, Arc<Vec<u8>>)>,
}

impl Server {
    pub(super) fn run(mut self) {
        while !*self.stop.lock().unwrap_or_else(PoisonError::into_inner) {
            let ready = self.poll();
            // Before the results are taken: one that comes in between leaves its wake for the next
            // round.
            self.drain_wakes();
            self.give_results();
            let mut at = 0;
            self.clients.retain_mut(|client| {
                let events = ready.get(at).copied().unwrap_or(PollFlags::empty());
                at += 1;
                keep(client, events)
            });
            self.answer_all();
            // Now: it would wait for the next look, which no one else may ask for.
            self.clients
                .retain(|client| !matches!(client.state, State::Gone));
            self.drop_slowest();
            self.accept();
        }
    }

    /// The operations that each client is ready for, in their order. Where the system fails,
    /// nothing is, for a moment.
    fn poll(&self) -> Vec<PollFlags> {
        let wants = |client: &Client| match client.state {
            State::Asking if !client.ended && !client.has_question() => PollFlags::IN,
            State::Asking | State::Setting | State::Gone => PollFlags::empty(),
            State::Answering { .. } => PollFlags::OUT,
        };
        // A client that the system does not give is there still, and would end each look at once.
        let new = if self.listens {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let fixed = [
            PollFd::new(&self.woken, PollFlags::IN),
            PollFd::new(&self.listener, new),
        ];
        let first = fixed.len();
        let mut polled: Vec<PollFd<'_>> = fixed.into();
        polled.extend(
            self.clients
                .iter()
                .map(|client| PollFd::new(&client.stream, wants(client))),
        );
        // Of a client that asks several questions at once the rest is here already, and some wait
        // for their turn. Else: to look whose time is over.
        let has_more = self.clients.iter().any(Client::has_question);
        let tick = Timespec {
            tv_sec: i64::from(!has_more),
            tv_nsec: 0,
        };
        match poll(&mut polled, Some(&tick)) {
            Ok(_) => polled[first..].iter().map(PollFd::revents).collect(),
            Err(rustix::io::Errno::INTR) => Vec::new(),
            Err(_) => {
                thread::sleep(Duration::from_millis(100));
                Vec::new()
            }
        }
    }

    fn drain_wakes(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.woken.read(&mut bytes), Ok(read) if read > 0) {}
    }

    fn give_results(&mut self) {
        let results =
            std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner));
        for (number, line) in results {
            if let Some(client) = self
                .clients
                .iter_mut()
                .find(|client| client.number == number)
            {
                client.say(Arc::new(line), false);
            }
        }
    }

    /// One question of each client: none waits for all questions of another. Cheap ones come first,
    /// the one that has waited longest is served in any case, and what is left has its turn in the
    /// next round.
    fn answer_all(&mut self) {
        self.clients.iter_mut().for_each(Client::take_question);
        let asked = self
            .clients
            .iter()
            .enumerate()
            .filter_map(|(at, client)| Some((at, client.asked.as_ref()?)));
        let cost = |kind, since| {
            if self.is_at_hand(kind, since) {
                0
            } else {
                self.costs.of(kind)
            }
        };
        let mut order: Vec<_> = asked
            .map(|(at, asked)| (cost(asked.kind(), asked.since), asked.since, at))
            .collect();
        order.sort_unstable();
        let oldest = order
            .iter()
            .min_by_key(|(_, since, _)| *since)
            .map(|&(.., at)| at);
        let begun = Instant::now();
        let in_time = order
            .iter()
            .map(|&(.., at)| at)
            .take_while(|_| begun.elapsed() < ROUND);
        for at in in_time.chain(oldest) {
            self.answer(at);
        }
        let waits = |client: &Client| {
            client
                .asked
                .as_ref()
                .is_some_and(|asked| self.is_at_hand(asked.kind(), asked.since))
        };
        // It may be megabytes, which stay only as long as somebody waits for this reading.
        if !self.clients.iter().any(waits) {
            self.metrics = None;
        }
    }

    /// True if the answer is there: figures whose reading began after the question.
    fn is_at_hand(&self, kind: Kind, since: Instant) -> bool {
        kind == Kind::Metrics
            && self
                .metrics
                .as_ref()
                .is_some_and(|(begun, _)| *begun >= since)
    }

    /// Bounds what is kept for clients that do not take their answers. Each has been given as much
    /// as the system keeps for it, so one that reads has little here.
    fn drop_slowest(&mut self) {
        let mut unsent: usize = self.clients.iter().map(Client::unsent).sum();
        while unsent > self.endpoint.kept {
            let slow = self
                .clients
                .iter()
                .enumerate()
                .filter(|(_, client)| client.unsent() > 0);
            let Some((slowest, _)) = slow.min_by_key(|(_, client)| client.since) else {
                return;
            };
            unsent -= self.clients.swap_remove(slowest).unsent();
        }
    }

    /// Answers what a client has asked, if it has not been answered in this round.
    fn answer(&mut self, at: usize) {
        let Some(asked) = self.clients[at].asked.take() else {
            return;
        };
        let begun = Instant::now();
        let kind = asked.kind();
        let at_hand = self.is_at_hand(kind, asked.since);
        let Endpoint {
            runtime,
            exposition,
            ..
        } = &self.endpoint;
        let client = &mut self.clients[at];
        let line = match asked.question {
            Ok(Question::Get { path, file }) => answer(files::read(runtime, &path, &file)),
            Ok(Question::Rows { path, depth, top }) => rows(runtime, &path, depth, top),
            Ok(Question::Incidents { path, most }) => incidents(runtime, &path, most),
            Ok(Question::Metrics {}) => {
                let (_, line) = match self.metrics.take().filter(|_| at_hand) {
                    Some(metrics) => self.metrics.insert(metrics),
                    None => {
                        let line = answer(Ok::<_, String>(exposition.openmetrics()));
                        self.costs.add(kind, begun.elapsed());
                        self.metrics.insert((begun, Arc::new(line)))
                    }
                };
                return client.say(Arc::clone(line), false);
            }
            Ok(Question::Set { .. }) if !client.may_set => error("limits cannot be set here"),
            Ok(Question::Set { path, file, to }) => {
                match self.sets.try_send(Set {
                    client: client.number,
                    path,
                    file,
                    to,
                }) {
                    Ok(()) => {
                        client.state = State::Setting;
                        return;
                    }
                    Err(TrySendError::Full(_)) => error("too many limits are being set: try again"),
                    Err(TrySendError::Disconnected(_)) => error("limits cannot be set any more"),
                }
            }
            Err(fault) => error(fault),
        };
        self.costs.add(kind, begun.elapsed());
        client.say(Arc::new(line), false);
    }

    /// Drops the client that holds its place longest without need. One that does not take its answer
    /// goes before one that is idle: else as many as there are places, which ask and never read, would
    /// keep everybody out until their time is over. A client that waits for the service keeps its place.
    fn make_room(&mut self) -> bool {
        let longest = |holds: fn(&Client) -> bool, least: Duration| {
            let holding = self.clients.iter().enumerate();
            let holding = holding.filter(|(_, client)| holds(client));
            let longest = holding.min_by_key(|(_, client)| client.since);
            longest.filter(|(_, client)| client.since.elapsed() >= least)
        };
        let found = longest(Client::is_slow, SLOW).or_else(|| longest(Client::is_idle, IDLE));
        let Some((at, _)) = found else {
            return false;
        };
        drop(self.clients.swap_remove(at));
        true
    }

    fn accept(&mut self) {
        self.listens = true;
        for _ in 0..CLIENTS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(fault) => {
                    // Else it has no descriptor, or no memory.
                    self.listens =
                        matches!(fault.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= clients_max() && !self.make_room() {
                // The new client is turned away.
                continue;
            }
            self.numbers += 1;
            let may_set = self.endpoint.may_set && is_ours(&stream);
            self.clients.push(Client {
                number: self.numbers,
                stream,
                may_set,
                state: State::Asking,
                input: Vec::new(),
                asked: None,
                ended: false,
                since: Instant::now(),
            });
        }
    }
}

/// Clients at a time: at least half of the descriptors that the process may have stay with the
/// service.
fn clients_max() -> usize {
    let half = getrlimit(Resource::Nofile)
        .current
        .and_then(|most| usize::try_from(most / 2).ok());
    half.map_or(CLIENTS_MAX, |half| half.clamp(1, CLIENTS_MAX))
}

/// A process of this user, or of root, as the kernel says.
#[cfg(target_os = "linux")]
fn is_ours(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

#[cfg(not(target_os = "linux"))]
fn is_ours(_: &UnixStream) -> bool {
    false
}
