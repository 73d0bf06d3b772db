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
use super::{CLIENTS_MAX, Endpoint, IDLE, LINE_MAX};
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
        while let Ok(Set { client, path, file, to }) = self.sets.recv() {
            let line = answer(files::write(&self.runtime, &path, &file, &to));
            self.results.lock().unwrap_or_else(PoisonError::into_inner).push((client, line));
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
}

impl Server {
    pub(super) fn run(mut self) {
        while !*self.stop.lock().unwrap_or_else(PoisonError::into_inner) {
            let ready = self.poll();
            self.drain_wakes();
            self.give_results();
            let mut at = 0;
            self.clients.retain_mut(|client| {
                let events = ready.get(at).copied().unwrap_or(PollFlags::empty());
                at += 1;
                keep(client, events)
            });
            self.answer_all();
            self.drop_slowest();
            self.accept();
        }
    }

    /// What each client is ready for, in their order. Where the system fails, nothing is, for a moment.
    fn poll(&self) -> Vec<PollFlags> {
        let wants = |client: &Client| match client.state {
            State::Asking => PollFlags::IN,
            State::Setting | State::Gone => PollFlags::empty(),
            State::Answering { .. } => PollFlags::OUT,
        };
        // A client that the system does not give is there still, and would end each look at once.
        let new = if self.listens { PollFlags::IN } else { PollFlags::empty() };
        let fixed = [PollFd::new(&self.woken, PollFlags::IN), PollFd::new(&self.listener, new)];
        let first = fixed.len();
        let mut polled: Vec<PollFd<'_>> = fixed.into();
        polled.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, wants(client))));
        // Of a client that asks several questions at once the rest is here already. Else: to look whose time is over.
        let has_more = self.clients.iter().any(Client::has_question);
        let tick = Timespec { tv_sec: i64::from(!has_more), tv_nsec: 0 };
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
        let results = std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner));
        for (number, line) in results {
            if let Some(client) = self.clients.iter_mut().find(|client| client.number == number) {
                client.say(line, false);
            }
        }
    }

    /// One question of each client: none waits for all questions of another.
    fn answer_all(&mut self) {
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            if !matches!(client.state, State::Asking) {
                continue;
            }
            match client.input.iter().position(|&byte| byte == b'\n') {
                Some(end) => {
                    let question: Vec<u8> = client.input.drain(..=end).collect();
                    self.answer(at, &question[..end]);
                }
                None if client.input.len() >= LINE_MAX => client.say(error("the question is longer than 4 KiB"), true),
                None => {}
            }
        }
    }

    /// Bounds what is kept for clients that do not take their answers. Each has been given as much as the system keeps for
    /// it, so one that reads has little here.
    fn drop_slowest(&mut self) {
        let mut unsent: usize = self.clients.iter().map(Client::unsent).sum();
        while unsent > self.endpoint.kept {
            let slow = self.clients.iter().enumerate().filter(|(_, client)| client.unsent() > 0);
            let Some((slowest, _)) = slow.min_by_key(|(_, client)| client.since) else { return };
            unsent -= self.clients.swap_remove(slowest).unsent();
        }
    }

    fn answer(&mut self, at: usize, question: &[u8]) {
        let Endpoint { runtime, exposition, .. } = &self.endpoint;
        let client = &mut self.clients[at];
        let line = match serde_json::from_slice(question) {
            Ok(Question::Get { path, file }) => answer(files::read(runtime, &path, &file)),
            Ok(Question::Rows { path, depth, top }) => rows(runtime, &path, depth, top),
            Ok(Question::Incidents { path, most }) => incidents(runtime, &path, most),
            Ok(Question::Metrics {}) => answer(Ok::<_, String>(exposition.openmetrics())),
            Ok(Question::Set { .. }) if !client.may_set => error("limits cannot be set here"),
            Ok(Question::Set { path, file, to }) => {
                match self.sets.try_send(Set { client: client.number, path, file, to }) {
                    Ok(()) => {
                        client.state = State::Setting;
                        return;
                    }
                    Err(TrySendError::Full(_)) => error("too many limits are being set: try again"),
                    Err(TrySendError::Disconnected(_)) => error("limits cannot be set any more"),
                }
            }
            Err(fault) => error(format!("no question: {fault}")),
        };
        client.say(line, false);
    }

    fn accept(&mut self) {
        self.listens = true;
        for _ in 0..CLIENTS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(fault) => {
                    // Else it has no descriptor, or no memory.
                    self.listens = matches!(fault.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= clients_max() {
                let idle = self.clients.iter().enumerate().filter(|(_, client)| client.is_idle());
                match idle.min_by_key(|(_, client)| client.since) {
                    Some((at, client)) if client.since.elapsed() >= IDLE => drop(self.clients.swap_remove(at)),
                    // The new client is turned away.
                    _ => continue,
                }
            }
            self.numbers += 1;
            let may_set = self.endpoint.may_set && is_ours(&stream);
            let (number, input, since) = (self.numbers, Vec::new(), Instant::now());
            self.clients.push(Client { number, stream, may_set, state: State::Asking, input, since });
        }
    }
}

/// Clients at a time: at least half of the descriptors that the process may have stay with the service.
fn clients_max() -> usize {
    let half = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most / 2).ok());
    half.map_or(CLIENTS_MAX, |half| half.clamp(1, CLIENTS_MAX))
}

/// A process of this user, or of root, as the kernel says.
#[cfg(target_os = "linux")]
fn is_ours(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

#[cfg(not(target_os = "linux"))]
fn is_ours(_: &UnixStream) -> bool {
    false
}
