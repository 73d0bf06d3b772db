//! A Unix socket that answers questions about a tree: one line of JSON for each.
//!
//! One thread serves all clients, with `poll`. A client has a state: it is asked for a line, a limit is being set for it,
//! or it is given its answer. No state holds up the others, and each is bounded in bytes and in time:
//!
//! | bound | what ends at it |
//! |---|---|
//! | [`CLIENTS_MAX`] | a further client takes the place of the one that has been idle longest, or is turned away |
//! | [`LINE_MAX`] | a longer request is answered with an error, and the client is dropped |
//! | [`ANSWER_MAX`] | a longer answer becomes an error |
//! | [`UNSENT_MAX`] | where more bytes of answers wait to be taken, the client that has kept one waiting longest is dropped |
//! | [`PATIENCE`] | a request that is not whole, or an answer that is not taken, so long after its first byte |
//!
//! Setting a limit may run reclaimers, so a second thread does that, one after the other.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memcg::Runtime;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::exposition::Exposition;
use crate::files;
use crate::protocol::{Answer, INCIDENTS_MAX, Incident, Question, ROWS_MAX};

/// Clients at a time.
const CLIENTS_MAX: usize = 1_024;
/// Bytes of a request, its line feed included.
const LINE_MAX: usize = 4 << 10;
/// Bytes of an answer.
const ANSWER_MAX: usize = 4 << 20;
/// Bytes of all answers that clients have not taken, unless the service says otherwise.
const UNSENT_MAX: usize = 16 << 20;
/// How long a request or an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// A client that has asked nothing for so long may lose its place to another.
const IDLE: Duration = Duration::from_secs(1);
/// Requests to set a limit that wait for the one that is being set.
const SETS_MAX: usize = 16;
/// Refusals and victims that the runtime keeps, unless the service says otherwise.
const INCIDENTS: usize = 256;

/// Prepares a socket that answers questions about a runtime: see [`serve`].
#[derive(Clone, Debug)]
#[must_use = "`serve` opens the socket"]
pub struct Endpoint {
    runtime: Runtime,
    exposition: Exposition,
    mode: u32,
    may_set: bool,
    kept: usize,
    incidents: usize,
}

/// Opens a Unix socket at `path` that only processes of this user reach, and that changes nothing. The thread that
/// serves it ends with the result, which removes the socket. [`Endpoint`] has more settings.
///
/// A client sends a line of JSON for each question and gets a line for each answer, in order:
///
/// | question | answer |
/// |---|---|
/// | `{"get":{"path":"/acme","file":"memory.max"}}` | `{"ok":"536870912\n"}`: see [`File`](crate::File) |
/// | `{"rows":{"path":"/","depth":1,"top":20}}` | `{"ok":{"rows":[..],"others":[[1,4096]]}}`: the group, and the largest below it; see [`Exposition`] |
/// | `{"incidents":{"path":"/acme","most":5}}` | `{"ok":[..]}`: its last refusals and victims, see [`Endpoint::incidents`] |
/// | `{"metrics":{}}` | `{"ok":"# HELP .."}`: OpenMetrics |
/// | `{"set":{"path":"/acme","file":"memory.max","to":"512M"}}` | `{"ok":null}`, where the service allows it |
/// | anything else | `{"error":"what is wrong"}` |
///
/// [`protocol`](crate::protocol) has these lines as types. A question is at most 4 KiB. A client that sends or
/// takes a line for more than 30 s is dropped, and one that is idle may lose its place where more than 1,024 come.
///
/// # Errors
///
/// Where the socket cannot be made: [`ErrorKind::AddrInUse`] if another process serves it, [`ErrorKind::AlreadyExists`]
/// if a file of another kind is there.
///
/// ```
/// use std::io::{BufRead, BufReader, Write};
/// use std::os::unix::net::UnixStream;
///
/// let runtime = memcg::Runtime::builder().max(1 << 30).build()?;
/// let path = std::env::temp_dir().join(format!("memcg-doc-{}.sock", std::process::id()));
/// let _serving = memcg_observe::serve(&runtime, &path)?;
///
/// let mut client = UnixStream::connect(&path)?;
/// writeln!(client, r#"{{"get":{{"path":"/","file":"memory.max"}}}}"#)?;
/// let mut answer = String::new();
/// BufReader::new(client).read_line(&mut answer)?;
/// assert_eq!(answer, "{\"ok\":\"1073741824\\n\"}\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn serve(runtime: &Runtime, path: impl AsRef<Path>) -> io::Result<Serving> {
    Endpoint::new(runtime).serve(path)
}

impl Endpoint {
    /// The socket of [`serve`].
    pub fn new(runtime: &Runtime) -> Endpoint {
        let exposition = Exposition::new(runtime);
        Endpoint {
            runtime: runtime.clone(),
            exposition,
            mode: 0o600,
            may_set: false,
            kept: UNSENT_MAX,
            incidents: INCIDENTS,
        }
    }

