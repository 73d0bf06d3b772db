//! The socket: what it answers, who may set, and clients that are slow, broken or hostile.
#![cfg(all(feature = "endpoint", unix))]

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use memcg::{Bytes, Limits, Runtime};
use memcg_observe::{Endpoint, Serving, serve};
use serde_json::{Value, json};
use tempfile::TempDir;

const KIB: u64 = 1 << 10;
/// What is kept of answers that clients do not take: less than what those of the deaf clients below come to.
const KEPT: usize = 1 << 20;

struct Service {
    runtime: Runtime,
    serving: Serving,
    folder: TempDir,
}

impl Service {
    fn new(may_set: bool) -> Service {
        let runtime = Runtime::builder().batch(Bytes(0)).build().expect("no odd setting");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let endpoint = Endpoint::new(&runtime).allow_set(may_set).kept(KEPT);
        let serving = endpoint.serve(folder.path().join("memcg.sock")).expect("a new socket");
        Service { runtime, serving, folder }
    }

    fn client(&self) -> Client {
        Client::new(self.serving.path().to_path_buf())
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(path: PathBuf) -> Client {
        let stream = UnixStream::connect(path).expect("the service listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        Client(BufReader::new(stream))
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the service reads");
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
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|fault| panic!("{fault}: {line:?}"))),
            Err(fault) if fault.kind() == ErrorKind::ConnectionReset => None,
            Err(fault) => panic!("{fault}"),
        }
    }

    #[track_caller]
    fn ask(&mut self, question: &Value) -> Value {
        self.say(format!("{question}\n").as_bytes());
        self.line().expect("an answer")
    }

    #[track_caller]
    fn refused(&mut self, question: &Value) -> String {
        let answer = self.ask(question);
        answer["error"].as_str().unwrap_or_else(|| panic!("{answer}")).to_string()
    }
}

#[test]
fn questions_and_answers() {
    let service = Service::new(false);
    let acme = service.runtime.root().create("acme", Limits::new().max(64 << 10)).expect("a free name");
    let held: Vec<_> = (0..5)
        .map(|number: u64| {
            let query = acme.create(number, Limits::new()).expect("a free name");
            query.charge(Bytes(number * KIB))
        })
        .collect();
    let mut client = service.client();
    let get = |path: &str, file: &str| json!({"get": {"path": path, "file": file}});
    assert_eq!(client.ask(&get("/acme", "memory.max")), json!({"ok": "65536\n"}));
    assert_eq!(client.ask(&get("/acme/3", "memory.current")), json!({"ok": "3072\n"}));
    assert_eq!(client.refused(&get("/nobody", "memory.max")), "no group /nobody");

    let answer = client.ask(&json!({"rows": {"path": "/acme", "depth": 1, "top": 2}}));
    let rows = answer["ok"]["rows"].as_array().expect("rows");
    let figures: Vec<_> =
        rows.iter().map(|row| (row["path"].as_str().expect("a path"), row["usage"].as_u64())).collect();
    assert_eq!(figures, [("/acme", Some(10 * KIB)), ("/acme/4", Some(4 * KIB)), ("/acme/3", Some(3 * KIB))]);
    assert_eq!(answer["ok"]["others"], json!([[1, 3 * KIB]]));
    assert_eq!((rows[0]["events"]["oom"].as_u64(), rows[0]["max"].as_u64()), (Some(0), Some(64 * KIB)));
    assert_eq!(client.refused(&json!({"rows": {"path": "/x"}})), "no group /x");
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
    let acme = service.runtime.root().create("acme", Limits::new().max(100)).expect("a free name");
    let other = service.runtime.root().create("other", Limits::new().max(100)).expect("a free name");
    let query = acme.create("q17", Limits::new()).expect("a free name");
    for bytes in 0..30 {
        assert!(query.try_charge(Bytes(101 + bytes)).is_err());
    }
    assert!(other.try_charge(Bytes(200)).is_err());
    query.offline().expect("no child");
    let mut client = service.client();
    let mut ask = |question: &Value| client.ask(question)["ok"].as_array().cloned().expect("a list");
    let last = ask(&json!({"incidents": {"path": "/acme", "most": 2}}));
    let figures: Vec<_> = last.iter().map(|one| (one["number"].as_u64(), one["requested"].as_u64())).collect();
    assert_eq!(figures, [(Some(29), Some(129)), (Some(30), Some(130))]);
    let expected = json!(["refused", "/acme/q17", "/acme", null, 0, 100]);
    let one = ["kind", "group", "limited", "counter", "usage", "max"].map(|field| last[0][field].clone());
    assert_eq!(json!(one), expected);
    assert_eq!(ask(&json!({"incidents": {"path": "/acme"}})).len(), 20, "unless asked for more");
    assert_eq!(ask(&json!({"incidents": {"path": "/other", "most": 1_000}})).len(), 1);
    let mut client = service.client();
    assert_eq!(client.refused(&json!({"incidents": {"path": "/", "most": 1_001}})), "most is 1000 at most");
    assert_eq!(client.refused(&json!({"incidents": {"path": "/nobody"}})), "no group /nobody");
}

