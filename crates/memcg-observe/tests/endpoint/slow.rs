//! Clients that are slow, and more of them than there is room for.

use std::collections::HashSet;
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memcg::{Bytes, Group, Limits, Runtime};
use memcg_observe::{Endpoint, Exposition};
use rustix::net::{RecvFlags, recv};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::{Client, Service};

/// A question with an answer that is more than the system keeps for a client that does not read:
/// rows with long paths. With the groups that it asks for.
fn large(runtime: &Runtime) -> (Value, Vec<Group>) {
    let name = "x".repeat(200);
    let parent = runtime
        .root()
        .create(name.as_str(), Limits::new())
        .expect("a free name");
    let children =
        (0..999_u64).map(|number| parent.create(number, Limits::new()).expect("a free name"));
    let groups = children.chain([parent.clone()]).collect();
    (
        json!({"rows": {"path": format!("/{name}"), "depth": 1, "top": 999}}),
        groups,
    )
}

/// Clients that ask and do not read, or do not end what they say, hold up no other.
#[test]
fn slow_clients_hold_up_no_other() {
    let service = Service::new(false);
    let (rows, groups) = large(&service.runtime);
    let mut deaf: Vec<Client> = (0..50).map(|_| service.client()).collect();
    for client in &mut deaf {
        client.say(format!("{rows}\n").as_bytes());
    }
    let mut half: Vec<Client> = (0..100).map(|_| service.client()).collect();
    half.iter_mut().for_each(|client| client.say(b"{\"get\":"));
    let mut gone: Vec<Client> = (0..10).map(|_| service.client()).collect();
    gone.iter_mut()
        .for_each(|client| client.say(format!("{rows}\n").as_bytes()));
    drop(gone);
    let mut client = service.client();
    let get = json!({"get": {"path": "/", "file": "memory.max"}});
    for _ in 0..20 {
        assert_eq!(client.ask(&get), json!({"ok": "max\n"}));
    }
    // Those that come back are served.
    half[0].say(b"{\"path\":\"/\",\"file\":\"memory.max\"}}\n");
    assert_eq!(half[0].line(), Some(json!({"ok": "max\n"})));
    // Those that kept their answers waiting longest are dropped, so that the rest is bounded; no
    // answer is lost to others.
    let answers = deaf.iter_mut().map(|client| {
        let is_whole = |answer: &Value| {
            answer["ok"]["rows"]
                .as_array()
                .is_some_and(|rows| rows.len() == 1_000)
        };
        client.whole_line().is_some_and(|answer| is_whole(&answer))
    });
    let served = answers.filter(|is_served| *is_served).count();
    assert!((1..50).contains(&served), "{served} of 50");
    drop(groups);
}

/// Above the bound of kept bytes, the client that has kept its answer waiting longest is dropped.
#[test]
fn the_newest_of_slow_clients_are_kept() {
    let service = Service::new(false);
    let (rows, groups) = large(&service.runtime);
    let mut other = service.client();
    let asks = |_| {
        let mut client = service.client();
        client.say(format!("{rows}\n").as_bytes());
        // It has been answered once a later question has.
        other.ask(&json!({"get": {"path": "/", "file": "memory.max"}}));
        client
    };
    let mut deaf: Vec<Client> = (0..20).map(asks).collect();
    let served: Vec<bool> = deaf
        .iter_mut()
        .map(|client| client.whole_line().is_some())
        .collect();
    assert!(served.is_sorted() && !served[0] && served[19], "{served:?}");
    drop(groups);
}