    /// The permissions of the socket's file: who may connect. `0o600` by default.
    pub fn mode(mut self, mode: u32) -> Endpoint {
        self.mode = mode;
        self
    }

    /// Lets processes of this user and of root set limits. The kernel tells whose process a client is; of others, `set` is
    /// refused whatever the permissions of the file are.
    pub fn allow_set(mut self, allow: bool) -> Endpoint {
        self.may_set = allow;
        self
    }

    /// How many bytes of answers are kept, in all, for clients that do not take them; 16 MiB by default. Above it the
    /// client that has kept one waiting longest is dropped.
    pub fn kept(mut self, bytes: usize) -> Endpoint {
        self.kept = bytes;
        self
    }

    /// How many of its last refusals and victims the runtime keeps from [`serve`](Self::serve) on; 256 by default. 0
    /// leaves the runtime's own setting: [`Runtime::keep_incidents`].
    pub fn incidents(mut self, most: usize) -> Endpoint {
        self.incidents = most;
        self
    }

    /// What `metrics` answers: [`Exposition::new`] by default.
    pub fn exposition(mut self, exposition: Exposition) -> Endpoint {
        self.exposition = exposition;
        self
    }

    /// Opens the socket.
    ///
    /// # Errors
    ///
    /// As [`serve`].
    pub fn serve(self, path: impl AsRef<Path>) -> io::Result<Serving> {
        let path = path.as_ref().to_path_buf();
        let listener = bind(&path, self.mode)?;
        listener.set_nonblocking(true)?;
        if self.incidents > 0 {
            self.runtime.keep_incidents(self.incidents);
        }
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let wake = Arc::new(wake);
        let (sets, results) = (mpsc::sync_channel(SETS_MAX), Arc::new(Mutex::new(Vec::new())));
        let setter = Setter {
            runtime: self.runtime.clone(),
            sets: sets.1,
            results: Arc::clone(&results),
            wake: Arc::clone(&wake),
        };
        let named = |name: &str| thread::Builder::new().name(name.to_string());
        let setting = named("memcg-set").spawn(move || setter.run())?;
        let stop = Arc::new(Mutex::new(false));
        let server = Server {
            endpoint: self,
            listener,
            woken,
            sets: sets.0,
            results,
            stop: Arc::clone(&stop),
            clients: Vec::new(),
            numbers: 0,
        };
        let serving = named("memcg-serve").spawn(move || server.run())?;
        Ok(Serving { path, stop, wake, threads: vec![serving, setting] })
    }
}

/// Binds under another name, so that no process connects before the permissions are set.
fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => return Err(ErrorKind::AlreadyExists.into()),
        // A socket that no process serves is what an earlier run has left.
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(ErrorKind::AddrInUse.into()),
        _ => {}
    }
    let mut name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_os_string();
    name.push(format!(".{}", std::process::id()));
    let new = path.with_file_name(name);
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    let placed = fs::set_permissions(&new, Permissions::from_mode(mode)).and_then(|()| fs::rename(&new, path));
    if placed.is_err() {
        let _ = fs::remove_file(&new);
    }
    placed.map(|()| listener)
}

/// A socket that is being served. Its drop ends that, and waits for a limit that is being set.
#[derive(Debug)]
pub struct Serving {
    path: PathBuf,
    stop: Arc<Mutex<bool>>,
    wake: Arc<UnixStream>,
    threads: Vec<JoinHandle<()>>,
}

impl Serving {
    /// Returns where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake(&self.wake);
        let _ = fs::remove_file(&self.path);
        // A reclaimer that runs for a client's `set` may drop this value.
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// A byte that is not taken yet wakes as well as two.
fn wake(mut socket: &UnixStream) {
    let _ = socket.write(&[0]);
}

// === Questions and answers ===

fn line<T: Serialize>(answer: &Answer<T>) -> Vec<u8> {
    // Texts and numbers: nothing of it fails.
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    if line.len() > ANSWER_MAX {
        return error("the answer would be longer than 4 MiB: ask for fewer groups");
    }
    line
}

fn error(what: impl ToString) -> Vec<u8> {
    line::<()>(&Answer::Error(what.to_string()))
}

fn answer<T: Serialize>(result: Result<T, impl ToString>) -> Vec<u8> {
    match result {
        Ok(value) => line(&Answer::Ok(value)),
        Err(fault) => error(fault),
    }
}

// === The thread that sets limits ===

/// Clients by their numbers, with the answers that they get.
type Results = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

struct Set {
    client: u64,
    path: String,
    file: String,
    to: String,
}

struct Setter {
    runtime: Runtime,
    sets: Receiver<Set>,
    results: Results,
    wake: Arc<UnixStream>,
}

impl Setter {
    /// Ends with the thread that serves.
    fn run(self) {
        while let Ok(Set { client, path, file, to }) = self.sets.recv() {
            let line = answer(files::write(&self.runtime, &path, &file, &to));
            self.results.lock().unwrap_or_else(PoisonError::into_inner).push((client, line));
            wake(&self.wake);
        }
    }
}

// === The thread that serves ===

struct Client {
    number: u64,
    stream: UnixStream,
    may_set: bool,
    state: State,
    /// What has been read of the next request.
    input: Vec<u8>,
    /// Since when it has been idle, sending, or taking.
    since: Instant,
}

enum State {
    Asking,
    Setting,
    /// The answer, and how much of it has been taken. Then the client is dropped or may ask again.
    Answering {
        line: Vec<u8>,
        sent: usize,
        last: bool,
    },
    /// The client has gone, or has its last answer.
    Gone,
}

impl Client {
    fn unsent(&self) -> usize {
        match &self.state {
            State::Answering { line, sent, .. } => line.len() - sent,
            _ => 0,
        }
    }

