//! Resources of the process: descriptors, and its user.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use memcg::Runtime;
use memcg_observe::{Endpoint, serve};
use rustix::process::{Resource, Rlimit, Uid, setrlimit};
use rustix::thread::set_thread_res_uid;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::Client;

/// The path of the service in the process that the test starts for it.
const SOCKET: &str = "MEMCG_ENDPOINT_SOCKET";
/// Descriptors of that process.
const DESCRIPTORS: u64 = 64;

/// A service of few descriptors, in a process of its own.
struct Few {
    child: Child,
    input: ChildStdin,
    says: BufReader<ChildStderr>,
}

impl Few {
    fn new(socket: &PathBuf) -> Few {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args([
            "process::few_descriptors",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ]);
        command
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("this program starts again");
        let input = child.stdin.take().expect("piped");
        let says = BufReader::new(child.stderr.take().expect("piped"));
        Few { child, input, says }
    }

    /// Lets the service open as many files more, or close all. Returns how many it has, and its
    /// time on processors.
    fn files(&mut self, more: i32) -> (usize, Duration) {
        writeln!(self.input, "{more}").expect("the service reads");
        let mut line = String::new();
        self.says.read_line(&mut line).expect("the service says");
        let mut words = line
            .split_whitespace()
            .map(|word| word.parse::<u64>().unwrap_or_else(|_| panic!("{line}")));
        let mut next = || words.next().unwrap_or_else(|| panic!("{line:?}"));
        (next() as usize, Duration::from_micros(next()))
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn service_of_few(socket: PathBuf) {
    let most = Some(DESCRIPTORS);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: most,
            maximum: most,
        },
    )
    .expect("a lower limit");
    let runtime = Runtime::builder().build().expect("no odd setting");
    // The rows of all are more than the system keeps for a client that does not read.
    let group = |number: u64| {
        let name = format!("{number:0>200}");
        let group = runtime.root().create(name.as_str(), memcg::Limits::new());
        group.expect("a free name")
    };
    let _groups: Vec<_> = (0..900).map(group).collect();
    let _serving = serve(&runtime, socket).expect("a new socket");
    let mut files = Vec::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.parse::<i32>().expect("a number") {
            more @ 0.. => files.extend((0..more).map_while(|_| fs::File::open("/dev/null").ok())),
            _ => files.clear(),
        }
        let spent =
            Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("it has begun");
        eprintln!("{} {}", files.len(), spent.as_micros());
    }
}

/// Clients leave half of the descriptors to the service. Where that has used up its own, those who
/// are there are served, a new one waits, and the service does not spin.
#[test]
#[cfg(target_os = "linux")]
fn few_descriptors() {
    if let Some(socket) = env::var_os(SOCKET) {
        return service_of_few(socket.into());
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("memcg.sock");
    let mut service = Few::new(&socket);
    assert_eq!(service.files(0).0, 0, "it serves");
    let get = json!({"get": {"path": "/", "file": "memory.max"}});
    let max = || Some(json!({"ok": "max\n"}));
    let mut clients: Vec<Client> = (0..100).map(|_| Client::new(socket.clone())).collect();
    // The last one is answered or turned away, so the service has seen the others.
    if let Some(last) = clients.last_mut() {
        let _ = last.answer(&get);
    }
    assert_eq!(
        service.files(16).0,
        16,
        "the service has descriptors of its own"
    );
    drop(clients);
    let clients = (0..600).map(|_| {
        // The others may still be there.
        thread::sleep(Duration::from_millis(100));
        Client::new(socket.clone())
    });
    let mut old = { clients }
        .find_map(|mut client| (client.answer(&get) == max()).then_some(client))
        .expect("a place");

    assert!(
        service.files(1_000).0 < DESCRIPTORS as usize,
        "there are no more"
    );
    let mut new = Client::new(socket);
    new.say(format!("{get}\n").as_bytes());
    let before = service.files(0).1;
    thread::sleep(Duration::from_secs(2));
    assert_eq!(old.answer(&get), max());
    let spent = service.files(0).1 - before;
    assert!(
        spent < Duration::from_millis(500),
        "{spent:?} of a processor within 2 s in which nothing is to be done"
    );
    service.files(-1);
    assert_eq!(new.line(), max(), "once a descriptor is free");
}

/// Clients that ask and read nothing, or that never end what they ask, and more of them than there is
/// room for: whoever comes after them is served, while they hold on.
#[test]
#[cfg(target_os = "linux")]
fn deaf_clients_keep_nobody_out() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("memcg.sock");
    let mut service = Few::new(&socket);
    assert_eq!(service.files(0).0, 0, "it serves");
    let get = json!({"get": {"path": "/", "file": "memory.max"}});
    let rows = json!({"rows": {"path": "/", "depth": 1, "top": 900}});
    let mut whole = Client::new(socket.clone());
    let answer = whole.answer(&rows).expect("the service takes its time");
    let kept = rustix::net::sockopt::socket_send_buffer_size(whole.0.get_ref());
    assert!(answer.to_string().len() > kept.expect("a socket"));
    for said in [format!("{rows}\n"), "{\"get\":".to_string()] {
        let held: Vec<Client> = (0..4 * DESCRIPTORS)
            .map(|_| {
                let mut client = Client::new(socket.clone());
                // It may have been turned away.
                let _ = client.0.get_mut().write_all(said.as_bytes());
                client
            })
            .collect();
        // Those that have a place have been answered, and kept it waiting for a while.
        thread::sleep(Duration::from_secs(2));
        for number in 0..20 {
            let answer = Client::new(socket.clone()).answer(&get);
            assert_eq!(answer, Some(json!({"ok": "max\n"})), "{number} of {said:?}");
        }
        drop(held);
    }
}

/// If the file's permissions let others connect, they read and set nothing. Only root can be
/// another user for a while.
#[test]
#[cfg(target_os = "linux")]
fn another_user_sets_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("left out: only root can be another user for a while");
        return;
    }
    let runtime = Runtime::builder().build().expect("no odd setting");
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("its own folder");
    let endpoint = Endpoint::new(&runtime).allow_set(true);
    let serve = |name: &str, mode: u32| {
        endpoint
            .clone()
            .mode(mode)
            .serve(folder.path().join(name))
            .expect("a socket")
    };
    let closed = serve("closed", 0o600);
    let open = serve("open", 0o666);
    let set = json!({"set": {"path": "/", "file": "memory.max", "to": "1G"}});
    let other = || {
        // The kernel has the user of each thread, and this one ends here.
        let nobody = Uid::from_raw(65_534);
        set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        let refused = UnixStream::connect(closed.path()).expect_err("no permission");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        let mut client = Client::new(open.path().to_path_buf());
        assert_eq!(
            client.ask(&json!({"get": {"path": "/", "file": "memory.max"}})),
            json!({"ok": "max\n"})
        );
        assert_eq!(client.refused(&set), "limits cannot be set here");
    };
    thread::scope(|scope| scope.spawn(other).join()).expect("the other user's thread");
    assert_eq!(runtime.root().max(), u64::MAX);
    assert_eq!(
        Client::new(open.path().to_path_buf()).ask(&set),
        json!({"ok": null}),
        "the own user"
    );
    assert_eq!(runtime.root().max(), 1 << 30);
}