#[test]
fn limits_are_set_where_allowed() {
    let set = json!({"set": {"path": "/", "file": "memory.max", "to": "1G"}});
    let service = Service::new(false);
    assert_eq!(service.client().refused(&set), "limits cannot be set here");
    assert_eq!(service.runtime.root().max(), u64::MAX);

    let service = Service::new(true);
    let mut client = service.client();
    if cfg!(target_os = "linux") {
        assert_eq!(client.ask(&set), json!({"ok": null}));
        assert_eq!(service.runtime.root().max(), 1 << 30);
        let odd = json!({"set": {"path": "/", "file": "memory.max", "to": "64 mb"}});
        assert!(client.refused(&odd).starts_with("memory.max of /: "));
        let read_only = json!({"set": {"path": "/", "file": "memory.current", "to": "1"}});
        assert_eq!(client.refused(&read_only), "memory.current of / cannot be written");
    } else {
        assert_eq!(client.refused(&set), "limits cannot be set here");
    }
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

#[test]
fn what_is_no_question() {
    let service = Service::new(true);
    let mut client = service.client();
    for text in [
        "",
        "{}",
        "null",
        "[]",
        "{\"get\":{}}",
        "{\"get\":{\"path\":\"/\"}}",
        "{\"metrics\":{\"x\":1}}",
        "get / memory.max",
        "{\"drop\":{}}",
        "\u{0}",
        "{\"get\":{\"path\":1,\"file\":2}}",
    ] {
        client.say(format!("{text}\n").as_bytes());
        let answer = client.line().expect("an answer");
        assert!(answer["error"].as_str().is_some_and(|error| error.starts_with("no question: ")), "{text:?}: {answer}");
    }
    client.say(b"\xff\xfe{\n");
    assert!(client.line().is_some_and(|answer| answer["error"].is_string()));
    // A line that never ends: an error, and the end.
    let mut client = service.client();
    client.say(&[b'x'; 4 << 10]);
    assert_eq!(client.line(), Some(json!({"error": "the question is longer than 4 KiB"})));
    assert_eq!(client.line(), None);
    assert_eq!(service.client().ask(&json!({"get": {"path": "/", "file": "memory.max"}})), json!({"ok": "max\n"}));
}

/// Random bytes and broken questions: each line is answered, and the service lives.
#[test]
fn any_bytes() {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    let service = Service::new(true);
    let mut random = StdRng::seed_from_u64(11);
    let whole = json!({"rows": {"path": "/acme", "depth": 1, "top": 3}}).to_string();
    let mut client = service.client();
    for _ in 0..3_000 {
        let mut line = whole.clone().into_bytes();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..=line.len());
            match random.random_range(0..3) {
                0 if at < line.len() => line[at] = random.random(),
                1 => line.insert(at, b"{}[]\",:\\0e-9"[random.random_range(0..12)]),
                _ => line.truncate(at),
            }
        }
        line.retain(|&byte| byte != b'\n');
        line.push(b'\n');
        client.say(&line);
        let answer = client.line().expect("an answer");
        assert!(answer.get("ok").is_some() != answer.get("error").is_some(), "{answer}");
    }
}