    fn has_question(&self) -> bool {
        matches!(self.state, State::Asking) && self.input.contains(&b'\n')
    }

    fn is_idle(&self) -> bool {
        matches!(self.state, State::Asking) && self.input.is_empty()
    }

    /// Reads what is there. False: the client is gone.
    fn read(&mut self) -> bool {
        let mut bytes = [0; LINE_MAX];
        let room = LINE_MAX - self.input.len().min(LINE_MAX);
        match self.stream.read(&mut bytes[..room]) {
            Ok(0) => false,
            Ok(read) => {
                if self.input.is_empty() {
                    self.since = Instant::now();
                }
                self.input.extend_from_slice(&bytes[..read]);
                true
            }
            Err(fault) => matches!(fault.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// Writes as much as the client takes. False: the client is gone, or all is said.
    fn write(&mut self) -> bool {
        let State::Answering { line, sent, last } = &mut self.state else { return true };
        match self.stream.write(&line[*sent..]) {
            Ok(written) => *sent += written,
            Err(fault) => return matches!(fault.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
        if *sent < line.len() {
            return true;
        }
        let goes_on = !*last;
        (self.state, self.since) = (State::Asking, Instant::now());
        goes_on
    }

    fn say(&mut self, line: Vec<u8>, last: bool) {
        (self.state, self.since) = (State::Answering { line, sent: 0, last }, Instant::now());
        // Most answers are taken at once.
        if !self.write() {
            self.state = State::Gone;
        }
    }
}

struct Server {
    endpoint: Endpoint,
    listener: UnixListener,
    woken: UnixStream,
    sets: SyncSender<Set>,
    results: Results,
    stop: Arc<Mutex<bool>>,
    clients: Vec<Client>,
    numbers: u64,
}

impl Server {
    fn run(mut self) {
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
        let fixed: [BorrowedFd<'_>; 2] = [self.woken.as_fd(), self.listener.as_fd()];
        let mut polled: Vec<PollFd<'_>> = fixed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).into();
        polled.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, wants(client))));
        // Of a client that asks several questions at once the rest is here already. Else: to look whose time is over.
        let has_more = self.clients.iter().any(Client::has_question);
        let tick = Timespec { tv_sec: i64::from(!has_more), tv_nsec: 0 };
        match poll(&mut polled, Some(&tick)) {
            Ok(_) => polled[fixed.len()..].iter().map(PollFd::revents).collect(),
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
        for _ in 0..CLIENTS_MAX {
            let Ok((stream, _)) = self.listener.accept() else { return };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= CLIENTS_MAX {
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

/// Reads from and writes to one client. False: it is to be dropped.
fn keep(client: &mut Client, events: PollFlags) -> bool {
    if events.intersects(PollFlags::ERR | PollFlags::NVAL) {
        return false;
    }
    let goes_on = match client.state {
        State::Asking if events.intersects(PollFlags::IN | PollFlags::HUP) => client.read(),
        State::Answering { .. } if events.intersects(PollFlags::OUT | PollFlags::HUP) => client.write(),
        State::Setting => !events.contains(PollFlags::HUP),
        State::Gone => false,
        _ => true,
    };
    let may_take = !matches!(client.state, State::Setting) && !client.is_idle();
    goes_on && !(may_take && client.since.elapsed() > PATIENCE)
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

fn incidents(runtime: &Runtime, path: &str, most: usize) -> Vec<u8> {
    if most > INCIDENTS_MAX {
        return error(format!("most is {INCIDENTS_MAX} at most"));
    }
    let Some(group) = runtime.group(path) else { return error(format!("no group {path}")) };
    let mut incidents = group.incidents();
    let last = incidents.split_off(incidents.len().saturating_sub(most));
    line(&Answer::Ok(last.into_iter().map(Incident::from).collect::<Vec<_>>()))
}

fn rows(runtime: &Runtime, path: &str, depth: usize, top: usize) -> Vec<u8> {
    if depth.checked_mul(top).is_none_or(|rows| rows > ROWS_MAX) {
        return error(format!("depth times top is {ROWS_MAX} at most"));
    }
    let Some(group) = runtime.group(path) else { return error(format!("no group {path}")) };
    line(&Answer::Ok(Exposition::new(runtime).depth(depth).top(top).rows(group)))
}
