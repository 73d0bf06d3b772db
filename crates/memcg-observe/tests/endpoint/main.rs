//! The socket: what it answers, who may set, and clients that are slow, broken or hostile.
#![cfg(all(feature = "endpoint", unix))]

// Elsewhere no client may set a limit.
#[cfg(target_os = "linux")]
mod blocked;
mod hostile;
mod limits;
#[cfg(target_os = "linux")]
mod place;
#[cfg(target_os = "linux")]
mod process;
mod slow;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memcg::{Bytes, Limits, Runtime};
use memcg_observe::{Endpoint, EndpointGuard, serve};
use serde_json::{Value, json};
use tempfile::TempDir;

const KIB: u64 = 1 << 10;
/// The most that is kept of answers that clients do not take: less than the answers of the deaf
/// clients below come to.
const KEPT: usize = 1 << 20;

struct Service {
    runtime: Runtime,
    serving: EndpointGuard,
    folder: TempDir,
}

impl Service {
    fn new(may_set: bool) -> Service {
        let runtime = Runtime::builder()
            .batch(Bytes(0))
            .build()
            .expect("no odd setting");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let endpoint = Endpoint::new(&runtime).allow_set(may_set).kept(KEPT);
        let serving = endpoint
            .serve(folder.path().join("memcg.sock"))
            .expect("a new socket");
        Service {
            runtime,
            serving,
            folder,
        }
    }

    fn client(&self) -> Client {
        Client::new(self.serving.path().to_path_buf())
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(path: PathBuf) -> Client {
        let stream = UnixStream::connect(path).expect("the service listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a time");
        Client(BufReader::new(stream))
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0
            .get_mut()
            .write_all(bytes)
            .expect("the service reads");
    }

    /// The next line, unless the service drops this client before its end.
    fn whole_line(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// The next line; `None` where the service has dropped this client.
    fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(
                serde_json::from_str(&line).unwrap_or_else(|fault| panic!("{fault}: {line:?}")),
            ),
            Err(fault) if fault.kind() == ErrorKind::ConnectionReset => None,
            Err(fault) => panic!("{fault}"),
        }
    }

    #[track_caller]
    fn ask(&mut self, question: &Value) -> Value {
        self.say(format!("{question}\n").as_bytes());
        self.line().expect("an answer")
    }

    /// The answer; `None` where the service drops this client.
    fn answer(&mut self, question: &Value) -> Option<Value> {
        let _ = self
            .0
            .get_mut()
            .write_all(format!("{question}\n").as_bytes());
        self.line()
    }

    #[track_caller]
    fn refused(&mut self, question: &Value) -> String {
        let answer = self.ask(question);
        answer["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"))
            .to_string()
    }
}

#[test]
fn questions_and_answers() {
    let service = Service::new(false);
    let acme = service
        .runtime
        .root()
        .create("acme", Limits::new().max(64 << 10))
        .expect("a free name");
    let held: Vec<_> = (0..5)
        .map(|number: u64| {
            let query = acme.create(number, Limits::new()).expect("a free name");
            query.force_charge(Bytes(number * KIB))
        })
        .collect();
    let mut client = service.client();
    let get = |path: &str, file: &str| json!({"get": {"path": path, "file": file}});
    assert_eq!(
        client.ask(&get("/acme", "memory.max")),
        json!({"ok": "65536\n"})
    );
    assert_eq!(
        client.ask(&get("/acme/3", "memory.current")),
        json!({"ok": "3072\n"})
    );
    assert_eq!(
        client.refused(&get("/nobody", "memory.max")),
        "no group /nobody"
    );

    let answer = client.ask(&json!({"rows": {"path": "/acme", "depth": 1, "top": 2}}));
    let rows = answer["ok"]["rows"].as_array().expect("rows");
    let figures: Vec<_> = rows
        .iter()
        .map(|row| (row["path"].as_str().expect("a path"), row["usage"].as_u64()))
        .collect();
    assert_eq!(
        figures,
        [
            ("/acme", Some(10 * KIB)),
            ("/acme/4", Some(4 * KIB)),
            ("/acme/3", Some(3 * KIB))
        ]
    );
    assert_eq!(answer["ok"]["others"], json!([[1, 3 * KIB]]));
    assert_eq!(
        (rows[0]["events"]["oom"].as_u64(), rows[0]["max"].as_u64()),
        (Some(0), Some(64 * KIB))
    );
    assert_eq!(
        rows[1]["events"],
        json!({}),
        "below the first, those alone that have happened"
    );
    assert_eq!(
        client.refused(&json!({"rows": {"path": "/x"}})),
        "no group /x"
    );
    assert_eq!(
        client.refused(&json!({"rows": {"path": "/", "depth": 1, "top": 1_001}})),
        "depth times top is 1000 at most"
    );
    let text = client.ask(&json!({"metrics": {}}));
    assert!(text["ok"].as_str().expect("a text").ends_with("# EOF\n"));
    drop(held);
}