/// Clients that ask and do not read, or do not end what they say, hold up no other.
#[test]
fn slow_clients_hold_up_no_other() {
    let service = Service::new(false);
    // Rows with long paths: an answer is more than the system keeps for a client that does not read.
    let name = "x".repeat(200);
    let parent = service.runtime.root().create(name.as_str(), Limits::new()).expect("a free name");
    let groups: Vec<_> =
        (0..999_u64).map(|number| parent.create(number, Limits::new()).expect("a free name")).collect();
    let rows = json!({"rows": {"path": format!("/{name}"), "depth": 1, "top": 999}});
    let mut deaf: Vec<Client> = (0..50).map(|_| service.client()).collect();
    for client in &mut deaf {
        client.say(format!("{rows}\n").as_bytes());
    }
    let mut half: Vec<Client> = (0..100).map(|_| service.client()).collect();
    half.iter_mut().for_each(|client| client.say(b"{\"get\":"));
    let mut gone: Vec<Client> = (0..10).map(|_| service.client()).collect();
    gone.iter_mut().for_each(|client| client.say(format!("{rows}\n").as_bytes()));
    drop(gone);
    let mut client = service.client();
    let get = json!({"get": {"path": "/", "file": "memory.max"}});
    for _ in 0..20 {
        assert_eq!(client.ask(&get), json!({"ok": "max\n"}));
    }
    // A client that reads one byte at a time gets its whole answer.
    let mut slow = service.client();
    slow.say(format!("{get}\n").as_bytes());
    let mut byte = [0; 1];
    for expected in b"{\"ok\":\"max\\n\"}\n" {
        slow.0.get_mut().read_exact(&mut byte).expect("a byte");
        assert_eq!(byte[0], *expected);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Those that come back are served.
    half[0].say(b"{\"path\":\"/\",\"file\":\"memory.max\"}}\n");
    assert_eq!(half[0].line(), Some(json!({"ok": "max\n"})));
    // Those that kept their answers waiting longest are dropped, so that the rest is bounded; no answer is lost to others.
    let answers = deaf.iter_mut().map(|client| {
        let is_whole = |answer: &Value| answer["ok"]["rows"].as_array().is_some_and(|rows| rows.len() == 1_000);
        client.whole_line().is_some_and(|answer| is_whole(&answer))
    });
    let served = answers.filter(|is_served| *is_served).count();
    assert!((1..50).contains(&served), "{served} of 50");
    drop(groups);
}

/// More clients than there is room for: idle ones lose their place, and those that ask are served.
#[test]
fn a_thousand_clients() {
    let service = Service::new(false);
    let get = json!({"get": {"path": "/", "file": "memory.current"}});
    let mut clients: Vec<Client> = (0..1_000).map(|_| service.client()).collect();
    for client in &mut clients {
        assert_eq!(client.ask(&get), json!({"ok": "0\n"}));
    }
    std::thread::sleep(Duration::from_millis(1_100));
    let mut more: Vec<Client> = (0..100).map(|_| service.client()).collect();
    for client in &mut more {
        assert_eq!(client.ask(&get), json!({"ok": "0\n"}), "in the place of an idle one");
    }
    let is_dropped = |client: &mut Client| {
        client.0.get_mut().set_nonblocking(true).expect("a socket");
        match client.0.get_mut().read(&mut [0; 1]) {
            Ok(read) => read == 0,
            Err(fault) => fault.kind() == ErrorKind::ConnectionReset,
        }
    };
    let dropped = clients.iter_mut().map(is_dropped).filter(|is_dropped| *is_dropped).count();
    assert_eq!(dropped, 1_100 - 1_024);
}

#[test]
fn where_the_socket_is() {
    let service = Service::new(false);
    let path = service.serving.path().to_path_buf();
    let mode = |path: &PathBuf| fs::metadata(path).expect("the socket").permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600, "this user alone");
    let again = serve(&service.runtime, &path).expect_err("it is served");
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    let mut old = service.client();
    let Service { runtime, serving, folder } = service;
    drop(serving);
    assert!(!path.exists(), "it is removed");
    assert_eq!(old.line(), None, "clients are dropped");

    // What a process that was killed leaves.
    drop(UnixListener::bind(&path).expect("a free path"));
    let serving = Endpoint::new(&runtime).mode(0o660).serve(&path).expect("no process serves it");
    assert_eq!(mode(&path), 0o660);
    let get = json!({"get": {"path": "/", "file": "memory.max"}});
    assert_eq!(Client::new(path.clone()).ask(&get), json!({"ok": "max\n"}));
    drop(serving);

    let file = folder.path().join("file");
    fs::write(&file, "mine").expect("a file");
    assert_eq!(serve(&runtime, &file).expect_err("a file").kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&file).expect("still there"), "mine");
    assert!(serve(&runtime, folder.path().join("no/such/folder")).is_err());
    let left: Vec<_> =
        fs::read_dir(folder.path()).expect("the folder").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left, ["file"]);
}
