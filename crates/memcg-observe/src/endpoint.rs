//! A Unix socket that answers questions about a tree: one line of JSON for each.
//!
//! One thread serves all clients, with `poll`. A client has a state: it is asked for a line, a
//! limit is being set for it, or it is given its answer. No state holds up the others, cheap
//! questions are served before dear ones (`turns`), and each state is bounded in bytes and in time:
//!
//! | bound | what ends at it |
//! |---|---|
//! | [`CLIENTS_MAX`], or half of the descriptors of the process | a further client takes the place of the one that has been idle longest, or is turned away |
//! | [`LINE_MAX`] | a longer request is answered with an error, and the client is dropped |
//! | [`ANSWER_MAX`] | a longer answer becomes an error |
//! | [`UNSENT_MAX`] | where more bytes of answers wait to be taken, the client that has kept one waiting longest is dropped |
//! | [`PATIENCE`] | a request that is not whole, or an answer that is not taken, so long after its first byte |
//!
//! Setting a limit may run reclaimers, so a second thread does that, one after the other.

mod answers;
mod client;
mod server;
mod socket;
mod turns;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memcg::Runtime;

use self::server::{Server, Setter, wake};
use self::socket::SocketFile;
use self::turns::Costs;
use crate::exposition::Exposition;

/// Clients at a time.
const CLIENTS_MAX: usize = 1_024;
/// Bytes of a request, its line feed included.
const LINE_MAX: usize = 4 << 10;
/// Bytes of an answer.
const ANSWER_MAX: usize = 4 << 20;
/// Bytes of all answers that clients have not taken, unless the service says otherwise.
const UNSENT_MAX: usize = 16 << 20;
/// The time that a request or an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// A client that has asked nothing for so long may lose its place to another.
const IDLE: Duration = Duration::from_secs(1);
/// So may one that has not taken its answer, or not ended its question, for so long. One that reads
/// takes the largest answer in less.
const SLOW: Duration = Duration::from_millis(100);
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

/// Opens a Unix socket at `path` that only processes of this user reach, and that changes nothing.
/// The thread that serves it ends with the result, which removes the socket. [`Endpoint`] has more
/// settings.
///
/// A client sends a line of JSON for each question and gets a line for each answer, in order. A
/// client that has said all may close its half of the connection, and the last line needs no line
/// feed then:
///
/// | question | answer |
/// |---|---|
/// | `{"get":{"path":"/acme","file":"memory.max"}}` | `{"ok":"536870912\n"}`: see [`GroupFile`](crate::GroupFile) |
/// | `{"rows":{"path":"/","depth":1,"top":20}}` | `{"ok":{"rows":[..],"others":[[1,4096]]}}`: the group, and the largest below it; see [`Exposition`] |
/// | `{"incidents":{"path":"/acme","most":5}}` | `{"ok":[..]}`: its last refusals and victims, see [`Endpoint::incidents`] |
/// | `{"metrics":{}}` | `{"ok":"# HELP .."}`: OpenMetrics |
/// | `{"set":{"path":"/acme","file":"memory.max","to":"512M"}}` | `{"ok":null}`, where the service allows it |
/// | anything else | `{"error":"what is wrong"}` |
///
/// [`protocol`](crate::protocol) has these lines as types. A question is at most 4 KiB. A client
/// that sends or takes a line for more than 30 s is dropped. Where more than 1,024 come, the one that
/// has been sending or taking a line longest loses its place, or else one that is idle. Where the process may have fewer than 2,048 descriptors, half
/// of them is the bound.
///
/// # Errors
///
/// The socket cannot be made: [`AddrInUse`](io::ErrorKind::AddrInUse) if another process serves it
/// or a socket of another kind is there, [`AlreadyExists`](io::ErrorKind::AlreadyExists) if it is
/// another file, [`PermissionDenied`](io::ErrorKind::PermissionDenied) if it is a socket that this
/// process may not connect to. A socket that no process serves is replaced.
///
/// The call waits for no client and no other server. Where another one starts in the same folder it
/// waits for that one, for a second at most.
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
pub fn serve(runtime: &Runtime, path: impl AsRef<Path>) -> io::Result<EndpointGuard> {
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

    /// The permissions of the socket's file: who may connect. `0o600` by default. On Linux the file
    /// is made with them, so no process connects before.
    pub fn mode(mut self, mode: u32) -> Endpoint {
        self.mode = mode;
        self
    }

    /// Lets processes of this user and of root set limits. The kernel tells whose process a client
    /// is; of others, `set` is refused whatever the permissions of the file are.
    pub fn allow_set(mut self, allow: bool) -> Endpoint {
        self.may_set = allow;
        self
    }

    /// Sets the most bytes of answers that are kept, in all, for clients that do not take them; 16
    /// MiB by default. Above it the client that has kept one waiting longest is dropped.
    pub fn kept(mut self, bytes: usize) -> Endpoint {
        self.kept = bytes;
        self
    }

    /// Sets the number of its last refusals and victims that the runtime keeps from
    /// [`serve`](Self::serve) on; 256 by default. 0 leaves the runtime's own setting:
    /// [`Runtime::keep_incidents`].
    pub fn incidents(mut self, most: usize) -> Endpoint {
        self.incidents = most;
        self
    }

    /// Sets the answer of `metrics`: [`Exposition::new`] by default.
    pub fn exposition(mut self, exposition: Exposition) -> Endpoint {
        self.exposition = exposition;
        self
    }

    /// Opens the socket.
    ///
    /// # Errors
    ///
    /// As [`serve`].
    pub fn serve(self, path: impl AsRef<Path>) -> io::Result<EndpointGuard> {
        let (file, listener) = SocketFile::bind(path.as_ref(), self.mode)?;
        listener.set_nonblocking(true)?;
        if self.incidents > 0 {
            self.runtime.keep_incidents(self.incidents);
        }
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let wake = Arc::new(wake);
        let sets = mpsc::sync_channel(SETS_MAX);
        let results = Arc::new(Mutex::new(Vec::new()));
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
            listens: true,
            costs: Costs::default(),
            metrics: None,
        };
        // Where there is no second thread the first one ends, too: nobody has a sender to it any
        // more.
        let serving = named("memcg-serve").spawn(move || server.run())?;
        Ok(EndpointGuard {
            file,
            stop,
            wake,
            threads: vec![serving, setting],
        })
    }
}

/// A socket that is being served. Its drop ends that, removes the file unless another server's is
/// there by now, and waits for a limit that is being set.
#[derive(Debug)]
pub struct EndpointGuard {
    file: SocketFile,
    stop: Arc<Mutex<bool>>,
    wake: Arc<UnixStream>,
    threads: Vec<JoinHandle<()>>,
}

impl EndpointGuard {
    /// Returns where the socket is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Drop for EndpointGuard {
    fn drop(&mut self) {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake(&self.wake);
        self.file.remove();
        // A reclaimer that runs for a client's `set` may drop this value.
        for thread in self
            .threads
            .drain(..)
            .filter(|thread| thread.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}