#[test]
fn the_last_refusals_and_victims() {
    let service = Service::new(false);
    let acme = service
        .runtime
        .root()
        .create("acme", Limits::new().max(100))
        .expect("a free name");
    let other = service
        .runtime
        .root()
        .create("other", Limits::new().max(100))
        .expect("a free name");
    let query = acme.create("q17", Limits::new()).expect("a free name");
    for bytes in 0..30 {
        assert!(query.charge(Bytes(101 + bytes)).is_err());
    }
    assert!(other.charge(Bytes(200)).is_err());
    query.offline().expect("no child");
    let mut client = service.client();
    let mut ask = |question: &Value| {
        client.ask(question)["ok"]
            .as_array()
            .cloned()
            .expect("a list")
    };
    let last = ask(&json!({"incidents": {"path": "/acme", "most": 2}}));
    let figures: Vec<_> = last
        .iter()
        .map(|one| (one["number"].as_u64(), one["requested"].as_u64()))
        .collect();
    assert_eq!(figures, [(Some(29), Some(129)), (Some(30), Some(130))]);
    let expected = json!(["refused", "/acme/q17", "/acme", null, 0, 100]);
    let one =
        ["kind", "group", "limited", "counter", "usage", "max"].map(|field| last[0][field].clone());
    assert_eq!(json!(one), expected);
    assert_eq!(
        ask(&json!({"incidents": {"path": "/acme"}})).len(),
        20,
        "unless asked for more"
    );
    assert_eq!(
        ask(&json!({"incidents": {"path": "/other", "most": 1_000}})).len(),
        1
    );
    let mut client = service.client();
    assert_eq!(
        client.refused(&json!({"incidents": {"path": "/", "most": 1_001}})),
        "most is 1000 at most"
    );
    assert_eq!(
        client.refused(&json!({"incidents": {"path": "/nobody"}})),
        "no group /nobody"
    );
}

/// Many questions at once are answered in their order.
#[test]
fn questions_in_a_row() {
    let service = Service::new(true);
    let mut client = service.client();
    let mut text = String::new();
    for number in 0..200 {
        let question = match number % 2 {
            0 => json!({"get": {"path": "/", "file": "memory.current"}}),
            _ => json!({"get": {"path": format!("/{number}"), "file": "memory.current"}}),
        };
        text += &format!("{question}\n");
    }
    client.say(text.as_bytes());
    for number in 0..200 {
        let expected = match number % 2 {
            0 => json!({"ok": "0\n"}),
            _ => json!({"error": format!("no group /{number}")}),
        };
        assert_eq!(client.line(), Some(expected));
    }
}

