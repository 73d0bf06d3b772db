//! Clients of the socket that answers questions about a tree: some ask, some stop in the middle, some
//! go.
//!
//! The socket is one of the system, in a folder of the life, and a thread serves it. A client that has
//! said all is given its answers in their order, and then its end; and nothing is kept of one that has
//! gone.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use memcg::{Bytes, Limits, Runtime};
use memcg_observe::Endpoint;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

const STEPS: usize = 30;
const CLIENTS: usize = 5;

/// For so long an answer may take to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A question is no longer than that.
const LONGEST: usize = 4 << 10;

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(path: &Path) -> Client {
        let stream = UnixStream::connect(path).expect("a socket that is served");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        Client(BufReader::new(stream))
    }

    fn say(&mut self, text: &str) {
        self.0
            .get_mut()
            .write_all(text.as_bytes())
            .expect("the socket is read");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer in time");
        assert!(line.ends_with('\n'), "a whole answer: {line:?}");
        line
    }

    /// Nothing comes any more, and the socket is closed.
    fn ends(mut self) {
        let mut rest = Vec::new();
        let ended = self.0.read_to_end(&mut rest);
        // What it has said and nobody has read breaks the connection.
        let is_closed = match &ended {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(is_closed, "a client that has said all is kept: {ended:?}");
        assert_eq!(rest, b"", "after the last answer");
    }
}

/// Sockets of the process.
fn sockets() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let links = all
        .flatten()
        .filter_map(|of| std::fs::read_link(of.path()).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .count()
}

/// What is asked, and what comes.
struct Twin {
    max: u64,
}

impl Twin {
    fn question(&mut self, rng: &mut Xoshiro256PlusPlus) -> (String, String) {
        let get = |file: &str| format!(r#"{{"get":{{"path":"/one","file":"{file}"}}}}"#);
        let ok = |text: &str| format!("{{\"ok\":{text}}}\n");
        match rng.random_range(0..7) {
            0 | 1 => (get("memory.max"), ok(&format!("\"{}\\n\"", self.max))),
            2 => (get("memcg.live"), ok("\"3000\\n\"")),
            3 | 4 => {
                self.max = rng.random_range(4_000..9_000);
                let set = format!(
                    r#"{{"set":{{"path":"/one","file":"memory.max","to":"{}"}}}}"#,
                    self.max
                );
                (set, ok("null"))
            }
            5 => (get("memory.nothing"), String::from("{\"error\":")),
            _ => (
                String::from("{\"metrics\":{}}"),
                String::from("{\"ok\":\"# "),
            ),
        }
    }
}

pub(super) fn ask(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = Runtime::builder().batch(Bytes(0)).build();
    let runtime = runtime.expect("a configuration that holds");
    let one = runtime.root().create("one", Limits::new().max(5_000));
    let one = one.expect("nothing is in the way");
    let held = one.charge(3_000).expect("there is room");
    let path = folder.path().join("socket");
    let serving = Endpoint::new(&runtime).allow_set(true).serve(&path);
    let serving = serving.expect("a new socket");
    let before = sockets();
    let mut twin = Twin { max: 5_000 };
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..STEPS {
        if clients.len() < CLIENTS && rng.random_bool(0.4) {
            clients.push(Client::new(&path));
        }
        if clients.is_empty() {
            continue;
        }
        let at = rng.random_range(0..clients.len());
        let mut client = clients.swap_remove(at);
        let many = rng.random_range(0..4);
        let asked: Vec<_> = (0..many).map(|_| twin.question(&mut rng)).collect();
        let text: String = asked.iter().map(|(line, _)| format!("{line}\n")).collect();
        let ends = rng.random_range(0..7);
        // The last line has no end, where its client has one.
        let text = match ends {
            0 => text.strip_suffix('\n').unwrap_or(&text),
            _ => &text,
        };
        client.say(text);
        if ends <= 1 {
            let stream = client.0.get_ref();
            stream.shutdown(Shutdown::Write).expect("it is open");
        }
        for (line, known) in asked {
            let found = client.answer();
            assert!(
                found.starts_with(&known),
                "{line}: {found:?}, not {known:?}"
            );
        }
        match ends {
            0 | 1 => client.ends(),
            2 => {
                client.say(&"x".repeat(LONGEST));
                let found = client.answer();
                assert!(found.starts_with("{\"error\":"), "too long: {found:?}");
                client.ends();
            }
            3 => {
                // It goes in the middle of a question, or without its answer.
                client.say(["{\"get\":{\"pa", "{\"metrics\":{}}\n"][many % 2]);
            }
            _ => clients.push(client),
        }
    }
    drop(clients);
    let until = Instant::now() + PATIENCE;
    while sockets() > before {
        let left = sockets() - before;
        assert!(
            Instant::now() < until,
            "{left} sockets of clients that have gone"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(serving);
    assert!(
        !path.exists(),
        "the file of a socket that is served no more"
    );
    drop(held);
    assert_eq!(runtime.root().live(), 0, "live at the end");
}