/// A client that says its question byte by byte and takes its answer in small pieces gets the whole
/// of it, and another is served between any two of them.
#[test]
fn a_client_that_takes_its_time() {
    let service = Service::new(false);
    let (rows, groups) = large(&service.runtime);
    let mut slow = service.client();
    let mut other = service.client();
    let get = json!({"get": {"path": "/", "file": "memory.max"}});
    let mut others_turn = || {
        thread::sleep(Duration::from_millis(1));
        assert_eq!(other.ask(&get), json!({"ok": "max\n"}));
    };
    for byte in format!("{rows}\n").bytes() {
        slow.say(&[byte]);
        others_turn();
    }
    let mut answer = Vec::new();
    let mut piece = [0; 4 << 10];
    while answer.last() != Some(&b'\n') {
        let read = slow
            .0
            .get_mut()
            .read(&mut piece)
            .expect("the service waits");
        assert_ne!(
            read,
            0,
            "the service has dropped it after {} bytes",
            answer.len()
        );
        answer.extend_from_slice(&piece[..read]);
        others_turn();
    }
    // Else the service has never waited for it.
    let kept = rustix::net::sockopt::socket_send_buffer_size(slow.0.get_ref()).expect("a socket");
    assert!(
        answer.len() > 2 * kept,
        "{} bytes, and the system keeps {kept}",
        answer.len()
    );
    let answer: Value = serde_json::from_slice(&answer).expect("a whole line");
    assert_eq!(answer["ok"]["rows"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(
        slow.ask(&get),
        json!({"ok": "max\n"}),
        "and it may ask again"
    );
    drop(groups);
}

/// Counts the clients that have an answer that they have not read.
fn answered(clients: &[Client]) -> usize {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let has_some = |client: &&Client| {
        recv(client.0.get_ref(), &mut [0_u8; 1], flags).is_ok_and(|(read, _)| read > 0)
    };
    clients.iter().filter(has_some).count()
}

/// Clients that ask what costs much, and never read: one that asks something small is served before
/// most of them, and one reading of the metrics is the answer to many.
#[test]
fn dear_questions_delay_no_other() {
    const DEAF: usize = 300;
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let root = runtime.root();
    let groups: Vec<Group> = (0..2_000_u64)
        .map(|name| root.create(name, Limits::new()).expect("a free name"))
        .collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let endpoint = Endpoint::new(&runtime).exposition(Exposition::new(&runtime).depth(1).top(500));
    let serving = endpoint
        .serve(folder.path().join("s"))
        .expect("a new socket");
    let client = || Client::new(serving.path().to_path_buf());
    let get = json!({"get": {"path": "/", "file": "memory.max"}});
    let mut other = client();
    let asked = |dear: &Value| {
        let mut deaf: Vec<Client> = (0..DEAF).map(|_| client()).collect();
        deaf.iter_mut()
            .for_each(|client| client.say(format!("{dear}\n").as_bytes()));
        deaf
    };
    let rows = json!({"rows": {"path": "/", "depth": 1, "top": 1_000}});
    // The service learns what it costs.
    assert!(client().ask(&rows)["ok"].is_object());
    let deaf = asked(&rows);
    let before = answered(&deaf);
    assert_eq!(other.ask(&get), json!({"ok": "max\n"}));
    let meanwhile = answered(&deaf) - before;
    assert!(
        meanwhile < DEAF / 3,
        "{meanwhile} of {DEAF} were served before"
    );
    drop(deaf);

    // Each reading shows another usage.
    let done = AtomicBool::new(false);
    let first_usage = "memcg_usage_bytes{group=\\\"/\\\",depth=\\\"0\\\"} ";
    let readings = thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = Vec::new();
            while !done.load(Ordering::Relaxed) {
                held.push(root.force_charge(Bytes(1)));
                thread::sleep(Duration::from_micros(100));
            }
        });
        let mut deaf = asked(&json!({"metrics": {}}));
        let answer = |client: &mut Client| {
            let mut text = String::new();
            let mut piece = [0; 1 << 10];
            while !text
                .split(first_usage)
                .nth(1)
                .is_some_and(|rest| rest.contains('\\'))
            {
                match client.0.get_mut().read(&mut piece) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => text += &String::from_utf8_lossy(&piece[..read]),
                }
            }
            let figure = text.split(first_usage).nth(1)?.split('\\').next()?;
            figure.parse::<u64>().ok()
        };
        let readings: Vec<u64> = deaf.iter_mut().filter_map(answer).collect();
        done.store(true, Ordering::Relaxed);
        readings
    });
    let distinct: HashSet<&u64> = readings.iter().collect();
    assert!(
        readings.len() > DEAF / 2,
        "{} of {DEAF} were answered",
        readings.len()
    );
    assert!(
        distinct.len() < DEAF / 6,
        "{} readings for {} clients",
        distinct.len(),
        readings.len()
    );
    drop(groups);
}

/// More clients than there is room for: idle ones lose their place, and those that ask are served.
#[test]
fn a_thousand_clients() {
    // Both ends of each are in this process. The service leaves half of its descriptors to others.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let enough = maximum.map_or(8_192, |most| most.min(8_192));
    if current.is_some_and(|most| most < enough) {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(enough),
                maximum,
            },
        )
        .expect("the soft limit rises");
    }
    let service = Service::new(false);
    let get = json!({"get": {"path": "/", "file": "memory.current"}});
    let mut clients: Vec<Client> = (0..1_000).map(|_| service.client()).collect();
    for client in &mut clients {
        assert_eq!(client.ask(&get), json!({"ok": "0\n"}));
    }
    thread::sleep(Duration::from_millis(1_100));
    let mut more: Vec<Client> = (0..100).map(|_| service.client()).collect();
    for client in &mut more {
        assert_eq!(
            client.ask(&get),
            json!({"ok": "0\n"}),
            "in the place of an idle one"
        );
    }
    let is_dropped = |client: &mut Client| {
        client.0.get_mut().set_nonblocking(true).expect("a socket");
        match client.0.get_mut().read(&mut [0; 1]) {
            Ok(read) => read == 0,
            Err(fault) => fault.kind() == ErrorKind::ConnectionReset,
        }
    };
    let dropped = clients
        .iter_mut()
        .map(is_dropped)
        .filter(|is_dropped| *is_dropped)
        .count();
    assert_eq!(dropped, 1_100 - 1_024);
}