/// A client says all and closes its half: each question is answered, also the last, which has no
/// line feed, then it ends.
#[test]
fn a_client_that_closes_its_half() {
    use std::net::Shutdown;

    let service = Service::new(true);
    let questions = |number: usize| {
        let question = |number| {
            json!({"get": {"path": format!("/{number}"), "file": "memory.max"}}).to_string()
        };
        (0..number).map(question).collect::<Vec<_>>().join("\n")
    };
    // More than the service reads at once, too.
    for (number, end) in [(1, ""), (3, ""), (3, "\n"), (400, "")] {
        let mut client = service.client();
        client.say((questions(number) + end).as_bytes());
        client
            .0
            .get_mut()
            .shutdown(Shutdown::Write)
            .expect("a socket");
        for number in 0..number {
            assert_eq!(
                client.line(),
                Some(json!({"error": format!("no group /{number}")}))
            );
        }
        assert_eq!(client.line(), None, "after all answers");
    }
    let mut client = service.client();
    client.say(b"{\"get\":{\"pa");
    client
        .0
        .get_mut()
        .shutdown(Shutdown::Write)
        .expect("a socket");
    assert!(
        client
            .line()
            .is_some_and(|answer| answer["error"].is_string()),
        "a part of a question is none"
    );
    assert_eq!(client.line(), None);
    if cfg!(target_os = "linux") {
        let mut client = service.client();
        client.say(
            json!({"set": {"path": "/", "file": "memory.max", "to": "1G"}})
                .to_string()
                .as_bytes(),
        );
        client
            .0
            .get_mut()
            .shutdown(Shutdown::Write)
            .expect("a socket");
        assert_eq!(
            (client.line(), client.line()),
            (Some(json!({"ok": null})), None)
        );
        assert_eq!(service.runtime.root().max(), 1 << 30);
    }
    let mut client = service.client();
    client
        .0
        .get_mut()
        .shutdown(Shutdown::Write)
        .expect("a socket");
    assert_eq!(client.line(), None, "it says nothing");
}

/// Its end does not wait until the service next looks whose time is over: a second for each client.
#[test]
fn a_client_that_has_said_all_ends_at_once() {
    use std::net::Shutdown;

    let service = Service::new(false);
    let begun = Instant::now();
    for _ in 0..30 {
        let mut client = service.client();
        client.say(b"{\"get\":{\"path\":\"/\",\"file\":\"memory.max\"}}\n");
        client
            .0
            .get_mut()
            .shutdown(Shutdown::Write)
            .expect("a socket");
        assert_eq!(client.line(), Some(json!({"ok": "max\n"})));
        assert_eq!(client.line(), None, "after all answers");
    }
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(20),
        "{took:?} for thirty clients"
    );
}

#[test]
fn where_the_socket_is() {
    let service = Service::new(false);
    let path = service.serving.path().to_path_buf();
    let mode =
        |path: &PathBuf| fs::metadata(path).expect("the socket").permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600, "this user alone");
    let again = serve(&service.runtime, &path).expect_err("it is served");
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    let mut old = service.client();
    let Service {
        runtime,
        serving,
        folder,
    } = service;
    drop(serving);
    assert!(!path.exists(), "it is removed");
    assert_eq!(old.line(), None, "clients are dropped");

    // A killed process leaves such a file.
    drop(UnixListener::bind(&path).expect("a free path"));
    let serving = Endpoint::new(&runtime)
        .mode(0o660)
        .serve(&path)
        .expect("no process serves it");
    assert_eq!(mode(&path), 0o660);
    let get = json!({"get": {"path": "/", "file": "memory.max"}});
    assert_eq!(Client::new(path.clone()).ask(&get), json!({"ok": "max\n"}));
    drop(serving);

    let file = folder.path().join("file");
    fs::write(&file, "mine").expect("a file");
    assert_eq!(
        serve(&runtime, &file).expect_err("a file").kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(fs::read_to_string(&file).expect("still there"), "mine");
    assert!(serve(&runtime, folder.path().join("no/such/folder")).is_err());
    let left: Vec<_> = fs::read_dir(folder.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["file"]);
}
